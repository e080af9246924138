//! Rung 3: a collector's work looks like allocation in a profile and like a stall at p99.

use super::{cpu_case, may_count};
use crate::bill::stripped_runtime;
use crate::context::Context;
use crate::judge::Judged;
use crate::{Status, Whole};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::modules::collected;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Process, Runtime};
use allocwall_model::units::{Absence, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    const LINES: &[CostClass] = &[CostClass::GarbageCollector];
    let runtime = ctx.process().map(|p| &p.runtime);
    let show = match runtime {
        Some(Ok(Runtime::Cpython { .. })) => {
            format!(
                "perf record -p {} sleep 9; perf report | grep -E 'gc_|visit_'",
                ctx.pid()
            )
        }
        Some(Ok(Runtime::Jvm { .. })) => format!("jstat -gcutil {} 1s 10", ctx.pid()),
        Some(Ok(Runtime::Go { .. })) => "GODEBUG=gctrace=1 CMD".to_owned(),
        Some(Ok(Runtime::Node { .. })) => "node --trace-gc …".to_owned(),
        _ => format!("top -H -p {}", ctx.pid()),
    };
    let judged = cpu_case(
        ctx,
        Wall::GarbageCollector,
        LINES,
        "goes to the garbage collector",
        show.clone(),
    );
    let fired = judged.is(Status::Wall) || judged.is(Status::Contributor);
    let native = matches!(runtime, Some(Ok(Runtime::Native)));
    // A collector that isn't told apart hides in these lines; where they are small, so is it.
    const HIDES_IN: &[CostClass] = &[CostClass::Application, CostClass::RuntimeAllocator];
    let hidden = ctx
        .cpu(HIDES_IN)
        .is_ok_and(|sum| may_count(Wall::GarbageCollector, sum));
    match untold(ctx) {
        Some(absence) if !fired && hidden => vec![Judged::not_measured(
            Wall::GarbageCollector,
            Whole::Cpu,
            absence,
            show,
        )],
        None if !fired && native => vec![Judged::ruled_out(
            Wall::GarbageCollector,
            Whole::Cpu,
            "no collector known to this tool runs in it",
            show,
        )],
        _ => vec![judged],
    }
}

/// Why the collector's work cannot be told from the rest; None where it can, or there is none.
fn untold(ctx: &Context) -> Option<Absence> {
    let process = ctx.process()?;
    if let (Some(runtime), Some(mend)) = (stripped_runtime(ctx.recording), with_symbols(process)) {
        return Some(
            Absence::new(
                Reason::NotFound,
                format!(
                    "this {runtime} is stripped: its collector is counted as application or as its allocator"
                ),
            )
            .mend(mend),
        );
    }
    if !matches!(process.runtime, Ok(Runtime::Native)) {
        return None;
    }
    let file = |path: &str| collected(path.rsplit('/').next().unwrap_or(path));
    let of_exe = process.exe.as_deref().ok().and_then(file);
    let known = of_exe.or_else(|| ctx.recording.modules.iter().find_map(|m| file(&m.path)))?;
    Some(
        Absence::new(
            Reason::NotSupported,
            format!(
                "{}'s collector is not told apart: it is counted as application",
                known.name
            ),
        )
        .mend(known.shown_by),
    )
}

/// What would name a stripped runtime's collector; None where it is known by its threads instead.
fn with_symbols(process: &Process) -> Option<&'static str> {
    match process.runtime {
        Ok(Runtime::Cpython { .. }) => {
            Some("an interpreter with symbols (python3-dbg); or gc.set_debug(gc.DEBUG_STATS) in the program")
        }
        Ok(Runtime::Go { .. }) => Some("GODEBUG=gctrace=1 CMD; or build it without -ldflags=-s"),
        Ok(Runtime::Node { .. }) => Some("node --trace-gc …"),
        Ok(Runtime::Jvm { .. } | Runtime::Native) | Err(_) => None,
    }
}
