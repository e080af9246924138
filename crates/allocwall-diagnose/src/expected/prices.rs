//! Which of this machine's prices the predictions of a diagnosis need.

use crate::Prescription;
use crate::bill::Bill;
use crate::context::Context;
use allocwall_model::catalogue::advice::CALIBRATE;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::prices::*;
use allocwall_model::catalogue::remedies::{Effect, Remedy, find};
use allocwall_model::catalogue::thresholds::TLB_REACH_BYTES;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Reason};

/// Prices that the predictions of these remedies use, and that were not measured on this machine yet. A price that can't be
/// measured here is not among them: the price list has the reason.
pub fn missing(recording: &Recording, bill: &Bill, remedies: &[Prescription]) -> Vec<&'static str> {
    let ctx = Context::new(recording, bill);
    let is_known = |name: &str| {
        recording.prices.as_ref().is_ok_and(|list| {
            list.get(name).is_some() || list.absent.iter().any(|(absent, _)| absent == name)
        })
    };
    let mut missing: Vec<&str> = offered(remedies).flat_map(|(_, remedy)| used(&ctx, remedy)).collect();
    missing.retain(|name| !is_known(name));
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Why a remedy has no gain, if that is for want of a price.
pub fn unpriced(recording: &Recording, bill: &Bill, remedies: &[Prescription]) -> Option<Absence> {
    let ctx = Context::new(recording, bill);
    let without = offered(remedies).filter(|(offer, _)| offer.gain.is_none());
    let mut used = without.flat_map(|(_, remedy)| used(&ctx, remedy));
    let name = used.find(|name| ctx.price(name).is_none())?;
    Some(match &recording.prices {
        Err(absence) => absence.clone(),
        Ok(list) => list.absent.iter().find(|(absent, _)| absent == name).map_or_else(
            || {
                Absence::new(Reason::NotFound, format!("this machine's price list has no {name}"))
                    .mend(CALIBRATE)
            },
            |(_, absence)| absence.clone(),
        ),
    })
}

fn offered(remedies: &[Prescription]) -> impl Iterator<Item = (&Prescription, &'static Remedy)> {
    remedies.iter().filter_map(|offer| Some((offer, find(&offer.remedy)?)))
}

/// The prices that the gain of this remedy is computed from, as in `by_price`.
fn used(ctx: &Context, remedy: &Remedy) -> Vec<&'static str> {
    let mut used = match remedy.effect {
        Effect::HugeTouch => vec![TOUCH_4K, TOUCH_2M],
        Effect::Populate => vec![TOUCH_4K, POPULATE_PAGE],
        Effect::ArenaInsteadOfMap => vec![MALLOC_ARENA, MALLOC_MAPPED],
        Effect::DeeperCache => vec![MALLOC_CACHED, MALLOC_ARENA],
        Effect::Swap
        | Effect::OwnArenas
        | Effect::AtMost(..)
        | Effect::FewerCollections(_)
        | Effect::ForkCopy(_)
        | Effect::Unknown(_)
        | Effect::NotCpu(_) => return vec![],
    };
    // Page walks that were not counted are bounded by the prices of loads.
    if remedy.effect == Effect::HugeTouch && ctx.page_walks().is_none() && is_beyond_the_tlb(ctx) {
        used.extend([LOAD_4K, LOAD_2M]);
    }
    // The bill moves this part of each fault to the line of the fault path.
    if remedy.acts_on.contains(&CostClass::FaultPath) {
        used.push(FAULT_RETURN);
    }
    used
}

fn is_beyond_the_tlb(ctx: &Context) -> bool {
    ctx.resident_on_pages().is_some_and(|(resident, huge)| resident.saturating_sub(huge) > TLB_REACH_BYTES)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Subject, absent, computing};
    use allocwall_model::catalogue::cost::CostClass::FaultPath;

    /// What is missing, and the verdict's remedies.
    fn of(subject: &Subject) -> (Vec<&'static str>, Vec<Prescription>) {
        let remedies = crate::verdict(&subject.recording, &subject.bill).remedies;
        (missing(&subject.recording, &subject.bill, &remedies), remedies)
    }

    fn touching() -> Subject {
        let mut subject = computing();
        subject.shares(&[(FaultPath, 0.4)]);
        subject.recording.prices = Err(absent());
        subject
    }

    #[test]
    fn only_the_prices_of_the_offered_remedies_are_missing() {
        let (names, remedies) = of(&touching());
        assert!(remedies.iter().any(|remedy| remedy.remedy == "thp-always"), "{remedies:?}");
        assert!(names.contains(&TOUCH_4K) && names.contains(&TOUCH_2M), "{names:?}");
        assert!(!names.contains(&CONTEXT_SWITCH) && !names.contains(&MALLOC_CACHED), "{names:?}");
        // Without a wall there is no remedy, and no price is needed.
        let mut idle = computing();
        idle.recording.prices = Err(absent());
        assert_eq!(of(&idle).0, [""; 0]);
    }

    #[test]
    fn what_was_measured_or_cannot_be_measured_is_not_missing() {
        let mut subject = touching();
        subject.recording.prices = computing().recording.prices;
        let list = subject.recording.prices.as_mut().expect("the prices of the tests");
        list.prices.retain(|price| price.name != TOUCH_2M);
        assert!(of(&subject).0.contains(&TOUCH_2M));
        let why = Absence::new(Reason::Disabled, "huge pages are off");
        let list = subject.recording.prices.as_mut().expect("the prices of the tests");
        list.absent.push((TOUCH_2M.into(), why.clone()));
        let (names, remedies) = of(&subject);
        assert!(!names.contains(&TOUCH_2M), "{names:?}");
        // That is the reason why a gain has no interval.
        assert_eq!(unpriced(&subject.recording, &subject.bill, &remedies), Some(why));
    }

    #[test]
    fn loads_are_priced_only_for_memory_beyond_the_tlb() {
        let names = |resident: u64| {
            let mut subject = touching();
            subject.last().resident = resident;
            of(&subject).0
        };
        assert!(names(4 << 30).contains(&LOAD_2M));
        assert!(!names(1 << 20).contains(&LOAD_2M));
    }

    #[test]
    fn a_gain_that_is_known_is_not_for_want_of_a_price() {
        let subject = {
            let mut subject = touching();
            subject.recording.prices = computing().recording.prices;
            subject
        };
        let remedies = crate::verdict(&subject.recording, &subject.bill).remedies;
        let priced: Vec<Prescription> = remedies.into_iter().filter(|r| r.gain.is_some()).collect();
        assert!(!priced.is_empty());
        assert_eq!(unpriced(&subject.recording, &subject.bill, &priced), None);
        let mut unknown = priced;
        unknown.iter_mut().for_each(|remedy| remedy.gain = None);
        let absence = Absence::new(Reason::NotFound, "no list");
        let mut without = touching();
        without.recording.prices = Err(absence.clone());
        assert_eq!(unpriced(&without.recording, &without.bill, &unknown), Some(absence));
    }
}
