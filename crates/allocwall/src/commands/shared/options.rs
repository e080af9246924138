//! Values of options, and the options of a saved trial.

use std::time::Duration;

/// A time above 0.
pub fn parse_time(text: &str) -> Result<Duration, String> {
    const FORM: &str = "a time is a number followed by ms, s, m or h: 500ms, 15s, 2m";
    let (number, unit) =
        text.split_at(text.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(text.len()));
    let scale = match unit {
        "" | "s" => 1.0,
        "ms" => 1e-3,
        "m" => 60.0,
        "h" => 3600.0,
        _ => return Err(FORM.into()),
    };
    let number: f64 = number.parse().map_err(|_| FORM)?;
    let time = Duration::try_from_secs_f64(number * scale).map_err(|_| "the time is out of range")?;
    if time.is_zero() { Err("a time must be above 0".into()) } else { Ok(time) }
}

/// The options that say how a run is measured: not the arms, the number of blocks or the output.
pub fn how(options: &[String]) -> Vec<String> {
    const OTHERS: &[&str] = &[
        "--with",
        "-w",
        "--blocks",
        "--budget",
        "--effect",
        "--seed",
        "--output",
        "-o",
        "--continue",
        "--fail-on",
    ];
    let mut kept = Vec::new();
    let mut words = options.iter();
    while let Some(word) = words.next() {
        let name = word.split('=').next().unwrap_or(word);
        if OTHERS.contains(&name) {
            if name == word {
                words.next();
            }
        } else if !["--json", "--csv"].contains(&name) {
            kept.push(word.clone());
        }
    }
    kept
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn how_keeps_only_options_of_measurement() {
        let words = |text: &str| -> Vec<String> { text.split(' ').map(str::to_owned).collect() };
        let typed = words("--with a --load http://x --blocks 6 --with=b --at 60% --json -o f --rest 1s");
        assert_eq!(how(&typed), words("--load http://x --at 60% --rest 1s"));
    }
}
