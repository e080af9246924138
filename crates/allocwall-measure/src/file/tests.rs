use super::*;
use allocwall_host::facts;
use allocwall_model::catalogue::modules::ModuleRole;
use allocwall_model::devices::{Datagrams, DiskUse, Disks, Interfaces, MOST_DISKS, Network};
use allocwall_model::placement::{MOST_NODES, NodeCpus, NodePages, Placed};
use allocwall_model::recording::Price;
use allocwall_model::resident::{Amount, GroupMemory, MOST_NOTES, ResidentOwner, Row, Split};
use allocwall_model::units::Interval;
use allocwall_sketches::recording::{counted, empty};
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

fn absent<T>() -> Measured<T> {
    Err(Absence::new(Reason::NotFound, "not in this test"))
}

fn meta() -> Meta {
    Meta {
        started_unix_ms: 1,
        window_ns: 2_000_000_000,
        requested_ns: 2_000_000_000,
        wait_period_ns: 4_000_000,
        command: Some(vec!["service".into()]),
        own_cpu_ns: 5,
        lost_records: 6,
        ..empty().meta
    }
}

fn process() -> Process {
    Process {
        pid: 7,
        cmdline: vec!["service".into(), "--fast".into()],
        environment: vec![("MALLOC_ARENA_MAX".into(), "1".into())],
        secure_exec: absent(),
        ..empty().processes.remove(0)
    }
}

fn head() -> Head {
    Head {
        meta: meta(),
        host: facts::Machine::live().facts(),
        cgroup: Some("/group".into()),
        processes: vec![process()],
        modules: vec![Module { role: ModuleRole::Kernel, ..module("[kernel]") }],
        prices: Ok(PriceList {
            measured_unix_s: 1,
            machine: "m".into(),
            prices: vec![Price { name: "syscall".into(), ns: Interval::new(1.0, 2.0, 3.0), repetitions: 9 }],
            absent: vec![],
        }),
    }
}

fn module(path: &str) -> Module {
    Module {
        path: path.into(),
        build_id: None,
        role: ModuleRole::Other,
        malloc_ranges: vec![],
        has_symbols: true,
    }
}

fn frame(name: &str) -> Frame {
    Frame { module: Some(0), symbol: Some(name.into()), offset: 0 }
}

fn stack(frames: &[u32]) -> Stack {
    Stack { frames: frames.to_vec(), complete: true }
}

fn batch() -> Batch {
    Batch {
        frames: vec![frame("leaf")],
        stacks: vec![stack(&[0])],
        samples: vec![CpuSample {
            t_ns: 5,
            pid: 7,
            tid: 7,
            cpu: 1,
            kernel: None,
            user: Some(0),
            deep: true,
            faulted: Some(Owner::Heap),
        }],
        waits: vec![WaitSample {
            t_ns: 6,
            pid: 7,
            tid: 7,
            weight_ns: 9,
            state: 'S',
            syscall: Some(202),
            python_lock: Some(true),
            kernel: Some(0),
            user: None,
        }],
        ticks: vec![Tick::default(), Tick { t_ns: 1_000_000_000, user_ns: 10, ..Tick::default() }],
        python: vec![PythonSample { t_ns: 3, pid: 7, tid: 7, frames: vec!["f (a.py:1)".into()] }],
    }
}

fn bill() -> ResidentBill {
    let amount = Amount { resident_bytes: 30, lazily_freed_bytes: 2, reserved_bytes: 1 };
    let split = |owner| match owner {
        ResidentOwner::Private => absent(),
        _ => Ok(Split { free_bytes: Interval::new(1.0, 2.0, 3.0), ..Split::all_live(28, "m") }),
    };
    ResidentBill {
        pid: 7,
        comm: "service".into(),
        cmdline: vec!["service".into()],
        runtime: Ok(Runtime::Native),
        allocator: absent(),
        secure_exec: Ok(false),
        environment: vec![("MALLOC_ARENA_MAX".into(), "1".into())],
        rows: ResidentOwner::ALL.map(|owner| Row { owner, amount, split: split(owner) }).into(),
        rss_before_bytes: 270,
        rss_after_bytes: 271,
        thread_arenas: 2,
        page_tables_bytes: Ok(4),
        group: Ok(GroupMemory { path: "/group".into(), kernel_bytes: 5, page_cache_bytes: 6 }),
        notes: vec!["n".into()],
        took_ms: 8,
    }
}

fn placement() -> Placement {
    let pages = NodePages { node: 1, heap: 1, anonymous: 2, file: 3 };
    Placement {
        nodes: vec![NodeCpus { node: 1, cpus: vec![4, 6] }],
        processes: vec![Placed { pid: 7, nodes: vec![pages] }],
        unread: absent::<()>().err(),
    }
}

fn devices() -> Devices {
    let disk = DiskUse { name: "sda".into(), requests: 1, request_ms: 2, sectors: 8, busy_ms: 3, stuck: 0 };
    let interfaces = Interfaces { packets: 4, errors: 0, dropped: 1, worst: Some("eth0".into()) };
    Devices {
        disks: Ok(Disks {
            over_ns: 9,
            busiest: vec![disk],
            others: 1,
            others_busy_ms: 2,
            uncounted: vec!["sdb".into()],
        }),
        network: Ok(Network {
            pid: 7,
            over_ns: 9,
            sent: 5,
            retransmitted: 1,
            events: absent(),
            datagrams: Ok(Datagrams { received: 3, sent: 2, dropped: 1, overflows: 0 }),
            interfaces: Ok(interfaces),
        }),
    }
}

fn slice() -> FaultSlice {
    let owners = vec![OwnerFaults { owner: Owner::Heap, samples: 2, faults: 30 }];
    FaultSlice { t_ns: 1, over_ns: 2, owners }
}

fn hardware() -> HardwareCounts {
    let slices = vec![HardwareSlice { count: 3, enabled_ns: 2, running_ns: 1 }; 3];
    let count = |event, counted| HardwareCount { event, counted };
    HardwareCounts {
        kernel: true,
        throughout: false,
        events: vec![
            count(HardwareEvent::Cycles, Ok(HardwareSlices { slices })),
            count(HardwareEvent::NodeLoads, absent()),
        ],
    }
}

fn tail() -> Tail {
    let head = head();
    Tail {
        meta: Meta { lost_records: 60, ..meta() },
        processes: head.processes,
        probes: vec![Probe::new(ProbeName::Waits, ProbeState::Measured)],
        threads: vec![ThreadTimes {
            pid: 7,
            tid: 7,
            comm: "t".into(),
            seen_ns: 2,
            cpu_ns: 1,
            run_delay_ns: None,
        }],
        modules: head.modules,
        counts: vec![EventCount { name: "mmap".into(), count: 3, over_ns: 4 }],
        neighbours: vec![Neighbour { pid: 8, comm: "n".into(), cpu_ns: 5 }],
        heap: Ok(HeapView {
            method: "m".into(),
            mapped_bytes: 4,
            resident_bytes: 3,
            live_bytes: Interval::exact(1.0),
            free_bytes: Interval::exact(2.0),
        }),
        resident: Ok(TargetMemory { bills: vec![bill()], others: 3, unread: absent::<()>().err() }),
        placement: Ok(placement()),
        loads: Ok(vec![LoadSamples { frame: 1, samples: 3, after_load: 2, expected: 0.5 }]),
        accounts: vec![RuntimeAccount {
            pid: 7,
            method: "m".into(),
            over_ns: 9,
            stopped_ns: Ok(Figure { value: Interval::exact(3.0), sampled: true }),
            collections: Ok(2),
            collector_cpu_ns: Err(Absence::new(Reason::NotSupported, "none")),
            allocated_bytes: Ok(Figure { value: Interval::exact(5.0), sampled: false }),
        }],
        collecting: vec![Collecting { pid: 7, from_ns: 1, to_ns: 2 }],
        fault_slices: vec![slice()],
        hardware: Ok(hardware()),
        frames: vec![frame("leaf"), frame("main")],
        stacks: vec![stack(&[0, 1])],
        sample_stacks: vec![(None, Some(0))],
        wait_stacks: vec![(Some(0), None)],
    }
}

fn bytes(parts: &[Part]) -> Vec<u8> {
    let mut writer = Writer::create(None).unwrap();
    parts.iter().for_each(|p| writer.write(p));
    writer.bytes
}

fn whole() -> Vec<u8> {
    bytes(&[
        Part::Head(Box::new(head())),
        Part::Modules(vec![module("libssl.so.3")]),
        Part::Batch(Box::new(batch())),
        Part::Devices(Box::new(devices())),
        Part::SmapsCost(SmapsCost { reads: 3, ns: 4 }),
        Part::Counted(Box::new(Ok(counts()))),
        Part::Tail(Box::new(tail())),
    ])
}

fn counts() -> Counted {
    counted(2, &[(900, 64), (100, 200_000)], 500, 0.1)
}

fn decoded(bytes: &[u8]) -> std::result::Result<Recording, String> {
    decode(Path::new("x"), bytes).map_err(|e| e.to_string())
}

/// The ends of the header and of all chunks.
fn boundaries(bytes: &[u8]) -> Vec<usize> {
    let mut at = HEADER;
    let mut found = vec![at];
    while at < bytes.len() {
        at += 8 + u32::from_le_bytes(bytes[at..at + 4].try_into().unwrap()) as usize;
        found.push(at);
    }
    found
}

#[test]
fn every_part_comes_back_as_it_was() {
    let r = decoded(&whole()).unwrap();
    let (head, batch, tail) = (head(), batch(), tail());
    assert_eq!(r.meta, tail.meta);
    assert_eq!((r.host, r.cgroup, r.prices), (head.host, head.cgroup, head.prices));
    assert_eq!((r.processes, r.modules), (tail.processes, tail.modules));
    assert_eq!((r.ticks, r.python), (batch.ticks, batch.python));
    assert_eq!(
        (r.probes, r.threads, r.counts, r.neighbours),
        (tail.probes, tail.threads, tail.counts, tail.neighbours)
    );
    assert_eq!((&r.heap, &r.resident, &r.placement), (&tail.heap, &tail.resident, &tail.placement));
    assert_eq!((&r.accounts, &r.collecting), (&tail.accounts, &tail.collecting));
    assert_eq!((r.fault_slices, r.hardware), (tail.fault_slices, tail.hardware));
    assert_eq!((r.devices, r.counted), (devices(), Ok(counts())));
    assert_eq!(r.smaps_cost, Ok(SmapsCost { reads: 3, ns: 4 }));
    assert_eq!(r.replayed.unwrap_err().reason, Reason::Disabled);
    assert_eq!((r.frames, r.stacks), (tail.frames, tail.stacks));
    assert_eq!(r.samples, batch.samples);
    assert_eq!(r.waits, batch.waits);
}

#[test]
fn a_recording_without_the_cost_of_smaps_is_read_and_says_so() {
    let cost = |parts: &[Part]| decoded(&bytes(parts)).unwrap().smaps_cost.unwrap_err();
    let (h, b) = (|| Part::Head(Box::new(head())), || Part::Batch(Box::new(batch())));
    assert_eq!(cost(&[h(), b(), Part::Tail(Box::new(tail()))]).reason, Reason::NotFound);
    assert_eq!(cost(&[h(), b()]).reason, Reason::Vanished, "cut off");
}

#[test]
fn a_recording_without_its_devices_is_read_and_says_so() {
    let read = |parts: &[Part]| decoded(&bytes(parts)).unwrap().devices;
    let (h, b) = (|| Part::Head(Box::new(head())), || Part::Batch(Box::new(batch())));
    let before = read(&[h(), b(), Part::Tail(Box::new(tail()))]);
    let absence = before.disks.unwrap_err();
    assert_eq!((absence.reason, absence.mend.len()), (Reason::NotFound, 1));
    assert_eq!(before.network, Err(absence));
    assert_eq!(read(&[h(), b()]).disks.unwrap_err().reason, Reason::Vanished, "cut off");
}

#[test]
fn a_recording_without_counts_says_why() {
    let read = |parts: &[Part]| decoded(&bytes(parts)).unwrap().counted.unwrap_err().reason;
    let (h, b) = (|| Part::Head(Box::new(head())), || Part::Batch(Box::new(batch())));
    assert_eq!(read(&[h(), b(), Part::Tail(Box::new(tail()))]), Reason::Disabled);
    assert_eq!(read(&[h(), b()]), Reason::Vanished);
    let mut hostile = counts();
    hostile.length_ns = u64::MAX;
    let why = decoded(&bytes(&[h(), Part::Counted(Box::new(Ok(hostile)))])).unwrap_err();
    assert!(why.contains("counted calls"), "{why}");
}

#[test]
fn what_is_known_later_is_added_to_the_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.allocwall");
    std::fs::write(&path, whole()).unwrap();
    let why = Absence::new(Reason::Exhausted, "no memory");
    let late = Part::Replayed(Box::new(Err(why.clone())));
    append(&path, &late).unwrap();
    assert_eq!(read(&path).unwrap().replayed, Err(why));
    // Once.
    append(&path, &late).unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("order"));
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    assert!(append(&link, &late).is_err());
    assert!(append(&folder.path().join("none"), &late).is_err());
}

#[test]
fn prices_that_were_measured_later_take_the_place_of_the_first_ones() {
    let later = PriceList {
        measured_unix_s: 9,
        machine: "m".into(),
        prices: vec![Price { name: "touch_4k".into(), ns: Interval::exact(5.0), repetitions: 60 }],
        absent: vec![],
    };
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.allocwall");
    std::fs::write(&path, whole()).unwrap();
    assert_ne!(read(&path).unwrap().prices, Ok(later.clone()));
    append(&path, &Part::Priced(Box::new(Ok(later.clone())))).unwrap();
    assert_eq!(read(&path).unwrap().prices, Ok(later.clone()));
    // They are judged as those of the head are.
    std::fs::write(&path, whole()).unwrap();
    let mut bad = later;
    bad.prices[0].ns.point = f64::NAN;
    append(&path, &Part::Priced(Box::new(Ok(bad)))).unwrap();
    assert!(read(&path).unwrap_err().to_string().contains("prices"));
}

#[test]
fn samples_of_the_library_that_counts_are_left_out_and_counted() {
    let read = |role| {
        let (mut head, mut tail) = (head(), tail());
        head.modules[0].role = role;
        tail.modules = head.modules.clone();
        let parts = [Part::Head(Box::new(head)), Part::Batch(Box::new(batch())), Part::Tail(Box::new(tail))];
        let recording = decoded(&bytes(&parts)).unwrap();
        (recording.samples.len(), recording.counting_samples)
    };
    assert_eq!(read(ModuleRole::Counter), (0, 1));
    assert_eq!(read(ModuleRole::Libc), (1, 0));
}

#[test]
fn a_truncated_file_is_a_partial_recording_or_an_error() {
    let whole = whole();
    let ends = boundaries(&whole);
    for length in 0..whole.len() {
        let cut = decoded(&whole[..length]);
        if length < ends[1] {
            let why = cut.expect_err("without its first part it is not a recording");
            let causes = ["empty", "inside its header", "no data", "inside its first part"];
            assert!(causes.iter().any(|t| why.contains(t)), "{length}: {why}");
            continue;
        }
        let cut = cut.unwrap_or_else(|e| panic!("{length} of {}: {e}", whole.len()));
        assert_eq!(cut.meta.ended, Ended::CutOff, "{length}");
        assert_eq!(cut.samples.len(), usize::from(length >= ends[3]), "{length}");
        assert!(cut.probe(ProbeName::Tail).is_some() && cut.heap.is_err() && cut.resident.is_err());
    }
}

#[test]
fn a_cut_off_recording_has_the_modules_that_were_loaded_after_its_head() {
    let late = |place: u32| {
        let frame = Frame { module: Some(place), ..frame("leaf") };
        Part::Batch(Box::new(Batch { frames: vec![frame], ..batch() }))
    };
    let h = || Part::Head(Box::new(head()));
    let m = |path: &str| Part::Modules(vec![module(path)]);
    let module_of = |parts: &[Part]| {
        let r = decoded(&bytes(parts)).unwrap();
        assert_eq!((r.meta.ended, r.samples.len()), (Ended::CutOff, 1));
        r.frames[0].module.map(|module| r.modules[module as usize].path.clone())
    };
    let parts = |place| [h(), m("first"), m("second"), late(place)];
    assert_eq!([1, 2].map(|n| module_of(&parts(n))), [Some("first".into()), Some("second".into())]);
    // Older recordings have no such parts.
    assert_eq!((module_of(&[h(), late(0)]), module_of(&[h(), late(1)])), (Some("[kernel]".into()), None));
    // The twin: a whole recording has all its modules in the tail, and another index is wrong.
    let whole = |place: u32| {
        let mut tail = tail();
        tail.frames[0].module = Some(place);
        decoded(&bytes(&[h(), m("first"), late(1), Part::Tail(Box::new(tail))])).map(|r| r.modules.len())
    };
    assert_eq!(whole(0), Ok(1));
    assert!(whole(1).unwrap_err().contains("frames"));
}

#[test]
fn modules_are_limited_in_all_parts_together() {
    let with = |last: usize| {
        let parts = [MODULES_LIMIT - 100 - 1, 100 + last].map(|n| Part::Modules(vec![module("m"); n]));
        let parts: Vec<Part> = [Part::Head(Box::new(head()))].into_iter().chain(parts).collect();
        decoded(&bytes(&parts)).map(|r| r.modules.len())
    };
    assert_eq!(with(0), Ok(MODULES_LIMIT));
    assert!(with(1).unwrap_err().contains("more modules"));
}

#[test]
fn no_single_flipped_bit_goes_unnoticed() {
    let whole = whole();
    let ends = boundaries(&whole);
    for at in 0..whole.len() * 8 {
        let mut bytes = whole.clone();
        bytes[at / 8] ^= 1 << (at % 8);
        // A chunk with a length beyond the end of the file looks like a file that was cut off there.
        let in_length = ends.iter().any(|e| (*e..*e + 4).contains(&(at / 8)));
        match decoded(&bytes) {
            Ok(r) => assert!(in_length && r.meta.ended == Ended::CutOff, "bit {at}"),
            Err(why) => assert!(!why.is_empty()),
        }
    }
}

#[test]
fn other_formats_are_named() {
    let with_version = |v: u16| {
        let mut bytes = whole();
        bytes[MAGIC.len()..HEADER].copy_from_slice(&v.to_le_bytes());
        decoded(&bytes).unwrap_err()
    };
    let newer = with_version(FORMAT_VERSION + 1);
    assert!(newer.contains(&format!("format {}", FORMAT_VERSION + 1)) && newer.contains("newer"), "{newer}");
    let older = with_version(FORMAT_VERSION - 1);
    assert!(older.contains(&format!("this program reads format {FORMAT_VERSION}")), "{older}");
    assert!(decoded(b"{\"verdict\": 1}").unwrap_err().contains("header"));
}

#[test]
fn parts_out_of_order_are_refused() {
    let (h, b, t) =
        (|| Part::Head(Box::new(head())), || Part::Batch(Box::new(batch())), || Part::Tail(Box::new(tail())));
    let d = || Part::Devices(Box::new(devices()));
    let s = || Part::SmapsCost(SmapsCost::default());
    let c = || Part::Counted(Box::new(Err(not_counted())));
    let r = || Part::Replayed(Box::new(Err(not_replayed())));
    let p = || Part::Priced(Box::new(Err(Absence::new(Reason::NotFound, "no list"))));
    let m = || Part::Modules(vec![module("m")]);
    for parts in [
        vec![b()],
        vec![t()],
        vec![d()],
        vec![h(), h()],
        vec![h(), b(), t(), b()],
        vec![h(), b(), t(), t()],
        vec![h(), b(), t(), d()],
        vec![h(), d(), d()],
        vec![s()],
        vec![h(), s(), s()],
        vec![h(), b(), t(), s()],
        vec![c()],
        vec![h(), c(), c()],
        vec![h(), b(), t(), c()],
        vec![h(), r()],
        vec![h(), b(), t(), r(), r()],
        vec![h(), p()],
        vec![h(), b(), p(), t()],
        vec![h(), b(), t(), p(), p()],
        vec![m(), h()],
        vec![h(), b(), t(), m()],
    ] {
        let why = decoded(&bytes(&parts)).unwrap_err();
        assert!(why.contains("order"), "{why}");
    }
    // A tail that belongs to other samples.
    assert!(decoded(&bytes(&[h(), t()])).unwrap_err().contains("tail"));
}

#[test]
fn a_chunk_that_unpacks_to_more_than_it_may_is_refused() {
    let mut deflate = DeflateEncoder::new(Vec::new(), Compression::best());
    deflate.write_all(&vec![0; UNPACKED_SMALL as usize + 1]).unwrap();
    let body = deflate.finish().unwrap();
    let mut bomb = MAGIC.to_vec();
    bomb.extend(FORMAT_VERSION.to_le_bytes());
    bomb.extend((body.len() as u32).to_le_bytes());
    bomb.extend(crc32fast::hash(&body).to_le_bytes());
    bomb.extend(&body);
    assert!(bomb.len() < 100_000);
    assert!(decoded(&bomb).unwrap_err().contains("unpacks"));
    // A length alone causes no allocation.
    let mut long = bytes(&[Part::Head(Box::new(head()))]);
    long.extend(u32::MAX.to_le_bytes());
    long.extend([0; 4]);
    assert_eq!(decoded(&long).unwrap().meta.ended, Ended::CutOff);
}

#[test]
fn indices_and_numbers_beyond_their_limits_are_refused() {
    type Spoil = fn(&mut Head, &mut Batch, &mut Tail);
    fn bills(tail: &mut Tail) -> &mut Vec<ResidentBill> {
        &mut tail.resident.as_mut().unwrap().bills
    }
    fn loads(tail: &mut Tail) -> &mut LoadSamples {
        &mut tail.loads.as_mut().unwrap()[0]
    }
    let spoilt: [(&str, Spoil); 18] = [
        ("frames", |_, _, t| t.frames[0].module = Some(1)),
        ("stacks", |_, _, t| t.stacks[0].frames[0] = 2),
        ("samples", |_, _, t| t.sample_stacks[0].1 = Some(1)),
        ("waits", |_, _, t| t.wait_stacks[0].0 = Some(1)),
        ("samples of loads", |_, _, t| loads(t).frame = 2),
        ("samples of loads", |_, _, t| loads(t).after_load = 4),
        ("samples of loads", |_, _, t| loads(t).expected = f32::NAN),
        ("times", |_, _, t| t.meta.window_ns = u64::MAX),
        ("series", |_, b, _| b.ticks[0].t_ns = u64::MAX),
        ("sampling period", |_, _, t| t.meta.sample_period_ns = 0),
        ("prices", |h, _, _| h.prices.as_mut().unwrap().prices[0].ns.high = f64::NAN),
        ("heap", |_, _, t| t.heap.as_mut().unwrap().live_bytes.point = f64::INFINITY),
        ("page faults", |_, _, t| t.fault_slices[0].over_ns = u64::MAX),
        ("page faults", |_, _, t| t.fault_slices[0].owners = vec![slice().owners[0]; Owner::ALL.len() + 1]),
        ("hardware events", |_, _, t| {
            let count = &mut t.hardware.as_mut().unwrap().events[0];
            count.counted.as_mut().unwrap().slices[0].running_ns = 3;
        }),
        ("bills of resident memory", |_, _, t| bills(t).clear()),
        ("bills of resident memory", |_, _, t| bills(t)[0].rows.reverse()),
        ("bills of resident memory", |_, _, t| {
            bills(t)[0].rows[0].split =
                Ok(Split { free_bytes: Interval::exact(-1.0), ..Split::all_live(1, "") });
        }),
    ];
    for (what, spoil) in spoilt {
        let (mut h, mut b, mut t) = (head(), batch(), tail());
        spoil(&mut h, &mut b, &mut t);
        let parts = [Part::Head(Box::new(h)), Part::Batch(Box::new(b)), Part::Tail(Box::new(t))];
        let why = decoded(&bytes(&parts)).expect_err(what);
        assert!(why.contains(what), "{what}: {why}");
    }
}

#[test]
fn devices_beyond_their_limits_are_refused() {
    fn disks(devices: &mut Devices) -> &mut Disks {
        devices.disks.as_mut().unwrap()
    }
    type Spoil = fn(&mut Devices);
    let spoilt: [(&str, Spoil); 5] = [
        ("disks", |d| disks(d).over_ns = u64::MAX),
        ("disks", |d| disks(d).busiest[0].request_ms = u64::MAX),
        ("disks", |d| disks(d).busiest = vec![DiskUse::default(); MOST_DISKS + 1]),
        ("disks", |d| disks(d).uncounted = vec!["sda".into(); MOST_DISKS + 1]),
        ("network", |d| d.network.as_mut().unwrap().retransmitted = u64::MAX),
    ];
    for (what, spoil) in spoilt {
        let mut d = devices();
        spoil(&mut d);
        let parts = [Part::Head(Box::new(head())), Part::Devices(Box::new(d))];
        let why = decoded(&bytes(&parts)).expect_err(what);
        assert!(why.contains(what), "{what}: {why}");
    }
}

#[test]
fn only_recordings_are_replaced_and_only_once_there_is_something_to_write() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("a.allocwall");
    let entries = || std::fs::read_dir(folder.path()).unwrap().count();

    let unopened = Writer::create(Some(&path)).unwrap();
    assert_eq!(entries(), 0, "who is killed before a session opens leaves nothing");
    drop(unopened);
    assert_eq!(entries(), 0, "a measurement that never opened must leave no file");

    let mut writer = Writer::create(Some(&path)).unwrap();
    writer.write(&Part::Head(Box::new(head())));
    assert!(read(&path).is_ok(), "written parts must be readable at once");
    let (recording, failure) = writer.finish();
    assert!(recording.is_ok() && failure.is_none());
    assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);

    let before = std::fs::metadata(&path).unwrap().ino();
    drop(Writer::create(Some(&path)).unwrap());
    assert_eq!(std::fs::metadata(&path).unwrap().ino(), before, "the old one stays until then");
    Writer::create(Some(&path)).unwrap().write(&Part::Head(Box::new(head())));
    assert_ne!(std::fs::metadata(&path).unwrap().ino(), before);
    assert_eq!(entries(), 1);

    let text = folder.path().join("notes.txt");
    std::fs::write(&text, "mine").unwrap();
    let link = folder.path().join("link");
    symlink(&path, &link).unwrap();
    for refused in [text.as_path(), link.as_path(), folder.path()] {
        let error = Writer::create(Some(refused)).err().expect("refused");
        assert!(matches!(error, Error::Refused(_)), "{error}");
    }
    assert_eq!(std::fs::read(&text).unwrap(), b"mine");
    let error = Writer::create(Some(Path::new("/nonexistent/x"))).err().unwrap();
    assert_eq!(error.to_string(), "/nonexistent/x: No such file or directory (os error 2)");
}

#[test]
fn a_failed_file_does_not_lose_the_recording() {
    // Opened read-only: every write fails, like on a full disk.
    let file = tempfile::NamedTempFile::new().unwrap();
    let mut writer = Writer::create(None).unwrap();
    writer.path = Some(file.path().to_path_buf());
    writer.begun = true;
    writer.file = Some(File::open(file.path()).unwrap());
    writer.write(&Part::Head(Box::new(head())));
    let (recording, failure) = writer.finish();
    assert!(recording.is_ok());
    assert!(failure.unwrap().to_string().contains(&file.path().display().to_string()));
}

/// A recording at the recorder's own limits: long, with many threads, deep stacks, and data that compresses
/// to almost nothing.
#[test]
fn the_largest_recording_that_is_made_reads_back() {
    const SAMPLES: u32 = 1_200_000;
    const WAITS: u32 = 900_000;
    let mut writer = Writer::create(None).unwrap();
    writer.write(&Part::Head(Box::new(head())));
    for second in 0..100 {
        let t_ns = 3_600_000_000_000 - second;
        let sample = CpuSample { t_ns, pid: 4_194_303, tid: 4_194_303, ..batch().samples[0] };
        let wait =
            WaitSample { t_ns, pid: 4_194_303, tid: 4_194_303, weight_ns: 1_000_000_000, ..batch().waits[0] };
        writer.write(&Part::Batch(Box::new(Batch {
            samples: vec![sample; SAMPLES as usize / 100],
            waits: vec![wait; WAITS as usize / 100],
            ticks: Vec::new(),
            python: vec![
                PythonSample {
                    t_ns,
                    pid: 1,
                    tid: 1,
                    frames: vec!["function_with_a_name (folder/file.py:1000)".into(); 16],
                };
                400
            ],
            ..Batch::default()
        })));
    }
    // 32 MiB of stacks, 32 MiB of frames: see `collect`.
    const STACKS: u32 = 41_000;
    const FRAMES: u32 = 260_000;
    writer.write(&Part::Tail(Box::new(Tail {
        frames: (0..FRAMES).map(|n| frame(&format!("{n:080}"))).collect(),
        stacks: (0..STACKS).map(|n| stack(&[n % FRAMES; 192])).collect(),
        sample_stacks: (0..SAMPLES).map(|n| (Some(n % 8), Some(n % STACKS))).collect(),
        wait_stacks: (0..WAITS).map(|n| (Some(n % 8), Some(n % STACKS))).collect(),
        ..tail()
    })));
    let size = writer.bytes.len();
    let recording = writer.finish().0.expect("it reads back");
    assert_eq!((recording.samples.len(), recording.waits.len()), (SAMPLES as usize, WAITS as usize));
    assert_eq!((recording.python.len(), recording.stacks.len()), (40_000, STACKS as usize));
    println!("{} MiB", size >> 20);
}

#[test]
fn lists_longer_than_the_recorder_s_are_refused() {
    type Spoil = fn(&mut Batch, &mut Tail);
    let spoilt: [(&str, usize, Spoil); 7] = [
        ("frames in a stack", STACK_DEPTH, |_, t| t.stacks[0].frames.push(0)),
        ("frames in a Python stack", PYTHON_DEPTH, |b, _| {
            b.python[0].frames.push("f".into());
        }),
        ("words in a command line", CMDLINE_WORDS, |_, t| {
            t.processes[0].cmdline.push("x".into());
        }),
        // It begins with one.
        ("slices of page faults", FAULT_SLICES_LIMIT - 1, |_, t| t.fault_slices.push(slice())),
        // It begins with one.
        ("nodes", MOST_NODES - 1, |_, t| {
            t.placement.as_mut().unwrap().nodes.push(NodeCpus { node: 0, cpus: vec![] });
        }),
        // It begins with one.
        ("bills of resident memory", MOST_BILLS - 1, |_, t| {
            t.resident.as_mut().unwrap().bills.push(bill());
        }),
        ("bills of resident memory", MOST_NOTES, |_, t| {
            t.resident.as_mut().unwrap().bills[0].notes.push("n".into());
        }),
    ];
    for (what, limit, add) in spoilt {
        let (mut b, mut t) = (batch(), tail());
        (t.stacks[0].frames, b.python[0].frames, t.processes[0].cmdline) = (vec![], vec![], vec![]);
        t.resident.as_mut().unwrap().bills[0].notes.clear();
        for _ in 0..limit {
            add(&mut b, &mut t);
        }
        let file = |b: &Batch, t: &Tail| {
            let tail = postcard::from_bytes::<Tail>(&postcard::to_stdvec(t).unwrap()).unwrap();
            let batch = postcard::from_bytes::<Batch>(&postcard::to_stdvec(b).unwrap()).unwrap();
            bytes(&[Part::Head(Box::new(head())), Part::Batch(Box::new(batch)), Part::Tail(Box::new(tail))])
        };
        assert!(decoded(&file(&b, &t)).is_ok(), "{what}: the limit itself must be accepted");
        add(&mut b, &mut t);
        let why = decoded(&file(&b, &t)).expect_err(what);
        assert!(why.contains(what), "{why}");
    }
}
