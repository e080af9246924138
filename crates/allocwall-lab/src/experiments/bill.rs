//! The bill and the walls of an arm, from the JSON document of a diagnosis of one of its runs.

use super::claims::is_its_own;
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use serde_json::Value;
use std::collections::BTreeMap;

/// Lines that are printed, of at least this share.
const TOP: usize = 4;
const LEAST: f64 = 0.01;

#[derive(Clone, Debug, PartialEq)]
pub struct Bill {
    /// The sentence of the verdict.
    pub verdict: String,
    /// Shares of the arm's CPU time.
    pub on_cpu: Vec<Line>,
    /// Waits, as shares of the time of all threads.
    pub off_cpu: Vec<Line>,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Line {
    /// Stable name.
    pub class: String,
    pub title: String,
    pub share: Measured<Interval>,
}

/// What the verdict on an arm names. Walls have their stable names.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Walls {
    /// In the order of the verdict: worst first, interference before the others.
    pub found: Vec<String>,
    /// Those that were not measured, with the reason.
    pub open: BTreeMap<String, String>,
}

impl Walls {
    pub fn of(document: &Value) -> Walls {
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let found = document["verdict"]["walls"].as_array().into_iter().flatten();
        let findings = document["findings"].as_array().into_iter().flatten();
        let open = findings.filter(|finding| finding["status"] == "not_measured");
        Walls {
            found: found.filter_map(text).collect(),
            open: open
                .filter_map(|finding| Some((text(&finding["wall"])?, text(&finding["because"])?)))
                .collect(),
        }
    }

    /// Whether the first wall is one of these. Of the others, those that other processes or the load cause don't count.
    ///
    /// # Errors
    /// None of them was found, and one was not measured.
    pub fn first_is(&self, walls: &[Wall]) -> Measured<bool> {
        let is_one = |key: &String| walls.iter().any(|wall| wall.key() == key);
        let first = self.found.iter().find(|&key| is_one(key) || is_its_own(key));
        if first.is_some_and(is_one) {
            return Ok(true);
        }
        let unmeasured = walls.iter().find_map(|wall| Some((wall, self.open.get(wall.key())?)));
        match unmeasured {
            Some((wall, why)) if !self.found.iter().any(is_one) => {
                Err(Absence::new(Reason::NotFound, format!("{} was not measured: {why}", wall.title())))
            }
            _ => Ok(false),
        }
    }
}

impl Bill {
    /// # Errors
    /// Why the diagnosis has no bill.
    pub fn of(document: &Value) -> Measured<Bill> {
        let bill = &document["bill"];
        let Some(lines) = bill["on_cpu"].as_array() else {
            let why = bill["on_cpu"]["absent"]["detail"].as_str().unwrap_or("the diagnosis has no bill");
            return Err(Absence::new(Reason::NotFound, why));
        };
        let on_cpu: Vec<Line> = lines.iter().filter_map(|line| Line::of(line, &line["share"], 1.0)).collect();
        if largest(&on_cpu).is_empty() {
            return Err(Absence::new(Reason::TooLittle, "the run has no sample"));
        }
        let threads_s = bill["rates"]["thread_s"].as_f64().unwrap_or(0.0);
        let waits = bill["off_cpu"].as_array().into_iter().flatten();
        Ok(Bill {
            verdict: document["verdict"]["sentence"].as_str().unwrap_or_default().to_owned(),
            on_cpu,
            off_cpu: waits.filter_map(|line| Line::of(line, &line["thread_s"], threads_s)).collect(),
        })
    }
}

impl Line {
    /// `time` is the interval of the line, and `whole` that of which it is a share.
    fn of(line: &Value, time: &Value, whole: f64) -> Option<Line> {
        let end = |name: &str| time[name].as_f64().filter(|_| whole > 0.0).map(|value| value / whole);
        let share = match (end("low"), end("point"), end("high")) {
            (Some(low), Some(point), Some(high)) => Ok(Interval::new(low, point, high)),
            _ => {
                let why = time["absent"]["detail"].as_str().unwrap_or("the diagnosis has no such time");
                Err(Absence::new(Reason::NotFound, why))
            }
        };
        let text = |name: &str| line[name].as_str().map(str::to_owned);
        Some(Line { class: text("class")?, title: text("title")?, share })
    }
}

/// The lines that are printed, with their titles, the largest first.
pub fn largest(lines: &[Line]) -> Vec<(&str, Interval)> {
    let measured = lines.iter().filter_map(|line| Some((line.title.as_str(), *line.share.as_ref().ok()?)));
    let mut shown: Vec<(&str, Interval)> = measured.filter(|(_, share)| share.point >= LEAST).collect();
    shown.sort_by(|a, b| b.1.point.total_cmp(&a.1.point));
    shown.truncate(TOP);
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_largest_lines_of_a_bill_come_first() {
        let line = |class: &str, point: f64| {
            let share = json!({ "low": point - 0.01, "point": point, "high": point + 0.01 });
            json!({ "class": class, "title": class.to_uppercase(), "share": share, "samples": 3 })
        };
        let lines = [("a", 0.1), ("b", 0.5), ("tiny", 0.001), ("c", 0.2), ("d", 0.05), ("e", 0.04)];
        let lines: Vec<Value> = lines.iter().map(|(class, point)| line(class, *point)).collect();
        let bill = Bill::of(&json!({ "bill": { "on_cpu": lines } })).unwrap();
        let shown = largest(&bill.on_cpu);
        assert_eq!(shown.iter().map(|(title, _)| *title).collect::<Vec<_>>(), ["B", "C", "A", "D"]);
        assert_eq!(shown[0].1, Interval::new(0.49, 0.5, 0.51));
        // A line that is not printed is kept: a claim may be that it is small.
        let tiny = bill.on_cpu.iter().find(|line| line.class == "tiny").unwrap();
        assert!(tiny.share.as_ref().is_ok_and(|share| share.point == 0.001));
    }

    #[test]
    fn waits_are_shares_of_the_time_of_all_threads() {
        let on_cpu = json!([{ "class": "a", "title": "A", "share": { "low": 1, "point": 1, "high": 1 } }]);
        let off_cpu = json!([
            { "class": "throttled", "title": "throttled", "thread_s": { "low": 1.0, "point": 2.0, "high": 3.0 } },
            { "class": "gil", "title": "GIL", "thread_s": { "absent": { "detail": "no stacks" } } },
        ]);
        let of = |thread_s: f64| {
            let bill = json!({ "on_cpu": on_cpu, "off_cpu": off_cpu, "rates": { "thread_s": thread_s } });
            let verdict = json!({ "sentence": "It is throttled." });
            Bill::of(&json!({ "bill": bill, "verdict": verdict })).unwrap()
        };
        let [throttled, gil] = &of(4.0).off_cpu[..] else { panic!("two waits") };
        assert_eq!(throttled.share, Ok(Interval::new(0.25, 0.5, 0.75)));
        assert_eq!(gil.share.as_ref().unwrap_err().detail, "no stacks");
        assert_eq!((of(4.0).verdict.as_str(), largest(&of(4.0).off_cpu).len()), ("It is throttled.", 1));
        // Without the time of the threads there is no share of it.
        assert!(of(0.0).off_cpu[0].share.is_err());
    }

    #[test]
    fn the_first_wall_is_named_or_another_one_or_it_was_not_measured() {
        let walls = Walls::of(&json!({
            "verdict": { "walls": ["first_touch", "map_churn"] },
            "findings": [
                { "wall": "numa", "status": "not_measured", "because": "no counter" },
                { "wall": "tlb", "status": "ruled_out", "because": "1 %" },
            ],
        }));
        assert_eq!(walls.first_is(&[Wall::Fork, Wall::FirstTouch]), Ok(true));
        // The second wall, one that was ruled out, and one that may be there.
        assert_eq!(walls.first_is(&[Wall::MapChurn]), Ok(false));
        assert_eq!(walls.first_is(&[Wall::Tlb]), Ok(false));
        assert!(walls.first_is(&[Wall::Numa]).unwrap_err().detail.contains("no counter"));
        assert_eq!(walls.first_is(&[Wall::MapChurn, Wall::Numa]), Ok(false));
        assert_eq!(Walls::of(&json!([])), Walls::default());
        assert_eq!(Walls::default().first_is(&[Wall::Numa]), Ok(false));
    }

    #[test]
    fn a_wall_that_other_processes_cause_is_not_the_first_unless_it_is_asked_for() {
        let of = |found: &[Wall]| {
            let found = found.iter().map(|wall| wall.key().to_owned()).collect();
            Walls { found, ..Walls::default() }
        };
        let disturbed = of(&[Wall::Steal, Wall::RunQueue, Wall::FirstTouch, Wall::MapChurn]);
        assert_eq!(disturbed.first_is(&[Wall::FirstTouch]), Ok(true));
        assert_eq!(disturbed.first_is(&[Wall::MapChurn]), Ok(false));
        assert_eq!(of(&[Wall::Steal, Wall::CgroupThrottling]).first_is(&[Wall::CgroupThrottling]), Ok(true));
        // A wall of its own comes first.
        let own = of(&[Wall::FirstTouch, Wall::CgroupThrottling]);
        assert_eq!(own.first_is(&[Wall::CgroupThrottling]), Ok(false));
        assert_eq!(of(&[Wall::Steal]).first_is(&[Wall::FirstTouch]), Ok(false));
    }

    #[test]
    fn a_bill_that_is_not_there_has_a_reason() {
        let absent = json!({ "bill": { "on_cpu": { "absent": { "detail": "perf_event_open: EPERM" } } } });
        assert_eq!(Bill::of(&absent).unwrap_err().detail, "perf_event_open: EPERM");
        for other in [json!({}), json!({ "bill": { "on_cpu": [] } }), json!([1]), json!({ "bill": 3 })] {
            assert!(!Bill::of(&other).unwrap_err().detail.is_empty());
        }
        // A line without an interval is no sample.
        assert!(Bill::of(&json!({ "bill": { "on_cpu": [{ "class": "a", "title": "A" }] } })).is_err());
    }
}
