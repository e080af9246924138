//! Rung 2: the disks and the network, by the kernel's counters, as iostat and nstat show them. The samples of waiting threads
//! show whether the target waits for a disk at all.

use crate::context::{Context, count, percent, total};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::advice::{self, Advice};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::catalogue::thresholds::{self, DISK_LOAD, LEAST_TIMEOUT_S};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::devices::{DiskUse, Disks, Network};
use allocwall_model::units::{self, Absence, Interval, Reason, thousands};

/// Disks with a line of their own in the evidence.
const MOST_LINES: usize = 3;
/// The longest reason of a wall that is ruled out, in characters.
const LONGEST_REASON: usize = 60;
/// The network is the wall only of a target none of whose threads ran or wanted to run for this part of the window. The segments of one
/// that runs may be those of other processes in its namespace. Our choice.
const IDLE_FROM: f64 = 0.5;
/// Longer names of disks and interfaces are cut.
const LONGEST_NAME: usize = 16;
/// Waits that take a smaller part of its threads' time do not slow the target. The same value as for waits for a lock.
const HARDLY: f64 = 0.05;

pub fn disk(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::Disk;
    let show = ShellLine::from("iostat -xz 1 5").remark("columns %util, r_await and w_await");
    let disks = match &ctx.recording.devices.disks {
        Ok(disks) => disks,
        Err(absence) => {
            let absence =
                absence.clone().mend_if_none(["run allocwall where /proc/diskstats lists the disks"]);
            return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
        }
    };
    let judged = match ctx.wait(WaitClass::Storage) {
        // A thread waits for a disk only while the disk is busy.
        _ if are_idle(disks) => Judged::ruled_out(WALL, Whole::ThreadTime, busiest_disk(disks), show)
            .share(Interval::new(0.0, 0.0, disks.any_busy())),
        Ok(waits) => by_waits(ctx, disks, waits, show),
        Err(absence) => {
            let absence =
                absence.mend_if_none([Advice::text("run as the target's user"), advice::RUN_AS_ROOT]);
            Judged::not_measured(WALL, Whole::ThreadTime, absence, show)
        }
    };
    let used = disks.busiest.iter().filter(|disk| is_used(disk)).take(MOST_LINES);
    let judged = used.fold(judged, |judged, disk| judged.evidence(line(disks, disk)));
    let several = disks.busiest.len() > 1 || disks.others > 0;
    let which = several.then(|| "which of the machine's disks the target uses is not known".to_owned());
    judged.evidence_if(storage_waits(ctx, disks)).evidence_if(pressure(ctx)).evidence_if(which)
}

/// Pressure stall information.
fn pressure(ctx: &Context) -> Option<String> {
    let part = ctx.host_increase(|h| h.psi_io_us)? as f64 / 1e6 / ctx.window_s;
    Some(format!("tasks of this machine waited for I/O {} of the time", percent(part.min(1.0))))
}

/// Whether no thread can have waited for a disk for a part of its time that counts.
fn are_idle(disks: &Disks) -> bool {
    let stuck = disks.busiest.iter().any(|disk| disk.stuck > 0);
    !stuck && disks.any_busy() < thresholds::of(Wall::Disk).contributor
}

/// A disk may be busy with requests that it has not completed.
fn is_used(disk: &DiskUse) -> bool {
    disk.requests > 0 || disk.stuck > 0 || disk.busy_ms > 0
}

/// Whether threads that use this disk wait long.
fn is_loaded(disks: &Disks, disk: &DiskUse) -> bool {
    let busy = disks.busy(disk);
    let slow = disk.ms_per_request().is_some_and(|ms| ms >= DISK_LOAD.slow_ms);
    disk.stuck > 0 || busy >= DISK_LOAD.busy || slow && busy >= thresholds::of(Wall::Disk).contributor
}

fn by_waits(ctx: &Context, disks: &Disks, waits: Interval, show: ShellLine) -> Judged {
    let active = ctx.active_thread_s();
    let of = |waits_s: f64| if waits_s + active > 0.0 { waits_s / (waits_s + active) } else { 0.0 };
    let mut judged = Case {
        wall: Wall::Disk,
        share: Interval::new(of(waits.low), of(waits.point), of(waits.high)),
        of: Whole::ThreadTime,
        amount: waits.scaled(1.0 / ctx.window_s),
        unit: "of working time",
        phrase: "was spent waiting for storage",
        show: show.clone(),
    }
    .judge();
    let loaded = disks.busiest.iter().any(|disk| is_loaded(disks, disk));
    if judged.is(Status::RuledOut) && loaded && in_io_uring(ctx) >= HARDLY {
        let detail = "its threads wait in io_uring_enter, for a disk or for something else";
        let absence = Absence::new(Reason::NotSupported, detail)
            .mend("see whether the target itself reads and writes: pidstat -d");
        return Judged::not_measured(Wall::Disk, Whole::ThreadTime, absence, show);
    }
    if judged.is(Status::RuledOut) {
        judged.finding.because = with_more(judged.finding.because, &format!("; {}", busiest_disk(disks)));
        return judged;
    }
    match loaded {
        true => judged,
        false => judged.at_most_contributor("but no disk is busy or slow"),
    }
}

/// Threads that wait in this call, on average. It waits for disks and for the network alike.
fn in_io_uring(ctx: &Context) -> f64 {
    /// On every architecture.
    const IO_URING_ENTER: i64 = 426;
    let waits = ctx.recording.waits.iter().filter(|wait| wait.syscall == Some(IO_URING_ENTER));
    total(waits.map(|wait| wait.weight_ns)) as f64 / 1e9 / ctx.window_s
}

fn storage_waits(ctx: &Context, disks: &Disks) -> Option<String> {
    let threads = ctx.wait(WaitClass::Storage).ok()?.point / ctx.window_s;
    let elsewhere = match are_idle(disks) && threads >= HARDLY {
        true => ", not for these disks: for a file system of the network, or within the kernel",
        false => "",
    };
    Some(format!("{threads:.2} threads waited for storage on average{elsewhere}"))
}

/// The disk that slows its users most: `sda busy 3 %, 0.4 ms a request`.
pub fn busiest_disk(disks: &Disks) -> String {
    let loaded = disks.busiest.iter().find(|disk| is_loaded(disks, disk));
    match loaded.or(disks.busiest.first()).filter(|disk| is_used(disk)) {
        Some(disk) => figures(disks, disk),
        None => {
            let all = disks.busiest.len().saturating_add(disks.others as usize);
            format!("no request to {}", units::count(all, "disk"))
        }
    }
}

fn figures(disks: &Disks, disk: &DiskUse) -> String {
    let name = short(&disk.name);
    match disk.ms_per_request() {
        None if disk.stuck > 0 => format!("{name}: {} in flight, none completed", requests(disk.stuck)),
        None => format!("{name} busy {}, no request completed", percent(disks.busy(disk))),
        Some(ms) => {
            let ms = if ms < 9.95 { format!("{ms:.1}") } else { format!("{ms:.0}") };
            format!("{name} busy {}, {ms} ms a request", percent(disks.busy(disk)))
        }
    }
}

fn requests(n: u64) -> String {
    format!("{} {}", number(n), units::plural(n, "request"))
}

/// All figures of a disk. The means are of requests that were completed.
fn line(disks: &Disks, disk: &DiskUse) -> String {
    let figures = figures(disks, disk);
    if disk.requests == 0 {
        return figures;
    }
    format!(
        "{figures}; {:.1} in flight on average; {} requests and {:.1} MB a second",
        disks.in_flight(disk),
        count(disks.requests_per_s(disk)),
        disks.bytes_per_s(disk) / 1e6
    )
}

pub fn network(ctx: &Context) -> Judged {
    const WALL: Wall = Wall::Network;
    let show = ctx
        .show(|pid| format!("grep Tcp: /proc/{pid}/net/snmp"), "CMD & grep Tcp: /proc/$!/net/snmp")
        .remark("twice: OutSegs, RetransSegs");
    let network = match read_long_enough(ctx) {
        Ok(network) => network,
        Err(absence) => return Judged::not_measured(WALL, Whole::Segments, absence, show),
    };
    let lost = segments(network);
    let part = match network.segments() {
        0 => 0.0,
        all => network.retransmitted as f64 / all as f64,
    };
    let stalled = |timeouts: u64| timeouts as f64 * LEAST_TIMEOUT_S * 1e9 / network.over_ns.max(1) as f64;
    let mut judged = Case {
        wall: WALL,
        share: Interval::exact(part),
        of: Whole::Segments,
        // Without the number of timeouts: from none, to one for each segment that was sent again.
        amount: match &network.events {
            Ok(events) => Interval::exact(stalled(events.timeouts)),
            Err(_) => Interval::new(0.0, 0.0, stalled(network.retransmitted)),
        },
        unit: "of TCP segments",
        phrase: "were sent again",
        show: show.clone(),
    }
    .judge();
    if judged.is(Status::RuledOut) {
        judged.finding.because = match &network.events {
            Ok(events) if part >= thresholds::of(WALL).contributor => {
                with_more(lost.clone(), &format!(", {}", timeouts(events.timeouts)))
            }
            _ => lost.clone(),
        };
    } else if let Some(waits) = hardly_waits(ctx) {
        // The segments may be those of other processes.
        let because = format!("its threads wait {} of their time", percent(waits));
        judged = Judged::ruled_out(WALL, Whole::Segments, because, show).share(Interval::exact(part));
    } else if ctx.active_thread_s() > (1.0 - IDLE_FROM) * ctx.window_s {
        judged = judged.at_most_contributor("but the target runs, and others may share its network");
    }
    let events = match &network.events {
        Ok(events) => format!(
            "{}; {} incoming connections dropped, {} of them by a full queue",
            timeouts(events.timeouts),
            number(events.listen_drops),
            number(events.listen_overflows)
        ),
        Err(absence) => format!("timeouts not read: {absence}"),
    };
    let again = match network.retransmitted {
        0 => lost,
        n => format!("{lost}, {} a second", count(n as f64 * 1e9 / network.over_ns.max(1) as f64)),
    };
    judged
        .evidence(again)
        .evidence(events)
        .evidence(interfaces(network))
        .evidence(format!("of the network namespace of process {}, which others may share", network.pid))
}

fn read_long_enough<'a>(ctx: &Context<'a>) -> Result<&'a Network, Absence> {
    let network = ctx.recording.devices.network.as_ref().map_err(|absence| {
        absence.clone().mend_if_none(["run allocwall where it can read /proc/PID/net of the target"])
    })?;
    let read_s = network.over_ns as f64 / 1e9;
    if read_s < ctx.window_s / 2.0 {
        let detail =
            format!("the counters of its network were read for {read_s:.1} s of {:.1} s", ctx.window_s);
        return Err(Absence::new(Reason::TooLittle, detail).mend("diagnose a target that runs longer"));
    }
    Ok(network)
}

/// `0 of 18,203 segments retransmitted`.
fn segments(network: &Network) -> String {
    match network.segments() {
        0 => "no TCP segment was sent".to_owned(),
        all => format!("{} of {} segments retransmitted", number(network.retransmitted), number(all)),
    }
}

fn timeouts(n: u64) -> String {
    format!("{} {}", number(n), units::plural(n, "timeout"))
}

/// The part of its threads' time in which the target may have waited for the network, if that is too little to slow it.
fn hardly_waits(ctx: &Context) -> Option<f64> {
    let mut most_s = 0.0;
    for class in [WaitClass::Idle, WaitClass::Storage, WaitClass::Other] {
        most_s += ctx.wait(class).ok()?.high;
    }
    let part = most_s / ctx.bill.rates.thread_s.max(1e-9);
    (part < HARDLY).then_some(part)
}

fn interfaces(network: &Network) -> String {
    match &network.interfaces {
        Ok(all) => {
            let most = all.worst.as_ref().map_or(String::new(), |name| format!(", most on {}", short(name)));
            format!(
                "{} errors and {} dropped of {} packets on its interfaces{most}",
                number(all.errors),
                number(all.dropped),
                number(all.packets)
            )
        }
        Err(absence) => format!("interfaces not read: {absence}"),
    }
}

/// The reason of a wall that is ruled out, with the rest if there is room for it.
fn with_more(reason: String, more: &str) -> String {
    let fits = reason.chars().count() + more.chars().count() <= LONGEST_REASON;
    if fits { reason + more } else { reason }
}

fn short(name: &str) -> String {
    if name.chars().count() <= LONGEST_NAME {
        return name.to_owned();
    }
    let cut: String = name.chars().take(LONGEST_NAME - 1).collect();
    format!("{cut}…")
}

fn number(n: u64) -> String {
    if n < 1_000_000_000 { thousands(n) } else { count(n as f64) }
}
