//! System calls in which threads wait: what such a wait means, and the call's number on each architecture
//! (arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h).

/// What a thread that sleeps in a system call waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CallWait {
    /// A lock or a condition; the user stack shows which.
    Futex,
    /// A [`MapCall`]: it blocks only on the address-space lock.
    Map,
    Storage,
    /// Reads or writes a file at a position: for storage, or for a lock of the file.
    File,
    Lock,
    /// Starts a process. The caller of vfork and posix_spawn waits until the child runs its own program or ends.
    Child,
    /// Waits for work: readiness, data, a child process, a timer.
    Idle,
}

use CallWait::*;

/// Waits for disks and for the network alike. The same number on every architecture.
pub const IO_URING_ENTER: i64 = 426;

/// Name, x86-64 number, aarch64 number, meaning. -1 if the architecture does not have the call.
#[rustfmt::skip]
pub const CALLS: &[(&str, i64, i64, CallWait)] = &[
    ("read", 0, 63, Idle),
    ("readv", 19, 65, Idle),
    ("poll", 7, -1, Idle),
    ("ppoll", 271, 73, Idle),
    ("select", 23, -1, Idle),
    ("pselect6", 270, 72, Idle),
    ("epoll_wait", 232, -1, Idle),
    ("epoll_pwait", 281, 22, Idle),
    ("epoll_pwait2", 441, 441, Idle),
    ("accept", 43, 202, Idle),
    ("accept4", 288, 242, Idle),
    ("connect", 42, 203, Idle),
    ("recvfrom", 45, 207, Idle),
    ("recvmsg", 47, 212, Idle),
    ("recvmmsg", 299, 243, Idle),
    ("nanosleep", 35, 101, Idle),
    ("clock_nanosleep", 230, 115, Idle),
    ("pause", 34, -1, Idle),
    ("wait4", 61, 260, Idle),
    ("waitid", 247, 95, Idle),
    ("rt_sigsuspend", 130, 133, Idle),
    ("rt_sigtimedwait", 128, 137, Idle),
    ("restart_syscall", 219, 128, Idle),
    ("io_uring_enter", IO_URING_ENTER, IO_URING_ENTER, Idle),
    ("msgrcv", 70, 188, Idle),
    ("mq_timedreceive", 243, 183, Idle),
    ("futex", 202, 98, Futex),
    ("futex_waitv", 449, 449, Futex),
    ("futex_wait", 455, 455, Futex),
    ("flock", 73, 32, Lock),
    ("semop", 65, 193, Lock),
    ("semtimedop", 220, 192, Lock),
    ("clone", 56, 220, Child),
    ("clone3", 435, 435, Child),
    ("vfork", 58, -1, Child),
    ("fsync", 74, 82, Storage),
    ("fdatasync", 75, 83, Storage),
    ("sync_file_range", 277, 84, Storage),
    ("msync", 26, 227, Storage),
    ("sync", 162, 81, Storage),
    ("syncfs", 306, 267, Storage),
    // Only files have a position to read or write at.
    ("pread64", 17, 67, File),
    ("pwrite64", 18, 68, File),
    ("preadv", 295, 69, File),
    ("pwritev", 296, 70, File),
    ("preadv2", 327, 286, File),
    ("pwritev2", 328, 287, File),
    ("io_getevents", 208, 4, Storage),
    ("io_pgetevents", 333, 292, Storage),
    ("mmap", 9, 222, Map),
    ("munmap", 11, 215, Map),
    ("mprotect", 10, 226, Map),
    ("mremap", 25, 216, Map),
    ("madvise", 28, 233, Map),
    ("brk", 12, 214, Map),
];

/// None for other calls and for other architectures.
pub fn call_wait(architecture: &str, number: i64) -> Option<CallWait> {
    if number < 0 {
        return None;
    }
    CALLS
        .iter()
        .find(|(_, x86_64, aarch64, _)| match architecture {
            "x86_64" => *x86_64 == number,
            "aarch64" => *aarch64 == number,
            _ => false,
        })
        .map(|call| call.3)
}

/// A system call that changes the address space. A recording counts all of them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MapCall {
    Mmap,
    Munmap,
    Brk,
    Mremap,
    Madvise,
    Mprotect,
}

impl MapCall {
    pub const ALL: [MapCall; 6] =
        [MapCall::Mmap, MapCall::Munmap, MapCall::Brk, MapCall::Mremap, MapCall::Madvise, MapCall::Mprotect];

    pub fn name(self) -> &'static str {
        match self {
            MapCall::Mmap => "mmap",
            MapCall::Munmap => "munmap",
            MapCall::Brk => "brk",
            MapCall::Mremap => "mremap",
            MapCall::Madvise => "madvise",
            MapCall::Mprotect => "mprotect",
        }
    }

    /// Calls that get memory from the kernel or return it: the rate of map calls. mprotect only changes the access to
    /// mapped memory, so it would distort the number of pages per mapped block, which is computed from this rate.
    pub fn moves_memory(self) -> bool {
        self != MapCall::Mprotect
    }
}

/// Kernel functions that show what a sleeping thread waits for, for every caller. The first match decides, from the leaf
/// outwards; a `*` matches any characters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KernelWait {
    /// A read-write semaphore: the address-space lock in a map call or a fault.
    Semaphore,
    Futex,
    Storage,
    Memory,
    /// Locks of the kernel's own work to start a process, such as those of its cgroups.
    Start,
    /// A process starts or ends, and inherits or gives up the counters of those who measure it: allocwall, or perf.
    Perf,
    /// The caller of vfork or posix_spawn waits until the child runs its own program or ends.
    Child,
    Idle,
    /// Stopped by a signal or a tracer, or in a frozen cgroup.
    Stopped,
}

#[rustfmt::skip]
pub const SLEEPS: &[(&str, KernelWait)] = &[
    // kernel/freezer.c for cgroup v1; kernel/signal.c for cgroup v2 and the other stops.
    ("__refrigerator", KernelWait::Stopped),
    ("do_freezer_trap", KernelWait::Stopped),
    ("do_signal_stop", KernelWait::Stopped),
    ("do_jobctl_trap", KernelWait::Stopped),
    ("ptrace_stop*", KernelWait::Stopped),
    ("rwsem_down_*", KernelWait::Semaphore),
    ("__down_read*", KernelWait::Semaphore),
    ("__down_write*", KernelWait::Semaphore),
    ("down_read*", KernelWait::Semaphore),
    ("down_write*", KernelWait::Semaphore),
    ("__vma_start_write", KernelWait::Semaphore),
    ("__vma_enter_locked", KernelWait::Semaphore),
    // futex_wait_queue_me until 5.15, futex_wait_queue until 6.13, then futex_do_wait.
    ("futex_*", KernelWait::Futex),
    ("__futex_*", KernelWait::Futex),
    ("do_futex", KernelWait::Futex),
    ("io_schedule*", KernelWait::Storage),
    ("folio_wait_*", KernelWait::Storage),
    ("wait_on_page_*", KernelWait::Storage),
    ("__lock_page*", KernelWait::Storage),
    ("__folio_lock*", KernelWait::Storage),
    ("bit_wait_io", KernelWait::Storage),
    ("__wait_on_buffer", KernelWait::Storage),
    ("blk_*", KernelWait::Storage),
    ("submit_bio_wait", KernelWait::Storage),
    ("rq_qos_wait", KernelWait::Storage),
    // The journal of ext4: fs/jbd2/transaction.c.
    ("jbd2_*", KernelWait::Storage),
    ("start_this_handle", KernelWait::Storage),
    ("wait_transaction_*", KernelWait::Storage),
    ("add_transaction_credits", KernelWait::Storage),
    ("do_get_write_access", KernelWait::Storage),
    // sync and syncfs: fs/fs-writeback.c.
    ("wb_wait_for_completion", KernelWait::Storage),
    // Btrfs, without the locks of its trees and files: fs/btrfs/.
    ("wait_current_trans", KernelWait::Storage),
    ("read_extent_buffer_pages*", KernelWait::Storage),
    ("btrfs_wait_*", KernelWait::Storage),
    ("btrfs_start_ordered_extent*", KernelWait::Storage),
    ("btrfs_commit_transaction", KernelWait::Storage),
    ("btrfs_sync_log", KernelWait::Storage),
    // Every wait of ZFS: module/os/linux/spl/spl-condvar.c.
    ("cv_wait_common", KernelWait::Storage),
    ("__cv_timedwait_common", KernelWait::Storage),
    ("balance_dirty_pages*", KernelWait::Storage),
    ("read_events", KernelWait::Storage),
    // Direct I/O, and the log of a file system: fs/iomap/direct-io.c, fs/xfs/.
    ("__iomap_dio_rw", KernelWait::Storage),
    ("iomap_dio_*", KernelWait::Storage),
    ("dio_await_*", KernelWait::Storage),
    ("do_blockdev_direct_IO", KernelWait::Storage),
    ("__blockdev_direct_IO", KernelWait::Storage),
    ("blkdev_*", KernelWait::Storage),
    ("__blkdev_*", KernelWait::Storage),
    ("xlog_*", KernelWait::Storage),
    ("xfs_buf_*", KernelWait::Storage),
    // The server of a FUSE file system (fs/fuse/dev.c). Its users wait for storage: see `REMOTE_STORAGE`.
    ("fuse_dev_*", KernelWait::Idle),
    ("reclaim_throttle", KernelWait::Memory),
    ("shrink_*", KernelWait::Memory),
    ("*mem_cgroup_handle_over_high", KernelWait::Memory),
    // kernel/events/core.c, kernel/trace/trace_event_perf.c.
    ("perf_*", KernelWait::Perf),
    ("_free_event", KernelWait::Perf),
    ("inherit_event*", KernelWait::Perf),
    ("inherit_task_group*", KernelWait::Perf),
    // kernel/fork.c. copy_process is inside kernel_clone (_do_fork before 5.10), which alone waits for a child of vfork.
    ("copy_process", KernelWait::Start),
    ("wait_for_vfork_done", KernelWait::Child),
    ("kernel_clone", KernelWait::Child),
    ("_do_fork", KernelWait::Child),
    ("do_epoll_wait", KernelWait::Idle),
    ("ep_poll", KernelWait::Idle),
    ("do_sys_poll", KernelWait::Idle),
    ("do_select", KernelWait::Idle),
    ("hrtimer_nanosleep", KernelWait::Idle),
    ("inet_csk_accept", KernelWait::Idle),
    ("unix_accept", KernelWait::Idle),
    ("*_wait_data", KernelWait::Idle),
    ("sk_wait_*", KernelWait::Idle),
    // Another thread uses the same socket: net/core/sock.c.
    ("__lock_sock", KernelWait::Idle),
    ("lock_sock_nested", KernelWait::Idle),
    ("unix_stream_*", KernelWait::Idle),
    ("__skb_wait_for_more_packets", KernelWait::Idle),
    ("pipe_read", KernelWait::Idle),
    ("anon_pipe_read", KernelWait::Idle),
    ("pipe_wait_readable", KernelWait::Idle),
    ("eventfd_read", KernelWait::Idle),
    ("do_wait", KernelWait::Idle),
    ("__do_wait", KernelWait::Idle),
    ("do_sigtimedwait", KernelWait::Idle),
    ("sigsuspend", KernelWait::Idle),
    ("n_tty_read", KernelWait::Idle),
    ("io_cqring_wait", KernelWait::Idle),
];

/// Kernel functions below which a thread waits for a file system of the network (NFS, SMB, Ceph, 9P), or of another process (FUSE):
/// fs/, net/sunrpc/, net/9p/.
pub const REMOTE_STORAGE: &[&str] = &[
    "nfs_*",
    "nfs3_*",
    "nfs4_*",
    "rpc_*",
    "__rpc_*",
    "cifs_*",
    "smb2_*",
    "ceph_*",
    "p9_*",
    "v9fs_*",
    "netfs_*",
    "fuse_*",
    "__fuse_*",
    "request_wait_answer",
];

/// Whether a thread that waits for storage below this function waits for no disk of this machine.
pub fn is_remote_storage(symbol: &str) -> bool {
    let name = super::symbols::bare_name(symbol);
    REMOTE_STORAGE.iter().any(|pattern| super::symbols::fits(pattern, name))
}

pub fn kernel_wait(symbol: &str) -> Option<KernelWait> {
    let name = super::symbols::bare_name(symbol);
    let listed = SLEEPS.iter().find(|(p, _)| super::symbols::fits(p, name)).map(|s| s.1);
    listed.or_else(|| is_remote_storage(name).then_some(KernelWait::Storage))
}

/// User functions that separate a thread that waits for a lock from a thread that waits for work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UserWait {
    Lock,
    /// CPython's interpreter lock.
    Gil,
    /// A condition variable, a semaphore, a parked thread.
    Condition,
    /// A runtime's own function to wait for work: always idle, whatever primitive it uses.
    Work,
    /// The runtime holds the thread: at a safepoint, or at one of its own locks.
    Pause,
}

/// CPython's interpreter lock and HotSpot's monitors are locks, but use condition variables. Their frames are further out than the
/// primitive's, so a lock anywhere on the stack has priority over a condition.
#[rustfmt::skip]
pub const USER_WAITS: &[(&str, UserWait)] = &[
    ("take_gil", UserWait::Gil),
    ("PyEval_RestoreThread", UserWait::Gil),
    ("PyEval_AcquireThread", UserWait::Gil),
    ("_PyMutex_Lock*", UserWait::Lock),
    ("PyMutex_Lock*", UserWait::Lock),
    ("ObjectMonitor::enter*", UserWait::Lock),
    ("ObjectMonitor::EnterI*", UserWait::Lock),
    ("ObjectMonitor::ReenterI*", UserWait::Lock),
    ("os::PlatformMonitor::wait*", UserWait::Work),
    ("ObjectMonitor::wait*", UserWait::Work),
    ("PosixSemaphore::wait*", UserWait::Work),
    ("LinuxWaitBarrier::wait*", UserWait::Pause),
    // The JVM's own mutexes (Heap_lock, Threads_lock): a collection holds them, not the application.
    ("Mutex::lock_contended*", UserWait::Pause),
    ("Monitor::lock*", UserWait::Lock),
    ("Mutex::lock*", UserWait::Lock),
    ("runtime.lock*", UserWait::Lock),
    ("absl::Mutex::Lock*", UserWait::Lock),
    ("parking_lot::raw_mutex::*", UserWait::Lock),
    ("parking_lot::raw_rwlock::*", UserWait::Lock),
    ("std::sys::*::condvar::*", UserWait::Condition),
    ("std::sys::*::mutex::*", UserWait::Lock),
    ("std::sys::*::rwlock::*", UserWait::Lock),
    ("std::mutex::lock", UserWait::Lock),
    ("__lll_lock_wait*", UserWait::Lock),
    ("lll_lock*", UserWait::Lock),
    ("__GI___lll_lock_wait*", UserWait::Lock),
    ("*pthread_mutex_*lock*", UserWait::Lock),
    ("*pthread_rwlock_*lock*", UserWait::Lock),
    ("*pthread_cond_*wait*", UserWait::Condition),
    ("sem_wait*", UserWait::Condition),
    ("sem_timedwait*", UserWait::Condition),
    ("sem_clockwait*", UserWait::Condition),
    ("__new_sem_wait*", UserWait::Condition),
    ("*pthread_*join*", UserWait::Condition),
    ("*pthread_barrier_wait*", UserWait::Condition),
    ("std::thread::park*", UserWait::Condition),
    ("std::condition_variable::wait*", UserWait::Condition),
    ("absl::CondVar::*", UserWait::Condition),
    ("runtime.futex*", UserWait::Condition),
    ("runtime.notesleep*", UserWait::Condition),
    ("uv_cond_*", UserWait::Condition),
    ("uv_sem_wait", UserWait::Condition),
];

pub fn user_wait(symbol: &str) -> Option<UserWait> {
    let name = super::symbols::bare_name(symbol);
    USER_WAITS.iter().find(|(p, _)| super::symbols::fits(p, name)).map(|s| s.1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_means_what_its_architecture_says() {
        assert_eq!(call_wait("x86_64", 202), Some(Futex));
        assert_eq!(call_wait("aarch64", 98), Some(Futex));
        // 202 is accept on aarch64.
        assert_eq!(call_wait("aarch64", 202), Some(Idle));
        assert_eq!(call_wait("riscv64", 98), None);
        // -1 means blocked outside a call. It must not match a call that the architecture does not have, also -1.
        assert_eq!(call_wait("aarch64", -1), None);
    }

    #[test]
    fn threads_wait_for_the_address_space_lock_in_every_map_call() {
        let mut waiting: Vec<&str> = CALLS.iter().filter(|call| call.3 == Map).map(|call| call.0).collect();
        let mut map_calls = MapCall::ALL.map(MapCall::name);
        waiting.sort_unstable();
        map_calls.sort_unstable();
        assert_eq!(waiting, map_calls);
    }

    #[test]
    fn this_machines_numbers_are_the_tables() {
        let of = |name: &str| {
            CALLS.iter().find(|c| c.0 == name).map(|c| if cfg!(target_arch = "x86_64") { c.1 } else { c.2 })
        };
        if !cfg!(any(target_arch = "x86_64", target_arch = "aarch64")) {
            println!("skipped: no column for this architecture");
            return;
        }
        for (name, number) in [
            ("read", libc::SYS_read),
            ("ppoll", libc::SYS_ppoll),
            ("epoll_pwait", libc::SYS_epoll_pwait),
            ("accept4", libc::SYS_accept4),
            ("recvmsg", libc::SYS_recvmsg),
            ("clock_nanosleep", libc::SYS_clock_nanosleep),
            ("rt_sigtimedwait", libc::SYS_rt_sigtimedwait),
            ("wait4", libc::SYS_wait4),
            ("waitid", libc::SYS_waitid),
            ("futex", libc::SYS_futex),
            ("flock", libc::SYS_flock),
            ("semop", libc::SYS_semop),
            ("clone", libc::SYS_clone),
            ("clone3", libc::SYS_clone3),
            ("fsync", libc::SYS_fsync),
            ("msync", libc::SYS_msync),
            ("sync", libc::SYS_sync),
            ("syncfs", libc::SYS_syncfs),
            ("pread64", libc::SYS_pread64),
            ("pwrite64", libc::SYS_pwrite64),
            ("preadv2", libc::SYS_preadv2),
            ("pwritev2", libc::SYS_pwritev2),
            ("io_getevents", libc::SYS_io_getevents),
            ("mmap", libc::SYS_mmap),
            ("munmap", libc::SYS_munmap),
            ("mprotect", libc::SYS_mprotect),
            ("mremap", libc::SYS_mremap),
            ("madvise", libc::SYS_madvise),
            ("brk", libc::SYS_brk),
        ] {
            assert_eq!(of(name), Some(number), "{name}");
        }
    }

    #[test]
    fn a_start_of_a_process_is_no_storage() {
        for (symbol, wait) in [
            ("kernel_clone", Some(KernelWait::Child)),
            ("copy_process.constprop.0", Some(KernelWait::Start)),
            ("perf_trace_init", Some(KernelWait::Perf)),
            ("folio_wait_bit_common", Some(KernelWait::Storage)),
            ("do_wait", Some(KernelWait::Idle)),
            ("bprm_execve", None),
            ("rpc_wait_bit_killable", Some(KernelWait::Storage)),
            ("request_wait_answer", Some(KernelWait::Storage)),
            ("fuse_dev_do_read", Some(KernelWait::Idle)),
        ] {
            assert_eq!(kernel_wait(symbol), wait, "{symbol}");
        }
    }

    #[test]
    fn locks_and_conditions_are_separated() {
        assert_eq!(user_wait("___pthread_mutex_lock"), Some(UserWait::Lock));
        assert_eq!(user_wait("pthread_cond_timedwait@@GLIBC_2.3.2"), Some(UserWait::Condition));
        assert_eq!(
            user_wait("std::sys::pal::unix::condvar::futex::Condvar::wait"),
            Some(UserWait::Condition)
        );
        assert_eq!(user_wait("std::sys::sync::mutex::futex::Mutex::lock_contended"), Some(UserWait::Lock));
        assert_eq!(user_wait("serve_request"), None);
    }
}
