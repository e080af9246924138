//! A lock that is always free in a forked child.
//!
//! `fork` copies a lock as it is. If a thread that the child does not have holds it, it would stay held for ever.
//! This lock is in a page that the kernel zeroes in the child (`MADV_WIPEONFORK`): the lock is then free, and the
//! mark that this process has locked it before is cleared. So there is no need for `pthread_atfork`, `fork` does not
//! wait for the lock, and the child knows that the guarded data may be inconsistent.

use crate::region::{Why, os};
use std::cell::UnsafeCell;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, Ordering};

const PAGE: usize = 4096;

/// The content of the wiped page.
#[repr(C)]
struct Word {
    held: AtomicU32,
    /// 0 until this process has locked once.
    known: AtomicU32,
}

pub(super) struct ForkLock<T> {
    word: NonNull<Word>,
    value: UnsafeCell<T>,
}

// SAFETY: `value` is used only while the lock is held, by one thread at a time.
unsafe impl<T: Send> Sync for ForkLock<T> {}
// SAFETY: the page belongs to no thread.
unsafe impl<T: Send> Send for ForkLock<T> {}

impl<T> ForkLock<T> {
    pub(super) fn new(value: T) -> Result<Self, Why> {
        let word = os::table(PAGE, true)?.cast::<Word>();
        let lock = Self { word, value: UnsafeCell::new(value) };
        // In the process that creates it, the data is consistent.
        lock.word().known.store(1, Ordering::Relaxed);
        Ok(lock)
    }

    fn word(&self) -> &Word {
        // SAFETY: mapped until drop; zeroed, or written only through these atomics.
        unsafe { self.word.as_ref() }
    }

    /// Runs `inside` with the lock held. `forked` is true for the first call in a process that `fork` made since.
    ///
    /// `inside` must be short and must not call other code, because a thread that waits here spins.
    pub(super) fn with<R>(&self, inside: impl FnOnce(&mut T, bool) -> R) -> R {
        let word = self.word();
        let mut tries = 0u32;
        // Acquire: pairs with the release store of the thread that released the lock.
        while word.held.compare_exchange_weak(0, 1, Ordering::Acquire, Ordering::Relaxed).is_err() {
            tries = tries.saturating_add(1);
            wait(tries);
        }
        let _leave = Leave(word);
        // Relaxed: used only while the lock is held.
        let forked = word.known.swap(1, Ordering::Relaxed) == 0;
        // SAFETY: the lock is held, so no other reference exists.
        inside(unsafe { &mut *self.value.get() }, forked)
    }
}

/// Spins, then yields, then sleeps, because the holder may not be running.
fn wait(tries: u32) {
    match tries {
        0..64 => std::hint::spin_loop(),
        64..128 => std::thread::yield_now(),
        _ => std::thread::sleep(std::time::Duration::from_micros(50)),
    }
}

struct Leave<'a>(&'a Word);

impl Drop for Leave<'_> {
    fn drop(&mut self) {
        // Release: the next thread that takes the lock sees all writes.
        self.0.held.store(0, Ordering::Release);
    }
}

impl<T> Drop for ForkLock<T> {
    fn drop(&mut self) {
        // SAFETY: the lock's own page, and no borrow of the lock exists any more.
        let _ = unsafe { os::unmap(self.word.cast(), PAGE) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn threads_take_turns() {
        let lock = ForkLock::new(0u64).unwrap();
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..10_000 {
                        lock.with(|count, forked| {
                            assert!(!forked);
                            *count += 1;
                        });
                    }
                });
            }
        });
        assert_eq!(lock.with(|count, _| *count), 40_000);
    }

    #[test]
    fn a_child_forked_while_the_lock_is_held_finds_it_open_and_the_parent_does_not() {
        let lock = ForkLock::new(7u64).unwrap();
        let status = lock.with(|_, _| {
            // SAFETY: the child calls only the lock and `_exit`.
            let child = unsafe { libc::fork() };
            if child == 0 {
                let first = lock.with(|value, forked| *value == 7 && forked);
                let second = lock.with(|_, forked| !forked);
                // SAFETY: ends the child at once.
                unsafe { libc::_exit(if first && second { 0 } else { 1 }) };
            }
            let mut status = -1;
            // SAFETY: waits for the child that was just forked.
            assert_eq!(unsafe { libc::waitpid(child, &mut status, 0) }, child);
            status
        });
        assert_eq!(status, 0);
        assert!(lock.with(|_, forked| !forked));
    }
}
