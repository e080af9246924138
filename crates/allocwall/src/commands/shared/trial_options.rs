//! What a user asks of a trial. The options have the same names on the command line and in the trial's file.

use super::options::{Header, Percent, Rate, Time, WarmUp};
use allocwall_trial::{load, plan};
use anyhow::{anyhow, bail};
use clap::{Args as _, FromArgMatches as _};
use serde::{Deserialize, Serialize, Serializer};
use serde_json::Value;
use std::path::PathBuf;
use std::time::Duration;

const MOST_BLOCKS: u64 = plan::MOST_BLOCKS as u64;
const MOST_CONNECTIONS: u64 = 10_000;
const MOST_FIRST: u64 = load::first::MOST;

/// Options that have an effect only in some kinds of trials, with these kinds.
const EFFECTIVE_IN: &[(&str, &[Of])] = &[
    ("metric", &[Of::Batch, Of::LoadCommand]),
    ("ready", &[Of::Load, Of::First, Of::LoadCommand]),
    ("ready-timeout", &[Of::Load, Of::First, Of::LoadCommand]),
    ("method", &[Of::Load, Of::First]),
    ("header", &[Of::Load, Of::First]),
    ("body", &[Of::Load, Of::First]),
    ("first", &[Of::First]),
    ("at", &[Of::Load]),
    ("rate", &[Of::Load]),
    ("arrivals", &[Of::Load]),
    ("load-time", &[Of::Load, Of::LoadCommand]),
    ("warm-up", &[Of::Batch, Of::Load]),
    ("connections", &[Of::Load, Of::First]),
    ("rest", &[Of::Load, Of::First, Of::LoadCommand]),
    ("timeout", &[Of::Batch, Of::First, Of::LoadCommand]),
    ("exit-ok", &[Of::Batch]),
];
/// Options that don't say how a run is measured.
const OTHERS: [&str; 6] = ["with", "blocks", "budget", "effect", "seed", "fail-on"];

/// The kind of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of {
    Batch,
    Load,
    First,
    LoadCommand,
}

impl Of {
    fn title(self) -> &'static str {
        match self {
            Of::Batch => "a command that runs to its end",
            Of::Load => "a server under --load",
            Of::First => "a server under --load with --first",
            Of::LoadCommand => "a server under --load-cmd",
        }
    }
}

// An option that was not given is None, false or empty. Options that define a trial conflict with --continue (`resume`).
// Not a doc comment, which clap would show as the description of `allocwall trial`.
#[derive(Clone, Debug, Default, PartialEq, clap::Args, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Options {
    /// An arm: one remedy, or several joined by + (jemalloc+thp); `none` compares the command with itself
    #[arg(short, long, value_name = "NAME", conflicts_with = "resume")]
    pub with: Vec<String>,

    /// Number of blocks [default: 12, or more if the number of arms needs more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_BLOCKS), conflicts_with = "budget")]
    pub blocks: Option<u64>,

    /// Run as many blocks as fit into this time, not counting the time before the first block: 5m, 90s. If too few for a result fit,
    /// the trial ends before the first block and names the time that it takes
    #[arg(long, value_name = "TIME")]
    pub budget: Option<Time>,

    /// Smallest change to detect; the number of blocks is planned from the first few blocks, and printed
    #[arg(long, value_name = "PERCENT", conflicts_with_all = ["blocks", "resume"])]
    pub effect: Option<Percent>,

    /// A metric read from the command's output: NAME:lower=REGEX or NAME:higher=$.json.path
    #[arg(long, value_name = "SPEC", conflicts_with = "resume")]
    pub metric: Vec<String>,

    /// The server is ready when this address answers: http://127.0.0.1:PORT/path or tcp:127.0.0.1:PORT
    #[arg(long, value_name = "WHERE", conflicts_with = "resume")]
    pub ready: Option<String>,

    /// Longest time to wait until the server is ready [default: 30s]
    #[arg(long, value_name = "TIME", conflicts_with = "resume")]
    pub ready_timeout: Option<Time>,

    /// Load the server with requests for this URL; each is sent when it is due, even if earlier ones are not answered
    #[arg(long, value_name = "URL", conflicts_with_all = ["load_cmd", "resume"])]
    pub load: Option<String>,

    /// HTTP method of the requests [default: GET, or POST with --body]
    #[arg(long, value_name = "METHOD", conflicts_with = "resume")]
    pub method: Option<String>,

    /// HTTP header of the requests: 'Content-Type: application/json'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", conflicts_with = "resume")]
    pub header: Vec<Header>,

    /// File with the body of the requests; without --method, they are POST requests
    #[arg(long, value_name = "FILE", conflicts_with = "resume")]
    #[serde(serialize_with = "lossy")]
    pub body: Option<PathBuf>,

    /// Load the server with this command (wrk, wrk2, oha, hey, ab, redis-benchmark, memtier_benchmark, pgbench,
    /// sysbench; other programs need --metric)
    #[arg(long, value_name = "CMD", requires = "ready", conflicts_with = "resume")]
    pub load_cmd: Option<String>,

    /// Request rates, as shares of the baseline's capacity [default: 70%]
    #[arg(long, value_name = "PERCENT[,…]", value_delimiter = ',', conflicts_with_all = ["rate", "resume"])]
    pub at: Vec<Percent>,

    /// Requests per second, instead of a share of the capacity
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub rate: Option<Rate>,

    /// Distribution of the times at which requests are due [default: poisson]
    #[arg(long, value_enum, conflicts_with = "resume")]
    pub arrivals: Option<Spacing>,

    /// Length of the load in each run, after the warm-up; with --load-cmd: length of the preliminary diagnosis
    /// [default: 10s]
    #[arg(long, value_name = "TIME", conflicts_with = "resume")]
    pub load_time: Option<Time>,

    /// Not counted. A command that ends: number of runs of each arm before the first block [default: 1]. With --load: time
    /// of load before the load that is measured, which opens connections and fills caches [default: 2s]
    #[arg(long, value_name = "N|TIME", conflicts_with = "resume")]
    pub warm_up: Option<WarmUp>,

    /// Shell command before each run (of a server: before each start), not measured, and without remedies: it removes files or
    /// caches that a run left. Processes that it leaves are ended
    #[arg(long, value_name = "CMD", conflicts_with = "resume")]
    pub prepare: Option<String>,

    /// Instead of a load at a rate: measure the first N requests of a process that has just started. The metrics are the
    /// time from its start until they are answered, the slowest of them, and their mean. Nothing is left out as a warm-up.
    /// Each request is sent when the last one is answered
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_FIRST), conflicts_with = "resume")]
    pub first: Option<u64>,

    /// Largest number of connections, both for the load and for measuring the capacity. With --first: the number of
    /// clients, 1 if it is not given [default: 256]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=MOST_CONNECTIONS), conflicts_with = "resume")]
    pub connections: Option<u64>,

    /// How long after the load to measure the server's memory [default: 1s]
    #[arg(long, value_name = "TIME[,…]", value_delimiter = ',', conflicts_with = "resume")]
    pub rest: Vec<Time>,

    /// A run of the command, of --load-cmd, of --prepare or of the first requests that takes longer is ended and counts as failed
    /// [default: 10m]
    #[arg(long, value_name = "TIME", conflicts_with = "resume")]
    pub timeout: Option<Time>,

    /// Exit statuses that count as success, besides 0
    #[arg(long, value_name = "CODE[,…]", value_delimiter = ',', conflicts_with = "resume")]
    pub exit_ok: Vec<i32>,

    /// Random seed for the order of arms; the same seed gives the same order
    #[arg(long, value_name = "N", conflicts_with = "resume")]
    pub seed: Option<u64>,

    /// Skip the preliminary diagnosis; no predictions are shown
    #[arg(long, conflicts_with = "resume")]
    pub no_predict: bool,

    /// Exit with status 1 if a metric of any arm got worse by more than this: 'wall_s>+5%', 'throughput<-3%'
    #[arg(long, value_name = "GATE")]
    pub fail_on: Vec<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Spacing {
    #[default]
    Poisson,
    Constant,
}

impl Options {
    /// From the trial's file.
    ///
    /// # Errors
    /// Another command wrote the file, or the command line would refuse these options.
    pub fn read(saved: &Value) -> anyhow::Result<Options> {
        if !saved.is_object() {
            bail!("no options of `allocwall trial` are saved: a bench or an older version wrote the file");
        }
        let options = Options::deserialize(saved).map_err(|error| error.to_string());
        // Only clap knows the ranges of numbers and which options go together.
        options
            .and_then(|options| parsed(&options.words()).map_err(|error| in_one_line(&error)))
            .map_err(|error| anyhow!("the saved options are not valid: {error}"))
    }

    /// For the trial's file.
    pub fn saved(&self) -> Value {
        serde_json::to_value(self).expect("numbers and text")
    }

    pub fn of_what(&self) -> Of {
        match (&self.load, &self.load_cmd) {
            (Some(_), _) if self.first.is_some() => Of::First,
            (Some(_), _) => Of::Load,
            (None, Some(_)) => Of::LoadCommand,
            (None, None) => Of::Batch,
        }
    }

    /// An error message for the first given option that has no effect in this kind of trial.
    pub fn without_effect(&self) -> Option<String> {
        let (of, given) = (self.of_what(), self.given());
        let has_none = |(option, kinds): &&(&str, &[Of])| {
            !kinds.contains(&of) && given.iter().any(|(name, _)| name == option)
        };
        if let (Of::Batch, Some(WarmUp::Time(time))) = (of, self.warm_up) {
            return Some(format!(
                "--warm-up {time} has no effect on {}: give a number of runs, for example --warm-up 3",
                of.title()
            ));
        }
        let (option, kinds) = EFFECTIVE_IN.iter().find(has_none)?;
        if kinds.iter().all(|kind| *kind == Of::First) {
            return Some(format!("--{option} is for a server: add --load URL"));
        }
        let title = |kind: &Of| match (of, kind) {
            (Of::First, Of::Load) => "a server under --load without --first",
            _ => kind.title(),
        };
        // With --first there is a --load too.
        let named = kinds.iter().filter(|kind| **kind != Of::First || !kinds.contains(&Of::Load));
        let kinds: Vec<&str> = named.map(title).collect();
        Some(format!("--{option} has no effect on {}: it is for {}", of.title(), kinds.join(" or ")))
    }

    /// The options as words of a command line.
    fn words(&self) -> Vec<String> {
        self.given().into_iter().flat_map(words).collect()
    }

    /// The options that say how a run is measured, as words of a command line: not the arms or the number of blocks.
    pub fn how(&self) -> Vec<String> {
        let of_runs = |(name, _): &(String, Option<String>)| !OTHERS.contains(&name.as_str());
        self.given().into_iter().filter(of_runs).flat_map(words).collect()
    }

    /// The given options, sorted by name: name and value, once for each value. A flag has no value.
    fn given(&self) -> Vec<(String, Option<String>)> {
        let saved = self.saved();
        let mut given: Vec<_> = saved.as_object().into_iter().flatten().flat_map(values).collect();
        // Whether serde_json sorts them depends on a feature that any crate may turn on.
        given.sort_by(|(one, _), (other, _)| one.cmp(other));
        given
    }

    // The values that the trial uses. The help has the same defaults.

    pub fn ready_timeout(&self) -> Duration {
        self.ready_timeout.map_or(Duration::from_secs(30), |time| time.0)
    }

    /// Request rates, as shares of the capacity.
    pub fn shares(&self) -> Vec<f64> {
        if self.at.is_empty() { vec![0.7] } else { self.at.iter().map(|percent| percent.share()).collect() }
    }

    pub fn load_time(&self) -> Duration {
        self.load_time.map_or(Duration::from_secs(10), |time| time.0)
    }

    /// Time of load that is not counted.
    pub fn warm_up(&self) -> Duration {
        match self.warm_up {
            None => Duration::from_secs(2),
            Some(WarmUp::Number(seconds)) => Duration::from_secs(seconds.into()),
            Some(WarmUp::Time(Time(time))) => time,
        }
    }

    /// Runs of each arm that are not counted, before the first block. The first one shows whether the arm works.
    pub fn warm_up_runs(&self) -> u32 {
        match self.warm_up {
            Some(WarmUp::Number(runs)) if self.of_what() == Of::Batch => runs,
            _ => 1,
        }
    }

    pub fn connections(&self) -> usize {
        let by_default = if self.first.is_some() { 1 } else { 256 };
        self.connections.unwrap_or(by_default) as usize
    }

    pub fn rest(&self) -> Vec<Duration> {
        if self.rest.is_empty() {
            vec![Duration::from_secs(1)]
        } else {
            self.rest.iter().map(|time| time.0).collect()
        }
    }

    pub fn timeout(&self) -> Duration {
        self.timeout.map_or(Duration::from_secs(600), |time| time.0)
    }
}

/// [`Options::how`] of a saved trial. A bench saves no options.
///
/// # Errors
/// See [`Options::read`].
pub fn how(saved: &Value) -> anyhow::Result<Vec<String>> {
    if saved.is_null() { Ok(vec![]) } else { Ok(Options::read(saved)?.how()) }
}

/// The values of a saved option, each with the option's name.
fn values((field, value): (&String, &Value)) -> Vec<(String, Option<String>)> {
    let name = || field.replace('_', "-");
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match value {
        Value::Null | Value::Bool(false) => vec![],
        Value::Bool(true) => vec![(name(), None)],
        Value::Array(values) => values.iter().map(|value| (name(), Some(text(value)))).collect(),
        value => vec![(name(), Some(text(value)))],
    }
}

fn words((name, value): (String, Option<String>)) -> Vec<String> {
    match value {
        None => vec![format!("--{name}")],
        // As a word of its own, it would be read as an option.
        Some(value) if value.starts_with('-') => vec![format!("--{name}={value}")],
        Some(value) => vec![format!("--{name}"), value],
    }
}

/// The options, and `resume`, which they name as a conflict.
fn command() -> clap::Command {
    Options::augment_args(clap::Command::new("trial")).arg(clap::Arg::new("resume").long("continue"))
}

/// Options from words of a command line.
fn parsed<T: AsRef<str>>(words: &[T]) -> Result<Options, clap::Error> {
    let words = ["trial"].into_iter().chain(words.iter().map(|word| word.as_ref()));
    let mut matches = command().try_get_matches_from(words)?;
    Options::from_arg_matches_mut(&mut matches)
}

/// The error without hints and usage, which follow after an empty line.
fn in_one_line(error: &clap::Error) -> String {
    let text = error.to_string();
    let lines = text.trim_start_matches("error: ").lines().take_while(|line| !line.is_empty());
    lines.map(str::trim).collect::<Vec<_>>().join(" ")
}

/// A trial whose path is not UTF-8 is saved too, but can't be continued.
fn lossy<S: Serializer>(path: &Option<PathBuf>, to: S) -> Result<S::Ok, S::Error> {
    path.as_ref().map(|path| path.to_string_lossy()).serialize(to)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::stats::random::Random;
    use clap::error::ErrorKind;
    use serde_json::json;

    const URL: &str = "http://127.0.0.1:1/a?b=c";
    const READY: &str = "tcp:127.0.0.1:1";
    /// One of each row is a valid command line; together they have every option.
    const CHOICES: &[&[&[&str]]] = &[
        &[&[], &["--with", "none"], &["-w", "jemalloc+thp", "--with", "env:A=b c"]],
        &[
            &[],
            &["--blocks", "500"],
            &["--budget", "90s"],
            &["--effect", "2.5%"],
            &["--budget=1h", "--effect", "0.1"],
        ],
        &[&[], &["--metric", "a:lower=(1)", "--metric=-b:higher=$.x['y']"]],
        &[
            &[],
            &["--ready", READY],
            &["--load", URL],
            &["--load", URL, "--ready", READY],
            &["--load-cmd", "wrk -c1 'a b'", "--ready", READY],
        ],
        &[&[], &["--ready-timeout", "1500ms"]],
        &[&[], &["--method", "PUT"]],
        &[&[], &["--header", "A: b", "--header", "C:"], &["--header=-: x:y, z"]],
        &[&[], &["--body", "a file"]],
        &[&[], &["--at", "50%,70"], &["--at", "12.5%", "--at", "1000%"], &["--rate", "0.5"]],
        &[&[], &["--arrivals", "constant"], &["--arrivals", "poisson"]],
        &[
            &[],
            &["--load-time", "500ms", "--warm-up", "0.5s"],
            &["--load-time", "0.0001s"],
            &["--warm-up", "3"],
        ],
        &[&[], &["--prepare", "rm -rf 'a b'"]],
        &[&[], &["--connections", "10000"], &["--first", "1000000"]],
        &[&[], &["--rest", "1s,2.5s", "--rest", "1m"]],
        &[&[], &["--timeout", "0.25h"]],
        &[&[], &["--exit-ok=-1,3"]],
        &[&[], &["--seed", "18446744073709551615"]],
        &[&[], &["--no-predict"]],
        &[&[], &["--fail-on", "wall_s>+5%", "--fail-on", "p99<-3%"]],
    ];

    /// The options of [`Options`].
    fn names() -> Vec<String> {
        let own = |name: &String| name != "continue";
        command().get_arguments().filter_map(|a| a.get_long().map(str::to_owned)).filter(own).collect()
    }

    #[test]
    fn options_are_read_back_from_a_file_and_from_a_command_line() {
        let used = |name: &String| {
            let word = format!("--{name}");
            CHOICES
                .iter()
                .copied()
                .flatten()
                .copied()
                .flatten()
                .any(|w| w.split('=').next() == Some(word.as_str()))
        };
        assert_eq!(names().into_iter().find(|name| !used(name)), None, "no choice has it");
        let all: usize = CHOICES.iter().map(|row| row.len()).product();
        // With this step, every pair of choices occurs.
        for n in (0..all).step_by(9973) {
            let mut rest = n;
            let mut asked: Vec<&str> = vec![];
            for row in CHOICES {
                asked.extend(row[rest % row.len()]);
                rest /= row.len();
            }
            let options = parsed(&asked).unwrap_or_else(|error| panic!("{asked:?}: {error}"));
            let text = serde_json::to_string(&options.saved()).unwrap();
            let saved: Value = serde_json::from_str(&text).unwrap();
            // It passes through a file, and through words of a command line.
            assert_eq!(Options::read(&saved).unwrap(), options, "{asked:?}: {text}");
        }
    }

    #[test]
    fn the_next_command_repeats_only_options_of_measurement() {
        let how = |line: &str| parsed(&line.split(' ').collect::<Vec<_>>()).unwrap().how().join(" ");
        let typed =
            "--with a --load http://x --blocks 6 --with=b --at 60%,70 --rest 1s --no-predict --seed 1";
        assert_eq!(how(typed), "--at 60% --at 70% --load http://x --no-predict --rest 1s");
        assert_eq!(how("-w a --exit-ok=3,-1 --timeout 60s"), "--exit-ok 3 --exit-ok=-1 --timeout 1m");
        assert_eq!(how("-w none --budget 5m --fail-on wall_s>+5% --effect 2"), "");
    }

    #[test]
    fn saved_values_are_checked_like_typed_ones() {
        for valid in [
            json!({}),
            json!({ "with": ["none"], "blocks": 1, "connections": 1, "seed": u64::MAX }),
            json!({ "blocks": 500, "connections": 10_000, "at": ["1000%", "7"], "arrivals": "constant" }),
        ] {
            Options::read(&valid).unwrap();
        }
        for (field, values) in [
            ("with", vec![json!("none"), json!([1]), json!(null)]),
            ("blocks", vec![json!(0), json!(501), json!(-1), json!(1.5), json!("3"), json!([3])]),
            ("budget", vec![json!(5), json!("0"), json!("-1s"), json!("1e9h"), json!("9999999999h")]),
            ("effect", vec![json!(0.1), json!("0%"), json!("nan"), json!("2000%")]),
            ("ready_timeout", vec![json!("soon"), json!({ "secs": 1, "nanos": 0 })]),
            ("load", vec![json!(["http://127.0.0.1/"])]),
            ("header", vec![json!(["no colon"]), json!([["A", "b"]])]),
            ("body", vec![json!(7)]),
            ("at", vec![json!("70%"), json!(["70%", "-1%"]), json!(["inf"])]),
            ("rate", vec![json!("fast"), json!(40.0), json!("nan"), json!("inf"), json!("1e300")]),
            ("arrivals", vec![json!("Constant"), json!("never")]),
            ("warm_up", vec![json!("0s"), json!(2)]),
            ("first", vec![json!(0), json!(1_000_001), json!("3"), json!([3])]),
            ("connections", vec![json!(0), json!(10_001), json!(u64::MAX)]),
            ("rest", vec![json!(["1s", "0s"]), json!([null])]),
            ("exit_ok", vec![json!([1_u64 << 31]), json!(["3"])]),
            ("seed", vec![json!(-1), json!("1")]),
            ("no_predict", vec![json!("yes"), json!(1)]),
            ("output", vec![json!("x"), json!(null)]),
        ] {
            for value in values {
                let options = json!({ field: value });
                let error = Options::read(&options).expect_err(&options.to_string()).to_string();
                assert!(error.starts_with("the saved options are not valid: "), "{error}");
            }
        }
        for (options, words) in [
            (json!({ "load": URL, "load_cmd": "wrk", "ready": READY }), ["--load <URL>", "--load-cmd <CMD>"]),
            (json!({ "at": ["70%"], "rate": "5" }), ["--at <PERCENT", "--rate <N>"]),
            (json!({ "blocks": 6, "budget": "5m" }), ["--blocks <N>", "--budget <TIME>"]),
            (json!({ "effect": "2%", "blocks": 12 }), ["--effect <PERCENT>", "--blocks <N>"]),
            (json!({ "load_cmd": "wrk" }), ["not provided", "--ready <WHERE>"]),
            (json!({ "blocks": 501 }), ["invalid value '501'", "--blocks <N>"]),
        ] {
            let error = Options::read(&options).expect_err(&options.to_string()).to_string();
            assert!(error.starts_with("the saved options are not valid: "), "{error}");
            assert!(words.iter().all(|word| error.contains(word)), "{words:?}: {error}");
            assert!(!error.contains(['\n', '\u{1b}']) && !error.contains("Usage"), "{error}");
        }
        // Older files have a list of words, and a bench saves no options.
        for other in [json!(null), json!([]), json!(["--with", "none"]), json!("--with")] {
            assert!(
                Options::read(&other).unwrap_err().to_string().contains("no options of `allocwall trial`")
            );
        }
        assert_eq!(how(&Value::Null).unwrap(), [""; 0]);
        assert!(how(&json!(["--with", "none"])).is_err());
    }

    /// Drops a field, or gives it the value of another field, a list of its own value, or an odd value.
    fn change(fields: &mut serde_json::Map<String, Value>, odd: &[Value], random: &mut Random) {
        let names: Vec<String> = fields.keys().cloned().collect();
        let name = &names[random.below(names.len())];
        let other = &names[random.below(names.len())];
        let value = match random.below(4) {
            0 => {
                fields.remove(name);
                return;
            }
            1 => fields[other].clone(),
            2 => Value::Array(vec![fields[name].clone(); 2]),
            _ => odd[random.below(odd.len())].clone(),
        };
        fields.insert(name.clone(), value);
    }

    #[test]
    fn changed_options_are_refused_or_read_as_options_that_can_be_saved() {
        let valid: Vec<Value> = [
            &["-w", "none", "--budget", "5m"][..],
            &["-w", "a", "--load", URL, "--at", "50%,70", "--header", "A: b", "--rest=1s,2s", "--blocks=9"],
            &["-w", "a", "--load-cmd", "wrk", "--ready", READY, "--metric", "a:lower=(1)", "--effect", "2%"],
        ]
        .into_iter()
        .map(|asked| parsed(asked).unwrap().saved())
        .collect();
        let odd = [
            json!(null),
            json!(true),
            json!(0),
            json!(-1),
            json!(0.5),
            json!(1e308),
            json!(u64::MAX),
            json!(""),
            json!("-"),
            json!("--with"),
            json!("1s"),
            json!("70%"),
            json!("nan"),
            json!("a\n\u{0}\u{1b}=,b"),
            json!("9".repeat(5000)),
            json!([]),
            json!(["--load", ""]),
            json!([1, "1s", null]),
            json!(vec!["1s"; 300]),
            json!({}),
            json!({ "with": { "with": [{}] } }),
            (0..100).fold(json!("deep"), |inner, _| json!([inner])),
        ];
        let mut random = Random::new(1);
        let (mut read, mut refused) = (0, 0);
        for n in 0..800 {
            let mut saved = valid[n % valid.len()].clone();
            for _ in 0..random.below(4) {
                change(saved.as_object_mut().unwrap(), &odd, &mut random);
            }
            let text = saved.to_string();
            match Options::read(&serde_json::from_str(&text).unwrap()) {
                Ok(options) => {
                    assert_eq!(Options::read(&options.saved()).unwrap(), options, "{text}");
                    read += 1;
                }
                Err(error) => {
                    let line = error.to_string();
                    assert!(line.starts_with("the saved options are not valid: "), "{line}");
                    refused += 1;
                }
            }
        }
        assert!(read > 100 && refused > 100, "{read} read, {refused} refused");
    }

    #[test]
    fn a_path_that_is_not_utf8_is_saved_as_text() {
        use std::os::unix::ffi::OsStringExt;
        let body = Some(PathBuf::from(std::ffi::OsString::from_vec(b"a\xffb".to_vec())));
        let saved = Options { body, ..Options::default() }.saved();
        assert_eq!(Options::read(&saved).unwrap().body, Some("a\u{fffd}b".into()));
    }

    #[test]
    fn only_length_and_gates_may_change_when_a_trial_is_continued() {
        let changes = |words: &[&str]| {
            let mut options = words.iter().filter(|word| word.starts_with('-'));
            options.all(|word| ["--blocks", "--budget", "--fail-on"].contains(word))
        };
        for words in CHOICES.iter().copied().flatten().copied() {
            let error = parsed(&[&["--continue", "f"], words].concat()).err();
            let refused = error.map(|error| error.kind() == ErrorKind::ArgumentConflict);
            assert_eq!(refused, (!changes(words)).then_some(true), "{words:?}");
        }
    }

    #[test]
    fn an_option_is_refused_where_it_does_nothing_and_only_there() {
        // Options that have an effect in every trial.
        let all = [&OTHERS[..], &["load", "load-cmd", "no-predict", "prepare"]].concat();
        for name in names() {
            let listed = EFFECTIVE_IN.iter().any(|(option, _)| *option == name);
            assert!(
                listed != all.contains(&name.as_str()),
                "{name} must be in exactly one of the two tables"
            );
        }
        assert_eq!(names().len(), EFFECTIVE_IN.len() + all.len());
        let kinds: [(Of, &[&str]); 4] = [
            (Of::Batch, &[]),
            (Of::Load, &["--load", URL]),
            (Of::First, &["--load", URL, "--first", "1000"]),
            // It requires --ready.
            (Of::LoadCommand, &["--load-cmd", "wrk"]),
        ];
        for (option, effective_in) in EFFECTIVE_IN {
            let value = match *option {
                "metric" => "a:lower=(1)",
                "ready" => READY,
                "header" => "A: b",
                "arrivals" => "poisson",
                // A default value is refused too.
                "timeout" => "10m",
                _ => "3",
            };
            let name = format!("--{option}");
            for (of, load) in kinds {
                let ready =
                    if of == Of::LoadCommand && *option != "ready" { &["--ready", READY][..] } else { &[] };
                let pair = [name.as_str(), value];
                let given = if load.contains(&pair[0]) { &[][..] } else { &pair[..] };
                let options = parsed(&[load, ready, given].concat()).unwrap();
                // --first makes another kind of a load.
                let of = options.of_what();
                let line = options.without_effect();
                assert_eq!(line.is_none(), effective_in.contains(&of), "{name} {of:?}: {line:?}");
                let verb = if *option == "first" { "is for a server" } else { "has no effect on" };
                let begins = format!("{name} {verb}");
                assert!(line.is_none_or(|line| line.starts_with(&begins)), "{name} {of:?}");
            }
        }
        assert_eq!(Options::default().without_effect(), None);
        assert_eq!(parsed(&["--load", URL]).unwrap().without_effect(), None);
        for (words, line) in [
            (
                &["--load", URL, "--first", "9", "--rate", "5"][..],
                "--rate has no effect on a server under --load with --first: it is for a server under --load without --first",
            ),
            (&["--first", "9"], "--first is for a server: add --load URL"),
            (
                &["--warm-up", "2s"],
                "--warm-up 2s has no effect on a command that runs to its end: give a number of runs, for example --warm-up 3",
            ),
            (
                &["--method", "PUT"],
                "--method has no effect on a command that runs to its end: it is for a server under --load",
            ),
        ] {
            assert_eq!(parsed(words).unwrap().without_effect().as_deref(), Some(line));
        }
    }

    #[test]
    fn the_first_requests_have_one_client_by_default() {
        let connections = |words: &[&str]| parsed(&[&["--load", URL], words].concat()).unwrap().connections();
        assert_eq!((connections(&[]), connections(&["--first", "9"])), (256, 1));
        assert_eq!(connections(&["--first", "9", "--connections", "4"]), 4);
    }

    #[test]
    fn the_help_has_the_default_values() {
        let command = command();
        for (name, default) in [
            ("ready-timeout", "30s"),
            ("at", "70%"),
            ("arrivals", "poisson"),
            ("load-time", "10s"),
            ("warm-up", "2s"),
            ("connections", "256"),
            ("rest", "1s"),
            ("timeout", "10m"),
        ] {
            let argument = command.get_arguments().find(|a| a.get_long() == Some(name)).unwrap();
            let help = argument.get_help().unwrap().to_string();
            assert!(help.ends_with(&format!("[default: {default}]")), "{help}");
            // The default has the same effect as no option.
            let word = format!("--{name}");
            let option = ["--load", URL, &word, default];
            let values = |options: Options| {
                (
                    (options.ready_timeout(), options.shares(), options.arrivals.unwrap_or_default()),
                    (options.load_time(), options.warm_up(), options.connections()),
                    (options.rest(), options.timeout()),
                )
            };
            assert_eq!(values(parsed(&option).unwrap()), values(Options::default()), "{name}");
        }
    }
}
