//! The disks of the machine and the network of the target: how much their counters grow in the window.

use allocwall_host::proc::{DiskCounters, InterfaceCounters, NetworkCounters, ProcFs};
use allocwall_model::devices::{
    Datagrams, Devices, DiskUse, Disks, Interfaces, MOST_DISKS, Network, TcpEvents, uncounted,
};
use allocwall_model::recording::gained;
use allocwall_model::units::{Absence, Measured, Reason};
use std::cmp::Reverse;
use std::collections::HashMap;
use std::path::Path;

/// The most processes that are asked for their namespace at one reading.
pub const NAMESPACES_ASKED: usize = 64;

/// A value, and when in the window it was read.
type Read<T> = (u64, T);

#[derive(Default)]
pub struct DeviceReader {
    opened: Option<Read<Measured<Vec<DiskCounters>>>>,
    closed: Option<Read<Measured<Vec<DiskCounters>>>>,
    network: Option<Followed>,
    /// Why the network was not read.
    unread: Option<Absence>,
}

/// A network namespace, with its first and its last reading.
struct Followed {
    namespace: u64,
    pid: i32,
    first: Read<NetworkCounters>,
    last: Read<NetworkCounters>,
}

impl DeviceReader {
    /// The first reading of the disks. `sys` is `/sys`, or a copy of it.
    pub fn open(&mut self, proc: &ProcFs, sys: &Path, t_ns: u64) {
        self.opened = Some((t_ns, proc.disks(sys)));
    }

    /// The last one.
    pub fn close(&mut self, proc: &ProcFs, sys: &Path, t_ns: u64) {
        self.closed = Some((t_ns, proc.disks(sys)));
    }

    /// Reads the network namespace of the target. `pids`: its processes, the requested one first.
    pub fn follow(&mut self, proc: &ProcFs, pids: &[i32], t_ns: u64) {
        if let Some(followed) = &mut self.network {
            let mut one_runs = false;
            let known = pids.iter().copied().find(|pid| {
                let namespace = proc.network_namespace(*pid);
                one_runs |= namespace.is_ok();
                namespace == Ok(followed.namespace)
            });
            // If all of them have ended, allocwall itself may be in the same namespace. One that still runs has moved.
            let own = Some(std::process::id() as i32).filter(|_| !one_runs);
            let own = own.filter(|own| proc.network_namespace(*own) == Ok(followed.namespace));
            if let Some(pid) = known.or(own) {
                if let Ok(counters) = proc.network(pid) {
                    followed.last = (t_ns, counters);
                }
                return;
            }
        }
        // The first reading, or the target has moved to another namespace, as `ip netns exec` does.
        for &pid in pids {
            let read = proc.network_namespace(pid).and_then(|namespace| Ok((namespace, proc.network(pid)?)));
            match read {
                Ok((namespace, counters)) => {
                    let first = (t_ns, counters.clone());
                    self.network = Some(Followed { namespace, pid, first, last: (t_ns, counters) });
                    return;
                }
                Err(absence) => _ = self.unread.get_or_insert(absence),
            }
        }
    }

    pub fn finish(self) -> Devices {
        let ended = || Absence::new(Reason::Vanished, "the target ended before its network was read");
        let network = match self.network {
            Some(followed) => network(followed),
            None => Err(self.unread.unwrap_or_else(ended)),
        };
        Devices { disks: disks(self.opened, self.closed), network }
    }
}

fn too_soon(what: &str) -> Absence {
    Absence::new(Reason::TooLittle, format!("the counters of {what} were read only once"))
        .mend("use a longer window: -d 30")
}

fn jumped(what: &str) -> Absence {
    let detail =
        format!("the counters of {what} ran backwards, or jumped by more than is possible in one window");
    Absence::new(Reason::Unparsable, detail)
}

fn disks(
    opened: Option<Read<Measured<Vec<DiskCounters>>>>,
    closed: Option<Read<Measured<Vec<DiskCounters>>>>,
) -> Measured<Disks> {
    const WHAT: &str = "the disks";
    let (Some((from_ns, from)), Some((to_ns, to))) = (opened, closed) else {
        return Err(too_soon(WHAT));
    };
    let (from, to) = (from?, to?);
    let over_ns = to_ns.saturating_sub(from_ns);
    if over_ns == 0 {
        return Err(too_soon(WHAT));
    }
    let before: HashMap<&str, &DiskCounters> = from.iter().map(|disk| (disk.name.as_str(), disk)).collect();
    // A disk that came in the window is left out.
    let known = to.iter().filter_map(|now| Some((*before.get(now.name.as_str())?, now)));
    // Some drivers count although the file says that they do not.
    let is_counted = |(before, now): &(&DiskCounters, &DiskCounters)| {
        before.counted && now.counted || before.requests < now.requests
    };
    let (known, still): (Vec<_>, Vec<_>) = known.partition(is_counted);
    let still: Vec<String> = still.into_iter().map(|(_, now)| now.name.clone()).take(MOST_DISKS).collect();
    let mut busiest: Vec<DiskUse> = known.iter().filter_map(|(before, now)| used(before, now)).collect();
    if busiest.is_empty() {
        return Err(match still.first() {
            _ if to.is_empty() => Absence::new(Reason::NotFound, "/proc/diskstats lists no disk"),
            Some(disk) if known.is_empty() => uncounted(disk),
            _ => jumped(WHAT),
        });
    }
    busiest.sort_by_key(|disk| Reverse((disk.stuck > 0, disk.busy_ms, disk.request_ms)));
    let others = busiest.split_off(busiest.len().min(MOST_DISKS));
    Ok(Disks {
        over_ns,
        busiest,
        others: others.len() as u32,
        others_busy_ms: others.iter().fold(0_u64, |sum, disk| sum.saturating_add(disk.busy_ms)),
        uncounted: still,
    })
}

/// None if a counter ran backwards: another disk has the name now.
fn used(before: &DiskCounters, now: &DiskCounters) -> Option<DiskUse> {
    let requests = gained(before.requests, now.requests)?;
    let mut request_ms: u64 = 0;
    for (before, now) in before.request_ms.into_iter().zip(now.request_ms) {
        request_ms = request_ms.saturating_add(ms_gained(before, now)?);
    }
    // Older kernels print a count that fell below zero as a number near 2^32.
    let in_flight = |disk: &DiskCounters| if disk.in_flight < 1 << 31 { disk.in_flight } else { 0 };
    Some(DiskUse {
        name: now.name.clone(),
        requests,
        request_ms,
        sectors: gained(before.sectors, now.sectors)?,
        busy_ms: ms_gained(before.busy_ms, now.busy_ms)?,
        stuck: if requests == 0 { in_flight(before).min(in_flight(now)) } else { 0 },
    })
}

/// The kernel prints these times as numbers of 32 bits (diskstats_show, block/genhd.c). They wrap around after 50 days, the
/// sums of requests that were in flight together even earlier.
fn ms_gained(before: u64, now: u64) -> Option<u64> {
    match (u32::try_from(before), u32::try_from(now)) {
        // From half of the range on, the counter ran backwards.
        (Ok(before), Ok(now)) => Some(u64::from(now.wrapping_sub(before))).filter(|ms| *ms < 1 << 31),
        _ => gained(before, now),
    }
}

fn network(followed: Followed) -> Measured<Network> {
    const WHAT: &str = "its network";
    let Followed { pid, first: (from_ns, from), last: (to_ns, to), .. } = followed;
    let over_ns = to_ns.saturating_sub(from_ns);
    if over_ns == 0 {
        return Err(too_soon(WHAT));
    }
    let grown = |before, now| gained(before, now).ok_or_else(|| jumped(WHAT));
    let events = |from: TcpEvents, to: TcpEvents| -> Measured<TcpEvents> {
        Ok(TcpEvents {
            timeouts: grown(from.timeouts, to.timeouts)?,
            listen_overflows: grown(from.listen_overflows, to.listen_overflows)?,
            listen_drops: grown(from.listen_drops, to.listen_drops)?,
        })
    };
    let datagrams = |from: Datagrams, to: Datagrams| -> Measured<Datagrams> {
        Ok(Datagrams {
            received: grown(from.received, to.received)?,
            sent: grown(from.sent, to.sent)?,
            dropped: grown(from.dropped, to.dropped)?,
            overflows: grown(from.overflows, to.overflows)?,
        })
    };
    Ok(Network {
        pid,
        over_ns,
        sent: grown(from.sent, to.sent)?,
        retransmitted: grown(from.retransmitted, to.retransmitted)?,
        events: from.events.and_then(|from| events(from, to.events?)),
        datagrams: from.datagrams.and_then(|from| datagrams(from, to.datagrams?)),
        interfaces: from.interfaces.and_then(|from| Ok(interfaces(&from, &to.interfaces?))),
    })
}

/// Without interfaces that came in the window, or whose counters began again.
fn interfaces(from: &[InterfaceCounters], to: &[InterfaceCounters]) -> Interfaces {
    let before: HashMap<&str, &InterfaceCounters> =
        from.iter().map(|face| (face.name.as_str(), face)).collect();
    let mut sum = Interfaces::default();
    let mut most = 0;
    for now in to {
        let Some(before) = before.get(now.name.as_str()) else { continue };
        let grown = (
            gained(before.packets, now.packets),
            gained(before.errors, now.errors),
            gained(before.dropped, now.dropped),
        );
        let (Some(packets), Some(errors), Some(dropped)) = grown else { continue };
        sum.packets = sum.packets.saturating_add(packets);
        sum.errors = sum.errors.saturating_add(errors);
        sum.dropped = sum.dropped.saturating_add(dropped);
        if errors.saturating_add(dropped) > most {
            most = errors.saturating_add(dropped);
            sum.worst = Some(now.name.clone());
        }
    }
    sum
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    fn disk(name: &str, requests: u64, busy_ms: u64) -> DiskCounters {
        DiskCounters {
            name: name.into(),
            counted: true,
            requests,
            request_ms: [2 * requests, requests, 0],
            sectors: 8 * requests,
            in_flight: 0,
            busy_ms,
        }
    }

    fn over(from: &[DiskCounters], to: &[DiskCounters]) -> Measured<Disks> {
        disks(Some((0, Ok(from.to_vec()))), Some((2_000_000_000, Ok(to.to_vec()))))
    }

    #[test]
    fn the_busiest_disks_are_listed_and_the_others_counted() {
        let names: Vec<String> = (0..10).map(|n| format!("sd{n}")).collect();
        let read = |times: u64| -> Vec<DiskCounters> {
            let numbered = (0..).zip(&names);
            numbered.map(|(n, name)| disk(name, 7 + 100 * times, 5 + 10 * n * times)).collect()
        };
        let seen = over(&read(0), &read(1)).unwrap();
        assert_eq!((seen.over_ns, seen.busiest.len()), (2_000_000_000, MOST_DISKS));
        let first = DiskUse {
            name: "sd9".into(),
            requests: 100,
            request_ms: 300,
            sectors: 800,
            busy_ms: 90,
            stuck: 0,
        };
        assert_eq!(seen.busiest[0], first);
        assert_eq!((seen.others, seen.others_busy_ms), (2, 10));
        assert!(seen.is_sound());
    }

    #[test]
    fn times_wrap_around_and_a_disk_that_was_replaced_is_left_out() {
        let wrapped = disk("sda", 20, 40);
        let near = DiskCounters { busy_ms: u64::from(u32::MAX) - 9, ..disk("sda", 10, 0) };
        assert_eq!(over(&[near], &[wrapped]).unwrap().busiest[0].busy_ms, 50);
        let [old, new, other] = [disk("sda", 1_000, 500), disk("sda", 3, 2), disk("sdb", 1, 1)];
        let both = over(&[old.clone(), other.clone()], &[new.clone(), other]).unwrap();
        assert_eq!((both.busiest.len(), both.busiest[0].name.as_str()), (1, "sdb"));
        assert_eq!(over(&[old], &[new]).unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn a_disk_that_is_not_counted_has_a_reason_and_no_figures() {
        let still = |name: &str| DiskCounters { counted: false, ..disk(name, 7, 7) };
        let (from, to) = (disk("sdb", 7, 7), disk("sdb", 9, 8));
        let seen = over(&[disk("sda", 7, 7), from], &[still("sda"), to]).unwrap();
        assert_eq!((seen.busiest.len(), seen.busiest[0].name.as_str()), (1, "sdb"));
        assert_eq!(seen.uncounted, ["sda"]);
        let none = over(&[still("sda")], &[still("sda")]).unwrap_err();
        assert_eq!(none.reason, Reason::Disabled);
        assert!(none.detail.contains("of sda") && !none.mend.is_empty(), "{none}");
        // A driver that counts whatever the file says.
        let counts = DiskCounters { counted: false, ..disk("sda", 9, 8) };
        let seen = over(&[still("sda")], &[counts]).unwrap();
        assert_eq!((seen.busiest[0].requests, seen.uncounted.is_empty()), (2, true));
        // The twin is counted, and had no request.
        let idle = over(&[disk("sda", 7, 7)], &[disk("sda", 7, 7)]).unwrap();
        assert_eq!((idle.busiest[0].requests, idle.uncounted.is_empty()), (0, true));
    }

    #[test]
    fn a_disk_that_answers_nothing_comes_first() {
        let waiting = |requests| DiskCounters { in_flight: 3, ..disk("sdb", requests, 5) };
        let busy = [disk("sda", 0, 0), disk("sda", 9, 900)];
        let seen = |requests| {
            over(&[busy[0].clone(), waiting(0)], &[busy[1].clone(), waiting(requests)]).unwrap().busiest
        };
        assert_eq!((seen(0)[0].name.as_str(), seen(0)[0].stuck), ("sdb", 3));
        assert_eq!((seen(1)[0].name.as_str(), seen(1)[1].stuck), ("sda", 0));
        let below_zero = DiskCounters { in_flight: u64::from(u32::MAX), ..disk("sdb", 0, 0) };
        assert_eq!(
            over(std::slice::from_ref(&below_zero), std::slice::from_ref(&below_zero)).unwrap().busiest[0]
                .stuck,
            0
        );
    }

    #[test]
    fn disks_that_were_not_read_twice_have_a_reason() {
        let gone = || Absence::new(Reason::NotFound, "no file");
        let one = || Ok(vec![disk("sda", 1, 1)]);
        for (opened, closed, reason) in [
            (None, Some((9, one())), Reason::TooLittle),
            (Some((9, one())), Some((9, one())), Reason::TooLittle),
            (Some((0, Err(gone()))), Some((9, one())), Reason::NotFound),
            (Some((0, one())), Some((9, Err(gone()))), Reason::NotFound),
            (Some((0, Ok(vec![]))), Some((9, Ok(vec![]))), Reason::NotFound),
        ] {
            assert_eq!(disks(opened, closed).unwrap_err().reason, reason);
        }
    }

    /// A network namespace of its own for each folder: the files have their own inodes.
    fn write(root: &Path, pid: i32, sent: u64, again: u64, dropped: u64) {
        let folder = root.join(format!("{pid}/net"));
        std::fs::create_dir_all(&folder).unwrap();
        let put = |name: &str, text: String| std::fs::write(folder.join(name), text).unwrap();
        put(
            "snmp",
            format!(
                "Tcp: OutSegs RetransSegs\nTcp: {sent} {again}\n\
                 Udp: InDatagrams OutDatagrams InErrors RcvbufErrors\nUdp: {sent} 9 {dropped} {dropped}\n"
            ),
        );
        put(
            "netstat",
            format!("TcpExt: ListenOverflows ListenDrops TCPTimeouts\nTcpExt: 1 {dropped} {again}\n"),
        );
        put(
            "dev",
            format!(
                "a\nb|packets errs drop|packets errs drop\nlo: 1 0 0 1 0 0\neth0: {sent} 2 {dropped} 4 0 0\n"
            ),
        );
    }

    #[test]
    fn the_network_of_the_target_is_followed_until_it_ends() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let mut reader = DeviceReader::default();
        write(dir.path(), 7, 100, 1, 5);
        reader.follow(&proc, &[7], 0);
        write(dir.path(), 7, 160, 4, 6);
        reader.follow(&proc, &[7], 1_000);
        std::fs::remove_dir_all(dir.path().join("7")).unwrap();
        reader.follow(&proc, &[7], 2_000);
        let seen = reader.finish().network.unwrap();
        assert_eq!((seen.pid, seen.over_ns, seen.sent, seen.retransmitted), (7, 1_000, 60, 3));
        let events = TcpEvents { timeouts: 3, listen_overflows: 0, listen_drops: 1 };
        assert_eq!(seen.events, Ok(events));
        let datagrams = Datagrams { received: 60, sent: 0, dropped: 1, overflows: 1 };
        assert_eq!(seen.datagrams, Ok(datagrams));
        let interfaces = Interfaces { packets: 60, errors: 0, dropped: 1, worst: Some("eth0".into()) };
        assert_eq!(seen.interfaces, Ok(interfaces));
    }

    #[test]
    fn counters_of_two_namespaces_are_never_compared() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let mut reader = DeviceReader::default();
        write(dir.path(), 7, 100, 1, 5);
        write(dir.path(), 8, 900_000, 9_000, 5);
        reader.follow(&proc, &[7], 0);
        // The first process has ended; another is in a namespace of its own.
        std::fs::remove_dir_all(dir.path().join("7")).unwrap();
        reader.follow(&proc, &[7, 8], 1_000);
        write(dir.path(), 8, 900_050, 9_000, 5);
        reader.follow(&proc, &[7, 8], 2_000);
        let seen = reader.finish().network.unwrap();
        assert_eq!((seen.pid, seen.over_ns, seen.sent, seen.retransmitted), (8, 1_000, 50, 0));
    }

    #[test]
    fn allocwall_stands_in_for_a_target_that_ended_but_not_for_one_that_moved() {
        let after = |moves: bool| {
            let dir = tempfile::tempdir().unwrap();
            let proc = ProcFs::at(dir.path());
            // The target starts in the namespace of allocwall.
            let own = std::process::id() as i32;
            let target = own + 1;
            write(dir.path(), own, 100, 1, 5);
            std::os::unix::fs::symlink(own.to_string(), dir.path().join(target.to_string())).unwrap();
            let mut reader = DeviceReader::default();
            reader.follow(&proc, &[target], 0);
            std::fs::remove_file(dir.path().join(target.to_string())).unwrap();
            if moves {
                write(dir.path(), target, 900_000, 9_000, 5);
            }
            write(dir.path(), own, 107, 1, 5);
            reader.follow(&proc, &[target], 1_000);
            if moves {
                write(dir.path(), target, 900_050, 9_000, 5);
            }
            reader.follow(&proc, &[target], 3_000);
            let seen = reader.finish().network.unwrap();
            (seen.over_ns, seen.sent, seen.retransmitted)
        };
        assert_eq!((after(true), after(false)), ((2_000, 50, 0), (3_000, 7, 0)));
    }

    #[test]
    fn a_network_that_was_not_read_twice_has_a_reason() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let mut never = DeviceReader::default();
        never.follow(&proc, &[7], 0);
        assert_eq!(never.finish().network.unwrap_err().reason, Reason::Vanished);
        write(dir.path(), 7, 100, 1, 5);
        let mut once = DeviceReader::default();
        once.follow(&proc, &[7], 0);
        assert_eq!(once.finish().network.unwrap_err().reason, Reason::TooLittle);
        let mut backwards = DeviceReader::default();
        backwards.follow(&proc, &[7], 0);
        write(dir.path(), 7, 99, 1, 5);
        std::fs::remove_file(dir.path().join("7/net/netstat")).unwrap();
        backwards.follow(&proc, &[7], 1_000);
        assert_eq!(backwards.finish().network.unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn figures_that_are_missing_leave_the_others() {
        let dir = tempfile::tempdir().unwrap();
        let proc = ProcFs::at(dir.path());
        let mut reader = DeviceReader::default();
        write(dir.path(), 7, 100, 1, 5);
        reader.follow(&proc, &[7], 0);
        std::fs::remove_file(dir.path().join("7/net/netstat")).unwrap();
        std::fs::write(dir.path().join("7/net/dev"), "").unwrap();
        reader.follow(&proc, &[7], 1_000);
        let seen = reader.finish().network.unwrap();
        assert_eq!((seen.sent, seen.events.unwrap_err().reason), (0, Reason::NotFound));
        assert_eq!(seen.interfaces.unwrap_err().reason, Reason::Unparsable);
    }
}
