//! `allocwall calibrate`: measures the prices of this machine.

use crate::printer::Printer;
use allocwall_measure::calibrate::{Calibration, Origin, facts, price_list};
use allocwall_model::catalogue::prices::{Group, describe};
use allocwall_model::recording::{Price, PriceList};
use allocwall_model::units::Absence;
use allocwall_report::{escape, text};
use anstyle::Style;
use anyhow::bail;
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::fmt::Write;
use std::process::ExitCode;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(clap::Args)]
pub struct Args {
    /// Measure again, even if prices of this machine are cached
    #[arg(long)]
    fresh: bool,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub fn run(args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    let bar = progress_bar(printer);
    let calibration =
        price_list(args.fresh, &mut |share| bar.set_position((share * BAR_STEPS as f32) as u64))?;
    bar.finish_and_clear();
    for warning in &calibration.warnings {
        printer.warn(warning);
    }
    // No price at all is a failure. If some prices are absent, each with its reason, that is a result.
    let nothing = nothing_priced(&calibration.list);
    match (&nothing, args.json) {
        (_, true) => printer.data(&json(&calibration)?)?,
        (Some(line), false) => bail!("{line}"),
        (None, false) => printer.data(&table(&calibration, now_unix_s(), printer.style()))?,
    }
    Ok(match nothing {
        Some(_) => ExitCode::FAILURE,
        None => ExitCode::SUCCESS,
    })
}

/// If there is no price at all: the most common reason, in one line.
fn nothing_priced(list: &PriceList) -> Option<String> {
    let shared = by_reason(list);
    let (absence, names) = shared.iter().rev().max_by_key(|(_, names)| names.len())?;
    let mend = absence.advice().into_iter().map(|advice| format!("; to fix this: {advice}"));
    list.prices.is_empty().then(|| {
        format!(
            "no event has a stable price here: {} ({} of {} events){}",
            absence.detail,
            names.len(),
            list.absent.len(),
            mend.collect::<String>()
        )
    })
}

/// Each distinct absence with the prices that share it, in the order of the list.
fn by_reason(list: &PriceList) -> Vec<(&Absence, Vec<&str>)> {
    let mut shared: Vec<(&Absence, Vec<&str>)> = Vec::new();
    for (name, absence) in &list.absent {
        match shared.iter_mut().find(|(known, _)| *known == absence) {
            Some((_, names)) => names.push(name),
            None => shared.push((absence, vec![name])),
        }
    }
    shared
}

const BAR_STEPS: u64 = 1000;

/// Drawn only when its position is set, between repetitions. A thread that draws would disturb the timed one.
fn progress_bar(printer: &Printer) -> ProgressBar {
    let target =
        if printer.progress() { ProgressDrawTarget::stderr_with_hz(5) } else { ProgressDrawTarget::hidden() };
    let style = ProgressStyle::with_template("measuring this machine's prices {bar:40} {percent} %")
        .unwrap_or_else(|_| ProgressStyle::default_bar());
    ProgressBar::with_draw_target(Some(BAR_STEPS), target).with_style(style)
}

fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// The documented JSON format. `version` increases if readers of an older version would misread it.
fn json(calibration: &Calibration) -> serde_json::Result<String> {
    let list = &calibration.list;
    let title = |name: &str| describe(name).map(|(_, title)| title);
    let value = serde_json::json!({
        "format": "allocwall-prices",
        "version": 1,
        "machine": list.machine,
        "measured_unix_s": list.measured_unix_s,
        "from_cache": calibration.origin == Origin::Cache,
        "file": calibration.file.as_ref().ok(),
        "unit": "nanoseconds per event, median and 95 % interval",
        "prices": list.prices.iter().map(|price| serde_json::json!({
            "name": price.name, "title": title(&price.name), "ns": price.ns, "repetitions": price.repetitions,
        })).collect::<Vec<_>>(),
        "absent": list.absent.iter().map(|(name, absence)| serde_json::json!({
            "name": name, "title": title(name),
            "reason": absence.reason, "detail": absence.detail, "mend": absence.mend,
        })).collect::<Vec<_>>(),
        "facts": facts(list),
        "warnings": calibration.warnings,
    });
    Ok(serde_json::to_string_pretty(&value)? + "\n")
}

const TITLE: usize = 50;
/// On a narrower page, the figures of a price have a line of their own.
const ONE_LINE: usize = 98;
const NARROWEST: usize = 40;

fn table(calibration: &Calibration, now_unix_s: u64, style: text::Style) -> String {
    let (list, width) = (&calibration.list, style.width.max(NARROWEST));
    let mut out = String::new();
    let head = format!("Prices on {}.", list.machine);
    paragraph(&mut out, width, "", &head);
    paragraph(&mut out, width, "", &provenance(calibration, now_unix_s));

    let bold = if style.color { Style::new().bold() } else { Style::new() };
    for group in Group::ALL {
        let prices: Vec<&Price> =
            list.prices.iter().filter(|price| group_of(&price.name) == Some(group)).collect();
        if prices.is_empty() {
            continue;
        }
        if width < ONE_LINE {
            let _ = writeln!(out, "\n{bold}{}{bold:#}  median, 95 % interval", group.title());
        } else {
            let _ = writeln!(
                out,
                "\n{bold}{:<52}{bold:#}{:>10}   {:<22}{:>11}",
                group.title(),
                "median",
                "95 % interval",
                "repetitions"
            );
        }
        for price in prices {
            row(&mut out, width, price);
        }
    }
    absences(&mut out, width, list, bold);

    let facts = facts(list);
    if !facts.is_empty() {
        let _ = writeln!(out, "\n{bold}Conclusions{bold:#}");
        for fact in facts {
            paragraph(&mut out, width, "  ", &fact);
        }
    }
    out
}

fn group_of(name: &str) -> Option<Group> {
    describe(name).map(|(entry, _)| entry.group)
}

fn provenance(calibration: &Calibration, now_unix_s: u64) -> String {
    let kept = |verb: &str| match &calibration.file {
        Ok(file) => format!("{verb} {}", escape::terminal(&file.display().to_string())),
        Err(_) => "not kept in a file".to_owned(),
    };
    match calibration.origin {
        Origin::Measured => format!("Measured just now, {}.", kept("kept in")),
        Origin::Cache => format!(
            "Measured {} ago, {}; --fresh measures again.",
            age(Duration::from_secs(now_unix_s.saturating_sub(calibration.list.measured_unix_s))),
            kept("from")
        ),
    }
}

fn age(since: Duration) -> String {
    let seconds = since.as_secs();
    match seconds {
        0..120 => format!("{seconds} s"),
        120..7200 => format!("{} min", seconds / 60),
        7200..172_800 => format!("{} h", seconds / 3600),
        _ => format!("{} days", seconds / 86_400),
    }
}

fn row(out: &mut String, width: usize, price: &Price) {
    let title = describe(&price.name).map_or_else(|| escape::terminal(&price.name), |(_, title)| title);
    let unit = Unit::of(price.ns.point);
    let interval = format!("{} to {} {}", unit.show(price.ns.low), unit.show(price.ns.high), unit.name);
    let median = format!("{:>7} {:<2}", unit.show(price.ns.point), unit.name);
    if width < ONE_LINE {
        paragraph(out, width, "  ", &title);
        let _ = writeln!(out, "  {median}   {interval}");
    } else {
        let _ = writeln!(out, "  {title:<TITLE$}{median}   {interval:<22}{:>11}", price.repetitions);
    }
}

/// One unit for a price and its interval, so that they are easy to compare.
struct Unit {
    name: &'static str,
    ns: f64,
}

impl Unit {
    fn of(ns: f64) -> Unit {
        match ns {
            _ if ns < 1e3 => Unit { name: "ns", ns: 1.0 },
            _ if ns < 1e6 => Unit { name: "µs", ns: 1e3 },
            _ => Unit { name: "ms", ns: 1e6 },
        }
    }

    /// Three significant digits; no decimals from 100 on.
    fn show(&self, ns: f64) -> String {
        let value = ns / self.ns;
        match value {
            _ if value < 10.0 => format!("{value:.2}"),
            _ if value < 100.0 => format!("{value:.1}"),
            _ => format!("{value:.0}"),
        }
    }
}

fn absences(out: &mut String, width: usize, list: &PriceList, bold: Style) {
    if list.absent.is_empty() {
        return;
    }
    let _ = writeln!(out, "\n{bold}Not measured{bold:#}");
    for (absence, names) in by_reason(list) {
        let titles: Vec<String> = names
            .iter()
            .map(|name| describe(name).map_or_else(|| escape::terminal(name), |(_, title)| title))
            .collect();
        paragraph(out, width, "  ", &format!("{}: {absence}.", titles.join("; ")));
        for (n, advice) in absence.mend.iter().enumerate() {
            let lead = if n == 0 { "to fix this:" } else { "or" };
            paragraph(out, width, "    ", &format!("{lead} {}", advice.line()));
        }
    }
}

/// Escapes text from outside (a CPU's name, a path), breaks it at blanks and indents it.
fn paragraph(out: &mut String, width: usize, indent: &str, text: &str) {
    let text = escape::terminal(text);
    let mut column = 0;
    for word in text.split(' ').filter(|word| !word.is_empty()) {
        let length = word.chars().count();
        if column > 0 && column + 1 + length <= width {
            out.push(' ');
            column += 1;
        } else {
            if column > 0 {
                out.push('\n');
            }
            let hang = if column > 0 && !indent.is_empty() { "  " } else { "" };
            out.push_str(indent);
            out.push_str(hang);
            column = indent.len() + hang.len();
        }
        out.push_str(word);
        column += length;
    }
    out.push('\n');
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::catalogue::advice::Advice;
    use allocwall_model::catalogue::prices::*;
    use allocwall_model::units::{Interval, Reason};

    fn calibration() -> Calibration {
        let price = |name: &str, low, point, high| Price {
            name: name.into(),
            ns: Interval::new(low, point, high),
            repetitions: 200,
        };
        Calibration {
            list: PriceList {
                measured_unix_s: 1000,
                machine: "Fast\u{1b}[31m CPU, 2 CPUs, 24.00 GiB, KVM, Linux 6.18.44, glibc 2.36".into(),
                prices: vec![
                    price(TOUCH_4K, 1530.0, 1550.0, 1580.0),
                    price(TOUCH_2M_IDLE, 4_000_000.0, 4_100_000.0, 112_345_678.0),
                    price("fault_threads_2", 1800.0, 1900.0, 2100.0),
                    price(MALLOC_CACHED, 7.1, 7.25, 7.4),
                    price("handoff_same_l3", 54.0, 55.1, 57.7),
                ],
                absent: vec![(
                    TOUCH_2M.into(),
                    Absence::new(Reason::Disabled, "transparent huge pages are switched off (mode `never`)")
                        .mend("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled; then allocwall calibrate --fresh"),
                )],
            },
            origin: Origin::Cache,
            file: Ok("/home/\u{1b}u/.cache/allocwall/prices-00000000.json".into()),
            warnings: vec![],
        }
    }

    #[test]
    fn the_table_fits_the_width_and_has_no_escapes() {
        for width in [100, 98, 80, 60, 40, 1] {
            let text = table(&calibration(), 1000, text::Style { color: false, width });
            // A path is one word.
            let is_wide =
                |line: &&str| line.chars().count() > width.max(NARROWEST) && line.trim().contains(' ');
            assert_eq!(text.lines().find(is_wide), None, "{width}");
        }
        let text = table(&calibration(), 1000 + 3 * 3600, text::Style::FILE);
        for line in text.lines() {
            assert!(
                line.chars().count() <= text::Style::FILE.width,
                "{} columns: {line}",
                line.chars().count()
            );
        }
        assert!(!text.contains('\u{1b}'), "{text}");
        assert!(text.contains("Measured 3 h ago"), "{text}");
        assert!(text.contains("1.53 to 1.58 µs"), "{text}");
        assert!(text.contains("mode `never`"), "{text}");
        assert!(text.contains("to fix this: echo madvise"), "{text}");
        assert!(
            table(&calibration(), 0, text::Style { color: true, ..text::Style::FILE }).contains("\u{1b}[1m")
        );
    }

    fn too_few() -> Absence {
        Absence::new(Reason::TooLittle, "too few repetitions")
            .mend(Advice::command("allocwall calibrate --fresh"))
            .mend("use a less busy machine")
    }

    #[test]
    fn a_reason_that_many_prices_share_is_printed_once() {
        let mut calibration = calibration();
        for name in [TOUCH_4K_IDLE, ZERO_4K, SYSCALL] {
            calibration.list.absent.push((name.into(), too_few()));
        }
        let text = table(&calibration, 1000, text::Style::FILE);
        assert_eq!(text.matches("too few repetitions").count(), 1, "{text}");
        let ways = "\n    to fix this: $ allocwall calibrate --fresh\n    or use a less busy machine\n";
        assert_eq!(text.matches(ways).count(), 1, "{text}");
        let unwrapped = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for name in [TOUCH_2M, TOUCH_4K_IDLE, ZERO_4K, SYSCALL] {
            let title = describe(name).unwrap().1;
            assert!(unwrapped.contains(title.split(',').next().unwrap()), "{title} {text}");
        }
    }

    #[test]
    fn without_any_price_the_error_is_one_line() {
        let mut calibration = calibration();
        assert_eq!(nothing_priced(&calibration.list), None);
        calibration.list.prices.clear();
        for name in [TOUCH_4K_IDLE, ZERO_4K, SYSCALL] {
            calibration.list.absent.push((name.into(), too_few()));
        }
        let line = nothing_priced(&calibration.list).unwrap();
        assert_eq!(
            line,
            "no event has a stable price here: too few repetitions (3 of 4 events); \
             to fix this: allocwall calibrate --fresh, or use a less busy machine"
        );
    }

    #[test]
    fn json_holds_prices_and_reasons() {
        let value: serde_json::Value = serde_json::from_str(&json(&calibration()).unwrap()).unwrap();
        assert_eq!(value["version"], 1);
        assert_eq!(value["from_cache"], true);
        assert_eq!(value["prices"][0]["ns"]["point"], 1550.0);
        assert_eq!(value["absent"][0]["reason"], "disabled");
    }

    #[test]
    fn units() {
        let show = |ns: f64| format!("{} {}", Unit::of(ns).show(ns), Unit::of(ns).name);
        assert_eq!(show(7.25), "7.25 ns");
        assert_eq!(show(999.0), "999 ns");
        assert_eq!(show(1550.0), "1.55 µs");
        assert_eq!(show(102_400.0), "102 µs");
        assert_eq!(show(4_100_000.0), "4.10 ms");
    }

    #[test]
    fn ages() {
        let show = |seconds| age(Duration::from_secs(seconds));
        assert_eq!([show(5), show(600), show(10_000), show(900_000)], ["5 s", "10 min", "2 h", "10 days"]);
    }
}
