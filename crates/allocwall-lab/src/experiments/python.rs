//! CPython as a child of a run.

use allocwall_host::program;
use allocwall_model::units::{Absence, Measured, Reason};
use anyhow::{Context, ensure};
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Take, Write};
use std::path::Path;
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::sync::OnceLock;

/// Fails where the programs of the experiments don't run.
const CHECK: &str = "import sys; sys.exit(sys.implementation.name != 'cpython' or sys.version_info < (3, 7))";
/// Limit for what an interpreter prints: a few megabytes.
const LONGEST_ANSWER: u64 = 64 << 20;

/// # Errors
/// There is no python3 in PATH, or it is not CPython 3.7 or later.
pub fn check() -> Measured<()> {
    // Once: an interpreter takes some ten milliseconds to start.
    static CHECKED: OnceLock<Measured<()>> = OnceLock::new();
    let check = || -> Measured<()> {
        let found = program::find("python3".as_ref(), std::env::var_os("PATH").as_deref(), Path::new("."))
            .map_err(|why| Absence::new(Reason::NotFound, why))?;
        let mut command = Command::new(&found);
        command.args(["-I", "-c", CHECK]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        match command.status() {
            Ok(status) if status.success() => Ok(()),
            _ => {
                let why = format!("{} is not CPython 3.7 or later", found.display());
                Err(Absence::new(Reason::NotSupported, why))
            }
        }
    };
    CHECKED.get_or_init(check).clone()
}

/// An interpreter that runs one of our programs. It ends with this value.
pub struct Interpreter {
    child: Child,
    /// None: the program's input has ended.
    input: Option<ChildStdin>,
    output: BufReader<Take<ChildStdout>>,
}

impl Interpreter {
    /// Starts a program. It is isolated: variables for Python in the environment have no effect.
    ///
    /// # Errors
    /// Why it does not start.
    pub fn start(program: &str, arguments: &[&str]) -> anyhow::Result<Interpreter> {
        let mut child = Command::new("python3")
            .args(["-I", "-c", program])
            .args(arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("cannot start python3")?;
        let input = child.stdin.take();
        let output = child.stdout.take().context("no pipe from python3")?;
        Ok(Interpreter { child, input, output: BufReader::new(output.take(LONGEST_ANSWER)) })
    }

    /// # Errors
    /// The program reads no more input.
    pub fn send(&mut self, bytes: &[u8]) -> anyhow::Result<()> {
        let input = self.input.as_mut().context("the input of python3 has ended")?;
        input.write_all(bytes).context("python3 has ended early")
    }

    pub fn end_input(&mut self) {
        self.input = None;
    }

    /// Waits until the program prints that it is ready.
    ///
    /// # Errors
    /// It prints something else, or ends.
    pub fn ready(&mut self) -> anyhow::Result<()> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        ensure!(line == "ready\n", "python3 cannot run the program");
        Ok(())
    }

    /// The result: a line of JSON.
    ///
    /// # Errors
    /// It prints something else, or ends.
    pub fn result<T: DeserializeOwned>(&mut self) -> anyhow::Result<T> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        serde_json::from_str(&line).context("cannot read the result of python3")
    }
}

impl Drop for Interpreter {
    fn drop(&mut self) {
        // It may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_answers_and_one_that_fails_is_an_error() {
        if let Err(absence) = check() {
            assert!(absence.detail.contains("python3"), "{absence}");
            return println!("skipped: {absence}");
        }
        let program =
            "import sys; print('ready', flush=True); print(len(sys.stdin.read()) + int(sys.argv[1]))";
        let answer = |program: &str| -> anyhow::Result<u64> {
            let mut interpreter = Interpreter::start(program, &["40"])?;
            interpreter.send(b"12")?;
            interpreter.end_input();
            interpreter.ready()?;
            interpreter.result()
        };
        assert_eq!(answer(program).unwrap(), 42);
        assert!(answer("print('ready')").is_err());
        assert!(answer("import sys; sys.exit(3)").is_err());
    }
}
