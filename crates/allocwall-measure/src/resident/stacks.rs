//! Stacks of threads in private memory.

use super::pages::Words;
use crate::memory_kinds::PAGE;
use allocwall_host::proc::{ProcFs, SyscallState};
use allocwall_model::units::Reason;

/// The descriptor of a thread (`struct pthread`) is in the last pages of its stack. More would be found only by
/// reading more.
const SEARCHED: u64 = 3 * PAGE;
/// TCB_ALIGNMENT of sysdeps/x86_64/nptl/tls.h.
const ALIGNMENT: u64 = 64;
/// The fields for the block of the stack, `stackblock` and `stackblock_size` of nptl/descr.h, are between these
/// offsets; their place depends on the version of glibc.
const BLOCK_FIELDS: std::ops::Range<u64> = 0x200..0x900;
/// The largest stack. One that is larger is taken for something else.
const LARGEST: u64 = 8 << 30;

/// A stack that ends where this range does: its start and its end. `start` may be within it.
///
/// The descriptor has its own address twice (tcbhead_t: tcb and self), and says where the stack starts and how long it
/// is.
pub fn stack_before(start: u64, end: u64, words: &mut dyn Words) -> Option<(u64, u64)> {
    let lowest = start.max(end.saturating_sub(SEARCHED)).next_multiple_of(ALIGNMENT);
    let mut at = end.checked_sub(ALIGNMENT)? & !(ALIGNMENT - 1);
    while at >= lowest {
        if words.word(at) == Some(at) && words.word(at + 16) == Some(at) {
            return block(at, end, words);
        }
        at = at.checked_sub(ALIGNMENT)?;
    }
    None
}

fn block(descriptor: u64, end: u64, words: &mut dyn Words) -> Option<(u64, u64)> {
    let mut before = words.word(descriptor + BLOCK_FIELDS.start);
    for offset in BLOCK_FIELDS.step_by(8) {
        let size = words.word(descriptor + offset + 8);
        if let (Some(start), Some(size)) = (before, size)
            && start.is_multiple_of(PAGE)
            && size.is_multiple_of(PAGE)
            && size <= LARGEST
            && start < descriptor
            && start.checked_add(size) == Some(end)
        {
            return Some((start, end));
        }
        before = size;
    }
    None
}

/// Where the stacks of threads are. For C libraries whose descriptors have another form.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Pointers {
    /// Stack pointers of threads that wait, sorted.
    pub known: Vec<u64>,
    /// Some threads ran, could not be read, or are above the limit.
    pub incomplete: bool,
}

pub fn pointers(proc: &ProcFs, pid: i32) -> Pointers {
    const MOST_THREADS: usize = 1024;
    let mut pointers = Pointers::default();
    // A process can have 4 million threads (PID_MAX_LIMIT of include/linux/threads.h): not all are listed.
    let Ok(entries) = std::fs::read_dir(proc.root().join(format!("{pid}/task"))) else {
        pointers.incomplete = true;
        return pointers;
    };
    let threads = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    for (nth, tid) in threads.enumerate() {
        if nth >= MOST_THREADS {
            pointers.incomplete = true;
            break;
        }
        match proc.thread_syscall(pid, tid) {
            Ok(SyscallState::Blocked { ip_sp: Some((_, sp)), .. }) => pointers.known.push(sp),
            // Its stack no longer exists.
            Err(absence) if absence.reason == Reason::Vanished => {}
            _ => pointers.incomplete = true,
        }
    }
    pointers.known.sort_unstable();
    pointers
}

#[cfg(test)]
mod tests {
    use super::super::pages::Made;
    use super::*;
    use std::collections::BTreeMap;

    const START: u64 = 0x7f00_0000_0000;
    const END: u64 = START + (8 << 20);

    /// A descriptor, and the fields of the stack at an offset from it.
    fn made(descriptor: u64, offset: u64, start: u64, size: u64) -> Made {
        let mut words: BTreeMap<u64, u64> = (descriptor..END).step_by(8).map(|at| (at, 7)).collect();
        words.extend([
            (descriptor, descriptor),
            (descriptor + 16, descriptor),
            (descriptor + offset, start),
            (descriptor + offset + 8, size),
        ]);
        Made(words)
    }

    #[test]
    fn a_stack_ends_with_the_descriptor_of_its_thread() {
        let descriptor = END - 0x940;
        for offset in [0x200, 0x690, 0x8f0] {
            let mut memory = made(descriptor, offset, START, 8 << 20);
            assert_eq!(stack_before(START, END, &mut memory), Some((START, END)), "{offset:x}");
        }
        // A guard page below the mapping is part of the block.
        let mut memory = made(descriptor, 0x690, START - PAGE, (8 << 20) + PAGE);
        assert_eq!(stack_before(START, END, &mut memory), Some((START - PAGE, END)));
    }

    #[test]
    fn memory_that_resembles_a_descriptor_is_not_a_stack() {
        let descriptor = END - 0x940;
        for (start, size) in
            [(START, 4 << 20), (START + 8, 8 << 20), (0, 0), (END, 0), (u64::MAX - 4095, PAGE)]
        {
            let mut memory = made(descriptor, 0x690, start, size);
            assert_eq!(stack_before(START, END, &mut memory), None, "{start:x} {size:x}");
        }
        let mut memory = made(descriptor, 0x690, START, 8 << 20);
        memory.0.insert(descriptor + 16, descriptor + 64);
        assert_eq!(stack_before(START, END, &mut memory), None);
        // Far from the end, and not aligned.
        for descriptor in [END - 4 * PAGE, END - 0x948] {
            let mut memory = made(descriptor, 0x690, START, 8 << 20);
            assert_eq!(stack_before(START, END, &mut memory), None, "{descriptor:x}");
        }
        assert_eq!(stack_before(0, 32, &mut memory), None);
    }

    #[test]
    fn pointers_are_those_of_threads_that_wait() {
        let root = tempfile::tempdir().unwrap();
        let task = root.path().join("7/task");
        let thread = |tid: i32, syscall: &str| {
            let folder = task.join(tid.to_string());
            std::fs::create_dir_all(&folder).unwrap();
            std::fs::write(folder.join("syscall"), syscall).unwrap();
        };
        let proc = ProcFs::at(root.path());
        assert!(pointers(&proc, 7).incomplete, "no list of threads");
        thread(8, "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7f0000002000 0x55\n");
        thread(7, "202 0x1 0x2 0x3 0x4 0x5 0x6 0x7f0000001000 0x55\n");
        let waiting = Pointers { known: vec![0x7f00_0000_1000, 0x7f00_0000_2000], incomplete: false };
        assert_eq!(pointers(&proc, 7), waiting);
        thread(9, "running\n");
        assert_eq!(pointers(&proc, 7), Pointers { incomplete: true, ..waiting });
    }
}
