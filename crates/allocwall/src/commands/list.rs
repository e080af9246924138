//! `allocwall list`: remedies by runtime and wall, allocators found, tunables, walls and experiments.

use crate::commands::shared::arms::{self, Found};
use crate::commands::shared::experiments;
use crate::commands::shared::plain;
use crate::printer::Printer;
use allocwall_host::tunables::{Tunable, Values};
use allocwall_lab::workloads::SUBJECTS;
use allocwall_model::catalogue::remedies::{Remedy, TABLE};
use allocwall_model::catalogue::tunables as known;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::Measured;
use allocwall_report::escape::terminal;
use serde_json::json;
use std::fmt::Write;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// One JSON object: version, remedies, allocators, tunables, walls, experiments
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let found = arms::found(&arms::inventory(printer));
    let tunables = arms::tunables();
    printer.data(&if args.json {
        as_json(&found, &tunables)
    } else {
        as_text(&found, &tunables, printer.style().width)
    })?;
    Ok(ExitCode::SUCCESS)
}

/// Remedies that can be applied when a command is started (`true`), or the others (`false`).
fn applicable(applied: bool) -> impl Iterator<Item = &'static Remedy> {
    TABLE.iter().filter(move |remedy| remedy.start.is_some() == applied)
}

/// Where a remedy is in the list: the runtime or the C library that it is for, and the first wall that it helps against.
type Group = (&'static str, Option<Wall>);

/// What the remedies are for, in the order of the list.
const FOR: &[&str] = &["any program", "glibc", "musl", "CPython", "Java", "Go", "Node"];

fn group(remedy: &Remedy) -> Group {
    let runtime = remedy.needs.iter().find_map(|need| need.runtime());
    let libc = || remedy.needs.iter().find_map(|need| need.libc());
    (runtime.or_else(libc).unwrap_or(FOR[0]), remedy.walls.first().copied())
}

/// In the order of `FOR`, then of the ladder. Remedies of no wall, which only a user asks for, come last.
fn grouped(remedies: impl Iterator<Item = &'static Remedy>) -> Vec<(Group, Vec<&'static Remedy>)> {
    let mut groups: Vec<(Group, Vec<&Remedy>)> = vec![];
    for remedy in remedies {
        let group = group(remedy);
        match groups.iter_mut().find(|(known, _)| *known == group) {
            Some((_, members)) => members.push(remedy),
            None => groups.push((group, vec![remedy])),
        }
    }
    groups.sort_by_key(|((runtime, wall), _)| {
        (FOR.iter().position(|known| known == runtime), wall.is_none(), *wall)
    });
    groups
}

fn remedies(out: &mut String, applied: bool, width: usize) {
    for ((runtime, wall), members) in grouped(applicable(applied)) {
        let wall = wall.map_or("only if you ask for it", Wall::title);
        let _ = writeln!(out, " {runtime} · {wall}");
        for remedy in members {
            let name = if applied { remedy.usage() } else { remedy.key.to_owned() };
            row(out, &name, remedy.title, width);
        }
    }
}

const NAME: usize = 28;

fn as_text(found: &[Found], tunables: &Measured<Vec<Tunable>>, width: usize) -> String {
    let mut out = String::from("Remedies for --with (joined by +), by runtime and wall\n");
    remedies(&mut out, true, width);
    out.push_str("\nRemedies that cannot be applied when a command is started\n");
    remedies(&mut out, false, width);
    out.push_str("\nAllocators found\n");
    for library in found {
        let version = library.version.as_deref().unwrap_or("(unknown version)");
        let origin = if library.bundled { ", bundled" } else { "" };
        let text = format!("{}{origin}", library.path.display());
        row(&mut out, &format!("{} {version}", library.kind), &text, width);
    }
    if found.is_empty() {
        row(&mut out, "none", "no known allocator is in the usual folders or in the linker's cache", width);
    }
    out.push_str("\nTunables of glibc's malloc (glibc:NAME=VALUE)\n");
    match tunables {
        Ok(list) => {
            for tunable in list {
                let Some(name) = tunable.name.strip_prefix(known::PREFIX) else { continue };
                let title = known::find(name).map_or("", |known| known.title);
                let text = match title {
                    "" => tunable.range(),
                    title => format!("{title}: {}", tunable.range()),
                };
                row(&mut out, name, &text, width);
            }
        }
        Err(absence) => row(&mut out, "unknown", &absence.to_string(), width),
    }
    out.push_str("\nWalls\n");
    for wall in Wall::ALL {
        row(&mut out, wall.key(), wall.title(), width);
    }
    out.push_str("\nExperiments (allocwall bench NAME)\n");
    for experiment in experiments::all() {
        row(&mut out, experiment.name, experiment.summary, width);
    }
    out.push_str("\nallocwall explain NAME explains each of them.\n");
    out
}

/// A name, and its text in a second column.
pub fn row(out: &mut String, name: &str, text: &str, width: usize) {
    let indent = " ".repeat(NAME + 3);
    let (name, text) = (terminal(name), terminal(text));
    let length = |word: &str| word.chars().count();
    // A long name gets its own line, and so does one beside a path that would not fit.
    let widest = text.split(' ').map(length).max().unwrap_or(0);
    let apart = length(&name) > NAME || indent.len() + widest > width;
    let indent = if indent.len() + widest > width { " ".repeat(4) } else { indent };
    if apart {
        let _ = writeln!(out, "  {name}");
    }
    let head = if apart { indent.clone() } else { format!("  {name:NAME$} ") };
    let options = plain(width).initial_indent(&head).subsequent_indent(&indent).break_words(false);
    let _ = writeln!(out, "{}", textwrap::fill(&text, options));
}

/// Version 1, documented in docs/json.md.
fn as_json(found: &[Found], tunables: &Measured<Vec<Tunable>>) -> String {
    let remedies: Vec<_> = TABLE
        .iter()
        .map(|remedy| {
            json!({
                "remedy": remedy.key,
                "usage": remedy.usage(),
                "title": remedy.title,
                "applicable": remedy.start.is_some(),
                "restart": remedy.restart,
                "walls": remedy.walls.iter().map(|wall| wall.key()).collect::<Vec<_>>(),
                "acts_on": remedy.acts_on.iter().map(|class| class.key()).collect::<Vec<_>>(),
            })
        })
        .collect();
    let allocators: Vec<_> = found
        .iter()
        .map(|library| {
            json!({
                "allocator": library.kind,
                "path": library.path.to_string_lossy(),
                "version": library.version,
                "bundled": library.bundled,
            })
        })
        .collect();
    let tunables = match tunables {
        Ok(list) => json!(list.iter().map(tunable_json).collect::<Vec<_>>()),
        Err(absence) => json!({ "absent": absence }),
    };
    let walls: Vec<_> = Wall::ALL
        .iter()
        .map(|wall| json!({ "wall": wall.key(), "title": wall.title(), "rung": wall.rung() }))
        .collect();
    let benches = experiments::all().map(|experiment| {
        json!({
            "experiment": experiment.name,
            "command": "bench",
            "summary": experiment.summary,
            "wall": null,
        })
    });
    let experiments: Vec<_> = SUBJECTS
        .iter()
        .map(|subject| {
            json!({
                "experiment": subject.name,
                "command": "subject",
                "summary": subject.summary,
                "wall": subject.wall.map(|wall| wall.key()),
            })
        })
        .chain(benches)
        .collect();
    let document = json!({
        "version": 1,
        "remedies": remedies,
        "allocators": allocators,
        "tunables": tunables,
        "walls": walls,
        "experiments": experiments,
    });
    format!("{document}\n")
}

/// Bounds are text: they go up to 2^64 - 1, and most JSON readers cannot hold that as a number.
fn tunable_json(tunable: &Tunable) -> serde_json::Value {
    let (kind, bounds) = match &tunable.values {
        Values::Number { default, min, max } => {
            ("number", Some((default.to_string(), min.to_string(), max.to_string())))
        }
        Values::Size { default, min, max } => {
            ("size", Some((default.to_string(), min.to_string(), max.to_string())))
        }
        Values::Text => ("text", None),
    };
    let (default, min, max) = bounds.map_or((None, None, None), |(d, l, h)| (Some(d), Some(l), Some(h)));
    json!({ "tunable": tunable.name, "kind": kind, "default": default, "min": min, "max": max })
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::units::{Absence, Reason};

    fn library() -> Found {
        Found {
            kind: "jemalloc",
            path: "/usr/lib/\u{1b}[31m/libjemalloc.so.2".into(),
            version: Some("5.3.0".into()),
            has_cpu_caches: false,
            bundled: false,
        }
    }

    #[test]
    fn the_list_names_everything_and_fits_the_width() {
        let text = as_text(&[library()], &arms::tunables(), 100);
        for line in text.lines() {
            assert!(line.chars().count() <= 100, "{line}");
        }
        let remedies = TABLE.iter().map(|remedy| remedy.key);
        let walls = Wall::ALL.iter().map(|wall| wall.key());
        let experiments: Vec<&str> = experiments::all().map(|experiment| experiment.name).collect();
        for name in remedies.chain(walls).chain(experiments) {
            assert!(text.contains(name), "{name}");
        }
        // A verb that the help hides.
        assert!(!text.contains("subject"), "{text}");
        assert!(!text.contains('\u{1b}'));
        assert!(text.contains("jemalloc 5.3.0"), "{text}");
    }

    #[test]
    fn remedies_are_grouped_by_runtime_and_wall() {
        for remedy in TABLE {
            assert!(FOR.contains(&group(remedy).0), "{}: {}", remedy.key, group(remedy).0);
        }
        let groups = grouped(TABLE.iter());
        assert_eq!(groups.iter().map(|(_, members)| members.len()).sum::<usize>(), TABLE.len());
        let keys = |wanted: Group| -> Vec<&str> {
            groups
                .iter()
                .filter(|(group, _)| *group == wanted)
                .flat_map(|(_, members)| members)
                .map(|r| r.key)
                .collect()
        };
        assert!(keys(("Go", Some(Wall::CgroupThrottling))).contains(&"gomaxprocs"));
        assert!(!keys(("any program", Some(Wall::CgroupThrottling))).contains(&"gomaxprocs"));
        let places: Vec<_> =
            groups.iter().map(|(group, _)| FOR.iter().position(|known| *known == group.0)).collect();
        assert!(places.is_sorted(), "{places:?}");
    }

    #[test]
    fn the_document_parses_and_an_absence_is_typed() {
        let absent = Absence::new(Reason::NotSupported, "no list");
        let document: serde_json::Value = serde_json::from_str(&as_json(&[library()], &Err(absent))).unwrap();
        assert_eq!(document["version"], 1);
        assert_eq!(document["allocators"][0]["version"], "5.3.0");
        assert_eq!(document["tunables"]["absent"]["reason"], "not_supported");
        assert_eq!(document["walls"].as_array().unwrap().len(), Wall::ALL.len());
    }
}
