//! Rung 3: a collector's work looks like allocation in a profile and like a stall at p99.

use super::cpu_case;
use crate::catalogue::cost::CostClass;
use crate::catalogue::walls::Wall;
use crate::diagnose::context::Context;
use crate::diagnose::judge::Judged;
use crate::diagnose::{Status, Whole};
use crate::measure::recording::Runtime;

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
    if matches!(runtime, Some(Ok(Runtime::Native)))
        && !judged.is(Status::Wall)
        && !judged.is(Status::Contributor)
    {
        return vec![Judged::ruled_out(
            Wall::GarbageCollector,
            Whole::Cpu,
            "native program, no collector",
            show,
        )];
    }
    vec![judged]
}
