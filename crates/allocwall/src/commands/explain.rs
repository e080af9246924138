//! `allocwall explain NAME`: explains the names that a report prints: a remedy, an allocator, a tunable, a wall or a rung, a line of the
//! bill, an experiment, a figure of a trial or of a series, or a term.

mod glossary;

use crate::commands::shared::experiments::{self, Known};
use crate::commands::shared::usage::usage;
use crate::commands::shared::{arms, plain};
use crate::printer::Printer;
use allocwall_diagnose::{diff, series};
use allocwall_lab::workloads::{SUBJECTS, Subject, line_key};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::modules::AllocatorKind;
use allocwall_model::catalogue::nearest::{self, hint};
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::catalogue::remedies::{
    ARENA_HOOK, ARENA_HOOK_ON, Change, Effect, Kind, Library, Need, Proof, Remedy, TABLE,
};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::tunables::{self, ARENAS_PER_CPU, MallocTunable, PREFIX, TUNABLES};
use allocwall_model::catalogue::walls::{Wall, rung_title};
use allocwall_report::escape::terminal;
use allocwall_report::layout::shell_lines;
use allocwall_trial::batch;
use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// A name from `allocwall list` or from a report, in any case: jemalloc, first touch, page release, unresolved
    #[arg(value_name = "NAME", required = true, num_args = 1..)]
    name: Vec<String>,

    /// One JSON object: version, pages (name, kind, title, sections)
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let name = args.name.join(" ");
    let pages = pages(&name, printer);
    if pages.is_empty() {
        let near = hint(&name, names());
        return Err(usage(format!("unknown name {name}{near}; `allocwall list` shows names")));
    }
    printer.data(&if args.json {
        as_json(&pages)
    } else {
        let texts: Vec<String> = pages.iter().map(|page| page.text(printer.style().width)).collect();
        texts.join("\n")
    })?;
    Ok(ExitCode::SUCCESS)
}

/// What is known of a name, for other verbs.
pub struct About {
    /// Its first sentence.
    pub gist: String,
    /// As this verb prints it.
    pub text: String,
}

pub fn about(name: &str, width: usize, printer: &Printer) -> Option<About> {
    let pages = pages(name, printer);
    let texts: Vec<String> = pages.iter().map(|page| page.text(width)).collect();
    let page = pages.first()?;
    let what = page.sections.iter().find(|(key, _)| *key == "about").map_or(&page.title, |(_, text)| text);
    let gist = what.split_inclusive(". ").next().unwrap_or_default().trim_end().to_owned();
    Some(About { gist, text: texts.join("\n") })
}

/// All names that can be explained, those to type first.
fn names() -> impl Iterator<Item = &'static str> {
    TABLE
        .iter()
        .map(|remedy| remedy.key)
        .chain(TUNABLES.iter().map(|tunable| tunable.name))
        .chain(Wall::ALL.iter().map(|wall| wall.key()))
        .chain(SUBJECTS.iter().map(|subject| subject.name))
        .chain(experiments::all().map(|experiment| experiment.name))
        .chain(Wall::ALL.iter().map(|wall| wall.title()))
        .chain(LINES.iter().map(|line| line.title()))
        .chain(WaitClass::ALL.iter().map(|wait| wait.short_title()))
        .chain(Owner::ALL.iter().map(|owner| owner.title()))
        .chain(glossary::terms().map(|term| term.names))
}

const LINES: &[CostClass] = &CostClass::ALL;

struct Page {
    name: String,
    kind: &'static str,
    title: String,
    /// Key in the JSON format, and text.
    sections: Vec<(&'static str, String)>,
}

/// One name may have several pages: `retention` is a wall and an experiment, and an arm has a page for each of its remedies.
fn pages(name: &str, printer: &Printer) -> Vec<Page> {
    let found = pages_of(name, printer);
    if found.is_empty() && name.contains('+') {
        return name.split('+').flat_map(|part| pages_of(part, printer)).collect();
    }
    found
}

fn pages_of(name: &str, printer: &Printer) -> Vec<Page> {
    let plain_name = nearest::plain(name);
    if plain_name.is_empty() {
        return vec![];
    }
    let same = |known: &str| nearest::plain(known) == plain_name;
    let tunable = name.split('=').next().unwrap_or(name).to_lowercase().replace([' ', '-'], "_");
    let known = tunables::find(tunable.strip_prefix("glibc:").unwrap_or(&tunable));
    // The part after the remedy's name is its value.
    let key = name.split(['=', '@']).next().unwrap_or(name);
    let remedies = TABLE.iter().filter(|remedy| {
        let of_variable = remedy.key == "env:" && name.starts_with("env:");
        nearest::plain(remedy.key) == nearest::plain(key) || same(remedy.title) || of_variable
    });
    let walls = Wall::ALL.into_iter().filter(|wall| same(wall.key()) || same(wall.title()));
    let subjects = SUBJECTS.iter().filter(|subject| same(subject.name));
    let benches = experiments::all().filter(|experiment| same(experiment.name));
    let mut pages: Vec<Page> = remedies
        .map(|remedy| remedy_page(remedy, printer))
        .chain(known.map(tunable_page))
        .chain(walls.map(wall_page))
        .chain(subjects.map(subject_page))
        .chain(benches.map(|experiment| bench_page(&experiment)))
        .collect();
    if pages.is_empty() {
        pages.extend(glossary::find(name).into_iter().map(term_page));
        pages.extend(wall_of_line(same).map(wall_page));
    }
    if pages.is_empty() {
        pages.extend(rungs().into_iter().filter(|rung| same(rung_title(*rung))).map(rung_page));
        pages.extend(figure_pages(same));
    }
    pages
}

/// The first wall that a line of the bill belongs to. `same`: whether this is a name of the line.
fn wall_of_line(same: impl Fn(&str) -> bool) -> Option<Wall> {
    let of_wait = |wait: WaitClass| match wait {
        // The kernel counts them apart from the waits, so no wall lists them.
        WaitClass::RunQueue => Some(Wall::RunQueue),
        WaitClass::Throttled => Some(Wall::CgroupThrottling),
        WaitClass::Stolen => Some(Wall::Steal),
        WaitClass::Idle => Some(Wall::Waiting),
        _ => Wall::ALL.into_iter().find(|wall| wall.waits().contains(&wait)),
    };
    let class = CostClass::ALL.into_iter().find(|class| same(class.title()) || same(class.key()));
    let wait = WaitClass::ALL.into_iter().find(|wait| same(wait.title()) || same(wait.short_title()));
    let of_class = class.and_then(|class| Wall::ALL.into_iter().find(|wall| wall.lines().contains(&class)));
    of_class.or_else(|| wait.and_then(of_wait))
}

/// The label of each section, in the order of output.
const LABELS: &[(&str, &str)] = &[
    ("usage", "usage"),
    ("about", "what it is"),
    ("where", "needs"),
    ("useful_if", "useful if"),
    ("applied", "applied by"),
    ("found", "found here"),
    ("range", "range here"),
    ("acts_on", "acts on"),
    ("gain", "gain"),
    ("fires", "threshold"),
    ("walls", "helps against"),
    ("remedies", "remedies"),
    ("experiments", "experiments"),
    ("proof", "proved by"),
    ("backfires", "risks"),
    ("moves", "moves"),
    ("undo", "undone by"),
    ("restart", "restart"),
    ("twin", "twin"),
    ("shell", "in a shell"),
    ("note", "note"),
];

const LABEL: usize = 14;

impl Page {
    fn text(&self, width: usize) -> String {
        let mut out = format!("{} ({})\n", terminal(&self.name), self.kind);
        let title = plain(width).initial_indent("  ").subsequent_indent("  ");
        let _ = writeln!(out, "{}\n", textwrap::fill(&self.title, title));
        for (key, label) in LABELS {
            let Some((_, text)) = self.sections.iter().find(|(known, _)| known == key) else {
                continue;
            };
            match *key {
                // To be copied: starts at the left, and line breaks are escaped for the shell.
                "shell" => {
                    let rows = shell_lines(text, width, 4);
                    let _ = writeln!(out, "  {label}\n    {}", rows.join("\n"));
                }
                _ => {
                    let head = format!("  {label:LABEL$}");
                    let indent = " ".repeat(LABEL + 2);
                    let options = plain(width).initial_indent(&head).subsequent_indent(&indent);
                    let _ = writeln!(out, "{}", textwrap::fill(&terminal(text), options));
                }
            }
        }
        out
    }
}

/// Version 1, documented in docs/json.md.
fn as_json(pages: &[Page]) -> String {
    let pages: Vec<_> = pages
        .iter()
        .map(|page| {
            let sections: serde_json::Map<String, serde_json::Value> =
                page.sections.iter().map(|(key, text)| ((*key).to_owned(), json!(text))).collect();
            json!({ "name": page.name, "kind": page.kind, "title": page.title, "sections": sections })
        })
        .collect();
    format!("{}\n", json!({ "version": 1, "pages": pages }))
}

// ---- remedies ----

fn remedy_page(remedy: &Remedy, printer: &Printer) -> Page {
    let mut sections = Vec::new();
    let mut add = |key: &'static str, text: String| {
        if !text.is_empty() {
            sections.push((key, text));
        }
    };
    let preloaded = remedy.start.and_then(|start| match start.applied.first() {
        Some(Change::Preload(library)) => Some(*library),
        _ => None,
    });
    match remedy.start {
        Some(start) => {
            add("usage", format!("--with {}", remedy.usage()));
            add("about", start.page.to_owned());
            add("applied", start.applied.iter().map(change).collect::<Vec<_>>().join("; "));
            add("proof", proof(remedy.proofs()));
        }
        None => add(
            "about",
            match remedy.kind {
                Kind::Advice => format!("Advice: {}.", remedy.shell_line()),
                Kind::Machine => {
                    "A setting that affects all processes of the machine. A trial does not apply it."
                        .to_owned()
                }
                Kind::Process if remedy.is_command() => {
                    "A change to running processes. A trial does not apply it.".to_owned()
                }
                Kind::Process => {
                    format!("Cannot be applied when a command is started: {}.", remedy.shell_line())
                }
            },
        ),
    }
    let needs = |only_makes_useful: bool| {
        let needs = remedy.needs.iter().filter(|need| need.only_makes_useful() == only_makes_useful);
        needs.map(|need| need.text()).collect::<Vec<_>>().join("; ")
    };
    add("where", needs(false));
    add("useful_if", needs(true));
    // glibc's malloc belongs to the program itself; there is no library to find.
    if let Some(library) = preloaded.filter(|library| *library != Library::Glibc) {
        let found: Vec<String> = arms::found(&arms::inventory(printer))
            .into_iter()
            .filter(|found| found.kind == library.kind().title())
            .filter(|found| found.has_cpu_caches == (library == Library::TcmallocPercpu))
            .map(|found| {
                let version = found.version.as_deref().unwrap_or("unknown version");
                format!("{} ({version})", found.path.display())
            })
            .collect();
        add("found", if found.is_empty() { "not installed".to_owned() } else { found.join(", ") });
    }
    add("acts_on", titles(remedy.acts_on));
    add("gain", gain(remedy));
    add("walls", remedy.walls.iter().map(|w| w.key()).collect::<Vec<_>>().join(", "));
    add("backfires", remedy.backfires_line());
    add("moves", remedy.moves.to_owned());
    add("undo", remedy.undo_line());
    add("restart", if remedy.restart { "needed" } else { "not needed" }.to_owned());
    if remedy.is_command() || remedy.start.is_some() {
        add("shell", remedy.shell_line());
        add("note", remedy.note_line());
    }
    Page {
        name: remedy.key.to_owned(),
        kind: if preloaded.is_some() { "allocator" } else { "remedy" },
        title: remedy.title.to_owned(),
        sections,
    }
}

fn titles(classes: &[CostClass]) -> String {
    let titles: Vec<&str> = classes.iter().map(|class| class.title()).collect();
    titles.join(", ")
}

fn gain(remedy: &Remedy) -> String {
    match remedy.effect {
        Effect::HugeTouch => {
            "predicted from this machine's prices: 4 KiB first touches become 2 MiB ones".to_owned()
        }
        Effect::ArenaInsteadOfMap => {
            "predicted from this machine's prices: blocks come from the heap instead of mmap".to_owned()
        }
        Effect::Swap => "predicted from a replay of the program's own calls, if they were counted; otherwise from what it saved on such \
                         calls in measured programs"
            .to_owned(),
        Effect::OwnArenas => "at most these lines and the code that waiting threads slow down: freeing a block of another thread \
                              still takes a lock"
            .to_owned(),
        Effect::DeeperCache => {
            "predicted from this machine's prices, for calls that miss the thread cache. The cache holds only blocks \
             of at most 1,032 bytes that the thread itself freed".to_owned()
        }
        Effect::Populate => "predicted from this machine's prices: one call maps many pages".to_owned(),
        Effect::AtMost(1.0, why) => format!("at most these lines: {why}"),
        Effect::AtMost(part, why) => format!("at most {} % of these lines: {why}", (part * 100.0).round()),
        Effect::FewerCollections(why) => {
            format!("at most 1 - present value / new value of these lines: {why}")
        }
        Effect::ForkCopy(what) => format!("at most the part of these lines that copies memory maps for forks: {what}"),
        Effect::Unknown(why) => format!("unknown: {why}"),
        Effect::NotCpu(what) => format!("not CPU time: {what}"),
    }
}

fn proof(proofs: impl IntoIterator<Item = Proof>) -> String {
    let texts: Vec<&str> = proofs.into_iter().map(Proof::text).collect();
    if texts.is_empty() { "nothing to prove".to_owned() } else { texts.join("; ") }
}

fn change(change: &Change) -> String {
    let arenas = format!("{ARENAS_PER_CPU} times the CPUs");
    let shown = |template: &str| template.replace("{}", "VALUE").replace("{arenas}", &arenas);
    match change {
        Change::Preload(_) => {
            "puts the library first in LD_PRELOAD and keeps the entries already there".to_owned()
        }
        Change::Tunable(name, value) => format!("{name}={} in GLIBC_TUNABLES", shown(value)),
        Change::Env(name, value) => format!("{name}={}", shown(value)),
        Change::EnvAppend { name, value, .. } => format!("{} added to {name}", shown(value)),
        Change::Unset(name) => format!("{name} unset"),
        Change::CommandOption(option) => format!("{} after the program's name", shown(option)),
        Change::Prefault(_) => {
            "a small library in LD_PRELOAD, which reads ALLOCWALL_PREFAULT=BYTES".to_owned()
        }
        Change::Cpus(_) => "sched_setaffinity before the exec".to_owned(),
        Change::Nodes(_) => "set_mempolicy (MPOL_BIND) and sched_setaffinity before the exec".to_owned(),
        Change::Pages(_) => "the huge-page setting of the program's allocator".to_owned(),
        Change::ArenaHook => format!("{ARENA_HOOK}={ARENA_HOOK_ON}, which the Python package reads"),
    }
}

// ---- tunables, walls, experiments ----

fn tunable_page(known: &MallocTunable) -> Page {
    let name = format!("{PREFIX}{}", known.name);
    let listed = arms::tunables().map(|list| list.into_iter().find(|tunable| tunable.name == name));
    let range = match listed {
        Ok(Some(tunable)) => {
            let limit = arms::malloc_limit(&name);
            let limit = limit.map_or(String::new(), |limit| format!("; malloc ignores values above {limit}"));
            format!("{} (from this machine's loader){limit}", tunable.range())
        }
        Ok(None) => "this machine's loader does not have this tunable".to_owned(),
        Err(absence) => format!("unknown: {absence}"),
    };
    Page {
        name: format!("glibc:{}", known.name),
        kind: "tunable",
        title: known.title.to_owned(),
        sections: vec![
            ("usage", format!("--with glibc:{}=VALUE", known.name)),
            ("about", known.page.to_owned()),
            (
                "where",
                [Need::Glibc(known.since.0, known.since.1), Need::Uses(AllocatorKind::Glibc)]
                    .map(Need::text)
                    .join("; "),
            ),
            ("applied", format!("sets {name}=VALUE in GLIBC_TUNABLES and keeps the entries already there")),
            ("range", range),
            ("acts_on", titles(known.acts_on)),
            ("proof", proof(Proof::of_tunable(&name).iter().copied())),
            ("backfires", known.backfires.to_owned()),
            ("undo", "restart without the tunable".to_owned()),
            ("shell", format!("GLIBC_TUNABLES={name}=VALUE CMD")),
        ],
    }
}

fn wall_page(wall: Wall) -> Page {
    let threshold = thresholds::of(wall);
    let wall_from = (threshold.wall_from * 100.0).round();
    let remedies: Vec<&str> =
        TABLE.iter().filter(|remedy| remedy.walls.contains(&wall)).map(|remedy| remedy.key).collect();
    let subjects: Vec<&str> =
        SUBJECTS.iter().filter(|subject| subject.wall == Some(wall)).map(|subject| subject.name).collect();
    let mut sections = vec![
        ("about", wall.about().to_owned()),
        (
            "fires",
            format!(
                "wall from {wall_from} %, contributor from {} % ({})",
                (threshold.contributor * 100.0).round(),
                threshold.source
            ),
        ),
    ];
    for (key, names) in [("remedies", remedies), ("experiments", subjects)] {
        if !names.is_empty() {
            sections.push((key, names.join(", ")));
        }
    }
    Page {
        name: wall.key().to_owned(),
        kind: "wall",
        title: format!("{}, rung {} of the ladder", wall.title(), wall.rung()),
        sections,
    }
}

fn rungs() -> BTreeSet<u8> {
    Wall::ALL.iter().map(|wall| wall.rung()).collect()
}

fn rung_page(rung: u8) -> Page {
    let walls = Wall::ALL.iter().filter(|wall| wall.rung() == rung);
    let walls: Vec<&str> = walls.map(|wall| wall.title()).collect();
    Page {
        name: rung_title(rung).to_owned(),
        kind: "rung",
        title: format!("rung {rung} of the ladder"),
        sections: vec![("about", format!("Judges these walls: {}.", walls.join(", ")))],
    }
}

/// Of the figures of a series, of a comparison of recordings, and of a trial, with the pages of their subjects.
fn figure_pages(same: impl Fn(&str) -> bool) -> Vec<Page> {
    let page = |name: String, about: String| Page {
        name,
        kind: "figure",
        title: "a figure of reports".to_owned(),
        sections: vec![("about", about)],
    };
    let of_windows = |name| page(name, "A figure of `diagnose --repeat` and of `allocwall diff`.".to_owned());
    let mut pages: Vec<Page> = vec![];
    if let Some(quantity) = series::Quantity::all().find(|quantity| same(&quantity.title())) {
        pages.push(of_windows(quantity.title()));
        match quantity {
            series::Quantity::Lock(class) => {
                pages.extend(wall_of_line(|title| title == class.title()).map(wall_page));
            }
            series::Quantity::Owner(owner) => {
                pages.extend(glossary::find(owner.title()).into_iter().map(term_page));
            }
            _ => {}
        }
    } else if let Some(quantity) = diff::Quantity::all().find(|quantity| same(&quantity.title())) {
        pages.push(of_windows(quantity.title()));
    }
    let metrics = batch::metrics(&[]).into_iter().filter(|metric| same(&metric.title));
    pages.extend(metrics.map(|metric| {
        let about = format!(
            "A figure of each run of a trial: less is better. In the JSON document it is {}.",
            metric.key
        );
        page(metric.title, about)
    }));
    pages
}

fn term_page(term: glossary::Term) -> Page {
    Page {
        name: term.names.to_owned(),
        kind: "term",
        title: "from the glossary".to_owned(),
        sections: vec![("about", term.meaning())],
    }
}

fn bench_page(experiment: &Known) -> Page {
    Page {
        name: experiment.name.to_owned(),
        kind: "experiment",
        title: experiment.summary.to_owned(),
        sections: vec![("about", experiment.about.to_owned()), ("shell", experiment.shell.to_string())],
    }
}

fn subject_page(subject: &Subject) -> Page {
    let lines: Vec<String> = subject.lines.iter().map(|line| line_key(line)).collect();
    let waits: Vec<&str> = subject.waits.iter().map(|wait| wait.key()).collect();
    let about = match subject.wall {
        Some(wall) => format!(
            "A built-in program with one known wall, {}. It keeps its own account of the truth. Its dial sets the {}.",
            wall.key(),
            subject.dial.meaning()
        ),
        None => "A built-in program without a wall.".to_owned(),
    };
    let mut sections = vec![("about", about)];
    let acts: Vec<String> = lines.into_iter().chain(waits.iter().map(|w| (*w).to_owned())).collect();
    if !acts.is_empty() {
        sections.push(("acts_on", acts.join(", ")));
    }
    if let Some(twin) = subject.twin {
        sections.push(("twin", format!("{twin} (--twin)")));
    }
    sections.push(("shell", format!("allocwall subject {}", subject.name)));
    Page { name: subject.name.to_owned(), kind: "experiment", title: subject.summary.to_owned(), sections }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_has_a_page_that_fits_the_width() {
        for name in names() {
            let pages = pages(name, &Printer::new());
            assert!(!pages.is_empty(), "{name}");
            for page in pages {
                let text = page.text(100);
                for line in text.lines() {
                    assert!(line.chars().count() <= 100, "{name}: {line}");
                }
                for hole in ["{", "}"] {
                    assert!(!text.contains(hole), "{name}: {text}");
                }
                let labelled =
                    |key: &str| LABELS.iter().any(|(known, label)| *known == key && !label.is_empty());
                assert!(page.sections.iter().all(|(key, _)| labelled(key)), "{name}");
            }
        }
    }

    #[test]
    fn a_wall_without_a_threshold_has_no_infinite_one() {
        for wall in Wall::ALL {
            let page = wall_page(wall);
            let (_, fires) = page.sections.iter().find(|(key, _)| *key == "fires").expect("every wall fires");
            assert!(!fires.contains("inf"), "{fires}");
            assert_eq!(fires.contains("wall from "), thresholds::of(wall).wall_from.is_finite(), "{fires}");
        }
    }

    #[test]
    fn applicable_remedies_have_all_sections() {
        for remedy in TABLE.iter().filter(|remedy| remedy.start.is_some()) {
            let page = remedy_page(remedy, &Printer::new());
            for key in ["usage", "about", "proof", "backfires", "undo", "shell"] {
                assert!(
                    page.sections.iter().any(|(known, text)| *known == key && !text.is_empty()),
                    "{}: {key}",
                    remedy.key
                );
            }
        }
    }

    #[test]
    fn every_need_is_in_its_section() {
        for remedy in TABLE {
            let page = remedy_page(remedy, &Printer::new());
            for need in remedy.needs {
                let of_need = if need.only_makes_useful() { "useful_if" } else { "where" };
                let section = page.sections.iter().find(|(key, _)| *key == of_need);
                assert!(
                    section.is_some_and(|(_, text)| text.split("; ").any(|each| each == need.text())),
                    "{}: {need:?}",
                    remedy.key
                );
            }
        }
    }

    #[test]
    fn names_with_values_and_names_with_two_pages_are_found() {
        let kinds =
            |name: &str| pages(name, &Printer::new()).iter().map(|page| page.kind).collect::<Vec<_>>();
        assert_eq!(kinds("retention"), ["wall", "experiment"]);
        assert_eq!(kinds("first-touch"), ["wall"]);
        assert_eq!(kinds("jemalloc@system"), ["allocator"]);
        assert_eq!(kinds("cpus=0-3"), ["remedy"]);
        assert_eq!(kinds("glibc:arena_max=2"), ["tunable"]);
        assert_eq!(kinds("arena_max"), ["tunable"]);
        assert_eq!(kinds("env:A=b"), ["remedy"]);
        assert_eq!(kinds("glibc"), ["allocator", "remedy"]);
        assert!(pages("snake-oil", &Printer::new()).is_empty());
    }

    #[test]
    fn titles_of_the_report_are_names() {
        let names = |name: &str| {
            let pages = pages(name, &Printer::new());
            pages
                .into_iter()
                .filter(|page| page.kind != "term")
                .map(|page| page.name)
                .collect::<Vec<String>>()
        };
        for (title, wall) in [
            ("first touch", "first_touch"),
            ("First Touch", "first_touch"),
            ("first touch: zeroing", "first_touch"),
            ("Python's GIL", "gil"),
            ("fork and copy-on-write", "fork"),
            ("copy-on-write", "fork"),
            ("process and thread start and end", "fork"),
            ("page release", "map_churn"),
            ("map/unmap/brk/madvise", "map_churn"),
            ("runtime's object allocator", "call_rate"),
            ("allocator code", "allocator_code"),
            ("allocator locks", "allocator_contention"),
            ("blocked in the allocator", "allocator_contention"),
            ("runnable but waiting", "run_queue"),
            ("throttled by the cgroup", "cgroup_throttling"),
            ("storage I/O", "waiting"),
            ("waiting for work", "waiting"),
            ("TLB", "tlb"),
        ] {
            assert_eq!(names(title), [wall], "{title}");
        }
        assert_eq!(names("fewer arenas in glibc"), ["glibc-arenas-few"]);
        assert_eq!(names("Jemalloc"), ["jemalloc"]);
        assert_eq!(names("Glibc Keep Memory"), ["glibc-keep-memory"]);
        assert_eq!(names("jemalloc+thp+prefault=256M"), ["jemalloc", "thp", "prefault"]);
        assert_eq!(names("Arena Max"), ["glibc:arena_max"]);
        for no_wall in ["sockets and pipes", "other kernel", "other waits"] {
            assert!(names(no_wall).is_empty(), "{no_wall}");
        }
        for nothing in ["first", "", ":", "code", "+"] {
            assert!(pages(nothing, &Printer::new()).is_empty(), "{nothing}");
        }
    }

    #[test]
    fn the_ladder_of_the_book_has_the_thresholds() {
        const LADDER: &str = include_str!("../../../../docs/ladder.md");
        for wall in Wall::ALL {
            let threshold = thresholds::of(wall);
            let [contributor, from] =
                [threshold.contributor, threshold.wall_from].map(|part| (part * 100.0).round());
            let row = LADDER.lines().find(|line| line.contains(&format!("| {} | ", wall.title())));
            let row = row.unwrap_or_else(|| panic!("no row for {}", wall.title()));
            assert!(row.contains(&format!("| {contributor} %, {from} %")), "{row}");
        }
    }

    #[test]
    fn every_name_that_a_report_prints_has_a_page() {
        let words = [
            "wall",
            "contributor",
            "ruled out",
            "not measured",
            "VERDICT",
            "BILL",
            "LADDER",
            "REMEDIES",
            "CALL SITES",
            "LIMITS",
            "RULED OUT",
            "NOT MEASURED",
            "WAITS",
            "MEMORY",
            "RUNTIME",
        ];
        let words = words.into_iter().chain([
            "better",
            "worse",
            "equivalent",
            "unresolved",
            "proved",
            "refuted",
            "A′",
        ]);
        let printed = words
            .chain(Wall::ALL.iter().map(|wall| wall.title()))
            .chain(TABLE.iter().map(|remedy| remedy.title))
            .chain(LINES.iter().map(|line| line.title()))
            .chain(WaitClass::ALL.iter().flat_map(|wait| [wait.title(), wait.short_title()]))
            .chain(Owner::ALL.iter().map(|owner| owner.title()))
            .chain(rungs().into_iter().map(rung_title))
            .map(str::to_owned)
            .chain(series::Quantity::all().map(|quantity| quantity.title()))
            .chain(diff::Quantity::all().map(|quantity| quantity.title()))
            .chain(batch::metrics(&[]).into_iter().map(|metric| metric.title))
            .chain(["CPU per request", "response p99", "cycles", "usable"].map(str::to_owned));
        for name in printed {
            for form in [name.clone(), name.to_uppercase(), format!(" {} ", name.replace(' ', "  "))] {
                assert!(!pages(&form, &Printer::new()).is_empty(), "{form:?}");
            }
        }
    }

    #[test]
    fn the_document_parses() {
        let document: serde_json::Value =
            serde_json::from_str(&as_json(&pages("retention", &Printer::new()))).unwrap();
        assert_eq!(document["version"], 1);
        assert_eq!(document["pages"][0]["kind"], "wall");
        assert!(document["pages"][1]["sections"]["twin"].is_string());
    }
}
