//! Counts the calls of processes that run already.

use super::{Args, Format, deliver};
use crate::commands::shared::diagnosis::readers;
use crate::commands::shared::signals::catch_signals;
use crate::printer::Printer;
use allocwall_measure::bursts::{self, DEFAULT_DURATION, Request};
use allocwall_model::bursts::{Burst, Bursts};
use allocwall_report::allocations::bursts as report;
use anyhow::bail;
use std::sync::atomic::Ordering;

pub(super) fn run(args: &Args, format: Format, printer: &Printer) -> anyhow::Result<()> {
    let interrupted = catch_signals()?;
    let duration = args.duration.unwrap_or(DEFAULT_DURATION);
    let bar = printer.bar("counting", duration);
    let counted = bursts::measure(Request {
        pids: args.pid.clone(),
        duration,
        readers: readers(),
        interrupted: &interrupted,
        progress: &mut |part| bar.set(part),
    })?;
    drop(bar);
    if interrupted.load(Ordering::Relaxed) {
        printer.note("interrupted: reporting what was counted so far");
    }
    if counted.hits() == 0 {
        bail!("no call was counted: {}", why_nothing(&counted));
    }
    deliver(args, printer, |style| {
        Ok(match format {
            Format::Json => report::document(&counted),
            Format::Collapsed => report::stacks(&counted),
            // A profile and a page are refused before.
            Format::Text | Format::Html | Format::Pprof => report::report(&counted, style),
        }
        .into_bytes())
    })
}

fn why_nothing(counted: &Bursts) -> String {
    let active = counted.all().filter(|burst| burst.is_active());
    let active: Vec<&Burst> = active.collect();
    let cpu_ms = active.iter().map(|burst| burst.cpu_ns).sum::<u64>() as f64 / 1e6;
    match (active.len(), counted.missing.first()) {
        _ if counted.cpu_ns() == 0 => "the process used no CPU time meanwhile".to_owned(),
        (0, Some(why)) => why.with_advice(),
        (0, None) => "the process hardly ran: count for a longer time (-d)".to_owned(),
        (bursts, _) => {
            let most = counted.at_most_per_s(|_| true);
            let most = most.map(|most| format!(": the process makes at most {most:.0} calls a second"));
            format!(
                "{bursts} bursts, {cpu_ms:.0} ms of CPU time together, met none{}",
                most.unwrap_or_default()
            )
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::bursts::{BurstFunction, BurstProcess, EntryKind, HitCost};
    use allocwall_model::recording::Ended;
    use allocwall_model::units::{Absence, Interval, Reason};

    /// Bursts of 20 ms without a call, of a process that used this CPU time in a second.
    fn silent(cpu_ns: u64, bursts: u64) -> Bursts {
        let burst = |nth: u64| Burst {
            thread: 0,
            t_ns: nth,
            over_ns: 20_000_000,
            cpu_ns: 20_000_000,
            expected_ns: 20_000_000,
            hits: 0,
            every: 1,
            calls: vec![],
        };
        let bursts = (0..bursts).map(burst).collect();
        let hit_ns = Interval::exact(700.0);
        Bursts {
            length_ns: 1_000_000_000,
            ended: Ended::Complete,
            processes: vec![BurstProcess {
                pid: 7,
                command: vec![],
                allocator: "libc.so.6".into(),
                cpu_ns,
                ended: false,
            }],
            threads: vec![],
            functions: vec![BurstFunction {
                process: 0,
                kind: EntryKind::Malloc,
                name: "malloc".into(),
                bursts,
            }],
            hit: HitCost { plain: hit_ns, recorded: hit_ns },
            incurred_ns: Interval::exact(0.0),
            sites: vec![],
            modules: vec![],
            frames: vec![],
            stacks: vec![],
            missing: vec![],
        }
    }

    #[test]
    fn no_call_has_a_reason() {
        assert!(why_nothing(&silent(0, 0)).contains("used no CPU time"));
        assert!(why_nothing(&silent(5, 0)).contains("longer time"));
        let busy = why_nothing(&silent(1_000_000_000, 10));
        // −ln 0.025 calls in 0.2 s of CPU time, of which the process has one second a second.
        assert!(busy.contains("10 bursts, 200 ms") && busy.contains("at most 18 calls a second"), "{busy}");
        let mut refused = silent(5, 0);
        refused.missing.push(Absence::new(Reason::TooCostly, "too many open files"));
        assert_eq!(why_nothing(&refused), "too many open files");
    }
}
