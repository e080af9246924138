//! A recording on disk: written during the measurement, read back unchanged.
//!
//! Layout: `MAGIC`, format version (u16, little endian), then chunks. A chunk has the length and the CRC-32
//! of its body (u32 each, little endian) and the body: a `Part` in postcard, deflated. A file without a
//! `Tail` was cut off; the parts before are still a recording. The reader trusts nothing: it checks lengths,
//! checksums, indices and numbers, and allocates nothing only because a length says so.

use allocwall_host::file;
use allocwall_model::allocations::{Counted, not_counted, not_replayed};
use allocwall_model::devices::Devices;
use allocwall_model::error::{Error, Result};
use allocwall_model::placement::Placement;
use allocwall_model::recording::*;
use allocwall_model::replay::Replay;
use allocwall_model::resident::{MOST_BILLS, ResidentBill, TargetMemory};
use allocwall_model::room;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

const MAGIC: &[u8; 10] = b"allocwall\0";
const HEADER: usize = MAGIC.len() + 2;
/// Increased whenever a part or anything in it changes. A new kind of part, after the others, leaves older recordings
/// readable.
pub const FORMAT_VERSION: u16 = 13;

const FILE_LIMIT: u64 = 256 << 20;
const PART_LIMIT: u64 = 64 << 20;
/// Values take up to 24 times the memory of their bytes here (empty strings), so a small file must not unpack
/// to much. Real files stay above a tenth of their unpacked size because of their times and numbers.
const UNPACKED_LIMIT: u64 = 256 << 20;
const UNPACKED_SMALL: u64 = 8 << 20;
const UNPACKED_RATIO: u64 = 32;
/// The most memory for the lists of a recording; the recorder's own budgets sum to less than 300 MiB.
const MEMORY_LIMIT: usize = 384 << 20;
const PARTS_LIMIT: usize = 100_000;
/// The most items of each kind, above what the recorder keeps.
const SAMPLES_LIMIT: usize = 2_000_000;
const MODULES_LIMIT: usize = 1 << 13;
const PROCESSES_LIMIT: usize = 1 << 16;
const THREADS_LIMIT: usize = 1 << 20;
const FAULT_SLICES_LIMIT: usize = 4096;
const HARDWARE_SLICES_LIMIT: usize = 64;
/// The most frames of all samples and waits together: they are walked for each sample.
const FRAMES_WALKED: usize = 1_000_000_000;

#[derive(Serialize, Deserialize)]
pub enum Part {
    Head(Box<Head>),
    Batch(Box<Batch>),
    Tail(Box<Tail>),
    /// Comes before the tail.
    Devices(Box<Devices>),
    /// Comes before the tail.
    Counted(Box<Measured<Counted>>),
    /// Comes after the tail, if at all: the target has ended by then.
    Replayed(Box<Measured<Replay>>),
    /// Comes after the tail, if at all. In place of the prices of the head: with those that were measured after the window.
    Priced(Box<Measured<PriceList>>),
    /// Comes before the tail.
    SmapsCost(SmapsCost),
    /// Comes before the first batch that refers to them: follow the modules of the head and of such parts before. The `Tail` replaces
    /// all.
    Modules(#[serde(deserialize_with = "allocwall_model::room::charged")] Vec<Module>),
}

/// The data that is known when the window opens.
#[derive(Serialize, Deserialize)]
pub struct Head {
    pub meta: Meta,
    pub host: HostFacts,
    pub cgroup: Option<String>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub processes: Vec<Process>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub modules: Vec<Module>,
    pub prices: Measured<PriceList>,
}

/// The data of one second. Indices count from the start of the recording.
#[derive(Default, Serialize, Deserialize)]
pub struct Batch {
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub frames: Vec<Frame>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub stacks: Vec<Stack>,
    /// User stacks have only the leaf until the `Tail` replaces them: unwinding waits for the end of the
    /// window.
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub samples: Vec<CpuSample>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub waits: Vec<WaitSample>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub ticks: Vec<Tick>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub python: Vec<PythonSample>,
}

/// The data that is known when the window has closed.
#[derive(Serialize, Deserialize)]
pub struct Tail {
    pub meta: Meta,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub processes: Vec<Process>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub probes: Vec<Probe>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub threads: Vec<ThreadTimes>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub modules: Vec<Module>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub counts: Vec<EventCount>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub neighbours: Vec<Neighbour>,
    pub heap: Measured<HeapView>,
    pub resident: Measured<TargetMemory>,
    pub placement: Measured<Placement>,
    #[serde(deserialize_with = "allocwall_model::room::charged_if_measured")]
    pub loads: Measured<Vec<LoadSamples>>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub accounts: Vec<RuntimeAccount>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub collecting: Vec<Collecting>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub fault_slices: Vec<FaultSlice>,
    pub hardware: Measured<HardwareCounts>,
    /// These replace all frames and stacks; the samples of the batches follow in order.
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub frames: Vec<Frame>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub stacks: Vec<Stack>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub sample_stacks: Vec<StackPair>,
    #[serde(deserialize_with = "allocwall_model::room::charged")]
    pub wait_stacks: Vec<StackPair>,
}

/// The kernel stack and the user stack of one sample.
pub type StackPair = (Option<u32>, Option<u32>);

/// Writes parts to a file and keeps them in memory, so that a full disk loses the file but not the diagnosis.
///
/// No file exists until the first part comes. A measurement whose window never opens neither replaces nor
/// creates a file.
pub struct Writer {
    path: Option<PathBuf>,
    begun: bool,
    file: Option<File>,
    bytes: Vec<u8>,
    /// Bytes of all parts before compression.
    unpacked: u64,
    failure: Option<Error>,
}

/// What was written.
pub struct Written {
    /// As a reader of the file would see it.
    pub recording: Result<Recording>,
    /// The error of the file.
    pub failure: Option<Error>,
    /// All that the file has, or would have.
    pub bytes: Vec<u8>,
}

impl Writer {
    /// `path`: the file to write, readable only by its owner; None keeps the recording in memory only. An
    /// existing file is replaced only if it is a recording or empty.
    pub fn create(path: Option<&Path>) -> Result<Writer> {
        let mut writer = Writer {
            path: path.map(Path::to_path_buf),
            begun: false,
            file: None,
            bytes: Vec::new(),
            unpacked: 0,
            failure: None,
        };
        if let Some(path) = path {
            may_replace(path)?;
            file::takes_new_files(file::folder_of(path)).map_err(|cause| failed(path, cause))?;
        }
        writer.bytes.extend_from_slice(MAGIC);
        writer.bytes.extend_from_slice(&FORMAT_VERSION.to_le_bytes());
        Ok(writer)
    }

    /// Creates the file and writes the header.
    fn begin(&mut self) {
        let path = match &self.path {
            Some(path) if !self.begun => path,
            _ => return,
        };
        self.begun = true;
        match create(path) {
            Ok(file) => self.file = Some(file),
            Err(cause) => self.failure = Some(failed(path, cause)),
        }
        let header = std::mem::take(&mut self.bytes);
        self.put(&header);
    }

    pub fn write(&mut self, part: &Part) {
        self.begin();
        // Neither step can fail: postcard into a growing Vec, deflate into a Vec.
        self.body(&postcard::to_stdvec(part).unwrap_or_default());
    }

    /// Writes a part that is already encoded with postcard.
    #[doc(hidden)]
    pub fn body(&mut self, plain: &[u8]) {
        self.unpacked += plain.len() as u64;
        self.put(&chunk(plain, self.unpacked));
    }

    fn put(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
        if let (Some(file), Some(path)) = (&mut self.file, &self.path)
            && let Err(cause) = file.write_all(bytes)
        {
            self.failure = Some(failed(path, cause));
            self.file = None;
        }
    }

    /// The recording as a reader of the file would see it, and the error of the file, if there was one.
    pub fn finish(self) -> (Result<Recording>, Option<Error>) {
        let Written { recording, failure, .. } = self.finish_with_bytes();
        (recording, failure)
    }

    pub fn finish_with_bytes(self) -> Written {
        let path = self.path.unwrap_or_else(|| PathBuf::from("(memory)"));
        Written { recording: decode(&path, &self.bytes), failure: self.failure, bytes: self.bytes }
    }
}

/// A chunk with this part. `unpacked`: the bytes of all parts so far, and of this one.
fn chunk(plain: &[u8], unpacked: u64) -> Vec<u8> {
    let mut body = deflated(plain, Compression::fast());
    // A reader rejects data that compresses better than real data, as a possible attack. Such data is
    // stored uncompressed.
    if unpacked > UNPACKED_SMALL / 2 && plain.len() as u64 > body.len() as u64 * UNPACKED_RATIO / 2 {
        body = deflated(plain, Compression::none());
    }
    let mut chunk = (body.len() as u32).to_le_bytes().to_vec();
    chunk.extend(crc32fast::hash(&body).to_le_bytes());
    chunk.extend(body);
    chunk
}

/// Adds a part to the file of a recording that is complete.
///
/// # Errors
/// Those of the file system.
pub fn append(path: &Path, part: &Part) -> Result<()> {
    // Encoding into a growing Vec cannot fail.
    let plain = postcard::to_stdvec(part).unwrap_or_default();
    let add = || {
        let mut file = OpenOptions::new().append(true).custom_flags(libc::O_NOFOLLOW).open(path)?;
        file.write_all(&chunk(&plain, u64::MAX))
    };
    add().map_err(|cause| failed(path, cause))
}

fn failed(path: &Path, cause: io::Error) -> Error {
    Error::File { path: path.to_path_buf(), cause }
}

/// Creates the file, readable only by its owner. An existing file is replaced in one step and never
/// overwritten: other hard links keep the old contents.
fn create(path: &Path) -> io::Result<File> {
    let new = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path);
    match new {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
        new => return new,
    }
    // tempfile creates with mode 0600 on Unix. Its errors name the temporary file, so only the kind is kept.
    let waiting = tempfile::Builder::new()
        .prefix(".allocwall-")
        .tempfile_in(file::folder_of(path))
        .map_err(|e| io::Error::from(e.kind()))?;
    Ok(waiting.persist(path)?)
}

/// Checks before opening: opening a pipe would block, and a device must never be replaced by a file.
fn may_replace(path: &Path) -> Result<()> {
    let found = match std::fs::symlink_metadata(path) {
        Ok(found) => found,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(cause) => return Err(failed(path, cause)),
    };
    if !found.is_file() {
        return Err(Error::Refused(format!(
            "{} is not a regular file and is not overwritten; name another file with -o",
            path.display()
        )));
    }
    // Opened for writing too: the rename needs only the folder's permission, but a read-only file must stay.
    let mut existing =
        OpenOptions::new().read(true).write(true).open(path).map_err(|cause| failed(path, cause))?;
    let mut start = [0; MAGIC.len()];
    if found.len() > 0 && !(existing.read_exact(&mut start).is_ok() && start == *MAGIC) {
        return Err(Error::Refused(format!(
            "{} exists and is not a recording; name another file with -o, or remove it first",
            path.display()
        )));
    }
    Ok(())
}

fn deflated(plain: &[u8], level: Compression) -> Vec<u8> {
    let mut deflate = DeflateEncoder::new(Vec::with_capacity(plain.len() / 3), level);
    let _ = deflate.write_all(plain);
    deflate.finish().unwrap_or_default()
}

/// Reads a recording. The error says whether the file is not a recording, newer, or damaged.
pub fn read(path: &Path) -> Result<Recording> {
    let fail = |cause| failed(path, cause);
    let file = File::open(path).map_err(fail)?;
    let meta = file.metadata().map_err(fail)?;
    if meta.is_dir() {
        return Err(fail(io::Error::from(io::ErrorKind::IsADirectory)));
    }
    // Reads the header first: a file that is not a recording is not read further, whatever its size.
    let mut bytes = Vec::new();
    (&file).take(HEADER as u64).read_to_end(&mut bytes).map_err(fail)?;
    if check_header(&bytes).is_ok() {
        file.take(FILE_LIMIT + 1 - HEADER as u64).read_to_end(&mut bytes).map_err(fail)?;
    }
    decode(path, &bytes)
}

/// `path` is used only for messages.
pub fn decode(path: &Path, bytes: &[u8]) -> Result<Recording> {
    room::bounded(MEMORY_LIMIT, || decode_parts(bytes))
        .map_err(|detail| Error::Recording { path: path.to_path_buf(), detail })
}

/// Returns the bytes after the header of a recording that this program can read.
fn check_header(bytes: &[u8]) -> std::result::Result<&[u8], String> {
    if bytes.is_empty() {
        return Err("it is empty".into());
    }
    let rest = bytes.strip_prefix(MAGIC).ok_or_else(|| match MAGIC.starts_with(bytes) {
        true => "it ends inside its header",
        false => "it does not start with the header of a recording",
    })?;
    let (version, rest) = rest.split_first_chunk::<2>().ok_or("it ends inside its header")?;
    let version = u16::from_le_bytes(*version);
    if version > FORMAT_VERSION {
        return Err(format!(
            "it has format {version}, newer than this program's format {FORMAT_VERSION}; use the allocwall that wrote it, or a newer one"
        ));
    }
    if version != FORMAT_VERSION {
        return Err(format!("it has format {version}; this program reads format {FORMAT_VERSION}"));
    }
    Ok(rest)
}

fn decode_parts(bytes: &[u8]) -> std::result::Result<Recording, String> {
    if bytes.len() as u64 > FILE_LIMIT {
        return Err(format!(
            "it is larger than {} MiB, the most that a recording can have",
            FILE_LIMIT >> 20
        ));
    }
    let mut rest = check_header(bytes)?;
    let mut budget = (bytes.len() as u64 * UNPACKED_RATIO).clamp(UNPACKED_SMALL, UNPACKED_LIMIT);
    let mut head = None;
    let mut batches: Vec<Batch> = Vec::new();
    let (mut devices, mut counted, mut replayed, mut priced) = (None, None, None, None);
    let mut smaps_cost = None;
    let mut modules = Vec::new();
    let mut tail = None;
    let mut parts = 0;
    while !rest.is_empty() {
        parts += 1;
        if parts > PARTS_LIMIT {
            return Err("it has too many parts".into());
        }
        let broken_off = rest.len() < 8
            || (u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize) > rest.len() - 8;
        if broken_off {
            // The writer was killed, or the copy is incomplete: keep the complete parts.
            if head.is_none() {
                return Err("it is cut off inside its first part".into());
            }
            break;
        }
        let length = u32::from_le_bytes([rest[0], rest[1], rest[2], rest[3]]) as usize;
        let checksum = u32::from_le_bytes([rest[4], rest[5], rest[6], rest[7]]);
        let body = &rest[8..8 + length];
        rest = &rest[8 + length..];
        if crc32fast::hash(body) != checksum {
            return Err(format!("part {parts} is damaged (its checksum does not match)"));
        }
        match decode_part(body, &mut budget).map_err(|e| format!("part {parts} {e}"))? {
            Part::Head(part) if head.is_none() && parts == 1 => head = Some(*part),
            Part::Batch(part) if head.is_some() && tail.is_none() => batches.push(*part),
            Part::Devices(part) if head.is_some() && tail.is_none() && devices.is_none() => {
                devices = Some(*part);
            }
            Part::Counted(part) if head.is_some() && tail.is_none() && counted.is_none() => {
                counted = Some(*part);
            }
            Part::SmapsCost(part) if head.is_some() && tail.is_none() && smaps_cost.is_none() => {
                smaps_cost = Some(part);
            }
            Part::Modules(part) if head.is_some() && tail.is_none() => modules.extend(part),
            Part::Tail(part) if head.is_some() && tail.is_none() => tail = Some(*part),
            Part::Replayed(part) if tail.is_some() && replayed.is_none() => replayed = Some(*part),
            Part::Priced(part) if tail.is_some() && priced.is_none() => priced = Some(*part),
            _ => return Err(format!("part {parts} is out of order")),
        }
    }
    let mut head: Head = head.ok_or("it has a header but no data")?;
    head.modules.extend(modules);
    let mut recording = assemble(head, batches, devices, counted, tail)?;
    recording.replayed = replayed.unwrap_or_else(|| Err(not_replayed()));
    if let Some(cost) = smaps_cost {
        recording.smaps_cost = Ok(cost);
    }
    if let Some(prices) = priced {
        recording.prices = prices;
    }
    validate(&recording)?;
    leave_out_counting(&mut recording);
    Ok(recording)
}

/// Removes the samples in the library that counts, with what the kernel did for it. They are no work of the target.
fn leave_out_counting(recording: &mut Recording) {
    let Recording { samples, stacks, frames, modules, .. } = recording;
    let counts = |frame: &u32| {
        let module = frames[*frame as usize].module.map(|module| modules[module as usize].role);
        module == Some(ModuleRole::Counter)
    };
    let all = samples.len();
    samples.retain(|sample| {
        let leaf = sample.user.and_then(|stack| stacks[stack as usize].frames.first());
        !leaf.is_some_and(counts)
    });
    recording.counting_samples = (all - recording.samples.len()) as u64;
}

fn decode_part(body: &[u8], budget: &mut u64) -> std::result::Result<Part, String> {
    let limit = PART_LIMIT.min(*budget);
    let mut plain = Vec::new();
    DeflateDecoder::new(body)
        .take(limit + 1)
        .read_to_end(&mut plain)
        .map_err(|_| "does not unpack".to_string())?;
    if plain.len() as u64 > limit {
        return Err("unpacks to more than a recording can have".into());
    }
    *budget -= plain.len() as u64;
    let (part, left) = postcard::take_from_bytes(&plain).map_err(|_| "does not parse".to_string())?;
    if !left.is_empty() {
        return Err("has extra bytes".into());
    }
    Ok(part)
}

fn assemble(
    head: Head,
    batches: Vec<Batch>,
    devices: Option<Devices>,
    counted: Option<Measured<Counted>>,
    tail: Option<Tail>,
) -> std::result::Result<Recording, String> {
    let cut_off = || {
        Absence::new(Reason::Vanished, "the recording is cut off: the allocwall that wrote it was killed")
            .mend("make a new recording")
    };
    let whole = tail.is_some();
    let unread = |what: &str| match whole {
        true => {
            let detail = format!("the allocwall that made this recording did not {what}");
            Absence::new(Reason::NotFound, detail).mend("make a new recording")
        }
        false => cut_off(),
    };
    let without_devices = || unread("read disks and networks");
    let mut recording = Recording {
        meta: head.meta,
        host: head.host,
        cgroup: head.cgroup,
        processes: head.processes,
        probes: Vec::new(),
        prices: head.prices,
        ticks: Vec::new(),
        smaps_cost: Err(unread("measure what reading smaps_rollup takes")),
        threads: Vec::new(),
        modules: head.modules,
        frames: Vec::new(),
        stacks: Vec::new(),
        samples: Vec::new(),
        waits: Vec::new(),
        python: Vec::new(),
        counts: Vec::new(),
        neighbours: Vec::new(),
        heap: Err(cut_off()),
        resident: Err(cut_off()),
        placement: Err(cut_off()),
        loads: Err(cut_off()),
        accounts: Vec::new(),
        collecting: Vec::new(),
        fault_slices: Vec::new(),
        hardware: Err(cut_off()),
        devices: devices
            .unwrap_or_else(|| Devices { disks: Err(without_devices()), network: Err(without_devices()) }),
        counted: counted.unwrap_or_else(|| Err(if whole { not_counted() } else { cut_off() })),
        replayed: Err(not_replayed()),
        counting_samples: 0,
    };
    for batch in batches {
        recording.frames.extend(batch.frames);
        recording.stacks.extend(batch.stacks);
        recording.samples.extend(batch.samples);
        recording.waits.extend(batch.waits);
        recording.ticks.extend(batch.ticks);
        recording.python.extend(batch.python);
    }
    let Some(tail) = tail else {
        // Without a tail, older recordings have only the modules of the head.
        let modules = recording.modules.len();
        for frame in &mut recording.frames {
            frame.module = frame.module.filter(|module| (*module as usize) < modules);
        }
        recording.meta.ended = Ended::CutOff;
        let last = recording.ticks.last().map_or(0, |t| t.t_ns);
        recording.meta.window_ns = recording.samples.iter().map(|s| s.t_ns).max().unwrap_or(0).max(last);
        recording.probes.push(Probe::new(ProbeName::Tail, ProbeState::Absent(cut_off())));
        return Ok(recording);
    };
    if tail.sample_stacks.len() != recording.samples.len() || tail.wait_stacks.len() != recording.waits.len()
    {
        return Err("its tail does not match its samples".into());
    }
    for (sample, (kernel, user)) in recording.samples.iter_mut().zip(tail.sample_stacks) {
        (sample.kernel, sample.user) = (kernel, user);
    }
    for (wait, (kernel, user)) in recording.waits.iter_mut().zip(tail.wait_stacks) {
        (wait.kernel, wait.user) = (kernel, user);
    }
    recording.meta = tail.meta;
    recording.processes = tail.processes;
    recording.probes = tail.probes;
    recording.threads = tail.threads;
    recording.modules = tail.modules;
    recording.counts = tail.counts;
    recording.neighbours = tail.neighbours;
    recording.heap = tail.heap;
    recording.resident = tail.resident;
    recording.placement = tail.placement;
    recording.loads = tail.loads;
    recording.accounts = tail.accounts;
    recording.collecting = tail.collecting;
    recording.fault_slices = tail.fault_slices;
    recording.hardware = tail.hardware;
    recording.frames = tail.frames;
    recording.stacks = tail.stacks;
    Ok(recording)
}

/// After this check every index is within bounds and every number is finite, so that later code cannot fail
/// on them.
fn validate(r: &Recording) -> std::result::Result<(), String> {
    let fits = |index: Option<u32>, length: usize| index.is_none_or(|i| (i as usize) < length);
    let ok = |holds: bool, what: &str| {
        if holds { Ok(()) } else { Err(format!("its {what} are inconsistent")) }
    };
    ok(!r.processes.is_empty(), "processes")?;
    let few = |holds: bool, what: &str| match holds {
        true => Ok(()),
        false => Err(format!("it has more {what} than a recording can have")),
    };
    few(r.processes.len() <= PROCESSES_LIMIT, "processes")?;
    few(r.processes.iter().all(|p| p.cmdline.len() <= CMDLINE_WORDS), "words in a command line")?;
    few(r.modules.len() <= MODULES_LIMIT, "modules")?;
    few(r.threads.len() <= THREADS_LIMIT, "threads")?;
    few(r.samples.len() <= SAMPLES_LIMIT && r.waits.len() <= SAMPLES_LIMIT, "samples")?;
    few(r.stacks.iter().all(|s| s.frames.len() <= STACK_DEPTH), "frames in a stack")?;
    few(r.python.iter().all(|s| s.frames.len() <= PYTHON_DEPTH), "frames in a Python stack")?;
    ok(r.frames.iter().all(|f| fits(f.module, r.modules.len())), "frames")?;
    ok(r.stacks.iter().all(|s| s.frames.iter().all(|f| fits(Some(*f), r.frames.len()))), "stacks")?;
    let window = r.meta.window_ns;
    // One day: far above any window, far below an overflow of nanosecond sums.
    const DAY_NS: u64 = 86_400_000_000_000;
    ok(window <= DAY_NS && r.meta.requested_ns <= DAY_NS, "times")?;
    ok((1..=1_000_000_000).contains(&r.meta.sample_period_ns), "sampling period")?;
    ok(
        r.samples
            .iter()
            .all(|s| fits(s.kernel, r.stacks.len()) && fits(s.user, r.stacks.len()) && s.t_ns <= DAY_NS),
        "samples",
    )?;
    ok(
        r.waits.iter().all(|w| {
            fits(w.kernel, r.stacks.len())
                && fits(w.user, r.stacks.len())
                && w.t_ns <= DAY_NS
                && w.weight_ns <= DAY_NS
        }),
        "waits",
    )?;
    let depth = |stack: Option<u32>| stack.map_or(0, |s| r.stacks[s as usize].frames.len());
    let sampled = r.samples.iter().map(|s| depth(s.kernel) + depth(s.user));
    let waited = r.waits.iter().map(|w| depth(w.kernel) + depth(w.user));
    few(sampled.chain(waited).sum::<usize>() <= FRAMES_WALKED, "frames in its stacks")?;
    let loads = r.loads.iter().flatten();
    ok(loads.clone().all(|one| one.is_sound(r.frames.len())), "samples of loads")?;
    ok(r.ticks.windows(2).all(|w| w[0].t_ns <= w[1].t_ns), "series")?;
    // Counters are not limited: those of a machine grow without bound, and later code adds them with checks.
    let tick_sane =
        |t: &Tick| t.t_ns <= DAY_NS && t.cgroup.is_none_or(|c| c.quota_cpus.is_none_or(f64::is_finite));
    ok(r.ticks.iter().all(tick_sane), "series")?;
    ok(r.threads.iter().all(|t| t.seen_ns <= DAY_NS), "thread times")?;
    let sane = |i: &Interval| i.low.is_finite() && i.point.is_finite() && i.high.is_finite() && i.low >= 0.0;
    if let Ok(prices) = &r.prices {
        ok(prices.prices.iter().all(|p| sane(&p.ns) && p.ns.low <= p.ns.high), "prices")?;
    }
    if let Ok(heap) = &r.heap {
        ok(sane(&heap.live_bytes) && sane(&heap.free_bytes), "heap")?;
    }
    if let Ok(memory) = &r.resident {
        few(memory.bills.len() <= MOST_BILLS, "bills of resident memory")?;
        let sound = !memory.bills.is_empty() && memory.bills.iter().all(ResidentBill::is_sound);
        ok(sound, "bills of resident memory")?;
    }
    few(r.placement.as_ref().is_ok_and(Placement::is_bounded) || r.placement.is_err(), "nodes")?;
    few(r.accounts.len() <= PROCESSES_LIMIT, "accounts")?;
    let figures = r.accounts.iter().flat_map(|a| [&a.stopped_ns, &a.collector_cpu_ns, &a.allocated_bytes]);
    ok(figures.flatten().all(|figure| sane(&figure.value)), "accounts")?;
    ok(r.accounts.iter().all(|a| a.over_ns <= DAY_NS), "accounts")?;
    ok(r.collecting.iter().all(|span| span.from_ns <= span.to_ns && span.to_ns <= DAY_NS), "collections")?;
    few(r.fault_slices.len() <= FAULT_SLICES_LIMIT, "slices of page faults")?;
    let in_time = |slice: &FaultSlice| slice.t_ns <= DAY_NS && slice.over_ns <= DAY_NS;
    let sound = |slice: &FaultSlice| in_time(slice) && slice.owners.len() <= Owner::ALL.len();
    ok(r.fault_slices.iter().all(sound), "page faults")?;
    if let Ok(hardware) = &r.hardware {
        let counted = hardware.events.iter().flat_map(|event| &event.counted);
        few(hardware.events.len() <= HardwareEvent::ALL.len(), "hardware events")?;
        few(counted.clone().all(|c| c.slices.len() <= HARDWARE_SLICES_LIMIT), "slices of hardware events")?;
        let ran = |slice: &HardwareSlice| slice.running_ns <= slice.enabled_ns;
        ok(counted.flat_map(|c| &c.slices).all(ran), "hardware events")?;
    }
    ok(r.counted.as_ref().map_or(true, Counted::is_sound), "counted calls")?;
    ok(r.replayed.as_ref().map_or(true, Replay::is_sound), "replayed calls")?;
    if let Ok(disks) = &r.devices.disks {
        ok(disks.over_ns <= DAY_NS && disks.is_sound(), "disks")?;
    }
    if let Ok(network) = &r.devices.network {
        ok(network.over_ns <= DAY_NS && network.is_sound(), "network")?;
    }
    ok(r.counts.iter().all(|c| c.over_ns <= DAY_NS), "counts")
}

#[cfg(test)]
mod tests;
