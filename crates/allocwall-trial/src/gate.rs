//! `--fail-on 'p99>+5%'`: makes a trial fail a CI pipeline.

use super::{Metric, Outcome, TrialResult};
use allocwall_model::error::{Error, Result};

/// A metric, and the relative change beyond which the trial fails.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    pub metric: String,
    /// Positive: a larger change fails. Negative: a smaller (more negative) change fails.
    pub change: f64,
}

impl Gate {
    /// # Errors
    /// `Refused`: not of the form METRIC>+N% or METRIC<-N%.
    pub fn parse(text: &str) -> Result<Gate> {
        let wrong = || {
            Error::Refused(format!(
                "--fail-on {text}: not a gate; write METRIC>+N% if METRIC must not grow, METRIC<-N% if it must not shrink, for example wall_s>+5%"
            ))
        };
        let at = text.find(['>', '<']).ok_or_else(wrong)?;
        let (metric, rest) = text.split_at(at);
        let number = rest[1..].trim().strip_suffix('%').ok_or_else(wrong)?;
        let change: f64 = number.trim().parse().map_err(|_| wrong())?;
        let upward = rest.starts_with('>');
        let metric = metric.trim();
        if metric.is_empty() || !change.is_finite() || (change > 0.0) != upward || change == 0.0 {
            return Err(wrong());
        }
        Ok(Gate { metric: metric.to_owned(), change: change / 100.0 })
    }

    /// Whether the gate names this metric, by its key or by the last parts of its key: `p99` matches `response_p99` and
    /// `response_p99@70%`.
    pub fn is_of(&self, metric: &Metric) -> bool {
        let key = metric.key.split('@').next().unwrap_or_default();
        let name = self.metric.as_str();
        metric.key == name || key == name || (name.len() < key.len() && key.ends_with(&format!("_{name}")))
    }

    /// The metrics that the gate names.
    ///
    /// # Errors
    /// `Refused`: it names none of them.
    pub fn among<'a>(&self, metrics: &'a [Metric]) -> Result<Vec<&'a Metric>> {
        let own: Vec<&Metric> = metrics.iter().filter(|m| self.is_of(m)).collect();
        if own.is_empty() {
            let known: Vec<&str> = metrics.iter().map(|m| m.key.as_str()).collect();
            return Err(Error::Refused(format!(
                "--fail-on: no metric {}; the metrics are {}",
                self.metric,
                known.join(", ")
            )));
        }
        Ok(own)
    }

    /// Why the gate fails: the first arm that is better or worse and changed by more than the gate allows, or that could not be
    /// compared. None if the gate passes.
    ///
    /// # Errors
    /// `Refused`: the trial has no such metric.
    pub fn stops(&self, outcome: &TrialResult) -> Result<Option<String>> {
        let metrics = self.among(&outcome.design.metrics)?;
        let stopped =
            outcome.comparisons.iter().filter(|c| metrics.iter().any(|m| m.key == c.metric)).find_map(|c| {
                let arm = &outcome.design.arms[c.arm].name;
                match &c.effect {
                    Err(why) => Some(format!("{arm}: {} could not be compared: {why}", c.metric)),
                    Ok(effect) => {
                        let beyond = if self.change > 0.0 {
                            effect.point > self.change
                        } else {
                            effect.point < self.change
                        };
                        let decided = matches!(c.outcome, Outcome::Better | Outcome::Worse);
                        (beyond && decided).then(|| {
                            format!(
                                "{arm}: {} changed by {:+.1} %; the gate is {:+.1} %",
                                c.metric,
                                effect.point * 100.0,
                                self.change * 100.0
                            )
                        })
                    }
                }
            });
        Ok(stopped)
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Direction, Unit};
    use super::*;

    #[test]
    fn valid_and_invalid_gates() {
        let gate = |metric: &str, change| Gate { metric: metric.into(), change };
        assert_eq!(Gate::parse("p99>+5%").unwrap(), gate("p99", 0.05));
        assert_eq!(Gate::parse("throughput < -3 %").unwrap(), gate("throughput", -0.03));
        for bad in ["p99", "p99>5", "p99>-5%", "p99<+5%", ">+5%", "p99>+0%", "p99>+x%", "p99=5%"] {
            assert!(Gate::parse(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_gate_matches_a_key_or_the_last_parts_of_a_key() {
        let metric = |key: &str| Metric {
            key: key.into(),
            title: String::new(),
            unit: Unit::Ns,
            direction: Direction::LowerIsBetter,
            primary: true,
        };
        let gate = Gate::parse("p99>+5%").unwrap();
        for key in ["p99", "response_p99", "response_p99@70%"] {
            assert!(gate.is_of(&metric(key)), "{key}");
        }
        for key in ["p999", "response_p999", "xp99"] {
            assert!(!gate.is_of(&metric(key)), "{key}");
        }
    }
}
