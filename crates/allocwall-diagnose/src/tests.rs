//! Tests each wall in pairs: the wall is found, its twin is ruled out, an interval that includes a threshold gives a
//! contributor, and a wall that could not be measured has a reason.

use super::context::{Context, percent, percent_interval};
use super::needs::{NeedState, Unmet};
use super::remedies::Unfit;
use super::rungs::named;
use super::testing::{Subject, WINDOW_S, absent, computing, resident_bill};
use super::{Finding, Reach, ShellLine, Status, Whole, remedies};
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::catalogue::cost::CostClass::*;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::remedies::Need;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::devices::{Datagrams, DiskUse, TcpEvents};
use allocwall_model::recording::*;
use allocwall_model::resident::{ResidentOwner, TargetMemory};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use allocwall_sketches::recording::{PID, Sketch, account, counted};

fn status(subject: &Subject, wall: Wall) -> Status {
    subject.finding(wall).status
}

fn with_shares(shares: &[(CostClass, f64)]) -> Subject {
    let mut subject = computing();
    subject.shares(shares);
    subject
}

fn offered(subject: &Subject) -> Vec<String> {
    subject.verdict().remedies.into_iter().map(|p| p.remedy).collect()
}

// ---- every wall that is a share of CPU time ----

const CPU_WALLS: &[(Wall, CostClass)] = &[
    (Wall::GarbageCollector, GarbageCollector),
    (Wall::FirstTouch, FaultPath),
    (Wall::FirstTouch, Zeroing),
    (Wall::MapChurn, MapCalls),
    (Wall::MapChurn, PageRelease),
    (Wall::CallRate, AllocatorCode),
    (Wall::CallRate, RuntimeAllocator),
    (Wall::LargeAllocations, BlockFilling),
    (Wall::KernelSlab, KernelSlab),
];

#[test]
fn cpu_walls_fire_on_their_line_and_on_no_other() {
    for (wall, class) in CPU_WALLS {
        let subject = with_shares(&[(*class, 0.40)]);
        assert_eq!(subject.verdict().walls.first(), Some(wall), "{class:?}");
        for other in CPU_WALLS.iter().filter(|o| o.0 != *wall) {
            assert_eq!(status(&subject, other.0), Status::RuledOut, "{class:?} must not fire {:?}", other.0);
        }
    }
}

#[test]
fn cpu_walls_are_ruled_out_when_small_and_contribute_in_between() {
    for (wall, class) in CPU_WALLS {
        assert_eq!(status(&with_shares(&[(*class, 0.02)]), *wall), Status::RuledOut, "{class:?}");
        assert_eq!(status(&with_shares(&[(*class, 0.11)]), *wall), Status::Contributor, "{class:?}");
        let mut straddling = computing();
        straddling.shares_with_samples(&[(*class, 0.17)], 200);
        assert_eq!(status(&straddling, *wall), Status::Contributor, "{class:?}");
    }
}

#[test]
fn cpu_walls_need_the_floor() {
    for (wall, class) in CPU_WALLS {
        let mut idle = with_shares(&[(*class, 0.40)]);
        idle.cpus(0.04);
        assert_eq!(status(&idle, *wall), Status::RuledOut, "{class:?}");
    }
}

#[test]
fn too_few_samples_are_not_judged() {
    for (wall, class) in CPU_WALLS {
        let mut subject = computing();
        subject.process().runtime = Ok(Runtime::Go { version: None });
        subject.shares_with_samples(&[(*class, 0.40)], 50);
        let finding = subject.finding(*wall);
        if *wall == Wall::FirstTouch {
            // Number of faults × prices shows that first touch costs almost nothing.
            assert_eq!(finding.status, Status::RuledOut);
            continue;
        }
        assert_eq!(finding.status, Status::NotMeasured, "{class:?}");
        assert_eq!(finding.missing.map(|m| m.reason), Some(Reason::TooLittle));
    }
}

// ---- collectors that cannot be recognized ----

#[test]
fn a_stripped_interpreter_s_collector_is_not_ruled_out() {
    let python = |has_symbols: bool, shares: &[(CostClass, f64)]| {
        let mut subject = with_shares(shares);
        subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        let module = &mut subject.recording.modules[1];
        (module.role, module.has_symbols) = (ModuleRole::Cpython, has_symbols);
        subject
    };
    let stripped = python(false, &[]);
    assert_eq!(status(&stripped, Wall::GarbageCollector), Status::NotMeasured);
    assert_eq!(status(&stripped, Wall::CallRate), Status::NotMeasured);
    assert_eq!(status(&python(true, &[]), Wall::GarbageCollector), Status::RuledOut);
    assert_eq!(status(&python(true, &[]), Wall::CallRate), Status::RuledOut);
    // Time that looks like allocation may be garbage collection.
    let led = python(false, &[(RuntimeAllocator, 0.45)]);
    assert_eq!(status(&led, Wall::CallRate), Status::Contributor);
    assert!(led.finding(Wall::CallRate).estimate.is_some());
    assert_eq!(status(&led, Wall::GarbageCollector), Status::NotMeasured);
    assert_eq!(
        led.verdict().sentence,
        "No wall, but 45 % (44–46 %) of CPU goes to allocation and garbage collection together; 55 % is the application's own computing, most in `site_of_application`. Not measured: garbage collector."
    );
    // The interpreter's own flag shows when it collects.
    let mut read = python(false, &[(RuntimeAllocator, 0.1)]);
    read.recording.accounts = vec![account(PID, read.recording.meta.window_ns)];
    assert!(read.finding(Wall::CallRate).estimate.is_some());
    let sentence = read.verdict().sentence;
    assert!(sentence.starts_with("No wall, but allocating and freeing takes 10 %"), "{sentence}");
    let named = python(true, &[(RuntimeAllocator, 0.45)]).finding(Wall::CallRate);
    assert_eq!((named.status, named.estimate), (Status::Wall, None));
    // Without kernel samples too: there are samples, but the verdict is undecided.
    let mut user = python(false, &[(UnnamedKernel, 0.02)]);
    user.recording.meta.kernel_samples = false;
    user.recording.prices = Err(absent());
    let verdict = user.verdict();
    assert_eq!(super::reach(&user.recording, &user.bill, &verdict), Reach::Undecided);
    // A recognized collector is a wall, in a stripped runtime too. If no other line can contain its time, it is ruled
    // out.
    let seen = python(false, &[(GarbageCollector, 0.3)]);
    assert_eq!(status(&seen, Wall::GarbageCollector), Status::Wall);
    let kernel = python(false, &[(OtherKernel, 0.98)]);
    assert_eq!(status(&kernel, Wall::GarbageCollector), Status::RuledOut);
}

#[test]
fn only_collectors_that_this_tool_knows_are_ruled_out_by_name() {
    let judged = |exe: &str| {
        let mut subject = computing();
        subject.process().exe = Ok(exe.into());
        let finding = subject.finding(Wall::GarbageCollector);
        (finding.status, finding.missing)
    };
    let (status, missing) = judged("/usr/bin/ruby3.1");
    assert_eq!(status, Status::NotMeasured);
    let missing = missing.expect("a reason");
    let shown_by = "GC::Profiler in the program";
    assert_eq!((missing.reason, missing.mend), (Reason::NotSupported, vec![Advice::text(shown_by)]));
    assert_eq!(judged("/usr/bin/service"), (Status::RuledOut, None));
    let mut dotnet = computing();
    dotnet.recording.modules[1].path = "/usr/share/dotnet/libcoreclr.so".into();
    assert_eq!(dotnet.finding(Wall::GarbageCollector).status, Status::NotMeasured);
}

// ---- interference ----

fn throttled(ms_per_s: u64, periods_hit: u64) -> Subject {
    let mut subject = computing();
    subject.cpus(1.0 - ms_per_s as f64 / 1e3).waits(WaitClass::Throttled, ms_per_s as f64 / 1e3);
    subject.last().cgroup = Some(CgroupTick {
        periods: 100,
        throttled_periods: periods_hit,
        throttled_ns: ms_per_s * 1_000_000 * WINDOW_S as u64,
        quota_cpus: Some(0.5),
        ..CgroupTick::default()
    });
    subject
}

#[test]
fn throttling_comes_first() {
    let mut subject = throttled(500, 95);
    subject.shares(&[(FaultPath, 0.6)]);
    let verdict = subject.verdict();
    assert_eq!(verdict.walls[..2], [Wall::CgroupThrottling, Wall::FirstTouch]);
    assert_eq!(verdict.remedies[0].remedy, "quota");
    let throttling = subject.finding(Wall::CgroupThrottling);
    assert!((throttling.share.expect("measured").point - 0.5).abs() < 1e-9, "{throttling:?}");
    assert_eq!(throttling.evidence[0], "95 of 100 periods throttled, quota 0.50 CPUs");
}

#[test]
fn a_quota_that_is_not_reached_throttles_nothing() {
    assert_eq!(status(&throttled(0, 0), Wall::CgroupThrottling), Status::RuledOut);
    assert_eq!(status(&throttled(40, 8), Wall::CgroupThrottling), Status::Contributor);
    let mut no_quota = throttled(0, 0);
    no_quota.last().cgroup = Some(CgroupTick::default());
    assert_eq!(no_quota.finding(Wall::CgroupThrottling).because, "no quota");
    let mut unreadable = computing();
    unreadable.last().cgroup = None;
    assert_eq!(status(&unreadable, Wall::CgroupThrottling), Status::NotMeasured);
}

#[test]
fn a_busy_neighbour_in_the_same_cgroup_is_not_the_target_s_throttling() {
    let mut subject = throttled(500, 95);
    subject.cpus(0.2).waits(WaitClass::Throttled, 0.001);
    let finding = subject.finding(Wall::CgroupThrottling);
    assert_eq!(finding.status, Status::RuledOut);
    assert_eq!(finding.evidence[1], "500 ms throttled per second in the whole cgroup, summed over CPUs");
}

#[test]
fn steal_is_judged_on_the_target_s_part() {
    let stolen = |low: f64, point: f64, high: f64| {
        let mut subject = computing();
        let steal = Interval::new(low, point, high).scaled(WINDOW_S);
        subject.wait_line(WaitClass::Stolen).thread_s = Ok(steal);
        subject.last_host().steal_ns = (high * WINDOW_S * 1e9) as u64;
        subject
    };
    assert_eq!(status(&stolen(0.5, 0.5, 0.5), Wall::Steal), Status::Wall);
    assert_eq!(status(&stolen(0.1, 0.1, 0.1), Wall::Steal), Status::Contributor);
    assert_eq!(status(&stolen(0.01, 0.01, 0.01), Wall::Steal), Status::RuledOut);
    // The point is large, but the interval is wide: other processes may have lost this time.
    assert_eq!(status(&stolen(0.1, 0.35, 0.8), Wall::Steal), Status::Contributor);
    let mut once = stolen(0.5, 0.5, 0.5);
    once.recording.ticks.clear();
    assert_eq!(status(&once, Wall::Steal), Status::NotMeasured);
}

#[test]
fn run_queue_names_the_competitor() {
    let mut subject = computing();
    subject.cpus(0.5).waits(WaitClass::RunQueue, 0.5);
    let hog = Neighbour { pid: 7, comm: "hog".into(), cpu_ns: 15_000_000_000 };
    let name = named(&hog);
    subject.recording.neighbours = vec![hog];
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::RunQueue]);
    assert!(verdict.sentence.contains(&name), "{}", verdict.sentence);
    let evidence = subject.finding(Wall::RunQueue).evidence.swap_remove(0);
    assert!(evidence.ends_with(&format!("{name} 1.50")), "{evidence}");
    subject.waits(WaitClass::RunQueue, 0.01);
    assert_eq!(status(&subject, Wall::RunQueue), Status::RuledOut);
    subject.wait_line(WaitClass::RunQueue).thread_s = Err(absent());
    assert_eq!(status(&subject, Wall::RunQueue), Status::NotMeasured);
}

#[test]
fn waits_behind_other_processes_are_not_beside_their_absence() {
    let judged = |wait: f64, system_wide: bool| {
        let mut subject = computing();
        subject.cpus(1.9).threads(4).waits(WaitClass::RunQueue, wait);
        subject.recording.meta.system_wide = system_wide;
        let finding = subject.finding(Wall::RunQueue);
        (finding.status, finding.evidence.join("; "))
    };
    let (status, evidence) = judged(0.01, true);
    assert_eq!(status, Status::RuledOut);
    assert!(evidence.contains("its own threads compete"), "{evidence}");
    assert_eq!(judged(0.9, true), (Status::Wall, String::new()));
    let (_, evidence) = judged(0.9, false);
    assert!(evidence.contains("only to root"), "{evidence}");
    let mut quiet = computing();
    let evidence = |s: &Subject| s.finding(Wall::RunQueue).evidence.join("; ");
    assert!(evidence(&quiet).contains("no other process"));
    // Without samples, no process was seen.
    quiet.recording.probes.push(Probe::new(ProbeName::CpuSamples, ProbeState::Absent(absent())));
    assert_eq!(evidence(&quiet), "");
}

#[test]
fn most_of_the_other_processes_time_is_more_than_half() {
    let evidence = |largest_ms: u64| {
        let mut subject = computing();
        subject.cpus(0.5).waits(WaitClass::RunQueue, 0.5);
        let other = |pid| Neighbour { pid, comm: "other".into(), cpu_ns: 1_000_000_000 };
        subject.recording.neighbours = (10..20).map(other).collect();
        subject.recording.neighbours[0].cpu_ns = largest_ms * 1_000_000;
        subject.finding(Wall::RunQueue).evidence.swap_remove(0)
    };
    assert!(evidence(12_000).contains("most by other"));
    assert!(!evidence(1_100).contains("most by"));
}

#[test]
fn threads_that_wait_for_one_another_are_no_interference() {
    let mut subject = computing();
    subject.cpus(1.8).waits(WaitClass::RunQueue, 2.5);
    subject.recording.meta.system_wide = true;
    subject.recording.threads = (0..4)
        .map(|i| ThreadTimes {
            pid: 100,
            tid: 100 + i,
            comm: "pool".into(),
            seen_ns: 10_000_000_000,
            cpu_ns: 4_500_000_000,
            run_delay_ns: Some(6_250_000_000),
        })
        .collect();
    let load = |cpu_ns| Neighbour { pid: 7, comm: "load".into(), cpu_ns };
    // The load uses 0.1 CPUs, the target's other threads 1.35: the threads wait for one another.
    subject.recording.neighbours = vec![load(1_000_000_000)];
    let finding = subject.finding(Wall::RunQueue);
    assert_eq!(finding.status, Status::RuledOut);
    assert!(finding.estimate.is_some());
    // The sentence has the figure.
    let behind = Context::new(&subject.recording, &subject.bill).behind_itself();
    assert!(behind > 0.5, "{behind}");
    let sentence = subject.verdict().sentence;
    assert!(sentence.contains(&percent(behind)), "{sentence}");
    // A single thread waits only for other processes.
    subject.recording.threads.truncate(1);
    let finding = subject.finding(Wall::RunQueue);
    assert_eq!((finding.status, finding.estimate), (Status::Wall, None));
}

#[test]
fn other_processes_that_a_recording_does_not_keep_count_too() {
    let behind = |busy_s: u64| {
        let mut subject = computing();
        subject.cpus(1.8).waits(WaitClass::RunQueue, 2.5);
        let thread = |tid| ThreadTimes {
            pid: 100,
            tid,
            comm: "pool".into(),
            seen_ns: 10_000_000_000,
            cpu_ns: 4_500_000_000,
            run_delay_ns: Some(6_250_000_000),
        };
        subject.recording.threads = (100..104).map(thread).collect();
        let kept = |pid| Neighbour { pid, comm: "worker".into(), cpu_ns: 50_000_000 };
        subject.recording.neighbours = (1..33).map(kept).collect();
        subject.last_host().busy_ns = busy_s * 1_000_000_000;
        Context::new(&subject.recording, &subject.bill).behind_others()
    };
    // The target used 18 s, and the 32 others that were kept 1.6 s.
    let (kept, more) = (behind(19), behind(60));
    assert!(kept < 0.2 && more > 0.7, "{kept} {more}");
}

#[test]
fn a_call_site_without_a_symbol_has_the_name_of_its_file() {
    let mut subject = computing();
    let lines = subject.bill.on_cpu.as_mut().expect("sampled");
    lines[0].sites[0].function = "(no symbol)".into();
    lines[0].sites[0].module = "/usr/lib/libz.so.1".into();
    let verdict = subject.verdict();
    assert_eq!(verdict.site.as_deref(), Some("libz.so.1"));
    assert!(verdict.sentence.contains("`libz.so.1`"), "{}", verdict.sentence);
}

#[test]
fn without_a_line_the_threads_own_counters_tell() {
    let mut subject = throttled(500, 95);
    subject.wait_line(WaitClass::RunQueue).thread_s = Err(absent());
    let mut thread = ThreadTimes {
        pid: 100,
        tid: 100,
        comm: "service".into(),
        seen_ns: 10_000_000_000,
        cpu_ns: 5_000_000_000,
        // All of the run delay is throttled time.
        run_delay_ns: Some(5_000_000_000),
    };
    subject.recording.threads = vec![thread.clone()];
    assert_eq!(status(&subject, Wall::RunQueue), Status::RuledOut);
    thread.run_delay_ns = Some(9_000_000_000);
    subject.recording.threads = vec![thread];
    assert_eq!(status(&subject, Wall::RunQueue), Status::Wall);
}

#[test]
fn others_on_the_cpu_come_first_named_or_not() {
    let mut subject = with_shares(&[(FaultPath, 0.6)]);
    subject.threads(4).cpus(1.0).waits(WaitClass::RunQueue, 0.5);
    // Without root, the names of other processes are unknown.
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::RunQueue, Wall::FirstTouch]);
    // The sentence has the figure of the second wall too.
    assert!(verdict.sentence.contains("60 %"), "{}", verdict.sentence);
    let nameless = Neighbour { pid: 7, comm: String::new(), cpu_ns: 9_000_000_000 };
    let name = named(&nameless);
    subject.recording.neighbours = vec![nameless];
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::RunQueue, Wall::FirstTouch]);
    assert!(verdict.sentence.contains(&name), "{}", verdict.sentence);
    assert_eq!(verdict.remedies[0].remedy, "nice");
}

// ---- stopped targets ----

#[test]
fn a_stopped_target_gets_no_verdict_and_nothing_is_ruled_out() {
    let mut subject = with_shares(&[]);
    subject.cpus(0.0);
    subject.bill.on_cpu = Err(absent());
    subject.bill.sampled = Err(absent());
    subject.waits(WaitClass::Stopped, 1.0);
    let why = Absence::new(Reason::TooLittle, "process 100 (service) is stopped by a signal")
        .mend(Advice::command("kill -CONT 100"));
    subject.recording.probes.push(Probe::new(ProbeName::Stopped, ProbeState::Partial(why)));
    let verdict = subject.verdict();
    assert_eq!(
        verdict.sentence,
        "No verdict: the target was stopped for 100 % of its threads' time; process 100 (service) is stopped by a signal."
    );
    assert_eq!((&verdict.walls[..], &verdict.next[0].command[..]), (&[][..], "kill -CONT 100"));
    let measured = |f: &&Finding| f.status != Status::NotMeasured;
    assert!(verdict.findings.iter().filter(measured).all(|f| f.of == Whole::Resident));
    // The twin sleeps for the same time, by itself.
    subject.waits(WaitClass::Stopped, 0.0).waits(WaitClass::Idle, 1.0);
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::Waiting]);
    assert!(!verdict.sentence.contains("stopped"), "{}", verdict.sentence);
    // Under strace it is stopped most of the time, but the rest is sampled.
    let mut traced = with_shares(&[(FaultPath, 0.6)]);
    traced.waits(WaitClass::Stopped, 0.6);
    assert_eq!(traced.verdict().walls[0], Wall::FirstTouch);
}

#[test]
fn an_account_that_was_not_read_rules_nothing_out() {
    let mut subject = with_shares(&[]);
    subject.cpus(0.0);
    subject.bill.on_cpu = Err(absent());
    subject.bill.sampled = Err(absent());
    assert_eq!(status(&subject, Wall::FirstTouch), Status::RuledOut);
    subject.bill.rates.user_cpu_s = Err(absent());
    for wall in [Wall::FirstTouch, Wall::MapChurn, Wall::CallRate, Wall::Waiting] {
        assert_eq!(status(&subject, wall), Status::NotMeasured, "{wall:?}");
    }
    let reach = super::reach(&subject.recording, &subject.bill, &subject.verdict());
    assert_eq!(reach, Reach::NotSampled);
}

// ---- waiting ----

#[test]
fn a_waiting_target_is_no_cpu_problem() {
    let mut subject = with_shares(&[(FaultPath, 0.6)]);
    subject.cpus(0.04).waits(WaitClass::Storage, 0.9);
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::Waiting]);
    let waited = subject.finding(Wall::Waiting).share.expect("measured");
    assert!((waited.point - 0.96).abs() < 1e-9, "{waited:?}");
    for part in ["0.04", "96 %", "storage"] {
        assert!(verdict.sentence.contains(part), "{part}: {}", verdict.sentence);
    }
    assert!(verdict.remedies.is_empty());
    subject.cpus(0.5);
    assert_eq!(status(&subject, Wall::Waiting), Status::Contributor);
    // It counted its calls in the rest of the time.
    subject.recording.counting_samples = 1_000;
    subject.recording.meta.sample_period_ns = 5_000_000;
    assert_eq!(status(&subject, Wall::Waiting), Status::RuledOut);
    subject.recording.counting_samples = 0;
    subject.cpus(0.9);
    assert_eq!(status(&subject, Wall::Waiting), Status::RuledOut);
    subject.recording.ticks.clear();
    assert_eq!(status(&subject, Wall::Waiting), Status::NotMeasured);
}

#[test]
fn what_is_mostly_waited_for_has_most_of_the_time() {
    let sentence = |storage: f64, idle: f64, other: f64| {
        let mut subject = computing();
        subject.cpus(0.04).waits(WaitClass::Storage, storage);
        subject.waits(WaitClass::Idle, idle).waits(WaitClass::Other, other);
        subject.verdict().sentence
    };
    assert!(sentence(0.6, 0.2, 0.1).contains("mostly for storage"));
    assert!(sentence(0.2, 0.6, 0.1).contains("mostly for work"));
    // The largest part is not most of it.
    assert!(!sentence(0.4, 0.3, 0.3).contains("mostly"));
    // Waits whose purpose is unknown are not most of it for sure.
    let locks = |unknown: f64| {
        let mut subject = computing();
        subject.cpus(0.04).waits(WaitClass::ApplicationLock, 0.6).waits(WaitClass::Idle, 0.4);
        subject.unknown_waits(WaitClass::ApplicationLock, unknown, 0.0);
        super::sentence::waits_for(&Context::new(&subject.recording, &subject.bill))
    };
    assert_eq!((locks(0.0).as_str(), locks(0.5).as_str()), (", mostly for other threads", ""));
}

// ---- disks and networks ----

/// Where a reader of a file waits for a disk.
const READS: &str = "folio_wait_bit_common";

#[test]
fn a_disk_is_named_by_the_target_s_own_waits() {
    let subject = |busy: f64, ms: f64, waits: f64| {
        let mut subject = computing();
        subject.disk(busy, ms).storage_waits(waits, READS);
        subject
    };
    let judged = |busy: f64, ms: f64, waits: f64| {
        let finding = subject(busy, ms, waits).finding(Wall::Disk);
        (finding.status, finding.because)
    };
    let named = subject(0.97, 34.0, 1.0).verdict();
    assert_eq!(named.walls, [Wall::Disk]);
    assert_eq!(
        named.sentence,
        "The disk is the wall: threads spend 50 % of their working time waiting for storage; busiest disk of the machine: sda busy 97 %, 34 ms a request."
    );
    assert!(named.remedies.is_empty());
    let evidence = subject(0.97, 34.0, 1.0).finding(Wall::Disk).evidence;
    assert_eq!(
        evidence[..2],
        [
            "sda busy 97 %, 34 ms a request; 2.5 in flight on average; 75 requests and 0.3 MB a second",
            "1.00 threads waited for storage on average"
        ]
    );
    assert!(evidence[2].contains("is not known"), "{evidence:?}");
    let idle = (Status::RuledOut, "sda busy 3 %, 0.4 ms a request".to_owned());
    assert_eq!(judged(0.03, 0.4, 0.0), idle);
    // The disk is busy for others.
    let others = "0 % of working time; sda busy 97 %, 34 ms a request".to_owned();
    assert_eq!(judged(0.97, 34.0, 0.0), (Status::RuledOut, others));
    // The threads wait, but not for a disk of this machine, or perhaps not for this one.
    for (busy, place) in [
        (0.03, "; the machine's disks are hardly busy: perhaps a file system of the network."),
        (0.3, "; which disk or file system is not known."),
    ] {
        let elsewhere = subject(busy, 0.4, 1.0).verdict();
        assert_eq!(elsewhere.walls, [Wall::Disk]);
        assert!(elsewhere.sentence.starts_with("Storage is the wall: "), "{}", elsewhere.sentence);
        assert!(elsewhere.sentence.ends_with(place), "{}", elsewhere.sentence);
    }
}

#[test]
fn a_sleep_that_may_be_for_anything_is_no_wall_however_busy_a_disk_is() {
    let judged = |busy: f64, function: &str| {
        let mut subject = computing();
        subject.disk(busy, 34.0).storage_waits(1.0, function);
        subject.finding(Wall::Disk)
    };
    for busy in [0.03, 0.97] {
        assert_eq!(judged(busy, READS).status, Status::Wall, "{busy}");
        let other = judged(busy, "__mutex_lock");
        assert_eq!(other.status, Status::Contributor, "{busy}");
        assert!(
            other.because.ends_with("most of these waits are not shown to be for storage"),
            "{}",
            other.because
        );
        assert!(
            other.evidence.iter().any(|line| line.starts_with("100 % of these waits may be")),
            "{other:?}"
        );
    }
}

#[test]
fn waits_that_are_surely_for_storage_may_be_enough_alone() {
    let judged = |reads: f64, others: f64| {
        let mut subject = computing();
        subject.storage_waits(reads, READS).storage_waits(others, "__mutex_lock");
        subject.waits(WaitClass::Storage, reads + others);
        subject.finding(Wall::Disk)
    };
    // 9 s in reads, 10 s in other sleeps and 10 s of CPU: the reads alone are 31 % of working time.
    let enough = judged(0.9, 1.0);
    assert_eq!(enough.status, Status::Wall, "{}", enough.because);
    assert!(enough.evidence.iter().any(|line| line.starts_with("53 % of these waits may be")), "{enough:?}");
    assert_eq!(judged(0.3, 1.0).status, Status::Contributor);
}

#[test]
fn waits_whose_purpose_was_not_read_are_not_judged() {
    let judged = |is_read: bool| {
        let mut subject = computing();
        subject.storage_waits(1.0, "__mutex_lock");
        if !is_read {
            subject.recording.waits[0].kernel = None;
        }
        subject.finding(Wall::Disk)
    };
    let unread = judged(false);
    let missing = unread.missing.expect("a reason");
    assert_eq!((unread.status, missing.reason), (Status::NotMeasured, Reason::NotPermitted));
    assert!(missing.root_helps(), "{missing}");
    // The twin was read, and shows no storage.
    assert_eq!(judged(true).status, Status::Contributor);
}

#[test]
fn idle_disks_do_not_rule_out_a_file_system_of_the_network() {
    let judged = |function: &str| {
        let mut subject = computing();
        subject.storage_waits(0.04, function);
        // Few samples.
        subject.wait_line(WaitClass::Storage).thread_s = Ok(Interval::new(0.0, 0.4, 6.0));
        subject.finding(Wall::Disk)
    };
    assert_eq!(judged("rpc_wait_bit_killable").status, Status::Contributor);
    let local = judged(READS);
    assert_eq!(local.status, Status::RuledOut, "{}", local.because);
    assert!(local.share.is_some_and(|share| share.high > 0.3), "{:?}", local.share);
}

#[test]
fn waits_for_a_file_system_of_the_network_need_no_busy_disk() {
    let named = |function: &str| {
        let mut subject = computing();
        subject.storage_waits(1.0, function);
        let verdict = subject.verdict();
        assert_eq!(verdict.walls, [Wall::Disk], "{function}");
        (verdict.sentence, subject.finding(Wall::Disk).evidence.concat())
    };
    let (sentence, evidence) = named("rpc_wait_bit_killable");
    assert!(sentence.starts_with("Storage is the wall: threads spend 50 %"), "{sentence}");
    assert!(
        sentence.ends_with("most of it for a file system of the network, or of a process."),
        "{sentence}"
    );
    assert!(evidence.contains("100 % of these waits are for a file system of the network"), "{evidence}");
    let (sentence, evidence) = named(READS);
    assert!(sentence.ends_with(": perhaps a file system of the network."), "{sentence}");
    assert!(!evidence.contains("network"), "{evidence}");
}

#[test]
fn a_disk_that_answers_nothing_is_not_idle() {
    let mut subject = computing();
    subject.disks().busiest[0] = DiskUse { name: "sdb".into(), stuck: 2, ..DiskUse::default() };
    subject.storage_waits(1.0, READS);
    let sentence = subject.verdict().sentence;
    assert!(sentence.ends_with(": sdb: 2 requests in flight, none completed."), "{sentence}");
    // Requests that it got in the window, and did not complete.
    subject.disks().busiest[0].stuck = 0;
    subject.disks().busiest[0].busy_ms = 8_000;
    assert_eq!(subject.finding(Wall::Disk).evidence[0], "sdb busy 80 %, no request completed");
    // The twin: nothing is in flight, and no thread waits.
    subject.disks().busiest[0].busy_ms = 0;
    subject.waits(WaitClass::Storage, 0.0);
    assert_eq!(subject.finding(Wall::Disk).because, "no request to 1 disk");
}

#[test]
fn a_disk_whose_requests_are_not_counted_is_not_idle() {
    let judged = |uncounted: &[&str]| {
        let mut subject = computing();
        // Too few samples for a bound.
        subject.wait_line(WaitClass::Storage).thread_s = Ok(Interval::new(0.0, 0.0, 3.0));
        subject.disks().uncounted = uncounted.iter().map(|name| (*name).to_owned()).collect();
        subject.finding(Wall::Disk)
    };
    let unknown = judged(&["sdb"]);
    assert_eq!(unknown.missing.map(|m| m.reason), Some(Reason::TooLittle));
    assert!(unknown.evidence.iter().any(|line| line.contains("requests of sdb")), "{:?}", unknown.evidence);
    assert_eq!(judged(&[]).status, Status::RuledOut);
}

#[test]
fn waits_in_io_uring_may_be_for_a_busy_disk() {
    let judged = |busy: f64, call: i64| {
        let mut subject = computing();
        subject.disk(busy, 20.0).waits(WaitClass::Storage, 0.0);
        subject.recording.waits.push(WaitSample {
            t_ns: 1,
            pid: 100,
            tid: 100,
            weight_ns: 5_000_000_000,
            state: 'S',
            syscall: Some(call),
            python_lock: None,
            kernel: None,
            user: None,
        });
        status(&subject, Wall::Disk)
    };
    assert_eq!(judged(0.9, 426), Status::NotMeasured);
    // The twins: an idle disk, and epoll_wait.
    assert_eq!([judged(0.03, 426), judged(0.9, 232)], [Status::RuledOut; 2]);
}

#[test]
fn without_figures_of_disks_the_waits_decide_and_not_the_other_way_round() {
    let mut subject = computing();
    subject.recording.devices.disks = Err(Absence::new(Reason::NotFound, "/proc/diskstats: no file"));
    let finding = subject.finding(Wall::Disk);
    assert_eq!((finding.status, finding.because.as_str()), (Status::RuledOut, "0 % of working time"));
    assert_eq!(finding.evidence[0], "disks not read: /proc/diskstats: no file");
    subject.storage_waits(1.0, READS);
    assert_eq!(status(&subject, Wall::Disk), Status::Wall);
    // An idle disk does not show whether the target waits for a file system of the network.
    let mut unseen = computing();
    unseen.wait_line(WaitClass::Storage).thread_s = Err(absent());
    let finding = unseen.finding(Wall::Disk);
    let reason = finding.missing.map(|m| m.reason);
    assert_eq!((finding.status, reason), (Status::NotMeasured, Some(absent().reason)));
}

/// A service that uses less than half a CPU, and whose namespace loses segments.
fn losing(retransmitted: u64, timeouts: u64) -> Subject {
    let mut subject = computing();
    subject.cpus(0.45).threads(4).waits(WaitClass::Idle, 3.55);
    subject.bill.rates.thread_s = 4.0 * WINDOW_S;
    let network = subject.network();
    (network.sent, network.retransmitted) = (9_000, retransmitted);
    network.events = Ok(TcpEvents { timeouts, ..TcpEvents::default() });
    subject
}

#[test]
fn a_network_that_loses_segments_is_named_and_a_healthy_one_is_ruled_out() {
    let healthy = computing().finding(Wall::Network);
    assert_eq!(
        (healthy.status, healthy.because.as_str()),
        (Status::RuledOut, "0 of 18,203 segments retransmitted")
    );
    let named = losing(1_500, 100).verdict();
    assert_eq!(named.walls, [Wall::Network]);
    assert_eq!(
        named.sentence,
        "The network is the wall: 14 % of the TCP segments of its network namespace are sent again."
    );
    assert_eq!(status(&losing(300, 100), Wall::Network), Status::Contributor);
    assert_eq!(status(&losing(50, 100), Wall::Network), Status::RuledOut);
    // Many segments, but no connection stood still for long.
    let quick = losing(1_500, 1).finding(Wall::Network);
    assert_eq!(
        (quick.status, quick.because.as_str()),
        (Status::RuledOut, "1,500 of 10,500 segments retransmitted, 1 timeout")
    );
    // Threads of a pool wait beside one that computes.
    let mut beside = losing(1_500, 100);
    beside.cpus(1.0).waits(WaitClass::Idle, 3.0);
    assert_eq!(status(&beside, Wall::Network), Status::Contributor);
    // A target that only computes: the segments are those of other processes.
    let mut alone = losing(1_500, 100);
    alone.waits(WaitClass::Idle, 0.0);
    assert_eq!(alone.finding(Wall::Network).because, "its threads wait 0 % of their time");
}

#[test]
fn a_network_that_was_not_read_is_not_judged() {
    let mut subject = losing(1_500, 100);
    subject.network().events = Err(absent());
    assert_eq!(status(&subject, Wall::Network), Status::Contributor, "the timeouts are not known");
    subject.network().over_ns /= 3;
    let finding = subject.finding(Wall::Network);
    assert_eq!(finding.missing.map(|m| m.reason), Some(Reason::TooLittle));
    subject.recording.devices.network = Err(absent());
    let finding = subject.finding(Wall::Network);
    assert_eq!((finding.status, finding.evidence.len()), (Status::NotMeasured, 0));
    assert!(finding.missing.is_some_and(|m| m.reason == absent().reason && !m.mend.is_empty()));
    let mut silent = computing();
    silent.network().sent = 0;
    assert_eq!(silent.finding(Wall::Network).because, "no TCP segment was sent");
}

#[test]
fn tcp_does_not_rule_the_network_out_for_a_target_that_may_use_udp() {
    let with = |mut subject: Subject, sent: u64, datagrams: Measured<Datagrams>| {
        (subject.network().sent, subject.network().datagrams) = (sent, datagrams);
        subject.finding(Wall::Network)
    };
    let judged = |sent, datagrams| with(losing(0, 0), sent, datagrams).status;
    let udp = |received| Ok(Datagrams { received, dropped: 2, ..Datagrams::default() });
    let alone = with(losing(0, 0), 0, udp(5_000));
    assert_eq!(alone.missing.map(|m| (m.reason, m.mend.len())), Some((Reason::NotSupported, 1)));
    let said = |line: &String| line.starts_with("UDP: 5,000 datagrams received, 0 sent; 2 dropped");
    assert!(alone.evidence.iter().any(said), "{:?}", alone.evidence);
    assert_eq!(judged(9_000, udp(5_000)), Status::NotMeasured);
    assert_eq!(judged(0, Err(absent())), Status::NotMeasured);
    // The twins: some look-ups of names beside TCP, and no datagram at all.
    assert_eq!([judged(9_000, udp(300)), judged(9_000, Err(absent()))], [Status::RuledOut; 2]);
    assert_eq!(judged(0, Ok(Datagrams::default())), Status::RuledOut);
    // Two in ten seconds, however few the segments are. The twin: two a second.
    assert_eq!([judged(30, udp(2)), judged(0, udp(2))], [Status::RuledOut; 2]);
    assert_eq!(judged(30, udp(20)), Status::NotMeasured);
    // A target that only computes: the datagrams are those of other processes.
    assert_eq!(with(computing(), 0, udp(5_000)).because, "its threads wait 0 % of their time");
}

#[test]
fn time_after_the_last_reading_of_an_ended_target_is_not_waiting() {
    let mut subject = computing();
    subject.cpus(0.04).threads(1);
    subject.recording.meta.ended = Ended::TargetExited { status: None };
    let window_ns = subject.recording.meta.window_ns;
    for (seen_ns, expected) in
        [(window_ns, Status::Wall), (window_ns / 4, Status::NotMeasured), (0, Status::NotMeasured)]
    {
        subject.recording.threads = vec![ThreadTimes {
            pid: PID,
            tid: PID,
            comm: "t".into(),
            seen_ns,
            cpu_ns: 0,
            run_delay_ns: Some(0),
        }];
        assert_eq!(status(&subject, Wall::Waiting), expected, "{seen_ns} ns of {window_ns}");
        let known = expected == Status::Wall;
        assert_eq!(status(&subject, Wall::RunQueue) != Status::NotMeasured, known);
    }
    // A window that ended normally was read to its end, whenever its threads started.
    subject.recording.meta.ended = Ended::Complete;
    assert_eq!(status(&subject, Wall::Waiting), Status::Wall);
}

#[test]
fn application_locks_are_distinguished_from_idle_pools() {
    let mut subject = computing();
    subject.threads(2).waits(WaitClass::ApplicationLock, 1.0);
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::ApplicationLock]);
    assert_eq!(
        verdict.sentence,
        "The application's own locks are the wall, not the allocator: threads spend 50 % of their working time waiting for them."
    );
    assert_eq!(status(&subject, Wall::AllocatorContention), Status::RuledOut);
    // Unknown purpose: neither a wall nor ruled out.
    subject.unknown_waits(WaitClass::ApplicationLock, 1.0, 0.0);
    let unknown = subject.finding(Wall::ApplicationLock);
    assert_eq!(unknown.status, Status::NotMeasured);
    assert_eq!(unknown.missing.map(|m| m.reason), Some(Reason::NotPermitted));
    assert_eq!(status(&subject, Wall::AllocatorContention), Status::RuledOut);
    // Known lock waits are enough for a wall.
    subject.unknown_waits(WaitClass::ApplicationLock, 0.5, 0.0).waits(WaitClass::ApplicationLock, 2.0);
    assert_eq!(status(&subject, Wall::ApplicationLock), Status::Wall);
    subject.waits(WaitClass::ApplicationLock, 0.0);
    assert_eq!(status(&subject, Wall::ApplicationLock), Status::RuledOut);
}

#[test]
fn pythons_interpreter_lock_is_a_wall_of_its_own() {
    let mut subject = computing();
    subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
    subject.threads(4).waits(WaitClass::Gil, 3.0);
    let verdict = subject.verdict();
    assert_eq!(verdict.walls, [Wall::Gil]);
    assert_eq!(
        verdict.sentence,
        "Python's GIL is the wall: threads spend 75 % of their working time waiting for it."
    );
    let offered: Vec<&str> = verdict.remedies.iter().map(|remedy| remedy.remedy.as_str()).collect();
    assert!(offered.contains(&"python-processes"), "{offered:?}");
    // The same waits for a lock of the program.
    subject.waits(WaitClass::Gil, 0.0).waits(WaitClass::ApplicationLock, 3.0);
    assert_eq!(subject.verdict().walls, [Wall::ApplicationLock]);
    assert_eq!(status(&subject, Wall::Gil), Status::RuledOut);
    // Their purpose is unknown.
    subject.unknown_waits(WaitClass::ApplicationLock, 1.0, 0.0);
    assert_eq!(status(&subject, Wall::Gil), Status::NotMeasured);
    // No CPython has the lock.
    subject.process().runtime = Ok(Runtime::Cpython { version: "3.14.0".into(), free_threaded: true });
    assert_eq!(status(&subject, Wall::Gil), Status::RuledOut);
    // An extension module turned it on again.
    subject.unknown_waits(WaitClass::ApplicationLock, 0.0, 0.0).waits(WaitClass::ApplicationLock, 0.0);
    subject.waits(WaitClass::Gil, 3.0);
    assert_eq!(status(&subject, Wall::Gil), Status::Wall);
}

#[test]
fn waits_of_little_used_threads_may_be_for_pythons_lock() {
    // 40 threads that share one CPU are on the line of idle threads.
    let judged = |unknown: f64| {
        let mut subject = computing();
        subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        subject.threads(40).waits(WaitClass::Idle, 39.0).unknown_waits(WaitClass::Idle, unknown, 0.0);
        status(&subject, Wall::Gil)
    };
    assert_eq!((judged(1.0), judged(0.0)), (Status::NotMeasured, Status::RuledOut));
}

#[test]
fn futex_waits_with_unknown_callers_may_be_for_any_lock() {
    for class in [WaitClass::ApplicationLock, WaitClass::Idle] {
        let mut subject = computing();
        subject.threads(5).waits(class, 4.0).unknown_waits(class, 1.0, 1.0);
        subject.recording.host.euid = 1000;
        for wall in [Wall::ApplicationLock, Wall::AllocatorContention] {
            let finding = subject.finding(wall);
            assert_eq!(finding.status, Status::NotMeasured, "{wall:?} {class:?}");
            assert!(finding.missing.is_some_and(|m| m.root_helps()));
        }
        assert!(subject.verdict().walls.is_empty());
    }
    // The stacks were read, and the threads wait for work.
    let mut pool = computing();
    pool.threads(5).waits(WaitClass::Idle, 4.0);
    assert_eq!(status(&pool, Wall::ApplicationLock), Status::RuledOut);
    assert_eq!(status(&pool, Wall::AllocatorContention), Status::RuledOut);
}

#[test]
fn few_samples_of_very_many_threads_measure_no_contention() {
    let mut subject = computing();
    subject.threads(10_000);
    subject.wait_line(WaitClass::Allocator).thread_s = Ok(Interval::new(0.0, 0.0, 200.0));
    assert_eq!(status(&subject, Wall::AllocatorContention), Status::NotMeasured);
    subject.wait_line(WaitClass::Allocator).thread_s = Ok(Interval::new(0.0, 0.0, 0.2));
    assert_eq!(status(&subject, Wall::AllocatorContention), Status::RuledOut);
}

#[test]
fn an_idle_pool_does_not_hide_that_the_target_waits() {
    let mut subject = computing();
    subject.cpus(0.02).threads(9).waits(WaitClass::ApplicationLock, 8.0).unknown_waits(
        WaitClass::ApplicationLock,
        1.0,
        0.0,
    );
    assert_eq!(status(&subject, Wall::Waiting), Status::Wall);
}

// ---- the kernel ----

#[test]
fn unnamed_kernel_time_is_not_ruled_out() {
    let subject = with_shares(&[(UnnamedKernel, 0.4)]);
    for wall in [Wall::FirstTouch, Wall::MapChurn] {
        let finding = subject.finding(wall);
        if finding.estimate.is_some() {
            continue;
        }
        assert_eq!(finding.status, Status::NotMeasured, "{wall:?}");
        assert!(finding.missing.and_then(|m| m.advice()).is_some_and(|m| m.contains("kptr_restrict")));
    }
    assert_eq!(status(&with_shares(&[(UnnamedKernel, 0.01)]), Wall::MapChurn), Status::RuledOut);
}

/// Uses the real bill, whose upper bounds include the kernel time without symbols.
#[test]
fn kernel_time_without_symbols_is_no_evidence_of_a_wall() {
    let judged = |unnamed, maps| {
        let mut s = Sketch::new();
        s.thread(PID, "work", 10_000);
        s.samples(10_000 - unnamed - maps, PID, "", "app!work");
        if unnamed > 0 {
            s.samples(unnamed, PID, "[kernel]+1000", "app!work");
        }
        if maps > 0 {
            s.samples(maps, PID, "do_mmap;vm_mmap_pgoff;do_syscall_64", "app!work");
        }
        let bill = crate::bill::of(&s.recording);
        let verdict = super::verdict(&s.recording, &bill);
        let reach = super::reach(&s.recording, &bill, &verdict);
        (verdict, reach)
    };
    let status =
        |verdict: &super::Verdict, wall| verdict.findings.iter().find(|f| f.wall == wall).unwrap().status;
    let (blind, reach) = judged(4_200, 0);
    for wall in [Wall::FirstTouch, Wall::MapChurn] {
        assert_eq!(status(&blind, wall), Status::NotMeasured, "{wall:?}");
    }
    assert_eq!(reach, Reach::Undecided);
    // A line with samples counts. The others stay undecided.
    let churn = |unnamed, maps| status(&judged(unnamed, maps).0, Wall::MapChurn);
    assert_eq!(churn(4_200, 1_000), Status::Contributor);
    assert_eq!(churn(4_200, 2_000), Status::Wall);
    // Too little kernel time without symbols to hide a contributor, and none at all.
    assert_eq!(churn(100, 0), Status::RuledOut);
    assert_eq!(churn(0, 0), Status::RuledOut);
}

#[test]
fn threads_may_wait_for_the_address_space_lock_in_unnamed_kernel_time() {
    let lock = |unnamed| {
        let mut subject = with_shares(&[(UnnamedKernel, unnamed)]);
        subject.threads(2);
        status(&subject, Wall::AddressSpaceLock)
    };
    assert_eq!(lock(0.4), Status::NotMeasured);
    assert_eq!(lock(0.01), Status::RuledOut);
}

#[test]
fn much_kernel_time_without_names_leaves_the_verdict_open() {
    let reach = |share| {
        let mut subject = with_shares(&[(UnnamedKernel, share)]);
        subject.recording.prices = Err(absent());
        super::reach(&subject.recording, &subject.bill, &subject.verdict())
    };
    assert_eq!((reach(0.4), reach(0.005)), (Reach::Undecided, Reach::Decided));
}

#[test]
fn memory_pressure_is_reported_in_the_sentence() {
    // The part of the sentence that reports it.
    let pressure = |subject: &Subject| {
        let verdict = subject.verdict();
        assert!(verdict.walls.is_empty());
        let reported = super::sentence::pressure(&Context::new(&subject.recording, &subject.bill));
        if let Some(text) = &reported {
            assert!(verdict.sentence.starts_with(text.as_str()), "{}", verdict.sentence);
        }
        reported
    };
    let of = |share| pressure(&with_shares(&[(Reclaim, share)]));
    let most = of(0.6).expect("reported");
    let figures = percent_interval(Interval::new(0.59, 0.6, 0.61));
    assert!(most.contains(&figures), "{most}");
    // An interval that includes the threshold is not reported as certain.
    let heading = |text: &str| text.split(':').next().map(str::to_owned);
    assert_eq!(heading(&of(0.2).expect("reported")), heading(&most));
    assert_ne!(heading(&of(0.05).expect("reported")), heading(&most));
    assert_eq!(of(0.04), None);
    // The sentence also names a contributor.
    let both = with_shares(&[(Reclaim, 0.2), (FaultPath, 0.1)]);
    assert!(pressure(&both).is_some());
    let sentence = both.verdict().sentence;
    assert!(sentence.contains(Wall::FirstTouch.title()) && sentence.contains("10 %"), "{sentence}");

    let stalled = |us| {
        let mut subject = computing();
        subject.first_host().psi_memory_us = Some(0);
        subject.last_host().psi_memory_us = us;
        pressure(&subject)
    };
    assert!(stalled(Some(2_000_000)).is_some_and(|text| text.contains("20 %")));
    for small in [Some(500_000), None] {
        assert_eq!(stalled(small), None, "{small:?}");
    }
    let major = |rate| {
        let mut subject = computing();
        subject.bill.rates.major_faults = Ok(rate);
        pressure(&subject)
    };
    assert!(major(500.0).is_some_and(|text| text.contains("500")));
    assert_eq!(major(5.0), None);
    // With long names, and with walls that were not measured.
    let mut long = with_shares(&[(UnnamedKernel, 0.1)]);
    long.bill.rates.major_faults = Ok(123_456.0);
    long.recording.prices = Err(absent());
    let lines = long.bill.on_cpu.as_mut().expect("sampled");
    lines[0].sites[0].function = "x".repeat(100);
    let sentence = long.verdict().sentence;
    for wall in [Wall::FirstTouch, Wall::MapChurn] {
        assert_eq!(status(&long, wall), Status::NotMeasured, "{wall:?}");
        assert!(sentence.contains(wall.title()), "{sentence}");
    }
    assert!(sentence.chars().count() <= super::sentence::LONGEST_SENTENCE, "{sentence}");
}

#[test]
fn without_kernel_stacks_first_touch_is_estimated_from_the_price_list() {
    let mut subject = computing();
    subject.recording.meta.kernel_samples = false;
    // 200,000 faults a second × 1.5 µs are 30 % of a CPU.
    subject.bill.rates.minor_faults = Ok(200_000.0);
    let finding = subject.finding(Wall::FirstTouch);
    assert_eq!(finding.status, Status::Wall);
    assert!(finding.estimate.is_some());
    // 100 a second cost almost nothing, unless each one zeroes a huge page, which takes up to 4 ms.
    subject.bill.rates.minor_faults = Ok(100.0);
    assert_eq!(status(&subject, Wall::FirstTouch), Status::NotMeasured);
    let mut counted = |huge| {
        subject.first_host().thp_fault_alloc = Some(0);
        subject.last_host().thp_fault_alloc = Some(huge);
        status(&subject, Wall::FirstTouch)
    };
    assert_eq!(counted(1_000), Status::NotMeasured);
    assert_eq!(counted(1), Status::RuledOut);
    subject.last_host().thp_fault_alloc = None;
    subject.recording.host.thp_enabled = Ok("always madvise [never]".into());
    assert_eq!(status(&subject, Wall::FirstTouch), Status::RuledOut);
    assert_eq!(status(&subject, Wall::MapChurn), Status::NotMeasured);
    subject.recording.prices = Err(absent());
    assert_eq!(status(&subject, Wall::FirstTouch), Status::NotMeasured);
}

#[test]
fn faults_on_mapped_files_are_no_first_touches() {
    let mut subject = computing();
    subject.recording.meta.kernel_samples = false;
    subject.recording.host.thp_enabled = Ok("always madvise [never]".into());
    // 200,000 faults a second × 1.5 µs are 30 % of a CPU.
    subject.bill.rates.minor_faults = Ok(200_000.0);
    let all = subject.finding(Wall::FirstTouch).share.expect("estimated");
    // In slices of 25 ms with 5,000 faults each: all of these, or a part of them outside system calls.
    let mut counted = |files: u32, others: u32, slices: usize| {
        let one = |owner, faults| OwnerFaults { owner, samples: 5, faults };
        let owners = vec![one(Owner::Heap, others), one(Owner::File, files)];
        let slice = FaultSlice { t_ns: 0, over_ns: 25_000_000, owners };
        subject.recording.fault_slices = vec![slice; slices];
        subject.finding(Wall::FirstTouch).share.expect("estimated")
    };
    assert!((counted(4_500, 500, 50).point - 0.1 * all.point).abs() < 1e-9);
    assert!((counted(0, 5_000, 50).point - all.point).abs() < 1e-9);
    // Too few samples.
    assert!((counted(4_500, 500, 5).point - all.point).abs() < 1e-9);
    // The faults in system calls may be first touches.
    let (seen, hidden) = (counted(4_500, 500, 50), counted(3_600, 400, 50));
    assert!((seen.point - hidden.point).abs() < 1e-9, "{seen:?} {hidden:?}");
    assert!(hidden.high > seen.high + 0.02, "{seen:?} {hidden:?}");
}

/// A target of two processes, one of which the other one started.
fn with_a_child(shares: &[(CostClass, f64)]) -> Subject {
    let mut subject = with_shares(shares);
    let mut child = subject.process().clone();
    (child.pid, child.ppid) = (PID + 1, PID);
    subject.recording.processes.push(child);
    subject
}

/// So many samples in the kernel functions that copy an address space, run a program, and end an address space.
fn starting(shares: &[(CostClass, f64)], copy: usize, exec: usize, end: usize) -> Subject {
    let mut subject = with_shares(shares);
    for (function, samples) in [("dup_mmap", copy), ("load_elf_binary", exec), ("exit_mmap", end)] {
        subject.map_call(function, false, samples);
    }
    subject
}

/// Adds samples that copy a page at the first write to it.
fn copying(subject: &mut Subject, samples: usize) {
    let stack = subject.recording.stacks.len();
    subject.map_call("copy_mc_fragile", false, samples);
    let recording = &mut subject.recording;
    let caller =
        Frame { symbol: Some("do_wp_page".into()), ..recording.frames[recording.frames.len() - 2].clone() };
    recording.frames.push(caller);
    recording.stacks[stack].frames.push(recording.frames.len() as u32 - 1);
}

#[test]
fn fork_is_a_wall_only_of_a_target_that_forked() {
    for line in [CopyOnWrite, ForkExit] {
        assert_eq!(starting(&[(line, 0.4)], 100, 0, 100).verdict().walls, [Wall::Fork], "{line:?}");
        assert_eq!(status(&starting(&[(line, 0.02)], 9, 0, 9), Wall::Fork), Status::RuledOut, "{line:?}");
        assert!(with_shares(&[(line, 0.4)]).verdict().walls.is_empty(), "{line:?}");
        // A child alone is no fork in the window: a shell started it, or posix_spawn did.
        assert!(with_a_child(&[(line, 0.4)]).verdict().walls.is_empty(), "{line:?}");
    }
    // Threads end on the same line. Copied pages of unknown owner may be those of a parent.
    assert_eq!(status(&with_shares(&[(ForkExit, 0.4)]), Wall::Fork), Status::RuledOut);
    let worker = |owner, copies| {
        let mut subject = with_shares(&[(CopyOnWrite, 0.4)]);
        subject.faulted(Wall::Fork, &[(owner, 1.0)]);
        copying(&mut subject, copies);
        status(&subject, Wall::Fork)
    };
    assert_eq!(status(&with_shares(&[(CopyOnWrite, 0.4)]), Wall::Fork), Status::Contributor);
    assert_eq!((worker(Owner::Heap, 20), worker(Owner::Shared, 20)), (Status::Wall, Status::Contributor));
    // Hardly any sample shows a copy.
    assert_eq!(worker(Owner::Heap, 5), Status::Contributor);
}

#[test]
fn processes_that_start_without_a_fork_are_no_fork() {
    let judged = |copy, exec, end| {
        let finding = starting(&[(ForkExit, 0.4)], copy, exec, end).finding(Wall::Fork);
        (finding.status, finding.because)
    };
    let (status, because) = judged(0, 100, 100);
    assert_eq!(status, Status::RuledOut);
    assert_eq!(because, "no fork; 40 % of CPU starts or ends processes and threads");
    // Forks alone count.
    let share = starting(&[(ForkExit, 0.4)], 0, 100, 100).finding(Wall::Fork).share.expect("sampled");
    assert!(share.point == 0.0 && share.high < 0.01, "{share:?}");
    let mut threads = with_shares(&[(ForkExit, 0.4)]);
    threads.map_call("copy_process", false, 100);
    let threads = threads.finding(Wall::Fork);
    assert_eq!(threads.because, "no fork; 40 % of CPU starts or ends threads");
    assert!(!threads.evidence.iter().any(|line| line.contains("exec")), "{:?}", threads.evidence);
    let sentence = |share| starting(&[(ForkExit, share)], 0, 100, 100).verdict().sentence;
    assert!(sentence(0.4).contains("40 % is process and thread start and end, "), "{}", sentence(0.4));
    assert!(!sentence(0.1).contains("process and thread"), "{}", sentence(0.1));
    // One shell command among many programs that posix_spawn starts.
    let (status, because) = judged(2, 1_000, 1_000);
    assert_eq!(status, Status::RuledOut);
    assert_eq!(because, "0 % of CPU; 40 % starts or ends processes and threads");
    assert_eq!(judged(80, 100, 100).0, Status::Contributor);
    assert_eq!(judged(300, 100, 100).0, Status::Wall);
    assert_eq!(judged(100, 0, 100).0, Status::Wall);
    // The part of forks decides, not the whole line: 60 % of it.
    let of_line = |share| {
        let finding = starting(&[(ForkExit, share)], 600, 200, 200).finding(Wall::Fork);
        (finding.status, finding.because)
    };
    let (small, large) = (of_line(0.2), of_line(0.4));
    assert!(small.0 == Status::Contributor && small.1.starts_with("12 % ("), "{small:?}");
    assert!(large.0 == Status::Wall && large.1.starts_with("24 % ("), "{large:?}");

    let part = |copy, exec| {
        let subject = starting(&[(ForkExit, 0.4)], copy, exec, 0);
        let ctx = Context::new(&subject.recording, &subject.bill);
        (ctx.forked(), ctx.fork_copy_part())
    };
    assert_eq!((part(25, 75), part(0, 75)), ((true, 0.25), (false, 0.0)));
    let evidence = starting(&[(ForkExit, 0.4)], 25, 75, 0).finding(Wall::Fork).evidence;
    assert!(evidence.iter().any(|line| line.contains("25 % copies memory maps for forks")), "{evidence:?}");
}

#[test]
fn faults_on_files_are_a_wall_that_no_allocator_changes() {
    let subject = with_shares(&[(FileFault, 0.4)]);
    assert_eq!(subject.verdict().walls, [Wall::FileFault]);
    assert_eq!(offered(&subject), ["keep-files-mapped", "read-files"]);
    assert_eq!(status(&with_shares(&[(FileSystem, 0.4)]), Wall::FileFault), Status::RuledOut);
}

/// A program that computes for 6 s of 15 s, with so many samples in these kernel stacks.
fn in_kernel(stacks: &[(u64, &str)]) -> Subject {
    let mut s = Sketch::new();
    let other: u64 = stacks.iter().map(|(samples, _)| samples).sum();
    s.thread(PID, "service", 6_000 + other);
    s.samples(6_000, PID, "", "app!work");
    for (samples, stack) in stacks {
        s.samples(*samples, PID, stack, "app!serve");
    }
    Subject { bill: crate::bill::of(&s.recording), recording: s.recording }
}

#[test]
fn the_kernels_own_allocator_is_a_wall_with_the_remedies_of_its_objects() {
    const CONNECTION: &str = "kmem_cache_alloc;sk_prot_alloc;unix_create1;__sys_socketpair";
    const MESSAGE: &str = "kmem_cache_alloc_node;__alloc_skb;sock_alloc_send_pskb;unix_stream_sendmsg";
    const FILE: &str = "kmem_cache_alloc;alloc_empty_file;path_openat;do_filp_open";
    for (stack, remedy, of) in [
        (CONNECTION, "keep-connections", "sockets and pipes"),
        (MESSAGE, "larger-messages", "messages on sockets"),
        (FILE, "keep-files-open", "files and names"),
    ] {
        let subject = in_kernel(&[(4_000, stack)]);
        let verdict = subject.verdict();
        assert_eq!(verdict.walls, [Wall::KernelSlab], "{stack}");
        let head = "The kernel's own allocator is the wall: 40 %";
        assert!(verdict.sentence.starts_with(head), "{}", verdict.sentence);
        assert!(verdict.sentence.contains(of), "{}", verdict.sentence);
        assert_eq!(offered(&subject), [remedy], "{stack}");
        // Nothing that is measured predicts what they save.
        assert_eq!((verdict.remedies[0].gain, verdict.remedies[0].at_most), (None, None));
        assert!(verdict.remedies[0].basis.starts_with("unknown: "), "{}", verdict.remedies[0].basis);
        let evidence = subject.finding(Wall::KernelSlab).evidence;
        assert!(evidence.iter().any(|line| line.starts_with("of kernel slab: 100 %")), "{evidence:?}");
    }
    let mixed = in_kernel(&[(1_500, CONNECTION), (1_500, MESSAGE), (1_000, FILE)]);
    assert!(mixed.verdict().sentence.contains("sockets, messages and files"));
    assert_eq!(offered(&mixed).len(), 3);

    // The same calls without it, and its work for mappings, faults and processes.
    for stack in [
        "unix_create1;__sys_socketpair",
        "link_path_walk;path_openat;do_filp_open",
        "kmem_cache_alloc;mas_preallocate;do_vmi_align_munmap;__x64_sys_munmap",
        "kmem_cache_alloc;__anon_vma_prepare;do_anonymous_page;exc_page_fault",
        "kmem_cache_alloc_node;dup_task_struct;copy_process;kernel_clone",
    ] {
        assert_eq!(status(&in_kernel(&[(4_000, stack)]), Wall::KernelSlab), Status::RuledOut, "{stack}");
    }
}

#[test]
fn what_callbacks_of_rcu_free_is_not_called_the_target_s_own_work() {
    const FREED: &str = "kmem_cache_free;__fput;task_work_run;do_syscall_64";
    const LATE: &str = "kmem_cache_free;i_callback;rcu_do_batch;rcu_core;handle_softirqs;__irq_exit_rcu;sysvec_apic_timer_interrupt";
    let said = |stacks: &[(u64, &str)]| {
        let finding = in_kernel(stacks).finding(Wall::KernelSlab);
        let late = finding.evidence.iter().any(|line| line.contains("is not counted as kernel slab"));
        (finding.status, late)
    };
    assert_eq!(said(&[(4_000, FREED)]), (Status::Wall, false));
    assert_eq!(said(&[(3_000, FREED), (1_000, LATE)]), (Status::Wall, true));
    // Too little to be a contributor.
    assert_eq!(said(&[(4_000, "vfs_read"), (200, LATE)]), (Status::RuledOut, true));
}

#[test]
fn much_time_in_callbacks_of_rcu_leaves_the_kernels_own_allocator_not_measured() {
    const LATE: &str = "kmem_cache_free;i_callback;rcu_do_batch;rcu_core;handle_softirqs;__irq_exit_rcu;sysvec_apic_timer_interrupt";
    let subject = in_kernel(&[(3_000, "vfs_read"), (1_000, LATE)]);
    let finding = subject.finding(Wall::KernelSlab);
    let missing = finding.missing.expect("a reason");
    assert_eq!((finding.status, missing.reason), (Status::NotMeasured, Reason::NotSupported));
    assert!(missing.detail.starts_with("10 % of CPU, in callbacks of RCU"), "{missing}");
    let sentence = subject.verdict().sentence;
    assert!(!sentence.starts_with("Memory is not your wall"), "{sentence}");
    assert!(sentence.ends_with(" Not measured: kernel slab."), "{sentence}");
    // Both are a contributor only together: 4 % each.
    const FREED: &str = "kmem_cache_free;__fput;task_work_run;do_syscall_64";
    let both = |late: u64| {
        let subject = in_kernel(&[(3_600 - late, "vfs_read"), (400, FREED), (late, LATE)]);
        status(&subject, Wall::KernelSlab)
    };
    assert_eq!([both(0), both(400)], [Status::RuledOut, Status::NotMeasured]);
}

#[test]
fn kernel_time_without_symbols_may_be_the_kernels_own_allocator() {
    let subject = with_shares(&[(UnnamedKernel, 0.3)]);
    let finding = subject.finding(Wall::KernelSlab);
    assert_eq!(finding.status, Status::NotMeasured);
    assert_eq!(finding.missing.map(|m| m.reason), Some(Reason::NotPermitted));
    assert_eq!(status(&with_shares(&[(OtherKernel, 0.3)]), Wall::KernelSlab), Status::RuledOut);
}

#[test]
fn faults_on_shared_memory_are_not_called_faults_on_files() {
    let judged = |owner| {
        let mut subject = with_shares(&[(FileFault, 0.4)]);
        subject.faulted(Wall::FileFault, &[(owner, 1.0)]);
        let finding = subject.finding(Wall::FileFault);
        assert_eq!(finding.status, Status::Wall);
        let shared = Context::new(&subject.recording, &subject.bill).faults_shared_memory();
        assert_eq!(subject.verdict().sentence.contains("shared memory"), shared);
        assert_eq!(offered(&subject).is_empty(), shared);
        (shared, finding.because.contains("pages of shared memory"))
    };
    assert_eq!((judged(Owner::Shared), judged(Owner::File)), ((true, true), (false, false)));
}

#[test]
fn faults_on_files_of_programs_that_start_are_no_wall() {
    let judged = |start: f64, copy, exec| {
        status(&starting(&[(FileFault, 0.3), (ForkExit, start)], copy, exec, 10), Wall::FileFault)
    };
    // Programs that posix_spawn or fork starts.
    assert_eq!((judged(0.3, 0, 100), judged(0.3, 90, 10)), (Status::Contributor, Status::Contributor));
    // The child of a fork maps them again too.
    assert_eq!(judged(0.3, 90, 0), Status::Contributor);
    // Few programs, few forks, or threads.
    assert_eq!(
        (judged(0.01, 0, 100), judged(0.01, 90, 0), judged(0.3, 0, 0)),
        (Status::Wall, Status::Wall, Status::Wall)
    );
    // Copied pages start no process, whether forks are a wall or not.
    let mut copies = with_shares(&[(FileFault, 0.3), (CopyOnWrite, 0.3)]);
    let both = |subject: &Subject| (status(subject, Wall::Fork), status(subject, Wall::FileFault));
    assert_eq!(both(&copies), (Status::Contributor, Status::Wall));
    copies.faulted(Wall::Fork, &[(Owner::Heap, 1.0)]);
    copying(&mut copies, 20);
    assert_eq!(both(&copies), (Status::Wall, Status::Wall));
}

#[test]
fn map_churn_names_its_cause() {
    let mut subject = with_shares(&[(MapCalls, 0.3)]);
    let event = |name: &str, count| EventCount { name: name.into(), count, over_ns: 10_000_000_000 };
    subject.recording.counts = vec![event("brk", 500_000), event("mmap", 100)];
    assert!(subject.finding(Wall::MapChurn).evidence.iter().any(|e| e.contains("trim_threshold")));
    let alternating = |by_malloc: Option<bool>| {
        let mut subject = with_shares(&[(MapCalls, 0.3)]);
        subject.recording.counts = vec![event("mmap", 500_000), event("munmap", 500_000)];
        if let Some(by_malloc) = by_malloc {
            subject.map_call("do_mmap", by_malloc, 200);
        }
        subject.finding(Wall::MapChurn).evidence.join("; ")
    };
    for (by_malloc, text) in
        [(Some(true), "mmap threshold"), (Some(false), "not by malloc"), (None, "callers are unknown")]
    {
        assert!(alternating(by_malloc).contains(text), "{}", alternating(by_malloc));
    }
}

#[test]
fn the_address_space_lock_counts_blocked_time_too() {
    let mut subject = computing();
    subject.cpus(1.4).threads(2).waits(WaitClass::AddressSpaceLock, 0.6);
    subject.shares(&[(AddressSpaceLock, 0.05)]);
    assert_eq!(subject.verdict().walls, [Wall::AddressSpaceLock]);
    subject.waits(WaitClass::AddressSpaceLock, 0.1);
    assert_eq!(status(&subject, Wall::AddressSpaceLock), Status::Contributor);
    subject.waits(WaitClass::AddressSpaceLock, 0.0).shares(&[]);
    assert_eq!(status(&subject, Wall::AddressSpaceLock), Status::RuledOut);
    subject.wait_line(WaitClass::AddressSpaceLock).thread_s = Err(absent());
    assert_eq!(status(&subject, Wall::AddressSpaceLock), Status::NotMeasured);
    subject.threads(1);
    assert_eq!(status(&subject, Wall::AddressSpaceLock), Status::RuledOut);
}

// ---- the hardware ----

#[test]
fn the_tlb_is_ruled_out_by_bounds_or_not_measured_never_the_wall() {
    let mut subject = computing();
    assert_eq!(status(&subject, Wall::Tlb), Status::RuledOut);
    let smaps =
        |anonymous, anon_huge| Some(Smaps { rss: anonymous, anonymous, anon_huge, ..Smaps::default() });
    subject.last().smaps = smaps(4 << 30, 0);
    let finding = subject.finding(Wall::Tlb);
    assert_eq!(finding.status, Status::NotMeasured);
    assert!(finding.estimate.is_some() && finding.missing.is_some());
    subject.last().smaps = smaps(4 << 30, 4 << 30);
    assert_eq!(status(&subject, Wall::Tlb), Status::RuledOut);
    // Shared memory and mapped files use the TLB too.
    let shared = Smaps { rss: 4 << 30, anonymous: 4 << 20, ..Smaps::default() };
    subject.last().smaps = Some(shared);
    assert_eq!(status(&subject, Wall::Tlb), Status::NotMeasured);
    subject.last().smaps = Some(Smaps { rss: 4 << 20, hugetlb: 4 << 30, ..shared });
    assert_eq!(status(&subject, Wall::Tlb), Status::RuledOut);
    subject.last().smaps = smaps(4 << 30, 0);
    subject.shares(&[(OtherKernel, 0.95)]);
    assert_eq!(status(&subject, Wall::Tlb), Status::RuledOut);
}

#[test]
fn no_bound_above_its_threshold_is_beside_ruled_out() {
    let judged = |cpus: f64, kernel: f64| {
        let mut subject = with_shares(&[(OtherKernel, kernel)]);
        subject.cpus(cpus);
        subject.last().smaps = Some(Smaps { rss: 4 << 30, anonymous: 4 << 30, ..Smaps::default() });
        let finding = subject.finding(Wall::Tlb);
        (finding.status, finding.because)
    };
    assert_eq!(judged(1.0, 0.0).0, Status::NotMeasured);
    // A large share of little time, and a small share.
    assert_eq!(judged(0.1, 0.0), (Status::RuledOut, "at most 40 ms a second".to_owned()));
    let (status, because) = judged(1.0, 0.95);
    assert_eq!(status, Status::RuledOut);
    assert!(because.ends_with("% of CPU; threshold 5 %"), "{because}");
}

// ---- call rate, allocator code, contention ----

#[test]
fn cached_calls_are_call_rate_and_missing_calls_are_allocator_code() {
    let mut cached = with_shares(&[(AllocatorCode, 0.5)]);
    cached.malloc_leaves(Some("malloc"), 55).malloc_leaves(None, 45);
    assert_eq!(cached.verdict().walls, [Wall::CallRate]);
    assert_eq!(status(&cached, Wall::AllocatorCode), Status::Contributor);
    // Another allocator may save more than the calls cost, by where it places blocks. Nothing predicts that.
    let swap =
        |s: &Subject| s.verdict().remedies.into_iter().find(|p| p.remedy == "jemalloc").expect("offered");
    assert_eq!((swap(&cached).gain, swap(&cached).at_most), (None, None));
    assert!(offered(&cached).contains(&"pool".to_owned()));

    let mut missing = with_shares(&[(AllocatorCode, 0.5)]);
    missing.malloc_leaves(Some("malloc"), 24).malloc_leaves(None, 76);
    assert_eq!(missing.verdict().walls, [Wall::AllocatorCode]);
    assert_eq!(status(&missing, Wall::CallRate), Status::Contributor);
    assert!(swap(&missing).gain.is_some() && swap(&missing).at_most.is_some());

    let mut named = with_shares(&[(AllocatorCode, 0.5)]);
    named
        .malloc_leaves(Some("malloc"), 24)
        .malloc_leaves(Some("_int_malloc"), 45)
        .malloc_leaves(Some("_int_free"), 31);
    assert_eq!(named.verdict().walls, [Wall::AllocatorCode]);

    let mut mixed = with_shares(&[(AllocatorCode, 0.5)]);
    mixed.malloc_leaves(Some("malloc"), 38).malloc_leaves(None, 62);
    assert_eq!(status(&mixed, Wall::CallRate), Status::Wall);
    assert_eq!(status(&mixed, Wall::AllocatorCode), Status::Wall);
}

/// A program that computes for 6 s of 15 s, with so many samples in these other stacks.
fn allocating(runtime: Runtime, stacks: &[(u64, &str)]) -> Subject {
    let mut s = Sketch::new();
    s.module("go", ModuleRole::Go);
    s.runtime(runtime);
    s.recording.processes[0].allocator = Ok(Allocator {
        kind: AllocatorKind::Glibc,
        how: Linkage::Libc,
        module: "libc".into(),
        version: None,
    });
    let other: u64 = stacks.iter().map(|(samples, _)| samples).sum();
    s.thread(PID, "service", 6_000 + other);
    s.samples(6_000, PID, "", "app!work");
    for (samples, stack) in stacks {
        s.samples(*samples, PID, "", stack);
    }
    Subject { bill: crate::bill::of(&s.recording), recording: s.recording }
}

#[test]
fn a_few_large_blocks_are_no_call_rate() {
    const FILLED: &str = "libc!__memset_avx2_unaligned_erms;libc+9800;app!handle";
    let large = allocating(Runtime::Native, &[(3_800, FILLED), (200, "libc+9800;app!handle")]);
    let verdict = large.verdict();
    assert_eq!(verdict.walls, [Wall::LargeAllocations]);
    assert!(verdict.sentence.starts_with("Large allocations are the wall: 38 %"), "{}", verdict.sentence);
    for other in [Wall::CallRate, Wall::AllocatorCode] {
        assert_eq!(status(&large, other), Status::RuledOut, "{other:?}");
    }
    let offered = offered(&large);
    for remedy in ["reuse-blocks", "smaller-blocks", "fill-less"] {
        assert!(offered.contains(&remedy.to_owned()), "{remedy}: {offered:?}");
    }
    for remedy in ["jemalloc", "tcmalloc", "mimalloc", "pool", "go-buffers", "jvm-buffers"] {
        assert!(!offered.contains(&remedy.to_owned()), "{remedy}");
    }
    for remedy in &verdict.remedies {
        assert_eq!(remedy.gain, None, "{}", remedy.remedy);
    }

    let many = allocating(
        Runtime::Native,
        &[(2_100, "libc!malloc;app!handle"), (1_600, "libc+9800;app!handle"), (300, FILLED)],
    );
    assert_eq!(many.verdict().walls, [Wall::CallRate]);
    assert_eq!(status(&many, Wall::LargeAllocations), Status::RuledOut);
    // Filling small blocks takes less time than their calls.
    let small = allocating(
        Runtime::Native,
        &[(1_600, "libc!malloc;app!handle"), (1_100, "libc+9800;app!handle"), (2_300, FILLED)],
    );
    assert_eq!(small.verdict().walls, [Wall::CallRate]);
    let finding = small.finding(Wall::LargeAllocations);
    assert_eq!(finding.status, Status::Contributor);
    assert!(finding.because.ends_with("see call rate"), "{}", finding.because);

    // The program's own work.
    let own = allocating(Runtime::Native, &[(4_000, "libc!__memset_avx2_unaligned_erms;app!render")]);
    assert!(own.verdict().walls.is_empty());
    assert_eq!(status(&own, Wall::LargeAllocations), Status::RuledOut);
}

#[test]
fn another_allocator_is_not_predicted_to_fill_blocks_faster() {
    let saved = |shares: &[(CostClass, f64)]| {
        let mut subject = with_shares(shares);
        subject.malloc_leaves(Some("malloc"), 24).malloc_leaves(None, 76);
        let mimalloc = allocwall_model::catalogue::remedies::find("mimalloc").expect("in the table");
        -super::expected::change(&subject.recording, &subject.bill, mimalloc).expect("predicted").low
    };
    assert!(saved(&[(BlockFilling, 0.4), (AllocatorCode, 0.04)]) < 0.1);
    assert!(saved(&[(AllocatorCode, 0.44)]) > 0.2);
}

#[test]
fn go_s_zeroing_is_large_allocations_and_its_calls_have_the_account_s_rate() {
    let go = |stack: &str| allocating(Runtime::Go { version: None }, &[(4_000, stack)]);
    for stack in [
        "go!runtime.memclrNoHeapPointers;go!runtime.mallocgc;go!main.handle",
        "go!runtime.memmove;go!runtime.growslice;go!main.handle",
    ] {
        let large = go(stack);
        assert_eq!(large.verdict().walls, [Wall::LargeAllocations], "{stack}");
        let offered = offered(&large);
        assert!(offered.contains(&"go-buffers".to_owned()), "{offered:?}");
    }
    let own = go("go!runtime.memclrNoHeapPointers;go!main.clear");
    assert!(own.verdict().walls.is_empty());

    let mut many = go("go!runtime.nextFreeFast;go!runtime.mallocgc;go!main.handle");
    let verdict = many.verdict();
    assert_eq!(verdict.walls, [Wall::CallRate]);
    assert!(verdict.sentence.ends_with("; the number of calls is not known."), "{}", verdict.sentence);
    let allocated = Figure { value: Interval::exact(30.0 * (1u64 << 30) as f64), sampled: false };
    many.recording.accounts =
        vec![RuntimeAccount { allocated_bytes: Ok(allocated), ..account(PID, 15_000_000_000) }];
    let sentence = many.verdict().sentence;
    assert!(sentence.contains("2.0 GiB of objects a second (the runtime's account)"), "{sentence}");
    assert!(!sentence.contains("not known"), "{sentence}");
}

#[test]
fn a_call_rate_has_a_rate_or_says_that_it_is_unknown() {
    let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
    subject.malloc_leaves(Some("malloc"), 55).malloc_leaves(None, 45);
    let sentence = subject.verdict().sentence;
    assert!(
        sentence.contains(", an estimated 11.") && sentence.contains(" malloc/free pairs a second"),
        "{sentence}"
    );
    subject.recording.prices = Err(absent());
    let sentence = subject.verdict().sentence;
    assert!(sentence.ends_with("; the number of calls is not known."), "{sentence}");
}

#[test]
fn the_entry_points_share_is_read_on_glibc_alone() {
    let of = |kind, symbols: &[(&str, usize)], module: usize| {
        let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
        if let Ok(allocator) = &mut subject.process().allocator {
            allocator.kind = kind;
        }
        let libc = &mut subject.recording.modules[0];
        if module != 0 {
            (libc.role, libc.malloc_ranges) = (ModuleRole::Other, Vec::new());
        }
        for (symbol, n) in symbols {
            subject.malloc_leaves((!symbol.is_empty()).then_some(symbol), *n);
        }
        let verdict = subject.verdict();
        let estimate = subject.finding(Wall::CallRate).estimate;
        (verdict.walls, estimate, verdict.sentence)
    };
    // In musl, all samples of the allocator are in its entry points, so they show nothing.
    let (walls, estimate, sentence) = of(AllocatorKind::Musl, &[("malloc", 24), ("", 76)], 0);
    assert_eq!(walls, [Wall::CallRate]);
    assert!(estimate.is_some());
    assert!(sentence.ends_with("; it is unknown whether the calls are too many or too slow."), "{sentence}");
    let (walls, estimate, _) = of(AllocatorKind::Glibc, &[("malloc", 55), ("", 45)], 0);
    assert_eq!((&walls[..], estimate), (&[Wall::CallRate][..], None));
    // Linked into the program, recognized by its names only.
    let linked = [("_rjem_malloc", 40), ("_rjem_je_arena_cache_bin_fill_small", 60)];
    let (walls, ..) = of(AllocatorKind::Jemalloc, &linked, 1);
    assert_eq!(walls, [Wall::AllocatorCode]);
    let (walls, estimate, _) = of(AllocatorKind::Jemalloc, &[("_rjem_malloc", 100)], 1);
    assert_eq!((&walls[..], estimate), (&[Wall::CallRate][..], None));
}

#[test]
fn the_number_of_malloc_s_calls_is_that_of_malloc_s_time() {
    let evidence =
        |shares: &[(CostClass, f64)]| with_shares(shares).finding(Wall::CallRate).evidence.join("; ");
    assert!(evidence(&[(AllocatorCode, 0.3)]).starts_with("enough for "));
    let both = evidence(&[(AllocatorCode, 0.3), (RuntimeAllocator, 0.1)]);
    assert!(both.starts_with("malloc's 30 % are enough for "), "{both}");
    // Most of it is in the runtime's own allocator.
    assert!(!evidence(&[(AllocatorCode, 0.02), (RuntimeAllocator, 0.3)]).contains("malloc/free"));
}

#[test]
fn the_place_of_contention_is_where_threads_wait() {
    let sentence = |spin: f64, blocked: f64| {
        let mut subject = with_shares(&[(AllocatorLocks, spin)]);
        subject.threads(2).waits(WaitClass::Allocator, blocked);
        let mut site = subject.bill.on_cpu.as_ref().expect("sampled")[0].sites[0].clone();
        site.function = "queue_push".into();
        subject.wait_line(WaitClass::Allocator).sites = vec![site];
        subject.verdict().sentence
    };
    let blocked = sentence(0.02, 0.5);
    assert!(blocked.contains("most of it from `queue_push`"), "{blocked}");
    let spinning = sentence(0.4, 0.001);
    assert!(spinning.contains("most of it from `site_of_allocator_locks`"), "{spinning}");
}

#[test]
fn a_call_site_of_few_samples_is_not_most_of_the_time() {
    let sentence = |part: f64, least: f64| {
        let mut subject = with_shares(&[(FaultPath, 0.4)]);
        let lines = subject.bill.on_cpu.as_mut().expect("sampled");
        let line = lines.iter_mut().find(|line| line.class == FaultPath).expect("every class");
        (line.sites[0].share, line.sites[0].least) = (part, least);
        subject.verdict().sentence
    };
    assert!(sentence(0.7, 0.6).contains("most of it from"));
    assert!(sentence(0.4, 0.35).contains("40 % of it from"));
    // Four of six stacks; one of six.
    for (part, least) in [(0.67, 0.3), (0.17, 0.03)] {
        assert!(!sentence(part, least).contains("of it from"), "{part}");
    }
}

#[test]
fn contention_takes_precedence_over_the_code_it_slows() {
    let mut subject = with_shares(&[(AllocatorCode, 0.4), (AllocatorLocks, 0.2)]);
    subject.threads(2).cpus(1.3).waits(WaitClass::Allocator, 0.5);
    subject.malloc_leaves(Some("malloc"), 24).malloc_leaves(None, 76);
    assert_eq!(subject.verdict().walls, [Wall::AllocatorContention]);
    assert_eq!(status(&subject, Wall::AllocatorCode), Status::Contributor);
    assert_eq!(status(&subject, Wall::CallRate), Status::Contributor);

    subject.waits(WaitClass::Allocator, 0.0).shares(&[(AllocatorCode, 0.4)]);
    assert_eq!(status(&subject, Wall::AllocatorContention), Status::RuledOut);
    subject.wait_line(WaitClass::Allocator).thread_s = Err(absent());
    assert_eq!(status(&subject, Wall::AllocatorContention), Status::NotMeasured);
}

/// A wall of the allocator's code on one CPU, and in its window these blocks, which live for half a microsecond.
fn allocating_so_often(sizes: &[(u64, u64)]) -> Subject {
    let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
    subject.recording.counted = Ok(counted(WINDOW_S as u64, sizes, 500, 0.0));
    subject
}

#[test]
fn counted_calls_are_no_estimate() {
    let many = allocating_so_often(&[(100_000_000, 64)]);
    let verdict = many.verdict();
    assert_eq!(verdict.walls, [Wall::CallRate]);
    assert!(verdict.sentence.contains(", 20.0 M calls a second (counted)"), "{}", verdict.sentence);
    let finding = many.finding(Wall::CallRate);
    assert_eq!(finding.estimate, None);
    let figures =
        "20.0 M calls a second, 20.0 M a CPU-second (counted: allocwall count -- CMD); 50 ns of CPU for each";
    assert!(finding.evidence[0].starts_with(figures), "{:?}", finding.evidence);
    // The twin: the same bill without counts.
    let mut uncounted = allocating_so_often(&[(100_000_000, 64)]);
    uncounted.recording.counted = Err(absent());
    let finding = uncounted.finding(Wall::CallRate);
    assert!(finding.estimate.is_some() && finding.evidence[0].starts_with("enough for"), "{finding:?}");
    // Counts of another program are no counts.
    let mut other = allocating_so_often(&[(100_000_000, 64)]);
    other.process().exe = Ok("/usr/bin/static".into());
    assert!(other.finding(Wall::CallRate).estimate.is_some());
}

#[test]
fn few_counted_calls_are_slow_ones() {
    let few = allocating_so_often(&[(1_000_000, 64)]);
    assert_eq!(few.verdict().walls, [Wall::AllocatorCode]);
    assert_eq!(status(&few, Wall::CallRate), Status::Contributor);
    // The samples do not show whether jemalloc's cache serves them.
    let with_jemalloc = |blocks| {
        let mut subject = allocating_so_often(&[(blocks, 64)]);
        if let Ok(allocator) = &mut subject.process().allocator {
            allocator.kind = AllocatorKind::Jemalloc;
        }
        subject.verdict()
    };
    let few = with_jemalloc(1_000_000);
    assert_eq!(few.walls, [Wall::AllocatorCode]);
    assert!(few.sentence.ends_with("; few calls were counted, so each one is slow."), "{}", few.sentence);
    assert_eq!(with_jemalloc(100_000_000).walls, [Wall::CallRate]);
}

#[test]
fn counted_sizes_decide_whether_the_thread_cache_serves_the_calls() {
    // A pair takes 50 ns in both: what differs is its size.
    assert_eq!(allocating_so_often(&[(100_000_000, 64)]).verdict().walls, [Wall::CallRate]);
    let large = allocating_so_often(&[(100_000_000, 2_000)]);
    assert_eq!(large.verdict().walls, [Wall::AllocatorCode]);
    let evidence = large.finding(Wall::AllocatorCode).evidence.join("; ");
    assert!(evidence.contains("100 % of the blocks are larger than 1032 bytes"), "{evidence}");
}

#[test]
fn counts_are_evidence_of_map_churn_large_allocations_and_contention() {
    let evidence = |shares: &[(CostClass, f64)], wall, sizes: Option<&[(u64, u64)]>| {
        let mut subject = with_shares(shares);
        subject.threads(2).waits(WaitClass::Allocator, 0.5);
        if let Some(sizes) = sizes {
            subject.recording.counted = Ok(counted(WINDOW_S as u64, sizes, 500, 0.34));
        }
        subject.finding(wall).evidence.join("; ")
    };
    let sizes: &[(u64, u64)] = &[(9_000, 64), (1_000, 200_000)];
    for (shares, wall, text) in [
        (&[(MapCalls, 0.4)][..], Wall::MapChurn, "100 blocks a second above 128 KiB"),
        (
            &[(BlockFilling, 0.4)],
            Wall::LargeAllocations,
            "100 % of the bytes of new blocks are in blocks above",
        ),
        (
            &[(AllocatorLocks, 0.2)],
            Wall::AllocatorContention,
            "another thread frees 34 % (31–37 %) of the blocks",
        ),
    ] {
        let with = evidence(shares, wall, Some(sizes));
        assert!(with.contains(text) && with.contains("allocwall count -- CMD"), "{with}");
        assert!(!evidence(shares, wall, None).contains("allocwall count"), "{wall:?}");
    }
    // Blocks that glibc does not map one by one.
    assert!(!evidence(&[(MapCalls, 0.4)], Wall::MapChurn, Some(&[(9_000, 64)])).contains("blocks a second"));
}

#[test]
fn a_runtime_s_own_allocator_is_a_matter_of_calls() {
    let mut subject = with_shares(&[(RuntimeAllocator, 0.3)]);
    subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
    assert_eq!(subject.verdict().walls, [Wall::CallRate]);
    assert_eq!(status(&subject, Wall::AllocatorCode), Status::RuledOut);
    assert!(offered(&subject).iter().all(|r| r != "jemalloc" && r != "mimalloc" && r != "tcmalloc"));
}

// ---- retention ----

fn heap(live: f64, resident: u64) -> Subject {
    let mut subject = computing();
    subject.last().smaps = Some(Smaps { rss: resident, anonymous: 0, ..Smaps::default() });
    subject.recording.heap = Ok(HeapView {
        method: "[heap]: chunk headers".into(),
        mapped_bytes: resident,
        resident_bytes: resident,
        live_bytes: Interval::new(live * 0.95, live, live * 1.05),
        free_bytes: Interval::exact(resident as f64 - live),
    });
    subject
}

#[test]
fn retention_is_resident_memory_beyond_live_memory() {
    const GIB: u64 = 1 << 30;
    assert_eq!(heap(0.1 * GIB as f64, GIB).verdict().walls, [Wall::Retention]);
    assert_eq!(status(&heap(0.9 * GIB as f64, GIB), Wall::Retention), Status::RuledOut);
    assert_eq!(status(&heap(0.5 * GIB as f64, GIB), Wall::Retention), Status::Contributor);
    // 90 % of 32 MiB is below the floor.
    assert_eq!(status(&heap(3e6, 32 << 20), Wall::Retention), Status::RuledOut);
}

#[test]
fn memory_outside_the_heap_that_was_walked_is_not_ruled_out() {
    const GIB: u64 = 1 << 30;
    let beside = |outside: u64, live: f64| {
        let mut subject = heap(live * 1e8, 100_000_000);
        subject.last().smaps =
            Some(Smaps { rss: 100_000_000 + outside, anonymous: 100_000_000 + outside, ..Smaps::default() });
        subject
    };
    let arenas = beside(GIB, 0.95).finding(Wall::Retention);
    assert_eq!(arenas.status, Status::NotMeasured);
    assert_eq!(arenas.missing.map(|m| m.reason), Some(Reason::NotSupported));
    // Too little memory in total, or memory mapped from files, which no allocator holds.
    assert_eq!(status(&beside(32 << 20, 0.95), Wall::Retention), Status::RuledOut);
    let mut files = beside(GIB, 0.95);
    files.last().smaps.as_mut().expect("set").anonymous = 100_000_000;
    assert_eq!(status(&files, Wall::Retention), Status::RuledOut);
    // Known free memory is enough for a wall.
    assert_eq!(status(&beside(32 << 20, 0.1), Wall::Retention), Status::Wall);
}

#[test]
fn retention_below_a_wall_is_added_to_the_sentence() {
    let judged = |live: f64| {
        let subject = heap(live * (1u64 << 30) as f64, 1 << 30);
        let verdict = subject.verdict();
        assert!(verdict.walls.is_empty());
        (status(&subject, Wall::Retention), verdict.sentence)
    };
    let (status, sentence) = judged(0.6);
    assert_eq!(status, Status::Contributor);
    assert!(sentence.contains("40 %"), "{sentence}");
    let (status, sentence) = judged(0.9);
    assert_eq!(status, Status::RuledOut);
    // 10 % of resident memory is free. No other figure of the sentence is 10 %.
    assert!(!sentence.contains("10 %"), "{sentence}");
}

#[test]
fn without_a_heap_view_only_lazily_freed_memory_decides() {
    let lazy = |share: f64| {
        let mut subject = computing();
        subject.last().smaps =
            Some(Smaps { rss: 1 << 30, lazy_free: (share * (1u64 << 30) as f64) as u64, ..Smaps::default() });
        subject
    };
    assert_eq!(status(&lazy(0.7), Wall::Retention), Status::Wall);
    assert_eq!(status(&lazy(0.1), Wall::Retention), Status::NotMeasured);
    assert_eq!(status(&computing(), Wall::Retention), Status::RuledOut, "20 MiB in all");
}

#[test]
fn memory_kept_by_an_idle_target_is_named_before_its_idleness() {
    let mut subject = heap(1e8, 1 << 30);
    subject.cpus(0.01);
    assert_eq!(subject.verdict().walls, [Wall::Retention, Wall::Waiting]);
}

// ---- verdicts ----

#[test]
fn computing_is_not_your_wall() {
    let verdict = computing().verdict();
    assert!(verdict.walls.is_empty());
    assert!(verdict.remedies.is_empty());
    assert_eq!(
        verdict.sentence,
        "Memory is not your wall: allocator 0 %, first touch 0 %, map churn 0 %; 100 % is the application's own computing, most in `site_of_application`."
    );
    assert!(verdict.findings.iter().all(|f| f.status == Status::RuledOut), "{:#?}", verdict.findings);
}

#[test]
fn the_wall_s_sentence_has_the_number_and_the_place() {
    let sentence = with_shares(&[(FaultPath, 0.26), (Zeroing, 0.15)]).verdict().sentence;
    assert_eq!(
        sentence,
        "First touch is the wall: 41 % (40–42 %) of CPU goes to faulting in and zeroing fresh pages, most of it from `site_of_fault_path`."
    );
}

#[test]
fn an_unsampled_target_gets_no_verdict() {
    let mut subject = computing();
    subject.bill.on_cpu = Err(Absence::new(Reason::NotPermitted, "perf_event_open: permission denied"));
    subject.recording.prices = Err(absent());
    let verdict = subject.verdict();
    assert_eq!(super::reach(&subject.recording, &subject.bill, &verdict), Reach::NotSampled);
    assert!(verdict.remedies.is_empty());
}

/// Many targets: each class at several shares, sampled and not, busy and idle.
fn many() -> Vec<Subject> {
    let mut all = vec![computing(), throttled(500, 95), heap(1e8, 1 << 30)];
    for class in CostClass::ALL {
        for share in [0.0, 0.03, 0.12, 0.5, 1.0] {
            for (cpus, samples, threads) in [(1.0, 10_000, 1), (0.02, 10_000, 1), (1.7, 60, 4), (0.5, 300, 2)]
            {
                let mut subject = computing();
                subject.cpus(cpus).threads(threads).shares_with_samples(&[(class, share)], samples);
                subject.map_call("__x64_sys_munmap", true, 30);
                all.push(subject);
            }
        }
    }
    for share in [0.0, 0.061, 0.5] {
        let mut crowded = heap(0.617 * (1u64 << 30) as f64, 1 << 30);
        crowded.cpus(1.8).threads(9).waits(WaitClass::RunQueue, 2.5);
        crowded.recording.threads = (0..9)
            .map(|i| ThreadTimes {
                pid: 100,
                tid: 100 + i,
                comm: "pool".into(),
                seen_ns: 10_000_000_000,
                cpu_ns: 2_000_000_000,
                run_delay_ns: Some(2_777_777_777),
            })
            .collect();
        for line in [AllocatorCode, GarbageCollector] {
            let mut subject = Subject { recording: crowded.recording.clone(), bill: crowded.bill.clone() };
            subject.shares(&[(line, share), (OtherKernel, 0.41)]);
            let lines = subject.bill.on_cpu.as_mut().expect("sampled");
            lines[0].sites[0].function = "a_name_of_many_letters_that_is_cut::".repeat(3);
            all.push(subject);
        }
    }
    let mut blind = computing();
    blind.bill.on_cpu = Err(absent());
    for line in &mut blind.bill.off_cpu {
        line.thread_s = Err(absent());
    }
    blind.recording.ticks.clear();
    blind.recording.processes.clear();
    blind.recording.prices = Err(absent());
    all.push(blind);
    let mut unsampled = computing();
    unsampled.threads(2);
    for line in &mut unsampled.bill.off_cpu {
        line.thread_s = Err(absent());
    }
    all.push(unsampled);
    let mut empty = computing();
    empty.bill.window_s = 0.0;
    empty.bill.cpu_s = 0.0;
    all.push(empty);
    all
}

#[test]
fn every_verdict_is_complete_and_in_order() {
    for subject in many() {
        let verdict = subject.verdict();
        assert!(verdict.findings.iter().map(|f| f.wall).eq(Wall::ALL));
        assert!(verdict.sentence.chars().count() <= 200, "{}", verdict.sentence);
        assert!(verdict.next.len() <= 3);
        for f in &verdict.findings {
            assert_eq!(f.rung, f.wall.rung());
            assert_eq!(f.status == Status::NotMeasured, f.missing.is_some(), "{f:?}");
            assert!(f.missing.as_ref().is_none_or(|m| !m.mend.is_empty()), "what would measure it: {f:?}");
            assert!(!f.because.is_empty() && !f.show.command.is_empty(), "{f:?}");
            assert!(f.status != Status::RuledOut || f.because.chars().count() <= 60, "{f:?}");
            assert!(f.show.to_string().chars().count() <= 71, "one short line: {}", f.show);
            assert!(!f.because.contains("NaN") && !f.because.contains("inf"), "{f:?}");
            if let Some(s) = f.share {
                assert!(0.0 <= s.low && s.low <= s.point && s.point <= s.high && s.high <= 1.0, "{f:?}");
            }
            assert_eq!(verdict.walls.contains(&f.wall), f.status == Status::Wall);
        }
    }
}

#[test]
fn no_gain_beyond_the_lines_that_it_acts_on() {
    use allocwall_model::catalogue::remedies::{Effect, find};
    let mut priced = 0;
    for subject in many() {
        let lines = subject.bill.on_cpu.clone().unwrap_or_default();
        for p in subject.verdict().remedies {
            let remedy = find(&p.remedy).expect("in the catalogue");
            let most: f64 =
                lines.iter().filter(|l| remedy.acts_on.contains(&l.class)).map(|l| l.share.high).sum();
            // Keeping memory also saves work outside malloc's own lines.
            let beyond = matches!(
                remedy.effect,
                Effect::Swap
                    | Effect::DeeperCache
                    | Effect::OwnArenas
                    | Effect::ArenaInsteadOfMap
                    | Effect::HugeTouch
            );
            if let Some(bound) = p.at_most {
                assert!(bound <= 1.0 && (beyond || bound <= most + 1e-9), "{p:?}");
                assert!(p.gain.is_none_or(|g| g.high <= bound + 1e-9), "{p:?}");
            }
            if let Some(gain) = p.gain {
                priced += 1;
                assert!(gain.low <= gain.point && gain.point <= gain.high, "{p:?}");
                assert!(beyond || (0.0 <= gain.low && gain.high <= most + 1e-9), "{p:?}");
            }
            assert!(!p.basis.is_empty() && !p.how.command.contains('{'), "{p:?}");
        }
    }
    assert!(priced > 10);
}

#[test]
fn a_gate_stops_at_walls_and_at_open_verdicts_but_not_at_idle_services() {
    let gate = |s: &Subject| {
        let verdict = s.verdict();
        (super::reach(&s.recording, &s.bill, &verdict), super::stops_a_gate(&s.recording, &s.bill, &verdict))
    };
    assert_eq!(gate(&computing()), (Reach::Decided, false));
    assert_eq!(gate(&with_shares(&[(FaultPath, 0.4)])), (Reach::Decided, true));
    let mut idle = computing();
    idle.cpus(0.02).waits(WaitClass::Idle, 0.9);
    assert_eq!(idle.verdict().walls, [Wall::Waiting]);
    assert_eq!(gate(&idle), (Reach::Decided, false));
    let mut unnamed = with_shares(&[(UnnamedKernel, 0.4)]);
    unnamed.recording.prices = Err(absent());
    assert_eq!(gate(&unnamed), (Reach::Undecided, true));
    let mut blind = computing();
    blind.bill.on_cpu = Err(absent());
    blind.recording.prices = Err(absent());
    assert_eq!(gate(&blind), (Reach::NotSampled, true));
}

#[test]
fn much_kernel_work_of_an_unknown_kind_may_be_memory() {
    let sentence = |class, share| with_shares(&[(class, share)]).verdict().sentence;
    let unknown = sentence(OtherKernel, 0.3);
    assert!(
        unknown.starts_with("No wall found: ") && unknown.contains(" 30 % of CPU is in kernel"),
        "{unknown}"
    );
    for (class, share) in [(OtherKernel, 0.1), (FileSystem, 0.3), (Sockets, 0.3), (ForkExit, 0.3)] {
        let known = sentence(class, share);
        assert!(known.starts_with("Memory is not your wall"), "{class:?}: {known}");
    }
    // Both lines without a class count.
    let both =
        |unclassified| with_shares(&[(OtherKernel, unclassified), (UnnamedKernel, 0.03)]).verdict().sentence;
    let unknown = both(0.18);
    assert!(unknown.starts_with("No wall found") && unknown.contains(UnnamedKernel.title()), "{unknown}");
    assert!(both(0.15).starts_with("Memory is not your wall"), "{}", both(0.15));
    for class in [OtherKernel, UnnamedKernel] {
        for share in [0.21, 0.5, 0.9] {
            assert!(
                !sentence(class, share).starts_with("Memory is not"),
                "{class:?}: {}",
                sentence(class, share)
            );
        }
    }
    let network = sentence(Sockets, 0.6);
    assert!(network.contains(Sockets.title()) && network.contains("60 %"), "{network}");
}

#[test]
fn a_target_that_has_ended_is_started_again() {
    let next = |ended: Ended| -> Vec<String> {
        let mut subject = with_shares(&[(FaultPath, 0.5)]);
        subject.recording.host.euid = 1000;
        subject.recording.meta.ended = ended;
        // A wall that is not measured.
        subject.last().cgroup = None;
        subject.verdict().next.into_iter().map(|line| line.command).collect()
    };
    let running = next(Ended::Complete);
    assert_eq!(running[0], "sudo allocwall diagnose -p 100");
    assert!(running[2].contains("-p 100"), "{running:?}");
    let ended = next(Ended::TargetExited { status: None });
    assert_eq!(ended[0], "sudo allocwall diagnose -- COMMAND");
    assert!(ended.iter().all(|line| !line.contains("100") && !line.contains("PID")), "{ended:?}");
}

#[test]
fn root_is_no_advice_for_what_is_not_supported() {
    let advised = |cgroup: bool| {
        let mut subject = losing(0, 0);
        subject.recording.host.euid = 1000;
        subject.network().datagrams = Ok(Datagrams { received: 5_000, ..Datagrams::default() });
        if !cgroup {
            subject.last().cgroup = None;
        }
        assert_eq!(status(&subject, Wall::Network), Status::NotMeasured);
        subject.verdict().next.iter().any(|line| line.command.starts_with("sudo allocwall diagnose"))
    };
    assert_eq!((advised(true), advised(false)), (false, true));
}

#[test]
fn no_command_has_the_number_of_a_process_that_has_ended() {
    let shown = |ended: Ended, exited: bool| -> Vec<ShellLine> {
        let mut subject = computing();
        subject.recording.cgroup = None;
        subject.recording.meta.ended = ended;
        subject.process().ended = exited;
        subject.verdict().findings.into_iter().map(|finding| finding.show).collect()
    };
    const OF_A_PID: [&str; 3] = ["numastat -p ", "top -H -p ", "cat /proc/"];
    let of_tool = |lines: &[ShellLine], tool: &str| {
        let line = lines.iter().find(|line| line.command.contains(tool)).expect(tool);
        (line.command.contains("100"), line.command.starts_with("CMD & "), line.has_gap)
    };
    let running = shown(Ended::Complete, false);
    for tool in OF_A_PID {
        assert_eq!(of_tool(&running, tool), (true, false, false), "{tool}");
    }
    for over in [shown(Ended::TargetExited { status: None }, false), shown(Ended::Complete, true)] {
        for tool in OF_A_PID {
            assert_eq!(of_tool(&over, tool), (false, true, true), "{tool}");
        }
        let has_number = |line: &ShellLine| line.command.contains("100") || line.command.contains("PID");
        assert!(!over.iter().any(has_number), "{over:?}");
    }
}

#[test]
fn a_remedy_of_unknown_gain_is_tried_next() {
    let next = |cached: usize, command: &str| -> Vec<String> {
        let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
        subject.malloc_leaves(Some("malloc"), cached).malloc_leaves(None, 100 - cached);
        subject.recording.meta.command = Some(vec![command.into()]);
        subject.verdict().next.into_iter().map(|line| line.command).collect()
    };
    // Where many calls are cheap, nothing predicts what another allocator saves.
    let unknown = next(55, "service");
    assert!(unknown.contains(&"allocwall trial --with jemalloc -- service".to_owned()), "{unknown:?}");
    assert!(!unknown.iter().any(|line| line.contains("LD_PRELOAD")), "{unknown:?}");
    let is_trial = |line: &String| line.contains("allocwall trial");
    let known = next(24, "service");
    assert!(!known.iter().any(is_trial) && known.iter().any(|line| line.ends_with(" service")), "{known:?}");
    assert!(!next(55, &"x".repeat(500)).iter().any(is_trial));
}

#[test]
fn a_worker_that_has_ended_is_in_no_command() {
    let mut subject = with_a_child(&[(FaultPath, 0.5)]);
    subject.recording.host.euid = 1000;
    subject.last().cgroup = None;
    let commands = |s: &Subject| -> Vec<String> {
        let verdict = s.verdict();
        verdict
            .next
            .into_iter()
            .chain(verdict.findings.into_iter().map(|f| f.show))
            .map(|l| l.command)
            .collect()
    };
    assert_eq!(commands(&subject)[0], "sudo allocwall diagnose -p 100");
    subject.process().ended = true;
    let commands = commands(&subject);
    assert_eq!(commands[0], "sudo allocwall diagnose -p 101");
    let of_worker = |command: &String| command.contains("-p 100") || command.contains("/100/");
    assert!(!commands.iter().any(of_worker), "{commands:?}");
}

#[test]
fn commands_that_need_root_say_so() {
    let show = |wall: Wall, change: &dyn Fn(&mut Subject)| {
        let mut subject = with_shares(&[(FaultPath, 0.5)]);
        subject.threads(2).recording.host.euid = 1000;
        subject.recording.host.perf_event_paranoid = Ok(1);
        change(&mut subject);
        subject.finding(wall).show
    };
    let own = show(Wall::FirstTouch, &|_| ());
    assert!(own.command.starts_with("perf record -g -p 100 "), "{own}");
    // Functions of the kernel that are not this user's to see, and the process of another user.
    let changes: [&dyn Fn(&mut Subject); 3] = [
        &|s| s.recording.host.perf_event_paranoid = Ok(2),
        &|s| s.recording.host.kptr_restrict = Ok(1),
        &|s| s.recording.host.euid = 0,
    ];
    for change in changes {
        let line = show(Wall::FirstTouch, change);
        assert!(line.command.starts_with("sudo perf ") && line.command.contains("-p 100"), "{line}");
    }
    let program = show(Wall::CallRate, &|s| s.recording.host.perf_event_paranoid = Ok(2));
    assert!(program.command.starts_with("perf record -p 100 "), "{program}");
    // Tracepoints.
    for wall in [Wall::AllocatorContention, Wall::ApplicationLock, Wall::AddressSpaceLock] {
        assert!(show(wall, &|_| ()).command.starts_with("sudo perf "), "{wall:?}");
    }
    // A target that has ended is started again.
    let over = show(Wall::FirstTouch, &|s| s.recording.meta.ended = Ended::TargetExited { status: None });
    assert_eq!((over.command.starts_with("perf record -g CMD; "), over.has_gap), (true, true), "{over}");
}

// ---- remedies ----

fn reason(subject: &Subject, walls: &[Wall], key: &str) -> Option<Unfit> {
    let offers = remedies::offers(&subject.recording, &subject.bill, walls);
    let (_, offer) = offers.into_iter().find(|(r, _)| r.key == key).expect("for these walls");
    offer.err()
}

/// The fact that keeps a need of the remedy from being met.
fn unmet(subject: &Subject, walls: &[Wall], key: &str) -> Option<Unmet> {
    match reason(subject, walls, key) {
        Some(Unfit::Need(_, NeedState::NotMet(unmet))) => Some(unmet),
        _ => None,
    }
}

const SWAPS: [&str; 3] = ["jemalloc", "tcmalloc", "mimalloc"];
const SLOW: &[Wall] = &[Wall::AllocatorCode];

#[test]
fn a_preload_is_offered_only_where_the_loader_takes_it() {
    let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
    for key in SWAPS {
        assert_eq!(reason(&subject, SLOW, key), None);
    }
    subject.process().secure_exec = Ok(true);
    assert_eq!(unmet(&subject, SLOW, "jemalloc"), Some(Unmet::SecureExec));
    subject.process().secure_exec = Ok(false);
    let go = Runtime::Go { version: None };
    subject.process().runtime = Ok(go.clone());
    assert_eq!(unmet(&subject, SLOW, "jemalloc"), Some(Unmet::Runtime(go)));
    subject.process().runtime = Ok(Runtime::Native);
    for libc in [Ok(Libc::Static), Ok(Libc::Musl { version: None }), Err(absent())] {
        subject.process().libc = libc;
        for key in SWAPS {
            assert!(reason(&subject, SLOW, key).is_some(), "{key}");
        }
    }
    assert!(reason(&subject, SLOW, "glibc-tcache-count").is_some());
    subject.process().libc = Ok(Libc::Musl { version: None });
    assert_eq!(reason(&subject, SLOW, "mimalloc-musl"), None);
    subject.process().secure_exec = Ok(true);
    assert_eq!(unmet(&subject, SLOW, "mimalloc-musl"), Some(Unmet::SecureExec));
}

#[test]
fn a_list_that_is_set_already_is_not_silently_replaced() {
    let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
    subject.malloc_leaves(Some("malloc"), 24).malloc_leaves(None, 76);
    let note = |s: &Subject| {
        let remedies = s.verdict().remedies;
        let jemalloc = remedies.into_iter().find(|p| p.remedy == "jemalloc").expect("offered");
        jemalloc.how.remark.expect("the package")
    };
    assert!(!note(&subject).contains("/lib/other.so"));
    subject.process().environment = vec![("LD_PRELOAD".into(), "/lib/other.so".into())];
    assert!(note(&subject).contains("/lib/other.so"), "{}", note(&subject));
}

#[test]
fn an_allocator_is_not_offered_to_one_already_on_it() {
    let mut subject = with_shares(&[(AllocatorCode, 0.5), (FaultPath, 0.2)]);
    subject.process().allocator = Ok(Allocator {
        kind: AllocatorKind::Jemalloc,
        how: Linkage::Preloaded,
        module: "libjemalloc.so.2".into(),
        version: None,
    });
    assert!(reason(&subject, SLOW, "jemalloc").is_some());
    assert_eq!(reason(&subject, SLOW, "mimalloc"), None);
    assert!(reason(&subject, SLOW, "glibc-tcache-count").is_some(), "glibc's malloc is not the one");
    assert_eq!(reason(&subject, &[Wall::FirstTouch], "jemalloc-thp"), None);
    subject.process().runtime = Ok(Runtime::Jvm { version: None });
    assert!(
        reason(&subject, &[Wall::FirstTouch], "jemalloc-thp").is_some(),
        "the Java heap is not in malloc"
    );
    assert_eq!(reason(&subject, &[Wall::FirstTouch], "jvm-thp"), None);
}

#[test]
fn tunables_need_the_version_that_has_them_and_keep_what_is_set() {
    let touch = &[Wall::FirstTouch];
    let mut subject = with_shares(&[(FaultPath, 0.5)]);
    assert_eq!(reason(&subject, touch, "glibc-hugetlb"), None);
    let old = Libc::Glibc { version: "2.31".into() };
    subject.process().libc = Ok(old.clone());
    let too_old = Unfit::Need(Need::Glibc(2, 35), NeedState::NotMet(Unmet::Libc(old)));
    assert_eq!(reason(&subject, touch, "glibc-hugetlb"), Some(too_old));
    subject.process().libc = Ok(Libc::Glibc { version: "nonsense".into() });
    assert!(reason(&subject, touch, "glibc-hugetlb").is_some());
    subject.process().libc = Ok(Libc::Glibc { version: "2.36-9+deb12u4".into() });
    subject.process().environment = vec![("GLIBC_TUNABLES".into(), "glibc.malloc.perturb=1".into())];
    let remedies = subject.verdict().remedies;
    let hugetlb = remedies.into_iter().find(|p| p.remedy == "glibc-hugetlb").expect("offered");
    let how = hugetlb.how.command;
    assert_eq!(how, "GLIBC_TUNABLES=glibc.malloc.perturb=1:glibc.malloc.hugetlb=1 service --port 80");
    subject.process().environment = vec![("GLIBC_TUNABLES".into(), "glibc.malloc.hugetlb=2".into())];
    assert!(reason(&subject, touch, "glibc-hugetlb").is_some(), "set already");
}

#[test]
fn huge_pages_need_a_mode_that_gives_them() {
    let touch = &[Wall::FirstTouch];
    let mut subject = with_shares(&[(FaultPath, 0.5)]);
    for mode in ["always madvise [never]", "never", "[always] madvise never"] {
        subject.recording.host.thp_enabled = Ok(mode.into());
        assert!(reason(&subject, touch, "glibc-hugetlb").is_some(), "{mode}");
    }
    subject.recording.host.thp_enabled = Ok("madvise".into());
    assert_eq!(reason(&subject, touch, "glibc-hugetlb"), None);
    subject.process().thp_disabled = Ok(true);
    assert!(reason(&subject, touch, "glibc-hugetlb").is_some());
}

#[test]
fn cpython_gets_its_own_allocator_only_from_the_version_that_has_it() {
    let touch = &[Wall::FirstTouch];
    let mut subject = with_shares(&[(FaultPath, 0.5)]);
    let mut python = |version: &str, free_threaded| {
        subject.process().runtime = Ok(Runtime::Cpython { version: version.into(), free_threaded });
        (
            reason(&subject, touch, "cpython-mimalloc-huge").is_none(),
            reason(&subject, touch, "cpython-nogil-huge").is_none(),
        )
    };
    assert_eq!(python("3.11.2", false), (false, false));
    assert_eq!(python("3.13.0", false), (true, false));
    assert_eq!(python("3.13.0", true), (false, true));
}

#[test]
fn the_arena_hook_is_offered_to_a_python_that_has_arenas() {
    const KEY: &str = "pymalloc-hugepages";
    let reason_of = |share, walls: &[Wall], change: &dyn Fn(&mut Subject)| {
        let mut subject = with_shares(&[share]);
        subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        change(&mut subject);
        reason(&subject, walls, KEY)
    };
    let touching = |change: &dyn Fn(&mut Subject)| reason_of((FaultPath, 0.5), &[Wall::FirstTouch], change);
    assert_eq!(touching(&|_| ()), None);
    // Objects that are within the TLB's reach gain nothing. Without prices, nothing predicts it.
    let calling =
        |change: &dyn Fn(&mut Subject)| reason_of((RuntimeAllocator, 0.3), &[Wall::CallRate], change);
    assert_eq!(calling(&|_| ()), Some(Unfit::NothingToSave));
    assert_eq!(calling(&|subject| subject.recording.prices = Err(absent())), None);
    let walking = |active| {
        calling(&move |subject| {
            subject.last().resident = 4 << 30;
            count_walks(subject, active);
        })
    };
    assert_eq!((walking(90_000_000), walking(0)), (None, Some(Unfit::NothingToSave)));
    let set = |name: &str, value: &str| {
        let (name, value) = (name.to_owned(), value.to_owned());
        move |subject: &mut Subject| subject.process().environment.push((name.clone(), value.clone()))
    };
    for (change, need) in [
        (Box::new(set("PYTHONMALLOC", "malloc")) as Box<dyn Fn(&mut Subject)>, Need::Unset("PYTHONMALLOC")),
        (Box::new(set("ALLOCWALL_HUGEPAGES", "1")), Need::Unset("ALLOCWALL_HUGEPAGES")),
        (
            Box::new(|subject| subject.recording.host.thp_enabled = Ok("always madvise [never]".into())),
            Need::ThpByAdvice,
        ),
        (Box::new(|subject| subject.process().runtime = Ok(Runtime::Native)), Need::CpythonAtLeast(9)),
        (
            Box::new(|subject| {
                subject.process().runtime =
                    Ok(Runtime::Cpython { version: "3.13.0".into(), free_threaded: true });
            }),
            Need::CpythonAtLeast(9),
        ),
    ] {
        let why = touching(&*change);
        assert!(matches!(&why, Some(Unfit::Need(of, NeedState::NotMet(_))) if *of == need), "{why:?}");
    }
}

/// Counts cycles in page walks, of 300 million cycles in each of six slices.
fn count_walks(subject: &mut Subject, active: u64) {
    let event = |event, count| {
        let slice = HardwareSlice { count, enabled_ns: 100_000_000, running_ns: 100_000_000 };
        HardwareCount { event, counted: Ok(HardwareSlices { slices: vec![slice; 6] }) }
    };
    let events =
        vec![event(HardwareEvent::Cycles, 300_000_000), event(HardwareEvent::DtlbWalkActive, active)];
    subject.recording.hardware = Ok(HardwareCounts { kernel: true, throughout: false, events });
}

/// Python's own small objects, or large blocks, which come from malloc.
#[test]
fn a_remedy_for_the_runtime_goes_before_one_for_any_program_that_is_no_surer() {
    let first = |runtime, large_blocks| {
        let mut subject = with_shares(&[(FaultPath, 0.5)]);
        subject.process().runtime = Ok(runtime);
        if large_blocks {
            subject.map_call("do_mmap", true, 300);
            subject.bill.rates.minor_faults = Ok(10_000.0);
            let count = |name: &str, count| EventCount { name: name.into(), count, over_ns: 10_000_000_000 };
            subject.recording.counts = vec![count("mmap", 10), count("brk", 0)];
        }
        let mut huge = subject.verdict().remedies;
        huge.retain(|found| ["glibc-hugetlb", "pymalloc-hugepages"].contains(&found.remedy.as_str()));
        huge.swap_remove(0).remedy
    };
    for version in ["3.11.2", "3.13.0"] {
        let python = Runtime::Cpython { version: version.into(), free_threaded: false };
        assert_eq!(first(python.clone(), false), "pymalloc-hugepages");
        assert_eq!(first(python, true), "glibc-hugetlb");
    }
    assert_eq!(first(Runtime::Native, false), "glibc-hugetlb");
}

#[test]
fn a_limited_arena_count_is_lifted_not_lowered() {
    let contention = &[Wall::AllocatorContention];
    let mut subject = with_shares(&[(AllocatorLocks, 0.3)]);
    subject.threads(2);
    assert!(reason(&subject, contention, "glibc-arenas-free").is_some());
    subject.process().environment = vec![("GLIBC_TUNABLES".into(), "glibc.malloc.arena_max=1".into())];
    // The limit is the cause, so lifting it goes before another allocator if it may save as much.
    let first = subject.verdict().remedies.swap_remove(0);
    assert_eq!(first.remedy, "glibc-arenas-free");
    let how = first.how.command;
    assert!(how.contains("GLIBC_TUNABLES=glibc.malloc.arena_max=16 service"), "{how}");
    subject.shares(&[(AllocatorLocks, 0.3), (AllocatorCode, 0.6)]);
    assert_eq!(subject.verdict().remedies[0].remedy, "mimalloc");
    assert!(reason(&subject, &[Wall::Retention], "glibc-arenas-few").is_some());
}

#[test]
fn a_limit_above_what_glibc_does_by_itself_is_left_alone() {
    let contention = &[Wall::AllocatorContention];
    let mut subject = with_shares(&[(AllocatorLocks, 0.3)]);
    subject.threads(2);
    // Two CPUs: 16 arenas without any setting.
    for (name, value, offered) in [
        ("MALLOC_ARENA_MAX", "2", true),
        ("MALLOC_ARENA_MAX", "64", false),
        ("MALLOC_ARENA_MAX", "0", false),
        ("MALLOC_ARENA_MAX", "few", false),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=15", true),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=16", false),
        ("GLIBC_TUNABLES", "glibc.malloc.arena_max=0x40", false),
        ("GLIBC_TUNABLES", "glibc.malloc.perturb=1", false),
    ] {
        subject.process().environment = vec![(name.into(), value.into())];
        let lifted = reason(&subject, contention, "glibc-arenas-free").is_none();
        assert_eq!(lifted, offered, "{name}={value}");
    }
}

fn how_of(subject: &Subject, walls: &[Wall], key: &str) -> String {
    let offers = remedies::offers(&subject.recording, &subject.bill, walls);
    let (_, offer) = offers.into_iter().find(|(r, _)| r.key == key).expect("in the catalogue");
    offer.expect("offered").0.how.command
}

#[test]
fn a_weight_is_raised_for_every_thread_of_every_busy_process() {
    let queue = &[Wall::RunQueue];
    let mut subject = computing();
    assert_eq!(how_of(&subject, queue, "nice"), "sudo renice -n -5 -p $(ps -L -o tid= -p 100)");
    let mut with_backends = |busy: i32| {
        subject.recording.threads = (101..=112)
            .map(|pid| ThreadTimes {
                pid,
                tid: pid,
                comm: "backend".into(),
                seen_ns: 1,
                cpu_ns: if pid <= 100 + busy { pid as u64 } else { 0 },
                run_delay_ns: None,
            })
            .collect();
        let offers = remedies::offers(&subject.recording, &subject.bill, queue);
        let (_, offer) = offers.into_iter().find(|(r, _)| r.key == "nice").expect("in the catalogue");
        let (nice, _) = offer.expect("offered");
        (nice.how.command, nice.how.remark.unwrap(), nice.undo)
    };
    let (few, note, undo) = with_backends(3);
    assert!(few.contains("-p 103,102,101)") && !note.contains("busiest"), "{few}");
    assert_eq!(undo, "sudo renice -n 0 -p $(ps -L -o tid= -p 103,102,101)");
    let (many, note, undo) = with_backends(12);
    let busiest = "-p 112,111,110,109,108,107,106,105)";
    assert!(many.contains(busiest), "{many}");
    let (undo, of_undo) = undo.split_once('#').expect("a comment");
    assert!(undo.trim_end().ends_with(busiest), "{undo}");
    for comment in [note.as_str(), of_undo] {
        let numbers = comment.split(|c: char| !c.is_ascii_digit()).filter(|n| !n.is_empty());
        assert!(numbers.collect::<Vec<_>>().ends_with(&["8", "12"]), "{comment}");
    }
}

#[test]
fn threads_that_have_ended_are_started_again() {
    let nice = |ended: Ended, known: bool| {
        let mut subject = computing();
        subject.recording.meta.ended = ended;
        if !known {
            subject.process().cmdline.clear();
        }
        let offers = remedies::offers(&subject.recording, &subject.bill, &[Wall::RunQueue]);
        let (_, offer) = offers.into_iter().find(|(r, _)| r.key == "nice").expect("in the catalogue");
        let nice = offer.expect("offered").0;
        (nice.how.command, nice.how.has_gap, nice.restart)
    };
    let over = || Ended::TargetExited { status: None };
    let started = |command: &str| format!("{command} & sudo renice -n -5 -p $!");
    assert_eq!(nice(over(), true), (started("service --port 80"), false, true));
    assert_eq!(nice(over(), false), (started("CMD"), true, true));
    let running = "sudo renice -n -5 -p $(ps -L -o tid= -p 100)";
    assert_eq!(nice(Ended::Complete, true), (running.to_owned(), false, false));
}

#[test]
fn a_low_setting_of_the_collector_is_shown_and_raised() {
    let mut go = with_shares(&[(GarbageCollector, 0.4)]);
    go.process().runtime = Ok(Runtime::Go { version: None });
    let note = |s: &Subject| {
        let gogc = s.verdict().remedies.into_iter().find(|p| p.remedy == "gogc");
        gogc.map(|p| p.how.remark.expect("the default"))
    };
    assert!(note(&go).is_some_and(|note| !note.contains("GOGC is")));
    let mut set = |value: &str| {
        go.process().environment = vec![("GOGC".into(), value.into())];
        note(&go)
    };
    assert!(set("20").is_some_and(|note| note.starts_with("GOGC is 20;")));
    for high in ["200", "400", "off"] {
        assert_eq!(set(high), None, "{high}");
    }
    // The command would set it again.
    set("20");
    go.recording.meta.command = Some(["env", "GOGC=20", "service"].map(String::from).to_vec());
    assert_eq!(note(&go), None);

    let collector = &[Wall::GarbageCollector];
    let mut node = with_shares(&[(GarbageCollector, 0.4)]);
    node.process().runtime = Ok(Runtime::Node { version: None });
    let mut given = |option: &str| {
        node.process().cmdline = ["node", option, "app.js"].map(String::from).to_vec();
        let offered = reason(&node, collector, "node-semi-space").is_none();
        offered.then(|| how_of(&node, collector, "node-semi-space"))
    };
    for low in ["--max-semi-space-size=1", "--max_semi_space_size=1"] {
        assert_eq!(given(low).as_deref(), Some("node --max-semi-space-size=64 app.js"), "{low}");
    }
    for high in ["--max-semi-space-size=64", "--max-semi-space-size=x", "--max-semi-space-size"] {
        assert_eq!(given(high), None, "{high}");
    }
    let in_environment = |value: &str| {
        let mut node = with_shares(&[(GarbageCollector, 0.4)]);
        node.process().runtime = Ok(Runtime::Node { version: None });
        node.process().environment =
            vec![("NODE_OPTIONS".into(), format!("--inspect --max-semi-space-size={value}"))];
        reason(&node, collector, "node-semi-space").is_none()
    };
    assert!(in_environment("2") && !in_environment("128"));
}

#[test]
fn an_option_for_node_is_where_every_version_accepts_it() {
    let collector = &[Wall::GarbageCollector];
    let mut subject = with_shares(&[(GarbageCollector, 0.4)]);
    subject.process().runtime = Ok(Runtime::Node { version: None });
    let mut given = |words: &[&str]| {
        subject.process().cmdline = words.iter().map(|w| (*w).to_owned()).collect();
        let next = subject.verdict().next.iter().any(|n| n.command.contains("semi-space"));
        (how_of(&subject, collector, "node-semi-space"), next)
    };
    let typed = |how: &str| (how.to_owned(), true);
    assert_eq!(given(&["node", "app.js"]), typed("node --max-semi-space-size=64 app.js"));
    assert_eq!(
        given(&["/opt/my node/node", "a b"]),
        typed("'/opt/my node/node' --max-semi-space-size=64 'a b'")
    );
    let prose = ("start node with --max-semi-space-size=64".to_owned(), false);
    assert_eq!(given(&["next-server (v14)"]), prose);
    assert_eq!(given(&["node", &"x".repeat(500)]), prose);
    assert_eq!(given(&[]), prose);
}

#[test]
fn an_incomplete_command_is_no_next_step() {
    let mut subject = with_shares(&[(GarbageCollector, 0.4)]);
    subject.process().runtime = Ok(Runtime::Jvm { version: None });
    subject.process().cmdline = vec!["java".into(), "-Xmx48m".into(), "Service".into()];
    let verdict = subject.verdict();
    let heap = verdict.remedies.iter().find(|p| p.remedy == "jvm-heap").expect("offered");
    assert!(heap.how.command.contains("now -Xmx48m"), "{}", heap.how);
    assert!(verdict.next.iter().all(|n| !n.command.contains("Xmx")), "{:?}", verdict.next);

    for runtime in [Runtime::Go { version: None }, Runtime::Node { version: None }] {
        let mut subject = with_shares(&[(GarbageCollector, 0.4)]);
        subject.process().runtime = Ok(runtime);
        let next = subject.verdict().next;
        let whole = |command: &str| !command.contains("CMD") && !command.contains('…');
        assert!(next.iter().all(|n| whole(&n.command)), "{next:?}");
    }

    let next = |command: &str| {
        let mut subject = with_shares(&[(FaultPath, 0.5)]);
        subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
        subject.recording.meta.command = Some(vec![command.into()]);
        subject.verdict().next
    };
    assert!(next("service").iter().any(|n| n.command.ends_with(" service")));
    assert!(next(&"x".repeat(500)).iter().all(|n| !n.command.contains("CMD")));
}

#[test]
fn jemalloc_is_set_by_the_variable_that_its_build_reads() {
    let retention = &[Wall::Retention];
    let set = |how, leaf: &str| {
        let mut subject = with_shares(&[(AllocatorCode, 0.5)]);
        subject.process().allocator = Ok(Allocator {
            kind: AllocatorKind::Jemalloc,
            how,
            module: "/lib/libc.so.6".into(),
            version: None,
        });
        subject.malloc_leaves(Some(leaf), 1);
        let how = how_of(&subject, retention, "jemalloc-decay");
        let variables = how.split(' ').filter_map(|word| Some(word.split_once("=background")?.0.to_owned()));
        variables.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(set(Linkage::Linked, "je_arena_malloc_hard"), "MALLOC_CONF");
    assert_eq!(set(Linkage::Static, "_rjem_je_arena_malloc_hard"), "_RJEM_MALLOC_CONF");
    assert_eq!(set(Linkage::Static, "je_free"), "JE_MALLOC_CONF");
    assert_eq!(set(Linkage::Static, "malloc"), "MALLOC_CONF");
    let all = "MALLOC_CONF _RJEM_MALLOC_CONF JE_MALLOC_CONF";
    assert_eq!(set(Linkage::Static, "je_arena_malloc_hard"), all);
}

#[test]
fn a_mapping_threshold_is_raised_where_it_was_set_low() {
    let churn = &[Wall::MapChurn];
    let mut subject = with_shares(&[(MapCalls, 0.2), (PageRelease, 0.2)]);
    for (value, offered) in [
        ("131072", true),
        ("0x20000", true),
        ("0400000", true),
        ("268435456", false),
        ("0x10000000", false),
        ("many", false),
    ] {
        let list = format!("glibc.malloc.mmap_threshold=1:glibc.malloc.mmap_threshold={value}");
        subject.process().environment = vec![("GLIBC_TUNABLES".into(), list)];
        assert_eq!(reason(&subject, churn, "glibc-keep-memory").is_none(), offered, "{value}");
    }
    subject.process().environment =
        vec![("GLIBC_TUNABLES".into(), "glibc.malloc.mmap_threshold=131072".into())];
    assert_eq!(subject.verdict().remedies[0].remedy, "glibc-keep-memory");
}

#[test]
fn huge_pages_on_first_touch_are_priced_by_this_machine() {
    let mut subject = with_shares(&[(FaultPath, 0.3), (Zeroing, 0.1)]);
    subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
    let p = subject.verdict().remedies.into_iter().find(|p| p.remedy == "glibc-hugetlb").expect("offered");
    let gain = p.gain.expect("priced");
    // 1 − 100 µs / (512 × 1.5 µs) = 87 % of 40 %; it is unknown whether the memory can be on huge pages.
    assert!((gain.point - 0.4 * 0.87).abs() < 0.003, "{gain:?}");
    assert!(gain.low.abs() < 0.005, "{gain:?}");
    let mut unpriced = subject;
    unpriced.recording.prices = Err(absent());
    let p = unpriced.verdict().remedies.into_iter().find(|p| p.remedy == "glibc-hugetlb").expect("offered");
    assert_eq!(p.gain, None);
    assert!(p.basis.contains("calibrate"), "{}", p.basis);
}

#[test]
fn huge_pages_are_not_offered_to_memory_that_is_on_them() {
    let gain = |huge, small| {
        let mut subject = with_shares(&[(FaultPath, 0.3), (Zeroing, 0.1)]);
        subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
        subject.map_call("do_huge_pmd_anonymous_page", true, huge);
        subject.map_call("do_anonymous_page", true, small);
        let all = remedies::offers(&subject.recording, &subject.bill, &[Wall::FirstTouch]);
        let offer = all.into_iter().find(|(r, _)| r.key == "glibc-hugetlb").unwrap().1;
        offer.map(|(p, _)| p.gain.expect("priced").point)
    };
    let (none, some) = (gain(0, 500).unwrap(), gain(200, 300).unwrap());
    assert!((some / none - 0.6).abs() < 0.01, "{some} of {none}");
    assert_eq!(gain(300, 200), Err(Unfit::TouchesPastHugePages));
    // The same part of few samples may be any part.
    assert!(gain(6, 4).is_ok());
    // The same for shared memory. It also limits the bound without prices.
    let mut shared = with_shares(&[(FaultPath, 0.4), (PageRelease, 0.1)]);
    shared.recording.prices = Err(absent());
    shared.map_call("shmem_fault", false, 400);
    shared.map_call("zap_pte_range", false, 400);
    let remedies = shared.verdict().remedies;
    assert!(remedies.iter().all(|p| p.remedy != "glibc-hugetlb"));
    let kept = remedies.iter().any(|p| p.remedy == "glibc-keep-memory");
    assert!(!kept, "no call is malloc's");
}

#[test]
fn what_changes_the_machine_comes_after_what_changes_the_target() {
    let place_of = |owner, key: &str| {
        let mut subject = with_shares(&[(FaultPath, 0.3), (Zeroing, 0.1)]);
        subject.faulted(Wall::FirstTouch, &[(owner, 1.0)]);
        subject.verdict().remedies.iter().position(|p| p.remedy == key)
    };
    let of_heap = |key| place_of(Owner::Heap, key).expect(key);
    assert!(of_heap("glibc-hugetlb") < of_heap("thp-always"));
    // Nothing that changes the target alone reaches this memory.
    assert_eq!(place_of(Owner::Private, "thp-always"), Some(0));
}

#[test]
fn a_remedy_for_the_memory_of_others_is_not_offered() {
    let judged = |malloc: f64, walls: &[Wall], key: &str| {
        let mut subject = with_shares(&[(FaultPath, 0.5)]);
        subject.faulted(Wall::FirstTouch, &[(Owner::Private, 1.0 - malloc), (Owner::Heap, malloc)]);
        reason(&subject, walls, key)
    };
    for key in ["glibc-hugetlb", "glibc-keep-memory"] {
        assert_eq!(judged(0.03, &[Wall::FirstTouch], key), Some(Unfit::MemoryOfOthers), "{key}");
        assert_eq!(judged(0.1, &[Wall::FirstTouch], key), None, "{key}");
    }
    // It acts on map calls too.
    assert_eq!(judged(0.03, &[Wall::FirstTouch, Wall::MapChurn], "glibc-keep-memory"), None);
}

#[test]
fn touches_on_huge_pages_say_nothing_about_other_walls() {
    let judged = |walls: &[Wall]| {
        let mut subject = with_shares(&[(FaultPath, 0.3), (Zeroing, 0.1)]);
        subject.faulted(Wall::FirstTouch, &[(Owner::Heap, 1.0)]);
        subject.map_call("do_huge_pmd_anonymous_page", true, 300);
        subject.map_call("do_anonymous_page", true, 200);
        reason(&subject, walls, "glibc-hugetlb")
    };
    assert_eq!(judged(&[Wall::FirstTouch]), Some(Unfit::TouchesPastHugePages));
    assert_eq!(judged(&[Wall::FirstTouch, Wall::Tlb]), None);
}

/// A target with so many MiB of its own mappings and of malloc's heap.
fn with_memory(private: u64, heap: u64) -> Subject {
    let mut subject = computing();
    let rows = [(ResidentOwner::Private, private, None), (ResidentOwner::Heap, heap, Some(0))];
    subject.recording.resident =
        Ok(TargetMemory { bills: vec![resident_bill(&rows)], others: 0, unread: None });
    subject
}

#[test]
fn tlb_misses_are_treated_by_what_changes_the_memory() {
    let tlb = &[Wall::Tlb];
    let (pools, malloc) = (with_memory(980, 20), with_memory(400, 600));
    assert_eq!(reason(&pools, tlb, "glibc-hugetlb"), Some(Unfit::MemoryOfOthers));
    assert_eq!(reason(&malloc, tlb, "glibc-hugetlb"), None);
    assert_eq!(reason(&pools, tlb, "thp-always"), None);
    // Without a bill, the first touches show the owners.
    let touching = |owner| {
        let mut subject = computing();
        subject.faulted(Wall::FirstTouch, &[(owner, 1.0)]);
        reason(&subject, tlb, "glibc-hugetlb")
    };
    assert_eq!((touching(Owner::Private), touching(Owner::Heap)), (Some(Unfit::MemoryOfOthers), None));
    // It is offered if it helps against one of two walls.
    let both = |touched| {
        let mut subject = with_memory(980, 20);
        subject.shares(&[(FaultPath, 0.3)]).faulted(Wall::FirstTouch, &[(touched, 1.0)]);
        reason(&subject, &[Wall::FirstTouch, Wall::Tlb], "glibc-hugetlb")
    };
    assert_eq!((both(Owner::Private), both(Owner::Heap)), (Some(Unfit::MemoryOfOthers), None));
}

#[test]
fn another_allocator_for_the_tlb_needs_memory_of_malloc() {
    for key in SWAPS {
        let judged = |subject: &Subject| unmet(subject, &[Wall::Tlb], key);
        assert_eq!(judged(&with_memory(980, 20)), Some(Unmet::NotUseful), "{key}");
        assert_eq!(judged(&with_memory(400, 600)), None, "{key}");
        // Nothing is known of the memory: most of a native program's is malloc's, and little of a runtime's.
        let mut unknown = computing();
        assert_eq!(judged(&unknown), None, "{key}");
        unknown.process().runtime = Ok(Runtime::Node { version: None });
        assert_eq!(judged(&unknown), Some(Unmet::NotUseful), "{key}");
    }
}

#[test]
fn a_remedy_that_can_save_nothing_is_not_offered() {
    let nothing = Some(Unfit::NothingToSave);
    let go = |share: f64| {
        let mut subject = with_shares(&[(GarbageCollector, share)]);
        subject.process().runtime = Ok(Runtime::Go { version: None });
        reason(&subject, &[Wall::GarbageCollector], "gogc")
    };
    assert_eq!((go(0.001), go(0.1)), (nothing.clone(), None));
    // Python's arenas on huge pages also save TLB misses, which its first touches do not bound.
    let python = |walls: &[Wall]| {
        let mut subject = with_shares(&[(FaultPath, 0.001)]);
        subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
        subject.recording.prices = Err(absent());
        reason(&subject, walls, "pymalloc-hugepages")
    };
    assert_eq!(python(&[Wall::FirstTouch]), nothing);
    for wall in [Wall::CallRate, Wall::Tlb] {
        assert_eq!(python(&[Wall::FirstTouch, wall]), None, "{wall:?}");
    }
    // Memory is saved without CPU time.
    let jemalloc = |wall| reason(&with_shares(&[(OtherKernel, 0.95)]), &[wall], "jemalloc");
    assert_eq!((jemalloc(Wall::MapChurn), jemalloc(Wall::Retention)), (nothing, None));
}

#[test]
fn buffers_are_not_offered_to_a_program_that_maps_files() {
    let judged = |shares: &[(CostClass, f64)], owner, wall| {
        let mut subject = with_shares(shares);
        subject.faulted(Wall::FirstTouch, &[(owner, 1.0)]);
        unmet(&subject, &[wall], "reuse-buffers")
    };
    let (files, touches) = ([(FileFault, 0.3), (MapCalls, 0.2)], [(FaultPath, 0.3), (MapCalls, 0.2)]);
    assert_eq!(judged(&files, Owner::Heap, Wall::MapChurn), Some(Unmet::NotUseful));
    assert_eq!(judged(&touches, Owner::Heap, Wall::MapChurn), None);
    assert_eq!(judged(&touches, Owner::File, Wall::FirstTouch), Some(Unmet::NotUseful));
    // Both kinds of memory, or no fault that shows which.
    let both = [(FileFault, 0.3), (FaultPath, 0.05), (MapCalls, 0.2)];
    assert_eq!(judged(&both, Owner::Heap, Wall::MapChurn), None);
    assert_eq!(judged(&[(MapCalls, 0.2)], Owner::Heap, Wall::MapChurn), None);
}

#[test]
fn memory_that_malloc_keeps_is_not_offered_for_the_starts_of_processes() {
    // A process that starts others, and 100 children: the loader maps their files, and malloc its first memory.
    let judged = |of_parent: &str| {
        let mut s = Sketch::new();
        s.module("ld.so", ModuleRole::Loader);
        s.recording.processes[0].allocator = Ok(Allocator {
            kind: AllocatorKind::Glibc,
            how: Linkage::Libc,
            module: "libc".into(),
            version: None,
        });
        s.thread(PID, "service", 5_000);
        s.samples(1_000, PID, "", "app!work");
        s.samples(200, PID, "do_mmap;vm_mmap_pgoff;do_syscall_64", of_parent);
        let children = s.recording.samples.len();
        s.samples(100, PID, "do_mmap;vm_mmap_pgoff;do_syscall_64", "ld.so!_dl_map_segments;ld.so!dl_main");
        s.samples(100, PID, "do_brk_flags;__do_sys_brk;do_syscall_64", "libc!brk;libc+9800;app!main");
        for (nth, sample) in (0i32..).zip(&mut s.recording.samples[children..]) {
            sample.pid = PID + 1 + nth % 100;
            sample.t_ns = 100_000_000 * (nth as u64 % 100);
        }
        let subject = Subject { bill: crate::bill::of(&s.recording), recording: s.recording };
        reason(&subject, &[Wall::MapChurn], "glibc-keep-memory")
    };
    assert_eq!(judged("app!map_file;app!work"), Some(Unfit::MapCallsOfOthers));
    assert_eq!(judged("libc!mmap;libc+9800;app!work"), None);
}

#[test]
fn an_allocator_is_not_offered_for_calls_of_another_one() {
    let calls = &[Wall::CallRate];
    let pools = with_shares(&[(RuntimeAllocator, 0.3)]);
    let malloc = with_shares(&[(AllocatorCode, 0.3)]);
    for key in SWAPS {
        assert_eq!(unmet(&pools, calls, key), Some(Unmet::NotUseful), "{key}");
        assert_eq!(reason(&malloc, calls, key), None, "{key}");
    }
    // Only one of them acts on map calls.
    let pools = with_shares(&[(RuntimeAllocator, 0.3), (MapCalls, 0.2)]);
    let with_maps = &[Wall::CallRate, Wall::MapChurn];
    assert_eq!(reason(&pools, with_maps, "jemalloc"), None);
    assert_eq!(unmet(&pools, with_maps, "mimalloc"), Some(Unmet::NotUseful));
}

#[test]
fn a_remedy_of_unknown_gain_comes_after_the_others() {
    let mut subject = with_shares(&[(AllocatorCode, 0.5), (FaultPath, 0.2)]);
    subject.process().runtime = Ok(Runtime::Cpython { version: "3.11.2".into(), free_threaded: false });
    subject.malloc_leaves(Some("malloc"), 55).malloc_leaves(None, 45);
    let remedies = offered(&subject);
    let at = |key: &str| remedies.iter().position(|r| r == key).expect(key);
    assert!(at("pymalloc-hugepages") < at("jemalloc"), "{remedies:?}");
    // Advice comes last.
    assert!(at("jemalloc") < at("pool"), "{remedies:?}");
}

#[test]
fn keeping_memory_goes_before_huge_pages_where_malloc_maps() {
    let first = |by_malloc| {
        let mut subject = with_shares(&[(FaultPath, 0.5), (MapCalls, 0.1), (PageRelease, 0.1)]);
        subject.map_call("do_mmap", true, by_malloc);
        subject.map_call("do_mmap", false, 300 - by_malloc);
        let remedies = subject.verdict().remedies;
        let at = |key: &str| remedies.iter().position(|p| p.remedy == key).unwrap();
        at("glibc-keep-memory") < at("glibc-hugetlb")
    };
    assert!(first(300));
    assert!(!first(20));
}

#[test]
fn keeping_memory_gains_only_where_malloc_makes_the_map_calls() {
    // Stacks as on Linux 6.18, where `sys_mmap` is not on the stack of mmap.
    let keep = |by_malloc| {
        let mut subject = with_shares(&[(MapCalls, 0.3), (PageRelease, 0.1), (FaultPath, 0.2)]);
        subject.map_call("do_mmap", true, by_malloc);
        subject.map_call("do_mprotect_pkey", false, 300 - by_malloc);
        let remedies = subject.verdict().remedies;
        let p = remedies.into_iter().find(|p| p.remedy == "glibc-keep-memory");
        p.map(|p| p.gain.expect("priced"))
    };
    let all = keep(300).expect("offered");
    assert!(all.low > 0.35 && all.high > 0.5 && all.high <= 0.7, "{all:?}");
    // The part of the calls that malloc makes also limits the first touches.
    let few = keep(30).expect("offered");
    assert!(few.point < 0.07 && few.high < 0.1, "{few:?}");
    assert_eq!(keep(0), None);
}

#[test]
fn the_mmap_threshold_is_one_that_this_glibc_takes() {
    for (version, expected) in [("2.36", "268435456"), ("2.31", "33554432")] {
        let mut subject = with_shares(&[(MapCalls, 0.3), (PageRelease, 0.1), (FaultPath, 0.2)]);
        subject.recording.processes[0].libc = Ok(Libc::Glibc { version: version.into() });
        let remedies = subject.verdict().remedies;
        let keep: Vec<_> = remedies.iter().filter(|p| p.remedy.starts_with("glibc-keep-memory")).collect();
        assert_eq!(keep.len(), 1, "{version}");
        assert!(keep[0].how.command.contains(&format!("mmap_threshold={expected}:")), "{}", keep[0].how);
    }
}

#[test]
fn advice_comes_last_and_the_surest_gain_first() {
    let mut subject = with_shares(&[(MapCalls, 0.3), (PageRelease, 0.1), (FaultPath, 0.2)]);
    subject.map_call("__x64_sys_munmap", true, 300);
    let remedies = subject.verdict().remedies;
    assert_eq!(remedies[0].remedy, "glibc-keep-memory");
    let advice = ["reuse-buffers", "populate"];
    let first = remedies.iter().position(|p| advice.contains(&p.remedy.as_str())).expect("offered");
    assert!(remedies[first..].iter().all(|p| advice.contains(&p.remedy.as_str())));
}

#[test]
fn what_to_type_is_one_safe_shell_line() {
    let mut subject = with_shares(&[(FaultPath, 0.5)]);
    subject.recording.meta.command = Some(vec!["sh".into(), "-c".into(), "it's; rm -rf /".into()]);
    let how = |s: &Subject| {
        let remedies = s.verdict().remedies;
        remedies.into_iter().find(|p| p.remedy == "glibc-hugetlb").expect("offered").how.command
    };
    assert!(how(&subject).ends_with(r"sh -c 'it'\''s; rm -rf /'"), "{}", how(&subject));
    subject.recording.meta.command = Some(vec!["x".repeat(500)]);
    assert!(how(&subject).ends_with(" CMD"));
    subject.recording.meta.command = Some(vec!["a\u{1b}[2J".into()]);
    assert!(how(&subject).ends_with(" CMD"));
}

#[test]
fn another_allocator_is_worth_a_trial_whatever_else_takes_time() {
    let swaps = |shares: &[(CostClass, f64)], cpus: f64| {
        let mut subject = with_shares(shares);
        subject.cpus(cpus).malloc_leaves(Some("malloc"), 55).malloc_leaves(None, 45);
        if cpus < 0.5 {
            subject.waits(WaitClass::Storage, 0.6);
        }
        let offered = offered(&subject);
        SWAPS.map(|key| offered.iter().any(|offer| offer == key))
    };
    assert_eq!(swaps(&[(FaultPath, 0.4), (AllocatorCode, 0.1)], 1.0), [true; 3]);
    assert_eq!(swaps(&[(AllocatorCode, 0.06)], 1.0), [true; 3]);
    assert_eq!(swaps(&[(FaultPath, 0.4), (AllocatorCode, 0.03)], 1.0), [false; 3]);
    // A target that waits gets no faster by it.
    assert_eq!(swaps(&[(FaultPath, 0.4), (AllocatorCode, 0.1)], 0.2), [false; 3]);
    let mut disk = with_shares(&[(AllocatorCode, 0.1)]);
    disk.storage_waits(1.0, READS);
    let mut network = losing(1_500, 100);
    network.shares(&[(AllocatorCode, 0.1)]);
    for (mut subject, wall) in [(disk, Wall::Disk), (network, Wall::Network)] {
        subject.malloc_leaves(Some("malloc"), 55).malloc_leaves(None, 45);
        assert_eq!((subject.verdict().walls, offered(&subject)), (vec![wall], vec![]), "{wall:?}");
    }
}

#[test]
fn a_remedy_whose_gain_is_nothing_is_not_offered() {
    use allocwall_model::catalogue::prices::{TOUCH_2M, TOUCH_2M_IDLE};
    let huge = |ns: f64| {
        let mut subject = with_shares(&[(FaultPath, 0.4)]);
        let prices = subject.recording.prices.as_mut().expect("set");
        for price in prices.prices.iter_mut().filter(|p| [TOUCH_2M, TOUCH_2M_IDLE].contains(&p.name.as_str()))
        {
            price.ns = Interval::exact(ns);
        }
        reason(&subject, &[Wall::FirstTouch], "glibc-hugetlb")
    };
    // 512 touches of 4 KiB cost 768 µs, and 4.6 ms of idle memory.
    assert_eq!((huge(100_000.0), huge(1e9)), (None, Some(Unfit::NothingToSave)));
}

#[test]
fn a_larger_gogc_shows_its_present_value_and_the_growth_of_the_heap() {
    let gogc = |value: Option<&str>| {
        let mut go = with_shares(&[(GarbageCollector, 0.4)]);
        go.process().runtime = Ok(Runtime::Go { version: None });
        go.process().environment = value.iter().map(|v| ("GOGC".into(), (*v).into())).collect();
        let remedy = allocwall_model::catalogue::remedies::find("gogc").expect("in the catalogue");
        let cause = super::needs::undoes_a_setting(go.recording.processes.first(), remedy);
        let offer = go.verdict().remedies.into_iter().find(|p| p.remedy == "gogc").expect("offered");
        (offer.how.remark.expect("a note"), offer.backfires, cause)
    };
    let (note, growth, cause) = gogc(Some("20"));
    assert!(note.starts_with("GOGC is 20; the default is 100;"), "{note}");
    assert!(growth.starts_with("the heap grows by up to 150 %;") && cause, "{growth}");
    // More than the default was set to have fewer collections: it is no cause.
    let (_, growth, cause) = gogc(Some("150"));
    assert!(growth.starts_with("the heap grows by up to 20 %;") && !cause, "{growth}");
    let (note, growth, cause) = gogc(None);
    assert!(note.starts_with("the default is 100;"), "{note}");
    assert!(growth.starts_with("the heap grows by up to 50 %;") && !cause, "{growth}");
}

#[test]
fn an_option_after_the_name_of_the_program_is_its_own() {
    let collector = &[Wall::GarbageCollector];
    let mut node = with_shares(&[(GarbageCollector, 0.4)]);
    node.process().runtime = Ok(Runtime::Node { version: None });
    node.process().cmdline = ["node", "app.js", "--max-semi-space-size=128"].map(String::from).to_vec();
    assert_eq!(
        how_of(&node, collector, "node-semi-space"),
        "node --max-semi-space-size=64 app.js --max-semi-space-size=128"
    );
    let heap = |line: &str| {
        let mut java = with_shares(&[(GarbageCollector, 0.4)]);
        java.process().runtime = Ok(Runtime::Jvm { version: None });
        java.process().cmdline = line.split(' ').map(String::from).collect();
        how_of(&java, collector, "jvm-heap")
    };
    assert!(heap("java -XX:MaxHeapSize=48m Service").contains("(now -XX:MaxHeapSize=48m)"));
    assert!(heap("java Service -Xmx48m").contains("(a quarter of the memory"));
}

#[test]
fn what_helps_a_fork_depends_on_what_the_child_does() {
    let offered = |stacks: &[(&str, u64)]| {
        let mut s = Sketch::new();
        s.thread(PID, "service", 10_000);
        s.samples(300, PID, "", "app!work");
        for (stack, count) in stacks {
            s.samples(*count, PID, stack, "app!start");
        }
        let bill = crate::bill::of(&s.recording);
        let offers = remedies::offers(&s.recording, &bill, &[Wall::Fork]);
        ["fork-early", "snapshot-fork", "posix-spawn"]
            .map(|key| offers.iter().any(|(remedy, offer)| remedy.key == key && offer.is_ok()))
    };
    const COPY: (&str, u64) = ("copy_page_range;dup_mmap;copy_process", 200);
    const END: (&str, u64) = ("unmap_vmas;exit_mmap;mmput;do_exit", 200);
    const REPLACE: (&str, u64) = ("free_pgtables;exit_mmap;begin_new_exec;bprm_execve", 100);
    assert_eq!(offered(&[COPY, END]), [true, true, false]);
    assert_eq!(offered(&[COPY, REPLACE, END]), [false, false, true]);
    // One shell command beside many children that stay.
    assert_eq!(offered(&[COPY, ("load_elf_binary;bprm_execve", 1), END]), [true, true, false]);
    assert_eq!(offered(&[COPY, ("load_elf_binary;bprm_execve", 40), END]), [true; 3]);
}

#[test]
fn where_loads_miss_the_tlb_the_place_of_blocks_is_worth_a_trial() {
    let walking = |active: u64| {
        let mut subject = computing();
        count_walks(&mut subject, active);
        subject.verdict().remedies
    };
    let remedies = walking(90_000_000);
    let find = |key: &str| remedies.iter().find(|p| p.remedy == key).expect(key);
    assert_eq!((find("mimalloc").gain, find("mimalloc").at_most), (None, None));
    let huge = find("glibc-hugetlb").gain.expect("priced");
    assert!(huge.low > -0.05 && huge.point > 0.1 && huge.high > 0.25, "{huge:?}");
    assert!(walking(3_000_000).is_empty());
}

// ---- what interference, missing rights and short windows hide ----

/// First touch takes 13 % of the CPU time of a target that gets a third of a CPU: 42 ms a second.
fn starved(class: WaitClass, waits: f64) -> Subject {
    let mut subject = with_shares(&[(FaultPath, 0.13)]);
    subject.cpus(0.32).waits(class, waits);
    subject
}

#[test]
fn a_target_that_waits_for_a_cpu_keeps_its_walls() {
    for class in [WaitClass::RunQueue, WaitClass::Throttled, WaitClass::Stolen] {
        assert_eq!(status(&starved(class, 0.62), Wall::FirstTouch), Status::Contributor, "{class:?}");
        // Its twin uses as little CPU time because it has no more to do.
        assert_eq!(status(&starved(class, 0.0), Wall::FirstTouch), Status::RuledOut, "{class:?}");
    }
    assert_eq!(status(&starved(WaitClass::Idle, 0.62), Wall::FirstTouch), Status::RuledOut);
    // No target can use more than the machine has.
    let mut most = with_shares(&[(FaultPath, 0.40)]);
    most.cpus(0.001).waits(WaitClass::Throttled, 100.0);
    most.recording.host.online_cpus = 2;
    assert_eq!(Context::new(&most.recording, &most.bill).undisturbed_cpu_rate(), 2.0);
}

#[test]
fn the_sentence_names_or_counts_all_walls() {
    let mut subject = with_shares(&[(FaultPath, 0.30), (MapCalls, 0.20)]);
    let two = subject.verdict().sentence;
    assert!(two.ends_with(" Also: map churn takes 20 % of CPU."), "{two}");
    subject.shares(&[(FaultPath, 0.30), (MapCalls, 0.20), (BlockFilling, 0.18)]);
    let three = subject.verdict();
    assert_eq!(three.walls.len(), 3);
    let named = three.sentence.contains("filling and copying blocks takes 18 %");
    assert!(named || three.sentence.ends_with("; 1 more wall."), "{}", three.sentence);
    // Three readings of the same time are one.
    let same = with_shares(&[(AllocatorCode, 0.5)]).verdict().sentence;
    assert!(!same.contains("Also"), "{same}");
}

#[test]
fn a_wall_of_another_kind_leaves_hidden_kernel_time_undecided() {
    let verdict = |unnamed: f64, euid: u32| {
        let mut subject = with_shares(&[(UnnamedKernel, unnamed)]);
        subject.waits(WaitClass::RunQueue, 1.0).recording.prices = Err(absent());
        subject.recording.host.euid = euid;
        subject.recording.meta.command = Some(vec!["service".into()]);
        subject.verdict()
    };
    let hidden = verdict(0.92, 1000);
    assert_eq!(hidden.walls, [Wall::RunQueue]);
    let open = |verdict: &super::Verdict| verdict.sentence.contains(" Undecided: 92 % of CPU");
    assert!(open(&hidden) && hidden.sentence.ends_with("; run as root."), "{}", hidden.sentence);
    assert_eq!(hidden.next[0].command, "sudo allocwall diagnose -- service");
    let root = verdict(0.92, 0);
    assert!(open(&root) && !root.sentence.contains("root"), "{}", root.sentence);
    assert!(!verdict(0.01, 1000).sentence.contains("Undecided"));
}

#[test]
fn a_remedy_of_a_wall_goes_before_those_of_walls_that_are_ruled_out() {
    let keys = |collector: f64, waits: f64| -> Vec<String> {
        // Too little CPU time in malloc for a wall, enough for another allocator to save some of it.
        let mut subject = with_shares(&[(GarbageCollector, collector), (AllocatorCode, 0.06)]);
        subject.process().runtime = Ok(Runtime::Jvm { version: None });
        subject.waits(WaitClass::RunQueue, waits);
        assert_eq!(status(&subject, Wall::CallRate), Status::RuledOut);
        subject.verdict().remedies.into_iter().map(|remedy| remedy.remedy).collect()
    };
    let at = |keys: &[String], key: &str| keys.iter().position(|found| found == key);
    for (collector, waits) in [(0.5, 0.0), (0.5, 1.0), (0.10, 0.0), (0.10, 1.0)] {
        let keys = keys(collector, waits);
        let (heap, swap) = (at(&keys, "jvm-heap"), at(&keys, "mimalloc"));
        assert!(heap.is_some() && swap.is_none_or(|swap| heap < Some(swap)), "{keys:?}");
    }
    assert!(at(&keys(0.0, 0.0), "jvm-heap").is_none());
}

#[test]
fn call_rate_and_code_are_said_to_be_the_same_time() {
    let because = |share: f64| {
        let finding = with_shares(&[(AllocatorCode, share)]).finding(Wall::AllocatorCode);
        (finding.status, finding.because.contains("same time"))
    };
    assert_eq!(because(0.12), (Status::Contributor, true));
    assert_eq!(because(0.02), (Status::RuledOut, false));
}

#[test]
fn a_window_in_which_hardly_anything_was_seen_rules_nothing_out() {
    let verdict = |window_s: f64| {
        let mut subject = with_shares(&[]);
        subject.bill.window_s = window_s;
        subject.recording.host.euid = 1000;
        subject.recording.meta.window_ns = (window_s * 1e9) as u64;
        subject.bill.cpu_s = 0.0;
        subject.bill.on_cpu = Err(absent());
        subject.bill.sampled = Err(absent());
        let verdict = subject.verdict();
        (super::reach(&subject.recording, &subject.bill, &verdict), verdict)
    };
    let (reach, short) = verdict(0.005);
    assert_eq!(reach, Reach::NotSampled);
    assert_eq!(short.sentence, "No verdict: a window of 5 ms with 0 CPU samples is too short.");
    let measured = |f: &&Finding| f.status != Status::NotMeasured;
    assert!(short.findings.iter().filter(measured).all(|f| f.of == Whole::Resident));
    assert!(!short.next.iter().any(|line| line.command.starts_with("sudo")), "{:?}", short.next);
    let (_, long) = verdict(10.0);
    assert!(long.findings.iter().any(|f| f.wall == Wall::FirstTouch && f.status == Status::RuledOut));
    // A program with many threads is sampled enough in a short time.
    let mut sampled = with_shares(&[(FaultPath, 0.5)]);
    sampled.bill.window_s = 0.05;
    sampled.bill.cpu_s = 0.05;
    assert_eq!(status(&sampled, Wall::FirstTouch), Status::Wall);
}
