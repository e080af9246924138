//! Whether this thread counts: one pointer per thread. Each allocator call reads it, so it must cost next to nothing.
//!
//! On x86-64 with glibc it is read as C does with `-ftls-model=initial-exec`: two loads. Rust has no option for that
//! model in a shared object, and its own model calls `__tls_get_addr` each time. The eight bytes come from the space
//! that glibc reserves for libraries that are loaded late. On other systems it is a Rust thread-local.

use super::thread::Thread;

#[cfg(all(target_arch = "x86_64", target_env = "gnu"))]
mod place {
    use std::arch::{asm, global_asm};

    global_asm!(
        ".pushsection .tbss,\"awT\",@nobits",
        ".p2align 3",
        ".hidden allocwall_counting",
        ".globl allocwall_counting",
        ".type allocwall_counting, @object",
        ".size allocwall_counting, 8",
        "allocwall_counting:",
        ".zero 8",
        ".popsection",
    );

    #[inline(always)]
    pub(super) fn get() -> usize {
        let value: usize;
        // SAFETY: reads eight bytes of this thread's static block, which the loader reserved.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + allocwall_counting@GOTTPOFF]",
                "mov {0}, qword ptr fs:[{0}]",
                out(reg) value,
                options(nostack, preserves_flags, readonly),
            );
        }
        value
    }

    pub(super) fn set(value: usize) {
        // SAFETY: writes the same eight bytes.
        unsafe {
            asm!(
                "mov {0}, qword ptr [rip + allocwall_counting@GOTTPOFF]",
                "mov qword ptr fs:[{0}], {1}",
                out(reg) _,
                in(reg) value,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(all(target_arch = "x86_64", target_env = "gnu")))]
mod place {
    use std::cell::Cell;

    thread_local! {
        // It has no destructor, so it exists until the very end of a thread.
        static COUNTING: Cell<usize> = const { Cell::new(0) };
    }

    #[inline(always)]
    pub(super) fn get() -> usize {
        COUNTING.get()
    }

    pub(super) fn set(value: usize) {
        COUNTING.set(value);
    }
}

/// Null if this thread does not count.
#[inline(always)]
pub(super) fn get() -> *mut Thread {
    place::get() as *mut Thread
}

pub(super) fn set(thread: *mut Thread) {
    place::set(thread as usize);
}
