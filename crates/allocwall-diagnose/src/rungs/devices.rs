//! Rung 2: the disks and the network. The samples of its waiting threads show whether the target waits for storage. The kernel's
//! counters, as iostat and nstat show them, are those of the whole machine and of a network namespace.

use crate::context::{Context, count, percent, total};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::advice::{self, Advice};
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::catalogue::syscalls;
use allocwall_model::catalogue::thresholds::{self, DISK_LOAD, LEAST_TIMEOUT_S};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::devices::{Datagrams, DiskUse, Disks, Network, uncounted};
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
/// If a smaller part of the packets are UDP datagrams, or fewer of them come or go each second, what is lost of them does not count.
/// Our choice.
const FEW_DATAGRAMS: f64 = 0.05;
const FEW_DATAGRAMS_PER_S: f64 = 1.0;

pub fn disk(ctx: &Context) -> Judged {
    let show = ctx
        .show(|pid| format!("pidstat -d -p {pid} 1 5"), "pidstat -d 1 5 -e CMD")
        .remark("kB_rd/s, kB_wr/s; disks: iostat -xz");
    let disks = ctx.recording.devices.disks.as_ref();
    let judged = match ctx.wait(WaitClass::Storage) {
        Ok(waits) => by_waits(ctx, disks.ok(), waits, show),
        Err(absence) => not_read(absence, show),
    };
    let judged = match disks {
        Ok(disks) => of_disks(disks).into_iter().fold(judged, Judged::evidence),
        Err(absence) => judged.evidence(format!("disks not read: {absence}")),
    };
    of_waits(ctx).into_iter().fold(judged, Judged::evidence).evidence_if(pressure(ctx))
}

fn not_read(absence: Absence, show: ShellLine) -> Judged {
    let absence = absence.mend_if_none([Advice::text("run as the target's user"), advice::RUN_AS_ROOT]);
    Judged::not_measured(Wall::Disk, Whole::ThreadTime, absence, show)
}

/// The figures of disks, one disk a line.
fn of_disks(disks: &Disks) -> Vec<String> {
    let used = disks.busiest.iter().filter(|disk| is_used(disk)).map(|disk| line(disks, disk));
    let uncounted = disks.uncounted.iter().map(|disk| uncounted(&short(disk)).detail);
    used.take(MOST_LINES).chain(uncounted.take(MOST_LINES)).collect()
}

/// What the sentence says about the place: the name of the wall, and where the threads wait or what is known of the disks.
pub fn storage_place(ctx: &Context) -> (&'static str, String) {
    if ctx.storage().are_remote() {
        return ("Storage", "most of it for a file system of the network, or of a process".to_owned());
    }
    match &ctx.recording.devices.disks {
        Ok(disks) if any_is_loaded(disks) => {
            ("The disk", format!("busiest disk of the machine: {}", busiest_disk(disks)))
        }
        Ok(disks) if are_idle(disks) => {
            let place = "the machine's disks are hardly busy: perhaps a file system of the network";
            ("Storage", place.to_owned())
        }
        _ => ("Storage", "which disk or file system is not known".to_owned()),
    }
}

/// Pressure stall information.
fn pressure(ctx: &Context) -> Option<String> {
    let part = ctx.host_increase(|h| h.psi_io_us)? as f64 / 1e6 / ctx.window_s;
    Some(format!("tasks of this machine waited for I/O {} of the time", percent(part.min(1.0))))
}

/// Whether no thread can have waited for one of these disks for a part of its time that counts.
fn are_idle(disks: &Disks) -> bool {
    let stuck = disks.busiest.iter().any(|disk| disk.stuck > 0);
    !stuck && disks.uncounted.is_empty() && disks.any_busy() < thresholds::of(Wall::Disk).contributor
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

fn any_is_loaded(disks: &Disks) -> bool {
    disks.busiest.iter().any(|disk| is_loaded(disks, disk))
}

/// Judges the waits. `disks`: None if they were not read.
fn by_waits(ctx: &Context, disks: Option<&Disks>, waits: Interval, show: ShellLine) -> Judged {
    const WALL: Wall = Wall::Disk;
    let seen = ctx.storage();
    let active = ctx.active_thread_s();
    let of = |waits_s: f64| if waits_s + active > 0.0 { waits_s / (waits_s + active) } else { 0.0 };
    let share = Interval::new(of(waits.low), of(waits.point), of(waits.high));
    // The samples may be too few to rule it out. A thread waits for a disk only while the disk is busy.
    let hardly = seen.remote_ns == 0 && share.point < thresholds::of(WALL).contributor;
    if let Some(disks) = disks.filter(|disks| hardly && are_idle(disks)) {
        return Judged::ruled_out(WALL, Whole::ThreadTime, busiest_disk(disks), show).share(share);
    }
    let mut judged = Case {
        wall: WALL,
        share,
        of: Whole::ThreadTime,
        amount: waits.scaled(1.0 / ctx.window_s),
        unit: "of working time",
        phrase: "was spent waiting for storage",
        show: show.clone(),
    }
    .judge();
    let may_be_loaded = disks.is_none_or(|disks| any_is_loaded(disks) || !disks.uncounted.is_empty());
    if judged.is(Status::RuledOut) && may_be_loaded && in_io_uring(ctx) >= HARDLY {
        let detail = "its threads wait in io_uring_enter, for a disk or for something else";
        let absence = Absence::new(Reason::NotSupported, detail)
            .mend("see whether the target itself reads and writes: pidstat -d");
        return Judged::not_measured(WALL, Whole::ThreadTime, absence, show);
    }
    if judged.is(Status::RuledOut) {
        let figures = disks.map_or(String::new(), |disks| format!("; {}", busiest_disk(disks)));
        judged.finding.because = with_more(judged.finding.because, &figures);
        return judged;
    }
    // A busy disk is no proof: other processes may use it.
    let sure_alone = share.low * seen.part(seen.sure_ns);
    if seen.are_sure() || sure_alone >= thresholds::of(WALL).wall_from {
        return judged;
    }
    if judged.is(Status::Wall) && seen.are_unread() {
        let absence = Absence::new(Reason::NotPermitted, "what its threads wait for could not be read");
        return not_read(absence, show);
    }
    judged.at_most_contributor("but most of these waits are not shown to be for storage")
}

/// Threads that wait in this call, on average.
fn in_io_uring(ctx: &Context) -> f64 {
    let waits = ctx.recording.waits.iter().filter(|wait| wait.syscall == Some(syscalls::IO_URING_ENTER));
    total(waits.map(|wait| wait.weight_ns)) as f64 / 1e9 / ctx.window_s
}

fn of_waits(ctx: &Context) -> Vec<String> {
    let waits = ctx.storage();
    let Ok(threads) = ctx.wait(WaitClass::Storage).map(|waits| waits.point / ctx.window_s) else {
        return vec![];
    };
    let mut lines = vec![format!("{threads:.2} threads waited for storage on average")];
    if waits.remote_ns > 0 {
        let part = percent(waits.part(waits.remote_ns));
        lines.push(format!("{part} of these waits are for a file system of the network, or of a process"));
    }
    if waits.all_ns > 0 && !waits.are_sure() {
        let part = percent(1.0 - waits.part(waits.sure_ns));
        lines.push(format!("{part} of these waits may be any other uninterruptible sleep of the kernel"));
    }
    if threads > 0.0 {
        let whose = "which disk or file system they are for is not known: figures of disks are the machine's";
        lines.push(whose.to_owned());
    }
    lines
}

/// The disk that slows its users most: `sda busy 3 %, 0.4 ms a request`.
fn busiest_disk(disks: &Disks) -> String {
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
    let unseen = unseen_losses(network).filter(|_| judged.is(Status::RuledOut));
    // The packets may be those of other processes.
    let hardly = hardly_waits(ctx).filter(|_| unseen.is_some() || !judged.is(Status::RuledOut));
    if let Some(waits) = hardly {
        let because = format!("its threads wait {} of their time", percent(waits));
        judged = Judged::ruled_out(WALL, Whole::Segments, because, show).share(Interval::exact(part));
    } else if let Some(absence) = unseen {
        judged = Judged::not_measured(WALL, Whole::Segments, absence, show);
    } else if judged.is(Status::RuledOut) {
        judged.finding.because = match &network.events {
            Ok(events) if part >= thresholds::of(WALL).contributor => {
                with_more(lost.clone(), &format!(", {}", timeouts(events.timeouts)))
            }
            _ => lost.clone(),
        };
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
        .evidence_if(datagrams(network))
        .evidence(interfaces(network))
        .evidence(format!("of the network namespace of process {}, which others may share", network.pid))
}

const WHERE_IT_IS_READ: &str = "run allocwall where it can read /proc/PID/net of the target";

fn read_long_enough<'a>(ctx: &Context<'a>) -> Result<&'a Network, Absence> {
    let network = ctx
        .recording
        .devices
        .network
        .as_ref()
        .map_err(|absence| absence.clone().mend_if_none([WHERE_IT_IS_READ]))?;
    let read_s = network.over_ns as f64 / 1e9;
    if read_s < ctx.window_s / 2.0 {
        let detail =
            format!("the counters of its network were read for {read_s:.1} s of {:.1} s", ctx.window_s);
        return Err(Absence::new(Reason::TooLittle, detail).mend("diagnose a target that runs longer"));
    }
    Ok(network)
}

/// Why losses of UDP may be a wall that TCP does not show. None if hardly any packet is a datagram.
fn unseen_losses(network: &Network) -> Option<Absence> {
    let segments = network.segments();
    match &network.datagrams {
        Ok(Datagrams { received, sent, .. }) => {
            let datagrams = *received.max(sent);
            let many = datagrams as f64 >= FEW_DATAGRAMS * segments.saturating_add(datagrams) as f64
                && datagrams as f64 * 1e9 >= FEW_DATAGRAMS_PER_S * network.over_ns as f64;
            let detail = format!(
                "{} UDP datagrams beside {} TCP segments: the kernel counts no datagram that is lost in transit",
                number(datagrams),
                number(segments)
            );
            (datagrams > 0 && many).then(|| {
                Absence::new(Reason::NotSupported, detail).mend("count timeouts and retries in the program")
            })
        }
        Err(absence) if segments == 0 => Some(absence.clone().mend_if_none([WHERE_IT_IS_READ])),
        Err(_) => None,
    }
}

/// None without a datagram.
fn datagrams(network: &Network) -> Option<String> {
    match &network.datagrams {
        Ok(all) if all.received.max(all.sent).max(all.dropped) == 0 => None,
        Ok(Datagrams { received, sent, dropped, overflows }) => Some(format!(
            "UDP: {} datagrams received, {} sent; {} dropped, {} of them by a full buffer of a socket",
            number(*received),
            number(*sent),
            number(*dropped),
            number(*overflows)
        )),
        Err(absence) => Some(format!("UDP not read: {absence}")),
    }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_text_about_networks_has_the_limits_of_datagrams() {
        let about = Wall::Network.about();
        let part = format!("{} or more of the packets", percent(FEW_DATAGRAMS));
        let rate = format!("at least {FEW_DATAGRAMS_PER_S} a second");
        assert!(about.contains(&part) && about.contains(&rate), "{about}");
    }
}
