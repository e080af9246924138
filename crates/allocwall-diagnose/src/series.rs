//! One verdict over a series of windows of the same target: which walls last, in which windows, and what grew since when. Pure: it uses
//! only the bills and the verdicts of the windows.

use crate::bill::Bill;
use crate::context::{percent, percent_interval};
use crate::{Prescription, Reach, Status, Verdict, Whole, reach};
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::thresholds;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::Recording;
use allocwall_model::resident::ResidentOwner;
use allocwall_model::stats::several::{ALPHA, holm};
use allocwall_model::stats::trend::{self, Step};
use allocwall_model::stats::{median, ratio_over_blocks};
use allocwall_model::units::{Absence, Interval, Measured, Reason, count};

/// A wall lasts if it is one in so many windows in a row. A window that did not measure it is skipped.
const LASTS: usize = 2;
/// The fewest windows in which a rise can be distinguished from chance: see `stats::trend`.
pub const FEWEST: usize = 5;
/// Remedies that are kept of each window.
const REMEDIES: usize = 3;
/// Spans of a wall that the sentence names.
const SPANS: usize = 3;

/// The windows of a target.
#[derive(Clone, Debug)]
pub struct Series {
    /// What is diagnosed, as text from another process.
    pub target: String,
    pub planned: usize,
    /// From the start of a window to the start of the next one.
    pub every_s: f64,
    /// At least one.
    pub windows: Vec<Window>,
    /// Why there are fewer windows than planned, in one line.
    pub ended: Option<String>,
}

/// What is kept of one window.
#[derive(Clone, Debug)]
pub struct Window {
    /// Its start, since the start of the series.
    pub at_s: f64,
    pub length_s: f64,
    pub cpu_s: f64,
    /// Its own verdict.
    pub sentence: String,
    /// Worst first.
    pub walls: Vec<Wall>,
    pub reach: Reach,
    /// Whether it has a bill of CPU time.
    pub sampled: bool,
    /// In the order of the ladder.
    pub found: Vec<Found>,
    /// In the order of [`Quantity::all`].
    pub figures: Vec<Measured<f64>>,
    /// Those that come first.
    pub remedies: Vec<Prescription>,
    /// The recording, if it was kept.
    pub file: Option<String>,
}

/// A finding of a window, without its texts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Found {
    pub wall: Wall,
    pub status: Status,
    pub share: Option<Interval>,
    pub of: Whole,
}

/// What is followed from window to window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quantity {
    /// CPU time per second.
    Cpus,
    Threads,
    /// A line of the bill, as a share of the CPU time.
    Line(CostClass),
    /// Threads that wait for a lock, on average.
    Lock(WaitClass),
    MinorFaults,
    Resident,
    /// Of the processes that were read.
    Owner(ResidentOwner),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Cpus,
    Threads,
    Share,
    PerSecond,
    Bytes,
}

/// How a quantity went over the windows.
#[derive(Clone, Debug, PartialEq)]
pub struct Course {
    pub quantity: Quantity,
    /// In the first and in the last window that have it.
    pub first: Option<f64>,
    pub last: Option<f64>,
    /// Per second, with its 95 % interval. None in fewer than five windows.
    pub slope: Option<Interval>,
    pub change: Change,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Since the window with this index.
    Rose {
        since: usize,
    },
    Fell,
    Steady,
    /// Why it cannot be judged.
    Unjudged(Absence),
}

/// A wall of the series.
#[derive(Clone, Debug, PartialEq)]
pub struct Lasting {
    pub wall: Wall,
    /// The first and the last window of each time in which it lasted. Empty if it is a wall only of all windows together.
    pub spans: Vec<(usize, usize)>,
    /// The number of windows in which it is a wall by itself.
    pub windows: usize,
    /// Whether it is a wall of all windows together.
    pub pooled: bool,
    pub of: Whole,
    /// In the windows of the spans; of all windows, if there is no span.
    pub share: Option<Interval>,
    /// In the other windows that measured it.
    pub elsewhere: Option<Interval>,
}

/// A wall of single windows, which did not last.
#[derive(Clone, Debug, PartialEq)]
pub struct Brief {
    pub wall: Wall,
    pub windows: Vec<usize>,
}

#[derive(Clone, Debug)]
pub struct Judgement {
    pub sentence: String,
    /// Those that last until the end first, then as in the windows: worst first.
    pub walls: Vec<Lasting>,
    pub brief: Vec<Brief>,
    /// In the order of [`Quantity::all`].
    pub courses: Vec<Course>,
    /// Windows whose own verdict is no decision.
    pub undecided: usize,
    /// Index of the window whose report shows the worst wall, or else of the last window.
    pub example: usize,
}

impl Quantity {
    pub fn all() -> impl Iterator<Item = Quantity> {
        const LOCKS: [WaitClass; 4] =
            [WaitClass::AddressSpaceLock, WaitClass::Allocator, WaitClass::ApplicationLock, WaitClass::Gil];
        let sums = [Quantity::Cpus, Quantity::Threads].into_iter();
        sums.chain(CostClass::ALL.into_iter().map(Quantity::Line))
            .chain(LOCKS.into_iter().map(Quantity::Lock))
            .chain([Quantity::MinorFaults, Quantity::Resident])
            .chain(ResidentOwner::ALL.into_iter().map(Quantity::Owner))
    }

    /// Stable key of the JSON format.
    pub fn key(self) -> String {
        match self {
            Quantity::Cpus => "cpus".into(),
            Quantity::Threads => "threads".into(),
            Quantity::Line(class) => format!("on_cpu.{}", class.key()),
            Quantity::Lock(class) => format!("off_cpu.{}", class.key()),
            Quantity::MinorFaults => "minor_faults".into(),
            Quantity::Resident => "resident".into(),
            Quantity::Owner(owner) => format!("resident.{}", owner.key()),
        }
    }

    pub fn title(self) -> String {
        match self {
            Quantity::Cpus => "CPU time".into(),
            Quantity::Threads => "threads".into(),
            Quantity::Line(class) => class.title().into(),
            Quantity::Lock(WaitClass::ApplicationLock) => "waits for application locks".into(),
            Quantity::Lock(WaitClass::Gil) => "waits for Python's GIL".into(),
            Quantity::Lock(class) => class.title().into(),
            Quantity::MinorFaults => "minor page faults".into(),
            Quantity::Resident => "resident memory".into(),
            Quantity::Owner(owner) => format!("resident: {}", owner.title()),
        }
    }

    pub fn unit(self) -> Unit {
        match self {
            Quantity::Cpus => Unit::Cpus,
            Quantity::Threads | Quantity::Lock(_) => Unit::Threads,
            Quantity::Line(_) => Unit::Share,
            Quantity::MinorFaults => Unit::PerSecond,
            Quantity::Resident | Quantity::Owner(_) => Unit::Bytes,
        }
    }

    fn of(self, recording: &Recording, bill: &Bill) -> Measured<f64> {
        let per_second = |seconds: f64| seconds / bill.window_s.max(1e-9);
        let none = |what: &str| Absence::new(Reason::NotFound, format!("the window has no {what}"));
        match self {
            Quantity::Cpus => Ok(per_second(bill.cpu_s)),
            Quantity::Threads => Ok(f64::from(bill.rates.threads_peak)),
            Quantity::Line(class) => {
                let lines = bill.on_cpu.as_ref().map_err(Clone::clone)?;
                let line = lines.iter().find(|line| line.class == class);
                match line.ok_or_else(|| none(class.title()))? {
                    line if line.may_be_in.is_some() && line.share.point == 0.0 => Err(Absence::new(
                        Reason::NotPermitted,
                        "its code has no symbols: its share may be part of another line",
                    )),
                    line => Ok(line.share.point),
                }
            }
            Quantity::Lock(class) => {
                let line = bill.off_cpu.iter().find(|line| line.class == class);
                let line = line.ok_or_else(|| none(class.title()))?;
                line.thread_s.as_ref().map(|time| per_second(time.point)).map_err(Clone::clone)
            }
            Quantity::MinorFaults => bill.rates.minor_faults.clone(),
            Quantity::Resident if bill.rates.resident_end == 0 => {
                Err(Absence::new(Reason::Vanished, "resident memory was not read"))
            }
            Quantity::Resident => Ok(bill.rates.resident_end as f64),
            Quantity::Owner(owner) => {
                let memory = recording.resident.as_ref().map_err(Clone::clone)?;
                Ok(memory.resident_bytes(|of| of == owner))
            }
        }
    }

    /// The least change that counts, and the same as a part of the typical value. Our choice.
    fn least(self) -> (f64, f64) {
        match self {
            // The floor of most walls: 50 ms a second.
            Quantity::Cpus => (0.05, 0.05),
            Quantity::Lock(_) => (0.05, 0.0),
            Quantity::Threads => (1.0, 0.05),
            // Less than half of the threshold of a contributor.
            Quantity::Line(_) => (0.02, 0.0),
            // They take 1 to 2 ms of CPU time a second.
            Quantity::MinorFaults => (1_000.0, 0.1),
            Quantity::Resident | Quantity::Owner(_) => (f64::from(1 << 20), 0.005),
        }
    }
}

impl Unit {
    /// Stable key of the JSON format.
    pub fn key(self) -> &'static str {
        match self {
            Unit::Cpus => "cpus",
            Unit::Threads => "threads",
            Unit::Share => "share",
            Unit::PerSecond => "per_second",
            Unit::Bytes => "bytes",
        }
    }
}

impl Found {
    fn is_wall(&self) -> bool {
        self.status == Status::Wall
    }
}

impl Window {
    /// `at_s`: its start, since the start of the series.
    pub fn of(at_s: f64, recording: &Recording, bill: &Bill, verdict: &Verdict) -> Window {
        let found = verdict.findings.iter().map(|finding| Found {
            wall: finding.wall,
            status: finding.status,
            share: finding.share,
            of: finding.of,
        });
        Window {
            at_s,
            length_s: bill.window_s,
            cpu_s: bill.cpu_s,
            sentence: verdict.sentence.clone(),
            walls: verdict.walls.clone(),
            reach: reach(recording, bill, verdict),
            sampled: bill.on_cpu.is_ok(),
            found: found.collect(),
            figures: Quantity::all().map(|quantity| quantity.of(recording, bill)).collect(),
            remedies: verdict.remedies.iter().take(REMEDIES).cloned().collect(),
            file: None,
        }
    }

    fn of_wall(&self, wall: Wall) -> Option<&Found> {
        self.found.iter().find(|found| found.wall == wall)
    }
}

pub fn judge(windows: &[Window]) -> Judgement {
    let mut walls: Vec<Lasting> =
        Wall::ALL.into_iter().filter_map(|wall| Lasting::of(wall, windows)).collect();
    walls.sort_by_key(|lasting| lasting.rank(windows));
    let brief = Wall::ALL.into_iter().filter(|wall| walls.iter().all(|lasting| lasting.wall != *wall));
    let brief: Vec<Brief> = brief.filter_map(|wall| Brief::of(wall, windows)).collect();
    let courses = courses(windows);
    let undecided = windows.iter().filter(|window| window.reach != Reach::Decided).count();
    let example = walls.first().map_or(windows.len().saturating_sub(1), |worst| worst.example(windows));
    let mut judgement = Judgement { sentence: String::new(), walls, brief, courses, undecided, example };
    judgement.sentence = judgement.in_one_sentence(windows);
    judgement
}

impl Judgement {
    /// Whether a gate that forbids walls fails: as for one window, but by the walls that last, and by most of the windows.
    pub fn stops_a_gate(&self, windows: &[Window]) -> bool {
        self.walls.iter().any(|lasting| lasting.wall != Wall::Waiting) || self.is_undecided(windows)
    }

    fn is_undecided(&self, windows: &[Window]) -> bool {
        2 * self.undecided > windows.len()
    }

    /// What rose, with the index of the window since which it did.
    pub fn rises(&self) -> impl Iterator<Item = (&Course, usize)> {
        self.courses.iter().filter_map(|course| match course.change {
            Change::Rose { since } => Some((course, since)),
            _ => None,
        })
    }

    fn in_one_sentence(&self, windows: &[Window]) -> String {
        let n = windows.len();
        let rose = || {
            let mut rises = self.rises();
            let Some((course, since)) = rises.next() else { return String::new() };
            let more = match rises.count() {
                0 => String::new(),
                more => format!(", and {more} more"),
            };
            format!(" But {} rose since window {}{more}.", course.quantity.title(), since + 1)
        };
        match (windows, &self.walls[..]) {
            ([], _) => "No window was recorded.".into(),
            ([only], _) => format!("Only one window: {}", only.sentence),
            (_, [worst, others @ ..]) => {
                let others: Vec<&str> = others
                    .iter()
                    .filter(|lasting| lasting.wall != Wall::Waiting)
                    .map(|lasting| lasting.wall.title())
                    .take(2)
                    .collect();
                let also =
                    if others.is_empty() { String::new() } else { format!(" Also: {}.", others.join(", ")) };
                format!("{}{also}", worst.in_one_sentence(windows))
            }
            (_, []) if self.is_undecided(windows) => {
                let last = windows.iter().rev().find(|window| window.reach != Reach::Decided);
                let sentence = last.map_or("", |window| window.sentence.as_str());
                format!("Undecided in {} of {n} windows. The last of these: {sentence}", self.undecided)
            }
            (_, []) => match self.brief.first() {
                Some(Brief { wall, windows }) => {
                    let windows: Vec<String> = windows.iter().map(|nth| (nth + 1).to_string()).collect();
                    let noun = if windows.len() == 1 { "window" } else { "single windows" };
                    format!(
                        "No wall lasts; {} is one in {noun} {}.{}",
                        wall.title(),
                        windows.join(", "),
                        rose()
                    )
                }
                None => format!("No wall in any of the {n} windows.{}", rose()),
            },
        }
    }
}

impl Lasting {
    fn of(wall: Wall, windows: &[Window]) -> Option<Lasting> {
        let judged: Vec<(usize, &Found)> = windows
            .iter()
            .enumerate()
            .filter_map(|(nth, window)| Some((nth, window.of_wall(wall)?)))
            .filter(|(_, found)| found.status != Status::NotMeasured)
            .collect();
        let spans: Vec<(usize, usize)> = judged
            .chunk_by(|a, b| a.1.is_wall() == b.1.is_wall())
            .filter(|run| run.len() >= LASTS && run[0].1.is_wall())
            .map(|run| (run[0].0, run[run.len() - 1].0))
            .collect();
        let of = judged.last()?.1.of;
        let shares = |wanted: &dyn Fn(usize) -> bool| {
            let shares = judged.iter().filter(|(nth, found)| wanted(*nth) && found.of == of);
            let weighted = shares.filter_map(|(nth, found)| {
                let window = &windows[*nth];
                let weight = if of == Whole::Cpu { window.cpu_s } else { window.length_s };
                Some((weight, found.share?))
            });
            mean(&weighted.collect::<Vec<_>>())
        };
        let all = shares(&|_| true);
        let threshold = thresholds::of(wall).wall_from;
        let alone = judged.iter().filter(|(_, found)| found.is_wall()).count();
        // Its share is that of a wall, but the ladder has another name for it, or it is too little to notice.
        let withheld = judged
            .iter()
            .filter(|(_, found)| !found.is_wall() && found.share.is_some_and(|share| share.low >= threshold))
            .count();
        let above = all.is_some_and(|share| share.low >= threshold);
        let pooled = judged.len() >= LASTS && above && alone > 0 && alone >= withheld;
        if spans.is_empty() && !pooled {
            return None;
        }
        let within = |nth: usize| spans.iter().any(|(from, to)| (*from..=*to).contains(&nth));
        let (share, elsewhere) = match spans.is_empty() {
            true => (all, None),
            false => (shares(&within), shares(&|nth| !within(nth))),
        };
        Some(Lasting { wall, windows: alone, pooled, of, share, elsewhere, spans })
    }

    /// Smaller for what comes first.
    fn rank(&self, windows: &[Window]) -> (bool, bool, usize) {
        let ends = self.spans.last().map_or(windows.len(), |(_, to)| to + 1);
        let place = windows[self.example(windows)].walls.iter().position(|wall| *wall == self.wall);
        (self.wall == Wall::Waiting, ends < windows.len(), place.unwrap_or(usize::MAX))
    }

    /// The last window in which it is a wall by itself.
    fn example(&self, windows: &[Window]) -> usize {
        windows.iter().rposition(|window| window.walls.contains(&self.wall)).unwrap_or(0)
    }

    fn in_one_sentence(&self, windows: &[Window]) -> String {
        let places = self.places(windows);
        if self.wall == Wall::Waiting {
            return format!("This is not a CPU problem: the target waited, {places}.");
        }
        let share = self
            .share
            .map_or(String::new(), |share| format!(": {} {}", percent_interval(share), self.whole()));
        let elsewhere = self.elsewhere.map_or(String::new(), |other| {
            let where_else = match self.spans[..] {
                [(_, to)] if to + 1 == windows.len() => "before",
                _ => "in the other windows",
            };
            format!("; {} {where_else}", percent(other.point))
        });
        format!("The wall is {}, {places}{share}{elsewhere}.", self.wall.title())
    }

    /// In which windows: `since window 7 of 12 (6 min after the start)`.
    pub fn places(&self, windows: &[Window]) -> String {
        let n = windows.len();
        match self.spans[..] {
            [] => format!("over all {n} windows together, by itself in {} of them", self.windows),
            [(0, to)] if to + 1 == n && self.windows < n => {
                format!("in all {} of {n} windows that measured it", self.windows)
            }
            [(0, to)] if to + 1 == n => format!("in all {n} windows"),
            // If no window before measured it, it may be older.
            [(from, to)] if to + 1 == n && self.elsewhere.is_some() => {
                format!("since window {} of {n} ({} after the start)", from + 1, time(windows[from].at_s))
            }
            ref spans => {
                let mut shown: Vec<String> = spans
                    .iter()
                    .take(SPANS)
                    .map(|(from, to)| format!("{} to {}", from + 1, to + 1))
                    .collect();
                if spans.len() > SPANS {
                    shown.push(count(spans.len() - SPANS, "more time"));
                }
                format!("in windows {} of {n}", shown.join(" and "))
            }
        }
    }

    /// What its shares are of, for people.
    pub fn whole(&self) -> &'static str {
        whole(self.wall, self.of)
    }
}

/// What the shares of a wall are of, for people.
pub fn whole(wall: Wall, of: Whole) -> &'static str {
    match (wall, of) {
        (Wall::CgroupThrottling | Wall::Steal | Wall::RunQueue, _) => "of runnable time",
        (_, Whole::Cpu) => "of CPU",
        (_, Whole::ThreadTime) => "of working time",
        (_, Whole::WallTime) => "of the time",
        (_, Whole::Segments) => "of TCP segments",
        (_, Whole::Resident) => "of resident memory",
    }
}

impl Brief {
    fn of(wall: Wall, windows: &[Window]) -> Option<Brief> {
        let found = windows.iter().enumerate().filter(|(_, window)| window.walls.contains(&wall));
        let windows: Vec<usize> = found.map(|(nth, _)| nth).collect();
        (!windows.is_empty()).then_some(Brief { wall, windows })
    }
}

/// The mean of shares with weights. Its interval holds the errors in the windows, and the differences between them; at each end, the wider
/// one. With two windows, it holds both intervals.
fn mean(shares: &[(f64, Interval)]) -> Option<Interval> {
    let whole: f64 = shares.iter().map(|(weight, _)| weight).sum();
    if whole <= 0.0 {
        return None;
    }
    let point = shares.iter().map(|(weight, share)| weight * share.point).sum::<f64>() / whole;
    let error = |end: &dyn Fn(&Interval) -> f64| {
        let squares = shares.iter().map(|(weight, share)| (weight * (share.point - end(share))).powi(2));
        squares.sum::<f64>().sqrt() / whole
    };
    let (low, high) = (point - error(&|share| share.low), point + error(&|share| share.high));
    let blocks: Vec<(f64, f64)> =
        shares.iter().map(|(weight, share)| (weight * share.point, *weight)).collect();
    let (low, high) = match ratio_over_blocks(&blocks) {
        Some(between) => (low.min(between.low), high.max(between.high)),
        None => shares
            .iter()
            .fold((low, high), |ends, (_, share)| (ends.0.min(share.low), ends.1.max(share.high))),
    };
    Some(Interval::new(low.max(0.0), point, high.min(1.0)))
}

/// The values of a quantity in the windows that have it.
struct Taken {
    quantity: Quantity,
    /// Indices of the windows.
    windows: Vec<usize>,
    /// Time and value.
    points: Vec<(f64, f64)>,
    /// By more than what counts. It may be chance.
    step: Option<Step>,
    missing: Option<Absence>,
}

/// The quantities that are tested, each for a trend and for a step.
struct Family {
    quantities: usize,
    /// The fewest windows that can show a trend, and a step, among them.
    for_a_trend: usize,
    for_a_step: usize,
}

fn courses(windows: &[Window]) -> Vec<Course> {
    let taken: Vec<Taken> = Quantity::all().enumerate().map(|(nth, q)| Taken::of(q, nth, windows)).collect();
    let family = Family::of(taken.iter().filter(|taken| taken.is_tested()).count());
    let mut tests: Vec<[Option<f64>; 2]> = taken.iter().map(|taken| taken.tests(&family)).collect();
    let p: Vec<f64> = tests.iter().flatten().flatten().copied().collect();
    for (p, adjusted) in tests.iter_mut().flatten().flatten().zip(holm(&p)) {
        *p = adjusted;
    }
    taken.iter().zip(tests).map(|(taken, p)| taken.course(p, &family)).collect()
}

impl Family {
    fn of(quantities: usize) -> Family {
        let level = |tests: usize| ALPHA / tests as f64;
        Family {
            quantities,
            for_a_trend: trend::fewest_for_a_trend(level(quantities)),
            for_a_step: trend::fewest_for_a_step(level(2 * quantities)),
        }
    }

    /// Why so few windows, in which a quantity varies without a trend, don't show that it made no step.
    fn too_few(&self, windows: usize) -> Absence {
        let what = if windows < self.for_a_trend { "a trend or a step" } else { "a step" };
        let among = match self.quantities {
            1 => "in one figure".to_owned(),
            more => format!("among {more} figures"),
        };
        let n = count(windows, "window");
        let detail = format!("{n} can't show {what} {among}; at least {} are needed", self.for_a_step);
        Absence::new(Reason::TooLittle, detail)
    }
}

impl Taken {
    fn of(quantity: Quantity, nth: usize, windows: &[Window]) -> Taken {
        let mut taken = Taken { quantity, windows: vec![], points: vec![], step: None, missing: None };
        for (at, window) in windows.iter().enumerate() {
            match window.figures.get(nth) {
                Some(Ok(value)) if value.is_finite() => {
                    taken.windows.push(at);
                    taken.points.push((window.at_s, *value));
                }
                Some(Err(absence)) => _ = taken.missing.get_or_insert_with(|| absence.clone()),
                _ => {}
            }
        }
        taken.step = trend::step(&taken.values(), taken.least());
        taken
    }

    fn values(&self) -> Vec<f64> {
        self.points.iter().map(|(_, value)| *value).collect()
    }

    fn least(&self) -> f64 {
        let (least, part) = self.quantity.least();
        least.max(part * median(&self.values()).unwrap_or(0.0))
    }

    /// Whether the values differ by more than what counts.
    fn varies(&self) -> bool {
        let values = || self.points.iter().map(|(_, value)| *value);
        values().fold(f64::NEG_INFINITY, f64::max) - values().fold(f64::INFINITY, f64::min) > self.least()
    }

    /// What varies too little to matter is not tested. How much values vary says nothing about their order, so this does not bias the
    /// tests of the others.
    fn is_tested(&self) -> bool {
        self.points.len() >= FEWEST && self.varies()
    }

    /// The p-values of no trend and of no step; None for what is not tested. In too few windows for any step to be shown, a test for
    /// it would only take from the others. That too says nothing about the order of the values.
    fn tests(&self, family: &Family) -> [Option<f64>; 2] {
        if !self.is_tested() {
            return [None; 2];
        }
        let of_step = || self.step.map_or(1.0, |step| step.p);
        [Some(trend::p_value(&self.values())), (self.points.len() >= family.for_a_step).then(of_step)]
    }

    /// `p`: those of [`Taken::tests`], adjusted for all tests of the series.
    fn course(&self, p: [Option<f64>; 2], family: &Family) -> Course {
        Course {
            quantity: self.quantity,
            first: self.points.first().map(|(_, value)| *value),
            last: self.points.last().map(|(_, value)| *value),
            slope: trend::slope(&self.points),
            change: self.change(p, family),
        }
    }

    /// How much the last third is above the first one. The median slope of something that rose late is smaller than its rise.
    fn rise(&self) -> f64 {
        let (values, n) = (self.values(), self.points.len());
        let third = n / 3;
        let typical = |part: &[f64]| median(part).unwrap_or(0.0);
        typical(&values[n - third..]) - typical(&values[..third])
    }

    fn change(&self, [of_trend, of_step]: [Option<f64>; 2], family: &Family) -> Change {
        let (n, least) = (self.points.len(), self.least());
        if n < FEWEST {
            let detail = format!("{}: at least {FEWEST} are needed", count(n, "window"));
            let few = || Absence::new(Reason::TooLittle, detail);
            return Change::Unjudged(self.missing.clone().unwrap_or_else(few));
        }
        let Some(p) = of_trend else { return Change::Steady };
        let rise = self.rise();
        let has_trend = p <= ALPHA && rise.abs() >= least;
        // A slow rise can have the shape of a step by chance. The clearer one counts.
        let has_step = of_step.is_some_and(|of_step| of_step <= ALPHA && (!has_trend || of_step <= p));
        match (self.step, of_step) {
            (Some(step), _) if has_step && step.rises => Change::Rose { since: self.windows[step.from] },
            (Some(_), _) if has_step => Change::Fell,
            _ if has_trend && rise > 0.0 => Change::Rose { since: self.windows[trend::begins(&self.points)] },
            _ if has_trend => Change::Fell,
            (_, None) => Change::Unjudged(family.too_few(n)),
            (Some(step), _) => {
                let place = self.windows[step.from] + 1;
                let detail = format!("the step in window {place} may be chance; more windows would decide");
                Change::Unjudged(Absence::new(Reason::TooLittle, detail))
            }
            _ => Change::Steady,
        }
    }
}

/// A time since the start of the series, for people.
pub fn time(seconds: f64) -> String {
    let (value, unit) = match seconds {
        s if s < 10.0 => (s, "s"),
        s if s < 120.0 => return format!("{s:.0} s"),
        s if s < 7_200.0 => (s / 60.0, "min"),
        s => (s / 3_600.0, "h"),
    };
    let value = format!("{value:.1}");
    format!("{} {unit}", value.trim_end_matches(".0"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Subject, computing, resident_bill};
    use allocwall_model::resident::TargetMemory;
    use allocwall_model::stats::random::Random;

    /// One window a minute of a target that only computes, and whatever `with` adds to the window with this index.
    fn windows(n: usize, with: impl Fn(usize, &mut Subject)) -> Vec<Window> {
        let window = |nth: usize| {
            let mut subject = computing();
            with(nth, &mut subject);
            Window::of(60.0 * nth as f64, &subject.recording, &subject.bill, &subject.verdict())
        };
        (0..n).map(window).collect()
    }

    /// Windows with these shares of CPU time in first touches.
    fn touching(shares: &[f64]) -> Vec<Window> {
        windows(shares.len(), |nth, subject| {
            subject.shares(&[(CostClass::FaultPath, shares[nth])]);
        })
    }

    fn course(judgement: &Judgement, quantity: Quantity) -> &Course {
        judgement.courses.iter().find(|course| course.quantity == quantity).expect("all quantities")
    }

    fn change(windows: &[Window], quantity: Quantity) -> Change {
        course(&judge(windows), quantity).change.clone()
    }

    #[test]
    fn a_storm_from_the_middle_on_lasts_and_a_single_bad_window_does_not() {
        let storm: Vec<f64> = (0..12).map(|nth| if nth < 6 { 0.01 } else { 0.4 }).collect();
        let storm = touching(&storm);
        let judged = judge(&storm);
        let [lasting] = &judged.walls[..] else { panic!("{:?}", judged.walls) };
        assert_eq!(
            (lasting.wall, &lasting.spans[..], lasting.windows),
            (Wall::FirstTouch, &[(6, 11)][..], 6)
        );
        assert!(!lasting.pooled && lasting.share.is_some_and(|share| (share.point - 0.4).abs() < 1e-9));
        let sentence = &judged.sentence;
        let begins = "The wall is first touch, since window 7 of 12 (6 min after the start): 40 % (";
        assert!(sentence.starts_with(begins) && sentence.ends_with(" of CPU; 1 % before."), "{sentence}");
        assert_eq!((judged.example, judged.stops_a_gate(&storm)), (11, true));
        assert_eq!(change(&storm, Quantity::Line(CostClass::FaultPath)), Change::Rose { since: 6 });
        assert_eq!(change(&storm, Quantity::Line(CostClass::Application)), Change::Fell);
        // The near twin: one window.
        let single: Vec<f64> = (0..12).map(|nth| if nth == 6 { 0.4 } else { 0.01 }).collect();
        let single = touching(&single);
        let judged = judge(&single);
        assert_eq!((judged.walls.len(), judged.stops_a_gate(&single)), (0, false));
        assert_eq!(judged.brief, [Brief { wall: Wall::FirstTouch, windows: vec![6] }]);
        assert_eq!(judged.sentence, "No wall lasts; first touch is one in window 7.");
        assert!(judged.courses.iter().all(|course| !matches!(course.change, Change::Rose { .. })));
        // None at all.
        let quiet = touching(&[0.01; 12]);
        let judged = judge(&quiet);
        assert_eq!(judged.sentence, "No wall in any of the 12 windows.");
        assert!(judged.walls.is_empty() && judged.brief.is_empty() && !judged.stops_a_gate(&quiet));
    }

    #[test]
    fn a_wall_that_ended_and_one_that_comes_and_goes_are_named_with_their_windows() {
        let sentence = |shares: &[f64]| judge(&touching(shares)).sentence;
        let over = sentence(&[0.4, 0.4, 0.4, 0.01, 0.01, 0.01]);
        assert!(
            over.contains("in windows 1 to 3 of 6: 40 %") && over.contains("; 1 % in the other"),
            "{over}"
        );
        let twice = sentence(&[0.4, 0.4, 0.01, 0.4, 0.4, 0.01]);
        assert!(twice.contains("in windows 1 to 2 and 4 to 5 of 6"), "{twice}");
        let always = sentence(&[0.4; 6]);
        assert!(always.starts_with("The wall is first touch, in all 6 windows: 40 % ("), "{always}");
        assert!(sentence(&[0.4]).starts_with("Only one window: First touch is the wall"));
        assert_eq!(judge(&[]).sentence, "No window was recorded.");
    }

    #[test]
    fn windows_without_samples_do_not_end_a_wall() {
        let of = |third: f64, samples: u64, status: Status| {
            let windows = windows(5, |nth, subject| {
                let (share, samples) = if nth == 2 { (third, samples) } else { (0.4, 10_000) };
                subject.shares_with_samples(&[(CostClass::KernelSlab, share)], samples);
            });
            assert_eq!(windows[2].of_wall(Wall::KernelSlab).unwrap().status, status);
            let lasting = judge(&windows).walls.remove(0);
            (lasting.places(&windows), lasting.spans)
        };
        let all = "in all 4 of 5 windows that measured it".to_owned();
        assert_eq!(of(0.4, 50, Status::NotMeasured), (all, vec![(0, 4)]));
        // The near twin: a window that rules the wall out.
        assert_eq!(of(0.0, 10_000, Status::RuledOut).1, [(0, 1), (3, 4)]);
        let mut late = touching(&[0.01, 0.4, 0.4]);
        assert_eq!(judge(&late).walls[0].places(&late), "since window 2 of 3 (60 s after the start)");
        late[0].found.iter_mut().for_each(|found| found.status = Status::NotMeasured);
        assert_eq!(judge(&late).walls[0].places(&late), "in windows 2 to 3 of 3");
    }

    /// Windows with too few samples for a wall, of which every third one shows it all the same.
    #[test]
    fn all_windows_together_convict_where_most_of_them_cannot_alone() {
        let of = |share: f64| {
            let windows = windows(12, |nth, subject| {
                let share = if nth % 3 == 0 { share + 0.09 } else { share };
                subject.shares_with_samples(&[(CostClass::FaultPath, share)], 200);
            });
            judge(&windows)
        };
        let judged = of(0.19);
        let [lasting] = &judged.walls[..] else { panic!("{:?}", judged.walls) };
        assert!(lasting.pooled && lasting.spans.is_empty() && lasting.windows == 4, "{lasting:?}");
        assert!(
            judged.sentence.contains("over all 12 windows together, by itself in 4 of them"),
            "{}",
            judged.sentence
        );
        // The near twin: single windows are above the threshold, and all together are not.
        let judged = of(0.13);
        assert!(judged.walls.is_empty(), "{:?}", judged.walls);
    }

    #[test]
    fn a_share_that_has_another_name_is_no_wall_of_all_windows() {
        let mut windows = touching(&[0.4; 6]);
        let withhold = |window: &mut Window| {
            let found = window.found.iter_mut().find(|found| found.wall == Wall::FirstTouch).unwrap();
            found.status = Status::Contributor;
            window.walls.clear();
        };
        for nth in [0, 2, 4] {
            withhold(&mut windows[nth]);
        }
        assert!(judge(&windows).walls[0].pooled, "in half of the windows it has no other name");
        withhold(&mut windows[1]);
        assert!(judge(&windows).walls.is_empty());
    }

    #[test]
    fn what_grows_is_distinguished_from_what_jitters() {
        const MIB: f64 = (1 << 20) as f64;
        let noise = [0.3, -0.6, 0.5, -0.2, 0.7, -0.8, 0.1, -0.4, 0.6, -0.1, 0.2, -0.5];
        let of = |per_window: f64| {
            windows(12, |nth, subject| {
                let size = 500.0 + per_window * nth as f64 + 8.0 * noise[nth];
                subject.bill.rates.resident_end = (size * MIB) as u64;
                subject.bill.rates.minor_faults = Ok(5_000.0 + 2_000.0 * noise[nth]);
            })
        };
        let grows = judge(&of(6.0));
        let resident = course(&grows, Quantity::Resident);
        let Change::Rose { since } = resident.change else { panic!("{resident:?}") };
        assert!(since <= 4, "{since}");
        let slope = resident.slope.unwrap().scaled(60.0 / MIB);
        assert!(slope.low < 6.0 && 6.0 < slope.high && slope.low > 4.0, "{slope:?}");
        let near = |value: Option<f64>, mib: f64| value.is_some_and(|value| (value / MIB - mib).abs() < 0.01);
        assert!(near(resident.first, 502.4) && near(resident.last, 562.0), "{resident:?}");
        assert_eq!(
            grows.sentence,
            format!("No wall in any of the 12 windows. But resident memory rose since window {}.", since + 1)
        );
        assert_eq!(course(&grows, Quantity::MinorFaults).change, Change::Steady);
        // The near twins: the same noise alone, and growth that is too small to matter.
        assert_eq!(change(&of(0.0), Quantity::Resident), Change::Steady);
        let little =
            windows(12, |nth, subject| subject.bill.rates.resident_end = (500 << 20) + 4096 * nth as u64);
        assert_eq!(change(&little, Quantity::Resident), Change::Steady);
        // Less and less of it.
        assert_eq!(change(&of(-6.0), Quantity::Resident), Change::Fell);
    }

    #[test]
    fn locks_faults_and_owners_have_courses_of_their_own() {
        let windows = windows(12, |nth, subject| {
            let late = nth >= 6;
            subject.threads(4).waits(WaitClass::Allocator, if late { 0.6 } else { 0.0 });
            subject.bill.rates.minor_faults = Ok(if late { 90_000.0 } else { 100.0 });
            let arena = if late { 900 } else { 100 };
            let bill = resident_bill(&[(ResidentOwner::Arena, arena, None), (ResidentOwner::Heap, 50, None)]);
            subject.recording.resident = Ok(TargetMemory { bills: vec![bill], others: 0, unread: None });
        });
        for quantity in [
            Quantity::Lock(WaitClass::Allocator),
            Quantity::MinorFaults,
            Quantity::Owner(ResidentOwner::Arena),
        ] {
            assert_eq!(change(&windows, quantity), Change::Rose { since: 6 }, "{quantity:?}");
        }
        for quantity in [
            Quantity::Lock(WaitClass::AddressSpaceLock),
            Quantity::Owner(ResidentOwner::Heap),
            Quantity::Threads,
            Quantity::Cpus,
        ] {
            assert_eq!(change(&windows, quantity), Change::Steady, "{quantity:?}");
        }
    }

    /// Windows in which each figure is noise, and varies by more than what counts.
    fn noisy(n: usize, seed: u64) -> Vec<Window> {
        let (window, mut random) = (touching(&[0.0]).remove(0), Random::new(seed));
        let mut figure = |quantity: Quantity| quantity.least().0 * (20.0 + 10.0 * random.unit());
        let mut figures = || Quantity::all().map(|quantity| Ok(figure(quantity))).collect();
        (0..n).map(|nth| Window { at_s: 60.0 * nth as f64, figures: figures(), ..window.clone() }).collect()
    }

    #[test]
    fn noise_in_all_figures_changes_in_few_series() {
        let of = |n: usize| {
            let changes = |windows: &[Window]| {
                let mut courses = courses(windows).into_iter();
                courses.any(|course| matches!(course.change, Change::Rose { .. } | Change::Fell))
            };
            (0..200).filter(|seed| changes(&noisy(n, *seed))).count()
        };
        let false_ones = [6, 12, 24].map(of);
        // At most 5 %; of 200 series alone, 5 % and three standard deviations.
        assert!(false_ones.iter().sum::<usize>() <= 30, "{false_ones:?}");
        assert!(false_ones.iter().all(|n| *n <= 19), "{false_ones:?}");
    }

    /// Noise in all figures, and in the resident memory so many MiB more from window to window.
    fn resident_among_noise(n: usize, more: impl Fn(usize) -> f64) -> Change {
        let mut windows = noisy(n, 7);
        let place = Quantity::all().position(|quantity| quantity == Quantity::Resident).unwrap();
        for (nth, window) in windows.iter_mut().enumerate() {
            *window.figures[place].as_mut().unwrap() += more(nth) * f64::from(1 << 20);
        }
        change(&windows, Quantity::Resident)
    }

    #[test]
    fn a_step_among_many_figures_is_found_or_the_series_is_too_short_for_it() {
        let step =
            |n: usize, from: usize| resident_among_noise(n, |nth| if nth < from { 0.0 } else { 100.0 });
        for (n, from) in [(24, 8), (24, 12), (24, 16), (16, 8)] {
            assert_eq!(step(n, from), Change::Rose { since: from }, "{from} of {n}");
        }
        let needed = Family::of(Quantity::all().count()).for_a_step;
        assert!((12..=16).contains(&needed), "{needed}");
        for (n, what) in [(6, "a trend or a step"), (needed - 1, "a step")] {
            let why = format!(
                "{n} windows can't show {what} among {} figures; at least {needed} are needed",
                Quantity::all().count()
            );
            let unjudged = Change::Unjudged(Absence::new(Reason::TooLittle, why));
            assert_eq!(step(n, n / 2), unjudged);
        }
        // The near twins: a slow rise, and a single window.
        assert!(matches!(resident_among_noise(24, |nth| 2.0 * nth as f64), Change::Rose { since: 1..=6 }));
        let single = resident_among_noise(24, |nth| if nth == 12 { 100.0 } else { 0.0 });
        assert_eq!(single, Change::Steady);
    }

    #[test]
    fn a_step_that_may_be_chance_is_not_judged() {
        let last = |n: usize| -> Vec<f64> { (0..12).map(|nth| if nth < n { 0.01 } else { 0.4 }).collect() };
        let quantity = Quantity::Line(CostClass::FaultPath);
        assert_eq!(change(&touching(&last(8)), quantity), Change::Rose { since: 8 });
        let Change::Unjudged(why) = change(&touching(&last(10)), quantity) else { panic!("two windows") };
        assert_eq!(why.detail, "the step in window 11 may be chance; more windows would decide");
        // One figure alone, which varies from the start on.
        let one = windows(8, |nth, subject| {
            subject.threads(4).waits(WaitClass::Allocator, if nth % 2 == 0 { 0.6 } else { 0.0 });
        });
        let Change::Unjudged(why) = change(&one, Quantity::Lock(WaitClass::Allocator)) else {
            panic!("eight windows")
        };
        assert_eq!(why.detail, "8 windows can't show a step in one figure; at least 9 are needed");
    }

    #[test]
    fn few_windows_and_values_that_are_missing_are_not_judged() {
        let few = judge(&touching(&[0.0, 0.1, 0.2, 0.3]));
        for course in &few.courses {
            let Change::Unjudged(why) = &course.change else { panic!("{course:?}") };
            assert!(!why.detail.is_empty() && course.slope.is_none());
        }
        let five = touching(&[0.0, 0.02, 0.05, 0.07, 0.1]);
        assert_eq!(change(&five, Quantity::Line(CostClass::Zeroing)), Change::Steady);
        // These windows have no bill of the memory.
        let Change::Unjudged(why) = change(&five, Quantity::Owner(ResidentOwner::Heap)) else {
            panic!("no bill")
        };
        assert_eq!(why, five[0].figures.last().unwrap().clone().unwrap_err());
    }

    #[test]
    fn undecided_windows_make_the_series_undecided_if_they_are_most() {
        let of = |undecided: usize| {
            let mut windows = touching(&[0.0; 6]);
            windows.iter_mut().take(undecided).for_each(|window| {
                window.reach = Reach::Undecided;
                window.sentence = "No wall found in the measured part.".into();
            });
            let judged = judge(&windows);
            (judged.stops_a_gate(&windows), judged.sentence)
        };
        assert_eq!(of(3), (false, "No wall in any of the 6 windows.".to_owned()));
        let (stops, sentence) = of(4);
        assert!(
            stops && sentence.starts_with("Undecided in 4 of 6 windows. The last of these: No wall found"),
            "{sentence}"
        );
    }

    #[test]
    fn an_idle_service_is_no_wall_of_a_gate() {
        let idle = windows(6, |_, subject| {
            subject.cpus(0.01).waits(WaitClass::Idle, 0.99);
        });
        let judged = judge(&idle);
        if let Some(lasting) = judged.walls.first() {
            assert_eq!(lasting.wall, Wall::Waiting);
            assert!(
                judged.sentence.starts_with("This is not a CPU problem: the target waited, in all 6"),
                "{}",
                judged.sentence
            );
        }
        assert!(judged.walls.iter().all(|lasting| lasting.wall == Wall::Waiting));
    }

    #[test]
    fn the_mean_holds_the_differences_between_windows() {
        let share = |point: f64| (1.0, Interval::new(point - 0.02, point, point + 0.02));
        let even = mean(&[share(0.3); 8]).unwrap();
        assert!((even.point - 0.3).abs() < 1e-9 && even.half_width() < 0.02 / 8f64.sqrt() + 1e-9, "{even:?}");
        let uneven = mean(&[share(0.1), share(0.5), share(0.1), share(0.5)]).unwrap();
        assert!(uneven.half_width() > 5.0 * even.half_width(), "{uneven:?}");
        let two = mean(&[share(0.1), share(0.5)]).unwrap();
        assert!((two.low - 0.08).abs() < 1e-9 && (two.high - 0.52).abs() < 1e-9, "{two:?}");
        assert_eq!(mean(&[]), None);
        assert_eq!(mean(&[(0.0, Interval::exact(0.1))]), None);
        // A window that used more CPU time counts more.
        let weighted = mean(&[(3.0, Interval::exact(0.2)), (1.0, Interval::exact(0.6))]).unwrap();
        assert!((weighted.point - 0.3).abs() < 1e-9);
    }

    #[test]
    fn times_are_short() {
        let shown = [0.0, 1.5, 59.6, 119.0, 120.0, 210.0, 7_200.0, 9_000.0].map(time);
        assert_eq!(shown, ["0 s", "1.5 s", "60 s", "119 s", "2 min", "3.5 min", "2 h", "2.5 h"]);
    }

    #[test]
    fn keys_are_unique() {
        let keys: Vec<String> = Quantity::all().map(Quantity::key).collect();
        let unique: std::collections::BTreeSet<&String> = keys.iter().collect();
        assert_eq!(unique.len(), keys.len());
        assert!(
            Quantity::all().all(|quantity| !quantity.title().is_empty() && !quantity.unit().key().is_empty())
        );
    }
}
