//! The trial's file: one line of JSON for what was asked, then one a finished block, appended as it is finished. A trial
//! that was cut off at any moment can be reported and continued from it.

use super::{Block, Design, ProofItem};
use allocwall_host::file;
use allocwall_model::error::{Error, Result};
use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

pub const VERSION: u32 = 1;
/// A block holds some kilobytes; nobody's trial is larger than this.
const LARGEST: u64 = 256 << 20;
const MOST_BLOCKS: usize = 100_000;

/// What stays the same from a trial's first run to its last, kept so that it can be continued as it was begun.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Head {
    pub version: u32,
    pub tool_version: String,
    pub started_unix_ms: u64,
    pub command: Vec<String>,
    /// The options of the trial other than its command, as they were typed: a continued trial takes them from here.
    pub options: Vec<String>,
    pub design: Design,
    /// Name and requests a second of each load inside: found before the first block, the same for all of them.
    #[serde(default)]
    pub rates: Vec<(String, f64)>,
    /// By arm: what the run that is not counted showed.
    pub proof: BTreeMap<usize, Vec<ProofItem>>,
    /// Facts about the machine, a sentence each.
    pub machine: Vec<String>,
    /// None in files of earlier versions of this program.
    #[serde(default)]
    pub origin: Option<Origin>,
}

/// What every run of a trial starts from, beside its command: where one of these differs, it is another trial.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub folder: String,
    /// The file that the command's first word stands for.
    pub program: String,
    /// Variables that steer an allocator or a runtime.
    pub environment: BTreeMap<String, String>,
}

impl Origin {
    /// Why runs that start from `now` don't belong to a trial that was begun from here, as a line.
    pub fn differs(&self, now: &Origin) -> Option<String> {
        if self.folder != now.folder {
            return Some(format!(
                "it was begun in {}, and this is {}",
                self.folder, now.folder
            ));
        }
        if self.program != now.program {
            return Some(format!(
                "its command was {}, and is {} now",
                self.program, now.program
            ));
        }
        let said = |value: Option<&String>| value.map_or("not set".to_owned(), |value| format!("{value:?}"));
        let names = self.environment.keys().chain(now.environment.keys());
        names
            .map(|name| (name, self.environment.get(name), now.environment.get(name)))
            .find(|(_, then, now)| then != now)
            .map(|(name, then, now)| format!("{name} was {}, and is {} now", said(then), said(now)))
    }
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Trial(Box<Head>),
    Block(Block),
    /// How many blocks there will be, where the first of them decide that.
    Plan(Design),
}

/// A trial as its file has it.
#[derive(Clone, Debug, PartialEq)]
pub struct Journal {
    pub head: Head,
    pub blocks: Vec<Block>,
    /// How many blocks there will be was decided after the first of them: it stands.
    pub planned: bool,
}

/// Asks whether [`Writer::create`] will be able to: what goes into the file is known only after the first runs.
///
/// # Errors
/// Something is there already, or its folder takes no new file.
pub fn may_create(path: &Path) -> Result<()> {
    let free = match path.symlink_metadata() {
        Ok(_) => Err(Errno::EXIST.into()),
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        Err(_) => file::takes_new_files(file::folder_of(path)),
    };
    free.map_err(|cause| failed(path, cause))
}

/// Appends to a trial's file.
pub struct Writer {
    path: PathBuf,
    file: File,
}

impl Writer {
    /// A new file, readable by its owner alone. One that is there already is not overwritten.
    pub fn create(path: &Path, head: &Head) -> Result<Writer> {
        let file = OpenOptions::new()
            .append(true)
            .create_new(true)
            .mode(0o600)
            .open(path)
            .map_err(|cause| failed(path, cause))?;
        only_writer(path, &file)?;
        let mut writer = Writer {
            path: path.to_owned(),
            file,
        };
        writer.line(&Line::Trial(Box::new(head.clone())))?;
        Ok(writer)
    }

    /// Continues a file that `read` has read. What a cut-off write left at its end goes away.
    pub fn append_to(path: &Path) -> Result<Writer> {
        let mut file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|cause| failed(path, cause))?;
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
        Ok(Writer {
            path: path.to_owned(),
            file,
        })
    }

    pub fn block(&mut self, block: &Block) -> Result<()> {
        self.line(&Line::Block(block.clone()))
    }

    pub fn plan(&mut self, design: &Design) -> Result<()> {
        self.line(&Line::Plan(design.clone()))
    }

    fn line(&mut self, line: &Line) -> Result<()> {
        let mut text = serde_json::to_vec(line).map_err(|e| failed(&self.path, io::Error::other(e)))?;
        text.push(b'\n');
        // One write, so that a reader or a crash meets whole lines or one cut-off at the end.
        self.file
            .write_all(&text)
            .map_err(|cause| failed(&self.path, cause))
    }
}

/// Blocks of two trials in one file would follow from neither. Held until the file is closed (flock(2)); where the file system knows
/// no locks, nobody is kept out.
fn only_writer(path: &Path, file: &File) -> Result<()> {
    // A process that this one is just starting holds what is open here until its exec.
    for _ in 0..PATIENCE {
        match flock(file, FlockOperation::NonBlockingLockExclusive) {
            Err(Errno::WOULDBLOCK) => std::thread::sleep(GLANCE),
            _ => return Ok(()),
        }
    }
    Err(Error::Refused(format!(
        "{} is being written by a trial that runs",
        path.display()
    )))
}

/// How often a lock is tried, and how long between.
const PATIENCE: u32 = 25;
const GLANCE: std::time::Duration = std::time::Duration::from_millis(20);

fn failed(path: &Path, cause: io::Error) -> Error {
    Error::File {
        path: path.to_owned(),
        cause,
    }
}

/// Whether a file begins as a trial's; one that can't be read is none.
pub fn is_one(path: &Path) -> bool {
    let mut start = [0; 9];
    File::open(path)
        .and_then(|mut file| file.read_exact(&mut start))
        .is_ok()
        && start == *b"{\"trial\":"
}

/// # Errors
/// No such file, one of another kind or version, a line within it that doesn't parse. A last line that is cut off is none.
pub fn read(path: &Path) -> Result<Journal> {
    let file = File::open(path).map_err(|cause| failed(path, cause))?;
    parse(BufReader::new(file.take(LARGEST))).map_err(|detail| match detail {
        Broken::Reading(cause) => failed(path, cause),
        Broken::Content(detail) => Error::Refused(format!("{} is no usable trial: {detail}", path.display())),
    })
}

enum Broken {
    Reading(io::Error),
    Content(String),
}

fn parse(mut reader: impl BufRead) -> std::result::Result<Journal, Broken> {
    let content = |detail: &str| Broken::Content(detail.to_owned());
    let mut head: Option<Head> = None;
    let mut blocks: Vec<Block> = Vec::new();
    let mut planned = false;
    let mut line = Vec::new();
    for number in 1.. {
        line.clear();
        if reader.read_until(b'\n', &mut line).map_err(Broken::Reading)? == 0 {
            break;
        }
        let whole = line.ends_with(b"\n");
        let parsed = match serde_json::from_slice::<Line>(&line) {
            Ok(parsed) => parsed,
            Err(_) if !whole && head.is_some() => break,
            Err(_) if number == 1 => return Err(content("its first line is not a trial's")),
            Err(error) => return Err(Broken::Content(format!("line {number}: {error}"))),
        };
        match (parsed, &mut head) {
            (Line::Trial(first), None) => {
                if first.version != VERSION {
                    return Err(Broken::Content(format!(
                        "it is of version {}; this program reads {VERSION}",
                        first.version
                    )));
                }
                if first.design.arms.len() < super::BASELINES || first.design.metrics.is_empty() {
                    return Err(content("it has no arms or no metrics"));
                }
                head = Some(*first);
            }
            (Line::Trial(_), Some(_)) => {
                return Err(Broken::Content(format!("line {number}: a second trial")));
            }
            (_, None) => return Err(content("its first line is not a trial's")),
            (Line::Plan(design), Some(head)) => {
                if design.arms.len() != head.design.arms.len() {
                    return Err(Broken::Content(format!(
                        "line {number}: other arms than at the start"
                    )));
                }
                head.design = design;
                planned = true;
            }
            (Line::Block(block), Some(head)) => {
                let arms = head.design.arms.len();
                if block.number != blocks.len() || block.runs.iter().any(|run| run.arm >= arms) {
                    return Err(Broken::Content(format!(
                        "line {number}: a block that doesn't follow from those before"
                    )));
                }
                if blocks.len() >= MOST_BLOCKS {
                    return Err(Broken::Content(format!("more than {MOST_BLOCKS} blocks")));
                }
                blocks.push(block);
            }
        }
    }
    let head = head.ok_or_else(|| content("it is empty"))?;
    Ok(Journal {
        head,
        blocks,
        planned,
    })
}

#[cfg(test)]
mod tests {
    use super::super::{ArmInfo, Direction, Metric, Run, Settings, Unit};
    use super::*;
    use proptest::prelude::*;

    fn head() -> Head {
        let arm = |name: &str, baseline| ArmInfo {
            name: name.into(),
            baseline,
            predicted: BTreeMap::new(),
        };
        Head {
            version: VERSION,
            tool_version: "0".into(),
            started_unix_ms: 1,
            command: vec!["true".into()],
            options: vec![],
            design: Design {
                arms: vec![
                    arm("baseline", true),
                    arm("baseline′", true),
                    arm("jemalloc", false),
                ],
                metrics: vec![Metric {
                    key: "wall_s".into(),
                    title: "wall time".into(),
                    unit: Unit::Seconds,
                    direction: Direction::LowerIsBetter,
                    primary: true,
                }],
                settings: Settings {
                    seed: 1,
                    effect: 0.01,
                    planned: 6,
                    looks: vec![6],
                },
            },
            rates: vec![],
            proof: BTreeMap::new(),
            machine: vec![],
            origin: None,
        }
    }

    #[test]
    fn a_trial_goes_on_from_where_it_was_begun_and_from_nowhere_else() {
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
            (
                Origin {
                    folder: "/b".into(),
                    ..begun.clone()
                },
                "begun in /a, and this is /b",
            ),
            (
                Origin {
                    program: "/x".into(),
                    ..begun.clone()
                },
                "command was /bin/x, and is /x",
            ),
            (
                Origin {
                    environment: variables(&[("MALLOC_ARENA_MAX", "1"), ("GOGC", "50")]),
                    ..begun.clone()
                },
                "MALLOC_ARENA_MAX was \"2\", and is \"1\"",
            ),
            (
                Origin {
                    environment: variables(&[("MALLOC_ARENA_MAX", "2")]),
                    ..begun.clone()
                },
                "GOGC was \"50\", and is not set",
            ),
            (
                Origin {
                    environment: variables(&[("A", "1"), ("MALLOC_ARENA_MAX", "2"), ("GOGC", "50")]),
                    ..begun.clone()
                },
                "A was not set, and is \"1\"",
            ),
        ] {
            let line = begun.differs(&now).unwrap();
            assert!(line.contains(words), "{line}");
        }
    }

    #[test]
    fn a_file_that_does_not_say_where_it_was_begun_is_read() {
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
        Block {
            number,
            runs: (0..3).map(run).collect(),
        }
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
        assert!(error.to_string().contains("a trial that runs"), "{error}");
        drop(first);
        assert!(Writer::append_to(&path).is_ok());
    }

    #[test]
    fn a_file_that_is_there_is_not_overwritten_and_nobody_else_reads_it() {
        use std::os::unix::fs::PermissionsExt;
        let (_dir, path) = written(0);
        assert!(Writer::create(&path, &head()).is_err());
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
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
            // The answer is that of the attempt, and nothing was made for it.
            let said = may_create(&path).map_err(|error| error.to_string());
            assert!(said.is_err_and(|error| error.contains(words)), "{path:?}");
            assert!(Writer::create(&path, &head()).is_err(), "{path:?}");
        }
        may_create(&at("new")).unwrap();
        assert!(!at("new").exists());
        assert!(Writer::create(&at("new"), &head()).is_ok());
    }

    #[test]
    fn a_broken_line_within_is_an_error_and_names_its_place() {
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
