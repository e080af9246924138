//! `allocwall bench NAME` for the experiments from published accounts, which share their options.

use crate::commands::shared::arms;
use crate::commands::shared::ground::Ground;
use crate::commands::shared::pages;
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::usage::usage;
use crate::output;
use crate::printer::Printer;
use allocwall_host::clock;
use allocwall_lab::experiments::results::Results;
use allocwall_lab::experiments::run::{Bench, Talk, VERB};
use allocwall_lab::experiments::task::{self, Spec};
use allocwall_lab::experiments::{
    EXPERIMENTS, Experiment, Settings, all_incidents, charts, find, html, json, text, unknown_arm,
};
use allocwall_trial::session;
use anyhow::Context;
use clap::error::ErrorKind;
use clap::{ArgMatches, Args as _, Command, FromArgMatches, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::Ordering;

/// Largest size of a run, relative to a full one.
const LARGEST: f64 = 10.0;

#[derive(clap::Args)]
#[command(
    after_help = "A block runs every arm once and the first arm twice, in random order. Each run is a new process.\n\
                  A claim holds here, or does not, if its whole 95 % interval says so; else it can't be tested here.\n\
                  Each claim is judged by itself: of many, some are judged wrongly by chance.\n\
                  Exit status: 0 measured, 1 could not measure, 2 usage error."
)]
pub struct Args {
    /// Fewer and shorter runs of fewer arms: less than a minute an experiment, with wider intervals
    #[arg(long)]
    quick: bool,

    /// Arms to run in addition to the first [default: all that this machine has; with --quick: some of them]
    #[arg(long, value_name = "NAME[,…]", value_delimiter = ',')]
    arms: Vec<String>,

    /// Number of blocks [default: 12; with --quick: 6]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..=500))]
    blocks: Option<u64>,

    /// Random seed for the order of arms and for the runs
    #[arg(long, value_name = "N")]
    seed: Option<u64>,

    /// Don't take the bill of each arm
    #[arg(long)]
    no_bills: bool,

    /// Write a JSON document (docs/json.md) with all runs to this file. A name that ends in .html: write a page with charts instead
    /// (docs/html.md)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write charts (SVG) to this folder
    #[arg(long, value_name = "DIR")]
    charts: Option<PathBuf>,

    /// Print the JSON document instead of text
    #[arg(long)]
    json: bool,

    /// Size of a run, relative to a full one, for tests
    #[arg(long, hide = true, value_name = "PART", value_parser = parse_scale)]
    scale: Option<f64>,
}

#[derive(clap::Args)]
pub struct RunArgs {
    spec: String,
}

/// One experiment of the table, by its name.
pub struct Named {
    experiment: &'static Experiment,
    args: Args,
}

impl FromArgMatches for Named {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Named, clap::Error> {
        let named = matches.subcommand().and_then(|(name, options)| Some((find(name)?, options)));
        match named {
            Some((experiment, options)) => Ok(Named { experiment, args: Args::from_arg_matches(options)? }),
            None => Err(clap::Error::new(ErrorKind::InvalidSubcommand)),
        }
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Named::from_arg_matches(matches)?;
        Ok(())
    }
}

impl Subcommand for Named {
    fn augment_subcommands(bench: Command) -> Command {
        let verb = |experiment: &Experiment| {
            Args::augment_args(Command::new(experiment.name).about(experiment.summary))
        };
        bench.subcommands(EXPERIMENTS.iter().map(verb))
    }

    fn augment_subcommands_for_update(bench: Command) -> Command {
        Named::augment_subcommands(bench)
    }

    fn has_subcommand(name: &str) -> bool {
        find(name).is_some()
    }
}

fn parse_scale(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(scale) if scale > 0.0 && scale <= LARGEST => Ok(scale),
        _ => Err(format!("expected a number above 0, at most {LARGEST}")),
    }
}

impl Args {
    fn settings(&self) -> Settings {
        let seed = self.seed.unwrap_or_else(clock::unix_ms);
        let plan = if self.quick { Settings::quick(seed) } else { Settings::full(seed) };
        Settings {
            blocks: self.blocks.map_or(plan.blocks, |blocks| blocks as usize),
            scale: self.scale.unwrap_or(plan.scale),
            arms: self.arms.clone(),
            bill: plan.bill.filter(|_| !self.no_bills),
            ..plan
        }
    }
}

impl Talk for Printer {
    fn note(&self, line: &str) {
        self.clear_line();
        Printer::note(self, line);
    }

    fn warn(&self, line: &str) {
        self.clear_line();
        Printer::warn(self, line);
    }

    fn progress(&self, line: &str) {
        self.progress_line(line);
    }
}

pub fn run(named: &Named, printer: &Printer) -> anyhow::Result<ExitCode> {
    measure(&[named.experiment], &named.args, printer)
}

pub fn run_all(args: &Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    measure(&EXPERIMENTS.iter().collect::<Vec<_>>(), args, printer)
}

pub fn run_incidents(args: &Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    measure(&all_incidents(), args, printer)
}

/// One run; prints its result to standard output.
pub fn run_once(args: &RunArgs, printer: &Printer) -> anyhow::Result<ExitCode> {
    let spec: Spec = serde_json::from_str(&args.spec)
        .with_context(|| format!("`allocwall bench {VERB}` is for internal use"))?;
    let result = task::run(&spec, &|line: &str| printer.data(line))?;
    printer.data(&serde_json::to_string(&result)?)?;
    Ok(ExitCode::SUCCESS)
}

fn measure(experiments: &[&'static Experiment], args: &Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    if let Some(line) = unknown_arm(experiments, &args.arms) {
        return Err(usage(line));
    }
    // Before anything runs: results that cannot be written would be lost.
    if let Some(path) = &args.output {
        output::check(path)?;
    }
    if let Some(folder) = &args.charts {
        std::fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        output::check(&folder.join("check.svg"))?;
    }
    let interrupted = catch_signals()?;
    let ground = Ground::new("allocwall-bench-", printer)?;
    let inventory = arms::inventory(printer);
    let bench = Bench {
        program: &ground.keeper,
        inventory: &inventory,
        environment: arms::environment(),
        folder: ground.folder(),
        interrupted: &interrupted,
        talk: printer,
    };
    let settings = args.settings();
    let mut all: Vec<Results> = vec![];
    for &experiment in experiments {
        let measured = bench.measure(experiment, &settings);
        printer.clear_line();
        match measured {
            Ok(Some(results)) => {
                if !args.json {
                    let gap = if all.is_empty() { "" } else { "\n" };
                    printer.data(&format!("{gap}{}", text::report(&results, printer.style())))?;
                }
                if let Some(folder) = &args.charts {
                    for (name, chart) in charts::all(&results) {
                        output::write(&folder.join(name), chart.as_bytes(), None)?;
                    }
                }
                all.push(results);
            }
            Ok(None) => break,
            // The other experiments may still run.
            Err(error) => printer.error(&error.context(experiment.name)),
        }
        // Relaxed: the flag guards no other data.
        if interrupted.load(Ordering::Relaxed) {
            break;
        }
    }
    // Without a result the document has nothing to say, and an earlier file stays.
    if !all.is_empty() {
        let document = json::document(&all, &session::machine());
        if let Some(path) = &args.output {
            let page = pages::is_page(path).then(|| html::document(&all, &session::machine()));
            output::write(path, page.as_ref().unwrap_or(&document).as_bytes(), None)?;
        }
        if args.json {
            printer.data(&document)?;
        }
    }
    let complete = all.len() == experiments.len() && !interrupted.load(Ordering::Relaxed);
    Ok(if complete { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn parsed(words: &[&str]) -> Result<Named, clap::Error> {
        let bench = Named::augment_subcommands(Command::new("bench").subcommand_required(true));
        let matches = bench.try_get_matches_from([&["bench"][..], words].concat())?;
        Named::from_arg_matches(&matches)
    }

    #[test]
    fn every_experiment_is_a_verb_with_the_same_options() {
        for experiment in EXPERIMENTS {
            let named = parsed(&[experiment.name, "--quick", "--arms", "jemalloc,mimalloc"]).unwrap();
            assert_eq!((named.experiment.name, named.args.arms.len()), (experiment.name, 2));
        }
        assert!(parsed(&["snake-oil"]).is_err() && parsed(&[EXPERIMENTS[0].name, "--blocks", "0"]).is_err());
    }

    #[test]
    fn options_change_the_settings_of_the_plan() {
        let settings = |options: &[&str]| {
            let words = [&[EXPERIMENTS[0].name, "--seed", "3"][..], options].concat();
            parsed(&words).unwrap().args.settings()
        };
        assert_eq!(settings(&[]), Settings::full(3));
        assert_eq!(settings(&["--quick"]), Settings::quick(3));
        let changed = settings(&["--quick", "--blocks", "2", "--no-bills", "--scale", "0.5"]);
        assert_eq!((changed.blocks, changed.bill, changed.scale), (2, None, 0.5));
        assert!(Settings::quick(3).bill.is_some_and(|bill| bill < Duration::from_secs(3)));
        for wrong in ["0", "-1", "NaN", "11", "x"] {
            assert!(parse_scale(wrong).is_err(), "{wrong}");
        }
    }
}
