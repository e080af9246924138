//! Constructed and simulated trials (with a random seed), for the tests of this crate and of the reports.

use super::{ArmInfo, Block, Design, Direction, Metric, ProofItem, ProofState, Run, Settings, Unit, plan};
use allocwall_model::stats::random::Random;
use std::collections::BTreeMap;

pub fn metric(key: &str, title: &str, unit: Unit, direction: Direction, primary: bool) -> Metric {
    Metric { key: key.to_string(), title: title.to_string(), unit, direction, primary }
}

/// One primary metric, `wall`; one look.
pub fn design(remedies: &[&str], planned: usize) -> Design {
    let arm = |name: &str, baseline| ArmInfo { name: name.to_string(), baseline, predicted: BTreeMap::new() };
    let mut arms = vec![arm("baseline", true), arm("baseline", true)];
    arms.extend(remedies.iter().map(|name| arm(name, false)));
    Design {
        arms,
        left_out: vec![],
        metrics: vec![metric("wall", "wall time", Unit::Seconds, Direction::LowerIsBetter, true)],
        settings: Settings { seed: 1, effect: 0.01, planned, looks: vec![planned] },
    }
}

pub fn run(block: usize, place: usize, arm: usize, metrics: &[(&str, f64)]) -> Run {
    Run {
        block,
        place,
        arm,
        started_unix_ms: 1_764_000_000_000 + 1000 * (10 * block + place) as u64,
        metrics: metrics.iter().map(|(k, v)| (k.to_string(), Ok(*v))).collect(),
        failure: None,
        proof: proven(ProofState::Proven),
    }
}

pub fn proven(state: ProofState) -> Vec<ProofItem> {
    vec![ProofItem {
        what: "libjemalloc.so.2 is mapped".to_string(),
        state,
        detail: "/proc/PID/maps".to_string(),
        needed: true,
        absent: None,
    }]
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Noise {
    Normal,
    /// Exponential: a run has a fastest possible time.
    Skewed,
    /// Student's t with two degrees of freedom, which has no variance.
    Heavy,
    /// One run in ten is ten standard deviations slower.
    Spikes,
    /// Each run keeps half of the noise of the run before, as on a machine that warms up.
    Drifting,
    /// The first run of a block is three standard deviations slower.
    ColdStart,
    /// Another process computes during two runs and rests for two: five standard deviations slower, shifted against blocks of two.
    Pulsing,
}

pub const NOISES: [Noise; 6] =
    [Noise::Normal, Noise::Skewed, Noise::Heavy, Noise::Spikes, Noise::Drifting, Noise::ColdStart];

/// The runs of a trial in the planned order. `shifts` are added to the logarithms of the arms; `sd` is the noise.
pub fn simulated(design: &Design, shifts: &[f64], sd: f64, noise: Noise, seed: u64) -> Vec<Block> {
    let mut random = Random::new(seed);
    let mut memory = 0.0;
    plan::order(design.arms.len(), design.settings.planned, seed ^ 0x5eed)
        .into_iter()
        .enumerate()
        .map(|(number, order)| Block {
            number,
            runs: order
                .into_iter()
                .enumerate()
                .map(|(place, arm)| {
                    let z = sd * standard(&mut random, noise);
                    memory = match noise {
                        Noise::Drifting => 0.5 * memory + z - sd,
                        Noise::ColdStart if place == 0 => z + 3.0 * sd,
                        Noise::Pulsing if (number * design.arms.len() + place + 1) % 4 < 2 => z + 5.0 * sd,
                        _ => z,
                    };
                    run(number, place, arm, &[("wall", (shifts[arm] + memory).exp())])
                })
                .collect(),
        })
        .collect()
}

fn standard(random: &mut Random, noise: Noise) -> f64 {
    let mut uniform = || 1.0 - random.unit();
    match noise {
        Noise::Skewed => -uniform().ln(),
        Noise::Spikes if uniform() < 0.1 => 10.0,
        Noise::Heavy => {
            let (z, chi) = (normal(uniform(), uniform()), -2.0 * uniform().ln());
            z / (chi / 2.0).sqrt()
        }
        _ => normal(uniform(), uniform()),
    }
}

/// The Box-Muller transform.
fn normal(a: f64, b: f64) -> f64 {
    (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos()
}
