//! How the command line is read: with the width that COLUMNS asks for, and with errors that name no hidden verb.

use crate::printer::columns;
use allocwall_model::catalogue::nearest::nearest;
use allocwall_report::text::Style;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{Arg, Command, Error, Parser};

/// Help in fewer columns can't be read.
const NARROWEST: usize = 40;

/// The arguments of this program. Ends it if they are wrong, with status 2, or if they ask for help.
pub fn parsed<T: Parser>() -> T {
    let mut command = T::command();
    if let Some(columns) = columns() {
        command = command.term_width(columns.clamp(NARROWEST, Style::FILE.width));
    }
    let verbs: Vec<String> = shown_verbs(&command).map(|verb| verb.get_name().to_owned()).collect();
    let verb = std::env::args().nth(1).and_then(|verb| command.find_subcommand(verb).cloned());
    let better = |error| with_option(suggesting(error, &verbs), verb.as_ref());
    let matches = command.try_get_matches().unwrap_or_else(|error| better(error).exit());
    T::from_arg_matches(&matches).unwrap_or_else(|error| error.exit())
}

fn shown_verbs(command: &Command) -> impl Iterator<Item = &Command> {
    command.get_subcommands().filter(|verb| !verb.is_hide_set())
}

/// The error, with the most similar of `verbs` instead of clap's suggestions, which include hidden verbs.
fn suggesting(mut error: Error, verbs: &[String]) -> Error {
    if error.kind() != ErrorKind::InvalidSubcommand {
        return error;
    }
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidSubcommand).cloned() else {
        return error;
    };
    let near = nearest(&typed, verbs.iter().map(String::as_str));
    if near.is_empty() {
        error.remove(ContextKind::SuggestedSubcommand);
    } else {
        let near = near.into_iter().map(str::to_owned).collect();
        error.insert(ContextKind::SuggestedSubcommand, ContextValue::Strings(near));
    }
    error
}

/// The error, with the option that the verb has for a word that is no argument of it: a process id, or the name of a command.
fn with_option(mut error: Error, verb: Option<&Command>) -> Error {
    let Some(ContextValue::String(typed)) = error.get(ContextKind::InvalidArg).cloned() else {
        return error;
    };
    if error.kind() != ErrorKind::UnknownArgument || typed.starts_with('-') {
        return error;
    }
    let has = |fits: &dyn Fn(&Arg) -> bool| verb.is_some_and(|verb| verb.get_arguments().any(fits));
    let is_number = typed.bytes().all(|byte| byte.is_ascii_digit());
    let tip = if is_number && has(&|arg| arg.get_id() == "pid") {
        format!("to name a process, use '-p {typed}'")
    } else if !is_number && has(&|arg| arg.is_last_set()) {
        format!("to start a command, use '-- {typed}'")
    } else {
        return error;
    };
    error.remove(ContextKind::Suggested);
    error.insert(ContextKind::Suggested, ContextValue::StyledStrs(vec![tip.into()]));
    error
}

/// clap keeps names for as long as the program runs. This is for two verbs that end soon.
fn kept(name: &str) -> &'static str {
    Box::leak(name.into())
}

/// A command without its hidden verbs, for completions and manual pages.
pub fn without_hidden(command: &Command) -> Command {
    let verbs: Vec<Command> = shown_verbs(command).map(without_hidden).collect();
    if verbs.is_empty() {
        return command.clone();
    }
    let mut shown = Command::new(kept(command.get_name()))
        .subcommand_required(command.is_subcommand_required_set())
        .args(command.get_arguments().cloned())
        .subcommands(verbs);
    if let Some(version) = command.get_version() {
        shown = shown.version(kept(version));
    }
    if let Some(about) = command.get_about() {
        shown = shown.about(about.clone());
    }
    if let Some(after) = command.get_after_help() {
        shown = shown.after_help(after.clone());
    }
    shown
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Cli;
    use clap::CommandFactory;

    fn verbs() -> Vec<String> {
        shown_verbs(&Cli::command()).map(|verb| verb.get_name().to_owned()).collect()
    }

    fn refusal(verb: &str) -> String {
        let error = Cli::command().try_get_matches_from(["allocwall", verb]).expect_err("no such verb");
        suggesting(error, &verbs()).to_string()
    }

    #[test]
    fn a_misspelt_verb_gets_the_nearest_one_that_is_shown() {
        assert!(refusal("diagnoze").contains("'diagnose'"), "{}", refusal("diagnoze"));
        assert!(refusal("explian").contains("'explain'"));
        for other in ["kep", "rea", "snake-oil"] {
            let text = refusal(other);
            assert!(text.contains(other) && !text.contains("tip:"), "{text}");
        }
        // clap would suggest a verb that the help hides.
        let text = refusal("replays");
        assert!(!text.contains("'replay'"), "{text}");
    }

    #[test]
    fn a_word_that_is_no_argument_gets_the_option_for_it() {
        let refusal = |words: &[&str]| {
            let command = Cli::command();
            let verb = command.find_subcommand(words[0]).cloned();
            let words = [&["allocwall"], words].concat();
            with_option(command.try_get_matches_from(words).expect_err("wrong"), verb.as_ref()).to_string()
        };
        for verb in ["memory", "count", "top"] {
            let text = refusal(&[verb, "1234"]);
            assert!(text.contains("use '-p 1234'"), "{text}");
        }
        let text = refusal(&["trial", "--with", "thp", "sleep", "1"]);
        assert!(text.contains("use '-- sleep'"), "{text}");
        // Verbs without such an option.
        let text = refusal(&["calibrate", "1234"]);
        assert!(text.contains("1234") && !text.contains("use '"), "{text}");
        let text = refusal(&["memory", "sleep"]);
        assert!(text.contains("sleep") && !text.contains("use '"), "{text}");
    }

    #[test]
    fn what_is_shown_has_every_verb_but_the_hidden_ones() {
        let shown = without_hidden(&Cli::command());
        let names: Vec<&str> = shown.get_subcommands().map(Command::get_name).collect();
        assert_eq!(names, verbs());
        assert!(names.contains(&"diagnose") && !names.contains(&"keep"), "{names:?}");
        let bench = shown.find_subcommand("bench").expect("a verb");
        assert!(
            bench.find_subcommand("pipeline").is_some() && bench.find_subcommand("pipeline-run").is_none()
        );
        let pid = shown
            .find_subcommand("diagnose")
            .and_then(|verb| verb.get_arguments().find(|arg| arg.get_id() == "pid"));
        assert!(pid.is_some());
    }

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
        without_hidden(&Cli::command()).debug_assert();
    }
}
