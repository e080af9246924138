//! Wrong usage: what the user typed can't work, whatever the machine and the target are.

use std::fmt;
use std::process::ExitCode;

/// The exit status that clap uses for bad arguments.
const STATUS: u8 = 2;

/// An error of the user's, in one line.
#[derive(Debug)]
struct Usage(String);

impl fmt::Display for Usage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for Usage {}

/// The text of `line` as an error of the user's.
pub fn usage(line: impl fmt::Display) -> anyhow::Error {
    Usage(line.to_string()).into()
}

pub fn is_usage(error: &anyhow::Error) -> bool {
    error.is::<Usage>()
}

/// The exit status for an error that ends a command.
pub fn status_of(error: &anyhow::Error) -> ExitCode {
    if is_usage(error) { ExitCode::from(STATUS) } else { ExitCode::FAILURE }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::{Context, anyhow};

    #[test]
    fn only_the_users_errors_have_the_status_of_usage() {
        let [wrong, failed] = [usage("no such option"), anyhow!("no such file")];
        assert_eq!(wrong.to_string(), "no such option");
        let shown = |error: &anyhow::Error| format!("{:?}", status_of(error));
        assert_eq!(shown(&wrong), format!("{:?}", ExitCode::from(2)));
        assert_eq!(shown(&failed), format!("{:?}", ExitCode::FAILURE));
        let with_context = Err::<(), _>(wrong).context("--load").unwrap_err();
        assert_eq!(shown(&with_context), format!("{:?}", ExitCode::from(2)));
    }
}
