//! A limit for a change, as a gate in CI: `first-touch>+3%`.

use super::{Diff, Outcome, Quantity, Unit};
use allocwall_model::catalogue::nearest;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::stats::difference;
use allocwall_model::units::Interval;
use std::fmt;

/// The whole interval of a change must be above the limit.
#[derive(Clone, Debug, PartialEq)]
pub struct Gate {
    quantity: Quantity,
    /// Of a share: points of CPU, as a fraction. Of the others: a part of the value before.
    limit: f64,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Judged {
    Met(String),
    NotMet,
    /// The interval has the limit in it.
    Undecided(String),
    NotMeasured(String),
}

impl Gate {
    /// # Errors
    /// The form is wrong, or the name is unknown: then with the nearest ones.
    pub fn parse(text: &str) -> Result<Gate, String> {
        const FORM: &str = "a limit is NAME>+N%: first-touch>+3%, resident>+10%";
        let (name, limit) = text.split_once('>').ok_or(FORM)?;
        let number = limit.trim().strip_prefix('+').unwrap_or(limit.trim());
        let number: f64 = number.trim_end_matches('%').trim().parse().map_err(|_| FORM)?;
        if !(0.0..=1e6).contains(&number) {
            return Err("a limit is a percentage of 0 or more".into());
        }
        Ok(Gate { quantity: named(name.trim())?, limit: number / 100.0 })
    }

    pub fn judge(&self, diff: &Diff) -> Judged {
        let Some(change) = diff.changes.iter().find(|change| change.quantity == self.quantity) else {
            return Judged::NotMeasured(format!("{self}: not compared"));
        };
        let (before, after) = match (&change.before, &change.after) {
            (Ok(before), Ok(after)) => (*before, *after),
            (Err(why), _) | (_, Err(why)) => {
                return Judged::NotMeasured(format!("{self}: not measured: {why}"));
            }
        };
        // What is above the limit. The value before has an interval too.
        let above = match change.unit {
            Unit::Share => {
                let beyond = difference(before, after, change.wider);
                Interval::new(beyond.low - self.limit, beyond.point - self.limit, beyond.high - self.limit)
            }
            _ => difference(before.scaled(1.0 + self.limit), after, change.wider),
        };
        let shown = || change.shown().unwrap_or_default();
        if change.outcome == Outcome::Same || above.high <= 0.0 {
            Judged::NotMet
        } else if above.low > 0.0 {
            Judged::Met(format!("{self}: {}", shown()))
        } else {
            let longer = match change.outcome {
                Outcome::Undecided { window_s: Some(window_s) } => {
                    format!("; windows of {window_s:.0} s may decide")
                }
                _ => String::new(),
            };
            Judged::Undecided(format!("{self}: undecided: {}{longer}", shown()))
        }
    }
}

impl fmt::Display for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}>+{}%", hyphened(&self.quantity.key()), self.limit * 100.0)
    }
}

fn hyphened(key: &str) -> String {
    key.replace('_', "-")
}

/// A wall of one line is that line.
fn named(name: &str) -> Result<Quantity, String> {
    let wanted = hyphened(&name.to_lowercase());
    let walls = || Wall::ALL.into_iter().filter(|wall| wall.lines().len() == 1);
    let known = Quantity::all().map(|quantity| (hyphened(&quantity.key()), quantity));
    let known: Vec<(String, Quantity)> =
        known.chain(walls().map(|wall| (hyphened(wall.key()), Quantity::Line(wall.lines()[0])))).collect();
    let found = known.iter().find(|(key, _)| *key == wanted).map(|(_, quantity)| quantity.clone());
    found.ok_or_else(|| {
        let hint = nearest::hint(&wanted, known.iter().map(|(key, _)| key.as_str()));
        format!("unknown name {name}{hint}; names are lines of the bill, walls, waits (wait-NAME), cpu, minor-faults, resident")
    })
}
