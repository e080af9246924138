//! The on-CPU lines.

use super::classify::Classifier;
use super::sites::{Place, sites};
use super::{CpuLine, absence, block_of, blocks, first_and_last};
use crate::catalogue::cost::CostClass;
use crate::measure::recording::{ModuleRole, Recording, Runtime};
use crate::stats;
use crate::units::{Interval, Measured};

/// What the kernel charged to the target, in seconds. Threads' times are exact but miss threads that came and went between two looks; the
/// processes' are complete but come in clock ticks. Both can only be short, so the larger counts; without either, what was sampled.
pub fn charged_s(recording: &Recording) -> f64 {
    let threads = recording.threads.iter().map(|t| t.cpu_ns as f64).sum::<f64>();
    let ticks = first_and_last(recording).map_or(0.0, |(first, last)| {
        let charged = |t: &crate::measure::recording::Tick| t.user_ns.saturating_add(t.system_ns);
        charged(last).saturating_sub(charged(first)) as f64
    });
    let charged = threads.max(ticks);
    match charged > 0.0 {
        true => charged / 1e9,
        false => recording.samples.len() as f64 * recording.meta.sample_period_ns as f64 / 1e9,
    }
}

/// `classes` are those of the samples, in their order.
pub fn lines(
    recording: &Recording,
    classifier: &Classifier,
    classes: &[CostClass],
    unseen: &Unseen,
    cpu_s: f64,
) -> Measured<Vec<CpuLine>> {
    if recording.samples.is_empty() {
        return Err(absence(
            recording,
            "cpu_samples",
            "no CPU sample hit the target: it used no CPU in the window",
        ));
    }
    let kernel_share = match recording.meta.kernel_samples {
        true => None,
        false => Some(kernel_share(recording)?),
    };
    let block_count = blocks(recording);
    let mut lines: Vec<CpuLine> = CostClass::ALL
        .into_iter()
        .map(|class| {
            let mut hits = vec![(0, 0); block_count];
            for (sample, of) in recording.samples.iter().zip(classes) {
                let block = &mut hits[block_of(sample.t_ns, recording, block_count)];
                block.0 += u64::from(*of == class);
                block.1 += 1;
            }
            let sampled = unseen.added_to(stats::proportion_over_time(&hits), class, recording.samples.len());
            let share = match kernel_share {
                None => sampled,
                Some(kernel) if class == CostClass::UnnamedKernel => kernel,
                // User samples tell how user time divides; the kernel's split tells how much user time there is.
                Some(kernel) => Interval::new(
                    sampled.low * (1.0 - kernel.high),
                    sampled.point * (1.0 - kernel.point),
                    sampled.high * (1.0 - kernel.low),
                ),
            };
            CpuLine {
                class,
                share,
                cpu_s: share.scaled(cpu_s),
                samples: hits.iter().map(|b| b.0).sum(),
                method: method(class, recording, unseen),
                sites: cpu_sites(recording, classifier, classes, class),
            }
        })
        .collect();
    admit_unnamed_kernel(&mut lines, cpu_s);
    Ok(lines)
}

/// Any kernel line may hide in kernel time without names: their upper bounds say so.
fn admit_unnamed_kernel(lines: &mut [CpuLine], cpu_s: f64) {
    let Some(unnamed) = lines.iter().find(|l| l.class == CostClass::UnnamedKernel) else {
        return;
    };
    if unnamed.share.point == 0.0 {
        return;
    }
    let hidden = unnamed.share.high;
    for line in lines
        .iter_mut()
        .filter(|l| l.class.is_kernel() && l.class != CostClass::UnnamedKernel)
    {
        line.share.high = (line.share.high + hidden).min(1.0);
        line.cpu_s = line.share.scaled(cpu_s);
        line.method.push_str("; may hide in kernel time without symbols");
    }
}

/// The kernel's part of CPU time from the processes' own accounts. They count in clock ticks of 10 ms (proc(5)), once at each end.
fn kernel_share(recording: &Recording) -> Measured<Interval> {
    let (first, last) = first_and_last(recording)?;
    let system = last.system_ns.saturating_sub(first.system_ns) as f64;
    let total = system + last.user_ns.saturating_sub(first.user_ns) as f64;
    if total <= 0.0 {
        return Err(crate::units::Absence::new(
            crate::units::Reason::TooLittle,
            "the target used less CPU time than the kernel's clock ticks show",
        ));
    }
    let tick = 10e6 * recording.processes.len().max(1) as f64;
    let at = |ns: f64| (ns / total).clamp(0.0, 1.0);
    Ok(Interval::new(at(system - tick), at(system), at(system + tick)))
}

fn cpu_sites(
    recording: &Recording,
    classifier: &Classifier,
    classes: &[CostClass],
    class: CostClass,
) -> Vec<super::Site> {
    let of_class = || {
        recording
            .samples
            .iter()
            .zip(classes)
            .filter(|(_, c)| **c == class)
            .map(|(s, _)| s)
    };
    // Deep samples reach the application through long interpreter stacks; a handful of them is no basis for shares.
    let deep = of_class().filter(|s| s.deep).count();
    let only_deep = deep >= 20;
    let places = of_class().filter(|s| s.deep || !only_deep).map(|s| Place {
        t_ns: s.t_ns,
        pid: s.pid,
        tid: s.tid,
        kernel: s.kernel,
        user: s.user,
        weight: recording.meta.sample_period_ns.max(1),
    });
    sites(recording, classifier, places)
}

/// CPU time that no sample can hit: a thread that goes to sleep switches away with interrupts off, and where the CPU has
/// nothing else to run, a clock that is due meanwhile rings in the idle task. Its length is known, as the kernel's own
/// account of the threads is exact; it belongs where the threads go to sleep.
pub struct Unseen {
    /// In samples.
    total: f64,
    /// Parts of it, in the order of `CostClass::ALL`.
    parts: Vec<f64>,
}

/// What one switch may hide at most. 1.4 µs were measured on a virtual machine, a whole switch through a pipe being 1.5 µs.
const HIDDEN_BY_A_SWITCH_NS: f64 = 3_000.0;
/// Below this part of the CPU time the samples agree with the kernel's account.
const AGREES: f64 = 0.01;
/// So many samples among those that go to sleep must tell where.
const TELLING_SLEEPS: u64 = 10;

impl Unseen {
    pub fn of(recording: &Recording, classifier: &Classifier, classes: &[CostClass], cpu_s: f64) -> Unseen {
        let nothing = Unseen {
            total: 0.0,
            parts: vec![0.0; CostClass::ALL.len()],
        };
        let period_ns = recording.meta.sample_period_ns.max(1) as f64;
        let due = cpu_s * 1e9 / period_ns;
        let missing = due - recording.samples.len() as f64;
        let switches = first_and_last(recording)
            .ok()
            .and_then(|(first, last)| {
                Some(last.voluntary_switches?.saturating_sub(first.voluntary_switches?))
            })
            .unwrap_or(0);
        let most = switches as f64 * HIDDEN_BY_A_SWITCH_NS / period_ns;
        if !recording.meta.kernel_samples || missing < AGREES * due || most == 0.0 {
            return nothing;
        }
        let mut sleeps = vec![0u64; CostClass::ALL.len()];
        for (sample, class) in recording.samples.iter().zip(classes) {
            if classifier.goes_to_sleep(sample) {
                sleeps[position(*class)] += 1;
            }
        }
        let telling: u64 = sleeps.iter().sum();
        if telling < TELLING_SLEEPS {
            return nothing;
        }
        let total = missing.min(most);
        Unseen {
            total,
            parts: sleeps
                .iter()
                .map(|n| total * *n as f64 / telling as f64)
                .collect(),
        }
    }

    /// Seconds of CPU time.
    pub fn seconds(&self, recording: &Recording) -> f64 {
        self.total * recording.meta.sample_period_ns as f64 / 1e9
    }

    fn added_to(&self, share: Interval, class: CostClass, samples: usize) -> Interval {
        let samples = samples as f64;
        let with = |share: f64| (share * samples + self.parts[position(class)]) / (samples + self.total);
        Interval::new(with(share.low), with(share.point), with(share.high))
    }
}

fn position(class: CostClass) -> usize {
    CostClass::ALL
        .iter()
        .position(|c| *c == class)
        .expect("ALL holds every class")
}

fn method(class: CostClass, recording: &Recording, unseen: &Unseen) -> String {
    let basis = match class {
        CostClass::Application => "CPU samples: user code that is none of the lines below",
        CostClass::AllocatorCode => {
            "CPU samples: leaf in the allocator's module, malloc's address range or malloc's symbols"
        }
        CostClass::AllocatorLocks => "CPU samples: lock functions and futex calls made by the allocator",
        CostClass::RuntimeAllocator => "CPU samples: the runtime's allocation functions",
        CostClass::GarbageCollector => "CPU samples: collector functions on the stack, collector threads",
        CostClass::FaultPath => {
            "CPU samples: kernel stack in a page fault, less zeroing, copies and files; the common way in and out in proportion"
        }
        CostClass::Zeroing => "CPU samples: kernel clearing pages within a page fault",
        CostClass::MapCalls => "CPU samples: kernel stack in map calls, less pages released and locks",
        CostClass::PageRelease => "CPU samples: kernel unmapping pages, TLB shoot-downs received",
        CostClass::AddressSpaceLock => "CPU samples: semaphore functions below map calls and faults",
        CostClass::Reclaim => "CPU samples: kernel in reclaim, compaction, huge-page collapse",
        CostClass::OtherKernel => "CPU samples: kernel stack in none of the lines above",
        CostClass::UnnamedKernel if !recording.meta.kernel_samples => {
            "system time of the processes: kernel samples were not permitted"
        }
        CostClass::UnnamedKernel => "CPU samples: kernel stack without symbols",
    };
    let mut method = basis.to_string();
    let mut add = |note: String| {
        method.push_str("; ");
        method.push_str(&note);
    };
    let hidden = unseen.parts[position(class)];
    if hidden >= 1.0 {
        let seconds = hidden * recording.meta.sample_period_ns as f64 / 1e9;
        add(format!(
            "with {seconds:.2} s in switches to idle, which no sample can hit"
        ));
    }
    match class {
        CostClass::Application => {
            let unread = recording
                .samples
                .iter()
                .filter(|s| s.kernel.is_none() && s.user.is_none())
                .count();
            if unread > 0 {
                add(format!(
                    "{unread} samples without a readable user stack are counted here"
                ));
            }
        }
        CostClass::RuntimeAllocator | CostClass::GarbageCollector => {
            if let Some(runtime) = stripped_runtime(recording) {
                add(format!(
                    "this {runtime} is stripped: what has no symbol is counted as application"
                ));
            }
        }
        _ => {}
    }
    method
}

/// A runtime whose own functions can't be told apart.
fn stripped_runtime(recording: &Recording) -> Option<&'static str> {
    let stripped = |role| recording.modules.iter().any(|m| m.role == role && !m.has_symbols);
    recording.processes.iter().find_map(|p| match p.runtime {
        Ok(Runtime::Cpython { .. }) if stripped(ModuleRole::Cpython) => Some("Python interpreter"),
        Ok(Runtime::Jvm { .. }) if stripped(ModuleRole::Jvm) => Some("JVM"),
        Ok(Runtime::Node { .. }) if stripped(ModuleRole::Node) => Some("Node"),
        Ok(Runtime::Go { .. }) if stripped(ModuleRole::Go) => Some("Go program"),
        _ => None,
    })
}
