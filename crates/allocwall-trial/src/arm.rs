//! An arm of a trial: parses remedies as the user types them (`jemalloc+thp+prefault=256M`) and resolves them for one command.

mod facts;
mod resolve;

pub use facts::{Inventory, Program, TargetFacts};
pub use resolve::{Applied, Expectation};

use allocwall_host::topology::parse_cpu_list;
use allocwall_host::tunables::parse_size;
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::nearest::hint;
use allocwall_model::catalogue::remedies::{
    ARENA_HOOK, ARENA_HOOK_ON, Argument, Change, Form, Library, Need, PAGES, Pages, Remedy, TABLE, find,
};
use allocwall_model::catalogue::tunables;
use std::fmt;
use std::path::PathBuf;

/// Why allocwall refuses an arm: one line that also says what to do instead.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal(pub String, pub Cause);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    /// A tunable that the program's C library doesn't have, or a value that it doesn't take.
    Usage,
    /// No machine could do it: a wrong name or value, or a remedy for another kind of program.
    Asked,
    /// This machine, or the interpreter, lacks something that can be installed or switched on. Other arms can still be tried.
    Lacking,
}

impl Refusal {
    fn asked(line: impl Into<String>) -> Refusal {
        Refusal(line.into(), Cause::Asked)
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Refusal {}

fn refuse<T>(line: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal::asked(line))
}

fn lacking<T>(line: impl Into<String>) -> Result<T, Refusal> {
    Err(Refusal(line.into(), Cause::Lacking))
}

/// Remedies that are applied together. [`resolve`](Arm::resolve) checks whether they fit this machine and a command.
#[derive(Clone, Debug)]
pub struct Arm {
    /// As the user typed it.
    pub name: String,
    /// In the order in which the user named them.
    pub parts: Vec<Part>,
}

/// One remedy of an arm.
#[derive(Clone, Debug)]
pub struct Part {
    /// As the user typed it.
    pub text: String,
    pub remedy: &'static Remedy,
    pub settings: Vec<Setting>,
}

/// A [`Change`] with its values.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Setting {
    Preload {
        library: Library,
        source: Source,
    },
    Tunable {
        name: String,
        value: String,
    },
    Env {
        name: String,
        value: String,
    },
    Append {
        name: &'static str,
        separator: char,
        value: String,
    },
    Unset(String),
    CommandOption(String),
    /// Bytes.
    Prefault(u64),
    Cpus(Vec<u32>),
    Nodes(Vec<u32>),
    Pages(Pages),
    ArenaHook,
}

/// Where an allocator's library comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The system's library, else the bundled one.
    Any,
    System,
    Bundled,
    /// A version prefix: `5.3` is any 5.3.
    Version(String),
    Path(PathBuf),
}

/// Names that `--with` takes, in the order of the table.
pub fn names() -> impl Iterator<Item = &'static str> {
    TABLE.iter().filter(|r| r.start.is_some()).map(|r| r.key)
}

impl Arm {
    /// # Errors
    /// One line: an unknown name, with the nearest known names; an invalid value; or two parts that contradict each other.
    pub fn parse(text: &str) -> Result<Arm, Refusal> {
        Self::combined(&[text])
    }

    /// Combines several arms into one, as if they were joined by `+`.
    pub fn combined<T: AsRef<str>>(texts: &[T]) -> Result<Arm, Refusal> {
        let pieces: Vec<&str> = texts.iter().flat_map(|text| split(text.as_ref())).collect();
        let parts = pieces.iter().map(|piece| part(piece)).collect::<Result<Vec<Part>, Refusal>>()?;
        let arm = Arm { name: pieces.join("+"), parts };
        if arm.parts.len() > 1 && arm.parts.iter().any(|part| part.remedy.key == "none") {
            return refuse("none can't be combined: it means the command without a remedy");
        }
        contradictions(&arm.settings())?;
        arm.unfit_parts()?;
        Ok(arm)
    }

    /// All settings, each with the text of its part.
    fn settings(&self) -> Vec<(&str, Setting)> {
        let mut all = Vec::new();
        for part in &self.parts {
            all.extend(part.settings.iter().map(|setting| (part.text.as_str(), setting.clone())));
        }
        all
    }

    /// The library that this arm preloads, with its part.
    fn library(&self) -> Option<(&Part, Library)> {
        self.parts.iter().find_map(|part| {
            part.settings.iter().find_map(|setting| match setting {
                Setting::Preload { library, .. } => Some((part, *library)),
                _ => None,
            })
        })
    }

    /// Refuses parts whose needs or settings conflict with the allocator, the runtime or the C library of another part.
    fn unfit_parts(&self) -> Result<(), Refusal> {
        if let Some((swap, library)) = self.library() {
            let kind = library.kind();
            for part in &self.parts {
                let wanted = part.remedy.needs.iter().find_map(|need| need.allocator());
                let tunes_malloc = part.settings.iter().any(|setting| {
                    matches!(setting, Setting::Tunable { name, .. } if name.starts_with(tunables::PREFIX))
                });
                let wanted = wanted.or(tunes_malloc.then_some(AllocatorKind::Glibc));
                if let Some(wanted) = wanted.filter(|wanted| *wanted != kind) {
                    return refuse(format!(
                        "{} acts on {}, but {} replaces that allocator: use only one of the two",
                        part.text,
                        wanted.title(),
                        swap.text
                    ));
                }
                for setting in &part.settings {
                    if let Setting::Pages(pages) = setting {
                        pages_of(kind, *pages)?;
                    }
                }
            }
        }
        for family in [Need::runtime as fn(Need) -> Option<&'static str>, Need::libc] {
            let mut first: Option<(&Part, &str)> = None;
            for part in &self.parts {
                let Some(named) = part.remedy.needs.iter().find_map(|need| family(*need)) else {
                    continue;
                };
                match first {
                    Some((other, before)) if before != named => {
                        return refuse(format!(
                            "{} is for {before} and {} is for {named}: use only one of the two",
                            other.text, part.text
                        ));
                    }
                    _ => first = Some((part, named)),
                }
            }
        }
        Ok(())
    }
}

/// The setting that makes this allocator use such pages.
fn pages_of(kind: AllocatorKind, pages: Pages) -> Result<Change, Refusal> {
    let row = PAGES.iter().find(|row| row.0 == kind && row.1 == pages);
    row.map(|row| row.2).ok_or_else(|| {
        let kinds: Vec<&str> = PAGES.iter().filter(|row| row.1 == pages).map(|row| row.0.title()).collect();
        Refusal::asked(format!(
            "{} has no setting for {}; these allocators have one: {}",
            kind.title(),
            match pages {
                Pages::Transparent => "transparent huge pages",
                Pages::Reserved => "reserved huge pages",
            },
            kinds.join(", ")
        ))
    })
}

// ---- parsing ----

/// Splits at each `+`. Within a free text (the value of a variable, a path) it splits only before a known name.
fn split(text: &str) -> Vec<&str> {
    let mut pieces = Vec::new();
    let mut start = 0;
    for (at, _) in text.match_indices('+') {
        let piece = &text[start..at];
        let free = piece.starts_with("env:") || piece.contains("@/") || piece.contains("@.");
        if !free || starts_with_name(&text[at + 1..]) {
            pieces.push(piece);
            start = at + 1;
        }
    }
    pieces.push(&text[start..]);
    pieces
}

fn starts_with_name(rest: &str) -> bool {
    let end = rest.find(['+', '=', '@', ':']).unwrap_or(rest.len());
    let with_colon = rest[end..].starts_with(':').then(|| &rest[..=end]);
    names().any(|name| name == &rest[..end] && with_colon.is_none() || Some(name) == with_colon)
}

fn part(text: &str) -> Result<Part, Refusal> {
    let mark = text.find(['=', '@', ':']);
    let (key, argument) = match mark {
        None => (text, None),
        Some(at) if text[at..].starts_with(':') => (&text[..=at], Some(&text[at + 1..])),
        Some(at) => (&text[..at], Some(&text[at + 1..])),
    };
    let remedy = find(key).ok_or_else(|| unknown(key))?;
    let Some(start) = remedy.start else {
        return refuse(format!("{key} can't be set when a program starts: {}", remedy.shell_line()));
    };
    let by_source = mark.is_some_and(|at| text[at..].starts_with('@'));
    if by_source && start.argument != Argument::Source {
        return refuse(format!("{key} takes no @SOURCE: {}", remedy.usage()));
    }
    let source = match start.argument {
        Argument::Source => source(remedy, argument.filter(|_| by_source), argument.is_some() && !by_source)?,
        _ => Source::Any,
    };
    let value = match (start.argument, argument) {
        (Argument::None, Some(_)) => return refuse(format!("{key} takes no value")),
        (Argument::None | Argument::Source | Argument::Maybe(_), None) | (Argument::Source, Some(_)) => None,
        (Argument::Or(form, default), None) => Some(form_of(remedy, form, default)?),
        (Argument::Value(form) | Argument::Or(form, _) | Argument::Maybe(form), Some(given)) => {
            Some(form_of(remedy, form, given)?)
        }
        (Argument::Tunables, Some(given)) => return free_part(text, remedy, tunables_of(given)?),
        (Argument::Variable, Some(given)) => return free_part(text, remedy, vec![variable_of(given)?]),
        (Argument::Value(_) | Argument::Tunables | Argument::Variable, None) => {
            return refuse(format!("{key} needs a value: {}", remedy.usage()));
        }
    };
    let settings =
        start.applied.iter().filter_map(|change| setting(change, value.as_deref(), &source)).collect();
    free_part(text, remedy, settings)
}

fn free_part(text: &str, remedy: &'static Remedy, settings: Vec<Setting>) -> Result<Part, Refusal> {
    let text = text.to_owned();
    Ok(Part { text, remedy, settings })
}

fn unknown(key: &str) -> Refusal {
    if key.is_empty() {
        return Refusal::asked(
            "the name of a remedy is empty: `allocwall list` shows all remedies".to_owned(),
        );
    }
    if let Some(known) = tunables::find(key) {
        return Refusal::asked(format!(
            "no remedy {key}; to set the tunable, use glibc:{}=VALUE",
            known.name
        ));
    }
    Refusal::asked(format!("no remedy {key}{}; `allocwall list` shows all remedies", hint(key, names())))
}

fn source(remedy: &Remedy, given: Option<&str>, wrong_mark: bool) -> Result<Source, Refusal> {
    let key = remedy.key;
    if wrong_mark {
        return refuse(format!("{key} takes no value; choose a library with @SOURCE: {}", remedy.usage()));
    }
    Ok(match given {
        None => Source::Any,
        Some("system") => Source::System,
        Some("bundled") => Source::Bundled,
        Some(path) if path.starts_with(['/', '.']) => Source::Path(PathBuf::from(path)),
        Some(version) if version.starts_with(|c: char| c.is_ascii_digit()) => {
            Source::Version(version.to_owned())
        }
        Some(other) => {
            return refuse(format!(
                "{key}@{other}: unknown source; use system, bundled, a version, or a path that starts with / or ."
            ));
        }
    })
}

/// Checks a value and brings it into the form in which it is set.
fn form_of(remedy: &Remedy, form: Form, given: &str) -> Result<String, Refusal> {
    let key = remedy.key;
    let list = |given: &str| {
        let mut list = parse_cpu_list(given).filter(|list| !list.is_empty())?;
        list.sort_unstable();
        list.dedup();
        Some(list.iter().map(u32::to_string).collect::<Vec<_>>().join(","))
    };
    match form {
        Form::Count(low, high) => match given.parse::<u64>() {
            Ok(number) if (low..=high).contains(&number) => Ok(number.to_string()),
            _ => refuse(format!("{key}={given}: give a whole number from {low} to {high}")),
        },
        Form::Bytes => match parse_size(given) {
            Some(bytes) if bytes > 0 => Ok(bytes.to_string()),
            _ => refuse(format!("{key}={given}: give a size, for example 256M or 2G")),
        },
        Form::Cpus | Form::Nodes => {
            list(given).map_or_else(|| refuse(format!("{key}={given}: give a list, for example 0-3,8")), Ok)
        }
        Form::OneOf(names) if names.contains(&given) => Ok(given.to_owned()),
        Form::OneOf(names) => refuse(format!("{key}={given}: give one of {}", names.join(", "))),
    }
}

fn tunables_of(given: &str) -> Result<Vec<Setting>, Refusal> {
    given
        .split(',')
        .map(|entry| match entry.split_once('=') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() && !value.contains(':') => {
                Ok(Setting::Tunable { name: tunables::full_name(name), value: value.to_owned() })
            }
            _ => refuse(format!("glibc:{entry}: give NAME=VALUE, for example glibc:arena_max=2")),
        })
        .collect()
}

fn variable_of(given: &str) -> Result<Setting, Refusal> {
    match given.split_once('=') {
        Some((name, value)) if !name.is_empty() && !given.contains('\0') => {
            Ok(Setting::Env { name: name.to_owned(), value: value.to_owned() })
        }
        _ => refuse(format!("env:{given}: give NAME=VALUE, for example env:OMP_NUM_THREADS=1")),
    }
}

/// None if the change needs an argument and the part has none.
fn setting(change: &Change, argument: Option<&str>, source: &Source) -> Option<Setting> {
    let filled = |template: &str| match (template.contains("{}"), argument) {
        (true, None) => None,
        (true, Some(argument)) => Some(template.replace("{}", argument)),
        (false, _) => Some(template.to_owned()),
    };
    let numbers = |template: &str| filled(template).and_then(|text| parse_cpu_list(&text));
    match *change {
        Change::Preload(library) => Some(Setting::Preload { library, source: source.clone() }),
        Change::Tunable(name, value) => {
            filled(value).map(|value| Setting::Tunable { name: name.to_owned(), value })
        }
        Change::Env(name, value) => filled(value).map(|value| Setting::Env { name: name.to_owned(), value }),
        Change::EnvAppend { name, separator, value } => {
            filled(value).map(|value| Setting::Append { name, separator, value })
        }
        Change::Unset(name) => Some(Setting::Unset(name.to_owned())),
        Change::CommandOption(option) => filled(option).map(Setting::CommandOption),
        Change::Prefault(bytes) => filled(bytes).and_then(|text| text.parse().ok()).map(Setting::Prefault),
        Change::Cpus(list) => numbers(list).map(Setting::Cpus),
        Change::Nodes(list) => numbers(list).map(Setting::Nodes),
        Change::Pages(pages) => Some(Setting::Pages(pages)),
        Change::ArenaHook => Some(Setting::ArenaHook),
    }
}

// ---- contradictions ----

impl Setting {
    /// The things that this setting sets, each with its value. Two different values for one thing are a contradiction.
    fn slots(&self) -> Vec<(String, String)> {
        let one = |slot: &str, value: String| vec![(slot.to_owned(), value)];
        match self {
            Setting::Preload { library, source } => one("the allocator", format!("{library:?} {source:?}")),
            Setting::Tunable { name, value } => one(name, value.clone()),
            Setting::Env { name, value } => one(name, format!("={value}")),
            Setting::Unset(name) => one(name, String::new()),
            // jemalloc's list has entries `name:value`; the other lists have options.
            Setting::Append { name, separator: ',', value } => value
                .split(',')
                .map(|entry| {
                    let (option, value) = entry.split_once(':').unwrap_or((entry, ""));
                    (format!("{option} of {name}"), value.to_owned())
                })
                .collect(),
            Setting::Append { name, value, .. } => {
                one(&format!("{} of {name}", option(value)), value.clone())
            }
            Setting::CommandOption(value) => one(&format!("the option {}", option(value)), value.clone()),
            Setting::Prefault(bytes) => one("the size of the prefault", bytes.to_string()),
            Setting::Cpus(list) => one("the CPUs", format!("{list:?}")),
            Setting::Nodes(list) => one("the nodes", format!("{list:?}")),
            Setting::Pages(pages) => one("the heap's pages", format!("{pages:?}")),
            Setting::ArenaHook => one(ARENA_HOOK, format!("={ARENA_HOOK_ON}")),
        }
    }

    /// The list variable that this setting extends.
    fn adds_to(&self) -> Option<&str> {
        match self {
            Setting::Preload { .. } | Setting::Prefault(_) => Some("LD_PRELOAD"),
            Setting::Tunable { .. } => Some("GLIBC_TUNABLES"),
            Setting::Append { name, .. } => Some(name),
            _ => None,
        }
    }

    /// The variable that this setting replaces or unsets.
    fn replaces(&self) -> Option<&str> {
        match self {
            Setting::Env { name, .. } | Setting::Unset(name) => Some(name),
            Setting::ArenaHook => Some(ARENA_HOOK),
            _ => None,
        }
    }
}

/// The name of an option, without its value: `-Xmx2g` and `-Xmx4g` are the same option, and so are `--x=1` and `--x=2`.
fn option(text: &str) -> &str {
    let end = text.find(|c: char| c == '=' || c.is_ascii_digit());
    &text[..end.unwrap_or(text.len())]
}

fn contradictions(settings: &[(&str, Setting)]) -> Result<(), Refusal> {
    for (at, (text, setting)) in settings.iter().enumerate() {
        for (other_text, other) in &settings[at + 1..] {
            for (slot, value) in setting.slots() {
                if other.slots().iter().any(|(s, v)| *s == slot && *v != value) {
                    return refuse(if text == other_text {
                        format!("{text} sets {slot} twice, to different values")
                    } else {
                        format!("{text} and {other_text} contradict each other: both set {slot}")
                    });
                }
            }
            for (one, two) in [(setting, other), (other, setting)] {
                if one.replaces().is_some() && one.replaces() == two.adds_to() {
                    let variable = one.replaces().unwrap_or_default();
                    return refuse(format!(
                        "{text} and {other_text} contradict each other: one replaces {variable}, the other adds to it"
                    ));
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
