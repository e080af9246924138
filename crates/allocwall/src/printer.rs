//! The only place that writes to stdout and stderr: data goes to stdout, messages go to stderr.

use allocwall_report::text::Style;
use anyhow::Context;
use std::io::{ErrorKind, IsTerminal, Write};
use std::os::fd::AsFd;

pub struct Printer {
    stdout_terminal: bool,
    stderr_terminal: bool,
}

impl Printer {
    pub fn new() -> Self {
        Printer {
            stdout_terminal: std::io::stdout().is_terminal(),
            stderr_terminal: std::io::stderr().is_terminal(),
        }
    }

    /// Colour is for terminals that know it, unless NO_COLOR (https://no-color.org) is set.
    pub fn color(&self) -> bool {
        self.stdout_terminal && !is_dumb() && std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
    }

    /// Layout of reports on stdout.
    pub fn style(&self) -> Style {
        Style { color: self.color(), width: width(std::io::stdout()) }
    }

    /// Progress bars are drawn only on a terminal.
    pub fn progress(&self) -> bool {
        self.stderr_terminal
    }

    pub fn stdout_is_terminal(&self) -> bool {
        self.stdout_terminal
    }

    /// Columns for messages.
    pub fn talk_width(&self) -> usize {
        width(std::io::stderr())
    }

    /// Writes data verbatim. A closed pipe (`| head`) is not an error; a full disk is.
    pub fn data(&self, text: &str) -> anyhow::Result<()> {
        self.bytes(text.as_bytes())
    }

    /// The same for data that is no text.
    pub fn bytes(&self, bytes: &[u8]) -> anyhow::Result<()> {
        self.read_by_anyone(bytes).map(drop)
    }

    /// The same for data that follows without end: false if nobody reads it any more.
    pub fn read_by_anyone(&self, bytes: &[u8]) -> anyhow::Result<bool> {
        let mut out = std::io::stdout().lock();
        match out.write_all(bytes).and_then(|()| out.flush()) {
            Ok(()) => Ok(true),
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(false),
            Err(e) => Err(e).context("cannot write to standard output"),
        }
    }

    /// Replaces the current progress line. Only on a terminal.
    pub fn progress_line(&self, text: &str) {
        if self.stderr_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K{}", one_line(text));
            let _ = std::io::stderr().flush();
        }
    }

    /// Removes the progress line.
    pub fn clear_line(&self) {
        if self.stderr_terminal {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
            let _ = std::io::stderr().flush();
        }
    }

    /// Draws a text of several lines in the place of the last one, which had so many lines. Only on a terminal. Returns its
    /// number of lines.
    pub fn redraw(&self, text: &str, before: usize) -> usize {
        if !self.stderr_terminal {
            return 0;
        }
        let mut drawn = if before > 0 { format!("\x1b[{before}A\x1b[J") } else { String::new() };
        for line in text.lines() {
            drawn.push_str(&one_line(line));
            drawn.push('\n');
        }
        let _ = std::io::stderr().write_all(drawn.as_bytes());
        text.lines().count()
    }

    /// One line to the user.
    pub fn note(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "{}", one_line(text));
    }

    pub fn warn(&self, text: &str) {
        let _ = writeln!(std::io::stderr(), "warning: {}", one_line(text));
    }

    pub fn error(&self, error: &anyhow::Error) {
        let _ = writeln!(std::io::stderr(), "error: {}", one_line(&format!("{error:#}")));
    }
}

/// Whether the terminal knows no escape sequences.
pub fn is_dumb() -> bool {
    std::env::var_os("TERM").is_none_or(|term| term.is_empty() || term == "dumb")
}

/// What COLUMNS says, if it is a number above 0.
pub fn columns() -> Option<usize> {
    std::env::var("COLUMNS").ok()?.parse().ok().filter(|columns| *columns > 0)
}

/// Wider text is hard to read.
const WIDEST: usize = 140;

/// Columns of the output: COLUMNS, else the width of the terminal, at most `WIDEST`.
fn width(to: impl AsFd) -> usize {
    let terminal = || terminal_size::terminal_size_of(to).map(|(width, _)| usize::from(width.0));
    columns().or_else(terminal).unwrap_or(Style::FILE.width).min(WIDEST)
}

/// Names from other processes may hold escape sequences, so only printable text reaches the terminal.
fn one_line(text: &str) -> String {
    allocwall_report::escape::terminal(text)
}

/// A progress bar that is drawn only on a terminal. Dropping it clears it.
pub struct Bar(Option<indicatif::ProgressBar>);

impl Printer {
    pub fn bar(&self, what: &str, length: std::time::Duration) -> Bar {
        if !self.progress() || length < std::time::Duration::from_secs(2) {
            return Bar(None);
        }
        let bar = indicatif::ProgressBar::new(1000);
        let seconds = length.as_secs_f64();
        if let Ok(style) = indicatif::ProgressStyle::with_template("{prefix} {wide_bar} {msg}") {
            bar.set_style(style);
        }
        bar.set_prefix(what.to_string());
        bar.set_message(format!("{seconds:.0} s"));
        Bar(Some(bar))
    }
}

impl Bar {
    /// `part` from 0 to 1.
    pub fn set(&self, part: f64) {
        if let Some(bar) = &self.0 {
            bar.set_position((part * 1000.0) as u64);
        }
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}
