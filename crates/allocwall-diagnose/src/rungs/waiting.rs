//! Rung 2: waiting, for disks and the network too, application locks, and Python's interpreter lock. If the target waits, saving CPU time does not make it faster.

use super::cases::{futex_show, in_unknown_futexes};
use super::devices;
use crate::bill::may_have_gil;
use crate::context::{Context, ended_unread};
use crate::judge::{Case, Judged};
use crate::{Finding, ShellLine, Status, Whole};
use allocwall_model::catalogue::advice::{self, Advice};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::ProbeName;
use allocwall_model::units::{Absence, Interval, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    vec![waiting(ctx), devices::disk(ctx), devices::network(ctx), application_lock(ctx), gil(ctx)]
}

fn waiting(ctx: &Context) -> Judged {
    let show = ctx.show(|pid| format!("pidstat -u -d -p {pid} 1 5"), "pidstat -u -d 1 5 -e CMD");
    if !ctx.cpu_is_known() {
        let absence = ctx
            .recording
            .probe_absence(ProbeName::Counters)
            .unwrap_or_else(|| Absence::new(Reason::Vanished, "the target's CPU time was never read"))
            .mend_if_none(["use a longer window: -d 30"]);
        return Judged::not_measured(Wall::Waiting, Whole::WallTime, absence, show);
    }
    // Idle threads of a pool must not count: the target is idle only while no thread runs or wants to run.
    let idle = |active_s: f64, of_s: f64| 1.0 - (active_s / of_s).min(1.0);
    let (active_s, unread_s) = (ctx.active_thread_s(), ctx.unread_s());
    if unread_s >= ctx.window_s {
        return Judged::not_measured(Wall::Waiting, Whole::WallTime, ended_unread(), show);
    }
    // The time since the threads' times were last read is unknown: the target may have waited for all of it, or for
    // none.
    let share = Interval::new(
        idle(active_s + unread_s, ctx.window_s),
        idle(active_s, ctx.window_s - unread_s),
        idle(active_s, ctx.window_s),
    );
    let seconds = |class| {
        format!(
            "{}: {:.2} thread-seconds a second",
            WaitClass::title(class),
            ctx.wait_point(class) / ctx.window_s
        )
    };
    let judged = Case {
        wall: Wall::Waiting,
        share,
        of: Whole::WallTime,
        amount: share,
        unit: "of the window idle",
        phrase: "(no thread ran or wanted to run)",
        show,
    }
    .judge()
    .evidence(format!("{:.2} CPUs in use on average", ctx.cpu_rate))
    .evidence(format!("{}; {}", seconds(WaitClass::Storage), seconds(WaitClass::Idle)));
    match ctx.wait(WaitClass::RunQueue) {
        // Without run-queue times, all of the idle time may have been waits for a CPU.
        Err(absence) if !judged.is(Status::RuledOut) => {
            let Finding { of, show, .. } = judged.finding;
            Judged::not_measured(Wall::Waiting, of, absence, show)
        }
        _ => judged,
    }
}

fn application_lock(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::ApplicationLock;
    let show = futex_show(ctx);
    let waits = match ctx.wait(WaitClass::ApplicationLock) {
        Ok(waits) => waits,
        Err(absence) => {
            let absence =
                absence.mend_if_none([Advice::text("run as the target's user"), advice::RUN_AS_ROOT]);
            return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
        }
    };
    let unknown = ctx.unknown_part_of_locks();
    // Futex waits of unknown purpose may be locks or idle pools. They widen the interval and leave the point.
    let elsewhere = ctx.unread_futex_s(|class| class != WaitClass::ApplicationLock);
    let hidden =
        Hidden { reach_s: waits.high * unknown + elsewhere, unknown_s: waits.point * unknown + elsewhere };
    lock(
        ctx,
        WALL,
        waits.scaled(1.0 - unknown),
        hidden,
        "was spent waiting for the application's own locks",
        show,
    )
}

fn gil(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::Gil;
    let show = ctx.show(|pid| format!("sudo py-spy top --gil --pid {pid}"), "py-spy top --gil -- CMD");
    // An extension module can turn the lock on in the free-threaded build. Then threads wait for it.
    let waits_seen = ctx.wait_point(WaitClass::Gil) > 0.0;
    if !waits_seen && !ctx.recording.processes.iter().any(may_have_gil) {
        return Judged::ruled_out(WALL, Whole::ThreadTime, "no process runs CPython with this lock", show);
    }
    let waits = match ctx.wait(WaitClass::Gil) {
        Ok(waits) => waits,
        Err(absence) => {
            return Judged::not_measured(
                WALL,
                Whole::ThreadTime,
                absence.mend_if_none([advice::RUN_AS_ROOT]),
                show,
            );
        }
    };
    let unknown_s = ctx.may_be_gil_s();
    let hidden = Hidden { reach_s: unknown_s, unknown_s };
    lock(ctx, WALL, waits, hidden, "was spent waiting for Python's GIL", show)
}

/// Seconds in waits of unknown purpose.
struct Hidden {
    /// Those that may be for this lock, at most.
    reach_s: f64,
    unknown_s: f64,
}

/// `known`: the seconds that are known to be waits for the lock.
fn lock(
    ctx: &Context,
    wall: Wall,
    known: Interval,
    hidden: Hidden,
    phrase: &'static str,
    show: ShellLine,
) -> Judged {
    let at_most = Interval { high: known.high + hidden.reach_s, ..known };
    let rest = (ctx.active_thread_s() - known.point).max(0.0);
    let case = |thread_s: Interval| {
        let of = |thread_s: f64| {
            if rest + thread_s > 0.0 { thread_s / (rest + thread_s) } else { 0.0 }
        };
        Case {
            wall,
            share: Interval::new(of(thread_s.low), of(thread_s.point), of(thread_s.high)),
            of: Whole::ThreadTime,
            amount: thread_s.scaled(1.0 / ctx.window_s),
            unit: "of working time",
            phrase,
            show: show.clone(),
        }
        .judge()
    };
    case(known)
        .unless_hidden(case(at_most), || in_unknown_futexes(ctx, hidden.unknown_s))
        .evidence(format!("{:.2} threads waited for it on average", known.point / ctx.window_s))
        .evidence_if((hidden.unknown_s > 0.0).then(|| {
            format!(
                "{:.2} thread-seconds a second in futex waits of unknown purpose",
                hidden.unknown_s / ctx.window_s
            )
        }))
}
