//! What an account claims, the rule that judges it, and the judgement: on intervals, never on points.

use super::Experiment;
use super::bill::Bill;
use super::results::Results;
use super::series::Fact;
use allocwall_model::catalogue::cost::{CostClass, WaitClass};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Interval, Measured};
use allocwall_trial::Unit;

/// Names for one cause: any of them counts.
pub type AnyWall = &'static [Wall];

pub fn any_of(walls: AnyWall) -> String {
    walls.iter().map(|wall| wall.title()).collect::<Vec<_>>().join(" or ")
}

/// Walls that other processes or the load cause. They are no wall of the arm's own.
const NOT_ITS_OWN: [Wall; 6] =
    [Wall::CgroupThrottling, Wall::Steal, Wall::RunQueue, Wall::Waiting, Wall::Disk, Wall::Network];

/// Whether this wall, by its stable name, is one that an arm can have by itself.
pub fn is_its_own(wall: &str) -> bool {
    NOT_ITS_OWN.iter().all(|other| other.key() != wall)
}

/// A published statement. It holds here if all tests are passed; it does not hold if one is failed. Where a condition is not met it
/// cannot be tested: nothing prevents a collapse that does not happen.
pub struct Claim {
    /// In one sentence.
    pub says: &'static str,
    pub tests: &'static [Test],
}

pub struct Test {
    pub what: Quantity,
    pub is: Bound,
}

/// Figures and arms by their names.
#[derive(Clone, Copy, Debug)]
pub enum Quantity {
    /// The median over the runs of an arm.
    Value { figure: &'static str, arm: &'static str },
    /// An arm as a multiple of another one, within blocks.
    Ratio { figure: &'static str, arm: &'static str, to: &'static str },
    /// Where an arm lies between two others, within blocks: 0 is like `from`, 1 is like `to`.
    Between { figure: &'static str, arm: &'static str, from: &'static str, to: &'static str },
    /// A line of an arm's bill, as a share of its CPU time.
    Bill { line: CostClass, arm: &'static str },
    /// A wait in an arm's bill, as a share of the time of all its threads.
    Wait { line: WaitClass, arm: &'static str },
    /// Whether the verdict on an arm names one of these walls first: 1, or 0. Others that are not its own don't count.
    FirstWall { any: AnyWall, arm: &'static str },
    /// What a series of windows over a run of an arm says.
    Series { fact: Fact, arm: &'static str },
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Bound {
    Above(f64),
    Below(f64),
    /// Both ends included.
    Within(f64, f64),
    /// A condition of the claim, not a part of it.
    Given(&'static Bound),
}

#[derive(Clone, Debug, PartialEq)]
pub enum Judgement {
    Holds,
    DoesNotHold,
    /// Why, in one line.
    CannotTest(String),
}

/// A claim with its judgement.
pub struct Judged {
    pub claim: &'static Claim,
    pub judgement: Judgement,
    /// One for each test of the claim.
    pub tests: Vec<Tested>,
}

pub struct Tested {
    /// The rule: what is tested, and what it must be.
    pub rule: String,
    pub value: Measured<Interval>,
    pub judgement: Judgement,
}

pub fn judge(results: &Results) -> Vec<Judged> {
    results.experiment.claims.iter().map(|claim| judged(claim, results)).collect()
}

fn judged(claim: &'static Claim, results: &Results) -> Judged {
    let tests: Vec<Tested> = claim.tests.iter().map(|test| test.apply(results)).collect();
    let conditions = claim.tests.iter().zip(&tests).filter(|(test, _)| matches!(test.is, Bound::Given(_)));
    let unmet = conditions.map(|(_, tested)| tested).find(|tested| tested.judgement != Judgement::Holds);
    let failed = tests.iter().find(|test| test.judgement == Judgement::DoesNotHold);
    let open = tests.iter().find(|test| test.judgement != Judgement::Holds);
    let judgement = unmet.or(failed).or(open).map_or(Judgement::Holds, |decides| decides.judgement.clone());
    Judged { claim, judgement, tests }
}

impl Judgement {
    /// Stable name, for JSON.
    pub fn key(&self) -> &'static str {
        match self {
            Judgement::Holds => "holds",
            Judgement::DoesNotHold => "does_not_hold",
            Judgement::CannotTest(_) => "cannot_be_tested",
        }
    }

    pub fn title(&self) -> &'static str {
        match self {
            Judgement::Holds => "holds here",
            Judgement::DoesNotHold => "does not hold here",
            Judgement::CannotTest(_) => "can't be tested here",
        }
    }
}

impl Test {
    fn apply(&self, results: &Results) -> Tested {
        let value = self.what.of(results);
        let rule = format!("{}: {}", self.what.title(results.experiment), self.is.text());
        let judgement = match (self.is, self.is.judge(&value)) {
            (Bound::Given(_), Judgement::DoesNotHold) => {
                Judgement::CannotTest(format!("a condition of the claim is not met: {rule}"))
            }
            (_, judgement) => judgement,
        };
        Tested { rule, value, judgement }
    }
}

impl Quantity {
    fn of(self, results: &Results) -> Measured<Interval> {
        match self {
            Quantity::Value { figure, arm } => results.value(figure, results.arm(arm)?),
            Quantity::Ratio { figure, arm, to } => results.ratio(figure, results.arm(arm)?, results.arm(to)?),
            Quantity::Between { figure, arm, from, to } => {
                results.between(figure, results.arm(arm)?, results.arm(from)?, results.arm(to)?)
            }
            Quantity::Bill { line, arm } => {
                results.line(results.arm(arm)?, |bill: &Bill| &bill.on_cpu[..], line.key())
            }
            Quantity::Wait { line, arm } => {
                results.line(results.arm(arm)?, |bill: &Bill| &bill.off_cpu[..], line.key())
            }
            Quantity::FirstWall { any, arm } => results.first_wall(results.arm(arm)?, any),
            Quantity::Series { fact, arm } => results.fact(results.arm(arm)?, fact),
        }
    }

    fn title(self, experiment: &Experiment) -> String {
        let named = |key: &'static str| experiment.figure(key).map_or(key, |figure| figure.title);
        match self {
            Quantity::Value { figure, arm } => {
                let unit = match experiment.figure(figure).map(|figure| figure.unit) {
                    Some(Unit::Seconds) => " in s",
                    Some(Unit::Ns) => " in ns",
                    Some(Unit::Bytes) => " in bytes",
                    Some(Unit::PerSecond) => " per second",
                    Some(Unit::Count | Unit::Ratio | Unit::None) | None => "",
                };
                format!("{}{unit}, {arm}", named(figure))
            }
            Quantity::Ratio { figure, arm, to } => format!("{}, {arm} ÷ {to}", named(figure)),
            Quantity::Between { figure, arm, from, to } => {
                format!("{}, {arm} on a scale from {from} (0) to {to} (1)", named(figure))
            }
            Quantity::Bill { line, arm } => {
                format!("{}, as a share of the CPU time in the bill of {arm}", line.title())
            }
            Quantity::Wait { line, arm } => {
                format!("{}, as a share of the threads' time in the bill of {arm}", line.title())
            }
            Quantity::FirstWall { any, arm } => format!(
                "whether the verdict on {arm} names {} first, without other walls that other processes or the load cause \
                 (1: yes, 0: no)",
                any_of(any)
            ),
            Quantity::Series { fact, arm } => format!("{}, {arm}", fact.title()),
        }
    }
}

impl Bound {
    fn judge(self, value: &Measured<Interval>) -> Judgement {
        let interval = match value {
            Ok(interval) => interval,
            Err(absence) => return Judgement::CannotTest(absence.detail.clone()),
        };
        let (low, high) = (interval.low, interval.high);
        let (inside, outside) = match self {
            Bound::Above(least) => (low > least, high <= least),
            Bound::Below(most) => (high < most, low >= most),
            Bound::Within(least, most) => (low >= least && high <= most, high < least || low > most),
            Bound::Given(bound) => return bound.judge(value),
        };
        match (inside, outside) {
            (true, _) => Judgement::Holds,
            (_, true) => Judgement::DoesNotHold,
            _ => Judgement::CannotTest(
                "undecided: the interval is on both sides of the bound; use more --blocks".into(),
            ),
        }
    }

    fn text(self) -> String {
        match self {
            Bound::Above(least) => format!("above {least}"),
            Bound::Below(most) => format!("below {most}"),
            Bound::Within(least, most) => format!("{least} to {most}"),
            Bound::Given(bound) => format!("{}, as a condition", bound.text()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::EXPERIMENTS;
    use super::super::testing::{FIGURE, results};
    use super::*;
    use allocwall_model::units::{Absence, Reason};

    #[test]
    fn a_bound_is_judged_on_the_whole_interval() {
        let judge = |bound: Bound, low: f64, high: f64| {
            bound.judge(&Ok(Interval::new(low, (low + high) / 2.0, high))).key()
        };
        let (above, below, within) = (Bound::Above(10.0), Bound::Below(10.0), Bound::Within(9.0, 11.0));
        assert_eq!([judge(above, 10.1, 90.0), judge(above, 1.0, 10.0)], ["holds", "does_not_hold"]);
        assert_eq!([judge(below, 1.0, 9.9), judge(below, 10.0, 11.0)], ["holds", "does_not_hold"]);
        assert_eq!([judge(within, 9.0, 11.0), judge(within, 11.1, 12.0)], ["holds", "does_not_hold"]);
        assert_eq!(judge(within, 1.0, 8.9), "does_not_hold");
        // The point is on one side, the interval on both.
        for bound in [above, below, within] {
            assert_eq!(judge(bound, 8.0, 13.0), "cannot_be_tested");
        }
        let absent = Err(Absence::new(Reason::NotFound, "no such library"));
        assert_eq!(above.judge(&absent), Judgement::CannotTest("no such library".into()));
    }

    /// A claim with these tests, if glibc takes 10 and pinned 30.
    fn judgement(tests: &'static [Test]) -> Judgement {
        let results =
            results(&EXPERIMENTS[0], 6, &[("glibc", vec![(FIGURE, 10.0)]), ("pinned", vec![(FIGURE, 30.0)])]);
        let claim: &'static Claim = Box::leak(Box::new(Claim { says: "", tests }));
        let judged = judged(claim, &results);
        assert_eq!(judged.tests.len(), tests.len());
        judged.judgement
    }

    const PASSED: Test =
        Test { what: Quantity::Ratio { figure: FIGURE, arm: "pinned", to: "glibc" }, is: Bound::Above(2.0) };
    const FAILED: Test =
        Test { what: Quantity::Value { figure: FIGURE, arm: "glibc" }, is: Bound::Above(20.0) };
    const OPEN: Test =
        Test { what: Quantity::Value { figure: FIGURE, arm: "raised" }, is: Bound::Above(1.0) };

    #[test]
    fn a_claim_holds_if_all_its_tests_are_passed() {
        assert_eq!(judgement(&[PASSED]), Judgement::Holds);
        assert_eq!(judgement(&[PASSED, FAILED]), Judgement::DoesNotHold);
        assert!(matches!(judgement(&[PASSED, OPEN]), Judgement::CannotTest(why) if why.contains("raised")));
        // Whatever the open test would show.
        assert_eq!(judgement(&[OPEN, FAILED]), Judgement::DoesNotHold);
    }

    #[test]
    fn a_claim_is_tested_only_where_its_condition_is_met() {
        const MET: Test = Test { is: Bound::Given(&Bound::Above(5.0)), ..FAILED };
        const UNMET: Test = Test { is: Bound::Given(&Bound::Above(20.0)), ..FAILED };
        assert_eq!(judgement(&[MET, PASSED]), Judgement::Holds);
        assert_eq!(judgement(&[MET, FAILED]), Judgement::DoesNotHold);
        for test in [PASSED, FAILED] {
            let tests: &'static [Test] = Box::leak(Box::new([UNMET, test]));
            let why = judgement(tests);
            assert!(
                matches!(&why, Judgement::CannotTest(why) if why.contains("above 20, as a condition")),
                "{why:?}"
            );
        }
    }

    #[test]
    fn a_rule_names_the_figure_the_arms_and_the_bound() {
        let results = results(&EXPERIMENTS[0], 6, &[("glibc", vec![(FIGURE, 10.0)])]);
        let rule = PASSED.apply(&results).rule;
        let title = EXPERIMENTS[0].figure(FIGURE).unwrap().title;
        assert_eq!(rule, format!("{title}, pinned ÷ glibc: above 2"));
    }
}
