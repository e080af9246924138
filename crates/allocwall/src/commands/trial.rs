//! `allocwall trial`: remedies on the user's own command, interleaved, with an interval and an outcome each.

mod announce;

use crate::commands::shared::arms;
use crate::commands::shared::counting;
use crate::commands::shared::diagnosis::{Diagnosis, readers};
use crate::commands::shared::ground::Ground;
use crate::commands::shared::options::{Percent, Time};
use crate::commands::shared::pages;
use crate::commands::shared::progress::{Outlook, Progress};
use crate::commands::shared::serving::{NamedRate, Serving};
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::state::new_state_file;
use crate::commands::shared::trial_options::{Of, Options};
use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_diagnose::expected;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::launch::Talk;
use allocwall_host::program;
use allocwall_measure::allocations::{Counting, Watched};
use allocwall_measure::calibrate;
use allocwall_measure::record::{self, Target};
use allocwall_model::allocations::{Counted, not_counted};
use allocwall_model::catalogue::modules;
use allocwall_model::error::Error;
use allocwall_model::replay::Replay;
use allocwall_model::shell::quoted;
use allocwall_model::units::{Absence, Measured, Reason, count};
use allocwall_report::{trial_csv, trial_json, trial_text};
use allocwall_trial::account::Room;
use allocwall_trial::arm::{Arm, Cause, TargetFacts};
use allocwall_trial::batch::{self, Batch, Fresh, Prepared};
use allocwall_trial::compare::compare;
use allocwall_trial::conduct::{self, Conduct, End, Length, Ran, Subject};
use allocwall_trial::gate::Gate;
use allocwall_trial::journal::{self, Head, Journal, Origin, Writer};
use allocwall_trial::load::metric::Figure;
use allocwall_trial::load::{Reading, Unit as ReadingUnit};
use allocwall_trial::prepare::Prepare;
use allocwall_trial::run::{self, Guard, Start};
use allocwall_trial::server::{self, Load, Read, Server};
use allocwall_trial::session;
use allocwall_trial::{BASELINES, Design, LeftOut, Metric, Settings, TrialResult, plan, predict};
use announce::{Plan, estimated_time};
use anyhow::{Context, anyhow, bail};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const SUFFIX: &str = ".trial";
/// The arm in whose first run calls are counted: A′, so that the first run of A is as it will be in the blocks.
const COUNTED: usize = 1;
/// Pause between two checks whether the time of counting is over.
const GLANCE: Duration = Duration::from_millis(20);

#[derive(Default, clap::Args)]
#[command(
    override_usage = "allocwall trial [OPTIONS] --with NAME[+NAME…] [--with …] -- CMD…\n       allocwall trial [OPTIONS] --continue FILE",
    after_help = "A block runs every arm once and the baseline (the command without a remedy) twice, in random order. Each \
                  run is a new process.\n\
                  `allocwall list` shows the remedies. Exit status: 0 measured, 1 could not measure (or --fail-on met), \
                  2 usage error."
)]
pub struct Args {
    #[command(flatten)]
    options: Options,

    /// Save the trial to this file after each block [default: a file in the state directory]. A name that ends in .html: write the
    /// report as a page to it (docs/html.md), besides the text; the trial is in the state directory then
    #[arg(short, long, value_name = "FILE", conflicts_with = "resume")]
    output: Option<PathBuf>,

    /// Continue an interrupted trial with its own options. To report it only: --blocks N, with the number of blocks that
    /// are done
    #[arg(long = "continue", value_name = "FILE")]
    resume: Option<PathBuf>,

    /// Print the versioned JSON document (docs/trial-json.md) instead of text
    #[arg(long, conflicts_with = "csv")]
    json: bool,

    /// Print CSV, one row for each comparison (docs/trial-csv.md)
    #[arg(long)]
    csv: bool,

    /// The command; each run starts it as a new process with empty standard input
    #[arg(last = true, value_name = "CMD", conflicts_with = "resume")]
    command: Vec<OsString>,
}

impl Args {
    /// A trial of these remedies on a command, with these options and defaults for all others.
    pub fn of(with: &[&str], command: &[OsString], options: Options) -> Args {
        let with = with.iter().map(|name| (*name).to_owned()).collect();
        let options = Options { with, ..options };
        Args { options, command: command.to_vec(), ..Args::default() }
    }
}

impl Args {
    /// The command line of this trial, without what has a default.
    pub fn command_line(&self) -> String {
        let with = self.options.with.iter().map(|name| format!("--with {}", quoted(name)));
        let how = self.options.how();
        let how = how.iter().map(|word| quoted(word));
        let command = self.command.iter().map(|word| quoted(&word.to_string_lossy()));
        let words = ["allocwall trial".to_owned()].into_iter().chain(with).chain(how);
        words.chain(["--".to_owned()]).chain(command).collect::<Vec<_>>().join(" ")
    }
}

/// A trial whose report was printed.
pub struct Reported {
    pub outcome: TrialResult,
    /// Where it is saved.
    pub path: PathBuf,
    /// Why it stopped early.
    pub failed: Option<String>,
    pub status: ExitCode,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    report(args, printer).map(|reported| reported.status)
}

/// Makes a trial and prints its report.
pub fn report(mut args: Args, printer: &Printer) -> anyhow::Result<Reported> {
    if let Some(line) = args.options.without_effect() {
        return Err(usage(line));
    }
    let page = pages::take(&mut args.output)?;
    let mut earlier = args.resume.as_ref().map(|path| journal::read(path)).transpose()?;
    if let Some(earlier) = &mut earlier {
        args = continued(args, earlier)?;
    }
    let gates = args.options.fail_on.iter().map(|g| Gate::parse(g)).collect::<Result<Vec<_>, Error>>();
    let gates = gates.map_err(usage)?;
    if args.command.is_empty() {
        return Err(usage("no command given: put it after --"));
    }
    if args.options.with.is_empty() {
        return Err(usage(
            "nothing to try: use --with NAME (`allocwall list` shows the names), or --with none to compare the command with itself",
        ));
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
        seed: match (&earlier, args.options.seed) {
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
        _ => trial_text::trial(&outcome, &words, Some(&args.options.how()), printer.style()),
    })?;
    printer.note(&format!("trial: {}", path.display()));
    if let Some(page) = &page {
        pages::write(
            page,
            pages::of_trial(&outcome, &journal::read(&path)?).as_bytes(),
            Some(&path),
            printer,
        )?;
    }
    let met = gates.iter().map(|gate| gate.stops(&outcome)).collect::<Result<Vec<_>, Error>>()?;
    let met: Vec<String> = met.into_iter().flatten().collect();
    for line in &met {
        printer.warn(line);
    }
    if let Some(why) = &failed {
        printer.error(&anyhow!("the trial stopped early: {why}"));
    }
    let measured = outcome.comparisons.iter().any(|c| c.effect.is_ok());
    // With --fail-on, an unfinished trial must not pass, nor an arm that was not tried.
    let left_out: Vec<&str> = outcome.design.left_out.iter().map(|arm| arm.name.as_str()).collect();
    let is_unjudged = !gates.is_empty() && !left_out.is_empty();
    if is_unjudged {
        printer.warn(&format!("--fail-on was not judged for {}, which was left out", left_out.join(", ")));
    }
    let cut_off = failed.is_some() || (!gates.is_empty() && interrupted.load(Ordering::Relaxed));
    let passed = measured && met.is_empty() && !cut_off && !is_unjudged;
    let status = if passed { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    Ok(Reported { outcome, path, failed, status })
}

/// The earlier trial's options and command, with the new options that may change: length, gates and output.
fn continued(now: Args, earlier: &mut Journal) -> anyhow::Result<Args> {
    let Head { options, command, design, .. } = &earlier.head;
    let mut options =
        Options::read(options).map_err(|error| anyhow!("the trial can't be continued: {error}"))?;
    let body = options.body.iter().filter_map(|path| path.to_str());
    let mut kept = command.iter().map(String::as_str).chain(body);
    if let Some(word) = kept.find(|word| word.contains(char::REPLACEMENT_CHARACTER)) {
        bail!(
            "the trial can't be continued: {word} was not valid UTF-8, and the file stores options and command as text; \
             start another trial"
        );
    }
    earlier.planned |= options.budget.is_none() && options.effect.is_none();
    let (done, planned) = (earlier.blocks.len(), design.settings.planned);
    let Options { blocks, budget, fail_on, .. } = now.options;
    if let Some(blocks) = blocks.map(|blocks| blocks as usize)
        && blocks != done
        && (blocks < done || (earlier.planned && blocks != planned))
    {
        // The interim looks share one significance level; changing the plan after a look would spend it twice.
        return Err(usage(format!(
            "--blocks {blocks}: {done} of {planned} planned blocks are done, and the plan cannot change; for another number of \
             blocks, start another trial"
        )));
    }
    if blocks.is_some() || budget.is_some() {
        (options.blocks, options.budget) = (blocks, budget);
    }
    if !fail_on.is_empty() {
        options.fail_on = fail_on;
    }
    let command = command.iter().map(OsString::from).collect();
    Ok(Args { options, command, ..now })
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

impl Kind<'_> {
    fn subject(&mut self) -> &mut dyn Subject {
        match self {
            Kind::Batch(batch) => batch,
            Kind::Server(server) => server,
        }
    }
}

/// The arms of a trial on this machine.
struct Resolved {
    names: Vec<String>,
    arms: Vec<Arm>,
    prepared: Vec<Prepared>,
    left_out: Vec<LeftOut>,
}

/// One run of each arm that is not counted.
struct First {
    ran: Vec<Ran>,
    /// Time of a block, by these runs.
    block_s: f64,
}

impl Trial<'_> {
    fn conduct(&self, earlier: Option<Journal>) -> anyhow::Result<Tried> {
        if let (Some(earlier), Some(path)) = (&earlier, &self.args.resume)
            && self.only_reported(earlier)
        {
            self.gates_fit(&earlier.head.design.metrics)?;
            return Ok(Tried::of(earlier, path));
        }
        let mut resolved = self.resolved()?;
        let origin = self.origin();
        // Check before any run that the trial can be saved, and that a continued trial is still the same trial.
        let (path, appended) = match (&earlier, &self.args.resume) {
            (Some(earlier), Some(path)) => {
                self.goes_on(&earlier.head, &resolved.names, &origin)?;
                (path.clone(), Some(Writer::append_to(path)?))
            }
            _ => (self.path()?, None),
        };
        let mut kind = self.kind(std::mem::take(&mut resolved.prepared))?;
        let announced = self.announce(&kind, &resolved, earlier.as_ref());
        if let (None, Some(least_s)) = (&earlier, announced.each_s) {
            self.budget_fits(least_s, resolved.names.len(), announced.family)?;
        }
        let rates = self.rates(&mut kind, earlier.as_ref().map(|earlier| &earlier.head.rates[..]))?;
        // A continued trial keeps its predictions.
        let mut counts = if earlier.is_none() { self.counts(&resolved.arms) } else { Err(not_counted()) };
        // The first runs show what is wrong with the command before anything is measured.
        let First { ran: first, block_s } = self.prove(&mut kind, &resolved.names, &mut counts)?;
        if self.stopped() {
            return self.stopped_early(earlier);
        }
        let (mut journal, mut writer) = match (earlier, appended) {
            (Some(mut journal), Some(mut writer)) => {
                self.gates_fit(&journal.head.design.metrics)?;
                self.plan_anew(&mut journal, &mut writer)?;
                (journal, writer)
            }
            _ => {
                let metrics = self.metrics(&kind, &first)?;
                self.budget_fits(
                    block_s,
                    resolved.names.len(),
                    plan::family(resolved.names.len(), &metrics),
                )?;
                self.estimate(announced, &metrics, block_s);
                let predicted = self.predicted(&mut kind, &resolved.arms, &metrics, counts);
                if self.stopped() {
                    return self.stopped_early(None);
                }
                let head = self.head(&resolved, metrics, predicted, rates, &first);
                let head = Head { origin: Some(origin), ..head };
                let writer = Writer::create(&path, &head)?;
                (Journal { head, blocks: vec![], planned: false }, writer)
            }
        };
        self.warm_up(&mut kind, &resolved.names)?;
        let end = self.blocks(&mut kind, &mut writer, &mut journal, block_s);
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

    /// The metrics of a new trial.
    fn metrics(&self, kind: &Kind, first: &[Ran]) -> anyhow::Result<Vec<Metric>> {
        let metrics = match kind {
            Kind::Batch(_) => batch::metrics(&first.first().map(|r| r.readings.clone()).unwrap_or_default()),
            Kind::Server(server) => server::metrics(server, first.first().context("interrupted")?),
        };
        self.gates_fit(&metrics)?;
        Ok(self.with_gated(metrics))
    }

    /// A metric of --fail-on is primary.
    fn with_gated(&self, metrics: Vec<Metric>) -> Vec<Metric> {
        let gated = |m: &Metric| self.gates.iter().any(|gate| gate.is_of(m));
        metrics.into_iter().map(|m| Metric { primary: m.primary || gated(&m), ..m }).collect()
    }

    /// Refuses a budget in which no result is possible, if one block takes `block_s`.
    fn budget_fits(&self, block_s: f64, arms: usize, family: usize) -> anyhow::Result<()> {
        let (Length::Budget(budget) | Length::Effect(Some(budget))) = self.length(arms, family) else {
            return Ok(());
        };
        match plan::too_short(budget.as_secs_f64(), block_s, arms, family) {
            None => Ok(()),
            Some(needed_s) => Err(usage(format!(
                "--budget {} is too short for a result: a block takes about {block_s:.1} s, and at least {} are needed \
                 (--budget {})",
                Time(budget),
                count(plan::fewest_blocks(arms, family), "block"),
                Time(Duration::from_secs(needed_s.ceil() as u64)),
            ))),
        }
    }

    /// Says how long the blocks will take, by the first runs. If only these showed how many metrics there are, the plan is checked
    /// again.
    fn estimate(&self, announced: Plan, metrics: &[Metric], block_s: f64) {
        let arms = announced.names.len();
        let family = plan::family(arms, metrics);
        let length = self.length(arms, family);
        if family > announced.family
            && let Some(warning) = (Plan { family, length, ..announced }).warning()
        {
            self.printer.warn(&warning);
        }
        match length {
            Length::Blocks(count) => self.printer.note(&estimated_time(count, block_s, "about")),
            Length::Budget(_) | Length::Effect(_) => {
                self.printer.note(&format!("time: about {block_s:.1} s for one block"));
            }
        }
    }

    /// The other runs of each arm that are not counted, if more than one is asked for.
    fn warm_up(&self, kind: &mut Kind, names: &[String]) -> anyhow::Result<()> {
        let runs = self.args.options.warm_up_runs();
        for run in 1..runs {
            for (arm, name) in names.iter().enumerate() {
                if self.stopped() {
                    return Ok(());
                }
                self.printer.progress_line(&format!("warm-up run {} of {runs} of {name}", run + 1));
                let ran = kind.subject().run(arm);
                // The counted runs show whether the arm fails.
                if !self.stopped() {
                    ran?;
                }
            }
        }
        self.printer.clear_line();
        Ok(())
    }

    /// A continued trial that has no plan yet takes the number of blocks of --blocks.
    fn plan_anew(&self, journal: &mut Journal, writer: &mut Writer) -> anyhow::Result<()> {
        let design = &mut journal.head.design;
        let family = plan::family(design.arms.len(), &design.metrics);
        if let Length::Blocks(count) = self.length(design.arms.len(), family)
            && !journal.planned
        {
            design.settings.planned = count;
            design.settings.looks = plan::looks(count, design.arms.len(), family);
            writer.plan(design)?;
        }
        Ok(())
    }

    /// Runs the blocks that are not in the journal yet.
    fn blocks(
        &self,
        kind: &mut Kind,
        writer: &mut Writer,
        journal: &mut Journal,
        block_s: f64,
    ) -> Result<End, Error> {
        let design = &journal.head.design;
        let length = self.length(design.arms.len(), plan::family(design.arms.len(), &design.metrics));
        let is_planned = journal.planned || matches!(length, Length::Blocks(_));
        let outlook = Outlook {
            names: design.arms.iter().map(|arm| arm.name.clone()).collect(),
            planned: is_planned.then_some(design.settings.planned),
            budget: match length {
                Length::Budget(budget) | Length::Effect(Some(budget)) => Some(budget),
                Length::Blocks(_) | Length::Effect(None) => None,
            },
            each_s: Some(block_s),
        };
        let mut progress = Progress::of(self.printer, outlook);
        let mut conduct = Conduct {
            subject: kind.subject(),
            writer,
            interrupted: self.interrupted,
            on_event: &mut |event| progress.show(event),
        };
        conduct.run(journal, length)
    }

    /// All blocks are done, or --blocks names the number of blocks that are done.
    fn only_reported(&self, earlier: &Journal) -> bool {
        let done = earlier.blocks.len();
        let asked = self.args.options.blocks == Some(done as u64);
        done > 0 && (asked || conduct::over(earlier).is_some())
    }

    fn gates_fit(&self, metrics: &[Metric]) -> anyhow::Result<()> {
        for gate in self.gates {
            gate.among(metrics).map_err(usage)?;
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
        for text in &self.args.options.with {
            let arm = Arm::parse(text).map_err(usage)?;
            if arm.parts.iter().all(|part| part.remedy.key == "none") {
                continue;
            }
            if arms.iter().any(|known| known.name == arm.name) {
                return Err(usage(format!("--with {text} is given twice")));
            }
            arms.push(arm);
        }
        Ok(arms)
    }

    /// The arms that can be tried here. An arm that the machine lacks something for is left out, and the trial goes on without it.
    fn resolved(&self) -> anyhow::Result<Resolved> {
        let Args { options, command, .. } = self.args;
        let facts = TargetFacts::of(command, &arms::environment())?;
        let inventory = arms::inventory(self.printer);
        let base = Start::new(command.clone(), options.timeout());
        let (mut tried, mut refused) = (Vec::new(), Vec::new());
        for arm in self.arms()? {
            match arm.resolve(&inventory, &facts) {
                Ok(applied) => {
                    for note in &applied.notes {
                        self.printer.warn(&format!("{}: {note}", arm.name));
                    }
                    let prepared = Prepared::of(&base, &applied);
                    tried.push((arm, prepared));
                }
                Err(refusal) if refusal.1 == Cause::Lacking => refused.push((arm.name, refusal)),
                Err(refusal) => return Err(arms::refused(refusal)),
            }
        }
        let is_empty = tried.len() == BASELINES && !options.with.iter().any(|name| name == "none");
        if is_empty && refused.len() == 1 {
            // The only arm: its reason is the error.
            return Err(refused.remove(0).1.into());
        }
        for (_, refusal) in &refused {
            self.printer.warn(&format!("left out: {refusal}"));
        }
        if is_empty {
            bail!("no arm is left to try: see the warnings above");
        }
        let (arms, prepared): (Vec<Arm>, Vec<Prepared>) = tried.into_iter().unzip();
        Ok(Resolved {
            names: arms.iter().map(|arm| arm.name.clone()).collect(),
            arms,
            prepared: session::equalised(prepared),
            left_out: refused.into_iter().map(|(name, why)| LeftOut { name, why: why.0 }).collect(),
        })
    }

    /// A server has no rates yet.
    fn kind(&self, prepared: Vec<Prepared>) -> anyhow::Result<Kind<'_>> {
        let options = &self.args.options;
        let figures = options.metric.iter().map(|m| Figure::parse(m)).collect::<Result<Vec<_>, Error>>();
        let figures = figures.map_err(usage)?;
        let prepare = options.prepare.as_ref().map(|line| Prepare {
            line: line.clone(),
            limit: options.timeout(),
            keeper_exe: self.keeper.to_owned(),
        });
        if options.of_what() == Of::Batch {
            return Ok(Kind::Batch(Batch {
                arms: prepared,
                keeper_exe: self.keeper.to_owned(),
                figures,
                events: &[],
                fine: options.exit_ok.clone(),
                prepare,
                interrupted: self.interrupted,
            }));
        }
        let serving = self.serving();
        let mut server = serving.server(prepared, figures, prepare, self.interrupted)?;
        serving.set_rates(&mut server, &serving.rates_to_come())?;
        Ok(Kind::Server(server))
    }

    fn serving(&self) -> Serving<'_> {
        Serving { options: &self.args.options, printer: self.printer, keeper: self.keeper, seed: self.seed }
    }

    /// Sets the request rates of --load, and returns them. A continued trial keeps its earlier rates.
    fn rates(&self, kind: &mut Kind, earlier: Option<&[NamedRate]>) -> anyhow::Result<Vec<NamedRate>> {
        let Kind::Server(server) = kind else { return Ok(vec![]) };
        let serving = self.serving();
        let rates = match earlier {
            Some(earlier) if !earlier.is_empty() => earlier.to_vec(),
            _ => serving.rates(server)?,
        };
        serving.set_rates(server, &rates)?;
        Ok(rates)
    }

    /// Says what will be run, how long it takes if that is known, and what it can show.
    fn announce<'r>(&self, kind: &Kind, resolved: &'r Resolved, earlier: Option<&Journal>) -> Plan<'r> {
        let options = &self.args.options;
        let arms = resolved.names.len();
        let family = match earlier {
            Some(earlier) => plan::family(arms, &earlier.head.design.metrics),
            // The metrics of some load commands are known only from their output. Then it is at least this.
            None => plan::family(arms, &self.known_metrics(kind)),
        };
        let plan = Plan {
            names: &resolved.names,
            length: match earlier {
                Some(earlier) if earlier.planned => Length::Blocks(earlier.head.design.settings.planned),
                _ => self.length(arms, family),
            },
            family,
            warm_up: options.warm_up_runs().into(),
            done: earlier.map_or(0, |earlier| earlier.blocks.len()),
            each_s: match kind {
                Kind::Server(server) => server.load_time().map(|time| time.as_secs_f64() * arms as f64),
                Kind::Batch(_) => None,
            },
        };
        plan.lines().iter().for_each(|line| self.printer.note(line));
        if let Some(warning) = plan.warning() {
            self.printer.warn(&warning);
        }
        plan
    }

    /// The metrics before any run, as far as they are known.
    fn known_metrics(&self, kind: &Kind) -> Vec<Metric> {
        let reading =
            |figure: &Figure| Reading::new(figure.name.clone(), 0.0, ReadingUnit::Plain, figure.better);
        let metrics = match kind {
            Kind::Batch(batch) => batch::metrics(&batch.figures.iter().map(reading).collect::<Vec<_>>()),
            Kind::Server(server) => {
                let readings = match &server.load {
                    Load::Command { read: Read::Figures(figures), .. } => {
                        figures.iter().map(reading).collect()
                    }
                    _ => vec![],
                };
                server::metrics(server, &Ran { readings, ..Ran::default() })
            }
        };
        self.with_gated(metrics)
    }

    /// Predictions are made for remedies, and not for the first requests: they are over too soon for a diagnosis.
    fn predicts(&self, arms: &[Arm]) -> bool {
        let is_first = self.args.options.of_what() == Of::First;
        !(self.args.options.no_predict || is_first || arms.len() == BASELINES)
    }

    /// Prepares to count the calls of the baseline, for the predictions.
    fn counts(&self, arms: &[Arm]) -> Measured<Counts> {
        if !self.predicts(arms) {
            return Err(not_counted());
        }
        let counting = counting::start(&self.args.command, self.printer)?;
        let guard = run::guard(Some(counting.folder()), self.keeper)
            .map_err(|error| Absence::new(Reason::NotSupported, error.to_string()))?;
        Ok(Counts { counting, _guard: guard })
    }

    /// One run of each arm, which is not counted. In that of A′, the calls of a command that ends are counted.
    fn prove(
        &self,
        kind: &mut Kind,
        names: &[String],
        counts: &mut Measured<Counts>,
    ) -> anyhow::Result<First> {
        let mut began_ns: Vec<u64> = vec![];
        let plain = match (&mut *kind, &*counts) {
            (Kind::Batch(batch), Ok(counts)) => Some(counts.give_to(&mut batch.arms[COUNTED].start)),
            _ => None,
        };
        let starts = |arm: usize| {
            began_ns.push(monotonic_ns());
            self.printer.progress_line(&format!("first run of {}, not counted", names[arm]));
            // The run of A′ is over. A server is counted later, under its load.
            if let (true, true, Ok(counts)) = (arm > COUNTED, plain.is_some(), &*counts) {
                counts.counting.stop();
            }
        };
        let room = Room::new(self.folder);
        let mut ran = match &mut *kind {
            Kind::Batch(batch) => batch.prove(&room, self.interrupted, starts)?,
            Kind::Server(server) => server.prove(&room, self.interrupted, starts)?,
        };
        began_ns.push(monotonic_ns());
        let block_s = time_of_a_block(&began_ns, plain.is_some());
        if let (Kind::Batch(batch), Some(plain)) = (&mut *kind, plain) {
            batch.arms[COUNTED].start = plain;
            *counts = unless_failed(&mut ran, std::mem::replace(counts, Err(not_counted())));
        }
        self.printer.clear_line();
        if self.stopped() {
            return Ok(First { ran, block_s });
        }
        if let Some(failure) = ran.iter().take(BASELINES).find_map(|r| r.failure.clone()) {
            let less = match self.args.options.of_what() {
                Of::Load => " (if the server can't answer so many requests: a lower --at or --rate)",
                Of::Batch if failure.starts_with(batch::TOO_LONG) => {
                    " (for a server, add --load URL; for a command that takes longer, --timeout TIME)"
                }
                Of::Batch | Of::First | Of::LoadCommand => "",
            };
            bail!("the command fails without any remedy: {failure}{less}");
        }
        if let Kind::Batch(batch) = kind {
            let read = |run: &Ran, figure: &Figure| run.metrics.get(&figure.name)?.clone().err();
            let unread = |run: &Ran| batch.figures.iter().find_map(|figure| read(run, figure));
            if let Some(absence) = ran.iter().take(BASELINES).find_map(unread) {
                bail!(absence.with_advice());
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
        Ok(First { ran, block_s })
    }

    fn head(
        &self,
        resolved: &Resolved,
        metrics: Vec<Metric>,
        predicted: Vec<Predicted>,
        rates: Vec<NamedRate>,
        first: &[Ran],
    ) -> Head {
        let infos = session::arms(resolved.names.iter().map(String::as_str), predicted);
        let family = plan::family(infos.len(), &metrics);
        let planned = match self.length(infos.len(), family) {
            Length::Blocks(count) => count,
            Length::Budget(_) | Length::Effect(_) => plan::default_blocks(infos.len(), family),
        };
        let command = self.args.command.iter();
        let command = command.map(|w| w.to_string_lossy().into_owned()).collect();
        let design = Design {
            settings: Settings {
                seed: self.seed,
                effect: self.args.options.effect.map_or(plan::DEFAULT_EFFECT, Percent::share),
                planned,
                looks: plan::looks(planned, infos.len(), family),
            },
            arms: infos,
            left_out: resolved.left_out.clone(),
            metrics,
        };
        let mut options = self.args.options.clone();
        // If the trial is continued, it has the same arms.
        options.with.retain(|name| !resolved.left_out.iter().any(|arm| arm.name == *name));
        Head { options: options.saved(), rates, ..session::head(command, design, first) }
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

    /// For each arm: the changes that a diagnosis of the baseline, and its counted calls, predict.
    fn predicted(
        &self,
        kind: &mut Kind,
        arms: &[Arm],
        metrics: &[Metric],
        counts: Measured<Counts>,
    ) -> Vec<Predicted> {
        let nothing = || vec![Predicted::new(); arms.len()];
        if !self.predicts(arms) {
            return nothing();
        }
        let window = self.args.options.load_time().clamp(record::SHORTEST_WINDOW, record::DEFAULT_WINDOW);
        let counted = self.counted(kind, counts, window);
        if let Err(absence) = &counted {
            let why = absence.with_advice();
            self.printer.note(&format!("predictions without counted calls of the allocator: {why}"));
        }
        self.printer.progress_line("diagnosing the baseline");
        let judged = match &*kind {
            Kind::Batch(batch) => {
                let prepared = batch.prepare.as_ref().map_or(Ok(()), |prepare| prepare.run(self.interrupted));
                let target = Target::Launch {
                    command: batch.arms[0].start.command.clone(),
                    env: vec![self.guard.mark()],
                    keep: false,
                    talk: Talk::Nowhere,
                };
                prepared
                    .map_err(Into::into)
                    .and_then(|()| self.diagnosed(target, record::DEFAULT_WINDOW, self.interrupted))
            }
            Kind::Server(server) => server
                .under_observation(0, |pid, over| self.diagnosed(Target::Pids(vec![pid]), window, over))
                .map_err(Into::into)
                .and_then(|judged| judged),
        };
        // Ends processes that left the command's process group.
        self.guard.sweep();
        self.printer.clear_line();
        match judged {
            Ok(mut judged) => {
                if !self.stopped()
                    && let Err(absence) = expected::possible(&judged.recording, &judged.bill)
                {
                    self.printer.warn(&format!("no predictions: {absence}"));
                }
                let replayed = self.replayed(kind, arms, &counted);
                judged.recording.counted = counted.map(|watched| watched.counted);
                let change = |arm: &Arm| {
                    judged.recording.replayed = of_arm(&replayed, arm);
                    predict::of(&judged.recording, &judged.bill, arm, metrics)
                };
                arms.iter().map(change).collect()
            }
            Err(error) => {
                self.printer.warn(&format!("no predictions: the command could not be diagnosed: {error:#}"));
                nothing()
            }
        }
    }

    /// The calls of A′ in its first run, or those of the server in a run of their own, with the rates under load.
    fn counted(&self, kind: &mut Kind, counts: Measured<Counts>, window: Duration) -> Measured<Watched> {
        let counts = counts?;
        let server = match kind {
            Kind::Batch(_) => {
                let mut watched = counts.counting.finish()?;
                watched.counted = as_diagnosed(watched.counted);
                return Ok(watched);
            }
            Kind::Server(server) => server,
        };
        self.printer.progress_line("counting the calls of the baseline");
        let plain = counts.give_to(&mut server.arms[0].start);
        let counting = &counts.counting;
        let observed = server.under_observation(0, |_, over| {
            let from_ns = counting.now_ns();
            let end_ns = from_ns.saturating_add(window.as_nanos() as u64);
            while counting.now_ns() < end_ns && !over.load(Ordering::Relaxed) && !self.stopped() {
                std::thread::sleep(GLANCE);
            }
            counting.stop();
            (from_ns, counting.now_ns())
        });
        server.arms[0].start = plain;
        self.printer.clear_line();
        let (from_ns, to_ns) = observed.map_err(|error| {
            Absence::new(Reason::NotFound, format!("the run in which calls are counted failed: {error}"))
        })?;
        let mut watched = counts.counting.finish()?;
        watched.counted.keep_rates_between(from_ns, to_ns);
        Ok(watched)
    }

    /// What the counted calls cost with each arm that is another allocator, or a tunable of malloc.
    fn replayed(&self, kind: &Kind, arms: &[Arm], counted: &Measured<Watched>) -> Measured<Replay> {
        let Watched { counted, traces } = counted.as_ref().map_err(Clone::clone)?;
        let prepared = match kind {
            Kind::Batch(batch) => &batch.arms,
            Kind::Server(server) => &server.arms,
        };
        let variant = |(arm, prepared): (&Arm, &Prepared)| predict::variant(arm, &prepared.start.env);
        let variants: Vec<_> = arms.iter().zip(prepared).skip(BASELINES).filter_map(variant).collect();
        if variants.is_empty() || self.stopped() {
            let detail = "no arm is another allocator, or a tunable of malloc";
            return Err(Absence::new(Reason::NotApplicable, detail));
        }
        self.printer.note("replaying the counted calls with each allocator: this takes some seconds");
        calibrate::replay::measure(counted, traces, &variants, self.keeper, self.interrupted)
    }

    /// `over` closes the window early.
    fn diagnosed(&self, target: Target, window: Duration, over: &AtomicBool) -> anyhow::Result<Diagnosis> {
        let recorded = record::record(record::Request {
            target,
            window,
            rate_hz: None,
            // This run is not counted.
            closely: true,
            counting: Err(not_counted()),
            memory: true,
            output: None,
            prices: calibrate::cached(),
            readers: readers(),
            interrupted: over,
            progress: &mut |_| {},
        })?;
        Ok(Diagnosis::of(recorded.recording, None))
    }

    fn length(&self, arms: usize, family: usize) -> Length {
        let options = &self.args.options;
        match (options.blocks, options.budget.map(|Time(budget)| budget), options.effect) {
            (Some(count), ..) => Length::Blocks(count as usize),
            (None, budget, Some(_)) => Length::Effect(budget),
            (None, Some(budget), None) => Length::Budget(budget),
            (None, None, None) => Length::Blocks(plan::default_blocks(arms, family)),
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

/// Counts the calls of the baseline. The guard removes the folder of the counts, even if allocwall is killed.
struct Counts {
    counting: Counting,
    _guard: Guard,
}

impl Counts {
    /// Adds what counts to the environment of a start. Returns the start as it was.
    fn give_to(&self, start: &mut Start) -> Start {
        let plain = start.clone();
        let variables = self.counting.environment().into_iter();
        start.env.extend(variables.map(|(name, value)| (name, Some(value))));
        plain
    }
}

/// The time of one run of each arm, from the times at which they started and the last one ended. The first runs of remedies take
/// longer than later ones, because the loader writes a log, and that of A′ if its calls are counted: those of the baseline stand
/// for all.
fn time_of_a_block(began_ns: &[u64], is_counted: bool) -> f64 {
    let runs: Vec<u64> = began_ns.windows(2).map(|pair| pair[1].saturating_sub(pair[0])).collect();
    let plain = if is_counted { 1 } else { BASELINES };
    let shortest = runs.iter().take(plain).min().copied().unwrap_or(0);
    shortest as f64 / 1e9 * runs.len() as f64
}

/// If the run of A′ failed, and that of A did not, counting is to blame: then the run of A stands for both.
fn unless_failed(ran: &mut [Ran], counts: Measured<Counts>) -> Measured<Counts> {
    let [first, counted, ..] = ran else { return counts };
    match counted.failure.take() {
        Some(failure) => {
            *counted = first.clone();
            let detail = format!("the command fails while its calls are counted: {failure}");
            Err(Absence::new(Reason::NotApplicable, detail))
        }
        None => counts,
    }
}

/// The rates of the time that the diagnosis of a command is about: from its start, at most the longest window.
fn as_diagnosed(mut counted: Counted) -> Counted {
    let window_ns = record::DEFAULT_WINDOW.as_nanos() as u64;
    let from_ns = counted.processes.iter().map(|process| process.from_ns).min().unwrap_or(0);
    if counted.length_ns.saturating_sub(from_ns) > window_ns {
        counted.keep_rates_between(from_ns, from_ns.saturating_add(window_ns));
    }
    counted
}

/// What was measured for this arm: several arms may be one remedy with different values or libraries.
fn of_arm(replayed: &Measured<Replay>, arm: &Arm) -> Measured<Replay> {
    let mut replay = replayed.clone()?;
    replay.variants.retain(|one| arm.parts.iter().any(|part| part.text == one.remedy));
    Ok(replay)
}

type Predicted = BTreeMap<String, allocwall_model::units::Interval>;

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::allocations::Point;
    use allocwall_model::replay::{ReplayCost, Replayed};
    use allocwall_model::units::Interval;
    use allocwall_sketches::recording;

    #[test]
    fn a_run_that_fails_only_while_it_is_counted_is_not_the_commands_fault() {
        let run = |failure: Option<&str>| Ran { failure: failure.map(str::to_owned), ..Ran::default() };
        let of = |first, second| {
            let mut ran = [run(first), run(second)];
            let counts = unless_failed(&mut ran, Err(not_counted())).err().expect("no counts");
            (ran.map(|run| run.failure), counts.detail)
        };
        let (failures, why) = of(None, Some("signal 31"));
        assert_eq!(failures, [None, None]);
        assert!(why.contains("while its calls are counted: signal 31"), "{why}");
        let both = Some("exit status 1".to_owned());
        assert_eq!(of(both.as_deref(), both.as_deref()).0, [both.clone(), both.clone()]);
        assert_eq!(of(None, None), ([None, None], not_counted().detail));
    }

    #[test]
    fn the_command_line_of_a_trial_can_be_copied() {
        let command = ["sh", "-c", "a b"].map(OsString::from);
        let load = Options { load: Some("http://127.0.0.1:1/?a&b".to_owned()), ..Options::default() };
        let line = |options| Args::of(&["jemalloc", "thp"], &command, options).command_line();
        assert_eq!(
            line(load),
            "allocwall trial --with jemalloc --with thp --load 'http://127.0.0.1:1/?a&b' -- sh -c 'a b'"
        );
        assert_eq!(line(Options::default()), "allocwall trial --with jemalloc --with thp -- sh -c 'a b'");
    }

    #[test]
    fn the_time_of_a_block_is_that_of_runs_without_counting() {
        let second = |s: u64| s * 1_000_000_000;
        let began = [second(10), second(12), second(19), second(22)];
        assert_eq!(time_of_a_block(&began, true), 3.0 * 2.0);
        let faster = [second(10), second(12), second(13), second(22)];
        assert_eq!((time_of_a_block(&faster, true), time_of_a_block(&faster, false)), (3.0 * 2.0, 3.0 * 1.0));
        // Interrupted in the first run.
        assert_eq!(time_of_a_block(&began[..2], true), 2.0);
        assert_eq!(time_of_a_block(&[], true), 0.0);
    }

    #[test]
    fn a_long_run_has_the_rates_of_the_time_that_is_diagnosed() {
        const SECOND_NS: u64 = 1_000_000_000;
        let of = |seconds: u64| {
            let mut counted = recording::counted(seconds, &[(100, 64)], 500, 0.0);
            let point = |at: u64| Point {
                t_ns: at * SECOND_NS,
                over_ns: SECOND_NS,
                calls: if at <= 15 { 100 } else { 10 },
                ..Point::default()
            };
            counted.series = (1..=seconds).map(point).collect();
            as_diagnosed(counted).per_second().map(|rates| (rates.over_s, rates.calls))
        };
        assert_eq!((of(60), of(10)), (Some((15.0, 100.0)), Some((10.0, 100.0))));
    }

    #[test]
    fn an_arm_has_the_replay_of_its_own_library_and_value() {
        let exact = Interval::exact(1.0);
        let one = |remedy: &str| Replayed { remedy: remedy.into(), cost: exact, saved: exact, failed: None };
        let replay = Ok(Replay {
            traced: false,
            in_turns: true,
            present: ReplayCost { cost: exact, ready: exact, faults: exact },
            variants: ["mimalloc@system", "mimalloc@bundled", "jemalloc"].map(one).into(),
            calls: 1,
            rounds: 5,
        });
        let arm = Arm::parse("mimalloc@bundled").expect("a remedy");
        let own = of_arm(&replay, &arm).expect("measured").variants;
        assert_eq!(own.iter().map(|one| one.remedy.as_str()).collect::<Vec<_>>(), ["mimalloc@bundled"]);
        assert!(of_arm(&Err(not_counted()), &arm).is_err());
    }
}
