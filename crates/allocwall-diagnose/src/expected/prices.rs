//! Which of this machine's prices the predictions of a diagnosis need.

use crate::Prescription;
use allocwall_model::catalogue::advice::CALIBRATE;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::prices::*;
use allocwall_model::catalogue::remedies::{Effect, Remedy, find};
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Reason};

/// Prices that the predictions of these remedies use, and that were not measured on this machine yet. A price that can't be
/// measured here is not among them: the price list has the reason.
pub fn missing(recording: &Recording, remedies: &[Prescription]) -> Vec<&'static str> {
    let is_known = |name: &str| recording.prices.as_ref().is_ok_and(|list| list.answers(name));
    let mut missing = vec![];
    for (_, remedy) in offered(remedies) {
        let used = used(remedy);
        missing.extend(used);
        // The bill moves this part of each fault to the line of the fault path.
        if !used.is_empty() && remedy.acts_on.contains(&CostClass::FaultPath) {
            missing.push(FAULT_RETURN);
        }
    }
    missing.retain(|name| !is_known(name));
    missing.sort_unstable();
    missing.dedup();
    missing
}

/// Why a remedy has no gain, if the reason is a missing price.
pub fn unpriced(recording: &Recording, remedies: &[Prescription]) -> Option<Absence> {
    let without = offered(remedies).filter(|(offer, _)| offer.gain.is_none());
    let mut used = without.flat_map(|(_, remedy)| used(remedy).iter().copied());
    let is_priced = |name: &str| recording.prices.as_ref().is_ok_and(|list| list.get(name).is_some());
    let name = used.find(|name| !is_priced(name))?;
    Some(match &recording.prices {
        Err(absence) => absence.clone(),
        Ok(list) => list.why_absent(name).cloned().unwrap_or_else(|| {
            Absence::new(Reason::NotFound, format!("this machine's price list has no {name}")).mend(CALIBRATE)
        }),
    })
}

fn offered(remedies: &[Prescription]) -> impl Iterator<Item = (&Prescription, &'static Remedy)> {
    remedies.iter().filter_map(|offer| Some((offer, find(&offer.remedy)?)))
}

/// The prices that the gain of this remedy is computed from, as in `by_price`. Not those of loads, which bound page walks that
/// were not counted: it takes 256 MiB of memory to measure them, too much beside a running service.
fn used(remedy: &Remedy) -> &'static [&'static str] {
    match remedy.effect {
        Effect::HugeTouch => &[TOUCH_4K, TOUCH_2M],
        Effect::Populate => &[TOUCH_4K, POPULATE_PAGE],
        Effect::ArenaInsteadOfMap => &[MALLOC_ARENA, MALLOC_MAPPED],
        Effect::DeeperCache => &[MALLOC_CACHED, MALLOC_ARENA],
        Effect::Swap
        | Effect::OwnArenas
        | Effect::AtMost(..)
        | Effect::FewerCollections(_)
        | Effect::ForkCopy(_)
        | Effect::Unknown(_)
        | Effect::NotCpu(_) => &[],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{Subject, absent, computing};
    use allocwall_model::catalogue::cost::CostClass::FaultPath;

    /// What is missing, and the verdict's remedies.
    fn of(subject: &Subject) -> (Vec<&'static str>, Vec<Prescription>) {
        let remedies = crate::verdict(&subject.recording, &subject.bill).remedies;
        (missing(&subject.recording, &remedies), remedies)
    }

    fn touching() -> Subject {
        let mut subject = computing();
        subject.shares(&[(FaultPath, 0.4)]);
        subject.recording.prices = Err(absent());
        subject
    }

    #[test]
    fn only_the_prices_of_the_offered_remedies_are_missing() {
        let (names, _) = of(&touching());
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
        assert_eq!(unpriced(&subject.recording, &remedies), Some(why));
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
        assert_eq!(unpriced(&subject.recording, &priced), None);
        let mut unknown = priced;
        unknown.iter_mut().for_each(|remedy| remedy.gain = None);
        let absence = Absence::new(Reason::NotFound, "no list");
        let mut without = touching();
        without.recording.prices = Err(absence.clone());
        assert_eq!(unpriced(&without.recording, &unknown), Some(absence));
    }
}
