//! Synthetic recordings and bills for tests: a target that only computes, to which a test adds one wall.

use super::{Finding, Verdict, verdict};
use crate::bill::{Basis, Bill, CpuLine, Faulted, OwnerShare, Rates, Sampled, Site, WaitLine};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::prices::*;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::devices::{Datagrams, Devices, DiskUse, Disks, Interfaces, Network, TcpEvents};
use allocwall_model::recording::*;
use allocwall_model::resident::{Amount, ResidentBill, ResidentOwner, Row, Split, undistinguished};
use allocwall_model::units::{Absence, Interval, Reason};
use allocwall_sketches::recording::empty;

pub const WINDOW_S: f64 = 10.0;

const MIB: u64 = 1 << 20;

pub struct Subject {
    pub recording: Recording,
    pub bill: Bill,
}

pub fn absent() -> Absence {
    Absence::new(Reason::NotSupported, "not on this machine")
}

/// One thread of a native glibc program that computes on one CPU for ten seconds, on a quiet two-CPU machine.
pub fn computing() -> Subject {
    let mut subject = Subject {
        recording: recording(),
        bill: Bill {
            window_s: WINDOW_S,
            cpu_s: WINDOW_S,
            sampled_cpu_s: WINDOW_S,
            switching_cpu_s: 0.0,
            on_cpu: Ok(Vec::new()),
            sampled: Err(absent()),
            waits_for_loads: Err(absent()),
            faulted: vec![],
            off_cpu: WaitClass::ALL
                .into_iter()
                .map(|class| WaitLine {
                    class,
                    thread_s: Ok(Interval::exact(0.0)),
                    method: "test".into(),
                    sites: Vec::new(),
                    unknown_purpose: 0.0,
                    unread: 0.0,
                    may_be_gil: 0.0,
                })
                .collect(),
            rates: Rates {
                minor_faults: Ok(10.0),
                major_faults: Ok(0.0),
                map_calls: Ok(1.0),
                voluntary_switches: Ok(1.0),
                involuntary_switches: Ok(1.0),
                threads_peak: 1,
                thread_s: WINDOW_S,
                resident_end: 20 << 20,
                resident_growth: 0,
                user_cpu_s: Ok(1.0),
                system_cpu_s: Ok(0.1),
            },
        },
    };
    subject.shares(&[]);
    subject
}

impl Subject {
    /// Sets these shares; the rest is application. The intervals are those of 10,000 samples.
    pub fn shares(&mut self, shares: &[(CostClass, f64)]) -> &mut Self {
        self.shares_with_samples(shares, 10_000)
    }

    pub fn shares_with_samples(&mut self, shares: &[(CostClass, f64)], samples: u64) -> &mut Self {
        let rest = 1.0 - shares.iter().map(|s| s.1).sum::<f64>();
        assert!(rest >= -1e-9);
        const SLICES: u64 = 15;
        let hits = CostClass::ALL.map(|class| {
            let p = match shares.iter().find(|s| s.0 == class) {
                Some(s) => s.1,
                None if class == CostClass::Application => rest.max(0.0),
                None => 0.0,
            };
            (p * samples as f64).round() as u64
        });
        let slice = |i| hits.map(|n| n / SLICES + u64::from(i < n % SLICES));
        let sampled = Sampled { slices: (0..SLICES).map(slice).collect(), ..Sampled::default() };
        let lines = CostClass::ALL
            .into_iter()
            .zip(hits)
            .map(|(class, samples)| {
                let share = sampled.share(&[class]);
                CpuLine {
                    class,
                    share,
                    cpu_s: share.scaled(self.bill.cpu_s),
                    samples,
                    method: "test".into(),
                    may_be_in: None,
                    notes: vec![],
                    sites: vec![Site {
                        function: format!("site_of_{}", class.key()),
                        module: "subject".into(),
                        python: None,
                        share: 0.9,
                        least: 0.88,
                        path: Vec::new(),
                    }],
                }
            })
            .collect();
        self.bill.on_cpu = Ok(lines);
        self.bill.sampled = Ok(sampled);
        self
    }

    /// Divides the page faults of a wall by the owner of the memory, in these parts.
    pub fn faulted(&mut self, wall: Wall, parts: &[(Owner, f64)]) -> &mut Self {
        let owner = |&(owner, part): &(Owner, f64)| OwnerShare { owner, share: Interval::exact(part) };
        let owners = parts.iter().map(owner).collect();
        self.bill.faulted = vec![Faulted { wall, basis: Basis::CpuTime, samples: 1_000, known: 1.0, owners }];
        self
    }

    pub fn cpus(&mut self, cpus: f64) -> &mut Self {
        self.bill.cpu_s = cpus * WINDOW_S;
        self
    }

    pub fn threads(&mut self, threads: u32) -> &mut Self {
        self.bill.rates.threads_peak = threads;
        self
    }

    /// Thread-seconds per second of one off-CPU line.
    pub fn waits(&mut self, class: WaitClass, rate: f64) -> &mut Self {
        self.wait_line(class).thread_s = Ok(Interval::exact(rate * WINDOW_S));
        self
    }

    /// Thread-seconds per second in waits for storage, all of them below this function of the kernel.
    pub fn storage_waits(&mut self, rate: f64, function: &str) -> &mut Self {
        let kernel = Some(self.stack(&[(2, Some(function))]));
        self.recording.waits.push(WaitSample {
            t_ns: 1,
            pid: 100,
            tid: 100,
            weight_ns: (rate * WINDOW_S * 1e9) as u64,
            state: 'D',
            syscall: None,
            python_lock: None,
            kernel,
            user: None,
        });
        self.waits(WaitClass::Storage, rate)
    }

    /// Sets the fractions of a line's waits of unknown purpose, which may all be for Python's GIL, and of those whose callers
    /// were not read.
    pub fn unknown_waits(&mut self, class: WaitClass, unknown_purpose: f64, unread: f64) -> &mut Self {
        let line = self.wait_line(class);
        (line.unknown_purpose, line.unread, line.may_be_gil) = (unknown_purpose, unread, unknown_purpose);
        self
    }

    /// Sets the figures of the machine's only disk.
    pub fn disk(&mut self, busy: f64, ms_per_request: f64) -> &mut Self {
        self.disks().busiest = vec![disk(busy, ms_per_request)];
        self
    }

    pub fn disks(&mut self) -> &mut Disks {
        self.recording.devices.disks.as_mut().expect("read")
    }

    pub fn network(&mut self) -> &mut Network {
        self.recording.devices.network.as_mut().expect("read")
    }

    pub fn wait_line(&mut self, class: WaitClass) -> &mut WaitLine {
        self.bill.off_cpu.iter_mut().find(|l| l.class == class).expect("all classes")
    }

    /// `n` samples whose innermost user frame is this function of libc's malloc.
    pub fn malloc_leaves(&mut self, symbol: Option<&str>, n: usize) -> &mut Self {
        let user = self.stack(&[(0, symbol)]);
        self.sample(None, Some(user), n)
    }

    /// `n` samples in this system call, called by malloc or by the program itself.
    pub fn map_call(&mut self, call: &str, by_malloc: bool, n: usize) -> &mut Self {
        let kernel = self.stack(&[(2, Some(call))]);
        let user = if by_malloc { self.stack(&[(0, None)]) } else { self.stack(&[(1, None)]) };
        self.sample(Some(kernel), Some(user), n)
    }

    /// Modules: 0 is libc within malloc's range, 1 the program, 2 the kernel.
    fn stack(&mut self, frames: &[(u32, Option<&str>)]) -> u32 {
        let r = &mut self.recording;
        let frames = frames
            .iter()
            .map(|(module, symbol)| {
                r.frames.push(Frame {
                    module: Some(*module),
                    symbol: symbol.map(str::to_owned),
                    offset: 0x1100,
                });
                r.frames.len() as u32 - 1
            })
            .collect();
        r.stacks.push(Stack { frames, complete: true });
        r.stacks.len() as u32 - 1
    }

    fn sample(&mut self, kernel: Option<u32>, user: Option<u32>, n: usize) -> &mut Self {
        let sample =
            CpuSample { t_ns: 0, pid: 100, tid: 100, cpu: 0, kernel, user, deep: false, faulted: None };
        self.recording.samples.extend(std::iter::repeat_n(sample, n));
        self
    }

    pub fn process(&mut self) -> &mut Process {
        &mut self.recording.processes[0]
    }

    pub fn last(&mut self) -> &mut Tick {
        self.recording.ticks.last_mut().expect("two ticks")
    }

    pub fn first_host(&mut self) -> &mut HostTick {
        self.recording.ticks[0].host.get_or_insert_default()
    }

    pub fn last_host(&mut self) -> &mut HostTick {
        self.last().host.get_or_insert_default()
    }

    pub fn verdict(&self) -> Verdict {
        verdict(&self.recording, &self.bill)
    }

    pub fn finding(&self, wall: Wall) -> Finding {
        self.verdict().findings.into_iter().find(|f| f.wall == wall).expect("one a wall")
    }
}

fn recording() -> Recording {
    let window_ns = (WINDOW_S * 1e9) as u64;
    let module = |path: &str, role, malloc_ranges| Module {
        path: path.into(),
        build_id: None,
        role,
        malloc_ranges,
        has_symbols: false,
    };
    let mut recording = empty();
    recording.meta = Meta { window_ns, requested_ns: window_ns, ..recording.meta };
    recording.host = HostFacts {
        hypervisor: Some("KVM".into()),
        thp_enabled: Ok("always [madvise] never".into()),
        cgroup_version: Ok(1),
        perf_event_paranoid: Ok(2),
        ..recording.host
    };
    recording.cgroup = Some("/sys/fs/cgroup/cpu/service".into());
    let process = &mut recording.processes[0];
    process.cmdline = vec!["service".into(), "--port".into(), "80".into()];
    process.allocator = Ok(Allocator {
        kind: AllocatorKind::Glibc,
        how: Linkage::Libc,
        module: "libc.so.6".into(),
        version: None,
    });
    Recording {
        prices: Ok(prices()),
        ticks: vec![tick(0), tick(window_ns)],
        modules: vec![
            module("/lib/libc.so.6", ModuleRole::Libc, vec![(0x1000, 0x2000)]),
            module("/usr/bin/service", ModuleRole::Other, Vec::new()),
            module("[kernel]", ModuleRole::Kernel, Vec::new()),
        ],
        devices: devices(window_ns),
        ..recording
    }
}

/// An idle disk, and a network that loses nothing.
fn devices(over_ns: u64) -> Devices {
    Devices {
        disks: Ok(Disks {
            over_ns,
            busiest: vec![disk(0.03, 0.4)],
            others: 0,
            others_busy_ms: 0,
            uncounted: vec![],
        }),
        network: Ok(Network {
            pid: 100,
            over_ns,
            sent: 18_203,
            retransmitted: 0,
            events: Ok(TcpEvents::default()),
            datagrams: Ok(Datagrams::default()),
            interfaces: Ok(Interfaces::default()),
        }),
    }
}

/// `busy`: part of the window.
fn disk(busy: f64, ms_per_request: f64) -> DiskUse {
    const REQUESTS: u64 = 750;
    DiskUse {
        name: "sda".into(),
        requests: REQUESTS,
        request_ms: (REQUESTS as f64 * ms_per_request).round() as u64,
        sectors: REQUESTS * 8,
        busy_ms: (busy * WINDOW_S * 1e3).round() as u64,
        stuck: 0,
    }
}

fn tick(t_ns: u64) -> Tick {
    Tick {
        t_ns,
        user_ns: t_ns / 2,
        system_ns: t_ns / 2,
        threads: 1,
        resident: 20 << 20,
        anonymous: Some(4 << 20),
        vm_size: 64 << 20,
        smaps: Some(Smaps { rss: 5 << 20, anonymous: 4 << 20, ..Smaps::default() }),
        cgroup: Some(CgroupTick::default()),
        host: Some(HostTick { busy_ns: t_ns, ..HostTick::default() }),
        ..Tick::default()
    }
}

/// The bill of a process: for each owner the resident MiB, and how many of them are free; None: not distinguished.
pub fn resident_bill(memory: &[(ResidentOwner, u64, Option<u64>)]) -> ResidentBill {
    let row = |owner: ResidentOwner| {
        let of_owner = memory.iter().find(|(of, ..)| *of == owner);
        let (resident, free) = of_owner.map_or((0, Some(0)), |(_, resident, free)| (*resident, *free));
        let amount = Amount { resident_bytes: resident * MIB, ..Amount::default() };
        let split = match free {
            _ if !owner.is_allocated() => Err(undistinguished("no allocator keeps free memory here")),
            None => Err(undistinguished("the program's own mappings")),
            Some(free) => {
                let exact = |mib: u64| Interval::exact((mib * MIB) as f64);
                let method = "200 parts of 64 KiB were read";
                let split = Split::all_live(resident * MIB, method);
                Ok(Split { live_bytes: exact(resident - free), free_bytes: exact(free), ..split })
            }
        };
        Row { owner, amount, split }
    };
    let rss = memory.iter().map(|(_, resident, _)| resident * MIB).sum();
    ResidentBill {
        pid: 100,
        comm: "service".into(),
        cmdline: vec![],
        runtime: Ok(Runtime::Native),
        allocator: Err(absent()),
        secure_exec: Ok(false),
        environment: vec![],
        rows: ResidentOwner::ALL.map(row).into(),
        rss_before_bytes: rss,
        rss_after_bytes: rss,
        thread_arenas: 0,
        page_tables_bytes: Ok(0),
        group: Err(absent()),
        notes: vec![],
        took_ms: 1,
    }
}

/// Of the order of a virtual machine's.
fn prices() -> PriceList {
    let price = |name: &str, ns: f64| Price {
        name: name.into(),
        ns: Interval::new(ns * 0.95, ns, ns * 1.05),
        repetitions: 20,
    };
    PriceList {
        measured_unix_s: 0,
        machine: "test".into(),
        prices: vec![
            price(TOUCH_4K, 1_500.0),
            price(TOUCH_4K_IDLE, 9_000.0),
            price(TOUCH_2M, 100_000.0),
            price(TOUCH_2M_IDLE, 4_000_000.0),
            price(ZERO_4K, 150.0),
            price(POPULATE_PAGE, 500.0),
            price(MALLOC_CACHED, 10.0),
            price(MALLOC_ARENA, 40.0),
            price(MALLOC_MAPPED, 6_000.0),
            price(LOAD_4K, 120.0),
            price(LOAD_2M, 80.0),
        ],
        absent: Vec::new(),
    }
}
