//! CPython's object arenas, stock and on huge pages: the arms, the metrics, and the table. Each program is a separate trial. Its
//! statistics are corrected for the arms of one program, but not across programs.

mod html;

pub use html::document;

use allocwall_host::{hardware, installed};
use allocwall_model::catalogue::nearest::hint;
use allocwall_model::catalogue::remedies::{ARENA_HOOK, ARENA_HOOK_ON};
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::version_of;
use allocwall_model::units::{Interval, Measured, thousands};
use allocwall_report::escape::terminal;
use allocwall_report::layout::{elide_end, left, right, wrap};
use allocwall_trial::arm::Expectation;
use allocwall_trial::batch::{Batch, Prepared};
use allocwall_trial::conduct::{Ran, Subject};
use allocwall_trial::load::metric::Figure;
use allocwall_trial::run::Start;
use allocwall_trial::{BASELINES, Comparison, Direction, Metric, TrialResult, Unit};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// The set of programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The nine workloads of the published comparison, then variants of them.
    Workloads,
    /// Heaps of 200 MB to 2 GB.
    Real,
    /// Heaps of some megabytes, for which no gain is expected.
    Ordinary,
}

impl Set {
    pub fn key(self) -> &'static str {
        match self {
            Set::Workloads => "workloads",
            Set::Real => "real",
            Set::Ordinary => "ordinary",
        }
    }
}

/// Facts about an interpreter, from `_workloads.py --probe`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Probe {
    /// The name with which it is started. It is not resolved, because a wrapper may set the search path of the package.
    #[serde(skip)]
    pub python: String,
    pub executable: String,
    pub version: String,
    pub implementation: String,
    pub free_threaded: bool,
    /// The file with the workloads; the other sets are in the same folder.
    pub script: String,
    /// For each mode of the hook: why it is not possible, in one line. Empty if the package was not asked.
    pub refusals: BTreeMap<String, Option<String>>,
    pub programs: Vec<Program>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Program {
    pub name: String,
    pub about: String,
    /// Its heap may not fill a huge page. Then huge pages cannot be proved, only the setting.
    #[serde(default)]
    pub small: bool,
    /// Packages that the program needs and this interpreter does not have.
    pub missing: Vec<String>,
}

impl Probe {
    /// The command to probe an interpreter in which the package is installed.
    pub fn question(python: &str, set: Set) -> Vec<OsString> {
        [python, "-m", MODULE, "--probe", set.key()].map(OsString::from).to_vec()
    }

    /// The command to probe an interpreter without the package: it uses the file of an interpreter that has it.
    pub fn question_by_file(python: &str, script: &str, set: Set) -> Vec<OsString> {
        [python, script, "--probe", set.key()].map(OsString::from).to_vec()
    }

    /// None if the output is not a valid answer.
    pub fn answer(python: &str, output: &str) -> Option<Probe> {
        let answer = serde_json::from_str(output.trim_end().lines().last()?).ok()?;
        Some(Probe { python: python.to_owned(), ..answer })
    }
}

const MODULE: &str = "allocwall._workloads";

/// One way to start a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchArm {
    pub name: String,
    /// The interpreter, and the arguments before the program's name.
    words: Vec<String>,
    /// The mode of the hook that the program sets itself.
    mode: String,
    env: Vec<(String, String)>,
    expects: Vec<Expectation>,
}

/// An arm or a program that is not run, and the reason.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

pub const STOCK: &str = "stock";
/// The default arms in addition to stock.
pub const ARMS: &[&str] = &["thp", "hugetlb", "collapse", "mimalloc"];
/// The modes of the hook. A mode can have settings after a colon (`thp:keep_mib=0`).
const MODES: &[&str] = &["thp", "hugetlb", "collapse", "auto"];
/// Arms that are not only a mode of the hook.
const MIMALLOC: &str = "mimalloc";
/// The hook, and glibc's heap on transparent huge pages: malloc serves blocks of more than 512 bytes.
const WITH_MALLOC: &str = "thp+malloc";
pub const REBUILT: &str = "rebuilt";

/// Stock twice, then the arms that can run on this machine.
///
/// # Errors
/// `Refused`: an unknown arm.
pub fn arms(
    asked: &[String],
    probe: &Probe,
    rebuilt: Option<&Probe>,
) -> Result<(Vec<BenchArm>, Vec<Skipped>)> {
    let own = |name: &str, mode: &str| BenchArm {
        name: name.to_owned(),
        words: [probe.python.as_str(), "-m", MODULE].map(str::to_owned).to_vec(),
        mode: mode.to_owned(),
        env: Vec::new(),
        expects: Vec::new(),
    };
    let mut found = vec![own("A", STOCK), own("A′", STOCK)];
    let mut skipped = Vec::new();
    for name in asked {
        let mode = name.split(':').next().unwrap_or(name);
        if !MODES.contains(&mode) && ![MIMALLOC, WITH_MALLOC].contains(&name.as_str()) {
            let known = || MODES.iter().copied().chain([WITH_MALLOC, MIMALLOC]);
            return Err(Error::Refused(format!(
                "no arm {name}{}: the arms are {}",
                hint(name, known()),
                known().collect::<Vec<_>>().join(", ")
            )));
        }
        if found.iter().any(|arm| arm.name == *name) {
            return Err(Error::Refused(format!("the arm {name} is given twice")));
        }
        let refusal = match mode {
            MIMALLOC => no_mimalloc(probe),
            WITH_MALLOC => probe.refusals.get("thp").cloned().flatten(),
            mode => probe.refusals.get(mode).cloned().flatten(),
        };
        if let Some(why) = refusal {
            skipped.push(Skipped { name: name.clone(), why });
            continue;
        }
        found.push(match name.as_str() {
            MIMALLOC => with_variable(own(name, STOCK), "PYTHONMALLOC", "mimalloc"),
            // As the remedies do.
            "thp" | WITH_MALLOC => {
                let mut arm = with_variable(own(name, STOCK), ARENA_HOOK, ARENA_HOOK_ON);
                if name == WITH_MALLOC {
                    arm = with_variable(arm, "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
                }
                arm.expects.push(Expectation::ArenasHuge);
                arm
            }
            _ => {
                let pages =
                    if mode == "collapse" { Expectation::HugeResident } else { Expectation::ArenasHuge };
                BenchArm { expects: vec![pages], ..own(name, name) }
            }
        });
    }
    if let Some(rebuilt) = rebuilt {
        // Since 3.15 an interpreter that is built for huge pages needs this variable.
        let arm =
            BenchArm { words: vec![rebuilt.python.clone(), probe.script.clone()], ..own(REBUILT, STOCK) };
        let mut arm = with_variable(arm, "PYTHON_PYMALLOC_HUGEPAGES", "1");
        arm.expects.push(Expectation::HugeResident);
        found.push(arm);
    }
    Ok((found, skipped))
}

fn with_variable(mut arm: BenchArm, name: &str, value: &str) -> BenchArm {
    arm.env.push((name.to_owned(), value.to_owned()));
    arm.expects.push(Expectation::Environment(name.to_owned(), value.to_owned()));
    arm
}

fn no_mimalloc(probe: &Probe) -> Option<String> {
    let old = version_of(&probe.version).is_none_or(|version| version < (3, 13));
    match (old, probe.free_threaded) {
        (true, _) => {
            Some(format!("PYTHONMALLOC=mimalloc needs CPython 3.13 or later; this is {}", probe.version))
        }
        (_, true) => Some("a free-threaded interpreter always uses mimalloc".to_owned()),
        _ => None,
    }
}

/// The requested programs of the set (all if none is requested), and those that cannot run.
///
/// # Errors
/// `Refused`: an unknown program.
pub fn programs<'a>(
    asked: &[String],
    set: Set,
    probe: &'a Probe,
    rebuilt: Option<&Probe>,
) -> Result<(Vec<&'a Program>, Vec<Skipped>)> {
    let names = || probe.programs.iter().map(|program| program.name.as_str());
    if let Some(unknown) = asked.iter().find(|name| !names().any(|known| known == *name)) {
        return Err(Error::Refused(format!(
            "no program {unknown} in the set {}{}: the programs are {}",
            set.key(),
            hint(unknown, names()),
            names().collect::<Vec<_>>().join(", ")
        )));
    }
    let wanted = |program: &&Program| asked.is_empty() || asked.contains(&program.name);
    let lacks = |program: &Program| -> Option<String> {
        let other = rebuilt.and_then(|probe| probe.programs.iter().find(|other| other.name == program.name));
        let (who, missing) = match (&program.missing[..], other) {
            ([], Some(other)) if !other.missing.is_empty() => (REBUILT, &other.missing),
            ([], _) => return None,
            _ => (probe.python.as_str(), &program.missing),
        };
        Some(format!(
            "{who} lacks {}: in this interpreter, pip install '{}[bench]'",
            missing.join(", "),
            installed::wheel()
        ))
    };
    let mut found = Vec::new();
    let mut skipped = Vec::new();
    for program in probe.programs.iter().filter(wanted) {
        match lacks(program) {
            None => found.push(program),
            Some(why) => skipped.push(Skipped { name: program.name.clone(), why }),
        }
    }
    Ok((found, skipped))
}

/// Variables that would change the stock arm; they are removed.
const TAKEN_AWAY: &[&str] = &[ARENA_HOOK, "PYTHONMALLOC", "PYTHON_PYMALLOC_HUGEPAGES"];

impl BenchArm {
    /// The arm for a program. `folder` is for input files that one run makes and later runs read.
    pub fn prepared(&self, program: &Program, set: Set, folder: &Path, limit: Duration) -> Prepared {
        let mut command: Vec<OsString> = self.words.iter().map(OsString::from).collect();
        command.extend([program.name.as_str(), &self.mode, set.key()].map(OsString::from));
        command.push(folder.into());
        let mut start = Start::new(command, limit);
        let away = TAKEN_AWAY.iter().map(|name| (OsString::from(name), None));
        let set = self.env.iter().map(|(name, value)| (OsString::from(name), Some(OsString::from(value))));
        start.env = away.chain(set).collect();
        let mut expects = self.expects.clone();
        let of_pages = |e: &Expectation| matches!(e, Expectation::ArenasHuge | Expectation::HugeResident);
        expects.retain(|expectation| !(program.small && of_pages(expectation)));
        Prepared { start, expects, first: Default::default() }
    }
}

const FAULTS: &str = "faults";

/// Key, title, unit and direction. The first metric is the primary one.
///
/// The account counted ten events for each workload. The changes of two are known: the page faults, and the loads that missed the data
/// TLB. The other eight are chosen here: what else `perf stat` offers for the TLBs and the caches, and cycles and instructions.
const METRICS: &[(&str, &str, Unit, Direction)] = &[
    ("total_s", "build, use and teardown", Unit::Seconds, Direction::LowerIsBetter),
    ("build_s", "build", Unit::Seconds, Direction::LowerIsBetter),
    ("use_s", "use", Unit::Seconds, Direction::LowerIsBetter),
    ("teardown_s", "teardown", Unit::Seconds, Direction::LowerIsBetter),
    (FAULTS, "page faults in build, use and teardown", Unit::Count, Direction::LowerIsBetter),
    ("resident_bytes", "resident memory at the end of use", Unit::Bytes, Direction::LowerIsBetter),
    ("huge_bytes", "resident memory on huge pages", Unit::Bytes, Direction::HigherIsBetter),
    ("dtlb_loads", "loads", Unit::Count, Direction::LowerIsBetter),
    ("dtlb_misses", "loads that missed the TLB", Unit::Count, Direction::LowerIsBetter),
    ("dtlb_stores", "stores", Unit::Count, Direction::LowerIsBetter),
    ("dtlb_store_misses", "stores that missed the TLB", Unit::Count, Direction::LowerIsBetter),
    ("itlb_misses", "instruction fetches that missed the TLB", Unit::Count, Direction::LowerIsBetter),
    ("cache_references", "accesses of the last cache", Unit::Count, Direction::LowerIsBetter),
    ("cache_misses", "misses of the last cache", Unit::Count, Direction::LowerIsBetter),
    ("cycles", "cycles", Unit::Count, Direction::LowerIsBetter),
    ("instructions", "instructions", Unit::Count, Direction::LowerIsBetter),
    ("wall_s", "wall time of the process", Unit::Seconds, Direction::LowerIsBetter),
    ("cpu_s", "CPU time of the process", Unit::Seconds, Direction::LowerIsBetter),
    ("peak_rss_bytes", "peak resident memory", Unit::Bytes, Direction::LowerIsBetter),
];
/// The first metrics are printed by the program itself; their number.
const PRINTED: usize = 7;

pub fn metrics() -> Vec<Metric> {
    METRICS
        .iter()
        .enumerate()
        .map(|(n, &(key, title, unit, direction))| Metric {
            key: key.to_owned(),
            title: title.to_owned(),
            unit,
            direction,
            primary: n == 0,
        })
        .collect()
}

/// How to read the figures from the program's output.
///
/// # Errors
/// None: a test checks that the table is valid.
pub fn figures() -> Result<Vec<Figure>> {
    METRICS[..PRINTED].iter().map(|(key, ..)| Figure::parse(&format!("{key}:lower=$.{key}"))).collect()
}

/// Starts each run after an idle time. A host may take idle memory back in this time, and has to provide it again in the run.
pub struct AfterIdle<'a> {
    pub batch: Batch<'a>,
    pub idle: Duration,
}

impl Subject for AfterIdle<'_> {
    fn run(&mut self, arm: usize) -> Result<Ran> {
        const GLANCE: Duration = Duration::from_millis(50);
        let mut left = self.idle;
        // Relaxed: no other data depends on the flag.
        while !left.is_zero() && !self.batch.interrupted.load(Ordering::Relaxed) {
            let step = left.min(GLANCE);
            std::thread::sleep(step);
            left -= step;
        }
        self.batch.run(arm)
    }
}

// ---- the table ----

/// Metric, heading and width.
const COLUMNS: [(&str, &str, usize); 7] = [
    ("build_s", "build", 9),
    ("use_s", "use", 9),
    ("teardown_s", "down", 9),
    ("total_s", "total", 9),
    (FAULTS, "faults", 12),
    ("resident_bytes", "resident", 10),
    ("huge_bytes", "huge", 9),
];

/// The table of a program, newline-terminated: the medians of each arm, its effect, and the outcome; then what was counted.
pub fn table(program: &Program, outcome: &TrialResult) -> String {
    let heads: String = COLUMNS.iter().map(|(_, title, width)| right(title, *width)).collect();
    let mut out = format!(
        "\n{}: {}\n  {}{heads}   total against stock\n",
        terminal(&program.name),
        terminal(&program.about),
        left("arm", 11)
    );
    let spread = total_of_stock(outcome)
        .and_then(|c| c.effect.as_ref().ok())
        .map_or_else(|| "itself: too few blocks".to_owned(), |effect| format!("itself: {}", range(*effect)));
    out += &row(STOCK, &outcome.baseline_medians, &spread);
    for (arm, info) in outcome.design.arms.iter().enumerate().skip(BASELINES) {
        let effect = total_of(outcome, arm).map_or(String::new(), effect_text);
        out += &row(&info.name, &outcome.summaries[arm].medians, &effect);
    }
    out += &counters(outcome);
    for note in notes(outcome) {
        for line in wrap(&terminal(&note), 96) {
            out += &format!("    {line}\n");
        }
    }
    out
}

fn row(name: &str, medians: &BTreeMap<String, Measured<f64>>, effect: &str) -> String {
    let cells: String = COLUMNS.iter().map(|(key, _, width)| right(&cell(medians, key), *width)).collect();
    let line = format!("  {}{cells}   {effect}", left(&elide_end(&terminal(name), 11), 11));
    format!("{}\n", line.trim_end())
}

/// A median, in ms, MiB or as a number; a dash where there is none.
fn cell(medians: &BTreeMap<String, Measured<f64>>, key: &str) -> String {
    let Some(Ok(value)) = medians.get(key) else { return "-".to_owned() };
    match METRICS.iter().find(|(known, ..)| *known == key).map(|(_, _, unit, _)| *unit) {
        Some(Unit::Seconds) => format!("{:.1}", value * 1e3),
        Some(Unit::Bytes) => format!("{:.0} MiB", value / f64::from(1 << 20)),
        _ => thousands(value.round() as u64),
    }
}

fn effect_text(comparison: &Comparison) -> String {
    match &comparison.effect {
        Ok(effect) => format!("{} ({}) {}", percent(effect.point), range(*effect), comparison.outcome.key()),
        Err(absence) => absence.detail.clone(),
    }
}

fn range(effect: Interval) -> String {
    format!("{} to {}", percent(effect.low), percent(effect.high))
}

fn percent(change: f64) -> String {
    format!("{:+.1} %", change * 100.0).replace('-', "−")
}

/// Why a program's outcome is not as clear as its numbers look, one sentence each.
fn notes(outcome: &TrialResult) -> Vec<String> {
    let mut notes: Vec<String> = Vec::new();
    for (arm, info) in outcome.design.arms.iter().enumerate().skip(BASELINES) {
        let summary = &outcome.summaries[arm];
        let compared = total_of(outcome, arm);
        let failed = summary.failures.first().map(|failure| {
            format!("{} of {} runs failed: {}", summary.failures.len(), summary.runs, failure.text)
        });
        let why = compared.and_then(|c| c.why.as_ref()).map(|why| why.detail.clone());
        let warned = compared.and_then(|c| c.warning.clone());
        notes
            .extend(failed.into_iter().chain(why).chain(warned).map(|text| format!("{}: {text}", info.name)));
    }
    notes.extend(outcome.warnings.iter().cloned());
    notes
}

/// An arm's primary metric against stock.
fn total_of(outcome: &TrialResult, arm: usize) -> Option<&Comparison> {
    outcome.comparisons.iter().find(|c| c.arm == arm && c.metric == METRICS[0].0)
}

/// The same for stock against itself.
fn total_of_stock(outcome: &TrialResult) -> Option<&Comparison> {
    outcome.baseline.iter().find(|c| c.metric == METRICS[0].0)
}

fn is_counted(key: &str) -> bool {
    hardware::OF_MEMORY.iter().any(|(known, _)| *known == key)
}

/// What was counted: its title, the median of stock, and the relative change of each arm.
struct Counted {
    title: &'static str,
    stock: f64,
    changes: Vec<Option<f64>>,
}

/// The page faults and the events that the processor counted. Empty if it counted none.
fn counted(outcome: &TrialResult) -> Vec<Counted> {
    let median =
        |key: &str| outcome.baseline_medians.get(key).and_then(|median| median.as_ref().ok()).copied();
    if hardware::OF_MEMORY.iter().all(|(key, _)| median(key).is_none()) {
        return vec![];
    }
    let rows = METRICS.iter().filter(|(key, ..)| *key == FAULTS || is_counted(key));
    rows.filter_map(|(key, title, ..)| {
        let change = |arm: usize| {
            let compared = outcome.comparisons.iter().find(|c| c.arm == arm && c.metric == *key)?;
            compared.effect.as_ref().ok().map(|effect| effect.point)
        };
        let changes = (BASELINES..outcome.design.arms.len()).map(change).collect();
        Some(Counted { title, stock: median(key)?, changes })
    })
    .collect()
}

const COUNTED: &str = "counted (page faults aside, in user mode)";

fn counters(outcome: &TrialResult) -> String {
    let rows = counted(outcome);
    if rows.is_empty() {
        return String::new();
    }
    let arms = outcome.design.arms.iter().skip(BASELINES);
    let names: String = arms.map(|arm| right(&elide_end(&terminal(&arm.name), 11), 13)).collect();
    let mut out = format!("  {}{}{names}\n", left(COUNTED, 42), right(STOCK, 17));
    for Counted { title, stock, changes } in rows {
        let changes: String = changes.iter().map(|change| right(&changed(*change), 13)).collect();
        let stock = right(&thousands(stock.round() as u64), 17);
        out += &format!("  {}{stock}{changes}\n", left(title, 42));
    }
    out
}

fn changed(change: Option<f64>) -> String {
    change.map_or_else(|| "-".to_owned(), percent)
}

/// Which events were not counted in any run of stock, and why, as one line; None if all were.
pub fn uncounted(outcome: &TrialResult) -> Option<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = vec![];
    for (key, _) in hardware::OF_MEMORY {
        if let Some(Err(absence)) = outcome.baseline_medians.get(*key) {
            match reasons.iter_mut().find(|(why, _)| *why == absence.detail) {
                Some((_, keys)) => keys.push(*key),
                None => reasons.push((absence.detail.as_str(), vec![*key])),
            }
        }
    }
    if let [(why, keys)] = &reasons[..]
        && keys.len() == hardware::OF_MEMORY.len()
    {
        return Some(format!("no hardware event was counted: {why}"));
    }
    let lines: Vec<String> =
        reasons.iter().map(|(why, keys)| format!("{} not counted: {why}", keys.join(", "))).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::units::{Absence, Reason};
    use allocwall_trial::compare::compare;
    use allocwall_trial::{Block, Design, ProofItem, ProofState, Run, Settings, plan, session};

    pub(super) fn probe() -> Probe {
        let text = r#"{"executable": "/v/bin/python3.11", "version": "3.11.7", "implementation": "cpython", "free_threaded": false,
            "script": "/v/lib/allocwall/_workloads.py", "refusals": {"thp": null, "hugetlb": "no reserved page is free", "collapse": null},
            "programs": [{"name": "tuples", "about": "many", "missing": []},
                {"name": "graph", "about": "a", "small": true, "missing": ["networkx"]}]}"#;
        Probe::answer("/v/bin/python", &format!("a warning\n{}", text.replace('\n', " "))).unwrap()
    }

    fn names(asked: &[&str]) -> Vec<String> {
        asked.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn arms_that_cannot_run_say_why_and_the_others_run() {
        let (found, skipped) = arms(&names(ARMS), &probe(), None).unwrap();
        let of = |found: &[BenchArm]| -> Vec<String> { found.iter().map(|arm| arm.name.clone()).collect() };
        assert_eq!(of(&found), ["A", "A′", "thp", "collapse"]);
        let why: Vec<_> = skipped.iter().map(|s| (s.name.as_str(), s.why.as_str())).collect();
        assert_eq!(why[0], ("hugetlb", "no reserved page is free"));
        assert!(why[1].0 == "mimalloc" && why[1].1.contains("3.13"), "{why:?}");
        let newer = Probe { version: "3.13.0".into(), ..probe() };
        let (found, _) = arms(&names(&["mimalloc", "thp:keep_mib=0"]), &newer, Some(&probe())).unwrap();
        assert_eq!(of(&found), ["A", "A′", "mimalloc", "thp:keep_mib=0", "rebuilt"]);
        assert_eq!(found[3].mode, "thp:keep_mib=0");
        for wrong in ["jemalloc", "thb", ""] {
            let line = arms(&names(&[wrong]), &newer, None).unwrap_err().to_string();
            assert!(line.contains("thp, hugetlb, collapse, auto, thp+malloc, mimalloc"), "{line}");
        }
        assert!(arms(&names(&["thp", "thp"]), &newer, None).is_err());
    }

    #[test]
    fn huge_pages_are_proved_only_for_large_heaps() {
        let probe = probe();
        let (found, _) = arms(&names(&["thp", "collapse"]), &probe, Some(&probe)).unwrap();
        let proof = |program: &Program| {
            let prepared = |arm: &BenchArm| {
                arm.prepared(program, Set::Workloads, Path::new("/f"), Duration::from_secs(1))
            };
            found.iter().map(|arm| prepared(arm).expects.len()).collect::<Vec<_>>()
        };
        assert_eq!(proof(&probe.programs[0]), [0, 0, 2, 1, 2]);
        assert_eq!(proof(&probe.programs[1]), [0, 0, 1, 0, 1]);
    }

    #[test]
    fn programs_are_picked_by_name_and_by_what_they_need() {
        let of = |asked: &[&str], rebuilt: Option<&Probe>| {
            let probe = probe();
            let (found, skipped) = programs(&names(asked), Set::Real, &probe, rebuilt).unwrap();
            let found: Vec<String> = found.iter().map(|program| program.name.clone()).collect();
            (found, skipped)
        };
        let (found, skipped) = of(&[], None);
        assert_eq!(found, ["tuples"]);
        let why = &skipped[0].why;
        assert!(why.contains("networkx") && why.contains("[bench]'"), "{skipped:?}");
        let mut bare = probe();
        bare.programs[0].missing = vec!["x".into()];
        let (found, skipped) = of(&["tuples"], Some(&bare));
        let why = &skipped[0].why;
        assert!(found.is_empty() && why.starts_with("rebuilt ") && why.contains(" x:"), "{skipped:?}");
        let line = programs(&names(&["tupels"]), Set::Real, &probe(), None).unwrap_err().to_string();
        assert!(line.contains("nearest: tuples") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn an_arm_starts_the_program_and_removes_variables_that_change_stock() {
        let asked = names(&["thp", "thp+malloc"]);
        let (found, _) = arms(&asked, &probe(), Some(&probe())).unwrap();
        let program = &probe().programs[0];
        let start = |arm: usize| {
            found[arm].prepared(program, Set::Workloads, Path::new("/f"), Duration::from_secs(1)).start
        };
        assert_eq!(start(0).shown(), "/v/bin/python -m allocwall._workloads tuples stock workloads /f");
        assert_eq!(
            start(4).shown(),
            "/v/bin/python /v/lib/allocwall/_workloads.py tuples stock workloads /f"
        );
        let last = |start: Start, name: &str| {
            let found = start.env.iter().rfind(|(key, _)| key == name);
            found.and_then(|(_, value)| value.clone())
        };
        assert_eq!(last(start(0), "ALLOCWALL_HUGEPAGES"), None);
        for (arm, malloc) in [(2, None), (3, Some("glibc.malloc.hugetlb=1".into()))] {
            assert_eq!(last(start(arm), "ALLOCWALL_HUGEPAGES"), Some("1".into()));
            assert_eq!(last(start(arm), "GLIBC_TUNABLES"), malloc);
        }
    }

    #[test]
    fn every_figure_can_be_read_and_one_is_primary() {
        assert_eq!(figures().unwrap().len(), PRINTED);
        assert_eq!(metrics().iter().filter(|m| m.primary).count(), 1);
        let printed = r#"{"total_s": 0.5, "huge_bytes": 2097152}"#;
        assert_eq!(figures().unwrap()[0].read(printed).unwrap().value, 0.5);
        assert!(figures().unwrap()[1].read(printed).is_err());
    }

    /// A trial of thp against stock, in which these events were counted, with thp's part of stock's number.
    pub(super) fn trial(counted: &[(&str, f64)]) -> TrialResult {
        let absent = || Absence::new(Reason::NotSupported, "no such event");
        let run = |block: usize, arm: usize| {
            let value = |key: &str| -> Measured<f64> {
                let (_, part) = counted.iter().find(|(known, _)| *known == key).ok_or_else(absent)?;
                let noise = 1.0 + 1e-7 * ((block * 31 + arm * 17) % 41) as f64;
                Ok(1e6 * noise * if arm < BASELINES { 1.0 } else { *part })
            };
            Run {
                block,
                place: arm,
                arm,
                started_unix_ms: 0,
                metrics: METRICS.iter().map(|(key, ..)| ((*key).to_owned(), value(key))).collect(),
                failure: None,
                proof: vec![ProofItem {
                    what: "huge pages".into(),
                    state: ProofState::Proven,
                    detail: String::new(),
                    needed: true,
                    absent: None,
                }],
            }
        };
        let design = Design {
            left_out: vec![],
            arms: session::arms(["A", "A′", "thp"], vec![]),
            metrics: metrics(),
            settings: Settings { seed: 1, effect: plan::DEFAULT_EFFECT, planned: 6, looks: vec![6] },
        };
        let block = |number| Block { number, runs: (0..3).map(|arm| run(number, arm)).collect() };
        compare(&design, &(0..6).map(block).collect::<Vec<_>>())
    }

    #[test]
    fn ten_events_are_counted_and_each_has_a_title() {
        assert_eq!(METRICS.iter().filter(|(key, ..)| is_counted(key)).count(), hardware::OF_MEMORY.len());
        assert_eq!(hardware::OF_MEMORY.len() + 1, 10);
        let all: Vec<(&str, f64)> = METRICS.iter().map(|(key, ..)| (*key, 0.5)).collect();
        let text = counters(&trial(&all));
        let rows: Vec<&str> = text.lines().skip(1).collect();
        assert!(rows.len() == 10 && rows.iter().all(|row| row.ends_with("−50.0 %")), "{text}");
        assert_eq!(uncounted(&trial(&all)), None);
    }

    #[test]
    fn without_counters_one_line_says_why_and_where_some_count_the_others_are_named() {
        let none = trial(&[("total_s", 0.9), (FAULTS, 0.1)]);
        assert_eq!(counters(&none), "");
        assert_eq!(uncounted(&none).unwrap(), "no hardware event was counted: no such event");
        let some: Vec<(&str, f64)> =
            METRICS.iter().map(|(key, ..)| (*key, 0.9)).filter(|(key, _)| *key != "dtlb_stores").collect();
        let text = counters(&trial(&some));
        assert!(text.contains("loads that missed the TLB") && !text.contains("\n  stores  "), "{text}");
        assert_eq!(uncounted(&trial(&some)).unwrap(), "dtlb_stores not counted: no such event");
    }

    #[test]
    fn an_invalid_answer_is_none() {
        for text in ["", "Traceback", "{}", "[1]"] {
            assert_eq!(Probe::answer("x", text), None, "{text}");
        }
    }

    #[test]
    fn a_row_has_a_dash_where_nothing_was_measured() {
        let mut medians =
            BTreeMap::from([("total_s".to_owned(), Ok(0.1571)), ("faults".to_owned(), Ok(41_169.0))]);
        let line = row("thp", &medians, "−28.3 %");
        assert!(line.contains("157.1") && line.contains("41,169") && line.contains(" - "), "{line}");
        medians.insert("resident_bytes".into(), Ok(180_355_072.0));
        assert!(row("thp", &medians, "").contains("172 MiB"));
        assert_eq!(range(Interval::new(-0.288, -0.283, 0.001)), "−28.8 % to +0.1 %");
    }
}
