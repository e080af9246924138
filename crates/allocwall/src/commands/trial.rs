//! `allocwall trial`: remedies on the user's own command, interleaved, with an interval and an outcome each.

use crate::commands::shared::arms;
use crate::commands::shared::counting;
use crate::commands::shared::diagnosis::{Diagnosis, readers};
use crate::commands::shared::ground::Ground;
use crate::commands::shared::options::{Header, Percent, Time};
use crate::commands::shared::progress::Progress;
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::state::new_state_file;
use crate::commands::shared::trial_options::{Of, Options, Spacing};
use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_diagnose::expected;
use allocwall_host::launch::Talk;
use allocwall_host::program;
use allocwall_measure::allocations::Counting;
use allocwall_measure::calibrate;
use allocwall_measure::record::{self, Target};
use allocwall_model::allocations::{Counted, not_counted};
use allocwall_model::catalogue::modules;
use allocwall_model::error::Error;
use allocwall_model::replay::Replay;
use allocwall_model::shell::quoted;
use allocwall_model::units::{Absence, Measured, Reason};
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
use allocwall_trial::load::first;
use allocwall_trial::load::metric::Figure;
use allocwall_trial::load::open::Plan;
use allocwall_trial::load::ready::Ready;
use allocwall_trial::load::request::{Ask as HttpAsk, Request};
use allocwall_trial::run::{self, Guard, Start};
use allocwall_trial::server::{self, Load, Read, Server};
use allocwall_trial::session;
use allocwall_trial::{BASELINES, Design, Metric, Settings, TrialResult, plan, predict};
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

    /// Save the trial to this file after each block [default: a file in the state directory]
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
    /// A trial of these remedies on a command that runs to its end, with defaults for all other options.
    pub fn of(with: &[&str], command: &[OsString]) -> Args {
        let with = with.iter().map(|name| (*name).to_owned()).collect();
        let options = Options { with, ..Options::default() };
        Args { options, command: command.to_vec(), ..Args::default() }
    }
}

pub fn run(mut args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    if let Some(line) = args.options.without_effect() {
        return Err(usage(line));
    }
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
        // A continued trial keeps its predictions.
        let mut counts = if earlier.is_none() { self.counts(&arms) } else { Err(not_counted()) };
        // The first runs show what is wrong with the command before anything is measured.
        let first = self.prove(&mut kind, &names, &mut counts)?;
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
                let predicted = self.predicted(&mut kind, &arms, &metrics, counts);
                if self.stopped() {
                    return self.stopped_early(None);
                }
                let head = self.head(&arms, metrics, predicted, rates, &first);
                let head = Head { origin: Some(origin), ..head };
                let writer = Writer::create(&path, &head)?;
                (Journal { head, blocks: vec![], planned: false }, writer)
            }
        };
        let end = self.blocks(&mut kind, &mut writer, &mut journal);
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
        // A metric of --fail-on is primary.
        let gated = |m: &Metric| self.gates.iter().any(|gate| gate.is_of(m));
        Ok(metrics.into_iter().map(|m| Metric { primary: m.primary || gated(&m), ..m }).collect())
    }

    /// A continued trial that has no plan yet takes the number of blocks of --blocks.
    fn plan_anew(&self, journal: &mut Journal, writer: &mut Writer) -> anyhow::Result<()> {
        if let Length::Blocks(count) = self.length()
            && !journal.planned
        {
            let design = &mut journal.head.design;
            let family = plan::family(design.arms.len(), &design.metrics);
            design.settings.planned = count;
            design.settings.looks = plan::looks(count, design.arms.len(), family);
            writer.plan(design)?;
        }
        Ok(())
    }

    /// Runs the blocks that are not in the journal yet.
    fn blocks(&self, kind: &mut Kind, writer: &mut Writer, journal: &mut Journal) -> Result<End, Error> {
        let mut progress = Progress::new(self.printer);
        let subject: &mut dyn Subject = match kind {
            Kind::Batch(batch) => batch,
            Kind::Server(server) => server,
        };
        let mut conduct = Conduct {
            subject,
            writer,
            interrupted: self.interrupted,
            on_event: &mut |event| progress.show(event),
        };
        conduct.run(journal, self.length())
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

    /// Also returns the request rates of --load; a continued trial keeps its earlier rates.
    fn prepared(
        &self,
        arms: &[Arm],
        earlier: Option<&[NamedRate]>,
    ) -> anyhow::Result<(Kind<'_>, Vec<NamedRate>)> {
        let Args { options, command, .. } = self.args;
        let facts = TargetFacts::of(command, &arms::environment())?;
        let inventory = arms::inventory(self.printer);
        let base = Start::new(command.clone(), options.timeout());
        let mut prepared = Vec::new();
        for arm in arms {
            let applied = arm.resolve(&inventory, &facts)?;
            for note in &applied.notes {
                self.printer.warn(&format!("{}: {note}", arm.name));
            }
            prepared.push(Prepared::of(&base, &applied));
        }
        let prepared = session::equalised(prepared);
        let figures = options.metric.iter().map(|m| Figure::parse(m)).collect::<Result<Vec<_>, Error>>();
        let figures = figures.map_err(usage)?;
        if options.of_what() == Of::Batch {
            let batch = Kind::Batch(Batch {
                arms: prepared,
                keeper_exe: self.keeper.to_owned(),
                figures,
                events: &[],
                fine: options.exit_ok.clone(),
                interrupted: self.interrupted,
            });
            return Ok((batch, vec![]));
        }
        let mut server = Server {
            arms: prepared,
            keeper_exe: self.keeper.to_owned(),
            ready: self.ready()?,
            patience: options.ready_timeout(),
            load: self.load(figures)?,
            rest: options.rest(),
            interrupted: self.interrupted,
        };
        let mut rates = vec![];
        if options.of_what() == Of::Load {
            let like = Plan {
                arrivals: match options.arrivals.unwrap_or_default() {
                    Spacing::Poisson => Arrivals::Poisson { seed: self.seed },
                    Spacing::Constant => Arrivals::Constant,
                },
                warm_up: options.warm_up(),
                window: options.load_time(),
                connections: options.connections(),
                ..Plan::new(1.0, 0)
            };
            // Plans are checked before the server is started for them.
            like.check().map_err(usage).context("--load-time, --warm-up")?;
            rates = match earlier {
                Some(earlier) if !earlier.is_empty() => earlier.to_vec(),
                _ => self.rates(&server)?,
            };
            let planned = server::plans(&rates, &like);
            planned.iter().try_for_each(|(_, plan)| plan.check())?;
            if let Load::Inside { plans, .. } = &mut server.load {
                *plans = planned;
            }
        }
        Ok((Kind::Server(server), rates))
    }

    fn ready(&self) -> anyhow::Result<Ready> {
        match (&self.args.options.ready, &self.args.options.load) {
            (Some(ready), _) => Ready::parse(ready, false).map_err(usage),
            // A TCP connection is enough here; the first load shows whether the requests succeed.
            (None, Some(url)) => Ok(Ready::Tcp(self.request(url)?.address)),
            (None, None) => Err(usage("unknown when the server is ready: use --ready tcp:127.0.0.1:PORT")),
        }
    }

    /// `figures`: those of --metric, which a load command prints.
    fn load(&self, figures: Vec<Figure>) -> anyhow::Result<Load> {
        let options = &self.args.options;
        match (&options.load, &options.load_cmd) {
            (Some(url), _) => {
                let request = self.request(url)?;
                Ok(match options.first {
                    Some(requests) => Load::First { request, plan: self.first(requests) },
                    None => Load::Inside { request, plans: vec![] },
                })
            }
            (None, Some(line)) => {
                let words: Vec<String> = line.split_whitespace().map(str::to_owned).collect();
                let read = if figures.is_empty() {
                    Read::Adapter(Adapter::of_command(&words).map_err(usage)?)
                } else {
                    Read::Figures(figures)
                };
                Ok(Load::Command { line: line.clone(), read, limit: options.timeout() })
            }
            (None, None) => Err(usage("no load given: use --load URL or --load-cmd CMD")),
        }
    }

    fn first(&self, requests: u64) -> first::Plan {
        let options = &self.args.options;
        first::Plan {
            requests,
            connections: options.connections(),
            limit: options.timeout(),
            most_failures: (requests as f64 * server::FAILED_REQUESTS) as u64,
        }
    }

    fn request(&self, url: &str) -> anyhow::Result<Request> {
        let options = &self.args.options;
        let body = match &options.body {
            Some(path) => std::fs::read(path).with_context(|| path.display().to_string())?,
            None => vec![],
        };
        let method = match (&options.method, &options.body) {
            (Some(method), _) => method,
            (None, Some(_)) => "POST",
            (None, None) => "GET",
        };
        let headers = options.header.iter().map(|Header(name, value)| (name.clone(), value.clone()));
        let headers: Vec<(String, String)> = headers.collect();
        let asked = HttpAsk { method, headers: &headers, body: &body, ..HttpAsk::get(url) };
        Request::new(&asked).map_err(usage)
    }

    fn rates(&self, server: &Server) -> anyhow::Result<Vec<NamedRate>> {
        if let Some(rate) = self.args.options.rate {
            return Ok(vec![(format!("{rate}/s"), rate.0)]);
        }
        self.printer.note("measuring the capacity of the baseline");
        let most = self.args.options.connections();
        let capacity = server.capacity(0, most)?;
        if capacity.still_rising {
            self.printer.note(&format!(
                "the capacity may be higher: throughput still rose at {most} connections; use --connections to allow more"
            ));
        }
        let shares = self.args.options.shares();
        let rates: Vec<NamedRate> = shares
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
    ) -> anyhow::Result<Vec<Ran>> {
        let plain = match (&mut *kind, &*counts) {
            (Kind::Batch(batch), Ok(counts)) => Some(counts.give_to(&mut batch.arms[COUNTED].start)),
            _ => None,
        };
        let starts = |arm: usize| {
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
        if let (Kind::Batch(batch), Some(plain)) = (&mut *kind, plain) {
            batch.arms[COUNTED].start = plain;
            *counts = unless_failed(&mut ran, std::mem::replace(counts, Err(not_counted())));
        }
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
        Ok(ran)
    }

    fn head(
        &self,
        arms: &[Arm],
        metrics: Vec<Metric>,
        predicted: Vec<Predicted>,
        rates: Vec<NamedRate>,
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
                effect: self.args.options.effect.map_or(plan::DEFAULT_EFFECT, Percent::share),
                planned,
                looks: plan::looks(planned, infos.len(), family),
            },
            arms: infos,
            metrics,
        };
        Head { options: self.args.options.saved(), rates, ..session::head(command, design, first) }
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
            Kind::Batch(batch) => self.diagnosed(
                Target::Launch {
                    command: batch.arms[0].start.command.clone(),
                    env: vec![self.guard.mark()],
                    keep: false,
                    talk: Talk::Nowhere,
                },
                record::DEFAULT_WINDOW,
                self.interrupted,
            ),
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
                judged.recording.counted = counted;
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
    fn counted(&self, kind: &mut Kind, counts: Measured<Counts>, window: Duration) -> Measured<Counted> {
        let counts = counts?;
        let server = match kind {
            Kind::Batch(_) => return counts.counting.finish().map(as_diagnosed),
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
        let mut counted = counts.counting.finish()?;
        counted.keep_rates_between(from_ns, to_ns);
        Ok(counted)
    }

    /// What the counted calls cost with each arm that is another allocator, or a tunable of malloc.
    fn replayed(&self, kind: &Kind, arms: &[Arm], counted: &Measured<Counted>) -> Measured<Replay> {
        let counted = counted.as_ref().map_err(Clone::clone)?;
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
        calibrate::replay::measure(counted, &variants, self.keeper, self.interrupted)
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
            output: None,
            prices: calibrate::cached(),
            readers: readers(),
            interrupted: over,
            progress: &mut |_| {},
        })?;
        Ok(Diagnosis::of(recorded.recording, None))
    }

    fn length(&self) -> Length {
        let options = &self.args.options;
        match (options.blocks, options.budget.map(|Time(budget)| budget), options.effect) {
            (Some(count), ..) => Length::Blocks(count as usize),
            (None, budget, Some(_)) => Length::Effect(budget),
            (None, Some(budget), None) => Length::Budget(budget),
            (None, None, None) => {
                let arms = options.with.iter().filter(|w| *w != "none").count() + BASELINES;
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

/// A load's name, and its requests per second.
type NamedRate = (String, f64);
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
