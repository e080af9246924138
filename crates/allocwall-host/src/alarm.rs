//! A timer that wakes an event loop at a given time. The timeout of epoll_wait(2) is in whole milliseconds,
//! and sleeps have a slack of 50 µs (PR_SET_TIMERSLACK). A timerfd has neither limit.

use crate::clock;
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

/// Readable from the set time on, until it is set again.
pub struct Alarm {
    descriptor: OwnedFd,
    set_for: Option<u64>,
}

impl Alarm {
    pub fn new() -> io::Result<Self> {
        let descriptor = rustix::time::timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Alarm { descriptor, set_for: None })
    }

    /// Sets the alarm for the time when [`monotonic_ns`](clock::monotonic_ns) is `ns`, or at once if that is
    /// past. It replaces an earlier setting.
    pub fn set(&mut self, ns: u64) -> io::Result<()> {
        if self.set_for == Some(ns) {
            return Ok(());
        }
        // A time of zero would disarm the timer (timerfd_settime(2)).
        let own = clock::in_own_namespace(ns).max(1);
        let moment = Itimerspec {
            it_interval: Timespec { tv_sec: 0, tv_nsec: 0 },
            it_value: Timespec { tv_sec: (own / 1_000_000_000) as i64, tv_nsec: (own % 1_000_000_000) as _ },
        };
        rustix::time::timerfd_settime(&self.descriptor, TimerfdTimerFlags::ABSTIME, &moment)?;
        self.set_for = Some(ns);
        Ok(())
    }
}

impl AsRawFd for Alarm {
    fn as_raw_fd(&self) -> RawFd {
        self.descriptor.as_raw_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock::monotonic_ns;
    use std::fs::File;
    use std::io::Read;

    #[test]
    fn the_alarm_is_readable_at_its_time_and_not_before() {
        let mut alarm = Alarm::new().unwrap();
        let mut reader = File::from(alarm.descriptor.try_clone().unwrap());
        let mut count = [0; 8];
        for ahead in [0, 20_000_000] {
            let moment = monotonic_ns() + ahead;
            alarm.set(moment).unwrap();
            reader.read_exact(&mut count).unwrap();
            assert!(monotonic_ns() >= moment);
            assert_eq!(u64::from_ne_bytes(count), 1);
        }
        // A past time also triggers the alarm, even if it is before the last one.
        alarm.set(0).unwrap();
        reader.read_exact(&mut count).unwrap();
    }
}
