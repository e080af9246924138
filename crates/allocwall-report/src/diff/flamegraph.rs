//! A differential flamegraph: widths are those of the second recording, colours the change. Red: more than before, blue: less. The text
//! of a box has the change with its sign.

use crate::collapsed;
use crate::escape::markup;
use crate::flamegraph::no_samples;
use allocwall_model::recording::Recording;
use allocwall_model::units::{Absence, Measured, Reason};
use inferno::flamegraph::color::{BackgroundColor, Color};
use inferno::flamegraph::{self as inferno_graph, Options, TextTruncateDirection};
use std::collections::BTreeMap;

/// # Errors
/// A recording has no samples.
pub fn svg(before: &Recording, after: &Recording) -> Measured<String> {
    let [before, after] = [before, after].map(counts);
    let totals = [&before, &after].map(|counts| counts.values().sum::<u64>());
    if totals.contains(&0) {
        return Err(no_samples());
    }
    let mut both: BTreeMap<&str, [u64; 2]> = BTreeMap::new();
    // As many samples in all as in the other one: rounded in the sum, so that rare stacks are not all rounded down.
    let scaled = |sum: u64| (u128::from(sum) * u128::from(totals[1]) / u128::from(totals[0])) as u64;
    let mut sum = 0;
    for (stack, count) in &before {
        both.entry(stack).or_default()[0] = scaled(sum + count) - scaled(sum);
        sum += count;
    }
    for (stack, count) in &after {
        both.entry(stack).or_default()[1] = *count;
    }
    let lines: Vec<String> = both.iter().map(|(stack, [a, b])| format!("{stack} {a} {b}")).collect();
    let mut options = Options::default();
    options.title = "Change of CPU samples: red more than before, blue less".to_owned();
    options.bgcolors = Some(BackgroundColor::Flat(Color { r: 255, g: 255, b: 255 }));
    options.text_truncate_direction = TextTruncateDirection::Right;
    options.min_width = 0.05;
    options.image_width = None;
    let mut out = vec![];
    inferno_graph::from_lines(&mut options, lines.iter().map(String::as_str), &mut out).map_err(|e| {
        let why = format!("the flamegraph could not be drawn: {}", markup(&e.to_string()));
        Absence::new(Reason::Unparsable, why)
    })?;
    Ok(String::from_utf8_lossy(&out).into_owned())
}

/// Samples by stack. Processes have the same name in both recordings only without their pids.
fn counts(rec: &Recording) -> BTreeMap<String, u64> {
    let mut counts: BTreeMap<String, u64> = BTreeMap::new();
    for line in collapsed::stacks(rec).lines() {
        let Some((stack, count)) = line.rsplit_once(' ') else { continue };
        let (process, rest) = stack.split_once(';').unwrap_or((stack, ""));
        let name = process.rsplit_once(" (pid ").map_or(process, |(name, _)| name);
        *counts.entry(format!("{name};{rest}")).or_default() += count.parse::<u64>().unwrap_or(0);
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketches;

    #[test]
    fn more_is_red_and_has_a_sign() {
        let before = sketches::first_touch().rec;
        let mut after = before.clone();
        let zeroing = after.samples[0];
        after.samples.extend([zeroing; 20]);
        after.processes[0].pid = 1;
        after.samples.iter_mut().for_each(|sample| sample.pid = 1);
        let svg = svg(&before, &after).unwrap();
        roxmltree::Document::parse_with_options(
            &svg,
            roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() },
        )
        .expect("XML");
        let title = svg.split("<title>").find(|title| title.starts_with("clear_page_erms")).expect("a box");
        assert!(title.split("</title>").next().unwrap().contains("; +"), "{title}");
        assert!(!svg.contains("<script>alert"), "markup in the flamegraph");
        assert!(super::svg(&before, &Recording { samples: vec![], ..after }).is_err());
    }
}
