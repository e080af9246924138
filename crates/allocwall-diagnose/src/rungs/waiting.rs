//! Rung 2: is it CPU at all? A target that waits for others, or for itself, is not helped by any saving of CPU.

use crate::context::{Context, MendIfNone, ended_unread};
use crate::judge::{Case, Judged};
use crate::{Finding, Status, Whole};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    vec![waiting(ctx), application_lock(ctx)]
}

fn waiting(ctx: &Context) -> Judged {
    let show = format!("pidstat -u -d -p {} 1 5", ctx.pid());
    if !ctx.cpu_is_known() {
        let absence = ctx
            .probe_absence("counters")
            .unwrap_or_else(|| Absence::new(Reason::Vanished, "the target's CPU time was never read"))
            .mend_if_none("a longer window: -d 30");
        return Judged::not_measured(Wall::Waiting, Whole::WallTime, absence, show);
    }
    // Idle threads of a pool must not count: the question is whether anything of the target ran or wanted to.
    let idle = |active_s: f64, of_s: f64| 1.0 - (active_s / of_s).min(1.0);
    let (active_s, unread_s) = (ctx.active_thread_s(), ctx.unread_s());
    if unread_s >= ctx.window_s {
        return Judged::not_measured(Wall::Waiting, Whole::WallTime, ended_unread(), show);
    }
    // What its threads did since their times were last read is not known: it may have waited all the time, or not at all.
    let share = Interval::new(
        idle(active_s + unread_s, ctx.window_s),
        idle(active_s, ctx.window_s - unread_s),
        idle(active_s, ctx.window_s),
    );
    let seconds = |class| {
        format!(
            "{} {:.2} thread-s/s",
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
        phrase: "(nothing of it ran or wanted to)",
        show,
    }
    .judge()
    .evidence(format!("{:.2} CPUs in use on average", ctx.cpu_rate))
    .evidence(format!(
        "{}; {}",
        seconds(WaitClass::Storage),
        seconds(WaitClass::Idle)
    ));
    match ctx.wait(WaitClass::RunQueue) {
        // What did not run may have wanted to, all of it.
        Err(absence) if !judged.is(Status::RuledOut) => {
            let Finding { of, show, .. } = judged.finding;
            Judged::not_measured(Wall::Waiting, of, absence, show)
        }
        _ => judged,
    }
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
    let untold = ctx.untold_locks();
    let known = waits.scaled(1.0 - untold);
    // Waits of which nothing tells what for may be locks or idle pools: they widen the interval, they do not move the point.
    let elsewhere = ctx.unread_futex_s(|class| class != WaitClass::ApplicationLock);
    let at_most = Interval {
        high: waits.high + elsewhere,
        ..known
    };
    let rest = (ctx.active_thread_s() - known.point).max(0.0);
    let case = |thread_s: Interval| {
        let of = |thread_s: f64| match rest + thread_s > 0.0 {
            true => thread_s / (rest + thread_s),
            false => 0.0,
        };
        Case {
            wall: WALL,
            share: Interval::new(of(thread_s.low), of(thread_s.point), of(thread_s.high)),
            of: Whole::ThreadTime,
            amount: thread_s.scaled(1.0 / ctx.window_s),
            unit: "of working time",
            phrase: "its threads waited for the application's own locks",
            show: show.clone(),
        }
        .judge()
    };
    let unknown_s = waits.point * untold + elsewhere;
    case(known)
        .unless_hidden(case(at_most), || futexes_untold(ctx, unknown_s))
        .evidence(format!("{:.2} thread-s/s at locks", known.point / ctx.window_s))
        .evidence_if((unknown_s > 0.0).then(|| {
            format!(
                "{:.2} thread-s/s in futexes of which no caller's name tells what for",
                unknown_s / ctx.window_s
            )
        }))
}

/// Futex waits that may be locks, whoever's: what keeps a wall of locks from being ruled out.
pub fn futexes_untold(ctx: &Context, seconds: f64) -> Absence {
    Absence::new(
        Reason::NotPermitted,
        format!(
            "{:.2} thread-seconds a second in futex waits whose callers are not known: locks or idle pools",
            seconds / ctx.window_s
        ),
    )
    .mend(match ctx.recording.host.euid {
        0 => "install the target's and its runtime's symbols",
        _ => "run as root, so that waiting threads' stacks are read; or install the target's symbols",
    })
}
