//! The head of the report: what was diagnosed, and the verdict.

use super::super::escape::terminal;
use super::super::layout::{columns, elide_middle};
use super::page::{Ink, Page, basename, bytes};
use super::{Extent, missing};
use allocwall_diagnose::bill::Bill;
use allocwall_diagnose::{Verdict, main_process};
use allocwall_model::recording::{
    Allocator, AllocatorKind, Ended, Libc, Linkage, Process, Recording, Runtime,
};
use allocwall_model::units::plural;

pub(super) fn header(page: &mut Page, rec: &Recording, bill: &Bill, extent: Extent) {
    let command = target(rec);
    let room = page.width - columns("allocwall  ");
    let line = format!(
        "{}  {}",
        page.paint(Ink::Heading, "allocwall"),
        page.paint(Ink::Heading, &elide_middle(&command, room))
    );
    page.line(&line);
    page.wrapped(2, &facts(rec).join(" · "), Ink::Plain);
    let mut seen = seen(rec, bill);
    if extent == Extent::Brief {
        seen.push(missing::own_cost_brief(rec));
    }
    page.wrapped(2, &seen.join(" · "), Ink::Plain);
    if let Some(warning) = ended(rec) {
        page.wrapped(2, &warning, Ink::Warn);
    }
}

/// The command line of the process that is judged.
pub(crate) fn target(rec: &Recording) -> String {
    main_process(rec).map_or_else(|| "no process found".to_string(), command)
}

/// What the target and its machine are.
pub(crate) fn facts(rec: &Recording) -> Vec<String> {
    let mut facts = vec![];
    if let Some(process) = main_process(rec) {
        let why_this = why_not_first(rec, process);
        facts.push(format!("pid {}{}", process.pid, why_this.as_deref().unwrap_or_default()));
        facts.extend(runtime(process));
        facts.extend(libc(process));
        facts.push(allocator(process));
        if rec.processes.len() > 1 && why_this.is_none() {
            facts.push(format!("{} processes", rec.processes.len()));
        }
    }
    facts.push(match &rec.host.hypervisor {
        Some(name) => format!("Linux {} on {name}", rec.host.kernel_release),
        None => format!("Linux {}", rec.host.kernel_release),
    });
    facts
}

/// The window, and what the target used in it.
pub(crate) fn seen(rec: &Recording, bill: &Bill) -> Vec<String> {
    let cpus = if bill.window_s > 0.0 { bill.cpu_s / bill.window_s } else { 0.0 };
    // A process has a thread and memory, so zero was not read: it ended too early.
    let threads = match bill.rates.threads_peak {
        0 => "threads not read".to_owned(),
        n => format!("{n} {}", plural(n as u64, "thread")),
    };
    let resident = match bill.rates.resident_end {
        0 => "resident memory not read".to_owned(),
        size => format!("{} resident", bytes(size)),
    };
    let window = match bill.window_s {
        short if short < 0.1 => format!("{:.0} ms window", short * 1e3),
        long => format!("{long:.1} s window"),
    };
    vec![window, format!("{cpus:.2} of {} CPUs used", rec.host.online_cpus), threads, resident]
}

/// Why the header shows this process, which rungs and remedies judge, if it is not the first of the recording:
/// `, busiest of 2 processes, started by pid 10 (sh)`.
pub fn why_not_first(rec: &Recording, process: &Process) -> Option<String> {
    if rec.processes.first().is_some_and(|first| first.pid == process.pid) {
        return None;
    }
    let parent = rec.processes.iter().find(|p| p.pid == process.ppid);
    let started_by = parent.map_or_else(String::new, |p| format!(", started by pid {} ({})", p.pid, p.comm));
    Some(format!(", busiest of {} processes{started_by}", rec.processes.len()))
}

pub(crate) fn ended(rec: &Recording) -> Option<String> {
    let asked = rec.meta.requested_ns as f64 / 1e9;
    Some(match &rec.meta.ended {
        Ended::Complete => return None,
        Ended::Interrupted => {
            format!(
                "Interrupted before the end of the {asked:.0} s window. The report covers the time until then."
            )
        }
        Ended::TargetExited { status } => format!(
            "The target ended before the end of the {asked:.0} s window{}. The report covers the time until then.",
            status.as_ref().map_or(String::new(), |s| format!(": {s}"))
        ),
        Ended::CutOff => {
            "The recording is cut off, because its writer was killed. The report covers what was written."
                .to_string()
        }
    })
}

/// The command line of a process, for a terminal.
pub fn command(process: &Process) -> String {
    let words = if process.cmdline.is_empty() { vec![process.comm.clone()] } else { process.cmdline.clone() };
    terminal(&words.join(" "))
}

pub(crate) fn runtime(process: &Process) -> Option<String> {
    let versioned = |name: &str, version: &Option<String>| match version {
        Some(v) => format!("{name} {v}"),
        None => name.to_string(),
    };
    Some(match process.runtime.as_ref() {
        Ok(Runtime::Native) => return None,
        Ok(Runtime::Cpython { version, free_threaded }) => {
            format!("CPython {version}{}", if *free_threaded { " (free-threaded)" } else { "" })
        }
        Ok(Runtime::Jvm { version }) => versioned("JVM", version),
        Ok(Runtime::Go { version }) => versioned("Go", version),
        Ok(Runtime::Node { version }) => versioned("Node", version),
        Err(_) => "runtime unknown".to_string(),
    })
}

pub(crate) fn libc(process: &Process) -> Option<String> {
    Some(match process.libc.as_ref() {
        Ok(Libc::Glibc { version }) => format!("glibc {version}"),
        Ok(Libc::Musl { version }) => {
            format!("musl {}", version.as_deref().unwrap_or("")).trim_end().to_string()
        }
        Ok(Libc::Static) => "static binary".to_string(),
        Ok(Libc::Other { name }) => name.clone(),
        Err(_) => "libc unknown".to_string(),
    })
}

pub(crate) fn allocator(process: &Process) -> String {
    match process.allocator.as_ref() {
        Ok(a) => format!("malloc is {}", allocator_name(a)),
        Err(_) => "allocator unknown".to_string(),
    }
}

fn allocator_name(allocator: &Allocator) -> String {
    let name = match allocator.kind {
        AllocatorKind::Glibc => "glibc's",
        AllocatorKind::Musl => "musl's",
        AllocatorKind::Jemalloc => "jemalloc",
        AllocatorKind::Tcmalloc => "tcmalloc",
        AllocatorKind::Mimalloc => "mimalloc",
        AllocatorKind::Snmalloc => "snmalloc",
        AllocatorKind::Other => basename(&allocator.module),
    };
    let version = match (&allocator.version, allocator.how) {
        (Some(v), how) if how != Linkage::Libc => format!(" {v}"),
        _ => String::new(),
    };
    let how = match allocator.how {
        Linkage::Libc => "",
        Linkage::Linked => " (linked)",
        Linkage::Preloaded => " (preloaded)",
        Linkage::Static => " (static)",
    };
    format!("{name}{version}{how}")
}

pub(super) fn sentence(page: &mut Page, verdict: &Verdict) {
    let ink = if verdict.walls.is_empty() { Ink::Good } else { Ink::Bad };
    page.hang("VERDICT", Ink::Heading, 9, &verdict.sentence, ink);
}
