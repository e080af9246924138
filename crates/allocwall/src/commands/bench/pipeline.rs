//! `allocwall bench pipeline`: orders handed from one thread to another, under each way to come by their memory.

use crate::commands::arms;
use crate::commands::diagnose::{USAGE, catch_signals};
use crate::commands::ground::Ground;
use crate::commands::trial::Progress;
use crate::output;
use crate::printer::Printer;
use allocwall_host::topology::{Topology, allowed_cpus};
use allocwall_lab::pipeline::placement::{Asked, Threads, places};
use allocwall_lab::pipeline::results::{Once, Placement, Point, Runs, metrics, point};
use allocwall_lab::pipeline::variants::{Sizes, TABLE, Variant};
use allocwall_lab::pipeline::{Arrivals, By, Planted, Pressure, Spec, Stall};
use allocwall_lab::pipeline::{charts, json, text};
use allocwall_lab::workloads::pipeline;
use allocwall_model::catalogue::nearest::hint;
use allocwall_trial::account::Room;
use allocwall_trial::arm::{Arm, Inventory, TargetFacts};
use allocwall_trial::batch::{Fresh, Prepared};
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::{Conduct, End, Length};
use allocwall_trial::journal::{self, Head, Journal, Writer};
use allocwall_trial::run::{self, Output, Start};
use allocwall_trial::{ArmInfo, BASELINES, Design, ProofState, Settings, plan};
use anyhow::{Context, anyhow, bail};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A run tells its histograms: some hundred kilobytes.
const LONGEST_TOLD: usize = 32 << 20;
/// Beside the orders' own time.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// Pressures of a sweep, blocks a second: none, then eight steps of equal ratio.
const SWEEP: [f64; 9] = [
    0.0, 100e3, 193e3, 372.8e3, 719.7e3, 1.389e6, 2.683e6, 5.179e6, 10e6,
];
/// Allocators are tried where nobody says which; glibc's own with a larger thread cache beside them.
const GLIBC_TUNED: &str = "glibc:tcache_count=1000";
const ALLOCATORS: [&str; 4] = ["jemalloc", "tcmalloc", "mimalloc", "snmalloc"];

#[derive(clap::Args)]
#[command(
    after_help = "A block runs every arm once and malloc twice, in shuffled order, each as a fresh process. Variants: \
                  malloc, freelist, batch, by-value, pool, pool-drop, pool-huge, sharded, slab.\n\
                  Exit status: 0 measured, 1 could not, 2 usage."
)]
pub struct Args {
    /// Orders a second of all producers, 500k or 1M; or `max`: as fast as they can
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_rate)]
    rate: Rate,

    /// Blocks that malloc frees and allocates a second beside the orders; 0 for none
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pressure: f64,

    /// Who does that [default: a thread where there is a CPU for it, else the first producer between its orders]
    #[arg(long, value_enum)]
    pressure_by: Option<PressureBy>,

    /// Producers x consumers
    #[arg(long, value_name = "PxC", default_value = "1x1", value_parser = parse_threads)]
    threads: (usize, usize),

    /// What an order takes: 64 bytes, 256 (fixed), or 64 to 1,024 (mixed)
    #[arg(long, value_enum, default_value_t = SizesArg::Line)]
    sizes: SizesArg,

    /// When orders arrive
    #[arg(long, value_enum, default_value_t = ArrivalsArg::Constant)]
    arrivals: ArrivalsArg,

    /// auto, all, same-l3, smt, other-l3, other-node; or CPUs of producers, consumers and pressure thread: 2,3,4
    #[arg(long, value_name = "WHERE", default_value = "auto", value_parser = Asked::parse)]
    cpus: Asked,

    /// Which variants beside malloc [default: freelist,batch,by-value,pool,slab]; `all` for every one
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    variants: Vec<String>,

    /// malloc under these too: found, none, or remedies as `trial --with` takes them [default: found; of a sweep, none]
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    allocators: Vec<String>,

    /// What a risk check takes, in ns
    #[arg(long, value_name = "NS", default_value_t = 200.0, value_parser = parse_ns)]
    check: f64,

    /// Orders that count, of each run
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    orders: f64,

    /// Orders before them
    #[arg(long, value_name = "N", default_value = "200k", value_parser = parse_count)]
    warm_up: f64,

    /// Blocks to run [default: 12, or what the number of arms needs; of a sweep, 5 a point]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500))]
    blocks: Option<u64>,

    /// Nine heap pressures, from none to 10M
    #[arg(long, conflicts_with = "pressure")]
    sweep: bool,

    /// Lock each run's memory (mlock)
    #[arg(long)]
    lock: bool,

    /// Of the order of arms, and of what is in the orders
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// A folder for pipeline.json with the raw histograms, and the charts (SVG)
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Print the versioned JSON document (docs/json.md) instead of text
    #[arg(long)]
    json: bool,

    /// Stalls of known cause, for the tests of the detector: machine:COUNT:US or allocator:COUNT:US
    #[arg(long, hide = true, value_parser = parse_planted)]
    plant: Option<Planted>,
}

#[derive(clap::Args)]
pub struct RunArgs {
    spec: String,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Rate(Option<f64>);

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum PressureBy {
    Thread,
    Producer,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum SizesArg {
    #[value(name = "64")]
    Line,
    Fixed,
    Mixed,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum ArrivalsArg {
    Constant,
    Poisson,
}

/// 250000, 250k or 1.5M.
fn parse_count(text: &str) -> Result<f64, String> {
    let (number, factor) = match text.chars().last() {
        Some('k') => (&text[..text.len() - 1], 1e3),
        Some('M') => (&text[..text.len() - 1], 1e6),
        _ => (text, 1.0),
    };
    match number.parse::<f64>() {
        Ok(number) if (0.0..=1e9).contains(&(number * factor)) => Ok(number * factor),
        _ => Err("a number up to 1000M: 250000, 250k, 1.5M".into()),
    }
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    match text {
        "max" => Ok(Rate(None)),
        _ => match parse_count(text)? {
            rate if rate >= 1000.0 => Ok(Rate(Some(rate))),
            _ => Err("at least 1000 orders a second, or max".into()),
        },
    }
}

fn parse_ns(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if (0.0..=1e6).contains(&ns) => Ok(ns),
        _ => Err("0 to 1000000 ns".into()),
    }
}

/// More would need a machine with more CPUs than a queue for each pair has been tried on.
const MOST_THREADS: usize = 64;

fn parse_threads(text: &str) -> Result<(usize, usize), String> {
    let counts = text.split_once('x').and_then(|(producers, consumers)| {
        let counts = (producers.parse().ok()?, consumers.parse().ok()?);
        let fits = |n: usize| (1..=MOST_THREADS).contains(&n);
        (fits(counts.0) && fits(counts.1)).then_some(counts)
    });
    counts.ok_or_else(|| format!("producers x consumers, 1 to {MOST_THREADS} each: 1x1, 1x2"))
}

fn parse_planted(text: &str) -> Result<Planted, String> {
    let mut parts = text.split(':');
    let stall = match parts.next() {
        Some("machine") => Stall::Machine,
        Some("allocator") => Stall::Allocator,
        _ => return Err("machine:COUNT:US or allocator:COUNT:US".into()),
    };
    let mut number = || parts.next().and_then(|n| n.parse().ok());
    match (number(), number()) {
        (Some(count), Some(us)) => Ok(Planted { stall, count, us }),
        _ => Err("machine:COUNT:US or allocator:COUNT:US".into()),
    }
}

/// One run, told on standard output.
pub fn run_once(args: &RunArgs, printer: &Printer) -> anyhow::Result<ExitCode> {
    let spec: Spec =
        serde_json::from_str(&args.spec).context("this command is run by `allocwall bench pipeline`")?;
    let told = pipeline::run(&spec)?;
    printer.data(&serde_json::to_string(&told)?)?;
    Ok(ExitCode::SUCCESS)
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let usage = |line: String| {
        printer.error(&anyhow!(line));
        Ok(ExitCode::from(USAGE))
    };
    if args.orders < 1000.0 {
        return usage("--orders: at least 1000, or a percentile is a single order".into());
    }
    let variants = match args.variants() {
        Ok(variants) => variants,
        Err(line) => return usage(line),
    };
    let topology =
        Topology::read(Path::new("/sys")).map_err(|absence| anyhow!("no CPU topology: {absence}"))?;
    let allowed = allowed_cpus().map_err(|absence| anyhow!("{absence}"))?;
    let by = args.pressure_by(allowed.len());
    let threads = Threads {
        producers: args.threads.0,
        consumers: args.threads.1,
        pressure: by == By::Thread && (args.pressure > 0.0 || args.sweep),
    };
    let placements = match places(&topology, &allowed, &args.cpus, threads) {
        Ok(placements) => placements,
        Err(line) => return usage(line),
    };
    if let Some(folder) = &args.output {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
    }
    let interrupted = catch_signals()?;
    let ground = Ground::new("allocwall-bench-", printer)?;
    let bench = Bench {
        args: &args,
        printer,
        interrupted: &interrupted,
        keeper: &ground.keeper,
        inventory: arms::inventory(printer),
        folder: ground.folder(),
        by,
        check_steps: pipeline::steps_for(args.check),
        seed: args.seed.unwrap_or_else(allocwall_host::clock::unix_ms),
    };
    let points = bench.points(&placements, &variants)?;
    let experiment = text::Experiment {
        rate: args.rate.0,
        arrivals: args.arrivals(),
        sizes: args.sizes(),
        producers: args.threads.0,
        consumers: args.threads.1,
        pressure_by: by,
        check_ns: args.check,
        orders: args.orders as u64,
        warm_up: args.warm_up as u64,
        seed: bench.seed,
        locked: args.lock,
        points,
    };
    if let Some(folder) = &args.output {
        let document = json::document(&experiment, &crate::commands::trial::machine());
        output::write(&folder.join("pipeline.json"), document.as_bytes(), None)?;
        for (name, chart) in charts::all(&experiment) {
            output::write(&folder.join(name), chart.as_bytes(), None)?;
        }
        printer.note(&format!("written to {}", folder.display()));
    }
    printer.data(&match args.json {
        true => json::document(&experiment, &crate::commands::trial::machine()),
        false => text::report(&experiment, printer.style()),
    })?;
    let told = |point: &Point| point.arms.iter().any(|arm| arm.runs > 0);
    Ok(match experiment.points.iter().any(told) {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    })
}

impl Args {
    fn sizes(&self) -> Sizes {
        match self.sizes {
            SizesArg::Line => Sizes::Line,
            SizesArg::Fixed => Sizes::Fixed,
            SizesArg::Mixed => Sizes::Mixed,
        }
    }

    fn arrivals(&self) -> Arrivals {
        match self.arrivals {
            ArrivalsArg::Constant => Arrivals::Constant,
            ArrivalsArg::Poisson => Arrivals::Poisson,
        }
    }

    /// malloc is always the baseline.
    fn variants(&self) -> Result<Vec<Variant>, String> {
        let all = TABLE.iter().filter(|entry| entry.variant != Variant::Malloc);
        if self.variants.is_empty() {
            return Ok(all.filter(|entry| entry.default).map(|e| e.variant).collect());
        }
        if self.variants == ["all"] {
            return Ok(all.map(|entry| entry.variant).collect());
        }
        let mut variants = vec![];
        for name in &self.variants {
            let variant = Variant::find(name).ok_or_else(|| {
                let keys = TABLE.iter().map(|entry| entry.key);
                format!("no variant {name}{}", hint(name, keys))
            })?;
            if variant != Variant::Malloc && !variants.contains(&variant) {
                variants.push(variant);
            }
        }
        Ok(variants)
    }

    fn pressure_by(&self, allowed: usize) -> By {
        match self.pressure_by {
            Some(PressureBy::Thread) => By::Thread,
            Some(PressureBy::Producer) => By::Producer,
            None if allowed > self.threads.0 + self.threads.1 => By::Thread,
            None => By::Producer,
        }
    }
}

struct Bench<'a> {
    args: &'a Args,
    printer: &'a Printer,
    interrupted: &'a AtomicBool,
    keeper: &'a Path,
    inventory: Inventory,
    folder: &'a Path,
    by: By,
    check_steps: u32,
    seed: u64,
}

/// An arm before it is prepared.
struct Way {
    name: String,
    variant: Variant,
    remedies: Arm,
}

impl Bench<'_> {
    fn points(&self, placements: &[Placement], variants: &[Variant]) -> anyhow::Result<Vec<Point>> {
        let pressures: &[f64] = match self.args.sweep {
            true => &SWEEP,
            false => &[self.args.pressure],
        };
        let ways = self.ways(variants)?;
        let mut points = vec![];
        for (n, placement) in placements.iter().enumerate() {
            for (m, pressure) in pressures.iter().enumerate() {
                if self.interrupted.load(Ordering::Relaxed) {
                    break;
                }
                let number = n * pressures.len() + m;
                let of = placements.len() * pressures.len();
                if of > 1 {
                    self.printer.note(&format!(
                        "{} of {of}: {}, pressure {pressure:.0}/s",
                        number + 1,
                        placement.name
                    ));
                }
                points.extend(self.point(placement, *pressure, number, &ways)?);
            }
        }
        match points.is_empty() {
            true => bail!("interrupted before the first block"),
            false => Ok(points),
        }
    }

    fn ways(&self, variants: &[Variant]) -> anyhow::Result<Vec<Way>> {
        let plain = |name: &str, variant| {
            Ok::<_, anyhow::Error>(Way {
                name: name.to_owned(),
                variant,
                remedies: Arm::parse("none")?,
            })
        };
        let mut ways = vec![
            plain("malloc", Variant::Malloc)?,
            plain("malloc′", Variant::Malloc)?,
        ];
        let given = &self.args.allocators;
        let found = given.is_empty() && !self.args.sweep || *given == ["found"];
        let names: Vec<&str> = match found {
            true => [GLIBC_TUNED].into_iter().chain(ALLOCATORS).collect(),
            false => given
                .iter()
                .map(String::as_str)
                .filter(|n| *n != "none")
                .collect(),
        };
        for name in names {
            ways.push(Way {
                name: format!("malloc+{name}"),
                variant: Variant::Malloc,
                remedies: Arm::parse(name)?,
            });
        }
        for variant in variants {
            ways.push(plain(variant.key(), *variant)?);
        }
        let facts = TargetFacts::of(&self.command(&self.spec_of_nothing())?, &arms::environment())?;
        let mut kept = vec![];
        for way in ways {
            match way.remedies.resolve(&self.inventory, &facts) {
                Ok(_) => kept.push(way),
                // What nobody named is left out, with its reason.
                Err(refusal) if found => self.printer.note(&format!("without {}: {refusal}", way.name)),
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Ok(kept)
    }

    /// For facts about the command, which don't depend on it.
    fn spec_of_nothing(&self) -> Spec {
        self.spec(Variant::Malloc, 0.0, vec![])
    }

    fn spec(&self, variant: Variant, pressure: f64, cpus: Vec<u32>) -> Spec {
        let args = self.args;
        Spec {
            variant,
            sizes: args.sizes(),
            producers: args.threads.0,
            consumers: args.threads.1,
            cpus,
            rate: args.rate.0,
            arrivals: args.arrivals(),
            pressure: Pressure {
                per_s: pressure,
                by: self.by,
            },
            warm_up: args.warm_up as usize,
            timed: args.orders as usize,
            check_steps: self.check_steps,
            seed: self.seed,
            lock: args.lock,
            planted: args.plant,
        }
    }

    fn command(&self, spec: &Spec) -> anyhow::Result<Vec<OsString>> {
        Ok(vec![
            self.keeper.as_os_str().to_owned(),
            "bench".into(),
            "pipeline-run".into(),
            serde_json::to_string(spec)?.into(),
        ])
    }

    fn point(
        &self,
        placement: &Placement,
        pressure: f64,
        number: usize,
        ways: &[Way],
    ) -> anyhow::Result<Option<Point>> {
        let args = self.args;
        // The pressure's thread is the last, where there is any pressure.
        let mut cpus = placement.cpus.clone();
        if pressure == 0.0 {
            cpus.truncate(args.threads.0 + args.threads.1);
        }
        let mut prepared = vec![];
        let limit = RUN_LIMIT
            + Duration::from_secs_f64(3.0 * (args.orders + args.warm_up) / args.rate.0.unwrap_or(1e6));
        for way in ways {
            let command = self.command(&self.spec(way.variant, pressure, cpus.clone()))?;
            let facts = TargetFacts::of(&command, &arms::environment())?;
            let base = Start {
                stdout: Output::Keep(LONGEST_TOLD),
                ..Start::new(command, limit)
            };
            prepared.push(Prepared::of(
                &base,
                &way.remedies.resolve(&self.inventory, &facts)?,
            ));
        }
        let mut starts: Vec<Start> = prepared.iter().map(|p| p.start.clone()).collect();
        run::equalise(&mut starts);
        for (prepared, start) in prepared.iter_mut().zip(starts) {
            prepared.start = start;
        }
        let mut once = Once {
            arms: prepared,
            keeper_exe: self.keeper.to_owned(),
            offered: args.rate.0,
            interrupted: self.interrupted,
            last: RefCell::new(None),
        };
        let proofs = self.folder.join(format!("point-{number}"));
        std::fs::create_dir(&proofs).with_context(|| proofs.display().to_string())?;
        let first = once.prove(&Room::new(&proofs), self.interrupted, |arm| {
            self.printer
                .progress_line(&format!("first run of {}, not counted", ways[arm].name));
        })?;
        self.printer.clear_line();
        if self.interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        for (ran, way) in first.iter().zip(ways) {
            let refuted = ran.proof.iter().find(|item| item.state == ProofState::Refuted);
            match (&ran.failure, refuted) {
                (Some(failure), _) if way.name == "malloc" => bail!("{failure}"),
                (Some(failure), _) => self.printer.warn(&format!("{}: {failure}", way.name)),
                (None, Some(item)) => {
                    self.printer.warn(&format!(
                        "{} did not take: {}: {}",
                        way.name, item.what, item.detail
                    ));
                }
                (None, None) => {}
            }
        }
        once.last.take();

        let metrics = metrics(args.rate.0);
        let family = plan::family(ways.len(), &metrics);
        let default = match args.sweep {
            true => 5,
            false => plan::default_blocks(ways.len(), family),
        };
        let planned = args.blocks.map_or(default, |blocks| blocks as usize);
        let info = |(n, way): (usize, &Way)| ArmInfo {
            name: way.name.clone(),
            baseline: n < BASELINES,
            predicted: BTreeMap::new(),
        };
        let head = Head {
            version: journal::VERSION,
            tool_version: env!("CARGO_PKG_VERSION").into(),
            started_unix_ms: allocwall_host::clock::unix_ms(),
            command: vec!["allocwall bench pipeline".into()],
            options: vec![],
            design: Design {
                settings: Settings {
                    seed: self.seed.wrapping_add(number as u64),
                    effect: plan::DEFAULT_EFFECT,
                    planned,
                    looks: vec![planned],
                },
                arms: ways.iter().enumerate().map(info).collect(),
                metrics,
            },
            rates: vec![],
            proof: first.iter().map(|r| r.proof.clone()).enumerate().collect(),
            machine: crate::commands::trial::machine(),
            origin: None,
        };
        let mut writer = Writer::create(&proofs.join("blocks.trial"), &head)?;
        let mut journal = Journal {
            head,
            blocks: vec![],
            planned: true,
        };
        let mut runs = Runs {
            once,
            variants: ways.iter().map(|way| way.variant).collect(),
            told: vec![],
        };
        let mut progress = Progress::new(self.printer);
        let end = Conduct {
            subject: &mut runs,
            writer: &mut writer,
            interrupted: self.interrupted,
            told: &mut |told| progress.tell(told),
        }
        .run(&mut journal, Length::Blocks(planned));
        drop(progress);
        match end? {
            End::Failed(why) => self.printer.warn(&format!("ended early: {why}")),
            End::Interrupted => {
                let done = journal.blocks.len();
                self.printer
                    .note(&format!("interrupted after {done} of {planned} blocks"));
                if done == 0 {
                    return Ok(None);
                }
            }
            End::Planned | End::Decided | End::TimeOver => {}
        }
        let outcome = compare(&journal.head.design, &journal.blocks);
        let spec = self.spec(Variant::Malloc, pressure, cpus);
        // What an unfinished block told is left out, as its runs are.
        let finished = journal.blocks.len() * ways.len();
        runs.told.truncate(finished);
        Ok(Some(point(
            placement.clone(),
            &spec,
            outcome,
            &journal.blocks,
            &runs.told,
        )))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_as_people_type_them() {
        assert_eq!(parse_count("250000"), Ok(250_000.0));
        assert_eq!(parse_count("250k"), Ok(250_000.0));
        assert_eq!(parse_count("1.5M"), Ok(1_500_000.0));
        for wrong in ["", "k", "-1", "1G", "2000M", "nan"] {
            assert!(parse_count(wrong).is_err(), "{wrong}");
        }
        assert_eq!(parse_rate("max"), Ok(Rate(None)));
        assert!(parse_rate("10").is_err());
        assert_eq!(parse_threads("1x2"), Ok((1, 2)));
        for wrong in ["1", "0x1", "1x0", "1x65", "axb"] {
            assert!(parse_threads(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn steps_of_a_sweep_are_of_equal_ratio() {
        for pair in SWEEP[1..].windows(2) {
            let ratio = pair[1] / pair[0];
            assert!((ratio / 100f64.powf(1.0 / 7.0) - 1.0).abs() < 0.01, "{ratio}");
        }
    }
}
