use super::*;
use crate::bill;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::{CpuSample, Tick};
use allocwall_model::stats::random::Random;
use allocwall_model::units::{Absence, Reason};
use allocwall_sketches::recording::{MS, PID, Sketch};

const FAULT: &str = "do_anonymous_page;__handle_mm_fault;handle_mm_fault;exc_page_fault;asm_exc_page_fault";
/// One sample a millisecond, as of one busy CPU for 4 s.
const SAMPLES: u64 = 4_000;
const SLICE_MS: u64 = 500;

/// A recording of a service whose page faults take this share of its CPU time. The load varies from slice to slice.
fn service(seed: u64, faults: f64) -> Recording {
    let mut random = Random::new(seed);
    let mut s = Sketch::new();
    s.recording.meta.window_ns = SAMPLES * MS;
    s.thread(PID, "service", SAMPLES);
    let stacks = [s.stack(FAULT), s.stack("app!load;app!main"), s.stack("libc+9800;app!parse;app!main")];
    let app = s.stack("app!work;app!main");
    for slice in 0..SAMPLES / SLICE_MS {
        let of_slice = faults * (0.8 + 0.4 * random.unit());
        for at in 0..SLICE_MS {
            let (kernel, user) = match random.unit() {
                u if u < of_slice => (stacks[0], stacks[1]),
                u if u < of_slice + 0.2 => (None, stacks[2]),
                _ => (None, app),
            };
            let t_ns = (slice * SLICE_MS + at) * MS;
            let sample =
                CpuSample { t_ns, pid: PID, tid: PID, cpu: 0, kernel, user, deep: true, faulted: None };
            s.recording.samples.push(sample);
        }
    }
    let mut tick = Tick { resident: 100 << 20, ..Tick::default() };
    for nth in 0..=SAMPLES / SLICE_MS {
        tick.t_ns = nth * SLICE_MS * MS;
        s.recording.ticks.push(tick.clone());
        tick.user_ns += (0.9 * SLICE_MS as f64 * MS as f64 * (0.95 + 0.1 * random.unit())) as u64;
        tick.minor_faults += 50_000 + random.below(5_000) as u64;
    }
    s.recording
}

fn diff(before: &Recording, after: &Recording) -> Diff {
    let bills = [bill::of(before), bill::of(after)];
    compare(
        &Side { recording: before, bill: &bills[0], units: None },
        &Side { recording: after, bill: &bills[1], units: None },
    )
}

fn change(diff: &Diff, quantity: Quantity) -> &Change {
    diff.changes.iter().find(|change| change.quantity == quantity).unwrap()
}

#[test]
fn two_windows_of_the_same_load_show_no_change_and_a_planted_one_is_found() {
    const PAIRS: u64 = 100;
    let (mut alarms, mut found, mut gates) = (0, 0, 0);
    let gate = Gate::parse("first_touch>+3%").unwrap();
    for seed in 0..PAIRS {
        let before = service(2 * seed, 0.2);
        let same = diff(&before, &service(2 * seed + 1, 0.2));
        alarms += usize::from(same.changes.iter().any(|change| change.outcome.moved()));
        gates += usize::from(matches!(gate.judge(&same), Judged::Met(_)));
        let other = diff(&before, &service(2 * seed + 1, 0.3));
        found += usize::from(change(&other, Quantity::Wall(Wall::FirstTouch)).outcome == Outcome::Up);
    }
    // At most 5 are expected; 12 or more of 100 come once in 400 runs then.
    assert!(alarms < 12, "{alarms} alarms");
    assert_eq!(gates, 0);
    assert!(found >= 95, "{found} found");
}

#[test]
fn the_sentence_names_what_moved_most_and_the_call_site_moves_with_it() {
    let other = diff(&service(1, 0.12), &service(2, 0.46));
    assert!(other.sentence.starts_with("First touch went from 12 % to 4"), "{}", other.sentence);
    assert!(other.sentence.contains("of CPU: +3"), "{}", other.sentence);
    let met = Gate::parse("first_touch>+3%").unwrap().judge(&other);
    assert!(matches!(&met, Judged::Met(what) if what.starts_with("first-touch>+3%: +3")), "{met:?}");
    assert_eq!(change(&other, Quantity::Site("load".into())).outcome, Outcome::Up);
    assert_eq!(change(&other, Quantity::Line(CostClass::Application)).outcome, Outcome::Down);
    assert_eq!(change(&other, Quantity::Line(CostClass::GarbageCollector)).outcome, Outcome::Same);
    let of = |site: &str| {
        let change = change(&other, Quantity::Site(site.into()));
        let [before, after] = change.with_callees.unwrap();
        [
            change.before.as_ref().unwrap().point,
            before.point,
            change.after.as_ref().unwrap().point,
            after.point,
        ]
    };
    // These call nothing that is a call site.
    assert!(["load", "parse"].into_iter().map(of).all(|[a, b, c, d]| a == b && c == d));
    let back = diff(&service(2, 0.46), &service(1, 0.12));
    assert_eq!(change(&back, Quantity::Wall(Wall::FirstTouch)).outcome, Outcome::Down);
    let same = diff(&service(1, 0.12), &service(1, 0.12));
    assert!(same.sentence.starts_with("No figure "), "{}", same.sentence);
}

#[test]
fn a_call_site_has_the_work_of_the_functions_it_calls_beside_its_own() {
    let with = |stack: &str| {
        let mut s = Sketch { recording: service(1, 0.2) };
        // The third stack of `service`.
        let (parse, user) = (Some(2), s.stack(stack));
        // Each second one of `parse` is below another function that allocates, too.
        let of_parse = s.recording.samples.iter_mut().filter(|sample| sample.user == parse);
        of_parse.step_by(2).for_each(|sample| sample.user = user);
        s.recording
    };
    let shares = |recording: &Recording| {
        let diff = diff(recording, recording);
        let load = change(&diff, Quantity::Site("load".into()));
        [load.before.as_ref().unwrap().point, load.with_callees.unwrap()[0].point]
    };
    let [own, all] = shares(&with("libc+9800;app!parse;app!load;app!main"));
    assert!(all > 1.3 * own, "{own} {all}");
    // The near twin: not below it.
    let [own, all] = shares(&with("libc+9800;app!parse;app!main"));
    assert_eq!(own, all);
}

#[test]
fn memory_moves_beyond_its_margin() {
    let before = service(1, 0.2);
    for (bytes, outcome) in [(103, Outcome::Same), (130, Outcome::Up), (60, Outcome::Down)] {
        let mut after = before.clone();
        after.ticks.iter_mut().for_each(|tick| tick.resident = bytes << 20);
        let diff = diff(&before, &after);
        assert_eq!(change(&diff, Quantity::Resident).outcome, outcome, "{bytes}");
        let met = matches!(Gate::parse("resident>+10%").unwrap().judge(&diff), Judged::Met(_));
        assert_eq!(met, bytes == 130);
    }
}

#[test]
fn a_limit_ignores_what_is_the_same_and_counts_the_error_of_the_value_before() {
    let judged = |before: Interval, after: Interval, outcome| {
        let wider = 1.0;
        let difference = Some(difference(before, after, wider));
        let (quantity, unit) = (Quantity::MajorFaults, Unit::PerSecond);
        let (before, after, with_callees) = (Ok(before), Ok(after), None);
        let change = Change { quantity, unit, before, after, difference, wider, outcome, with_callees };
        let diff = Diff { sentence: String::new(), unlike: vec![], changes: vec![change] };
        Gate::parse("major-faults>+100%").unwrap().judge(&diff)
    };
    let exact = Interval::exact;
    assert!(matches!(judged(exact(1.0), exact(2.5), Outcome::Up), Judged::Met(_)));
    assert_eq!(judged(exact(1.0), exact(2.5), Outcome::Same), Judged::NotMet);
    assert_eq!(judged(exact(1.0), exact(1.9), Outcome::Up), Judged::NotMet);
    // From nothing to something is above every part of it.
    assert!(matches!(judged(exact(0.0), exact(9.0), Outcome::Up), Judged::Met(_)));
    let before = Interval::new(0.8, 1.0, 1.2);
    assert!(matches!(judged(before, Interval::new(2.2, 2.3, 2.4), Outcome::Up), Judged::Undecided(_)));
}

#[test]
fn a_short_window_is_undecided_and_says_how_long_decides() {
    let short = |seed| {
        let mut recording = service(seed, 0.2);
        recording.samples.retain(|sample| sample.t_ns % (20 * MS) == 0);
        recording.meta.sample_period_ns *= 20;
        recording
    };
    let diff = diff(&short(1), &short(2));
    let Outcome::Undecided { window_s: Some(window_s) } =
        change(&diff, Quantity::Wall(Wall::FirstTouch)).outcome
    else {
        panic!("{:?}", change(&diff, Quantity::Wall(Wall::FirstTouch)));
    };
    assert!(window_s > 4.0, "{window_s}");
    let Judged::Undecided(why) = Gate::parse("first-touch>+3%").unwrap().judge(&diff) else {
        panic!("a limit")
    };
    assert!(why.contains("undecided"), "{why}");
}

#[test]
fn per_unit_of_work_twice_the_requests_are_half_the_cost() {
    let recording = service(1, 0.2);
    let bill = bill::of(&recording);
    let side = |units| Side { recording: &recording, bill: &bill, units: Some(units) };
    let diff = compare(&side(1_000.0), &side(2_000.0));
    let cpu = change(&diff, Quantity::Cpu);
    assert_eq!((cpu.unit, cpu.outcome), (Unit::SecondsPerUnit, Outcome::Down));
    let [before, after] = [&cpu.before, &cpu.after].map(|value| value.as_ref().unwrap().point);
    assert!((before / after - 2.0).abs() < 1e-9, "{before} {after}");
    // A share is not per unit.
    let wall = change(&diff, Quantity::Wall(Wall::FirstTouch));
    assert_eq!(wall.difference.unwrap().point, 0.0);
    assert!(!wall.outcome.moved());
}

#[test]
fn what_one_recording_lacks_is_not_measured() {
    let (before, mut after) = (service(1, 0.2), service(2, 0.2));
    after.meta.kernel_samples = false;
    after.host.kernel_release = "other".into();
    after.resident = Err(Absence::new(Reason::NotPermitted, "not readable"));
    let diff = diff(&before, &after);
    assert_eq!(change(&diff, Quantity::Wall(Wall::FirstTouch)).outcome, Outcome::NotMeasured);
    // The kernel's time has no name in one of them, and that is no change.
    assert_eq!(change(&diff, Quantity::Line(CostClass::UnnamedKernel)).outcome, Outcome::NotMeasured);
    assert!(!diff.changes.iter().any(|change| matches!(change.quantity, Quantity::Site(_))));
    let gate = Gate::parse("first-touch>+3%").unwrap().judge(&diff);
    assert!(matches!(&gate, Judged::NotMeasured(why) if why.contains("kernel stacks")), "{gate:?}");
    assert!(diff.unlike.iter().any(|line| line.starts_with("kernel ") && line.contains("other")));
    let gate = Gate::parse("first-touch>+3%").unwrap().judge(&diff);
    assert!(matches!(gate, Judged::NotMeasured(why) if why.contains("not measured")));
}

#[test]
fn limits_are_read_by_name() {
    for text in
        ["first-touch>+3%", "First_Touch>3", "zeroing > +0.5 %", "wait-gil>+50%", "large-allocations>+1%"]
    {
        assert!(Gate::parse(text).is_ok(), "{text}");
    }
    assert_eq!(Gate::parse("large-allocations>+1%").unwrap().to_string(), "block-filling>+1%");
    for (text, words) in [
        ("first-tuch>+3%", "nearest: first-touch"),
        ("first-touch", "NAME>+N%"),
        ("resident>+x%", "NAME>+N%"),
        ("resident>+-5%", "0 or more"),
        ("resident>+nan%", "0 or more"),
    ] {
        let error = Gate::parse(text).unwrap_err();
        assert!(error.contains(words), "{text}: {error}");
    }
}
