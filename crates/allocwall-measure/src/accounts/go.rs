//! What Go's runtime counts itself: pauses and collections (`memstats`), allocated bytes (`gcController`, since 1.19),
//! and CPU time of the collector (`work.cpuStats`, since 1.20).
//!
//! The variables are found by their symbols, or in the sections of variables if the program is stripped. In both cases
//! the exact place is where the values fit together as the runtime keeps them, so no version's offsets are needed:
//! runtime/mstats.go, mgcpacer.go and mgc.go. Tested with 1.19 and 1.26.

use super::memory::{Memory, PAGE, Page, code_of, image, word};
use super::{Read, Reader, absent, counter, growth, read_once, within};
use allocwall_host::elf::Table;
use allocwall_host::proc::ProcFs;
use allocwall_model::recording::{Figure, Process, Runtime, RuntimeAccount, version_of};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::ops::Range;
use std::time::{Duration, Instant};

/// Of each section; variables come in the order of their size, and large tables at the end.
const MOST_OF_A_SECTION: u64 = 16 << 20;
/// The largest of the variables, memstats, has 11 KiB.
const LARGEST_VARIABLE: u64 = 64 << 10;
const TIME_TO_SEARCH: Duration = Duration::from_millis(200);
/// The sections are read in blocks. A block also has the bytes behind it that belong to a variable at its end.
const BLOCK: usize = 1 << 20;
const BEHIND: usize = 8 << 10;
/// The most places that are kept for one variable while it is searched.
const MOST_PLACES: usize = 8;
/// In a stripped program, nothing marks the variables before the first collection: at these ticks it is searched again.
const AGAIN: [u32; 2] = [4, 16];
/// How often a reading is repeated if the runtime changed something meanwhile.
const ATTEMPTS: usize = 4;

pub(super) struct Account {
    pid: i32,
    proc: ProcFs,
    exe: Measured<String>,
    version: Option<(u32, u32)>,
    state: Measured<Box<State>>,
    ticks: u32,
}

/// What a search found.
struct Searched {
    areas: Areas,
    places: Places,
}

impl Account {
    pub(super) fn new(proc: &ProcFs, process: &Process) -> Account {
        let pid = process.pid;
        let version = match &process.runtime {
            Ok(Runtime::Go { version }) => version.as_deref().and_then(version_of),
            _ => None,
        };
        let detail = format!("the program of process {pid} was not read before the end of the window");
        Account {
            pid,
            proc: proc.clone(),
            exe: process.exe.clone(),
            version,
            state: Err(Absence::new(Reason::TooLittle, detail)),
            ticks: 0,
        }
    }

    fn search(&self, memory: &mut dyn Memory) -> Measured<Searched> {
        if memory.failure().is_some() || memory.is_paused() {
            return Err(memory.refused());
        }
        let thread = self.proc.living_thread(self.pid);
        let areas = Areas::of(&self.proc, thread, self.exe.as_ref().map_err(Clone::clone)?)?;
        let places = search(&areas.all, memory, TIME_TO_SEARCH)?;
        Ok(Searched { areas, places })
    }

    /// Unless it is known that it does not.
    fn counts_cpu(&self) -> bool {
        self.version.is_none_or(|version| version >= (1, 20))
    }
}

impl Reader for Account {
    fn tick(&mut self, memory: &mut dyn Memory, now: &dyn Fn() -> u64) {
        let counts_cpu = self.counts_cpu();
        // With symbols, `State::tick` searches.
        let done = |state: &State| state.areas.memstats.is_some() || state.is_complete(counts_cpu);
        if self.ticks == 0 || AGAIN.contains(&self.ticks) && !self.state.as_ref().is_ok_and(|s| done(s)) {
            let searched = self.search(memory);
            match (&mut self.state, searched) {
                (Ok(state), Ok(searched)) => state.adopt(searched.places),
                (Ok(_), Err(_)) => {}
                (state, searched) => *state = searched.map(|searched| Box::new(State::new(searched))),
            }
        }
        self.ticks = self.ticks.saturating_add(1);
        if let Ok(state) = &mut self.state {
            state.tick(memory, now(), counts_cpu);
        }
    }

    fn has_failed(&self, memory: &dyn Memory) -> bool {
        let tried = memory.failure().is_some() || AGAIN.iter().all(|tick| *tick < self.ticks);
        self.state.is_err() && self.ticks > 0 && tried
    }

    fn finish(self: Box<Self>) -> Read {
        let (pid, counts_cpu) = (self.pid, self.counts_cpu());
        let by = match &self.state {
            Ok(state) if state.areas.memstats.is_some() => ", by symbols",
            Ok(_) => ", by their values",
            Err(_) => "",
        };
        let mut method = format!(
            "variables of Go's runtime{by}; collector's CPU time as Go counts it: a pause takes all GOMAXPROCS CPUs"
        );
        let figures = match self.state.and_then(|state| state.figures(counts_cpu)) {
            Ok(figures) => figures,
            Err(absence) => return (absent(pid, &method, &absence), Vec::new()),
        };
        if let Some(settings) = figures.settings {
            method.push_str(&format!("; at the end {settings}"));
        }
        let Figures { over_ns, stopped_ns, collections, collector_cpu_ns, allocated_bytes, .. } = figures;
        let account = RuntimeAccount {
            pid,
            method,
            over_ns,
            stopped_ns,
            collections,
            collector_cpu_ns,
            allocated_bytes,
        };
        (account, Vec::new())
    }
}

// Where the variables are.

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Area {
    start: u64,
    length: u64,
}

/// The memory in which the variables are.
#[derive(Clone, Debug)]
struct Areas {
    all: Vec<Area>,
    /// The area of memstats, if the areas are the variables themselves.
    memstats: Option<Area>,
}

impl Areas {
    /// By the program's file, at the addresses at which it is mapped.
    fn of(proc: &ProcFs, thread: i32, exe: &str) -> Measured<Areas> {
        let (file, mapping) = code_of(proc, thread, "its program", |mapping| mapping.display_path() == exe)?;
        image(file, &mapping, |elf, bias| {
            let area = |address: u64, size: u64, most: u64| Area {
                start: bias.wrapping_add(address),
                length: size.min(most),
            };
            let mut named: [Option<Area>; 3] = [None; 3];
            if elf.facts.has_symtab() {
                // A table that does not parse is like none.
                let _ = elf.symbols(Table::All, &mut |symbol| {
                    const NAMES: [&str; 3] = ["runtime.memstats", "runtime.gcController", "runtime.work"];
                    let nth = NAMES.iter().position(|name| name.as_bytes() == symbol.name);
                    if let Some(nth) = nth.filter(|_| symbol.size > 0) {
                        named[nth] = Some(area(symbol.address, symbol.size, LARGEST_VARIABLE));
                    }
                });
            }
            if let [Some(memstats), Some(controller), Some(work)] = named {
                return Ok(Areas { all: vec![memstats, controller, work], memstats: Some(memstats) });
            }
            let sections = [".noptrbss", ".bss"].into_iter().filter_map(|name| elf.facts.section(name));
            let all: Vec<Area> = sections.map(|s| area(s.address, s.size, MOST_OF_A_SECTION)).collect();
            if all.is_empty() {
                let detail = "the Go program has neither symbols nor a section .noptrbss";
                return Err(Absence::new(Reason::NotFound, detail));
            }
            Ok(Areas { all, memstats: None })
        })
    }
}

/// The addresses of the counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Places {
    /// memstats.last_gc_unix, with the pauses behind it.
    pauses: Option<u64>,
    /// gcController.heapInUse, with the totals behind it.
    totals: Option<u64>,
    /// The start of gcController, where the settings are.
    settings: Option<u64>,
    /// work.cpuStats, and copies of it that the program's own metrics made.
    cpu: Vec<u64>,
}

/// All places at which the values of memory fit together.
///
/// # Errors
/// Not all areas were searched within `time`. What was found until then may be a copy: a program's own statistics have the same
/// form, and only in all of them are two places seen.
fn search(areas: &[Area], memory: &mut dyn Memory, time: Duration) -> Measured<Places> {
    let started = Instant::now();
    let (mut pauses, mut totals, mut cpu) = (Vec::new(), Vec::new(), Vec::new());
    for area in areas {
        let end = area.start.saturating_add(area.length);
        let mut at = area.start.checked_next_multiple_of(8).unwrap_or(end);
        while at < end {
            if started.elapsed() >= time {
                let detail =
                    format!("the variables of Go's runtime were not found within {} ms", time.as_millis());
                return Err(Absence::new(Reason::TooCostly, detail));
            }
            let length = (end - at).min((BLOCK + BEHIND) as u64) as usize;
            if let Some(bytes) = block(memory, at, length) {
                for offset in (0..length.min(BLOCK)).step_by(8) {
                    let here = &bytes[offset..];
                    let place = at + offset as u64;
                    if here.get(..PAUSES).and_then(read_pauses).is_some() && pauses.len() < MOST_PLACES {
                        pauses.push(place);
                    }
                    if let Some(behind) = totals_in(here).filter(|_| totals.len() < MOST_PLACES) {
                        totals.push((place + behind as u64, place));
                    }
                    if here.get(..CPU).and_then(read_cpu).is_some() && cpu.len() < MOST_PLACES {
                        cpu.push(place);
                    }
                }
            }
            at = at.saturating_add(BLOCK as u64);
        }
    }
    totals.dedup_by_key(|(totals, _)| *totals);
    // Two places that fit are none: which one is right is not known. Of `cpu`, the one that moves is right.
    let pauses = if let [place] = pauses[..] { Some(place) } else { None };
    let (totals, settings) =
        if let [(totals, start)] = totals[..] { (Some(totals), Some(start)) } else { (None, None) };
    Ok(Places { pauses, totals, settings, cpu })
}

/// The bytes of a part of the sections. Pages that are not resident are zero. None if all are, or if one could not be read.
fn block(memory: &mut dyn Memory, start: u64, length: usize) -> Option<Vec<u8>> {
    let end = start.checked_add(length as u64)?;
    let first = start & !(PAGE - 1);
    let pages = memory.pages(first, (end - first).div_ceil(PAGE) as usize);
    if !pages.contains(&Page::Resident) {
        return None;
    }
    let mut bytes = vec![0; length];
    let mut page = 0;
    while page < pages.len() {
        let run = pages[page..].iter().take_while(|state| **state == Page::Resident).count();
        if run > 0 {
            let address = |page: usize| first.saturating_add(page as u64 * PAGE);
            let (from, to) = (address(page).max(start), address(page + run).min(end));
            let part = memory.bytes(from, (to - from) as usize)?;
            bytes[(from - start) as usize..(to - start) as usize].copy_from_slice(&part);
        }
        page += run.max(1);
    }
    Some(bytes)
}

/// The same, but None also if a page is in swap: only pages that were never touched are really zero.
fn exact(memory: &mut dyn Memory, start: u64, length: usize) -> Option<Vec<u8>> {
    let end = start.checked_add(length as u64)?;
    let first = start & !(PAGE - 1);
    let pages = memory.pages(first, (end - first).div_ceil(PAGE) as usize);
    if pages.contains(&Page::Unknown) { None } else { block(memory, start, length) }
}

// What the values must be like.

/// From last_gc_unix to gc_cpu_fraction, in bytes.
const PAUSES: usize = 4128;
/// The runtime keeps the last pauses in two rings.
const RING: u64 = 256;
const PAUSE_TOTAL: usize = 8;
const PAUSE_NS: usize = 16;
const PAUSE_END: usize = PAUSE_NS + 8 * RING as usize;
const NUM_GC: usize = PAUSE_END + 8 * RING as usize;
const GC_CPU_FRACTION: usize = NUM_GC + 8;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Pauses {
    total_ns: u64,
    collections: u64,
}

/// The newest pause ended at the time of the last collection, and the pauses sum to their total.
fn read_pauses(bytes: &[u8]) -> Option<Pauses> {
    /// Nanoseconds since 1970: from 2014 to 2103.
    const TIME: Range<u64> = 1_400_000_000_000_000_000..4_200_000_000_000_000_000;
    let last = word(bytes, 0).filter(|last| TIME.contains(last))?;
    let counts = word(bytes, NUM_GC)?;
    let (collections, forced) = (counts & 0xffff_ffff, counts >> 32);
    let newest = (collections.checked_sub(1)? % RING) as usize;
    let fraction = f64::from_bits(word(bytes, GC_CPU_FRACTION)?);
    if word(bytes, PAUSE_END + 8 * newest)? != last
        || forced > collections
        || !(0.0..=1.0).contains(&fraction)
    {
        return None;
    }
    let total_ns = word(bytes, PAUSE_TOTAL)?;
    let mut kept = 0u64;
    for nth in 0..RING as usize {
        kept = kept.checked_add(word(bytes, PAUSE_NS + 8 * nth)?)?;
    }
    let fits = if collections <= RING { kept == total_ns } else { kept <= total_ns };
    fits.then_some(Pauses { total_ns, collections })
}

/// heapInUse, heapReleased, heapFree, totalAlloc, totalFree, mappedReady of gcController.
const TOTALS: usize = 48;

/// The allocated bytes. The heap is made of pages; what lives is in use, and what is in use or free is mapped.
fn read_totals(bytes: &[u8]) -> Option<u64> {
    const GO_PAGE: u64 = 8192;
    /// No address space is larger.
    const MOST: u64 = 1 << 47;
    /// The counters change one after the other, and they are not read at one moment.
    const SLACK: u64 = 64 << 20;
    let value = |nth: usize| word(bytes, 8 * nth);
    let (in_use, released, free) = (value(0)?, value(1)?, value(2)?);
    let (allocated, freed, mapped) = (value(3)?, value(4)?, value(5)?);
    let pages = in_use > 0
        && in_use.is_multiple_of(GO_PAGE)
        && free.is_multiple_of(GO_PAGE)
        && released.is_multiple_of(PAGE);
    let small = [in_use, released, free, mapped].iter().all(|size| *size < MOST);
    if !pages || !small || allocated == 0 || mapped == 0 {
        return None;
    }
    let living = allocated.checked_sub(freed)?;
    let fits = living <= in_use + in_use / 4 + SLACK && in_use + free <= mapped + SLACK;
    fits.then_some(allocated)
}

/// What the program may set at any time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Settings {
    /// GOGC. Negative: off.
    percent: i32,
    /// GOMEMLIMIT, in bytes.
    limit: i64,
}

/// gcPercent and memoryLimit, at the start of gcController.
fn read_settings(bytes: &[u8]) -> Option<Settings> {
    Some(Settings { percent: word(bytes, 0)? as i32, limit: word(bytes, 8)? as i64 })
}

impl std::fmt::Display for Settings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.percent {
            ..0 => f.write_str("GOGC=off")?,
            percent => write!(f, "GOGC={percent}")?,
        }
        match self.limit {
            i64::MAX => f.write_str(" GOMEMLIMIT=off"),
            limit => write!(f, " GOMEMLIMIT={limit}"),
        }
    }
}

/// The offset of the totals, if the bytes start with gcController: gcPercent, memoryLimit and heapMinimum, which is a
/// part of 4 MiB by gcPercent (`setGCPercent`).
fn totals_in(bytes: &[u8]) -> Option<usize> {
    /// defaultHeapMinimum; the second one with GOEXPERIMENT=heapminimum512kib.
    const MINIMUM: [u64; 2] = [4 << 20, 512 << 10];
    const HEAD: usize = 24;
    /// gcControllerState has 392 bytes in 1.26.
    const LARGEST: usize = 512;
    let percent = word(bytes, 0)?;
    // It has 32 bits; -1 means off.
    let percent = if percent == 0xffff_ffff { u64::MAX } else { percent };
    if percent == 0 || (percent > i32::MAX as u64 && percent != u64::MAX) {
        return None;
    }
    let (limit, minimum) = (word(bytes, 8)?, word(bytes, 16)?);
    let fits = MINIMUM.iter().any(|all| all.wrapping_mul(percent) / 100 == minimum);
    if !fits || i64::try_from(limit).is_err() {
        return None;
    }
    let last = LARGEST.min(bytes.len()).checked_sub(TOTALS)?;
    let mut found = (HEAD..=last).step_by(8).filter(|at| read_totals(&bytes[*at..at + TOTALS]).is_some());
    let only = found.next()?;
    found.next().is_none().then_some(only)
}

/// cpuStats has 11 int64.
const CPU: usize = 88;

/// The collector's CPU time. Parts sum to their totals; a pause of the current cycle is not yet in the last one.
fn read_cpu(bytes: &[u8]) -> Option<u64> {
    let value = |nth: usize| word(bytes, 8 * nth).map(|value| i128::from(value as i64));
    let total = value(4).filter(|total| *total > 0)?;
    let (assist, dedicated, idle, pause) = (value(0)?, value(1)?, value(2)?, value(3)?);
    if assist + dedicated + idle + pause != total || assist < 0 || dedicated < 0 || idle < 0 || pause < 0 {
        return None;
    }
    let (scavenge_assist, scavenge_background, scavenge) = (value(5)?, value(6)?, value(7)?);
    let (unused, user, all) = (value(8)?, value(9)?, value(10)?);
    if scavenge_assist + scavenge_background != scavenge || scavenge_assist < 0 || scavenge_background < 0 {
        return None;
    }
    let not_yet = total + scavenge + unused + user - all;
    let fits = all > 0 && unused >= 0 && (0..=pause).contains(&not_yet);
    fits.then_some(total as u64)
}

// Readings.

/// The counters at one moment. A counter that was not found is None.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Reading {
    pauses: Option<Pauses>,
    allocated: Option<u64>,
    settings: Option<Settings>,
    /// For each place.
    cpu: Vec<Option<u64>>,
}

struct State {
    areas: Areas,
    places: Places,
    /// With its time.
    first: Option<(u64, Reading)>,
    last: Option<(u64, Reading)>,
    wrong: Option<Absence>,
}

struct Figures {
    over_ns: u64,
    settings: Option<Settings>,
    stopped_ns: Measured<Figure>,
    collections: Measured<u64>,
    collector_cpu_ns: Measured<Figure>,
    allocated_bytes: Measured<Figure>,
}

impl State {
    fn new(searched: Searched) -> State {
        State { areas: searched.areas, places: searched.places, first: None, last: None, wrong: None }
    }

    fn is_complete(&self, counts_cpu: bool) -> bool {
        let places = &self.places;
        places.pauses.is_some() && places.totals.is_some() && !(counts_cpu && places.cpu.is_empty())
    }

    /// Adds places that were not known. If their values at the first reading are unknown, the account starts anew.
    fn adopt(&mut self, found: Places) {
        let new_totals = self.places.totals.is_none() && found.totals.is_some();
        let new_pauses = self.places.pauses.is_none() && found.pauses.is_some();
        let new_cpu = self.places.cpu.is_empty() && !found.cpu.is_empty();
        if new_totals {
            (self.places.totals, self.places.settings) = (found.totals, found.settings);
        }
        if new_pauses {
            self.places.pauses = found.pauses;
        }
        if new_cpu {
            self.places.cpu = found.cpu;
        }
        // Before the first collection, pauses and CPU time are zero.
        let untouched = Some(Pauses { total_ns: 0, collections: 0 });
        match (&mut self.first, &mut self.last) {
            (Some((_, first)), Some((_, last))) if !new_totals && first.pauses == untouched && new_cpu => {
                first.cpu = vec![Some(0); self.places.cpu.len()];
                last.cpu.clone_from(&first.cpu);
            }
            (Some((_, first)), Some(_)) if !new_totals && first.pauses == untouched => {}
            (first, last) if new_totals || new_pauses || new_cpu => (*first, *last) = (None, None),
            _ => {}
        }
    }

    fn tick(&mut self, memory: &mut dyn Memory, t_ns: u64, counts_cpu: bool) {
        if self.wrong.is_some() {
            return;
        }
        // The variables themselves are small: they can be searched each time.
        if self.areas.memstats.is_some() && !self.is_complete(counts_cpu) {
            // A search that was too slow is made again at the next tick.
            if let Ok(found) = search(&self.areas.all, memory, TIME_TO_SEARCH) {
                self.adopt(found);
            }
        }
        let Some(mut reading) = self.read(memory) else { return };
        let Some((_, last)) = &self.last else {
            self.first = Some((t_ns, reading.clone()));
            self.last = Some((t_ns, reading));
            return;
        };
        if let Err(absence) = fits(last, &reading) {
            self.wrong = Some(absence);
            return;
        }
        for (now, last) in reading.cpu.iter_mut().zip(&last.cpu) {
            *now = now.or(*last);
        }
        self.last = Some((t_ns, reading));
    }

    /// None if a counter could not be read: the process has ended, or the runtime is changing it.
    fn read(&self, memory: &mut dyn Memory) -> Option<Reading> {
        let pauses = match self.places.pauses {
            Some(place) => Some(settled(memory, place, PAUSES, read_pauses)?),
            None if self.is_untouched(memory) => Some(Pauses { total_ns: 0, collections: 0 }),
            None => None,
        };
        let allocated = match self.places.totals {
            Some(place) => Some(settled(memory, place, TOTALS, read_totals)?),
            None => None,
        };
        let settings = self.places.settings.and_then(|place| read_settings(&memory.bytes(place, 16)?));
        let cpu = self.places.cpu.iter().map(|place| settled(memory, *place, CPU, read_cpu)).collect();
        Some(Reading { pauses, allocated, settings, cpu })
    }

    /// Whether memstats shows that no collection has run: the pauses are the only part that large, and they are zero.
    fn is_untouched(&self, memory: &mut dyn Memory) -> bool {
        // Without gcController as it is since 1.19, memstats may be different too.
        let Some(area) = self.areas.memstats.filter(|_| self.places.totals.is_some()) else { return false };
        let bytes = exact(memory, area.start, area.length as usize);
        bytes.is_some_and(|bytes| bytes.split(|byte| *byte != 0).any(|zeros| zeros.len() >= PAUSES))
    }

    fn figures(self, counts_cpu: bool) -> Measured<Figures> {
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        let (Some((first_ns, first)), Some((last_ns, last))) = (self.first, self.last) else {
            return Err(Absence::new(Reason::NotFound, "the variables of Go's runtime could not be read"));
        };
        let over_ns = last_ns.saturating_sub(first_ns);
        if over_ns == 0 {
            return Err(read_once());
        }
        let by_symbols = self.areas.memstats.is_some();
        let pauses = first.pauses.zip(last.pauses).ok_or_else(|| unknown("memstats", by_symbols));
        let allocated =
            first.allocated.zip(last.allocated).ok_or_else(|| unknown("gcController", by_symbols));
        let collections = pauses.clone().and_then(|(first, last)| {
            growth(first.collections, last.collections, "Go's count of collections")
        });
        let stopped_ns = pauses.and_then(|(first, last)| {
            let ns = growth(first.total_ns, last.total_ns, "Go's sum of pauses")?;
            Ok(counter(within(ns as f64, over_ns as f64)))
        });
        let collector_cpu_ns = if counts_cpu {
            collector_cpu(&first, &last, collections.as_ref().ok().copied(), by_symbols)
        } else {
            Err(Absence::new(Reason::NotSupported, "Go counts the collector's CPU time since version 1.20"))
        };
        let allocated_bytes = allocated.and_then(|(first, last)| {
            let bytes = growth(first, last, "Go's sum of allocated bytes")?;
            Ok(counter(Interval::exact(bytes as f64)))
        });
        let settings = last.settings;
        Ok(Figures { over_ns, settings, stopped_ns, collections, collector_cpu_ns, allocated_bytes })
    }
}

fn unknown(what: &str, by_symbols: bool) -> Absence {
    let absence = Absence::new(
        Reason::NotFound,
        format!("{what} of Go's runtime was not recognised: no collection yet, or an unknown version"),
    );
    if by_symbols { absence } else { absence.mend("build the program without -ldflags=-s") }
}

/// Reads until the values fit together.
fn settled<T>(memory: &mut dyn Memory, place: u64, length: usize, read: fn(&[u8]) -> Option<T>) -> Option<T> {
    for _ in 0..ATTEMPTS {
        let value = read(&exact(memory, place, length)?);
        if value.is_some() {
            return value;
        }
    }
    None
}

/// Whether a later reading fits to one before.
fn fits(before: &Reading, now: &Reading) -> Measured<()> {
    if let (Some(before), Some(now)) = (before.pauses, now.pauses) {
        growth(before.collections, now.collections, "Go's count of collections")?;
        growth(before.total_ns, now.total_ns, "Go's sum of pauses")?;
    }
    if let (Some(before), Some(now)) = (before.allocated, now.allocated) {
        growth(before, now, "Go's sum of allocated bytes")?;
    }
    Ok(())
}

/// The growth of work.cpuStats. A copy of it does not move with each collection.
fn collector_cpu(
    first: &Reading,
    last: &Reading,
    collections: Option<u64>,
    by_symbols: bool,
) -> Measured<Figure> {
    let none = Some(Pauses { total_ns: 0, collections: 0 });
    if last.pauses == none {
        return Ok(counter(Interval::exact(0.0)));
    }
    let both = first.cpu.iter().zip(&last.cpu).filter_map(|(first, last)| (*first).zip(*last));
    let grown: Vec<u64> = both
        .map(|(first, last)| growth(first, last, "Go's CPU time of the collector"))
        .collect::<Measured<_>>()?;
    if grown.is_empty() {
        return Err(unknown("work.cpuStats", by_symbols));
    }
    let moved: Vec<u64> = grown.into_iter().filter(|grown| *grown > 0).collect();
    match (&moved[..], collections) {
        ([], Some(0)) => Ok(counter(Interval::exact(0.0))),
        ([ns], _) => Ok(counter(Interval::exact(*ns as f64))),
        _ => {
            let detail =
                "work.cpuStats of Go's runtime was not recognised: its copies could not be distinguished";
            Err(Absence::new(Reason::Unparsable, detail))
        }
    }
}

/// The sections of variables at the first reading. Then some words change: their offset and the new value.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_bytes(mut bytes: &[u8]) {
    use allocwall_host::fuzzing::{piece, word};
    const START: u64 = 0x55_0000;
    const S: u64 = 1_000_000_000;
    let mut memory = super::memory::Bytes { at: START, bytes: piece(&mut bytes).to_vec() };
    let all = vec![Area { start: START, length: memory.bytes.len() as u64 }];
    let Ok(places) = search(&all, &mut memory, TIME_TO_SEARCH) else { return };
    let mut state = State::new(Searched { areas: Areas { all, memstats: None }, places });
    state.tick(&mut memory, S, true);
    while !bytes.is_empty() {
        let (at, value) = (word(&mut bytes) as usize, word(&mut bytes));
        if let Some(changed) = at.checked_add(8).and_then(|end| memory.bytes.get_mut(at..end)) {
            changed.copy_from_slice(&value.to_le_bytes());
        }
    }
    state.tick(&mut memory, 2 * S, true);
    let Ok(figures) = state.figures(true) else { return };
    if let Ok(stopped) = figures.stopped_ns {
        assert!(stopped.value.high <= S as f64, "more than the window");
    }
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Bytes, Live};
    use super::*;
    use allocwall_sketches::recording::empty;

    const S: u64 = 1_000_000_000;
    const NOW: u64 = 1_700_000_000 * S;

    const BASE: u64 = 0x55_0000;
    /// gcController, memstats, work and the copy of cpuStats in an image; and of the counters in them.
    const CONTROLLER: usize = 0x100;
    const TOTALS_AT: usize = CONTROLLER + 272;
    const MEMSTATS: usize = 0x400;
    const PAUSES_AT: usize = MEMSTATS + 0x1000;
    const WORK: usize = 0x3000;
    const CPU_AT: usize = WORK + 0x200;
    const COPY_AT: usize = 0x3800;
    const SIZE: usize = 0x4000;

    fn put(bytes: &mut [u8], at: usize, words: &[u64]) {
        for (nth, word) in words.iter().enumerate() {
            bytes[at + 8 * nth..at + 8 * nth + 8].copy_from_slice(&word.to_le_bytes());
        }
    }

    /// A program after some collections of 1 ms each, with GOGC=100. Other words are the kind that is near.
    fn image(collections: u64, allocated: u64) -> Bytes {
        let mut bytes = vec![0; SIZE];
        put(&mut bytes, CONTROLLER, &[100, i64::MAX as u64, 4 << 20, 77, 1 << 62, 12345]);
        let in_use = 40 << 20;
        let freed = allocated - (30 << 20);
        put(&mut bytes, TOTALS_AT, &[in_use, 8 << 20, 3 << 20, allocated, freed, 52 << 20, 0]);
        // The parts of memstats before the pauses.
        put(&mut bytes, MEMSTATS, &[7, 8, 9, 10, 11]);
        if collections > 0 {
            let end = |nth: u64| NOW + nth * S;
            put(&mut bytes, PAUSES_AT, &[end(collections - 1), collections * 1_000_000]);
            for nth in collections.saturating_sub(RING)..collections {
                let slot = 8 * (nth % RING) as usize;
                put(&mut bytes, PAUSES_AT + PAUSE_NS + slot, &[1_000_000]);
                put(&mut bytes, PAUSES_AT + PAUSE_END + slot, &[end(nth)]);
            }
            put(&mut bytes, PAUSES_AT + NUM_GC, &[collections | 1 << 32, 0.25f64.to_bits()]);
            put_cpu(&mut bytes, CPU_AT, collections);
        }
        put(&mut bytes, PAUSES_AT + PAUSES + 0x100, &[1]);
        Bytes { at: BASE, bytes }
    }

    fn put_cpu(bytes: &mut [u8], at: usize, collections: u64) {
        let ms = collections * 1_000_000;
        let total = ms + 5 * ms + 2 * ms + 4 * ms;
        let all = total + 3 * ms + 50 * ms + 60 * ms;
        put(bytes, at, &[ms, 5 * ms, 2 * ms, 4 * ms, total, ms, 2 * ms, 3 * ms, 50 * ms, 60 * ms, all]);
    }

    fn whole() -> Vec<Area> {
        vec![Area { start: BASE, length: SIZE as u64 }]
    }

    fn places_in(areas: &[Area], memory: &mut dyn Memory) -> Places {
        search(areas, memory, 100 * TIME_TO_SEARCH).expect("there is enough time")
    }

    fn places(cpu: &[usize]) -> Places {
        let at = |offset: usize| BASE + offset as u64;
        Places {
            pauses: Some(at(PAUSES_AT)),
            totals: Some(at(TOTALS_AT)),
            settings: Some(at(CONTROLLER)),
            cpu: cpu.iter().map(|offset| at(*offset)).collect(),
        }
    }

    /// With symbols of the variables, or without any.
    fn state(image: &mut Bytes, symbols: bool) -> State {
        let area = |offset: usize, length: u64| Area { start: BASE + offset as u64, length };
        let memstats = area(MEMSTATS, 0x2800);
        let areas = if symbols {
            let all = vec![memstats, area(CONTROLLER, 392), area(WORK, 0x400)];
            Areas { all, memstats: Some(memstats) }
        } else {
            Areas { all: whole(), memstats: None }
        };
        let places = places_in(&areas.all, image);
        State::new(Searched { areas, places })
    }

    #[test]
    fn variables_are_found_by_their_values() {
        for collections in [1, 2, 255, 256, 257, 1000] {
            let mut image = image(collections, 1 << 30);
            assert_eq!(places_in(&whole(), &mut image), places(&[CPU_AT]), "{collections}");
            let expected = Pauses { total_ns: collections * 1_000_000, collections };
            assert_eq!(read_pauses(&image.bytes[PAUSES_AT..]), Some(expected));
        }
        let none = places_in(&whole(), &mut image(0, 1 << 30));
        assert_eq!(none, Places { pauses: None, ..places(&[]) });
        let nothing = places_in(&whole(), &mut Bytes { at: BASE, bytes: vec![0; SIZE] });
        assert_eq!(nothing, Places::default());
        assert_eq!(places_in(&whole(), &mut Bytes { at: 0, bytes: vec![] }), Places::default());
    }

    #[test]
    fn the_collector_may_be_off_or_set_to_any_percentage() {
        for percent in [-1i32, 1, 50, 100, 400, 100_000] {
            let mut image = image(3, 1 << 30);
            let minimum = (4u64 << 20).wrapping_mul(i64::from(percent) as u64) / 100;
            put(&mut image.bytes, CONTROLLER, &[u64::from(percent as u32), 1 << 40, minimum]);
            let found = places_in(&whole(), &mut image);
            assert!(found.totals.is_some(), "{percent}");
            let settings = read_settings(&image.bytes[CONTROLLER..]).unwrap();
            assert_eq!((settings.percent, settings.limit), (percent, 1 << 40));
            let shown = if percent == -1 { "off".to_string() } else { percent.to_string() };
            assert_eq!(settings.to_string(), format!("GOGC={shown} GOMEMLIMIT=1099511627776"));
            put(&mut image.bytes, CONTROLLER + 16, &[minimum + 1]);
            assert!(places_in(&whole(), &mut image).totals.is_none(), "{percent}");
        }
    }

    #[test]
    fn two_places_for_one_variable_are_none() {
        let mut image = image(3, 1 << 30);
        let pauses = image.bytes[PAUSES_AT..PAUSES_AT + PAUSES].to_vec();
        image.bytes.extend(pauses);
        let areas = [Area { start: BASE, length: image.bytes.len() as u64 }];
        let found = places_in(&areas, &mut image);
        assert_eq!((found.pauses, found.totals.is_some()), (None, true));
    }

    #[test]
    fn a_search_that_takes_too_long_finds_nothing() {
        let mut image = image(3, 1 << 30);
        let late = search(&whole(), &mut image, Duration::ZERO).unwrap_err();
        assert_eq!(late.reason, Reason::TooCostly);
        // The near twin: there is nothing to search.
        assert_eq!(search(&[], &mut image, Duration::ZERO), Ok(Places::default()));
    }

    #[test]
    fn counters_grow_from_the_first_to_the_last_reading() {
        for symbols in [true, false] {
            let mut memory = image(3, 1 << 30);
            let mut state = state(&mut memory, symbols);
            state.tick(&mut memory, S, true);
            state.tick(&mut image(5, (1 << 30) + 100), 2 * S, true);
            state.tick(&mut image(13, (1 << 30) + 700), 11 * S, true);
            // The process ended.
            state.tick(&mut Bytes { at: 0, bytes: vec![] }, 12 * S, true);
            let figures = state.figures(true).unwrap();
            assert_eq!((figures.over_ns, figures.collections), (10 * S, Ok(10)));
            assert_eq!(figures.stopped_ns.unwrap().value, Interval::exact(1e7));
            assert_eq!(figures.collector_cpu_ns.unwrap().value, Interval::exact(1.2e8));
            assert_eq!(figures.allocated_bytes.unwrap(), counter(Interval::exact(700.0)));
            assert_eq!(figures.settings.unwrap().to_string(), "GOGC=100 GOMEMLIMIT=off");
        }
    }

    #[test]
    fn without_a_collection_the_symbols_show_that_there_was_none() {
        let mut idle = image(0, 1 << 30);
        let mut by_symbols = state(&mut idle, true);
        by_symbols.tick(&mut idle, S, true);
        by_symbols.tick(&mut image(0, (1 << 30) + 8), 2 * S, true);
        by_symbols.tick(&mut image(4, (1 << 30) + 9), 3 * S, true);
        let figures = by_symbols.figures(true).unwrap();
        assert_eq!((figures.over_ns, figures.collections), (2 * S, Ok(4)));
        assert_eq!(figures.collector_cpu_ns.unwrap().value, Interval::exact(4.8e7));
        let mut still = state(&mut idle, true);
        still.tick(&mut idle, S, true);
        still.tick(&mut idle, 2 * S, true);
        let figures = still.figures(true).unwrap();
        assert_eq!(figures.collections, Ok(0));
        assert_eq!(figures.stopped_ns.unwrap().value, Interval::exact(0.0));
        assert_eq!(figures.collector_cpu_ns.unwrap().value, Interval::exact(0.0));
        // Without symbols, pauses are unknown until the next search finds them, and the account starts anew there.
        let mut stripped = state(&mut idle, false);
        stripped.tick(&mut idle, S, true);
        stripped.tick(&mut idle, 2 * S, true);
        assert!(!stripped.is_complete(true) && !stripped.is_complete(false));
        let mut later = image(2, (1 << 30) + 8);
        stripped.adopt(places_in(&whole(), &mut later));
        assert!(stripped.is_complete(true));
        stripped.tick(&mut later, 3 * S, true);
        stripped.tick(&mut image(3, (1 << 30) + 9), 5 * S, true);
        let figures = stripped.figures(true).unwrap();
        assert_eq!((figures.over_ns, figures.collections), (2 * S, Ok(1)));
        let mut never = state(&mut idle, false);
        never.tick(&mut idle, S, true);
        never.tick(&mut idle, 2 * S, true);
        let figures = never.figures(true).unwrap();
        assert_eq!(figures.collections.unwrap_err().reason, Reason::NotFound);
        assert!(figures.allocated_bytes.is_ok());
    }

    #[test]
    fn of_two_copies_the_one_that_moves_is_read() {
        let with_copy = |collections: u64, copied: u64| {
            let mut image = image(collections, 1 << 30);
            put_cpu(&mut image.bytes, COPY_AT, copied);
            image
        };
        let cpu = |last_copy: u64| {
            let mut first = with_copy(3, 2);
            let mut state = state(&mut first, false);
            assert_eq!(state.places, places(&[CPU_AT, COPY_AT]));
            state.tick(&mut first, S, true);
            state.tick(&mut with_copy(4, last_copy), 2 * S, true);
            state.figures(true).unwrap().collector_cpu_ns
        };
        assert_eq!(cpu(2).unwrap().value, Interval::exact(1.2e7));
        assert_eq!(cpu(4).unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn a_pause_of_the_current_cycle_is_not_in_all_sums_yet() {
        let mut image = image(3, 1 << 30);
        let before = read_cpu(&image.bytes[CPU_AT..]).unwrap();
        let value = |bytes: &[u8], nth: usize| word(bytes, CPU_AT + 8 * nth).unwrap();
        let (pause, total) = (value(&image.bytes, 3) + 500, value(&image.bytes, 4) + 500);
        put(&mut image.bytes, CPU_AT + 24, &[pause, total]);
        assert_eq!(read_cpu(&image.bytes[CPU_AT..]), Some(before + 500));
        put(&mut image.bytes, CPU_AT + 80, &[1]);
        assert_eq!(read_cpu(&image.bytes[CPU_AT..]), None);
    }

    #[test]
    fn counters_that_go_backwards_give_a_reason() {
        let changes = [image(2, 2 << 30), image(3, 1 << 29)];
        for mut later in changes {
            let mut first = image(3, 1 << 30);
            let mut state = state(&mut first, true);
            state.tick(&mut first, S, true);
            state.tick(&mut later, 2 * S, true);
            assert!(state.wrong.is_some());
            state.tick(&mut image(9, 4 << 30), 3 * S, true);
            assert!(matches!(state.figures(true), Err(absence) if absence.reason == Reason::Unparsable));
        }
        let mut memory = image(3, 1 << 30);
        let mut once = state(&mut memory, true);
        once.tick(&mut memory, S, true);
        assert!(matches!(once.figures(true), Err(absence) if absence.reason == Reason::TooLittle));
        let unread = state(&mut memory, true);
        assert!(matches!(unread.figures(true), Err(absence) if absence.reason == Reason::NotFound));
    }

    #[test]
    fn before_1_20_there_is_no_cpu_time() {
        let mut memory = image(3, 1 << 30);
        let mut state = state(&mut memory, true);
        state.tick(&mut memory, S, false);
        state.tick(&mut memory, 2 * S, false);
        let figures = state.figures(false).unwrap();
        assert_eq!(figures.collector_cpu_ns.unwrap_err().reason, Reason::NotSupported);
        assert!(figures.stopped_ns.is_ok());
    }

    #[test]
    fn a_cut_image_has_no_counters_beyond_its_end() {
        let whole = image(300, 1 << 30).bytes;
        for cut in 0..PAUSES {
            assert_eq!(read_pauses(&whole[PAUSES_AT..PAUSES_AT + cut]), None);
        }
        for cut in 0..TOTALS {
            assert_eq!(read_totals(&whole[TOTALS_AT..TOTALS_AT + cut]), None);
        }
        for cut in 0..CPU {
            assert_eq!(read_cpu(&whole[CPU_AT..CPU_AT + cut]), None);
        }
        for cut in 0..TOTALS_AT + TOTALS - CONTROLLER {
            assert_eq!(totals_in(&whole[CONTROLLER..CONTROLLER + cut]), None);
        }
    }

    #[test]
    fn changed_bits_are_noticed() {
        let whole = image(200, 1 << 30).bytes;
        let flipped = |at: usize, bit: usize| {
            let mut bytes = whole.clone();
            bytes[at] ^= 1 << bit;
            bytes
        };
        for at in 0..PAUSES {
            for bit in 0..8 {
                let bytes = flipped(PAUSES_AT + at, bit);
                let read = read_pauses(&bytes[PAUSES_AT..PAUSES_AT + PAUSES]);
                // The times of older pauses, the count of forced collections and the fraction are only plausible.
                let newest = PAUSE_END + 8 * 199;
                let checked = at < PAUSE_END || (newest..newest + 8).contains(&at);
                assert!(!checked || read.is_none(), "byte {at}, bit {bit}: {read:?}");
            }
        }
        for at in 0..CPU {
            for bit in 0..8 {
                let bytes = flipped(CPU_AT + at, bit);
                let read = read_cpu(&bytes[CPU_AT..CPU_AT + CPU]);
                // Unused, user and all together may have a pause too much.
                assert!(at >= 64 || read.is_none(), "byte {at}, bit {bit}: {read:?}");
            }
        }
        for at in 0..24 {
            for bit in 0..8 {
                let bytes = flipped(CONTROLLER + at, bit);
                let read = totals_in(&bytes[CONTROLLER..]);
                // The memory limit may be any positive number.
                let limit = (8..16).contains(&at) && (at, bit) != (15, 7);
                assert!(limit || read.is_none(), "byte {at}, bit {bit}: {read:?}");
            }
        }
        for at in 0..TOTALS {
            for bit in 0..8 {
                let bytes = flipped(TOTALS_AT + at, bit);
                let read = read_totals(&bytes[TOTALS_AT..TOTALS_AT + TOTALS]);
                let (nth, bit) = (at / 8, at % 8 * 8 + bit);
                let checked = match nth {
                    // In use and free, released: in pages, and smaller than the address space.
                    0 | 2 => !(13..47).contains(&bit),
                    1 => !(12..47).contains(&bit),
                    // What lives is in use.
                    3 | 4 => bit >= 27,
                    _ => bit >= 47,
                };
                assert!(!checked || read.is_none(), "word {nth}, bit {bit}: {read:?}");
                assert!(read.is_none_or(|allocated| allocated.abs_diff(1 << 30) < 1 << 27));
            }
        }
    }

    #[test]
    fn no_byte_of_an_image_makes_a_reading_panic() {
        let good = image(3, 1 << 30);
        let mut state = state(&mut image(3, 1 << 30), false);
        for at in (0..SIZE).step_by(3) {
            let mut damaged = Bytes { at: BASE, bytes: good.bytes.clone() };
            damaged.bytes[at] ^= 0xff;
            state.wrong = None;
            state.tick(&mut damaged, S + at as u64, true);
        }
        let _ = state.figures(true);
    }

    #[test]
    fn pages_that_do_not_exist_are_not_read() {
        /// The second of four pages exists.
        struct Sparse(Vec<u64>);
        impl Memory for Sparse {
            fn prefix(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
                self.0.extend([address, length as u64]);
                Some(vec![7; length])
            }

            fn pages(&mut self, start: u64, count: usize) -> Vec<Page> {
                let state = |at: u64| if at == BASE + PAGE { Page::Resident } else { Page::Untouched };
                (0..count as u64).map(|nth| state(start + nth * PAGE)).collect()
            }
        }
        let mut sparse = Sparse(Vec::new());
        let bytes = block(&mut sparse, BASE + 8, 4 * PAGE as usize - 8).unwrap();
        assert_eq!(sparse.0, [BASE + PAGE, PAGE]);
        let page = PAGE as usize;
        assert!(bytes[..page - 8].iter().all(|b| *b == 0) && bytes[page - 8..2 * page - 8] == vec![7; page]);
        assert!(bytes[2 * page - 8..].iter().all(|b| *b == 0));
        assert_eq!(block(&mut sparse, BASE + 2 * PAGE, page), None);
    }

    #[test]
    fn what_is_in_swap_is_not_taken_for_zero() {
        struct Swapped(Bytes);
        impl Memory for Swapped {
            fn prefix(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
                self.0.prefix(address, length)
            }

            fn pages(&mut self, start: u64, count: usize) -> Vec<Page> {
                let swapped = BASE + PAGE;
                let state = |at: u64| if at == swapped { Page::Unknown } else { Page::Resident };
                (0..count as u64).map(|nth| state(start + nth * PAGE)).collect()
            }
        }
        let mut swapped = Swapped(image(3, 1 << 30));
        // The pauses begin in the second page.
        assert_eq!(settled(&mut swapped, BASE + PAUSES_AT as u64, PAUSES, read_pauses), None);
        assert_eq!(settled(&mut swapped, BASE + TOTALS_AT as u64, TOTALS, read_totals), Some(1 << 30));
        assert_eq!(exact(&mut swapped, BASE, SIZE), None);
        assert_eq!(places_in(&whole(), &mut swapped), Places { pauses: None, ..places(&[CPU_AT]) });
    }

    #[test]
    fn a_copy_of_proc_has_no_memory() {
        let dir = tempfile::tempdir().unwrap();
        let process = Process { pid: 7, ..empty().processes.remove(0) };
        let proc = ProcFs::at(dir.path());
        let (mut memory, mut account) = (Live::of(&proc, 7), Account::new(&proc, &process));
        account.tick(&mut memory, &|| S);
        assert!(account.has_failed(&memory));
        let (account, _) = Box::new(account).finish();
        assert_eq!(account.collections.unwrap_err().reason, Reason::NotApplicable);
        assert_eq!((account.pid, account.over_ns), (7, 0));
    }
}
