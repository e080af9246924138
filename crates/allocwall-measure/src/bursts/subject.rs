//! One process whose calls are counted: the file of its allocator, its CPU time, and that of its threads.

use super::entries::{Entry, entries};
use crate::allocations::stacks::Stacks;
use allocwall_host::clock::{monotonic_ns, process_cpu_ns};
use allocwall_host::elf::{ElfFile, ElfKind, Table};
use allocwall_host::maps;
use allocwall_host::proc::ProcFs;
use allocwall_model::bursts::{BurstProcess, EntryKind};
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::AllocatorKind;
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::HashMap;
use std::fs::File;

/// The most threads of one process that are listed.
const MOST_THREADS: usize = 4096;
/// The pause after a list of threads, in times of what the list took.
const LIST_PAUSE: u64 = 20;

/// This machine's number in the header of an ELF file.
#[cfg(target_arch = "x86_64")]
const MACHINE: u16 = 62;
#[cfg(target_arch = "aarch64")]
const MACHINE: u16 = 183;

pub struct Subject {
    pub pid: i32,
    start_ticks: u64,
    command: Vec<String>,
    allocator: String,
    /// The file with the functions.
    pub file: File,
    pub entries: Vec<Entry>,
    /// realloc of a null pointer calls malloc.
    pub null_passes: bool,
    /// For its stacks; None if there are too many processes.
    pub image: Option<u32>,
    /// What is not counted in it.
    pub missing: Option<Absence>,
    /// CPU time at the start of the count and at the last reading, ns.
    cpu_first: u64,
    cpu_last: u64,
    pub ended: bool,
    threads: HashMap<i32, ThreadTime>,
    listed_ns: u64,
    list_again_ns: u64,
}

/// CPU time of a thread, ns.
#[derive(Clone, Copy, Debug)]
struct ThreadTime {
    first: u64,
    /// When that was, or when the process was listed before the thread started.
    first_ns: u64,
    last: u64,
    last_ns: u64,
    /// Of a CPU: the mean of the time since the last list and of the whole time. 0 after its end.
    share: f64,
}

impl ThreadTime {
    fn new(first: u64, first_ns: u64) -> ThreadTime {
        ThreadTime { first, first_ns, last: first, last_ns: first_ns, share: 0.0 }
    }

    fn update(&mut self, cpu: u64, now: u64) {
        let part = |from: u64, since: u64| {
            let over = now.saturating_sub(since);
            if over > 0 { cpu.saturating_sub(from) as f64 / over as f64 } else { 0.0 }
        };
        if now > self.last_ns {
            self.share = (part(self.last, self.last_ns) + part(self.first, self.first_ns)) / 2.0;
            (self.last, self.last_ns) = (cpu.max(self.last), now);
        }
    }
}

impl Subject {
    /// # Errors
    /// The process does not exist, may not be inspected, or has no malloc that can be found.
    pub fn open(proc: &ProcFs, stacks: &mut Stacks, pid: i32) -> Result<Subject> {
        let view = stacks.inspect(pid)?;
        let refused = |absence: Absence| Error::Refused(format!("process {pid}: {}", absence.with_advice()));
        let stat = proc.process_stat(pid).map_err(refused)?;
        let allocator = view.process.allocator.map_err(refused)?;
        let thread = proc.living_thread(pid);
        let code = proc.code(thread).map_err(refused)?.mappings;
        let its_file =
            code.iter().find(|mapping| mapping.is_file() && mapping.display_path() == allocator.module);
        let Some(mapping) = its_file else {
            let detail = format!("it does not map {} any more", allocator.module);
            return Err(refused(Absence::new(Reason::Vanished, detail)));
        };
        let file = maps::open(proc.root(), thread, mapping).map_err(refused)?;
        let (entries, missing) = counted(&file, &allocator.module).map_err(refused)?;
        let name = allocator.module.strip_suffix(" (deleted)").unwrap_or(&allocator.module).to_owned();
        let image = stacks.add_process(Ok(pid), mapping.inode, name, Vec::new());
        let cpu = process_cpu_ns(pid).map_err(refused)?;
        Ok(Subject {
            pid,
            start_ticks: stat.start_ticks,
            command: view.process.cmdline,
            // __libc_realloc in malloc/malloc.c. Other allocators have functions of their own for it.
            null_passes: allocator.kind == AllocatorKind::Glibc,
            allocator: allocator.module,
            file,
            entries,
            image,
            missing,
            cpu_first: cpu,
            cpu_last: cpu,
            ended: false,
            threads: HashMap::new(),
            listed_ns: 0,
            list_again_ns: 0,
        })
    }

    /// The count begins.
    pub fn start(&mut self, proc: &ProcFs) {
        self.cpu_first = self.read_clock(proc);
        self.list_threads(proc);
    }

    /// CPU time since the start of the count, ns.
    pub fn used_ns(&self) -> u64 {
        self.cpu_last.saturating_sub(self.cpu_first)
    }

    /// Reads the CPU time, and whether the process still exists.
    pub fn read_clock(&mut self, proc: &ProcFs) -> u64 {
        let lives = match proc.process_stat(self.pid) {
            Ok(stat) => stat.start_ticks == self.start_ticks && (!stat.ended() || stat.threads > 1),
            Err(absence) => !absence.is_gone(),
        };
        match process_cpu_ns(self.pid) {
            Ok(cpu) if lives => self.cpu_last = cpu.max(self.cpu_last),
            Err(absence) if !absence.is_gone() => {}
            _ => self.ended = true,
        }
        self.cpu_last
    }

    /// Reads the CPU time of its threads, if that was not done a moment ago.
    pub fn list_threads(&mut self, proc: &ProcFs) {
        let began = monotonic_ns();
        if began < self.list_again_ns {
            return;
        }
        let tids = proc.threads(self.pid).unwrap_or_default();
        for time in self.threads.values_mut() {
            time.share = 0.0;
        }
        let before = self.listed_ns;
        for tid in tids {
            let Some(cpu) = cpu_of(proc, self.pid, tid) else { continue };
            let read = monotonic_ns();
            if !self.threads.contains_key(&tid) && self.threads.len() >= MOST_THREADS {
                continue;
            }
            // A thread that is not in the last list started since.
            let new = || if before == 0 { ThreadTime::new(cpu, read) } else { ThreadTime::new(0, before) };
            self.threads.entry(tid).or_insert_with(new).update(cpu, read);
        }
        let ended = monotonic_ns();
        self.listed_ns = ended;
        self.list_again_ns = ended + LIST_PAUSE * (ended - began);
    }

    /// Threads that used CPU time, and how much of a CPU.
    pub fn busy_threads(&self) -> impl Iterator<Item = (i32, f64)> {
        self.threads.iter().filter(|(_, time)| time.share > 0.0).map(|(tid, time)| (*tid, time.share))
    }

    /// A thread that has ended is not drawn again.
    pub fn forget_thread(&mut self, tid: i32) {
        if let Some(time) = self.threads.get_mut(&tid) {
            time.share = 0.0;
        }
    }

    /// CPU time of a thread since the start of the count, as it was last read.
    pub fn thread_cpu_ns(&self, tid: i32) -> u64 {
        self.threads.get(&tid).map_or(0, |time| time.last - time.first)
    }

    pub fn into_process(self) -> BurstProcess {
        BurstProcess {
            pid: self.pid,
            cpu_ns: self.used_ns(),
            command: self.command,
            allocator: self.allocator,
            ended: self.ended,
        }
    }
}

/// CPU time of a thread, ns.
fn cpu_of(proc: &ProcFs, pid: i32, tid: i32) -> Option<u64> {
    let by_scheduler = proc.thread_schedstat(pid, tid).map(|stat| stat.cpu_ns);
    let by_ticks = |_| {
        let ticks = proc.thread_stat(pid, tid).map(|stat| stat.user_ticks + stat.system_ticks);
        ticks.map(|ticks| ticks * proc.ns_per_tick())
    };
    by_scheduler.or_else(by_ticks).ok()
}

/// The functions of a file that are counted, and what is left out.
fn counted(file: &File, path: &str) -> Measured<(Vec<Entry>, Option<Absence>)> {
    let copy = file.try_clone().map_err(|error| {
        Absence::new(Reason::Exhausted, format!("{path} could not be opened again: {error}"))
    })?;
    let elf = ElfFile::new(copy);
    let facts = elf.parse()?.facts;
    if !facts.is_64 || facts.machine != MACHINE {
        let detail = format!("{path} is for another architecture than allocwall, or for 32 bits");
        return Err(Absence::new(Reason::NotSupported, detail));
    }
    let exported = entries(file, Table::Exported);
    let found = match exported {
        Err(_) if facts.kind.is_static() => entries(file, Table::All),
        exported => exported,
    };
    let mut found = found.map_err(|why| {
        Absence::new(
            why.reason,
            format!("malloc could not be found in {path}, which may be stripped of its symbols ({why})"),
        )
        .mend("build it with symbols")
    })?;
    let all = found.len();
    if facts.kind != ElfKind::SharedLibrary {
        // Those of the C++ library call malloc, and those of an allocator do not: a program may contain either.
        found.retain(|entry| !matches!(entry.kind, EntryKind::OperatorNew | EntryKind::OperatorDelete));
    }
    let left_out = (found.len() < all).then(|| {
        let detail =
            format!("operators new and delete of {path} are counted only if they call malloc and free");
        Absence::new(Reason::NotSupported, detail)
    });
    Ok((found, left_out))
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn the_share_of_a_thread_is_that_of_the_last_moment_and_of_the_whole_time() {
        let mut time = ThreadTime::new(50 * MS, 1000 * MS);
        time.update(150 * MS, 1100 * MS);
        assert!((time.share - 1.0).abs() < 1e-9, "{time:?}");
        // Then it sleeps.
        time.update(150 * MS, 1300 * MS);
        assert!((time.share - (0.0 + 1.0 / 3.0) / 2.0).abs() < 1e-9, "{time:?}");
        // The same moment, and a clock that goes back.
        let before = time;
        time.update(160 * MS, 1300 * MS);
        assert_eq!(time.last, before.last);
        time.update(100 * MS, 1400 * MS);
        assert_eq!((time.last, time.last - time.first), (150 * MS, 100 * MS));
    }

    #[test]
    fn the_file_of_an_allocator_must_have_symbols_and_be_for_this_machine() {
        let refused = |path: &str| counted(&File::open(path).unwrap(), path).unwrap_err();
        let sleep = refused("/bin/sleep");
        assert_eq!(sleep.reason, Reason::NotFound);
        assert!(sleep.with_advice().contains("build it with symbols"), "{}", sleep.with_advice());
        assert_ne!(refused("/proc/self/status").reason, Reason::NotFound);
    }
}
