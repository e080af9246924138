//! Which pages of a range are resident, and words of those that are.

use crate::memory_kinds::PAGE;
use allocwall_host::file::errno_text;
use allocwall_host::memory::{PageMap, PageState, ResidentReader, Unread};
use allocwall_host::proc::ProcFs;
use allocwall_host::rights::run_as_root;
use allocwall_model::units::{Absence, Measured, Reason};
use std::io::{Error, ErrorKind};
use std::time::Instant;

/// The most pages of one range: 256 GiB, which take 8 MiB here.
const MOST_PAGES: u64 = 64 << 20;
/// How many pages are asked for their states at once.
const STATES: u64 = 8 << 10;
/// Pages of memory that are read at once where it is read in order.
const BLOCK: usize = 16;

/// The resident pages of a range.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pages {
    /// The first page.
    start: u64,
    pages: u64,
    bits: Vec<u64>,
}

impl Pages {
    /// `present` says it for each page, in order of address.
    pub fn of(start: u64, end: u64, present: impl IntoIterator<Item = bool>) -> Pages {
        let start = start & !(PAGE - 1);
        let pages = end.saturating_sub(start).div_ceil(PAGE);
        let mut bits = vec![0u64; pages.div_ceil(64) as usize];
        for (at, _) in present.into_iter().take(pages as usize).enumerate().filter(|(_, present)| *present) {
            bits[at / 64] |= 1 << (at % 64);
        }
        Pages { start, pages, bits }
    }

    fn index(&self, address: u64) -> u64 {
        (address.saturating_sub(self.start) / PAGE).min(self.pages)
    }

    fn has(&self, index: u64) -> bool {
        self.bits.get((index / 64) as usize).is_some_and(|word| word >> (index % 64) & 1 == 1)
    }

    pub fn has_address(&self, address: u64) -> bool {
        address >= self.start && self.has((address - self.start) / PAGE)
    }

    /// Resident pages with an index from `first` to before `last`.
    fn ones(&self, first: u64, last: u64) -> u64 {
        let last = last.min(self.pages);
        let (mut at, mut sum) = (first, 0);
        while at < last {
            let word = self.bits[(at / 64) as usize] >> (at % 64);
            let taken = (64 - at % 64).min(last - at);
            let mask = if taken == 64 { u64::MAX } else { (1 << taken) - 1 };
            sum += u64::from((word & mask).count_ones());
            at += taken;
        }
        sum
    }

    /// Number of resident pages.
    pub fn count(&self) -> u64 {
        self.ones(0, self.pages)
    }

    /// Number of resident pages that have an address of the range.
    pub fn count_within(&self, from: u64, to: u64) -> u64 {
        if from >= to { 0 } else { self.ones(self.index(from), self.index(to - 1) + 1) }
    }

    /// Bytes between two addresses that are on resident pages.
    pub fn bytes(&self, from: u64, to: u64) -> u64 {
        let end = self.start + self.pages * PAGE;
        let (from, to) = (from.max(self.start), to.min(end));
        if from >= to {
            return 0;
        }
        let (first, last) = (self.index(from), self.index(to));
        let whole = self.ones(first, last) * PAGE;
        // The parts of the first and of the last page that are outside.
        let before = if self.has(first) { from % PAGE } else { 0 };
        let within_last = if self.has(last) { to % PAGE } else { 0 };
        (whole + within_last).saturating_sub(before)
    }

    /// The first address from `from` on that is on a resident page.
    pub fn next(&self, from: u64) -> Option<u64> {
        let from = from.max(self.start);
        let mut at = (from - self.start) / PAGE;
        while at < self.pages {
            let word = self.bits[(at / 64) as usize] >> (at % 64);
            if word != 0 {
                let page = self.start + (at + u64::from(word.trailing_zeros())) * PAGE;
                return Some(page.max(from));
            }
            at = (at / 64 + 1) * 64;
        }
        None
    }

    /// From the start of the `nth` resident page to the end of the last one of `count` from there.
    pub fn run(&self, nth: u64, count: u64) -> Option<(u64, u64)> {
        let from = self.nth(nth)?;
        let mut end = from + PAGE;
        for _ in 1..count {
            match self.next(end) {
                Some(page) => end = page + PAGE,
                None => break,
            }
        }
        Some((from, end))
    }

    /// The address of a resident page, by its number among them.
    fn nth(&self, nth: u64) -> Option<u64> {
        let mut left = nth;
        for (at, word) in self.bits.iter().enumerate() {
            let ones = u64::from(word.count_ones());
            if left >= ones {
                left -= ones;
                continue;
            }
            let mut word = *word;
            for _ in 0..left {
                word &= word - 1;
            }
            return Some(self.start + (at as u64 * 64 + u64::from(word.trailing_zeros())) * PAGE);
        }
        None
    }
}

/// Words of a target's memory. None where none can be read.
pub trait Words {
    fn word(&mut self, at: u64) -> Option<u64>;

    /// From here on, words are read in order.
    fn ahead(&mut self, _at: u64) {}

    /// Why no more is read: the time is over, or the memory does not answer. None while reading goes on.
    fn over(&self) -> Option<Absence> {
        None
    }

    /// Whether reading is over. Each loop over words asks it.
    fn late(&self) -> bool {
        self.over().is_some()
    }
}

/// The memory of a process.
pub struct Memory {
    /// A living thread of the process.
    pid: i32,
    pages: PageMap,
    reader: ResidentReader,
    /// What is read in order, and single pages elsewhere.
    ordered: Block,
    single: Block,
}

/// Pages that were read together; without bytes, the first of them could not be read.
#[derive(Default)]
struct Block {
    /// The start of the first page.
    at: u64,
    bytes: Vec<u8>,
}

impl Block {
    /// Whether it starts with the page of this address.
    fn starts_with(&self, at: u64) -> bool {
        at & !(PAGE - 1) == self.at
    }

    fn word(&self, at: u64) -> Option<u64> {
        let offset = usize::try_from(at.checked_sub(self.at)?).ok()?;
        let bytes = self.bytes.get(offset..offset.checked_add(8)?)?;
        Some(u64::from_le_bytes(bytes.try_into().ok()?))
    }
}

impl Memory {
    /// `pid`: a living thread of the process. `most_bytes`: that are read in all.
    pub fn open(proc: &ProcFs, pid: i32, deadline: Instant, most_bytes: u64) -> Measured<Memory> {
        if !proc.is_live() {
            return Err(Absence::new(Reason::NotApplicable, "a copy of /proc contains no memory"));
        }
        ResidentReader::may_read(pid).map_err(|error| refused("its memory can't be read", &error))?;
        let pages = PageMap::open(proc, pid).map_err(|error| page_map_refused(pid, &error))?;
        let reader = ResidentReader::new(deadline, most_bytes);
        Ok(Memory { pid, pages, reader, ordered: Block::default(), single: Block::default() })
    }

    /// Changes the time until which memory is read. What was read before is read again: the target ran on.
    pub fn until(&mut self, deadline: Instant) {
        self.reader.until(deadline);
        (self.ordered, self.single) = (Block::default(), Block::default());
    }

    /// The resident pages of a range.
    pub fn pages(&mut self, start: u64, end: u64) -> Measured<Pages> {
        let pages = end.saturating_sub(start) / PAGE;
        if pages > MOST_PAGES {
            let detail = format!("a mapping has more than {} GiB", (MOST_PAGES * PAGE) >> 30);
            return Err(Absence::new(Reason::TooCostly, detail));
        }
        let mut found = Pages::of(start, start + pages * PAGE, []);
        let mut at = 0;
        while at < pages {
            if let Some(over) = self.over() {
                return Err(over);
            }
            let wanted = (pages - at).min(STATES);
            let states = self.pages.states(start + at * PAGE, wanted as usize);
            let states = states.map_err(|error| page_map_refused(self.pid, &error))?;
            for index in (at..).zip(&states).filter(|(_, s)| **s == PageState::Resident).map(|(at, _)| at) {
                found.bits[(index / 64) as usize] |= 1 << (index % 64);
            }
            at += states.len() as u64;
        }
        Ok(found)
    }

    /// Reads the resident pages from this address on; none, if the first one can't be read.
    fn load(&mut self, at: u64, most: usize, mut bytes: Vec<u8>) -> Block {
        // Without bytes, its words are not there; `over` has the reason if nothing can be read any more.
        let _ = self.reader.read(&self.pages, at, most, &mut bytes);
        Block { at: at & !(PAGE - 1), bytes }
    }
}

impl Words for Memory {
    fn word(&mut self, at: u64) -> Option<u64> {
        // User memory ends below 2^56 (Documentation/arch/x86/x86_64/5level-paging.rst). An address may come from the
        // target.
        if !at.is_multiple_of(8) || at >> 56 != 0 {
            return None;
        }
        if let Some(word) = self.ordered.word(at).or_else(|| self.single.word(at)) {
            return Some(word);
        }
        // A page that is absent is not asked for once per word.
        if !self.single.starts_with(at) {
            let bytes = std::mem::take(&mut self.single.bytes);
            self.single = self.load(at, 1, bytes);
        }
        self.single.word(at)
    }

    fn ahead(&mut self, at: u64) {
        if at >> 56 == 0 && self.ordered.word(at & !7).is_none() && !self.ordered.starts_with(at) {
            let bytes = std::mem::take(&mut self.ordered.bytes);
            self.ordered = self.load(at, BLOCK, bytes);
        }
    }

    fn over(&self) -> Option<Absence> {
        self.reader.failure().cloned().or_else(|| self.late().then(out_of_time))
    }

    fn late(&self) -> bool {
        self.reader.is_over()
    }
}

fn page_map_refused(pid: i32, error: &Error) -> Absence {
    match Unread::of(error) {
        Unread::Gone => {
            Absence::new(Reason::Vanished, format!("process {pid} ended, or started another program"))
        }
        _ => refused(&format!("/proc/{pid}/pagemap"), error),
    }
}

fn refused(what: &str, error: &Error) -> Absence {
    let reason = match error.raw_os_error() {
        Some(libc::ESRCH | libc::ENOENT) => Reason::Vanished,
        Some(libc::EPERM | libc::EACCES) => Reason::NotPermitted,
        // EAGAIN: no thread could be started to ask.
        Some(libc::EMFILE | libc::ENFILE | libc::ENOMEM | libc::EAGAIN) => Reason::Exhausted,
        _ if error.kind() == ErrorKind::TimedOut => Reason::TooCostly,
        _ => Reason::NotSupported,
    };
    let absence = Absence::new(reason, format!("{what}: {}", errno_text(error)));
    match reason {
        Reason::NotPermitted => absence
            .mend(run_as_root())
            .mend("run as the owner of the process, with kernel.yama.ptrace_scope=0"),
        _ => absence,
    }
}

pub fn out_of_time() -> Absence {
    Absence::new(Reason::TooCostly, "the time for reading the process was over")
        .mend("give it more time: allocwall memory --exact --budget 10s")
}

/// Words by address, for tests and for fuzzing: what is not there can't be read.
#[cfg(any(test, feature = "fuzzing"))]
pub struct Made(pub std::collections::BTreeMap<u64, u64>);

#[cfg(any(test, feature = "fuzzing"))]
impl Words for Made {
    fn word(&mut self, at: u64) -> Option<u64> {
        self.0.get(&at).copied()
    }
}

/// Words of which only some are read before the time is over.
#[cfg(test)]
pub struct Few {
    pub made: Made,
    pub left: u64,
}

#[cfg(test)]
impl Words for Few {
    fn word(&mut self, at: u64) -> Option<u64> {
        self.left = self.left.checked_sub(1)?;
        self.made.word(at)
    }

    fn over(&self) -> Option<Absence> {
        (self.left == 0).then(out_of_time)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    const START: u64 = 0x5000_0000;

    fn some(present: &[u64], pages: u64) -> Pages {
        Pages::of(START, START + pages * PAGE, (0..pages).map(|page| present.contains(&page)))
    }

    #[test]
    fn bytes_on_resident_pages_are_counted() {
        let pages = some(&[0, 2, 63, 64, 130], 131);
        assert_eq!(pages.count(), 5);
        assert_eq!(pages.bytes(START, START + 131 * PAGE), 5 * PAGE);
        assert_eq!(pages.bytes(0, u64::MAX), 5 * PAGE);
        assert_eq!(pages.bytes(START + 16, START + 48), 32);
        // Page 1 is absent.
        assert_eq!(pages.bytes(START + PAGE - 16, START + 2 * PAGE + 16), 32);
        assert_eq!(pages.bytes(START + PAGE, START + 2 * PAGE), 0);
        assert_eq!(pages.bytes(START + 63 * PAGE, START + 65 * PAGE), 2 * PAGE);
        assert_eq!(pages.bytes(START + 9, START + 9), 0);
        assert_eq!(pages.count_within(START + 5, START + 2 * PAGE + 1), 2);
        assert_eq!(pages.count_within(START, START + 2 * PAGE), 1);
        assert_eq!(pages.count_within(START + 130 * PAGE, u64::MAX), 1);
        assert!(pages.has_address(START + 5) && !pages.has_address(START + PAGE) && !pages.has_address(0));
    }

    #[test]
    fn resident_pages_are_found_in_order() {
        let pages = some(&[1, 2, 70, 130], 131);
        let at = |page: u64| START + page * PAGE;
        assert_eq!(pages.next(0), Some(at(1)));
        assert_eq!(pages.next(at(1) + 24), Some(at(1) + 24));
        assert_eq!(pages.next(at(3)), Some(at(70)));
        assert_eq!(pages.next(at(131)), None);
        assert_eq!(pages.run(0, 1), Some((at(1), at(2))));
        // Over the gap, and cut at the end.
        assert_eq!(pages.run(1, 2), Some((at(2), at(71))));
        assert_eq!(pages.run(2, 100), Some((at(70), at(131))));
        assert_eq!(pages.run(4, 1), None);
        assert_eq!(some(&[], 3).run(0, 1), None);
    }

    #[test]
    fn own_memory_is_read_and_absent_pages_are_not() {
        let proc = ProcFs::live();
        let own = std::process::id() as i32;
        let later = || Instant::now() + Duration::from_secs(60);
        let mut memory = match Memory::open(&proc, own, later(), u64::MAX) {
            Ok(memory) => memory,
            Err(absence) => return println!("skipped: process_vm_readv: {absence}"),
        };
        let words: Vec<u64> = (0..100_000).collect();
        let start = words.as_ptr() as u64;
        assert_eq!(memory.word(start), Some(0));
        memory.ahead(start + 800);
        assert_eq!(memory.word(start + 800), Some(100));
        assert_eq!(memory.word(start + 80_000), Some(10_000));
        for nowhere in [0, 8, start + 1, u64::MAX - 7, 1 << 60] {
            assert_eq!(memory.word(nowhere), None, "{nowhere:x}");
        }
        let pages = memory.pages(start & !(PAGE - 1), (start + 800_000) & !(PAGE - 1)).unwrap();
        assert!(pages.count() > 100, "{}", pages.count());
        // A mapping without a single touched page.
        let mut untouched = allocwall_host::memory::AnonymousMapping::plain(1 << 20).expect("a mapping");
        let at = untouched.bytes().as_ptr() as u64;
        memory.ahead(at);
        assert_eq!((memory.word(at), memory.word(at + 8)), (None, None));
        // The reading itself did not make a page resident. The near twin: one that is touched is read.
        assert_eq!(memory.pages(at, at + (1 << 20)).unwrap().count(), 0);
        untouched.bytes()[..8].copy_from_slice(&7u64.to_le_bytes());
        memory.until(later());
        assert_eq!(memory.word(at), Some(7));
        assert!(memory.pages(at, at + (1 << 20)).unwrap().count() > 0);
        memory.until(Instant::now() - Duration::from_millis(1));
        let late = memory.pages(start & !(PAGE - 1), (start + (1 << 20)) & !(PAGE - 1));
        assert_eq!(late.unwrap_err().reason, Reason::TooCostly);
        assert_eq!((memory.late(), memory.word(start)), (true, None));
    }

    #[test]
    fn a_limit_ends_the_reading_with_its_reason() {
        let (proc, own) = (ProcFs::live(), std::process::id() as i32);
        let mut memory = match Memory::open(&proc, own, Instant::now() + Duration::from_secs(60), PAGE) {
            Ok(memory) => memory,
            Err(absence) => return println!("skipped: process_vm_readv: {absence}"),
        };
        assert!(!memory.late() && memory.over().is_none());
        let words = vec![7u64; 2 * PAGE as usize];
        let (first, second) = (words.as_ptr() as u64, words.as_ptr() as u64 + 2 * PAGE);
        assert_eq!((memory.word(first), memory.word(second)), (Some(7), None));
        let over = memory.over().expect("it has read its page");
        assert!(memory.late() && over.detail.contains("MiB"), "{over}");
        assert_eq!(memory.pages(0x1000, 0x2000), Err(over));
    }

    #[test]
    fn a_refusal_keeps_its_reason() {
        for (code, reason, advised) in [
            (libc::EPERM, Reason::NotPermitted, true),
            (libc::ENOSYS, Reason::NotSupported, false),
            (libc::ESRCH, Reason::Vanished, false),
            (libc::EMFILE, Reason::Exhausted, false),
        ] {
            let absence = refused("memory", &Error::from_raw_os_error(code));
            assert_eq!((absence.reason, absence.advice().is_some()), (reason, advised), "{absence}");
        }
        let late = refused("memory", &ErrorKind::TimedOut.into());
        assert_eq!((late.reason, late.detail.as_str()), (Reason::TooCostly, "memory: timed out"));
    }
}
