//! What the machine's disks and the target's network did while the window was open. Counts are increases over that time.

use crate::recording::gained;
use crate::units::{Absence, Measured, Reason};
use serde::{Deserialize, Serialize};

/// The most disks that a recording lists.
pub const MOST_DISKS: usize = 8;
/// The unit of `DiskUse::sectors`, whatever the sectors of the disk are (Documentation/admin-guide/iostats.rst).
const SECTOR_BYTES: f64 = 512.0;

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Devices {
    pub disks: Measured<Disks>,
    pub network: Measured<Network>,
}

/// The disks of the machine: no partitions, and none that are in memory or a file. Other processes use them too, and the target
/// perhaps none of them: its files may be on a file system of the network.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Disks {
    /// Time between the two readings.
    pub over_ns: u64,
    /// Never empty; the busiest one first.
    #[serde(deserialize_with = "crate::room::charged")]
    pub busiest: Vec<DiskUse>,
    /// The number of disks that are not listed, and the sum of the times in which each of them was busy.
    pub others: u32,
    pub others_busy_ms: u64,
    /// Disks whose requests the kernel does not count: their counters stand still. See [`uncounted`].
    #[serde(deserialize_with = "crate::room::charged")]
    pub uncounted: Vec<String>,
}

/// Why a disk has no figures (Documentation/ABI/stable/sysfs-block).
pub fn uncounted(disk: &str) -> Absence {
    let detail = format!("the kernel does not count the requests of {disk} (iostats is 0)");
    // A slash in a name is `!` in sysfs.
    let file = format!("/sys/block/{}/queue/iostats", disk.replace('/', "!"));
    Absence::new(Reason::Disabled, detail).mend(format!("write 1 to {file}"))
}

#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct DiskUse {
    pub name: String,
    /// Reads, writes and discards that were completed.
    pub requests: u64,
    /// The sum of the times that these took, from the queue to the end.
    pub request_ms: u64,
    /// Read and written.
    pub sectors: u64,
    /// Time in which at least one request was in flight. It is more than the window if a request that is older than the window
    /// ended in it.
    pub busy_ms: u64,
    /// Requests that were in flight at both readings, if none was completed in between.
    pub stuck: u64,
}

impl DiskUse {
    pub fn ms_per_request(&self) -> Option<f64> {
        (self.requests > 0).then(|| self.request_ms as f64 / self.requests as f64)
    }
}

impl Disks {
    /// The part of the time in which the disk was busy, 0 to 1.
    pub fn busy(&self, disk: &DiskUse) -> f64 {
        self.part(disk.busy_ms)
    }

    /// The part of the time in which any disk was busy, at most.
    pub fn any_busy(&self) -> f64 {
        let add = |sum: u64, disk: &DiskUse| sum.saturating_add(disk.busy_ms);
        self.part(self.busiest.iter().fold(self.others_busy_ms, add))
    }

    /// Mean number of requests in flight, by Little's law.
    pub fn in_flight(&self, disk: &DiskUse) -> f64 {
        disk.request_ms as f64 / self.over_ms()
    }

    pub fn requests_per_s(&self, disk: &DiskUse) -> f64 {
        disk.requests as f64 * 1e3 / self.over_ms()
    }

    pub fn bytes_per_s(&self, disk: &DiskUse) -> f64 {
        disk.sectors as f64 * SECTOR_BYTES * 1e3 / self.over_ms()
    }

    fn part(&self, ms: u64) -> f64 {
        (ms as f64 / self.over_ms()).min(1.0)
    }

    fn over_ms(&self) -> f64 {
        self.over_ns.max(1) as f64 / 1e6
    }

    /// The list is within the limits of the recorder, and its numbers are possible in a window.
    pub fn is_sound(&self) -> bool {
        let numbers =
            |disk: &DiskUse| [disk.requests, disk.request_ms, disk.sectors, disk.busy_ms, disk.stuck];
        (1..=MOST_DISKS).contains(&self.busiest.len())
            && self.uncounted.len() <= MOST_DISKS
            && self.busiest.iter().flat_map(numbers).chain([self.others_busy_ms]).all(possible)
    }
}

/// The network namespace of one process of the target. Other processes may be in it too.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Network {
    pub pid: i32,
    /// Time between the two readings.
    pub over_ns: u64,
    /// TCP segments that were sent, without those that were sent again.
    pub sent: u64,
    pub retransmitted: u64,
    pub events: Measured<TcpEvents>,
    pub datagrams: Measured<Datagrams>,
    pub interfaces: Measured<Interfaces>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TcpEvents {
    /// Segments that were sent again because no answer came in time.
    pub timeouts: u64,
    /// Connections that were dropped because the queue of a listening socket was full.
    pub listen_overflows: u64,
    /// Connections that a listening socket dropped, for this reason or another.
    pub listen_drops: u64,
}

/// Of UDP, over IPv4 and IPv6. The kernel counts none that are lost in transit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Datagrams {
    pub received: u64,
    pub sent: u64,
    /// They came, but no program got them: the buffer of a socket was full, or they were damaged.
    pub dropped: u64,
    /// Those of them for which the buffer was full.
    pub overflows: u64,
}

/// The sum of all interfaces, both directions.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Interfaces {
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
    /// The interface with most errors and dropped packets; None if there were none.
    pub worst: Option<String>,
}

impl Network {
    /// All TCP segments.
    pub fn segments(&self) -> u64 {
        self.sent.saturating_add(self.retransmitted)
    }

    /// The numbers are possible in a window.
    pub fn is_sound(&self) -> bool {
        let events = self.events.iter().flat_map(|e| [e.timeouts, e.listen_overflows, e.listen_drops]);
        let datagrams = self.datagrams.iter().flat_map(|d| [d.received, d.sent, d.dropped, d.overflows]);
        let packets = self.interfaces.iter().flat_map(|i| [i.packets, i.errors, i.dropped]);
        [self.sent, self.retransmitted]
            .into_iter()
            .chain(events)
            .chain(datagrams)
            .chain(packets)
            .all(possible)
    }
}

fn possible(increase: u64) -> bool {
    gained(0, increase).is_some()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_of_a_disk_are_those_of_iostat() {
        let disk = DiskUse {
            name: "sda".into(),
            requests: 200,
            request_ms: 3_000,
            sectors: 4_000,
            busy_ms: 500,
            stuck: 0,
        };
        let disks = Disks {
            over_ns: 2_000_000_000,
            busiest: vec![disk.clone()],
            others: 3,
            others_busy_ms: 100,
            uncounted: vec![],
        };
        assert_eq!((disks.busy(&disk), disks.any_busy(), disk.ms_per_request()), (0.25, 0.3, Some(15.0)));
        assert_eq!((disks.in_flight(&disk), disks.requests_per_s(&disk)), (1.5, 100.0));
        assert_eq!(disks.bytes_per_s(&disk), 1_024_000.0);
        // A request of the last hour ended in the window.
        let old = DiskUse { busy_ms: 3_600_000, ..disk };
        assert_eq!((disks.busy(&old), DiskUse::default().ms_per_request()), (1.0, None));
    }

    #[test]
    fn numbers_that_no_window_has_are_not_sound() {
        let disks = |requests, count: usize, uncounted: usize| {
            let disk = DiskUse { requests, ..DiskUse::default() };
            let uncounted = vec!["sdb".to_owned(); uncounted];
            Disks { over_ns: 1, busiest: vec![disk; count], others: 0, others_busy_ms: 0, uncounted }
                .is_sound()
        };
        assert!(disks(7, 1, 0) && disks(7, MOST_DISKS, MOST_DISKS));
        assert!(!disks(7, 0, 0) && !disks(7, MOST_DISKS + 1, 0) && !disks(u64::MAX, 1, 0));
        assert!(!disks(7, 1, MOST_DISKS + 1));
        let network = |timeouts, dropped| {
            let events = Ok(TcpEvents { timeouts, ..TcpEvents::default() });
            let datagrams = Ok(Datagrams { dropped, ..Datagrams::default() });
            let interfaces = Ok(Interfaces::default());
            let network =
                Network { pid: 1, over_ns: 1, sent: 1, retransmitted: 0, events, datagrams, interfaces };
            network.is_sound()
        };
        assert!(network(7, 7) && !network(1 << 63, 7) && !network(7, 1 << 63));
    }
}
