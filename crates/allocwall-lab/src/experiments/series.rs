//! A series of windows over one run of an arm: what its first window says by itself, and what all of them say. From the JSON document of
//! `allocwall diagnose --repeat`.

use super::claims::{AnyWall, any_of, is_its_own};
use allocwall_model::catalogue::walls::Wall;
use allocwall_model::units::{Absence, Interval, Measured, Reason};
use serde_json::Value;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::time::Duration;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    pub windows: u32,
    pub window: Duration,
    /// From the start of a window to the start of the next one.
    pub every: Duration,
}

impl Plan {
    pub const FULL: Plan =
        Plan { windows: 12, window: Duration::from_secs(3), every: Duration::from_secs(10) };
    pub const QUICK: Plan =
        Plan { windows: 6, window: Duration::from_millis(500), every: Duration::from_millis(1_250) };

    pub fn length(&self) -> Duration {
        self.every * self.windows
    }

    /// The options of the diagnosis.
    pub fn options(&self) -> Vec<OsString> {
        let ms = |time: Duration| format!("{}ms", time.as_millis());
        let words = [
            "--repeat".to_owned(),
            self.windows.to_string(),
            "--every".into(),
            ms(self.every),
            "-d".into(),
            ms(self.window),
        ];
        words.map(OsString::from).into()
    }
}

#[derive(Clone, Debug, PartialEq)]
pub struct Series {
    /// The sentence over all windows, and that of the first window.
    pub verdict: String,
    pub first_verdict: String,
    /// Of each window, the status of each wall.
    pub windows: Vec<BTreeMap<String, String>>,
    pub lasting: Vec<Lasting>,
    /// What rose, for people.
    pub rose: Vec<String>,
}

/// A wall that lasts.
#[derive(Clone, Debug, PartialEq)]
pub struct Lasting {
    pub wall: String,
    /// From the start of the first window to that of the first one in which it lasts, as a part of the length of the series.
    pub since: f64,
}

/// What a claim can be about. Yes is 1, no is 0.
#[derive(Clone, Copy, Debug)]
pub enum Fact {
    /// The first window by itself finds one of these walls.
    First(AnyWall),
    /// The series finds one.
    Lasts(AnyWall),
    /// Since which part of the series the first of them lasts.
    Since(AnyWall),
    /// The number of walls that the series finds, without those that other processes or the load cause.
    Walls,
}

impl Series {
    /// # Errors
    /// It ended early, or the document is none of a series.
    pub fn of(document: &Value) -> Measured<Series> {
        let none = || Absence::new(Reason::NotFound, "the diagnosis has no series");
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let windows = document["windows"].as_array().ok_or_else(none)?;
        let (Some(planned), Some(every_s)) = (document["planned"].as_u64(), document["every_s"].as_f64())
        else {
            return Err(none());
        };
        let first = windows.first().ok_or_else(none)?;
        if (windows.len() as u64) < planned {
            let why = document["ended"].as_str().unwrap_or("it ended early");
            let detail = format!("{} of {planned} windows: {why}", windows.len());
            return Err(Absence::new(Reason::TooLittle, detail));
        }
        let statuses = |window: &Value| -> BTreeMap<String, String> {
            let findings = window["findings"].as_array().into_iter().flatten();
            findings.map(|finding| (text(&finding["wall"]), text(&finding["status"]))).collect()
        };
        let length_s = (every_s * planned as f64).max(f64::MIN_POSITIVE);
        let first_s = first["at_s"].as_f64().unwrap_or(0.0);
        let lasting = |wall: &Value| Lasting {
            wall: text(&wall["wall"]),
            // Without a span it is a wall of all windows together.
            since: wall["spans"][0]["from_s"].as_f64().map_or(0.0, |from_s| from_s - first_s) / length_s,
        };
        let quantities = document["quantities"].as_array().into_iter().flatten();
        Ok(Series {
            verdict: text(&document["sentence"]),
            first_verdict: text(&first["sentence"]),
            windows: windows.iter().map(statuses).collect(),
            lasting: document["walls"].as_array().into_iter().flatten().map(lasting).collect(),
            rose: quantities.filter(|one| one["change"] == "rose").map(|one| text(&one["title"])).collect(),
        })
    }

    pub fn fact(&self, fact: Fact) -> Measured<Interval> {
        let lasting = |walls: AnyWall| {
            self.lasting.iter().filter(move |one| walls.iter().any(|wall| wall.key() == one.wall))
        };
        let yes = |is: bool| Interval::exact(f64::from(u8::from(is)));
        let measured = |window: &BTreeMap<String, String>, walls: AnyWall| {
            walls.iter().any(|wall| window.get(wall.key()).is_some_and(|status| status != "not_measured"))
        };
        let unknown = |walls: AnyWall| {
            Absence::new(Reason::NotPermitted, format!("{} was not measured", any_of(walls)))
        };
        match fact {
            Fact::First(walls) => match self.windows.first() {
                Some(first) if measured(first, walls) => {
                    let is_wall = |wall: &Wall| first.get(wall.key()).is_some_and(|status| status == "wall");
                    Ok(yes(walls.iter().any(is_wall)))
                }
                _ => Err(unknown(walls)),
            },
            Fact::Lasts(walls) => {
                let missing = self.windows.iter().filter(|window| !measured(window, walls)).count();
                let found = lasting(walls).next().is_some();
                if !found && 2 * missing > self.windows.len() { Err(unknown(walls)) } else { Ok(yes(found)) }
            }
            Fact::Since(walls) => {
                let none = || {
                    let detail = format!("{} does not last in this series", any_of(walls));
                    Absence::new(Reason::NotApplicable, detail)
                };
                let first = lasting(walls).map(|one| one.since).reduce(f64::min);
                first.map(Interval::exact).ok_or_else(none)
            }
            Fact::Walls => {
                let own = self.lasting.iter().filter(|lasting| is_its_own(&lasting.wall));
                Ok(Interval::exact(own.count() as f64))
            }
        }
    }

    /// For the page.
    pub fn text(&self) -> String {
        let rose = match &self.rose[..] {
            [] => String::new(),
            rose => format!(" What rose: {}.", rose.join(", ")),
        };
        let n = self.windows.len();
        format!("{n} windows: {}{rose} The first window alone: {}", self.verdict, self.first_verdict)
    }
}

impl Fact {
    pub fn title(self) -> String {
        match self {
            Fact::First(walls) => format!("the first window finds {} (1) or not (0)", any_of(walls)),
            Fact::Lasts(walls) => format!("the series finds {} (1) or not (0)", any_of(walls)),
            Fact::Since(walls) => format!("the part of the series after which {} lasts", any_of(walls)),
            Fact::Walls => "walls that last, without those that other processes or the load cause".to_owned(),
        }
    }
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use serde_json::json;

    /// Six windows, of which those from this one on have the wall; None: no window has it.
    pub fn document(wall: Wall, from: Option<usize>) -> Value {
        let at_s = |nth: usize| 0.5 + 10.0 * nth as f64;
        let window = |nth: usize| {
            let status = if from.is_some_and(|from| nth >= from) { "wall" } else { "ruled_out" };
            let findings = json!([{ "wall": wall.key(), "status": status }]);
            json!({ "at_s": at_s(nth), "sentence": format!("Window {nth}."), "findings": findings })
        };
        let walls: Vec<Value> = from
            .map(|from| json!({ "wall": wall.key(), "spans": [{ "from_s": at_s(from) }] }))
            .into_iter()
            .collect();
        let change = if from.is_some() { "rose" } else { "steady" };
        json!({
            "planned": 6,
            "every_s": 10.0,
            "ended": null,
            "sentence": "Over all.",
            "walls": walls,
            "quantities": [{ "title": "allocator locks", "change": change }, { "title": "threads", "change": "steady" }],
            "windows": (0..6).map(window).collect::<Vec<_>>(),
        })
    }

    const WALL: Wall = Wall::AllocatorContention;
    const WALLS: AnyWall = &[WALL, Wall::AllocatorCode];

    fn facts(document: &Value) -> [Measured<f64>; 4] {
        let series = Series::of(document).unwrap();
        [Fact::First(WALLS), Fact::Lasts(WALLS), Fact::Since(WALLS), Fact::Walls]
            .map(|fact| series.fact(fact).map(|interval| interval.point))
    }

    #[test]
    fn a_wall_that_comes_late_is_in_the_series_and_not_in_the_first_window() {
        let late = document(WALL, Some(3));
        assert_eq!(facts(&late), [Ok(0.0), Ok(1.0), Ok(0.5), Ok(1.0)]);
        let text = Series::of(&late).unwrap().text();
        assert_eq!(
            text,
            "6 windows: Over all. What rose: allocator locks. The first window alone: Window 0."
        );
        assert_eq!(facts(&document(WALL, Some(0)))[..2], [Ok(1.0), Ok(1.0)]);
        // The near twin.
        let [first, lasts, since, walls] = facts(&document(WALL, None));
        assert_eq!((first, lasts, walls), (Ok(0.0), Ok(0.0), Ok(0.0)));
        assert_eq!(since.unwrap_err().reason, Reason::NotApplicable);
        // Another name for the cause counts, and another wall does not.
        assert_eq!(facts(&document(Wall::AllocatorCode, Some(3)))[..3], [Ok(0.0), Ok(1.0), Ok(0.5)]);
        assert!(facts(&document(Wall::Tlb, Some(3)))[..3].iter().all(|fact| *fact != Ok(1.0)));
        // A wall that other processes cause is none of its own.
        let queue = Series::of(&document(Wall::RunQueue, Some(3))).unwrap();
        assert_eq!(queue.fact(Fact::Walls), Ok(Interval::exact(0.0)));
    }

    #[test]
    fn what_was_not_measured_is_no_answer() {
        let mut unread = document(WALL, None);
        for window in unread["windows"].as_array_mut().unwrap() {
            window["findings"][0]["status"] = json!("not_measured");
        }
        let [first, lasts, ..] = facts(&unread);
        assert!(first.is_err() && lasts.is_err());
        let mut short = document(WALL, Some(3));
        short["windows"].as_array_mut().unwrap().pop();
        short["ended"] = json!("the target ended");
        assert_eq!(Series::of(&short).unwrap_err().detail, "5 of 6 windows: the target ended");
        for other in [json!({}), json!([1]), json!({ "windows": [], "planned": 2, "every_s": 1.0 })] {
            assert!(Series::of(&other).is_err(), "{other}");
        }
    }

    #[test]
    fn a_quick_series_is_short_and_can_be_judged() {
        for plan in [Plan::FULL, Plan::QUICK] {
            // A trend is judged from five windows on, and a wall lasts in two.
            assert!(plan.windows >= 5 && plan.window <= plan.every);
        }
        assert!(
            Plan::QUICK.length() < Duration::from_secs(10) && Plan::FULL.length() <= Duration::from_secs(120)
        );
        assert_eq!(Plan::QUICK.options(), ["--repeat", "6", "--every", "1250ms", "-d", "500ms"]);
    }
}
