use super::page::{SCRIPT, SCRIPT_HASH, STYLE, STYLE_HASH};
use super::*;
use crate::sketches::{self, Case};
use crate::{trial_sketches, trial_text};
use allocwall_diagnose::bill;
use allocwall_model::catalogue::owners::Owner;
use allocwall_model::recording::{
    CgroupTick, FaultSlice, Frame, OwnerFaults, Probe, ProbeName, ProbeState, Recording, Stack, Tick,
};
use allocwall_model::resident::{ResidentBill, TargetMemory};
use allocwall_model::units::{Absence, Reason};
use allocwall_trial::journal::Head;
use allocwall_trial::{Direction, Metric, TrialResult, Unit};
use sha2::{Digest, Sha256};

fn page_of(case: &Case) -> String {
    diagnosis(&case.rec, &case.bill, &case.verdict, Some("a b.allocwall"))
}

fn page_of_recording(rec: &Recording) -> String {
    let bill = bill::of(rec);
    let verdict = allocwall_diagnose::verdict(rec, &bill);
    diagnosis(rec, &bill, &verdict, None)
}

/// RFC 4648.
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::new();
    for part in bytes.chunks(3) {
        let bits = (0..3).fold(0, |bits, nth| bits << 8 | u32::from(*part.get(nth).unwrap_or(&0)));
        for nth in 0..4 {
            let digit = DIGITS[(bits >> (18 - 6 * nth) & 63) as usize];
            text.push(if nth <= part.len() { char::from(digit) } else { '=' });
        }
    }
    text
}

#[test]
fn the_policy_allows_this_style_and_this_script_only() {
    let hash = |text: &str| base64(&Sha256::digest(text));
    // If one fails after a change of page.css or page.js: the left side is what the constant has to be.
    assert_eq!(hash(STYLE), STYLE_HASH);
    assert_eq!(hash(SCRIPT), SCRIPT_HASH);
    let page = page_of(&sketches::first_touch());
    assert!(page.contains("content=\"default-src 'none'; style-src 'sha256-"));
    assert!(
        page.contains(&format!("<style>{STYLE}</style>"))
            && page.contains(&format!("<script>{SCRIPT}</script>"))
    );
    // The policy would refuse these.
    assert!(!page.contains(" style=\"") && !page.contains(" onclick="));
}

#[test]
fn nothing_is_loaded() {
    for case in sketches::all() {
        let page = page_of(&case);
        for loads in ["src=", "url(", "@import", "<link", "<iframe", "<object", "http-equiv=\"refresh\""] {
            assert!(!page.contains(loads), "{}: {loads}", case.name);
        }
        let links = page.split("href=\"").skip(1);
        assert!(links.map(|rest| rest.as_bytes()[0]).all(|first| first == b'#'), "{}", case.name);
    }
}

/// The text of a section, without its markup.
fn section(page: &str, id: &str) -> String {
    let from = page.find(&format!("<section id=\"{id}\"")).unwrap_or_else(|| panic!("no section {id}"));
    let rest = &page[from..];
    let mut text = String::new();
    let mut inside = false;
    for c in rest[..rest.find("</section>").unwrap()].chars() {
        match c {
            '<' => inside = true,
            '>' => {
                inside = false;
                text.push(' ');
            }
            c if !inside => text.push(c),
            _ => {}
        }
    }
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn the_shares_of_the_bill_sum_to_the_whole_as_in_the_text() {
    for case in sketches::all() {
        let text = section(&page_of(&case), "bill");
        let table = &text[text.find("interval").expect("heads")..text.find("total").expect(case.name)];
        let words: Vec<&str> = table.split(' ').collect();
        // `33.1 % 9.27 33.0 to 34.0 %`: the share is the number before a sign that no range precedes.
        let shares = words
            .windows(3)
            .enumerate()
            .filter(|(nth, w)| w[1] == "%" && words[nth.saturating_sub(1)] != "to");
        let tenths: f64 =
            shares.filter_map(|(_, w)| w[0].parse::<f64>().ok()).map(|share| share * 10.0).sum();
        assert_eq!(tenths.round(), 1000.0, "{}: {table}", case.name);
        assert!(text.contains("total 100.0 %"), "{}: {text}", case.name);
    }
}

#[test]
fn the_sentences_are_those_of_the_text() {
    for case in sketches::all() {
        let page = page_of(&case);
        let verdict = &page[..page.find("<nav").unwrap()];
        assert!(verdict.contains("p class=\"sentence\""), "{}", case.name);
        let ladder = section(&page, "ladder");
        for finding in &case.verdict.findings {
            assert!(ladder.contains(finding.wall.title()), "{}: {ladder}", case.name);
        }
    }
    let page = page_of(&sketches::first_touch());
    assert!(page.contains("First touch is the wall: 61 % of the CPU"));
    assert!(section(&page, "remedies").contains("saves 41 to 58 % of CPU · restart"));
    // Without a remedy, only the next commands.
    assert!(!section(&page_of(&sketches::nothing_found()), "remedies").contains("saves"));
}

#[test]
fn hostile_names_stay_text() {
    let mut case = sketches::first_touch();
    case.rec.processes[0].cmdline = vec!["</script><img src=x onerror=alert(1)>\u{202e}\u{1b}[2J".into()];
    case.rec.processes[0].environment = vec![("MALLOC_ARENA_MAX".into(), "\"><script>1</script>".into())];
    let page = page_of(&case);
    // The data and the script of the page.
    assert_eq!(page.matches("<script").count(), 2);
    assert_eq!(page.matches("</script").count(), 2);
    assert!(!page.contains("<img") && !page.contains('\u{202e}') && !page.contains('\u{1b}'));
    assert!(page.contains("&lt;/script&gt;&lt;img src=x onerror=alert(1)&gt;\\u{202e}\\u{1b}[2J"));
    let data = page.split("id=\"flame-data\">").nth(1).unwrap();
    let data = &data[..data.find("</script>").unwrap()];
    let value: serde_json::Value = serde_json::from_str(data).expect("JSON");
    let names = value["names"].as_array().unwrap();
    assert!(
        names.iter().any(|name| name.as_str().unwrap().starts_with("<script>alert(1)</script>")),
        "{names:?}"
    );
}

/// A recording with so many samples, of stacks that differ, with long names.
fn large(samples: u64) -> Recording {
    const NAMES: u32 = 5_000;
    let mut rec = sketches::first_touch().rec;
    let name = |nth: u32| format!("<&\u{202e}{nth}>::{}", "very::long::name::of::a::template<é>".repeat(20));
    rec.frames = (0..NAMES)
        .map(|nth| Frame { module: Some(1), symbol: Some(name(nth)), offset: u64::from(nth) })
        .collect();
    rec.stacks = (0..NAMES)
        .map(|nth| Stack { frames: (0..24).map(|up| (nth >> (up / 2)) % NAMES).collect(), complete: true })
        .collect();
    let one = rec.samples[0];
    let window = rec.meta.window_ns;
    rec.samples = (0..samples)
        .map(|nth| {
            let stack = (nth % u64::from(NAMES)) as u32;
            allocwall_model::recording::CpuSample {
                t_ns: nth * window / samples,
                kernel: None,
                user: Some(stack),
                ..one
            }
        })
        .collect();
    let tick = |nth: u64| Tick {
        t_ns: nth * window / 4000,
        user_ns: nth,
        minor_faults: nth * 100,
        resident: nth << 12,
        ..Tick::default()
    };
    rec.ticks = (0..4000).map(tick).collect();
    rec.processes[0].cmdline = vec!["<x>".repeat(40_000)];
    rec.processes[0].environment =
        (0..1000).map(|nth| (format!("MALLOC_{nth}"), "<".repeat(5_000))).collect();
    rec
}

#[test]
fn the_page_is_small_whatever_was_recorded() {
    let page = page_of_recording(&large(200_000));
    assert!(page.len() < 2_000_000, "{}", page.len());
    let data = page.split("id=\"flame-data\">").nth(1).unwrap();
    let data = &data[..data.find("</script>").unwrap()];
    assert!(data.len() < 600_000, "{}", data.len());
    let value: serde_json::Value = serde_json::from_str(data).expect("JSON");
    let boxes: Vec<u64> = value["boxes"].as_array().unwrap().iter().map(|n| n.as_u64().unwrap()).collect();
    let boxes: Vec<&[u64]> = boxes.chunks(4).collect();
    assert!(boxes.len() > 100, "{}", boxes.len());
    // Each parent comes first and holds its children.
    let mut below = vec![0; boxes.len()];
    for (nth, one) in boxes.iter().enumerate().skip(1) {
        assert!((one[0] as usize) < nth);
        below[one[0] as usize] += one[3];
    }
    assert!(boxes.iter().zip(&below).all(|(one, below)| *below <= one[3]));
}

#[test]
fn a_part_that_is_too_large_is_left_out_and_the_others_stay() {
    let mut case = sketches::first_touch();
    case.verdict.findings[0].evidence = vec!["<".repeat(700_000)];
    // Characters without columns.
    case.rec.processes[0].cmdline = vec!["\u{301}\u{1}".repeat(300_000)];
    let page = page_of(&case);
    assert!(page.len() < 2_000_000, "{}", page.len());
    assert!(section(&page, "ladder").contains("This part is too large for a page."));
    assert!(section(&page, "bill").contains("total") && section(&page, "settings").contains("pid"));
}

#[test]
fn an_axis_has_few_lines_whatever_its_ends_are() {
    use super::chart::Axis;
    let shown = |value: f64| value.to_string();
    for end in [0.0, 5e-324, 1.0, 1e300, f64::MAX, f64::INFINITY] {
        for axis in [
            Axis::linear(0.0, end, 3, shown),
            Axis::log(1.0, end, shown),
            Axis::log(end, end, shown),
            Axis::bytes(end),
        ] {
            assert!(axis.lines() <= 64, "{end}: {}", axis.lines());
        }
    }
}

#[test]
fn axes_have_lines_at_round_values() {
    use super::chart::{Axis, Chart, Place};
    let drawn = |y: Axis| {
        let chart = Chart {
            title: "t",
            unit: "u",
            place: Place::Points,
            x: Axis::linear(0.0, 10.0, 5, |s| format!("{s} s")),
            xs: vec![],
            x_title: "at",
            x_shown: &|x| x.to_string(),
            y,
            series: vec![],
            shown: &|x| x.to_string(),
            linked: "t",
            longest_gap: 1.0,
            note: None,
        };
        let text = chart.draw().0;
        let labels = text
            .split("<text")
            .skip(1)
            .map(|rest| &rest[rest.find('>').unwrap() + 1..rest.find('<').unwrap()]);
        labels.map(String::from).collect::<Vec<_>>()
    };
    let x = ["0 s", "2 s", "4 s", "6 s", "8 s", "10 s"].map(String::from);
    for (y, labels) in [
        (Axis::from_zero(0.9, |v| format!("{v:.1}")), &["0.0", "0.5", "1.0"][..]),
        (Axis::from_zero(1234.0, super::chart::number), &["0", "500", "1,000", "1,500"][..]),
        (Axis::bytes(2.9e7), &["0 B", "10.0 MiB", "20.0 MiB", "30.0 MiB"][..]),
        (Axis::log(9.0, 40.0, |v| format!("{v}")), &["10", "20"][..]),
        (Axis::log(1.0, 1e4, |v| format!("{v}")), &["1", "10", "100", "1000", "10000"][..]),
        // A single value, none, and one that is no number.
        (Axis::log(5.0, 5.0, |v| format!("{v}")), &["5"][..]),
        (Axis::from_zero(0.0, |v| format!("{v:.1}")), &["0.0", "0.5", "1.0"][..]),
        (Axis::from_zero(f64::INFINITY, |v| format!("{v:.1}")), &["0.0", "0.5", "1.0"][..]),
    ] {
        let drawn = drawn(y);
        assert_eq!(drawn[..labels.len()], *labels, "{drawn:?}");
        assert_eq!(drawn[labels.len()..], x, "{drawn:?}");
    }
}

#[test]
fn the_highest_line_is_at_or_above_the_largest_value() {
    use super::chart::Axis;
    for most in (1..400).map(|nth| f64::from(nth) * 0.37) {
        for axis in [Axis::from_zero(most, |v| v.to_string()), Axis::bytes(most * 1e6)] {
            assert!((3..=5).contains(&axis.lines()), "{most}: {}", axis.lines());
        }
        let highest = Axis::from_zero(most, |v| v.to_string());
        assert!(
            highest.ends().1 >= most * 0.999_999 && highest.ends().0 == 0.0,
            "{most}: {:?}",
            highest.ends()
        );
    }
}

#[test]
fn nothing_has_no_sign() {
    let none: f64 = std::iter::empty::<f64>().sum();
    assert_eq!([super::chart::number(none), super::chart::number(-2.5)], ["0", "-2.50"]);
}

#[test]
fn names_in_backticks_are_code_and_stay_text() {
    let marked = |text: &str| super::page::marked(text).0;
    assert_eq!(marked("most in `a<b>`."), "most in <code>a&lt;b&gt;</code>.");
    // The near twins: no mark, and a single one.
    assert_eq!(marked("most <of> it"), "most &lt;of&gt; it");
    assert_eq!(marked("in `a` or `b"), "in <code>a</code> or `b");
}

fn with_ticks(case: &mut Case, throttled: Option<u64>) {
    let group = |nth: u64| {
        throttled.map(|ns| CgroupTick {
            throttled_ns: ns * nth,
            quota_cpus: Some(0.5),
            ..CgroupTick::default()
        })
    };
    let tick = |nth: u64| Tick {
        t_ns: nth * 250_000_000,
        minor_faults: nth * 1000,
        resident: 64 << 20,
        anonymous: Some(32 << 20),
        cgroup: group(nth),
        ..Tick::default()
    };
    case.rec.ticks = (0..=60).map(tick).collect();
}

#[test]
fn a_series_that_is_missing_is_named_with_its_reason() {
    let mut case = sketches::first_touch();
    with_ticks(&mut case, None);
    let unread = Absence::new(Reason::NotFound, "no cpu controller here").mend("mount it");
    case.rec.probes.push(Probe::new(ProbeName::Cgroup, ProbeState::Absent(unread)));
    let text = section(&page_of(&case), "timeline");
    assert!(
        text.contains("Throttling: not measured: no cpu controller here. To measure it: mount it"),
        "{text}"
    );
    assert!(text.contains("Pauses for the collector: no runtime with a collector was found"), "{text}");
    assert!(text.contains("Table: Page faults by kind") && text.contains("4,000"), "{text}");
    // The near twin: it was measured.
    with_ticks(&mut case, Some(10_000_000));
    let text = section(&page_of(&case), "timeline");
    assert!(text.contains("Table: Throttling") && text.contains("the quota is 0.50 CPUs"), "{text}");
    assert!(!text.contains("Throttling: not measured"), "{text}");
}

#[test]
fn sizes_that_are_rarely_read_have_a_marker_for_each_reading() {
    use allocwall_model::recording::Smaps;
    let mut case = sketches::first_touch();
    with_ticks(&mut case, None);
    let mut timeline = |huge: u64| {
        for (nth, tick) in case.rec.ticks.iter_mut().enumerate() {
            tick.smaps = (nth % 20 == 0).then_some(Smaps { anon_huge: huge, ..Smaps::default() });
        }
        let page = page_of(&case);
        (page.matches("class=\"line dot c2\"").count(), section(&page, "timeline"))
    };
    let (drawn, text) = timeline(8 << 20);
    // Four readings, and the sample of the legend.
    assert_eq!(drawn, 5, "{text}");
    assert!(text.contains("were read 4 times in the window: a reading took "), "{text}");
    assert!(text.contains("None in any reading: lazily freed.") && text.contains("8.0 MiB"), "{text}");
    // The near twin: there are none.
    let (drawn, text) = timeline(0);
    assert!(drawn == 0 && text.contains("None in any reading: huge pages, lazily freed."), "{text}");
}

#[test]
fn pauses_without_a_course_have_a_mend_a_link_and_a_place_among_the_limits() {
    use allocwall_model::recording::{Figure, Runtime, RuntimeAccount};
    let mut case = sketches::first_touch();
    let pid = case.rec.processes[0].pid;
    case.rec.processes[0].runtime = Ok(Runtime::Go { version: None });
    let absent = || Absence::new(Reason::NotSupported, "not counted");
    case.rec.accounts = vec![RuntimeAccount {
        pid,
        method: "memstats".into(),
        over_ns: 15_000_000_000,
        stopped_ns: Ok(Figure { value: allocwall_model::units::Interval::exact(2e9), sampled: false }),
        collections: Ok(7),
        collector_cpu_ns: Err(absent()),
        allocated_bytes: Err(absent()),
    }];
    let page = page_of(&case);
    let timeline = section(&page, "timeline");
    assert!(
        timeline.contains("the runtime tells only their sum. To measure it: start it with GODEBUG="),
        "{timeline}"
    );
    assert!(page.contains("href=\"#runtimes\"") && page.contains("id=\"runtimes\""));
    let missing = section(&page, "missing");
    assert!(missing.contains("Pauses for the collector over time : the runtime tells only"), "{missing}");
    // The near twin: it did not run.
    case.rec.accounts[0].stopped_ns =
        Ok(Figure { value: allocwall_model::units::Interval::exact(0.0), sampled: false });
    let page = page_of(&case);
    assert!(section(&page, "timeline").contains("Pauses for the collector: the collector did not run"));
    assert!(!section(&page, "missing").contains("Pauses"), "{page}");
}

#[test]
fn owners_have_one_colour() {
    let mut case = sketches::first_touch();
    with_ticks(&mut case, None);
    let bill = crate::memory_text::tests::bill();
    case.rec.resident = Ok(TargetMemory { bills: vec![bill], others: 0, unread: None });
    let owners = vec![OwnerFaults { owner: Owner::Private, samples: 1, faults: 500 }];
    let slice =
        |nth: u64| FaultSlice { t_ns: nth * 500_000_000, over_ns: 500_000_000, owners: owners.clone() };
    case.rec.fault_slices = (0..30).map(slice).collect();
    let page = page_of(&case);
    let private = super::page::hex(crate::palette::of_owner(Owner::Private));
    let part = |id: &str| {
        let from = page.find(&format!("<section id=\"{id}\"")).unwrap();
        page[from..from + page[from..].find("</section>").unwrap()].matches(&private).count()
    };
    assert!(part("timeline") > 0 && part("memory") > 0);
}

#[test]
fn live_memory_that_is_known_in_part_is_not_called_unmeasured() {
    let mut case = sketches::first_touch();
    with_ticks(&mut case, None);
    let mut bill = crate::memory_text::tests::bill();
    let mut timeline = |bill: &ResidentBill| {
        case.rec.resident = Ok(TargetMemory { bills: vec![bill.clone()], others: 0, unread: None });
        section(&page_of(&case), "timeline")
    };
    let in_part = timeline(&bill);
    assert!(!in_part.contains("Live memory: not measured"), "{in_part}");
    assert!(
        in_part.contains("The sum of the live memory is not known: of other private memory, "),
        "{in_part}"
    );
    // The near twins: all of it is known, and nothing.
    let unknown = bill.rows[4].split.clone();
    bill.rows[4].amount.resident_bytes = 0;
    let whole = timeline(&bill);
    assert!(whole.contains("live, at the end") && !whole.contains("live memory is not known"), "{whole}");
    bill.rows.iter_mut().for_each(|row| row.split = unknown.clone());
    assert!(timeline(&bill).contains("Live memory: not measured: "), "{}", timeline(&bill));
}

#[test]
fn faults_are_those_of_owners_if_they_were_looked_up() {
    let mut case = sketches::first_touch();
    with_ticks(&mut case, None);
    let slice = |nth: u64, over_ms: u64| FaultSlice {
        t_ns: nth * 500_000_000,
        over_ns: over_ms * 1_000_000,
        owners: vec![OwnerFaults { owner: Owner::Heap, samples: 1, faults: over_ms as u32 }],
    };
    // The last one is short; its rate is not.
    case.rec.fault_slices = (0..29).map(|nth| slice(nth, 500)).chain([slice(29, 3)]).collect();
    let text = section(&page_of(&case), "timeline");
    assert!(text.contains("Page faults by owner of the memory"), "{text}");
    let table =
        &text[text.find("Table: Page faults by owner").unwrap()..text.find("Resident memory").unwrap()];
    assert!(table.contains("0.00 s 1,000") && table.contains("14.00 s 1,000"), "{table}");
    assert!(!table.contains("14.50 s"), "{table}");
}

#[test]
fn what_was_not_measured_is_listed_with_its_mend() {
    let text = section(&page_of(&sketches::not_root()), "missing");
    assert!(text.contains("perf_event_paranoid is 2: kernel samples are for root To measure it:"), "{text}");
    let mut case = sketches::first_touch();
    case.rec.samples.clear();
    let page = page_of_recording(&case.rec);
    assert!(section(&page, "bill").contains("The bill: not measured:"));
    assert!(section(&page, "flamegraph").contains("the recording has no CPU samples"));
}

fn page_of_trial(outcome: &TrialResult) -> String {
    let shifts = vec![0.0; outcome.design.arms.len()];
    let blocks = trial_sketches::blocks(&outcome.design, &shifts, outcome.blocks);
    trial(outcome, &head_of(outcome), &blocks, Some(&[]))
}

fn head_of(outcome: &TrialResult) -> Head {
    Head {
        version: 1,
        tool_version: "0.1.0".into(),
        started_unix_ms: 0,
        command: vec!["sort".into(), "</script><b>".into()],
        options: serde_json::json!({ "with": ["jemalloc"], "seed": null }),
        design: outcome.design.clone(),
        rates: vec![("get".into(), 812.4)],
        proof: Default::default(),
        machine: vec!["2 CPUs".into()],
        origin: None,
    }
}

#[test]
fn a_trial_begins_with_its_outcome_and_has_the_figures_of_the_text() {
    for outcome in trial_sketches::all() {
        let page = page_of_trial(&outcome);
        let text = trial_text::trial(
            &outcome,
            &["sort".into()],
            Some(&[]),
            crate::text::Style { color: false, width: 2000 },
        );
        let verdict = text.lines().find_map(|line| line.strip_prefix("VERDICT")).expect("a verdict").trim();
        let sentences: Vec<&str> =
            page.split("class=\"sentence\">").skip(1).map(|rest| &rest[..rest.find('<').unwrap()]).collect();
        assert_eq!(sentences.join(" "), verdict);
        let effects = section(&page, "effects");
        for c in outcome.comparisons.iter().filter(|c| c.effect.is_ok()) {
            let range = trial_text::range(*c.effect.as_ref().unwrap());
            assert!(effects.contains(&range), "{range}: {effects}");
        }
        assert!(!page.contains("</script><b>") && page.contains("&lt;/script&gt;&lt;b&gt;"));
    }
    let effects = section(&page_of_trial(&trial_sketches::one_better()), "effects");
    assert!(effects.contains("-12.0 to -5.0 %"), "the prediction: {effects}");
    assert!(effects.contains("predicted before the trial"), "{effects}");
    let effects = section(&page_of_trial(&trial_sketches::mixed()), "effects");
    assert!(
        effects.contains("refuted:") && effects.contains("this machine has no such library"),
        "{effects}"
    );
}

#[test]
fn a_metric_that_was_not_measured_is_not_called_unresolved() {
    let mut outcome = trial_sketches::one_better();
    let other = outcome.comparisons.iter().position(|c| !trial_text::is_primary(&outcome, c)).expect("one");
    let title = trial_text::title(&outcome, &outcome.comparisons[other]);
    let measured = section(&page_of_trial(&outcome), "effects");
    assert!(!measured.contains(&format!("{title}: not measured")), "{measured}");
    outcome.comparisons[other].effect = Err(Absence::new(Reason::TooLittle, "too coarse").mend("run longer"));
    outcome.comparisons[other].outcome = allocwall_trial::Outcome::Unresolved;
    outcome.comparisons[other].predicted = None;
    let text = section(&page_of_trial(&outcome), "effects");
    let note = format!("{title}: not measured: too coarse. To measure it: run longer");
    assert!(text.contains(&note), "{note}: {text}");
    // A primary metric keeps its row.
    let primary = outcome.comparisons.iter().position(|c| trial_text::is_primary(&outcome, c)).expect("one");
    outcome.comparisons[primary].effect = Err(Absence::new(Reason::TooLittle, "too few"));
    outcome.comparisons[primary].outcome = allocwall_trial::Outcome::Unresolved;
    let text = section(&page_of_trial(&outcome), "effects");
    assert!(text.contains("– not measured"), "{text}");
}

#[test]
fn the_scale_is_that_of_the_primary_metrics_and_arrows_point_beyond() {
    use allocwall_model::units::Interval;
    let mut outcome = trial_sketches::one_better();
    for c in outcome.comparisons.iter_mut().chain(&mut outcome.baseline) {
        (c.effect, c.predicted) = (Ok(Interval::new(-0.03, 0.01, 0.04)), None);
    }
    let page = page_of_trial(&outcome);
    let text = section(&page, "effects");
    assert!(text.contains("-5.0 % 0 +5.0 %"), "{text}");
    assert!(!text.contains("beyond the scale") && !text.contains("predicted before"), "{text}");
    let other = outcome.comparisons.iter().position(|c| !trial_text::is_primary(&outcome, c)).expect("one");
    outcome.comparisons[other].effect = Ok(Interval::new(1.2, 1.55, 1.8));
    let page = page_of_trial(&outcome);
    let text = section(&page, "effects");
    assert!(text.contains("-5.0 % 0 +5.0 %") && text.contains("beyond the scale"), "{text}");
    assert_eq!(page.matches("<path class=\"effect\"").count(), 1);
}

#[test]
fn a_trial_of_a_server_has_its_percentiles() {
    let mut outcome = trial_sketches::one_better();
    assert!(!page_of_trial(&outcome).contains("id=\"latency\""));
    let metric = |key: &str| Metric {
        key: key.into(),
        title: key.into(),
        unit: Unit::Ns,
        direction: Direction::LowerIsBetter,
        primary: false,
    };
    outcome.design.metrics.extend(["response_p50", "response_p99", "response_p999"].map(metric));
    let mut blocks = trial_sketches::blocks(&outcome.design, &[0.0; 4], outcome.blocks);
    for run in blocks.iter_mut().flat_map(|block| &mut block.runs) {
        for (key, ns) in [("response_p50", 1e6), ("response_p99", 4e6), ("response_p999", 2e7)] {
            run.metrics.insert(key.into(), Ok(ns));
        }
    }
    let head = Head { design: outcome.design.clone(), ..head_of(&outcome) };
    let text = section(&trial(&outcome, &head, &blocks, None), "latency");
    assert!(
        text.contains("1 in 2 1.00 ms (1.00 ms to 1.00 ms)") && text.contains("1 in 1,000 20.0 ms"),
        "{text}"
    );
}

#[test]
fn counted_calls_have_the_sentence_and_the_sizes_of_the_text() {
    let run = crate::allocations::tests::run();
    let page = count(&run);
    let text = crate::allocations::text::report(&run, crate::text::Style { color: false, width: 2000 });
    let sentence = crate::allocations::Summary::of(&run).sentence();
    assert!(text.contains(&sentence) && page.contains(&sentence));
    let sizes = section(&page, "sizes");
    assert!(sizes.contains("6,012,000") && sizes.contains("12,000"), "{sizes}");
    assert!(section(&page, "latency").contains("1 in 2 "), "{}", section(&page, "latency"));
    assert!(page.contains("80\\u{1b}[2J") && !page.contains('\u{1b}'));
    // One point is no course.
    assert!(section(&page, "time").contains("Rates over time: not measured: "), "{page}");
    let mut longer = run;
    let point = longer.counted.series[0];
    longer.counted.series =
        (1..9).map(|nth| allocwall_model::allocations::Point { t_ns: nth * point.t_ns, ..point }).collect();
    let longer = section(&count(&longer), "time");
    assert!(longer.contains("Table: Calls") && !longer.contains("not measured"), "{longer}");
}

/// With ALLOCWALL_PAGES=folder the test writes pages there: of the cases, and of many samples.
#[test]
fn can_be_looked_at() {
    let Some(folder) = std::env::var_os("ALLOCWALL_PAGES") else { return };
    let write = |name: &str, page: String| {
        std::fs::write(std::path::Path::new(&folder).join(format!("{name}.html")), page).expect("writable");
    };
    sketches::all().iter().for_each(|case| write(case.name, page_of(case)));
    write("large", page_of_recording(&large(200_000)));
    write("trial", page_of_trial(&trial_sketches::mixed()));
    write("count", count(&crate::allocations::tests::run()));
    write("series", page_of_series(&crate::series::tests::STORM));
}

fn page_of_series(shares: &[f64]) -> String {
    let windows = crate::series::tests::series(shares);
    series(&windows, &allocwall_diagnose::series::judge(&windows.windows))
}

#[test]
fn a_series_has_its_verdict_first_and_each_figure_over_the_windows() {
    let page = page_of_series(&crate::series::tests::STORM);
    let verdict = page.find("The wall is allocator contention, since window 5 of 8").expect("a verdict");
    assert!(verdict < page.find("<nav").unwrap());
    let figures = section(&page, "figures");
    let locks = figures.find("allocator locks").expect("locks");
    let resident = figures.find("resident memory").expect("memory");
    assert!(figures[locks..].contains("1.0 % 50.0 % 25.5 % 1.0 % to 50.0 % "), "{figures}");
    assert!(figures[locks..].contains("▲ rose since window 5 (4 min)"), "{figures}");
    assert!(figures[resident..].contains("100.0 MiB 170.0 MiB 135.0 MiB "), "{figures}");
    // A figure with nothing in any window is not drawn.
    assert_eq!(page.matches("svg class=\"bar dots\"").count(), 2, "{figures}");
    assert_eq!(page.matches("<circle class=\"run\"").count(), 16);
    assert!(figures.contains("Not judged: the memory of process 7 is not readable:"), "{figures}");
    assert!(section(&page, "walls").contains("allocator contention, of working time"));
    assert!(section(&page, "next").contains("allocwall diagnose '/state/7 a.allocwall'"));
    assert!(!page.contains('\u{1b}'));
    // The near twin: no wall, so no chart of walls and no remedy.
    let calm = page_of_series(&[0.01; 8]);
    assert!(calm.contains("class=\"verdict good\"") && !calm.contains("<section id=\"walls\""));
    assert!(!section(&calm, "next").contains("Remedies"), "{calm}");
}

#[test]
fn the_page_of_many_windows_is_thinned_out_and_small() {
    let many: Vec<f64> = (0..500).map(|nth| if nth % 2 == 0 { 0.01 } else { 0.5 }).collect();
    let mut windows = crate::series::tests::series(&many);
    for window in &mut windows.windows {
        window.figures.iter_mut().for_each(|figure| *figure = Ok(1e9));
    }
    let page = series(&windows, &allocwall_diagnose::series::judge(&windows.windows));
    assert!(page.len() < 2_000_000, "{}", page.len());
    let figures = section(&page, "figures");
    assert!(figures.contains("One window of ") && figures.contains("Table: every window"), "{figures}");
    assert!(!page_of_series(&many[..8]).contains("One window of "));
}
