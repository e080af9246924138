//! Python function names. A child process reads them from the target's memory and files, because a hostile
//! target may crash it. What it reported before is kept, and the recording contains the reason why it
//! stopped.

mod stacks;

use super::reading::{PYTHON, Readers};
use super::record::full;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::confined::Child;
use allocwall_model::recording::{
    PYTHON_DEPTH, Probe, ProbeName, ProbeState, Process, PythonSample, Runtime,
};
use allocwall_model::units::{Absence, Reason};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeSet, HashSet};
use std::io;

pub use stacks::serve;

/// The most Python stacks of a recording, and the most memory for them.
const STACKS: usize = 40_000;
const STACKS_BYTES: usize = 32 << 20;
/// Time limit of one read; it takes a millisecond or two per process.
const READ_NS: u64 = 2_000_000_000;
const FINISH_NS: u64 = 400_000_000;
/// Time limit of a send. It is short because the child always reads the next request.
const SEND_NS: u64 = 100_000_000;

#[derive(Debug, Serialize, Deserialize)]
enum Ask {
    /// The Python processes that are alive now. There is no answer.
    Follow(BTreeSet<i32>),
    Read,
    Finish,
}

#[derive(Debug, Serialize, Deserialize)]
enum Answer {
    Samples(Vec<PythonSample>),
    Finished(Box<Option<Probe>>),
}

/// The child, started for the first Python process.
pub struct Pythons {
    readers: Readers,
    start_ns: u64,
    child: Option<Child>,
    lost: Option<Absence>,
    /// When a read was requested that has not been answered yet.
    asked_ns: Option<u64>,
    /// The number of stacks so far, and the time when the limit was reached.
    kept: usize,
    kept_bytes: usize,
    full_at_ns: Option<u64>,
    cpu_ns: u64,
}

impl Pythons {
    /// `start_ns`: CLOCK_MONOTONIC at the start of the window.
    pub fn new(readers: Readers, start_ns: u64) -> Pythons {
        Pythons {
            readers,
            start_ns,
            child: None,
            lost: None,
            asked_ns: None,
            kept: 0,
            kept_bytes: 0,
            full_at_ns: None,
            cpu_ns: 0,
        }
    }

    /// Sends the list of Python processes, once per tick.
    pub fn follow(&mut self, processes: &[Process], alive: &[i32]) {
        let alive: HashSet<i32> = alive.iter().copied().collect();
        let python: BTreeSet<i32> = processes
            .iter()
            .filter(|process| matches!(process.runtime, Ok(Runtime::Cpython { .. })))
            .map(|process| process.pid)
            .filter(|pid| alive.contains(pid))
            .collect();
        if self.child.is_none() && (python.is_empty() || !self.started()) {
            return;
        }
        self.send(&Ask::Follow(python));
    }

    fn started(&mut self) -> bool {
        let Readers::Program(program) = &self.readers else {
            return false;
        };
        if self.lost.is_some() {
            return false;
        }
        match Child::start(program, &["read", PYTHON]) {
            Ok(child) => self.child = Some(child),
            Err(error) => {
                self.lost = Some(Absence::new(
                    Reason::NotSupported,
                    format!("the process that reads Python's stacks could not be started: {error}"),
                ));
            }
        }
        self.child.is_some()
    }

    /// Takes the result of the last read, and requests the next one.
    pub fn read(&mut self, t_ns: u64, out: &mut Vec<PythonSample>) {
        self.take(out);
        if self.is_full() {
            self.full_at_ns.get_or_insert(t_ns);
        }
        let now = monotonic_ns();
        match self.asked_ns {
            Some(asked) if now - asked > READ_NS => self.lose(),
            Some(_) => {}
            None => {
                if self.full_at_ns.is_none() && self.send(&Ask::Read) {
                    self.asked_ns = Some(now);
                }
            }
        }
    }

    fn take(&mut self, out: &mut Vec<PythonSample>) {
        let Some(child) = &mut self.child else { return };
        match child.arrived().and_then(decoded) {
            Ok(None) => {}
            Ok(Some(Answer::Samples(samples))) => {
                self.asked_ns = None;
                self.keep(samples, out);
            }
            Ok(Some(Answer::Finished(_))) | Err(_) => self.lose(),
        }
    }

    fn is_full(&self) -> bool {
        self.kept >= STACKS || self.kept_bytes >= STACKS_BYTES
    }

    fn keep(&mut self, samples: Vec<PythonSample>, out: &mut Vec<PythonSample>) {
        for sample in samples {
            // A stack that is too deep would make the recording unreadable.
            if self.is_full() || sample.frames.len() > PYTHON_DEPTH {
                continue;
            }
            let names = sample.frames.iter().map(|frame| size_of::<String>() + frame.len());
            self.kept += 1;
            self.kept_bytes += size_of::<PythonSample>() + names.sum::<usize>();
            out.push(PythonSample { t_ns: sample.t_ns.saturating_sub(self.start_ns), ..sample });
        }
    }

    /// Takes the last results and returns the state of the probe; None if the target has no Python.
    pub fn finish(&mut self, out: &mut Vec<PythonSample>) -> Option<Probe> {
        if self.child.is_some() && self.send(&Ask::Finish) {
            let deadline = monotonic_ns() + FINISH_NS;
            while let Some(child) = &mut self.child {
                match child.receive(deadline).and_then(|message| decoded(Some(message))) {
                    Ok(Some(Answer::Samples(samples))) => self.keep(samples, out),
                    Ok(Some(Answer::Finished(state))) => return self.full(*state),
                    Ok(None) | Err(_) => self.lose(),
                }
            }
        }
        let absence = self.lost.clone()?;
        let state = match self.kept {
            0 => ProbeState::Absent(absence),
            _ => ProbeState::Partial(absence),
        };
        self.full(Some(Probe::new(ProbeName::PythonStacks, state)))
    }

    fn full(&self, state: Option<Probe>) -> Option<Probe> {
        match self.full_at_ns {
            Some(t_ns) => Some(Probe::new(ProbeName::PythonStacks, ProbeState::Partial(full(t_ns)))),
            None => state,
        }
    }

    /// CPU time of the child so far.
    pub fn cpu_ns(&self) -> u64 {
        let now = self.child.as_ref().and_then(|child| child.cpu_ns().ok());
        self.cpu_ns + now.unwrap_or(0)
    }

    fn send(&mut self, ask: &Ask) -> bool {
        let Some(child) = &mut self.child else {
            return false;
        };
        let message = postcard::to_stdvec(ask).unwrap_or_default();
        let sent = child.send(&[&message], None, monotonic_ns() + SEND_NS);
        if sent.is_err() {
            self.lose();
        }
        sent.is_ok()
    }

    fn lose(&mut self) {
        let Some(child) = self.child.take() else { return };
        self.cpu_ns += child.cpu_ns().unwrap_or(0);
        self.lost = Some(Absence::new(
            Reason::TooCostly,
            format!("the process that reads Python's stacks failed: {}", child.end()),
        ));
    }
}

fn decoded(message: Option<Vec<u8>>) -> io::Result<Option<Answer>> {
    let decode =
        |message: Vec<u8>| postcard::from_bytes(&message).map_err(|_| io::ErrorKind::InvalidData.into());
    message.map(decode).transpose()
}
