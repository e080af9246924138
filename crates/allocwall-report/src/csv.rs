//! Cells of CSV (RFC 4180).

use super::escape;

/// Empty if it is absent or not finite.
pub fn number(value: Option<f64>) -> String {
    match value {
        Some(value) if value.is_finite() => value.to_string(),
        _ => String::new(),
    }
}

/// A spreadsheet runs a cell that begins like a formula. An apostrophe makes it text (OWASP, CSV Injection).
pub fn text(cell: &str) -> String {
    let cell = escape::terminal(cell);
    let starts = cell.trim_start().chars().next();
    let formula = matches!(starts, Some('=' | '+' | '-' | '@' | '＝' | '＋' | '－' | '＠'));
    let cell = if formula { format!("'{cell}") } else { cell };
    if cell.contains([',', '"', '\r', '\n']) || formula {
        format!("\"{}\"", cell.replace('"', "\"\""))
    } else {
        cell
    }
}

#[cfg(test)]
pub mod reading {
    /// One record, read back by the RFC's grammar.
    pub fn cells(line: &str) -> Vec<String> {
        let (mut cells, mut quoted) = (vec![String::new()], false);
        let mut chars = line.chars().peekable();
        while let Some(c) = chars.next() {
            let cell = cells.last_mut().unwrap();
            match c {
                '"' if quoted && chars.peek() == Some(&'"') => cell.push(chars.next().unwrap()),
                '"' => quoted = !quoted,
                ',' if !quoted => cells.push(String::new()),
                c => cell.push(c),
            }
        }
        assert!(!quoted, "{line}");
        cells
    }
}
