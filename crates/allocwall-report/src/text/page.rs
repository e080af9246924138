//! A page of text, and the forms that numbers have on it.

use super::super::escape::terminal;
use super::super::layout::{columns, elide_end, left, right, shell_lines, wrap};
use super::super::palette;
use super::Style;
use allocwall_diagnose::ShellLine;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::units::Interval;

const NARROWEST: usize = 40;

#[derive(Clone, Copy)]
pub enum Ink {
    Plain,
    Heading,
    Bad,
    Warn,
    Good,
    Faint,
    /// The colour of a line of the bill.
    Cost(CostClass),
}

impl Ink {
    /// ANSI SGR parameters (ECMA-48).
    fn sgr(self) -> Option<String> {
        let fixed = match self {
            Ink::Plain => return None,
            Ink::Cost(class) => return palette::sgr(class),
            Ink::Heading => "1",
            Ink::Bad => "1;31",
            Ink::Warn => "33",
            Ink::Good => "32",
            Ink::Faint => "2",
        };
        Some(fixed.to_owned())
    }
}

pub struct Page {
    pub out: String,
    color: bool,
    pub width: usize,
}

impl Page {
    pub fn new(style: Style) -> Self {
        Page { out: String::new(), color: style.color, width: style.width.max(NARROWEST) }
    }

    pub fn line(&mut self, text: &str) {
        self.out.push_str(text.trim_end());
        self.out.push('\n');
    }

    pub fn blank(&mut self) {
        self.out.push('\n');
    }

    pub fn paint(&self, ink: Ink, text: &str) -> String {
        match ink.sgr() {
            Some(sgr) if self.color && !text.is_empty() => format!("\x1b[{sgr}m{text}\x1b[0m"),
            _ => text.to_string(),
        }
    }

    /// A heading in capitals, which is visible without colour, and a short explanation.
    pub fn section(&mut self, title: &str, aside: &str) {
        self.blank();
        let room = self.width.saturating_sub(columns(title) + 2);
        let aside = elide_end(aside, room);
        let line = format!("{}  {}", self.paint(Ink::Heading, title), self.paint(Ink::Faint, &aside));
        self.line(if aside.is_empty() { line.trim_end_matches(' ') } else { &line });
    }

    /// `lead`, then `text` wrapped in a column that starts at `indent`.
    pub fn hang(&mut self, lead: &str, lead_ink: Ink, indent: usize, text: &str, ink: Ink) {
        // On a narrow page the column would be too narrow, so the text starts on its own line.
        let beside = self.width >= indent + 24;
        let column = if beside { indent } else { 4 };
        let lines = wrap(&terminal(text), self.width - column);
        let lead_lines = if beside { vec![lead.to_string()] } else { vec![elide_end(lead, self.width)] };
        if beside {
            let first = format!(
                "{}{}",
                self.paint(lead_ink, &left(&lead_lines[0], indent)),
                self.paint(ink, &lines[0])
            );
            self.line(&first);
        } else {
            let first = self.paint(lead_ink, &lead_lines[0]);
            self.line(&first);
            self.line(&format!("    {}", self.paint(ink, &lines[0])));
        }
        for line in &lines[1..] {
            let line = format!("{}{}", " ".repeat(column), self.paint(ink, line));
            self.line(&line);
        }
    }

    /// A shell command that can be copied. Long ones are broken between words with a backslash. A remark that does not
    /// fit is wrapped as a comment on its own lines.
    pub fn command(&mut self, indent: usize, line: &ShellLine) {
        self.command_after("", indent, line);
    }

    pub fn command_after(&mut self, heading: &str, indent: usize, line: &ShellLine) {
        let remark = line.remark.as_deref();
        let lead = format!(
            "{}{}",
            self.paint(Ink::Heading, heading),
            self.paint(Ink::Faint, &right("$ ", indent + 2 - columns(heading)))
        );
        let column = indent + 2;
        let command = terminal(&line.command);
        let whole = match remark {
            Some(remark) => format!("{command}  # {}", terminal(remark)),
            None => command.clone(),
        };
        if column + columns(&whole) <= self.width {
            return self.line(&format!("{lead}{whole}"));
        }
        let lines = shell_lines(&command, self.width, column);
        for (nth, line) in lines.iter().enumerate() {
            let lead = if nth == 0 { &lead } else { "" };
            self.line(&format!("{lead}{line}"));
        }
        if let Some(remark) = remark {
            let tail = format!("  # {}", terminal(remark));
            let last = lines.last().map_or(0, |l| columns(l)) + if lines.len() == 1 { column } else { 0 };
            if last + columns(&tail) <= self.width {
                self.out.pop();
                return self.line(&self.paint(Ink::Faint, &tail));
            }
            self.hang(&format!("{}# ", " ".repeat(column)), Ink::Faint, column + 2, remark, Ink::Faint);
        }
    }

    pub fn wrapped(&mut self, indent: usize, text: &str, ink: Ink) {
        self.hang("", Ink::Plain, indent, text, ink);
    }
}

/// The paragraphs that `write` prints, unbroken and without colour: for reports that break lines themselves.
pub(crate) fn paragraphs(write: impl FnOnce(&mut Page)) -> Vec<String> {
    const UNBROKEN: usize = 1 << 16;
    let mut page = Page::new(Style { color: false, width: UNBROKEN });
    write(&mut page);
    page.out.lines().map(str::trim).filter(|line| !line.is_empty()).map(String::from).collect()
}

/// A share of `width` columns, to an eighth of a column.
pub fn bar(share: f64, width: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * width as f64 * 8.0).round() as usize;
    let mut bar = "█".repeat(eighths / 8);
    bar.extend(['▏', '▎', '▍', '▌', '▋', '▊', '▉'].get((eighths % 8).wrapping_sub(1)));
    bar
}

pub(crate) fn percents(share: Interval) -> String {
    format!("{:.1} to {:.1} %", share.low * 100.0, share.high * 100.0)
}

pub(crate) fn range(value: Interval, decimals: usize) -> String {
    if value.low == value.high {
        return "exact".to_string();
    }
    format!("{:.decimals$} to {:.decimals$}", value.low, value.high)
}

/// A fixed-point number of `decimals` places.
pub(crate) fn decimal(units: u64, decimals: u32) -> String {
    let base = 10u64.pow(decimals);
    format!("{}.{:0width$}", units / base, units % base, width = decimals as usize)
}

pub fn bytes(n: u64) -> String {
    const UNITS: [(&str, u64); 3] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match UNITS.iter().find(|(_, size)| n >= *size) {
        Some((unit, size)) => format!("{:.1} {unit}", n as f64 / *size as f64),
        None => format!("{n} B"),
    }
}

pub(super) fn basename(path: &str) -> &str {
    path.rsplit('/').next().unwrap_or(path)
}
