//! What several subcommands share.

pub mod arms;
pub mod counting;
pub mod diagnosis;
pub mod experiments;
pub mod formats;
pub mod ground;
pub mod options;
pub mod pages;
pub mod processes;
pub mod progress;
pub mod serving;
pub mod signals;
pub mod state;
pub mod trial_options;
pub mod usage;

/// Breaks lines only at blanks: a command or a path that is broken at a hyphen cannot be copied.
pub fn plain(width: usize) -> textwrap::Options<'static> {
    textwrap::Options::new(width)
        .word_splitter(textwrap::WordSplitter::NoHyphenation)
        .word_separator(textwrap::WordSeparator::AsciiSpace)
}
