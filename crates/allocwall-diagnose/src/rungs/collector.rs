//! Rung 3: the garbage collector. In a profile its work looks like allocation; in latencies it looks like a stall.

use super::cases::{cpu_case, may_count, perf_show};
use crate::bill::stripped_runtime;
use crate::context::Context;
use crate::judge::Judged;
use crate::{ShellLine, Whole};
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::modules::opaque_runtime;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Process, Runtime};
use allocwall_model::units::{Absence, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    let runtime = ctx.process().map(|p| &p.runtime);
    let show = match runtime {
        Some(Ok(Runtime::Cpython { .. })) => perf_show(ctx, "gc_|visit_"),
        Some(Ok(Runtime::Jvm { .. })) => {
            ctx.show(|pid| format!("jstat -gcutil {pid} 1s 10"), "java -Xlog:gc …")
        }
        Some(Ok(Runtime::Go { .. })) => ShellLine::from("GODEBUG=gctrace=1 CMD").with_gap(),
        Some(Ok(Runtime::Node { .. })) => ShellLine::from("node --trace-gc …").with_gap(),
        _ => ctx.show(|pid| format!("top -H -p {pid}"), "CMD & top -H -p $!"),
    };
    let judged = cpu_case(ctx, Wall::GarbageCollector, "goes to the garbage collector", show.clone());
    let fired = judged.finding.status.has_fired();
    let native = matches!(runtime, Some(Ok(Runtime::Native)));
    // The time of a collector that cannot be recognized is counted in these lines. If they are small, so is the
    // collector.
    const HIDES_IN: &[CostClass] = &[CostClass::Application, CostClass::RuntimeAllocator];
    let hidden = ctx.cpu(HIDES_IN).is_ok_and(|sum| may_count(ctx, Wall::GarbageCollector, sum));
    let limit = match stripped_runtime(ctx.recording) {
        Some(stripped) => stripped.collector_note(),
        None => matches!(runtime, Some(Ok(Runtime::Node { .. }))).then(|| V8.to_owned()),
    };
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
        _ => vec![judged.evidence_if(limit)],
    }
}

/// What the line of V8's collector contains.
const V8: &str = "counted: V8's named collector functions, also in its helper threads; not counted: the collector's part of generated code and of embedded builtins (write barriers), which is in the application";

/// Why the collector's time cannot be separated. None if it can be, or if there is no collector.
fn unrecognized(ctx: &Context) -> Option<Absence> {
    let process = ctx.process()?;
    let stripped = stripped_runtime(ctx.recording).filter(|stripped| !stripped.collector_read);
    if let (Some(stripped), Some(mend)) = (stripped, with_symbols(process)) {
        let runtime = stripped.name;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Status;
    use crate::testing::{Subject, WINDOW_S, computing};
    use allocwall_model::catalogue::modules::ModuleRole;
    use allocwall_sketches::recording::{PID, account};

    /// A stripped interpreter with these shares of CPU time. `read`: its own account shows when it collects.
    fn python(shares: &[(CostClass, f64)], read: bool) -> Subject {
        let mut subject = computing();
        subject.shares(shares);
        subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        let module = &mut subject.recording.modules[1];
        (module.role, module.has_symbols) = (ModuleRole::Cpython, false);
        if read {
            subject.recording.accounts.push(account(PID, (WINDOW_S * 1e9) as u64));
        }
        subject
    }

    #[test]
    fn the_account_of_a_stripped_interpreter_shows_its_collector() {
        let judged = |share: f64, read: bool| {
            let finding =
                python(&[(CostClass::GarbageCollector, share)], read).finding(Wall::GarbageCollector);
            let noted = finding.evidence.iter().any(|line| line.contains("finalizers"));
            (finding.status, noted)
        };
        assert_eq!(judged(0.3, true), (Status::Wall, true));
        assert_eq!(judged(0.0, true), (Status::RuledOut, true));
        // Without the account, its time is in other lines.
        assert_eq!(judged(0.0, false), (Status::NotMeasured, false));
    }

    #[test]
    fn the_limit_of_v8s_line_is_said() {
        let noted = |runtime: Runtime, role, has_symbols: bool| {
            let mut subject = computing();
            subject.shares(&[(CostClass::GarbageCollector, 0.3)]);
            subject.process().runtime = Ok(runtime);
            let module = &mut subject.recording.modules[1];
            (module.role, module.has_symbols) = (role, has_symbols);
            let finding = subject.finding(Wall::GarbageCollector);
            assert_eq!(finding.status, Status::Wall);
            finding.evidence.iter().any(|line| line.contains("embedded builtins"))
        };
        let node = || Runtime::Node { version: None };
        assert!(noted(node(), ModuleRole::Node, true));
        // Of a stripped Node, none of these functions has a name.
        assert!(!noted(node(), ModuleRole::Node, false));
        assert!(!noted(Runtime::Go { version: None }, ModuleRole::Go, true));
    }

    #[test]
    fn an_account_of_the_collector_separates_it_from_allocation() {
        let call_rate = |share: f64, read: bool| {
            let finding = python(&[(CostClass::RuntimeAllocator, share)], read).finding(Wall::CallRate);
            (finding.status, finding.estimate.is_some())
        };
        assert_eq!(call_rate(0.45, true), (Status::Wall, true));
        assert_eq!(call_rate(0.45, false), (Status::Contributor, true));
        // Functions of its allocator are not recognized in either case.
        assert_eq!(call_rate(0.0, true), (Status::NotMeasured, false));
        assert_eq!(call_rate(0.0, false), (Status::NotMeasured, false));
    }
}
