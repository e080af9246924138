//! A child process reads untrusted files and may crash on them: the facts of a module, names of functions,
//! targets of calls, instructions, unwinding by unwind tables, and the code maps that JIT compilers write.
//!
//! The child ([`serve`]) gets open files and plain requests, and limits its own memory and CPU time before it
//! reads anything. The parent waits for each answer up to a limit. If a child crashes or hangs, the current
//! request is lost, and another child is started for the rest, up to [`RESTARTS`] times. Each value that
//! could not be read has a typed reason, and the report goes on without it.

mod service;

use super::loads::Place;
use super::target::FileFacts;
use super::unwind::Unwound;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::confined::{Child, Limits};
use allocwall_model::recording::{Module, ModuleRole};
use allocwall_model::units::{Absence, Measured, Reason};
use serde::{Deserialize, Serialize};
use std::collections::{HashMap, HashSet};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::PathBuf;

pub use service::{Service, serve};

/// The argument after `read` on the child's command line.
pub const NAMES: &str = "names";
pub const PYTHON: &str = "python";

/// How many children are started after the first. A few malformed files in a target cost one child each; a
/// hundred cost all names.
const RESTARTS: u32 = 4;
/// Time limit of one answer. Reading a browser's symbols takes a quarter of it.
const ANSWER_NS: u64 = 1_000_000_000;
/// Time limit of all answers while the window is open: this time, and this fraction of the time since the
/// start.
const WITHIN_WINDOW_NS: u64 = 10_000_000_000;
const WITHIN_WINDOW_PART: u64 = 10;
/// Time limit of all answers after the window, and the time that each sample adds.
const AFTER_WINDOW_NS: u64 = 1_500_000_000;
const PER_SAMPLE_NS: u64 = 30_000;

/// Unwind tables 32 MiB, a file's symbols 80 MiB, functions 16 MiB: see `service`.
pub(super) const LIMITS: Limits =
    Limits { memory: 128 << 20, mapped: 64 << 20, cpu_seconds: 60, keeps_rights: false };

/// The process that reads untrusted files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Readers {
    /// Children: this program, started with `read names` or `read python`; it answers with [`serve`].
    Program(PathBuf),
    /// This process itself, without limits: for tests and for trusted files.
    Here,
}

/// A stack to unwind: its image, and the number of stack bytes after its registers.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub struct Dump {
    pub image: u32,
    pub stack_bytes: u32,
}

/// Code of one image, as [`super::target::Code`].
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Mapped {
    pub start: u64,
    pub end: u64,
    pub module: u32,
    pub bias: u64,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Ask {
    /// The file that is sent along is this module from now on.
    Open { module: u32 },
    /// Asks for the facts of the module. `path` is used only for its names.
    Examine { module: u32, path: String, by_name: ModuleRole },
    /// The code that an image has mapped. Its modules are open.
    Image { image: u32, code: Vec<Mapped> },
    /// Registers and stacks follow the request as raw memory.
    Unwind { dumps: Vec<Dump> },
    /// Asks for the names of functions in a module, by the module's own addresses.
    Names { module: u32, addresses: Vec<u64> },
    /// Asks which of the allocator's functions that fill a block with zeros the call instructions before these return
    /// addresses call.
    Zeroing { module: u32, addresses: Vec<u64> },
    /// Asks whether the instructions before these addresses load.
    Loads { module: u32, addresses: Vec<u64> },
    /// Asks for the names of generated code, in order of address. The file that is sent along was written by
    /// the JIT compiler.
    Generated { addresses: Vec<u64> },
    /// Asks what was left out because of limits.
    Missing,
}

#[derive(Debug, Serialize, Deserialize)]
pub(super) enum Answer {
    Done,
    Examined(Measured<Box<Examined>>),
    Unwound(Vec<Unwound>),
    /// With the reason why the functions of a Go program have no names.
    Names(Vec<Option<String>>, Option<Absence>),
    Zeroing(Measured<Vec<Option<String>>>),
    Loads(Measured<Vec<Option<Place>>>),
    Missing(Vec<String>),
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Examined {
    pub module: Module,
    pub facts: FileFacts,
}

impl Examined {
    /// Its size in memory.
    pub fn bytes(&self) -> usize {
        let ranges = size_of_val(&self.module.malloc_ranges[..]);
        size_of::<Examined>() + ranges + self.module.path.len() + self.facts.bytes()
    }
}

/// Names of functions, and why those of a Go program have none.
pub type Named = (Vec<Option<String>>, Option<Absence>);

/// Sends requests and waits for answers within the time limits.
pub struct FileReader {
    readers: Readers,
    state: State,
    restarts: u32,
    /// What the current child knows: its open modules, and each image with the version that was sent.
    open: HashSet<u32>,
    images: HashMap<u32, u64>,
    /// Modules that a child crashed on.
    refused: HashMap<u32, Absence>,
    /// A child crashed while it unwound stacks. Later children get no code, and unwind by frame pointers
    /// only.
    by_frame_pointer: bool,
    /// CLOCK_MONOTONIC.
    began_ns: u64,
    spent_ns: u64,
    /// CLOCK_MONOTONIC, once the window has closed.
    deadline_ns: Option<u64>,
    /// CPU time of children that have ended.
    cpu_ns: u64,
    /// What was not read, for the report.
    missing: Vec<String>,
}

enum State {
    Idle,
    Child(Child),
    Here(Box<Service>),
    Gone(Absence),
}

impl FileReader {
    pub fn new(readers: Readers) -> FileReader {
        FileReader {
            state: match readers {
                Readers::Program(_) => State::Idle,
                Readers::Here => State::Here(Box::default()),
            },
            readers,
            restarts: 0,
            open: HashSet::new(),
            images: HashMap::new(),
            refused: HashMap::new(),
            by_frame_pointer: false,
            began_ns: monotonic_ns(),
            spent_ns: 0,
            deadline_ns: None,
            cpu_ns: 0,
            missing: Vec::new(),
        }
    }

    /// The window has closed: from now on the report waits for the answers.
    pub fn window_closed(&mut self, samples: usize) {
        let time = AFTER_WINDOW_NS + samples as u64 * PER_SAMPLE_NS;
        self.deadline_ns = Some(monotonic_ns() + time);
    }

    /// CPU time of all children so far.
    pub fn cpu_ns(&self) -> u64 {
        let now = match &self.state {
            State::Child(child) => child.cpu_ns().unwrap_or(0),
            _ => 0,
        };
        self.cpu_ns + now
    }

    /// What could not be read, in sentences.
    pub fn missing(&mut self) -> Vec<String> {
        let mut missing = std::mem::take(&mut self.missing);
        // A child that never started, or has ended, has nothing to add.
        if matches!(self.state, State::Child(_) | State::Here(_))
            && let Ok(Answer::Missing(more)) = self.ask(&Ask::Missing, &[], None)
        {
            missing.extend(more);
        }
        if let State::Gone(absence) = &self.state {
            missing.push(absence.detail.clone());
        }
        missing
    }

    /// The facts of a file. `path` is used only for its name.
    pub fn examine(
        &mut self,
        module: u32,
        file: &File,
        path: &str,
        by_name: ModuleRole,
    ) -> Measured<Examined> {
        let path = path.to_owned();
        self.open(module, file)?;
        match self.ask_about(module, &Ask::Examine { module, path, by_name })? {
            Answer::Examined(examined) => examined.map(|examined| *examined),
            _ => Err(self.confused()),
        }
    }

    /// Names of functions, one per address; None if there is no name. With the reason why the functions of a Go program have none.
    pub fn names(&mut self, module: u32, file: &File, addresses: &[u64]) -> Measured<Named> {
        self.open(module, file)?;
        let addresses = addresses.to_vec();
        let count = addresses.len();
        let answer = self.ask_about(module, &Ask::Names { module, addresses })?;
        self.as_names(answer, count)
    }

    /// Names of the allocator's functions that fill a block with zeros, one per return address: the function that the call
    /// instruction before it calls, or None.
    ///
    /// # Errors
    /// The code of the module could not be read.
    pub fn zeroing(&mut self, module: u32, file: &File, addresses: &[u64]) -> Measured<Vec<Option<String>>> {
        self.open(module, file)?;
        let ask = Ask::Zeroing { module, addresses: addresses.to_vec() };
        match self.ask_about(module, &ask)? {
            Answer::Zeroing(Ok(names)) if names.len() != addresses.len() => Err(self.confused()),
            Answer::Zeroing(names) => names,
            _ => Err(self.confused()),
        }
    }

    /// The places of these addresses in the code of a module; None for one whose neighbours can't be decoded.
    ///
    /// # Errors
    /// The code of the module could not be read.
    pub fn loads(&mut self, module: u32, file: &File, addresses: &[u64]) -> Measured<Vec<Option<Place>>> {
        self.open(module, file)?;
        match self.ask_about(module, &Ask::Loads { module, addresses: addresses.to_vec() })? {
            Answer::Loads(Ok(places)) => {
                let sound = places.len() == addresses.len() && places.iter().flatten().all(Place::is_sound);
                if sound { Ok(places) } else { Err(self.confused()) }
            }
            Answer::Loads(Err(why)) => Err(why),
            _ => Err(self.confused()),
        }
    }

    /// Names of generated code, from the file that its compiler wrote. Addresses are in order.
    pub fn generated(&mut self, map: &File, addresses: &[u64]) -> Measured<Vec<Option<String>>> {
        let ask = Ask::Generated { addresses: addresses.to_vec() };
        let answer = self.ask(&ask, &[], Some(map))?;
        Ok(self.as_names(answer, addresses.len())?.0)
    }

    fn as_names(&mut self, answer: Answer, count: usize) -> Measured<Named> {
        match answer {
            Answer::Names(names, unread) if names.len() == count => Ok((names, unread)),
            _ => Err(self.confused()),
        }
    }

    /// Whether the current child has an image in this version.
    pub fn knows_image(&self, image: u32, version: u64) -> bool {
        self.images.get(&image) == Some(&version)
    }

    /// Sends the code that an image has mapped; `files` are those of its modules. A module that can't be read
    /// is unwound by frame pointer.
    pub fn image<'f>(
        &mut self,
        image: u32,
        version: u64,
        code: Vec<Mapped>,
        files: impl IntoIterator<Item = (u32, &'f File)>,
    ) -> Measured<()> {
        let code = match self.by_frame_pointer {
            true => Vec::new(),
            false => {
                for (module, file) in files {
                    // The child was lost, and with it all that it knew.
                    if self.open(module, file).is_err() && !self.refused.contains_key(&module) {
                        return Err(self.confused());
                    }
                }
                code
            }
        };
        self.ask_to_unwind(&Ask::Image { image, code }, &[])?;
        self.images.insert(image, version);
        Ok(())
    }

    fn ask_to_unwind(&mut self, ask: &Ask, raw: &[u8]) -> Measured<Answer> {
        let restarts = self.restarts;
        self.ask(ask, raw, None).inspect_err(|_| {
            if self.restarts > restarts && !self.by_frame_pointer {
                self.by_frame_pointer = true;
                self.missing.push("later stacks were unwound by frame pointers only".into());
            }
        })
    }

    /// Unwinds stacks; `raw` holds the registers and stack bytes of each, one after the other.
    pub fn unwind(&mut self, dumps: Vec<Dump>, raw: &[u8]) -> Measured<Vec<Unwound>> {
        let count = dumps.len();
        let sound =
            |unwound: &[Unwound]| unwound.len() == count && unwound.iter().all(Unwound::is_within_limits);
        match self.ask_to_unwind(&Ask::Unwind { dumps }, raw)? {
            Answer::Unwound(unwound) if sound(&unwound) => Ok(unwound),
            _ => Err(self.confused()),
        }
    }

    fn open(&mut self, module: u32, file: &File) -> Measured<()> {
        if let Some(refused) = self.refused.get(&module) {
            return Err(refused.clone());
        }
        if self.open.contains(&module) {
            return Ok(());
        }
        self.ask(&Ask::Open { module }, &[], Some(file))?;
        self.open.insert(module);
        Ok(())
    }

    /// If a child crashes on a request about a module, that module is not requested again.
    fn ask_about(&mut self, module: u32, ask: &Ask) -> Measured<Answer> {
        self.ask(ask, &[], None).inspect_err(|absence| {
            self.refused.insert(module, absence.clone());
        })
    }

    fn ask(&mut self, ask: &Ask, raw: &[u8], file: Option<&File>) -> Measured<Answer> {
        self.ready()?;
        let within_window = self.left_within_window();
        let child = match &mut self.state {
            State::Child(child) => child,
            State::Here(service) => {
                let file = file.and_then(|file| file.try_clone().ok());
                return Ok(service.answer(ask, raw, file));
            }
            State::Idle | State::Gone(_) => return Err(self.confused()),
        };
        let began = monotonic_ns();
        let limit = match self.deadline_ns {
            Some(deadline) => deadline.min(began + ANSWER_NS),
            None => began + ANSWER_NS.min(within_window),
        };
        let question = postcard::to_stdvec(ask).unwrap_or_default();
        let outcome = child
            .send(&[&question, raw], file.map(|file| file.as_fd()), limit)
            .and_then(|()| child.receive(limit));
        self.spent_ns += monotonic_ns() - began;
        let answer = outcome.and_then(|bytes| {
            let (answer, rest) =
                postcard::take_from_bytes(&bytes).map_err(|_| std::io::ErrorKind::InvalidData)?;
            match rest {
                [] => Ok(answer),
                _ => Err(std::io::ErrorKind::InvalidData.into()),
            }
        });
        answer.map_err(|_| self.lost())
    }

    /// Makes sure that there is a child, and starts one if needed.
    fn ready(&mut self) -> Measured<()> {
        match (&self.state, &self.readers) {
            (State::Child(_) | State::Here(_), _) => Ok(()),
            (State::Gone(absence), _) => Err(absence.clone()),
            (State::Idle, Readers::Program(program)) => match Child::start(program, &["read", NAMES]) {
                Ok(child) => {
                    self.state = State::Child(child);
                    Ok(())
                }
                Err(error) => {
                    let absence = Absence::new(
                        Reason::NotSupported,
                        format!("the process that reads names could not be started: {error}"),
                    );
                    self.state = State::Gone(absence.clone());
                    Err(absence)
                }
            },
            (State::Idle, Readers::Here) => Err(self.confused()),
        }
    }

    /// The child crashed, hangs, or sends invalid answers.
    fn lost(&mut self) -> Absence {
        let State::Child(child) = std::mem::replace(&mut self.state, State::Idle) else {
            return self.confused();
        };
        self.cpu_ns += child.cpu_ns().unwrap_or(0);
        self.open.clear();
        self.images.clear();
        let out_of_time = self.deadline_ns.is_some_and(|deadline| monotonic_ns() >= deadline)
            || self.deadline_ns.is_none() && self.left_within_window() == 0;
        let absence = Absence::new(
            Reason::TooCostly,
            format!("the process that reads the target's files failed: {}", child.end()),
        );
        self.restarts += 1;
        if self.restarts > RESTARTS || out_of_time {
            self.state = State::Gone(absence.clone());
        } else {
            self.missing.push(absence.detail.clone());
        }
        absence
    }

    fn left_within_window(&self) -> u64 {
        let passed = monotonic_ns() - self.began_ns;
        (WITHIN_WINDOW_NS + passed / WITHIN_WINDOW_PART).saturating_sub(self.spent_ns)
    }

    fn confused(&self) -> Absence {
        Absence::new(
            Reason::Unparsable,
            "the process that reads the target's files returned an unexpected answer",
        )
    }
}
