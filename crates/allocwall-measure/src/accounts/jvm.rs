//! What the JVM counts itself: its performance counters (hsperfdata, which jstat reads too), and the allocated bytes of
//! its threads, whose places libjvm describes in `gHotSpotVMStructs`.
//!
//! hsperfdata is a header and a list of entries with a name, a type and a value each: `PerfDataPrologue` and
//! `PerfDataEntry` in HotSpot's runtime/perfMemory.hpp.

use super::memory::{Memory, PAGE, code_of, fill, image, lives, word};
use super::{Read, Reader, counter, growth, read_once, within};
use allocwall_host::elf::{Bounded, Elf, Table};
use allocwall_host::file;
use allocwall_host::maps::{self, Mapping};
use allocwall_host::proc::ProcFs;
use allocwall_host::topology;
use allocwall_model::recording::{Figure, RuntimeAccount};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::time::{Duration, Instant};

/// The counters take 32 KiB by default (PerfDataMemorySize).
const MOST_BYTES: u64 = 1 << 20;
/// A JVM has some hundreds.
const MOST_ENTRIES: usize = 8192;
/// A JVM has three at most.
const MOST_COLLECTORS: usize = 16;
const LONGEST_NAME: usize = 64;
/// A JVM that was just started has no counters yet: so often they are looked for.
const SEARCHES: u32 = 9;
/// Then it adds counters: so often the account starts anew.
const RESTARTS: u32 = 8;
/// How often a reading is repeated if the JVM changed something meanwhile.
const ATTEMPTS: usize = 4;

const MOST_THREADS: u32 = 4096;
/// One reading of all threads takes at most this time. It is made at most this often, and each one that takes too long
/// doubles the pause, up to this number of times.
const TIME_OF_A_WALK: Duration = Duration::from_millis(50);
const WALK_EVERY_NS: u64 = 900_000_000;
const DOUBLINGS: u32 = 4;
/// A thread's buffer is a part of the young generation, and smaller than this in every collector.
const LARGEST_BUFFER: u64 = 1 << 34;
/// Larger counters are not those of a JVM.
const MOST_ALLOCATED: u64 = 1 << 56;
/// What the sum over threads may miss or have too much: threads that ended between two readings, and bytes that are
/// counted when a buffer is full. It was 2 % with each of five collectors of JDK 17 and 25.
const ALLOCATION_ERROR: f64 = 0.03;

pub(super) struct Account {
    pid: i32,
    proc: ProcFs,
    searches_left: u32,
    counters: Measured<Box<Counted>>,
    threads: Measured<Box<Allocating>>,
}

impl Account {
    pub(super) fn new(proc: &ProcFs, pid: i32) -> Account {
        let detail = format!("the files of process {pid} were not read before the end of the window");
        let absence = Absence::new(Reason::TooLittle, detail);
        Account {
            pid,
            proc: proc.clone(),
            searches_left: SEARCHES,
            counters: Err(absence.clone()),
            threads: Err(absence),
        }
    }

    fn search(&mut self, memory: &mut dyn Memory, now: &dyn Fn() -> u64) {
        let thread = self.proc.living_thread(self.pid);
        let described = match memory.failure() {
            Some(absence) => Err(absence),
            None => described(&self.proc, thread, memory),
        };
        let source = Source::find(&self.proc, self.pid, thread, described.as_ref().ok(), memory);
        let counters = source.and_then(|source| Counted::open(source, memory, now()));
        // Both parts start at the same time.
        if counters.is_ok() || self.threads.is_err() {
            let started = counters.as_ref().ok().and_then(|counters| counters.first.started);
            self.counters = counters.map(Box::new);
            let threads =
                described.and_then(|described| Allocating::open(&described, memory, started, now()));
            self.threads = threads.map(Box::new);
        }
    }
}

impl Reader for Account {
    fn tick(&mut self, memory: &mut dyn Memory, now: &dyn Fn() -> u64) {
        if self.counters.is_err() && self.searches_left > 0 {
            self.searches_left -= 1;
            self.search(memory, now);
            return;
        }
        let mut started = None;
        // The file outlives the JVM.
        if let Ok(counters) = &mut self.counters
            && (matches!(counters.source, Source::Memory { .. }) || lives(&self.proc, self.pid))
        {
            let t_ns = now();
            counters.tick(memory, t_ns);
            started = counters.started_at(t_ns);
        }
        if let Ok(threads) = &mut self.threads {
            threads.tick(memory, started, now());
        }
    }

    fn has_failed(&self, _: &dyn Memory) -> bool {
        self.searches_left == 0 && self.counters.is_err() && self.threads.is_err()
    }

    fn finish(self: Box<Self>) -> Read {
        let Account { pid, counters, threads, .. } = *self;
        let by_counters = counters.as_ref().map_or(0, |counters| counters.over_ns());
        let by_threads = threads.as_ref().map_or(0, |threads| threads.over_ns());
        let over_ns = if by_counters > 0 { by_counters } else { by_threads };
        let cpus = topology::online_cpus(Path::new("/sys")).map(|cpus| cpus.len());
        let figures = counters.and_then(|counters| counters.figures(cpus));
        let figures = figures.unwrap_or_else(|absence| Figures {
            method: "hsperfdata".to_owned(),
            stopped_ns: Err(absence.clone()),
            collections: Err(absence.clone()),
            collector_cpu_ns: Err(absence),
        });
        let allocated_bytes = threads.and_then(|threads| threads.figure(over_ns));
        let mut method = figures.method;
        if allocated_bytes.is_ok() {
            method.push_str("; allocated bytes of living threads");
        }
        let Figures { stopped_ns, collections, collector_cpu_ns, .. } = figures;
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

// The counters.

/// Where the counters are.
enum Source {
    Memory {
        address: u64,
        length: usize,
    },
    /// Has the same bytes. It is read only if the memory may never be: its server may not answer (NFS, FUSE).
    File(File),
}

impl Source {
    fn find(
        proc: &ProcFs,
        pid: i32,
        thread: i32,
        described: Option<&Described>,
        memory: &mut dyn Memory,
    ) -> Measured<Source> {
        // Its own, with its number in the innermost PID namespace: a tool such as jstatd also maps those of other JVMs.
        let number = proc.status(pid)?.ns_pids.last().copied().unwrap_or(pid);
        let own = |mapping: &Mapping| {
            mapping.perms.shared && mapping.perms.write && hsperfdata(&mapping.path) == Some(number)
        };
        let kept = proc.maps(thread, own)?;
        if let Some(mapping) = kept.mappings.first() {
            if memory.failure().is_some() {
                return maps::open(proc.root(), thread, mapping).map(Source::File);
            }
            let length = (mapping.end - mapping.start).min(MOST_BYTES) as usize;
            return Ok(Source::Memory { address: mapping.start, length });
        }
        let unshared = described.and_then(|described| Source::unshared(described, memory));
        unshared.ok_or_else(|| {
            Absence::new(Reason::Disabled, "this JVM keeps no performance counters (hsperfdata)")
                .mend("start the JVM without -XX:-UsePerfData")
        })
    }

    /// With -XX:+PerfDisableSharedMem the counters are in the JVM's own memory.
    fn unshared(described: &Described, memory: &mut dyn Memory) -> Option<Source> {
        let address = memory.word(described.get("PerfMemory::_start").ok()?)?;
        let length = memory.word(described.get("PerfMemory::_capacity").ok()?)?.min(MOST_BYTES);
        (address != 0 && length > 0).then_some(Source::Memory { address, length: length as usize })
    }

    fn bytes(&self, memory: &mut dyn Memory) -> Measured<Vec<u8>> {
        match self {
            Source::File(file) => up_to(file, MOST_BYTES)
                .map_err(|error| file::absence_of(Path::new("the JVM's hsperfdata file"), &error)),
            Source::Memory { address, length } => {
                // Pages behind the used part may not be resident.
                let header = memory.bytes(*address, HEADER);
                let used = header.and_then(|header| number_at(&header, USED));
                let bytes = used.and_then(|used| memory.bytes(*address, used.min(*length).max(HEADER)));
                let detail = "the JVM's performance counters are not in its resident memory";
                bytes.ok_or_else(|| Absence::new(Reason::NotFound, detail))
            }
        }
    }

    fn read(&self, memory: &mut dyn Memory) -> Measured<Counters> {
        let mut attempts = 1;
        loop {
            match parse(&self.bytes(memory)?) {
                // The JVM may be adding a counter.
                Err(_) if attempts < ATTEMPTS => attempts += 1,
                outcome => return outcome,
            }
        }
    }
}

/// The number in `/tmp/hsperfdata_USER/PID`, also if the file was removed.
fn hsperfdata(path: &[u8]) -> Option<i32> {
    let path = path.strip_suffix(b" (deleted)").unwrap_or(path);
    let mut parts = path.rsplit(|byte| *byte == b'/');
    let name = parts.next().filter(|name| name.iter().all(u8::is_ascii_digit))?;
    parts.next().filter(|folder| folder.starts_with(b"hsperfdata_"))?;
    std::str::from_utf8(name).ok()?.parse().ok()
}

fn up_to(file: &File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len().min(most) as usize];
    let read = fill(file, &mut bytes, 0)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// The counters at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Counters {
    /// Ticks in a second.
    frequency: u64,
    /// Ticks in which all threads were stopped at a safepoint, or on their way there.
    stopped: u64,
    collections: u64,
    /// Ticks that the collectors counted.
    pauses: u64,
    /// The collectors' names.
    names: Vec<String>,
    /// Threads that have started so far.
    started: Option<u64>,
    /// CPU time of the collector's threads. Parallel and G1 count it since JDK 22; others leave it at 0.
    cpu_ns: Option<u64>,
}

fn malformed(what: &str) -> Absence {
    Absence::new(Reason::Unparsable, format!("malformed hsperfdata: {what}"))
}

fn parse(bytes: &[u8]) -> Measured<Counters> {
    let values = entries(bytes).map_err(malformed)?;
    let known = |name: &str| match values.get(name.as_bytes()) {
        Some(Value::Number(number)) => Ok(Some(*number)),
        Some(Value::Text(_)) => Err(malformed("a counter is a text")),
        None => Ok(None),
    };
    let number = |name: &str| {
        let missing = || Absence::new(Reason::NotFound, format!("hsperfdata has no counter {name}"));
        known(name)?.ok_or_else(missing)
    };
    let frequency = number("sun.os.hrt.frequency")?;
    if frequency == 0 {
        return Err(malformed("its clock has no ticks"));
    }
    let too_large = || malformed("a sum is too large");
    let (stopped, reaching) = (number("sun.rt.safepointTime")?, number("sun.rt.safepointSyncTime")?);
    let mut counters = Counters {
        frequency,
        stopped: stopped.checked_add(reaching).ok_or_else(too_large)?,
        collections: 0,
        pauses: 0,
        names: Vec::new(),
        started: known("java.threads.started")?,
        cpu_ns: known("sun.threads.total_gc_cpu_time")?,
    };
    for nth in 0..MOST_COLLECTORS {
        let collector = format!("sun.gc.collector.{nth}");
        let Some(collections) = known(&format!("{collector}.invocations"))? else { break };
        let pauses = number(&format!("{collector}.time"))?;
        counters.collections = counters.collections.checked_add(collections).ok_or_else(too_large)?;
        counters.pauses = counters.pauses.checked_add(pauses).ok_or_else(too_large)?;
        if let Some(Value::Text(name)) = values.get(format!("{collector}.name").as_bytes()) {
            let name = &name[..name.len().min(LONGEST_NAME)];
            counters.names.push(String::from_utf8_lossy(name).into_owned());
        } else {
            return Err(malformed("a collector has no name"));
        }
    }
    let names = values.keys();
    let timed = names.filter(|name| name.starts_with(b"sun.gc.collector.") && name.ends_with(b".time"));
    if timed.count() != counters.names.len() {
        return Err(malformed("the list of collectors is incomplete"));
    }
    Ok(counters)
}

enum Value<'b> {
    Number(u64),
    Text(&'b [u8]),
}

const HEADER: usize = 32;
/// In the header: the number of bytes in use.
const USED: usize = 8;

fn number_at(bytes: &[u8], at: usize) -> Option<usize> {
    let bytes = bytes.get(at..at.checked_add(4)?)?;
    usize::try_from(i32::from_le_bytes(bytes.try_into().ok()?)).ok()
}

/// All numbers and texts, by name. Other entries are checked and left out.
fn entries(bytes: &[u8]) -> Result<HashMap<&[u8], Value<'_>>, &'static str> {
    const ENTRY: usize = 20;
    const CUT: &str = "it is shorter than it says";
    let header = bytes.get(..HEADER).ok_or(CUT)?;
    if header[..4] != [0xca, 0xfe, 0xc0, 0xc0] {
        return Err("wrong magic number");
    }
    // Byte order, major version, and whether the JVM has set it up.
    match (header[4], header[5], header[7]) {
        (1, 2, 1) => {}
        (1, 2, 0) => return Err("it is not ready"),
        (1, 2, _) => return Err("its state is unknown"),
        (1, ..) => return Err("unknown version"),
        _ => return Err("unknown byte order"),
    }
    let used = number_at(header, USED).ok_or(CUT)?;
    let mut rest = bytes.get(..used).ok_or(CUT)?;
    let (first, count) = (number_at(header, 24).ok_or(CUT)?, number_at(header, 28).ok_or(CUT)?);
    if first < HEADER || count > MOST_ENTRIES {
        return Err("wrong list of entries");
    }
    rest = rest.get(first..).ok_or(CUT)?;
    let mut values = HashMap::new();
    for _ in 0..count {
        let length = number_at(rest, 0).filter(|length| *length > ENTRY).ok_or("an entry has no length")?;
        let entry = rest.get(..length).ok_or(CUT)?;
        rest = &rest[length..];
        let at = |field_at: usize| number_at(entry, field_at).filter(|at| (ENTRY..length).contains(at));
        let name = at(4).and_then(|at| until_nul(&entry[at..])).ok_or("an entry has no name")?;
        let items = number_at(entry, 8).ok_or("an entry has no size")?;
        let data = at(16).map(|at| &entry[at..]).ok_or("an entry has no value")?;
        let value = match (entry[12], items) {
            (b'J', 0) => {
                let number = word(data, 0).ok_or("a number is cut")?;
                if i64::try_from(number).is_err() {
                    // Counters are not negative; limits of pools may be.
                    continue;
                }
                Value::Number(number)
            }
            (b'B', 1..) => {
                let text = data.get(..items).ok_or("a text is cut")?;
                Value::Text(until_nul(text).unwrap_or(text))
            }
            _ => continue,
        };
        if values.insert(name, value).is_some() {
            return Err("a name occurs twice");
        }
    }
    Ok(values)
}

fn until_nul(bytes: &[u8]) -> Option<&[u8]> {
    let end = bytes.iter().position(|byte| *byte == 0)?;
    Some(&bytes[..end])
}

/// The counters at the first and at the last reading.
struct Counted {
    source: Source,
    first_ns: u64,
    first: Counters,
    last_ns: u64,
    last: Counters,
    restarts_left: u32,
    wrong: Option<Absence>,
}

struct Figures {
    /// What was read, and what the figures contain.
    method: String,
    stopped_ns: Measured<Figure>,
    collections: Measured<u64>,
    collector_cpu_ns: Measured<Figure>,
}

impl Counted {
    fn open(source: Source, memory: &mut dyn Memory, t_ns: u64) -> Measured<Counted> {
        let counters = source.read(memory)?;
        Ok(Counted {
            source,
            first_ns: t_ns,
            first: counters.clone(),
            last_ns: t_ns,
            last: counters,
            restarts_left: RESTARTS,
            wrong: None,
        })
    }

    fn tick(&mut self, memory: &mut dyn Memory, t_ns: u64) {
        if self.wrong.is_some() {
            return;
        }
        // The process may have ended; then the values of the reading before are the last ones.
        let Ok(now) = self.source.read(memory) else { return };
        // While the JVM starts, it adds counters.
        if !same_counters(&self.last, &now) && self.restarts_left > 0 {
            self.restarts_left -= 1;
            (self.first_ns, self.first) = (t_ns, now.clone());
        } else if let Err(absence) = fits(&self.last, &now) {
            self.wrong = Some(absence);
            return;
        }
        (self.last_ns, self.last) = (t_ns, now);
    }

    fn over_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// The threads that had started at this time, if the counters were read then.
    fn started_at(&self, t_ns: u64) -> Option<u64> {
        self.last.started.filter(|_| self.last_ns == t_ns)
    }

    fn figures(self, cpus: Measured<usize>) -> Measured<Figures> {
        let over_ns = self.over_ns() as f64;
        if let Some(wrong) = self.wrong {
            return Err(wrong);
        }
        if over_ns == 0.0 {
            return Err(read_once());
        }
        let (first, last) = (&self.first, &self.last);
        let ns = |ticks: u64| ticks as f64 * 1e9 / last.frequency as f64;
        let at_work = at_work(&last.names);
        let pauses = growth(first.pauses, last.pauses, "the length of the JVM's pauses").map(ns);
        let mut method = "hsperfdata".to_owned();
        if let Some(name) = last.names.first().and_then(|name| name.split(' ').next()) {
            method.push_str(&format!(", collector {name}"));
        }
        // Threads are stopped at safepoints, and not for the collector alone.
        let own = match (&at_work, &pauses) {
            (Ok(_), Ok(pauses)) => *pauses,
            _ => 0.0,
        };
        method.push_str("; stopped: at most all safepoints");
        method.push_str(if own > 0.0 { ", at least the collector's pauses" } else { "" });
        let stopped = growth(first.stopped, last.stopped, "the JVM's time at safepoints");
        let stopped_ns = stopped.map(|ticks| {
            let Interval { low, point, high } = within(ns(ticks), over_ns);
            counter(Interval::new(low.min(own), point, high))
        });
        // No thread works on more than one CPU at a time.
        let cpus = cpus.map(|cpus| cpus.max(1) as f64);
        let most_ns = cpus.as_ref().map_or(f64::MAX, |cpus| over_ns * cpus);
        let collector_cpu_ns = match (first.cpu_ns, last.cpu_ns) {
            (Some(from), Some(to)) if to > 0 => {
                let cpu = growth(from, to, "the JVM's CPU time of its collector");
                cpu.map(|ns| counter(within(ns as f64, most_ns)))
            }
            _ => at_work.and_then(|at_work| {
                let pauses = pauses?;
                let Interval { low, point, mut high } = within(pauses, over_ns);
                if at_work == AtWork::Several {
                    let cpus = cpus?;
                    high = (pauses * cpus).min(most_ns);
                    method.push_str(&format!(
                        "; collector's CPU time: its pauses on 1 to {cpus} CPUs, without concurrent phases"
                    ));
                }
                Ok(counter(Interval::new(low, point, high)))
            }),
        };
        Ok(Figures {
            method,
            stopped_ns,
            collections: growth(first.collections, last.collections, "the JVM's number of collections"),
            collector_cpu_ns,
        })
    }
}

fn same_counters(before: &Counters, now: &Counters) -> bool {
    let constants = |c: &Counters| (c.frequency, c.names.clone(), c.cpu_ns.is_some());
    constants(before) == constants(now)
}

/// Whether a later reading fits to one before.
fn fits(before: &Counters, now: &Counters) -> Measured<()> {
    if !same_counters(before, now) {
        return Err(malformed("its constants changed"));
    }
    growth(before.stopped, now.stopped, "the JVM's time at safepoints")?;
    growth(before.collections, now.collections, "the JVM's number of collections")?;
    growth(before.pauses, now.pauses, "the length of the JVM's pauses")?;
    let (from, to) = (before.cpu_ns.unwrap_or(0), now.cpu_ns.unwrap_or(0));
    growth(from, to, "the JVM's CPU time of its collector").map(drop)
}

/// How many threads work in a pause.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum AtWork {
    One,
    Several,
}

/// By the collectors' names, in JDK 17 and 25. Other collectors also count phases that run beside the program.
fn at_work(names: &[String]) -> Measured<AtWork> {
    static KNOWN: [(&str, AtWork); 3] =
        [("Serial ", AtWork::One), ("Parallel ", AtWork::Several), ("G1 ", AtWork::Several)];
    let Some(name) = names.first() else {
        return Err(Absence::new(Reason::NotApplicable, "this JVM has no garbage collector"));
    };
    let known = KNOWN.iter().find(|(family, _)| names.iter().all(|name| name.starts_with(*family)));
    known.map(|(_, at_work)| *at_work).ok_or_else(|| {
        let detail =
            format!("this JVM's collector ({name}) counts the length of its phases, not its CPU time");
        Absence::new(Reason::NotSupported, detail)
    })
}

// The threads.

/// What is read of `gHotSpotVMStructs`, and whether it is a static variable.
const FIELDS: [(&str, bool); 9] = [
    ("ThreadsSMRSupport::_java_thread_list", true),
    ("ThreadsList::_length", false),
    ("ThreadsList::_threads", false),
    ("Thread::_tlab", false),
    ("Thread::_allocated_bytes", false),
    ("ThreadLocalAllocBuffer::_start", false),
    ("ThreadLocalAllocBuffer::_top", false),
    ("PerfMemory::_start", true),
    ("PerfMemory::_capacity", true),
];

/// The places that libjvm describes: addresses of static variables, offsets of the others.
struct Described(HashMap<&'static str, u64>);

impl Described {
    fn get(&self, name: &str) -> Measured<u64> {
        let place = self.0.get(name).copied();
        place.ok_or_else(|| Absence::new(Reason::NotFound, format!("libjvm does not describe {name}")))
    }
}

/// Small reads of libjvm's variables and texts: each page is read once.
struct Pages<'m> {
    memory: &'m mut dyn Memory,
    /// A page that is not resident.
    file: &'m dyn Fn(u64) -> Option<Vec<u8>>,
    pages: HashMap<u64, Option<Vec<u8>>>,
}

impl Pages<'_> {
    fn byte(&mut self, address: u64) -> Option<u8> {
        const MOST: usize = 1024;
        if self.pages.len() >= MOST {
            return None;
        }
        let page = address & !(PAGE - 1);
        let (memory, file) = (&mut *self.memory, self.file);
        let read = || memory.bytes(page, PAGE as usize).or_else(|| file(page));
        let bytes = self.pages.entry(page).or_insert_with(read);
        bytes.as_ref()?.get((address - page) as usize).copied()
    }

    fn word(&mut self, address: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        for (nth, byte) in bytes.iter_mut().enumerate() {
            *byte = self.byte(address.checked_add(nth as u64)?)?;
        }
        Some(u64::from_le_bytes(bytes))
    }

    /// A C string, of which the first bytes are enough.
    fn text(&mut self, address: u64) -> Option<Vec<u8>> {
        let mut text = Vec::new();
        while text.len() < LONGEST_NAME {
            match self.byte(address.checked_add(text.len() as u64)?)? {
                0 => break,
                byte => text.push(byte),
            }
        }
        Some(text)
    }
}

fn described(proc: &ProcFs, thread: i32, memory: &mut dyn Memory) -> Measured<Described> {
    const MOST_SYMBOLS: usize = 64;
    let is_libjvm = |mapping: &Mapping| {
        mapping.path.strip_suffix(b" (deleted)").unwrap_or(&mapping.path).ends_with(b"/libjvm.so")
    };
    let (file, mapping) = code_of(proc, thread, "libjvm.so", is_libjvm)?;
    image(file, &mapping, |elf, bias| {
        let mut symbols: HashMap<String, u64> = HashMap::new();
        elf.symbols(Table::Exported, &mut |symbol| {
            if symbol.name.starts_with(b"gHotSpotVMStruct") && symbols.len() < MOST_SYMBOLS {
                symbols.insert(symbol.text().to_owned(), bias.wrapping_add(symbol.address));
            }
        })?;
        table(&symbols, memory, &|address| page_of(elf, address.wrapping_sub(bias)))
    })
}

/// A page of a program as its file has it. Its pointers are not those in memory: a page that has some is resident, since
/// the loader has changed it, or in swap.
fn page_of<'d>(elf: &Elf<'d, Bounded<'d>>, address: u64) -> Option<Vec<u8>> {
    let end = address.checked_add(PAGE)?;
    let mut page = vec![0; PAGE as usize];
    let mut exists = false;
    for segment in &elf.facts.segments {
        let end_of = |size: u64| segment.address.saturating_add(size);
        exists |= segment.address < end && address < end_of(segment.memory_size);
        let (from, to) = (address.max(segment.address), end.min(end_of(segment.file_size)));
        if from < to {
            let bytes = elf.bytes_at(from, to - from)?;
            page[(from - address) as usize..(to - address) as usize].copy_from_slice(bytes);
        }
    }
    exists.then_some(page)
}

/// Reads the table. Its columns, and the distance of its rows, are in variables too (runtime/vmStructs.cpp).
fn table(
    symbols: &HashMap<String, u64>,
    memory: &mut dyn Memory,
    file: &dyn Fn(u64) -> Option<Vec<u8>>,
) -> Measured<Described> {
    const MOST_ROWS: u64 = 4096;
    const WIDEST: u64 = 256;
    const LARGEST_OFFSET: u64 = 1 << 16;
    let mut pages = Pages { memory, file, pages: HashMap::new() };
    let mut variable = |name: &str| {
        let address = *symbols
            .get(name)
            .ok_or_else(|| Absence::new(Reason::NotFound, format!("libjvm.so does not export {name}")))?;
        let value = pages.word(address);
        value.ok_or_else(|| Absence::new(Reason::NotFound, format!("{name} of libjvm could not be read")))
    };
    let rows = variable("gHotSpotVMStructs")?;
    let stride = variable("gHotSpotVMStructEntryArrayStride")?;
    let mut column = |name: &str| {
        let offset = variable(&format!("gHotSpotVMStructEntry{name}Offset"))?;
        let fits = offset.checked_add(8).is_some_and(|end| end <= stride);
        fits.then_some(offset).ok_or_else(|| {
            Absence::new(Reason::Unparsable, "the columns of gHotSpotVMStructs are outside its rows")
        })
    };
    let (type_name, field_name) = (column("TypeName")?, column("FieldName")?);
    let (is_static, offset, address) = (column("IsStatic")?, column("Offset")?, column("Address")?);
    if rows == 0 || !(8..=WIDEST).contains(&stride) {
        return Err(Absence::new(Reason::NotFound, "gHotSpotVMStructs of libjvm is empty"));
    }
    let mut found: HashMap<&'static str, u64> = HashMap::new();
    for nth in 0..MOST_ROWS {
        let Some(row) = rows.checked_add(nth * stride) else { break };
        let mut cell = |column: u64| pages.word(row.checked_add(column)?);
        let (Some(of_type), Some(of_field)) = (cell(type_name), cell(field_name)) else { break };
        // The last row has no names.
        if of_type == 0 || of_field == 0 {
            break;
        }
        let (kind, offset, address) = (cell(is_static), cell(offset), cell(address));
        let (Some(kind), Some(offset), Some(address)) = (kind, offset, address) else { break };
        let (Some(of_type), Some(of_field)) = (pages.text(of_type), pages.text(of_field)) else { break };
        let field = FIELDS.iter().copied().find(|(name, _)| {
            name.split_once("::").is_some_and(|(t, f)| t.as_bytes() == of_type && f.as_bytes() == of_field)
        });
        let Some((name, expected)) = field else { continue };
        // It has 32 bits.
        let kind = kind & 0xffff_ffff;
        let fits = if expected { address != 0 } else { offset < LARGEST_OFFSET };
        if kind != u64::from(expected) || !fits {
            return Err(Absence::new(
                Reason::Unparsable,
                format!("libjvm describes {name} with unknown values"),
            ));
        }
        let place = if expected { address } else { offset };
        if found.insert(name, place).is_some_and(|before| before != place) {
            return Err(Absence::new(Reason::Unparsable, format!("libjvm describes {name} twice")));
        }
    }
    Ok(Described(found))
}

/// Where the allocated bytes of a thread are.
#[derive(Clone, Copy)]
struct Places {
    /// Address of the pointer to the list of threads.
    list: u64,
    /// Offsets in that list.
    length: u64,
    threads: u64,
    /// Offsets in a thread.
    allocated: u64,
    start: u64,
    top: u64,
}

impl Places {
    fn of(described: &Described) -> Measured<Places> {
        let buffer = described.get("Thread::_tlab")?;
        Ok(Places {
            list: described.get("ThreadsSMRSupport::_java_thread_list")?,
            length: described.get("ThreadsList::_length")?,
            threads: described.get("ThreadsList::_threads")?,
            allocated: described.get("Thread::_allocated_bytes")?,
            start: buffer + described.get("ThreadLocalAllocBuffer::_start")?,
            top: buffer + described.get("ThreadLocalAllocBuffer::_top")?,
        })
    }

    /// What one thread has allocated, like `Thread::cooked_allocated_bytes`. None if it could not be read.
    fn thread(&self, memory: &mut dyn Memory, thread: u64) -> Option<Allocated> {
        let low = self.allocated.min(self.start).min(self.top);
        let high = self.allocated.max(self.start).max(self.top) + 8;
        let mut before = None;
        for _ in 0..ATTEMPTS {
            let block = memory.bytes(thread.checked_add(low)?, (high - low) as usize)?;
            let at = |offset: u64| word(&block, (offset - low) as usize);
            let (retired, start, top) = (at(self.allocated)?, at(self.start)?, at(self.top)?);
            if retired >= MOST_ALLOCATED {
                return None;
            }
            // A full buffer is added to the sum first, and replaced then: between the two it would count twice.
            if before == Some((retired, start)) {
                let used = top.checked_sub(start).filter(|used| *used <= LARGEST_BUFFER);
                return Some(Allocated { retired, all: retired + used.unwrap_or(0) });
            }
            before = Some((retired, start));
        }
        before.map(|(retired, _)| Allocated { retired, all: retired })
    }
}

/// The allocated bytes of one thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Allocated {
    /// In buffers that are full, and outside of buffers. It never shrinks.
    retired: u64,
    all: u64,
}

/// The allocated bytes of all threads, by the thread's address.
type Walk = HashMap<u64, Allocated>;

fn walk(memory: &mut dyn Memory, places: &Places) -> Measured<Walk> {
    let started = Instant::now();
    for _ in 0..ATTEMPTS {
        let Some(list) = memory.word(places.list).filter(|list| *list != 0) else {
            return Err(Absence::new(Reason::NotFound, "the JVM's list of threads could not be read"));
        };
        let walked = walk_list(memory, places, list, started)?;
        // A list that was replaced may be freed, with threads of it.
        if let Some(walked) = walked
            && memory.word(places.list) == Some(list)
        {
            return Ok(walked);
        }
    }
    Err(Absence::new(Reason::TooLittle, "the JVM's list of threads changed during each reading"))
}

/// None if a part of it could not be read.
fn walk_list(
    memory: &mut dyn Memory,
    places: &Places,
    list: u64,
    started: Instant,
) -> Measured<Option<Walk>> {
    let mut head = || -> Option<(u32, u64)> {
        let count = memory.bytes(list.checked_add(places.length)?, 4)?;
        let threads = memory.word(list.checked_add(places.threads)?)?;
        Some((u32::from_le_bytes(count.try_into().ok()?), threads))
    };
    let Some((count, threads)) = head() else { return Ok(None) };
    let mut walked = Walk::new();
    if count > MOST_THREADS {
        let detail = format!("the JVM has more than {MOST_THREADS} threads");
        return Err(Absence::new(Reason::TooCostly, detail));
    }
    if count == 0 {
        return Ok(Some(walked));
    }
    let Some(threads) = memory.bytes(threads, count as usize * 8) else { return Ok(None) };
    for nth in 0..count as usize {
        if started.elapsed() > TIME_OF_A_WALK {
            let detail =
                format!("the JVM's threads could not be read within {} ms", TIME_OF_A_WALK.as_millis());
            return Err(Absence::new(Reason::TooCostly, detail));
        }
        let read = word(&threads, nth * 8).and_then(|thread| Some((thread, places.thread(memory, thread)?)));
        let Some((thread, allocated)) = read else { return Ok(None) };
        walked.insert(thread, allocated);
    }
    Ok(Some(walked))
}

/// The growth of the threads' allocated bytes.
struct Allocating {
    places: Places,
    first_ns: u64,
    last_ns: u64,
    /// When the threads were last read, or should have been.
    tried_ns: u64,
    bytes: u64,
    seen: Walk,
    /// Threads that had started at the first and at the last reading, as the JVM counts them.
    first_started: Option<u64>,
    last_started: Option<u64>,
    /// Threads at the first reading, and those that were new, or gone, at a later one.
    first_seen: u64,
    new: u64,
    gone: u64,
    /// Readings in a row that took too long.
    slow: u32,
    /// Why the last reading failed.
    failed: Option<Absence>,
}

impl Allocating {
    /// `started`: threads that have started so far, as the JVM counts them.
    fn open(
        described: &Described,
        memory: &mut dyn Memory,
        started: Option<u64>,
        t_ns: u64,
    ) -> Measured<Allocating> {
        let places = Places::of(described)?;
        let seen = walk(memory, &places)?;
        Ok(Allocating {
            places,
            first_ns: t_ns,
            last_ns: t_ns,
            tried_ns: t_ns,
            bytes: 0,
            first_started: started,
            last_started: started,
            first_seen: seen.len() as u64,
            new: 0,
            gone: 0,
            seen,
            slow: 0,
            failed: None,
        })
    }

    /// A short window needs several readings too, so the first ones follow one another faster.
    fn is_due(&self, t_ns: u64) -> bool {
        let pause = WALK_EVERY_NS.min(t_ns.saturating_sub(self.first_ns) / 2);
        t_ns > self.tried_ns && t_ns - self.tried_ns >= pause << self.slow.min(DOUBLINGS)
    }

    fn tick(&mut self, memory: &mut dyn Memory, started: Option<u64>, t_ns: u64) {
        if !self.is_due(t_ns) {
            return;
        }
        self.tried_ns = t_ns;
        let backwards = |now: &Walk| {
            now.iter().any(|(thread, now)| self.seen.get(thread).is_some_and(|b| now.retired < b.retired))
        };
        let mut read = walk(memory, &self.places);
        if read.as_ref().is_ok_and(backwards) {
            read = walk(memory, &self.places);
        }
        match read {
            Ok(now) => {
                self.add(now);
                (self.last_ns, self.last_started) = (t_ns, started);
                self.slow = 0;
                self.failed = None;
            }
            Err(absence) => {
                self.slow += u32::from(absence.reason == Reason::TooCostly);
                self.failed = Some(absence);
            }
        }
    }

    fn add(&mut self, now: Walk) {
        let mut next = Walk::new();
        self.gone += self.seen.keys().filter(|thread| !now.contains_key(*thread)).count() as u64;
        for (thread, mut now) in now {
            let gain = match self.seen.get(&thread) {
                Some(before) if now.retired >= before.retired => {
                    let gain = now.all.saturating_sub(before.all);
                    now.all = now.all.max(before.all);
                    gain
                }
                // A new thread, also one at the address of a thread that ended.
                before => {
                    self.new += 1;
                    self.gone += u64::from(before.is_some());
                    now.all
                }
            };
            self.bytes = self.bytes.saturating_add(gain);
            next.insert(thread, now);
        }
        self.seen = next;
    }

    fn over_ns(&self) -> u64 {
        self.last_ns.saturating_sub(self.first_ns)
    }

    /// Whether nearly all threads were read at least once. What a thread has allocated is gone with it.
    fn check_threads(&self) -> Measured<()> {
        let too_little = |what: String| {
            let rate = self.bytes as f64 * 1e3 / self.over_ns() as f64;
            let detail = format!("{what}; the others allocated {rate:.0} MB a second");
            Err(Absence::new(Reason::TooLittle, detail))
        };
        let Some((from, to)) = self.first_started.zip(self.last_started) else {
            return match self.new + self.gone {
                0 => Ok(()),
                _ => too_little("threads of the JVM start and end, and it is not known how many".into()),
            };
        };
        let started = growth(from, to, "the JVM's number of started threads")?;
        let (missed, all) = (started.saturating_sub(self.new), started.saturating_add(self.first_seen));
        if missed as f64 > ALLOCATION_ERROR * all as f64 {
            return too_little(format!("{missed} of the JVM's {all} threads ended before they were read"));
        }
        Ok(())
    }

    /// Scaled to `over_ns`, in which the other counters were read.
    fn figure(self, over_ns: u64) -> Measured<Figure> {
        let own_ns = self.over_ns();
        if own_ns == 0 || own_ns < over_ns / 2 {
            return Err(self.failed.unwrap_or_else(read_once));
        }
        self.check_threads()?;
        let bytes = growth(0, self.bytes, "the JVM's sum of allocated bytes")? as f64;
        let bytes = bytes * over_ns as f64 / own_ns as f64;
        let (low, high) = (bytes * (1.0 - ALLOCATION_ERROR), bytes * (1.0 + ALLOCATION_ERROR));
        Ok(counter(Interval::new(low, bytes, high)))
    }
}

/// The variables of libjvm that describe its table.
#[cfg(any(test, feature = "fuzzing"))]
const VARIABLES_OF_THE_TABLE: [&str; 7] = [
    "gHotSpotVMStructs",
    "gHotSpotVMStructEntryArrayStride",
    "gHotSpotVMStructEntryTypeNameOffset",
    "gHotSpotVMStructEntryFieldNameOffset",
    "gHotSpotVMStructEntryIsStaticOffset",
    "gHotSpotVMStructEntryOffsetOffset",
    "gHotSpotVMStructEntryAddressOffset",
];

/// The counters at the first and at the last reading.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_counters(mut bytes: &[u8]) {
    let first = parse(allocwall_host::fuzzing::piece(&mut bytes));
    let (Ok(first), Ok(last)) = (first, parse(bytes)) else { return };
    let (source, wrong) = (Source::Memory { address: 0, length: 0 }, fits(&first, &last).err());
    let counted =
        Counted { source, first_ns: 0, first, last_ns: 1_000_000_000, last, restarts_left: 0, wrong };
    let Ok(figures) = counted.figures(Ok(4)) else { return };
    for figure in [figures.stopped_ns, figures.collector_cpu_ns].into_iter().flatten() {
        let Interval { low, point, high } = figure.value;
        assert!(0.0 <= low && low <= point && point <= high && high <= 4e9, "more than the window");
    }
}

/// A JVM's memory. It begins with the variables that describe the table.
#[cfg(feature = "fuzzing")]
pub(crate) fn read_memory(bytes: &[u8]) {
    const START: u64 = 0x7f00_0000_0000;
    let names = VARIABLES_OF_THE_TABLE.iter().zip(0..);
    let symbols: HashMap<String, u64> =
        names.map(|(name, nth)| ((*name).to_owned(), START + 8 * nth)).collect();
    let mut bytes = bytes.to_vec();
    bytes.resize(bytes.len().next_multiple_of(PAGE as usize), 0);
    let mut memory = super::memory::Bytes { at: START, bytes };
    let Ok(described) = table(&symbols, &mut memory, &|_| None) else { return };
    if let Some(source) = Source::unshared(&described, &mut memory) {
        let _ = source.read(&mut memory);
    }
    let Ok(mut allocating) = Allocating::open(&described, &mut memory, None, 0) else { return };
    allocating.tick(&mut memory, None, 1_000_000_000);
    let _ = allocating.figure(1_000_000_000);
}

#[cfg(test)]
mod tests {
    use super::super::memory::{Bytes, Live};
    use super::*;

    const S: u64 = 1_000_000_000;

    impl Bytes {
        fn put(&mut self, address: u64, bytes: &[u8]) {
            let at = (address - self.at) as usize;
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }

        fn put_word(&mut self, address: u64, word: u64) {
            self.put(address, &word.to_le_bytes());
        }
    }

    enum Entry {
        Number(i64),
        Text(&'static str),
    }

    fn entry(name: &str, value: &Entry) -> Vec<u8> {
        let (kind, items, data) = match value {
            Entry::Number(number) => (b'J', 0, number.to_le_bytes().to_vec()),
            Entry::Text(text) => (b'B', text.len() + 1, [text.as_bytes(), b"\0"].concat()),
        };
        let data_at = (20 + name.len() + 1).next_multiple_of(8);
        let length = (data_at + data.len()).next_multiple_of(8);
        let mut bytes = Vec::new();
        for field in [length, 20, items] {
            bytes.extend((field as u32).to_le_bytes());
        }
        bytes.extend([kind, 1, 3, 2]);
        bytes.extend((data_at as u32).to_le_bytes());
        bytes.extend(name.as_bytes());
        bytes.resize(data_at, 0);
        bytes.extend(data);
        bytes.resize(length, 0);
        bytes
    }

    /// An hsperfdata file.
    fn image(entries: &[(&str, Entry)]) -> Vec<u8> {
        let body: Vec<u8> = entries.iter().flat_map(|(name, value)| entry(name, value)).collect();
        let mut bytes = vec![0xca, 0xfe, 0xc0, 0xc0, 1, 2, 0, 1];
        bytes.extend((32 + body.len() as u32).to_le_bytes());
        bytes.extend([0; 12]);
        bytes.extend(32u32.to_le_bytes());
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.extend(body);
        bytes
    }

    fn serial(stopped_ms: i64, collections: i64) -> Vec<u8> {
        use Entry::{Number, Text};
        image(&[
            ("java.property.java.vm.name", Text("OpenJDK 64-Bit Server VM")),
            ("sun.os.hrt.frequency", Number(S as i64)),
            ("sun.gc.collector.0.name", Text("Serial young collection pauses")),
            ("sun.gc.collector.0.invocations", Number(collections)),
            ("sun.gc.collector.0.time", Number(stopped_ms * 1_000_000)),
            ("sun.gc.collector.1.name", Text("Serial full collection pauses")),
            ("sun.gc.collector.1.invocations", Number(2)),
            ("sun.gc.collector.1.time", Number(50)),
            ("sun.gc.limit", Number(-1)),
            ("java.threads.started", Number(31)),
            ("sun.rt.safepointSyncTime", Number(7)),
            ("sun.rt.safepointTime", Number(stopped_ms * 1_000_000)),
        ])
    }

    #[test]
    fn counters_are_read_by_their_names() {
        let counters = parse(&serial(250, 40)).unwrap();
        let young = "Serial young collection pauses".to_string();
        let full = "Serial full collection pauses".to_string();
        let expected = Counters {
            frequency: S,
            stopped: 250_000_007,
            collections: 42,
            pauses: 250_000_050,
            names: vec![young, full],
            started: Some(31),
            cpu_ns: None,
        };
        assert_eq!(counters, expected);
    }

    #[test]
    fn a_cut_file_is_an_absence() {
        let whole = serial(250, 40);
        for cut in 0..whole.len() {
            assert!(parse(&whole[..cut]).is_err(), "{cut} bytes");
        }
        // What follows the used part does not matter.
        let longer = [whole.clone(), vec![0xff; 100]].concat();
        assert_eq!(parse(&longer), parse(&whole));
    }

    #[test]
    fn a_changed_bit_gives_an_absence_or_another_number() {
        let whole = serial(250, 40);
        let names = [
            "sun.os.hrt.frequency",
            "sun.rt.safepointTime",
            "sun.rt.safepointSyncTime",
            "sun.gc.collector.0.",
            "sun.gc.collector.1.",
        ];
        let in_a_name = |at: usize| {
            names.iter().any(|name| {
                let first = at.saturating_sub(name.len() - 1);
                (first..=at).any(|start| whole[start..].starts_with(name.as_bytes()))
            })
        };
        for at in 0..whole.len() {
            // Magic number, byte order, major version, state, used bytes.
            let fixed = (at < 12 && at != 6) || in_a_name(at);
            for bit in 0..8 {
                let mut damaged = whole.clone();
                damaged[at] ^= 1 << bit;
                match parse(&damaged) {
                    Ok(counters) => {
                        assert!(!fixed && counters.frequency > 0, "byte {at}, bit {bit}: {counters:?}");
                    }
                    Err(absence) => assert!(!absence.detail.is_empty()),
                }
            }
        }
    }

    #[test]
    fn a_name_that_occurs_twice_is_refused() {
        let once = [("sun.os.hrt.frequency", Entry::Number(5))];
        assert_eq!(parse(&image(&once)).unwrap_err().reason, Reason::NotFound);
        let twice = [("sun.os.hrt.frequency", Entry::Number(5)), ("sun.os.hrt.frequency", Entry::Number(5))];
        assert_eq!(parse(&image(&twice)).unwrap_err().reason, Reason::Unparsable);
        assert_eq!(parse(&image(&[])).unwrap_err().reason, Reason::NotFound);
    }

    fn counted(first: Counters, last: Counters) -> Counted {
        let source = Source::Memory { address: 0, length: 0 };
        Counted { source, first_ns: 0, first, last_ns: 10 * S, last, restarts_left: 0, wrong: None }
    }

    fn counters(names: &[&str], stopped: u64, pauses: u64, cpu_ns: Option<u64>) -> Counters {
        let names = names.iter().map(|name| (*name).to_string()).collect();
        Counters { frequency: S, stopped, collections: stopped / S, pauses, names, started: None, cpu_ns }
    }

    #[test]
    fn the_collector_s_cpu_time_is_bounded_by_its_pauses() {
        let cpu = |name: &str, from: Option<u64>, to: Option<u64>| {
            let first = counters(&[name], 3 * S, 2 * S, from);
            let last = counters(&[name], 5 * S, 3 * S, to);
            counted(first, last).figures(Ok(4)).unwrap().collector_cpu_ns.map(|figure| figure.value)
        };
        // Serial leaves the counter of CPU time at 0.
        let serial = "Serial young collection pauses";
        assert_eq!(cpu(serial, Some(0), Some(0)), Ok(Interval::exact(1e9)));
        assert_eq!(cpu(serial, None, None), Ok(Interval::exact(1e9)));
        let g1 = "G1 young collection pauses";
        assert_eq!(cpu(g1, None, None), Ok(Interval::new(1e9, 1e9, 4e9)));
        assert_eq!(cpu(g1, Some(7), Some(16)), Ok(Interval::exact(9.0)));
        // Four CPUs have 40 s in the window of 10 s; what is more began before it.
        assert_eq!(cpu(g1, Some(7), Some(50 * S)), Ok(Interval::new(0.0, 4e10, 4e10)));
        let paused = |name: &str, seconds: u64| {
            let first = counters(&[name], 3 * S, 2 * S, None);
            let last = counters(&[name], (3 + seconds) * S, (2 + seconds) * S, None);
            counted(first, last).figures(Ok(4)).unwrap().collector_cpu_ns.unwrap().value
        };
        assert_eq!(paused(g1, 12), Interval::new(0.0, 1e10, 4e10));
        assert_eq!(paused(serial, 12), Interval::new(0.0, 1e10, 1e10));
        let other = cpu("Z concurrent cycle pauses", None, None).unwrap_err();
        assert_eq!(other.reason, Reason::NotSupported);
        assert_eq!(at_work(&[]).unwrap_err().reason, Reason::NotApplicable);
    }

    #[test]
    fn counters_that_do_not_fit_give_a_reason() {
        let names = &["Serial young collection pauses"][..];
        let first = counters(names, 3 * S, 2 * S, None);
        let figures = counted(first.clone(), counters(names, 5 * S, 3 * S, None)).figures(Ok(1)).unwrap();
        // The collector's pauses are a part of the time at safepoints.
        assert_eq!(figures.stopped_ns.unwrap().value, Interval::new(1e9, 2e9, 2e9));
        assert_eq!(figures.collections, Ok(2));
        assert!(figures.method.contains("collector Serial; stopped: at most all safepoints, at least"));
        let z = &["Z concurrent cycle pauses"][..];
        let (from, to) = (counters(z, 3 * S, 2 * S, None), counters(z, 5 * S, 3 * S, None));
        let figures = counted(from, to).figures(Ok(1)).unwrap();
        assert_eq!(figures.stopped_ns.unwrap().value, Interval::new(0.0, 2e9, 2e9));
        // A pause of 17 s that ended in a window of 10 s.
        let long = counted(first.clone(), counters(names, 20 * S, 3 * S, None)).figures(Ok(1)).unwrap();
        assert_eq!(long.stopped_ns.unwrap().value, Interval::new(0.0, 1e10, 1e10));
        let back = counters(names, 2 * S, 2 * S, None);
        assert!(fits(&first, &back).is_err() && fits(&first, &first).is_ok());
        assert!(fits(&first, &counters(&["G1 "], 3 * S, 2 * S, None)).is_err());
        assert!(counted(first.clone(), back).figures(Ok(1)).unwrap().collections.is_err());
        let once = Counted { last_ns: 0, ..counted(first.clone(), first) };
        assert!(matches!(once.figures(Ok(1)), Err(absence) if absence.reason == Reason::TooLittle));
    }

    /// Process 7, which has number 1 in a container.
    const STATUS: &str = "Name:\tjava\nTgid:\t7\nPPid:\t1\nUid:\t0\t0\t0\t0\nNSpid:\t7\t1\n\
                          Threads:\t1\nCapEff:\t0000000000000000\n";

    /// A /proc with one JVM, whose counters are in a file.
    #[test]
    fn the_file_is_found_by_its_mapping() {
        use std::os::unix::fs::MetadataExt;
        let dir = tempfile::tempdir().unwrap();
        let folder = dir.path().join("7/root/tmp/hsperfdata_app");
        std::fs::create_dir_all(&folder).unwrap();
        let file = folder.join("1");
        std::fs::write(&file, serial(250, 40)).unwrap();
        let inode = file.metadata().unwrap().ino();
        // Of three mappings its own: one may not be written to, one has another number.
        let lines = format!(
            "7e00000000-7e00008000 r--s 00000000 08:01 {inode} /tmp/hsperfdata_app/1\n\
             7e10000000-7e10008000 rw-s 00000000 08:01 9 /tmp/hsperfdata_app/7\n\
             7f00000000-7f00008000 rw-s 00000000 08:01 {inode} /tmp/hsperfdata_app/1\n"
        );
        std::fs::write(dir.path().join("7/maps"), lines).unwrap();
        std::fs::write(dir.path().join("7/status"), STATUS).unwrap();
        let proc = ProcFs::at(dir.path());
        let (mut memory, mut account) = (Live::of(&proc, 7), Account::new(&proc, 7));
        account.tick(&mut memory, &|| S);
        std::fs::write(&file, serial(1250, 60)).unwrap();
        account.tick(&mut memory, &|| 5 * S);
        // The process has ended, and its file is still there.
        std::fs::write(&file, serial(2250, 80)).unwrap();
        let zombie =
            "7 (java) Z 1 1 1 0 -1 0 1 2 3 4 5 6 7 8 20 0 1 0 9 4096 2 3 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0";
        std::fs::write(dir.path().join("7/stat"), zombie).unwrap();
        account.tick(&mut memory, &|| 6 * S);
        let (account, _) = Box::new(account).finish();
        assert_eq!((account.pid, account.over_ns), (7, 4 * S));
        assert_eq!(account.stopped_ns.unwrap().value, Interval::exact(1e9));
        assert_eq!(account.collections, Ok(20));
        assert_eq!(account.allocated_bytes.unwrap_err().reason, Reason::NotApplicable);
    }

    #[test]
    fn of_the_memory_only_the_used_part_is_read() {
        let (at, bytes) = (0x7f_0000, serial(250, 40));
        let source = Source::Memory { address: at, length: 32 << 10 };
        let mut memory = Bytes { at, bytes: bytes.clone() };
        assert_eq!(source.read(&mut memory), parse(&bytes));
        for cut in [0, HEADER - 1, HEADER, bytes.len() - 1] {
            memory.bytes = bytes[..cut].to_vec();
            assert_eq!(source.read(&mut memory).unwrap_err().reason, Reason::NotFound, "{cut}");
        }
        // A length that it cannot have.
        memory.bytes = bytes;
        memory.put(at + USED as u64, &(-1i32).to_le_bytes());
        assert!(source.read(&mut memory).is_err());
    }

    #[test]
    fn a_jvm_without_counters_says_how_to_get_them() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("7")).unwrap();
        // A mapping of another JVM's counters is not its own.
        let maps = "7f00000000-7f00008000 rw-s 00000000 08:01 9 /tmp/hsperfdata_app/7\n";
        std::fs::write(dir.path().join("7/maps"), maps).unwrap();
        std::fs::write(dir.path().join("7/status"), STATUS).unwrap();
        let proc = ProcFs::at(dir.path());
        let absence = Source::find(&proc, 7, 7, None, &mut Live::of(&proc, 7)).err().unwrap();
        assert_eq!(absence.reason, Reason::Disabled);
        assert_eq!(absence.advice().as_deref(), Some("start the JVM without -XX:-UsePerfData"));
        for (path, number) in [
            ("/tmp/hsperfdata_root/12", Some(12)),
            ("/tmp/hsperfdata_root/12 (deleted)", Some(12)),
            ("/tmp/hsperfdata_root/", None),
            ("/tmp/hsperfdata_root/x", None),
            ("/tmp/hsperfdata_root/99999999999", None),
            ("/tmp/12", None),
            ("12", None),
        ] {
            assert_eq!(hsperfdata(path.as_bytes()), number, "{path}");
        }
    }

    // Pages of a JVM's memory: variables, rows, texts, the list of threads, threads.
    const VARIABLES: u64 = 0x10_0000;
    const ROWS: u64 = VARIABLES + PAGE;
    const TEXTS: u64 = ROWS + PAGE;
    const LIST: u64 = TEXTS + PAGE;
    const THREADS: u64 = LIST + PAGE;

    fn jvm() -> (HashMap<String, u64>, Bytes) {
        let mut memory = Bytes { at: VARIABLES, bytes: vec![0; 5 * PAGE as usize] };
        let mut symbols = HashMap::new();
        let values = [ROWS, 48, 0, 8, 24, 32, 40];
        for (nth, (name, value)) in VARIABLES_OF_THE_TABLE.into_iter().zip(values).enumerate() {
            let address = VARIABLES + 8 * nth as u64;
            memory.put_word(address, value);
            symbols.insert(name.to_string(), address);
        }
        let fields = [
            ("Universe", "_collectedHeap", 1, 0, LIST + 0x800),
            ("ThreadsSMRSupport", "_java_thread_list", 1, 0, LIST),
            ("ThreadsList", "_length", 0, 8, 0),
            ("ThreadsList", "_threads", 0, 16, 0),
            ("Thread", "_tlab", 0, 0x20, 0),
            ("Thread", "_allocated_bytes", 0, 0x10, 0),
            ("ThreadLocalAllocBuffer", "_start", 0, 0, 0),
            ("ThreadLocalAllocBuffer", "_top", 0, 8, 0),
            ("PerfMemory", "_start", 1, 0, LIST + 0x100),
            ("PerfMemory", "_capacity", 1, 0, LIST + 0x108),
        ];
        let mut text = TEXTS;
        for (nth, (of_type, of_field, kind, offset, address)) in fields.into_iter().enumerate() {
            let row = ROWS + 48 * nth as u64;
            for (column, name) in [(0, of_type), (8, of_field)] {
                memory.put_word(row + column, text);
                memory.put(text, name.as_bytes());
                text += name.len() as u64 + 1;
            }
            memory.put_word(row + 24, kind);
            memory.put_word(row + 32, offset);
            memory.put_word(row + 40, address);
        }
        memory.put_word(LIST, LIST + 0x40);
        memory.put_word(LIST + 0x48, 2);
        memory.put_word(LIST + 0x50, LIST + 0x80);
        memory.put_word(LIST + 0x80, THREADS);
        memory.put_word(LIST + 0x88, THREADS + 0x100);
        for (thread, allocated) in [(THREADS, 1000), (THREADS + 0x100, 5000)] {
            set(&mut memory, thread, allocated, 0x7000_0000, 0x7000_0040);
        }
        (symbols, memory)
    }

    /// The table in a memory of which every page is resident.
    fn described(symbols: &HashMap<String, u64>, memory: &mut Bytes) -> Measured<Described> {
        table(symbols, memory, &|_| None)
    }

    fn set(memory: &mut Bytes, thread: u64, allocated: u64, start: u64, top: u64) {
        memory.put_word(thread + 0x10, allocated);
        memory.put_word(thread + 0x20, start);
        memory.put_word(thread + 0x28, top);
    }

    #[test]
    fn threads_are_found_through_the_table_and_their_bytes_added() {
        let (symbols, mut memory) = jvm();
        let described = described(&symbols, &mut memory).unwrap();
        assert_eq!(described.0.len(), FIELDS.len());
        let mut allocating = Allocating::open(&described, &mut memory, Some(2), 0).unwrap();
        let seen = |allocating: &Allocating, thread| allocating.seen[&thread].all;
        assert_eq!((seen(&allocating, THREADS), seen(&allocating, THREADS + 0x100)), (1064, 5064));
        // One thread fills its buffer and gets another; the other one ends, and a new one has its address.
        set(&mut memory, THREADS, 1064, 0x7100_0000, 0x7100_0010);
        set(&mut memory, THREADS + 0x100, 0, 0x7200_0000, 0x7200_0100);
        allocating.tick(&mut memory, Some(3), S);
        assert_eq!((allocating.bytes, allocating.new, allocating.gone), (16 + 256, 1, 1));
        // Nothing is allocated, then the memory is gone.
        allocating.tick(&mut memory, Some(3), 2 * S);
        memory.bytes.truncate(PAGE as usize);
        allocating.tick(&mut memory, Some(3), 3 * S);
        assert_eq!((allocating.bytes, allocating.over_ns()), (272, 2 * S));
        assert!(allocating.failed.is_some());
        assert_eq!(allocating.figure(2 * S).unwrap().value.point, 272.0);
    }

    #[test]
    fn threads_that_ended_unread_leave_no_sum() {
        let (symbols, mut memory) = jvm();
        let described = described(&symbols, &mut memory).unwrap();
        // A buffer grows, and the second thread may end; the JVM counts the threads that have started.
        let figure = |first: Option<u64>, last: Option<u64>, ends: bool| {
            let (_, mut memory) = jvm();
            let mut allocating = Allocating::open(&described, &mut memory, first, 0).unwrap();
            set(&mut memory, THREADS, 1000, 0x7000_0000, 0x7000_0440);
            memory.put_word(LIST + 0x48, if ends { 1 } else { 2 });
            allocating.tick(&mut memory, last, S);
            allocating.figure(S)
        };
        for (last, ends) in [(Some(2), false), (Some(2), true)] {
            assert_eq!(figure(Some(2), last, ends).unwrap().value.point, 1024.0);
        }
        let missed = figure(Some(2), Some(3), false).unwrap_err();
        assert_eq!(missed.reason, Reason::TooLittle);
        assert!(missed.detail.starts_with("1 of the JVM's 3 threads"), "{}", missed.detail);
        assert!(figure(Some(2), Some(1), false).is_err(), "backwards");
        assert!(figure(None, None, false).is_ok());
        assert_eq!(figure(None, Some(2), true).unwrap_err().reason, Reason::TooLittle);
    }

    #[test]
    fn texts_that_are_not_resident_are_read_in_the_file() {
        /// Without this page.
        struct Without(Bytes, u64);
        impl Memory for Without {
            fn prefix(&mut self, address: u64, length: usize) -> Option<Vec<u8>> {
                self.0.prefix(address, length).filter(|_| address & !(PAGE - 1) != self.1)
            }
        }
        let (symbols, memory) = jvm();
        let texts = memory.bytes[(TEXTS - VARIABLES) as usize..][..PAGE as usize].to_vec();
        let mut without = Without(memory, TEXTS);
        let file = |page: u64| (page == TEXTS).then(|| texts.clone());
        assert_eq!(table(&symbols, &mut without, &file).unwrap().0.len(), FIELDS.len());
        assert!(table(&symbols, &mut without, &|_| None).unwrap().0.is_empty());
        // Rows in swap have no names in the file.
        without.1 = ROWS;
        let zeros = |page: u64| (page == ROWS).then(|| vec![0; PAGE as usize]);
        assert!(table(&symbols, &mut without, &zeros).unwrap().0.is_empty());
    }

    #[test]
    fn threads_are_read_once_a_second_and_slow_readings_seldom() {
        let (symbols, mut memory) = jvm();
        let described = described(&symbols, &mut memory).unwrap();
        let mut allocating = Allocating::open(&described, &mut memory, None, 0).unwrap();
        let readings = |allocating: &mut Allocating, memory: &mut Bytes, ticks: std::ops::Range<u64>| {
            let times = ticks.map(|tick| tick * S / 4).filter(|t_ns| {
                allocating.tick(memory, None, *t_ns);
                allocating.tried_ns == *t_ns
            });
            times.collect::<Vec<u64>>()
        };
        let first = readings(&mut allocating, &mut memory, 1..9);
        assert_eq!(first, [S / 4, S / 2, S, 2 * S]);
        // Too many threads.
        memory.put_word(LIST + 0x48, 5000);
        assert_eq!(readings(&mut allocating, &mut memory, 9..61), [3 * S, 5 * S, 35 * S / 4]);
        assert_eq!((allocating.slow, allocating.last_ns), (3, 2 * S));
        memory.put_word(LIST + 0x48, 2);
        assert_eq!(readings(&mut allocating, &mut memory, 61..69), [16 * S, 17 * S]);
        assert_eq!((allocating.slow, allocating.last_ns), (0, 17 * S));
    }

    #[test]
    fn absurd_lists_and_threads_are_refused() {
        let (symbols, _) = jvm();
        let open = |change: &dyn Fn(&mut Bytes)| {
            let (_, mut memory) = jvm();
            change(&mut memory);
            let described = described(&symbols, &mut memory)?;
            Allocating::open(&described, &mut memory, None, 0).map(|allocating| allocating.seen.len())
        };
        assert_eq!(open(&|_| {}), Ok(2));
        let refused = |change: &dyn Fn(&mut Bytes)| open(change).unwrap_err().reason;
        assert_eq!(refused(&|m| m.put_word(LIST + 0x48, 4097)), Reason::TooCostly);
        assert_eq!(refused(&|m| m.put_word(LIST + 0x48, 4096)), Reason::TooLittle);
        assert_eq!(refused(&|m| m.put_word(LIST, 0)), Reason::NotFound);
        assert_eq!(refused(&|m| m.put_word(LIST + 0x80, 8)), Reason::TooLittle);
        assert_eq!(refused(&|m| m.put_word(THREADS + 0x10, u64::MAX)), Reason::TooLittle);
        assert_eq!(refused(&|m| m.put_word(VARIABLES + 8, 0)), Reason::Unparsable);
        assert_eq!(refused(&|m| m.put_word(ROWS + 48 * 4 + 32, 1 << 40)), Reason::Unparsable);
        assert_eq!(refused(&|m| m.put_word(ROWS + 48 * 2 + 24, 1)), Reason::Unparsable);
        // A buffer that is being set up does not count.
        assert_eq!(open(&|m| m.put_word(THREADS + 0x28, 0)), Ok(2));
    }

    #[test]
    fn no_byte_of_a_jvm_makes_the_readers_panic() {
        let (symbols, memory) = jvm();
        // The used part of each page.
        let used = (0..memory.bytes.len()).filter(|at| at % (PAGE as usize) < 0x200);
        for at in used {
            let mut damaged = Bytes { at: memory.at, bytes: memory.bytes.clone() };
            damaged.bytes[at] ^= 0xff;
            let Ok(described) = described(&symbols, &mut damaged) else { continue };
            let Ok(mut allocating) = Allocating::open(&described, &mut damaged, None, 0) else { continue };
            damaged.bytes[at] ^= 0xff;
            allocating.tick(&mut damaged, None, S);
            let _ = allocating.figure(S);
            let _ = Source::unshared(&described, &mut damaged);
        }
    }
}
