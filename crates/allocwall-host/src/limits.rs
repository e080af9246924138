//! How many files this process may open. A perf event needs a descriptor, and there is one event per thread
//! and CPU.

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::sync::OnceLock;

/// Descriptors that events may not use, kept for files that are read meanwhile and modules that stay open:
/// the larger of this number and an eighth of the limit.
const RESERVE: u64 = 64;
/// Upper bound of the limit that is used, even if the real limit is higher.
const MOST: u64 = 1 << 20;

static BEFORE: OnceLock<Rlimit> = OnceLock::new();

/// Raises the soft limit to the hard limit. A program may rely on its original soft limit (select(2) breaks
/// above 1024), so children get the old limit back: [`before`].
pub fn raise_open_files() {
    let limit = getrlimit(Resource::Nofile);
    BEFORE.get_or_init(|| limit);
    let raised = Rlimit { current: limit.maximum, maximum: limit.maximum };
    // If the kernel refuses, the limit stays, and events are opened for as many threads as it permits.
    let _ = setrlimit(Resource::Nofile, raised);
}

/// The limit before it was raised; None if it was not raised.
pub fn before() -> Option<Rlimit> {
    BEFORE.get().copied()
}

/// The number of descriptors that events may use.
pub fn descriptors_to_spare() -> usize {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(MOST);
    match std::fs::read_dir("/proc/self/fd") {
        // The list includes the descriptor that reads it.
        Ok(list) => spare(limit, list.count()),
        Err(error) if error.raw_os_error() == Some(libc::EMFILE) => 0,
        // This /proc does not list descriptors.
        Err(_) => spare(limit, 0),
    }
}

fn spare(limit: u64, used: usize) -> usize {
    let limit = limit.min(MOST);
    let reserve = RESERVE.max(limit / 8);
    limit.saturating_sub(reserve).saturating_sub(used as u64) as usize
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_descriptors_are_always_left() {
        assert_eq!(spare(1024, 10), 1024 - 128 - 10);
        assert_eq!(spare(256, 10), 256 - 64 - 10);
        assert_eq!(spare(64, 10), 0);
        assert_eq!(spare(u64::MAX, 0), (1 << 20) - (1 << 17));
    }

    #[test]
    fn a_child_gets_the_old_limit_back() {
        raise_open_files();
        let limit = getrlimit(Resource::Nofile);
        assert_eq!(limit.current, limit.maximum);
        let line = ["/bin/sh", "-c", "test $(ulimit -Sn) = $0", &shown()];
        let line: Vec<std::ffi::OsString> = line.iter().map(Into::into).collect();
        let child = crate::launch::hold(&line, &[], crate::launch::Talk::Aside).unwrap().release().unwrap();
        let status = loop {
            if let Some(status) = child.exited() {
                break status;
            }
            std::thread::sleep(std::time::Duration::from_millis(5));
        };
        assert!(status.success());
    }

    fn shown() -> String {
        match before().unwrap().current {
            Some(number) => number.to_string(),
            None => "unlimited".into(),
        }
    }
}
