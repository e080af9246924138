//! The look-up of faults in a thread of its own. The kernel lets a reader of another process's mappings wait for as long
//! as that process holds the lock of its address space, for example during a fork; the window must not wait with it.

use super::faults::{Fault, Faults};
use allocwall_host::proc::ProcFs;
use allocwall_host::worker::Worker;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::recording::Runtime;
use std::collections::HashMap;
use std::sync::mpsc::{Receiver, RecvTimeoutError, SyncSender, TryRecvError, sync_channel};
use std::time::Duration;

/// How long the window waits for the answers of one read of the rings. Twice the time that a look-up may take.
const PATIENCE: Duration = Duration::from_millis(20);

/// The faults of one read of the rings.
struct Asked {
    proc: ProcFs,
    faults: Vec<Fault>,
    runtimes: HashMap<i32, Runtime>,
    /// Whether to forget first what may have changed.
    forget: bool,
}

/// The owners, by index of the sample.
type Answer = Vec<(u32, Owner)>;

struct Thread {
    asked: SyncSender<Asked>,
    answers: Receiver<Answer>,
    /// An answer that came too late is still to come: nothing else is asked before.
    late: bool,
    _worker: Worker<()>,
}

#[derive(Default)]
pub struct FaultThread {
    pending: Vec<Fault>,
    forget: bool,
    thread: Option<Thread>,
}

impl FaultThread {
    pub fn add(&mut self, fault: Fault) {
        self.pending.push(fault);
    }

    /// Code and mappings of processes may have changed.
    pub fn forget(&mut self) {
        self.forget = true;
    }

    /// Looks up the faults that were added, and passes on the owner of each sample that has one. Nothing, if the answer
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
        let forget = std::mem::take(&mut self.forget);
        let thread = self.thread.get_or_insert_with(Thread::start);
        let asked = Asked { proc: proc.clone(), faults, runtimes, forget };
        for (sample, owner) in thread.ask(asked) {
            found(sample, owner);
        }
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
                let mut owners = Answer::new();
                let runtime = |pid| runtimes.get(&pid);
                faults.look_up(&proc, runtime, |sample, owner| owners.push((sample, owner)));
                if answer.send(owners).is_err() {
                    return;
                }
            }
        };
        Thread { asked, answers, late: false, _worker: Worker::start("looks up faults", work) }
    }

    /// Empty if the thread is not there, or does not answer in time.
    fn ask(&mut self, asked: Asked) -> Answer {
        if self.late {
            match self.answers.try_recv() {
                Ok(_) => self.late = false,
                Err(TryRecvError::Empty | TryRecvError::Disconnected) => return Answer::new(),
            }
        }
        if self.asked.try_send(asked).is_err() {
            return Answer::new();
        }
        self.answers.recv_timeout(PATIENCE).unwrap_or_else(|why| {
            self.late = why == RecvTimeoutError::Timeout;
            Answer::new()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked() -> Asked {
        Asked { proc: ProcFs::live(), faults: Vec::new(), runtimes: HashMap::new(), forget: false }
    }

    /// A thread whose answers the test gives.
    fn by_hand() -> (Thread, Receiver<Asked>, SyncSender<Answer>) {
        let (asked, questions) = sync_channel(1);
        let (answer, answers) = sync_channel(1);
        let worker = Worker::start("does nothing", || ());
        (Thread { asked, answers, late: false, _worker: worker }, questions, answer)
    }

    #[test]
    fn a_late_answer_is_no_answer_to_the_next_question() {
        let (mut thread, questions, answer) = by_hand();
        assert_eq!(thread.ask(asked()), []);
        assert!(thread.late);
        // It still works at the first question, so it is asked nothing else.
        assert_eq!(thread.ask(asked()), []);
        assert_eq!(questions.try_iter().count(), 1);
        answer.send(vec![(1, Owner::Heap)]).unwrap();
        let answering = std::thread::spawn(move || {
            let _question = questions.recv().unwrap();
            answer.send(vec![(2, Owner::Stack)]).unwrap();
        });
        // The wait for the second answer may be too short on a busy machine, but the first one never counts for it.
        let found = thread.ask(asked());
        assert!(found.is_empty() || found == [(2, Owner::Stack)], "{found:?}");
        answering.join().unwrap();
    }

    #[test]
    fn a_thread_that_ended_leaves_no_owner() {
        let (mut thread, questions, answer) = by_hand();
        drop((questions, answer));
        assert_eq!(thread.ask(asked()), []);
        assert!(!thread.late);
    }
}
