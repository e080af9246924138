//! `allocwall man [VERB]`: the manual pages, made from the help.

use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_model::catalogue::nearest::hint;
use anyhow::Context;
use clap_mangen::Man;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(clap::Args)]
#[command(after_help = "To read a page: allocwall man diagnose | man -l -")]
pub struct Args {
    /// The verb; without one, the page of the whole program
    verb: Vec<String>,

    /// Write all pages into this folder
    #[arg(long, value_name = "FOLDER", conflicts_with = "verb")]
    to: Option<PathBuf>,
}

pub fn run(args: Args, shown: clap::Command, printer: &Printer) -> anyhow::Result<ExitCode> {
    let mut shown = shown.disable_help_subcommand(true);
    // Gives each verb its full name.
    shown.build();
    let source = format!("{} {}", shown.get_name(), shown.get_version().unwrap_or_default());
    if let Some(folder) = &args.to {
        let written = std::fs::create_dir_all(folder).and_then(|()| write_all(&shown, &source, folder));
        written.with_context(|| format!("cannot write the pages to {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut command = &shown;
    for verb in &args.verb {
        command = command.find_subcommand(verb).ok_or_else(|| {
            let near = hint(verb, command.get_subcommands().map(clap::Command::get_name));
            usage(format!("{} has no verb {verb}{near}", command.get_name()))
        })?;
    }
    let mut text = Vec::new();
    page(command, &source).render(&mut text).context("cannot write a manual page")?;
    printer.bytes(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// The page of a verb names the program and its version too.
fn page(command: &clap::Command, source: &str) -> Man {
    Man::new(command.clone()).source(source).manual("allocwall")
}

fn write_all(command: &clap::Command, source: &str, folder: &Path) -> io::Result<()> {
    page(command, source).generate_to(folder)?;
    command.get_subcommands().try_for_each(|verb| write_all(verb, source, folder))
}
