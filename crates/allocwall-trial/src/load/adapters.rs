//! Reads the outputs of other load tools, with the names that the built-in generator uses.
//!
//! Most tools run closed loops and measure from the actual send. Their latency is this crate's *service* time: it does not show the
//! requests that a stall delayed. It is named `service_p99` and so on. It is named `response_p99` only if the tool measures from
//! the intended start: wrk2, and pgbench with `--rate`.

use crate::load::metric::{last_json, number, tail};
use crate::load::{Reading, percentile_key};
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use regex::{Captures, Regex};
use serde_json::Value;

/// One tool whose output can be read.
#[derive(Debug)]
pub struct Adapter {
    pub name: &'static str,
    /// Its program names on the command line.
    programs: &'static [&'static str],
    read: Read,
}

#[derive(Debug)]
enum Read {
    Lines(Lines),
    With(fn(&str) -> Vec<Reading>),
}

/// An output that is read line by line.
#[derive(Debug)]
struct Lines {
    /// If this matches, latency is measured from the intended start. Empty: never.
    intended: &'static str,
    /// The tool prints failures only when there are any.
    silent_without_errors: bool,
    rules: &'static [(&'static str, Is)],
}

/// The meaning of a line's groups. Of several lines with one meaning the first counts; but errors are added up, and of `Events` and
/// `Seconds` the last counts.
#[derive(Clone, Copy, Debug)]
enum Is {
    PerSecond,
    /// All groups of all lines are added up.
    Errors,
    /// Events; divided by `Seconds` they are the throughput.
    Events,
    Seconds,
    /// The value with its unit, by default in this unit.
    Mean(&'static str),
    /// Percent, and the value with its unit, by default in this unit.
    Percentile(&'static str),
}

const WRK: Lines = Lines {
    intended: r"Thread calibration:|HdrHistogram - Recorded Latency",
    silent_without_errors: true,
    rules: &[
        (r"^Requests/sec:\s+([\d.]+)", Is::PerSecond),
        (r"^\s+Latency\s+([\d.]+\w+)", Is::Mean("us")),
        (r"^\s*([\d.]+)%\s+([\d.]+\w+)\s*$", Is::Percentile("us")),
        (r"Socket errors: connect (\d+), read (\d+), write (\d+), timeout (\d+)", Is::Errors),
        (r"Non-2xx or 3xx responses: (\d+)", Is::Errors),
    ],
};

/// In alphabetical order; messages list them in this order.
pub const ADAPTERS: &[Adapter] = &[
    Adapter {
        name: "ab",
        programs: &["ab"],
        read: Read::Lines(Lines {
            intended: "",
            silent_without_errors: false,
            rules: &[
                (r"^Requests per second:\s+([\d.]+)", Is::PerSecond),
                (r"^Time per request:\s+([\d.]+) \[ms\] \(mean\)", Is::Mean("ms")),
                (r"^\s*(\d+)%\s+(\d+)", Is::Percentile("ms")),
                (r"^Failed requests:\s+(\d+)", Is::Errors),
                (r"^Non-2xx responses:\s+(\d+)", Is::Errors),
            ],
        }),
    },
    Adapter {
        name: "hey",
        programs: &["hey"],
        read: Read::Lines(Lines {
            intended: "",
            silent_without_errors: true,
            rules: &[
                (r"^\s+Requests/sec:\s+([\d.]+)", Is::PerSecond),
                (r"^\s+Average:\s+([\d.]+ \w+)", Is::Mean("s")),
                // Some versions print two percent signs, because of their template engine.
                (r"^\s+([\d.]+)%+ in ([\d.]+ \w+)", Is::Percentile("s")),
                (r"^\s+\[[45]\d\d\]\s+(\d+) responses", Is::Errors),
                (r"^\s+\[(\d+)\]\s+[^\d\s]", Is::Errors),
            ],
        }),
    },
    Adapter { name: "memtier_benchmark", programs: &["memtier_benchmark"], read: Read::With(memtier) },
    Adapter { name: "oha", programs: &["oha"], read: Read::With(oha) },
    Adapter {
        name: "pgbench",
        programs: &["pgbench"],
        read: Read::Lines(Lines {
            // "calculated from the scheduled start time" with --rate (pgbench's manual).
            intended: r"^rate limit schedule lag:",
            silent_without_errors: false,
            rules: &[
                (r"^tps = ([\d.]+) \((?:without initial|excluding)", Is::PerSecond),
                (r"^latency average = ([\d.]+ \w+)", Is::Mean("ms")),
                (r"^number of failed transactions: (\d+)", Is::Errors),
            ],
        }),
    },
    Adapter {
        name: "redis-benchmark",
        programs: &["redis-benchmark", "valkey-benchmark"],
        read: Read::With(redis),
    },
    Adapter {
        name: "sysbench",
        programs: &["sysbench"],
        read: Read::Lines(Lines {
            intended: "",
            silent_without_errors: false,
            rules: &[
                (r"^\s*total number of events:\s+(\d+)", Is::Events),
                (r"^\s*(?:total time|time elapsed):\s+([\d.]+)s", Is::Seconds),
                (r"^\s*avg:\s+([\d.]+)", Is::Mean("ms")),
                (r"^\s*(\d+)th percentile:\s+([\d.]+)", Is::Percentile("ms")),
                (r"^\s*ignored errors:\s+(\d+)", Is::Errors),
            ],
        }),
    },
    Adapter { name: "wrk", programs: &["wrk"], read: Read::Lines(WRK) },
    Adapter { name: "wrk2", programs: &["wrk2"], read: Read::Lines(WRK) },
];

const OHA_TEXT: Lines = Lines {
    intended: "",
    silent_without_errors: true,
    rules: &[
        (r"^\s+Requests/sec:\s+([\d.]+)", Is::PerSecond),
        (r"^\s+Average:\s+([\d.]+ \w+)", Is::Mean("s")),
        (r"^\s+([\d.]+)% in ([\d.]+ \w+)", Is::Percentile("s")),
        (r"^\s+\[[45]\d\d\] (\d+) responses", Is::Errors),
        // Requests that were cut off by the end of the test are not failures.
        (r"^\s+\[(\d+)\] (?:[^\da]|a[^b]|ab[^o])", Is::Errors),
    ],
};

impl Adapter {
    /// Finds an adapter by the tool's name.
    ///
    /// # Errors
    /// `Refused`: no such adapter.
    pub fn named(name: &str) -> Result<&'static Adapter> {
        find(name).ok_or_else(|| unknown(name))
    }

    /// Finds an adapter by the program of a command, with or without its folder.
    ///
    /// # Errors
    /// `Refused`: there is no adapter for the command.
    pub fn of_command(command: &[String]) -> Result<&'static Adapter> {
        let first = command.first().map_or("", String::as_str);
        let name = first.rsplit('/').next().unwrap_or(first);
        find(name).ok_or_else(|| unknown(name))
    }

    /// The figures in the tool's output: always the throughput, and the others that it printed.
    ///
    /// # Errors
    /// `Unparsable`: there is no throughput, so it is not this tool's output, or the output of an unknown version.
    pub fn read(&self, output: &str) -> Measured<Vec<Reading>> {
        let readings = match &self.read {
            Read::Lines(lines) => lines.read(output),
            Read::With(read) => read(output),
        };
        if readings.iter().any(|reading| reading.name.ends_with("throughput")) {
            return Ok(readings);
        }
        Err(Absence::new(
            Reason::Unparsable,
            format!("no throughput found in the output of {}, which {}", self.name, tail(output)),
        )
        .mend("read the figure with --metric 'NAME:higher=PATTERN'"))
    }
}

fn find(name: &str) -> Option<&'static Adapter> {
    ADAPTERS.iter().find(|adapter| adapter.name == name || adapter.programs.contains(&name))
}

fn unknown(name: &str) -> Error {
    let known: Vec<&str> = ADAPTERS.iter().map(|adapter| adapter.name).collect();
    Error::Refused(format!(
        "allocwall can't read the output of {name:?} (it can read: {}); use --metric 'NAME:lower=PATTERN'",
        known.join(", ")
    ))
}

impl Lines {
    fn read(&self, output: &str) -> Vec<Reading> {
        let prefix = match self.intended {
            "" => "service",
            pattern if own(pattern).is_match(output) => "response",
            _ => "service",
        };
        let mut readings: Vec<Reading> = Vec::new();
        let mut errors = self.silent_without_errors.then_some(0.0);
        let (mut events, mut seconds) = (None, None);
        let mut add = |reading: Reading| {
            if readings.iter().all(|other| other.name != reading.name) {
                readings.push(reading);
            }
        };
        for (pattern, is) in self.rules {
            for captures in own(pattern).captures_iter(output) {
                let plain =
                    |group: usize| captures.get(group).and_then(|text| text.as_str().parse::<f64>().ok());
                match is {
                    Is::PerSecond => plain(1).map(Reading::throughput).into_iter().for_each(&mut add),
                    Is::Events => events = plain(1),
                    Is::Seconds => seconds = plain(1),
                    Is::Errors => {
                        let sum: f64 = (1..captures.len()).filter_map(plain).sum();
                        errors = Some(errors.unwrap_or(0.0) + sum);
                    }
                    Is::Mean(unit) => time(&captures, 1, unit)
                        .map(|ns| Reading::latency(format!("{prefix}_mean"), ns))
                        .into_iter()
                        .for_each(&mut add),
                    Is::Percentile(unit) => plain(1)
                        .and_then(|percent| percentile(prefix, percent, time(&captures, 2, unit)?))
                        .into_iter()
                        .for_each(&mut add),
                }
            }
        }
        if let (Some(events), Some(seconds)) = (events, seconds)
            && seconds > 0.0
        {
            add(Reading::throughput(events / seconds));
        }
        if let Some(errors) = errors {
            add(Reading::errors(errors));
        }
        readings
    }
}

/// Compiles a pattern of this file; `^` and `$` match at lines.
fn own(pattern: &str) -> Regex {
    Regex::new(&format!("(?m){pattern}")).expect("a pattern of the adapters")
}

/// Nanoseconds of a group that has its own unit, or the default `unit`.
fn time(captures: &Captures, group: usize, unit: &str) -> Option<f64> {
    let (value, unit) = number(captures.get(group)?.as_str(), unit)?;
    // Zero means below the tool's resolution.
    (unit == super::Unit::Nanoseconds && value > 0.0).then_some(value)
}

/// Only percentiles from the median up: lower ones are not useful for a load, and 100 % is a single request.
fn percentile(prefix: &str, percent: f64, ns: f64) -> Option<Reading> {
    (50.0..100.0)
        .contains(&percent)
        .then(|| Reading::latency(format!("{prefix}_{}", percentile_key(percent)), ns))
}

/// A column `p99 Latency`, `p99` or `p99_latency_ms`, or `avg` and the like, in milliseconds.
fn column(name: &str, value: &str) -> Option<Reading> {
    let name = name.to_ascii_lowercase();
    let bare = name.split(['_', ' ']).next().unwrap_or(&name);
    let ns = value.parse::<f64>().ok().filter(|ms| ms.is_finite() && *ms > 0.0)? * 1e6;
    match bare.strip_prefix('p') {
        Some(percent) => percentile("service", percent.parse().ok()?, ns),
        None if bare == "avg" || bare == "avg." || bare == "latency" => {
            Some(Reading::latency("service_mean", ns))
        }
        None => None,
    }
}

/// Reads the row `Totals` of the table after `ALL STATS`.
fn memtier(output: &str) -> Vec<Reading> {
    let Some(at) = output.find("ALL STATS") else {
        return Vec::new();
    };
    let lines: Vec<String> = output[at..].lines().map(|line| line.replace(" Latency", "_Latency")).collect();
    let header = lines.iter().find(|line| line.starts_with("Type"));
    let totals = lines.iter().find(|line| line.starts_with("Totals"));
    let (Some(header), Some(totals)) = (header, totals) else {
        return Vec::new();
    };
    header
        .split_whitespace()
        .zip(totals.split_whitespace())
        .filter_map(|(name, value)| match name.trim_start_matches('_') {
            "Ops/sec" => value.parse().ok().map(Reading::throughput),
            name => column(name, value),
        })
        .collect()
}

fn oha(output: &str) -> Vec<Reading> {
    match last_json(output) {
        Some(document) if document.get("summary").is_some() => oha_json(&document),
        _ => OHA_TEXT.read(output),
    }
}

/// Output of `oha --output-format json` (`--json` before 1.6): times in seconds, null if not computed (oha's schema.json).
fn oha_json(document: &Value) -> Vec<Reading> {
    let seconds = |value: &Value| value.as_f64().filter(|s| *s > 0.0).map(|s| s * 1e9);
    let entries = |name: &str| document[name].as_object().into_iter().flatten();
    let mut readings: Vec<Reading> = Vec::new();
    readings.extend(document["summary"]["requestsPerSec"].as_f64().map(Reading::throughput));
    readings.extend(seconds(&document["summary"]["average"]).map(|ns| Reading::latency("service_mean", ns)));
    readings.extend(entries("latencyPercentiles").filter_map(|(key, value)| {
        percentile("service", key.strip_prefix('p')?.parse().ok()?, seconds(value)?)
    }));
    let bad =
        entries("statusCodeDistribution").filter(|(status, _)| status.parse::<u16>().is_ok_and(|s| s >= 400));
    let failed =
        entries("errorDistribution").filter(|(what, _)| !what.starts_with("aborted due to deadline"));
    let errors: f64 = bad.chain(failed).filter_map(|(_, count)| count.as_f64()).sum();
    readings.push(Reading::errors(errors));
    readings
}

/// The figures of each test that redis-benchmark ran, with the name of the test as prefix if there are several.
fn redis(output: &str) -> Vec<Reading> {
    let tests = [redis_csv(output), redis_sections(output), redis_quiet(output)]
        .into_iter()
        .find(|tests| !tests.is_empty())
        .unwrap_or_default();
    let several = tests.len() > 1;
    let named = |(test, readings): (String, Vec<Reading>)| {
        readings.into_iter().map(move |reading| {
            if several {
                Reading { name: format!("{}.{}", key(&test), reading.name), ..reading }
            } else {
                reading
            }
        })
    };
    tests.into_iter().flat_map(named).collect()
}

/// `LPUSH (needed to benchmark LRANGE)` as a name: letters and digits, the rest `_`.
fn key(test: &str) -> String {
    let text = test.split(" (").next().unwrap_or(test);
    text.chars().map(|c| if c.is_ascii_alphanumeric() { c.to_ascii_lowercase() } else { '_' }).collect()
}

type Tests = Vec<(String, Vec<Reading>)>;

fn redis_csv(output: &str) -> Tests {
    let split = |line: &str| -> Vec<String> {
        line.split("\",\"").map(|field| field.trim_matches('"').to_string()).collect()
    };
    let mut lines =
        output.lines().map(str::trim_end).skip_while(|line| !line.starts_with("\"test\",\"rps\""));
    let Some(header) = lines.next().map(split) else {
        return Vec::new();
    };
    lines
        .filter(|line| line.starts_with('"'))
        .map(|line| {
            let fields = split(line);
            let readings = header
                .iter()
                .zip(&fields)
                .filter_map(|(name, value)| match name.as_str() {
                    "rps" => value.parse().ok().map(Reading::throughput),
                    name => column(name, value),
                })
                .collect();
            (fields[0].clone(), readings)
        })
        .collect()
}

fn redis_sections(output: &str) -> Tests {
    let title = own(r"====== (.+?) ======$");
    let throughput = own(r"throughput summary: ([\d.]+) requests per second");
    let latency = own(r"latency summary \(msec\):\s*\n(.+)\n(.+)");
    let starts: Vec<(usize, String)> = title
        .captures_iter(output)
        .map(|captures| (captures.get(0).map_or(0, |all| all.start()), captures[1].to_string()))
        .collect();
    let ends = starts.iter().skip(1).map(|(at, _)| *at).chain([output.len()]);
    starts
        .iter()
        .zip(ends)
        .map(|((start, test), end)| {
            let text = &output[*start..end];
            let mut readings: Vec<Reading> = Vec::new();
            readings
                .extend(throughput.captures(text).and_then(|c| c[1].parse().ok()).map(Reading::throughput));
            if let Some(captures) = latency.captures(text) {
                let columns = captures[1].split_whitespace().zip(captures[2].split_whitespace());
                readings.extend(columns.filter_map(|(name, value)| column(name, value)));
            }
            (test.clone(), readings)
        })
        .filter(|(_, readings)| !readings.is_empty())
        .collect()
}

/// Output with `-q`: one line per test, after progress output that returns to the start of the line.
fn redis_quiet(output: &str) -> Tests {
    let result = own(r"^(.+): ([\d.]+) requests per second(?:, p50=([\d.]+) msec)?");
    output
        .split(['\r', '\n'])
        .filter_map(|line| result.captures(line))
        .map(|captures| {
            let mut readings: Vec<Reading> = Vec::new();
            readings.extend(captures[2].parse().ok().map(Reading::throughput));
            readings.extend(captures.get(3).and_then(|p50| column("p50", p50.as_str())));
            (captures[1].to_string(), readings)
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::load::{Better, Unit};

    macro_rules! output {
        ($name:literal) => {
            include_str!(concat!("../../tests/fixtures/load/", $name))
        };
    }

    /// The figures in an output, times in milliseconds.
    fn read(adapter: &str, output: &str) -> Vec<(String, f64)> {
        let readings = Adapter::named(adapter).unwrap().read(output).unwrap();
        for reading in &readings {
            let (unit, better) = match reading.name.rsplit('.').next().unwrap() {
                "throughput" => (Unit::PerSecond, Better::Higher),
                "errors" => (Unit::Count, Better::Lower),
                _ => (Unit::Nanoseconds, Better::Lower),
            };
            assert_eq!((reading.unit, reading.better), (unit, better), "{reading:?}");
        }
        readings
            .into_iter()
            .map(|reading| {
                let ms = reading.unit == Unit::Nanoseconds;
                (reading.name, if ms { (reading.value / 10.0).round() / 1e5 } else { reading.value })
            })
            .collect()
    }

    /// The expected figures were read from the outputs by hand.
    #[track_caller]
    fn agree(adapter: &str, output: &str, expected: &[(&str, f64)]) {
        let expected: Vec<(String, f64)> =
            expected.iter().map(|(name, value)| (name.to_string(), *value)).collect();
        assert_eq!(read(adapter, output), expected);
    }

    /// From wrk2's README; its latency is measured from the intended start.
    #[test]
    fn wrk2() {
        agree(
            "wrk2",
            output!("wrk2.txt"),
            &[
                ("throughput", 2000.28),
                ("response_mean", 6.6),
                ("response_p50", 6.67),
                ("response_p75", 7.78),
                ("response_p90", 9.14),
                ("response_p99", 11.18),
                ("response_p999", 12.3),
                ("response_p9999", 12.45),
                ("response_p99999", 12.5),
                ("errors", 0.0),
            ],
        );
        // wrk2 installs itself as wrk.
        assert_eq!(read("wrk", output!("wrk2.txt")), read("wrk2", output!("wrk2.txt")));
    }

    /// From hatoo/oha#315.
    #[test]
    fn oha_text() {
        agree(
            "oha",
            output!("oha.txt"),
            &[
                ("throughput", 10016.9373),
                ("service_mean", 1.0),
                ("service_p50", 1.0),
                ("service_p75", 1.1),
                ("service_p90", 1.2),
                ("service_p95", 1.2),
                ("service_p99", 1.3),
                ("service_p999", 1.5),
                ("service_p9999", 2.2),
                ("errors", 0.0),
            ],
        );
    }

    /// From hatoo/oha#212: the wording of an older version, and responses with error status.
    #[test]
    fn oha_text_with_failures() {
        agree(
            "oha",
            output!("oha-failures.txt"),
            &[
                ("throughput", 20.0327),
                ("service_mean", 821.3),
                ("service_p50", 173.5),
                ("service_p75", 1817.7),
                ("service_p90", 2766.3),
                ("service_p95", 3187.1),
                ("service_p99", 3520.2),
                ("errors", 441.0),
            ],
        );
    }

    /// Made after oha's schema.json.
    #[test]
    fn oha_json() {
        agree(
            "oha",
            output!("oha.json"),
            &[
                ("throughput", 200.0),
                ("service_mean", 50.0),
                ("service_p50", 30.0),
                ("service_p75", 40.0),
                ("service_p90", 80.0),
                ("service_p95", 100.0),
                ("service_p99", 200.0),
                ("service_p999", 400.0),
                ("errors", 100.0),
            ],
        );
    }

    #[test]
    fn requests_cut_off_by_the_end_are_not_errors() {
        let text = "  Requests/sec: 1.5\nError distribution:\n  [6] aborted due to deadline\n  [2] connection refused\n";
        agree("oha", text, &[("throughput", 1.5), ("errors", 2.0)]);
    }

    /// From redis/memtier_benchmark#184.
    #[test]
    fn memtier() {
        agree(
            "memtier_benchmark",
            output!("memtier.txt"),
            &[
                ("throughput", 62355.66),
                ("service_mean", 3.20683),
                ("service_p50", 2.863),
                ("service_p99", 8.575),
                ("service_p999", 12.991),
                ("service_p9999", 95.743),
            ],
        );
        // From #68: versions before 1.3 print only the mean.
        agree(
            "memtier_benchmark",
            output!("memtier-1.2.txt"),
            &[("throughput", 21536.09), ("service_mean", 0.231)],
        );
    }

    /// Own run against nginx.
    #[test]
    fn wrk() {
        agree(
            "wrk",
            output!("wrk.txt"),
            &[
                ("throughput", 56694.45),
                ("service_mean", 1.05),
                ("service_p50", 0.026),
                ("service_p75", 0.813),
                ("service_p90", 3.4),
                ("service_p99", 12.47),
                ("errors", 0.0),
            ],
        );
        let failing = read("wrk", output!("wrk-failures.txt"));
        assert!(failing.contains(&("errors".to_string(), 35878.0)), "{failing:?}");
        let broken =
            "  Socket errors: connect 1, read 20, write 300, timeout 4000\nRequests/sec:      0.00\n";
        agree("wrk", broken, &[("throughput", 0.0), ("errors", 4321.0)]);
    }

    /// Own runs against a slow server, and against a server so fast that all times round to 0 ms and are omitted.
    #[test]
    fn ab() {
        agree(
            "ab",
            output!("ab.txt"),
            &[
                ("throughput", 292.9),
                ("service_mean", 6.828),
                ("service_p50", 4.0),
                ("service_p66", 5.0),
                ("service_p75", 7.0),
                ("service_p80", 8.0),
                ("service_p90", 14.0),
                ("service_p95", 30.0),
                ("service_p98", 32.0),
                ("service_p99", 33.0),
                ("errors", 20.0),
            ],
        );
        agree(
            "ab",
            output!("ab-fast.txt"),
            &[("throughput", 33838.66), ("service_mean", 0.118), ("errors", 0.0)],
        );
    }

    /// Own run against nginx.
    #[test]
    fn hey() {
        agree(
            "hey",
            output!("hey.txt"),
            &[
                ("throughput", 34089.8554),
                ("service_mean", 0.1),
                ("service_p50", 0.1),
                ("service_p75", 0.1),
                ("service_p90", 0.2),
                ("service_p95", 0.3),
                ("service_p99", 0.5),
                ("errors", 0.0),
            ],
        );
        let failing = read("hey", output!("hey-failures.txt"));
        assert!(failing.contains(&("errors".to_string(), 200.0)), "{failing:?}");
        agree("hey", output!("hey-refused.txt"), &[("throughput", 11945.0052), ("errors", 8.0)]);
    }

    /// Own runs against redis-server.
    #[test]
    fn redis_benchmark() {
        agree(
            "redis-benchmark",
            output!("redis.txt"),
            &[
                ("throughput", 105263.16),
                ("service_mean", 0.025),
                ("service_p50", 0.023),
                ("service_p95", 0.039),
                ("service_p99", 0.047),
            ],
        );
        agree(
            "redis-benchmark",
            output!("redis-two.txt"),
            &[
                ("set.throughput", 111111.12),
                ("set.service_mean", 0.025),
                ("set.service_p50", 0.023),
                ("set.service_p95", 0.039),
                ("set.service_p99", 0.047),
                ("get.throughput", 100000.0),
                ("get.service_mean", 0.026),
                ("get.service_p50", 0.023),
                ("get.service_p95", 0.039),
                ("get.service_p99", 0.039),
            ],
        );
        agree(
            "redis-benchmark",
            output!("redis.csv"),
            &[
                ("set.throughput", 80000.0),
                ("set.service_mean", 0.038),
                ("set.service_p50", 0.023),
                ("set.service_p95", 0.039),
                ("set.service_p99", 0.063),
                ("lpush.throughput", 95238.09),
                ("lpush.service_mean", 0.026),
                ("lpush.service_p50", 0.023),
                ("lpush.service_p95", 0.039),
                ("lpush.service_p99", 0.047),
                ("lrange_100.throughput", 50000.0),
                ("lrange_100.service_mean", 0.057),
                ("lrange_100.service_p50", 0.047),
                ("lrange_100.service_p95", 0.103),
                ("lrange_100.service_p99", 0.111),
            ],
        );
        agree(
            "redis-benchmark",
            output!("redis-quiet.txt"),
            &[
                ("set.throughput", 64516.13),
                ("set.service_p50", 0.023),
                ("get.throughput", 26666.67),
                ("get.service_p50", 0.023),
            ],
        );
    }

    /// Own runs against PostgreSQL; with a rate, latency is measured from the scheduled start.
    #[test]
    fn pgbench() {
        agree(
            "pgbench",
            output!("pgbench.txt"),
            &[("throughput", 111.390139), ("service_mean", 17.955), ("errors", 0.0)],
        );
        agree(
            "pgbench",
            output!("pgbench-rate.txt"),
            &[("throughput", 92.832335), ("response_mean", 10.843), ("errors", 0.0)],
        );
    }

    /// Own runs: a PostgreSQL transaction, a prime search, and memory blocks so fast that their times round to 0 ms.
    #[test]
    fn sysbench() {
        agree(
            "sysbench",
            output!("sysbench-oltp.txt"),
            &[
                ("service_mean", 10.78),
                ("service_p95", 23.95),
                ("throughput", 93.0 / 1.0053),
                ("errors", 0.0),
            ],
        );
        agree(
            "sysbench",
            output!("sysbench-cpu.txt"),
            &[("service_mean", 1.93), ("service_p95", 16.41), ("throughput", 511.0 / 1.0032)],
        );
        agree("sysbench", output!("sysbench-memory.txt"), &[("throughput", 1051657.0 / 1.0134)]);
    }

    #[test]
    fn an_adapter_is_found_by_the_program_of_a_command() {
        let of = |words: &[&str]| {
            let command: Vec<String> = words.iter().map(|word| word.to_string()).collect();
            Adapter::of_command(&command).map(|adapter| adapter.name).map_err(|e| e.to_string())
        };
        assert_eq!(of(&["/usr/bin/wrk", "-c1"]), Ok("wrk"));
        assert_eq!(of(&["valkey-benchmark"]), Ok("redis-benchmark"));
        for words in [&["./wrk.sh"][..], &["curl", "wrk"], &[]] {
            let message = of(words).unwrap_err();
            assert!(message.contains("ab, hey, memtier_benchmark, oha"), "{message}");
            assert!(message.contains("--metric"), "{message}");
        }
        assert!(Adapter::named("siege").is_err());
    }

    #[test]
    fn adapters_are_in_order_and_their_program_names_are_unique() {
        assert!(ADAPTERS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for adapter in ADAPTERS {
            for program in adapter.programs {
                assert_eq!(find(program).unwrap().name, adapter.name);
            }
        }
    }

    #[test]
    fn other_output_is_an_error_with_its_last_lines() {
        for adapter in ADAPTERS {
            for output in ["", "unable to connect to 127.0.0.1:1 \u{1b}[31mConnection refused\n"] {
                let absence = adapter.read(output).unwrap_err();
                assert_eq!(absence.reason, Reason::Unparsable);
                assert!(absence.detail.contains(adapter.name), "{absence}");
                assert!(absence.mend[0].how.contains("--metric"));
                assert!(!absence.detail.contains('\u{1b}'));
            }
        }
    }
}
