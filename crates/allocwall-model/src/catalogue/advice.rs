//! What to do where something prevents a measurement. Several probes meet the same obstacle; they give the same advice.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;
use std::fmt;

/// One change that helps by itself.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Advice {
    /// A command to copy, or what to change.
    pub how: Cow<'static, str>,
    pub is_command: bool,
    /// A remark on `how`.
    pub note: Option<Cow<'static, str>>,
}

impl Advice {
    /// A command that needs no change before it is run. With a placeholder it is text.
    pub fn command(line: impl Into<Cow<'static, str>>) -> Self {
        Advice { how: line.into(), is_command: true, note: None }
    }

    pub fn text(text: impl Into<Cow<'static, str>>) -> Self {
        Advice { how: text.into(), is_command: false, note: None }
    }

    pub fn note(mut self, note: impl Into<Cow<'static, str>>) -> Self {
        self.note = Some(note.into());
        self
    }

    /// For a line of its own: `$ ` marks a command, and its note is a comment of the shell. Within a sentence, use
    /// `Display`.
    pub fn line(&self) -> String {
        match &self.note {
            Some(note) if self.is_command => format!("$ {}  # {note}", self.how),
            None if self.is_command => format!("$ {}", self.how),
            _ => self.to_string(),
        }
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.note {
            Some(note) => write!(f, "{} ({note})", self.how),
            None => f.write_str(&self.how),
        }
    }
}

/// Text. A command needs [`Advice::command`].
impl From<&'static str> for Advice {
    fn from(text: &'static str) -> Self {
        Advice::text(text)
    }
}

/// Text. A command needs [`Advice::command`].
impl From<String> for Advice {
    fn from(text: String) -> Self {
        Advice::text(text)
    }
}

const fn command(how: &'static str) -> Advice {
    Advice { how: Cow::Borrowed(how), is_command: true, note: None }
}

const fn text(how: &'static str) -> Advice {
    Advice { how: Cow::Borrowed(how), is_command: false, note: None }
}

/// A right is missing that root has.
pub const RUN_AS_ROOT: Advice = text("run as root");
/// The same for root in a user namespace, or in a container that dropped capabilities.
pub const RUN_AS_MACHINES_ROOT: Advice =
    text("run as the machine's own root, outside of containers and user namespaces, with all capabilities");
/// Gives allocwall the capabilities that a diagnosis needs without root.
pub const SETCAP: Advice =
    command("sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep $(command -v allocwall)");
pub const IN_A_CONTAINER: Advice = text(
    "in a container: --cap-add PERFMON --cap-add SYS_PTRACE and a seccomp profile that allows perf_event_open",
);
/// Kernel stacks of the user's own processes.
pub const KERNEL_STACKS: Advice = command("sudo sysctl kernel.perf_event_paranoid=1");
/// Names of kernel functions without CAP_SYSLOG.
pub const KERNEL_NAMES: Advice = command("sudo sysctl kernel.kptr_restrict=0");
pub const OPEN_FILES: Advice = text("raise the limit of open files: ulimit -n 65536");
/// Measures this machine's prices.
pub const CALIBRATE: Advice = command("allocwall calibrate");
/// Other work disturbed the prices.
pub const CALIBRATE_UNDISTURBED: Advice = Advice {
    how: Cow::Borrowed("allocwall calibrate --fresh"),
    is_command: true,
    note: Some(Cow::Borrowed("on a less busy machine")),
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_is_marked_only_on_a_line_of_its_own() {
        let setting = Advice::command("sysctl a=1");
        assert_eq!(setting.line(), "$ sysctl a=1");
        assert_eq!(setting.to_string(), "sysctl a=1");
        let noted = setting.note("on the host");
        assert_eq!(noted.line(), "$ sysctl a=1  # on the host");
        assert_eq!(noted.to_string(), "sysctl a=1 (on the host)");
        let change = Advice::text("use bare metal").note("no guest");
        assert_eq!(change.line(), "use bare metal (no guest)");
        assert_eq!(change.line(), change.to_string());
    }
}
