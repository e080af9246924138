//! Rung 8: memory of remote NUMA nodes.

use super::cases::share_case;
use crate::context::{Context, bytes, count, percent, percent_interval};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::catalogue::prices::{LOAD_4K, LOAD_OTHER_NODE};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::placement::{NodePages, Placement};
use allocwall_model::recording::{CpuSample, HardwareEvent, Recording};
use allocwall_model::stats::wilson;
use allocwall_model::units::{Absence, Interval, Reason, thousands};
use std::cmp::Reverse;
use std::collections::{BTreeMap, HashMap};

const WALL: Wall = Wall::Numa;
/// The share of remote accesses from which the placement alone is evidence. Pages that are spread evenly over two nodes
/// give 50 %, over four 75 %. Our choice.
const LOPSIDED: f64 = 0.8;
/// Less memory than this may be in the caches, whichever node it is on: the third-level caches of one socket of today
/// have up to 1,152 MiB (EPYC 9684X).
const LEAST_BYTES: u64 = 1152 << 20;
/// A remote load takes at most this many times as long as a local one, if the machine's price is not known. Two sockets
/// have 1.5 to 2.5 times. Our choice.
const DEAREST: f64 = 5.0;
/// A price list from elsewhere may have any prices.
const MOST_TIMES: f64 = 1e3;
const ESTIMATE: &str =
    "assumes that each process uses all its resident pages equally often; no counter of loads was read";
/// Loads from memory that a program waits for at the same time. Our choice: there are few in server programs (Ferdman et
/// al., ASPLOS 2012), and the many loads of streams are the prefetcher's, which the event does not count.
const LOADS_AT_ONCE: f64 = 2.5;
/// With fewer new pages, the machine's counters show no share.
const LEAST_NEW_PAGES: u64 = 1000;
/// Nodes with a line of their own in the evidence.
const MOST_LINES: usize = 4;

/// With a PMU: the number of remote loads, at this machine's price. Without: by the placement of the pages.
pub fn numa(ctx: &Context) -> Vec<Judged> {
    let show = ctx.show(|pid| format!("numastat -p {pid}"), "CMD & numastat -p $!");
    let placement = &ctx.recording.placement;
    if placement.is_err() && ctx.recording.host.numa_nodes <= 1 {
        return vec![Judged::ruled_out(WALL, Whole::Resident, "one node", show)];
    }
    let counted = by_loads(ctx, &show).filter(|judged| !judged.is(Status::NotMeasured));
    let judged = match placement {
        Ok(placement) => {
            let seen = Seen::of(ctx.recording, placement);
            let moved = ctx.host_increase(|h| h.numa_moved).unwrap_or(0);
            let remote = seen.remote(moved, ctx.recording.host.page_bytes);
            let mut judged = counted.unwrap_or_else(|| by_pages(ctx, &seen, remote, show));
            judged.finding.evidence.extend(seen.lines(remote));
            let unread = placement.unread.as_ref();
            judged.evidence_if(unread.map(|absence| format!("not read: {absence}")))
        }
        Err(absence) => {
            counted.unwrap_or_else(|| Judged::not_measured(WALL, Whole::Cpu, absence.clone(), show))
        }
    };
    vec![judged.evidence_if(moved_pages(ctx)).evidence_if(new_pages(ctx))]
}

/// Each load from another node costs what it takes longer than a local one: all of that, if it overlaps with no other
/// load, and a part, if it does.
fn by_loads(ctx: &Context, show: &ShellLine) -> Option<Judged> {
    const ESTIMATE: &str = "from counted remote loads and load prices; unknown how many loads overlap";
    let loads = ctx.hardware(HardwareEvent::NodeLoadMisses)?;
    let (far, near) = (ctx.price(LOAD_OTHER_NODE)?, ctx.price(LOAD_4K)?);
    if ctx.bill.cpu_s <= 0.0 {
        return None;
    }
    let share = |loads: f64, ns: f64| (loads * ns.max(0.0) / 1e9 / ctx.bill.cpu_s).min(1.0);
    let high = share(loads.high, far.high - near.low);
    let low = share(loads.low, far.low - near.high) / LOADS_AT_ONCE;
    let share = Interval::new(low, (low + high) / 2.0, high);
    Some(share_case(ctx, WALL, share, "may go to loads from other nodes", show).estimate(ESTIMATE))
}

/// Why there is no figure from counters.
fn not_counted(ctx: &Context) -> Absence {
    let absence = match &ctx.recording.hardware {
        Err(absence) => absence.clone(),
        Ok(counts) => counts.of(HardwareEvent::NodeLoadMisses).err().unwrap_or_else(|| {
            let why = "the hardware events do not show the cost of remote loads closely enough";
            Absence::new(Reason::TooLittle, why).mend("use a longer window: -d 60")
        }),
    };
    absence.mend_if_none(["use a machine with a PMU", "start it on one node with numactl and compare"])
}

/// Why the price of a remote load is not known. A list that was saved by an earlier version does not have it.
fn not_priced(ctx: &Context) -> Absence {
    let absent = ctx.recording.prices.as_ref().ok().and_then(|list| {
        let (_, absence) = list.absent.iter().find(|(name, _)| name == LOAD_OTHER_NODE)?;
        Some(absence.clone())
    });
    let unknown = || Absence::new(Reason::NotFound, "the price of a load from another node is not known");
    absent.unwrap_or_else(unknown).mend_if_none([Advice::command("allocwall calibrate --fresh")])
}

/// An upper bound of the cost: the whole computing time is loads of memory, on all resident pages equally often, at the
/// machine's price of a remote load. The bound can rule the wall out. It can't prove it; a lopsided placement can.
fn by_pages(ctx: &Context, seen: &Seen, remote: Interval, show: ShellLine) -> Judged {
    let busy = match ctx.busy() {
        Ok(busy) => busy.share,
        Err(absence) => return Judged::not_measured(WALL, Whole::Cpu, absence, show),
    };
    let times = match (ctx.price(LOAD_OTHER_NODE), ctx.price(LOAD_4K)) {
        (Some(far), Some(near)) => Some((far.high / near.low).clamp(1.0, MOST_TIMES)),
        _ => None,
    };
    let bound = busy.high * slowed(remote.high, times.unwrap_or(DEAREST));
    let share = Interval::new(0.0, bound / 2.0, bound);
    let mut judged = share_case(ctx, WALL, share, "is the upper bound for loads from other nodes", &show);
    let threshold = thresholds::of(WALL);
    if judged.is(Status::RuledOut) {
        judged.finding.because = if bound < threshold.contributor {
            format!("at most {} of CPU; threshold {}", percent(bound), percent(threshold.contributor))
        } else {
            // The share is large, of very little CPU time.
            format!("at most {:.0} ms a second", bound * ctx.undisturbed_cpu_rate() * 1e3)
        };
        return judged.estimate(ESTIMATE);
    }
    let lopsided = remote.low >= LOPSIDED && seen.bytes() >= LEAST_BYTES;
    if lopsided && times.is_some() && bound >= threshold.wall_from {
        let mut judged = Case {
            wall: WALL,
            share: remote,
            of: Whole::Resident,
            amount: remote.scaled(ctx.cpu_rate),
            unit: "of its memory",
            phrase: "is on another node than the CPUs that use it",
            show: show.clone(),
        }
        .judge_undisturbed(ctx.undisturbed());
        // A share of pages, not of time: it is not compared with walls of time.
        judged.cost = 0.0;
        if judged.is(Status::Wall) {
            judged.finding.because = format!(
                "{} of its memory is on another node than the CPUs that use it, which costs at most {} of CPU",
                percent_interval(remote),
                percent(bound)
            );
            return judged.estimate(ESTIMATE);
        }
    }
    let missing = match times {
        None => not_priced(ctx),
        Some(_) => not_counted(ctx),
    };
    let mut judged = Judged::not_measured(WALL, Whole::Cpu, missing, show);
    judged.finding.because = format!("at most {} of CPU (an upper bound, not a measurement)", percent(bound));
    judged.estimate(ESTIMATE)
}

/// The share of time that is lost if this share of all loads takes `times` as long.
fn slowed(remote: f64, times: f64) -> f64 {
    let lost = remote * (times - 1.0);
    lost / (1.0 + lost)
}

/// The memory of the target's processes by node, and the nodes on which its samples ran.
#[derive(Default)]
struct Seen {
    pages: BTreeMap<u32, NodePages>,
    /// Samples on each node.
    ran: BTreeMap<u32, u64>,
    all: u64,
    /// Samples on a known node, of a process whose pages were read.
    known: u64,
    /// Sum over these samples of the part of the process's pages that is on other nodes.
    remote: f64,
    /// How often two successive samples of a thread were on different nodes.
    moves: u64,
}

impl Seen {
    fn of(recording: &Recording, placement: &Placement) -> Seen {
        let mut seen = Seen { all: recording.samples.len() as u64, ..Seen::default() };
        let mut parts: HashMap<i32, HashMap<u32, f64>> = HashMap::new();
        for process in &placement.processes {
            let all: f64 = process.nodes.iter().map(|n| n.bytes() as f64).sum();
            for pages in &process.nodes {
                let sum = seen
                    .pages
                    .entry(pages.node)
                    .or_insert(NodePages { node: pages.node, ..NodePages::default() });
                sum.heap = sum.heap.saturating_add(pages.heap);
                sum.anonymous = sum.anonymous.saturating_add(pages.anonymous);
                sum.file = sum.file.saturating_add(pages.file);
                if all > 0.0 {
                    *parts.entry(process.pid).or_default().entry(pages.node).or_default() +=
                        pages.bytes() as f64 / all;
                }
            }
        }
        let node_of: HashMap<u16, u32> =
            placement.nodes.iter().flat_map(|n| n.cpus.iter().map(|cpu| (*cpu, n.node))).collect();
        // The buffers of different CPUs are read in turn, so the samples are only nearly in order.
        let mut by_time: Vec<&CpuSample> = recording.samples.iter().collect();
        by_time.sort_by_key(|sample| sample.t_ns);
        let mut last: HashMap<(i32, i32), u32> = HashMap::new();
        for sample in by_time {
            let Some(&node) = node_of.get(&sample.cpu) else { continue };
            *seen.ran.entry(node).or_default() += 1;
            let before = last.insert((sample.pid, sample.tid), node);
            seen.moves += u64::from(before.is_some_and(|before| before != node));
            if let Some(parts) = parts.get(&sample.pid) {
                seen.known += 1;
                seen.remote += 1.0 - parts.get(&node).copied().unwrap_or(0.0);
            }
        }
        seen
    }

    fn bytes(&self) -> u64 {
        self.pages.values().fold(0, |sum, pages| sum.saturating_add(pages.bytes()))
    }

    /// The expected share of accesses to other nodes: for each sample, the part of its process's pages that is there.
    /// Of the other samples it is unknown. `moved`: pages that the kernel moved between nodes within the window; they may be
    /// this target's, and were elsewhere before.
    fn remote(&self, moved: u64, page_bytes: u64) -> Interval {
        if self.known == 0 {
            return Interval::new(0.0, 0.0, 1.0);
        }
        let point = (self.remote / self.known as f64).clamp(0.0, 1.0);
        // The values lie between 0 and 1, so they vary at most as much as a proportion with this mean.
        let known = wilson(self.remote.round() as u64, self.known);
        let part = self.known as f64 / self.all.max(self.known) as f64;
        let elsewhere = (moved as f64 * page_bytes as f64 / self.bytes().max(1) as f64).min(1.0);
        let low = (known.low * part - elsewhere).clamp(0.0, point);
        let high = (known.high * part + (1.0 - part) + elsewhere).clamp(point, 1.0);
        Interval::new(low, point, high)
    }

    /// One line for each of the nodes with most of the memory, and what follows from them.
    fn lines(&self, remote: Interval) -> Vec<String> {
        let none = |node: &u32| NodePages { node: *node, ..NodePages::default() };
        let idle = self.ran.keys().filter(|node| !self.pages.contains_key(*node)).map(none);
        let mut nodes: Vec<NodePages> = self.pages.values().copied().chain(idle).collect();
        let ran = |node: u32| self.ran.get(&node).copied().unwrap_or(0);
        nodes.sort_by_key(|pages| Reverse((pages.bytes(), ran(pages.node))));
        let samples = self.ran.values().sum::<u64>().max(1) as f64;
        let line = |pages: &NodePages| {
            format!(
                "node {}: {} of its memory (heap {}, other private {}, files and shared {}), {} of its CPU time",
                pages.node,
                bytes(pages.bytes() as f64),
                bytes(pages.heap as f64),
                bytes(pages.anonymous as f64),
                bytes(pages.file as f64),
                percent(ran(pages.node) as f64 / samples)
            )
        };
        let mut lines: Vec<String> = nodes.iter().take(MOST_LINES).map(line).collect();
        lines.push(format!("{} of its accesses are expected on another node", percent_interval(remote)));
        if self.moves > 0 {
            lines.push(format!("threads changed the node at least {} times", thousands(self.moves)));
        }
        lines
    }
}

/// The work of automatic NUMA balancing.
fn moved_pages(ctx: &Context) -> Option<String> {
    let moved = ctx.host_increase(|h| h.numa_moved)?;
    let hints = ctx.host_increase(|h| h.numa_hint_faults)?;
    let moved_bytes = bytes(moved as f64 * ctx.recording.host.page_bytes as f64);
    (moved > 0 || hints > 0).then(|| {
        format!(
            "the kernel moved {moved_bytes} between nodes, after {} hint faults (whole machine)",
            count(hints as f64)
        )
    })
}

/// The counters of the whole machine.
fn new_pages(ctx: &Context) -> Option<String> {
    let remote = ctx.host_increase(|h| h.numa_remote)?;
    let all = remote.saturating_add(ctx.host_increase(|h| h.numa_local)?);
    let share = percent(remote as f64 / all.max(1) as f64);
    (all >= LEAST_NEW_PAGES).then(|| {
        format!("{share} of the machine's new pages are on another node than the CPU that requested them")
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Subject, absent, computing};
    use allocwall_model::catalogue::cost::CostClass;
    use allocwall_model::placement::{NodeCpus, Placed};
    use allocwall_model::recording::{HardwareCount, HardwareCounts, HardwareSlice, HardwareSlices, Price};

    const MUCH: u64 = 2 << 30;

    /// CPUs and resident bytes of each node, and the CPU of all samples. A remote load takes 240 ns, a local one 120 ns.
    fn placed(nodes: &[(&[u16], u64)], cpu: u16) -> Subject {
        let mut subject = computing();
        let of = |(node, (cpus, bytes)): (usize, &(&[u16], u64))| {
            let node = node as u32;
            (
                NodeCpus { node, cpus: cpus.to_vec() },
                NodePages { node, anonymous: *bytes, ..NodePages::default() },
            )
        };
        let (nodes, pages): (Vec<_>, Vec<_>) = nodes.iter().enumerate().map(of).unzip();
        subject.recording.host.numa_nodes = pages.iter().filter(|pages| pages.anonymous > 0).count() as u32;
        let pid = subject.process().pid;
        let processes = vec![Placed { pid, nodes: pages }];
        subject.recording.placement = Ok(Placement { nodes, processes, unread: None });
        subject.recording.hardware = Err(absent());
        remote_load(&mut subject, 240.0);
        samples(&mut subject, pid, cpu, 1_000);
        subject
    }

    fn remote_load(subject: &mut Subject, ns: f64) {
        let prices = &mut subject.recording.prices.as_mut().unwrap().prices;
        prices.retain(|price| price.name != LOAD_OTHER_NODE);
        prices.push(Price { name: LOAD_OTHER_NODE.into(), ns: Interval::exact(ns), repetitions: 20 });
    }

    fn samples(subject: &mut Subject, pid: i32, cpu: u16, n: u64) {
        let sample = |t_ns| CpuSample {
            t_ns,
            pid,
            tid: pid,
            cpu,
            kernel: None,
            user: None,
            deep: false,
            faulted: None,
        };
        subject.recording.samples.extend((0..n).map(sample));
    }

    fn status(subject: &Subject) -> Status {
        subject.finding(WALL).status
    }

    #[test]
    fn memory_on_the_other_node_is_the_wall_and_local_memory_is_not() {
        let far = placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], 0);
        let finding = far.finding(WALL);
        assert_eq!((finding.status, finding.of), (Status::Wall, Whole::Resident), "{finding:?}");
        assert!(
            finding.estimate.is_some() && finding.evidence[0].starts_with("node 1: 2.0 GiB "),
            "{finding:?}"
        );
        let verdict = far.verdict();
        assert_eq!(verdict.walls, [WALL]);
        assert!(verdict.sentence.starts_with("NUMA is the wall: 100 % "), "{}", verdict.sentence);
        let near = placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], 2).finding(WALL);
        assert_eq!((near.status, near.of), (Status::RuledOut, Whole::Cpu), "{near:?}");
        assert!(near.because.chars().count() <= 60, "{}", near.because);
        // Without the price of a remote load, local memory is still no wall.
        let mut unpriced = placed(&[(&[0, 1], MUCH), (&[2, 3], 0)], 0);
        unpriced.recording.prices = Err(absent());
        assert_eq!(status(&unpriced), Status::RuledOut);
    }

    #[test]
    fn without_proof_the_bound_is_all_that_is_known() {
        let lopsided = || placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], 0);
        let missing = |subject: &Subject| {
            let finding = subject.finding(WALL);
            assert_eq!(finding.status, Status::NotMeasured, "{finding:?}");
            assert!(finding.because.starts_with("at most "), "{finding:?}");
            finding.missing.unwrap().reason
        };
        // Spread evenly, or small enough for the caches.
        assert_eq!(missing(&placed(&[(&[0, 1], MUCH), (&[2, 3], MUCH)], 0)), Reason::NotSupported);
        assert_eq!(missing(&placed(&[(&[0, 1], 0), (&[2, 3], 64 << 20)], 0)), Reason::NotSupported);
        // A machine without prices, and one where a remote load costs hardly more.
        let mut unpriced = lopsided();
        unpriced.recording.prices = Err(absent());
        assert_eq!(missing(&unpriced), Reason::NotFound);
        let mut cheap = lopsided();
        remote_load(&mut cheap, 128.0);
        assert_eq!(missing(&cheap), Reason::NotSupported);
        remote_load(&mut cheap, 114.0);
        assert_eq!(status(&cheap), Status::RuledOut);
        // A target that hardly runs.
        let mut idle = lopsided();
        idle.cpus(0.01);
        assert_eq!(status(&idle), Status::RuledOut);
    }

    #[test]
    fn what_was_not_read_is_neither_near_nor_far() {
        for cpu in [0, 2] {
            let whole = || placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], cpu);
            assert_ne!(status(&whole()), Status::NotMeasured);
            // A process whose pages were not read.
            let mut other = whole();
            samples(&mut other, 7, cpu, 1_000);
            assert_eq!(status(&other), Status::NotMeasured);
            // The kernel moved a quarter of the memory within the window.
            let mut moved = whole();
            moved.first_host().numa_moved = Some(5);
            moved.last_host().numa_moved = Some(5 + MUCH / 4 / 4096);
            assert_eq!(status(&moved), Status::NotMeasured);
            let mut none = whole();
            none.recording.placement = Err(absent());
            none.recording.host.numa_nodes = 2;
            assert_eq!(status(&none), Status::NotMeasured);
            none.recording.host.numa_nodes = 1;
            assert_eq!(none.finding(WALL).because, "one node");
        }
    }

    #[test]
    fn nodes_without_memory_and_cpus_with_holes() {
        // CPU 5 is in no list: it went offline.
        let nodes: &[(&[u16], u64)] = &[(&[0, 4], 0), (&[], 0), (&[2, 6], MUCH), (&[], 0)];
        for (cpu, expected) in [
            (0, Status::Wall),
            (4, Status::Wall),
            (2, Status::RuledOut),
            (6, Status::RuledOut),
            (5, Status::NotMeasured),
        ] {
            assert_eq!(status(&placed(nodes, cpu)), expected, "{cpu}");
        }
        // Memory on a node without CPUs is far from all of them.
        assert_eq!(status(&placed(&[(&[0, 1], 0), (&[], MUCH)], 1)), Status::Wall);
    }

    #[test]
    fn counted_loads_decide_wherever_the_pages_are() {
        let counted = |cpu, loads_a_second: u64| {
            let mut subject = placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], cpu);
            let slice =
                HardwareSlice { count: loads_a_second, enabled_ns: 1_000_000_000, running_ns: 1_000_000_000 };
            let event = HardwareEvent::NodeLoadMisses;
            let events = vec![HardwareCount { event, counted: Ok(HardwareSlices { slices: vec![slice] }) }];
            subject.recording.hardware = Ok(HardwareCounts { kernel: true, throughout: true, events });
            subject
        };
        for cpu in [0, 2] {
            // 63 % at most, and 23 % if the loads overlap.
            let much = counted(cpu, 5_000_000).finding(WALL);
            assert_eq!((much.status, much.of), (Status::Wall, Whole::Cpu), "{much:?}");
            assert!(much.estimate.is_some() && much.evidence[0].starts_with("node 1: "), "{much:?}");
            assert_eq!(status(&counted(cpu, 1_500_000)), Status::Contributor);
            assert_eq!(status(&counted(cpu, 100_000)), Status::RuledOut);
            // Without the pages too, but not without the price.
            let mut unread = counted(cpu, 5_000_000);
            unread.recording.placement = Err(absent());
            unread.recording.host.numa_nodes = 2;
            assert_eq!(status(&unread), Status::Wall);
            unread.recording.prices = Err(absent());
            assert_eq!(status(&unread), Status::NotMeasured);
        }
    }

    #[test]
    fn the_machine_s_counters_are_evidence_but_no_verdict() {
        for cpu in [0, 2] {
            let mut subject = placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], cpu);
            let before = status(&subject);
            let first = subject.first_host();
            (first.numa_remote, first.numa_local) = (Some(0), Some(0));
            let last = subject.last_host();
            (last.numa_remote, last.numa_local) = (Some(47_000), Some(53_000));
            let finding = subject.finding(WALL);
            assert_eq!(finding.status, before);
            assert!(
                finding.evidence.iter().any(|line| line.starts_with("47 % of the machine's")),
                "{finding:?}"
            );
        }
    }

    #[test]
    fn moves_of_threads_are_counted_in_order_of_time() {
        let mut subject = placed(&[(&[0, 1], MUCH), (&[2, 3], MUCH)], 0);
        let pid = subject.process().pid;
        subject.recording.samples.clear();
        for (t_ns, cpu) in [(3, 2), (1, 0), (2, 1), (4, 0)] {
            samples(&mut subject, pid, cpu, 1);
            subject.recording.samples.last_mut().unwrap().t_ns = t_ns;
        }
        let seen = Seen::of(&subject.recording, subject.recording.placement.as_ref().unwrap());
        assert_eq!((seen.moves, seen.known, seen.all), (2, 4, 4));
    }

    #[test]
    fn numa_is_not_compared_with_walls_of_time() {
        let mut subject = placed(&[(&[0, 1], 0), (&[2, 3], MUCH)], 0);
        subject.shares(&[(CostClass::FaultPath, 0.2)]);
        assert_eq!(subject.verdict().walls, [Wall::FirstTouch, WALL]);
    }
}
