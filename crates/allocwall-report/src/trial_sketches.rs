//! Typical trials for the tests of the reports. The real code judges them.

use allocwall_model::units::{Absence, Interval, Reason};
use allocwall_trial::compare::compare;
use allocwall_trial::testing::{design, metric, proven, run};
use allocwall_trial::{Block, Design, Direction, LeftOut, ProofState, TrialResult, Unit, plan};

pub fn all() -> Vec<TrialResult> {
    vec![one_better(), mixed(), interrupted(), baseline_alone()]
}

/// A server and two remedies: the first one helps, the second one has no effect.
pub fn one_better() -> TrialResult {
    let mut design = service(&["jemalloc+thp", "glibc:arena_max=2"], 12);
    let predicted = Interval::new(-0.12, -0.09, -0.05);
    design.arms[2].predicted.insert("wall".to_string(), predicted);
    judged(&design, &blocks(&design, &[0.0, 0.0, -0.085, 0.001], 12))
}

/// The first remedy crashes sometimes and is slower, the second one did not take effect, the third one is within the
/// noise, the fourth one can't be tried.
pub fn mixed() -> TrialResult {
    let mut design = service(&["mimalloc", "hugetlb", "tcmalloc"], 12);
    let why = "jemalloc@system: this machine has no such library: install it (sudo apt install libjemalloc2)";
    design.left_out = vec![LeftOut { name: "jemalloc@system".to_string(), why: why.to_string() }];
    let mut blocks = blocks(&design, &[0.0, 0.0, 0.04, -0.3, -0.012], 12);
    for block in &mut blocks {
        for run in &mut block.runs {
            if run.arm == 2 && run.block % 4 == 1 {
                run.failure = Some("killed by signal 11".to_string());
            }
            if run.arm == 3 {
                run.proof = proven(ProofState::Refuted);
                run.proof[0].detail = "no huge page resident".to_string();
            }
            if run.arm == 4 {
                let wobble = 1.0 + 0.03 * ((run.block * 7 % 5) as f64 - 2.0);
                run.metrics.values_mut().flatten().for_each(|v| *v *= wobble);
                let why =
                    Absence::new(Reason::NotPermitted, "smaps_rollup: permission denied").mend("run as root");
                run.metrics.insert("rss".to_string(), Err(why));
            }
        }
    }
    judged(&design, &blocks)
}

/// Ctrl-C after the fourth of twelve blocks.
pub fn interrupted() -> TrialResult {
    let design = service(&["jemalloc"], 12);
    judged(&design, &blocks(&design, &[0.0, 0.0, -0.2], 4))
}

/// `--with none`.
pub fn baseline_alone() -> TrialResult {
    let design = service(&[], 12);
    judged(&design, &blocks(&design, &[0.0, 0.0], 12))
}

/// Rounds to six digits, because the last digits depend on the C library and differ between machines.
fn judged(design: &Design, blocks: &[Block]) -> TrialResult {
    let mut outcome = compare(design, blocks);
    let round = |v: &mut f64| *v = format!("{v:.5e}").parse().expect("a number");
    let all = outcome.comparisons.iter_mut().chain(&mut outcome.baseline);
    for c in all {
        for interval in c.effect.iter_mut().chain(c.predicted.iter_mut()) {
            [&mut interval.low, &mut interval.point, &mut interval.high].into_iter().for_each(round);
        }
        [&mut c.p, &mut c.p_holm, &mut c.level, &mut c.margin].into_iter().for_each(round);
    }
    let medians = outcome.summaries.iter_mut().map(|s| &mut s.medians);
    for median in medians.chain([&mut outcome.baseline_medians]).flat_map(|m| m.values_mut()).flatten() {
        round(median);
    }
    outcome
}

fn service(remedies: &[&str], planned: usize) -> Design {
    let mut design = design(remedies, planned);
    design.metrics.push(metric("rss", "peak resident", Unit::Bytes, Direction::LowerIsBetter, false));
    design.metrics.push(metric("major", "major faults", Unit::Count, Direction::LowerIsBetter, false));
    design
}

/// Runs with a little deterministic noise, in the planned order.
pub fn blocks(design: &Design, shifts: &[f64], count: usize) -> Vec<Block> {
    let order = plan::order(design.arms.len(), count, 42);
    let runs = |number: usize, order: Vec<usize>| {
        let of_arm = |(place, arm): (usize, usize)| {
            let noise = ((number * 31 + arm * 17 + number * arm * 7) % 23) as f64 / 23.0 - 0.5;
            let wall = 1.2 * (shifts[arm] + 0.006 * noise).exp();
            let rss = (210e6 * (1.0 - shifts[arm] + 0.002 * noise)).round();
            run(number, place, arm, &[("wall", wall), ("rss", rss), ("major", 0.0)])
        };
        order.into_iter().enumerate().map(of_arm).collect()
    };
    order.into_iter().enumerate().map(|(number, order)| Block { number, runs: runs(number, order) }).collect()
}
