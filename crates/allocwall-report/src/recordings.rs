//! The list of recordings: time, target, verdict.

use super::layout::{columns, elide_middle};
use super::text::{Ink, Page, Style, command};
use allocwall_diagnose::{ShellLine, Verdict, main_process};
use allocwall_model::recording::Recording;
use allocwall_model::shell::quoted;

/// The entry of one recording, newline-terminated: its time and target, its verdict, and the command that reports it. `judged`
/// is the reason if it can't be read.
pub fn entry(judged: Result<(&Recording, &Verdict), String>, path: &str, style: Style) -> String {
    let mut page = Page::new(style);
    match judged {
        Ok((recording, verdict)) => {
            let time = utc(recording.meta.started_unix_ms / 1000);
            let target = main_process(recording).map_or_else(|| "no process found".to_owned(), command);
            let room = page.width.saturating_sub(columns(&time) + 2);
            let line = format!("{time}  {}", page.paint(Ink::Heading, &elide_middle(&target, room)));
            page.line(&line);
            let ink = if verdict.walls.is_empty() { Ink::Good } else { Ink::Bad };
            page.wrapped(2, &verdict.sentence, ink);
        }
        Err(why) => page.wrapped(0, &why, Ink::Warn),
    }
    page.command(2, &ShellLine::from(format!("allocwall report {}", quoted(path))));
    page.out
}

/// `2026-11-27 23:10:55 UTC`. The date by Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days, for
/// days since 1970.
pub(crate) fn utc(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    // Years of this calendar start in March, so that the day that is added in leap years is the last one.
    let day = days + 719_468;
    let (era, of_era) = (day / 146_097, day % 146_097);
    let year_of_era = (of_era - of_era / 1_460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month_from_march = (5 * of_year + 2) / 153;
    let day_of_month = of_year - (153 * month_from_march + 2) / 5 + 1;
    let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
    let year = era * 400 + year_of_era + u64::from(month <= 2);
    format!(
        "{year}-{month:02}-{day_of_month:02} {:02}:{:02}:{:02} UTC",
        second / 3600,
        second / 60 % 60,
        second % 60
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::sketches;

    #[test]
    fn times_are_those_of_the_calendar() {
        // `date -u -d @N`.
        for (unix_s, text) in [
            (0, "1970-01-01 00:00:00 UTC"),
            (951_782_399, "2000-02-28 23:59:59 UTC"),
            (951_782_400, "2000-02-29 00:00:00 UTC"),
            (1_760_000_000, "2025-10-09 08:53:20 UTC"),
            (4_102_444_799, "2099-12-31 23:59:59 UTC"),
        ] {
            assert_eq!(utc(unix_s), text);
        }
        // A recording may claim any time.
        assert!(utc(u64::MAX / 1000).ends_with("UTC"));
    }

    #[test]
    fn an_entry_has_time_target_verdict_and_command() {
        let case = sketches::throttled();
        let text = entry(Ok((&case.rec, &case.verdict)), "/state/my 42.allocwall", Style::FILE);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines[0], "2025-10-09 08:53:20 UTC  python3 -m service --port 8080");
        assert!(lines[1].starts_with("  The cgroup's CPU quota is the wall"), "{text}");
        assert_eq!(lines.last(), Some(&"  $ allocwall report '/state/my 42.allocwall'"));
    }

    #[test]
    fn a_damaged_recording_has_a_reason_and_no_verdict() {
        let text = entry(Err("it is \u{1b}[2J cut off".into()), "/state/42.allocwall", Style::FILE);
        assert_eq!(text, "it is \\u{1b}[2J cut off\n  $ allocwall report /state/42.allocwall\n");
    }
}
