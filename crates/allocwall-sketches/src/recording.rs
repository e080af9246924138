//! Small recordings for tests: a window, modules by role, stacks from names.

use allocwall_model::allocations::{
    CLASSES, Calls, Counted, CountedProcess, Histogram, Lifetimes, Lost, Point, Samples, class_of,
    not_counted, not_replayed,
};
use allocwall_model::devices::Devices;
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Interval, Reason};

/// A recording under construction. Stacks are texts with the leaf first and frames separated by `;`. A frame is
/// `module!symbol`, `module+offset` or a kernel symbol.
pub struct Sketch {
    pub recording: Recording,
}

pub const MS: u64 = 1_000_000;
pub const PID: i32 = 100;

/// A 15 s window of one native process with pid [`PID`] on a machine of two CPUs, measured as root: kernel stacks,
/// one sample a millisecond of CPU time, and no sample yet.
pub fn empty() -> Recording {
    let unknown = || Absence::new(Reason::NotApplicable, "sketch");
    Recording {
        meta: Meta {
            tool_version: "0".into(),
            started_unix_ms: 0,
            window_ns: 15_000 * MS,
            requested_ns: 15_000 * MS,
            ended: Ended::Complete,
            sample_period_ns: MS,
            kernel_samples: true,
            system_wide: true,
            wait_period_ns: 10 * MS,
            command: None,
            own_cpu_ns: 0,
            lost_records: 0,
        },
        host: HostFacts {
            kernel_release: "6.18.0".into(),
            architecture: "x86_64".into(),
            cpu_model: String::new(),
            online_cpus: 2,
            numa_nodes: 1,
            memory_bytes: 8 << 30,
            page_bytes: 4096,
            hypervisor: None,
            free_page_reporting: Err(unknown()),
            thp_enabled: Ok("madvise".into()),
            thp_defrag: Ok("madvise".into()),
            hugepages_total: 0,
            hugepages_free: 0,
            cgroup_version: Ok(2),
            container: None,
            euid: 0,
            perf_event_paranoid: Ok(1),
            kptr_restrict: Ok(0),
            pmu: Err(unknown()),
        },
        cgroup: None,
        processes: vec![Process {
            pid: PID,
            pid_inside: None,
            ppid: 1,
            comm: "service".into(),
            exe: Ok("/usr/bin/service".into()),
            cmdline: vec![],
            libc: Ok(Libc::Glibc { version: "2.36".into() }),
            runtime: Ok(Runtime::Native),
            allocator: Err(unknown()),
            environment: vec![],
            thp_disabled: Ok(false),
            secure_exec: Ok(false),
            ended: false,
            age_ns: Err(unknown()),
        }],
        probes: vec![],
        prices: Err(unknown()),
        ticks: vec![],
        smaps_cost: Err(unknown()),
        threads: vec![],
        modules: vec![],
        frames: vec![],
        stacks: vec![],
        samples: vec![],
        waits: vec![],
        python: vec![],
        counts: vec![],
        neighbours: vec![],
        heap: Err(unknown()),
        resident: Err(unknown()),
        placement: Err(unknown()),
        loads: Err(unknown()),
        accounts: vec![],
        collecting: vec![],
        fault_slices: vec![],
        hardware: Err(unknown()),
        devices: Devices { disks: Err(unknown()), network: Err(unknown()) },
        counted: Err(not_counted()),
        replayed: Err(not_replayed()),
        counting_samples: 0,
    }
}

/// The counts of `/usr/bin/service`, pid [`PID`], in a window of so many seconds. `sizes`: blocks with their sizes, each of which is
/// freed after `lifetime_ns`, and this part of them by another thread.
pub fn counted(window_s: u64, sizes: &[(u64, u64)], lifetime_ns: u64, remote: f64) -> Counted {
    let mut classes = vec![0; CLASSES];
    sizes.iter().for_each(|(blocks, size)| classes[class_of(*size)] += blocks);
    let blocks: u64 = sizes.iter().map(|(blocks, _)| blocks).sum();
    let bytes: u64 = sizes.iter().map(|(blocks, size)| blocks * size).sum();
    let calls = Calls { malloc: blocks, frees: blocks, bytes, ..Calls::default() };
    let mut lived = Histogram::default();
    (0..1000).for_each(|_| lived.add(lifetime_ns, 1.0, 1000.0 / blocks.max(1000) as f64));
    let window_ns = window_s * 1000 * MS;
    let around = |point: f64| Interval::new(point * 0.9, point, point * 1.1);
    let samples = Samples {
        distance: 512 << 10,
        sampled: 1000,
        spent_ns: Ok(MS),
        blocks: around(blocks as f64),
        bytes: around(bytes as f64),
        latency: Ok(vec![]),
        lifetimes: Ok(Lifetimes { by_blocks: lived.clone(), by_bytes: lived }),
        remote_share: Ok(around(remote)),
        remote_bytes_share: Ok(around(remote)),
        live_blocks: around(10.0),
        live_bytes: around(1000.0),
        peak_bytes: around(2000.0),
        peak_at_ns: 0,
        lives: Default::default(),
        sites: vec![],
    };
    let process = CountedProcess {
        pid: PID,
        number: 0,
        command: Ok(vec!["service".into()]),
        program: Ok("/usr/bin/service".into()),
        allocator: Ok("/usr/lib/libc.so.6".into()),
        from_ns: 0,
        over_ns: window_ns,
        ended: false,
        calls,
        classes,
        threads: vec![],
        threads_left_out: 0,
        samples: Ok(samples),
        lost: Lost::default(),
        missing: vec![],
    };
    Counted {
        length_ns: window_ns,
        processes: vec![process],
        further: None,
        series: vec![Point { t_ns: window_ns, over_ns: window_ns, calls: blocks, frees: blocks, bytes }],
        modules: vec![],
        frames: vec![],
        stacks: vec![],
        missing: vec![],
    }
}

/// The account of an interpreter whose collector was sampled for this time.
pub fn account(pid: i32, over_ns: u64) -> RuntimeAccount {
    let unknown = || Absence::new(Reason::NotApplicable, "sketch");
    RuntimeAccount {
        pid,
        method: "sketch".into(),
        over_ns,
        stopped_ns: Ok(Figure { value: Interval::exact(0.0), sampled: true }),
        collections: Err(unknown()),
        collector_cpu_ns: Err(unknown()),
        allocated_bytes: Err(unknown()),
    }
}

impl Default for Sketch {
    fn default() -> Self {
        Self::new()
    }
}

impl Sketch {
    /// [`empty`], with the modules `[kernel]`, `libc` (malloc at 0x9000 to 0xd000) and `app`.
    pub fn new() -> Self {
        let mut sketch = Sketch { recording: empty() };
        sketch.module("[kernel]", ModuleRole::Kernel);
        let libc = sketch.module("libc", ModuleRole::Libc);
        sketch.recording.modules[libc as usize].malloc_ranges = vec![(0x9000, 0xd000)];
        sketch.module("app", ModuleRole::Other);
        sketch
    }

    pub fn module(&mut self, path: &str, role: ModuleRole) -> u32 {
        self.recording.modules.push(Module {
            path: path.into(),
            build_id: None,
            role,
            malloc_ranges: vec![],
            has_symbols: true,
        });
        self.recording.modules.len() as u32 - 1
    }

    pub fn runtime(&mut self, runtime: Runtime) {
        self.recording.processes[0].runtime = Ok(runtime);
    }

    pub fn thread(&mut self, tid: i32, comm: &str, cpu_ms: u64) {
        self.recording.threads.push(ThreadTimes {
            pid: PID,
            tid,
            comm: comm.into(),
            seen_ns: self.recording.meta.window_ns,
            cpu_ns: cpu_ms * MS,
            run_delay_ns: Some(0),
        });
    }

    /// Index of the stack. None for an empty text.
    pub fn stack(&mut self, text: &str) -> Option<u32> {
        if text.is_empty() {
            return None;
        }
        let frames = text.split(';').map(|f| self.frame(f)).collect();
        self.recording.stacks.push(Stack { frames, complete: true });
        Some(self.recording.stacks.len() as u32 - 1)
    }

    fn frame(&mut self, text: &str) -> u32 {
        let module_at = |s: &Self, path: &str| {
            Some(s.recording.modules.iter().position(|m| m.path == path).expect(path) as u32)
        };
        let frame = match (text.split_once('!'), text.split_once('+')) {
            // A function whose module is not known.
            (Some(("?", symbol)), _) => Frame { module: None, symbol: Some(symbol.into()), offset: 0 },
            (Some((path, symbol)), _) => {
                Frame { module: module_at(self, path), symbol: Some(symbol.into()), offset: 0x10 }
            }
            (None, Some((path, offset))) => Frame {
                module: module_at(self, path),
                symbol: None,
                offset: u64::from_str_radix(offset, 16).expect(offset),
            },
            (None, None) => Frame { module: Some(0), symbol: Some(text.into()), offset: 0x10 },
        };
        let known = self.recording.frames.iter().position(|f| *f == frame);
        known.unwrap_or_else(|| {
            self.recording.frames.push(frame);
            self.recording.frames.len() - 1
        }) as u32
    }

    /// `count` samples of one thread, spread evenly over the window.
    pub fn samples(&mut self, count: u64, tid: i32, kernel: &str, user: &str) {
        let (kernel, user) = (self.stack(kernel), self.stack(user));
        let window = self.recording.meta.window_ns;
        self.recording.samples.extend((0..count).map(|i| CpuSample {
            t_ns: window / count * i,
            pid: PID,
            tid,
            cpu: 0,
            kernel,
            user,
            deep: true,
            faulted: None,
        }));
    }

    pub fn waits(
        &mut self,
        count: u64,
        tid: i32,
        state: char,
        syscall: Option<i64>,
        kernel: &str,
        user: &str,
    ) {
        let (kernel, user) = (self.stack(kernel), self.stack(user));
        let period = self.recording.meta.wait_period_ns;
        self.recording.waits.extend((0..count).map(|i| WaitSample {
            t_ns: period * i,
            pid: PID,
            tid,
            weight_ns: period,
            state,
            syscall,
            python_lock: None,
            kernel,
            user,
        }));
    }

    /// Adds spans in which the collector of the process ran, from and to a time in milliseconds, and its account of the
    /// whole window.
    pub fn collecting(&mut self, spans: &[(u64, u64)]) {
        self.recording.accounts.push(account(PID, self.recording.meta.window_ns));
        let spans =
            spans.iter().map(|(from, to)| Collecting { pid: PID, from_ns: from * MS, to_ns: to * MS });
        self.recording.collecting.extend(spans);
    }

    /// Sets a price list with one entry.
    pub fn price(&mut self, name: &str, ns: f64) {
        self.recording.prices = Ok(PriceList {
            machine: String::new(),
            measured_unix_s: 0,
            prices: vec![Price { name: name.into(), ns: Interval::exact(ns), repetitions: 9 }],
            absent: vec![],
        });
    }

    /// Sets the first and the last tick, with this CPU time between them.
    pub fn ticks(&mut self, user_ms: u64, system_ms: u64) -> &mut Tick {
        let start = Tick { host: Some(HostTick::default()), ..Tick::default() };
        let end = Tick {
            t_ns: self.recording.meta.window_ns,
            user_ns: user_ms * MS,
            system_ns: system_ms * MS,
            ..start.clone()
        };
        self.recording.ticks = vec![start, end];
        &mut self.recording.ticks[1]
    }
}
