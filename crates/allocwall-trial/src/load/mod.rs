//! Load for servers, and its figures: the built-in generator ([`open`], [`closed`], [`first`]), the outputs of other tools ([`adapters`])
//! and a command's own figures ([`metric`]). All are reported as [`Reading`]s under the same names.

pub mod adapters;
pub mod arrivals;
mod client;
pub mod closed;
pub mod failure;
pub mod first;
pub mod metric;
pub mod open;
pub mod ready;
pub mod request;
pub(crate) mod response;
#[cfg(test)]
mod test_server;

use serde::{Deserialize, Serialize};

/// One figure of one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Reading {
    /// `throughput`, `response_p99`, …, or the name that the user gave.
    pub name: String,
    pub value: f64,
    pub unit: Unit,
    pub better: Better,
    /// The value is a lower bound: this percentile is among the failed requests.
    pub at_least: bool,
}

impl Reading {
    pub fn new(name: impl Into<String>, value: f64, unit: Unit, better: Better) -> Self {
        Reading { name: name.into(), value, unit, better, at_least: false }
    }

    pub(super) fn throughput(per_second: f64) -> Self {
        Reading::new("throughput", per_second, Unit::PerSecond, Better::Higher)
    }

    pub(super) fn latency(name: impl Into<String>, ns: f64) -> Self {
        Reading::new(name, ns, Unit::Nanoseconds, Better::Lower)
    }

    pub(super) fn errors(count: f64) -> Self {
        Reading::new("errors", count, Unit::Count, Better::Lower)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Unit {
    PerSecond,
    Nanoseconds,
    Bytes,
    Count,
    /// As the command printed it.
    Plain,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Better {
    Lower,
    Higher,
}

/// The name of a percentile in reports: `p50` for 50 %, `p999` for 99.9 %.
fn percentile_key(percent: f64) -> String {
    format!("p{percent}").replace('.', "")
}

#[cfg(test)]
mod tests {
    use super::percentile_key;

    #[test]
    fn percentiles_have_short_names() {
        for (percent, key) in [(50.0, "p50"), (99.0, "p99"), (99.9, "p999"), (99.99, "p9999")] {
            assert_eq!(percentile_key(percent), key);
        }
    }
}
