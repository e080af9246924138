//! CPython's object arenas, stock and on huge pages: which arms, what is measured, and the table. Each program is a trial of its own,
//! whose blocks, statistics and words are the trial's; corrected for the arms of one program, not across programs.

use allocwall_diagnose::remedies::version_of;
use allocwall_model::catalogue::nearest::hint;
use allocwall_model::catalogue::remedies::{ARENA_HOOK, ARENA_HOOK_ON};
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Interval, Measured, thousands};
use allocwall_report::escape::terminal;
use allocwall_report::layout::{elide_end, left, right, wrap};
use allocwall_trial::arm::Expectation;
use allocwall_trial::batch::{Batch, Prepared, TLB_MISSES};
use allocwall_trial::conduct::{Ran, Subject};
use allocwall_trial::load::metric::Metric as Figure;
use allocwall_trial::run::Start;
use allocwall_trial::{BASELINES, Comparison, Direction, Metric, TrialResult, Unit};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// What is run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Set {
    /// The nine of the published comparison.
    Workloads,
    /// Heaps of 200 MB to 2 GB.
    Real,
    /// Heaps of some megabytes, where nothing is to be gained.
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

/// What an interpreter tells of itself: `_workloads.py --probe`.
#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Probe {
    /// As it was named, which is how it is started: a wrapper may set what the package is found by.
    #[serde(skip)]
    pub python: String,
    pub executable: String,
    pub version: String,
    pub implementation: String,
    pub free_threaded: bool,
    /// The file that holds the workloads; its folder the other sets.
    pub script: String,
    /// By mode of the hook: why not, in one line. Empty where the package was not asked.
    pub refusals: BTreeMap<String, Option<String>>,
    pub programs: Vec<Program>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
pub struct Program {
    pub name: String,
    pub about: String,
    /// Packages that it needs and this interpreter lacks.
    pub missing: Vec<String>,
}

impl Probe {
    /// How it is asked, where the package is installed in it.
    pub fn question(python: &str, set: Set) -> Vec<OsString> {
        [python, "-m", MODULE, "--probe", set.key()]
            .map(OsString::from)
            .to_vec()
    }

    /// How an interpreter is asked that has no package: by the file of one that has.
    pub fn question_by_file(python: &str, script: &str, set: Set) -> Vec<OsString> {
        [python, script, "--probe", set.key()]
            .map(OsString::from)
            .to_vec()
    }

    /// None where it is no answer.
    pub fn answer(python: &str, output: &str) -> Option<Probe> {
        let told = serde_json::from_str(output.trim_end().lines().last()?).ok()?;
        Some(Probe {
            python: python.to_owned(),
            ..told
        })
    }
}

const MODULE: &str = "allocwall._workloads";

/// One way to start a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BenchArm {
    pub name: String,
    /// The interpreter, and what stands before the program's name.
    words: Vec<String>,
    /// What the program does to itself.
    mode: String,
    env: Vec<(String, String)>,
    expects: Vec<Expectation>,
}

/// What is not run, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Skipped {
    pub name: String,
    pub why: String,
}

pub const STOCK: &str = "stock";
/// Beside stock, where nobody says.
pub const ARMS: &[&str] = &["thp", "hugetlb", "collapse", "mimalloc"];
/// What the hook can do; a mode may have settings behind a colon (`thp:keep_mib=0`).
const MODES: &[&str] = &["thp", "hugetlb", "collapse", "auto"];
/// Arms that are no mode of the hook's alone.
const MIMALLOC: &str = "mimalloc";
/// The hook, and glibc's heap on transparent huge pages beside it: blocks of more than 512 bytes are malloc's.
const WITH_MALLOC: &str = "thp+malloc";
pub const REBUILT: &str = "rebuilt";

/// Stock twice, then those arms that can run here.
///
/// # Errors
/// `Refused`: an arm that is none.
pub fn arms(
    asked: &[String],
    set: Set,
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
                "no arm {name}{}: they are {}",
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
            skipped.push(Skipped {
                name: name.clone(),
                why,
            });
            continue;
        }
        // An ordinary program may not fill a slab: that the hook is asked for is all that can be proved of it.
        let pages = |expectation| match set {
            Set::Ordinary => vec![],
            _ => vec![expectation],
        };
        found.push(match name.as_str() {
            MIMALLOC => with_variable(own(name, STOCK), "PYTHONMALLOC", "mimalloc"),
            // As a remedy starts it, and two.
            "thp" | WITH_MALLOC => {
                let mut arm = with_variable(own(name, STOCK), ARENA_HOOK, ARENA_HOOK_ON);
                if name == WITH_MALLOC {
                    arm = with_variable(arm, "GLIBC_TUNABLES", "glibc.malloc.hugetlb=1");
                }
                arm.expects.extend(pages(Expectation::ArenasHuge));
                arm
            }
            _ => BenchArm {
                expects: match mode {
                    "collapse" => pages(Expectation::HugeResident),
                    _ => pages(Expectation::ArenasHuge),
                },
                ..own(name, name)
            },
        });
    }
    if let Some(rebuilt) = rebuilt {
        // With the switch that an interpreter built for huge pages needs since 3.15.
        let arm = BenchArm {
            words: vec![rebuilt.python.clone(), probe.script.clone()],
            ..own(REBUILT, STOCK)
        };
        let mut arm = with_variable(arm, "PYTHON_PYMALLOC_HUGEPAGES", "1");
        if set != Set::Ordinary {
            arm.expects.push(Expectation::HugeResident);
        }
        found.push(arm);
    }
    Ok((found, skipped))
}

fn with_variable(mut arm: BenchArm, name: &str, value: &str) -> BenchArm {
    arm.env.push((name.to_owned(), value.to_owned()));
    arm.expects
        .push(Expectation::Environment(name.to_owned(), value.to_owned()));
    arm
}

fn no_mimalloc(probe: &Probe) -> Option<String> {
    let old = version_of(&probe.version).is_none_or(|version| version < (3, 13));
    match (old, probe.free_threaded) {
        (true, _) => Some(format!(
            "PYTHONMALLOC=mimalloc is for CPython 3.13 and later, and this is {}",
            probe.version
        )),
        (_, true) => Some("a free-threaded interpreter has mimalloc anyway".to_owned()),
        _ => None,
    }
}

/// Programs of the set that were asked for, all where none was; and those that can't run.
///
/// # Errors
/// `Refused`: a program that is none.
pub fn programs<'a>(
    asked: &[String],
    set: Set,
    probe: &'a Probe,
    rebuilt: Option<&Probe>,
) -> Result<(Vec<&'a Program>, Vec<Skipped>)> {
    let names = || probe.programs.iter().map(|program| program.name.as_str());
    if let Some(unknown) = asked.iter().find(|name| !names().any(|known| known == *name)) {
        return Err(Error::Refused(format!(
            "no program {unknown} in the set {}{}: they are {}",
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
            "{who} lacks {}: pip install 'allocwall[bench]' into it",
            missing.join(", ")
        ))
    };
    let mut found = Vec::new();
    let mut skipped = Vec::new();
    for program in probe.programs.iter().filter(wanted) {
        match lacks(program) {
            None => found.push(program),
            Some(why) => skipped.push(Skipped {
                name: program.name.clone(),
                why,
            }),
        }
    }
    Ok((found, skipped))
}

/// Variables that would make stock something else.
const TAKEN_AWAY: &[&str] = &[ARENA_HOOK, "PYTHONMALLOC", "PYTHON_PYMALLOC_HUGEPAGES"];

impl BenchArm {
    /// The arm on a program; `folder` is for inputs that a run makes and the next one reads.
    pub fn prepared(&self, program: &Program, set: Set, folder: &Path, limit: Duration) -> Prepared {
        let mut command: Vec<OsString> = self.words.iter().map(OsString::from).collect();
        command.extend([program.name.as_str(), &self.mode, set.key()].map(OsString::from));
        command.push(folder.into());
        let mut start = Start::new(command, limit);
        let away = TAKEN_AWAY.iter().map(|name| (OsString::from(name), None));
        let set = self
            .env
            .iter()
            .map(|(name, value)| (OsString::from(name), Some(OsString::from(value))));
        start.env = away.chain(set).collect();
        Prepared {
            start,
            expects: self.expects.clone(),
            told: Default::default(),
        }
    }
}

/// Key, title, unit, and whether more of it is better. The first is what a bench is about.
const METRICS: &[(&str, &str, Unit, Direction)] = &[
    (
        "total_s",
        "build, use and teardown",
        Unit::Seconds,
        Direction::LowerIsBetter,
    ),
    ("build_s", "build", Unit::Seconds, Direction::LowerIsBetter),
    ("use_s", "use", Unit::Seconds, Direction::LowerIsBetter),
    ("teardown_s", "teardown", Unit::Seconds, Direction::LowerIsBetter),
    (
        "faults",
        "page faults of these",
        Unit::Count,
        Direction::LowerIsBetter,
    ),
    (
        "resident_bytes",
        "resident at the end of use",
        Unit::Bytes,
        Direction::LowerIsBetter,
    ),
    (
        "huge_bytes",
        "of it on huge pages",
        Unit::Bytes,
        Direction::HigherIsBetter,
    ),
    (
        TLB_MISSES,
        "loads that missed the TLB",
        Unit::Count,
        Direction::LowerIsBetter,
    ),
    (
        "wall_s",
        "wall time of the process",
        Unit::Seconds,
        Direction::LowerIsBetter,
    ),
    (
        "cpu_s",
        "CPU time of the process",
        Unit::Seconds,
        Direction::LowerIsBetter,
    ),
    (
        "peak_rss_bytes",
        "peak resident",
        Unit::Bytes,
        Direction::LowerIsBetter,
    ),
];
/// Of these, how many the program itself prints.
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

/// How they are read from what it prints.
///
/// # Errors
/// None: the table is right, which a test holds.
pub fn figures() -> Result<Vec<Figure>> {
    METRICS[..PRINTED]
        .iter()
        .map(|(key, ..)| Figure::parse(&format!("{key}:lower=$.{key}")))
        .collect()
}

/// A program that is started after a time in which the machine did nothing: what a host takes back meanwhile, it has to give again.
pub struct AfterIdle<'a> {
    pub batch: Batch<'a>,
    pub idle: Duration,
}

impl Subject for AfterIdle<'_> {
    fn run(&mut self, arm: usize) -> Result<Ran> {
        const GLANCE: Duration = Duration::from_millis(50);
        let mut left = self.idle;
        // Relaxed: the flag carries nothing but itself.
        while !left.is_zero() && !self.batch.interrupted.load(Ordering::Relaxed) {
            let step = left.min(GLANCE);
            std::thread::sleep(step);
            left -= step;
        }
        self.batch.run(arm)
    }
}

// ---- what it came to ----

const HEAD: &str =
    "  arm            build      use     down    total      faults  resident    huge   total against stock";

/// A program's lines, newline-terminated: medians of each arm, and its effect with the trial's word.
pub fn table(program: &Program, outcome: &TrialResult) -> String {
    let mut out = format!(
        "\n{}: {}\n{HEAD}\n",
        terminal(&program.name),
        terminal(&program.about)
    );
    let itself = outcome.baseline.iter().find(|c| c.metric == METRICS[0].0);
    let spread = itself.and_then(|c| c.effect.as_ref().ok()).map_or_else(
        || "itself: too few blocks".to_owned(),
        |effect| format!("itself: {}", range(*effect)),
    );
    out += &row(STOCK, &outcome.baseline_medians, &spread);
    let mut notes: Vec<String> = Vec::new();
    for (arm, info) in outcome.design.arms.iter().enumerate().skip(BASELINES) {
        let summary = &outcome.summaries[arm];
        let compared = outcome
            .comparisons
            .iter()
            .find(|c| c.arm == arm && c.metric == METRICS[0].0);
        out += &row(
            &info.name,
            &summary.medians,
            &compared.map_or(String::new(), said),
        );
        let failed = summary.failures.first().map(|failure| {
            format!(
                "{} of {} runs failed: {}",
                summary.failures.len(),
                summary.runs,
                failure.text
            )
        });
        let why = compared
            .and_then(|c| c.why.as_ref())
            .map(|why| why.detail.clone());
        let warned = compared.and_then(|c| c.warning.clone());
        for text in failed.into_iter().chain(why).chain(warned) {
            notes.push(format!("{}: {text}", info.name));
        }
    }
    for note in notes.iter().chain(&outcome.warnings) {
        for line in wrap(&terminal(note), 96) {
            out += &format!("    {line}\n");
        }
    }
    out
}

fn row(name: &str, medians: &BTreeMap<String, Measured<f64>>, effect: &str) -> String {
    let of = |key: &str| medians.get(key).and_then(|value| value.as_ref().ok()).copied();
    let shown = |value: Option<f64>, show: fn(f64) -> String| value.map_or_else(|| "-".to_owned(), show);
    let ms = |key| right(&shown(of(key), |s| format!("{:.1}", s * 1e3)), 9);
    let mib = |key| shown(of(key), |bytes| format!("{:.0} MiB", bytes / f64::from(1 << 20)));
    let line = format!(
        "  {}{}{}{}{}{}{}{}   {effect}",
        left(&elide_end(&terminal(name), 11), 11),
        ms("build_s"),
        ms("use_s"),
        ms("teardown_s"),
        ms("total_s"),
        right(&shown(of("faults"), |n| thousands(n.round() as u64)), 12),
        right(&mib("resident_bytes"), 10),
        right(&mib("huge_bytes"), 9),
    );
    format!("{}\n", line.trim_end())
}

fn said(comparison: &Comparison) -> String {
    match &comparison.effect {
        Ok(effect) => format!(
            "{} ({}) {}",
            percent(effect.point),
            range(*effect),
            comparison.outcome.key()
        ),
        Err(absence) => absence.detail.clone(),
    }
}

fn range(effect: Interval) -> String {
    format!("{} to {}", percent(effect.low), percent(effect.high))
}

fn percent(change: f64) -> String {
    format!("{:+.1} %", change * 100.0).replace('-', "−")
}

/// Why loads that miss the TLB have no figure, where they have none in any run.
pub fn no_tlb(outcome: &TrialResult) -> Option<String> {
    let first = outcome.summaries.first()?.medians.get(TLB_MISSES)?;
    first.as_ref().err().map(|absence| absence.detail.clone())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn probe() -> Probe {
        let text = r#"{"executable": "/v/bin/python3.11", "version": "3.11.7", "implementation": "cpython", "free_threaded": false,
            "script": "/v/lib/allocwall/_workloads.py", "refusals": {"thp": null, "hugetlb": "no reserved page is free", "collapse": null},
            "programs": [{"name": "tuples", "about": "many", "missing": []}, {"name": "graph", "about": "a", "missing": ["networkx"]}]}"#;
        Probe::answer(
            "/v/bin/python",
            &format!("a warning\n{}", text.replace('\n', " ")),
        )
        .unwrap()
    }

    fn names(asked: &[&str]) -> Vec<String> {
        asked.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn arms_that_cannot_run_say_why_and_the_others_run() {
        let (found, skipped) = arms(&names(ARMS), Set::Workloads, &probe(), None).unwrap();
        let of = |found: &[BenchArm]| -> Vec<String> { found.iter().map(|arm| arm.name.clone()).collect() };
        assert_eq!(of(&found), ["A", "A′", "thp", "collapse"]);
        let why: Vec<_> = skipped
            .iter()
            .map(|s| (s.name.as_str(), s.why.as_str()))
            .collect();
        assert_eq!(why[0], ("hugetlb", "no reserved page is free"));
        assert!(why[1].0 == "mimalloc" && why[1].1.contains("3.13"), "{why:?}");
        let newer = Probe {
            version: "3.13.0".into(),
            ..probe()
        };
        let (found, _) = arms(
            &names(&["mimalloc", "thp:keep_mib=0"]),
            Set::Real,
            &newer,
            Some(&probe()),
        )
        .unwrap();
        assert_eq!(of(&found), ["A", "A′", "mimalloc", "thp:keep_mib=0", "rebuilt"]);
        assert_eq!(found[3].mode, "thp:keep_mib=0");
        for wrong in ["jemalloc", "thb", ""] {
            let line = arms(&names(&[wrong]), Set::Real, &newer, None)
                .unwrap_err()
                .to_string();
            assert!(
                line.contains("thp, hugetlb, collapse, auto, thp+malloc, mimalloc"),
                "{line}"
            );
        }
        assert!(arms(&names(&["thp", "thp"]), Set::Real, &newer, None).is_err());
    }

    #[test]
    fn huge_pages_are_to_be_proved_where_there_is_a_heap_for_them() {
        let proof = |set| {
            let (found, _) = arms(&names(&["thp", "collapse"]), set, &probe(), None).unwrap();
            found.iter().map(|arm| arm.expects.len()).collect::<Vec<_>>()
        };
        assert_eq!(proof(Set::Workloads), [0, 0, 2, 1]);
        assert_eq!(proof(Set::Ordinary), [0, 0, 1, 0]);
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
        assert!(
            skipped[0]
                .why
                .contains("networkx: pip install 'allocwall[bench]'"),
            "{skipped:?}"
        );
        let mut bare = probe();
        bare.programs[0].missing = vec!["x".into()];
        let (found, skipped) = of(&["tuples"], Some(&bare));
        assert!(
            found.is_empty() && skipped[0].why.starts_with("rebuilt lacks x"),
            "{skipped:?}"
        );
        let line = programs(&names(&["tupels"]), Set::Real, &probe(), None)
            .unwrap_err()
            .to_string();
        assert!(line.contains("nearest: tuples") && !line.contains('\n'), "{line}");
    }

    #[test]
    fn an_arm_starts_the_program_and_takes_away_what_would_change_stock() {
        let asked = names(&["thp", "thp+malloc"]);
        let (found, _) = arms(&asked, Set::Workloads, &probe(), Some(&probe())).unwrap();
        let program = &probe().programs[0];
        let start = |arm: usize| {
            found[arm]
                .prepared(program, Set::Workloads, Path::new("/f"), Duration::from_secs(1))
                .start
        };
        assert_eq!(
            start(0).shown(),
            "/v/bin/python -m allocwall._workloads tuples stock workloads /f"
        );
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
    fn every_figure_can_be_read_and_one_is_what_it_is_about() {
        assert_eq!(figures().unwrap().len(), PRINTED);
        assert_eq!(metrics().iter().filter(|m| m.primary).count(), 1);
        let printed = r#"{"total_s": 0.5, "huge_bytes": 2097152}"#;
        assert_eq!(figures().unwrap()[0].read(printed).unwrap().value, 0.5);
        assert!(figures().unwrap()[1].read(printed).is_err());
    }

    #[test]
    fn what_is_no_answer_is_none() {
        for text in ["", "Traceback", "{}", "[1]"] {
            assert_eq!(Probe::answer("x", text), None, "{text}");
        }
    }

    #[test]
    fn a_row_has_a_dash_where_nothing_was_measured() {
        let mut medians = BTreeMap::from([
            ("total_s".to_owned(), Ok(0.1571)),
            ("faults".to_owned(), Ok(41_169.0)),
        ]);
        let line = row("thp", &medians, "−28.3 %");
        assert!(
            line.contains("157.1") && line.contains("41,169") && line.contains(" - "),
            "{line}"
        );
        medians.insert("resident_bytes".into(), Ok(180_355_072.0));
        assert!(row("thp", &medians, "").contains("172 MiB"));
        assert_eq!(range(Interval::new(-0.288, -0.283, 0.001)), "−28.8 % to +0.1 %");
    }
}
