//! The resident memory of the target's processes by owner, at the end of the window.
//!
//! A thread of its own reads it while the stacks are unwound, so the report rarely waits for it. It has a time limit, also
//! if a page or a file does not answer.

use super::attach::Attached;
use crate::heap;
use crate::resident;
use crate::ticks::{SMAPS_LIMIT, ThreadClock};
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::run_as_root;
use allocwall_host::worker::Worker;
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::recording::{HeapView, Probe, ProbeName, ProbeState, Process};
use allocwall_model::resident::{MOST_BILLS, ResidentBill, TargetMemory};
use allocwall_model::units::{Absence, Measured, Reason};
use std::cmp::Reverse;
use std::collections::HashSet;
use std::time::{Duration, Instant};

/// Time limit of all bills together.
const TIME: Duration = Duration::from_millis(400);
/// How long the report waits: for the bills, and, if one is missing, for the main heap, which has 300 ms.
pub const PATIENCE: Duration = Duration::from_millis(750);

/// Without the number of a process: a command that allocwall started may have ended when this is read.
const ALONE: &str = "read it alone, while it runs: allocwall memory -p PID";
const ALL: &str = "the resident memory";

type Taken = (Measured<TargetMemory>, Measured<HeapView>);

/// Bills that are being taken.
pub struct Bills {
    thread: Worker<Taken>,
    /// Until when the report waits.
    until: Instant,
}

/// The living processes of a target.
struct Living {
    /// Those that are listed, the busiest first.
    listed: Vec<Process>,
    /// How many there are, also beyond the list.
    all: usize,
    /// Those that ran 32-bit code.
    narrow: HashSet<i32>,
    /// Processes with more resident memory are not read.
    limit_bytes: u64,
}

impl Bills {
    /// `pids`: the processes that live at the end of the window. `threads`: their CPU time.
    pub fn start(target: &Attached, pids: &[i32], threads: &ThreadClock) -> Bills {
        let family = &target.collector.family;
        let alive: HashSet<i32> = pids.iter().copied().collect();
        let listed = family.listing.processes.iter().filter(|process| alive.contains(&process.pid));
        let mut listed: Vec<Process> = listed.cloned().collect();
        // Of equally busy ones, the first stays the first, as in the report.
        listed.sort_by_cached_key(|process| Reverse(threads.cpu_ns(process.pid)));
        let narrow = family.narrow.clone();
        let living = Living { listed, all: pids.len(), narrow, limit_bytes: SMAPS_LIMIT };
        let proc = target.proc.clone();
        let thread = Worker::start("reads the resident memory", move || living.take(&proc));
        Bills { thread, until: Instant::now() + PATIENCE }
    }

    /// The bills, and the main heap of a process without one.
    pub fn finish(self) -> Taken {
        let taken = await_until(self.thread, self.until, ALL);
        taken.unwrap_or_else(|absence| (Err(absence.clone()), Err(absence)))
    }
}

/// The result of a thread that started [`PATIENCE`] before `until`, if it is there by then. `what` it reads.
pub fn await_until<T: Send + 'static>(thread: Worker<T>, until: Instant, what: &str) -> Measured<T> {
    while !thread.is_finished() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(1));
    }
    match thread.is_finished() {
        true => thread.finish(),
        // It ends by itself when the page or the file answers.
        false => Err(out_of_time(what)),
    }
}

/// In place of bills that were not asked for.
pub fn not_read() -> Taken {
    let absence = || Absence::new(Reason::Disabled, "it was not asked for in this window").mend(ALONE);
    (Err(absence()), Err(absence()))
}

fn out_of_time(what: &str) -> Absence {
    Absence::new(Reason::TooCostly, format!("{what} could not be read within {} ms", PATIENCE.as_millis()))
}

/// None if no process was refused. If there is no bill at all, `resident` itself has the reason.
pub fn probe(resident: &Measured<TargetMemory>) -> Option<Probe> {
    let unread = resident.as_ref().ok()?.unread.clone()?;
    Some(Probe::new(ProbeName::Resident, ProbeState::Partial(unread)))
}

impl Living {
    fn take(&self, proc: &ProcFs) -> Taken {
        let bills = self.bills(proc, Instant::now() + TIME);
        let heap = match &bills {
            Ok(TargetMemory { unread: None, .. }) => Err(Absence::new(
                Reason::NotApplicable,
                "the rows of the resident memory by owner contain the heap",
            )),
            Ok(memory) => self.heap(proc, &memory.bills),
            Err(_) => self.heap(proc, &[]),
        };
        (bills, heap)
    }

    /// Of the busiest process, then of the largest others.
    fn bills(&self, proc: &ProcFs, until: Instant) -> Measured<TargetMemory> {
        let Some((busiest, others)) = self.listed.split_first() else {
            return Err(Absence::new(Reason::Vanished, "the target ended before its memory was read")
                .mend("diagnose a target that runs longer than the window"));
        };
        if !proc.is_live() {
            return Err(Absence::new(Reason::NotApplicable, "a copy of /proc contains no memory"));
        }
        let mut bills = Vec::new();
        let (mut unread, mut gone) = (None, Vec::new());
        let mut add = |process: &Process| match self.bill(proc, process, until) {
            Ok(bill) => bills.push(bill),
            Err(absence) if absence.is_gone() => gone.push(absence),
            Err(absence) => _ = unread.get_or_insert(absence),
        };
        add(busiest);
        let mut largest: Vec<&Process> = others.iter().collect();
        largest.sort_by_cached_key(|process| {
            let resident = proc.process_stat(process.pid).map_or(0, |stat| stat.resident_pages);
            Reverse(resident)
        });
        for process in largest.into_iter().take(MOST_BILLS - 1) {
            if Instant::now() > until {
                break;
            }
            add(process);
        }
        if bills.is_empty() {
            return Err(unread.or(gone.pop()).unwrap_or_else(|| out_of_time(ALL)));
        }
        let others = self.all.saturating_sub(bills.len() + gone.len()) as u64;
        Ok(TargetMemory { bills, others, unread })
    }

    /// The largest heap that is in none of these bills. A 32-bit heap has other chunk headers.
    fn heap(&self, proc: &ProcFs, bills: &[ResidentBill]) -> Measured<HeapView> {
        let pids = self.listed.iter().map(|process| process.pid);
        let pids = pids.filter(|pid| bills.iter().all(|bill| bill.pid != *pid));
        let wide: Vec<i32> = pids.filter(|pid| !self.narrow.contains(pid)).collect();
        if wide.is_empty() && !self.listed.is_empty() {
            return Err(Absence::new(Reason::NotSupported, "the heap of a 32-bit program cannot be read"));
        }
        heap::walk(proc, &self.listed, &wide)
    }

    fn bill(&self, proc: &ProcFs, process: &Process, until: Instant) -> Measured<ResidentBill> {
        let pid = process.pid;
        let resident = proc.process_stat(pid)?.resident_pages.saturating_mul(proc.page_bytes());
        if resident > self.limit_bytes {
            let detail = format!(
                "process {pid} has more than {} GiB of resident memory: walking its page tables would stall it",
                self.limit_bytes >> 30
            );
            return Err(Absence::new(Reason::TooCostly, detail).mend(ALONE));
        }
        let bill = resident::of_known(process, until).map_err(|absence| match absence.reason {
            Reason::NotPermitted => {
                absence.mend_if_none([run_as_root(), Advice::text("run as the owner of the process")])
            }
            _ => absence,
        })?;
        // A recording with an unsound bill could not be read back.
        if bill.is_sound() {
            return Ok(bill);
        }
        let detail = format!("the sizes of the memory of process {pid} do not fit together");
        Err(Absence::new(Reason::Unparsable, detail).mend(ALONE))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::Running;
    use allocwall_model::catalogue::modules::AllocatorKind;
    use allocwall_model::recording::{Allocator, Linkage};
    use allocwall_sketches::recording::empty;
    use std::sync::mpsc::sync_channel;

    fn process(pid: i32) -> Process {
        Process { pid, ..empty().processes.remove(0) }
    }

    fn process_of(running: &Running) -> Process {
        process(running.pid())
    }

    fn living(listed: Vec<Process>) -> Living {
        Living { all: listed.len(), listed, narrow: HashSet::new(), limit_bytes: SMAPS_LIMIT }
    }

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(60)
    }

    #[test]
    fn the_busiest_process_is_the_first_and_the_number_of_bills_is_limited() {
        let running: Vec<Running> = (0..MOST_BILLS + 2).map(|_| Running::asleep()).collect();
        let proc = ProcFs::live();
        if let Err(absence) = proc.smaps_rollup(running[0].pid()) {
            return println!("skipped: {absence}");
        }
        let target = living(running.iter().map(process_of).collect());
        let memory = target.bills(&proc, later()).expect("our own children");
        assert_eq!(memory.bills.len(), MOST_BILLS);
        assert_eq!(memory.bills[0].pid, target.listed[0].pid);
        assert_eq!(memory.others, 2);
        let (bills, heap) = target.take(&proc);
        assert!(bills.is_ok());
        assert_eq!(heap.unwrap_err().reason, Reason::NotApplicable, "the bills contain it");
        // Without time, the busiest one is begun, and no other.
        let late = target.bills(&proc, Instant::now() - Duration::from_millis(1)).expect("begun");
        assert_eq!((late.bills.len(), late.others), (1, MOST_BILLS as u64 + 1));
    }

    #[test]
    fn a_busiest_process_that_is_refused_leaves_its_reason_and_its_heap_is_walked() {
        let helper = Running::asleep();
        let proc = ProcFs::live();
        if let Err(absence) = proc.smaps_rollup(helper.pid()) {
            return println!("skipped: {absence}");
        }
        let large = std::hint::black_box(vec![1_u8; 64 << 20]);
        let glibc = Allocator {
            kind: AllocatorKind::Glibc,
            how: Linkage::Libc,
            module: String::new(),
            version: None,
        };
        let own = Process { allocator: Ok(glibc), ..process(std::process::id() as i32) };
        let mut target = living(vec![own, process_of(&helper)]);
        target.limit_bytes = large.len() as u64;
        let (memory, heap) = target.take(&proc);
        let in_bills = |heap: &Measured<HeapView>| {
            heap.as_ref().is_err_and(|absence| absence.reason == Reason::NotApplicable)
        };
        assert!(!in_bills(&heap), "{heap:?}");
        let unread = memory.as_ref().expect("the helper").unread.clone().expect("a reason");
        let refused = format!("process {} has more than", std::process::id());
        assert!(unread.reason == Reason::TooCostly && unread.detail.starts_with(&refused), "{unread}");
        assert!(matches!(probe(&memory).expect("in part").state, ProbeState::Partial(why) if why == unread));
        let memory = memory.expect("the helper");
        assert_eq!((memory.bills.len(), memory.others), (1, 1));
        assert_eq!(memory.bills[0].pid, helper.pid());
        drop(large);
        // The near twin: nothing is refused.
        let (memory, heap) = living(vec![process_of(&helper)]).take(&proc);
        assert!(in_bills(&heap) && probe(&memory).is_none(), "{heap:?}");
        assert_eq!(memory.expect("the helper").unread, None);
        // Without a bill, `resident` has the reason.
        let alone = Living { limit_bytes: 0, ..living(vec![process_of(&helper)]) };
        let refused = alone.bills(&proc, later());
        assert_eq!(refused.as_ref().unwrap_err().reason, Reason::TooCostly);
        assert!(probe(&refused).is_none());
    }

    #[test]
    fn a_process_that_ended_is_neither_read_nor_counted() {
        let alive = Running::asleep();
        let proc = ProcFs::live();
        if let Err(absence) = proc.smaps_rollup(alive.pid()) {
            return println!("skipped: {absence}");
        }
        // Above the kernel's largest pid_max (2^22).
        let gone = process(1 << 23);
        let memory = living(vec![gone.clone(), process_of(&alive)]).bills(&proc, later()).expect("one lives");
        assert_eq!((memory.bills.len(), memory.others, &memory.unread), (1, 0, &None));
        assert_eq!(memory.bills[0].pid, alive.pid());
        let absence = living(vec![gone]).bills(&proc, later()).unwrap_err();
        assert!(absence.is_gone(), "{absence}");
    }

    #[test]
    fn what_has_no_memory_to_read_has_its_reason() {
        let ended = living(vec![]).bills(&ProcFs::live(), later()).unwrap_err();
        assert_eq!(ended.reason, Reason::Vanished);
        let dir = tempfile::tempdir().unwrap();
        let (bills, heap) = living(vec![process(7)]).take(&ProcFs::at(dir.path()));
        assert_eq!(bills.unwrap_err().reason, Reason::NotApplicable);
        assert!(heap.is_err());
        let mut narrow = living(vec![process(7)]);
        narrow.narrow.insert(7);
        assert_eq!(narrow.heap(&ProcFs::live(), &[]).unwrap_err().reason, Reason::NotSupported);
    }

    #[test]
    fn the_report_does_not_wait_for_a_thread_that_does_not_answer() {
        let (stop, stopped) = sync_channel::<()>(0);
        let thread = Worker::start("waits", move || {
            let _ = stopped.recv();
            living(vec![]).take(&ProcFs::live())
        });
        let (bills, heap) = Bills { thread, until: Instant::now() }.finish();
        assert_eq!(bills.unwrap_err().reason, Reason::TooCostly);
        assert_eq!(heap.unwrap_err().reason, Reason::TooCostly);
        drop(stop);
        // The near twin: one that answers.
        let thread = Worker::start("answers", || living(vec![]).take(&ProcFs::live()));
        let (bills, _) = Bills { thread, until: later() }.finish();
        assert_eq!(bills.unwrap_err().reason, Reason::Vanished);
    }
}
