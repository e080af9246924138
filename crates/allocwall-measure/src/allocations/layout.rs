//! The file of counts, as `crates/allocwall-preload/src/count.h` describes it. The process that writes it may write anything:
//! every size and position is checked, and a text ends where its field ends.

use allocwall_host::file::absence_of;
use allocwall_host::perf::{REGISTERS, Registers};
use allocwall_model::allocations::{CLASSES, Calls, LARGEST_DISTANCE, PER_CALL};
use allocwall_model::trace::{CALL_BYTES, MOST_TRACED, TracedCall};
use allocwall_model::units::{Absence, Measured, Reason};
use std::fs::File;
use std::io::{self, ErrorKind};
use std::os::unix::fs::FileExt;
use std::path::Path;

const MAGIC: u64 = 0x544e_554f_4357_4c41;
const VERSION: u32 = 2;

/// This machine's number in the header.
#[cfg(target_arch = "x86_64")]
const MACHINE: u32 = 1;
#[cfg(target_arch = "aarch64")]
const MACHINE: u32 = 2;

/// Offsets within the header.
mod header {
    pub const MAGIC: usize = 0;
    pub const VERSION: usize = 8;
    pub const HEADER_BYTES: usize = 12;
    pub const PID: usize = 16;
    pub const NUMBER: usize = 20;
    pub const MACHINE: usize = 28;
    pub const FLAGS: usize = 32;
    pub const CLASSES: usize = 36;
    pub const SLOTS_AT: usize = 48;
    pub const EVENTS_AT: usize = 64;
    pub const STACKS_AT: usize = 80;
    pub const FOLLOWED_AT: usize = 96;
    pub const TICKS_PER_SECOND: usize = 112;
    pub const START_TICKS: usize = 120;
    pub const START_NS: usize = 128;
    pub const CLOCK_COST: usize = 136;
    pub const EVERY: usize = 144;
    pub const PER_CALL: usize = 152;
    pub const TRACES_AT: usize = 160;
    pub const SLOTS_USED: usize = 192;
    pub const EVENTS_NEXT: usize = 208;
    pub const EVENTS_DROPPED: usize = 216;
    pub const STACKS_NEXT: usize = 224;
    pub const FOLLOW: usize = 232;
    pub const FOLLOW_FAILED: usize = 248;
    pub const TRACED: usize = 256;
    pub const TRACE_NUMBER: usize = 272;
    pub const OBJECT: usize = 320;
    pub const OBJECT_BYTES: usize = 256;
    pub const PROGRAM: usize = 576;
    pub const PROGRAM_BYTES: usize = 512;
    pub const COMMAND: usize = 1088;
    pub const COMMAND_BYTES: usize = 1024;
    pub const BYTES: usize = 4096;
}

/// Offsets within a slot.
mod slot {
    pub const STATE: usize = 0;
    pub const TID: usize = 4;
    pub const THREADS: usize = 8;
    pub const CALLOCS: usize = 24;
    pub const ALIGNED: usize = 32;
    pub const NEWS: usize = 40;
    pub const REALLOCS: usize = 48;
    pub const REALLOC_IN_PLACE: usize = 56;
    pub const REALLOC_MOVED: usize = 64;
    pub const REALLOC_REMAPPED: usize = 72;
    pub const REALLOC_FREED: usize = 80;
    pub const REALLOC_FAILED: usize = 88;
    pub const REALLOC_BYTES: usize = 96;
    pub const COPIED_BYTES: usize = 104;
    pub const MARKS: usize = 112;
    pub const SAMPLES: usize = 120;
    pub const REQUESTED: usize = 136;
    pub const FREES: usize = 144;
    pub const FREE_NULL: usize = 152;
    pub const DELETES: usize = 160;
    pub const FAILED: usize = 168;
    pub const CLASSES: usize = 176;
    pub const SAMPLE_TICKS: usize = 1680;
    pub const BYTES: usize = 2048;
}

/// Offsets within an event.
mod event {
    pub const POSITION: usize = 0;
    pub const TICKS: usize = 8;
    pub const SIZE: usize = 16;
    pub const STACK: usize = 32;
    pub const BORN: usize = 40;
    pub const LATENCY: usize = 48;
    pub const TID: usize = 52;
    pub const ORIGIN: usize = 56;
    pub const KIND: usize = 60;
    pub const SHIFT: usize = 61;
    pub const RANK: usize = 62;
    pub const FLAGS: usize = 63;
    pub const BYTES: usize = 64;
}

/// Offsets within a stack.
mod stack {
    pub const POSITION: usize = 0;
    pub const REGISTERS: usize = 8;
    pub const LENGTH: usize = 140;
    pub const CONTENTS: usize = 144;
    pub const BYTES: usize = 8192;
}

/// Offsets within an entry of the table of followed blocks.
mod followed {
    pub const ADDRESS: usize = 0;
    pub const SIZE: usize = 16;
    pub const STACK: usize = 24;
    pub const SHIFT: usize = 36;
    pub const RANK: usize = 37;
    pub const BYTES: usize = 64;
}

/// Bits of the header's flags.
pub const BYPASSED: u32 = 1;
pub const NO_ROOM: u32 = 8;
pub const NO_CLOCK: u32 = 16;
pub const NO_SPACE: u32 = 32;
pub const NO_SIZES: u32 = 64;

/// The most entries of each part. A file that names more is not one of the library.
const MOST_SLOTS: u64 = 1024;
const MOST_EVENTS: u64 = 16_384;
const MOST_STACKS: u64 = 256;
const MOST_FOLLOWED: u64 = 4096;
/// Places for traces, which take turns.
const TRACES: u64 = 2;
/// The slots of a small file, which has no samples.
const FEW_SLOTS: u64 = 32;
/// The size of a large file; with traces, if they are asked for.
pub const fn large_file(traces: bool) -> u64 {
    let traces = if traces { TRACES * (MOST_TRACED * CALL_BYTES) as u64 } else { 0 };
    header::BYTES as u64
        + MOST_SLOTS * slot::BYTES as u64
        + MOST_EVENTS * event::BYTES as u64
        + MOST_STACKS * stack::BYTES as u64
        + MOST_FOLLOWED * followed::BYTES as u64
        + traces
}
/// The FIFO of the folder that has a byte for each large file which may still be made.
pub const ROOM: &str = "room";
const SLOT_LEFT: u32 = 2;
/// Positions of rings begin here. What is below is a reason why there is no stack.
pub const FIRST: u64 = 16;
const STACK_NO_SPACE: u64 = 1;
const STACK_BUSY: u64 = 2;
const ALLOCATED: u8 = 1;
const FREED: u8 = 2;
const BY_REALLOC: u8 = 1;
const ZEROED: u8 = 2;
const FOLLOWED: u8 = 16;
const NOTED: u8 = 128;

/// The most bytes that one read takes.
const CHUNK: usize = 256 << 10;

/// Entries of one kind: entry `i` is at `at + i * bytes`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Part {
    at: u64,
    pub entries: u64,
}

/// What does not change.
#[derive(Clone, Debug, PartialEq)]
pub struct Header {
    /// As the process sees it.
    pub pid: u32,
    pub number: u32,
    pub slots: Part,
    pub events: Part,
    pub stacks: Part,
    pub followed: Part,
    /// The calls of one trace. The next one follows.
    pub trace: Part,
    /// None if the library does not know it.
    pub ticks_per_second: Option<u64>,
    pub start_ticks: u64,
    /// CLOCK_MONOTONIC, as the process sees it.
    pub start_ns: u64,
    /// Ticks of a measurement of nothing.
    pub clock_cost: u64,
    /// Mean distance of samples; 0 if there are none.
    pub every: u64,
    /// Empty for the program itself.
    pub object: String,
    pub program: String,
    pub command: Vec<String>,
}

impl Header {
    /// Whether this is a large file, of which only some are allowed.
    pub fn is_large(&self) -> bool {
        self.slots.entries > FEW_SLOTS
    }
}

/// What changes while the process runs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct State {
    pub flags: u32,
    pub slots_used: u64,
    pub events_next: u64,
    pub events_dropped: u64,
    pub stacks_next: u64,
    /// Blocks from this rank on are followed.
    pub follow: u32,
    pub follow_failed: u64,
}

/// The counters of one slot.
#[derive(Clone, Debug, PartialEq)]
pub struct Slot {
    pub left: bool,
    pub tid: i32,
    pub threads: u64,
    pub calls: Calls,
    pub samples: u64,
    pub sample_ticks: u64,
    pub classes: Vec<u64>,
}

/// What an event is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EventKind {
    Allocated,
    Freed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Event {
    pub position: u64,
    pub kind: EventKind,
    pub by_realloc: bool,
    /// By calloc.
    pub zeroed: bool,
    pub followed: bool,
    pub ticks: u64,
    pub size: u64,
    /// Mean distance of samples at the allocation.
    pub distance: u64,
    pub rank: u32,
    pub stack: Result<u64, NoStack>,
    /// A free: ticks of the allocation.
    pub born: u64,
    /// None: too long for its field.
    pub latency: Option<u32>,
    /// A trace ran, so the latency is not that of the call alone.
    pub noted: bool,
    pub tid: u32,
    /// The thread that allocated.
    pub origin: u32,
}

/// Why the library copied no stack.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum NoStack {
    NoSpace,
    Busy,
    Unknown,
}

/// A followed block that is in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Block {
    pub size: u64,
    pub distance: u64,
    pub rank: u32,
    pub stack: Result<u64, NoStack>,
}

/// A stack as the library copied it.
#[derive(Clone, Debug, PartialEq)]
pub struct Copied {
    pub registers: Registers,
    /// Upwards from the stack pointer.
    pub bytes: Vec<u8>,
}

/// None if the library has not written it yet.
///
/// # Errors
/// It is not a file of this version of the library, or can't be read.
pub fn header(file: &File) -> Measured<Option<Header>> {
    let mut bytes = vec![0; header::BYTES];
    read(file, 0, &mut bytes).map_err(|error| absence_of(Path::new("the file of counts"), &error))?;
    let fields = Fields(&bytes);
    match fields.u64(header::MAGIC) {
        MAGIC => parse_header(&fields).map(Some).ok_or_else(|| {
            Absence::new(Reason::Unparsable, "the file of counts has another layout: its header was changed")
        }),
        0 => Ok(None),
        _ => Err(Absence::new(Reason::Unparsable, "the file of counts has no header")),
    }
}

fn parse_header(fields: &Fields<'_>) -> Option<Header> {
    let part = |at: usize, bytes: usize, most: u64| {
        let part = Part { at: fields.u64(at), entries: fields.u32(at + 8).into() };
        // Without samples, the last parts are empty.
        let fits = part.entries == 0 || fields.u32(at + 12) as usize == bytes;
        let end = part.at.checked_add(most * bytes as u64)?;
        (fits && part.entries <= most && end <= i64::MAX as u64).then_some(part)
    };
    let parts = (
        part(header::SLOTS_AT, slot::BYTES, MOST_SLOTS)?,
        part(header::EVENTS_AT, event::BYTES, MOST_EVENTS)?,
        part(header::STACKS_AT, stack::BYTES, MOST_STACKS)?,
        part(header::FOLLOWED_AT, followed::BYTES, MOST_FOLLOWED)?,
        part(header::TRACES_AT, CALL_BYTES, MOST_TRACED as u64)?,
    );
    let known = [
        (header::VERSION, VERSION),
        (header::HEADER_BYTES, header::BYTES as u32),
        (header::MACHINE, MACHINE),
        (header::CLASSES, CLASSES as u32),
    ];
    let (slots, events, stacks, followed, trace) = parts;
    if slots.entries == 0
        || known.iter().any(|(at, value)| fields.u32(*at) != *value)
        || fields.u64(header::PER_CALL) != PER_CALL
    {
        return None;
    }
    Some(Header {
        pid: fields.u32(header::PID),
        number: fields.u32(header::NUMBER),
        slots,
        events,
        stacks,
        followed,
        trace,
        ticks_per_second: Some(fields.u64(header::TICKS_PER_SECOND)).filter(|rate| *rate > 0),
        start_ticks: fields.u64(header::START_TICKS),
        start_ns: fields.u64(header::START_NS),
        clock_cost: fields.u64(header::CLOCK_COST),
        every: fields.u64(header::EVERY),
        object: fields.text(header::OBJECT, header::OBJECT_BYTES),
        program: fields.text(header::PROGRAM, header::PROGRAM_BYTES),
        command: fields.texts(header::COMMAND, header::COMMAND_BYTES),
    })
}

pub fn state(file: &File, header: &Header) -> State {
    let mut bytes = [0; header::OBJECT];
    if read(file, 0, &mut bytes).is_err() {
        return State::default();
    }
    let fields = Fields(&bytes);
    State {
        flags: fields.u32(header::FLAGS),
        slots_used: fields.u64(header::SLOTS_USED).min(header.slots.entries),
        events_next: fields.u64(header::EVENTS_NEXT),
        events_dropped: fields.u64(header::EVENTS_DROPPED),
        stacks_next: fields.u64(header::STACKS_NEXT),
        follow: fields.u64(header::FOLLOW).min(63) as u32,
        follow_failed: fields.u64(header::FOLLOW_FAILED),
    }
}

/// Passes each used slot to `take`, with its number.
pub fn slots(file: &File, header: &Header, state: &State, mut take: impl FnMut(usize, Slot)) {
    each(file, header.slots, 0..state.slots_used, slot::BYTES, |number, fields| {
        take(number as usize, parse_slot(fields));
    });
}

fn parse_slot(fields: &Fields<'_>) -> Slot {
    let classes: Vec<u64> = (0..CLASSES).map(|class| fields.u64(slot::CLASSES + 8 * class)).collect();
    let all = classes.iter().fold(0_u64, |sum, count| sum.saturating_add(*count));
    let count = |at: usize| fields.u64(at);
    let others = [slot::CALLOCS, slot::ALIGNED, slot::NEWS, slot::REALLOCS];
    // Counters of one slot may be some calls apart.
    let malloc = others.iter().fold(all, |left, at| left.saturating_sub(count(*at)));
    let calls = Calls {
        malloc,
        calloc: count(slot::CALLOCS),
        aligned: count(slot::ALIGNED),
        operator_new: count(slot::NEWS),
        realloc_new: count(slot::REALLOCS),
        in_place: count(slot::REALLOC_IN_PLACE),
        moved: count(slot::REALLOC_MOVED),
        remapped: count(slot::REALLOC_REMAPPED),
        realloc_freed: count(slot::REALLOC_FREED),
        realloc_failed: count(slot::REALLOC_FAILED),
        frees: count(slot::FREES),
        operator_delete: count(slot::DELETES),
        free_null: count(slot::FREE_NULL),
        failed: count(slot::FAILED),
        bytes: count(slot::REQUESTED),
        realloc_bytes: count(slot::REALLOC_BYTES),
        copied_bytes: count(slot::COPIED_BYTES),
        marks: count(slot::MARKS),
    };
    Slot {
        left: fields.u32(slot::STATE) == SLOT_LEFT,
        tid: fields.u32(slot::TID).cast_signed(),
        threads: count(slot::THREADS),
        calls,
        samples: count(slot::SAMPLES),
        sample_ticks: count(slot::SAMPLE_TICKS),
        classes,
    }
}

/// The events at these positions that are complete; positions below `next`, which the ring still holds.
pub fn events(file: &File, header: &Header, positions: std::ops::Range<u64>, out: &mut Vec<Event>) {
    let ring = header.events;
    let mut from = positions.start;
    while ring.entries > 0 && from < positions.end {
        // Up to the end of the ring; then it goes on at its start.
        let entry = from % ring.entries;
        let count = (positions.end - from).min(ring.entries - entry);
        each(file, ring, entry..entry + count, event::BYTES, |number, fields| {
            let position = from + (number - entry);
            out.extend(parse_event(fields, header.every).filter(|event| event.position == position));
        });
        from += count;
    }
}

fn parse_event(fields: &Fields<'_>, every: u64) -> Option<Event> {
    let kind = match fields.u8(event::KIND) {
        ALLOCATED => EventKind::Allocated,
        FREED => EventKind::Freed,
        _ => return None,
    };
    let flags = fields.u8(event::FLAGS);
    Some(Event {
        position: fields.u64(event::POSITION),
        kind,
        by_realloc: flags & BY_REALLOC != 0,
        zeroed: flags & ZEROED != 0,
        followed: flags & FOLLOWED != 0,
        ticks: fields.u64(event::TICKS),
        size: fields.u64(event::SIZE),
        distance: distance(every, fields.u8(event::SHIFT)),
        rank: fields.u8(event::RANK).into(),
        stack: stack_of(fields.u64(event::STACK)),
        born: fields.u64(event::BORN),
        latency: Some(fields.u32(event::LATENCY)).filter(|ticks| *ticks < u32::MAX),
        noted: flags & NOTED != 0,
        tid: fields.u32(event::TID),
        origin: fields.u32(event::ORIGIN),
    })
}

fn distance(every: u64, shift: u8) -> u64 {
    let most = LARGEST_DISTANCE;
    if u32::from(shift) > most.ilog2() { most } else { (every.min(most) << shift).min(most) }
}

fn stack_of(position: u64) -> Result<u64, NoStack> {
    match position {
        STACK_NO_SPACE => Err(NoStack::NoSpace),
        STACK_BUSY => Err(NoStack::Busy),
        0..FIRST => Err(NoStack::Unknown),
        position => Ok(position),
    }
}

/// The stack at a position; None if it was overwritten, also while it was read.
pub fn stack(file: &File, header: &Header, position: u64) -> Option<Copied> {
    let entry = position.checked_rem(header.stacks.entries)?;
    let at = header.stacks.at + entry * stack::BYTES as u64;
    let mut bytes = vec![0; stack::BYTES];
    read(file, at, &mut bytes).ok()?;
    let mut after = [0; 8];
    read(file, at + stack::POSITION as u64, &mut after).ok()?;
    let fields = Fields(&bytes);
    if [fields.u64(stack::POSITION), u64::from_ne_bytes(after)] != [position; 2] {
        return None;
    }
    let written = |number: usize| fields.u64(stack::REGISTERS + 8 * number);
    let length = usize::from(fields.u16(stack::LENGTH)).min(stack::BYTES - stack::CONTENTS);
    let contents = &bytes[stack::CONTENTS..stack::CONTENTS + length];
    Some(Copied { registers: registers(written), bytes: contents.to_vec() })
}

/// The registers in perf's order (see `host::perf`), from the order of the file.
fn registers(written: impl Fn(usize) -> u64) -> Registers {
    let mut registers = [0; REGISTERS];
    // rip rsp rbp rbx r12 to r15.
    #[cfg(target_arch = "x86_64")]
    let places = [8, 7, 6, 1, 13, 14, 15, 16];
    // pc sp x19 to x30.
    #[cfg(target_arch = "aarch64")]
    let places = [32, 31, 19, 20, 21, 22, 23, 24, 25, 26, 27, 28, 29, 30];
    for (number, place) in places.into_iter().enumerate() {
        registers[place] = written(number);
    }
    registers
}

/// Passes each followed block that is in use to `take`.
pub fn blocks(file: &File, header: &Header, mut take: impl FnMut(Block)) {
    let table = header.followed;
    each(file, table, 0..table.entries, followed::BYTES, |_, fields| {
        if fields.u64(followed::ADDRESS) != 0 {
            take(Block {
                size: fields.u64(followed::SIZE),
                distance: distance(header.every, fields.u8(followed::SHIFT)),
                rank: fields.u8(followed::RANK).into(),
                stack: stack_of(fields.u64(followed::STACK)),
            });
        }
    });
}

/// The traces, the newest first, without calls that were not written.
pub fn traces(file: &File, header: &Header) -> Vec<Vec<TracedCall>> {
    let mut bytes = [0; header::OBJECT];
    if header.trace.entries == 0 || read(file, 0, &mut bytes).is_err() {
        return Vec::new();
    }
    let fields = Fields(&bytes);
    let field = |at: usize, place: u64| fields.u64(at + 8 * place as usize);
    let mut places: Vec<(u64, u64)> = (0..TRACES).map(|p| (field(header::TRACE_NUMBER, p), p)).collect();
    places.retain(|(number, _)| *number > 0);
    places.sort_unstable_by(|a, b| b.cmp(a));
    let trace = |(number, place): (u64, u64)| {
        let entries = header.trace.entries;
        let part = Part { at: header.trace.at + place * entries * CALL_BYTES as u64, entries };
        let tag = (number % 255 + 1) as u8;
        let mut calls = Vec::new();
        each(file, part, 0..field(header::TRACED, place).min(entries), CALL_BYTES, |_, fields| {
            let call = TracedCall::of(&fields.bytes(0)).filter(|(_, own)| *own == tag);
            calls.extend(call.map(|(call, _)| call));
        });
        calls
    };
    places.into_iter().map(trace).collect()
}

/// Reads entries in large pieces, and passes each one with its number. It ends where the file ends, or can't be read.
fn each(
    file: &File,
    part: Part,
    entries: std::ops::Range<u64>,
    bytes: usize,
    mut take: impl FnMut(u64, &Fields<'_>),
) {
    let at_once = (CHUNK / bytes) as u64;
    let mut buffer = Vec::new();
    let mut from = entries.start;
    while from < entries.end {
        let count = (entries.end - from).min(at_once);
        buffer.resize(count as usize * bytes, 0);
        match read(file, part.at + from * bytes as u64, &mut buffer) {
            Ok(0) | Err(_) => return,
            Ok(_) => {}
        }
        for (number, entry) in (from..).zip(buffer.chunks_exact(bytes)) {
            take(number, &Fields(entry));
        }
        from += count;
    }
}

/// Fills the buffer; with zeros behind the end of the file. Returns the number of bytes before it.
fn read(file: &File, at: u64, buffer: &mut [u8]) -> io::Result<usize> {
    let mut done = 0;
    while done < buffer.len() {
        match file.read_at(&mut buffer[done..], at + done as u64) {
            Ok(0) => break,
            Ok(count) => done += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    buffer[done..].fill(0);
    Ok(done)
}

/// Numbers of an entry, in the order of this machine.
struct Fields<'a>(&'a [u8]);

impl Fields<'_> {
    fn bytes<const N: usize>(&self, at: usize) -> [u8; N] {
        self.0.get(at..).and_then(|rest| rest.first_chunk()).copied().unwrap_or([0; N])
    }

    fn u64(&self, at: usize) -> u64 {
        u64::from_ne_bytes(self.bytes(at))
    }

    fn u32(&self, at: usize) -> u32 {
        u32::from_ne_bytes(self.bytes(at))
    }

    fn u16(&self, at: usize) -> u16 {
        u16::from_ne_bytes(self.bytes(at))
    }

    fn u8(&self, at: usize) -> u8 {
        u8::from_ne_bytes(self.bytes(at))
    }

    /// Up to the first NUL, or to the end of the field.
    fn text(&self, at: usize, bytes: usize) -> String {
        self.texts(at, bytes).into_iter().next().unwrap_or_default()
    }

    /// Texts that end with a NUL each, up to the last that is not empty.
    fn texts(&self, at: usize, bytes: usize) -> Vec<String> {
        let field = self.0.get(at..at + bytes).unwrap_or_default();
        let length = field.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        if length == 0 {
            return Vec::new();
        }
        field[..length]
            .split(|byte| *byte == 0)
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .collect()
    }
}

#[cfg(test)]
pub(super) mod testing {
    use super::*;

    /// A file as the library writes it: the parts follow the header, each with some entries.
    pub struct Made {
        pub bytes: Vec<u8>,
        pub header: Header,
    }

    pub const SLOTS: u64 = 4;
    pub const EVENTS: u64 = 64;
    pub const STACKS: u64 = 4;
    pub const BLOCKS: u64 = 16;
    pub const TRACED: u64 = 8;

    impl Made {
        pub fn new(every: u64) -> Made {
            let mut made = Made { bytes: vec![0; header::BYTES], header: empty() };
            let mut at = header::BYTES;
            for (field, entries, bytes) in [
                (header::SLOTS_AT, SLOTS, slot::BYTES),
                (header::EVENTS_AT, EVENTS, event::BYTES),
                (header::STACKS_AT, STACKS, stack::BYTES),
                (header::FOLLOWED_AT, BLOCKS, followed::BYTES),
                (header::TRACES_AT, TRACED, CALL_BYTES),
            ] {
                made.put(field, &(at as u64).to_ne_bytes());
                made.put(field + 8, &(entries as u32).to_ne_bytes());
                made.put(field + 12, &(bytes as u32).to_ne_bytes());
                at += entries as usize * bytes;
            }
            // The second trace.
            made.bytes.resize(at + TRACED as usize * CALL_BYTES, 0);
            made.put(header::MAGIC, &MAGIC.to_ne_bytes());
            for (field, value) in [
                (header::VERSION, VERSION),
                (header::HEADER_BYTES, header::BYTES as u32),
                (header::PID, 7),
                (header::MACHINE, MACHINE),
                (header::CLASSES, CLASSES as u32),
            ] {
                made.put(field, &value.to_ne_bytes());
            }
            for (field, value) in [
                (header::TICKS_PER_SECOND, 1_000_000_000),
                (header::CLOCK_COST, 20),
                (header::EVERY, every),
                (header::PER_CALL, PER_CALL),
                (header::SLOTS_USED, 1),
                (header::EVENTS_NEXT, FIRST),
                (header::STACKS_NEXT, FIRST),
            ] {
                made.put(field, &value.to_ne_bytes());
            }
            made.put(header::PROGRAM, b"/usr/bin/program\0");
            made.put(header::COMMAND, b"program\0--fast\0\0x\0");
            made.header = parse_header(&Fields(&made.bytes)).expect("a header");
            made
        }

        pub fn put(&mut self, at: usize, bytes: &[u8]) {
            self.bytes[at..at + bytes.len()].copy_from_slice(bytes);
        }

        pub fn file(&self) -> File {
            let file = tempfile::tempfile().expect("a file");
            self.write(&file);
            file
        }

        pub fn write(&self, file: &File) {
            file.write_all_at(&self.bytes, 0).expect("space");
        }

        pub fn set_follow(&mut self, follow: u64) {
            self.put(header::FOLLOW, &follow.to_ne_bytes());
        }

        pub fn set_process(&mut self, pid: u32, number: u32) {
            self.put(header::PID, &pid.to_ne_bytes());
            self.put(header::NUMBER, &number.to_ne_bytes());
        }

        pub fn set_events_next(&mut self, next: u64) {
            self.put(header::EVENTS_NEXT, &next.to_ne_bytes());
        }

        pub fn set_flags(&mut self, flags: u32) {
            self.put(header::FLAGS, &flags.to_ne_bytes());
        }

        /// Counters of a slot: mallocs of 64 bytes, then frees.
        pub fn slot(&mut self, number: u64, tid: u32, mallocs: u64, frees: u64) {
            let at = self.header.slots.at as usize + number as usize * slot::BYTES;
            self.put(at + slot::STATE, &1_u32.to_ne_bytes());
            self.put(at + slot::TID, &tid.to_ne_bytes());
            for (field, value) in [
                (slot::THREADS, 1),
                (slot::REQUESTED, 64 * mallocs),
                (slot::FREES, frees),
                (slot::CLASSES + 8 * 4, mallocs),
            ] {
                self.put(at + field, &value.to_ne_bytes());
            }
            self.put(header::SLOTS_USED, &(number + 1).to_ne_bytes());
        }

        /// The next event, and a stack with it if the event has one.
        pub fn event(&mut self, made: &Event) {
            let next = Fields(&self.bytes).u64(header::EVENTS_NEXT);
            let at = self.header.events.at as usize + (next % EVENTS) as usize * event::BYTES;
            let stack = match made.stack {
                Ok(position) => position,
                Err(NoStack::NoSpace) => STACK_NO_SPACE,
                Err(NoStack::Busy) => STACK_BUSY,
                Err(NoStack::Unknown) => 0,
            };
            for (field, value) in [
                (event::POSITION, next),
                (event::TICKS, made.ticks),
                (event::SIZE, made.size),
                (event::STACK, stack),
                (event::BORN, made.born),
            ] {
                self.put(at + field, &value.to_ne_bytes());
            }
            for (field, value) in [
                (event::LATENCY, made.latency.unwrap_or(u32::MAX)),
                (event::TID, made.tid),
                (event::ORIGIN, made.origin),
            ] {
                self.put(at + field, &value.to_ne_bytes());
            }
            let kind = match made.kind {
                EventKind::Allocated => ALLOCATED,
                EventKind::Freed => FREED,
            };
            let bit = |set: bool, bit: u8| if set { bit } else { 0 };
            let flags = bit(made.by_realloc, BY_REALLOC)
                | bit(made.zeroed, ZEROED)
                | bit(made.followed, FOLLOWED)
                | bit(made.noted, NOTED);
            let shift = (made.distance / self.header.every.max(1)).max(1).ilog2() as u8;
            self.put(at + event::KIND, &[kind, shift, made.rank as u8, flags]);
            self.put(header::EVENTS_NEXT, &(next + 1).to_ne_bytes());
            if let (EventKind::Allocated, Ok(position)) = (made.kind, made.stack) {
                let at = self.header.stacks.at as usize + (position % STACKS) as usize * stack::BYTES;
                self.put(at, &position.to_ne_bytes());
                self.put(at + stack::REGISTERS, &0x1234_u64.to_ne_bytes());
                self.put(at + stack::LENGTH, &16_u16.to_ne_bytes());
                self.put(header::STACKS_NEXT, &(position + 1).to_ne_bytes());
            }
        }

        /// A trace with these calls, in the place that its number has.
        pub fn trace(&mut self, number: u64, calls: &[TracedCall]) {
            let place = number % TRACES;
            let at = self.header.trace.at + place * TRACED * CALL_BYTES as u64;
            for (nth, call) in calls.iter().enumerate() {
                self.put(at as usize + nth * CALL_BYTES, &call.to_bytes((number % 255 + 1) as u8));
            }
            let place = 8 * place as usize;
            self.put(header::TRACE_NUMBER + place, &number.to_ne_bytes());
            self.put(header::TRACED + place, &(calls.len() as u64).to_ne_bytes());
        }

        pub fn block(&mut self, number: u64, block: &Block) {
            let at = self.header.followed.at as usize + number as usize * followed::BYTES;
            self.put(at + followed::ADDRESS, &0x1000_u64.to_ne_bytes());
            self.put(at + followed::SIZE, &block.size.to_ne_bytes());
            self.put(at + followed::STACK, &block.stack.unwrap_or(0).to_ne_bytes());
            self.put(at + followed::RANK, &[block.rank as u8]);
        }
    }

    fn empty() -> Header {
        Header {
            pid: 0,
            number: 0,
            slots: Part::default(),
            events: Part::default(),
            stacks: Part::default(),
            followed: Part::default(),
            trace: Part::default(),
            ticks_per_second: None,
            start_ticks: 0,
            start_ns: 0,
            clock_cost: 0,
            every: 0,
            object: String::new(),
            program: String::new(),
            command: Vec::new(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::testing::{Made, TRACED};
    use super::*;
    use allocwall_model::allocations::class_sizes;
    use allocwall_model::stats::random::Random;
    use allocwall_model::trace::{SLOTS, TracedKind, TracedThread};
    use std::collections::HashMap;

    const HEADER_FILE: &str = include_str!("../../../allocwall-preload/src/count.h");

    /// The text without comments.
    fn code() -> String {
        let mut out = String::new();
        let mut rest = HEADER_FILE;
        while let Some((before, comment)) = rest.split_once("/*") {
            out += before;
            rest = comment.split_once("*/").expect("the end of a comment").1;
        }
        out + rest
    }

    /// The value of a sum or difference of numbers and names.
    fn value(text: &str, names: &HashMap<String, u64>) -> Option<u64> {
        let text = text.trim();
        if let Some((left, right)) = text.rsplit_once(" - ") {
            return Some(value(left, names)? - value(right, names)?);
        }
        let digits = text.trim_end_matches(['u', 'U', 'l', 'L']);
        match digits.strip_prefix("0x") {
            Some(hex) => u64::from_str_radix(hex, 16).ok(),
            None => digits.parse().ok().or_else(|| names.get(text).copied()),
        }
    }

    /// `#define NAME VALUE`.
    fn defines(code: &str) -> HashMap<String, u64> {
        let mut names = HashMap::new();
        for line in code.lines() {
            let Some(rest) = line.strip_prefix("#define ") else { continue };
            if let Some((name, text)) = rest.split_once(' ')
                && let Some(value) = value(text, &names)
            {
                names.insert(name.to_owned(), value);
            }
        }
        names
    }

    /// The offsets of the fields of a structure by the rules of C, and its size as the last one: all types are integers of 1 to
    /// 8 bytes, aligned to their size, and arrays of them.
    fn offsets(code: &str, name: &str, names: &HashMap<String, u64>) -> HashMap<String, usize> {
        let start = format!("struct {name} {{");
        let body = code.split_once(&start).unwrap_or_else(|| panic!("no {start}")).1;
        let body = body.split_once('}').expect("the end of a structure").0;
        let mut offsets = HashMap::new();
        let mut at = 0_usize;
        let mut widest = 1;
        for statement in body.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
            let (kind, fields) = statement.split_once(char::is_whitespace).expect("a type");
            let bytes = match kind {
                "uint64_t" | "int64_t" => 8,
                "uint32_t" => 4,
                "uint16_t" => 2,
                "uint8_t" | "char" => 1,
                _ => panic!("unknown type in {statement:?}"),
            };
            widest = widest.max(bytes);
            at = at.next_multiple_of(bytes);
            for field in fields.split(',') {
                let (field, count) = match field.trim().split_once('[') {
                    Some((field, count)) => {
                        let count = count.trim_end_matches(']');
                        (field, value(count, names).unwrap_or_else(|| panic!("{statement:?}")))
                    }
                    None => (field.trim(), 1),
                };
                offsets.insert(field.to_owned(), at);
                at += bytes * count as usize;
            }
        }
        offsets.insert("(size)".into(), at.next_multiple_of(widest));
        offsets
    }

    #[test]
    fn offsets_are_those_of_the_library() {
        let code = code();
        let names = defines(&code);
        let check = |structure: &str, fields: &[(&str, usize)]| {
            let offsets = offsets(&code, structure, &names);
            for (field, ours) in fields {
                assert_eq!(offsets.get(*field), Some(ours), "{structure}.{field}");
            }
        };
        check(
            "count_header",
            &[
                ("magic", header::MAGIC),
                ("version", header::VERSION),
                ("header_bytes", header::HEADER_BYTES),
                ("pid", header::PID),
                ("number", header::NUMBER),
                ("machine", header::MACHINE),
                ("flags", header::FLAGS),
                ("classes", header::CLASSES),
                ("slots_at", header::SLOTS_AT),
                ("slots", header::SLOTS_AT + 8),
                ("slot_bytes", header::SLOTS_AT + 12),
                ("events_at", header::EVENTS_AT),
                ("events", header::EVENTS_AT + 8),
                ("event_bytes", header::EVENTS_AT + 12),
                ("stacks_at", header::STACKS_AT),
                ("stacks", header::STACKS_AT + 8),
                ("stack_bytes", header::STACKS_AT + 12),
                ("followed_at", header::FOLLOWED_AT),
                ("followed", header::FOLLOWED_AT + 8),
                ("followed_bytes", header::FOLLOWED_AT + 12),
                ("ticks_per_second", header::TICKS_PER_SECOND),
                ("start_ticks", header::START_TICKS),
                ("start_ns", header::START_NS),
                ("clock_cost", header::CLOCK_COST),
                ("every", header::EVERY),
                ("per_call", header::PER_CALL),
                ("traces_at", header::TRACES_AT),
                ("trace_calls", header::TRACES_AT + 8),
                ("call_bytes", header::TRACES_AT + 12),
                ("slots_used", header::SLOTS_USED),
                ("events_next", header::EVENTS_NEXT),
                ("events_dropped", header::EVENTS_DROPPED),
                ("stacks_next", header::STACKS_NEXT),
                ("follow", header::FOLLOW),
                ("follow_failed", header::FOLLOW_FAILED),
                ("traced", header::TRACED),
                ("trace_number", header::TRACE_NUMBER),
                ("object", header::OBJECT),
                ("program", header::OBJECT + header::OBJECT_BYTES),
                ("program", header::PROGRAM),
                ("command", header::PROGRAM + header::PROGRAM_BYTES),
                ("command", header::COMMAND),
                ("reserved2", header::COMMAND + header::COMMAND_BYTES),
                ("(size)", header::BYTES),
            ],
        );
        check(
            "count_slot",
            &[
                ("state", slot::STATE),
                ("tid", slot::TID),
                ("threads", slot::THREADS),
                ("callocs", slot::CALLOCS),
                ("aligned", slot::ALIGNED),
                ("news", slot::NEWS),
                ("reallocs", slot::REALLOCS),
                ("realloc_in_place", slot::REALLOC_IN_PLACE),
                ("realloc_moved", slot::REALLOC_MOVED),
                ("realloc_remapped", slot::REALLOC_REMAPPED),
                ("realloc_freed", slot::REALLOC_FREED),
                ("realloc_failed", slot::REALLOC_FAILED),
                ("realloc_bytes", slot::REALLOC_BYTES),
                ("copied_bytes", slot::COPIED_BYTES),
                ("marks", slot::MARKS),
                ("samples", slot::SAMPLES),
                ("bytes", slot::REQUESTED),
                ("frees", slot::FREES),
                ("free_null", slot::FREE_NULL),
                ("deletes", slot::DELETES),
                ("failed", slot::FAILED),
                ("classes", slot::CLASSES),
                ("sample_ticks", slot::SAMPLE_TICKS),
                ("(size)", slot::BYTES),
            ],
        );
        check(
            "count_event",
            &[
                ("position", event::POSITION),
                ("ticks", event::TICKS),
                ("size", event::SIZE),
                ("stack", event::STACK),
                ("born", event::BORN),
                ("latency", event::LATENCY),
                ("tid", event::TID),
                ("origin", event::ORIGIN),
                ("kind", event::KIND),
                ("shift", event::SHIFT),
                ("rank", event::RANK),
                ("flags", event::FLAGS),
                ("(size)", event::BYTES),
            ],
        );
        check(
            "count_stack",
            &[
                ("position", stack::POSITION),
                ("registers", stack::REGISTERS),
                ("length", stack::LENGTH),
                ("bytes", stack::CONTENTS),
                ("(size)", stack::BYTES),
            ],
        );
        check(
            "count_followed",
            &[
                ("address", followed::ADDRESS),
                ("size", followed::SIZE),
                ("stack", followed::STACK),
                ("shift", followed::SHIFT),
                ("rank", followed::RANK),
                ("(size)", followed::BYTES),
            ],
        );
        // In the order of `TracedCall::to_bytes`.
        let call = [
            ("address", 0),
            ("size", 8),
            ("thread", 12),
            ("kind", 14),
            ("trace", 15),
            ("(size)", CALL_BYTES),
        ];
        check("count_call", &call);
        let machine = if cfg!(target_arch = "x86_64") { "COUNT_X86_64" } else { "COUNT_AARCH64" };
        for (name, ours) in [
            ("COUNT_MAGIC", MAGIC),
            ("COUNT_VERSION", VERSION.into()),
            (machine, MACHINE.into()),
            ("COUNT_CLASSES", CLASSES as u64),
            ("COUNT_BYPASSED", BYPASSED.into()),
            ("COUNT_NO_ROOM", NO_ROOM.into()),
            ("COUNT_NO_CLOCK", NO_CLOCK.into()),
            ("COUNT_NO_SPACE", NO_SPACE.into()),
            ("COUNT_NO_SIZES", NO_SIZES.into()),
            ("COUNT_SLOT_LEFT", SLOT_LEFT.into()),
            ("COUNT_SLOTS", MOST_SLOTS),
            ("COUNT_FEW_SLOTS", FEW_SLOTS),
            ("COUNT_EVENTS", MOST_EVENTS),
            ("COUNT_STACKS", MOST_STACKS),
            ("COUNT_FOLLOWED_ENTRIES", MOST_FOLLOWED),
            ("COUNT_FIRST", FIRST),
            ("COUNT_STACK_NO_SPACE", STACK_NO_SPACE),
            ("COUNT_STACK_BUSY", STACK_BUSY),
            ("COUNT_ALLOCATED", ALLOCATED.into()),
            ("COUNT_FREED", FREED.into()),
            ("COUNT_BY_REALLOC", BY_REALLOC.into()),
            ("COUNT_ZEROED", ZEROED.into()),
            ("COUNT_FOLLOWED", FOLLOWED.into()),
            ("COUNT_NOTED", NOTED.into()),
            ("COUNT_CALL_SLOT", SLOTS as u64 - 1),
            ("COUNT_CALL_MAIN", 0x8000),
            ("COUNT_TRACES", TRACES),
            ("COUNT_TRACED", MOST_TRACED as u64),
            ("COUNT_CALL_NEW", TracedKind::New as u64 + 1),
            ("COUNT_CALL_ZEROED", TracedKind::Zeroed as u64 + 1),
            ("COUNT_CALL_FREE", TracedKind::Free as u64 + 1),
            ("COUNT_CALL_RESIZED", TracedKind::Resized as u64 + 1),
            ("COUNT_CALL_RESIZED_TO", TracedKind::ResizedTo as u64 + 1),
        ] {
            assert_eq!(names.get(name), Some(&ours), "{name}");
        }
        assert!(code.contains(&format!("#define COUNT_ROOM {ROOM:?}\n")));
    }

    /// COUNT_CLASS_BOUND of count.h.
    #[test]
    fn classes_are_those_of_the_library() {
        for class in 0..CLASSES - 1 {
            let c = class as u64;
            let bound = if c <= 64 { c * 16 } else { (5 + (c - 65) % 4) << (8 + (c - 65) / 4) };
            assert_eq!(class_sizes(class).1, bound, "{class}");
        }
    }

    fn event(size: u64, stack: Result<u64, NoStack>) -> Event {
        Event {
            position: FIRST,
            kind: EventKind::Allocated,
            by_realloc: false,
            zeroed: true,
            followed: true,
            ticks: 5,
            size,
            distance: 2 << 20,
            rank: 3,
            stack,
            born: 0,
            latency: Some(90),
            noted: false,
            tid: 7,
            origin: 7,
        }
    }

    #[test]
    fn a_file_is_read_as_it_was_written() {
        let mut made = Made::new(1 << 20);
        made.slot(0, 0, 0, 0);
        made.slot(1, 7, 10, 4);
        let (first, second) = (event(100, Ok(FIRST)), event(200, Err(NoStack::Busy)));
        made.event(&first);
        made.event(&second);
        let block = Block { size: 100, distance: 1 << 20, rank: 3, stack: Ok(FIRST) };
        made.block(5, &block);
        let file = made.file();
        let found = header(&file).unwrap().unwrap();
        assert_eq!(found, made.header);
        assert_eq!((found.program.as_str(), found.object.as_str()), ("/usr/bin/program", ""));
        assert_eq!(found.command, ["program", "--fast", "", "x"]);
        let now = state(&file, &found);
        assert_eq!((now.slots_used, now.events_next), (2, FIRST + 2));
        let mut read = Vec::new();
        slots(&file, &found, &now, |number, slot| read.push((number, slot)));
        let (number, slot) = read.pop().unwrap();
        assert_eq!((number, slot.tid, slot.left, slot.calls.malloc, slot.calls.frees), (1, 7, false, 10, 4));
        assert_eq!((slot.calls.bytes, slot.classes[4], read.len()), (640, 10, 1));
        let mut read = Vec::new();
        events(&file, &found, FIRST..FIRST + 2, &mut read);
        assert_eq!(read, [first, Event { position: FIRST + 1, ..second }]);
        let copied = stack(&file, &found, FIRST).unwrap();
        assert_eq!(
            (copied.registers[if cfg!(target_arch = "x86_64") { 8 } else { 32 }], copied.bytes.len()),
            (0x1234, 16)
        );
        assert_eq!(stack(&file, &found, FIRST + testing::STACKS), None, "another position of the ring");
        let mut read = Vec::new();
        blocks(&file, &found, |block| read.push(block));
        assert_eq!(read, [block]);
    }

    #[test]
    fn traces_are_read_the_newest_first_without_what_was_not_written() {
        let call = |address| TracedCall { kind: TracedKind::New, address, size: 64, thread: TracedThread(1) };
        let calls: Vec<TracedCall> = (1..=TRACED).map(call).collect();
        let mut made = Made::new(1 << 20);
        let read = |made: &Made| traces(&made.file(), &made.header);
        assert_eq!(read(&made), Vec::<Vec<TracedCall>>::new());
        made.trace(6, &calls);
        assert_eq!(read(&made), [&calls[..]]);
        made.trace(7, &calls[..3]);
        assert_eq!(read(&made), [&calls[..3], &calls[..]]);
        // It began in the place of the sixth, whose later calls are still there.
        made.trace(8, &calls[..2]);
        made.put(header::TRACED, &u64::MAX.to_ne_bytes());
        assert_eq!(read(&made), [&calls[..2], &calls[..3]]);
        // A thread was interrupted before it wrote the first one.
        let first = made.header.trace.at as usize;
        made.put(first, &[0; CALL_BYTES]);
        assert_eq!(read(&made), [&calls[1..2], &calls[..3]]);
    }

    #[test]
    fn events_that_the_ring_does_not_hold_are_left_out() {
        let mut made = Made::new(1 << 20);
        // Once around and a bit more.
        let all = testing::EVENTS + 5;
        (0..all).for_each(|at| made.event(&event(at, Err(NoStack::Unknown))));
        let file = made.file();
        let mut read = Vec::new();
        events(&file, &made.header, FIRST..FIRST + all, &mut read);
        let sizes: Vec<u64> = read.iter().map(|event| event.size).collect();
        assert_eq!(sizes, (5..all).collect::<Vec<_>>());
        // One that is being written.
        let at =
            made.header.events.at as usize + (FIRST as usize + 7) % testing::EVENTS as usize * event::BYTES;
        made.put(at, &u64::MAX.to_ne_bytes());
        made.write(&file);
        read.clear();
        events(&file, &made.header, FIRST + 5..FIRST + all, &mut read);
        assert_eq!(read.len() as u64, testing::EVENTS - 1);
    }

    #[test]
    fn hostile_headers_are_refused() {
        let made = Made::new(1 << 20);
        let mut empty = Made::new(1 << 20);
        empty.put(header::MAGIC, &[0; 8]);
        assert_eq!(header(&empty.file()), Ok(None), "it is not complete yet");
        for (at, value) in [
            (header::MAGIC, 1_u64),
            (header::VERSION, 2),
            (header::MACHINE, 9 << 32),
            (header::SLOTS_AT, u64::MAX),
            (header::EVENTS_AT, u64::MAX - 4096),
            (header::SLOTS_AT + 8, 0),
            (header::EVENTS_AT + 8, u64::from(u32::MAX)),
            (header::STACKS_AT + 8, 8),
            (header::FOLLOWED_AT + 8, (65 << 32) | 8),
            (header::PER_CALL, 7),
        ] {
            let mut hostile = Made { bytes: made.bytes.clone(), header: made.header.clone() };
            hostile.put(at, &value.to_ne_bytes());
            let refused = header(&hostile.file()).map_err(|absence| absence.reason);
            assert_eq!(refused, Err(Reason::Unparsable), "{at} {value:x}");
        }
        let mut jumps = Made { bytes: made.bytes.clone(), header: made.header.clone() };
        jumps.put(header::SLOTS_USED, &u64::MAX.to_ne_bytes());
        jumps.set_follow(u64::MAX);
        let now = state(&jumps.file(), &jumps.header);
        assert_eq!((now.slots_used, now.follow), (testing::SLOTS, 63));
    }

    /// Everything that is read from a file.
    fn read_all(file: &File, header: &Header) -> usize {
        let now = state(file, header);
        let mut found = 0;
        slots(file, header, &now, |_, _| found += 1);
        let mut read = Vec::new();
        let from = now.events_next.saturating_sub(header.events.entries).max(FIRST);
        events(file, header, from..now.events_next, &mut read);
        for event in &read {
            assert!(event.distance <= LARGEST_DISTANCE);
            if let Ok(position) = event.stack {
                found += usize::from(stack(file, header, position).is_some());
            }
        }
        blocks(file, header, |_| found += 1);
        let traced: usize = traces(file, header).iter().map(Vec::len).sum();
        found + read.len() + traced
    }

    #[test]
    fn truncated_and_random_bytes_are_read_within_limits() {
        let mut made = Made::new(1 << 20);
        made.slot(1, 7, 10, 4);
        made.event(&event(100, Ok(FIRST)));
        made.block(5, &Block { size: 100, distance: 1 << 20, rank: 3, stack: Ok(FIRST) });
        let call = TracedCall { kind: TracedKind::Free, address: 1, size: 2, thread: TracedThread(3) };
        made.trace(1, &[call; TRACED as usize]);
        let whole = read_all(&made.file(), &made.header);
        for length in (0..made.bytes.len()).step_by(997) {
            let file = tempfile::tempfile().unwrap();
            file.write_all_at(&made.bytes[..length], 0).unwrap();
            assert!(read_all(&file, &made.header) <= whole, "{length}");
            let _ = header(&file);
        }
        let mut random = Random::new(1);
        for _ in 0..300 {
            let mut hostile = Made { bytes: made.bytes.clone(), header: made.header.clone() };
            for _ in 0..40 {
                // Half of the changes are in the header's fields.
                let end = if random.below(2) == 0 { header::OBJECT } else { hostile.bytes.len() - 8 };
                let at = random.below(end);
                hostile.put(at, &random.next_u64().to_ne_bytes());
            }
            let file = hostile.file();
            read_all(&file, &made.header);
            if let Ok(Some(header)) = header(&file) {
                read_all(&file, &header);
            }
        }
    }
}
