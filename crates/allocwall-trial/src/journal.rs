//! The journal of a trial: one line of JSON for the design, then one line for each finished block, appended when it is finished. A
//! trial that was interrupted at any time can be reported and continued from its journal.

use super::plan::{MOST_BLOCKS, MOST_LOOKS};
use super::{BASELINES, Block, Design, ProofItem, Settings};
use allocwall_host::file;
use allocwall_model::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const VERSION: u32 = 1;
/// Size limit of a journal. A block takes some kilobytes.
const LARGEST: u64 = 256 << 20;
/// The first line has values of any shape, the options. In memory they take many times the room of their text.
const LONGEST_FIRST_LINE: usize = 1 << 20;

/// Everything that stays the same from a trial's first run to its last. It is saved so that the trial can be continued unchanged.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub version: u32,
    pub tool_version: String,
    pub started_unix_ms: u64,
    pub command: Vec<String>,
    /// The options of `allocwall trial`, which checks them when it continues the trial. Null in files of other commands.
    #[serde(default)]
    pub options: Value,
    pub design: Design,
    /// Name and requests per second of each built-in load. They are found before the first block and are the same for all blocks.
    #[serde(default)]
    pub rates: Vec<(String, f64)>,
    /// By arm: the proof from the run that is not counted.
    pub proof: BTreeMap<usize, Vec<ProofItem>>,
    /// Facts about the machine, one sentence each.
    pub machine: Vec<String>,
    /// None in files of earlier versions of allocwall.
    #[serde(default)]
    pub origin: Option<Origin>,
}

/// The surroundings from which every run of a trial starts. If one of them differs, the trial can't be continued.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub folder: String,
    /// The file of the command's program.
    pub program: String,
    /// Variables that configure an allocator or a runtime.
    pub environment: BTreeMap<String, String>,
}

impl Origin {
    /// Why runs that start from `now` don't belong to a trial that was started from `self`, in one line. None if they belong to it.
    pub fn differs(&self, now: &Origin) -> Option<String> {
        if self.folder != now.folder {
            return Some(format!(
                "it was started in {}, but the current folder is {}",
                self.folder, now.folder
            ));
        }
        if self.program != now.program {
            return Some(format!("its program was {}, but is now {}", self.program, now.program));
        }
        let said = |value: Option<&String>| value.map_or("not set".to_owned(), |value| format!("{value:?}"));
        let names = self.environment.keys().chain(now.environment.keys());
        names
            .map(|name| (name, self.environment.get(name), now.environment.get(name)))
            .find(|(_, then, now)| then != now)
            .map(|(name, then, now)| format!("{name} was {}, but is now {}", said(then), said(now)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum FirstLine {
    Trial(Head),
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum LaterLine {
    Block(Block),
    /// The design with the number of blocks, if the number was planned from the first blocks.
    Plan(Design),
}

/// A trial, read from its journal.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    pub head: Head,
    pub blocks: Vec<Block>,
    /// The number of blocks was planned after the first blocks, and is now fixed.
    pub planned: bool,
}

/// Checks whether [`Writer::create`] can create the file. The check is made early, because the contents are known only after the
/// first runs.
///
/// # Errors
/// The path exists already, or no file can be created in its folder.
pub fn may_create(path: &Path) -> Result<()> {
    let free = match path.symlink_metadata() {
        Ok(_) => Err(Errno::EXIST.into()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) => file::takes_new_files(file::folder_of(path)),
    };
    free.map_err(|cause| failed(path, cause))
}

/// Appends to a journal.
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// Creates a new file that only its owner can read. An existing file is not overwritten.
    pub fn create(path: &Path, head: &Head) -> Result<Writer> {
        let first = text_of(path, &FirstLine::Trial(head.clone()))?;
        if first.len() > LONGEST_FIRST_LINE {
            return Err(Error::Refused(format!(
                "the trial can't be saved: command, options and arms take {} bytes, and at most {LONGEST_FIRST_LINE} are allowed",
                first.len()
            )));
        }
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|cause| failed(path, cause))?;
        only_writer(path, &file)?;
        let mut writer = Writer { path: path.to_owned(), file };
        writer.append(&first)?;
        Ok(writer)
    }

    /// Continues a file that `read` has read. Removes an incomplete last line.
    pub fn append_to(path: &Path) -> Result<Writer> {
        let mut file =
            OpenOptions::new().read(true).write(true).open(path).map_err(|cause| failed(path, cause))?;
        only_writer(path, &file)?;
        let mut text = Vec::new();
        let whole = (&file)
            .take(LARGEST)
            .read_to_end(&mut text)
            .map(|_| text.iter().rposition(|b| *b == b'\n').map_or(0, |end| end + 1));
        whole
            .and_then(|length| {
                file.set_len(length as u64)?;
                file.seek(SeekFrom::End(0))
            })
            .map_err(|cause| failed(path, cause))?;
        Ok(Writer { path: path.to_owned(), file })
    }

    pub fn block(&mut self, block: &Block) -> Result<()> {
        self.line(&LaterLine::Block(block.clone()))
    }

    pub fn plan(&mut self, design: &Design) -> Result<()> {
        self.line(&LaterLine::Plan(design.clone()))
    }

    fn line(&mut self, line: &LaterLine) -> Result<()> {
        let text = text_of(&self.path, line)?;
        self.append(&text)
    }

    /// One write, so that only the last line can be incomplete, for a reader or after a crash.
    fn append(&mut self, text: &[u8]) -> Result<()> {
        self.file.write_all(text).map_err(|cause| failed(&self.path, cause))
    }
}

fn text_of(path: &Path, line: &impl Serialize) -> Result<Vec<u8>> {
    let mut text = serde_json::to_vec(line).map_err(|error| failed(path, io::Error::other(error)))?;
    text.push(b'\n');
    Ok(text)
}

/// Locks the file, so that two trials don't write blocks to one file. The lock lasts until the file is closed (flock(2)). On a file
/// system without locks there is no protection.
fn only_writer(path: &Path, file: &File) -> Result<()> {
    // A child process that is just being started holds the open file until its exec, so try several times.
    for _ in 0..PATIENCE {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(GLANCE),
            _ => return Ok(()),
        }
    }
    Err(Error::Refused(format!(
        "{} is in use by another trial that is running: wait until it ends",
        path.display()
    )))
}

/// Number of attempts to lock, and the pause between two of them.
const PATIENCE: u32 = 25;
const GLANCE: std::time::Duration = std::time::Duration::from_millis(20);

fn failed(path: &Path, cause: io::Error) -> Error {
    Error::File { path: path.to_owned(), cause }
}

/// Whether a file starts like a journal. False if it can't be read.
pub fn is_one(path: &Path) -> bool {
    let mut start = [0; 9];
    File::open(path).and_then(|mut file| file.read_exact(&mut start)).is_ok() && start == *b"{\"trial\":"
}

/// # Errors
/// The file does not exist, is not a journal, has another version, or has an invalid line. An incomplete last line is not an error.
pub fn read(path: &Path) -> Result<Journal> {
    let file = File::open(path).map_err(|cause| failed(path, cause))?;
    parse(BufReader::new(file.take(LARGEST))).map_err(|detail| match detail {
        Broken::Reading(cause) => failed(path, cause),
        Broken::Content(detail) => {
            Error::Refused(format!("{} is not a valid journal of a trial: {detail}", path.display()))
        }
    })
}

enum Broken {
    Reading(io::Error),
    Content(String),
}

fn parse(mut reader: impl BufRead) -> std::result::Result<Journal, Broken> {
    let mut line = Vec::new();
    let mut first = reader.by_ref().take(LONGEST_FIRST_LINE as u64 + 1);
    first.read_until(b'\n', &mut line).map_err(Broken::Reading)?;
    let wrong = |detail: &str| Err(Broken::Content(detail.to_owned()));
    if line.is_empty() {
        return wrong("it is empty");
    }
    if line.len() > LONGEST_FIRST_LINE {
        return wrong(&format!("its first line is longer than {} MiB", LONGEST_FIRST_LINE >> 20));
    }
    let Ok(FirstLine::Trial(mut head)) = serde_json::from_slice::<FirstLine>(&line) else {
        return wrong("its first line is not the start of a journal");
    };
    if head.version != VERSION {
        return wrong(&format!(
            "it has version {}, but this allocwall reads version {VERSION}",
            head.version
        ));
    }
    check(&head.design).map_err(Broken::Content)?;
    let mut blocks: Vec<Block> = Vec::new();
    let mut planned = false;
    for number in 2.. {
        line.clear();
        reader.read_until(b'\n', &mut line).map_err(Broken::Reading)?;
        // The end of the file, or an incomplete line, which the next writer removes.
        if !line.ends_with(b"\n") {
            break;
        }
        let invalid = |detail: String| Broken::Content(format!("line {number}: {detail}"));
        match serde_json::from_slice::<LaterLine>(&line).map_err(|error| invalid(error.to_string()))? {
            LaterLine::Plan(design) => {
                check(&design).map_err(invalid)?;
                if design.arms.len() != head.design.arms.len() {
                    return Err(invalid("the arms differ from those in the first line".to_owned()));
                }
                head.design = design;
                planned = true;
            }
            LaterLine::Block(block) => {
                let arms = head.design.arms.len();
                if block.number != blocks.len() || block.runs.iter().any(|run| run.arm >= arms) {
                    return Err(invalid("the block does not continue the blocks before it".to_owned()));
                }
                if blocks.len() >= MOST_BLOCKS {
                    return Err(invalid(format!("a trial has at most {MOST_BLOCKS} blocks")));
                }
                blocks.push(block);
            }
        }
    }
    Ok(Journal { head, blocks, planned })
}

/// # Errors
/// Why no trial has this design.
fn check(design: &Design) -> std::result::Result<(), String> {
    if design.arms.len() < BASELINES || design.metrics.is_empty() {
        return Err("it has no arms or no metrics".to_owned());
    }
    let Settings { planned, looks, .. } = &design.settings;
    if *planned > MOST_BLOCKS {
        return Err(format!("it plans {planned} blocks, but a trial has at most {MOST_BLOCKS} blocks"));
    }
    // Each look compares all arms again.
    if looks.len() > MOST_LOOKS {
        return Err(format!("it has {} looks, but a trial has at most {MOST_LOOKS}", looks.len()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::{ArmInfo, Direction, Metric, Run, Unit};
    use super::*;
    use proptest::prelude::*;

    fn head() -> Head {
        let arm = |name: &str, baseline| ArmInfo { name: name.into(), baseline, predicted: BTreeMap::new() };
        Head {
            version: VERSION,
            tool_version: "0".into(),
            started_unix_ms: 1,
            command: vec!["true".into()],
            options: serde_json::json!({ "with": ["jemalloc"], "blocks": 6 }),
            design: Design {
                left_out: vec![],
                arms: vec![arm("baseline", true), arm("baseline′", true), arm("jemalloc", false)],
                metrics: vec![Metric {
                    key: "wall_s".into(),
                    title: "wall time".into(),
                    unit: Unit::Seconds,
                    direction: Direction::LowerIsBetter,
                    primary: true,
                }],
                settings: Settings { seed: 1, effect: 0.01, planned: 6, looks: vec![6] },
            },
            rates: vec![],
            proof: BTreeMap::new(),
            machine: vec![],
            origin: None,
        }
    }

    #[test]
    fn a_trial_continues_only_from_the_same_surroundings() {
        let variables = |pairs: &[(&str, &str)]| {
            let pair = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
            pairs.iter().map(pair).collect()
        };
        let begun = Origin {
            folder: "/a".into(),
            program: "/bin/x".into(),
            environment: variables(&[("MALLOC_ARENA_MAX", "2"), ("GOGC", "50")]),
        };
        assert_eq!(begun.differs(&begun.clone()), None);
        for (now, words) in [
            (Origin { folder: "/b".into(), ..begun.clone() }, "started in /a, but the current folder is /b"),
            (Origin { program: "/x".into(), ..begun.clone() }, "program was /bin/x, but is now /x"),
            (
                Origin {
                    environment: variables(&[("MALLOC_ARENA_MAX", "1"), ("GOGC", "50")]),
                    ..begun.clone()
                },
                "MALLOC_ARENA_MAX was \"2\", but is now \"1\"",
            ),
            (
                Origin { environment: variables(&[("MALLOC_ARENA_MAX", "2")]), ..begun.clone() },
                "GOGC was \"50\", but is now not set",
            ),
            (
                Origin {
                    environment: variables(&[("A", "1"), ("MALLOC_ARENA_MAX", "2"), ("GOGC", "50")]),
                    ..begun.clone()
                },
                "A was not set, but is now \"1\"",
            ),
        ] {
            let line = begun.differs(&now).unwrap();
            assert!(line.contains(words), "{line}");
        }
    }

    #[test]
    fn a_file_without_an_origin_is_read() {
        let (_dir, path) = written(1);
        let text = std::fs::read_to_string(&path).unwrap();
        let older = text.replacen(",\"origin\":null", "", 1);
        assert_ne!(older, text);
        std::fs::write(&path, older).unwrap();
        assert_eq!(read(&path).unwrap().head, head());
    }

    fn block(number: usize) -> Block {
        let run = |arm| Run {
            block: number,
            place: arm,
            arm,
            started_unix_ms: 5,
            metrics: BTreeMap::from([("wall_s".to_owned(), Ok(1.5))]),
            failure: None,
            proof: vec![],
        };
        Block { number, runs: (0..3).map(run).collect() }
    }

    fn written(blocks: usize) -> (tempfile::TempDir, PathBuf) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("t.trial");
        let mut writer = Writer::create(&path, &head()).unwrap();
        for number in 0..blocks {
            writer.block(&block(number)).unwrap();
        }
        (dir, path)
    }

    #[test]
    fn what_is_written_is_read_and_continued_after_a_cut() {
        let (_dir, path) = written(2);
        let whole = read(&path).unwrap();
        assert!(is_one(&path) && !is_one(Path::new("/proc/self/exe")) && !is_one(Path::new("/nonexistent")));
        assert_eq!((whole.head, whole.blocks), (head(), vec![block(0), block(1)]));
        assert!(!whole.planned);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 10]).unwrap();
        assert_eq!(read(&path).unwrap().blocks, [block(0)]);
        let mut writer = Writer::append_to(&path).unwrap();
        writer.block(&block(1)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
        writer.plan(&head().design).unwrap();
        assert!(read(&path).unwrap().planned);
    }

    #[test]
    fn one_trial_writes_at_a_time() {
        let (_dir, path) = written(1);
        let first = Writer::append_to(&path).unwrap();
        let error = Writer::append_to(&path).err().unwrap();
        assert!(matches!(error, Error::Refused(_)), "{error}");
        drop(first);
        assert!(Writer::append_to(&path).is_ok());
    }

    #[test]
    fn an_existing_file_is_not_overwritten_and_only_its_owner_can_read_it() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, path) = written(0);
        assert!(Writer::create(&path, &head()).is_err());
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
    }

    #[test]
    fn whether_a_file_can_be_made_is_known_before() {
        let (dir, path) = written(0);
        let at = |name: &str| dir.path().join(name);
        std::os::unix::fs::symlink(at("nothing"), at("link")).unwrap();
        for (path, words) in [
            (path.clone(), "exists"),
            (at("link"), "exists"),
            (dir.path().to_owned(), "exists"),
            (path.join("x"), "Not a directory"),
            (at("missing/x"), "No such file"),
        ] {
            // The check and the attempt agree.
            let said = may_create(&path).map_err(|error| error.to_string());
            assert!(said.is_err_and(|error| error.contains(words)), "{path:?}");
            assert!(Writer::create(&path, &head()).is_err(), "{path:?}");
        }
        may_create(&at("new")).unwrap();
        assert!(!at("new").exists());
        assert!(Writer::create(&at("new"), &head()).is_ok());
    }

    #[test]
    fn an_invalid_line_is_an_error_with_its_number() {
        let (_dir, path) = written(2);
        let text = std::fs::read_to_string(&path).unwrap();
        let refused = |text: String| {
            std::fs::write(&path, text).unwrap();
            read(&path).unwrap_err().to_string()
        };
        assert!(refused(text.replacen("\"block\"", "\"blok\"", 1)).contains("line 2"));
        assert!(refused(String::new()).contains("empty"));
        assert!(refused("hello\n".into()).contains("first line"));
        assert!(refused(text.replacen("\"version\":1", "\"version\":9", 1)).contains("version 9"));
        assert!(refused(text.replacen("\"number\":1", "\"number\":7", 1)).contains("line 3"));
        assert!(refused(text.replacen("\"arm\":2", "\"arm\":99", 1)).contains("line 2"));
        let head = text.split_inclusive('\n').next().unwrap();
        assert!(refused(format!("{head}{head}")).contains("line 2"));
    }

    #[test]
    fn more_blocks_than_a_trial_can_have_are_refused() {
        let (_dir, path) = written(MOST_BLOCKS);
        assert_eq!(read(&path).unwrap().blocks.len(), MOST_BLOCKS);
        let refused = || read(&path).unwrap_err().to_string();
        Writer::append_to(&path).unwrap().block(&block(MOST_BLOCKS)).unwrap();
        assert!(refused().contains("line 502") && refused().contains("500 blocks"), "{}", refused());
        // The same for planned blocks, in the first line and in a later one.
        let (_dir, path) = written(1);
        let refused = || read(&path).unwrap_err().to_string();
        let text = std::fs::read_to_string(&path).unwrap();
        let hostile = text.replacen("\"planned\":6", "\"planned\":1000000000000000", 1);
        assert_ne!(hostile, text);
        std::fs::write(&path, hostile).unwrap();
        assert!(refused().contains("1000000000000000"), "{}", refused());
        std::fs::write(&path, &text).unwrap();
        let mut design = head().design;
        design.settings.planned = MOST_BLOCKS;
        Writer::append_to(&path).unwrap().plan(&design).unwrap();
        assert_eq!(read(&path).unwrap().head.design, design);
        design.settings.planned += 1;
        Writer::append_to(&path).unwrap().plan(&design).unwrap();
        assert!(refused().contains("line 4") && refused().contains("501 blocks"), "{}", refused());
    }

    #[test]
    fn more_looks_than_a_plan_has_are_refused() {
        let (_dir, path) = written(1);
        let text = std::fs::read_to_string(&path).unwrap();
        let with = |count: usize| {
            let looks = format!("\"looks\":[{}]", vec!["6"; count].join(","));
            std::fs::write(&path, text.replacen("\"looks\":[6]", &looks, 1)).unwrap();
            read(&path)
        };
        assert_eq!(with(MOST_LOOKS).unwrap().head.design.settings.looks, [6; MOST_LOOKS]);
        let error = with(MOST_LOOKS + 1).unwrap_err().to_string();
        assert!(error.contains(&format!("it has {} looks", MOST_LOOKS + 1)), "{error}");
    }

    #[test]
    fn a_first_line_has_a_largest_length() {
        let (dir, path) = written(1);
        let text = std::fs::read_to_string(&path).unwrap();
        let first = text.split_inclusive('\n').next().unwrap();
        let with = |added: usize| {
            let version = format!("\"tool_version\":\"{}\"", "0".repeat(1 + added));
            std::fs::write(&path, text.replacen("\"tool_version\":\"0\"", &version, 1)).unwrap();
            read(&path)
        };
        let room = LONGEST_FIRST_LINE - first.len();
        assert_eq!(with(room).unwrap().blocks.len(), 1);
        for added in [room + 1, 10 * LONGEST_FIRST_LINE] {
            let error = with(added).unwrap_err().to_string();
            assert!(error.contains("first line") && error.contains("1 MiB"), "{error}");
        }
        // A trial that could not be read is not written.
        let new = dir.path().join("new");
        let head = Head { command: vec!["x".repeat(LONGEST_FIRST_LINE)], ..head() };
        let error = Writer::create(&new, &head).err().unwrap();
        assert!(matches!(error, Error::Refused(_)) && !new.exists(), "{error}");
    }

    #[test]
    fn a_last_line_without_its_end_is_removed_even_if_it_could_be_read() {
        let (_dir, path) = written(2);
        let bytes = std::fs::read(&path).unwrap();
        std::fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        assert_eq!(read(&path).unwrap().blocks, [block(0)]);
        Writer::append_to(&path).unwrap().block(&block(1)).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), bytes);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..400), cut in 0usize..2000) {
            let _ = parse(&bytes[..]);
            let (_dir, path) = written(1);
            let mut text = std::fs::read(&path).unwrap();
            let at = cut % text.len();
            text.splice(at..at, bytes);
            let _ = parse(&text[..]);
        }
    }
}
