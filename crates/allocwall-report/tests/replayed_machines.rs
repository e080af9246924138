//! The whole diagnosis, from /proc and /sys to the reports, over generated trees of machines that are not available.
//! perf events cannot be replayed: samples come from a generator in place of the kernel's clocks, or are absent with
//! a reason.

use allocwall_diagnose::bill::{self, Bill};
use allocwall_diagnose::{Status, Verdict};
use allocwall_host::clock;
use allocwall_host::facts::Machine;
use allocwall_host::perf::{Clocks, Event, Periods, REGISTERS, RawSample, Registers};
use allocwall_measure::reading::Readers;
use allocwall_measure::record::{self, Request, Target};
use allocwall_model::allocations::not_counted;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::error::Error;
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_report::text::{Extent, Style};
use allocwall_report::{collapsed, flamegraph, json, text};
use allocwall_sketches::machines::{Groups, Home, Server, TARGET, Tree};
use std::fs;
use std::io;
use std::path::Path;
use std::rc::Rc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

/// Long enough for two readings of slow counters, in addition to those at both ends.
const WINDOW: Duration = Duration::from_millis(600);
const SHORT: Duration = Duration::from_millis(30);

/// Replaces the kernel's clocks. Half of the machine's CPUs run the target, and its counters change accordingly.
struct Generated {
    tree: Rc<Tree>,
    cpus: Vec<u32>,
    periods: Periods,
    started_ns: u64,
    /// CPU time that was used until `stop`, milliseconds.
    used_ms: u64,
    narrow: bool,
}

impl Clocks for Generated {
    fn start(&mut self) -> io::Result<()> {
        self.started_ns = clock::monotonic_ns();
        Ok(())
    }

    fn stop(&mut self) -> io::Result<()> {
        let passed_ms = (clock::monotonic_ns() - self.started_ns) / 1_000_000;
        // Whole clock ticks per thread, so that the kernel's account is exact.
        let server = &self.tree.server;
        let sharers = u64::from(server.processes * server.threads);
        let each = passed_ms * self.cpus.len() as u64 / 2 / sharers / 10 * 10;
        self.used_ms = each * sharers;
        self.tree.advance(passed_ms, self.used_ms);
        Ok(())
    }

    fn drain(&mut self, last: bool, sink: &mut dyn FnMut(u64, Event<'_>)) {
        if !last {
            return;
        }
        let server = &self.tree.server;
        let threads: Vec<(i32, i32)> =
            server.pids().flat_map(|pid| server.tids(pid).map(move |tid| (pid, tid))).collect();
        let count = self.used_ms * 1_000_000 / self.periods.sample_ns();
        let passed = clock::monotonic_ns() - self.started_ns;
        for n in 0..count {
            let time_ns = self.started_ns + passed * n / count;
            let (pid, tid) = threads[n as usize % threads.len()];
            let sample = RawSample {
                time_ns,
                pid,
                tid,
                cpu: self.cpus[n as usize % self.cpus.len()],
                kernel: &[],
                // Three of four samples are in the program, the others in the C library.
                registers: Some(registers(match n % 4 {
                    0 => 0x7f00_0000_0100,
                    _ => 0x55d0_0000_0100 + n % 7 * 0x40,
                })),
                stack: &[],
                narrow: self.narrow,
                deep: n.is_multiple_of(5),
            };
            sink(time_ns, Event::Sample(sample));
        }
    }
}

/// Instruction pointer and stack pointer have the indices of asm/perf_regs.h.
fn registers(ip: u64) -> Registers {
    let mut registers = [0; REGISTERS];
    let (ip_at, sp_at) = if cfg!(target_arch = "x86_64") { (8, 7) } else { (32, 31) };
    registers[ip_at] = ip;
    registers[sp_at] = 0x7ffd_0000_1000;
    registers
}

struct Judged {
    recording: Recording,
    bill: Bill,
    verdict: Verdict,
    text: String,
}

#[derive(Clone, Copy, PartialEq)]
enum Sampling {
    Generated,
    Narrow,
    Refused,
}

fn target() -> Target {
    Target::Pids(vec![TARGET])
}

fn recorded(
    tree: &Rc<Tree>,
    target: Target,
    window: Duration,
    sampling: Sampling,
) -> Result<Recording, Error> {
    let mut open = |cpus: &[u32], periods| -> Measured<Box<dyn Clocks>> {
        if sampling == Sampling::Refused {
            return Err(Absence::new(Reason::NotPermitted, "no perf events on this machine"));
        }
        Ok(Box::new(Generated {
            tree: tree.clone(),
            cpus: cpus.to_vec(),
            periods,
            started_ns: 0,
            used_ms: 0,
            narrow: sampling == Sampling::Narrow,
        }))
    };
    let request = Request {
        target,
        window,
        rate_hz: None,
        closely: false,
        counting: Err(not_counted()),
        memory: true,
        output: None,
        prices: Err(Absence::new(Reason::NotFound, "no price list")),
        readers: Readers::Here,
        interrupted: &AtomicBool::new(false),
        // Without sampling, the target still uses CPU time.
        progress: &mut |part| {
            if sampling == Sampling::Refused {
                let passed_ms = (window.as_millis() as f64 * part) as u64;
                tree.advance(passed_ms, passed_ms / 40 * 40);
            }
        },
    };
    let machine = Machine::at(tree.root());
    record::record_on(&machine, Some(&mut open), request).map(|recorded| recorded.recording)
}

/// The recording with bill, verdict and reports, after consistency checks.
fn judged(recording: Recording) -> Judged {
    let bill = bill::of(&recording);
    let verdict = allocwall_diagnose::verdict(&recording, &bill);
    let text = text::diagnosis(&recording, &bill, &verdict, None, Extent::All, Style::FILE);
    let document: serde_json::Value =
        serde_json::from_str(&json::document(&recording, &bill, &verdict)).expect("JSON");
    let memory = &document["host"]["memory_bytes"];
    assert!(memory.is_null() || memory.as_u64() > Some(0), "{memory}");
    for line in collapsed::stacks(&recording).lines() {
        assert!(line.rsplit_once(' ').is_some_and(|(_, n)| n.parse::<u64>().is_ok()));
    }
    let _ = flamegraph::svg(&recording, &bill);
    if let Ok(lines) = &bill.on_cpu {
        let shares: f64 = lines.iter().map(|line| line.share.point).sum();
        assert!((shares - 1.0).abs() < 1e-9, "{shares}");
        let seconds: f64 = lines.iter().map(|line| line.cpu_s.point).sum();
        assert!((seconds - bill.cpu_s).abs() < 1e-6 * bill.cpu_s.max(1.0), "{seconds}");
    }
    for probe in &recording.probes {
        if let ProbeState::Partial(absence) | ProbeState::Absent(absence) = &probe.state {
            assert!(!absence.detail.is_empty() && !absence.detail.contains('\n'), "{absence}");
        }
    }
    for figure in ["NaN", "inf ", " 0 CPUs", "0 processes", " 0.0 GiB", "-0.0"] {
        assert!(!text.contains(figure), "{figure}: {text}");
    }
    Judged { recording, bill, verdict, text }
}

fn whole(server: &Server) -> Judged {
    let tree = Rc::new(server.build());
    judged(recorded(&tree, target(), WINDOW, Sampling::Generated).expect("a recording"))
}

fn state(judged: &Judged, probe: ProbeName) -> &ProbeState {
    let found = judged.recording.probe(probe);
    &found.unwrap_or_else(|| panic!("no probe {probe:?}")).state
}

/// Checks that apply to every machine with all files.
fn agrees(server: &Server) -> Judged {
    let judged = whole(server);
    let host = &judged.recording.host;
    assert_eq!(host.kernel_release, server.kernel);
    assert_eq!(host.online_cpus as usize, server.cpu_numbers().len());
    assert_eq!(judged.recording.processes.len(), server.processes as usize);
    assert_eq!(*state(&judged, ProbeName::CpuSamples), ProbeState::Measured);
    // The kernel's account and the samples must agree.
    let bill = &judged.bill;
    assert!(bill.cpu_s > 0.0 && bill.on_cpu.is_ok(), "{}", judged.text);
    let covered = (bill.sampled_cpu_s + bill.switching_cpu_s) / bill.cpu_s;
    assert!((0.98..=1.02).contains(&covered), "{covered}");
    assert!(!judged.text.contains("used no CPU"), "{}", judged.text);
    let devices = &judged.recording.devices;
    assert!(devices.disks.is_ok() && devices.network.is_ok(), "{devices:?}");
    for wall in [Wall::Disk, Wall::Network] {
        let found = judged.verdict.findings.iter().find(|f| f.wall == wall).expect("one a wall");
        assert_eq!(found.status, Status::RuledOut, "{found:?}");
    }
    let online = server.cpu_numbers();
    assert!(judged.recording.samples.iter().all(|s| online.contains(&u32::from(s.cpu))));
    judged
}

#[test]
fn from_eight_cpus_to_two_thousand() {
    for (cpus, nodes) in [
        ("0-7", &["0-7"][..]),
        ("0-63", &["0-31", "32-63"]),
        ("0-511", &["0-255", "256-511"]),
        ("0-2047", &["0-1023", "1024-2047"]),
    ] {
        let with_memory = if nodes.len() == 1 { "0" } else { "0-1" };
        // Busy threads on half of the CPUs.
        let threads = match cpus {
            "0-2047" => 256,
            "0-511" => 64,
            "0-63" => 8,
            _ => 1,
        };
        let judged = agrees(&Server {
            cpus,
            nodes,
            with_memory,
            uptime_s: 3600,
            processes: 4,
            threads,
            ..Server::usual()
        });
        assert_eq!(judged.recording.host.numa_nodes as usize, nodes.len());
    }
}

/// On the larger machine, the idle time exceeds 64 bits of nanoseconds.
#[test]
fn counters_after_four_hundred_days_and_near_their_width() {
    let near_the_width = (1 << 62) / 10_000_000;
    for (cpus, nodes) in [("0-7", &["0-7"]), ("0-1023", &["0-1023"])] {
        let judged = agrees(&Server {
            cpus,
            nodes,
            uptime_s: 400 * 86_400,
            threads: if cpus == "0-7" { 2 } else { 256 },
            past: near_the_width,
            ..Server::usual()
        });
        let text = &judged.text;
        assert!(!text.contains("not a usable recording"), "{text}");
    }
}

#[test]
fn holes_among_cpus_and_nodes_without_memory_or_cpus() {
    let nodes = &["0,2-5", "8-15", "20-27", "", "32-39", "40-47", "48-55", "56-63"];
    let judged = agrees(&Server {
        cpus: "0,2-5,8-15,20-27,32-63",
        nodes,
        with_memory: "0-1,3-4,7",
        threads: 13,
        ..Server::usual()
    });
    assert_eq!(judged.recording.host.numa_nodes, 5);
    assert_eq!(judged.recording.host.online_cpus, 53);
}

#[test]
fn pages_by_node_against_the_cpus_of_the_samples() {
    let nodes = &["0-3", "4-7"];
    for pages_on in [0, 1] {
        let judged = agrees(&Server { nodes, with_memory: "0-1", pages_on, ..Server::usual() });
        let placement = judged.recording.placement.as_ref().expect("two nodes");
        assert_eq!((placement.nodes.len(), placement.processes.len()), (2, 2));
        assert_eq!(placement.nodes[1].cpus, [4, 5, 6, 7]);
        let pages: Vec<_> = placement.processes[0].nodes.iter().map(|n| (n.node, n.heap, n.file)).collect();
        assert_eq!(pages, [(pages_on, 75 * 4096, 0)]);
        let numa = judged.verdict.findings.iter().find(|f| f.wall == Wall::Numa).expect("one a wall");
        assert!(numa.evidence[0].starts_with(&format!("node {pages_on}: 600 KiB ")), "{numa:?}");
    }
    let one = agrees(&Server::usual());
    assert_eq!(one.recording.placement.as_ref().unwrap_err().reason, Reason::NotApplicable);
    assert!(one.recording.probe(ProbeName::Numa).is_none());
}

#[test]
fn every_kind_of_cgroup_and_container() {
    for groups in [Groups::V1, Groups::V2, Groups::Hybrid, Groups::None] {
        for home in [Home::Host, Home::Lxc, Home::Docker, Home::Kubernetes] {
            let judged = agrees(&Server { groups, home, ..Server::usual() });
            let recording = &judged.recording;
            let last = recording.ticks.last().unwrap();
            match groups {
                Groups::None => {
                    assert!(matches!(state(&judged, ProbeName::Cgroup), ProbeState::Absent(_)));
                    assert!(last.cgroup.is_none() && recording.host.cgroup_version.is_err());
                }
                _ => {
                    assert_eq!(*state(&judged, ProbeName::Cgroup), ProbeState::Measured);
                    assert_eq!(last.cgroup.unwrap().quota_cpus, Some(4.0), "{groups:?} {home:?}");
                    let version = if groups == Groups::V2 { 2 } else { 1 };
                    assert_eq!(recording.host.cgroup_version, Ok(version));
                }
            }
            let container = recording.host.container.as_deref();
            let expected = match home {
                Home::Host => None,
                Home::Lxc => Some("lxc"),
                Home::Docker => Some("docker"),
                Home::Kubernetes => Some("kubernetes"),
            };
            assert_eq!(container, expected);
        }
    }
}

#[test]
fn kernels_with_less_in_them_and_processes_that_are_hidden() {
    for kernel in ["5.10.0-32-amd64", "5.15.0-1071-aws", "6.1.0-28-arm64", "6.6.30-gke", "6.18.0"] {
        let judged =
            agrees(&Server { kernel, whole_kernel: false, hidepid: true, processes: 3, ..Server::usual() });
        let last = judged.recording.ticks.last().unwrap();
        assert_eq!(last.host.unwrap().psi_cpu_us, None);
        assert!(judged.recording.threads.is_empty());
    }
}

#[test]
fn a_group_as_target_and_no_samples_at_all() {
    let tree = Rc::new(Server::usual().build());
    let group = Target::Cgroup("/system.slice/api.service".to_owned());
    let by_group = judged(recorded(&tree, group, SHORT, Sampling::Generated).unwrap());
    assert_eq!(by_group.recording.processes.len(), 2);
    let blind = judged(recorded(&tree, target(), WINDOW, Sampling::Refused).unwrap());
    assert!(blind.bill.on_cpu.is_err() && blind.bill.cpu_s > 0.0);
    assert!(
        matches!(state(&blind, ProbeName::CpuSamples), ProbeState::Absent(a) if a.reason == Reason::NotPermitted)
    );
    assert!(!blind.text.contains("used no CPU"), "{}", blind.text);
}

#[test]
fn code_of_32_bits_is_classed_by_its_leaf_and_not_unwound() {
    let tree = Rc::new(Server::usual().build());
    let narrow = judged(recorded(&tree, target(), WINDOW, Sampling::Narrow).unwrap());
    let ProbeState::Partial(absence) = state(&narrow, ProbeName::CpuSamples) else {
        panic!("{:?}", state(&narrow, ProbeName::CpuSamples));
    };
    assert!(absence.detail.contains("32-bit"), "{absence}");
    let recording = &narrow.recording;
    for sample in &recording.samples {
        let stack = &recording.stacks[sample.user.unwrap() as usize];
        assert!(stack.frames.len() == 1 && !stack.complete);
    }
    let wide = judged(recorded(&tree, target(), WINDOW, Sampling::Generated).unwrap());
    let shares = |judged: &Judged| -> Vec<f64> {
        let lines = judged.bill.on_cpu.as_ref().unwrap();
        lines.iter().map(|line| (line.share.point * 50.0).round()).collect()
    };
    assert_eq!(shares(&narrow), shares(&wide));
}

#[test]
fn a_cpu_without_sibling_files_is_sampled_all_the_same() {
    let tree = Rc::new(Server::usual().build());
    let cpus = tree.root().join("sys/devices/system/cpu");
    fs::remove_dir_all(cpus.join("cpu3")).unwrap();
    fs::remove_dir_all(tree.root().join("sys/devices/system/node/node0")).unwrap();
    let judged = judged(recorded(&tree, target(), SHORT, Sampling::Generated).unwrap());
    assert_eq!(*state(&judged, ProbeName::CpuSamples), ProbeState::Measured);
    // Without the list, the CPUs to sample are unknown.
    fs::remove_file(cpus.join("online")).unwrap();
    let without = self::judged(recorded(&tree, target(), SHORT, Sampling::Generated).unwrap());
    assert!(
        matches!(state(&without, ProbeName::CpuSamples), ProbeState::Absent(a) if a.reason == Reason::NotFound)
    );
}

#[test]
fn a_process_with_a_million_mappings_is_known_by_its_code() {
    let tree = Rc::new(Server::usual().build());
    let maps = tree.root().join(format!("proc/{TARGET}/maps"));
    let mut text = fs::read_to_string(&maps).unwrap();
    let buffers: String = (0..700_000u64)
        .map(|i| {
            let at = 0x6000_0000_0000 + i * 0x2000;
            format!("{at:x}-{:x} rw-p 00000000 00:00 0 \n", at + 0x1000)
        })
        .collect();
    text.insert_str(text.find("7f00").unwrap(), &buffers);
    assert!(text.len() > 32 << 20);
    fs::write(&maps, text).unwrap();
    let judged = judged(recorded(&tree, target(), SHORT, Sampling::Generated).unwrap());
    let paths: Vec<&str> = judged.recording.modules.iter().map(|m| &*m.path).collect();
    assert!(paths.contains(&"/usr/lib/libc.so.6"), "{paths:?}");
}

/// A change of one file of a tree.
#[derive(Clone, Copy, Debug)]
enum Damage {
    Removed,
    Emptied,
    CutShort,
}

fn damage(path: &Path, damage: Damage) {
    let bytes = fs::read(path).unwrap();
    match damage {
        Damage::Removed => fs::remove_file(path).unwrap(),
        Damage::Emptied => fs::write(path, "").unwrap(),
        Damage::CutShort => fs::write(path, &bytes[..bytes.len() / 2]).unwrap(),
    }
}

/// Two CPUs and two processes, to keep the number of files small.
fn small(groups: Groups) -> Server {
    Server { cpus: "0-1", nodes: &["0", "1"], with_memory: "0-1", groups, threads: 1, ..Server::usual() }
}

#[test]
fn any_file_may_be_missing_empty_or_cut_short() {
    let mut cases = Vec::new();
    for groups in [Groups::V1, Groups::V2] {
        let server = small(groups);
        let tree = server.build();
        for file in tree.files() {
            let name = file.strip_prefix(tree.root()).unwrap().to_path_buf();
            for kind in [Damage::Removed, Damage::Emptied, Damage::CutShort] {
                // Most files do not depend on the groups' version.
                if groups == Groups::V1 || name.starts_with("sys/fs/cgroup") {
                    cases.push((server.clone(), name.clone(), kind));
                }
            }
        }
    }
    assert!(cases.len() > 150, "{}", cases.len());
    let (next, reports) = (AtomicUsize::new(0), AtomicUsize::new(0));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                while let Some((server, name, kind)) = cases.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let tree = Rc::new(server.build());
                    damage(&tree.root().join(name), *kind);
                    match recorded(&tree, target(), SHORT, Sampling::Generated) {
                        Ok(recording) => {
                            judged(recording);
                            reports.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => {
                            let line = error.to_string();
                            assert!(!line.is_empty() && !line.contains('\n'), "{name:?} {kind:?}: {line}");
                        }
                    }
                }
            });
        }
    });
    // Only files that identify the target and its owner can end a diagnosis.
    let refused = cases.len() - reports.into_inner();
    assert!(refused <= 8, "{refused} of {} were refused", cases.len());
}
