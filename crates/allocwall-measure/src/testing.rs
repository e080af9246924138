//! Processes for tests.

use allocwall_host::proc::ProcFs;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A process that is killed when this is dropped.
pub struct Running(pub Child);

impl Running {
    /// A process that sleeps. Returns when it does: a program that is still being loaded has few mappings and few pages.
    pub fn asleep() -> Running {
        let child = Command::new("sleep").arg("60").stdin(Stdio::null()).spawn().expect("sleep");
        let running = Running(child);
        let pid = running.pid();
        for _ in 0..2000 {
            let asleep = ProcFs::live().thread_stat(pid, pid).is_ok_and(|stat| stat.state == 'S');
            let maps = std::fs::read_to_string(format!("/proc/{pid}/maps")).unwrap_or_default();
            if asleep && maps.lines().count() > 5 {
                return running;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
        panic!("`sleep 60` was not loaded within ten seconds");
    }

    pub fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
