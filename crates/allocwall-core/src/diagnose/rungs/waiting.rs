//! Rung 2: is it CPU at all? A target that waits for others, or for itself, is not helped by any saving of CPU.

use crate::catalogue::cost::WaitClass;
use crate::catalogue::walls::Wall;
use crate::diagnose::Whole;
use crate::diagnose::context::{Context, MendIfNone, percent};
use crate::diagnose::judge::{Case, Judged};
use crate::units::{Absence, Interval, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    vec![waiting(ctx), application_lock(ctx)]
}

fn waiting(ctx: &Context) -> Judged {
    let show = format!("pidstat -u -d -p {} 1 5", ctx.pid());
    if ctx.recording.ticks.is_empty() && ctx.recording.threads.is_empty() {
        let absence = Absence::new(Reason::Vanished, "the target's CPU time was never read")
            .mend("a longer window: -d 30");
        return Judged::not_measured(Wall::Waiting, Whole::WallTime, absence, show);
    }
    // Idle threads of a pool must not count: the question is whether anything of the target ran or wanted to.
    let active = (ctx.active_thread_s() / ctx.window_s).min(1.0);
    let share = Interval::exact(1.0 - active);
    let seconds = |class| {
        format!(
            "{} {:.2} thread-s/s",
            WaitClass::title(class),
            ctx.wait_point(class) / ctx.window_s
        )
    };
    Case {
        wall: Wall::Waiting,
        share,
        of: Whole::WallTime,
        amount: share,
        unit: "of the window idle",
        phrase: "(nothing of it ran or wanted to)",
        show,
    }
    .judge()
    .evidence(format!("{:.2} CPUs in use on average", ctx.cpu_rate))
    .evidence(format!(
        "{}; {}",
        seconds(WaitClass::Storage),
        seconds(WaitClass::Idle)
    ))
}

fn application_lock(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::ApplicationLock;
    let show = format!("perf trace -s -e futex -p {} -- sleep 5", ctx.pid());
    let waits = match ctx.wait(WaitClass::ApplicationLock) {
        Ok(waits) => waits,
        Err(absence) => {
            let absence = absence.mend_if_none("run as the target's user or as root");
            return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
        }
    };
    let (work, lock, untold) = ctx.futex_waits();
    let whole = ctx.active_thread_s();
    // Waits whose caller has no name may be locks or idle pools: they widen the interval, they do not move the point.
    let of = |thread_s: f64| {
        let rest = (whole - lock * waits.point).max(0.0) + thread_s;
        if rest > 0.0 { thread_s / rest } else { 0.0 }
    };
    let high = waits.high * (lock + untold);
    let share = Interval::new(of(waits.low * lock), of(waits.point * lock), of(high));
    let amount = Interval::new(waits.low * lock, waits.point * lock, high).scaled(1.0 / ctx.window_s);
    let idle = crate::catalogue::thresholds::of(WALL).contributor;
    if share.high >= idle && untold * waits.point > 0.5 * waits.point && waits.point > 0.0 {
        let absence = Absence::new(
            Reason::NotPermitted,
            format!(
                "{:.2} thread-seconds a second in futex waits whose callers have no names: locks or idle pools",
                waits.point * untold / ctx.window_s
            ),
        )
        .mend("run as root, so that waiting threads' stacks are read; or install the target's symbols");
        return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
    }
    Case {
        wall: WALL,
        share,
        of: Whole::ThreadTime,
        amount,
        unit: "of working time",
        phrase: "its threads waited for the application's own locks",
        show,
    }
    .judge()
    .evidence(format!(
        "futex waits {:.2} thread-s/s: {} for locks, {} for work or for another thread's end",
        waits.point / ctx.window_s,
        percent(lock),
        percent(work)
    ))
}
