//! A command's own figures, read from its output: `--metric 'NAME:DIRECTION=PATTERN'`.
//!
//! | part | meaning |
//! | --- | --- |
//! | NAME | letters, digits, `_`, `-` and `.` |
//! | DIRECTION | `lower` or `higher`: which is better |
//! | PATTERN | everything after the first `=`: a JSON path if it begins with `$.` or `$[`, else a regular expression |
//!
//! `latency:lower=took ([\d.]+ms)`, `rate:higher=([\d,]+) rows/s`, `p99:lower=$.latency["p99"]`, `last:lower=$.runs[-1].seconds`.
//! No escapes are needed: a name or direction has no `=`, and a regular expression that begins with `$.` or `$[` (an end of line
//! followed by more) could never match.
//!
//! The first capture group of the expression holds the number. If the expression matches several times, the last match counts,
//! because programs print progress first and the result last. A unit is read from the group, or directly after it without a space.
//! The value is converted to nanoseconds or bytes, so `980us` in one run and `1.2ms` in the next are compared correctly.

use crate::load::{Better, Reading, Unit};
use allocwall_model::error::{Error, Result};
use allocwall_model::units::{Absence, Measured, Reason};
use regex::Regex;
use serde_json::Value;

const FORM: &str = "write NAME:lower=PATTERN or NAME:higher=PATTERN, where PATTERN is a regular expression with the number in \
                    parentheses, or a JSON path such as $.latency.p99";

/// Suffix, factor, unit of the product. Upper and lower case differ. There is no `m` alone: it may mean minutes or millions.
const UNITS: &[(&str, f64, Unit)] = &[
    ("ns", 1.0, Unit::Nanoseconds),
    ("us", 1e3, Unit::Nanoseconds),
    ("µs", 1e3, Unit::Nanoseconds),
    ("μs", 1e3, Unit::Nanoseconds),
    ("usec", 1e3, Unit::Nanoseconds),
    ("ms", 1e6, Unit::Nanoseconds),
    ("msec", 1e6, Unit::Nanoseconds),
    ("s", 1e9, Unit::Nanoseconds),
    ("sec", 1e9, Unit::Nanoseconds),
    ("secs", 1e9, Unit::Nanoseconds),
    ("min", 60e9, Unit::Nanoseconds),
    ("B", 1.0, Unit::Bytes),
    ("kB", 1e3, Unit::Bytes),
    ("KB", 1e3, Unit::Bytes),
    ("MB", 1e6, Unit::Bytes),
    ("GB", 1e9, Unit::Bytes),
    ("KiB", 1024.0, Unit::Bytes),
    ("MiB", 1_048_576.0, Unit::Bytes),
    ("GiB", 1_073_741_824.0, Unit::Bytes),
    ("k", 1e3, Unit::Plain),
    ("K", 1e3, Unit::Plain),
    ("M", 1e6, Unit::Plain),
    ("G", 1e9, Unit::Plain),
];

/// Number of lines at the end of an output that a message shows.
const TAIL_LINES: usize = 3;
const TAIL_CHARS: usize = 200;

/// A figure that a command prints, and where it is in the output.
#[derive(Clone, Debug)]
pub struct Figure {
    pub name: String,
    pub better: Better,
    pattern: Pattern,
    /// As the user wrote it.
    written: String,
}

#[derive(Clone, Debug)]
enum Pattern {
    Expression(Regex),
    Path(Vec<Step>),
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Key(String),
    /// From 0, or negative from the end: -1 is the last.
    Index(i64),
}

impl Figure {
    /// # Errors
    /// `Refused`: not of the form above, an expression that doesn't compile or has no group, or an invalid path.
    pub fn parse(text: &str) -> Result<Self> {
        let wrong = |why: String| Error::Refused(format!("--metric {}: {why}; {FORM}", visible(text)));
        let (head, written) = text.split_once('=').ok_or_else(|| wrong("it has no =".into()))?;
        let (name, direction) = head.split_once(':').ok_or_else(|| {
            wrong("the direction is missing; it shows whether lower or higher is better".into())
        })?;
        if name.is_empty() || !name.chars().all(|c| c.is_ascii_alphanumeric() || "_-.".contains(c)) {
            return Err(wrong(format!("{name:?} is not a valid name")));
        }
        let better = match direction {
            "lower" => Better::Lower,
            "higher" => Better::Higher,
            other => {
                return Err(wrong(format!("{other:?} is not a direction: use lower or higher")));
            }
        };
        let pattern = if written.starts_with("$.") || written.starts_with("$[") {
            Pattern::Path(path(written).map_err(wrong)?)
        } else {
            Pattern::Expression(expression(written).map_err(wrong)?)
        };
        Ok(Figure { name: name.to_string(), better, pattern, written: written.to_string() })
    }

    /// The figure in the output of one run.
    ///
    /// # Errors
    /// `NotFound`: the pattern matches nothing; with the last lines of the output. `Unparsable`: the match is not a number.
    pub fn read(&self, output: &str) -> Measured<Reading> {
        let (value, unit) = match &self.pattern {
            Pattern::Expression(expression) => self.match_last(expression, output)?,
            Pattern::Path(path) => self.follow(path, output)?,
        };
        Ok(Reading::new(&self.name, value, unit, self.better))
    }

    fn match_last(&self, expression: &Regex, output: &str) -> Measured<(f64, Unit)> {
        let group = expression
            .captures_iter(output)
            .filter_map(|captures| captures.get(1))
            .last()
            .ok_or_else(|| self.no_match("matches nothing in the output", output))?;
        let behind = &output[group.end()..];
        let letters = behind.find(|c: char| !c.is_alphabetic()).unwrap_or(behind.len());
        number(group.as_str(), &behind[..letters]).ok_or_else(|| self.no_number(group.as_str()))
    }

    fn follow(&self, path: &[Step], output: &str) -> Measured<(f64, Unit)> {
        let document =
            last_json(output).ok_or_else(|| self.no_match("finds no JSON in the output", output))?;
        let mut value = &document;
        for step in path {
            value = match step {
                Step::Key(key) => value.get(key),
                Step::Index(index) => value.as_array().and_then(|items| {
                    let at = if *index < 0 { index + items.len() as i64 } else { *index };
                    items.get(usize::try_from(at).ok()?)
                }),
            }
            .ok_or_else(|| self.no_match("matches nothing in the output's JSON", output))?;
        }
        let found = match value {
            Value::Number(found) => found.as_f64().map(|value| (value, Unit::Plain)),
            Value::String(text) => number(text, ""),
            _ => None,
        };
        found.filter(|(value, _)| value.is_finite()).ok_or_else(|| self.no_number(&value.to_string()))
    }

    fn no_match(&self, what: &str, output: &str) -> Absence {
        Absence::new(
            Reason::NotFound,
            format!("metric {}: {} {what}, which {}", self.name, visible(&self.written), tail(output)),
        )
        .mend("run the command alone and adapt --metric to its output")
    }

    fn no_number(&self, found: &str) -> Absence {
        let found: String = found.chars().take(TAIL_CHARS).collect();
        Absence::new(Reason::Unparsable, format!("metric {}: {} is not a number", self.name, shown(&found)))
            .mend("put only the number and its unit in the first parentheses")
    }
}

/// The last lines of the output, escaped, as the end of a sentence.
pub(super) fn tail(output: &str) -> String {
    let lines: Vec<&str> = output.lines().map(str::trim_end).filter(|line| !line.is_empty()).collect();
    if lines.is_empty() {
        return "is empty".to_string();
    }
    let last = lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n");
    let skipped = last.chars().count().saturating_sub(TAIL_CHARS);
    let dots = if skipped > 0 { "…" } else { "" };
    let last: String = last.chars().skip(skipped).collect();
    format!("ends with {dots}{}", shown(&last))
}

/// In quotes, with control characters escaped.
fn shown(text: &str) -> String {
    format!("{text:?}")
}

/// As the user wrote it, with control characters escaped.
fn visible(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { c.escape_debug().to_string() } else { c.to_string() }).collect()
}

fn expression(written: &str) -> std::result::Result<Regex, String> {
    let expression = regex::RegexBuilder::new(written)
        // ^ and $ match at lines, as in grep.
        .multi_line(true)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(_) => "the expression is too large".to_string(),
            // The crate prints several lines with an arrow; the last line has the error.
            error => {
                error.to_string().lines().last().unwrap_or_default().trim_start_matches("error: ").to_string()
            }
        })?;
    match expression.captures_len() {
        1 => Err("no parentheses around the number".to_string()),
        _ => Ok(expression),
    }
}

fn path(written: &str) -> std::result::Result<Vec<Step>, String> {
    let mut steps = Vec::new();
    let mut rest = &written[1..];
    while !rest.is_empty() {
        let at = written.chars().count() - rest.chars().count() + 1;
        let wrong = || format!("character {at} of the path: expected .key, [\"key\"] or [number]");
        if let Some(behind) = rest.strip_prefix('.') {
            let end = behind.find(['.', '[']).unwrap_or(behind.len());
            if end == 0 {
                return Err(wrong());
            }
            steps.push(Step::Key(behind[..end].to_string()));
            rest = &behind[end..];
        } else if let Some(behind) = rest.strip_prefix('[') {
            let (step, behind) = bracketed(behind).ok_or_else(wrong)?;
            steps.push(step);
            rest = behind;
        } else {
            return Err(wrong());
        }
    }
    Ok(steps)
}

/// The step after `[`, and the rest after `]`. A key in quotes can't contain the same quote.
fn bracketed(text: &str) -> Option<(Step, &str)> {
    for quote in ['"', '\''] {
        if let Some(inner) = text.strip_prefix(quote) {
            let (key, behind) = inner.split_once(quote)?;
            return Some((Step::Key(key.to_string()), behind.strip_prefix(']')?));
        }
    }
    let (index, behind) = text.split_once(']')?;
    Some((Step::Index(index.parse().ok()?), behind))
}

/// The output as one JSON document, or the last document that begins at the start of a line: programs may log before it.
pub(super) fn last_json(output: &str) -> Option<Value> {
    if let Ok(whole) = serde_json::from_str(output) {
        return Some(whole);
    }
    let mut found = None;
    let mut at = 0;
    while at < output.len() {
        let rest = &output[at..];
        let line = rest.find('\n').map_or(rest.len(), |end| end + 1);
        at += line;
        if rest.starts_with(['{', '[']) {
            let mut documents = serde_json::Deserializer::from_str(rest).into_iter::<Value>();
            if let Some(Ok(document)) = documents.next() {
                found = Some(document);
                // Skip the document, so that a document inside it is not taken for a later one.
                at += documents.byte_offset().saturating_sub(line);
            }
        }
    }
    found
}

/// A number with its unit, which may follow after a space. `behind` are the letters after the group in the output; they are a unit
/// only if they are in the table.
pub(super) fn number(text: &str, behind: &str) -> Option<(f64, Unit)> {
    let text = text.trim();
    let unit_at = text
        .char_indices()
        .find(|(at, c)| c.is_alphabetic() && !is_exponent(&text[*at..]))
        .map_or(text.len(), |(at, _)| at);
    let (digits, suffix) = text.split_at(unit_at);
    let value = plain(digits.trim_end())?;
    let of = |suffix: &str| UNITS.iter().find(|(known, ..)| *known == suffix);
    let (factor, unit) = match suffix {
        "" => of(behind).map_or((1.0, Unit::Plain), |(_, factor, unit)| (*factor, *unit)),
        suffix => of(suffix).map(|(_, factor, unit)| (*factor, *unit))?,
    };
    let value = value * factor;
    value.is_finite().then_some((value, unit))
}

fn is_exponent(text: &str) -> bool {
    let mut chars = text.chars();
    matches!(chars.next(), Some('e' | 'E')) && matches!(chars.next(), Some('0'..='9' | '+' | '-'))
}

/// Rust's float syntax without words (`inf`), plus commas between groups of three digits.
fn plain(digits: &str) -> Option<f64> {
    if !digits.starts_with(|c: char| c.is_ascii_digit() || "+-.".contains(c)) {
        return None;
    }
    let (whole, fraction) = digits.split_once('.').unwrap_or((digits, ""));
    if fraction.contains(',') {
        return None;
    }
    let mut groups = whole.trim_start_matches(['+', '-']).split(',');
    let first = groups.next()?.len();
    let mut grouped = false;
    for group in groups {
        grouped = true;
        if group.len() != 3 {
            return None;
        }
    }
    if grouped && !(1..=3).contains(&first) {
        return None;
    }
    let value: f64 = digits.replace(',', "").parse().ok()?;
    value.is_finite().then_some(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(metric: &str, output: &str) -> Measured<(f64, Unit)> {
        Figure::parse(metric).unwrap().read(output).map(|reading| (reading.value, reading.unit))
    }

    fn refusal(metric: &str) -> String {
        Figure::parse(metric).unwrap_err().to_string()
    }

    #[test]
    fn a_figure_is_read_with_its_name_and_direction() {
        let reading = Figure::parse(r"rate:higher=([\d,]+) rows/s").unwrap().read("12,345 rows/s\n").unwrap();
        assert_eq!(reading, Reading::new("rate", 12_345.0, Unit::Plain, Better::Higher));
    }

    #[test]
    fn the_pattern_is_everything_after_the_first_equals_sign() {
        assert_eq!(read(r"x:lower=a=b:higher=(\d+)", "a=b:higher=7").unwrap().0, 7.0);
        assert_eq!(read(r"x:lower=^ops=(\d+)$", "all\nops=5\n").unwrap().0, 5.0);
    }

    #[test]
    fn the_last_match_counts() {
        assert_eq!(read(r"t:lower=(\d+) s", "1 s\n2 s\ndone in 3 s\n").unwrap().0, 3.0);
    }

    #[test]
    fn units_are_read_in_the_group_and_directly_behind_it() {
        let ns = |value| Ok((value, Unit::Nanoseconds));
        assert_eq!(read(r"t:lower=took (\S+)", "took 1.2ms"), ns(1_200_000.0));
        assert_eq!(read(r"t:lower=took ([\d.]+)", "took 980us."), ns(980_000.0));
        assert_eq!(read(r"t:lower=took (.*)$", "took 3 s"), ns(3e9));
        assert_eq!(read(r"t:lower=took ([\d.]+)", "took 5µs"), ns(5_000.0));
        assert_eq!(read(r"m:lower=(\d+)", "5MiB"), Ok((5_242_880.0, Unit::Bytes)));
        assert_eq!(read(r"m:lower=(\d+)", "5k"), Ok((5_000.0, Unit::Plain)));
        // The twins: with a space before the unit, or other letters, the number is taken as printed.
        assert_eq!(read(r"t:lower=took ([\d.]+)", "took 980 us"), Ok((980.0, Unit::Plain)));
        assert_eq!(read(r"t:lower=([\d.]+)", "7requests"), Ok((7.0, Unit::Plain)));
        assert_eq!(read(r"t:lower=([\d.]+)", "7m"), Ok((7.0, Unit::Plain)));
    }

    #[test]
    fn a_group_with_an_unknown_unit_is_not_a_number() {
        for text in ["7m", "7 requests", "fast", "", "inf", "nan", "1,23", "12,3456", "1.2.3", "1e999"] {
            assert_eq!(number(text, ""), None, "{text:?}");
        }
        for (text, value) in [
            ("1e3", 1e3),
            ("-2.5", -2.5),
            ("1,234,567.5", 1_234_567.5),
            (".5", 0.5),
            (" 7 ", 7.0),
            ("2E-3", 2e-3),
        ] {
            assert_eq!(number(text, ""), Some((value, Unit::Plain)), "{text:?}");
        }
        let absence = read(r"t:lower=took (\S+)", "took \u{1b}[31m9").unwrap_err();
        assert_eq!(absence.reason, Reason::Unparsable);
        assert!(!absence.detail.contains('\u{1b}'), "{absence}");
    }

    #[test]
    fn a_json_path_is_followed() {
        let json = r#"{"a":{"b":[1,2.5,{"c d":"1.2ms"}]},"n":null}"#;
        for (path, value) in [
            ("$.a.b[0]", (1.0, Unit::Plain)),
            ("$.a.b[-2]", (2.5, Unit::Plain)),
            ("$.a.b[2][\"c d\"]", (1.2e6, Unit::Nanoseconds)),
            ("$['a'].b[1]", (2.5, Unit::Plain)),
        ] {
            assert_eq!(read(&format!("x:lower={path}"), json), Ok(value), "{path}");
        }
        for (path, reason) in [
            ("$.a.c", Reason::NotFound),
            ("$.a.b[3]", Reason::NotFound),
            ("$.a.b[-4]", Reason::NotFound),
            ("$.a.b.c", Reason::NotFound),
            ("$.n", Reason::Unparsable),
            ("$.a", Reason::Unparsable),
        ] {
            assert_eq!(read(&format!("x:lower={path}"), json).unwrap_err().reason, reason, "{path}");
        }
    }

    #[test]
    fn json_is_found_behind_a_log_and_the_last_counts() {
        let output = "[info] start\n{\"x\": 1}\nmore\n{\n  \"x\": 2,\n  \"y\": [\n{\"x\": 9}\n]}\nbye\n";
        assert_eq!(read("x:lower=$.x", output).unwrap().0, 2.0);
        assert_eq!(read("x:lower=$[1].x", "[{\"x\":1},{\"x\":3}]").unwrap().0, 3.0);
        let absence = read("x:lower=$.x", "plain text\n").unwrap_err();
        assert!(absence.detail.contains("no JSON") && absence.detail.contains("plain text"), "{absence}");
    }

    #[test]
    fn a_metric_that_never_matches_shows_the_end_of_the_output_escaped() {
        let output = format!("{}\nfirst\n\nsecond \u{1b}[2J\nthird\n", "x".repeat(1000));
        let absence = read(r"t:lower=took (\d+)", &output).unwrap_err();
        assert_eq!(absence.reason, Reason::NotFound);
        assert!(absence.detail.contains(r"first\nsecond \u{1b}[2J\nthird"), "{absence}");
        assert!(absence.detail.contains(r"took (\d+)"), "{absence}");
        assert!(absence.detail.len() < 400 && !absence.detail.contains('\n'), "{absence}");
        let empty = read(r"t:lower=took (\d+)", "\n").unwrap_err();
        assert_eq!(empty.reason, Reason::NotFound);
        assert!(empty.detail.contains("empty"), "{empty}");
    }

    #[test]
    fn an_invalid_metric_is_refused_with_the_form() {
        for (metric, said) in [
            (r"took (\d+)", "no ="),
            (r"ops=(\d+)", "direction is missing"),
            (r":lower=(\d+)", "is not a valid name"),
            (r"a b:lower=(\d+)", "is not a valid name"),
            (r"t:down=(\d+)", "is not a direction"),
            (r"t:lower=\d+", "no parentheses"),
            (r"t:lower=", "no parentheses"),
            (r"t:lower=(\d+", "unclosed group"),
            (r"t:lower=$.", "expected .key"),
            (r"t:lower=$.a..b", "character 4"),
            (r"t:lower=$[a]", "expected .key"),
            (r"t:lower=$['a]", "expected .key"),
            (r"t:lower=$[0]x", "character 5"),
        ] {
            let message = refusal(metric);
            assert!(message.contains(said), "{metric}: {message}");
            assert!(message.contains("NAME:lower=PATTERN") && !message.contains('\n'), "{message}");
        }
    }
}
