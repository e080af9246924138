//! Measures a few prices that a diagnosis needs and that this machine does not have yet: for a short time, at idle priority, on the
//! CPU that is idle most. Other work takes that CPU whenever it wants it; a repetition that it disturbs is discarded
//! (`experiments.rs`).

use super::{Bench, cache, machine_identity, rank, tally};
use crate::calibrate::experiments::{self, Experiment};
use allocwall_host::own;
use allocwall_host::proc::ProcFs;
use allocwall_host::topology::{self, Pinned};
use allocwall_host::worker::{Worker, idle_from_now_on};
use allocwall_model::catalogue::advice::CALIBRATE;
use allocwall_model::recording::PriceList;
use allocwall_model::units::{Absence, Measured, Reason};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The most time that all of this takes, with the choice of the CPU.
pub const MOST: Duration = Duration::from_secs(3);
/// How long the CPUs are watched before one is chosen.
const WATCHED: Duration = Duration::from_millis(200);
/// The smallest part of that time in which the chosen CPU was idle. A busy service on a small machine leaves no CPU idle most of
/// the time. With less than this, `MOST` is too short for enough repetitions.
const IDLE: f64 = 0.3;
/// After each of these times, the measurement stops if the CPU was wanted for more than `WANTED` of it.
const SLICE: Duration = Duration::from_millis(100);
const WANTED: f64 = 0.8;
/// Repetitions of each experiment, if time permits: the interval then spans ranks 24 to 37.
const ENOUGH: usize = 60;

/// New prices, together with those that were known.
#[derive(Debug)]
pub struct Found {
    pub list: PriceList,
    /// How many of the wanted prices were measured.
    pub measured: usize,
    /// Why the list could not be kept for other diagnoses.
    pub not_kept: Option<String>,
}

/// Measures these prices, adds them to the known ones, and keeps the list where `calibrate` keeps it. A price without enough
/// repetitions has a reason in the list.
///
/// # Errors
/// No price could be measured, and none is known.
pub fn measure(
    wanted: &[&'static str],
    known: &Measured<PriceList>,
    interrupted: &Arc<AtomicBool>,
) -> Measured<Found> {
    let begun = Instant::now();
    let machine = machine_identity()?;
    let names = wanted.to_vec();
    let for_list = machine.clone();
    let stopped = interrupted.clone();
    let worker = Worker::start("measures prices", move || quietly(for_list, &names, begun, &stopped));
    let new = match worker.finish().and_then(|new| new) {
        Ok(new) => new,
        Err(absence) => unmeasured(machine.clone(), wanted, &absence),
    };
    let measured = new.prices.len();
    let list = together(known, new);
    if list.prices.is_empty() {
        let why = list.absent.into_iter().map(|(_, absence)| absence).next();
        return Err(why.unwrap_or_else(|| Absence::new(Reason::TooLittle, "no price was measured")));
    }
    let not_kept = if measured > 0 { keep(&list, &machine) } else { None };
    Ok(Found { list, measured, not_kept })
}

/// None if the list is kept.
fn keep(list: &PriceList, machine: &str) -> Option<String> {
    let place = match own::folder(own::Kind::Cache) {
        Ok(place) => place,
        Err(absence) => return Some(absence.to_string()),
    };
    cache::store(&cache::file(&place.folder, machine), &lasting(list)).err().map(|error| error.to_string())
}

/// Without reasons that may be gone the next time: those prices are measured again then.
fn lasting(list: &PriceList) -> PriceList {
    let lasts = |absence: &Absence| !matches!(absence.reason, Reason::TooLittle | Reason::Vanished);
    let absent = list.absent.iter().filter(|(_, absence)| lasts(absence)).cloned().collect();
    PriceList { absent, ..list.clone() }
}

/// The new list goes before the known one where both have a price or a reason.
fn together(known: &Measured<PriceList>, new: PriceList) -> PriceList {
    let Ok(known) = known else { return new };
    let mut list = known.clone();
    list.prices.retain(|price| !new.answers(&price.name));
    list.absent.retain(|(name, _)| !new.answers(name));
    list.prices.extend(new.prices);
    list.absent.extend(new.absent);
    list.prices.sort_by_key(|price| rank(&price.name));
    list.absent.sort_by_key(|(name, _)| rank(name));
    list
}

fn unmeasured(machine: String, wanted: &[&'static str], why: &Absence) -> PriceList {
    let absent = wanted.iter().map(|name| ((*name).to_owned(), why.clone())).collect();
    PriceList { absent, ..tally(machine, vec![]) }
}

/// On a thread of its own, whose priority stays low.
fn quietly(
    machine: String,
    wanted: &[&'static str],
    begun: Instant,
    interrupted: &AtomicBool,
) -> Measured<PriceList> {
    let cpu = idle_cpu(&ProcFs::live())?;
    // Later than the choice: where no CPU is idle, this thread would wait long to read the clock.
    idle_from_now_on()?;
    let bench = Bench::new(Some(cpu))?;
    let _pinned = Pinned::to(cpu)?;
    let mut watch = Watch::begin(begun + MOST)?;
    Ok(prices_of(machine, wanted, &bench, &mut || {
        if interrupted.load(Ordering::Relaxed) { Some(Stop::Interrupted) } else { watch.stop() }
    }))
}

/// A price, or the reason why not, for each that is wanted.
fn prices_of(
    machine: String,
    wanted: &[&'static str],
    bench: &Bench,
    stop: &mut dyn FnMut() -> Option<Stop>,
) -> PriceList {
    let mut table = experiments::interleaved(bench, &|name| wanted.contains(&name));
    let stop = rounds(&mut table, stop);
    let mut list = tally(machine, table);
    // An experiment may have prices that nothing needs.
    list.prices.retain(|price| wanted.contains(&price.name.as_str()));
    list.absent.retain(|(name, _)| wanted.contains(&name.as_str()));
    if let Some(stop) = stop {
        for (_, absence) in list.absent.iter_mut().filter(|(_, a)| a.reason == Reason::TooLittle) {
            *absence = stop.absence();
        }
    }
    list
}

/// One repetition of each experiment after the other, until each has enough. Why it stopped earlier.
fn rounds(table: &mut [Experiment], stop: &mut dyn FnMut() -> Option<Stop>) -> Option<Stop> {
    // An experiment that fails each time must not take the time of the others.
    for round in 0..2 * ENOUGH as u32 {
        let mut all_done = true;
        for experiment in table.iter_mut().filter(|experiment| experiment.repetitions() < ENOUGH) {
            if let Some(stop) = stop() {
                return Some(stop);
            }
            experiment.repeat(round);
            all_done = false;
        }
        if all_done {
            break;
        }
    }
    None
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    Late,
    Wanted,
    Interrupted,
}

impl Stop {
    fn absence(self) -> Absence {
        let why = match self {
            Stop::Late => format!("{} s after the window were not enough", MOST.as_secs()),
            Stop::Wanted => "other work needed the CPU after the window".to_owned(),
            Stop::Interrupted => "interrupted after the window".to_owned(),
        };
        unknown(&why)
    }
}

fn unknown(why: &str) -> Absence {
    Absence::new(Reason::TooLittle, format!("prices unknown: {why}")).mend(CALIBRATE)
}

/// Whether the CPU of the calling thread is wanted by others: by the time in which this thread could run and did not.
struct Watch {
    proc: ProcFs,
    deadline: Instant,
    since: Instant,
    delay_ns: u64,
}

impl Watch {
    fn begin(deadline: Instant) -> Measured<Watch> {
        let proc = ProcFs::live();
        let delay_ns = proc.own_schedstat()?.run_delay_ns;
        Ok(Watch { proc, deadline, since: Instant::now(), delay_ns })
    }

    fn stop(&mut self) -> Option<Stop> {
        let now = Instant::now();
        if now >= self.deadline {
            return Some(Stop::Late);
        }
        let slice = now - self.since;
        if slice < SLICE {
            return None;
        }
        // Without the file it is unknown whether others want the CPU.
        let Ok(stat) = self.proc.own_schedstat() else { return Some(Stop::Wanted) };
        let waited = stat.run_delay_ns.saturating_sub(self.delay_ns);
        (self.since, self.delay_ns) = (now, stat.run_delay_ns);
        (waited as f64 > WANTED * slice.as_nanos() as f64).then_some(Stop::Wanted)
    }
}

/// The CPU that was idle most, if that was enough, of those that this process may use.
fn idle_cpu(proc: &ProcFs) -> Measured<u32> {
    let allowed = topology::allowed_cpus()?;
    let before = proc.idle_times_ns()?;
    let begun = Instant::now();
    std::thread::sleep(WATCHED);
    let (after, over) = (proc.idle_times_ns()?, begun.elapsed());
    idlest(&allowed, &before, &after, over).ok_or_else(|| unknown("all CPUs were busy after the window"))
}

fn idlest(allowed: &[u32], before: &[(u32, u64)], after: &[(u32, u64)], over: Duration) -> Option<u32> {
    let idle = |cpu: u32| {
        let at = |times: &[(u32, u64)]| times.iter().find(|(of, _)| *of == cpu).map(|(_, idle)| *idle);
        Some(at(after)?.saturating_sub(at(before)?))
    };
    let enough = (over.as_nanos() as f64 * IDLE) as u64;
    let idle = allowed.iter().filter_map(|cpu| Some((idle(*cpu)?, *cpu))).filter(|(idle, _)| *idle >= enough);
    // Of equal ones the last: interrupts and the rest of the system mostly use the first ones.
    idle.max().map(|(_, cpu)| cpu)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::catalogue::prices::{SYSCALL, TOUCH_2M, TOUCH_4K};
    use allocwall_model::recording::Price;
    use allocwall_model::units::Interval;

    #[test]
    fn the_idlest_of_the_allowed_cpus_is_used_if_it_is_idle_enough() {
        const MS: u64 = 1_000_000;
        let before = [(0, 5000 * MS), (1, 7000 * MS), (2, 0), (3, 0)];
        let after = |idle: [u64; 4]| {
            let of = |nth: usize| (before[nth].0, before[nth].1 + idle[nth] * MS);
            [of(0), of(1), of(2), of(3)]
        };
        let chosen =
            |allowed: &[u32], idle| idlest(allowed, &before, &after(idle), Duration::from_millis(200));
        assert_eq!(chosen(&[0, 1, 2], [200, 190, 0, 200]), Some(0));
        assert_eq!(chosen(&[0, 1, 2, 3], [200, 190, 0, 200]), Some(3));
        assert_eq!(chosen(&[1], [200, 190, 0, 200]), Some(1));
        // A busy one, which is idle in between.
        assert_eq!(chosen(&[0, 1, 2, 3], [20, 70, 0, 59]), Some(1));
        // The near twins: all are too busy; the idle one is not allowed; its idle time is unknown.
        assert_eq!(chosen(&[0, 1, 2, 3], [20, 59, 0, 59]), None);
        assert_eq!(chosen(&[2], [200, 190, 0, 200]), None);
        assert_eq!(chosen(&[4], [200, 190, 0, 200]), None);
    }

    fn list(prices: &[(&str, f64)], absent: &[(&str, Reason)]) -> PriceList {
        let price = |(name, ns): &(&str, f64)| Price {
            name: (*name).into(),
            ns: Interval::exact(*ns),
            repetitions: 60,
        };
        PriceList {
            measured_unix_s: 1,
            machine: "m".into(),
            prices: prices.iter().map(price).collect(),
            absent: absent.iter().map(|(name, r)| ((*name).into(), Absence::new(*r, "why"))).collect(),
        }
    }

    #[test]
    fn new_prices_join_the_known_ones_and_reasons_that_may_pass_are_not_kept() {
        let known = Ok(list(&[(SYSCALL, 1.0)], &[(TOUCH_2M, Reason::TooLittle)]));
        let both = together(&known, list(&[(TOUCH_4K, 2.0)], &[(TOUCH_2M, Reason::Disabled)]));
        assert_eq!(both.prices, list(&[(TOUCH_4K, 2.0), (SYSCALL, 1.0)], &[]).prices);
        assert_eq!(both.absent, list(&[], &[(TOUCH_2M, Reason::Disabled)]).absent);
        assert_eq!(lasting(&both).absent, both.absent);
        let passing = together(&known, list(&[], &[(TOUCH_2M, Reason::TooLittle)]));
        assert_eq!((lasting(&passing).prices, lasting(&passing).absent), (passing.prices, vec![]));
    }

    #[test]
    fn each_wanted_price_is_measured_or_has_a_reason_and_no_other() {
        let bench = Bench::new(None).expect("a machine that can be calibrated");
        let wanted = [TOUCH_4K, TOUCH_2M, SYSCALL];
        let names = |list: &PriceList| {
            let priced = list.prices.iter().map(|price| price.name.clone());
            let mut names: Vec<String> =
                priced.chain(list.absent.iter().map(|(name, _)| name.clone())).collect();
            names.sort_unstable();
            names
        };
        let mut sorted = wanted.map(str::to_owned);
        sorted.sort_unstable();
        let list = prices_of("m".into(), &wanted, &bench, &mut || None);
        assert_eq!(names(&list), sorted);
        assert!(list.prices.iter().all(|price| price.ns.low > 0.0 && price.repetitions as usize <= ENOUGH));
        // The near twin stops before the first repetition: what could have been measured says why it was not.
        let stopped = prices_of("m".into(), &wanted, &bench, &mut || Some(Stop::Wanted));
        assert_eq!((names(&stopped), stopped.prices), (sorted.to_vec(), vec![]));
        let why = stopped.absent.iter().find(|(name, _)| name == SYSCALL).map(|(_, absence)| absence.clone());
        assert_eq!(why, Some(Stop::Wanted.absence()));
    }

    #[test]
    fn a_measurement_stops_when_it_is_told_to_and_goes_on_otherwise() {
        let table = || {
            let mut bench = vec![Experiment::absent(&[SYSCALL], Absence::new(Reason::NotSupported, "no"))];
            bench[0].series[0].1 = vec![1.0; 3];
            bench
        };
        let mut asked = 0;
        let stop = rounds(&mut table(), &mut || {
            asked += 1;
            (asked == 5).then_some(Stop::Wanted)
        });
        assert_eq!((stop, asked), (Some(Stop::Wanted), 5));
        assert!(Stop::Wanted.absence().detail.contains("other work needed the CPU"));
        // Experiments that never succeed end too.
        assert_eq!(rounds(&mut table(), &mut || None), None);
    }
}
