//! The look-up of faults in a thread of its own. The kernel lets a reader of another process's mappings wait for as long
//! as that process holds the lock of its address space, for example during a fork; the window must not wait with it.

use super::faults::{Fault, Faults};
use allocwall_host::proc::ProcFs;
use allocwall_host::worker::Worker;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::recording::Runtime;
use allocwall_model::units::{Absence, Measured, Reason, thousands};
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, TrySendError, sync_channel};
use std::time::Duration;

/// How long the window waits for the answers of one read of the rings. Twice the time that a look-up may take.
const PATIENCE: Duration = Duration::from_millis(20);
/// If at most one fault in so many was not looked up, the others show the shares of all.
const FEW: u64 = 20;

/// The faults of one read of the rings.
struct Asked {
    proc: ProcFs,
    faults: Vec<Fault>,
    runtimes: HashMap<i32, Runtime>,
    /// Whether to forget first what may have changed.
    forget: bool,
}

struct Answer {
    /// By index of the sample.
    owners: Vec<(u32, Owner)>,
    /// Why some are left out: the first reason so far.
    missing: Option<Absence>,
}

struct Thread {
    asked: SyncSender<Asked>,
    answers: Receiver<Answer>,
    /// An answer that came too late is still to come: nothing else is asked before.
    late: bool,
    /// None after its end was noticed.
    worker: Option<Worker<()>>,
}

#[derive(Default)]
pub struct FaultThread {
    pending: Vec<Fault>,
    forget: bool,
    thread: Option<Thread>,
    tally: Tally,
}

/// How many faults so far were to be looked up, and how many were.
#[derive(Default)]
pub struct Tally {
    asked: u64,
    answered: u64,
    /// Why some have no answer: the first reason.
    why: Option<Absence>,
}

impl Tally {
    /// `why`: some were not looked up, in this turn or before.
    pub fn add(&mut self, asked: u64, answered: u64, why: Option<Absence>) {
        self.asked += asked;
        self.answered += answered;
        self.why = self.why.take().or(why);
    }

    /// Why the faults without an answer are too many to be ignored.
    pub fn missing(&self) -> Option<Absence> {
        let without = self.asked.saturating_sub(self.answered);
        if without * FEW <= self.asked {
            return None;
        }
        let (number, all) = (thousands(without), thousands(self.asked));
        let why = self.why.clone().unwrap_or_else(too_late);
        let detail = format!("the owner of {number} of {all} sampled page faults is unknown: {}", why.detail);
        Some(Absence { detail, ..why })
    }
}

impl FaultThread {
    pub fn add(&mut self, fault: Fault) {
        self.pending.push(fault);
    }

    /// Code and mappings of processes may have changed.
    pub fn forget(&mut self) {
        self.forget = true;
    }

    /// Looks up the faults that were added, and passes on the owner of each sample that was looked up: none, if the answer
    /// does not come in time.
    pub fn look_up<'a>(
        &mut self,
        proc: &ProcFs,
        runtime: impl Fn(i32) -> Option<&'a Runtime>,
        mut found: impl FnMut(u32, Owner),
    ) {
        let faults = std::mem::take(&mut self.pending);
        if faults.is_empty() {
            return;
        }
        let runtimes = faults
            .iter()
            .filter_map(|fault| Some((fault.pid, runtime(fault.pid)?.clone())))
            .collect::<HashMap<i32, Runtime>>();
        let thread = self.thread.get_or_insert_with(Thread::start);
        let asked = faults.len() as u64;
        let sent = thread.send(Asked { proc: proc.clone(), faults, runtimes, forget: self.forget });
        // A thread that is late has not got it, and must forget at the next question.
        self.forget &= sent.is_err();
        match sent.and_then(|()| thread.answer()) {
            Ok(Answer { owners, missing }) => {
                self.tally.add(asked, owners.len() as u64, missing);
                owners.into_iter().for_each(|(sample, owner)| found(sample, owner));
            }
            Err(absence) => self.tally.add(asked, 0, Some(absence)),
        }
    }

    /// Why the faults without an answer are too many to be ignored.
    pub fn missing(&self) -> Option<Absence> {
        self.tally.missing()
    }
}

impl Thread {
    fn start() -> Thread {
        let (asked, questions) = sync_channel::<Asked>(1);
        let (answer, answers) = sync_channel::<Answer>(1);
        let work = move || {
            let mut faults = Faults::default();
            for Asked { proc, faults: some, runtimes, forget } in questions {
                if forget {
                    faults.forget();
                }
                for fault in some {
                    faults.add(fault);
                }
                let mut owners = Vec::new();
                let runtime = |pid| runtimes.get(&pid);
                faults.look_up(&proc, runtime, |fault, owner| owners.push((fault.sample, owner)));
                let missing = faults.missing().cloned();
                if answer.send(Answer { owners, missing }).is_err() {
                    return;
                }
            }
        };
        Thread { asked, answers, late: false, worker: Some(Worker::start("looks up faults", work)) }
    }

    /// # Errors
    /// The thread has not got the question: it has ended, or still works at an earlier one.
    fn send(&mut self, asked: Asked) -> Measured<()> {
        if self.late {
            match self.answers.try_recv() {
                Ok(_) => self.late = false,
                Err(TryRecvError::Empty) => return Err(too_late()),
                Err(TryRecvError::Disconnected) => return Err(self.ended()),
            }
        }
        self.asked.try_send(asked).map_err(|why| match why {
            TrySendError::Full(_) => too_late(),
            TrySendError::Disconnected(_) => self.ended(),
        })
    }

    /// # Errors
    /// The thread has ended, or does not answer in time.
    fn answer(&mut self) -> Measured<Answer> {
        self.answers.recv_timeout(PATIENCE).map_err(|why| match why {
            RecvTimeoutError::Timeout => {
                self.late = true;
                too_late()
            }
            RecvTimeoutError::Disconnected => self.ended(),
        })
    }

    fn ended(&mut self) -> Absence {
        let why = self.worker.take().and_then(|worker| worker.finish().err());
        why.unwrap_or_else(|| Absence::new(Reason::Vanished, "the thread that looks up faults has ended"))
    }
}

fn too_late() -> Absence {
    let detail = format!("the target's memory was not read within {} ms", PATIENCE.as_millis());
    Absence::new(Reason::TooCostly, detail)
}

#[cfg(test)]
mod tests {
    use super::super::faults::Source;
    use super::*;
    use allocwall_host::perf::REGISTERS;

    fn answer(sample: u32, owner: Owner) -> Answer {
        Answer { owners: vec![(sample, owner)], missing: None }
    }

    /// A thread whose answers the test gives.
    fn by_hand() -> (Thread, Receiver<Asked>, SyncSender<Answer>) {
        let (asked, questions) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let worker = Some(Worker::start("does nothing", || ()));
        (Thread { asked, answers, late: false, worker }, questions, answer)
    }

    fn ask(thread: &mut Thread) -> Measured<Answer> {
        let asked =
            Asked { proc: ProcFs::live(), faults: Vec::new(), runtimes: HashMap::new(), forget: false };
        thread.send(asked)?;
        thread.answer()
    }

    fn add(faults: &mut FaultThread, samples: std::ops::Range<u32>) {
        for sample in samples {
            let (pid, registers) = (i32::MAX, [0; REGISTERS]);
            faults.add(Fault { sample, pid, origin: pid, registers, source: Source::Unknown, soon: None });
        }
    }

    #[test]
    fn a_late_answer_is_no_answer_to_the_next_question() {
        let (mut thread, questions, answers) = by_hand();
        assert_eq!(ask(&mut thread).err(), Some(too_late()));
        assert!(thread.late);
        // It still works at the first question, so it is asked nothing else.
        assert_eq!(ask(&mut thread).err(), Some(too_late()));
        assert_eq!(questions.try_iter().count(), 1);
        answers.send(answer(1, Owner::Heap)).unwrap();
        let answering = std::thread::spawn(move || {
            let _question = questions.recv().unwrap();
            answers.send(answer(2, Owner::Stack)).unwrap();
        });
        // The wait for the second answer may be too short on a busy machine, but the first one never counts for it.
        let found = ask(&mut thread).map(|answer| answer.owners);
        assert!(found == Err(too_late()) || found == Ok(vec![(2, Owner::Stack)]), "{found:?}");
        answering.join().unwrap();
    }

    #[test]
    fn a_thread_that_ended_leaves_no_owner() {
        let (mut thread, questions, answers) = by_hand();
        drop((questions, answers));
        for _ in 0..2 {
            assert_eq!(ask(&mut thread).err().map(|why| why.reason), Some(Reason::Vanished));
            assert!(!thread.late);
        }
    }

    #[test]
    fn faults_without_an_answer_are_counted_with_the_first_reason() {
        let (thread, questions, answers) = by_hand();
        let mut faults = FaultThread { thread: Some(thread), ..FaultThread::default() };
        assert_eq!(faults.missing(), None);
        let mut found = 0;
        add(&mut faults, 0..30);
        faults.look_up(&ProcFs::live(), |_| None, |_, _| found += 1);
        let missing = faults.missing().expect("there was no answer");
        assert_eq!((found, missing.reason), (0, Reason::TooCostly));
        assert!(
            missing.detail.starts_with("the owner of 30 of 30 sampled page faults is unknown"),
            "{missing}"
        );
        drop((questions, answers));
        add(&mut faults, 0..10);
        faults.look_up(&ProcFs::live(), |_| None, |_, _| found += 1);
        let missing = faults.missing().expect("there is no thread");
        assert_eq!((found, missing.reason), (0, Reason::TooCostly));
        assert!(missing.detail.starts_with("the owner of 40 of 40 "), "{missing}");
    }

    #[test]
    fn a_late_thread_forgets_at_the_next_question_and_only_once() {
        let (thread, questions, answers) = by_hand();
        let mut faults = FaultThread { thread: Some(thread), ..FaultThread::default() };
        let look_up = |faults: &mut FaultThread| {
            add(faults, 0..1);
            faults.look_up(&ProcFs::live(), |_| None, |_, _| {});
            questions.try_iter().map(|asked| asked.forget).collect::<Vec<bool>>()
        };
        // Without an answer, the thread is late after each question.
        assert_eq!(look_up(&mut faults), [false]);
        faults.forget();
        for _ in 0..2 {
            assert!(look_up(&mut faults).is_empty());
        }
        for forget in [true, false] {
            answers.send(answer(0, Owner::Heap)).unwrap();
            assert_eq!(look_up(&mut faults), [forget]);
        }
    }

    #[test]
    fn a_few_faults_without_an_answer_are_no_loss() {
        let mut tally = Tally::default();
        tally.add(100, 95, None);
        assert_eq!(tally.missing(), None);
        tally.add(0, 0, Some(Absence::new(Reason::NotPermitted, "refused")));
        tally.answered = 94;
        let missing = tally.missing().expect("six");
        assert_eq!(missing.reason, Reason::NotPermitted);
        assert_eq!(missing.detail, "the owner of 6 of 100 sampled page faults is unknown: refused");
    }
}
