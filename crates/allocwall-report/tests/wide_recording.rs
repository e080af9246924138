//! Makes the reports from a recording of a large machine: 64 CPUs and 200 busy processes for 15 s. Checks the memory
//! limit of the tool, and prints the CPU time. The limit for an optimized build is 3 s.

use allocwall_diagnose::{self as diagnose, bill};
use allocwall_host::clock;
use allocwall_host::facts::Machine;
use allocwall_measure::file::{self, Batch, Head, Part, Tail, Writer};
use allocwall_model::recording::*;
use allocwall_model::units::{Absence, Reason};
use allocwall_report::text::{Extent, Style};
use allocwall_report::{collapsed, json, text};
use allocwall_sketches::recording::empty;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The limit of the tool is 150 MB. The test harness needs little in comparison.
const PEAK_KIB: u64 = 150_000;
const SECONDS: u64 = 15;
const CPUS: u64 = 64;
const PROCESSES: i32 = 200;
const THREADS: i32 = 16;
const PERIOD_NS: u64 = 1_001_000;
const WINDOW_NS: u64 = SECONDS * 1_000_000_000;
const STACKS: u32 = 40_000;
const FRAMES: u32 = 20_000;
const MODULES: u32 = 300;
const DEPTH: u32 = 24;
/// Kernel stacks come first. Each one is a variant of a fault or of a system call.
const KERNEL_STACKS: u32 = 1_000;

/// Variable with the path of the file, for the child process, which is this program again.
const FILE: &str = "ALLOCWALL_TEST_WIDE_RECORDING";

fn absence() -> Absence {
    Absence::new(Reason::NotFound, "generated")
}

fn module(n: u32) -> Module {
    let (path, role) = match n {
        0 => ("[kernel]".to_owned(), ModuleRole::Kernel),
        1 => ("/usr/lib/x86_64-linux-gnu/libc.so.6".to_owned(), ModuleRole::Libc),
        _ => (format!("/usr/lib/service/lib{n}.so"), ModuleRole::Other),
    };
    Module {
        path,
        build_id: Some(format!("{n:040x}")),
        role,
        malloc_ranges: if n == 1 { vec![(0x9000, 0xd000)] } else { vec![] },
        has_symbols: true,
    }
}

fn frame(n: u32) -> Frame {
    const KERNEL: [&str; 8] = [
        "clear_page_erms",
        "do_anonymous_page",
        "__handle_mm_fault",
        "exc_page_fault",
        "asm_exc_page_fault",
        "do_syscall_64",
        "__x64_sys_munmap",
        "futex_wait_queue",
    ];
    match n % 20 {
        0 => Frame {
            module: Some(0),
            symbol: Some(KERNEL[(n / 20) as usize % KERNEL.len()].to_owned()),
            offset: u64::from(n),
        },
        1 => Frame { module: Some(1), symbol: None, offset: 0x9000 + u64::from(n) % 0x4000 },
        _ => Frame {
            module: Some(2 + n % (MODULES - 2)),
            symbol: Some(format!("service::module{}::Handler<T>::function_{n}", n % 97)),
            offset: u64::from(n) * 16,
        },
    }
}

fn stack(n: u32) -> Stack {
    let frames = if n < KERNEL_STACKS {
        (0..8).map(|depth| (n + depth) * 20 % FRAMES).collect()
    } else {
        // One in four has malloc at its leaf.
        (0..DEPTH)
            .map(|depth| match (depth, n % 4) {
                (0, 0) => n / 4 * 20 % FRAMES + 1,
                _ => {
                    ((n.wrapping_mul(2_654_435_761) >> 8).wrapping_add(depth * 37) % FRAMES / 20) * 20
                        + 2
                        + depth % 18
                }
            })
            .collect()
    };
    Stack { frames, complete: n.is_multiple_of(5) }
}

fn process(n: i32) -> Process {
    Process {
        pid: 1000 + n,
        ppid: if n == 0 { 1 } else { 1000 },
        cmdline: vec!["/usr/bin/service".into(), format!("--worker={n}")],
        environment: vec![("MALLOC_ARENA_MAX".into(), "4".into())],
        ..empty().processes.remove(0)
    }
}

fn tid(n: u64) -> (i32, i32) {
    let thread = n as i32 % (PROCESSES * THREADS);
    let pid = 1000 + thread / THREADS;
    (pid, pid * 100 + thread % THREADS)
}

fn tick(n: u64) -> Tick {
    let t_ns = WINDOW_NS * n / 60;
    Tick {
        t_ns,
        user_ns: t_ns * CPUS * 3 / 4,
        system_ns: t_ns * CPUS / 4,
        minor_faults: t_ns / 2_000,
        threads: (PROCESSES * THREADS) as u32,
        resident: 64 << 30,
        vm_size: 256 << 30,
        host: Some(HostTick { busy_ns: t_ns * CPUS, ..HostTick::default() }),
        ..Tick::default()
    }
}

fn write(path: &Path) {
    let samples_a_second = CPUS * 1_000_000_000 / PERIOD_NS;
    let total = samples_a_second * SECONDS;
    let meta = Meta {
        window_ns: WINDOW_NS,
        requested_ns: WINDOW_NS,
        sample_period_ns: PERIOD_NS,
        wait_period_ns: 20_000_000,
        ..empty().meta
    };
    let processes: Vec<Process> = (0..PROCESSES).map(process).collect();
    let modules: Vec<Module> = (0..MODULES).map(module).collect();
    // The stacks of a sample: a quarter of the samples also have a kernel stack.
    let stacks_of = |n: u64| {
        let at = n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32;
        let kernel = at.is_multiple_of(4).then_some((at / 4) as u32 % KERNEL_STACKS);
        (kernel, Some(KERNEL_STACKS + (at / 7) as u32 % (STACKS - KERNEL_STACKS)))
    };
    let mut writer = Writer::create(Some(path)).expect("a new file");
    writer.write(&Part::Head(Box::new(Head {
        meta: meta.clone(),
        host: HostFacts { online_cpus: CPUS as u32, ..Machine::live().facts() },
        cgroup: None,
        processes: processes.clone(),
        modules: vec![],
        prices: Err(absence()),
    })));
    let mut waits = 0;
    for second in 0..SECONDS {
        let range = samples_a_second * second..samples_a_second * (second + 1);
        let samples = range.map(|n| {
            let (pid, tid) = tid(n.wrapping_mul(0x9e37_79b9) >> 16);
            CpuSample {
                t_ns: WINDOW_NS / total * n,
                pid,
                tid,
                cpu: (n % CPUS) as u16,
                kernel: None,
                user: None,
                deep: n.is_multiple_of(5),
                faulted: None,
            }
        });
        let looks = (0..250).map(|n| {
            let (pid, tid) = tid(second * 250 + n);
            WaitSample {
                t_ns: second * 1_000_000_000 + n * 4_000_000,
                pid,
                tid,
                weight_ns: 50_000_000,
                state: 'S',
                syscall: Some(202),
                python_lock: None,
                kernel: None,
                user: None,
            }
        });
        let ticks = (second * 4..second * 4 + 4 + u64::from(second + 1 == SECONDS)).map(tick);
        let batch = Batch {
            samples: samples.collect(),
            waits: looks.collect(),
            ticks: ticks.collect(),
            ..Batch::default()
        };
        waits += batch.waits.len();
        writer.write(&Part::Batch(Box::new(batch)));
    }
    let threads = (0..(PROCESSES * THREADS) as u64).map(|n| {
        let (pid, tid) = tid(n);
        ThreadTimes {
            pid,
            tid,
            comm: format!("worker-{}", tid % 100),
            seen_ns: WINDOW_NS,
            cpu_ns: WINDOW_NS * CPUS / (PROCESSES * THREADS) as u64,
            run_delay_ns: Some(1_000_000),
        }
    });
    writer.write(&Part::Tail(Box::new(Tail {
        meta,
        processes,
        probes: [ProbeName::CpuSamples, ProbeName::KernelStacks, ProbeName::Waits]
            .map(|name| Probe::new(name, ProbeState::Measured))
            .into(),
        threads: threads.collect(),
        modules,
        counts: vec![],
        neighbours: vec![],
        heap: Err(absence()),
        resident: Err(absence()),
        placement: Err(absence()),
        loads: Err(absence()),
        accounts: vec![],
        collecting: vec![],
        fault_slices: vec![],
        hardware: Err(absence()),
        frames: (0..FRAMES).map(frame).collect(),
        stacks: (0..STACKS).map(stack).collect(),
        sample_stacks: (0..total).map(stacks_of).collect(),
        wait_stacks: (0..waits as u64).map(|n| (Some(n as u32 % KERNEL_STACKS), stacks_of(n).1)).collect(),
    })));
    let (written, failure) = writer.finish();
    assert!(failure.is_none() && written.is_ok(), "{failure:?}");
}

/// Runs only in the child process of the other test, which has the variable.
#[test]
fn judge_the_file_that_is_named() {
    let Some(path) = std::env::var_os(FILE) else {
        return;
    };
    let begun = clock::own_cpu_ns();
    let passed = || Duration::from_nanos(clock::own_cpu_ns() - begun);
    let recording = file::read(Path::new(&path)).expect("a recording");
    let (read, read_kib) = (passed(), peak_kib());
    let bill = bill::of(&recording);
    let (billed, billed_kib) = (passed(), peak_kib());
    let verdict = diagnose::verdict(&recording, &bill);
    let text = text::diagnosis(&recording, &bill, &verdict, None, Extent::All, Style::FILE);
    let document = json::document(&recording, &bill, &verdict);
    let (judged, judged_kib) = (passed(), peak_kib());
    let drawn = collapsed::stacks(&recording).lines().count();
    let shares: f64 = bill.on_cpu.iter().flatten().map(|line| line.share.point).sum();
    assert!((shares - 1.0).abs() < 1e-9, "{shares}");
    assert_eq!(recording.threads.len(), (PROCESSES * THREADS) as usize);
    assert!(!text.is_empty() && document.len() > 10_000 && drawn > 1_000);
    println!(
        "{} samples; CPU time and peak: read {read:.2?}, {read_kib} KiB; billed {billed:.2?}, {billed_kib} KiB; \
         judged and told {judged:.2?}, {judged_kib} KiB; drawn {:.2?}, {} KiB",
        recording.samples.len(),
        passed(),
        peak_kib()
    );
    // The verdict does not need the flamegraph.
    assert!(judged_kib <= PEAK_KIB, "{judged_kib} KiB");
}

fn peak_kib() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    line.unwrap().trim_end_matches("kB").trim().parse().unwrap()
}

#[test]
fn sixty_four_cpus_and_two_hundred_processes() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("wide.allocwall");
    write(&path);
    let size = std::fs::metadata(&path).unwrap().len();
    let child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "judge_the_file_that_is_named", "--nocapture"])
        .env(FILE, &path)
        .output()
        .unwrap();
    let told = String::from_utf8_lossy(&child.stdout).into_owned();
    println!("{size} bytes: {told}");
    assert!(child.status.success(), "{told}{}", String::from_utf8_lossy(&child.stderr));
}
