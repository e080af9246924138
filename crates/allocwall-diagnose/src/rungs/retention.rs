//! Rung 11: resident memory far above live memory. It costs memory, not time, so it is judged on resident memory.

use crate::context::{Context, bytes};
use crate::judge::{Case, Judged};
use crate::{ShellLine, Status, Whole};
use allocwall_model::catalogue::thresholds::{self, Floor};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Reason};

pub fn rung(ctx: &Context) -> Vec<Judged> {
    const WALL: Wall = Wall::Retention;
    let show = ShellLine::from(format!("grep -E 'Rss|Anon|LazyFree' /proc/{}/smaps_rollup", ctx.pid()));
    let smaps = ctx.last_smaps();
    let resident = smaps.map_or(ctx.bill.rates.resident_end, |s| s.rss) as f64;
    if resident <= 0.0 {
        let absence = Absence::new(Reason::Vanished, "resident memory was never read")
            .mend("use a longer window: -d 30");
        return vec![Judged::not_measured(WALL, Whole::Resident, absence, show)];
    }
    let outside = [
        Some(format!(
            "{} resident, {} since the start of the window",
            bytes(resident),
            signed(ctx.bill.rates.resident_growth)
        )),
        smaps.filter(|s| s.lazy_free > 0).map(|s| {
            format!(
                "{} of it freed, but not yet reclaimed by the kernel (LazyFree)",
                bytes(s.lazy_free as f64)
            )
        }),
        ctx.last_tick()
            .and_then(|t| t.vm_data)
            .map(|data| format!("{} of private data mapped (VmData)", bytes(data as f64))),
    ];
    let lazy = smaps.map_or(0.0, |s| s.lazy_free as f64);
    let judged = match (&ctx.recording.heap, floor()) {
        (Ok(heap), _) => {
            // Resident memory of the heap above its live memory is free.
            let held = heap.resident_bytes as f64;
            let kept = Interval::new(
                (held - heap.live_bytes.high).max(lazy).max(0.0),
                (held - heap.live_bytes.point).max(lazy).max(0.0),
                (held - heap.live_bytes.low).max(lazy).max(0.0),
            );
            // Thread arenas and mapped blocks were not inspected: all of that may be free.
            let unwalked = (anonymous(ctx, resident) - held).max(0.0);
            let at_most = Interval { high: kept.high + unwalked, ..kept };
            let case = |kept| case(kept, resident, "is free, but not returned to the system", show.clone());
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
        // True even if no byte of it is live.
        (Err(_), floor) if resident < floor => Judged::ruled_out(
            WALL,
            Whole::Resident,
            format!("only {} resident in total", bytes(resident)),
            show,
        )
        .share(Interval::new(lazy / resident, lazy / resident, 1.0)),
        (Err(absence), _) => {
            let known = case(
                Interval::new(lazy, lazy, resident),
                resident,
                "or more is freed, but not yet reclaimed by the kernel",
                show.clone(),
            );
            if known.is(Status::Wall) {
                known.estimate("a lower bound: only LazyFree pages are counted")
            } else {
                let absence = absence.clone().mend_if_none([OWN_FIGURES]);
                Judged::not_measured(WALL, Whole::Resident, absence, show)
            }
        }
    };
    vec![outside.into_iter().fold(judged, Judged::evidence_if)]
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
        wall: Wall::Retention,
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
    match thresholds::of(Wall::Retention).floor {
        Floor::Bytes(b) => b,
        Floor::PerSecond(_) | Floor::None => 0.0,
    }
}

fn signed(growth: i64) -> String {
    let sign = if growth < 0 { "−" } else { "+" };
    format!("{sign}{}", bytes(growth.unsigned_abs() as f64))
}
