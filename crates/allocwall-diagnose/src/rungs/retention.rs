//! Rung 12: resident memory far above live memory. It costs memory, not time, so it is judged on resident memory: on the
//! bill by owner, or, where there is none, on the main heap.

use crate::context::{Context, bytes};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::thresholds::{self, Floor};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::recording::HeapView;
use allocwall_model::resident::{ResidentOwner, Row, TargetMemory};
use allocwall_model::units::{Absence, Interval, Reason};

/// What a judgement says of the memory that it counts.
const FREE: &str = "is free, but not returned to the system";

const WALL: Wall = Wall::Retention;

pub fn rung(ctx: &Context) -> Vec<Judged> {
    const SIZES: &str = "grep -E 'Rss|Anon|LazyFree'";
    let show = ctx.show(
        |pid| format!("{SIZES} /proc/{pid}/smaps_rollup"),
        format!("CMD & {SIZES} /proc/$!/smaps_rollup"),
    );
    let resident = resident(ctx);
    let by_owner = ctx.recording.resident.as_ref().ok().map(|memory| (memory, ByOwner::of(ctx, memory)));
    let by_owner = by_owner.filter(|(_, sums)| sums.resident > 0.0);
    if resident <= 0.0 && by_owner.is_none() {
        let absence = Absence::new(Reason::Vanished, "resident memory was never read")
            .mend("use a longer window: -d 30");
        return vec![Judged::not_measured(WALL, Whole::Resident, absence, show)];
    }
    let judged = match (by_owner, &ctx.recording.heap) {
        (Some((memory, sums)), _) => {
            let heap = unbilled_heap(ctx, memory).map(|heap| {
                let [live, held] = [heap.live_bytes.point, heap.resident_bytes as f64].map(bytes);
                format!("of a process without a bill: {}: {live} live of {held} resident", heap.method)
            });
            sums.judge(memory, &show).evidence_if(heap)
        }
        (None, Ok(heap)) => by_main_heap(ctx, heap, resident, &show),
        (None, Err(absence)) => by_size(ctx, absence, resident, show),
    };
    vec![sizes(ctx, resident).into_iter().fold(judged, Judged::evidence_if)]
}

/// What the kernel counts, whoever holds the memory.
fn sizes(ctx: &Context, resident: f64) -> [Option<String>; 3] {
    let growth = signed(ctx.bill.rates.resident_growth);
    let lazy = lazily_freed(ctx);
    let data = ctx.last_tick().and_then(|tick| tick.vm_data);
    [
        Some(format!("{} resident, {growth} since the start of the window", bytes(resident))),
        (lazy > 0.0)
            .then(|| format!("{} of it freed, but not yet reclaimed by the kernel (LazyFree)", bytes(lazy))),
        data.map(|data| format!("{} of private data mapped (VmData)", bytes(data as f64))),
    ]
}

fn lazily_freed(ctx: &Context) -> f64 {
    ctx.last_smaps().map_or(0.0, |smaps| smaps.lazy_free as f64)
}

fn by_main_heap(ctx: &Context, heap: &HeapView, resident: f64, show: &ShellLine) -> Judged {
    let held = heap.resident_bytes as f64;
    let kept = kept(heap, lazily_freed(ctx));
    // Thread arenas and mapped blocks were not inspected: all of that may be free.
    let unwalked = (anonymous(ctx, resident) - held).max(0.0);
    let at_most = Interval { high: kept.high + unwalked, ..kept };
    let case = |kept| case(kept, resident, FREE, show.clone());
    case(kept).unless_hidden(case(at_most), || beyond_the_heap(unwalked)).evidence(format!(
        "{}: {} live, {} free, {} resident of {} mapped; {} of anonymous memory outside the heap",
        heap.method,
        bytes(heap.live_bytes.point),
        bytes(heap.free_bytes.point),
        bytes(held),
        bytes(heap.mapped_bytes as f64),
        bytes(unwalked)
    ))
}

/// No heap was read, because of `absence`.
fn by_size(ctx: &Context, absence: &Absence, resident: f64, show: ShellLine) -> Judged {
    let lazy = lazily_freed(ctx);
    // True even if no byte of it is live.
    if resident < floor() {
        let because = format!("only {} resident in total", bytes(resident));
        let share = Interval::new(lazy / resident, lazy / resident, 1.0);
        return Judged::ruled_out(WALL, Whole::Resident, because, show).share(share);
    }
    let known = case(
        Interval::new(lazy, lazy, resident),
        resident,
        "or more is freed, but not yet reclaimed by the kernel",
        show.clone(),
    );
    if known.is(Status::Wall) {
        return known.estimate("a lower bound: only LazyFree pages are counted");
    }
    // Why there is no bill says more than what the main heap lacks.
    let absence = match &ctx.recording.resident {
        Err(why) if why.reason != Reason::NotApplicable => why,
        _ => absence,
    };
    Judged::not_measured(WALL, Whole::Resident, absence.clone().mend_if_none([OWN_FIGURES]), show)
}

/// Resident memory by owner, in bytes, over the processes that were read.
struct ByOwner {
    resident: f64,
    live: f64,
    /// Free for an allocator.
    free: Interval,
    lazily_freed: f64,
    /// Live and free memory are not distinguished in it.
    unknown: f64,
    /// Living processes that were not read.
    others: u64,
}

impl ByOwner {
    fn of(ctx: &Context, memory: &TargetMemory) -> ByOwner {
        let mut sums = ByOwner {
            resident: 0.0,
            live: 0.0,
            free: Interval::exact(0.0),
            lazily_freed: 0.0,
            unknown: 0.0,
            others: memory.others,
        };
        // Anonymous memory that was read.
        let mut anonymous_read = 0.0;
        for bill in &memory.bills {
            sums.resident += bill.resident_bytes() as f64;
            if bill.disagrees() {
                // Mappings that were not read in time.
                let unread = bill.rss_after_bytes.saturating_sub(bill.resident_bytes()) as f64;
                sums.resident += unread;
                sums.unknown += unread;
                anonymous_read += unread;
            }
            for row in &bill.rows {
                sums.lazily_freed += row.amount.lazily_freed_bytes as f64;
                if row.owner.is_allocated() || row.owner == ResidentOwner::Stack {
                    anonymous_read += row.amount.resident_bytes as f64;
                }
                match &row.split {
                    Ok(split) => {
                        sums.live += split.live_bytes.point;
                        sums.free.low += split.free_bytes.low;
                        sums.free.point += split.free_bytes.point;
                        sums.free.high += split.free_bytes.high;
                    }
                    Err(_) if row.owner.is_allocated() => sums.unknown += row.amount.held_bytes() as f64,
                    Err(_) => {}
                }
            }
        }
        if let Some(heap) = unbilled_heap(ctx, memory) {
            let (held, kept) = (heap.resident_bytes as f64, kept(heap, 0.0));
            sums.resident += held;
            anonymous_read += held;
            sums.live += held - kept.point;
            sums.free.low += kept.low;
            sums.free.point += kept.point;
            sums.free.high += kept.high;
        }
        if memory.others > 0 {
            let all = resident(ctx);
            sums.resident = sums.resident.max(all);
            sums.unknown += (anonymous(ctx, all) - anonymous_read).max(0.0);
        }
        sums
    }

    fn judge(&self, memory: &TargetMemory, show: &ShellLine) -> Judged {
        let ByOwner { resident, free, lazily_freed, unknown, .. } = *self;
        let kept =
            Interval::new(free.low + lazily_freed, free.point + lazily_freed, free.high + lazily_freed);
        let case = |kept| case(kept, resident, FREE, show.clone());
        let at_most = Interval { high: kept.high + unknown, ..kept };
        let judged = case(kept).unless_hidden(case(at_most), || self.hidden(memory));
        judged.evidence(self.evidence(memory)).evidence_if(freest(memory))
    }

    fn evidence(&self, memory: &TargetMemory) -> String {
        let others = match self.others {
            0 => String::new(),
            1 => "; 1 other process was not read".to_owned(),
            n => format!("; {n} other processes were not read"),
        };
        let processes = memory.bills.len();
        let of = if processes == 1 { String::new() } else { format!(" of {processes} processes") };
        format!(
            "by owner{of}: {} live, {} free but kept, {} lazily freed, {} not distinguished{others}",
            bytes(self.live),
            bytes(self.free.point),
            bytes(self.lazily_freed),
            bytes(self.unknown)
        )
    }

    /// Why the memory whose use is unknown was not judged: a missing right, or the reason of the largest part.
    fn hidden(&self, memory: &TargetMemory) -> Absence {
        let unknown = bytes(self.unknown);
        let undivided = rows(memory).filter(|(_, row)| row.owner.is_allocated() && row.split.is_err());
        let largest = undivided.max_by_key(|(_, row)| (is_denied(row), row.amount.held_bytes()));
        let absence = match largest.map(|(_, row)| row) {
            Some(Row { split: Err(why), .. }) if why.reason == Reason::NotPermitted => {
                let detail = format!("{unknown} may be free or in use: {}", why.detail);
                Absence { detail, ..why.clone() }
            }
            Some(Row { owner, amount, split: Err(why) })
                if 2.0 * amount.held_bytes() as f64 >= self.unknown =>
            {
                let held = bytes(amount.held_bytes() as f64);
                let detail = format!("{held} of {}: {}", owner.title(), why.detail);
                let reason = match why.reason {
                    Reason::NotApplicable => Reason::NotSupported,
                    reason => reason,
                };
                Absence { reason, detail, mend: why.mend.clone() }
            }
            _ => Absence::new(
                Reason::NotSupported,
                format!(
                    "{unknown} may be free or in use: of other heaps, of other processes, or not read in time"
                ),
            ),
        };
        absence.mend_if_none([OWN_FIGURES])
    }
}

/// The main heap of a process that could not be read by owner.
fn unbilled_heap<'c>(ctx: &'c Context, memory: &TargetMemory) -> Option<&'c HeapView> {
    memory.unread.as_ref().and(ctx.recording.heap.as_ref().ok())
}

/// Resident memory of the heap above its live memory is free. At least `freed` is known to be.
fn kept(heap: &HeapView, freed: f64) -> Interval {
    let above = |live: f64| (heap.resident_bytes as f64 - live).max(freed);
    Interval::new(above(heap.live_bytes.high), above(heap.live_bytes.point), above(heap.live_bytes.low))
}

/// The rows of all bills, each with the number of its process.
fn rows(memory: &TargetMemory) -> impl Iterator<Item = (i32, &Row)> {
    memory.bills.iter().flat_map(|bill| bill.rows.iter().map(move |row| (bill.pid, row)))
}

fn is_denied(row: &Row) -> bool {
    let denied = |why: &Absence| why.reason == Reason::NotPermitted;
    row.amount.held_bytes() > 0 && row.split.as_ref().is_err_and(denied)
}

/// Where most of the free memory is, and how it was measured.
fn freest(memory: &TargetMemory) -> Option<String> {
    let (pid, owner, split) = rows(memory)
        .filter_map(|(pid, row)| Some((pid, row.owner, row.split.as_ref().ok()?)))
        .max_by(|(.., a), (.., b)| a.free_bytes.point.total_cmp(&b.free_bytes.point))?;
    (split.free_bytes.point > 0.0).then(|| {
        format!(
            "most of the free memory is in {} of process {pid}: {} ({} to {}, 95 %); {}",
            owner.title(),
            bytes(split.free_bytes.point),
            bytes(split.free_bytes.low),
            bytes(split.free_bytes.high),
            split.method
        )
    })
}

/// Resident memory of all processes at the end of the window, as the kernel counts it.
fn resident(ctx: &Context) -> f64 {
    ctx.last_smaps().map_or(ctx.bill.rates.resident_end, |s| s.rss) as f64
}

const OWN_FIGURES: &str =
    "use the allocator's own statistics: malloc_info(3), mallctl(\"stats.allocated\"), MallocExtension";

/// Resident memory that an allocator may hold: private and anonymous, if the kernel reports it, else all of it.
fn anonymous(ctx: &Context, resident: f64) -> f64 {
    ctx.last_smaps()
        .map(|s| s.anonymous)
        .or(ctx.last_tick().and_then(|t| t.anonymous))
        .map_or(resident, |a| a as f64)
}

fn beyond_the_heap(unwalked: f64) -> Absence {
    Absence::new(
        Reason::NotSupported,
        format!(
            "{} of anonymous memory are outside the heap that allocwall inspected: arenas, mapped blocks, other heaps",
            bytes(unwalked)
        ),
    )
    .mend(OWN_FIGURES)
}

fn case(kept: Interval, resident: f64, phrase: &str, show: ShellLine) -> Judged {
    let share = kept.scaled(1.0 / resident);
    Case {
        wall: WALL,
        share: Interval::new(share.low.min(1.0), share.point.min(1.0), share.high.min(1.0)),
        of: Whole::Resident,
        amount: kept,
        unit: "of resident memory",
        phrase,
        show,
    }
    .judge()
}

fn floor() -> f64 {
    match thresholds::of(WALL).floor {
        Floor::Bytes(b) => b,
        Floor::PerSecond(_) | Floor::None => 0.0,
    }
}

fn signed(growth: i64) -> String {
    let sign = if growth < 0 { "−" } else { "+" };
    format!("{sign}{}", bytes(growth.unsigned_abs() as f64))
}

#[cfg(test)]
mod tests {
    use crate::remedies::{self, Unfit};
    use crate::testing::{Subject, absent, computing, resident_bill};
    use crate::{Finding, Prescription, Status};
    use allocwall_model::catalogue::cost::CostClass;
    use allocwall_model::catalogue::walls::Wall;
    use allocwall_model::recording::{Ended, HeapView, Smaps};
    use allocwall_model::resident::ResidentOwner::{Arena, File, Heap, Private, PythonArena};
    use allocwall_model::resident::{ResidentBill, ResidentOwner, Row, TargetMemory};
    use allocwall_model::units::{Absence, Interval, Reason};

    const MIB: u64 = 1 << 20;

    fn target(bills: Vec<ResidentBill>, others: u64) -> Subject {
        let mut subject = computing();
        subject.recording.resident = Ok(TargetMemory { bills, others, unread: None });
        subject
    }

    fn one(memory: &[(ResidentOwner, u64, Option<u64>)]) -> Subject {
        target(vec![resident_bill(memory)], 0)
    }

    fn row(subject: &mut Subject, owner: ResidentOwner) -> &mut Row {
        let memory = subject.recording.resident.as_mut().expect("set");
        &mut memory.bills[0].rows[owner as usize]
    }

    fn finding(subject: &Subject) -> Finding {
        subject.finding(Wall::Retention)
    }

    fn status(subject: &Subject) -> Status {
        finding(subject).status
    }

    #[test]
    fn free_memory_of_every_allocator_that_was_read_counts() {
        for owner in [Heap, Arena, PythonArena] {
            assert_eq!(one(&[(owner, 1000, Some(800))]).verdict().walls, [Wall::Retention], "{owner:?}");
            assert_eq!(status(&one(&[(owner, 1000, Some(400))])), Status::Contributor, "{owner:?}");
            assert_eq!(status(&one(&[(owner, 1000, Some(100))])), Status::RuledOut, "{owner:?}");
            // Most of it, but below the floor.
            assert_eq!(status(&one(&[(owner, 32, Some(30))])), Status::RuledOut, "{owner:?}");
        }
        // A third of each is not a third of all.
        let together = one(&[(Heap, 300, Some(100)), (Arena, 300, Some(100)), (File, 600, None)]);
        assert_eq!(status(&together), Status::RuledOut);
        let both = target(
            vec![resident_bill(&[(Heap, 300, Some(200))]), resident_bill(&[(Arena, 300, Some(200))])],
            0,
        );
        assert_eq!(both.verdict().walls, [Wall::Retention]);
    }

    #[test]
    fn the_evidence_says_where_the_free_memory_is() {
        let evidence = finding(&one(&[(Heap, 1000, Some(800)), (Private, 10, None)])).evidence;
        let by_owner =
            "by owner: 200 MiB live, 800 MiB free but kept, 0 B lazily freed, 10 MiB not distinguished";
        assert_eq!(evidence[0], by_owner);
        assert!(evidence[1].contains("main heap (brk) of process 100: 800 MiB"), "{evidence:?}");
        assert!(evidence[1].ends_with("200 parts of 64 KiB were read"), "{evidence:?}");
        // Nothing is free.
        let evidence = finding(&one(&[(Heap, 1000, Some(0))])).evidence;
        assert!(!evidence.iter().any(|line| line.contains("most of the free")), "{evidence:?}");
    }

    #[test]
    fn memory_that_is_not_distinguished_is_not_ruled_out() {
        let hidden = finding(&one(&[(Heap, 200, Some(0)), (Private, 1000, None)]));
        assert_eq!(hidden.status, Status::NotMeasured);
        let missing = hidden.missing.expect("a reason");
        assert_eq!(missing.reason, Reason::NotSupported);
        assert_eq!(missing.detail, "1000 MiB of other private memory: the program's own mappings");
        assert!(missing.advice().is_some());
        // No allocator keeps free memory in files, and little memory can't be much.
        assert_eq!(status(&one(&[(Heap, 200, Some(0)), (File, 1000, None)])), Status::RuledOut);
        assert_eq!(status(&one(&[(Heap, 200, Some(0)), (Private, 20, None)])), Status::RuledOut);
        // What is known to be free is enough.
        assert_eq!(status(&one(&[(Heap, 1000, Some(900)), (Private, 100, None)])), Status::Wall);
    }

    #[test]
    fn lazily_freed_memory_counts_as_free() {
        let lazily = |mib: u64| {
            let mut subject = one(&[(Private, 1000, None)]);
            row(&mut subject, Private).amount.lazily_freed_bytes = mib * MIB;
            finding(&subject)
        };
        let wall = lazily(700);
        assert_eq!(wall.status, Status::Wall);
        assert!(wall.evidence[0].contains("700 MiB lazily freed, 300 MiB not distinguished"), "{wall:?}");
        assert_eq!(lazily(0).status, Status::NotMeasured);
    }

    #[test]
    fn a_missing_right_is_the_reason_before_others() {
        let mut subject = one(&[(Heap, 100, Some(0)), (Private, 1000, None)]);
        let denied = Absence::new(Reason::NotPermitted, "its memory can't be read").mend("run as root");
        row(&mut subject, Heap).split = Err(denied.clone());
        let missing = finding(&subject).missing.expect("not measured");
        assert_eq!((missing.reason, &missing.mend), (Reason::NotPermitted, &denied.mend));
        assert!(missing.detail.ends_with("its memory can't be read"), "{missing}");
        // There is no such memory, so nothing of it is missing.
        row(&mut subject, Heap).amount.resident_bytes = 0;
        let missing = finding(&subject).missing.expect("not measured");
        assert_eq!(missing.reason, Reason::NotSupported);
    }

    #[test]
    fn processes_that_were_not_read_may_have_free_memory() {
        let beside = |others: u64| {
            let mut subject = target(vec![resident_bill(&[(Heap, 100, Some(0))])], others);
            let all = Smaps { rss: 1100 * MIB, anonymous: 1100 * MIB, ..Smaps::default() };
            subject.last().smaps = Some(all);
            finding(&subject)
        };
        let hidden = beside(2);
        assert_eq!(hidden.status, Status::NotMeasured);
        assert!(hidden.evidence[0].ends_with("; 2 other processes were not read"), "{hidden:?}");
        assert_eq!(beside(0).status, Status::RuledOut, "all were read");
    }

    #[test]
    fn the_heap_of_a_process_that_was_refused_counts() {
        let of = |unread: Option<Absence>| {
            let mut subject = target(vec![resident_bill(&[(Heap, 20, Some(0))])], 1);
            let all = Smaps { rss: 1020 * MIB, anonymous: 1020 * MIB, ..Smaps::default() };
            subject.last().smaps = Some(all);
            subject.recording.heap = Ok(HeapView {
                method: "[heap] of 7".into(),
                mapped_bytes: 1000 * MIB,
                resident_bytes: 1000 * MIB,
                live_bytes: Interval::exact((100 * MIB) as f64),
                free_bytes: Interval::exact((900 * MIB) as f64),
            });
            subject.recording.resident.as_mut().expect("set").unread = unread;
            finding(&subject)
        };
        let wall = of(Some(absent()));
        assert_eq!(wall.status, Status::Wall);
        assert!(wall.evidence.iter().any(|line| line.contains("[heap] of 7: 100 MiB live")), "{wall:?}");
        // The bills contain every heap that was read.
        assert_eq!(of(None).status, Status::NotMeasured);
    }

    #[test]
    fn mappings_that_were_not_read_in_time_may_be_free() {
        let rss = |mib: u64| {
            let mut bill = resident_bill(&[(Heap, 100, Some(0))]);
            (bill.rss_before_bytes, bill.rss_after_bytes) = (mib * MIB, mib * MIB);
            status(&target(vec![bill], 0))
        };
        assert_eq!((rss(1000), rss(100)), (Status::NotMeasured, Status::RuledOut));
    }

    #[test]
    fn the_bill_goes_before_the_main_heap_and_its_absence_before_that_of_the_heap() {
        let heap = |live: u64| {
            let mut subject = computing();
            subject.last().smaps = Some(Smaps { rss: 1000 * MIB, ..Smaps::default() });
            subject.recording.heap = Ok(HeapView {
                method: "[heap]".into(),
                mapped_bytes: 1000 * MIB,
                resident_bytes: 1000 * MIB,
                live_bytes: Interval::exact((live * MIB) as f64),
                free_bytes: Interval::exact(((1000 - live) * MIB) as f64),
            });
            subject
        };
        let mut subject = heap(900);
        assert_eq!(status(&subject), Status::RuledOut);
        subject.recording.resident = one(&[(Heap, 1000, Some(900))]).recording.resident;
        let wall = finding(&subject);
        assert_eq!(wall.status, Status::Wall);
        assert!(!wall.evidence.iter().any(|line| line.starts_with("[heap]")), "{wall:?}");
        let missing = |reason| {
            let mut subject = heap(900);
            subject.recording.heap = Err(Absence::new(Reason::NotFound, "no [heap]"));
            subject.recording.resident = Err(Absence::new(reason, "no bill"));
            finding(&subject).missing.expect("not measured").detail
        };
        assert_eq!(missing(Reason::TooCostly), "no bill");
        assert_eq!(missing(Reason::NotApplicable), "no [heap]");
    }

    fn offer(subject: &Subject, walls: &[Wall], key: &str) -> Result<Prescription, Unfit> {
        let offers = remedies::offers(&subject.recording, &subject.bill, walls);
        let (_, offer) = offers.into_iter().find(|(r, _)| r.key == key).expect("in the catalogue");
        offer.map(|(prescription, _)| prescription)
    }

    /// A heap of which 800 MiB are free: some of them in whole pages, some above the last block.
    fn trimmable(whole_pages: u64, top: u64) -> Subject {
        let mut subject = one(&[(Heap, 1000, Some(800)), (Arena, 100, Some(30))]);
        subject.threads(4);
        if let Ok(split) = &mut row(&mut subject, Heap).split {
            split.trimmable_bytes = Interval::exact((whole_pages * MIB) as f64);
            split.top_bytes = Interval::exact((top * MIB) as f64);
        }
        subject.recording.resident.as_mut().expect("set").bills[0].thread_arenas = 3;
        subject
    }

    #[test]
    fn remedies_say_what_they_return_and_those_that_return_nothing_are_not_offered() {
        let walls = &[Wall::Retention];
        let returns = |subject: &Subject, key: &str| {
            offer(subject, walls, key).map(|offer| offer.returns_bytes.map(|bytes| bytes / MIB))
        };
        let subject = trimmable(500, 100);
        for (key, mib) in [
            ("jemalloc", 830),
            ("malloc-trim", 500),
            ("glibc-trim-sooner", 100),
            ("glibc-arenas-few", 30),
            ("recycle-workers", 830),
        ] {
            assert_eq!(returns(&subject, key), Ok(Some(mib)), "{key}");
        }
        let basis = offer(&subject, walls, "malloc-trim").expect("offered").basis;
        let returned = "; returns at least 500 MiB, at most 500 MiB (whole free pages in the heaps)";
        assert!(basis.ends_with(returned), "{basis}");
        let basis = offer(&subject, walls, "jemalloc").expect("offered").basis;
        assert!(basis.ends_with("; returns at most 830 MiB (free memory in all heaps of malloc)"), "{basis}");
        let mut nothing = trimmable(500, 0);
        assert_eq!(returns(&nothing, "glibc-trim-sooner"), Err(Unfit::NothingToReturn));
        // Another process may have some, and without a bill nothing is known.
        nothing.recording.resident.as_mut().expect("set").others = 1;
        assert_eq!(returns(&nothing, "glibc-trim-sooner"), Ok(None));
        nothing.recording.resident = Err(absent());
        assert_eq!(returns(&nothing, "glibc-trim-sooner"), Ok(None));
    }

    #[test]
    fn what_returns_more_is_tried_first() {
        let first = |top: u64| {
            let remedies = trimmable(500, top).verdict().remedies;
            let keys = ["glibc-trim-sooner", "glibc-arenas-few"];
            remedies.into_iter().find(|offer| keys.contains(&offer.remedy.as_str())).expect("both").remedy
        };
        assert_eq!([first(100), first(10)], ["glibc-trim-sooner", "glibc-arenas-few"]);
    }

    #[test]
    fn what_surely_returns_is_tried_before_what_may_return_as_much() {
        let first = |whole_pages: u64| {
            let mut keys = trimmable(whole_pages, 0).verdict().remedies.into_iter().map(|offer| offer.remedy);
            [keys.next(), keys.next()].map(|key| key.expect("several"))
        };
        assert_eq!(first(500), ["malloc-trim", "jemalloc"]);
        // Another allocator may return 830 MiB.
        assert_eq!(first(100), ["jemalloc", "recycle-workers"]);
    }

    #[test]
    fn the_next_step_after_retention_is_an_exact_reading() {
        let steps = |free: u64, change: fn(&mut Subject)| -> Vec<String> {
            let mut subject = one(&[(Heap, 1000, Some(free))]);
            change(&mut subject);
            subject.verdict().next.into_iter().map(|line| line.command).collect()
        };
        let exact = "allocwall memory -p 100 --exact";
        assert_eq!(steps(800, |_| ())[0], exact);
        // It is no wall, or the process has ended.
        let none = |steps: Vec<String>| {
            assert!(!steps.iter().any(|step| step.contains("-p 100 --exact")), "{steps:?}")
        };
        none(steps(400, |_| ()));
        none(steps(800, |subject| subject.process().ended = true));
        none(steps(800, |subject| subject.recording.meta.ended = Ended::TargetExited { status: None }));
    }

    #[test]
    fn a_remedy_for_another_wall_returns_no_memory() {
        let mut subject = one(&[(Heap, 100, Some(20))]);
        subject.shares(&[(CostClass::AllocatorCode, 0.5)]);
        let returns = |walls: &[Wall]| offer(&subject, walls, "jemalloc").expect("offered").returns_bytes;
        assert_eq!(returns(&[Wall::AllocatorCode]), None);
        assert_eq!(returns(&[Wall::AllocatorCode, Wall::Retention]), Some(20 * MIB));
    }
}
