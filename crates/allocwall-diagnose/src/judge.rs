//! Judges a share with its interval against the table of thresholds. The result is one of the four statuses.

use super::context::{percent, percent_interval};
use super::{Finding, ShellLine, Status, Whole};
use allocwall_model::catalogue::thresholds::{self, Floor, Threshold};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

/// A finding, and its cost, by which the walls are sorted.
#[derive(Clone, Debug)]
pub struct Judged {
    pub finding: Finding,
    /// Seconds lost per second of the window (bytes for retention).
    pub cost: f64,
    /// The measured share, with which the reason begins: `48 % (45–51 %) of CPU goes to …`. Empty if nothing was
    /// measured.
    figures: String,
}

/// What a rung measured.
pub struct Case<'a> {
    pub wall: Wall,
    pub share: Interval,
    pub of: Whole,
    /// In the unit of the wall's floor.
    pub amount: Interval,
    /// The whole that the share belongs to, for the text: "of CPU".
    pub unit: &'a str,
    /// The text after share and unit: "goes to faulting in pages".
    pub phrase: &'a str,
    pub show: ShellLine,
}

/// An interval that starts below the contributor threshold and is wider than this fraction of the whole is not judged.
const TOO_WIDE: f64 = 0.5;

impl Case<'_> {
    pub fn judge(self) -> Judged {
        self.judge_undisturbed(1.0)
    }

    /// Compares `times` the amount with the floor: what it would be if the target had the CPU whenever it could run. The share
    /// stays the same.
    pub fn judge_undisturbed(self, times: f64) -> Judged {
        let t = thresholds::of(self.wall);
        let undisturbed = Undisturbed { times, amount: self.amount.scaled(times) };
        let status = status(t, self.share, undisturbed.amount);
        let figures = figures(&self);
        let because = because(t, status, &self, undisturbed, &figures);
        let width = self.share.high - self.share.low;
        // Nothing was seen of it, but too few samples were taken to rule it out.
        let unseen = self.share.point == 0.0;
        if status == Status::Contributor && self.share.low < t.contributor && (width > TOO_WIDE || unseen) {
            let detail = if unseen {
                let most = percent(self.share.high);
                format!("none was seen, but it may be up to {most} {}: too few samples", self.unit)
            } else {
                let figure = format!("{} {}", percent_interval(self.share), self.unit);
                format!("{figure}: the interval is too wide to judge")
            };
            let absence = Absence::new(Reason::TooLittle, detail).mend("use a longer window: -d 60");
            return Judged::not_measured(self.wall, self.of, absence, self.show);
        }
        Judged {
            cost: self.amount.point,
            figures,
            finding: Finding {
                wall: self.wall,
                rung: self.wall.rung(),
                status,
                share: Some(self.share),
                of: self.of,
                because,
                evidence: Vec::new(),
                show: self.show,
                missing: None,
                estimate: None,
            },
        }
    }
}

/// An amount as it would be if the target had the CPU whenever it could run: `times` the measured one.
#[derive(Clone, Copy)]
struct Undisturbed {
    times: f64,
    amount: Interval,
}

const IF_UNDISTURBED: &str = " if it had the CPU";

impl Undisturbed {
    /// The condition, unless the measured amount is about the same.
    fn condition(self) -> &'static str {
        const ABOUT_THE_SAME: f64 = 1.05;
        if self.times > ABOUT_THE_SAME { IF_UNDISTURBED } else { "" }
    }
}

/// `Wall` needs the whole interval above the wall threshold. `RuledOut` needs the whole interval below the
/// contributor threshold.
fn status(t: &Threshold, share: Interval, amount: Interval) -> Status {
    let floor = floor_of(t);
    if share.high < t.contributor || amount.high < floor {
        Status::RuledOut
    } else if share.low >= t.wall_from && amount.low >= floor {
        Status::Wall
    } else {
        Status::Contributor
    }
}

fn floor_of(t: &Threshold) -> f64 {
    match t.floor {
        Floor::PerSecond(f) | Floor::Bytes(f) => f,
        Floor::None => 0.0,
    }
}

fn figures(case: &Case) -> String {
    format!("{} {} {}", percent_interval(case.share), case.unit, case.phrase)
}

fn because(t: &Threshold, status: Status, case: &Case, undisturbed: Undisturbed, figures: &str) -> String {
    let (contributor, wall) = (percent(t.contributor), percent(t.wall_from));
    let (amount, condition) = (undisturbed.amount, undisturbed.condition());
    match status {
        Status::Wall if case.amount.low < floor_of(t) => format!(
            "{figures}; wall threshold {wall}; {}, {}{IF_UNDISTURBED}",
            floor_text(t, case.amount.point),
            floor_text(t, amount.point)
        ),
        Status::Wall => format!("{figures}; wall threshold {wall}"),
        Status::Contributor if case.share.low < t.contributor => {
            format!("{figures}; the interval includes the contributor threshold, {contributor}")
        }
        Status::Contributor if amount.low < floor_of(t) => {
            let least = floor_text(t, amount.low);
            format!("{figures}; but it may be only {least}{condition}, too little to notice")
        }
        Status::Contributor if case.share.high >= t.wall_from => {
            format!("{figures}; the interval includes the wall threshold, {wall}")
        }
        Status::Contributor => format!("{figures}; contributor threshold {contributor}"),
        _ if case.share.high < t.contributor => small(t, case),
        _ => {
            let head = if condition.is_empty() { "too little: " } else { "" };
            let (share, most) = (percent(case.share.point), floor_text(t, amount.high));
            format!("{share} {}; {head}at most {most}{condition}", case.unit)
        }
    }
}

/// Text for a wall that its share rules out: the share, its upper bound and, if the bound is near it, the threshold.
fn small(t: &Threshold, case: &Case) -> String {
    let Interval { point, high, .. } = case.share;
    let bound = match percent(high) {
        // Rounded, it would be the threshold itself.
        bound if bound == percent(t.contributor) => format!(" (< {bound})"),
        bound if bound != percent(point) => format!(" (≤ {bound})"),
        _ => String::new(),
    };
    let near = if high >= t.contributor / 2.0 {
        format!("; threshold {}", percent(t.contributor))
    } else {
        String::new()
    };
    format!("{} {}{bound}{near}", percent(point), case.unit)
}

fn floor_text(t: &Threshold, amount: f64) -> String {
    match t.floor {
        Floor::Bytes(_) => super::context::bytes(amount),
        _ => format!("{:.0} ms a second", amount * 1e3),
    }
}

impl Judged {
    pub fn not_measured(wall: Wall, of: Whole, missing: Absence, show: ShellLine) -> Self {
        let mut judged = Judged::without_figures(wall, of, Status::NotMeasured, missing.detail.clone(), show);
        judged.finding.missing = Some(missing);
        judged
    }

    fn without_figures(wall: Wall, of: Whole, status: Status, because: String, show: ShellLine) -> Self {
        Judged {
            cost: 0.0,
            figures: String::new(),
            finding: Finding {
                wall,
                rung: wall.rung(),
                status,
                share: None,
                of,
                because,
                evidence: Vec::new(),
                show,
                missing: None,
                estimate: None,
            },
        }
    }

    /// `self` is judged on the known cost, `at_most` on the known cost plus all unknown cost that may belong to it.
    /// If only the known cost rules the wall out, the wall was not measured.
    pub fn unless_hidden(self, at_most: Judged, why: impl FnOnce() -> Absence) -> Judged {
        let hidden = match (self.finding.status, at_most.finding.status) {
            (Status::NotMeasured, _) => return self,
            (Status::RuledOut, may_be) => may_be != Status::RuledOut,
            (_, may_be) => may_be == Status::NotMeasured,
        };
        if !hidden {
            return at_most;
        }
        let Finding { wall, of, show, .. } = self.finding;
        Judged::not_measured(wall, of, why(), show)
    }

    /// Ruled out by a fact rather than by a share.
    pub fn ruled_out(wall: Wall, of: Whole, because: impl Into<String>, show: ShellLine) -> Self {
        Judged::without_figures(wall, of, Status::RuledOut, because.into(), show).share(Interval::exact(0.0))
    }

    pub fn evidence(mut self, line: impl Into<String>) -> Self {
        self.finding.evidence.push(line.into());
        self
    }

    pub fn evidence_if(self, line: Option<String>) -> Self {
        match line {
            Some(line) => self.evidence(line),
            None => self,
        }
    }

    pub fn estimate(mut self, kind: impl Into<String>) -> Self {
        self.finding.estimate = Some(kind.into());
        self
    }

    pub fn share(mut self, share: Interval) -> Self {
        self.finding.share = Some(share);
        self
    }

    /// Turns a wall into a contributor if another wall explains it better.
    pub fn at_most_contributor(mut self, why: &str) -> Self {
        if self.finding.status == Status::Wall {
            self.finding.status = Status::Contributor;
            self.finding.because = format!("{}; {why}", self.figures);
        }
        self
    }

    pub fn because_also(mut self, reason: &str) -> Self {
        self.finding.because = format!("{}; {reason}", self.finding.because);
        self
    }

    pub fn is(&self, status: Status) -> bool {
        self.finding.status == status
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn judged(low: f64, high: f64, rate: f64) -> Judged {
        case(low, high, rate).judge()
    }

    fn case(low: f64, high: f64, rate: f64) -> Case<'static> {
        let share = Interval::new(low, (low + high) / 2.0, high);
        Case {
            wall: Wall::FirstTouch,
            share,
            of: Whole::Cpu,
            amount: share.scaled(rate),
            unit: "of CPU",
            phrase: "is spent",
            show: ShellLine::default(),
        }
    }

    #[test]
    fn the_interval_decides_not_the_point() {
        assert_eq!(judged(0.16, 0.20, 1.0).finding.status, Status::Wall);
        let straddling = judged(0.14, 0.22, 1.0).finding;
        assert_eq!(straddling.status, Status::Contributor);
        assert!(straddling.because.ends_with(" 15 %"), "{}", straddling.because);
        let low = judged(0.03, 0.07, 1.0).finding;
        assert_eq!(low.status, Status::Contributor);
        assert!(low.because.ends_with(" 5 %"), "{}", low.because);
        assert_eq!(judged(0.03, 0.049, 1.0).finding.status, Status::RuledOut);
        // A bound that rounds to the threshold is still below it.
        let near = judged(0.03, 0.0499, 1.0).finding;
        assert_eq!(
            (near.status, near.because.contains("(< 5 %)")),
            (Status::RuledOut, true),
            "{}",
            near.because
        );
        assert!(judged(0.03, 0.049, 1.0).finding.because.contains("(≤ 4.9 %)"));
    }

    #[test]
    fn the_floor_is_for_a_target_that_has_the_cpu() {
        let of = |times| case(0.19, 0.23, 0.2).judge_undisturbed(times).finding;
        let starved = of(3.0);
        assert_eq!(starved.status, Status::Wall);
        assert!(
            starved.because.ends_with("; 42 ms a second, 126 ms a second if it had the CPU"),
            "{}",
            starved.because
        );
        // Its twin used as little CPU time, because it wanted no more.
        let idle = of(1.0);
        assert_eq!(idle.status, Status::RuledOut);
        assert!(idle.because.ends_with("too little: at most 46 ms a second"), "{}", idle.because);
        let both = of(1.08);
        assert_eq!(both.status, Status::RuledOut);
        assert_eq!(both.because, "21 % of CPU; at most 50 ms a second if it had the CPU");
        assert!(both.because.chars().count() <= 60);
    }

    #[test]
    fn what_was_not_seen_is_ruled_out_only_by_enough_samples() {
        let unseen =
            |high| Case { share: Interval::new(0.0, 0.0, high), ..case(0.0, high, 1.0) }.judge().finding;
        let few = unseen(0.067);
        assert_eq!(few.status, Status::NotMeasured);
        assert!(few.because.contains("up to 6.7 % of CPU"), "{}", few.because);
        assert_eq!(unseen(0.04).status, Status::RuledOut);
        assert_eq!(judged(0.001, 0.067, 1.0).finding.status, Status::Contributor);
    }

    #[test]
    fn an_interval_that_covers_nearly_everything_is_no_measurement() {
        let wide = judged(0.0, 0.96, 1.0).finding;
        assert_eq!(wide.status, Status::NotMeasured);
        let figures = percent_interval(Interval::new(0.0, 0.48, 0.96));
        assert!(wide.because.starts_with(&figures), "{}", wide.because);
        assert!(wide.missing.is_some_and(|m| m.reason == Reason::TooLittle && !m.mend.is_empty()));
        // The whole interval is above the contributor threshold.
        assert_eq!(judged(0.06, 0.96, 1.0).finding.status, Status::Contributor);
        assert_eq!(judged(0.0, 0.96, 0.01).finding.status, Status::RuledOut);
    }

    #[test]
    fn a_share_without_the_floor_is_no_wall() {
        assert_eq!(judged(0.60, 0.70, 0.05).finding.status, Status::RuledOut);
        let around = judged(0.60, 0.70, 0.075).finding;
        assert_eq!(around.status, Status::Contributor);
        // What the lower end is in seconds: 60 % of 0.075 CPUs.
        assert!(around.because.contains("45 ms"), "{}", around.because);
        assert_eq!(judged(0.60, 0.70, 0.1).finding.status, Status::Wall);
    }
}
