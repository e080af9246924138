//! The terminal while a screen is shown: raw keys, the alternate screen, and only those lines that changed.

use crate::printer::Printer;
use rustix::termios::{self, OptionalActions, Termios};
use std::io::stdin;

/// Alternate screen, no cursor, no wrapping of lines (xterm, ctlseqs).
const OPEN: &str = "\x1b[?1049h\x1b[?25l\x1b[?7l\x1b[2J";
const CLOSE: &str = "\x1b[?7h\x1b[?25h\x1b[?1049l";

/// Dropping it restores the terminal.
pub struct Terminal<'a> {
    printer: &'a Printer,
    before: Termios,
    /// What is shown, and how large the terminal was.
    shown: Vec<String>,
    size: (usize, usize),
}

impl<'a> Terminal<'a> {
    /// # Errors
    /// Standard input is no terminal, or standard output can't be written.
    pub fn open(printer: &'a Printer) -> anyhow::Result<Terminal<'a>> {
        let before = termios::tcgetattr(stdin())?;
        let mut raw = before.clone();
        raw.make_raw();
        termios::tcsetattr(stdin(), OptionalActions::Flush, &raw)?;
        let terminal = Terminal { printer, before, shown: vec![], size: (0, 0) };
        printer.data(OPEN)?;
        Ok(terminal)
    }

    /// Columns and rows.
    pub fn size() -> (usize, usize) {
        let known = terminal_size::terminal_size();
        known.map_or((80, 24), |(width, height)| (usize::from(width.0), usize::from(height.0)))
    }

    /// Shows these lines from the top; the rest is empty. None of them may be wider than the terminal.
    ///
    /// # Errors
    /// The terminal is gone.
    pub fn show(&mut self, lines: &[String]) -> anyhow::Result<()> {
        let size = Terminal::size();
        let mut out = String::new();
        if size != self.size {
            out.push_str("\x1b[2J");
            self.shown.clear();
            self.size = size;
        }
        let lines = &lines[..lines.len().min(size.1)];
        for nth in 0..lines.len().max(self.shown.len()) {
            let line = lines.get(nth).map_or("", String::as_str);
            if self.shown.get(nth).map(String::as_str) != Some(line) {
                out.push_str(&format!("\x1b[{};1H\x1b[K{line}", nth + 1));
            }
        }
        self.shown = lines.to_vec();
        if out.is_empty() { Ok(()) } else { self.printer.data(&out) }
    }
}

impl Drop for Terminal<'_> {
    fn drop(&mut self) {
        let _ = self.printer.data(CLOSE);
        let _ = termios::tcsetattr(stdin(), OptionalActions::Flush, &self.before);
    }
}
