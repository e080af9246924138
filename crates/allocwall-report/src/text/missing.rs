//! What could not be measured and why, and what the measuring cost.

use super::super::layout::{columns, elide_end};
use super::ladder::{COLUMN, label};
use super::page::{Ink, Page, basename};
use super::remedies::SHORT;
use super::runtimes::figures;
use super::sites::costly_faults;
use allocwall_diagnose::bill::{Bill, NO_SYMBOL, Site};
use allocwall_diagnose::{Verdict, expected};
use allocwall_model::catalogue::symbols;
use allocwall_model::recording::{Ended, ModuleRole, ProbeName, ProbeState, Recording, Runtime, SmapsCost};
use allocwall_model::units::{Absence, Reason, count, plural, thousands};
use std::collections::BTreeMap;

/// What could not be measured, by obstacle: each obstacle once, with everything that it hides.
pub(crate) struct Limits {
    obstacles: Vec<Obstacle>,
}

/// What an obstacle hides, why, and what would help.
pub(crate) struct Limit<'a> {
    pub hides: String,
    pub detail: &'a str,
    pub advice: Option<String>,
}

struct Obstacle {
    absences: Vec<Absence>,
    hides: Vec<String>,
}

impl Limits {
    pub(crate) fn of(rec: &Recording, bill: &Bill, verdict: &Verdict) -> Limits {
        let mut limits = Limits { obstacles: vec![] };
        for finding in &verdict.findings {
            if let Some(missing) = &finding.missing {
                limits.add(missing, finding.wall.title().to_string());
            }
        }
        for line in &bill.off_cpu {
            if let Err(absence) = &line.thread_s {
                limits.add(absence, format!("time {}", line.class.title()));
            }
        }
        if let Err(absence) = &bill.on_cpu {
            limits.add(absence, "the bill".to_string());
        }
        if let Err(absence) = &rec.resident
            && absence.reason != Reason::NotApplicable
        {
            limits.add(absence, "resident memory by owner".to_string());
        }
        // Without --count, nothing is missing.
        if let Err(absence) = &rec.counted
            && absence.reason != Reason::Disabled
        {
            limits.add(absence, "calls of the allocator".to_string());
        }
        for probe in &rec.probes {
            match &probe.state {
                ProbeState::Measured => {}
                ProbeState::Partial(absence) => {
                    limits.add_probe(absence, format!("{} (in part)", probe.what))
                }
                ProbeState::Absent(absence) => limits.add_probe(absence, probe.what.clone()),
            }
        }
        for account in &rec.accounts {
            for (title, figure) in figures(account) {
                if let Err(absence) = figure {
                    limits.add(absence, title.to_string());
                }
            }
        }
        if rec.processes.iter().any(|process| matches!(process.runtime, Ok(Runtime::Node { .. }))) {
            let absence = Absence::new(Reason::NotSupported, "not readable from outside");
            limits.add(&absence, "pauses and allocation rate of V8".to_string());
        }
        if let Some(absence) = nameless_code(rec, bill) {
            limits.add(&absence, "names of generated code".to_string());
        }
        if let Some(absence) = nameless_python(rec, bill) {
            limits.add(&absence, "Python functions (in part)".to_string());
        }
        if let Some(absence) = thin_stacks(rec) {
            limits.add(&absence, "call sites (in part)".to_string());
        }
        if let Some(absence) = owners_unknown(rec, bill) {
            limits.add(&absence, "owners of page faults (in part)".to_string());
        }
        if let Some(absence) = expected::prices::unpriced(rec, &verdict.remedies) {
            limits.add(&absence, "the gain of the remedies".to_string());
        }
        limits
    }

    /// A probe is named only if its absence hides no finding and no line.
    fn add_probe(&mut self, absence: &Absence, what: String) {
        let before = self.obstacles.len();
        let hides: Vec<usize> = self.obstacles.iter().map(|o| o.hides.len()).collect();
        self.add(absence, what);
        let same_detail = |o: &Obstacle| o.absences[0].detail == absence.detail;
        if self.obstacles.len() == before && self.obstacles.iter().any(same_detail) {
            for (obstacle, count) in self.obstacles.iter_mut().zip(hides) {
                obstacle.hides.truncate(count);
            }
        }
    }

    pub(crate) fn add(&mut self, absence: &Absence, hidden: String) {
        // Whatever root would get is one obstacle.
        let same = |a: &Absence| {
            a.detail == absence.detail
                || (!a.mend.is_empty() && a.mend == absence.mend)
                || (a.root_helps() && absence.root_helps())
        };
        match self.obstacles.iter_mut().find(|o| o.absences.iter().any(same)) {
            Some(obstacle) => {
                if !obstacle.absences.contains(absence) {
                    obstacle.absences.push(absence.clone());
                }
                if !obstacle.hides.contains(&hidden) {
                    obstacle.hides.push(hidden);
                }
            }
            None => self.obstacles.push(Obstacle { absences: vec![absence.clone()], hides: vec![hidden] }),
        }
    }

    /// The printed number; the first one is 1.
    pub(crate) fn number(&self, absence: &Absence) -> usize {
        let at = self.obstacles.iter().position(|o| o.absences.contains(absence));
        at.map_or(0, |i| i + 1)
    }

    /// In the order of their numbers.
    pub(crate) fn all(&self) -> impl Iterator<Item = Limit<'_>> {
        self.obstacles.iter().map(|obstacle| Limit {
            hides: obstacle.hides.join(", "),
            // The same change removes all of them, so the first reason, that of the lowest rung, is enough.
            detail: obstacle.absences[0].detail.trim_end_matches('.'),
            advice: obstacle.absences.iter().find_map(Absence::advice),
        })
    }

    pub(super) fn print(&self, page: &mut Page) {
        for (nth, Limit { hides, detail, advice }) in self.all().enumerate() {
            let advice = advice.map_or(String::new(), |advice| format!(" → {advice}"));
            let text = format!("{hides}: {detail}{advice}");
            page.hang(&format!("  {}. ", nth + 1), Ink::Warn, 5, &text, Ink::Plain);
        }
    }

    /// In short. The whole text is in the whole report.
    pub(super) fn brief(&self, page: &mut Page) {
        if self.obstacles.is_empty() {
            return;
        }
        let room = page.width.max(SHORT) - COLUMN;
        for (nth, obstacle) in self.obstacles.iter().take(OBSTACLES_SHOWN).enumerate() {
            label(page, if nth == 0 { "NOT MEASURED" } else { "" }, Ink::Warn, &obstacle.in_short(room));
        }
        let more = self.obstacles.len().saturating_sub(OBSTACLES_SHOWN);
        if more > 0 {
            label(page, "", Ink::Plain, &format!("{more} more: see LIMITS with --all"));
        }
    }
}

/// Obstacles in the brief report: those that hide walls come first.
const OBSTACLES_SHOWN: usize = 4;
/// Lines of an obstacle in the brief report. A usual reason needs no more.
const LINES: usize = 3;

impl Obstacle {
    /// What it hides, why, and what to change if this fits a line of `room` columns. What it hides is counted where that makes it
    /// fit; the reason is wrapped where it does not.
    fn in_short(&self, room: usize) -> String {
        let detail = self.absences[0].detail.trim_end_matches('.');
        let advice = self.absences.iter().find_map(Absence::advice);
        let advice = advice.map_or(String::new(), |advice| format!(" → {advice}"));
        let all = |hides: &str, advice: &str| format!("{hides}: {detail}{advice}");
        let few = match &self.hides[..] {
            [first, _, rest @ ..] if !rest.is_empty() => format!("{first} and {} more", rest.len() + 1),
            hides => hides.join(", "),
        };
        let forms = [all(&self.hides.join(", "), &advice), all(&few, &advice), all(&few, "")];
        let fitting = forms.iter().find(|form| columns(form) <= room);
        fitting.cloned().unwrap_or_else(|| elide_end(&forms[2], LINES * room))
    }
}

/// Share of CPU time, of the samples, or of the page faults, from which on missing names, callers and owners matter.
const MUCH: f64 = 0.1;

/// If the owners of many page faults are unknown. Memory that lives short is more often among them.
fn owners_unknown(rec: &Recording, bill: &Bill) -> Option<Absence> {
    // Its own limit says why.
    if rec.probe_absence(ProbeName::FaultOwners).is_some() {
        return None;
    }
    let unknown = costly_faults(bill).iter().map(|faulted| 1.0 - faulted.known).fold(0.0, f64::max);
    let detail = format!(
        "the owner of {:.0} % of them is unknown, so the shares of the others may be biased",
        unknown * 100.0
    );
    (unknown > MUCH).then(|| Absence::new(Reason::TooLittle, detail))
}

/// Share of CPU time of call sites in code of one kind that have no name.
fn nameless(rec: &Recording, bill: &Bill, role: ModuleRole, has_none: impl Fn(&Site) -> bool) -> f64 {
    let of_role = |path: &str| rec.modules.iter().any(|m| m.role == role && m.path == path);
    let lines = bill.on_cpu.iter().flatten();
    lines
        .flat_map(|l| l.sites.iter().map(move |s| (s, l.share.point)))
        .filter(|(site, _)| has_none(site) && of_role(&site.module))
        .map(|(site, share)| site.share * share)
        .sum()
}

/// If much of the interpreter's time has no Python function although Python's stacks could be read.
fn nameless_python(rec: &Recording, bill: &Bill) -> Option<Absence> {
    let has_python = rec.processes.iter().any(|p| matches!(p.runtime, Ok(Runtime::Cpython { .. })));
    let share = nameless(rec, bill, ModuleRole::Cpython, |site| site.python.is_none());
    if !has_python || share < MUCH || rec.probe_absence(ProbeName::PythonStacks).is_some() {
        return None;
    }
    let read = rec.python.len() as u64;
    let detail = format!(
        "too few Python stacks were read at the time of samples that are {:.0} % of CPU ({} {} in {:.1} s)",
        share * 100.0,
        thousands(read),
        plural(read, "stack"),
        bill.window_s
    );
    Some(Absence::new(Reason::TooLittle, detail).mend("use a longer window: -d 30"))
}

/// If the callers of many samples are unknown although their stacks were read: where the unwinder stopped.
fn thin_stacks(rec: &Recording) -> Option<Absence> {
    /// A longer stack ends where the copied part of it ends.
    const SHORT: usize = 16;
    const LEAST_SAMPLES: u64 = 20;
    // Their own limits say that stacks were not read.
    let unread = [ProbeName::Names, ProbeName::Code, ProbeName::CpuSamples, ProbeName::Tail];
    if unread.iter().any(|probe| rec.probe_absence(*probe).is_some()) || rec.meta.ended == Ended::CutOff {
        return None;
    }
    let mut all = 0;
    let mut cut: BTreeMap<u32, u64> = BTreeMap::new();
    for sample in rec.samples.iter().filter(|s| s.deep) {
        let Some(stack) = sample.user.and_then(|s| rec.stacks.get(s as usize)) else { continue };
        all += 1;
        let outermost = stack.frames.last().and_then(|f| rec.frames.get(*f as usize));
        let Some(frame) = outermost.filter(|_| !stack.complete && stack.frames.len() <= SHORT) else {
            continue;
        };
        // Go's code has frame pointers; its stacks end where the scheduler switches them.
        let of_go = |m: u32| rec.modules.get(m as usize).is_some_and(|module| module.role == ModuleRole::Go);
        let at_root = frame.symbol.as_deref().is_some_and(symbols::is_root);
        if let Some(module) = frame.module.filter(|m| !at_root && !of_go(*m)) {
            *cut.entry(module).or_default() += 1;
        }
    }
    let missing: u64 = cut.values().sum();
    if all < LEAST_SAMPLES || (missing as f64) < MUCH * all as f64 {
        return None;
    }
    let (most, _) = cut.iter().max_by_key(|(_, count)| **count)?;
    let module = rec.modules.get(*most as usize)?;
    let file = match basename(&module.path).trim_matches(['[', ']']) {
        "unknown" => "code of no known file",
        file => file,
    };
    let detail = format!(
        "the callers of {:.0} % of the samples are unknown, most often in {file}: either it has no unwind tables and no frame pointers there, or a function's frame is larger than the part of the stack that a sample copies",
        missing as f64 / all as f64 * 100.0
    );
    let absence = Absence::new(Reason::NotFound, detail);
    let java = rec.processes.iter().any(|p| matches!(p.runtime, Ok(Runtime::Jvm { .. })));
    Some(match module.role {
        ModuleRole::Jit if java => absence.mend("start java with -XX:+PreserveFramePointer"),
        ModuleRole::Jit => absence,
        _ => absence.mend(format!(
            "build {file} with unwind tables (-fasynchronous-unwind-tables) or -fno-omit-frame-pointer; if it has .eh_frame already (readelf -S), move large arrays from its stack to the heap"
        )),
    })
}

/// If much of the CPU time is in generated code without names: how to get the names.
fn nameless_code(rec: &Recording, bill: &Bill) -> Option<Absence> {
    if nameless(rec, bill, ModuleRole::Jit, |site| site.function == NO_SYMBOL) < MUCH {
        return None;
    }
    let process =
        rec.processes.iter().find(|p| matches!(p.runtime, Ok(Runtime::Jvm { .. } | Runtime::Node { .. })))?;
    let ended = process.ended || matches!(rec.meta.ended, Ended::TargetExited { .. });
    let mend = match process.runtime {
        Ok(Runtime::Jvm { .. }) if ended => {
            "start it again, and run jcmd PID Compiler.perfmap (JDK 17 or newer) while it is diagnosed"
                .to_string()
        }
        Ok(Runtime::Jvm { .. }) => {
            format!("run jcmd {} Compiler.perfmap (JDK 17 or newer), then diagnose again", process.pid)
        }
        _ => "start node with --perf-basic-prof".to_string(),
    };
    // The file has its number in its own PID namespace and lies below its own root directory.
    let pid = process.pid;
    let name = format!("/tmp/perf-{}.map", process.pid_inside.unwrap_or(pid));
    let detail = match ended {
        true => format!("process {pid} wrote no {name}"),
        false => format!("/proc/{pid}/root{name} does not exist"),
    };
    Some(Absence::new(Reason::NotFound, detail).mend(mend))
}

/// What the recording cost, in a few words.
pub(super) fn own_cost_brief(rec: &Recording) -> String {
    let lost = match rec.meta.lost_records {
        0 => String::new(),
        n => format!(" and lost {} {}", thousands(n), plural(n, "record")),
    };
    format!("allocwall used {:.2} CPU-s{lost}", rec.meta.own_cpu_ns as f64 / 1e9)
}

pub(crate) fn own_cost(page: &mut Page, rec: &Recording, bill: &Bill) {
    let own = rec.meta.own_cpu_ns as f64 / 1e9;
    let of_target = if bill.cpu_s > 0.0 {
        format!(" ({:.1} % of the target's)", own / bill.cpu_s * 100.0)
    } else {
        String::new()
    };
    let lost = match rec.meta.lost_records {
        0 => String::new(),
        n => format!("; {} {} lost", thousands(n), plural(n, "record")),
    };
    page.wrapped(2, &format!("allocwall itself used {own:.2} CPU-s{of_target}{lost}."), Ink::Faint);
    if let Ok(SmapsCost { reads, ns }) = rec.smaps_cost
        && reads > 0
    {
        let text = format!(
            "Its {} of smaps_rollup took {:.1} ms; calls that map memory may have waited.",
            count(reads as usize, "reading"),
            ns as f64 / 1e6
        );
        page.wrapped(2, &text, Ink::Faint);
    }
    let counting = rec.counting_s();
    if counting > 0.0 {
        let share = counting / (bill.cpu_s + counting) * 100.0;
        let text = format!(
            "Counting took {share:.1} % of the CPU time ({counting:.2} CPU-s); it is not on the bill."
        );
        page.wrapped(2, &text, Ink::Faint);
    }
}

pub(crate) fn reason_and_mend(absence: &Absence) -> String {
    match absence.advice() {
        Some(advice) => format!("{}. To measure it: {advice}", absence.detail.trim_end_matches('.')),
        None => absence.detail.clone(),
    }
}
