//! Reads the output of a command while it is written. The command never waits for a reader, and only a bounded tail is kept.

use serde::{Deserialize, Serialize};
use std::io::{self, Read};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};

/// The tail of an output.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tail {
    pub bytes: Vec<u8>,
    /// Total bytes written.
    pub written: u64,
}

impl Tail {
    /// Whether the tail is the whole output.
    pub fn whole(&self) -> bool {
        self.bytes.len() as u64 == self.written
    }

    fn push(&mut self, more: &[u8], cap: usize) {
        self.written += more.len() as u64;
        self.bytes.extend_from_slice(&more[more.len().saturating_sub(cap)..]);
        // Cut only at twice the cap, so that each byte is moved at most once.
        if self.bytes.len() > cap.saturating_mul(2) {
            self.cut(cap);
        }
    }

    fn cut(&mut self, cap: usize) {
        let over = self.bytes.len().saturating_sub(cap);
        self.bytes.drain(..over);
    }
}

/// A thread that reads one pipe to its end.
pub struct Drain {
    tail: Arc<Mutex<Tail>>,
    cap: usize,
    thread: JoinHandle<()>,
}

impl Drain {
    /// # Errors
    /// No thread can be started.
    pub fn start(mut pipe: impl Read + Send + 'static, cap: usize) -> io::Result<Drain> {
        let tail = Arc::new(Mutex::new(Tail::default()));
        let shared = Arc::clone(&tail);
        let thread = Builder::new().spawn(move || {
            let mut buffer = vec![0; 64 << 10];
            loop {
                match pipe.read(&mut buffer) {
                    Ok(0) => break,
                    Ok(length) => lock(&shared).push(&buffer[..length], cap),
                    Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                    Err(_) => break,
                }
            }
        })?;
        Ok(Drain { tail, cap, thread })
    }

    /// The tail so far.
    pub fn so_far(&self) -> Tail {
        let mut tail = lock(&self.tail).clone();
        tail.cut(self.cap);
        tail
    }

    /// The tail when the pipe has ended, or after `patience`: a process that we could not end may hold the pipe open.
    pub fn finish(self, patience: Duration) -> Tail {
        let until = Instant::now() + patience;
        while !self.thread.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.so_far()
    }
}

fn lock(tail: &Mutex<Tail>) -> std::sync::MutexGuard<'_, Tail> {
    tail.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pushed(parts: &[&[u8]], cap: usize) -> Tail {
        let mut tail = Tail::default();
        for part in parts {
            tail.push(part, cap);
            assert!(tail.bytes.len() <= 3 * cap, "{} bytes kept", tail.bytes.len());
        }
        tail.cut(cap);
        tail
    }

    #[test]
    fn the_tail_is_kept_and_all_bytes_are_counted() {
        let tail = pushed(&[b"abcdef", b"", b"ghij", b"k"], 4);
        assert_eq!((&tail.bytes[..], tail.written), (&b"hijk"[..], 11));
        assert!(!tail.whole());
        let tail = pushed(&[b"ab", b"cd"], 4);
        assert_eq!((&tail.bytes[..], tail.whole()), (&b"abcd"[..], true));
        assert!(pushed(&[], 4).whole());
        assert_eq!(pushed(&[b"abc"], 0), Tail { bytes: vec![], written: 3 });
    }

    #[test]
    fn a_pipe_that_stays_open_is_not_waited_for() {
        let (reader, mut writer) = std::io::pipe().unwrap();
        std::io::Write::write_all(&mut writer, b"abc").unwrap();
        let drain = Drain::start(reader, 100).unwrap();
        while drain.so_far().written < 3 {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(drain.finish(Duration::from_millis(20)).bytes, b"abc");
        drop(writer);
    }
}
