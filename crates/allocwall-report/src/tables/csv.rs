//! A table as CSV (RFC 4180): a header, then one line for each row.

use super::{Cells, Column, Table};
use crate::csv::{number, text};

/// Lines end with CR LF.
pub fn file(table: &Table) -> String {
    let head: Vec<String> = table.columns.iter().map(|column| column.name.to_owned()).collect();
    let mut out = head.join(",") + "\r\n";
    for row in 0..table.rows {
        let cells: Vec<String> = table.columns.iter().map(|column| cell(column, row)).collect();
        out.push_str(&cells.join(","));
        out.push_str("\r\n");
    }
    out
}

fn cell(column: &Column, row: usize) -> String {
    match &column.cells {
        Cells::Whole(cells) => cells[row].map_or(String::new(), |value| value.to_string()),
        Cells::Real(cells) => number(cells[row]),
        Cells::Text(cells) => cells[row].as_deref().map_or(String::new(), text),
    }
}

#[cfg(test)]
mod tests {
    use super::super::tests::all;
    use super::*;
    use crate::csv::reading::cells;
    use crate::sketches;

    #[test]
    fn every_row_has_every_column() {
        for (name, table) in all() {
            let file = file(&table);
            assert_eq!(file.matches("\r\n").count(), 1 + table.rows, "{name}");
            for line in file.lines() {
                assert_eq!(cells(line).len(), table.columns.len(), "{name}: {line}");
            }
        }
    }

    #[test]
    fn names_run_no_formula_and_break_no_row() {
        let mut rec = sketches::first_touch().rec;
        for (name, cell) in [
            ("=cmd|' /C calc'!A0", "'=cmd|' /C calc'!A0"),
            ("a\"b,\r\nc", "a\"b,\\u{d}\\u{a}c"),
            ("f(x)", "f(x)"),
        ] {
            rec.frames[0].symbol = Some(name.to_owned());
            let table = super::super::samples(&rec).unwrap();
            let at = table.columns.iter().position(|column| column.name == "function").unwrap();
            let file = file(&table);
            assert_eq!(cells(file.split("\r\n").nth(1).unwrap())[at], cell);
        }
    }
}
