//! Cases that several rungs make: a wall that is a sum of lines of CPU time, and a wall of waits for a lock.

use crate::context::{Context, Sum, percent};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Whole};
use allocwall_model::catalogue::advice::{self, Advice};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::catalogue::thresholds::{self, Floor};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

/// Judges a wall that is a sum of lines of CPU time.
pub fn cpu_case(ctx: &Context, wall: Wall, phrase: &str, show: ShellLine) -> Judged {
    let sum = match ctx.cpu(wall.lines()) {
        Ok(sum) => sum,
        Err(absence) => return without_samples(ctx, wall, absence, show),
    };
    let judge = |share: Interval| share_case(ctx, wall, share, phrase, &show);
    judge(sum.named).unless_hidden(judge(sum.share), || in_unnamed_kernel(ctx))
}

/// Judges a share of CPU time.
pub fn share_case(ctx: &Context, wall: Wall, share: Interval, phrase: &str, show: &ShellLine) -> Judged {
    Case {
        wall,
        share,
        of: Whole::Cpu,
        amount: share.scaled(ctx.cpu_rate),
        unit: "of CPU",
        phrase,
        show: show.clone(),
    }
    .judge_undisturbed(ctx.undisturbed())
}

/// CPU time and blocked time at one lock. An error is the judgement if they are not known, or if there is one thread.
pub fn lock_times(
    ctx: &Context,
    wall: Wall,
    class: WaitClass,
    show: &ShellLine,
) -> Result<(Sum, Interval), Box<Judged>> {
    let show = show.clone();
    let judged = if ctx.bill.rates.threads_peak == 1 {
        Judged::ruled_out(wall, Whole::ThreadTime, "one thread: no other thread to wait for", show)
    } else {
        match (ctx.cpu(wall.lines()), ctx.wait(class)) {
            (Ok(spin), Ok(blocked)) => return Ok((spin, blocked)),
            // Without CPU samples, the blocked time alone can be a wall.
            (Err(_), Ok(blocked)) if blocked.low > 0.0 => return Ok((Sum::NONE, blocked)),
            (Err(absence), _) => without_samples(ctx, wall, absence, show),
            (Ok(_), Err(absence)) => {
                let absence =
                    absence.mend_if_none([Advice::text("run as the target's user"), advice::RUN_AS_ROOT]);
                Judged::not_measured(wall, Whole::ThreadTime, absence, show)
            }
        }
    };
    Err(Box::new(judged))
}

/// Judges the time at one lock as a fraction of working time. `spin` is the share of CPU time.
pub fn lock_case(
    ctx: &Context,
    wall: Wall,
    spin: Interval,
    blocked: Interval,
    phrase: &str,
    show: ShellLine,
) -> Judged {
    let spin = spin.scaled(ctx.bill.cpu_s);
    let thread_s = Interval::new(
        (spin.point + blocked.point - (spin.point - spin.low).hypot(blocked.point - blocked.low)).max(0.0),
        spin.point + blocked.point,
        spin.point + blocked.point + (spin.high - spin.point).hypot(blocked.high - blocked.point),
    );
    let others = (ctx.active_thread_s() - blocked.point - spin.point).max(0.0);
    let of = |t: f64| if t + others > 0.0 { t / (t + others) } else { 0.0 };
    Case {
        wall,
        share: Interval::new(of(thread_s.low), of(thread_s.point), of(thread_s.high)),
        of: Whole::ThreadTime,
        amount: thread_s.scaled(1.0 / ctx.window_s),
        unit: "of working time",
        phrase,
        show,
    }
    .judge()
}

/// Without samples, a wall can still be ruled out if the whole CPU time is below its floor.
fn without_samples(ctx: &Context, wall: Wall, absence: Absence, show: ShellLine) -> Judged {
    if ctx.cpu_is_known() && ctx.undisturbed_cpu_rate() < per_second_floor(wall) {
        let mut judged = Judged::ruled_out(
            wall,
            Whole::Cpu,
            format!("the target's CPU time is only {:.0} ms a second", ctx.cpu_rate * 1e3),
            show,
        );
        judged.finding.share = None;
        return judged;
    }
    let absence = absence.mend_if_none([Advice::command("allocwall check")]);
    Judged::not_measured(wall, Whole::Cpu, absence, show)
}

/// Whether the sum could be at least a contributor of this wall.
pub fn may_count(ctx: &Context, wall: Wall, sum: Sum) -> bool {
    sum.share.high >= thresholds::of(wall).contributor
        && sum.rate.high * ctx.undisturbed() >= per_second_floor(wall)
}

fn per_second_floor(wall: Wall) -> f64 {
    match thresholds::of(wall).floor {
        Floor::PerSecond(floor) => floor,
        Floor::Bytes(_) | Floor::None => 0.0,
    }
}

// ---- why a wall may be hidden ----

/// Kernel time without symbols may belong to any wall of the kernel.
pub fn in_unnamed_kernel(ctx: &Context) -> Absence {
    Absence::new(
        Reason::NotPermitted,
        format!(
            "up to {} of the CPU time is kernel code without symbols, which may belong to this wall",
            percent(ctx.unnamed_kernel())
        ),
    )
    .mend(advice::KERNEL_NAMES)
}

/// Futex waits of unknown purpose may be for any lock.
pub fn in_unknown_futexes(ctx: &Context, seconds: f64) -> Absence {
    Absence::new(
        Reason::NotPermitted,
        format!(
            "{:.2} thread-seconds a second in futex waits with unknown callers: locks or idle pools",
            seconds / ctx.window_s
        ),
    )
    .mend_if_none(match ctx.recording.host.euid {
        0 => vec![Advice::text("install the symbols of the target and of its runtime")],
        _ => vec![advice::RUN_AS_ROOT, Advice::text("install the target's symbols")],
    })
}

/// A command that shows these functions of the program in a profile.
pub fn perf_show(ctx: &Context, symbols: &str) -> ShellLine {
    profile(ctx, symbols, ctx.recording.host.euid == 0, false)
}

/// The same for functions of the kernel, with what they call.
pub fn perf_show_kernel(ctx: &Context, symbols: &str) -> ShellLine {
    profile(ctx, symbols, ctx.kernel_needs_root(), true)
}

/// `callees`: with the time in the functions that these call. `perf` sums it if it has call chains; `-g none` prints only
/// the sums.
fn profile(ctx: &Context, symbols: &str, as_root: bool, callees: bool) -> ShellLine {
    let (chains, sums) = if callees { (" -g", " -g none") } else { ("", "") };
    if as_root {
        // Short: root's file of samples needs a second sudo.
        let started = format!("sudo perf record{chains} CMD; sudo perf report{sums}");
        return ctx.show(|pid| format!("sudo perf top{chains} -p {pid}"), started).remark(symbols);
    }
    let report = format!("perf report{sums} | grep -E '{symbols}'");
    ctx.show(
        |pid| format!("perf record{chains} -p {pid} sleep 9; {report}"),
        format!("perf record{chains} CMD; {report}"),
    )
}

/// A command that shows the futex calls of the target. It reads the kernel's tracepoints, so it needs root.
pub fn futex_show(ctx: &Context) -> ShellLine {
    const TRACE: &str = "sudo perf trace -s -e futex";
    ctx.show(|pid| format!("{TRACE} -p {pid} -- sleep 5"), format!("{TRACE} CMD"))
}
