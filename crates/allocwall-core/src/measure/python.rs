//! Python's own function names, read from outside without stopping the interpreter.

use super::recording::PythonSample;
use crate::units::{Absence, Measured, Reason};
use py_spy::config::LockingStrategy;
use py_spy::{Config, PythonSpy};

const FRAME_LIMIT: usize = 16;

pub struct PythonProbe {
    pid: i32,
    spy: PythonSpy,
    /// Looks that came back empty: the interpreter was mid-change. Normal now and then without stopping it.
    pub misses: u64,
}

impl PythonProbe {
    pub fn attach(pid: i32) -> Measured<PythonProbe> {
        let config = Config {
            blocking: LockingStrategy::NonBlocking,
            native: false,
            ..Config::default()
        };
        match PythonSpy::new(pid, &config) {
            Ok(spy) => Ok(PythonProbe { pid, spy, misses: 0 }),
            Err(e) => Err(Absence::new(
                Reason::NotPermitted,
                format!("Python's stacks of {pid} are not readable: {e:#}"),
            )
            .mend("run as root or grant CAP_SYS_PTRACE; or start it with python -X perf (3.12+)")),
        }
    }

    /// Stacks of the threads that are running Python code now.
    pub fn look(&mut self, t_ns: u64, out: &mut Vec<PythonSample>) {
        let Ok(traces) = self.spy.get_stack_traces() else {
            self.misses += 1;
            return;
        };
        for trace in traces {
            let Some(tid) = trace.os_thread_id else { continue };
            if !trace.active && !trace.owns_gil {
                continue;
            }
            let frames = trace
                .frames
                .iter()
                .take(FRAME_LIMIT)
                .map(|f| {
                    format!(
                        "{} ({}:{})",
                        f.name,
                        f.short_filename.as_deref().unwrap_or(&f.filename),
                        f.line
                    )
                })
                .collect();
            out.push(PythonSample {
                t_ns,
                pid: self.pid,
                tid: tid as i32,
                frames,
            });
        }
    }
}
