//! `allocwall bench pipeline`: orders handed from one thread to another, for each way to allocate them.

use crate::commands::shared::arms;
use crate::commands::shared::ground::Ground;
use crate::commands::shared::pages;
use crate::commands::shared::progress::{Outlook, Progress};
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::usage::usage;
use crate::output;
use crate::printer::Printer;
use allocwall_host::topology::{Topology, allowed_cpus};
use allocwall_lab::pipeline::placement::{Asked, Threads, places};
use allocwall_lab::pipeline::results::{Placement, Point, metrics, point};
use allocwall_lab::pipeline::variants::{Sizes, TABLE, Variant};
use allocwall_lab::pipeline::{Arrivals, By, Planted, Pressure, RunResult, Spec, Stall, figures};
use allocwall_lab::pipeline::{charts, html, json, text};
use allocwall_lab::runs::{Once, Runs};
use allocwall_lab::workloads::pipeline;
use allocwall_model::catalogue::nearest::hint;
use allocwall_trial::account::Room;
use allocwall_trial::arm::{Arm, Inventory, TargetFacts};
use allocwall_trial::batch::{Fresh, Prepared};
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::{End, Event};
use allocwall_trial::run::{Output, Start};
use allocwall_trial::session;
use allocwall_trial::{Design, Settings, plan};
use anyhow::{Context, anyhow, bail};
use std::cell::RefCell;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Limit for a run's output, which holds its histograms: some hundred kilobytes.
const LONGEST_RESULT: usize = 32 << 20;
/// Time limit of a run, in addition to the time of the orders.
const RUN_LIMIT: Duration = Duration::from_secs(60);
/// Heap pressures of a sweep in blocks per second: none, then eight steps of equal ratio.
const SWEEP: [f64; 9] = [0.0, 100e3, 193e3, 372.8e3, 719.7e3, 1.389e6, 2.683e6, 5.179e6, 10e6];
/// Tried by default, with `ALLOCATORS`: glibc's malloc with a larger thread cache.
const GLIBC_TUNED: &str = "glibc:tcache_count=1000";
const ALLOCATORS: [&str; 4] = ["jemalloc", "tcmalloc", "mimalloc", "snmalloc"];

#[derive(clap::Args)]
#[command(
    after_help = "A block runs every arm once and the baseline, malloc, twice, in random order. Each run is a new process.\n\
                  Variants: malloc, freelist, batch, by-value, pool, pool-drop, pool-huge, sharded, slab.\n\
                  Exit status: 0 measured, 1 could not measure, 2 usage error."
)]
pub struct Args {
    /// Orders per second of all producers together: 500k, 1M, or `max` for as fast as possible
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_rate)]
    rate: Rate,

    /// Heap pressure: blocks freed and allocated with malloc per second, in addition to the orders; 0 for none
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    pressure: f64,

    /// Which thread makes the heap pressure [default: its own thread if a CPU is free, else the first producer
    /// between its orders]
    #[arg(long, value_enum)]
    pressure_by: Option<PressureBy>,

    /// Number of producers x number of consumers
    #[arg(long, value_name = "PxC", default_value = "1x1", value_parser = parse_threads)]
    threads: (usize, usize),

    /// Size of an order: 64 bytes, 256 bytes (fixed), or 64 to 1,024 bytes (mixed)
    #[arg(long, value_enum, default_value_t = SizesArg::Line)]
    sizes: SizesArg,

    /// Distribution of the times at which orders are due
    #[arg(long, value_enum, default_value_t = ArrivalsArg::Constant)]
    arrivals: ArrivalsArg,

    /// CPUs to use: auto, all, same-l3, smt, other-l3, other-node, or a list for producers, consumers and pressure
    /// thread: 2,3,4
    #[arg(long, value_name = "WHERE", default_value = "auto", value_parser = Asked::parse)]
    cpus: Asked,

    /// Variants to compare with malloc [default: freelist,batch,by-value,pool,slab]; `all` for all variants
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    variants: Vec<String>,

    /// Also run malloc with these: found, none, or remedies as for `trial --with` [default: found; none with --sweep]
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    allocators: Vec<String>,

    /// Duration of the consumer's check of an order, in ns
    #[arg(long, value_name = "NS", default_value_t = 200.0, value_parser = parse_ns)]
    check: f64,

    /// Measured orders per run
    #[arg(long, value_name = "N", default_value = "1M", value_parser = parse_count)]
    orders: f64,

    /// Warm-up orders per run, not measured
    #[arg(long, value_name = "N", default_value = "200k", value_parser = parse_count)]
    warm_up: f64,

    /// Number of blocks [default: 12, or more if the number of arms needs more; with --sweep: 5 for each pressure]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500))]
    blocks: Option<u64>,

    /// Run with nine heap pressures, from 0 to 10M
    #[arg(long, conflicts_with = "pressure")]
    sweep: bool,

    /// Lock the memory of each run (mlock)
    #[arg(long)]
    lock: bool,

    /// Random seed for the order of arms and for the contents of the orders
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Write pipeline.json (with the raw histograms) and charts (SVG) to this folder. A name that ends in .html: write a page with
    /// charts to it instead (docs/html.md)
    #[arg(short, long, value_name = "FOLDER")]
    output: Option<PathBuf>,

    /// Print the versioned JSON document (docs/json.md) instead of text
    #[arg(long)]
    json: bool,

    /// Planted stalls of a known cause, to test the detector: machine:COUNT:US or allocator:COUNT:US
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
        _ => Err("expected a number from 0 to 1000M: 250000, 250k, 1.5M".into()),
    }
}

fn parse_rate(text: &str) -> Result<Rate, String> {
    match text {
        "max" => Ok(Rate(None)),
        _ => match parse_count(text)? {
            rate if rate >= 1000.0 => Ok(Rate(Some(rate))),
            _ => Err("expected at least 1000 orders per second, or max".into()),
        },
    }
}

fn parse_ns(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(ns) if (0.0..=1e6).contains(&ns) => Ok(ns),
        _ => Err("expected 0 to 1000000 ns".into()),
    }
}

/// One queue for each pair of threads has not been tested on machines with more CPUs.
const MOST_THREADS: usize = 64;

fn parse_threads(text: &str) -> Result<(usize, usize), String> {
    let counts = text.split_once('x').and_then(|(producers, consumers)| {
        let counts = (producers.parse().ok()?, consumers.parse().ok()?);
        let fits = |n: usize| (1..=MOST_THREADS).contains(&n);
        (fits(counts.0) && fits(counts.1)).then_some(counts)
    });
    counts.ok_or_else(|| format!("expected producers x consumers, 1 to {MOST_THREADS} each: 1x1, 1x2"))
}

fn parse_planted(text: &str) -> Result<Planted, String> {
    let mut parts = text.split(':');
    let stall = match parts.next() {
        Some("machine") => Stall::Machine,
        Some("allocator") => Stall::Allocator,
        _ => return Err("expected machine:COUNT:US or allocator:COUNT:US".into()),
    };
    let mut number = || parts.next().and_then(|n| n.parse().ok());
    match (number(), number()) {
        (Some(count), Some(us)) => Ok(Planted { stall, count, us }),
        _ => Err("expected machine:COUNT:US or allocator:COUNT:US".into()),
    }
}

/// One run; prints its results to standard output.
pub fn run_once(args: &RunArgs, printer: &Printer) -> anyhow::Result<ExitCode> {
    let spec: Spec =
        serde_json::from_str(&args.spec).context("`allocwall bench pipeline-run` is for internal use")?;
    let result = pipeline::run(&spec)?;
    printer.data(&serde_json::to_string(&result)?)?;
    Ok(ExitCode::SUCCESS)
}

pub fn run(mut args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let page = pages::take(&mut args.output)?;
    if args.orders < 1000.0 {
        return Err(usage("--orders must be at least 1000: with fewer, one order decides a percentile"));
    }
    let variants = args.variants().map_err(usage)?;
    let topology =
        Topology::read(Path::new("/sys")).map_err(|absence| anyhow!("CPU topology unknown: {absence}"))?;
    let allowed = allowed_cpus().map_err(|absence| anyhow!("{absence}"))?;
    let by = args.pressure_by(allowed.len());
    let threads = Threads {
        producers: args.threads.0,
        consumers: args.threads.1,
        pressure: by == By::Thread && (args.pressure > 0.0 || args.sweep),
    };
    let placements = places(&topology, &allowed, &args.cpus, threads).map_err(usage)?;
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
        let document = json::document(&experiment, &session::machine());
        output::write(&folder.join("pipeline.json"), document.as_bytes(), None)?;
        for (name, chart) in charts::all(&experiment) {
            output::write(&folder.join(name), chart.as_bytes(), None)?;
        }
        printer.note(&format!("results written to {}", folder.display()));
    }
    if let Some(page) = &page {
        let document = html::document(&experiment, &session::machine());
        pages::write(page, document.as_bytes(), None, printer)?;
    }
    printer.data(&if args.json {
        json::document(&experiment, &session::machine())
    } else {
        text::report(&experiment, printer.style())
    })?;
    let has_runs = |point: &Point| point.arms.iter().any(|arm| arm.runs > 0);
    Ok(if experiment.points.iter().any(has_runs) { ExitCode::SUCCESS } else { ExitCode::FAILURE })
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

    /// Without malloc, which is always the baseline.
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

/// An arm before its start is prepared.
struct Way {
    name: String,
    variant: Variant,
    remedies: Arm,
}

impl Bench<'_> {
    fn points(&self, placements: &[Placement], variants: &[Variant]) -> anyhow::Result<Vec<Point>> {
        let pressures: &[f64] = if self.args.sweep { &SWEEP } else { &[self.args.pressure] };
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
                        "{} of {of}: {}, pressure {pressure:.0} blocks/s",
                        number + 1,
                        placement.name
                    ));
                }
                points.extend(self.point(placement, *pressure, number, &ways)?);
            }
        }
        if points.is_empty() { bail!("interrupted before the first block") } else { Ok(points) }
    }

    fn ways(&self, variants: &[Variant]) -> anyhow::Result<Vec<Way>> {
        let plain = |name: &str, variant| {
            Ok::<_, anyhow::Error>(Way { name: name.to_owned(), variant, remedies: Arm::parse("none")? })
        };
        let mut ways = vec![plain("malloc", Variant::Malloc)?, plain("malloc′", Variant::Malloc)?];
        let given = &self.args.allocators;
        let found = given.is_empty() && !self.args.sweep || *given == ["found"];
        let names: Vec<&str> = if found {
            [GLIBC_TUNED].into_iter().chain(ALLOCATORS).collect()
        } else {
            given.iter().map(String::as_str).filter(|n| *n != "none").collect()
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
                // An allocator that was not named by the user is left out, with the reason.
                Err(refusal) if found => self.printer.note(&format!("{} is left out: {refusal}", way.name)),
                Err(refusal) => return Err(refusal.into()),
            }
        }
        Ok(kept)
    }

    /// A placeholder: facts about the command don't depend on the spec.
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
            pressure: Pressure { per_s: pressure, by: self.by },
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

    fn once(&self, ways: &[Way], pressure: f64, cpus: &[u32]) -> anyhow::Result<Once<'_, RunResult>> {
        let args = self.args;
        let mut prepared = vec![];
        let limit = RUN_LIMIT
            + Duration::from_secs_f64(3.0 * (args.orders + args.warm_up) / args.rate.0.unwrap_or(1e6));
        for way in ways {
            let command = self.command(&self.spec(way.variant, pressure, cpus.to_vec()))?;
            let facts = TargetFacts::of(&command, &arms::environment())?;
            let base = Start { stdout: Output::Keep(LONGEST_RESULT), ..Start::new(command, limit) };
            prepared.push(Prepared::of(&base, &way.remedies.resolve(&self.inventory, &facts)?));
        }
        let offered = args.rate.0;
        Ok(Once {
            arms: session::equalised(prepared),
            keeper_exe: self.keeper.to_owned(),
            interrupted: self.interrupted,
            figures: Box::new(move |result: &RunResult| figures(result, offered)),
            last: RefCell::new(None),
        })
    }

    fn design(&self, ways: &[Way], number: usize) -> Design {
        let args = self.args;
        let metrics = metrics(args.rate.0);
        let family = plan::family(ways.len(), &metrics);
        let default = if args.sweep { 5 } else { plan::default_blocks(ways.len(), family) };
        let planned = args.blocks.map_or(default, |blocks| blocks as usize);
        Design {
            left_out: vec![],
            settings: Settings {
                seed: self.seed.wrapping_add(number as u64),
                effect: plan::DEFAULT_EFFECT,
                planned,
                looks: vec![planned],
            },
            arms: session::arms(ways.iter().map(|way| way.name.as_str()), vec![]),
            metrics,
        }
    }

    fn point(
        &self,
        placement: &Placement,
        pressure: f64,
        number: usize,
        ways: &[Way],
    ) -> anyhow::Result<Option<Point>> {
        let args = self.args;
        // The last CPU is for the pressure thread, which does not exist without pressure.
        let mut cpus = placement.cpus.clone();
        if pressure == 0.0 {
            cpus.truncate(args.threads.0 + args.threads.1);
        }
        let mut once = self.once(ways, pressure, &cpus)?;
        let proofs = self.folder.join(format!("point-{number}"));
        std::fs::create_dir(&proofs).with_context(|| proofs.display().to_string())?;
        let first = once.prove(&Room::new(&proofs), self.interrupted, |arm| {
            self.printer.progress_line(&format!("first run of {}, not counted", ways[arm].name));
        })?;
        self.printer.clear_line();
        if self.interrupted.load(Ordering::Relaxed) {
            return Ok(None);
        }
        for (ran, way) in first.iter().zip(ways) {
            match (session::problem(ran), &ran.failure) {
                (_, Some(failure)) if way.name == "malloc" => bail!("{failure}"),
                (Some(why), _) => self.printer.warn(&format!("{}: {why}", way.name)),
                (None, _) => {}
            }
        }
        once.last.take();

        let design = self.design(ways, number);
        let planned = design.settings.planned;
        let head = session::head(vec!["allocwall bench pipeline".into()], design, &first);
        let mut runs =
            Runs { once, variants: ways.iter().map(|way| way.variant.key()).collect(), results: vec![] };
        let mut progress =
            Progress::of(self.printer, Outlook { planned: Some(planned), ..Outlook::default() });
        let path = proofs.join("blocks.trial");
        let ran = session::run_planned(head, &path, &mut runs, self.interrupted, &mut |event| {
            // The bench has one length for all machines: what it resolves is in its results.
            if !matches!(event, Event::NoiseKnown { .. }) {
                progress.show(event);
            }
        });
        drop(progress);
        let (journal, end) = ran?;
        match end {
            End::Failed(why) => self.printer.warn(&format!("stopped early: {why}")),
            End::Interrupted => {
                let done = journal.blocks.len();
                self.printer.note(&format!("interrupted after {done} of {planned} blocks"));
                if done == 0 {
                    return Ok(None);
                }
            }
            End::Planned | End::Decided | End::TimeOver => {}
        }
        let outcome = compare(&journal.head.design, &journal.blocks);
        let spec = self.spec(Variant::Malloc, pressure, cpus);
        // Results of an unfinished block are left out, like its runs.
        let finished = journal.blocks.len() * ways.len();
        runs.results.truncate(finished);
        Ok(Some(point(placement.clone(), &spec, outcome, &journal.blocks, &runs.results)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_with_suffixes_are_parsed() {
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
