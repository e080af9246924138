//! Work in a forked process. Its result comes back as JSON through a pipe.

use crate::workloads::forking::wait_for;
use anyhow::Context;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::{self, PipeReader, Read, Write};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Limit for a result: some hundred bytes.
const LONGEST: u64 = 1 << 20;

pub struct Child<T> {
    pid: libc::pid_t,
    from: PipeReader,
    result: PhantomData<T>,
}

impl<T: Serialize + DeserializeOwned> Child<T> {
    /// Does this in a forked process, which ends after it. Call it while the process has one thread.
    ///
    /// # Errors
    /// The kernel's.
    pub fn start(work: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<Child<T>> {
        // If whoever started this process ignores the signal, the child cannot be waited for (waitpid(2)).
        // SAFETY: it installs no handler.
        unsafe { libc::signal(libc::SIGCHLD, libc::SIG_DFL) };
        let (from, mut to) = io::pipe()?;
        // SAFETY: the child works, allocates, which malloc allows after a fork, and writes to the pipe. It does not return from here.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()).context("fork"),
            0 => {
                let send = || -> anyhow::Result<()> {
                    to.write_all(&serde_json::to_vec(&work()?)?)?;
                    Ok(())
                };
                let sent = catch_unwind(AssertUnwindSafe(send));
                // SAFETY: it only ends the child. Destructors and exit handlers belong to the parent.
                unsafe { libc::_exit(i32::from(!matches!(sent, Ok(Ok(()))))) }
            }
            pid => Ok(Child { pid, from, result: PhantomData }),
        }
    }

    /// Waits for its end.
    ///
    /// # Errors
    /// It has failed.
    pub fn join(self) -> anyhow::Result<T> {
        let mut bytes = vec![];
        self.from.take(LONGEST).read_to_end(&mut bytes)?;
        wait_for(self.pid)?;
        serde_json::from_slice(&bytes).context("the result of a child")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;

    #[test]
    fn a_child_hands_its_result_over_and_one_that_fails_is_an_error() {
        let children = [48_211_u64, 7].map(|value| Child::start(move || Ok(value)).unwrap());
        assert_eq!(children.map(|child| child.join().unwrap()), [48_211, 7]);
        let failed = Child::<u64>::start(|| bail!("out of memory")).unwrap().join().unwrap_err();
        assert!(format!("{failed:#}").contains("wait status 0x100"), "{failed:#}");
    }
}
