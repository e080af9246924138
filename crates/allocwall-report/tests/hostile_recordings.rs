//! Recordings may come from untrusted sources. Reading, judging and reporting them must not panic or use much memory,
//! whatever bytes and numbers they contain.

use allocwall_diagnose::{self as diagnose, bill};
use allocwall_measure::file::{self, Batch, Head, Part, Tail, Writer};
use allocwall_measure::reading::Readers;
use allocwall_measure::record::{self, Request, Target};
use allocwall_model::allocations::{Calls, not_counted};
use allocwall_model::devices::{
    Datagrams, Devices, DiskUse, Disks, Interfaces, MOST_DISKS, Network, TcpEvents,
};
use allocwall_model::placement::{NodeCpus, NodePages, Placed, Placement};
use allocwall_model::recording::*;
use allocwall_model::resident::Amount;
use allocwall_model::units::{Absence, Interval, Reason};
use allocwall_report::profiles::{firefox, pprof, speedscope};
use allocwall_report::text::{Extent, Style};
use allocwall_report::{collapsed, flamegraph, html, json, tables, text};
use allocwall_sketches::recording::counted;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestRunner};
use serde_json::Value;
use std::io::{Read, Write};
use std::path::Path;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

/// Limit for the peak memory of this test program, with both tests running at once.
const PEAK_KIB: u64 = 700 << 10;

/// A real recording of a shell that starts programs, cut down to the size of a test, with prices and a heap.
fn real() -> &'static Recording {
    static REAL: OnceLock<Recording> = OnceLock::new();
    REAL.get_or_init(|| {
        let mut shell = Command::new("sh").args(["-c", "while :; do /bin/true; done"]).spawn().expect("sh");
        let prices = ["syscall", "first_touch_4k", "map_unmap_128k"].map(|name| Price {
            name: name.into(),
            ns: Interval::new(100.0, 200.0, 300.0),
            repetitions: 9,
        });
        let recorded = record::record(Request {
            rate_hz: None,
            closely: false,
            counting: Err(not_counted()),
            target: Target::Pids(vec![shell.id() as i32]),
            window: Duration::from_millis(500),
            memory: true,
            output: None,
            readers: Readers::Here,
            prices: Ok(PriceList {
                measured_unix_s: 1,
                machine: "m".into(),
                prices: prices.into(),
                absent: vec![],
            }),
            interrupted: &AtomicBool::new(false),
            progress: &mut |_| {},
        });
        let _ = shell.kill();
        let _ = shell.wait();
        let mut r = recorded.expect("a recording").recording;
        r.counted = Ok(counted(1, &[(9_000, 64), (900, 5_000), (100, 200_000)], 500, 0.3));
        if let Ok(counted) = &mut r.counted {
            counted.processes[0].program = r.processes[0].exe.clone();
        }
        r.samples.truncate(60);
        r.waits.truncate(20);
        r.stacks.truncate(60);
        r.processes.truncate(4);
        r.threads.truncate(8);
        let (stacks, frames) = (r.stacks.len() as u32, 120.min(r.frames.len()) as u32);
        r.frames.truncate(frames as usize);
        if let Ok(loads) = &mut r.loads {
            loads.retain(|one| one.frame < frames);
            loads.truncate(20);
        }
        for stack in &mut r.stacks {
            stack.frames.iter_mut().for_each(|f| *f %= frames);
            stack.frames.truncate(12);
        }
        let within = |index: &mut Option<u32>| *index = index.map(|i| i % stacks);
        r.samples.iter_mut().for_each(|s| {
            within(&mut s.kernel);
            within(&mut s.user);
        });
        r.waits.iter_mut().for_each(|w| {
            within(&mut w.kernel);
            within(&mut w.user);
        });
        r.heap = Ok(HeapView {
            method: "m".into(),
            mapped_bytes: 4 << 20,
            resident_bytes: 3 << 20,
            live_bytes: Interval::exact(1e6),
            free_bytes: Interval::exact(2e6),
        });
        r.fault_slices.push(FaultSlice {
            t_ns: 1,
            over_ns: 2,
            owners: [Owner::Heap, Owner::File, Owner::Unknown]
                .map(|owner| OwnerFaults { owner, samples: 100, faults: 1_000 })
                .into(),
        });
        r.python.push(PythonSample {
            t_ns: 1,
            pid: r.processes[0].pid,
            tid: r.processes[0].pid,
            frames: vec!["f (a.py:1)".into()],
        });
        r
    })
}

fn parts(r: Recording) -> [Part; 8] {
    let head = Head {
        meta: r.meta.clone(),
        host: r.host,
        cgroup: r.cgroup,
        processes: r.processes.clone(),
        modules: r.modules.clone(),
        prices: r.prices.clone(),
    };
    let tail = Tail {
        meta: r.meta,
        processes: r.processes,
        probes: r.probes,
        threads: r.threads,
        modules: r.modules,
        counts: r.counts,
        neighbours: r.neighbours,
        heap: r.heap,
        resident: r.resident,
        placement: r.placement,
        loads: r.loads,
        accounts: r.accounts,
        collecting: r.collecting,
        fault_slices: r.fault_slices,
        hardware: r.hardware,
        frames: r.frames,
        stacks: r.stacks,
        sample_stacks: r.samples.iter().map(|s| (s.kernel, s.user)).collect(),
        wait_stacks: r.waits.iter().map(|w| (w.kernel, w.user)).collect(),
    };
    let batch =
        Batch { samples: r.samples, waits: r.waits, ticks: r.ticks, python: r.python, ..Batch::default() };
    [
        Part::Head(Box::new(head)),
        Part::Batch(Box::new(batch)),
        Part::Devices(Box::new(r.devices)),
        Part::SmapsCost(r.smaps_cost.unwrap_or_default()),
        Part::Counted(Box::new(r.counted)),
        Part::Tail(Box::new(tail)),
        Part::Replayed(Box::new(r.replayed)),
        Part::Priced(Box::new(r.prices)),
    ]
}

fn chunk(plain: &[u8]) -> Vec<u8> {
    let mut deflate = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::fast());
    deflate.write_all(plain).unwrap();
    let body = deflate.finish().unwrap();
    let mut chunk = (body.len() as u32).to_le_bytes().to_vec();
    chunk.extend(crc32fast::hash(&body).to_le_bytes());
    chunk.extend(body);
    chunk
}

/// The bytes of a file, and the unpacked bodies of its chunks.
fn real_file() -> &'static (Vec<u8>, Vec<Vec<u8>>) {
    static FILE: OnceLock<(Vec<u8>, Vec<Vec<u8>>)> = OnceLock::new();
    FILE.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("r");
        let mut writer = Writer::create(Some(&path)).unwrap();
        parts(real().clone()).iter().for_each(|p| writer.write(p));
        let (recording, failure) = writer.finish();
        assert!(failure.is_none());
        assert!(all_the_way(&recording.expect("the real one reads back")), "and has a flamegraph");
        let bytes = std::fs::read(&path).unwrap();
        let (mut at, mut plain) = (12, Vec::new());
        while at < bytes.len() {
            let length = u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
            let mut body = Vec::new();
            flate2::read::DeflateDecoder::new(&bytes[at + 8..at + 8 + length])
                .read_to_end(&mut body)
                .unwrap();
            plain.push(body);
            at += 8 + length;
        }
        (bytes, plain)
    })
}

/// Makes the bill, the verdict and all reports. True if there is a flamegraph.
fn all_the_way(recording: &Recording) -> bool {
    let bill = bill::of(recording);
    let verdict = diagnose::verdict(recording, &bill);
    let text = text::diagnosis(recording, &bill, &verdict, None, Extent::All, Style::FILE);
    let brief = text::diagnosis(recording, &bill, &verdict, None, Extent::Brief, Style::FILE);
    let json = json::document(recording, &bill, &verdict);
    let svg = flamegraph::svg(recording, &bill);
    let collapsed = collapsed::stacks(recording);
    let profiles = [firefox::document(recording), speedscope::document(recording)];
    assert_eq!(profiles.each_ref().map(Result::is_ok), [svg.is_ok(); 2]);
    assert_eq!(pprof::profile(recording).is_ok(), svg.is_ok());
    let [firefox, speedscope] = profiles.map(Result::unwrap_or_default);
    let tables = [tables::series(recording), tables::faults(recording), tables::samples(recording)];
    let mut csv = String::new();
    for table in tables.into_iter().flatten().chain([tables::bill(&bill)]) {
        assert!(tables::parquet::file(&table, "test").is_ok());
        csv += &tables::csv::file(&table);
    }
    let page = html::diagnosis(recording, &bill, &verdict, None);
    assert!(page.len() < 2_000_000, "{}", page.len());
    serde_json::from_str::<Value>(&json).expect("JSON stays JSON");
    for (what, output) in [
        ("text", &text),
        ("brief text", &brief),
        ("json", &json),
        ("collapsed", &collapsed),
        ("firefox", &firefox),
        ("speedscope", &speedscope),
        ("csv", &csv),
        ("html", &page),
        ("svg", svg.as_ref().unwrap_or(&String::new())),
    ] {
        assert!(
            !output.contains('\u{1b}') && (what == "json" || !output.contains("\u{202e}")),
            "{what} holds an escape"
        );
    }
    assert!(!page.contains("<script>alert"), "markup in the page");
    if let Ok(svg) = &svg {
        assert!(!svg.contains("<script>alert"), "markup in the flamegraph");
    }
    svg.is_ok()
}

/// One change of a list of bytes. Its position is a fraction of the whole.
#[derive(Clone, Debug)]
enum Edit {
    Flip(u8),
    Set(u8),
    /// A varint of the largest value.
    Huge,
    Cut,
    Remove(usize),
    Repeat(usize),
}

fn edits() -> impl Strategy<Value = Vec<(f64, Edit)>> {
    let edit = prop_oneof![
        (0_u8..8).prop_map(Edit::Flip),
        any::<u8>().prop_map(Edit::Set),
        Just(Edit::Huge),
        Just(Edit::Cut),
        (1_usize..64).prop_map(Edit::Remove),
        (1_usize..64).prop_map(Edit::Repeat),
    ];
    prop::collection::vec((0.0..1.0, edit), 1..4)
}

fn edit(bytes: &mut Vec<u8>, edits: &[(f64, Edit)]) {
    for (at, edit) in edits {
        if bytes.is_empty() {
            return;
        }
        let at = (at * bytes.len() as f64) as usize;
        match edit {
            Edit::Flip(bit) => bytes[at] ^= 1 << bit,
            Edit::Set(value) => bytes[at] = *value,
            Edit::Huge => {
                bytes.splice(at..at + 1, [0xff; 9].into_iter().chain([1]));
            }
            Edit::Cut => bytes.truncate(at),
            Edit::Remove(count) => {
                bytes.drain(at..(at + count).min(bytes.len()));
            }
            Edit::Repeat(count) => {
                let piece = bytes[at..(at + count).min(bytes.len())].to_vec();
                bytes.splice(at..at, piece);
            }
        }
    }
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, max_shrink_iters: 50, ..Config::default() })
}

fn assert_small() {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find_map(|l| l.strip_prefix("VmHWM:"));
    let peak: u64 = peak.and_then(|l| l.trim().strip_suffix(" kB")).and_then(|kib| kib.parse().ok()).unwrap();
    assert!(peak < PEAK_KIB, "{peak} KiB were resident at the peak");
}

/// Changes bytes of the file, which checksums usually detect, and unpacked bytes with a new checksum, which only the
/// parser and the validation can detect.
#[test]
fn changed_bytes_never_panic() {
    let (bytes, plain) = real_file();
    let (parsed, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let outcome = runner(1_000).run(&(0..7_usize, edits()), |(which, edits)| {
        let bytes = match plain.get(which) {
            None => {
                let mut bytes = bytes.clone();
                edit(&mut bytes, &edits);
                bytes
            }
            Some(_) => {
                let mut made = bytes[..12].to_vec();
                for (index, body) in plain.iter().enumerate() {
                    let mut body = body.clone();
                    if index == which {
                        edit(&mut body, &edits);
                    }
                    made.extend(chunk(&body));
                }
                made
            }
        };
        match file::decode(Path::new("x"), &bytes) {
            Ok(recording) => {
                parsed.fetch_add(1, Ordering::Relaxed);
                all_the_way(&recording);
            }
            Err(error) => {
                refused.fetch_add(1, Ordering::Relaxed);
                prop_assert!(!error.to_string().contains('\n'));
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let (parsed, refused) = (parsed.into_inner(), refused.into_inner());
    assert!(parsed > 50 && refused > 50, "{parsed} parsed, {refused} refused: one side went untested");
    assert_small();
}

const NUMBERS: [u64; 12] = [
    0,
    1,
    2,
    255,
    (1 << 31) - 1,
    u32::MAX as u64,
    86_400_000_000_000,
    (1 << 56) - 1,
    1 << 56,
    i64::MAX as u64,
    1 << 63,
    u64::MAX,
];
const FLOATS: [f64; 6] = [0.0, -1.0, 1e-300, 1e18, 1e300, f64::MAX];
const TEXTS: [&str; 6] =
    ["", "\u{1b}[31m\u{202e}", "<script>alert(1)</script>", "a;b c\n\u{0}", "ünïcödé 漢字", "::<<>>(){}"];

fn spoiled(value: &Value, choice: usize) -> Value {
    match value {
        Value::Number(n) if n.is_f64() => Value::from(FLOATS[choice % FLOATS.len()]),
        Value::Number(_) if choice % 16 == 15 => Value::from(-1),
        Value::Number(_) => Value::from(NUMBERS[choice % NUMBERS.len()]),
        Value::String(_) if choice % 8 == 7 => Value::from("x".repeat(20_000)),
        Value::String(_) => Value::from(TEXTS[choice % TEXTS.len()]),
        Value::Bool(b) => Value::from(!b),
        Value::Null => Value::from(NUMBERS[choice % NUMBERS.len()]),
        Value::Array(items) => match choice % 3 {
            0 => Value::Array(vec![]),
            1 => Value::Array(items.iter().chain(items).cloned().collect()),
            _ => Value::Array(items.iter().rev().cloned().collect()),
        },
        Value::Object(_) => Value::Null,
    }
}

/// Walks down by the choices to a leaf, or to a list that is changed as a whole.
fn spoil(value: &mut Value, choices: &[usize]) {
    let Some((&choice, rest)) = choices.split_first() else {
        *value = spoiled(value, 0);
        return;
    };
    match value {
        Value::Array(items) if !items.is_empty() && choice % 10 != 0 => {
            let index = (choice / 10) % items.len();
            spoil(&mut items[index], rest)
        }
        Value::Object(fields) if !fields.is_empty() => {
            let index = choice % fields.len();
            if let Some((_, field)) = fields.iter_mut().nth(index) {
                spoil(field, rest)
            }
        }
        _ => *value = spoiled(value, choice),
    }
}

/// Numbers that JSON does not have.
fn not_a_number(r: &mut Recording, which: usize) {
    let bad = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY][which % 3];
    match which / 3 {
        0 => {
            if let Ok(prices) = &mut r.prices
                && let Some(price) = prices.prices.first_mut()
            {
                price.ns.point = bad;
            }
        }
        1 => {
            if let Ok(heap) = &mut r.heap {
                heap.free_bytes.high = bad;
            }
        }
        2 => {
            if let Some(tick) = r.ticks.last_mut() {
                tick.cgroup = Some(CgroupTick { quota_cpus: Some(bad), ..CgroupTick::default() });
            }
        }
        _ => {}
    }
}

#[test]
fn changed_fields_never_panic() {
    let base = serde_json::to_value(real()).unwrap();
    let (parsed, refused) = (AtomicU32::new(0), AtomicU32::new(0));
    let changes = prop::collection::vec(prop::collection::vec(any::<usize>(), 12), 1..6);
    let outcome = runner(1_500).run(&(changes, 0..40_usize), |(changes, which)| {
        let mut value = base.clone();
        changes.iter().for_each(|c| spoil(&mut value, c));
        let Ok(mut recording) = serde_json::from_value::<Recording>(value) else {
            return Ok(());
        };
        not_a_number(&mut recording, which);
        let mut writer = Writer::create(None).unwrap();
        parts(recording).iter().for_each(|p| writer.write(p));
        match writer.finish().0 {
            Ok(recording) => {
                parsed.fetch_add(1, Ordering::Relaxed);
                all_the_way(&recording);
            }
            Err(_) => {
                refused.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(())
    });
    outcome.unwrap();
    let (parsed, refused) = (parsed.into_inner(), refused.into_inner());
    assert!(parsed > 200 && refused > 50, "{parsed} parsed, {refused} refused: one side went untested");
    assert_small();
}

/// Sets all numbers to their limits at once, so that sums that can overflow do so.
#[test]
fn the_largest_numbers_that_pass_are_harmless() {
    const LARGEST: u64 = u64::MAX;
    const DAY: u64 = 86_400_000_000_000;
    for period in [1, 1_000_000_000] {
        let mut r = real().clone();
        (r.meta.window_ns, r.meta.requested_ns, r.meta.sample_period_ns) = (DAY, DAY, period);
        r.samples.iter_mut().for_each(|s| s.t_ns = DAY);
        r.waits.iter_mut().for_each(|w| (w.t_ns, w.weight_ns) = (DAY, DAY));
        for tick in &mut r.ticks {
            (tick.user_ns, tick.system_ns, tick.resident, tick.vm_size) =
                (LARGEST, LARGEST, LARGEST, LARGEST);
            (tick.minor_faults, tick.major_faults, tick.threads) = (LARGEST, LARGEST, u32::MAX);
        }
        for thread in &mut r.threads {
            (thread.cpu_ns, thread.seen_ns, thread.run_delay_ns) = (LARGEST, DAY, Some(LARGEST));
        }
        r.neighbours = (1..3).map(|pid| Neighbour { pid, comm: "n".into(), cpu_ns: LARGEST }).collect();
        let pages = NodePages { node: u32::MAX, heap: LARGEST, anonymous: LARGEST, file: LARGEST };
        r.placement = Ok(Placement {
            nodes: vec![NodeCpus { node: u32::MAX, cpus: (0..64).collect() }],
            processes: vec![Placed { pid: r.processes[0].pid, nodes: vec![pages, pages] }],
            unread: None,
        });
        let most = u32::MAX;
        r.loads = Ok(vec![LoadSamples { frame: 0, samples: most, after_load: most, expected: most as f32 }]);
        // The largest increase that a window can have.
        const MOST: u64 = (1 << 56) - 1;
        let disk = DiskUse {
            name: "d".repeat(9_000),
            requests: 1,
            request_ms: MOST,
            sectors: MOST,
            busy_ms: MOST,
            stuck: MOST,
        };
        let events = TcpEvents { timeouts: MOST, listen_overflows: MOST, listen_drops: MOST };
        let interfaces =
            Interfaces { packets: MOST, errors: MOST, dropped: MOST, worst: Some("e".repeat(9_000)) };
        r.devices = Devices {
            disks: Ok(Disks {
                over_ns: period,
                busiest: vec![disk; MOST_DISKS],
                others: u32::MAX,
                others_busy_ms: MOST,
                uncounted: vec!["f".repeat(9_000); MOST_DISKS],
            }),
            network: Ok(Network {
                pid: i32::MAX,
                over_ns: DAY,
                sent: MOST,
                retransmitted: MOST,
                events: Ok(events),
                datagrams: Ok(Datagrams { received: MOST, sent: MOST, dropped: MOST, overflows: MOST }),
                interfaces: Ok(interfaces),
            }),
        };
        if let Ok(memory) = &mut r.resident {
            memory.others = LARGEST;
            for row in memory.bills.iter_mut().flat_map(|bill| &mut bill.rows) {
                row.amount =
                    Amount { resident_bytes: LARGEST, lazily_freed_bytes: LARGEST, reserved_bytes: LARGEST };
            }
        }
        if let Ok(counted) = &mut r.counted {
            let process = &mut counted.processes[0];
            process.calls = Calls {
                malloc: LARGEST,
                moved: LARGEST,
                frees: LARGEST,
                bytes: LARGEST,
                copied_bytes: LARGEST,
                ..Calls::default()
            };
            process.classes.iter_mut().for_each(|class| *class = LARGEST);
            let point = &mut counted.series[0];
            (point.over_ns, point.calls, point.frees, point.bytes) = (period, LARGEST, LARGEST, LARGEST);
        }
        let mut writer = Writer::create(None).unwrap();
        parts(r).iter().for_each(|p| writer.write(p));
        all_the_way(&writer.finish().0.expect("within the limits"));
    }
    // The same with all numbers zero.
    let mut r = real().clone();
    let gone = || Absence::new(Reason::Vanished, "gone");
    (r.heap, r.prices, r.loads) = (Err(gone()), Err(gone()), Err(gone()));
    (r.ticks, r.threads, r.samples, r.waits) = (vec![], vec![], vec![], vec![]);
    (r.frames, r.stacks, r.modules, r.probes) = (vec![], vec![], vec![], vec![]);
    let mut writer = Writer::create(None).unwrap();
    parts(r).iter().for_each(|p| writer.write(p));
    all_the_way(&writer.finish().0.expect("within the limits"));
}

/// Every cumulative counter of a tick.
fn counters(tick: &mut Tick) -> Vec<&mut u64> {
    let mut all =
        vec![&mut tick.user_ns, &mut tick.system_ns, &mut tick.minor_faults, &mut tick.major_faults];
    all.extend([&mut tick.voluntary_switches, &mut tick.involuntary_switches].into_iter().flatten());
    if let Some(cgroup) = &mut tick.cgroup {
        all.extend([&mut cgroup.periods, &mut cgroup.throttled_periods, &mut cgroup.throttled_ns]);
    }
    if let Some(host) = &mut tick.host {
        all.extend([&mut host.busy_ns, &mut host.idle_ns, &mut host.iowait_ns, &mut host.steal_ns]);
        let optional = [
            &mut host.psi_cpu_us,
            &mut host.psi_memory_us,
            &mut host.psi_io_us,
            &mut host.direct_reclaim_pages,
            &mut host.compact_stalls,
            &mut host.thp_fault_alloc,
            &mut host.thp_fault_fallback,
            &mut host.numa_remote,
            &mut host.numa_local,
            &mut host.numa_moved,
            &mut host.numa_hint_faults,
        ];
        all.extend(optional.into_iter().flatten());
    }
    all
}

/// The reports of a recording that was written to a file and read back.
fn read_back(r: Recording) -> (String, String) {
    let mut writer = Writer::create(None).unwrap();
    parts(r).iter().for_each(|p| writer.write(p));
    let r = writer.finish().0.expect("a recording");
    let bill = bill::of(&r);
    let verdict = diagnose::verdict(&r, &bill);
    let text = text::diagnosis(&r, &bill, &verdict, None, Extent::All, Style::FILE);
    let json: Value = serde_json::from_str(&json::document(&r, &bill, &verdict)).unwrap();
    (text, json["bill"].to_string() + &json["verdict"].to_string())
}

/// Idle time alone is beyond 2^56 ns on 64 CPUs after 13 days, and beyond 2^64 ns on 2,048 CPUs after 104.
#[test]
fn a_machine_that_has_run_for_years_is_diagnosed_like_a_young_one() {
    let shifted = |by: u64, real: &Recording| {
        let mut r = real.clone();
        for tick in &mut r.ticks {
            counters(tick).into_iter().for_each(|c| *c = c.wrapping_add(by));
        }
        read_back(r)
    };
    let young = read_back(real().clone());
    assert!(young.0.contains("CPUs used"), "{}", young.0);
    // The last of them wraps between the two ends of the window.
    let before_the_wrap = real().ticks[0].host.as_ref().unwrap().busy_ns.wrapping_neg() - 1;
    for by in [1 << 56, 1 << 62, u64::MAX - (1 << 40), before_the_wrap] {
        assert_eq!(shifted(by, real()), young, "{by}");
    }
}

/// A counter that runs backwards, or jumps by more than is possible in a window, is absent. The other counters are
/// used.
#[test]
fn a_counter_that_jumps_is_an_absence() {
    for to in [0, 1 << 60, 1 << 63, u64::MAX] {
        let mut r = real().clone();
        let last = r.ticks.len() - 1;
        r.ticks[0].host.as_mut().unwrap().steal_ns = 1_000;
        r.ticks[last].host.as_mut().unwrap().steal_ns = to;
        let (_, json) = read_back(r);
        let stolen = json.split("\"class\":\"stolen\"").nth(1).unwrap();
        assert!(stolen[..400].contains("ran backwards, or jumped"), "{to}: {}", &stolen[..400]);
        for which in 0..counters(&mut real().ticks[0].clone()).len() {
            let mut r = real().clone();
            *counters(&mut r.ticks[0])[which] = u64::MAX / 3;
            *counters(&mut r.ticks[last])[which] = to;
            read_back(r);
        }
    }
}

/// An empty string takes 1 byte in the file and 24 in memory. Forty million of them must be refused before they are
/// allocated.
#[test]
fn lists_are_charged_by_what_they_take_in_memory() {
    const NAMES: u32 = 40_000_000;
    let (file, _) = real_file();
    // A batch with one Python sample: five empty lists, one of one, three numbers, then its names, all empty.
    let mut plain = vec![1, 0, 0, 0, 0, 0, 1, 1, 2, 2];
    plain.extend(postcard::to_stdvec(&NAMES).unwrap());
    plain.resize(plain.len() + NAMES as usize, 0);
    // Stored, not deflated, because data that deflates too well is refused anyway.
    let mut stored = flate2::write::DeflateEncoder::new(Vec::new(), flate2::Compression::none());
    stored.write_all(&plain).unwrap();
    drop(plain);
    let body = stored.finish().unwrap();
    let head = 12 + 8 + u32::from_le_bytes(file[12..16].try_into().unwrap()) as usize;
    let mut bytes = file[..head].to_vec();
    bytes.extend((body.len() as u32).to_le_bytes());
    bytes.extend(crc32fast::hash(&body).to_le_bytes());
    bytes.extend(body);
    let why = file::decode(Path::new("x"), &bytes).unwrap_err().to_string();
    assert!(why.contains("part 2 does not parse"), "{why}");
    assert_small();
}
