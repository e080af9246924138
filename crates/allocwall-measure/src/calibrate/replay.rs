//! What a program's calls of its allocator cost with other allocators on this machine.
//!
//! A trace of the target's calls or, without one, the mix of counted calls ([`Mix`]) is played by `allocwall replay`, a child process for
//! each measurement, so that each one begins with a heap, an address space and an allocator of its own. In a round the children of the
//! present allocator, of all variants, and one without an allocator, which shows the replay's own work, play the same calls. They take
//! turns of some milliseconds, so that drift and other work on the machine affect all of them alike. A difference is taken within a round.
//!
//! The present allocator is the file that served the counted calls, with the settings in the environment of allocwall itself: those
//! that the command alone was given (`env NAME=VALUE CMD`) are not known here.

mod child;
mod plan;
mod traced;
mod turns;

pub use child::{Options, Refused, play};

use allocwall_host::facts::Machine;
use allocwall_host::{memory, topology};
use allocwall_model::allocations::{Calls, Counted};
use allocwall_model::catalogue::modules::{ModuleRole, role_of_library};
use allocwall_model::replay::{LEAST_CALLS, Mix, Played, Replay, ReplayCost, Replayed};
use allocwall_model::stats::random::Random;
use allocwall_model::stats::ranks::{self, Set};
use allocwall_model::stats::{median, median_interval};
use allocwall_model::trace::Trace;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File};
use std::io::{self, Seek, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};
use turns::{Limits, MOST_TURNS, Unfinished};

/// The most bytes of blocks at the same time, and the largest part of the memory that is available.
const MOST_MEMORY: u64 = 1 << 30;
const MEMORY_PART: u64 = 4;
/// A child with more resident memory is ended: an allocator may take some times the bytes of the blocks.
const MOST_RESIDENT: u64 = 4;
/// If all children of a round together have more, they run one by one.
const MOST_TOGETHER: u64 = 2;
/// Fewer have no interval.
const LEAST_ROUNDS: usize = 6;
const MOST_ROUNDS: usize = 24;
/// Reallocs count from this part of all calls for memory on; so many of them may keep their block's address in one case and not in the
/// other. Our choice.
const MANY_REALLOCS: f64 = 0.1;
const SAME_PART: f64 = 0.25;
/// Of the interval of a saving: it misses the true one in so many of all cases.
const LEVEL: f64 = 0.05;
/// Time for each variant, and for the present allocator. No round begins later, unless there are too few.
const TIME_EACH: Duration = Duration::from_millis(800);
/// After this multiple of that time the replay ends, also within a round.
const PATIENCE: u32 = 3;
/// The longest output of a child, and the longest reason that is quoted.
const OUTPUT: u64 = 64 << 10;
const QUOTED: usize = 200;

/// Another allocator, or other settings.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Variant {
    /// The remedy as the user writes it.
    pub remedy: String,
    /// Variables that it sets, with their whole values, as LD_PRELOAD and GLIBC_TUNABLES.
    pub env: Vec<(OsString, OsString)>,
}

/// Replays the counted calls with the present allocator and with each variant: for about 0.8 s each, with up to one CPU for each
/// thread that allocates. `traces`: of the process with most calls, which are played in turns. `own`: the path of allocwall. The target
/// should have ended.
///
/// # Errors
/// The calls can't be replayed ([`Mix::of`], an allocator that is part of the program), the present allocator could not be measured,
/// or the user interrupted.
pub fn measure(
    counted: &Counted,
    traces: &[Trace],
    variants: &[Variant],
    own: &Path,
    interrupted: &AtomicBool,
) -> Measured<Replay> {
    let cpus = topology::allowed_cpus()?.len();
    let mix = Mix::of(counted)?.on_cpus(cpus);
    let memory = (memory::headroom(&Machine::live())? / MEMORY_PART).min(MOST_MEMORY);
    // One that had just begun when the program ended is left out.
    let longest = traces.iter().map(Vec::len).max().unwrap_or(0);
    let playable = |trace: &&Trace| {
        let plan = plan::Plan::of_trace(trace, &mix, memory);
        4 * trace.len() >= longest && plan.is_some_and(|plan| plan.calls >= LEAST_CALLS)
    };
    let traces: Vec<&Trace> = traces.iter().filter(playable).collect();
    let traced = !traces.is_empty();
    let mix = serde_json::to_vec(&mix)
        .map_err(|error| Absence::new(Reason::NotSupported, format!("the mix of calls: {error}")))?;
    let inputs = match traced {
        true => traces.into_iter().map(|trace| child::input(&mix, trace)).collect(),
        false => vec![child::input(&mix, &[])],
    };
    let time = TIME_EACH * (variants.len() as u32 + 1);
    let began = Instant::now();
    let mut bench = Bench {
        own,
        present: present(counted)?,
        inputs,
        memory,
        deadline: began + time * PATIENCE,
        interrupted,
        crowded: false,
        in_turns: true,
        random: Random::new(1),
    };
    let mut found: Vec<Series> = variants.iter().map(|_| Series::default()).collect();
    let mut present = Present::default();
    for round in 0..MOST_ROUNDS {
        let enough = began.elapsed() >= time && round >= LEAST_ROUNDS;
        if enough || !bench.round(round, variants, &mut present, &mut found)? {
            break;
        }
    }
    if let Some(why) = copies_otherwise(&counted.calls(), &present.played) {
        return Err(why);
    }
    let rounds = present.played.0.len();
    if rounds < LEAST_ROUNDS {
        let detail = format!("{rounds} rounds of the replay took {} s", began.elapsed().as_secs());
        return Err(Absence::new(Reason::TooCostly, detail).mend("replay on a less busy machine"));
    }
    let variants = variants.iter().zip(found).map(|(variant, series)| series.against(&present, variant));
    Ok(Replay {
        variants: variants.collect(),
        traced,
        in_turns: bench.in_turns,
        calls: present.played.0.iter().flatten().map(|played| played.calls).next_back().unwrap_or(0),
        rounds: rounds as u32,
        present: present.cost(),
    })
}

/// Why the replay's reallocs are not those of the target: how many kept the address of their block decides what realloc costs, and it
/// depends on the order of calls, which a mix does not have.
fn copies_otherwise(calls: &Calls, present: &Series) -> Option<Absence> {
    let reallocs = calls.reallocs() as f64;
    if reallocs < MANY_REALLOCS * (calls.allocations() as f64 + reallocs) {
        return None;
    }
    // Where the kernel moves a block's pages, the address may stay.
    let least = calls.in_place as f64 / reallocs;
    let most = least + calls.remapped as f64 / reallocs;
    let here = median(&present.0.iter().flatten().filter_map(|one| one.in_place).collect::<Vec<f64>>())?;
    let alike = (least - SAME_PART..=most + SAME_PART).contains(&here);
    (!alike).then(|| {
        let [counted, here] = [least, here].map(|part| (part * 100.0).round());
        let detail = format!(
            "{counted} % of the reallocs kept their block's address, and {here} % of those of the replay"
        );
        Absence::new(Reason::NotApplicable, detail)
    })
}

/// The variables with which a child has the target's present allocator.
fn present(counted: &Counted) -> Measured<Vec<(OsString, OsString)>> {
    let process =
        counted.processes.first().ok_or_else(|| Absence::new(Reason::TooLittle, "no process was counted"))?;
    let allocator = process.allocator.as_ref().map_err(Clone::clone)?;
    if is_libc(allocator) {
        return Ok(Vec::new());
    }
    if process.program.as_ref() == Ok(allocator) {
        let detail = format!("{allocator} contains its allocator, which a replay can't load");
        return Err(Absence::new(Reason::NotApplicable, detail));
    }
    if !Path::new(allocator).is_file() {
        let detail = format!("the target's allocator {allocator} is not a file that a replay can load");
        return Err(Absence::new(Reason::NotFound, detail));
    }
    let mut preload = OsString::from(allocator);
    if let Some(own) = std::env::var_os("LD_PRELOAD").filter(|own| !own.is_empty()) {
        preload.push(":");
        preload.push(own);
    }
    Ok(vec![("LD_PRELOAD".into(), preload)])
}

fn is_libc(file: &str) -> bool {
    role_of_library(file.rsplit('/').next().unwrap_or(file)) == Some(ModuleRole::Libc)
}

/// What a child of a round plays with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum With {
    Present,
    /// No allocator, and memory that is ready.
    Ready,
    /// The variant of this number.
    Variant(usize),
}

/// Measurements, one for each round.
#[derive(Default)]
struct Series(Vec<Measured<Played>>);

/// Those of the present allocator and of the replay's own work, of the same rounds.
#[derive(Default)]
struct Present {
    played: Series,
    ready: Series,
}

impl Present {
    fn cost(&self) -> ReplayCost {
        ReplayCost {
            cost: self.played.cost(),
            ready: self.ready.cost(),
            faults: self.played.of(|played| played.faults),
        }
    }

    /// For each round: what a call cost, and the part of it that is malloc's.
    fn costs(&self) -> impl Iterator<Item = Option<(f64, f64)>> {
        self.played.0.iter().zip(&self.ready.0).map(|(played, ready)| {
            let (played, ready) = (played.as_ref().ok()?.cost_ns, ready.as_ref().ok()?.cost_ns);
            Some((played, (played - ready).max(0.0)))
        })
    }
}

impl Series {
    /// Why no further round makes sense.
    fn failure(&self) -> Option<&Absence> {
        self.0.iter().find_map(|played| played.as_ref().err())
    }

    fn of(&self, value: fn(&Played) -> f64) -> Interval {
        let values: Vec<f64> = self.0.iter().flatten().map(value).collect();
        median_interval(&values).unwrap_or(Interval::exact(0.0))
    }

    fn cost(&self) -> Interval {
        self.of(|played| played.cost_ns)
    }

    /// How much less a call costs than with `present`. Each round has other calls, whose costs differ, so it is the part of malloc's cost
    /// that is saved in each round, times the usual cost.
    fn saved(&self, present: &Present) -> Option<Interval> {
        let usual = median(&present.costs().flatten().map(|(_, own)| own).collect::<Vec<f64>>())?;
        let changes = present.costs().zip(&self.0).filter_map(|(before, after)| {
            let ((before, own), after) = (before?, after.as_ref().ok()?);
            let change = after.cost_ns - before;
            // Where malloc costs next to nothing, a part of it is noise.
            let part = if own * 4.0 > usual { change / own * usual } else { change };
            Some(Set { treated: part, untreated: vec![0.0] })
        });
        let change = ranks::shift(&changes.collect::<Vec<Set>>(), LEVEL)?;
        Some(Interval::new(-change.high, -change.point, -change.low))
    }

    /// The same as a variant of `present`.
    fn against(&self, present: &Present, variant: &Variant) -> Replayed {
        let remedy = variant.remedy.clone();
        let few = || Absence::new(Reason::TooLittle, "too few rounds of the replay");
        let saved = match self.failure() {
            Some(why) => Err(why.clone()),
            None => self.saved(present).ok_or_else(few),
        };
        match saved {
            Ok(saved) => Replayed { remedy, cost: self.cost(), saved, failed: None },
            Err(why) => {
                let nothing = Interval::exact(0.0);
                Replayed { remedy, cost: nothing, saved: nothing, failed: Some(why) }
            }
        }
    }
}

/// What all measurements share.
struct Bench<'a> {
    own: &'a Path,
    /// Variables of the present allocator. Those of a variant come after them.
    present: Vec<(OsString, OsString)>,
    /// What a child reads: those of a round have the same.
    inputs: Vec<Vec<u8>>,
    memory: u64,
    deadline: Instant,
    interrupted: &'a AtomicBool,
    /// Whether the children could not exist at the same time, so that they run one by one.
    crowded: bool,
    /// Whether no result is of one that ran alone.
    in_turns: bool,
    /// For the order of the turns.
    random: Random,
}

impl Bench<'_> {
    /// Measures all that has not failed yet, in turns or, if they can't exist at the same time, one after the other. Returns whether
    /// there was enough time.
    ///
    /// # Errors
    /// The present allocator or the replay's own work can't be measured, or the user interrupted.
    fn round(
        &mut self,
        round: usize,
        variants: &[Variant],
        present: &mut Present,
        found: &mut [Series],
    ) -> Measured<bool> {
        let seed = round as u64 + 1;
        let left = (0..variants.len()).filter(|nth| found[*nth].failure().is_none());
        let mut which: Vec<With> = left.map(With::Variant).chain([With::Present, With::Ready]).collect();
        self.random.shuffle(&mut which);
        let together = match self.crowded {
            false => self.played(seed, &which, variants)?,
            true => Err(Unfinished::Crowded),
        };
        let mut played: Vec<Option<Measured<Played>>> = match together {
            Ok(played) => played.into_iter().map(Some).collect(),
            Err(Unfinished::Crowded) => which.iter().map(|_| None).collect(),
            Err(Unfinished::Late) => return Ok(false),
        };
        self.crowded = played.iter().all(Option::is_none);
        // What failed beside others may have had too little memory, or too few threads.
        for (which, played) in which.iter().zip(&mut played) {
            if !matches!(played, Some(Ok(_))) {
                let Ok(mut alone) = self.played(seed, &[*which], variants)? else { return Ok(false) };
                *played = alone.pop();
                self.in_turns &= !matches!(played, Some(Ok(_)));
            }
        }
        for (which, played) in which.into_iter().zip(played.into_iter().flatten()) {
            match which {
                With::Present => present.played.0.push(Ok(played?)),
                With::Ready => present.ready.0.push(Ok(played?)),
                With::Variant(nth) => {
                    // Without this one, they may have room.
                    self.crowded &= played.is_ok();
                    found[nth].0.push(played);
                }
            }
        }
        Ok(true)
    }

    /// The results of some of a round, in turns.
    fn played(
        &mut self,
        seed: u64,
        which: &[With],
        variants: &[Variant],
    ) -> Measured<Result<Vec<Measured<Played>>, Unfinished>> {
        let prepared: io::Result<Vec<(Command, Output)>> =
            which.iter().map(|with| self.prepared(seed, *with, variants)).collect();
        let (mut commands, outputs): (Vec<Command>, Vec<Output>) =
            prepared.map_err(|error| turns::not_permitted(&error))?.into_iter().unzip();
        let times = if which.len() == 1 { MOST_RESIDENT } else { MOST_TOGETHER };
        let limits = Limits {
            bytes: self.memory.saturating_mul(times),
            turns: MOST_TURNS,
            deadline: self.deadline,
            interrupted: self.interrupted,
        };
        let ended = turns::take(&mut commands, &limits, &mut self.random)?;
        let played = |(status, output): (Measured<ExitStatus>, Output)| output.played(status?);
        Ok(ended.map(|ended| ended.into_iter().zip(outputs).map(played).collect()))
    }

    fn prepared(&self, seed: u64, with: With, variants: &[Variant]) -> io::Result<(Command, Output)> {
        let own_env = match with {
            With::Variant(nth) => &variants[nth].env[..],
            With::Present | With::Ready => &[],
        };
        let env = || self.present.iter().chain(own_env);
        let (output, errors) = (sealed()?, sealed()?);
        let mut command = Command::new(self.own);
        command
            .args(["replay", "--seed", &seed.to_string(), "--memory", &self.memory.to_string()])
            .args((with == With::Ready).then_some("--ready"))
            .envs(env().map(|(name, value)| (name, value)))
            .stdin(input(&self.inputs[seed as usize % self.inputs.len()])?)
            .stdout(output.try_clone()?)
            .stderr(errors.try_clone()?);
        let preload = env().rev().find(|(name, _)| name == "LD_PRELOAD").map(|(_, value)| value.clone());
        Ok((command, Output { output, errors, preload }))
    }
}

/// What a child writes, and the LD_PRELOAD that it was given.
struct Output {
    output: File,
    errors: File,
    preload: Option<OsString>,
}

impl Output {
    fn played(&self, status: ExitStatus) -> Measured<Played> {
        if !status.success() {
            return Err(ended(status, &first_line(&self.errors)));
        }
        let played: Played = serde_json::from_str(&first_line(&self.output)).map_err(|error| {
            Absence::new(Reason::Unparsable, format!("a replay wrote no result: {error}"))
        })?;
        let numbers = [played.cost_ns, played.faults];
        if played.calls == 0 || !numbers.into_iter().all(|number| number.is_finite() && number >= 0.0) {
            return Err(Absence::new(Reason::Unparsable, "a replay wrote a result without numbers"));
        }
        served(played.allocator.as_deref(), self.preload.as_deref())?;
        Ok(played)
    }
}

/// A file in memory with these bytes. A pipe could keep the parent waiting for a child that does not read.
fn input(bytes: &[u8]) -> io::Result<File> {
    let mut file = File::from(memfd_create("allocwall-mix", MemfdFlags::CLOEXEC)?);
    file.write_all(bytes)?;
    file.rewind()?;
    Ok(file)
}

/// A file in memory that can't grow, full of zeros.
fn sealed() -> io::Result<File> {
    let file = memfd_create("allocwall-replay", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, OUTPUT)?;
    fcntl_add_seals(&file, SealFlags::GROW | SealFlags::SHRINK | SealFlags::SEAL)?;
    Ok(file.into())
}

/// What was written there, up to the end of the first line.
fn first_line(file: &File) -> String {
    let mut bytes = vec![0; OUTPUT as usize];
    let read = file.read_at(&mut bytes, 0).unwrap_or(0);
    let line = bytes[..read].split(|byte| matches!(byte, 0 | b'\n')).next().unwrap_or_default();
    String::from_utf8_lossy(line).into_owned()
}

fn ended(status: ExitStatus, line: &str) -> Absence {
    let said: String = line.trim_start_matches("error: ").chars().take(QUOTED).collect();
    let detail = match status.signal() {
        Some(signal) => format!("the replay was killed by signal {signal}"),
        None if said.is_empty() => format!("the replay ended with {status}"),
        None => said,
    };
    Absence::new(Reason::NotSupported, detail)
}

/// Whether malloc belonged to a file of this LD_PRELOAD, or without one to the C library.
fn served(by: Option<&str>, preload: Option<&OsStr>) -> Measured<()> {
    let Some(by) = by else {
        let why = "this build of allocwall is statically linked, so it can't load another allocator";
        return Err(Absence::new(Reason::NotSupported, why));
    };
    let preload = preload.map(OsStr::to_string_lossy).unwrap_or_default();
    let files = || preload.split([':', ' ']).filter(|file| !file.is_empty());
    let path = |file: &str| fs::canonicalize(file).ok();
    let is_it = |file: &str| file == by || path(file).is_some_and(|file| path(by) == Some(file));
    let role = |file: &str| role_of_library(file.rsplit('/').next().unwrap_or(file));
    // Other libraries change nothing here.
    let is_allocator = |file: &str| matches!(role(file), Some(ModuleRole::Allocator(_)));
    if files().any(is_it) || is_libc(by) && !files().any(is_allocator) {
        return Ok(());
    }
    let wanted = if preload.is_empty() { "the C library" } else { &*preload };
    let detail = format!("malloc of the replay belonged to {by}, not to {wanted}");
    Err(Absence::new(Reason::NotSupported, detail))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn played(cost_ns: f64) -> Measured<Played> {
        Ok(Played { calls: 10, cost_ns, faults: 0.5, in_place: None, allocator: None })
    }

    fn series(costs_ns: impl IntoIterator<Item = f64>) -> Series {
        Series(costs_ns.into_iter().map(played).collect())
    }

    /// The replay's own work takes a fifth of the first round.
    fn present(costs_ns: &[f64]) -> Present {
        let ready = costs_ns.iter().map(|_| costs_ns[0] / 5.0);
        Present { played: series(costs_ns.iter().copied()), ready: series(ready) }
    }

    fn variant() -> Variant {
        Variant { remedy: "jemalloc".into(), env: vec![] }
    }

    #[test]
    fn savings_are_parts_of_what_a_round_costs() {
        // The machine becomes slower and slower, or the calls of a round are dearer.
        let costs = |cost_ns: f64| (0..6).map(move |round| cost_ns * (1.0 + 0.5 * f64::from(round)));
        let with = |cost_ns: f64| Present { played: series(costs(cost_ns)), ready: series(costs(20.0)) };
        let (present, cheaper) = (with(100.0), with(60.0));
        let near = |a: Interval, b: f64| [a.low, a.point, a.high].iter().all(|end| (end - b).abs() < 1e-6);
        let found = cheaper.played.against(&present, &variant());
        // 40 of 80 ns without the replay's own work; at the usual speed, 90 of 180.
        assert!(near(found.saved, 90.0) && found.failed.is_none(), "{found:?}");
        assert_eq!(found.cost, Interval::new(60.0, 135.0, 210.0));
        // Exchanged, it costs 40 more than 40 ns.
        let dearer = present.played.against(&cheaper, &variant()).saved;
        assert!(near(dearer, -90.0), "{dearer:?}");
        let ReplayCost { cost, ready, faults } = present.cost();
        assert_eq!((cost.point, ready.point, faults), (225.0, 45.0, Interval::exact(0.5)));
    }

    #[test]
    fn a_saving_is_known_better_than_its_rounds() {
        let rounds = [38.0, 45.0, 41.0, 36.0, 42.0, 39.0, 44.0, 40.0, 37.0];
        let present = present(&[100.0; 9]);
        let cheaper = series(rounds.map(|saved| 100.0 - saved));
        let saved = cheaper.against(&present, &variant()).saved;
        assert!(saved.low > 37.0 && saved.high < 44.0 && saved.low < 40.0 && saved.high > 40.5, "{saved:?}");
        // Too few rounds have no interval.
        let few = Series(cheaper.0[..LEAST_ROUNDS - 1].to_vec());
        assert_eq!(few.against(&present, &variant()).failed.map(|why| why.reason), Some(Reason::TooLittle));
    }

    #[test]
    fn reallocs_must_keep_their_addresses_as_often_as_the_targets() {
        let refused = |in_place: u64, remapped: u64, malloc: u64, here: f64| {
            let moved = 100 - in_place - remapped;
            let calls = Calls { malloc, in_place, remapped, moved, ..Calls::default() };
            let of_round = |_| Ok(Played { in_place: Some(here), ..played(100.0).unwrap() });
            copies_otherwise(&calls, &Series((0..6).map(of_round).collect())).is_some()
        };
        assert!(refused(90, 0, 100, 0.2) && refused(10, 0, 100, 0.9));
        assert!(!refused(90, 0, 100, 0.8) && !refused(10, 0, 100, 0.0));
        // Pages that the kernel moves may keep their address or not.
        assert!(!refused(10, 80, 100, 0.9) && !refused(10, 80, 100, 0.1));
        // Few reallocs among other calls.
        assert!(!refused(90, 0, 10_000, 0.2));
    }

    #[test]
    fn a_variant_that_failed_once_has_no_saving() {
        let present = present(&[100.0; 7]);
        let why = Absence::new(Reason::TooCostly, "a replay took more than 4 s");
        let mut failed = series([50.0; 6]);
        failed.0.push(Err(why.clone()));
        let found = failed.against(&present, &variant());
        assert_eq!((found.failed, found.saved), (Some(why), Interval::exact(0.0)));
        failed.0.pop();
        assert_eq!(failed.against(&present, &variant()).saved.point, 50.0);
    }

    #[test]
    fn a_round_without_room_for_all_runs_one_by_one() {
        let place = tempfile::tempdir().unwrap();
        // In place of allocwall. A shell writes it: a file that this process had open may not be run yet.
        let own = place.path().join("own");
        let result =
            r#"{"calls":10,"cost_ns":9.0,"faults":0.0,"in_place":null,"allocator":"/lib/libc.so.6"}"#;
        let text = format!("#!/bin/sh\nsleep 0.03\necho '{result}'\n");
        let write = r#"printf %s "$1" > "$0" && chmod +x "$0""#;
        assert!(Command::new("/bin/sh").args(["-c", write]).arg(&own).arg(text).status().unwrap().success());
        let variants: Vec<Variant> = (0..14).map(|_| variant()).collect();
        let never = AtomicBool::new(false);
        let round = |memory: u64, crowded: bool| {
            let mut bench = Bench {
                own: &own,
                present: Vec::new(),
                inputs: vec![Vec::new()],
                memory,
                deadline: Instant::now() + Duration::from_secs(60),
                interrupted: &never,
                crowded,
                in_turns: true,
                random: Random::new(1),
            };
            let mut found: Vec<Series> = variants.iter().map(|_| Series::default()).collect();
            let mut present = Present::default();
            assert_eq!(bench.round(0, &variants, &mut present, &mut found), Ok(true));
            assert!(found.iter().chain([&present.played, &present.ready]).all(|series| series.0.len() == 1));
            let failed = found.iter().filter(|series| series.failure().is_some()).count();
            (bench.crowded, bench.in_turns, failed)
        };
        // Sixteen shells, of one or two MiB each.
        assert_eq!(round(1 << 30, false), (false, true, 0));
        assert_eq!(round(3 << 20, false), (true, false, 0));
        // It stays so.
        assert_eq!(round(1 << 30, true), (true, false, 0));
    }

    #[test]
    fn a_library_that_was_not_loaded_is_noticed() {
        let libc = "/lib/x86_64-linux-gnu/libc.so.6";
        for (by, preload, holds) in [
            (libc, None, true),
            (libc, Some(libc), true),
            (libc, Some("/opt/libtrace.so"), true),
            (libc, Some("/opt/libjemalloc.so.2"), false),
            ("/opt/libjemalloc.so.2", Some("/opt/libtrace.so:/opt/libjemalloc.so.2"), true),
            ("/opt/libjemalloc.so.2", None, false),
            ("/opt/libjemalloc.so.2", Some("/opt/libmimalloc.so"), false),
            ("/usr/bin/allocwall", None, false),
        ] {
            assert_eq!(served(Some(by), preload.map(OsStr::new)).is_ok(), holds, "{by} {preload:?}");
        }
        assert_eq!(served(None, None).unwrap_err().reason, Reason::NotSupported);
    }

    #[test]
    fn output_is_limited_and_its_first_line_is_the_result() {
        let mut file = sealed().unwrap();
        assert_eq!(first_line(&file), "");
        file.write_all(b"result\nmore").unwrap();
        assert_eq!(first_line(&file), "result");
        assert!(file.write_all_at(&[b'x'; 2], OUTPUT - 1).is_err());
        file.write_all_at(&vec![b'x'; OUTPUT as usize], 0).unwrap();
        assert_eq!(first_line(&file).len(), OUTPUT as usize);
        let mut input = input(b"a mix").unwrap();
        let mut text = String::new();
        io::Read::read_to_string(&mut input, &mut text).unwrap();
        assert_eq!(text, "a mix");
    }

    #[test]
    fn a_child_that_failed_says_why() {
        let of = |script: &str| Command::new("/bin/sh").args(["-c", script]).status().unwrap();
        assert_eq!(ended(of("exit 1"), "error: no memory").detail, "no memory");
        assert_eq!(ended(of("exit 3"), "").detail, "the replay ended with exit status: 3");
        assert_eq!(ended(of("kill -KILL $$"), "x").detail, "the replay was killed by signal 9");
    }
}
