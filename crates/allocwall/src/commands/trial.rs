//! `allocwall trial`: remedies on the user's own command, interleaved, with an interval and an outcome each.

use crate::commands::read;
use crate::commands::report::Judged;
use crate::commands::shared::arms;
use crate::commands::shared::ground::Ground;
use crate::commands::shared::options::{how, parse_time};
use crate::commands::shared::progress::Progress;
use crate::commands::shared::signals::{USAGE, catch_signals};
use crate::commands::shared::state::new_state_file;
use crate::printer::Printer;
use allocwall_diagnose::expected;
use allocwall_diagnose::remedies::quoted;
use allocwall_host::launch::Talk;
use allocwall_host::program;
use allocwall_measure::calibrate;
use allocwall_measure::record::{self, Ask};
use allocwall_model::catalogue::modules;
use allocwall_model::error::Error;
use allocwall_report::{trial_csv, trial_json, trial_text};
use allocwall_trial::account::Room;
use allocwall_trial::arm::{Arm, TargetFacts};
use allocwall_trial::batch::{self, Batch, Fresh, Prepared};
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::{self, Conduct, End, Length, Ran, Subject};
use allocwall_trial::gate::Gate;
use allocwall_trial::journal::{self, Head, Journal, Origin, Writer};
use allocwall_trial::load::adapters::Adapter;
use allocwall_trial::load::arrivals::Arrivals;
use allocwall_trial::load::metric::Metric as Figure;
use allocwall_trial::load::open::Plan;
use allocwall_trial::load::ready::Ready;
use allocwall_trial::load::request::{Ask as HttpAsk, Request};
use allocwall_trial::run::{Guard, Start};
use allocwall_trial::server::{self, Load, Read, Server};
use allocwall_trial::session;
use allocwall_trial::{BASELINES, Design, Metric, Settings, TrialResult, plan, predict};
use anyhow::{Context, anyhow, bail};
use clap::parser::ValueSource;
use clap::{ArgMatches, Parser};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SUFFIX: &str = ".trial";
/// Options that have no effect in some kinds of trials: clap id, and the kinds of trials that use the option.
const HEEDED: &[(&str, &[Of])] = &[
    ("metric", &[Of::Batch, Of::LoadCommand]),
    ("ready", &[Of::Load, Of::LoadCommand]),
    ("ready_timeout", &[Of::Load, Of::LoadCommand]),
    ("method", &[Of::Load]),
    ("header", &[Of::Load]),
    ("body", &[Of::Load]),
    ("at", &[Of::Load]),
    ("rate", &[Of::Load]),
    ("arrivals", &[Of::Load]),
    ("load_time", &[Of::Load, Of::LoadCommand]),
    ("connections", &[Of::Load]),
    ("rest", &[Of::Load, Of::LoadCommand]),
    ("timeout", &[Of::Batch, Of::LoadCommand]),
    ("exit_ok", &[Of::Batch]),
];
/// Options that define a trial. They cannot change when it is continued.
const AS_BEGUN: [&str; 21] = [
    "with",
    "command",
    "effect",
    "metric",
    "ready",
    "ready_timeout",
    "load",
    "method",
    "header",
    "body",
    "load_cmd",
    "at",
    "rate",
    "arrivals",
    "load_time",
    "connections",
    "rest",
    "timeout",
    "exit_ok",
    "seed",
    "no_predict",
];

/// The kind of a trial.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Of {
    Batch,
    Load,
    LoadCommand,
}

impl Of {
    fn title(self) -> &'static str {
        match self {
            Of::Batch => "a command that runs to its end",
            Of::Load => "a server under --load",
            Of::LoadCommand => "a server under --load-cmd",
        }
    }
}

/// The options that the user typed, without those that have their default value. An argument group without arguments
/// of its own that reads all other matches.
#[derive(Default)]
struct Given(Vec<String>);

impl clap::FromArgMatches for Given {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Given, clap::Error> {
        let typed = |id: &&str| matches.value_source(id) == Some(ValueSource::CommandLine);
        let ids = matches.ids().map(|id| id.as_str()).filter(typed);
        Ok(Given(ids.map(str::to_owned).collect()))
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Given::from_arg_matches(matches)?;
        Ok(())
    }
}

impl clap::Args for Given {
    fn augment_args(command: clap::Command) -> clap::Command {
        command
    }

    fn augment_args_for_update(command: clap::Command) -> clap::Command {
        command
    }
}

#[derive(clap::Args)]
#[command(
    override_usage = "allocwall trial [OPTIONS] --with NAME[+NAME…] [--with …] -- CMD…\n       allocwall trial [OPTIONS] --continue FILE",
    after_help = "A block runs every arm once and the baseline (the command without a remedy) twice, in random order. Each \
                  run is a new process.\n\
                  `allocwall list` shows the remedies. Exit status: 0 measured, 1 could not measure (or --fail-on met), \
                  2 usage error."
)]
pub struct Args {
    // Must be first: clap removes the matches of each field before it fills the next one.
    #[command(flatten)]
    given: Given,

    /// An arm: one remedy, or several joined by + (jemalloc+thp); `none` compares the command with itself
    #[arg(short, long, value_name = "NAME")]
    pub with: Vec<String>,

    /// Number of blocks [default: 12, or more if the number of arms needs more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500), conflicts_with = "budget")]
    blocks: Option<u64>,

    /// Run as many blocks as fit into this time, not counting the time before the first block: 5m, 90s
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    budget: Option<Duration>,

    /// Smallest change to detect; the number of blocks is planned from the first few blocks, and printed
    #[arg(long, value_name = "PERCENT", value_parser = parse_percent, conflicts_with = "blocks")]
    effect: Option<f64>,

    /// A metric read from the command's output: NAME:lower=REGEX or NAME:higher=$.json.path
    #[arg(long, value_name = "SPEC")]
    metric: Vec<String>,

    /// The server is ready when this address answers: http://127.0.0.1:PORT/path or tcp:127.0.0.1:PORT
    #[arg(long, value_name = "WHERE")]
    ready: Option<String>,

    /// Longest time to wait until the server is ready
    #[arg(long, value_name = "TIME", default_value = "30s", value_parser = parse_time)]
    ready_timeout: Duration,

    /// Load the server with requests for this URL; each is sent when it is due, even if earlier ones are not answered
    #[arg(long, value_name = "URL", conflicts_with = "load_cmd")]
    load: Option<String>,

    /// HTTP method of the requests [default: GET, or POST with --body]
    #[arg(long, value_name = "METHOD")]
    method: Option<String>,

    /// HTTP header of the requests: 'Content-Type: application/json'; may be repeated
    #[arg(long, value_name = "NAME: VALUE", value_parser = parse_header)]
    header: Vec<(String, String)>,

    /// File with the body of the requests; without --method, they are POST requests
    #[arg(long, value_name = "FILE")]
    body: Option<PathBuf>,

    /// Load the server with this command (wrk, wrk2, oha, hey, ab, redis-benchmark, memtier_benchmark, pgbench,
    /// sysbench; other programs need --metric)
    #[arg(long, value_name = "CMD", requires = "ready")]
    load_cmd: Option<String>,

    /// Request rates, as shares of the baseline's capacity
    #[arg(long, value_name = "PERCENT[,…]", default_value = "70%", value_delimiter = ',', value_parser = parse_percent, conflicts_with = "rate")]
    at: Vec<f64>,

    /// Requests per second, instead of a share of the capacity
    #[arg(long, value_name = "N")]
    rate: Option<f64>,

    /// Distribution of the times at which requests are due
    #[arg(long, value_enum, default_value_t = Spacing::Poisson)]
    arrivals: Spacing,

    /// Length of the load in each run, after 2 s of warm-up; with --load-cmd: length of the preliminary diagnosis
    #[arg(long, value_name = "TIME", default_value = "10s", value_parser = parse_time)]
    load_time: Duration,

    /// Largest number of connections, both for the load and for measuring the capacity
    #[arg(long, value_name = "N", default_value_t = 256, value_parser = clap::value_parser!(u64).range(1..=10_000))]
    connections: u64,

    /// How long after the load to measure the server's memory
    #[arg(long, value_name = "TIME[,…]", default_value = "1s", value_delimiter = ',', value_parser = parse_time)]
    rest: Vec<Duration>,

    /// A run of the command or of --load-cmd that takes longer is ended and counts as failed
    #[arg(long, value_name = "TIME", default_value = "10m", value_parser = parse_time)]
    timeout: Duration,

    /// Exit statuses that count as success, besides 0
    #[arg(long, value_name = "CODE[,…]", value_delimiter = ',')]
    exit_ok: Vec<i32>,

    /// Random seed for the order of arms; the same seed gives the same order
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Skip the preliminary diagnosis; no predictions are shown
    #[arg(long)]
    no_predict: bool,

    /// Save the trial to this file after each block [default: a file in the state directory]
    #[arg(short, long, value_name = "FILE", conflicts_with = "resume")]
    output: Option<PathBuf>,

    /// Continue an interrupted trial with its own options; with --blocks N, where N blocks are done, only report it
    #[arg(long = "continue", value_name = "FILE", conflicts_with_all = AS_BEGUN)]
    resume: Option<PathBuf>,

    /// Exit with status 1 if a metric of any arm got worse by more than this: 'wall_s>+5%', 'throughput<-3%'
    #[arg(long, value_name = "GATE")]
    fail_on: Vec<String>,

    /// Print the versioned JSON document (docs/json.md) instead of text
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV, one row for each comparison
    #[arg(long)]
    csv: bool,

    /// The command; each run starts it as a new process with empty standard input
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<OsString>,

    /// The options, if another subcommand made them instead of the user.
    #[arg(skip)]
    pub made_of: Vec<String>,
}

impl Args {
    /// A trial of these remedies on a command that runs to its end, with defaults for all other options.
    pub fn of(with: &[&str], command: &[OsString]) -> Args {
        let options: Vec<String> =
            with.iter().flat_map(|name| ["--with".to_owned(), (*name).to_owned()]).collect();
        let words = ["trial".to_owned()].into_iter().chain(options.iter().cloned());
        let Again { args } = Again::parse_from(words);
        Args { command: command.to_vec(), made_of: options, ..args }
    }

    fn of_what(&self) -> Of {
        match (&self.load, &self.load_cmd) {
            (Some(_), _) => Of::Load,
            (None, Some(_)) => Of::LoadCommand,
            (None, None) => Of::Batch,
        }
    }

    /// An error message for the first typed option that has no effect in this kind of trial.
    fn unheeded(&self) -> Option<String> {
        let of = self.of_what();
        let idle =
            |(option, by): &&(&str, &[Of])| !by.contains(&of) && self.given.0.iter().any(|id| id == option);
        let (option, by) = HEEDED.iter().find(idle)?;
        let by: Vec<&str> = by.iter().map(|of| of.title()).collect();
        Some(format!(
            "--{} has no effect on {}: it is for {}",
            option.replace('_', "-"),
            of.title(),
            by.join(" or ")
        ))
    }

    /// The options as the user typed them.
    fn options(&self) -> Vec<String> {
        if self.made_of.is_empty() { typed() } else { self.made_of.clone() }
    }
}

/// The typed words between `trial` and `--`; a trial is continued with them.
fn typed() -> Vec<String> {
    let words = std::env::args_os().map(|w| w.to_string_lossy().into_owned());
    let words = words.skip_while(|w| w != "trial").skip(1);
    words.take_while(|w| w != "--").collect()
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::ValueEnum)]
enum Spacing {
    #[default]
    Poisson,
    Constant,
}

/// Parses the saved options of a trial that is continued.
#[derive(Parser)]
struct Again {
    #[command(flatten)]
    args: Args,
}

fn parse_header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) => Ok((name.trim().to_owned(), value.trim().to_owned())),
        None => Err("a header is NAME: VALUE".into()),
    }
}

fn parse_percent(text: &str) -> Result<f64, String> {
    let number: f64 =
        text.trim_end_matches('%').trim().parse().map_err(|_| "expected a percentage: 2%".to_owned())?;
    if number > 0.0 && number <= 1000.0 {
        return Ok(number / 100.0);
    }
    Err("a percentage must be above 0 % and at most 1000 %".into())
}

pub fn run(mut args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    if let Some(line) = args.unheeded() {
        printer.error(&anyhow!(line));
        return Ok(ExitCode::from(USAGE));
    }
    let mut earlier = args.resume.as_ref().map(|path| journal::read(path)).transpose()?;
    if let Some(earlier) = &mut earlier {
        args = continued(&args, earlier)?;
    }
    let gates = args.fail_on.iter().map(|g| Gate::parse(g)).collect::<Result<Vec<_>, Error>>()?;
    if args.command.is_empty() {
        bail!("no command given: put it after --");
    }
    if args.with.is_empty() {
        bail!(
            "nothing to try: use --with NAME (`allocwall list` shows the names), or --with none to compare the command with itself"
        );
    }
    let interrupted = catch_signals()?;
    let ground = Ground::new("allocwall-trial-", printer)?;
    let outcome = Trial {
        args: &args,
        printer,
        interrupted: &interrupted,
        keeper: &ground.keeper,
        folder: ground.folder(),
        guard: &ground.guard,
        gates: &gates,
        seed: match (&earlier, args.seed) {
            (Some(earlier), _) => earlier.head.design.settings.seed,
            (None, Some(seed)) => seed,
            (None, None) => allocwall_host::clock::unix_ms(),
        },
    }
    .conduct(earlier);
    drop(ground);
    let Tried { outcome, path, failed } = outcome?;
    let words: Vec<String> = args.command.iter().map(|w| w.to_string_lossy().into_owned()).collect();
    printer.data(&match (args.json, args.csv) {
        (true, _) => trial_json::document(&outcome, &words),
        (_, true) => trial_csv::table(&outcome),
        _ => trial_text::trial(&outcome, &words, &how(&args.options()), printer.style()),
    })?;
    printer.note(&format!("trial: {}", path.display()));
    let met = gates.iter().map(|gate| gate.stops(&outcome)).collect::<Result<Vec<_>, Error>>()?;
    let met: Vec<String> = met.into_iter().flatten().collect();
    for line in &met {
        printer.warn(line);
    }
    if let Some(why) = &failed {
        printer.error(&anyhow!("the trial stopped early: {why}"));
    }
    let measured = outcome.comparisons.iter().any(|c| c.effect.is_ok());
    // With --fail-on, an unfinished trial must not pass.
    let cut_off = failed.is_some() || (!gates.is_empty() && interrupted.load(Ordering::Relaxed));
    Ok(if measured && met.is_empty() && !cut_off { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// The earlier trial's options, with the new options that may change: length, gates and output.
fn continued(now: &Args, earlier: &mut Journal) -> anyhow::Result<Args> {
    let kept = earlier.head.options.iter().chain(&earlier.head.command);
    if let Some(word) = kept.into_iter().find(|word| word.contains(char::REPLACEMENT_CHARACTER)) {
        bail!(
            "the trial can't be continued: {word} was not valid UTF-8, and the file stores options and command as text; \
             start another trial"
        );
    }
    let words = ["trial".to_owned()]
        .into_iter()
        .chain(earlier.head.options.iter().cloned())
        .chain(["--".to_owned()])
        .chain(earlier.head.command.iter().cloned());
    let Again { args: mut before } = Again::try_parse_from(words).map_err(|e| {
        anyhow!("the trial can't be continued: its saved options are not valid: {}", e.kind())
    })?;
    earlier.planned |= before.budget.is_none() && before.effect.is_none();
    let (done, planned) = (earlier.blocks.len(), earlier.head.design.settings.planned);
    if let Some(blocks) = now.blocks.map(|blocks| blocks as usize)
        && blocks != done
        && (blocks < done || (earlier.planned && blocks != planned))
    {
        // The interim looks share one significance level; changing the plan after a look would spend it twice.
        bail!(
            "--blocks {blocks}: {done} of {planned} planned blocks are done, and the plan cannot change; for another number of \
             blocks, start another trial"
        );
    }
    if now.blocks.is_some() || now.budget.is_some() {
        (before.blocks, before.budget) = (now.blocks, now.budget);
    }
    if !now.fail_on.is_empty() {
        before.fail_on = now.fail_on.clone();
    }
    before.made_of = earlier.head.options.clone();
    before.resume = now.resume.clone();
    before.json = now.json;
    before.csv = now.csv;
    Ok(before)
}

struct Trial<'a> {
    args: &'a Args,
    printer: &'a Printer,
    interrupted: &'a AtomicBool,
    keeper: &'a Path,
    folder: &'a Path,
    guard: &'a Guard,
    gates: &'a [Gate],
    seed: u64,
}

/// The result of a trial, and where it is saved.
struct Tried {
    outcome: TrialResult,
    path: PathBuf,
    /// Why it stopped early.
    failed: Option<String>,
}

impl Tried {
    fn of(journal: &Journal, path: &Path) -> Tried {
        Tried { outcome: compare(&journal.head.design, &journal.blocks), path: path.to_owned(), failed: None }
    }
}

enum Kind<'a> {
    Batch(Batch<'a>),
    Server(Server<'a>),
}

impl Trial<'_> {
    fn conduct(&self, earlier: Option<Journal>) -> anyhow::Result<Tried> {
        if let (Some(earlier), Some(path)) = (&earlier, &self.args.resume)
            && self.only_reported(earlier)
        {
            self.gates_fit(&earlier.head.design.metrics)?;
            return Ok(Tried::of(earlier, path));
        }
        let arms = self.arms()?;
        let names: Vec<String> = arms.iter().map(|arm| arm.name.clone()).collect();
        let origin = self.origin();
        // Check before any run that the trial can be saved, and that a continued trial is still the same trial.
        let (path, appended) = match (&earlier, &self.args.resume) {
            (Some(earlier), Some(path)) => {
                self.goes_on(&earlier.head, &names, &origin)?;
                (path.clone(), Some(Writer::append_to(path)?))
            }
            _ => (self.path()?, None),
        };
        let rates = earlier.as_ref().map(|earlier| &earlier.head.rates[..]);
        let (mut kind, rates) = self.prepared(&arms, rates)?;
        // The first runs show what is wrong with the command before anything is measured.
        let first = self.prove(&mut kind, &names)?;
        if self.stopped() {
            return self.stopped_early(earlier);
        }
        let mut journal = match earlier {
            Some(journal) => {
                self.gates_fit(&journal.head.design.metrics)?;
                journal
            }
            None => {
                let metrics = match &kind {
                    Kind::Batch(_) => {
                        batch::metrics(&first.first().map(|r| r.readings.clone()).unwrap_or_default())
                    }
                    Kind::Server(server) => server::metrics(server, first.first().context("interrupted")?),
                };
                self.gates_fit(&metrics)?;
                // A metric of --fail-on is primary.
                let gated = |m: &Metric| self.gates.iter().any(|gate| gate.is_of(m));
                let metrics: Vec<Metric> =
                    metrics.into_iter().map(|m| Metric { primary: m.primary || gated(&m), ..m }).collect();
                let predicted = self.predicted(&kind, &arms, &metrics);
                if self.stopped() {
                    return self.stopped_early(None);
                }
                Journal {
                    head: Head {
                        origin: Some(origin),
                        ..self.head(&arms, metrics, predicted, rates, &first)
                    },
                    blocks: vec![],
                    planned: false,
                }
            }
        };
        let mut writer = match appended {
            Some(writer) => writer,
            None => Writer::create(&path, &journal.head)?,
        };
        let length = self.length();
        if let Length::Blocks(count) = length
            && self.args.resume.is_some()
            && !journal.planned
        {
            let design = &mut journal.head.design;
            let family = plan::family(design.arms.len(), &design.metrics);
            design.settings.planned = count;
            design.settings.looks = plan::looks(count, design.arms.len(), family);
            writer.plan(design)?;
        }
        let mut progress = Progress::new(self.printer);
        let subject: &mut dyn Subject = match &mut kind {
            Kind::Batch(batch) => batch,
            Kind::Server(server) => server,
        };
        let mut conduct = Conduct {
            subject,
            writer: &mut writer,
            interrupted: self.interrupted,
            told: &mut |told| progress.tell(told),
        };
        let end = conduct.run(&mut journal, length);
        drop(progress);
        let done = journal.blocks.len();
        let mut tried = Tried::of(&journal, &path);
        match end {
            Ok(End::Failed(why)) => tried.failed = Some(why),
            Ok(End::Interrupted) => self.interrupted_after(done, &path),
            Ok(End::TimeOver) => self.time_over(&journal),
            Ok(End::Planned | End::Decided) => {}
            Err(error) => {
                if done > 0 {
                    self.printer.note(&format!("trial: {}", path.display()));
                }
                return Err(error.into());
            }
        }
        Ok(tried)
    }

    /// All blocks are done, or --blocks names the number of blocks that are done.
    fn only_reported(&self, earlier: &Journal) -> bool {
        let done = earlier.blocks.len();
        let asked = self.args.blocks == Some(done as u64);
        done > 0 && (asked || conduct::over(earlier).is_some())
    }

    fn gates_fit(&self, metrics: &[Metric]) -> anyhow::Result<()> {
        for gate in self.gates {
            gate.among(metrics)?;
        }
        Ok(())
    }

    fn stopped(&self) -> bool {
        // Relaxed: the flag guards no other data.
        self.interrupted.load(Ordering::Relaxed)
    }

    /// Interrupted before the first block of this run. A continued trial reports its earlier blocks.
    fn stopped_early(&self, earlier: Option<Journal>) -> anyhow::Result<Tried> {
        match (earlier, &self.args.resume) {
            (Some(earlier), Some(path)) if !earlier.blocks.is_empty() => {
                self.interrupted_after(earlier.blocks.len(), path);
                Ok(Tried::of(&earlier, path))
            }
            _ => bail!("interrupted before the first block"),
        }
    }

    fn interrupted_after(&self, done: usize, path: &Path) {
        let blocks = if done == 1 { "block" } else { "blocks" };
        self.printer.note(&format!(
            "interrupted after {done} {blocks}; to continue: allocwall trial --continue {}",
            quoted(&path.display().to_string())
        ));
    }

    fn time_over(&self, journal: &Journal) {
        let (design, done) = (&journal.head.design, journal.blocks.len());
        let arms = design.arms.len();
        let fewest = plan::fewest_blocks(arms, plan::family(arms, &design.metrics));
        self.printer.note(&if done < fewest { format!(
            "time is up after {done} of at least {fewest} blocks that a result needs: use a longer --budget"
        ) } else { "time is up".to_owned() });
    }

    /// The baseline twice, then the remedies.
    fn arms(&self) -> anyhow::Result<Vec<Arm>> {
        let untreated = |name: &str| Arm::parse("none").map(|arm| Arm { name: name.to_owned(), ..arm });
        let mut arms = vec![untreated("A")?, untreated("A′")?];
        for text in &self.args.with {
            let arm = Arm::parse(text)?;
            if arm.parts.iter().all(|part| part.remedy.key == "none") {
                continue;
            }
            if arms.iter().any(|known| known.name == arm.name) {
                bail!("--with {text} is given twice");
            }
            arms.push(arm);
        }
        Ok(arms)
    }

    /// Also returns the request rates of --load; a continued trial keeps its earlier rates.
    fn prepared(&self, arms: &[Arm], earlier: Option<&[Rate]>) -> anyhow::Result<(Kind<'_>, Vec<Rate>)> {
        let args = self.args;
        let facts = TargetFacts::of(&args.command, &arms::environment())?;
        let inventory = arms::inventory(self.printer);
        let base = Start::new(args.command.clone(), args.timeout);
        let mut prepared = Vec::new();
        for arm in arms {
            let applied = arm.resolve(&inventory, &facts)?;
            for note in &applied.notes {
                self.printer.warn(&format!("{}: {note}", arm.name));
            }
            prepared.push(Prepared::of(&base, &applied));
        }
        let prepared = session::equalised(prepared);
        let figures = args.metric.iter().map(|m| Figure::parse(m)).collect::<Result<Vec<_>, Error>>()?;
        if args.of_what() == Of::Batch {
            let batch = Kind::Batch(Batch {
                arms: prepared,
                keeper_exe: self.keeper.to_owned(),
                figures,
                tlb_misses: false,
                fine: args.exit_ok.clone(),
                interrupted: self.interrupted,
            });
            return Ok((batch, vec![]));
        }
        let ready = match (&args.ready, &args.load) {
            (Some(ready), _) => Ready::parse(ready, false)?,
            // A TCP connection is enough here; the first load shows whether the requests succeed.
            (None, Some(url)) => Ready::Tcp(self.request(url)?.address),
            (None, None) => bail!("unknown when the server is ready: use --ready tcp:127.0.0.1:PORT"),
        };
        let load = match (&args.load, &args.load_cmd) {
            (Some(url), _) => Load::Inside { request: self.request(url)?, plans: vec![] },
            (None, Some(line)) => {
                let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                let read = if figures.is_empty() {
                    Read::Adapter(Adapter::of_command(&words)?)
                } else {
                    Read::Figures(figures)
                };
                Load::Command { line: line.clone(), read, limit: args.timeout }
            }
            (None, None) => bail!("no load given: use --load URL or --load-cmd CMD"),
        };
        let mut server = Server {
            arms: prepared,
            keeper_exe: self.keeper.to_owned(),
            ready,
            patience: args.ready_timeout,
            load,
            rest: args.rest.clone(),
            interrupted: self.interrupted,
        };
        let mut rates = vec![];
        if args.load.is_some() {
            rates = match earlier {
                Some(earlier) if !earlier.is_empty() => earlier.to_vec(),
                _ => self.rates(&server)?,
            };
            let like = Plan {
                arrivals: match args.arrivals {
                    Spacing::Poisson => Arrivals::Poisson { seed: self.seed },
                    Spacing::Constant => Arrivals::Constant,
                },
                window: args.load_time,
                connections: args.connections as usize,
                ..Plan::new(1.0, 0)
            };
            if let Load::Inside { plans, .. } = &mut server.load {
                *plans = server::plans(&rates, &like);
            }
        }
        Ok((Kind::Server(server), rates))
    }

    fn request(&self, url: &str) -> anyhow::Result<Request> {
        let args = self.args;
        let body = match &args.body {
            Some(path) => std::fs::read(path).with_context(|| path.display().to_string())?,
            None => vec![],
        };
        let method = match (&args.method, &args.body) {
            (Some(method), _) => method,
            (None, Some(_)) => "POST",
            (None, None) => "GET",
        };
        Ok(Request::new(&HttpAsk { method, headers: &args.header, body: &body, ..HttpAsk::get(url) })?)
    }

    fn rates(&self, server: &Server) -> anyhow::Result<Vec<Rate>> {
        if let Some(rate) = self.args.rate {
            return Ok(vec![(format!("{rate}/s"), rate)]);
        }
        self.printer.note("measuring the capacity of the baseline");
        let most = self.args.connections;
        let capacity = server.capacity(0, most as usize)?;
        if capacity.still_rising {
            self.printer.note(&format!(
                "the capacity may be higher: throughput still rose at {most} connections; use --connections to allow more"
            ));
        }
        let shares = &self.args.at;
        let rates: Vec<Rate> = shares
            .iter()
            .map(|share| (format!("{:.0}%", share * 100.0), capacity.per_second * share))
            .collect();
        let shown: Vec<String> = rates.iter().map(|(name, rate)| format!("{name} = {rate:.0}")).collect();
        self.printer.note(&format!(
            "capacity {:.0} requests/s with {} connections; load of all arms: {} requests/s",
            capacity.per_second,
            capacity.connections,
            shown.join(", ")
        ));
        Ok(rates)
    }

    /// One run of each arm, which is not counted.
    fn prove(&self, kind: &mut Kind, names: &[String]) -> anyhow::Result<Vec<Ran>> {
        let told = |arm: usize| {
            self.printer.progress_line(&format!("first run of {}, not counted", names[arm]));
        };
        let room = Room::new(self.folder);
        let ran = match kind {
            Kind::Batch(batch) => batch.prove(&room, self.interrupted, told)?,
            Kind::Server(server) => server.prove(&room, self.interrupted, told)?,
        };
        self.printer.clear_line();
        if self.stopped() {
            return Ok(ran);
        }
        if let Some(failure) = ran.iter().take(BASELINES).find_map(|r| r.failure.clone()) {
            bail!("the command fails without any remedy: {failure}");
        }
        if let Kind::Batch(batch) = kind {
            let read = |run: &Ran, figure: &Figure| run.metrics.get(&figure.name)?.clone().err();
            let unread = |run: &Ran| batch.figures.iter().find_map(|figure| read(run, figure));
            if let Some(absence) = ran.iter().take(BASELINES).find_map(unread) {
                let mend = absence.mend.map_or(String::new(), |mend| format!("; {mend}"));
                bail!("{}{mend}", absence.detail);
            }
        }
        let mut dead = 0;
        for (ran, name) in ran.iter().zip(names).skip(BASELINES) {
            let Some(why) = session::problem(ran) else {
                continue;
            };
            dead += 1;
            self.printer.warn(&format!("{name}: {why}"));
        }
        if dead > 0 && dead == names.len() - BASELINES {
            bail!("no arm is left to try: see the warnings above");
        }
        Ok(ran)
    }

    fn head(
        &self,
        arms: &[Arm],
        metrics: Vec<Metric>,
        predicted: Vec<Predicted>,
        rates: Vec<Rate>,
        first: &[Ran],
    ) -> Head {
        let infos = session::arms(arms.iter().map(|arm| arm.name.as_str()), predicted);
        let family = plan::family(infos.len(), &metrics);
        let planned = match self.length() {
            Length::Blocks(count) => count,
            Length::Budget(_) | Length::Effect(_) => plan::default_blocks(infos.len(), family),
        };
        let command = self.args.command.iter();
        let command = command.map(|w| w.to_string_lossy().into_owned()).collect();
        let design = Design {
            settings: Settings {
                seed: self.seed,
                effect: self.args.effect.unwrap_or(plan::DEFAULT_EFFECT),
                planned,
                looks: plan::looks(planned, infos.len(), family),
            },
            arms: infos,
            metrics,
        };
        Head { rates, ..session::head(command, self.args.options(), design, first) }
    }

    fn origin(&self) -> Origin {
        let shown = |path: PathBuf| path.display().to_string();
        let path = std::env::var_os("PATH");
        let found = self.args.command.first().map(|name| program::find(name, path.as_deref(), "".as_ref()));
        let text = |(name, value): (OsString, OsString)| {
            (name.to_string_lossy().into_owned(), value.to_string_lossy().into_owned())
        };
        let variables = arms::environment().into_iter().map(text);
        Origin {
            folder: std::env::current_dir().map(shown).unwrap_or_default(),
            // A program that cannot be found cannot be started either, so no trial is saved.
            program: found.and_then(Result::ok).map(shown).unwrap_or_default(),
            environment: variables.filter(|(name, _)| modules::is_setting(name)).collect(),
        }
    }

    /// Checks that new runs belong to the earlier trial. Another machine is allowed, because blocks are compared one
    /// by one, but gives a warning.
    fn goes_on(&self, begun: &Head, names: &[String], now: &Origin) -> anyhow::Result<()> {
        if !begun.design.arms.iter().map(|arm| &arm.name).eq(names) {
            bail!(
                "the trial can't be continued: its arms differ from those in its file: {}",
                names.join(", ")
            );
        }
        match begun.origin.as_ref().map(|origin| origin.differs(now)) {
            Some(Some(why)) => bail!("the trial can't be continued: {why}"),
            Some(None) => {}
            None => self.printer.warn(
                "the trial's file does not record its folder and environment, so they are not compared with the current ones",
            ),
        }
        let here = session::machine();
        let others: Vec<&str> =
            begun.machine.iter().filter(|line| !here.contains(line)).map(String::as_str).collect();
        if !others.is_empty() {
            self.printer.warn(&format!(
                "the trial was started on another machine ({}); this machine is {}",
                others.join(", "),
                here.join(", ")
            ));
        }
        Ok(())
    }

    /// For each arm: the changes that a diagnosis of the baseline predicts.
    fn predicted(&self, kind: &Kind, arms: &[Arm], metrics: &[Metric]) -> Vec<Predicted> {
        let nothing = || vec![Predicted::new(); arms.len()];
        if self.args.no_predict || arms.len() == BASELINES {
            return nothing();
        }
        self.printer.progress_line("diagnosing the baseline");
        let window = self.args.load_time.clamp(record::SHORTEST_WINDOW, record::DEFAULT_WINDOW);
        let judged = match kind {
            Kind::Batch(batch) => self.diagnosed(
                Ask::Launch {
                    command: batch.arms[0].start.command.clone(),
                    env: vec![self.guard.mark()],
                    keep: false,
                    talk: Talk::Nowhere,
                },
                record::DEFAULT_WINDOW,
                self.interrupted,
            ),
            Kind::Server(server) => server
                .under_observation(0, |pid, over| self.diagnosed(Ask::Pids(vec![pid]), window, over))
                .map_err(Into::into)
                .and_then(|judged| judged),
        };
        // Ends processes that left the command's process group.
        self.guard.sweep();
        self.printer.clear_line();
        match judged {
            Ok(judged) => {
                if !self.stopped()
                    && let Err(absence) = expected::possible(&judged.recording, &judged.bill)
                {
                    self.printer.warn(&format!("no predictions: {absence}"));
                }
                arms.iter().map(|arm| predict::of(&judged.recording, &judged.bill, arm, metrics)).collect()
            }
            Err(error) => {
                self.printer.warn(&format!("no predictions: the command could not be diagnosed: {error:#}"));
                nothing()
            }
        }
    }

    /// `over` closes the window early.
    fn diagnosed(&self, ask: Ask, window: Duration, over: &AtomicBool) -> anyhow::Result<Judged> {
        let recorded = record::record(record::Request {
            ask,
            window,
            rate_hz: None,
            // This run is not counted.
            closely: true,
            output: None,
            prices: calibrate::cached(),
            readers: read::ourselves(),
            interrupted: over,
            progress: &mut |_| {},
        })?;
        Ok(Judged::of(recorded.recording, None))
    }

    fn length(&self) -> Length {
        let args = self.args;
        match (args.blocks, args.budget, args.effect) {
            (Some(count), ..) => Length::Blocks(count as usize),
            (None, budget, Some(_)) => Length::Effect(budget),
            (None, Some(budget), None) => Length::Budget(budget),
            (None, None, None) => {
                let arms = args.with.iter().filter(|w| *w != "none").count() + BASELINES;
                Length::Blocks(plan::default_blocks(arms, arms.saturating_sub(BASELINES).max(1)))
            }
        }
    }

    /// The path of the trial's file; checks that the file can be created.
    fn path(&self) -> anyhow::Result<PathBuf> {
        let free = |path: PathBuf| journal::may_create(&path).map(|()| path);
        match &self.args.output {
            Some(path) => Ok(free(path.clone())?),
            None => new_state_file(SUFFIX, self.printer)
                .and_then(|path| Ok(free(path)?))
                .context("cannot write to the state directory: name a file with -o"),
        }
    }
}

/// A load's name, and its requests per second.
type Rate = (String, f64);
type Predicted = BTreeMap<String, allocwall_model::units::Interval>;

#[cfg(test)]
mod tests {
    use super::*;
    use clap::CommandFactory;

    /// Options that have an effect in every trial.
    const ALL: &[&str] = &[
        "with",
        "blocks",
        "budget",
        "effect",
        "load",
        "load_cmd",
        "seed",
        "no_predict",
        "output",
        "resume",
        "fail_on",
        "json",
        "csv",
        "command",
    ];
    const READY: [&str; 2] = ["--ready", "tcp:127.0.0.1:1"];

    fn parsed(words: &[&str]) -> Args {
        let words = ["trial", "--with", "none"].iter().chain(words);
        Again::try_parse_from(words).unwrap().args
    }

    #[test]
    fn an_option_is_refused_where_it_does_nothing_and_only_there() {
        let command = Again::command();
        for argument in command.get_arguments() {
            let id = argument.get_id().as_str();
            let listed = HEEDED.iter().any(|(option, _)| *option == id);
            assert!(listed != ALL.contains(&id), "{id} must be in exactly one of the two tables");
        }
        let kinds: [(Of, &[&str]); 3] = [
            (Of::Batch, &[]),
            (Of::Load, &["--load", "http://127.0.0.1:1/"]),
            // It requires --ready.
            (Of::LoadCommand, &["--load-cmd", "wrk"]),
        ];
        for (option, by) in HEEDED {
            let value = match *option {
                "metric" => "a:lower=(1)",
                "ready" => READY[1],
                "header" => "A: b",
                "arrivals" => "constant",
                _ => "3",
            };
            let name = format!("--{}", option.replace('_', "-"));
            for (of, load) in kinds {
                let ready = if of == Of::LoadCommand && *option != "ready" { &READY[..] } else { &[] };
                let line = parsed(&[load, ready, &[&name, value]].concat()).unheeded();
                assert_eq!(line.is_none(), by.contains(&of), "{name} {of:?}: {line:?}");
                assert!(line.is_none_or(|line| line.starts_with(&format!("{name} has no effect on"))));
            }
        }
    }

    #[test]
    fn default_values_are_not_refused() {
        assert_eq!(parsed(&[]).unheeded(), None);
        assert_eq!(parsed(&["--load", "http://127.0.0.1:1/"]).unheeded(), None);
        assert_eq!(Args::of(&["none"], &[]).unheeded(), None);
    }
}
