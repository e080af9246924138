//! `allocwall bench obmalloc`: CPython programs on stock arenas and on huge pages, one trial for each program.

use crate::commands::shared::ground::Ground;
use crate::commands::shared::options::parse_time;
use crate::commands::shared::pages;
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_host::{clock, hardware, installed};
use allocwall_lab::obmalloc::{self, AfterIdle, BenchArm, Probe, Program, Set, Skipped};
use allocwall_model::error::Error;
use allocwall_report::trial_json;
use allocwall_trial::account::Room;
use allocwall_trial::batch::{self, Batch, Fresh};
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::{End, Event, Ran};
use allocwall_trial::journal::Head;
use allocwall_trial::run::{self, Start};
use allocwall_trial::session;
use allocwall_trial::{BASELINES, Design, Settings, TrialResult, plan};
use anyhow::{Context, bail};
use serde_json::{Value, json};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// A run that takes longer is ended and counts as failed.
const LIMIT: Duration = Duration::from_secs(300);
/// Time limit for asking an interpreter for its properties; it needs a fraction of a second.
const PROBE_LIMIT: Duration = Duration::from_secs(60);

#[derive(clap::Args)]
#[command(
    after_help = "Each program is a trial. A block runs every arm once and the baseline, stock, twice, in random order. Each run \
                  is a new process.\n\
                  The published workload churn takes 10 to 60 s a run: it removes the first of 200,000 places of a list.\n\
                  With --idle the machine is idle before each run, so that a host that reclaims idle memory has done so.\n\
                  Exit status: 0 measured, 1 could not measure, 2 usage error."
)]
pub struct Args {
    /// The CPython interpreter; the allocwall package must be installed in it
    #[arg(long, value_name = "PATH", default_value = "python3")]
    python: String,

    /// A CPython that was built with arenas on huge pages, which is added as an arm; it and stock should come from one
    /// source (docs/obmalloc.md has a recipe)
    #[arg(long, value_name = "PATH")]
    rebuilt: Option<String>,

    /// Set of programs: the nine published workloads and four variants, real programs with large heaps, or ordinary programs
    #[arg(long, value_enum, default_value_t = Which::Workloads)]
    set: Which,

    /// Arms to compare with stock: thp, hugetlb, collapse, auto, thp+malloc (glibc's heap on huge pages too),
    /// mimalloc [default: all that are available here, except auto and thp+malloc]
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    arms: Vec<String>,

    /// Names of programs of the set [default: all]
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    workloads: Vec<String>,

    /// Number of blocks for each program [default: 12, or more if the number of arms needs more]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500))]
    blocks: Option<u64>,

    /// Idle time before each run: 6s
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    idle: Option<Duration>,

    /// Random seed for the order of arms; the same seed gives the same order
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Keep the trial of each program in this folder, for `allocwall report`. A name that ends in .html: write a page to it instead
    /// (docs/html.md)
    #[arg(short, long, value_name = "DIR")]
    output: Option<PathBuf>,

    /// Print one JSON document (docs/json.md) instead of tables
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, clap::ValueEnum)]
enum Which {
    Workloads,
    Real,
    Ordinary,
}

impl Which {
    fn set(self) -> Set {
        match self {
            Which::Workloads => Set::Workloads,
            Which::Real => Set::Real,
            Which::Ordinary => Set::Ordinary,
        }
    }
}

pub fn run(mut args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let page = pages::take(&mut args.output)?;
    let interrupted = catch_signals()?;
    let ground = Ground::new("allocwall-bench-", printer)?;
    let bench = Bench {
        args: &args,
        printer,
        interrupted: &interrupted,
        keeper: &ground.keeper,
        folder: ground.folder(),
        seed: args.seed.unwrap_or_else(clock::unix_ms),
    };
    let outcome = bench.conduct(page.as_deref());
    drop(ground);
    outcome
}

struct Bench<'a> {
    args: &'a Args,
    printer: &'a Printer,
    interrupted: &'a AtomicBool,
    keeper: &'a Path,
    folder: &'a Path,
    seed: u64,
}

impl Bench<'_> {
    fn conduct(&self, page: Option<&Path>) -> anyhow::Result<ExitCode> {
        let args = self.args;
        let set = args.set.set();
        let probe = self.probe(&args.python, None, set)?;
        if probe.implementation != "cpython" {
            bail!(
                "{} is {}, which has no object arenas: use --python with a CPython interpreter",
                args.python,
                probe.implementation
            );
        }
        let rebuilt =
            args.rebuilt.as_ref().map(|python| self.probe(python, Some(&probe.script), set)).transpose()?;
        let asked: Vec<String> = if args.arms.is_empty() {
            obmalloc::ARMS.iter().map(|name| (*name).to_owned()).collect()
        } else {
            args.arms.clone()
        };
        let chosen = obmalloc::programs(&args.workloads, set, &probe, rebuilt.as_ref());
        let arms = obmalloc::arms(&asked, &probe, rebuilt.as_ref());
        let (programs, lacking) = chosen.map_err(usage)?;
        let (arms, mut skipped) = arms.map_err(usage)?;
        skipped.extend(lacking);
        self.tell_skipped(&skipped);
        if arms.len() == BASELINES {
            bail!("no arm is left to compare with stock");
        }
        let fewest = plan::fewest_blocks(arms.len(), arms.len() - BASELINES);
        if self.blocks(arms.len()) < fewest {
            self.printer.warn(&format!(
                "no outcome is possible with fewer than {fewest} blocks: use --blocks {fewest} or more"
            ));
        }
        let outcomes = self.measure(programs, set, &arms)?;
        if let (Some(page), false) = (page, outcomes.is_empty()) {
            let python = format!("{} {}", probe.executable, probe.version);
            let facts = [&[format!("set {}", set.key()), python][..], &session::machine()].concat();
            pages::write(page, obmalloc::document(&outcomes, &facts).as_bytes(), None, self.printer)?;
        }
        if args.json {
            let skipped: Vec<_> = skipped.iter().map(|s| json!({ "name": s.name, "why": s.why })).collect();
            let document = json!({
                "version": 1,
                "tool": { "name": "allocwall", "version": env!("CARGO_PKG_VERSION") },
                "bench": "obmalloc",
                "set": set.key(),
                "python": { "executable": probe.executable, "version": probe.version },
                "idle_s": args.idle.unwrap_or_default().as_secs_f64(),
                "skipped": skipped,
                "programs": outcomes.iter().map(of_program).collect::<Vec<_>>(),
            });
            self.printer.data(&format!("{document:#}\n"))?;
        }
        Ok(if !outcomes.is_empty() && !self.stopped() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }

    /// Runs the trial of each program. Prints its table, unless there will be a document.
    fn measure<'a>(
        &self,
        programs: Vec<&'a Program>,
        set: Set,
        arms: &[BenchArm],
    ) -> anyhow::Result<Vec<(&'a Program, TrialResult)>> {
        let mut outcomes = Vec::new();
        let mut uncounted = None;
        for program in programs {
            if self.stopped() {
                break;
            }
            let outcome = match self.program(program, set, arms) {
                Ok(Some(outcome)) => outcome,
                Ok(None) => break,
                Err(error) => {
                    self.printer.error(&error.context(program.name.clone()));
                    continue;
                }
            };
            uncounted = uncounted.or_else(|| obmalloc::uncounted(&outcome));
            if !self.args.json {
                self.printer.data(&obmalloc::table(program, &outcome))?;
            }
            outcomes.push((program, outcome));
        }
        if let Some(line) = uncounted {
            self.printer.note(&line);
        }
        Ok(outcomes)
    }

    fn stopped(&self) -> bool {
        // Relaxed: the flag guards no other data.
        self.interrupted.load(Ordering::Relaxed)
    }

    fn blocks(&self, arms: usize) -> usize {
        self.args.blocks.map_or_else(|| plan::default_blocks(arms, arms - BASELINES), |count| count as usize)
    }

    /// Asks an interpreter for its properties. `script`: the package's file in another interpreter, to ask an
    /// interpreter in which the package is not installed.
    fn probe(&self, python: &str, script: Option<&str>, set: Set) -> anyhow::Result<Probe> {
        let question = match script {
            None => Probe::question(python, set),
            Some(script) => Probe::question_by_file(python, script, set),
        };
        let finished = run::start(&Start::new(question, PROBE_LIMIT), self.keeper)?.wait(self.interrupted)?;
        match Probe::answer(python, &batch::output(&finished)) {
            Some(probe) => Ok(probe),
            None if self.stopped() => bail!("interrupted"),
            None => {
                let said = batch::last_words(&finished).unwrap_or_else(|| "it printed nothing".to_owned());
                if said.contains("No module named") && script.is_none() {
                    bail!(
                        "{python} has no allocwall package ({said}); to install it: {python} -m pip install '{}[bench]'",
                        installed::wheel()
                    )
                } else {
                    bail!("{python} cannot run the workloads: {said}")
                }
            }
        }
    }

    fn tell_skipped(&self, skipped: &[Skipped]) {
        let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
        for Skipped { name, why } in skipped {
            match reasons.iter_mut().find(|(known, _)| known == why) {
                Some((_, names)) => names.push(name),
                None => reasons.push((why, vec![name])),
            }
        }
        for (why, names) in reasons {
            self.printer.note(&format!("left out: {}: {why}", names.join(", ")));
        }
    }

    /// None if it was interrupted before the end of its first block.
    fn program(&self, program: &Program, set: Set, arms: &[BenchArm]) -> anyhow::Result<Option<TrialResult>> {
        let mut batch = self.batch(program, set, arms)?;
        let first = self.prove(program, &mut batch, arms)?;
        if self.stopped() {
            return Ok(None);
        }
        let head = self.head(&batch, arms, &first);
        let path = match &self.args.output {
            Some(kept) => {
                std::fs::create_dir_all(kept).with_context(|| kept.display().to_string())?;
                kept.join(format!("{}.trial", program.name))
            }
            None => self.folder.join(format!("{}.trial", program.name)),
        };
        let blocks = head.design.settings.planned;
        let mut subject = AfterIdle { batch, idle: self.args.idle.unwrap_or_default() };
        let mut on_event = |event: Event<'_>| {
            if let Event::RunStarts { block, place, places, .. } = event {
                self.printer.progress_line(&format!(
                    "{}: block {} of {blocks}, run {} of {places}",
                    program.name,
                    block + 1,
                    place + 1
                ));
            }
        };
        let ran = session::run_planned(head, &path, &mut subject, self.interrupted, &mut on_event);
        self.printer.clear_line();
        let (journal, end) = ran?;
        match end {
            End::Failed(why) => self.printer.warn(&format!("{} stopped early: {why}", program.name)),
            End::Interrupted if journal.blocks.is_empty() => return Ok(None),
            End::Interrupted => self.printer.note(&format!(
                "{}: interrupted after {} of {blocks} blocks",
                program.name,
                journal.blocks.len()
            )),
            End::Planned | End::Decided | End::TimeOver => {}
        }
        Ok(Some(compare(&journal.head.design, &journal.blocks)))
    }

    fn batch(&self, program: &Program, set: Set, arms: &[BenchArm]) -> Result<Batch<'_>, Error> {
        let prepared = arms.iter().map(|arm| arm.prepared(program, set, self.folder, LIMIT)).collect();
        Ok(Batch {
            arms: session::equalised(prepared),
            keeper_exe: self.keeper.to_owned(),
            figures: obmalloc::figures()?,
            events: hardware::OF_MEMORY,
            fine: vec![],
            prepare: None,
            interrupted: self.interrupted,
        })
    }

    /// One run of each arm, which is not counted.
    fn prove(&self, program: &Program, batch: &mut Batch, arms: &[BenchArm]) -> anyhow::Result<Vec<Ran>> {
        let account = self.folder.join(format!("proof-{}", program.name));
        std::fs::create_dir(&account).with_context(|| account.display().to_string())?;
        let starts = |arm: usize| {
            self.printer
                .progress_line(&format!("{}: first run of {}, not counted", program.name, arms[arm].name));
        };
        let ran = batch.prove(&Room::new(&account), self.interrupted, starts)?;
        self.printer.clear_line();
        if self.stopped() {
            return Ok(ran);
        }
        if let Some(failure) = ran.iter().take(BASELINES).find_map(|run| run.failure.clone()) {
            bail!("the program fails on stock: {failure}");
        }
        for (ran, arm) in ran.iter().zip(arms).skip(BASELINES) {
            if let Some(why) = session::problem(ran) {
                self.printer.warn(&format!("{}, {}: {why}", program.name, arm.name));
            }
        }
        Ok(ran)
    }

    fn head(&self, batch: &Batch, arms: &[BenchArm], first: &[Ran]) -> Head {
        let text = |word: &OsString| word.to_string_lossy().into_owned();
        let planned = self.blocks(arms.len());
        let design = Design {
            left_out: vec![],
            settings: Settings {
                seed: self.seed,
                effect: plan::DEFAULT_EFFECT,
                planned,
                looks: plan::looks(planned, arms.len(), arms.len() - BASELINES),
            },
            arms: session::arms(arms.iter().map(|arm| arm.name.as_str()), vec![]),
            metrics: obmalloc::metrics(),
        };
        session::head(batch.arms[0].start.command.iter().map(text).collect(), design, first)
    }
}

fn of_program((program, outcome): &(&Program, TrialResult)) -> Value {
    json!({ "name": program.name, "about": program.about, "trial": trial_json::value(outcome, &[]) })
}
