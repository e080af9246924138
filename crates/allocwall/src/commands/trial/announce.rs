//! What a trial says before its first run: the arms, the plan, and what the plan can resolve.

use crate::commands::shared::progress::{percent, roughly};
use allocwall_model::units;
use allocwall_trial::BASELINES;
use allocwall_trial::conduct::{Length, PILOT};
use allocwall_trial::plan;

/// Noise of single runs for which the plan's resolution is shown before the noise is known.
const ASSUMED_NOISE: f64 = 0.01;

/// A plan before the first run.
pub struct Plan<'a> {
    /// A, A′ and the remedies.
    pub names: &'a [String],
    pub length: Length,
    /// Number of comparisons that share the level. If it is not known yet: the smallest that it can be.
    pub family: usize,
    /// Runs of each arm before the first block.
    pub warm_up: u64,
    /// Blocks that are done: of a trial that is continued.
    pub done: usize,
    /// A smallest time of one block, if it follows from the options.
    pub each_s: Option<f64>,
}

impl Plan<'_> {
    pub fn lines(&self) -> Vec<String> {
        let arms = self.names.len();
        let mut named = vec!["the command itself, twice (A and A′)".to_owned()];
        named.extend(self.names.iter().skip(BASELINES).cloned());
        let before = match self.warm_up {
            1 => "first 1 run of each arm that is not counted".to_owned(),
            runs => format!("first {runs} runs of each arm that are not counted"),
        };
        let block = format!("a block runs every arm once, in random order ({arms} runs)");
        let plan = match self.length {
            Length::Blocks(count) => {
                let done =
                    if self.done > 0 { format!(", {} of them done", self.done) } else { String::new() };
                let runs = (count.saturating_sub(self.done)) * arms;
                format!("{}{done}: {runs} runs; {block}", units::count(count, "block"))
            }
            Length::Budget(budget) => {
                format!("as many blocks as fit into {}; {block}", roughly(budget.as_secs_f64()))
            }
            Length::Effect(_) => {
                format!("the first {PILOT} blocks or more show the noise and so the number; {block}")
            }
        };
        let mut lines = vec![format!("arms: {}", named.join(", ")), format!("plan: {before}; then {plan}")];
        lines.push(format!("result: {}", self.resolves()));
        if let (Some(each_s), Length::Blocks(count)) = (self.each_s, self.length) {
            let left = count.saturating_sub(self.done);
            lines.push(estimated_time(left, each_s, "at least"));
        }
        lines
    }

    fn fewest(&self) -> usize {
        plan::fewest_blocks(self.names.len(), self.family)
    }

    /// In short: what the plan can show.
    fn resolves(&self) -> String {
        let needs = format!("to be better or worse, an arm needs at least {} blocks", self.fewest());
        let Length::Blocks(count) = self.length else { return needs };
        let noise = plan::noise_of_runs(ASSUMED_NOISE, self.names.len());
        match plan::resolves(count, noise, self.names.len(), self.family) {
            Some(effect) => format!(
                "{needs}; if runs of one arm differ by {}, {count} blocks find changes of {} or more",
                percent(ASSUMED_NOISE),
                percent(effect)
            ),
            None => needs,
        }
    }

    /// Too few blocks for a result.
    pub fn warning(&self) -> Option<String> {
        let Length::Blocks(count) = self.length else { return None };
        let fewest = self.fewest();
        (count < fewest).then(|| {
            let compared = match self.names.len().saturating_sub(BASELINES) {
                0 => "the baseline alone".to_owned(),
                1 => "1 remedy".to_owned(),
                remedies => format!("{remedies} remedies"),
            };
            let blocks = units::count(count, "block");
            format!(
                "{blocks} can't give a result with {compared}: {fewest} are needed (--blocks {fewest}); effects and medians will be \
                 shown, but nothing can be called better or worse"
            )
        })
    }
}

/// `bound`: "about" or "at least".
pub fn estimated_time(blocks: usize, each_s: f64, bound: &str) -> String {
    let all = roughly(blocks as f64 * each_s);
    format!("time: {bound} {all}, {} of {each_s:.1} s", units::count(blocks, "block"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn plan(names: &[String], length: Length) -> Plan<'_> {
        let family = names.len().saturating_sub(BASELINES).max(1);
        Plan { names, length, family, warm_up: 1, done: 0, each_s: None }
    }

    fn names(remedies: &[&str]) -> Vec<String> {
        ["A", "A′"].iter().chain(remedies).map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_plan_names_its_arms_its_runs_and_what_it_resolves() {
        let names = names(&["jemalloc", "mimalloc"]);
        let lines = plan(&names, Length::Blocks(12)).lines();
        assert_eq!(lines[0], "arms: the command itself, twice (A and A′), jemalloc, mimalloc");
        assert!(lines[1].contains("12 blocks: 48 runs"), "{lines:?}");
        assert!(
            lines[2].starts_with("result: to be better or worse, an arm needs at least 4 blocks; "),
            "{lines:?}"
        );
        assert!(lines[2].contains("12 blocks find changes of "), "{lines:?}");
        assert_eq!(lines.len(), 3);
        // With a known time, and of a trial that is continued.
        let known = Plan { each_s: Some(30.0), done: 2, ..plan(&names, Length::Blocks(12)) };
        assert!(known.lines()[1].contains("12 blocks, 2 of them done: 40 runs"), "{:?}", known.lines());
        assert_eq!(known.lines()[3], "time: at least 5 minutes, 10 blocks of 30.0 s");
        let budget = plan(&names, Length::Budget(Duration::from_secs(300)));
        assert!(budget.lines()[1].contains("as many blocks as fit into 5 minutes"), "{:?}", budget.lines());
    }

    #[test]
    fn too_few_blocks_are_known_before_the_first_run_and_enough_are_not_warned_of() {
        let names = names(&["jemalloc", "mimalloc", "tcmalloc"]);
        let fewest = plan::fewest_blocks(names.len(), 3);
        let warning = plan(&names, Length::Blocks(fewest - 1)).warning().unwrap_or_default();
        let needed = format!("can't give a result with 3 remedies: {fewest} are needed (--blocks {fewest})");
        assert!(warning.contains(&needed), "{warning}");
        assert_eq!(plan(&names, Length::Blocks(fewest)).warning(), None);
        // More primary metrics share the level.
        let more = Plan { family: 12, ..plan(&names, Length::Blocks(fewest)) };
        assert!(more.warning().is_some());
        assert_eq!(plan(&names, Length::Effect(None)).warning(), None);
    }
}
