//! Measures this machine's price list: what each event of `catalogue::prices` costs here, in under ten
//! seconds.
//!
//! The experiments run many short repetitions, interleaved across all prices, so that drift and stolen time
//! affect all of them alike. Prices are medians with order-statistic intervals, so a pause by the hypervisor
//! does not move them. At the start some memory is set aside and not used while the other prices are
//! measured. It is idle then, and a hypervisor may reclaim it.

mod cache;
mod experiments;
mod facts;
pub mod missing;
pub mod replay;

use allocwall_host::facts::Machine;
use allocwall_host::topology::{self, Pinned, Topology};
use allocwall_host::{libc_malloc, memory, own};
use allocwall_model::catalogue::advice::CALIBRATE_UNDISTURBED;
use allocwall_model::catalogue::prices;
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::{Price, PriceList};
use allocwall_model::stats::median_interval;
use allocwall_model::units::{Absence, Measured, Reason, count};
use experiments::{Experiment, IdleMemory};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

pub use facts::facts;

/// How long memory is idle before it is touched again. Free page reporting starts two seconds after a page
/// was freed (Linux, mm/page_reporting.c, PAGE_REPORTING_DELAY).
const IDLE: Duration = Duration::from_secs(5);
/// No repetition starts after this time.
const DEADLINE: Duration = Duration::from_millis(9_000);
/// Repetitions of the interleaved part, if time permits: the interval then spans ranks 86 to 115.
const ROUNDS: u32 = 200;
/// With fewer repetitions there is no price: the interval would rest on a handful of values.
const FEWEST: usize = 9;
/// Half the width of an interval, as a share of the price, from which on the user is told that it is wide. Our choice.
const WIDE: f64 = 0.1;

/// A price list and its origin.
#[derive(Clone, Debug)]
pub struct Calibration {
    pub list: PriceList,
    pub origin: Origin,
    /// The file of the list; absent if there is no place for it.
    pub file: Measured<PathBuf>,
    /// Warnings for the user: a damaged cache, a list that could not be saved.
    pub warnings: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    Cache,
    Measured,
}

/// The saved list of this machine. Without one, or with `fresh`, a new list is measured and saved. `progress`
/// gets values from 0 to 1.
pub fn price_list(fresh: bool, progress: &mut dyn FnMut(f32)) -> Result<Calibration> {
    let machine = machine()?;
    let place = own::folder(own::Kind::Cache);
    let mut warnings = Vec::new();
    let file = place.map(|place| {
        warnings.extend(place.instead);
        cache::file(&place.folder, &machine)
    });
    if let (false, Ok(file)) = (fresh, &file) {
        match cache::load(file, &machine) {
            // A diagnosis keeps only the prices that it needed.
            Ok(list) if is_complete(&list) => {
                let file = Ok(file.clone());
                return Ok(Calibration { list, origin: Origin::Cache, file, warnings });
            }
            Ok(_) => {}
            Err(absence) if absence.reason == Reason::NotFound => {}
            Err(absence) => warnings.push(format!("{absence}; measured again")),
        }
    }
    let list = measure(machine, progress)?;
    warnings.extend(wide(&list));
    let file = match list.prices.is_empty() {
        true => Err(Absence::new(Reason::TooLittle, "there is no price to save")),
        false => file,
    };
    match &file {
        Ok(file) => warnings
            .extend(cache::store(file, &list).err().map(|error| format!("price list not saved: {error}"))),
        Err(_) if list.prices.is_empty() => {}
        Err(absence) => warnings.push(format!("price list not saved: {absence}")),
    }
    Ok(Calibration { list, origin: Origin::Measured, file, warnings })
}

fn wide(list: &PriceList) -> Option<String> {
    let wide = list.prices.iter().filter(|price| price.ns.half_width() > WIDE * price.ns.point).count();
    (wide > 0).then(|| {
        format!(
            "the intervals of {wide} of {} are wider than ±{:.0} %. If other work kept the CPUs busy: run `allocwall calibrate --fresh` \
             at a quieter time",
            count(list.prices.len(), "price"),
            100.0 * WIDE
        )
    })
}

/// The saved list of this machine, without a measurement. A diagnosis uses it, because it must not disturb
/// the target.
pub fn cached() -> Measured<PriceList> {
    let machine = machine_identity()?;
    load_cached(&own::folder(own::Kind::Cache)?.folder, &machine)
}

/// Like `cached`, but the caller chooses the folder and the machine.
pub fn load_cached(dir: &Path, machine: &str) -> Measured<PriceList> {
    cache::load(&cache::file(dir, machine), machine)
}

/// The identity that a list must have to be used here.
pub fn machine_identity() -> Measured<String> {
    let machine = Machine::live().identity()?;
    Ok(format!("{machine}, {}", libc_malloc::libc_name()))
}

fn machine() -> Result<String> {
    machine_identity()
        .map_err(|absence| Error::Refused(format!("this machine cannot be identified: {absence}")))
}

/// Whether every price of the catalogue was measured, or has a reason why not.
fn is_complete(list: &PriceList) -> bool {
    let names = || list.prices.iter().map(|p| &p.name).chain(list.absent.iter().map(|(name, _)| name));
    let known = |entry: &prices::Description| {
        names().any(|name| if entry.prefix { name.starts_with(entry.name) } else { name == entry.name })
    };
    prices::DESCRIPTIONS.iter().all(known)
}

/// Measures all prices now; the cache is neither read nor written.
pub fn measure(machine: String, progress: &mut dyn FnMut(f32)) -> Result<PriceList> {
    let begun = Instant::now();
    let bench = Bench::new(None).map_err(|absence| Error::Refused(format!("cannot calibrate: {absence}")))?;
    // First touch, faults and loads depend on this CPU; children and threads start from here.
    let _pinned =
        Pinned::to(bench.cpu).map_err(|absence| Error::Refused(format!("cannot calibrate: {absence}")))?;
    let mut table = experiments::interleaved(&bench, &|_| true);
    let mut idle = IdleMemory::set_aside(&bench);

    let idle_since = Instant::now();
    let expected = begun.elapsed().as_secs_f32() + IDLE.as_secs_f32() * 1.1;
    let mut report = |now: Instant| progress(((now - begun).as_secs_f32() / expected).min(1.0));
    for round in 0..ROUNDS {
        // Spread over the time that the idle memory needs anyway: many measurements of a machine that drifts,
        // with a free CPU between them.
        let due = idle_since + IDLE * round / ROUNDS;
        std::thread::sleep(due.saturating_duration_since(Instant::now()));
        if idle_since.elapsed() >= IDLE || begun.elapsed() >= DEADLINE {
            break;
        }
        report(Instant::now());
        // The first experiment after the pause pays for cold caches, so the order rotates.
        let count = table.len();
        for i in 0..count {
            let experiment = &mut table[(i + round as usize) % count];
            if may_go_on(experiment, IDLE / count as u32) {
                experiment.repeat(round);
            }
        }
    }
    std::thread::sleep((idle_since + IDLE).saturating_duration_since(Instant::now()));
    idle.measure(begun + DEADLINE);
    progress(1.0);

    table.extend(idle.into_experiments());
    Ok(tally(machine, table))
}

/// On a busy machine, experiments with two threads wait for time slices. None may use up the time of the
/// others.
fn may_go_on(experiment: &Experiment, fair_share: Duration) -> bool {
    let enough = experiment.repetitions() >= FEWEST;
    experiment.spent < if enough { fair_share } else { 3 * fair_share }
}

/// What every experiment needs to know about this machine.
struct Bench {
    topology: Measured<Topology>,
    /// The CPUs that this process may use.
    allowed: Vec<u32>,
    /// The CPU of the single-threaded experiments.
    cpu: u32,
    huge: Measured<()>,
    /// Bytes that may be used without an effect on other processes.
    headroom: u64,
}

impl Bench {
    /// On this CPU; None chooses one.
    fn new(cpu: Option<u32>) -> Measured<Bench> {
        let page = rustix::param::page_size();
        if page != memory::PAGE {
            return Err(Absence::new(
                Reason::NotSupported,
                format!("pages have {page} bytes here; the prices are for 4 KiB pages"),
            ));
        }
        let machine = Machine::live();
        let allowed = topology::allowed_cpus()?;
        // The last CPU: interrupts and the rest of the system mostly use the first ones.
        let cpu = cpu
            .or(allowed.last().copied())
            .ok_or_else(|| Absence::new(Reason::NotPermitted, "no CPU is available to this process"))?;
        Ok(Bench {
            topology: Topology::read(&machine.path("/sys")),
            allowed,
            cpu,
            huge: memory::huge_pages_on_request(&machine),
            headroom: memory::headroom(&machine)?,
        })
    }
}

/// Turns repetitions into prices, in the order of the catalogue.
fn tally(machine: String, table: Vec<Experiment>) -> PriceList {
    let mut list = PriceList {
        measured_unix_s: SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()),
        machine,
        prices: Vec::new(),
        absent: Vec::new(),
    };
    for experiment in table {
        let Experiment { mut series, missed, .. } = experiment;
        for (name, values) in &mut series {
            match median_interval(values) {
                Some(ns) if values.len() >= FEWEST && ns.point > 0.0 => {
                    list.prices.push(Price { name: name.clone(), ns, repetitions: values.len() as u32 })
                }
                _ => list.absent.push((name.clone(), shortfall(values.len(), missed.as_ref()))),
            }
        }
    }
    list.prices.sort_by_key(|price| rank(&price.name));
    list.absent.sort_by_key(|(name, _)| rank(name));
    list
}

fn shortfall(repetitions: usize, missed: Option<&Absence>) -> Absence {
    match (repetitions, missed) {
        (0, Some(absence)) => absence.clone(),
        // Without the number of repetitions, so that prices with the same reason share a line of the report.
        (_, Some(absence)) => Absence {
            reason: Reason::TooLittle,
            detail: format!(
                "fewer than {FEWEST} repetitions succeeded; the others failed: {}",
                absence.detail
            ),
            mend: absence.mend.clone(),
        },
        (_, None) => Absence::new(
            Reason::TooLittle,
            format!("fewer than {FEWEST} repetitions fitted into the time limit"),
        )
        .mend(CALIBRATE_UNDISTURBED),
    }
}

fn rank(name: &str) -> (usize, String) {
    let place =
        prices::describe(name).and_then(|(entry, _)| prices::DESCRIPTIONS.iter().position(|d| d == entry));
    (place.unwrap_or(usize::MAX), name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::topology::Relation;
    use allocwall_model::units::Interval;

    #[test]
    fn a_list_of_some_prices_is_not_complete() {
        let absent = |entry: &prices::Description| {
            (entry.name.to_owned(), Absence::new(Reason::NotSupported, "not here"))
        };
        let mut list = tally("m".into(), vec![experiment(FEWEST, None)]);
        assert!(!is_complete(&list));
        list.absent = prices::DESCRIPTIONS.iter().map(absent).collect();
        assert!(is_complete(&list));
        list.absent.retain(|(name, _)| name != prices::LOAD_2M);
        assert!(!is_complete(&list));
    }

    fn experiment(values: usize, missed: Option<Absence>) -> Experiment {
        let mut experiment = Experiment::absent(&[prices::SYSCALL], Absence::new(Reason::NotSupported, "no"));
        experiment.series[0].1 = (0..values).map(|i| 100.0 + i as f64).collect();
        experiment.missed = missed;
        experiment
    }

    #[test]
    fn wide_intervals_are_told_by_their_widths() {
        let list = |ns| PriceList {
            prices: vec![Price { name: prices::SYSCALL.to_owned(), ns, repetitions: 9 }],
            ..tally("m".into(), vec![])
        };
        // Few repetitions that agree.
        assert_eq!(wide(&list(Interval::new(2070.0, 2100.0, 2120.0))), None);
        let said = wide(&list(Interval::new(1800.0, 2100.0, 2500.0))).unwrap_or_default();
        assert!(said.starts_with("the intervals of 1 of 1 price are wider than ±10 %"), "{said}");
    }

    #[test]
    fn enough_repetitions_are_a_price_and_fewer_are_an_absence() {
        let list = tally("m".into(), vec![experiment(FEWEST, None)]);
        assert_eq!((list.prices.len(), list.absent.len()), (1, 0));
        assert_eq!(list.get(prices::SYSCALL).unwrap().point, 104.0);

        let list = tally("m".into(), vec![experiment(FEWEST - 1, None)]);
        assert_eq!(list.prices, []);
        assert_eq!(list.absent[0].1.reason, Reason::TooLittle);
    }

    #[test]
    fn a_slow_experiment_leaves_time_to_the_others() {
        let share = Duration::from_millis(100);
        let mut slow = experiment(FEWEST, None);
        slow.spent = share / 2;
        assert!(may_go_on(&slow, share));
        slow.spent = share * 2;
        assert!(!may_go_on(&slow, share));
        slow.series[0].1.truncate(FEWEST - 1);
        assert!(may_go_on(&slow, share));
        slow.spent = share * 4;
        assert!(!may_go_on(&slow, share));
    }

    #[test]
    fn an_absence_keeps_its_reason() {
        let why = Absence::new(Reason::Disabled, "switched off").mend("switch it on");
        let list = tally("m".into(), vec![experiment(0, Some(why.clone()))]);
        assert_eq!(list.absent, [(prices::SYSCALL.to_owned(), why)]);
    }

    /// The whole calibration, once: it takes seconds, so everything that needs real prices is checked here.
    #[test]
    fn prices_of_this_machine_are_in_order() {
        let begun = Instant::now();
        let mut last = 0.0;
        let list = measure("test".into(), &mut |share| {
            assert!((0.0..=1.0).contains(&share));
            last = share;
        })
        .unwrap();
        // A busy machine finishes its last repetitions after the deadline.
        assert!(begun.elapsed() < 4 * DEADLINE, "{:?}", begun.elapsed());
        assert_eq!(last, 1.0);

        for price in &list.prices {
            assert!(0.0 < price.ns.low, "{price:?}");
            assert!(price.ns.low <= price.ns.point && price.ns.point <= price.ns.high, "{price:?}");
            assert!(prices::describe(&price.name).is_some(), "{price:?}");
        }
        // Every name of the catalogue has a price or a reason.
        for entry in prices::DESCRIPTIONS {
            let known = |name: &String| name.starts_with(entry.name);
            let priced = list.prices.iter().any(|p| known(&p.name));
            assert!(priced || list.absent.iter().any(|(name, _)| known(name)), "{}", entry.name);
        }
        for relation in Relation::ALL {
            let name = format!("{}{}", prices::HANDOFF_PREFIX, relation.key());
            let absent = list.absent.iter().any(|(n, _)| *n == name);
            assert!(list.get(&name).is_some() != absent, "{name}");
        }

        let in_order = |dear: &str, cheap: &str| match (list.get(dear), list.get(cheap)) {
            (Some(a), Some(b)) => assert!(a.point > b.point, "{dear} {a:?} {cheap} {b:?}"),
            _ => println!("skipped: {dear} or {cheap} has no price here: {:?}", list.absent),
        };
        in_order(prices::TOUCH_2M, prices::TOUCH_4K);
        in_order(prices::TOUCH_4K, prices::SYSCALL);
        in_order(prices::MALLOC_MAPPED, prices::MALLOC_ARENA);
        in_order(prices::MALLOC_MAPPED, prices::MALLOC_CACHED);
        in_order(prices::CONTEXT_SWITCH, prices::SYSCALL);
        in_order(prices::LOAD_4K, prices::MALLOC_CACHED);
    }
}
