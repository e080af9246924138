//! Times the C library's allocator in a forked child, so that the pinned thresholds and the fragmented heap
//! affect only the child.

use crate::memory::thread_counts;
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::catalogue::modules::{ModuleRole, role_of_library};
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::CStr;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Read, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::time::Instant;

/// Nanoseconds per pair of malloc and free, on each of three paths.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct PairTimes {
    pub cached: f64,
    pub arena: f64,
    pub mapped: f64,
}

/// A process that times one repetition on request and sleeps otherwise. It ends with this value.
#[derive(Debug)]
pub struct MallocChild {
    pid: libc::pid_t,
    ask: File,
    answer: File,
}

/// Served by the thread cache: the same block again and again.
const CACHED_BYTES: usize = 64;
const CACHED_PAIRS: usize = 2000;
/// Passes the thread cache and reaches the arena: the cache holds 7 blocks per class (glibc, malloc.c,
/// TCACHE_FILL_COUNT), so 96 % of a batch of 200 come from the arena. Larger than the fast bins (128 bytes),
/// like most blocks that overflow the cache for a long time.
const ARENA_BYTES: usize = 256;
const ARENA_BATCH: usize = 200;
/// Above the mmap threshold, which is pinned to its initial 128 KiB (mallopt(3)). malloc writes its header,
/// so the price includes one first touch, as in real programs.
const MAPPED_BYTES: usize = 256 << 10;
const MAPPED_PAIRS: usize = 32;

impl MallocChild {
    pub fn start() -> Measured<MallocChild> {
        undisturbed_libc()?;
        let (child_ask, ask) = pipe()?;
        let (answer, child_answer) = pipe()?;
        // SAFETY: glibc and musl make malloc usable in the child of a threaded process (POSIX does not
        // promise it). Besides malloc, the child reads and writes two pipes, starts one thread, and leaves by
        // _exit.
        match unsafe { libc::fork() } {
            -1 => Err(Absence::new(Reason::NotPermitted, format!("fork: {}", io::Error::last_os_error()))),
            0 => {
                drop((ask, answer));
                serve(child_ask, child_answer);
                // SAFETY: ends the process at once; no state of the parent is flushed or run twice.
                unsafe { libc::_exit(0) }
            }
            pid => Ok(MallocChild { pid, ask, answer }),
        }
    }

    /// Times one repetition of each path.
    pub fn repeat(&mut self) -> Measured<PairTimes> {
        let mut bytes = [0; 24];
        self.ask.write_all(&[1]).and_then(|()| self.answer.read_exact(&mut bytes)).map_err(|error| {
            Absence::new(Reason::Vanished, format!("the process that times malloc: {error}"))
        })?;
        let value = |i: usize| f64::from_ne_bytes(std::array::from_fn(|j| bytes[i * 8 + j]));
        let (cached, arena, mapped) = (value(0), value(1), value(2));
        if mapped.is_nan() {
            return Err(Absence::new(
                Reason::NotApplicable,
                format!("a block of {} KiB is not served by mmap in this process", MAPPED_BYTES >> 10),
            ));
        }
        Ok(PairTimes { cached, arena, mapped })
    }
}

impl Drop for MallocChild {
    fn drop(&mut self) {
        // SAFETY: `pid` is our own child, not yet waited for, so its number cannot have been reused.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, std::ptr::null_mut(), 0);
        }
    }
}

/// Otherwise the price would be that of another allocator or setting than the target's default.
fn undisturbed_libc() -> Measured<()> {
    if !cfg!(target_env = "gnu") {
        return Err(Absence::new(
            Reason::NotApplicable,
            "this allocwall is linked with musl, and its malloc may not be that of the target",
        )
        .mend("use the allocwall that is linked with glibc"));
    }
    if let Some(owner) = owner_of_malloc().filter(|owner| !is_libc(owner)) {
        return Err(Absence::new(
            Reason::NotApplicable,
            format!("malloc of this process belongs to {owner}, not to the C library"),
        )
        .mend(Advice::command("LD_PRELOAD= allocwall calibrate --fresh")));
    }
    let setting =
        std::env::vars_os().map(|(name, value)| (name.into_string(), value)).find_map(|(name, value)| {
            let name = name.ok()?;
            let touches_malloc = match name.as_str() {
                "GLIBC_TUNABLES" => value.to_string_lossy().contains("glibc.malloc."),
                // MALLOC_PERTURB_ and similar. Without the underscore at the end the name is not glibc's:
                // MALLOC_ARENA_MAX changes no price of a single thread, and jemalloc has variables of its
                // own.
                _ => name.starts_with("MALLOC_") && name.ends_with('_'),
            };
            touches_malloc.then_some(name)
        });
    match setting {
        None => Ok(()),
        Some(name) => Err(Absence::new(
            Reason::NotApplicable,
            format!("{name} changes malloc's settings for this process"),
        )
        .mend(Advice::command(format!("env -u {name} allocwall calibrate --fresh")))),
    }
}

/// The path of the module that provides malloc in this process, if the loader knows it.
pub fn owner_of_malloc() -> Option<String> {
    // SAFETY: an all-zero Dl_info is a valid value (null pointers).
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    // SAFETY: `info` is a live Dl_info that the call fills; the address need not be valid.
    let found = unsafe { libc::dladdr(libc::malloc as *const () as *const libc::c_void, &raw mut info) };
    if found == 0 || info.dli_fname.is_null() {
        return None;
    }
    // SAFETY: dladdr succeeded, so the name is a NUL-terminated string that lives as long as its module.
    Some(unsafe { CStr::from_ptr(info.dli_fname) }.to_string_lossy().into_owned())
}

/// With a static libc, the owner is the executable itself.
fn is_libc(path: &str) -> bool {
    let name = path.rsplit('/').next().unwrap_or(path);
    let own = std::env::current_exe().is_ok_and(|exe| exe.as_os_str() == path || exe.ends_with(name));
    own || role_of_library(name) == Some(ModuleRole::Libc)
}

/// The version of the C library in use, for the machine's identity.
pub fn libc_name() -> String {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: returns a static NUL-terminated string.
        let version = unsafe { CStr::from_ptr(libc::gnu_get_libc_version()) };
        format!("glibc {}", version.to_string_lossy())
    }
    #[cfg(not(target_env = "gnu"))]
    {
        "musl".to_owned()
    }
}

fn pipe() -> Measured<(File, File)> {
    let mut ends = [0; 2];
    // SAFETY: `ends` has room for the two descriptors.
    if unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
        return Err(Absence::new(Reason::NotPermitted, format!("pipe: {}", io::Error::last_os_error())));
    }
    // SAFETY: both descriptors were just opened and have no other owner.
    Ok(unsafe { (File::from(OwnedFd::from_raw_fd(ends[0])), File::from(OwnedFd::from_raw_fd(ends[1]))) })
}

/// The child's main loop: one repetition for every byte read, until the parent is gone.
fn serve(mut ask: File, mut answer: File) {
    // SAFETY: a plain request about this process. If it fails, the child of a killed parent lives until its
    // next read.
    unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
    pin_thresholds();
    fill_holes();
    // glibc takes no locks while a process has one thread (SINGLE_THREAD_P); services have more threads.
    let _ = std::thread::Builder::new().spawn(|| {
        loop {
            std::thread::park();
        }
    });
    let mut byte = [0];
    while ask.read_exact(&mut byte).is_ok() {
        let times = [time_cached(), time_arena(), time_mapped()];
        let bytes: Vec<u8> = times.iter().flat_map(|ns| ns.to_ne_bytes()).collect();
        if answer.write_all(&bytes).is_err() {
            return;
        }
    }
}

/// glibc raises its mmap threshold at the first free of a mapped block, and trims the heap at twice that
/// size. Both would make the prices depend on the order of the measurements.
fn pin_thresholds() {
    #[cfg(target_env = "gnu")]
    // SAFETY: mallopt only changes settings of this process's allocator.
    unsafe {
        libc::mallopt(libc::M_MMAP_THRESHOLD, 128 << 10);
        libc::mallopt(libc::M_TRIM_THRESHOLD, 64 << 20);
    }
}

/// malloc tries its free lists and the top of the heap before mmap. Holes from the parent's heap are filled
/// until a block of the mapped size is served by mmap.
fn fill_holes() {
    const MOST: usize = 1 << 10;
    for _ in 0..MOST {
        if time_mapped().is_finite() {
            return;
        }
        // Never freed: the process is short-lived, and untouched memory costs nothing.
        allocate(MAPPED_BYTES);
    }
}

fn time_cached() -> f64 {
    per_pair(CACHED_PAIRS, || {
        for _ in 0..CACHED_PAIRS {
            free(allocate(CACHED_BYTES));
        }
    })
}

fn time_arena() -> f64 {
    let mut blocks = [std::ptr::null_mut(); ARENA_BATCH];
    per_pair(ARENA_BATCH, || {
        for block in &mut blocks {
            *block = allocate(ARENA_BYTES);
        }
        // Every second block first: chunks are freed between live ones and merged later, as in a real heap.
        for start in [0, 1] {
            for &block in blocks[start..].iter().step_by(2) {
                free(block);
            }
        }
    })
}

/// Not a number if no mmap took place: a fresh mapping faults at malloc's header, a reused block does not.
fn time_mapped() -> f64 {
    let faults = thread_counts().minor_faults;
    let ns = per_pair(MAPPED_PAIRS, || {
        for _ in 0..MAPPED_PAIRS {
            free(allocate(MAPPED_BYTES));
        }
    });
    match thread_counts().minor_faults - faults {
        faults if faults >= 2 * MAPPED_PAIRS as u64 => ns,
        _ => f64::NAN,
    }
}

/// One run to warm up, one run timed.
fn per_pair(pairs: usize, mut run: impl FnMut()) -> f64 {
    run();
    let start = Instant::now();
    run();
    start.elapsed().as_nanos() as f64 / pairs as f64
}

fn allocate(bytes: usize) -> *mut libc::c_void {
    // SAFETY: malloc accepts any size; a null result is only passed to free, which accepts it.
    black_box(unsafe { libc::malloc(black_box(bytes)) })
}

fn free(block: *mut libc::c_void) {
    // SAFETY: every caller passes a block from `allocate`, once.
    unsafe { libc::free(block) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapped_block_is_dearer_than_a_cached_one() {
        let mut child = match MallocChild::start() {
            Ok(child) => child,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let mut times: Vec<PairTimes> = (0..9).map(|_| child.repeat().unwrap()).collect();
        times.sort_by(|a, b| a.cached.total_cmp(&b.cached));
        let PairTimes { cached, arena, mapped } = times[4];
        assert!(0.0 < cached && cached < mapped, "{cached} {arena} {mapped}");
        assert!(0.0 < arena && arena < mapped, "{cached} {arena} {mapped}");
    }

    #[test]
    fn a_hole_in_the_heap_is_not_timed_as_a_mapping() {
        // Smaller than the threshold, so each block comes from the heap and leaves a hole there when freed.
        // The guard after it keeps the hole from being trimmed.
        let holes: Vec<_> = (0..64).map(|_| allocate(100 << 10)).collect();
        let guard = allocate(1000);
        holes.into_iter().for_each(free);
        let Ok(mut child) = MallocChild::start() else {
            return println!("skipped: malloc is not libc's here");
        };
        let times = child.repeat().unwrap();
        assert!(times.mapped > times.arena, "{times:?}");
        free(guard);
    }

    #[test]
    fn a_child_that_died_is_an_absence() {
        let Ok(mut child) = MallocChild::start() else {
            return println!("skipped: malloc is not libc's here");
        };
        // SAFETY: our own child.
        unsafe { libc::kill(child.pid, libc::SIGKILL) };
        // The first request may still find the pipe open.
        let last = (0..3).map(|_| child.repeat()).last().unwrap();
        assert_eq!(last.unwrap_err().reason, Reason::Vanished);
    }

    #[test]
    fn who_owns_malloc() {
        for (path, libc) in [
            ("/lib/x86_64-linux-gnu/libc.so.6", true),
            ("/lib64/libc-2.31.so", true),
            ("/lib/ld-musl-x86_64.so.1", true),
            ("/usr/lib/libjemalloc.so.2", false),
            ("/usr/lib/libmimalloc.so", false),
        ] {
            assert_eq!(is_libc(path), libc, "{path}");
        }
        assert!(owner_of_malloc().is_some());
    }
}
