//! Makes the bill from a recording. Pure: the same recording always gives the same bill.

mod classify;
mod cpu;
mod loads;
mod owners;
mod sites;
mod slab;
mod starts;
mod storage;
mod waits;

use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::syscalls::MapCall;
use allocwall_model::recording::{Ended, ProbeName, Recording, Tick, gained};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use serde::{Deserialize, Serialize};

pub use classify::{Classifier, is_allocator_code, user_role};
pub use cpu::{Sampled, map_calls_by_malloc, stripped_runtime};
pub use owners::{Basis, Faulted, LEAST_KNOWN, OwnerShare, of_files};
pub(crate) use sites::{Caller, callers};
pub use sites::{GENERATED_CODE, NO_CALLERS, NO_SYMBOL, NO_USER_STACK, PythonStacks, REPRESENTATIVE};
pub use slab::{LEAST_LATE, SlabUse};
pub use starts::Starts;
pub use storage::StorageWaits;
pub use waits::may_have_gil;

/// The samples of CPU time with their lines.
pub struct Classified<'a> {
    pub classifier: Classifier<'a>,
    /// In the order of the samples.
    pub classes: Vec<CostClass>,
}

impl<'a> Classified<'a> {
    pub fn of(recording: &'a Recording) -> Classified<'a> {
        let classifier = Classifier::new(recording);
        let classes = classifier.cpu(&recording.samples);
        Classified { classifier, classes }
    }
}

pub fn of(recording: &Recording) -> Bill {
    let classified = Classified::of(recording);
    let waits_for_loads = loads::of(recording, &classified);
    let Classified { classifier, classes } = classified;
    let cpu_s = cpu::charged_s(recording);
    let unseen = cpu::Unseen::of(recording, &classifier, &classes, cpu_s);
    let sampled = Sampled::of(recording, &classes, &unseen);
    Bill {
        window_s: recording.meta.window_ns as f64 / 1e9,
        cpu_s,
        sampled_cpu_s: recording.samples.len() as f64 * recording.meta.sample_period_ns as f64 / 1e9,
        switching_cpu_s: unseen.seconds(recording),
        on_cpu: sampled
            .as_ref()
            .map(|sampled| {
                let mut lines = cpu::lines(recording, &classifier, &classes, sampled, cpu_s);
                cpu::note_loads(&mut lines, &waits_for_loads);
                lines
            })
            .map_err(Clone::clone),
        sampled,
        waits_for_loads,
        faulted: owners::of(recording, &classes),
        off_cpu: waits::lines(recording, &classifier, cpu_s),
        rates: rates(recording),
    }
}

fn rates(recording: &Recording) -> Rates {
    let window_s = recording.meta.window_ns as f64 / 1e9;
    // The first and the last tick may be inside the window, so rates are over the time between them.
    let over_ticks = |read: fn(&Tick) -> Option<u64>| -> Measured<f64> {
        let (first, last) = first_and_last(recording)?;
        Ok(increase(recording, read)? as f64 / ((last.t_ns - first.t_ns) as f64 / 1e9))
    };
    let charged = |read: fn(&Tick) -> u64| -> Measured<f64> {
        Ok(increase(recording, |t| Some(read(t)))? as f64 / 1e9)
    };
    let resident = |tick: Option<&Tick>| tick.map_or(0, |t| t.resident);
    let (start, end) = (recording.ticks.first(), recording.ticks.last());
    Rates {
        minor_faults: over_ticks(|t| Some(t.minor_faults)),
        major_faults: over_ticks(|t| Some(t.major_faults)),
        map_calls: map_calls(recording),
        voluntary_switches: over_ticks(|t| t.voluntary_switches),
        involuntary_switches: over_ticks(|t| t.involuntary_switches),
        user_cpu_s: charged(|t| t.user_ns),
        system_cpu_s: charged(|t| t.system_ns),
        threads_peak: recording.ticks.iter().map(|t| t.threads).max().unwrap_or(0),
        thread_s: if recording.threads.is_empty() {
            recording.ticks.iter().map(|t| f64::from(t.threads)).sum::<f64>()
                / recording.ticks.len().max(1) as f64
                * window_s
        } else {
            recording.threads.iter().map(|t| t.seen_ns as f64).sum::<f64>() / 1e9
        },
        resident_end: resident(end),
        resident_growth: growth(resident(start), resident(end)),
    }
}

fn growth(from: u64, to: u64) -> i64 {
    let size = i64::try_from(from.abs_diff(to)).unwrap_or(i64::MAX);
    if to < from { -size } else { size }
}

fn map_calls(recording: &Recording) -> Measured<f64> {
    let moving = MapCall::ALL.into_iter().filter(|call| call.moves_memory());
    let rates: Vec<f64> = moving.filter_map(|call| map_call_rate(recording, call)).collect();
    if rates.is_empty() {
        return Err(absence(recording, ProbeName::MapCalls, "map calls were not counted"));
    }
    Ok(rates.iter().sum())
}

/// Calls per second, over the time in which they were counted. None if they were not counted.
pub fn map_call_rate(recording: &Recording, call: MapCall) -> Option<f64> {
    let count = recording.counts.iter().find(|c| c.name == call.name())?;
    (count.over_ns > 0).then(|| count.count as f64 * 1e9 / count.over_ns as f64)
}

/// The first and the last tick, with time between them.
fn first_and_last(recording: &Recording) -> Measured<(&Tick, &Tick)> {
    match (recording.ticks.first(), recording.ticks.last()) {
        (Some(first), Some(last)) if last.t_ns > first.t_ns => Ok((first, last)),
        _ => Err(absence(recording, ProbeName::Counters, "fewer than two readings of the process counters")),
    }
}

/// The increase of a cumulative counter from the first tick to the last.
fn increase(recording: &Recording, read: impl Fn(&Tick) -> Option<u64>) -> Measured<u64> {
    let (first, last) = first_and_last(recording)?;
    let (Some(from), Some(to)) = (read(first), read(last)) else {
        return Err(Absence::new(
            Reason::NotFound,
            "the kernel did not report this counter for every process",
        ));
    };
    gained(from, to).ok_or_else(|| {
        Absence::new(
            Reason::Unparsable,
            "the kernel's counter ran backwards, or jumped by more than is possible in one window",
        )
    })
}

/// Why a probe has no result: its own reason, else `otherwise`.
fn absence(recording: &Recording, probe: ProbeName, otherwise: &str) -> Absence {
    let unknown = || match recording.meta.ended {
        Ended::CutOff => {
            Absence::new(Reason::TooLittle, "the recording ends before it").mend("make a new recording")
        }
        _ => Absence::new(Reason::TooLittle, otherwise),
    };
    recording.probe_absence(probe).unwrap_or_else(unknown)
}

/// Number of time slices of a window, for the intervals: half a second each, but at least 15, so that the intervals
/// are not too wide.
pub(crate) fn blocks(recording: &Recording) -> usize {
    (recording.meta.window_ns as f64 / 0.5e9).round().clamp(15.0, 60.0) as usize
}

pub(crate) fn block_of(t_ns: u64, recording: &Recording, blocks: usize) -> usize {
    let at = t_ns as f64 / recording.meta.window_ns.max(1) as f64;
    ((at * blocks as f64) as usize).min(blocks - 1)
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Bill {
    pub window_s: f64,
    /// CPU-seconds that the kernel charged to the target in the window. This is the whole of the bill.
    pub cpu_s: f64,
    /// CPU-seconds that the samples cover. The sum with `switching_cpu_s` should agree with `cpu_s`; the report
    /// prints the ratio.
    pub sampled_cpu_s: f64,
    /// CPU-seconds in switches to idle, which samples cannot cover. They are added to the lines of the threads that
    /// went to sleep.
    pub switching_cpu_s: f64,
    /// One line per class, in the order of `CostClass::ALL`. The shares sum to 1. Absent if there are no samples.
    pub on_cpu: Measured<Vec<CpuLine>>,
    /// Absent if `on_cpu` is absent.
    pub sampled: Measured<Sampled>,
    /// The part of the application's own time that waits for loads from memory.
    pub waits_for_loads: Measured<Interval>,
    /// Whose memory the page faults are about; empty if no owner is known.
    pub faulted: Vec<Faulted>,
    /// One line per class, in the order of `WaitClass::ALL`.
    pub off_cpu: Vec<WaitLine>,
    pub rates: Rates,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct CpuLine {
    pub class: CostClass,
    /// Fraction of the target's CPU time.
    pub share: Interval,
    pub cpu_s: Interval,
    pub samples: u64,
    /// How it was measured, in a few words.
    pub method: String,
    /// The line that may hold a part of this one, or all of it, because code there has no symbols.
    pub may_be_in: Option<CostClass>,
    /// Limitations of the figure, each in a few words.
    pub notes: Vec<String>,
    /// Largest first.
    pub sites: Vec<Site>,
}

/// A call site: a function of the target, and the part of a line that its calls caused.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Site {
    /// The first function outside libc, allocator and runtime plumbing.
    pub function: String,
    pub module: String,
    /// `function (file:line)` in the interpreter, if a Python stack was sampled.
    pub python: Option<String>,
    /// Fraction of the line.
    pub share: f64,
    /// Lower end of the 95 % interval of `share`.
    pub least: f64,
    /// A few names, from the leaf outwards.
    pub path: Vec<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WaitLine {
    pub class: WaitClass,
    pub thread_s: Measured<Interval>,
    pub method: String,
    pub sites: Vec<Site>,
    /// Fraction of the line in futex waits of unknown purpose. They are on this line because of how busy their
    /// threads are.
    pub unknown_purpose: f64,
    /// The part of these whose caller's stack was not read, so that it may be any lock. Fraction of the line.
    pub unread: f64,
    /// The part of those of unknown purpose that may be for Python's GIL. Fraction of the line.
    pub may_be_gil: f64,
}

/// Figures that the ladder needs in addition to the lines. Rates are per second of wall time over the window.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Rates {
    pub minor_faults: Measured<f64>,
    pub major_faults: Measured<f64>,
    /// Calls that get memory from the kernel or return it ([`MapCall::moves_memory`]).
    pub map_calls: Measured<f64>,
    pub voluntary_switches: Measured<f64>,
    pub involuntary_switches: Measured<f64>,
    /// CPU-seconds in user mode and in the kernel over the window, by the kernel's account; known without samples.
    pub user_cpu_s: Measured<f64>,
    pub system_cpu_s: Measured<f64>,
    pub threads_peak: u32,
    /// Sum over all threads of the time for which they were observed, in seconds.
    pub thread_s: f64,
    pub resident_end: u64,
    pub resident_growth: i64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::recording::{
        CgroupTick, EventCount, HostTick, ModuleRole, Probe, ProbeState, PythonSample, Runtime,
    };
    use allocwall_sketches::recording::{MS, PID, Sketch};

    const FAULT: &str =
        "do_anonymous_page;__handle_mm_fault;handle_mm_fault;exc_page_fault;asm_exc_page_fault";

    fn line(bill: &Bill, class: CostClass) -> &CpuLine {
        bill.on_cpu.as_ref().unwrap().iter().find(|l| l.class == class).unwrap()
    }

    fn wait(bill: &Bill, class: WaitClass) -> &WaitLine {
        bill.off_cpu.iter().find(|l| l.class == class).unwrap()
    }

    fn busy() -> Sketch {
        let mut s = Sketch::new();
        s.thread(PID, "service", 10_000);
        s.samples(6_000, PID, "", "app!work;app!main");
        s.samples(3_000, PID, FAULT, "app!load;app!main");
        s.samples(1_000, PID, "", "libc+9800;app!load;app!main");
        s
    }

    #[test]
    fn shares_sum_to_one_and_every_class_has_its_line() {
        let bill = of(&busy().recording);
        let lines = bill.on_cpu.as_ref().unwrap();
        assert_eq!(lines.iter().map(|l| l.class).collect::<Vec<_>>(), CostClass::ALL);
        assert!((lines.iter().map(|l| l.share.point).sum::<f64>() - 1.0).abs() < 1e-9);
        assert!((lines.iter().map(|l| l.cpu_s.point).sum::<f64>() - bill.cpu_s).abs() < 1e-9);
        assert_eq!(lines.iter().map(|l| l.samples).sum::<u64>(), 10_000);
        assert_eq!((bill.cpu_s, bill.sampled_cpu_s), (10.0, 10.0));
        let faults = line(&bill, CostClass::FaultPath);
        assert_eq!(faults.share.point, 0.3);
        assert!(faults.share.low < 0.3 && 0.3 < faults.share.high && faults.share.half_width() < 0.02);
        for l in lines {
            assert!(
                0.0 <= l.share.low && l.share.low <= l.share.point && l.share.point <= l.share.high,
                "{l:?}"
            );
        }
        assert_eq!(line(&bill, CostClass::Zeroing).share.point, 0.0);
        assert!(line(&bill, CostClass::Zeroing).share.high > 0.0);
    }

    #[test]
    fn time_that_samples_cannot_cover_goes_to_where_threads_go_to_sleep() {
        let futex =
            "finish_task_switch;__schedule;schedule;futex_do_wait;futex_wait;do_futex;__x64_sys_futex";
        let preempted = "finish_task_switch;__schedule;schedule;exit_to_user_mode_loop;do_syscall_64";
        let priced = |sleeping, switches, kernel: &str, switch_ns: Option<f64>| {
            let mut s = Sketch::new();
            if let Some(ns) = switch_ns {
                s.price(allocwall_model::catalogue::prices::CONTEXT_SWITCH, ns);
            }
            s.samples(9_000 - sleeping, PID, "", "app!work");
            s.samples(sleeping, PID, kernel, "libc!__lll_lock_wait_private;libc+9800;app!work");
            s.thread(PID, "work", 10_000);
            let start = Tick { voluntary_switches: Some(0), ..Tick::default() };
            s.ticks(9_000, 1_000).voluntary_switches = Some(switches);
            s.recording.ticks[0] = start;
            of(&s.recording)
        };
        let bill_of = |sleeping, switches, kernel: &str| priced(sleeping, switches, kernel, None);
        let locks = |bill: &Bill| (line(bill, CostClass::AllocatorLocks).share.point, bill.switching_cpu_s);
        // 1 s of 10 s is missing, and a million switches can explain it.
        let bill = bill_of(100, 1_000_000, futex);
        assert_eq!(locks(&bill), ((100.0 + 1_000.0) / 10_000.0, 1.0));
        let sum: f64 = bill.on_cpu.as_ref().unwrap().iter().map(|l| l.share.point).sum();
        assert!((sum - 1.0).abs() < 1e-9);
        // No more than the switches can explain. Nothing if the switches were involuntary, or if there are too few
        // samples.
        assert_eq!(bill_of(100, 100_000, futex).switching_cpu_s, 0.3);
        // Slower switches explain more.
        assert_eq!(priced(100, 100_000, futex, Some(3_150.0)).switching_cpu_s, 0.63);
        assert_eq!(priced(100, 100_000, futex, Some(800.0)).switching_cpu_s, 0.16);
        assert_eq!(bill_of(100, 0, futex).switching_cpu_s, 0.0);
        assert_eq!(bill_of(100, 1_000_000, preempted).switching_cpu_s, 0.0);
        assert_eq!(bill_of(9, 1_000_000, futex).switching_cpu_s, 0.0);
    }

    #[test]
    fn lines_that_rise_together_are_less_certain_as_one() {
        let sum_of = |zeroing_beside_faults: bool| {
            let mut s = Sketch::new();
            s.thread(PID, "service", 10_000);
            // Every other second has faults. Zeroing is in the same seconds, or in those between.
            for second in 0..14 {
                let at = s.recording.samples.len();
                let zeroing = (second % 2 == 0) == zeroing_beside_faults;
                s.samples(100, PID, "", "app!work");
                s.samples(100, PID, if second % 2 == 0 { FAULT } else { "" }, "app!load");
                s.samples(
                    100,
                    PID,
                    if zeroing { "clear_page_erms;do_anonymous_page;exc_page_fault" } else { "" },
                    "app!load",
                );
                for (i, sample) in s.recording.samples[at..].iter_mut().enumerate() {
                    sample.t_ns = second * 1_000 * MS + i as u64 * MS;
                }
            }
            let bill = of(&s.recording);
            let classes = [CostClass::FaultPath, CostClass::Zeroing];
            let of_lines: f64 = classes.iter().map(|c| line(&bill, *c).share.half_width().powi(2)).sum();
            (bill.sampled.unwrap().share(&classes), of_lines.sqrt())
        };
        let (together, apart) = (sum_of(true), sum_of(false));
        assert!((together.0.point - 1.0 / 3.0).abs() < 1e-9 && (apart.0.point - 1.0 / 3.0).abs() < 1e-9);
        assert!(together.0.half_width() > 1.3 * together.1, "{together:?}");
        assert!(apart.0.half_width() < 0.5 * apart.1, "{apart:?}");
    }

    #[test]
    fn the_same_recording_gives_the_same_bytes() {
        let text = || serde_json::to_string(&of(&busy().recording)).unwrap();
        assert_eq!(text(), text());
    }

    #[test]
    fn the_kernels_charge_is_the_whole_not_the_samples() {
        let mut s = busy();
        s.recording.threads.clear();
        s.ticks(8_000, 4_000);
        let bill = of(&s.recording);
        assert_eq!((bill.cpu_s, bill.sampled_cpu_s), (12.0, 10.0));
        assert!((line(&bill, CostClass::FaultPath).cpu_s.point - 3.6).abs() < 1e-9);
        assert_eq!((bill.rates.user_cpu_s, bill.rates.system_cpu_s), (Ok(8.0), Ok(4.0)));
    }

    #[test]
    fn without_kernel_samples_system_time_is_one_line() {
        let mut s = Sketch::new();
        s.recording.meta.kernel_samples = false;
        s.samples(750, PID, "", "app!work");
        s.samples(250, PID, "", "libc+9800;app!work");
        s.ticks(6_000, 4_000);
        let bill = of(&s.recording);
        let share = |class| line(&bill, class).share.point;
        assert!((share(CostClass::UnnamedKernel) - 0.4).abs() < 1e-9);
        assert!((share(CostClass::Application) - 0.45).abs() < 1e-9);
        assert!((share(CostClass::AllocatorCode) - 0.15).abs() < 1e-9);
        // Faults that were not sampled are not ruled out: they may be all of the kernel's part.
        let faults = line(&bill, CostClass::FaultPath);
        assert!(faults.share.point == 0.0 && faults.share.high >= 0.4, "{faults:?}");
        // Without ticks the split is unknown, so there is no bill.
        s.recording.ticks.clear();
        assert_eq!(of(&s.recording).on_cpu.unwrap_err().reason, Reason::TooLittle);
    }

    #[test]
    fn counting_is_not_on_the_bill_and_hides_no_caller() {
        let whole = |counting_samples| {
            let mut s = busy();
            s.recording.counting_samples = counting_samples;
            s.ticks(7_000, 3_000);
            of(&s.recording)
        };
        assert_eq!((whole(0).cpu_s, whole(1_000).cpu_s), (10.0, 9.0));
        let sum: f64 = whole(1_000).on_cpu.unwrap().iter().map(|line| line.share.point).sum();
        assert!((sum - 1.0).abs() < 1e-9, "{sum}");
        // It stands between the program and its allocator: for call sites, and for what fills a block.
        let mut s = Sketch::new();
        s.module("counter", ModuleRole::Counter);
        s.samples(100, PID, "", "libc+9800;counter!malloc;app!load;app!main");
        s.samples(50, PID, "", "libc!__memset_avx2_unaligned_erms;counter!calloc;app!load;app!main");
        let bill = of(&s.recording);
        for (class, samples) in [(CostClass::AllocatorCode, 100), (CostClass::BlockFilling, 50)] {
            let line = line(&bill, class);
            assert_eq!((line.samples, line.sites[0].function.as_str()), (samples, "load"), "{class:?}");
        }
    }

    #[test]
    fn named_kernel_time_leaves_no_doubt_about_other_kernel_lines() {
        let bill = of(&busy().recording);
        assert!(line(&bill, CostClass::MapCalls).share.high < 0.01);
    }

    #[test]
    fn without_samples_the_probes_own_reason_is_given() {
        let mut s = Sketch::new();
        s.ticks(1_000, 500).minor_faults = 30_000;
        let why = Absence::new(Reason::NotPermitted, "perf_event_open: EACCES")
            .mend("sysctl kernel.perf_event_paranoid=2");
        s.recording.probes.push(Probe::new(ProbeName::CpuSamples, ProbeState::Absent(why.clone())));
        let bill = of(&s.recording);
        assert_eq!(bill.on_cpu, Err(why));
        assert_eq!(bill.cpu_s, 1.5);
        assert_eq!(bill.rates.minor_faults, Ok(2_000.0));
        assert_eq!(bill.rates.map_calls.unwrap_err().reason, Reason::TooLittle);
        assert!(wait(&of(&s.recording), WaitClass::Idle).thread_s.is_err());
    }

    /// 15 s of one CPU by the kernel's account, and this number of samples of one millisecond.
    fn charged_and_sampled(samples: u64) -> Bill {
        let mut s = Sketch::new();
        s.samples(samples.max(1), PID, "", "app!work");
        s.recording.samples.truncate(samples as usize);
        s.ticks(14_000, 1_000);
        s.thread(PID, "service", 15_000);
        of(&s.recording)
    }

    #[test]
    fn samples_that_miss_what_the_kernel_charged_are_no_basis_for_a_bill() {
        for (samples, shown) in [(0, "0.00 s"), (12, "0.01 s"), (1_400, "1.40 s")] {
            let bill = charged_and_sampled(samples);
            let why = bill.on_cpu.unwrap_err();
            assert_eq!(why.reason, Reason::TooLittle);
            assert!(why.detail.contains("15.00 s") && why.detail.contains(shown), "{why}");
            assert_eq!((bill.cpu_s, bill.sampled.is_err()), (15.0, true));
        }
        assert!(charged_and_sampled(14_000).on_cpu.is_ok());
        // If the kernel's part is not sampled, its samples are not expected.
        let mut s = Sketch::new();
        s.recording.meta.kernel_samples = false;
        s.samples(1_000, PID, "", "app!work");
        s.ticks(1_000, 14_000);
        assert!(of(&s.recording).on_cpu.is_ok());
    }

    #[test]
    fn the_reason_without_samples_has_the_cpu_time() {
        let said = |user_ms: u64, read: bool| {
            let mut s = Sketch::new();
            s.ticks(user_ms, 0);
            if !read {
                s.recording.ticks.clear();
            }
            of(&s.recording).on_cpu.unwrap_err().detail
        };
        let (idle, unread) = (said(0, true), said(20, false));
        assert!(said(20, true).contains("20 ms"), "{}", said(20, true));
        assert!(!idle.contains(" ms") && !unread.contains(" ms"), "{idle}; {unread}");
        assert_ne!(idle, unread);
    }

    #[test]
    fn an_account_that_was_cut_short_does_not_shrink_the_whole() {
        let of_probe = |state| {
            let mut s = busy();
            s.recording.threads.clear();
            s.ticks(2_000, 0);
            s.recording.probes.push(Probe::new(ProbeName::Counters, state));
            of(&s.recording).cpu_s
        };
        assert_eq!(of_probe(ProbeState::Measured), 2.0);
        let why = Absence::new(Reason::Exhausted, "/proc/100/stat: Too many open files (EMFILE)");
        assert_eq!(of_probe(ProbeState::Partial(why)), 10.0);
    }

    #[test]
    fn incomplete_thread_times_give_no_run_queue_time() {
        let mut s = busy();
        s.waits(300, PID, 'S', Some(232), "ep_poll;do_epoll_wait", "");
        s.recording.threads[0].seen_ns = 0;
        assert!(wait(&of(&s.recording), WaitClass::RunQueue).thread_s.is_ok());
        let why = Absence::new(Reason::Exhausted, "/proc/100/task: Too many open files (EMFILE)");
        s.recording.probes.push(Probe::new(ProbeName::RunDelay, ProbeState::Partial(why.clone())));
        let bill = of(&s.recording);
        assert_eq!(wait(&bill, WaitClass::RunQueue).thread_s, Err(why));
        // Only the samples show how long it waited.
        let idle = wait(&bill, WaitClass::Idle).thread_s.as_ref().unwrap().point;
        assert!((idle - 3.0).abs() < 1e-9, "{idle}");
    }

    #[test]
    fn a_thread_that_may_not_run_is_stopped() {
        for (state, syscall, kernel) in [
            ('T', Some(232), "do_signal_stop;get_signal"),
            ('T', None, ""),
            ('t', Some(-1), "ptrace_stop;get_signal"),
            ('D', Some(202), "__refrigerator;get_signal"),
            ('S', Some(-1), "do_freezer_trap;get_signal"),
            ('S', Some(-1), "get_signal;arch_do_signal_or_restart"),
            ('S', None, "get_signal"),
        ] {
            let mut s = Sketch::new();
            s.thread(7, "worker", 0);
            s.waits(100, 7, state, syscall, kernel, "");
            let bill = of(&s.recording);
            let point = |class| wait(&bill, class).thread_s.as_ref().map_or(0.0, |i| i.point);
            assert!(point(WaitClass::Stopped) > 14.9, "{state} {kernel}");
        }
        let mut s = Sketch::new();
        s.thread(7, "worker", 0);
        s.waits(50, 7, 'S', Some(232), "ep_poll;do_epoll_wait", "");
        s.waits(50, 7, 'D', Some(-1), "exit_mm;do_exit;get_signal", "");
        assert_eq!(wait(&of(&s.recording), WaitClass::Stopped).thread_s.as_ref().unwrap().point, 0.0);
    }

    #[test]
    fn an_empty_recording_has_a_bill() {
        let mut s = Sketch::new();
        s.recording.meta.window_ns = 0;
        let bill = of(&s.recording);
        assert!(bill.on_cpu.is_err() && bill.rates.minor_faults.is_err());
        assert_eq!((bill.cpu_s, bill.off_cpu.len()), (0.0, WaitClass::ALL.len()));
    }

    #[test]
    fn map_calls_are_summed_over_their_own_times() {
        let mut s = Sketch::new();
        for (name, count, over_ns) in
            [("mmap", 100, 1_000 * MS), ("munmap", 50, 500 * MS), ("page_faults", 9, MS), ("brk", 1, 0)]
        {
            s.recording.counts.push(EventCount { name: name.into(), count, over_ns });
        }
        assert_eq!(of(&s.recording).rates.map_calls, Ok(200.0));
    }

    #[test]
    fn sites_are_the_applications_functions() {
        let mut s = Sketch::new();
        s.samples(
            600,
            PID,
            FAULT,
            "libc+9800;libc!calloc;app!std::vec::Vec::reserve;app!load_index;app!main",
        );
        s.samples(400, PID, FAULT, "libc!memset;app!render;app!main");
        let faults = of(&s.recording);
        let faults = line(&faults, CostClass::FaultPath);
        let names: Vec<_> = faults.sites.iter().map(|s| (s.function.as_str(), s.share)).collect();
        assert_eq!(names, [("load_index", 0.6), ("render", 0.4)]);
        assert_eq!(faults.sites[1].path, ["do_anonymous_page", "memset", "render", "main"]);
        assert_eq!(faults.sites[1].module, "app");
    }

    /// The call site of the largest line, of one stack.
    fn site_of(stack: &str, complete: bool) -> String {
        let mut s = Sketch::new();
        s.module("libstdc++", ModuleRole::Other);
        s.samples(10, PID, "", stack);
        s.recording.stacks.iter_mut().for_each(|stack| stack.complete = complete);
        let bill = of(&s.recording);
        let lines = bill.on_cpu.as_ref().unwrap();
        lines.iter().find(|l| l.samples == 10).unwrap().sites[0].function.clone()
    }

    #[test]
    fn what_starts_a_thread_is_no_call_site() {
        let started = "libstdc++!execute_native_thread_routine;libc!start_thread;libc!clone3";
        // The thread's function is inlined into one of the standard library.
        let run = "app!std::thread::_State_impl<main::{lambda()#1}>::_M_run";
        let insert = "app!std::_Rb_tree<Order>::_M_insert";
        assert_eq!(site_of(&format!("{insert};{run};{started}"), true), "std::_Rb_tree<Order>::_M_insert");
        assert_eq!(site_of(&format!("{insert};app!Orders::add;{run};{started}"), true), "Orders::add");
        // An operator of the standard library has its return type before its name.
        let equal = "app!bool std::operator==<char>(char const*)";
        assert_eq!(site_of(&format!("{equal};app!Orders::find;{run};{started}"), true), "Orders::find");
        assert_eq!(site_of(&format!("libc!memset;{started}"), false), NO_CALLERS);
    }

    #[test]
    fn no_function_of_the_c_library_stands_for_an_unknown_caller() {
        let inside = "libc!_int_malloc;libc!malloc";
        assert_eq!(site_of(inside, false), NO_CALLERS);
        assert_eq!(site_of(inside, true), "_int_malloc");
        assert_eq!(site_of(&format!("{inside};app!parse"), false), "parse");
    }

    #[test]
    fn other_work_of_the_kernel_has_its_system_call() {
        let path = |kernel: &str| {
            let mut s = Sketch::new();
            s.samples(10, PID, kernel, "libc!prctl;app!work");
            let bill = of(&s.recording);
            let lines = bill.on_cpu.as_ref().unwrap();
            lines.iter().find(|l| l.samples == 10).unwrap().sites[0].path.clone()
        };
        let other = path("_raw_spin_lock;prctl_set_vma;__x64_sys_prctl;do_syscall_64");
        assert_eq!(other, ["_raw_spin_lock", "__x64_sys_prctl", "prctl", "work"]);
        // Other lines say what the kernel did.
        let file = path("_raw_spin_lock;vfs_write;__x64_sys_write;do_syscall_64");
        assert_eq!(file, ["_raw_spin_lock", "prctl", "work"]);
    }

    #[test]
    fn a_function_without_a_symbol_gets_the_nearest_name() {
        for (stack, expected) in [
            // A stripped program: the nearest caller with a name in the same file.
            ("libz+10;libz+20;libz!deflate;app!answer", "deflate"),
            ("libz+10;app!answer", "(no symbol)"),
            // Generated code: what it called.
            (
                "node!v8::Json::Scan;node!Builtins_JsonParse;node!Builtins_CEntry_Return1;[generated code]+1;[generated code]+2",
                "Builtins_JsonParse",
            ),
            ("[generated code]+1;node!Builtins_Call", "(no symbol)"),
        ] {
            let mut s = Sketch::new();
            s.module("libz", ModuleRole::Other);
            s.module("node", ModuleRole::Node);
            s.module("[generated code]", ModuleRole::Jit);
            s.samples(10, PID, "", stack);
            let bill = of(&s.recording);
            assert_eq!(line(&bill, CostClass::Application).sites[0].function, expected, "{stack}");
        }
    }

    #[test]
    fn equal_sites_are_sorted_by_name_and_at_most_five_are_listed() {
        let mut s = Sketch::new();
        for name in ["g", "c", "a", "f", "b", "e", "d"] {
            s.samples(10, PID, "", &format!("app!{name};app!main"));
        }
        let bill = of(&s.recording);
        let names: Vec<_> =
            line(&bill, CostClass::Application).sites.iter().map(|s| s.function.as_str()).collect();
        assert_eq!(names, ["a", "b", "c", "d", "e"]);
    }

    /// Samples of an interpreter, one every 10 ms.
    fn in_python() -> Sketch {
        let mut s = Sketch::new();
        s.module("python", ModuleRole::Cpython);
        s.runtime(Runtime::Cpython { version: "3.11".into(), free_threaded: false });
        s.samples(1_500, PID, "", "python!dict_new;python!_PyEval_EvalFrameDefault");
        s
    }

    #[test]
    fn a_shallow_sample_near_a_python_stack_gets_its_function() {
        let mut s = in_python();
        for (nth, sample) in s.recording.samples.iter_mut().enumerate() {
            sample.deep = nth % 5 == 0;
        }
        // Each one is near a shallow sample.
        for t in (10..15_000).step_by(500) {
            s.recording.python.push(PythonSample {
                t_ns: t * MS,
                pid: PID,
                tid: PID,
                frames: vec!["handle (service.py:10)".into()],
            });
        }
        let bill = of(&s.recording);
        let sites = &line(&bill, CostClass::Application).sites;
        assert_eq!(sites[0].python.as_deref(), Some("handle (service.py:10)"), "{sites:?}");
        assert_eq!(sites[0].share, 1.0);
        // Without Python stacks, only the deep samples count.
        s.recording.python.clear();
        assert_eq!(line(&of(&s.recording), CostClass::Application).sites[0].share, 1.0);
    }

    #[test]
    fn python_functions_join_samples_of_their_thread_and_time() {
        let mut s = in_python();
        for t in (0..15_000).step_by(30) {
            // The line in the function changes; the function stays one site. The last third has no Python stack near
            // it.
            if t < 10_000 {
                let frames =
                    vec![format!("handle (service.py:{})", 10 + t % 3), "main (service.py:90)".into()];
                s.recording.python.push(PythonSample { t_ns: t * MS, pid: PID, tid: PID, frames });
            }
        }
        // A stack of another thread is not used.
        s.recording.python.push(PythonSample {
            t_ns: 14_000 * MS,
            pid: PID,
            tid: 7,
            frames: vec!["other (o.py:1)".into()],
        });
        let bill = of(&s.recording);
        // A thousand samples with a Python stack represent the others.
        let sites = &line(&bill, CostClass::Application).sites;
        assert_eq!(sites.len(), 1, "{sites:?}");
        let handles =
            |site: &Site| site.python.as_deref().is_some_and(|p| p.starts_with("handle (service.py:"));
        assert!(handles(&sites[0]), "{sites:?}");
        assert!(sites[0].share == 1.0 && sites[0].least > 0.98, "{sites:?}");

        // Those of a short window do, with a wide interval: five stacks in one function are at least 57 % of it.
        s.recording.python.truncate(5);
        let short = of(&s.recording);
        let sites = &line(&short, CostClass::Application).sites;
        assert_eq!(sites.len(), 1, "{sites:?}");
        assert!(handles(&sites[0]) && (0.5..0.6).contains(&sites[0].least), "{sites:?}");

        // Fewer do not.
        s.recording.python.truncate(4);
        let bill = of(&s.recording);
        let sites = &line(&bill, CostClass::Application).sites;
        assert_eq!(sites.len(), 2, "{sites:?}");
        assert_eq!(sites[0].python, None);
        assert!(handles(&sites[1]), "{sites:?}");
    }

    #[test]
    fn a_python_function_is_one_site_whatever_it_calls() {
        let mut s = in_python();
        s.samples(500, PID, "", "python!list_append;python!_PyEval_EvalFrameDefault");
        for t in (0..15_000).step_by(30) {
            let frames = vec!["handle (service.py:10)".to_owned()];
            s.recording.python.push(PythonSample { t_ns: t * MS, pid: PID, tid: PID, frames });
        }
        let bill = of(&s.recording);
        let sites = &line(&bill, CostClass::Application).sites;
        assert_eq!(sites.len(), 1, "{sites:?}");
        assert_eq!((sites[0].function.as_str(), sites[0].share), ("dict_new", 1.0));
    }

    #[test]
    fn a_stripped_interpreter_is_named_as_such() {
        for (has_symbols, said) in [(false, true), (true, false)] {
            let mut s = busy();
            let python = s.module("python", ModuleRole::Cpython);
            s.recording.modules[python as usize].has_symbols = has_symbols;
            s.runtime(Runtime::Cpython { version: "3.11".into(), free_threaded: false });
            let bill = of(&s.recording);
            assert_eq!(!line(&bill, CostClass::GarbageCollector).notes.is_empty(), said);
            assert!(line(&bill, CostClass::FaultPath).notes.is_empty());
        }
    }

    #[test]
    fn waits_are_thread_seconds_by_class() {
        let mut s = Sketch::new();
        s.thread(7, "worker", 5_000);
        s.waits(300, 7, 'S', Some(202), "", "libc!__lll_lock_wait_private;libc+9800;app!work");
        s.waits(700, 7, 'S', Some(232), "ep_poll;do_epoll_wait", "libc!epoll_wait;app!serve");
        let bill = of(&s.recording);
        let allocator = wait(&bill, WaitClass::Allocator);
        let seconds = allocator.thread_s.as_ref().unwrap();
        assert!((seconds.point - 3.0).abs() < 1e-9 && seconds.low < 3.0 && seconds.high > 3.0, "{seconds:?}");
        assert_eq!(allocator.sites[0].function, "work");
        assert!((wait(&bill, WaitClass::Idle).thread_s.as_ref().unwrap().point - 7.0).abs() < 1e-9);
        assert_eq!(wait(&bill, WaitClass::Storage).thread_s.as_ref().unwrap().point, 0.0);
    }

    #[test]
    fn the_address_of_a_futex_shows_the_interpreter_lock() {
        let class_of = |python_lock| {
            let mut s = Sketch::new();
            s.module("python", ModuleRole::Cpython);
            s.thread(7, "worker", 5_000);
            s.waits(100, 7, 'S', Some(202), "futex_do_wait", "python+20");
            for wait in &mut s.recording.waits {
                wait.python_lock = python_lock;
            }
            let bill = of(&s.recording);
            let line = bill.off_cpu.iter().find(|line| line.thread_s.as_ref().is_ok_and(|s| s.point > 5.0));
            line.map(|line| line.class)
        };
        assert_eq!(class_of(Some(true)), Some(WaitClass::Gil));
        assert_eq!(class_of(Some(false)), Some(WaitClass::ApplicationLock));
        assert_eq!(class_of(None), Some(WaitClass::ApplicationLock));
    }

    #[test]
    fn waits_of_unknown_purpose_may_be_for_the_gil_of_their_own_process() {
        let cpython = |free_threaded| Ok(Runtime::Cpython { version: "3.13.1".into(), free_threaded });
        let parts = |change: &dyn Fn(&mut Recording), cpu_ms: u64| {
            let mut s = Sketch::new();
            s.thread(7, "worker", cpu_ms);
            s.waits(100, 7, 'S', Some(202), "futex_do_wait", "");
            s.recording.processes[0].runtime = cpython(false);
            change(&mut s.recording);
            let bill = of(&s.recording);
            (wait(&bill, WaitClass::ApplicationLock).may_be_gil, wait(&bill, WaitClass::Idle).may_be_gil)
        };
        // A busy thread, one of many that share the lock, and one that is parked.
        assert_eq!(parts(&|_| (), 5_000), (1.0, 0.0));
        assert_eq!(parts(&|_| (), 250), (0.0, 1.0));
        assert_eq!(parts(&|_| (), 5), (0.0, 0.0));
        // The lock's address is known, in this process or only in another one.
        let other_process = |recording: &mut Recording, located: i32| {
            let mut known = recording.waits[0];
            (known.pid, known.python_lock) = (located, Some(false));
            recording.waits.push(known);
        };
        assert_eq!(parts(&|r| other_process(r, PID), 5_000).0, 0.0);
        assert_eq!(parts(&|r| other_process(r, PID + 1), 5_000).1, 0.0);
        assert!(parts(&|r| other_process(r, PID + 1), 5_000).0 > 0.9);
        // Other runtimes, and the free-threaded build with the lock off or on again.
        let free_threaded = |environment: &[(&str, &str)], words: &[&str]| {
            let environment: Vec<(String, String)> =
                environment.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect();
            let cmdline: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            let change = |recording: &mut Recording| {
                let process = &mut recording.processes[0];
                process.runtime = cpython(true);
                (process.environment, process.cmdline) = (environment.clone(), cmdline.clone());
            };
            parts(&change, 5_000).0
        };
        assert_eq!(parts(&|r| r.processes[0].runtime = Ok(Runtime::Native), 5_000).0, 0.0);
        assert_eq!(free_threaded(&[], &["python3.13t", "app.py"]), 0.0);
        assert_eq!(free_threaded(&[("PYTHON_GIL", "0")], &["python3.13t", "-X", "gil=0"]), 0.0);
        assert_eq!(free_threaded(&[("PYTHON_GIL", "1")], &[]), 1.0);
        assert_eq!(free_threaded(&[], &["python3.13t", "-X", "gil=1", "app.py"]), 1.0);
        assert_eq!(free_threaded(&[], &["python3.13t", "-Xgil=1"]), 1.0);
    }

    #[test]
    fn user_stacks_and_runtimes_identify_locks() {
        let lines = |user: &str, cpu_ms| {
            let mut s = Sketch::new();
            s.module("python", ModuleRole::Cpython);
            s.thread(7, "worker", cpu_ms);
            s.waits(100, 7, 'S', None, "futex_do_wait", user);
            of(&s.recording)
        };
        // The interpreter lock, which uses a condition variable, and a mutex.
        for (lock, class) in [
            ("libc!pthread_cond_timedwait;python!take_gil;python!PyEval_RestoreThread", WaitClass::Gil),
            ("libc!__lll_lock_wait;libc!pthread_mutex_lock;app!work", WaitClass::ApplicationLock),
        ] {
            let bill = lines(lock, 5_000);
            let line = wait(&bill, class);
            assert!(line.thread_s.as_ref().is_ok_and(|i| i.point > 0.9), "{lock}");
            assert_eq!((line.unknown_purpose, line.unread), (0.0, 0.0), "{lock}");
        }
        // A caller without a name does not show the purpose, but it shows that the caller is not the allocator. A
        // stack that was not read does not show even that.
        for (user, cpu_ms, class, unread) in [
            ("libc+1000;app+20;app+30", 5_000, WaitClass::ApplicationLock, 0.0),
            ("", 5_000, WaitClass::ApplicationLock, 1.0),
            ("", 10, WaitClass::Idle, 1.0),
        ] {
            let bill = lines(user, cpu_ms);
            let line = wait(&bill, class);
            assert_eq!((line.unknown_purpose, line.unread), (1.0, unread), "{user} {cpu_ms}");
        }
        // In a stripped interpreter it may be the interpreter lock, or any other lock of an unnamed function.
        let stripped = "libc+1000;libc!pthread_cond_timedwait;python+20;python!_PyEval_EvalFrameDefault";
        let bill = lines(stripped, 5_000);
        let line = wait(&bill, WaitClass::ApplicationLock);
        assert_eq!((line.unknown_purpose, line.unread), (1.0, 0.0));
        for idle in [
            "libc!pthread_cond_wait;app!worker_loop",
            "libc!sem_clockwait;python!PyThread_acquire_lock_timed;python+20",
        ] {
            let bill = lines(idle, 5_000);
            let line = wait(&bill, WaitClass::Idle);
            assert!(line.thread_s.as_ref().is_ok_and(|i| i.point > 0.9), "{idle}");
            assert_eq!(line.unknown_purpose, 0.0, "{idle}");
        }
    }

    #[test]
    fn unreadable_waits_rule_nothing_out() {
        let mut s = Sketch::new();
        s.thread(7, "worker", 5_000);
        s.waits(100, 7, 'S', None, "", "");
        let bill = of(&s.recording);
        assert!(wait(&bill, WaitClass::Allocator).thread_s.is_err());
        assert!(wait(&bill, WaitClass::Other).thread_s.is_ok());
        s.waits(1, 7, 'S', Some(202), "", "");
        assert!(wait(&of(&s.recording), WaitClass::Allocator).thread_s.is_ok());
    }

    #[test]
    fn steal_that_was_not_read_is_not_zero() {
        let mut s = Sketch::new();
        s.thread(7, "worker", 5_000);
        s.ticks(5_000, 0);
        let stolen = |s: &Sketch| wait(&of(&s.recording), WaitClass::Stolen).thread_s.clone();
        assert_eq!(stolen(&s), Ok(Interval::exact(0.0)));
        s.recording.ticks[1].host = None;
        assert_eq!(stolen(&s).unwrap_err().reason, Reason::NotFound);
    }

    #[test]
    fn throttled_time_leaves_the_run_queues() {
        let mut s = Sketch::new();
        s.thread(7, "worker", 5_000);
        s.recording.threads[0].run_delay_ns = Some(4_000 * MS);
        let end = s.ticks(5_000, 0);
        end.host = Some(HostTick { busy_ns: 10_000 * MS, steal_ns: 1_000 * MS, ..HostTick::default() });
        for (throttled_ms, throttled, queued) in [(3_000, 3.0, 1.0), (9_000, 4.0, 0.0), (0, 0.0, 4.0)] {
            s.recording.ticks[0].cgroup = Some(CgroupTick::default());
            s.recording.ticks[1].cgroup =
                Some(CgroupTick { throttled_ns: throttled_ms * MS, ..CgroupTick::default() });
            let bill = of(&s.recording);
            let point = |class| wait(&bill, class).thread_s.as_ref().unwrap().point;
            assert_eq!((point(WaitClass::Throttled), point(WaitClass::RunQueue)), (throttled, queued));
        }
        // The target used half of the busy time, so its part of steal is estimated as half, with an interval from 1/5
        // to 4/5.
        let bill = of(&s.recording);
        assert_eq!(wait(&bill, WaitClass::Stolen).thread_s, Ok(Interval::new(0.2, 0.5, 0.8)));
        s.recording.ticks[1].cgroup = None;
        s.recording.threads[0].run_delay_ns = None;
        let bill = of(&s.recording);
        assert!(
            wait(&bill, WaitClass::Throttled).thread_s.is_err()
                && wait(&bill, WaitClass::RunQueue).thread_s.is_err()
        );
    }
}
