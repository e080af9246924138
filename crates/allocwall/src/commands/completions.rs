//! `allocwall completions SHELL`: what a shell needs to complete the verbs and options.

use crate::printer::Printer;
use clap_complete::Shell;
use std::process::ExitCode;

#[derive(Clone, Copy, clap::ValueEnum)]
enum For {
    Bash,
    Zsh,
    Fish,
}

#[derive(clap::Args)]
#[command(
    after_help = "bash: allocwall completions bash > ~/.local/share/bash-completion/completions/allocwall\n\
                  zsh:  allocwall completions zsh > FOLDER/_allocwall, with FOLDER in $fpath\n\
                  fish: allocwall completions fish > ~/.config/fish/completions/allocwall.fish"
)]
pub struct Args {
    #[arg(value_enum)]
    shell: For,
}

pub fn run(args: Args, mut shown: clap::Command, printer: &Printer) -> anyhow::Result<ExitCode> {
    let shell = match args.shell {
        For::Bash => Shell::Bash,
        For::Zsh => Shell::Zsh,
        For::Fish => Shell::Fish,
    };
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut shown, env!("CARGO_PKG_NAME"), &mut script);
    printer.bytes(&script)?;
    Ok(ExitCode::SUCCESS)
}
