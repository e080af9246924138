//! Parses the kernel's counters of disks and networks. Formats: Documentation/admin-guide/iostats.rst, and
//! Documentation/networking/snmp_counter.rst.

use super::parse::pair;
use crate::file::{self, lines, number, words};
use allocwall_model::devices::{Datagrams, TcpEvents};
use std::collections::HashSet;
use std::path::Path;

/// The kernel's own names of disks and interfaces are shorter (DISK_NAME_LEN 32, IFNAMSIZ 16).
const LONGEST_NAME: usize = 64;

/// A line of /proc/diskstats. Counters since the disk was found, except for `in_flight`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DiskCounters {
    pub name: String,
    /// The kernel counts its requests. Otherwise the counters stand still, but for some drivers that count them all the same.
    pub counted: bool,
    /// Reads, writes and discards that were completed.
    pub requests: u64,
    /// The time that reads, writes and discards took. The kernel prints these times, and that below, modulo 2^32.
    pub request_ms: [u64; 3],
    /// Of 512 bytes, read and written.
    pub sectors: u64,
    /// Now.
    pub in_flight: u64,
    /// Time in which a request was in flight.
    pub busy_ms: u64,
}

/// /proc/diskstats without partitions, memory disks and loop devices, whose requests are those of another disk, or of none. All
/// are taken for counted.
pub fn disks(bytes: &[u8]) -> Option<Vec<DiskCounters>> {
    let full = lines(bytes).filter(|line| !line.trim_ascii().is_empty());
    let mut disks = full.map(disk).collect::<Option<Vec<_>>>()?;
    disks.retain(|disk| !["loop", "ram", "zram"].iter().any(|kind| is_numbered(&disk.name, kind)));
    let names: HashSet<String> = disks.iter().map(|disk| disk.name.clone()).collect();
    disks.retain(|disk| !is_partition(&disk.name, &names));
    Some(disks)
}

/// Marks the disks whose requests are not counted, and leaves out volumes and arrays if disks are counted: these have the same
/// requests once more. So has a disk whose paths are counted instead of it. `sys` is `/sys`, or a copy of it.
pub fn counted_once(mut disks: Vec<DiskCounters>, sys: &Path) -> Vec<DiskCounters> {
    for disk in &mut disks {
        // A slash in a name is `!` there. Without the file, nothing switches the counters off.
        let queue = sys.join("block").join(disk.name.replace('/', "!")).join("queue");
        disk.counted = file::read_number::<u8>(&queue.join("iostats")) != Ok(0);
    }
    let by_path: HashSet<String> =
        disks.iter().filter(|disk| disk.counted).filter_map(|path| disk_of_path(&path.name)).collect();
    disks.retain(|disk| disk.counted || !by_path.contains(&disk.name));
    const STACKED: [&str; 3] = ["dm-", "md", "bcache"];
    let is_stacked = |disk: &DiskCounters| STACKED.iter().any(|kind| is_numbered(&disk.name, kind));
    if disks.iter().any(|disk| disk.counted && !is_stacked(disk)) {
        disks.retain(|disk| !is_stacked(disk));
    }
    disks
}

/// Linux 4.18 added four fields for discards, 5.5 two for flushes. The latter are left out: what waits for a flush is a
/// write.
fn disk(line: &[u8]) -> Option<DiskCounters> {
    const FIELDS: usize = 15;
    let mut all = words(line).skip(2);
    let name = name(all.next()?);
    let numbers = all.take(FIELDS).map(number).collect::<Option<Vec<u64>>>()?;
    let &[reads, _, read, read_ms, writes, _, written, write_ms, in_flight, busy_ms, _, ref discards @ ..] =
        numbers.as_slice()
    else {
        return None;
    };
    let (discards, discard_ms) = match discards {
        &[discards, _, _, discard_ms] => (discards, discard_ms),
        _ => (0, 0),
    };
    Some(DiskCounters {
        name,
        counted: true,
        requests: reads.wrapping_add(writes).wrapping_add(discards),
        request_ms: [read_ms, write_ms, discard_ms],
        sectors: read.wrapping_add(written),
        in_flight,
        busy_ms,
    })
}

/// `loop7` is a `loop`.
fn is_numbered(name: &str, kind: &str) -> bool {
    name.strip_prefix(kind).is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// `sda1` where there is `sda`; `nvme0n1p2` where there is `nvme0n1` (disk_name, block/partitions/core.c).
fn is_partition(name: &str, names: &HashSet<String>) -> bool {
    let disk = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if disk == name {
        return false;
    }
    let numbered = disk.strip_suffix('p').filter(|disk| disk.ends_with(|c: char| c.is_ascii_digit()));
    names.contains(disk) || numbered.is_some_and(|disk| names.contains(disk))
}

/// `nvme0n1` of its path `nvme0c1n1` (drivers/nvme/host/multipath.c).
fn disk_of_path(path: &str) -> Option<String> {
    let (disk, rest) = path.strip_prefix("nvme")?.split_once('c')?;
    let (_, namespace) = rest.split_once('n')?;
    Some(format!("nvme{disk}n{namespace}"))
}

fn name(bytes: &[u8]) -> String {
    String::from_utf8_lossy(&bytes[..bytes.len().min(LONGEST_NAME)]).into_owned()
}

/// Segments that were sent, and segments that were sent again, from /proc/PID/net/snmp. The former contain none of the
/// latter (RFC 4022, tcpOutSegs).
pub fn tcp_segments(bytes: &[u8]) -> Option<(u64, u64)> {
    let value = |name: &[u8]| value_of(bytes, b"Tcp:", name);
    Some((value(b"OutSegs")?, value(b"RetransSegs")?))
}

/// From /proc/PID/net/netstat.
pub fn tcp_events(bytes: &[u8]) -> Option<TcpEvents> {
    let value = |name: &[u8]| value_of(bytes, b"TcpExt:", name);
    Some(TcpEvents {
        timeouts: value(b"TCPTimeouts")?,
        listen_overflows: value(b"ListenOverflows")?,
        listen_drops: value(b"ListenDrops")?,
    })
}

/// The datagrams of IPv4, from /proc/PID/net/snmp.
pub fn datagrams(bytes: &[u8]) -> Option<Datagrams> {
    datagrams_by(|name| value_of(bytes, b"Udp:", name.as_bytes()))
}

/// Those of IPv6, from /proc/PID/net/snmp6: a name and a value on each line.
pub fn datagrams_v6(bytes: &[u8]) -> Option<Datagrams> {
    datagrams_by(|name| {
        let value = |line| {
            let mut words = words(line);
            let named = words.next()?.strip_prefix(b"Udp6") == Some(name.as_bytes());
            number(words.next().filter(|_| named)?)
        };
        lines(bytes).find_map(value)
    })
}

fn datagrams_by(value: impl Fn(&str) -> Option<u64>) -> Option<Datagrams> {
    Some(Datagrams {
        received: value("InDatagrams")?,
        sent: value("OutDatagrams")?,
        // With those of a full buffer (udp_queue_rcv_skb, net/ipv4/udp.c).
        dropped: value("InErrors")?,
        overflows: value("RcvbufErrors")?,
    })
}

/// A line of names comes before a line of values: `Tcp: OutSegs RetransSegs`, `Tcp: 7 0`.
fn value_of(bytes: &[u8], section: &[u8], name: &[u8]) -> Option<u64> {
    let mut rows = lines(bytes).filter_map(|line| line.strip_prefix(section));
    let at = words(rows.next()?).position(|word| word == name)?;
    number(words(rows.next()?).nth(at)?)
}

/// A line of /proc/PID/net/dev: received and sent together.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct InterfaceCounters {
    pub name: String,
    pub packets: u64,
    pub errors: u64,
    pub dropped: u64,
}

/// The second line names the columns, first those of received packets: `face |bytes packets … |bytes packets …`.
pub fn interfaces(bytes: &[u8]) -> Option<Vec<InterfaceCounters>> {
    let mut groups = lines(bytes).nth(1)?.split(|&byte| byte == b'|').skip(1);
    let received: Vec<&[u8]> = words(groups.next()?).collect();
    let sent: Vec<&[u8]> = words(groups.next()?).collect();
    let columns = |name: &[u8]| -> Option<[usize; 2]> {
        let of = |names: &[&[u8]]| names.iter().position(|known| *known == name);
        Some([of(&received)?, received.len() + of(&sent)?])
    };
    let (packets, errors, dropped) = (columns(b"packets")?, columns(b"errs")?, columns(b"drop")?);
    let interface = |line: &[u8]| -> Option<InterfaceCounters> {
        let (face, values) = pair(line, b':')?;
        let values: Vec<&[u8]> = words(values).collect();
        let value = |column: usize| number::<u64>(values.get(column)?);
        let both = |[received, sent]: [usize; 2]| Some(value(received)?.wrapping_add(value(sent)?));
        Some(InterfaceCounters {
            name: name(face.trim_ascii()),
            packets: both(packets)?,
            errors: both(errors)?,
            dropped: both(dropped)?,
        })
    };
    let full = lines(bytes).skip(2).filter(|line| !line.trim_ascii().is_empty());
    full.map(interface).collect()
}

/// Runs every parser of this module and ignores the results.
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) fn all_parsers(bytes: &[u8]) {
    let _ = (disks(bytes), tcp_segments(bytes), tcp_events(bytes), interfaces(bytes));
    let _ = (datagrams(bytes), datagrams_v6(bytes));
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Linux 6.18, a virtual machine: 17 fields.
    const DISKS: &[u8] = b"   7       0 loop0 5 0 10 1 0 0 0 0 0 1 1 0 0 0 0 0 0\n \
         259       0 nvme0n1 1213097 63583 114504258 2455355 233992 298105 152344640 262172 2 172364 2757443 339056 19 28995872 36929 47442 2984\n \
         259       1 nvme0n1p1 1213000 63583 114504000 2455000 233992 298105 152344640 262172 0 172300 2757000 0 0 0 0 0 0\n \
         253       0 dm-0 1500000 0 114504258 2455355 500000 0 152344640 262172 0 172364 2757443 0 0 0 0 0 0\n \
         252       0 zram0 9 0 72 0 9 0 72 0 0 0 0 0 0 0 0 0 0\n";

    /// No disk has a file in this folder.
    fn listed(text: &[u8]) -> Option<Vec<DiskCounters>> {
        Some(counted_once(disks(text)?, Path::new("/nowhere")))
    }

    fn names(text: &[u8]) -> Vec<String> {
        listed(text).unwrap().into_iter().map(|disk| disk.name).collect()
    }

    fn lines_of(names: &[&str]) -> Vec<u8> {
        names.iter().flat_map(|name| format!("8 0 {name} 1 0 1 1 1 0 1 1 0 1 1\n").into_bytes()).collect()
    }

    #[test]
    fn disks_of_every_format() {
        let nvme = DiskCounters {
            name: "nvme0n1".into(),
            counted: true,
            requests: 1_213_097 + 233_992 + 339_056,
            request_ms: [2_455_355, 262_172, 36_929],
            sectors: 114_504_258 + 152_344_640,
            in_flight: 2,
            busy_ms: 172_364,
        };
        assert_eq!(listed(DISKS), Some(vec![nvme]));
        // 11 fields, as lxcfs prints them, and 15.
        let old = b"   8       0 sda 10 0 80 4 20 0 160 6 0 9 10\n";
        let discards = b"   8       0 sda 10 0 80 4 20 0 160 6 0 9 10 5 0 40 3\n";
        let sda = |requests, discard_ms| DiskCounters {
            name: "sda".into(),
            counted: true,
            requests,
            request_ms: [4, 6, discard_ms],
            sectors: 240,
            in_flight: 0,
            busy_ms: 9,
        };
        assert_eq!((listed(old), listed(discards)), (Some(vec![sda(30, 0)]), Some(vec![sda(35, 3)])));
        assert_eq!(disks(b""), Some(vec![]));
    }

    #[test]
    fn a_partition_or_a_volume_counts_only_without_its_disk() {
        for (listed, kept) in [
            (&["sda", "sda1", "sda15", "sdb"][..], &["sda", "sdb"][..]),
            (&["nvme0n1", "nvme0n1p2", "nvme1n1"], &["nvme0n1", "nvme1n1"]),
            (&["mmcblk0", "mmcblk0p1", "mmcblk0boot0"], &["mmcblk0", "mmcblk0boot0"]),
            // A cloud's root disk without its own line, and names that only end in digits.
            (&["xvda1"], &["xvda1"]),
            (&["nbd1", "nbd10"], &["nbd1", "nbd10"]),
            (&["sda", "md127", "md127p1", "dm-1", "dm-10"], &["sda"]),
            (&["dm-1", "dm-10"], &["dm-1", "dm-10"]),
            (&["sda", "bcache0"], &["sda"]),
            (&["ram0", "rama", "loop3", "zram1"], &["rama"]),
        ] {
            assert_eq!(names(&lines_of(listed)), kept);
        }
    }

    #[test]
    fn a_volume_counts_for_disks_that_are_not_counted() {
        let sys = tempfile::tempdir().unwrap();
        let seen = |names: &[&str]| -> Vec<(String, bool)> {
            let all = counted_once(disks(&lines_of(names)).unwrap(), sys.path());
            all.into_iter().map(|disk| (disk.name, disk.counted)).collect()
        };
        let set = |disk: &str, value: &str| {
            let queue = sys.path().join("block").join(disk).join("queue");
            std::fs::create_dir_all(&queue).unwrap();
            std::fs::write(queue.join("iostats"), value).unwrap();
        };
        let (on, off) = (|name: &str| (name.to_owned(), true), |name: &str| (name.to_owned(), false));
        set("sda", "1\n");
        assert_eq!(seen(&["sda", "sdb", "dm-0"]), [on("sda"), on("sdb")]);
        set("sda", "0\n");
        set("cciss!c0d0", "0\n");
        assert_eq!(seen(&["sda", "sdb", "dm-0"]), [off("sda"), on("sdb")]);
        assert_eq!(seen(&["sda", "dm-0", "cciss/c0d0"]), [off("sda"), on("dm-0"), off("cciss/c0d0")]);
        // The paths of a disk count for it, but not those of another one, nor a path that is not counted.
        set("nvme0n1", "0\n");
        set("nvme2c0n1", "0\n");
        let path = "nvme0c1n1";
        assert_eq!(seen(&["nvme0n1", path]), [on(path)]);
        assert_eq!(seen(&["nvme0n1", "nvme0c1n2"]), [off("nvme0n1"), on("nvme0c1n2")]);
        set("nvme2n1", "0\n");
        assert_eq!(seen(&["nvme2n1", "nvme2c0n1"]), [off("nvme2n1"), off("nvme2c0n1")]);
    }

    #[test]
    fn malformed_disks() {
        for bad in [
            &b"8 0 sda\n"[..],
            b"8 0\n",
            b"8 0 sda 1 2 3 4 5 6 7 8 9 10\n",
            b"8 0 sda 1 2 3 x 5 6 7 8 9 10 11\n",
            b"8 0 sda 1 2 3 4 5 6 7 8 9 10 99999999999999999999\n",
            &DISKS[..100],
        ] {
            assert_eq!(disks(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        let long = [b"8 0 ".as_slice(), &[b'x'; 9000], b" 1 2 3 4 5 6 7 8 9 10 11\n"].concat();
        assert_eq!(names(&long)[0].len(), LONGEST_NAME);
    }

    /// Linux 6.18; Linux 5.10 has no OutTransmits, and fewer values of TcpExt.
    const SNMP: &[u8] = b"Ip: Forwarding DefaultTTL InReceives OutTransmits\nIp: 2 64 11514216 11499679\n\
        Tcp: RtoAlgorithm RtoMin RtoMax MaxConn ActiveOpens PassiveOpens AttemptFails EstabResets CurrEstab InSegs OutSegs RetransSegs InErrs OutRsts InCsumErrors\n\
        Tcp: 1 200 120000 -1 19672 16912 2677 2610 0 11514035 11500608 55 0 5183 0\n\
        Udp: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdp: 179 0 4 181 3 0\n\
        UdpLite: InDatagrams NoPorts InErrors OutDatagrams RcvbufErrors SndbufErrors\nUdpLite: 0 0 0 0 0 0\n";
    const SNMP6: &[u8] = b"Ip6InReceives                   \t14\nUdp6InDatagrams                 \t20\nUdp6NoPorts\t0\n\
        Udp6InErrors                    \t2\nUdp6OutDatagrams\t21\nUdp6RcvbufErrors\t1\nUdpLite6InDatagrams\t9\n";
    const NETSTAT: &[u8] = b"TcpExt: SyncookiesSent TW ListenOverflows ListenDrops TCPTimeouts TCPLossProbes\nTcpExt: 0 16660 3 4 59 151\n\
        IpExt: InNoRoutes InOctets\nIpExt: 0 40544784113\n";
    const DEV: &[u8] = b"Inter-|   Receive                                                |  Transmit\n \
        face |bytes    packets errs drop fifo frame compressed multicast|bytes    packets errs drop fifo colls carrier compressed\n    \
        lo: 39787252889 11485372    0    0    0     0          0         0 39787252889 11485372    0    0    0     0       0          0\n  \
        eth0:757936080   28864    1    2    0     0          0         0  1697633   15476    3    4    0     0       0          0\n";

    #[test]
    fn counters_of_a_network_are_found_by_name() {
        assert_eq!(tcp_segments(SNMP), Some((11_500_608, 55)));
        let events = TcpEvents { timeouts: 59, listen_overflows: 3, listen_drops: 4 };
        assert_eq!(tcp_events(NETSTAT), Some(events));
        let eth0 = InterfaceCounters { name: "eth0".into(), packets: 44_340, errors: 4, dropped: 6 };
        let interfaces = interfaces(DEV).unwrap();
        assert_eq!((interfaces.len(), &interfaces[0].name, &interfaces[1]), (2, &"lo".to_owned(), &eth0));
        let v4 = Datagrams { received: 179, sent: 181, dropped: 4, overflows: 3 };
        let v6 = Datagrams { received: 20, sent: 21, dropped: 2, overflows: 1 };
        assert_eq!((datagrams(SNMP), datagrams_v6(SNMP6)), (Some(v4), Some(v6)));
        // In another order.
        assert_eq!(tcp_segments(b"Tcp: RetransSegs OutSegs\nTcp: 1 2\n"), Some((2, 1)));
    }

    #[test]
    fn counters_that_are_missing_are_no_zeros() {
        for bad in [
            &b""[..],
            b"Tcp: OutSegs RetransSegs\n",
            b"Tcp: OutSegs RetransSegs\nTcp: 7\n",
            b"Tcp: OutSegs\nTcp: 7\n",
            b"Tcp: OutSegs RetransSegs\nTcp: 7 -1\n",
            b"TcpExt: OutSegs RetransSegs\nTcpExt: 1 2\n",
        ] {
            assert_eq!(tcp_segments(bad), None, "{}", String::from_utf8_lossy(bad));
        }
        assert_eq!((tcp_events(SNMP), tcp_segments(NETSTAT)), (None, None));
        assert_eq!((datagrams(SNMP6), datagrams_v6(SNMP)), (None, None));
        assert_eq!(datagrams_v6(&SNMP6[..80]), None);
        let header = lines(DEV).take(2).collect::<Vec<_>>().join(&b'\n');
        assert_eq!(interfaces(&header), Some(vec![]));
        for bad in [&b""[..], b"a\n", b"a\nface |packets errs drop\n", &DEV[..DEV.len() - 40]] {
            assert_eq!(interfaces(bad), None, "{}", String::from_utf8_lossy(bad));
        }
    }

    proptest! {
        /// Almost valid input reaches more code of the parsers than random bytes do.
        #[test]
        fn no_damage_makes_a_parser_panic(which in 0..5usize, at in 0..800usize, byte in any::<u8>(), cut in 0..900usize) {
            let mut bytes = [DISKS, SNMP, SNMP6, NETSTAT, DEV][which].to_vec();
            let len = bytes.len();
            bytes[at % len] = byte;
            bytes.truncate(cut.max(1));
            all_parsers(&bytes);
        }
    }
}
