//! `allocwall man [VERB]`: the manual pages, made from the help.

use crate::commands::shared::usage::usage;
use crate::printer::Printer;
use allocwall_model::catalogue::nearest::hint;
use anyhow::Context;
use clap_mangen::Man;
use std::path::PathBuf;
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

pub fn run(args: Args, mut shown: clap::Command, printer: &Printer) -> anyhow::Result<ExitCode> {
    if let Some(folder) = &args.to {
        let written = std::fs::create_dir_all(folder).and_then(|()| clap_mangen::generate_to(shown, folder));
        written.with_context(|| format!("cannot write the pages to {}", folder.display()))?;
        return Ok(ExitCode::SUCCESS);
    }
    // Gives each verb its full name.
    shown.build();
    let mut command = &shown;
    for verb in &args.verb {
        command = command.find_subcommand(verb).ok_or_else(|| {
            let near = hint(verb, command.get_subcommands().map(clap::Command::get_name));
            usage(format!("{} has no verb {verb}{near}", command.get_name()))
        })?;
    }
    let mut page = Vec::new();
    Man::new(command.clone()).render(&mut page).context("cannot write a manual page")?;
    printer.bytes(&page)?;
    Ok(ExitCode::SUCCESS)
}
