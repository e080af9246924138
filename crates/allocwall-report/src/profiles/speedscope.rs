//! For <https://www.speedscope.app>: one sampled profile for each thread, in the order of time, with weights in nanoseconds.

use super::{Traces, exporter, title};
use crate::collapsed::Level;
use crate::escape::terminal;
use allocwall_model::recording::Recording;
use allocwall_model::units::Measured;
use serde::Serialize;
use std::collections::HashMap;

/// Identifies the format; the viewer checks it.
const SCHEMA: &str = "https://www.speedscope.app/file-format-schema.json";

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct File {
    #[serde(rename = "$schema")]
    schema: &'static str,
    name: String,
    exporter: String,
    active_profile_index: usize,
    shared: Shared,
    profiles: Vec<Profile>,
}

#[derive(Default, Serialize)]
struct Shared {
    frames: Vec<Frame>,
}

#[derive(Serialize)]
struct Frame {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    file: Option<String>,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct Profile {
    r#type: &'static str,
    name: String,
    unit: &'static str,
    start_value: u64,
    end_value: u64,
    /// Indices of frames, root first.
    samples: Vec<Vec<usize>>,
    weights: Vec<u64>,
}

/// # Errors
/// The recording has no samples.
pub fn document(rec: &Recording) -> Measured<String> {
    let traces = Traces::of(rec)?;
    let mut numbers: HashMap<Level, usize> = HashMap::new();
    let mut shared = Shared::default();
    let mut profiles: Vec<Profile> = vec![];
    for ((pid, tid), samples) in traces.threads() {
        let (mut stacks, mut weights): (Vec<Vec<usize>>, Vec<u64>) = (vec![], vec![]);
        for trace in samples {
            let weight = trace.drawn.count.saturating_mul(rec.meta.sample_period_ns);
            let mut stack = vec![];
            for level in traces.levels(trace).into_iter().rev() {
                stack.push(*numbers.entry(level).or_insert_with(|| {
                    let file = traces.file(level).map(|file| terminal(&rec.modules[file].path));
                    shared.frames.push(Frame { name: traces.names.name(level).into_owned(), file });
                    shared.frames.len() - 1
                }));
            }
            match weights.last_mut() {
                Some(last) if stacks.last() == Some(&stack) => *last = last.saturating_add(weight),
                _ => {
                    stacks.push(stack);
                    weights.push(weight);
                }
            }
        }
        profiles.push(Profile {
            r#type: "sampled",
            name: format!("{} (pid {pid}, tid {tid})", traces.names.thread(pid, tid)),
            unit: "nanoseconds",
            start_value: 0,
            end_value: weights.iter().fold(0, |sum: u64, weight| sum.saturating_add(*weight)),
            samples: stacks,
            weights,
        });
    }
    // The busiest thread is shown first.
    let busiest = (0..profiles.len()).rev().max_by_key(|at| profiles[*at].end_value);
    let file = File {
        schema: SCHEMA,
        name: title(rec),
        exporter: exporter(rec),
        active_profile_index: busiest.unwrap_or(0),
        shared,
        profiles,
    };
    Ok(crate::json::line(&file))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketches;
    use serde_json::Value;

    #[test]
    fn weights_sum_to_the_sampled_time_and_frames_exist() {
        let rec = sketches::first_touch().rec;
        let file: Value = serde_json::from_str(&document(&rec).unwrap()).unwrap();
        let frames = file["shared"]["frames"].as_array().unwrap();
        let mut sum = 0;
        for profile in file["profiles"].as_array().unwrap() {
            let (samples, weights) =
                (profile["samples"].as_array().unwrap(), profile["weights"].as_array().unwrap());
            assert_eq!(samples.len(), weights.len());
            let of_thread: u64 = weights.iter().map(|w| w.as_u64().unwrap()).sum();
            assert_eq!(profile["endValue"], of_thread);
            sum += of_thread;
            for index in samples.iter().flat_map(|stack| stack.as_array().unwrap()) {
                assert!((index.as_u64().unwrap() as usize) < frames.len());
            }
        }
        assert_eq!(sum, rec.samples.len() as u64 * rec.meta.sample_period_ns);
        // Root first, and equal neighbours are one.
        let first = &file["profiles"][0]["samples"][0];
        let named: Vec<&str> = first
            .as_array()
            .unwrap()
            .iter()
            .map(|index| frames[index.as_u64().unwrap() as usize]["name"].as_str().unwrap())
            .collect();
        assert_eq!((named[0], named[named.len() - 1]), ("main", "clear_page_erms"));
        assert_eq!(file["profiles"][0]["weights"][0], 2 * rec.meta.sample_period_ns);
    }

    #[test]
    fn no_control_character_is_in_the_file() {
        let text = document(&sketches::first_touch().rec).unwrap();
        assert!(text.contains("alert(1)") && !text.trim_end().chars().any(char::is_control), "{text}");
    }
}
