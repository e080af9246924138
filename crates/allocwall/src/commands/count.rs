//! `allocwall count`: the calls of the allocator that a command makes, by a preloaded library, or a process that runs already, in
//! short bursts.

mod attached;
mod launched;

use crate::commands::shared::formats;
use crate::commands::shared::options::parse_time;
use crate::commands::shared::processes::{self, parse_pid};
use crate::commands::shared::usage::usage;
use crate::output;
use crate::printer::Printer;
use allocwall_host::tunables::parse_size;
use allocwall_report::text::Style;
use clap::ValueEnum;
use std::ffi::OsString;
use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

/// The smallest mean distance of samples: that of one call in which nothing is requested.
const LEAST_DISTANCE: u64 = 1 << 10;
/// With a larger one there are hardly any samples.
const MOST_DISTANCE: u64 = 1 << 30;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Format {
    Text,
    /// Commands only: one page with charts, for a browser (docs/html.md)
    Html,
    /// The versioned JSON document (docs/json.md)
    Json,
    /// A profile for `go tool pprof`: allocations and blocks in use by stack
    Pprof,
    /// Collapsed stacks: `root;…;caller calls`
    Collapsed,
}

#[derive(clap::Args)]
#[command(
    override_usage = "allocwall count [OPTIONS] <-p PID[,PID…] | --container NAME | -- CMD…>",
    after_help = "A command is counted until it ends, or until Ctrl-C; a process that runs already, in short bursts. docs/count.md: how \
                  each number is measured."
)]
pub struct Args {
    /// Processes that run already, without their descendants: their calls are counted in short bursts, which take at most 1 % of their
    /// CPU time. Needs root
    #[arg(short, long, value_name = "PID", value_delimiter = ',', num_args = 1.., allow_negative_numbers = true, value_parser = parse_pid)]
    pid: Vec<i32>,

    /// Instead of -p: the processes of a container, by its name or id
    #[arg(long, value_name = "NAME", conflicts_with_all = ["pid", "command"])]
    container: Option<String>,

    /// Only exact counts, without samples: no latency, lifetimes, frees by another thread, blocks in use and call sites
    #[arg(long, conflicts_with = "every")]
    exact: bool,

    /// Mean distance of samples in requested bytes: 64K, 1M [default: 512K]
    #[arg(long, value_name = "BYTES", allow_hyphen_values = true, value_parser = parse_every)]
    every: Option<u64>,

    /// The command does N requests, or other units of work: show the calls for each
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = clap::value_parser!(u64).range(1..))]
    per_request: Option<u64>,

    /// End the command after this time: 15, 15s, 2m. With -p: the time of the count [default: 10s]
    #[arg(short, long, value_name = "TIME", allow_hyphen_values = true, value_parser = parse_time)]
    duration: Option<Duration>,

    /// Write the report to FILE instead of stdout; only the owner can read it. The end of the name chooses the format: .txt, .html, .json,
    /// .pprof, .collapsed
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// [default: text]
    #[arg(short, long, value_enum)]
    format: Option<Format>,

    /// Same as `--format json`
    #[arg(long, conflicts_with = "format")]
    json: bool,

    /// Draw totals and sizes once a second, if standard error is a terminal
    #[arg(long)]
    live: bool,

    /// The command and its arguments; its standard output goes to standard error
    #[arg(last = true, value_name = "CMD")]
    command: Vec<OsString>,
}

impl Args {
    fn format(&self) -> anyhow::Result<Format> {
        if let Some(format) = self.format {
            return Ok(format);
        }
        Ok(match formats::Format::chosen(None, self.json, self.output.as_deref())? {
            formats::Format::Text => Format::Text,
            formats::Format::Html => Format::Html,
            formats::Format::Json => Format::Json,
            formats::Format::Pprof => Format::Pprof,
            formats::Format::Collapsed => Format::Collapsed,
            other => return Err(usage(format!("a count has no format {}: use {}", other.name(), names()))),
        })
    }
}

fn names() -> String {
    let values = Format::value_variants().iter().filter_map(ValueEnum::to_possible_value);
    values.map(|value| value.get_name().to_owned()).collect::<Vec<_>>().join(", ")
}

pub fn run(mut args: Args, printer: &Printer) -> anyhow::Result<ExitCode> {
    if let Some(name) = &args.container {
        args.pid = processes::of_container(name, printer)?;
    }
    let format = args.format()?;
    if let Some(why) = misuse(&args, format, printer.stdout_is_terminal()) {
        return Err(usage(why));
    }
    if let Some(path) = &args.output {
        output::check(path)?;
    }
    args.pid = processes::living(args.pid, printer)?;
    match args.pid.is_empty() {
        true => launched::run(&args, format, printer)?,
        false => attached::run(&args, format, printer)?,
    }
    Ok(ExitCode::SUCCESS)
}

fn misuse(args: &Args, format: Format, terminal: bool) -> Option<String> {
    let of_commands = [
        ("--exact", args.exact),
        ("--every", args.every.is_some()),
        ("--per-request", args.per_request.is_some()),
        ("--live", args.live),
        ("--format pprof", format == Format::Pprof),
        ("--format html", format == Format::Html),
    ];
    if !args.pid.is_empty() {
        if !args.command.is_empty() {
            return Some("give either processes (-p PID) or a command (-- CMD…)".to_owned());
        }
        let (option, _) = of_commands.into_iter().find(|(_, given)| *given)?;
        return Some(format!(
            "{option} needs a command that allocwall starts (-- CMD…): a process that runs already is counted in short bursts"
        ));
    }
    let why = if args.command.is_empty() {
        "no target given: use -p PID, --container NAME or -- CMD…"
    } else if args.exact && matches!(format, Format::Pprof | Format::Collapsed) {
        "--format pprof and --format collapsed need samples: leave out --exact"
    } else if terminal && args.output.is_none() && format == Format::Pprof {
        "a pprof profile is binary and is not written to a terminal: add -o FILE"
    } else {
        return None;
    };
    Some(why.to_owned())
}

/// Writes the report to where the user wants it.
fn deliver(
    args: &Args,
    printer: &Printer,
    report: impl FnOnce(Style) -> anyhow::Result<Vec<u8>>,
) -> anyhow::Result<()> {
    let style = if args.output.is_some() { Style::FILE } else { printer.style() };
    let report = report(style)?;
    match &args.output {
        Some(path) => output::write(path, &report, None),
        None => printer.bytes(&report),
    }
}

fn parse_every(text: &str) -> Result<u64, String> {
    match parse_size(text) {
        Some(every) if (LEAST_DISTANCE..=MOST_DISTANCE).contains(&every) => Ok(every),
        Some(0) => Err("for exact counts without samples, use --exact".to_owned()),
        Some(_) => Err("choose a distance from 1K to 1G".to_owned()),
        None => Err("a distance is a number of bytes: 65536, 64K, 1M".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        args: Args,
    }

    fn parsed(words: &str) -> Result<Args, clap::Error> {
        Line::try_parse_from(["count"].into_iter().chain(words.split(' '))).map(|line| line.args)
    }

    #[test]
    fn distances() {
        for (text, bytes) in [("1K", 1024), ("512K", 512 << 10), ("1048576", 1 << 20), ("1G", 1 << 30)] {
            assert_eq!(parse_every(text), Ok(bytes));
        }
        for (text, words) in
            [("0", "--exact"), ("1023", "from 1K"), ("2G", "to 1G"), ("-1", "number"), ("", "number")]
        {
            assert!(parse_every(text).unwrap_err().contains(words), "{text}");
        }
    }

    #[test]
    fn arguments_that_cannot_work_together() {
        let why = |words: &str, terminal: bool| {
            let args = parsed(words).expect("valid arguments");
            let format = args.format().expect("a format of counts");
            misuse(&args, format, terminal).unwrap_or_default()
        };
        assert!(why("--json", false).contains("no target given"));
        assert!(why("--exact -f pprof -o a -- true", false).contains("leave out --exact"));
        assert!(why("-f pprof -- true", true).contains("-o FILE"));
        assert!(why("-p 7 -- true", false).contains("either processes"));
        for option in
            ["--exact", "--every 1M", "--per-request 9", "--live", "--format pprof", "--format html"]
        {
            let refused = why(&format!("-p 7 {option}"), false);
            let name =
                if option.starts_with("--format") { option } else { option.split(' ').next().unwrap_or("") };
            assert!(refused.starts_with(&format!("{name} needs a command")), "{option}: {refused}");
        }
        for fine in [
            "-f pprof -o a -- true",
            "-o a.html -- true",
            "--exact --json -- true",
            "-f collapsed -- true",
            "-- true -p 1",
            "-p 7,8 -d 3 --json",
            "-p 7 -f collapsed -o a",
        ] {
            assert_eq!(why(fine, true), "", "{fine}");
        }
        assert_eq!(why("-f pprof -- true", false), "");
        for bad in [
            "--exact --every 1M -- true",
            "--per-request 0 -- true",
            "--json -f text -- true",
            "-d 0 -- true",
            "-p 0",
            "-p -1",
            "-p all",
        ] {
            assert!(parsed(bad).is_err(), "{bad}");
        }
        for (output, format) in [
            ("a", Format::Text),
            ("a.json", Format::Json),
            ("a.pb.gz", Format::Pprof),
            ("a.folded", Format::Collapsed),
        ] {
            let args = parsed(&format!("-o {output} -- true")).expect("valid arguments");
            assert_eq!(args.format().expect("a format of counts"), format, "{output}");
        }
        let given = parsed("-f text -o a.json -- true").expect("valid arguments");
        assert_eq!(given.format().expect("a format of counts"), Format::Text);
        for (output, words) in [("a.svg", "a count has no format flamegraph"), ("a.odd", "chooses no format")]
        {
            let args = parsed(&format!("-o {output} -- true")).expect("valid arguments");
            assert!(args.format().unwrap_err().to_string().contains(words), "{output}");
        }
        assert!(why("-p 7 -o a.html", false).starts_with("--format html needs a command"));
        assert_eq!(parsed("-p 7,8 --json").expect("valid arguments").pid, [7, 8]);
    }
}
