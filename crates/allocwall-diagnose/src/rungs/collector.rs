//! Rung 3: the garbage collector. In a profile its work looks like allocation; in latencies it looks like a stall.

use super::cases::{cpu_case, may_count, perf_show};
use crate::bill::stripped_runtime;
use crate::context::Context;
use crate::judge::Judged;
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::modules::opaque_runtime;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Process, Runtime};
use allocwall_model::units::{Absence, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    let runtime = ctx.process().map(|p| &p.runtime);
    let show = match runtime {
        Some(Ok(Runtime::Cpython { .. })) => perf_show(ctx, "gc_|visit_"),
        Some(Ok(Runtime::Jvm { .. })) => ShellLine::from(format!("jstat -gcutil {} 1s 10", ctx.pid())),
        Some(Ok(Runtime::Go { .. })) => ShellLine::from("GODEBUG=gctrace=1 CMD").with_gap(),
        Some(Ok(Runtime::Node { .. })) => ShellLine::from("node --trace-gc …").with_gap(),
        _ => ShellLine::from(format!("top -H -p {}", ctx.pid())),
    };
    let judged = cpu_case(ctx, Wall::GarbageCollector, "goes to the garbage collector", show.clone());
    let fired = judged.is(Status::Wall) || judged.is(Status::Contributor);
    let native = matches!(runtime, Some(Ok(Runtime::Native)));
    // The time of a collector that cannot be recognized is counted in these lines. If they are small, so is the
    // collector.
    const HIDES_IN: &[CostClass] = &[CostClass::Application, CostClass::RuntimeAllocator];
    let hidden = ctx.cpu(HIDES_IN).is_ok_and(|sum| may_count(Wall::GarbageCollector, sum));
    match unrecognized(ctx) {
        Some(absence) if !fired && hidden => {
            vec![Judged::not_measured(Wall::GarbageCollector, Whole::Cpu, absence, show)]
        }
        None if !fired && native => vec![Judged::ruled_out(
            Wall::GarbageCollector,
            Whole::Cpu,
            "allocwall knows no garbage collector in this program",
            show,
        )],
        _ => vec![judged],
    }
}

/// Why the collector's time cannot be separated. None if it can be, or if there is no collector.
fn unrecognized(ctx: &Context) -> Option<Absence> {
    let process = ctx.process()?;
    if let (Some(runtime), Some(mend)) = (stripped_runtime(ctx.recording), with_symbols(process)) {
        return Some(
            Absence::new(
                Reason::NotFound,
                format!(
                    "this {runtime} is stripped: its garbage collector is counted as application or as runtime allocator"
                ),
            )
            .mend(mend),
        );
    }
    if !matches!(process.runtime, Ok(Runtime::Native)) {
        return None;
    }
    let file = |path: &str| opaque_runtime(path.rsplit('/').next().unwrap_or(path));
    let of_exe = process.exe.as_deref().ok().and_then(file);
    let known = of_exe.or_else(|| ctx.recording.modules.iter().find_map(|m| file(&m.path)))?;
    Some(
        Absence::new(
            Reason::NotSupported,
            format!(
                "{}'s garbage collector cannot be recognized: its time is counted as application",
                known.name
            ),
        )
        .mend(known.shown_by),
    )
}

/// What would make a stripped runtime's collector recognizable. None if its threads identify it.
fn with_symbols(process: &Process) -> Option<&'static str> {
    match process.runtime {
        Ok(Runtime::Cpython { .. }) => Some(
            "use an interpreter with symbols (python3-dbg), or call gc.set_debug(gc.DEBUG_STATS) in the program",
        ),
        Ok(Runtime::Go { .. }) => Some("run with GODEBUG=gctrace=1, or build without -ldflags=-s"),
        Ok(Runtime::Node { .. }) => Some("run node with --trace-gc"),
        Ok(Runtime::Jvm { .. } | Runtime::Native) | Err(_) => None,
    }
}
