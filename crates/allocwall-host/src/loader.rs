//! Asks a program's dynamic loader for the libraries that it would load and the tunables that it knows. It is
//! the loader that exec would run, so this trusts no more code than starting the program does.

use crate::worker::Worker;
use allocwall_model::units::{Absence, Measured, Reason};
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::time::Duration;

/// A program with a thousand libraries prints a tenth of this.
const LONGEST: u64 = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(5);

/// The environment variables of the loader.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Surroundings {
    /// Ours, without LD_PRELOAD and tunables: LD_LIBRARY_PATH decides which library is found.
    Ours,
    /// None.
    Empty,
}

/// The standard output of the loader, run with these arguments.
///
/// # Errors
/// The loader can't be started, fails, prints too much, or doesn't end within 5 seconds.
pub fn ask(loader: &Path, arguments: &[&std::ffi::OsStr], surroundings: Surroundings) -> Measured<Vec<u8>> {
    let shown = loader.display();
    let mut command = Command::new(loader);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
    match surroundings {
        Surroundings::Ours => command.env_remove("LD_PRELOAD").env_remove("GLIBC_TUNABLES"),
        Surroundings::Empty => command.env_clear(),
    };
    let mut child = command
        .spawn()
        .map_err(|error| Absence::new(Reason::NotFound, format!("the loader {shown}: {error}")))?;
    let (done, waiting) = mpsc::channel();
    let reader = child.stdout.take().map(|out| {
        Worker::start("reads its answer", move || {
            let mut bytes = Vec::new();
            let read = out.take(LONGEST + 1).read_to_end(&mut bytes);
            // After the timeout the receiver is gone.
            let _ = done.send(read.map(|_| bytes));
        })
    });
    let answer = waiting.recv_timeout(PATIENCE);
    if !matches!(&answer, Ok(Ok(bytes)) if bytes.len() as u64 <= LONGEST) {
        let _ = child.kill();
    }
    let status = child.wait();
    match (answer, status) {
        (Ok(Ok(bytes)), Ok(status)) if status.success() => Ok(bytes),
        (Ok(Ok(_)), Ok(status)) => {
            Err(Absence::new(Reason::NotSupported, format!("the loader {shown} failed: {status}")))
        }
        // The reader ended without sending: it did not start.
        (Err(RecvTimeoutError::Disconnected), _) => {
            Err(reader.and_then(|reader| reader.finish().err()).unwrap_or_else(|| {
                Absence::new(Reason::Unparsable, format!("the loader {shown} printed nothing"))
            }))
        }
        (Err(_), _) => Err(Absence::new(
            Reason::TooCostly,
            format!("the loader {shown} did not answer within {} s", PATIENCE.as_secs()),
        )),
        (_, _) => Err(Absence::new(
            Reason::Unparsable,
            format!("the answer of the loader {shown} could not be read"),
        )),
    }
}

/// The libraries that the loader would load for a program: the requested name, and the file.
pub fn libraries(loader: &Path, program: &Path) -> Measured<Vec<(String, PathBuf)>> {
    let arguments = ["--list".as_ref(), program.as_os_str()];
    ask(loader, &arguments, Surroundings::Ours).map(|bytes| parse_list(&bytes))
}

/// Parses `\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f…)`, and lines without the arrow for a
/// library requested by path. Entries without a file (the vdso, a library that is not found) are left out.
pub fn parse_list(bytes: &[u8]) -> Vec<(String, PathBuf)> {
    String::from_utf8_lossy(bytes)
        .lines()
        .filter_map(|line| {
            let line = line.trim();
            let (line, _) = line.rsplit_once(" (0x")?;
            let (name, path) = line.split_once(" => ").unwrap_or((line, line));
            path.starts_with('/').then(|| (name.trim().to_owned(), PathBuf::from(path.trim())))
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn libraries_of_a_list() {
        let text = b"\tlinux-vdso.so.1 (0x00007ffd)\n\tlibjli.so => /usr/lib/jvm/bin/../lib/libjli.so (0x00007f94)\n\
            \tlibmissing.so => not found\n\t/lib64/ld-linux-x86-64.so.2 (0x00007f95)\n\xff\xfe\n";
        let found = parse_list(text);
        assert_eq!(
            found,
            [
                ("libjli.so".to_owned(), PathBuf::from("/usr/lib/jvm/bin/../lib/libjli.so")),
                ("/lib64/ld-linux-x86-64.so.2".to_owned(), PathBuf::from("/lib64/ld-linux-x86-64.so.2")),
            ]
        );
    }

    #[test]
    fn a_loader_that_fails_or_is_missing_is_an_absence() {
        let ask = |program: &str| ask(Path::new(program), &[], Surroundings::Empty);
        assert_eq!(ask("/nonexistent/ld.so").unwrap_err().reason, Reason::NotFound);
        assert_eq!(ask("/bin/false").unwrap_err().reason, Reason::NotSupported);
        assert_eq!(ask("/bin/true").unwrap(), b"");
    }
}
