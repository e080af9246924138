//! The formats of a report: what each one is for, and which report has it.

use super::usage::usage;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Format {
    /// The text that `diagnose` or `trial` prints
    Text,
    /// One page with charts, for a browser: no network, no other file (docs/html.md)
    Html,
    /// The versioned JSON document (docs/json.md, docs/trial-json.md)
    Json,
    /// SVG with kernel frames, coloured by the lines of the bill
    Flamegraph,
    /// Collapsed stacks: `root;…;leaf count`
    Collapsed,
    /// A profile for `go tool pprof` (binary)
    Pprof,
    /// A profile for profiler.firefox.com
    Firefox,
    /// A profile for speedscope.app
    Speedscope,
    /// A table for spreadsheets: of a recording the one that --table names, of a trial one row for each comparison
    Csv,
    /// The same table of a recording for notebooks (binary)
    Parquet,
}

/// What a report is made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Recording,
    Trial,
}

struct Row {
    format: Format,
    name: &'static str,
    /// Ends of file names that choose it; the longest one that fits decides.
    extensions: &'static [&'static str],
    binary: bool,
    sources: &'static [Source],
}

const fn row(format: Format, name: &'static str, extensions: &'static [&'static str]) -> Row {
    Row { format, name, extensions, binary: false, sources: &[Source::Recording] }
}

const BOTH: &[Source] = &[Source::Recording, Source::Trial];

/// In the order of [`Format`].
const FORMATS: &[Row] = &[
    Row { sources: BOTH, ..row(Format::Text, "text", &[".txt"]) },
    Row { sources: BOTH, ..row(Format::Html, "html", &[".html", ".htm"]) },
    Row { sources: BOTH, ..row(Format::Json, "json", &[".json"]) },
    row(Format::Flamegraph, "flamegraph", &[".svg"]),
    row(Format::Collapsed, "collapsed", &[".collapsed", ".folded"]),
    Row { binary: true, ..row(Format::Pprof, "pprof", &[".pb.gz", ".pprof"]) },
    row(Format::Firefox, "firefox", &[".firefox.json"]),
    row(Format::Speedscope, "speedscope", &[".speedscope.json"]),
    Row { sources: BOTH, ..row(Format::Csv, "csv", &[".csv"]) },
    Row { binary: true, ..row(Format::Parquet, "parquet", &[".parquet"]) },
];

/// A table of a recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Table {
    /// The lines of the bill
    Bill,
    /// Counters over time: CPU time, faults, memory, throttling
    Series,
    /// Page faults by owner over time
    Faults,
    /// The CPU samples
    Samples,
}

impl Format {
    fn row(self) -> &'static Row {
        &FORMATS[self as usize]
    }

    pub fn name(self) -> &'static str {
        self.row().name
    }

    /// That of the end of the file's name.
    pub fn named(output: &Path) -> Option<Format> {
        let name = output.file_name()?.to_str()?.to_lowercase();
        let longest = |row: &Row| {
            let ends = row.extensions.iter().filter(|end| name.ends_with(*end));
            ends.map(|end| end.len()).max()
        };
        FORMATS
            .iter()
            .filter_map(|row| Some((longest(row)?, row.format)))
            .max_by_key(|(length, _)| *length)
            .map(|(_, format)| format)
    }

    /// That of the options, else that of the file's name; text, if the name has no extension.
    ///
    /// # Errors
    /// Of usage: the extension is not known.
    pub fn chosen(given: Option<Format>, json: bool, output: Option<&Path>) -> anyhow::Result<Format> {
        if json {
            return Ok(Format::Json);
        }
        let Some(output) = output.filter(|_| given.is_none()) else {
            return Ok(given.unwrap_or(Format::Text));
        };
        match (Format::named(output), output.extension()) {
            (Some(format), _) => Ok(format),
            (None, None) => Ok(Format::Text),
            (None, Some(_)) => {
                let known: Vec<&str> = FORMATS.iter().flat_map(|row| row.extensions).copied().collect();
                Err(usage(format!(
                    "the name {} chooses no format: end it with {}, or add --format NAME",
                    output.display(),
                    known.join(", ")
                )))
            }
        }
    }

    /// Whether it can be made from this, for this table, and written there.
    ///
    /// # Errors
    /// Of usage.
    pub fn check(self, source: Source, table: Option<Table>, to_terminal: bool) -> anyhow::Result<()> {
        let row = self.row();
        if !row.sources.contains(&source) {
            let (what, advice) = match source {
                Source::Recording => ("a recording", ""),
                Source::Trial => {
                    ("a trial", "; a profile or a table comes from a recording: allocwall diagnose -- CMD")
                }
            };
            return Err(usage(format!("{what} has no format {}: use {}{advice}", row.name, names(source))));
        }
        if table.is_some() && (source == Source::Trial || !matches!(self, Format::Csv | Format::Parquet)) {
            return Err(usage("--table is for a recording with --format csv or --format parquet"));
        }
        if to_terminal && row.binary {
            return Err(usage(format!(
                "the format {} is binary and is not written to a terminal: add -o FILE, or > FILE",
                row.name
            )));
        }
        Ok(())
    }
}

/// `text, html, json or csv`.
fn names(source: Source) -> String {
    let names: Vec<&str> =
        FORMATS.iter().filter(|row| row.sources.contains(&source)).map(|row| row.name).collect();
    match names.split_last() {
        Some((last, rest)) if !rest.is_empty() => format!("{} or {last}", rest.join(", ")),
        _ => names.concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;

    #[test]
    fn every_format_has_its_row_and_name() {
        assert_eq!(FORMATS.len(), Format::value_variants().len());
        for format in Format::value_variants() {
            let row = format.row();
            assert_eq!(row.format, *format);
            assert_eq!(row.name, format.to_possible_value().unwrap().get_name());
        }
    }

    #[test]
    fn the_name_of_the_file_chooses_only_what_is_clear() {
        let chosen = |name: &str| Format::chosen(None, false, Some(Path::new(name))).unwrap();
        for (name, format) in [
            ("a.pb.gz", Format::Pprof),
            ("b.SVG", Format::Flamegraph),
            ("b.html", Format::Html),
            ("dir.csv/c.parquet", Format::Parquet),
            ("c.speedscope.json", Format::Speedscope),
            ("d.json", Format::Json),
            ("e.txt", Format::Text),
            ("dir.csv/e", Format::Text),
            ("gz", Format::Text),
        ] {
            assert_eq!(chosen(name), format, "{name}");
        }
        let svg = Some(Path::new("a.svg"));
        assert_eq!(Format::chosen(Some(Format::Csv), false, svg).unwrap(), Format::Csv);
        assert_eq!(Format::chosen(None, true, svg).unwrap(), Format::Json);
    }

    #[test]
    fn an_unknown_extension_is_refused_with_the_known_ones() {
        let unknown = Some(Path::new("a.xyz"));
        let error = Format::chosen(None, false, unknown).unwrap_err().to_string();
        assert!(error.contains("a.xyz") && error.contains(".json") && error.contains(".pb.gz"), "{error}");
        assert!(!error.contains('\n'), "{error}");
        assert_eq!(Format::chosen(Some(Format::Text), false, unknown).unwrap(), Format::Text);
    }

    #[test]
    fn what_a_source_does_not_have_is_refused_with_what_it_has() {
        let refused = |format: Format, source, table, terminal| match format.check(source, table, terminal) {
            Ok(()) => String::new(),
            Err(error) => error.to_string(),
        };
        let trial = refused(Format::Pprof, Source::Trial, None, false);
        assert!(trial.contains("a trial has no format pprof: use text, html, json or csv;"), "{trial}");
        assert_eq!(refused(Format::Csv, Source::Trial, None, true), "");
        assert!(refused(Format::Csv, Source::Trial, Some(Table::Bill), false).contains("--table"));
        assert!(refused(Format::Json, Source::Recording, Some(Table::Bill), false).contains("--table"));
        assert_eq!(refused(Format::Parquet, Source::Recording, Some(Table::Series), false), "");
        assert!(refused(Format::Parquet, Source::Recording, None, true).contains("terminal"));
        assert_eq!(refused(Format::Speedscope, Source::Recording, None, true), "");
    }
}
