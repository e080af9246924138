//! Rung 1: interference. Other processes, the cgroup's quota or the hypervisor take the CPU. The figures are counters
//! of the kernel, so they have no sampling error.

use crate::context::{Context, ended_unread, percent, total};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{Neighbour, ProbeName};
use allocwall_model::units::{Absence, Interval, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    vec![throttling(ctx), steal(ctx), run_queue(ctx)]
}

/// Lost time as a fraction of runnable time, which is lost time plus used CPU time.
fn of_runnable(ctx: &Context, lost: Interval) -> Interval {
    let of = |lost_s: f64| match lost_s + ctx.bill.cpu_s {
        whole if whole > 0.0 => lost_s / whole,
        _ => 0.0,
    };
    Interval::new(of(lost.low), of(lost.point), of(lost.high))
}

/// The whole of the shares on this rung: the time in which the target ran or could have run.
const UNIT: &str = "of runnable time";

fn lost(ctx: &Context, wall: Wall, lost_s: Interval, phrase: &str, show: ShellLine) -> Judged {
    Case {
        wall,
        share: of_runnable(ctx, lost_s),
        of: Whole::ThreadTime,
        amount: lost_s.scaled(1.0 / ctx.window_s),
        unit: UNIT,
        phrase,
        show,
    }
    .judge()
}

fn throttling(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::CgroupThrottling;
    let root = match ctx.recording.host.cgroup_version {
        Ok(1) => "/sys/fs/cgroup/cpu",
        _ => "/sys/fs/cgroup",
    };
    let show = match &ctx.recording.cgroup {
        Some(path) => ShellLine::from(format!("cat {root}{}/cpu.stat", path.trim_end_matches('/'))),
        None => ctx
            .show(|pid| format!("cat /proc/{pid}/cgroup"), "CMD & cat /proc/$!/cgroup")
            .remark("its cpu.stat"),
    };
    let last = ctx.last_tick().and_then(|t| t.cgroup);
    let Some(last) = last else {
        let absence = ctx
            .recording
            .probe_absence(ProbeName::Cgroup)
            .unwrap_or_else(|| Absence::new(Reason::NotFound, "the cgroup's CPU counters could not be read"))
            .mend_if_none(["mount the cpu controller where allocwall runs (in a container: -v /sys/fs/cgroup:/sys/fs/cgroup:ro)"]);
        return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
    };
    let (Some(ns), Some(periods), Some(hit)) = (
        ctx.cgroup_increase(|c| c.throttled_ns),
        ctx.cgroup_increase(|c| c.periods),
        ctx.cgroup_increase(|c| c.throttled_periods),
    ) else {
        let absence = Absence::new(Reason::TooLittle, "the cgroup's counters were read only once")
            .mend("use a longer window: -d 30");
        return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
    };
    let Some(quota) = last.quota_cpus.or((hit > 0).then_some(f64::NAN)) else {
        return Judged::ruled_out(WALL, Whole::ThreadTime, "no quota", show);
    };
    let quota =
        if quota.is_nan() { "quota of a parent cgroup".to_owned() } else { format!("quota {quota:.2} CPUs") };
    // The cgroup counts throttled time of all its members. The line of the bill has the target's part.
    by_line(ctx, WALL, WaitClass::Throttled, show, |stopped, show| {
        lost(ctx, WALL, stopped, "was lost to the cgroup's CPU quota", show)
            .evidence(format!("{hit} of {periods} periods throttled, {quota}"))
            .evidence(format!(
                "{:.0} ms throttled per second in the whole cgroup, summed over CPUs",
                ns as f64 / 1e6 / ctx.window_s
            ))
    })
}

/// Judges a line of the bill that comes from counters. If it is absent, a longer window can help.
fn by_line(
    ctx: &Context,
    wall: Wall,
    class: WaitClass,
    show: ShellLine,
    judge: impl FnOnce(Interval, ShellLine) -> Judged,
) -> Judged {
    match ctx.wait(class) {
        Ok(line) => judge(line, show),
        Err(absence) => {
            let absence = absence.mend_if_none(["use a longer window: -d 30"]);
            Judged::not_measured(wall, Whole::ThreadTime, absence, show)
        }
    }
}

fn steal(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::Steal;
    let show = ShellLine::from("vmstat 1 5").remark("column st");
    if ctx.recording.host.hypervisor.is_none() && ctx.host_increase(|h| h.steal_ns) == Some(0) {
        return Judged::ruled_out(WALL, Whole::ThreadTime, "no hypervisor, and no steal counted", show);
    }
    let (Some(stolen), Some(busy)) = (ctx.host_increase(|h| h.steal_ns), ctx.host_increase(|h| h.busy_ns))
    else {
        let once = Absence::new(Reason::TooLittle, "/proc/stat was read only once")
            .mend("use a longer window: -d 30");
        let absence = ctx.wait(WaitClass::Stolen).err().unwrap_or(once);
        let absence = absence.mend_if_none(["use a longer window: -d 30"]);
        return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
    };
    // The kernel counts steal per CPU, not per thread. The target's part is in proportion to its part of the busy time.
    let machine = stolen as f64 / (stolen + busy).max(1) as f64;
    by_line(ctx, WALL, WaitClass::Stolen, show, |stolen, show| {
        lost(ctx, WALL, stolen, "was lost while the hypervisor ran other machines", show)
            .evidence(format!(
                "the machine lost {} of the CPU time that it needed",
                percent(machine)
            ))
            .estimate("the kernel counts steal per CPU; the target's part is assumed to be in proportion to its CPU time")
    })
}

fn run_queue(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::RunQueue;
    let show =
        ctx.show(|pid| format!("pidstat -t -p {pid} 1 5"), "pidstat -t 1 5 -e CMD").remark("column %wait");
    let known: Vec<(u64, u64)> =
        ctx.recording.threads.iter().filter_map(|t| Some((t.run_delay_ns?, t.cpu_ns))).collect();
    let delay_s = match ctx.wait(WaitClass::RunQueue) {
        Ok(line) => line.point,
        // A thread's run delay includes the time its cgroup was throttled.
        Err(_) if !known.is_empty() && ctx.recording.probe_absence(ProbeName::RunDelay).is_none() => {
            let delay = total(known.iter().map(|k| k.0));
            delay.saturating_sub(ctx.cgroup_increase(|c| c.throttled_ns).unwrap_or(0)) as f64 / 1e9
        }
        Err(absence) => {
            let absence = absence
                .mend_if_none(["use a kernel with CONFIG_SCHED_INFO, so that /proc/PID/schedstat exists"]);
            return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
        }
    };
    if ctx.unread_s() > ctx.window_s / 2.0 {
        return Judged::not_measured(WALL, Whole::ThreadTime, ended_unread(), show);
    }
    // Waits of the target's threads for one another are not interference. The bill shows what keeps these threads busy.
    let behind = ctx.behind_others();
    let share = of_runnable(ctx, Interval::exact(delay_s)).scaled(behind);
    let judged = Case {
        wall: WALL,
        share,
        of: Whole::ThreadTime,
        amount: Interval::exact(delay_s * behind / ctx.window_s),
        unit: UNIT,
        phrase: "was spent waiting for a CPU that other processes used",
        show,
    }
    .judge();
    let noticed = !judged.is(Status::RuledOut);
    let judged = judged.evidence_if(competitors(ctx, noticed));
    if behind > 0.99 {
        return judged;
    }
    judged
        .evidence(format!(
            "for {} of runnable time its own {} threads waited for one another",
            percent(ctx.behind_itself()),
            ctx.bill.rates.threads_peak
        ))
        .estimate(
            "assumes that a thread waits for each running thread in proportion to that thread's CPU time",
        )
}

/// `name (pid)`. A process that ended before its name was read has no name.
pub fn named(n: &Neighbour) -> String {
    match n.comm.as_str() {
        // The kernel reports pid 0 for processes outside this PID namespace, so a name would be that of any of them.
        _ if n.pid == 0 => "processes of other PID namespaces".to_owned(),
        "" => format!("pid {}", n.pid),
        comm => format!("{comm} (pid {})", n.pid),
    }
}

/// What used the CPUs: other processes by name, or the target's own threads. `noticed`: something did.
fn competitors(ctx: &Context, noticed: bool) -> Option<String> {
    let cpus = f64::from(ctx.recording.host.online_cpus.max(1));
    let mut others: Vec<_> = ctx.recording.neighbours.iter().collect();
    others.sort_by_key(|n| std::cmp::Reverse(n.cpu_ns));
    let total = ctx.others_cpu_ns().unwrap_or(0.0) / 1e9;
    others.truncate(2);
    others.retain(|n| n.cpu_ns as f64 / 1e9 / ctx.window_s > 0.01);
    let largest: f64 = others.iter().map(|n| n.cpu_ns as f64 / 1e9).sum();
    let named: Vec<String> = others
        .iter()
        .map(|n| {
            let cpus = n.cpu_ns as f64 / 1e9 / ctx.window_s;
            format!("{} {cpus:.2}", named(n))
        })
        .collect();
    if named.is_empty() {
        let (own, threads) = (ctx.cpu_rate, ctx.bill.rates.threads_peak);
        let text = if own > 0.8 * cpus && threads > 1 && !noticed {
            format!("its own threads compete: {threads} threads on {cpus:.0} CPUs, {own:.2} in use")
        } else if !ctx.recording.meta.system_wide {
            "other processes are visible only to root".to_owned()
        } else if noticed || ctx.recording.probe_absence(ProbeName::CpuSamples).is_some() {
            return None;
        } else {
            "no other process used a noticeable part of a CPU".to_owned()
        };
        return Some(text);
    }
    let which = if largest > total / 2.0 { "most by" } else { "the largest part by" };
    Some(format!(
        "other processes used {:.2} of {cpus:.0} CPUs, {which} {}",
        total / ctx.window_s,
        named.join(", ")
    ))
}
