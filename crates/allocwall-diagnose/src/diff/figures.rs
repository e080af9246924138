//! What is compared, and its value in one recording with its interval.

use super::Unit;
use crate::bill::{
    Bill, Caller, Classified, Classifier, NO_CALLERS, NO_SYMBOL, NO_USER_STACK, block_of, blocks, callers,
};
use crate::series;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{ProbeName, Recording, Tick, gained};
use allocwall_model::resident::ResidentOwner;
use allocwall_model::stats::{proportion_over_time, ratio_over_blocks};
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

/// Call sites that are compared: those with most time in either recording.
const SITES: usize = 12;

/// One recording, what is counted per unit of work, and the number of units in its window.
pub struct Side<'a> {
    pub recording: &'a Recording,
    pub bill: &'a Bill,
    pub units: Option<f64>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// CPU time per second, or per unit of work.
    Cpu,
    /// A wall that is several lines of the bill.
    Wall(Wall),
    Line(CostClass),
    Wait(WaitClass),
    MinorFaults,
    MajorFaults,
    Resident,
    Owner(ResidentOwner),
    /// CPU time in the lines of memory below a call site.
    Site(String),
}

/// A value with its 95 % interval, and the number of slices of time from which this was computed. Without slices, the interval is the
/// range of the values that were read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Figure {
    pub value: Interval,
    pub slices: Option<usize>,
}

impl Quantity {
    /// All but the call sites.
    pub fn all() -> impl Iterator<Item = Quantity> {
        let walls = Wall::ALL.into_iter().filter(|wall| wall.lines().len() > 1);
        [Quantity::Cpu]
            .into_iter()
            .chain(walls.map(Quantity::Wall))
            .chain(CostClass::ALL.into_iter().map(Quantity::Line))
            .chain(WaitClass::ALL.into_iter().map(Quantity::Wait))
            .chain([Quantity::MinorFaults, Quantity::MajorFaults, Quantity::Resident])
            .chain(ResidentOwner::ALL.into_iter().map(Quantity::Owner))
    }

    /// Stable key of the JSON format. That of a call site is its function.
    pub fn key(&self) -> String {
        match self {
            Quantity::Cpu => "cpu".into(),
            Quantity::Wall(wall) => wall.key().into(),
            Quantity::Line(class) => class.key().into(),
            Quantity::Wait(class) => format!("wait_{}", class.key()),
            Quantity::MinorFaults => "minor_faults".into(),
            Quantity::MajorFaults => "major_faults".into(),
            Quantity::Resident => "resident".into(),
            Quantity::Owner(owner) => format!("resident_{}", owner.key()),
            Quantity::Site(function) => format!("site:{function}"),
        }
    }

    pub fn title(&self) -> String {
        match self {
            Quantity::Wall(wall) => wall.title().into(),
            Quantity::Wait(class) => class.title().into(),
            Quantity::MajorFaults => "major page faults".into(),
            // The same figures as in a series.
            Quantity::Cpu => series::Quantity::Cpus.title(),
            Quantity::Line(class) => series::Quantity::Line(*class).title(),
            Quantity::MinorFaults => series::Quantity::MinorFaults.title(),
            Quantity::Resident => series::Quantity::Resident.title(),
            Quantity::Owner(owner) => series::Quantity::Owner(*owner).title(),
            Quantity::Site(function) => format!("memory work in {function}"),
        }
    }

    pub fn unit(&self, per_unit: bool) -> Unit {
        match self {
            Quantity::Cpu if per_unit => Unit::SecondsPerUnit,
            Quantity::Cpu => Unit::Cpus,
            Quantity::Wall(_) | Quantity::Line(_) | Quantity::Site(_) => Unit::Share,
            Quantity::Wait(_) => Unit::Threads,
            Quantity::MinorFaults | Quantity::MajorFaults if per_unit => Unit::PerUnit,
            Quantity::MinorFaults | Quantity::MajorFaults => Unit::PerSecond,
            Quantity::Resident | Quantity::Owner(_) => Unit::Bytes,
        }
    }

    /// Two values that differ by less are the same: an amount, and a part of the larger value. Our choice. One point of CPU is half of
    /// what a series of windows asks for, because here the interval must be within it.
    pub fn margin(&self, per_unit: bool) -> (f64, f64) {
        match self {
            Quantity::Cpu if per_unit => (0.0, 0.05),
            Quantity::Cpu => (0.05, 0.05),
            // The kernel counts some of them exactly, which leaves no interval for how they vary.
            Quantity::Wait(_) => (0.05, 0.2),
            Quantity::Wall(_) | Quantity::Line(_) | Quantity::Site(_) => (0.01, 0.0),
            Quantity::MinorFaults | Quantity::MajorFaults if per_unit => (1.0, 0.1),
            Quantity::MinorFaults => (1_000.0, 0.1),
            Quantity::MajorFaults => (10.0, 0.1),
            Quantity::Resident | Quantity::Owner(_) => (f64::from(4 << 20), 0.05),
        }
    }

    /// `other` is the recording with which it is compared. Call sites have their own function: [`sites`].
    pub fn of(&self, side: &Side, other: &Side) -> Measured<Figure> {
        let Side { recording, bill, units } = side;
        let per_unit = |figure: Figure| match units {
            Some(units) => {
                Figure { value: figure.value.scaled(bill.window_s / units.max(f64::MIN_POSITIVE)), ..figure }
            }
            None => figure,
        };
        match self {
            Quantity::Cpu => over_time(recording, |t| Some(t.user_ns.wrapping_add(t.system_ns)))
                .map(|figure| per_unit(Figure { value: figure.value.scaled(1e-9), ..figure })),
            Quantity::Wall(wall) => share(side, other, wall.lines()),
            Quantity::Line(class) => share(side, other, &[*class]),
            Quantity::Wait(class) => {
                let line = bill.off_cpu.iter().find(|line| line.class == *class);
                let line = line.ok_or_else(|| Absence::new(Reason::NotFound, "no such line"))?;
                let time = line.thread_s.clone()?;
                let value = time.scaled(1.0 / bill.window_s.max(1e-9));
                Ok(Figure { value, slices: Some(blocks(recording)) })
            }
            Quantity::MinorFaults => over_time(recording, |t| Some(t.minor_faults)).map(per_unit),
            Quantity::MajorFaults => over_time(recording, |t| Some(t.major_faults)).map(per_unit),
            Quantity::Resident => resident(recording),
            Quantity::Owner(owner) => {
                let memory = recording.resident.as_ref().map_err(Clone::clone)?;
                let value = Interval::exact(memory.resident_bytes(|of| of == *owner));
                Ok(Figure { value, slices: None })
            }
            Quantity::Site(_) => Err(Absence::new(Reason::NotApplicable, "call sites are compared together")),
        }
    }
}

fn share(Side { recording, bill, .. }: &Side, other: &Side, classes: &[CostClass]) -> Measured<Figure> {
    let kernels = [recording, other.recording].map(|recording| recording.meta.kernel_samples);
    // Without kernel stacks, all kernel time is on this line.
    if classes == [CostClass::UnnamedKernel] && kernels[0] != kernels[1] {
        return Err(Absence::new(Reason::NotApplicable, "kernel stacks were sampled in one recording only"));
    }
    let sampled = bill.sampled.as_ref().map_err(Clone::clone)?;
    let in_kernel = classes.iter().any(|class| class.is_named_kernel());
    if in_kernel && !recording.meta.kernel_samples {
        let otherwise = || Absence::new(Reason::NotPermitted, "kernel stacks were not sampled");
        return Err(recording.probe_absence(ProbeName::KernelStacks).unwrap_or_else(otherwise));
    }
    let mut value = sampled.share(classes);
    let unnamed = sampled.share(&[CostClass::UnnamedKernel]);
    if in_kernel && unnamed.point > 0.0 {
        value.high = (value.high + unnamed.high).min(1.0);
    }
    Ok(Figure { value, slices: Some(blocks(recording)) })
}

/// The growth of a cumulative counter per second.
fn over_time(recording: &Recording, read: impl Fn(&Tick) -> Option<u64>) -> Measured<Figure> {
    let mut slices = vec![(0.0, 0.0); blocks(recording)];
    let count = slices.len();
    for pair in recording.ticks.windows(2) {
        let (from, to) = (&pair[0], &pair[1]);
        let grown = read(from).zip(read(to)).and_then(|(from, to)| gained(from, to));
        if let (Some(grown), true) = (grown, to.t_ns > from.t_ns) {
            let slice = &mut slices[block_of(from.t_ns / 2 + to.t_ns / 2, recording, count)];
            slice.0 += grown as f64;
            slice.1 += (to.t_ns - from.t_ns) as f64 / 1e9;
        }
    }
    slices.retain(|slice| slice.1 > 0.0);
    let value = ratio_over_blocks(&slices).ok_or_else(|| {
        Absence::new(Reason::TooLittle, "too few readings of the process counters for an interval")
    })?;
    Ok(Figure {
        value: Interval::new(value.low.max(0.0), value.point, value.high),
        slices: Some(slices.len()),
    })
}

/// The last reading, and the range of those in the second half of the window: a program that was launched grows in the first.
fn resident(recording: &Recording) -> Measured<Figure> {
    let half = recording.meta.window_ns / 2;
    let late = || recording.ticks.iter().filter(|tick| tick.t_ns >= half && tick.resident > 0);
    let read = || late().map(|tick| tick.resident as f64);
    let last =
        read().next_back().ok_or_else(|| Absence::new(Reason::Vanished, "resident memory was not read"))?;
    let value = Interval::new(read().fold(last, f64::min), last, read().fold(last, f64::max));
    Ok(Figure { value, slices: None })
}

/// Memory work of a call site, as shares of CPU time in both recordings.
pub struct Site {
    pub function: String,
    /// Below no other call site.
    pub own: [Figure; 2],
    /// Also below the functions that it calls.
    pub with_callees: [Interval; 2],
}

/// The call sites with most memory work in either recording. None without samples, or if only one recording has the kernel's: much
/// memory work is there.
pub fn sites(before: &Side, after: &Side) -> Vec<Site> {
    if before.recording.meta.kernel_samples != after.recording.meta.kernel_samples {
        return vec![];
    }
    let [Some(before), Some(after)] = [before, after].map(Callers::of) else { return vec![] };
    let wanted: BTreeSet<&str> = before.most().chain(after.most()).collect();
    let callees = [&before, &after].map(|side| side.with_callees(&wanted));
    let sites = wanted.iter().enumerate().map(|(nth, site)| Site {
        function: (*site).to_owned(),
        own: [before.figure(site), after.figure(site)],
        with_callees: [before.share(&callees[0][nth]), after.share(&callees[1][nth])],
    });
    sites.collect()
}

/// Samples by call site in slices of the window.
struct Callers<'a> {
    recording: &'a Recording,
    classifier: Classifier<'a>,
    /// Those in lines of memory.
    by_site: BTreeMap<Cow<'a, str>, Vec<u64>>,
    by_caller: BTreeMap<Caller<'a>, Vec<u64>>,
    all: Vec<u64>,
}

impl<'a> Callers<'a> {
    fn of(side: &Side<'a>) -> Option<Callers<'a>> {
        let recording = side.recording;
        side.bill.on_cpu.as_ref().ok()?;
        let Classified { classifier, classes } = Classified::of(recording);
        let count = blocks(recording);
        let (mut by_caller, mut all) = (BTreeMap::<Caller, Vec<u64>>::new(), vec![0; count]);
        for ((sample, class), caller) in
            recording.samples.iter().zip(classes).zip(callers(recording, &classifier))
        {
            let Some(caller) = caller else { continue };
            let at = block_of(sample.t_ns, recording, count);
            all[at] += 1;
            if Wall::ALL.into_iter().any(|wall| wall.lines().contains(&class)) {
                by_caller.entry(caller).or_insert_with(|| vec![0; count])[at] += 1;
            }
        }
        let mut by_site = BTreeMap::<Cow<str>, Vec<u64>>::new();
        for (caller, hits) in &by_caller {
            add(by_site.entry(caller.site()).or_insert_with(|| vec![0; count]), hits);
        }
        Some(Callers { recording, classifier, by_site, by_caller, all })
    }

    /// The samples in lines of memory with each of these functions anywhere on the stack.
    fn with_callees(&self, wanted: &BTreeSet<&str>) -> Vec<Vec<u64>> {
        let mut found = vec![vec![0; self.all.len()]; wanted.len()];
        for (caller, hits) in &self.by_caller {
            let on_stack: BTreeSet<Cow<str>> =
                caller.all(self.recording, &self.classifier).into_iter().collect();
            for (site, found) in wanted.iter().zip(&mut found) {
                if on_stack.contains(*site) {
                    add(found, hits);
                }
            }
        }
        found
    }

    fn most(&self) -> impl Iterator<Item = &str> {
        let named = self
            .by_site
            .iter()
            .filter(|(site, _)| ![NO_CALLERS, NO_SYMBOL, NO_USER_STACK].contains(&&***site));
        let mut sites: Vec<(u64, &str)> = named.map(|(site, hits)| (hits.iter().sum(), &**site)).collect();
        sites.sort_by_key(|(hits, _)| std::cmp::Reverse(*hits));
        sites.into_iter().take(SITES).map(|(_, site)| site)
    }

    fn figure(&self, site: &str) -> Figure {
        let none = vec![0; self.all.len()];
        Figure { value: self.share(self.by_site.get(site).unwrap_or(&none)), slices: Some(self.all.len()) }
    }

    fn share(&self, hits: &[u64]) -> Interval {
        let slices: Vec<(u64, u64)> = hits.iter().copied().zip(self.all.iter().copied()).collect();
        proportion_over_time(&slices)
    }
}

fn add(sums: &mut [u64], hits: &[u64]) {
    sums.iter_mut().zip(hits).for_each(|(sum, hits)| *sum += hits);
}
