//! `allocwall diagnose --load URL -- SERVER`: starts the server, puts it under load, and records it meanwhile. A trial that
//! follows (`--verify`) uses the same load.

use super::{Args, default_output, record_window};
use crate::commands::shared::ground::Ground;
use crate::commands::shared::options::{Rate, Time};
use crate::commands::shared::serving::Serving;
use crate::commands::shared::signals::catch_signals;
use crate::commands::shared::trial_options::{Of, Options};
use crate::printer::Printer;
use allocwall_host::clock;
use allocwall_measure::record::{DEFAULT_WINDOW, Recorded, Target};
use allocwall_model::allocations::not_counted;
use allocwall_trial::batch::Prepared;
use allocwall_trial::proof::FirstRun;
use allocwall_trial::run::Start;
use std::sync::atomic::Ordering;

/// The load that is asked for, as options of a trial; None if there is none.
pub fn load(args: &Args) -> Option<Options> {
    let options = Options {
        load: args.load.clone(),
        body: args.body.clone(),
        header: args.header.clone(),
        load_cmd: args.load_cmd.clone(),
        ready: args.ready.clone(),
        ..Options::default()
    };
    (options.of_what() != Of::Batch).then_some(options)
}

/// Records the server during the window, which begins soon after the load. Sets the rate of the load, so that a trial has the same.
pub fn record(args: &Args, load: &mut Options, printer: &Printer) -> anyhow::Result<Recorded> {
    let interrupted = catch_signals()?;
    let ground = Ground::new("allocwall-diagnose-", printer)?;
    let window = args.duration.unwrap_or(DEFAULT_WINDOW);
    let during = Options { load_time: Some(Time(window)), ..load.clone() };
    let serving = Serving { options: &during, printer, keeper: &ground.keeper, seed: clock::unix_ms() };
    let start = Start::new(args.command.clone(), during.timeout());
    let server = Prepared { start, expects: vec![], first: FirstRun::default() };
    let mut server = serving.server(vec![server], vec![], None, &interrupted)?;
    serving.set_rates(&mut server, &serving.rates_to_come())?;
    let mut rates = serving.rates(&server)?;
    for (_, rate) in &mut rates {
        // As it is shown, so that the load of a later trial is the same.
        *rate = rate.round().max(1.0);
    }
    serving.set_rates(&mut server, &rates)?;
    load.rate = rates.first().map(|(_, rate)| Rate(*rate));
    printer.note("starting the server and its load, then recording");
    let output = args.output.clone().or_else(|| default_output(printer));
    let recorded = server.under_observation(0, |pid, over| {
        let target = Target::Pids(vec![pid]);
        record_window(args, target, Err(not_counted()), window, output, over, printer)
    })??;
    if interrupted.load(Ordering::Relaxed) {
        printer.note("interrupted: reporting what was measured so far");
    }
    Ok(recorded)
}
