//! Cases for the tests of the reports. The figures are invented.

use allocwall_diagnose::bill::{Basis, Bill, CpuLine, Faulted, OwnerShare, Rates, Sampled, Site, WaitLine};
use allocwall_diagnose::{Finding, Prescription, ShellLine, Status, Verdict, Whole};
use allocwall_model::catalogue::advice::{self, Advice};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Interval, Reason};
use allocwall_sketches::recording::empty;

#[derive(Clone)]
pub struct Case {
    pub name: &'static str,
    pub rec: Recording,
    pub bill: Bill,
    pub verdict: Verdict,
}

pub fn all() -> Vec<Case> {
    vec![first_touch(), nothing_found(), not_root(), throttled()]
}

fn not_permitted() -> Absence {
    Absence::new(Reason::NotPermitted, "perf_event_paranoid is 2: kernel samples are for root")
        .mend(advice::KERNEL_STACKS)
}

fn no_pmu() -> Absence {
    Absence::new(Reason::NotSupported, "no PMU: this hypervisor passes no hardware counters")
}

fn recording() -> Recording {
    let mut recording = empty();
    recording.meta = Meta {
        tool_version: "0.1.0".into(),
        started_unix_ms: 1_760_000_000_000,
        sample_period_ns: 1_001_001,
        wait_period_ns: 20_000_000,
        own_cpu_ns: 182_000_000,
        ..recording.meta
    };
    recording.host = HostFacts {
        cpu_model: "AMD EPYC 7B13".into(),
        hypervisor: Some("KVM".into()),
        free_page_reporting: Ok(true),
        cgroup_version: Ok(1),
        perf_event_paranoid: Ok(2),
        pmu: Err(no_pmu()),
        ..recording.host
    };
    let process = recording.processes.remove(0);
    Recording {
        smaps_cost: Ok(SmapsCost { reads: 16, ns: 2_300_000 }),
        cgroup: Some("/system.slice/api.service".into()),
        processes: vec![Process {
            pid: 4242,
            comm: "python3".into(),
            exe: Ok("/usr/bin/python3.11".into()),
            cmdline: ["python3", "-m", "service", "--port", "8080"].map(String::from).to_vec(),
            runtime: Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false }),
            allocator: Ok(Allocator {
                kind: AllocatorKind::Glibc,
                how: Linkage::Libc,
                module: "/usr/lib/x86_64-linux-gnu/libc.so.6".into(),
                version: Some("2.36".into()),
            }),
            environment: vec![("MALLOC_ARENA_MAX".into(), "2".into())],
            ..process
        }],
        probes: vec![
            Probe::new(ProbeName::CpuSamples, ProbeState::Measured),
            Probe::new(ProbeName::Pmu, ProbeState::Absent(no_pmu())),
        ],
        prices: Ok(PriceList {
            measured_unix_s: 1_760_000_000,
            machine: "AMD EPYC 7B13 / 6.18.0".into(),
            prices: vec![Price {
                name: "touch_4k".into(),
                ns: Interval::new(1420.0, 1510.0, 1640.0),
                repetitions: 20,
            }],
            absent: vec![(
                "handoff_smt".into(),
                Absence::new(Reason::NotApplicable, "no two CPUs share a core"),
            )],
        }),
        threads: vec![thread(4242, "python3", 27_000_000_000), thread(4250, "worker;1", 600_000_000)],
        modules: vec![
            module("[kernel]", ModuleRole::Kernel),
            module("/usr/bin/python3.11", ModuleRole::Cpython),
            Module {
                malloc_ranges: vec![(0x9_0000, 0x9_8000)],
                ..module("/usr/lib/libc.so.6", ModuleRole::Libc)
            },
        ],
        frames: vec![
            frame(0, Some("clear_page_erms"), 1),
            frame(0, Some("handle_mm_fault"), 2),
            frame(0, Some("asm_exc_page_fault"), 3),
            frame(1, Some("_PyEval_EvalFrameDefault"), 4),
            frame(1, Some("<script>alert(1)</script>\u{1b}[2J; drop"), 5),
            frame(2, None, 0x9_1000),
            frame(2, Some("memset"), 0xa_0000),
            frame(1, Some("main"), 8),
        ],
        stacks: vec![
            Stack { frames: vec![0, 1, 2], complete: true },
            Stack { frames: vec![6, 3, 7], complete: true },
            Stack { frames: vec![3, 4, 7], complete: true },
            Stack { frames: vec![5, 3], complete: false },
            Stack { frames: vec![1, 2], complete: true },
        ],
        samples: vec![
            sample(1, Some(0), Some(1)),
            sample(2, Some(0), Some(1)),
            sample(3, Some(4), Some(1)),
            sample(4, None, Some(2)),
            sample(5, None, Some(3)),
            CpuSample { deep: false, ..sample(6, None, Some(3)) },
        ],
        counts: vec![EventCount { name: "mmap".into(), count: 120, over_ns: 15_000_000_000 }],
        neighbours: vec![Neighbour { pid: 99, comm: "load".into(), cpu_ns: 1_200_000_000 }],
        ..recording
    }
}

fn thread(tid: i32, comm: &str, cpu_ns: u64) -> ThreadTimes {
    ThreadTimes {
        pid: 4242,
        tid,
        comm: comm.into(),
        seen_ns: 15_000_000_000,
        cpu_ns,
        run_delay_ns: Some(40_000_000),
    }
}

fn module(path: &str, role: ModuleRole) -> Module {
    Module { path: path.into(), build_id: None, role, malloc_ranges: vec![], has_symbols: true }
}

fn frame(module: u32, symbol: Option<&str>, offset: u64) -> Frame {
    Frame { module: Some(module), symbol: symbol.map(String::from), offset }
}

fn sample(ms: u64, kernel: Option<u32>, user: Option<u32>) -> CpuSample {
    CpuSample { t_ns: ms * 1_000_000, pid: 4242, tid: 4242, cpu: 0, kernel, user, deep: true, faulted: None }
}

fn bill(shares: &[(CostClass, f64)], cpu_s: f64) -> Bill {
    let line = |class: CostClass| {
        let p = shares.iter().find(|(c, _)| *c == class).map_or(0.0, |(_, p)| *p);
        let half = 1.96 * (p * (1.0 - p) / (cpu_s * 999.0)).sqrt() * 2.0;
        let share = Interval::new((p - half).max(0.0), p, (p + half).min(1.0));
        CpuLine {
            class,
            share,
            cpu_s: share.scaled(cpu_s),
            // Kernel time without symbols is the processes' system time here: no sample shows it.
            samples: if class == CostClass::UnnamedKernel { 0 } else { (p * cpu_s * 999.0) as u64 },
            method: "CPU samples: leaf or stack in its functions".into(),
            may_be_in: (class.is_named_kernel()
                && shares.iter().any(|(c, _)| *c == CostClass::UnnamedKernel))
            .then_some(CostClass::UnnamedKernel),
            notes: match class {
                CostClass::UnnamedKernel if p > 0.0 => {
                    vec!["this is the system time of the processes: kernel samples were not permitted".into()]
                }
                _ => vec![],
            },
            sites: vec![],
        }
    };
    Bill {
        window_s: 15.0,
        cpu_s,
        sampled_cpu_s: cpu_s * 0.996,
        switching_cpu_s: 0.0,
        on_cpu: Ok(CostClass::ALL.map(line).to_vec()),
        sampled: Ok(Sampled::default()),
        waits_for_loads: Ok(Interval::new(0.1, 0.12, 0.14)),
        faulted: vec![],
        off_cpu: WaitClass::ALL
            .map(|class| WaitLine {
                class,
                thread_s: match class {
                    WaitClass::Idle => Ok(Interval::new(31.2, 32.06, 33.0)),
                    WaitClass::RunQueue => Ok(Interval::exact(0.31)),
                    _ => Ok(Interval::exact(0.0)),
                },
                method: "samples of /proc every 20 ms".into(),
                sites: vec![],
                unknown_purpose: 0.0,
                unread: 0.0,
                may_be_gil: 0.0,
            })
            .to_vec(),
        rates: Rates {
            minor_faults: Ok(338_000.0),
            major_faults: Ok(0.0),
            map_calls: Err(Absence::new(Reason::NotFound, "tracefs is not mounted")
                .mend(Advice::command("mount -t tracefs nodev /sys/kernel/tracing"))),
            voluntary_switches: Ok(820.0),
            involuntary_switches: Ok(31.0),
            threads_peak: 4,
            thread_s: 60.0,
            resident_end: 1_342 << 20,
            resident_growth: 12 << 20,
            user_cpu_s: Ok(12.0),
            system_cpu_s: Ok(6.0),
        },
    }
}

fn site(function: &str, share: f64, python: Option<&str>, path: &[&str]) -> Site {
    Site {
        function: function.into(),
        module: "/usr/lib/python3/dist-packages/service/_codec.cpython-311-x86_64-linux-gnu.so".into(),
        python: python.map(String::from),
        share,
        least: 0.9 * share,
        path: path.iter().map(|p| p.to_string()).collect(),
    }
}

fn finding(wall: Wall, status: Status, because: &str) -> Finding {
    Finding {
        wall,
        rung: wall.rung(),
        status,
        share: Some(Interval::new(0.002, 0.004, 0.006)),
        of: Whole::Cpu,
        because: because.into(),
        evidence: vec![],
        show: ShellLine::default(),
        missing: None,
        estimate: None,
    }
}

fn missing(wall: Wall, absence: Absence) -> Finding {
    Finding {
        share: None,
        missing: Some(absence.clone()),
        ..finding(wall, Status::NotMeasured, &absence.detail)
    }
}

/// A finding of each wall.
fn ladder() -> Vec<Finding> {
    let of_wall = |wall: Wall| {
        let because = match wall {
            Wall::CgroupThrottling => "0 % of runnable time",
            Wall::Steal => "0.3 % of runnable time",
            Wall::RunQueue => "1.1 % of runnable time",
            Wall::Waiting => "0 % of the window idle",
            Wall::Disk => "sda busy 3 %, 0.4 ms a request",
            Wall::Network => "0 of 18,203 segments retransmitted",
            Wall::ApplicationLock | Wall::Gil | Wall::AllocatorContention => "0 % of working time (≤ 0.1 %)",
            Wall::GarbageCollector => "0.4 % of CPU (≤ 0.6 %)",
            Wall::FirstTouch => "0.6 % of CPU (≤ 0.8 %)",
            Wall::MapChurn => "4.3 % of CPU (≤ 4.9 %); threshold 5 %",
            Wall::AddressSpaceLock => "one thread: no other thread to wait for",
            Wall::Tlb => {
                let estimate = "reach of the second-level TLB against resident memory, no counter";
                return Finding { estimate: Some(estimate.into()), ..missing(wall, no_pmu()) };
            }
            Wall::Numa => "one node",
            Wall::CallRate | Wall::AllocatorCode => "1.2 % of CPU (≤ 1.4 %)",
            Wall::Retention => "68 % of resident memory; too little: at most 16 MiB",
            _ => "0 % of CPU (≤ 0.1 %)",
        };
        finding(wall, Status::RuledOut, because)
    };
    Wall::ALL.map(of_wall).into()
}

fn with(mut findings: Vec<Finding>, replacement: Finding) -> Vec<Finding> {
    let at = findings.iter().position(|f| f.wall == replacement.wall).expect("every wall is on the ladder");
    findings[at] = replacement;
    findings
}

fn remedy(key: &str, title: &str, gain: Option<Interval>, restart: bool, how: &str) -> Prescription {
    Prescription {
        remedy: key.into(),
        title: title.into(),
        gain,
        at_most: Some(gain.map_or(0.61, |g| g.high)),
        returns_bytes: None,
        basis: "fault path and zeroing (60.8 % of CPU) × this machine's price of a 2 MiB touch against 512 of 4 KiB".into(),
        restart,
        how: how.into(),
        is_command: key != "reuse-buffers",
        backfires: "resident memory grows by up to 2 MiB an arena; forked workers that write lose it again".into(),
        undo: "unset the variable and restart".into(),
        moves: "zeroing to the first touch of each 2 MiB: one fault of about 100 µs instead of 512 of 1.5 µs".into(),
    }
}

pub fn first_touch() -> Case {
    let mut bill = bill(
        &[
            (CostClass::Application, 0.3063),
            (CostClass::AllocatorCode, 0.0118),
            (CostClass::FaultPath, 0.331),
            (CostClass::Zeroing, 0.277),
            (CostClass::PageRelease, 0.0613),
            (CostClass::OtherKernel, 0.0126),
        ],
        27.43,
    );
    bill.faulted = vec![Faulted {
        wall: Wall::FirstTouch,
        basis: Basis::CpuTime,
        samples: 6080,
        known: 0.94,
        owners: vec![
            OwnerShare { owner: Owner::MappedBlock, share: Interval::new(0.85, 0.87, 0.89) },
            OwnerShare { owner: Owner::Heap, share: Interval::new(0.11, 0.13, 0.15) },
        ],
    }];
    for line in bill.on_cpu.as_mut().expect("made above") {
        match line.class {
            CostClass::FaultPath => {
                line.sites = vec![
                    site(
                        "std::__cxx11::basic_string<char, std::char_traits<char>, std::allocator<char> >::_M_append(char const*, unsigned long)",
                        0.71,
                        None,
                        &["memset", "Buffer::grow(unsigned long)", "encode_manifest"],
                    ),
                    site(
                        "PyBytes_FromStringAndSize",
                        0.22,
                        Some("build_index (/srv/service/index.py:118)"),
                        &["memcpy"],
                    ),
                    site("calloc_table", 0.03, None, &[]),
                ]
            }
            CostClass::Zeroing => {
                line.sites =
                    vec![site("Buffer::grow(unsigned long)", 0.93, None, &["memset", "Buffer::grow"])]
            }
            CostClass::Application => {
                line.sites =
                    vec![site("_PyEval_EvalFrameDefault", 0.64, Some("handle (/srv/service/app.py:40)"), &[])]
            }
            CostClass::PageRelease => {
                line.sites = vec![site("Buffer::~Buffer()", 0.88, None, &["munmap", "free"])]
            }
            _ => {}
        }
    }
    let findings = with(
        ladder(),
        Finding {
            share: Some(Interval::new(0.592, 0.608, 0.624)),
            evidence: vec![
                "338 k minor faults a second".into(),
                "1596 ns each (1510 ns on the price list)".into(),
            ],
            show: "perf stat -e minor-faults -p 4242 -- sleep 5".into(),
            ..finding(
                Wall::FirstTouch,
                Status::Wall,
                "61 % (59–62 %) of CPU goes to faulting in and zeroing fresh pages; wall threshold 15 %",
            )
        },
    );
    let findings = with(
        findings,
        Finding {
            share: Some(Interval::new(0.053, 0.061, 0.069)),
            ..finding(
                Wall::MapChurn,
                Status::Contributor,
                "6.1 % (5.3–6.9 %) of CPU goes to mapping memory and returning it to the kernel; contributor threshold 5 %",
            )
        },
    );
    Case {
        name: "first_touch",
        rec: recording(),
        bill,
        verdict: Verdict {
            sentence: "First touch is the wall: 61 % of the CPU goes into page faults and zeroing of memory that was freed \
                       to the kernel moments before; the allocator's own code is 1.2 %, so another allocator's speed will not help."
                .into(),
            site: None,
            walls: vec![Wall::FirstTouch],
            findings,
            remedies: vec![
                remedy(
                    "glibc-keep-memory",
                    "Keep large blocks: raise glibc's mmap and trim thresholds",
                    Some(Interval::new(0.41, 0.5, 0.58)),
                    true,
                    "GLIBC_TUNABLES=glibc.malloc.mmap_threshold=1073741824:glibc.malloc.trim_threshold=4294967296 python3 -m service --port 8080",
                ),
                remedy(
                    "glibc-hugetlb",
                    "Huge pages for malloc",
                    Some(Interval::new(0.28, 0.36, 0.44)),
                    true,
                    "GLIBC_TUNABLES=glibc.malloc.hugetlb=1 python3 -m service --port 8080",
                ),
                remedy("reuse-buffers", "Reuse the encoding buffer", None, false, "keep one Buffer a worker in encode_manifest"),
                remedy("jemalloc", "preload jemalloc", None, true, "LD_PRELOAD=libjemalloc.so.2 python3 -m service --port 8080"),
            ],
            next: vec![
                "allocwall trial --with glibc-keep-memory -- python3 -m service --port 8080".into(),
                "perf stat -e minor-faults -p 4242 -- sleep 5".into(),
            ],
        },
    }
}

pub fn nothing_found() -> Case {
    let mut bill = bill(
        &[
            (CostClass::Application, 0.9713),
            (CostClass::AllocatorCode, 0.012),
            (CostClass::RuntimeAllocator, 0.0047),
            (CostClass::OtherKernel, 0.01166),
            (CostClass::FaultPath, 0.00034),
        ],
        27.43,
    );
    bill.rates.map_calls = Ok(8.0);
    let mut rec = recording();
    rec.host.pmu = Ok(());
    Case {
        name: "nothing_found",
        rec,
        bill,
        verdict: Verdict {
            sentence: "Memory is not your wall: 97.1 % of the CPU is the application's own computing; allocator, faults and maps \
                       together take 1.7 %."
                .into(),
            site: None,
            walls: vec![],
            findings: ladder(),
            remedies: vec![],
            next: vec!["perf record -g -p 4242 -- sleep 10".into()],
        },
    }
}

pub fn not_root() -> Case {
    let mut rec = recording();
    rec.meta.kernel_samples = false;
    rec.meta.system_wide = false;
    rec.meta.ended = Ended::TargetExited { status: Some("exit status 1".into()) };
    rec.host.euid = 1000;
    rec.prices = Err(Absence::new(Reason::NotFound, "no price list").mend(advice::CALIBRATE));
    rec.processes[0].exe = Err(not_permitted());
    rec.processes[0].runtime = Err(not_permitted());
    rec.processes[0].thp_disabled = Err(not_permitted());
    rec.probes = vec![
        Probe::new(ProbeName::KernelStacks, ProbeState::Absent(not_permitted())),
        Probe::new(
            ProbeName::Waits,
            ProbeState::Partial(
                Absence::new(Reason::NotPermitted, "/proc/4242/stack is for root; system call numbers only")
                    .mend(advice::RUN_AS_ROOT),
            ),
        ),
        Probe::new(ProbeName::MapCalls, ProbeState::Absent(not_permitted())),
    ];
    let mut bill = bill(
        &[
            (CostClass::Application, 0.41),
            (CostClass::AllocatorCode, 0.062),
            (CostClass::UnnamedKernel, 0.528),
        ],
        4.2,
    );
    for line in &mut bill.off_cpu {
        if matches!(line.class, WaitClass::AddressSpaceLock | WaitClass::Allocator | WaitClass::Stolen) {
            line.thread_s = Err(not_permitted());
        }
    }
    let mut findings = ladder();
    for finding in &mut findings {
        if finding.wall.lines().iter().any(|class| class.is_named_kernel()) {
            *finding = missing(finding.wall, not_permitted());
        }
    }
    Case {
        name: "not_root",
        rec,
        bill,
        verdict: Verdict {
            sentence: "Undecided: 53 % of CPU is kernel time without symbols; not measured: first touch, map churn; the allocator itself takes 6.2 %.".into(),
            site: None,
            walls: vec![],
            findings,
            remedies: vec![],
            next: vec!["sudo allocwall diagnose -p 4242".into()],
        },
    }
}

pub fn throttled() -> Case {
    let mut bill = bill(
        &[(CostClass::Application, 0.93), (CostClass::AllocatorCode, 0.05), (CostClass::OtherKernel, 0.02)],
        7.5,
    );
    for line in &mut bill.off_cpu {
        match line.class {
            WaitClass::Throttled => line.thread_s = Ok(Interval::exact(22.4)),
            WaitClass::ApplicationLock => {
                line.thread_s = Ok(Interval::new(2.0, 2.6, 3.3));
                line.sites = vec![site(
                    "Cache::get(Key const&)",
                    0.8,
                    Some("lookup (/srv/service/cache.py:7)"),
                    &["pthread_mutex_lock"],
                )];
            }
            WaitClass::RunQueue => line.thread_s = Ok(Interval::new(0.2, 0.3, 0.4)),
            _ => {}
        }
    }
    let findings = with(
        ladder(),
        Finding {
            share: Some(Interval::exact(0.62)),
            of: Whole::WallTime,
            evidence: vec!["93 of 150 periods throttled, quota 0.50 CPUs".into()],
            show: "cat /sys/fs/cgroup/cpu/system.slice/api.service/cpu.stat".into(),
            ..finding(
                Wall::CgroupThrottling,
                Status::Wall,
                "62 % of runnable time was lost to the cgroup's CPU quota; wall threshold 10 %",
            )
        },
    );
    Case {
        name: "throttled",
        rec: recording(),
        bill,
        verdict: Verdict {
            sentence: "The cgroup's CPU quota is the wall: it stopped the target for 62 % of the time in which it could have run.".into(),
            site: None,
            walls: vec![Wall::CgroupThrottling],
            findings,
            remedies: vec![Prescription {
                basis: "acts on the throttled time, not on CPU time".into(),
                at_most: None,
                ..remedy(
                    "quota",
                    "Raise the CPU quota or use fewer threads",
                    None,
                    false,
                    "systemctl set-property api.service CPUQuota=200%",
                )
            }],
            next: vec!["allocwall diagnose -p 4242".into()],
        },
    }
}
