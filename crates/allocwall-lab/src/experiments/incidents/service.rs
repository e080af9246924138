//! The services of examples/incidents: built by the C compiler of this machine, and started as children of a run.

use allocwall_host::clock::{monotonic_ns, process_cpu_ns};
use allocwall_host::own::{self, Kind};
use allocwall_host::proc::ProcFs;
use allocwall_host::program;
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_report::escape::terminal;
use anyhow::{Context, anyhow};
use std::env::consts::ARCH;
use std::ffi::OsStr;
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, PoisonError, mpsc};
use std::thread;
use std::time::{Duration, Instant};

/// All of them include it.
const HTTP: &str = include_str!("../../../../../examples/incidents/http.h");
const FLAGS: [&str; 3] = ["-O2", "-g", "-pthread"];
/// A build takes some tenths of a second.
const BUILD_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two checks whether the compiler has ended.
const GLANCE: Duration = Duration::from_millis(5);
/// Of what the compiler prints, this many bytes are kept, and of these so many lines are shown.
const LONGEST_OUTPUT: u64 = 4 << 10;
const SHOWN_LINES: usize = 3;
const SHOWN_CHARS: usize = 160;
/// Time for its output to arrive after its end. A process that it left behind can keep the pipe open.
const PATIENCE: Duration = Duration::from_secs(1);
/// What a service prints before its port.
const LISTENS: &str = "listening on 127.0.0.1:";
const LONGEST_LINE: u64 = 100;

pub struct Source {
    /// The name of its folder, of its file without the extension, and of its experiment.
    pub name: &'static str,
    pub text: &'static str,
}

impl Source {
    /// The path of the program, which is kept in allocwall's cache.
    ///
    /// # Errors
    /// There is no C compiler, it fails, or the cache cannot be written.
    pub fn built(&self) -> Measured<PathBuf> {
        // One at a time: the folder of a build has the number of the process.
        static BUILDING: Mutex<()> = Mutex::new(());
        let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = own::folder(Kind::Cache)?.folder.join("incidents");
        let compiler = program::find("cc".as_ref(), std::env::var_os("PATH").as_deref(), Path::new("."))
            .map_err(|why| Absence::new(Reason::NotFound, format!("no C compiler: {why}")))?;
        // Another version of it is another file. It is not asked for its version: a run must start no process that the settings of its
        // arm do not reach.
        let facts = fs::metadata(&compiler).map_err(|error| not_started(&compiler, &error))?;
        let file = self.path(&folder, &(&compiler, facts.len(), facts.modified().ok()));
        if file.is_file() {
            return Ok(file);
        }
        let place = folder.join(format!("build-{}", std::process::id()));
        // One may be left of a process that was killed and had the same number.
        let _ = fs::remove_dir_all(&place);
        let made = self.build(&compiler, &place, &file);
        let _ = fs::remove_dir_all(&place);
        made.map(|()| file)
    }

    /// A changed source has another path, and so has a program for another machine or of another compiler.
    fn path(&self, folder: &Path, compiler: &impl Hash) -> PathBuf {
        let mut hasher = DefaultHasher::new();
        (HTTP, self.text, FLAGS, ARCH).hash(&mut hasher);
        compiler.hash(&mut hasher);
        folder.join(format!("{}-{:016x}", self.name, hasher.finish()))
    }

    fn build(&self, compiler: &Path, place: &Path, file: &Path) -> Measured<()> {
        let name = self.name;
        let not_written = |error: io::Error| {
            Absence::new(Reason::NotPermitted, format!("cannot write to {}: {error}", place.display()))
        };
        let (source, output) = (place.join(name).join(format!("{name}.c")), place.join("program"));
        own::create(&place.join(name), 0o700).map_err(not_written)?;
        fs::write(place.join("http.h"), HTTP).map_err(not_written)?;
        fs::write(&source, self.text).map_err(not_written)?;
        let mut arguments = FLAGS.map(OsStr::new).to_vec();
        arguments.extend([OsStr::new("-o"), output.as_os_str(), source.as_os_str()]);
        let (status, said) =
            run(compiler, &arguments, BUILD_LIMIT).map_err(|error| not_started(compiler, &error))?;
        let how = match status {
            Some(status) if status.success() => return fs::rename(&output, file).map_err(not_written),
            Some(status) => status.to_string(),
            None => format!("no end within {} s", BUILD_LIMIT.as_secs()),
        };
        let why = format!("{} cannot build {name}.c: {how}: {}", compiler.display(), first_lines(&said));
        Err(Absence::new(Reason::NotSupported, why))
    }
}

fn not_started(compiler: &Path, error: &io::Error) -> Absence {
    Absence::new(Reason::NotPermitted, format!("cannot start {}: {error}", compiler.display()))
}

/// How a program ends, None if it does not within the limit, and the first bytes that it prints.
fn run(program: &Path, arguments: &[&OsStr], limit: Duration) -> io::Result<(Option<ExitStatus>, Vec<u8>)> {
    let (mut from, to) = io::pipe()?;
    // Its own end of the pipe is closed when the command is dropped, at the end of this statement.
    let mut child = Command::new(program)
        .args(arguments)
        .env_remove("LD_PRELOAD")
        // Messages in English.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(to.try_clone()?)
        .stderr(to)
        .spawn()?;
    let (done, said) = mpsc::channel();
    thread::spawn(move || {
        let mut bytes = vec![];
        let _ = from.by_ref().take(LONGEST_OUTPUT).read_to_end(&mut bytes);
        let _ = done.send(bytes);
        // Else a program that prints more would wait for a reader.
        let _ = io::copy(&mut from, &mut io::sink());
    });
    let until = Instant::now() + limit;
    let status = loop {
        match child.try_wait() {
            Ok(Some(status)) => break Some(status),
            Ok(None) if Instant::now() < until => thread::sleep(GLANCE),
            _ => {
                let _ = child.kill();
                let _ = child.wait();
                break None;
            }
        }
    };
    Ok((status, said.recv_timeout(PATIENCE).unwrap_or_default()))
}

/// For a message of one line: no control characters, and a limited length.
fn first_lines(said: &[u8]) -> String {
    let text = String::from_utf8_lossy(said);
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty()).take(SHOWN_LINES);
    let lines: Vec<String> =
        lines.map(|line| terminal(&line.chars().take(SHOWN_CHARS).collect::<String>())).collect();
    if lines.is_empty() { "without a message".to_owned() } else { lines.join("; ") }
}

/// A service that listens. It ends with this value.
pub struct Service {
    child: Child,
    pub port: u16,
    /// From its start until it listened.
    pub start_s: f64,
}

/// What a service has used so far.
pub struct Spent {
    pub cpu_ns: u64,
    pub minor_faults: Measured<u64>,
}

impl Service {
    /// # Errors
    /// It cannot be started, or does not say on which port it listens.
    pub fn start(program: &Path, options: &[String]) -> anyhow::Result<Service> {
        let began_ns = monotonic_ns();
        let mut child = Command::new(program)
            .args(options)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .spawn()
            .with_context(|| format!("cannot start {}", program.display()))?;
        let output = child.stdout.take();
        // From here on, it ends if a step fails.
        let mut service = Service { child, port: 0, start_s: 0.0 };
        let mut line = String::new();
        let output = output.context("no pipe from the service")?;
        BufReader::new(output).take(LONGEST_LINE).read_line(&mut line)?;
        let port = line.trim_end().strip_prefix(LISTENS).and_then(|port| port.parse().ok());
        service.port = port.with_context(|| format!("the service printed {line:?} instead of its port"))?;
        service.start_s = monotonic_ns().saturating_sub(began_ns) as f64 / 1e9;
        Ok(service)
    }

    /// # Errors
    /// It has ended.
    pub fn spent(&self) -> anyhow::Result<Spent> {
        let pid = self.child.id() as i32;
        let cpu_ns = process_cpu_ns(pid).map_err(|absence| anyhow!(absence.detail))?;
        let stat = ProcFs::live().process_stat(pid);
        Ok(Spent { cpu_ns, minor_faults: stat.map(|stat| stat.minor_faults) })
    }
}

impl Drop for Service {
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
    fn a_compiler_that_succeeds_is_told_from_one_that_fails_or_does_not_end() {
        let ran = |script: &str, limit: Duration| {
            let (status, said) =
                run(Path::new("/bin/sh"), &[OsStr::new("-c"), OsStr::new(script)], limit).unwrap();
            (status.and_then(|status| status.code()), said)
        };
        assert_eq!(ran("echo usual; echo wrong >&2", BUILD_LIMIT), (Some(0), b"usual\nwrong\n".to_vec()));
        assert_eq!(ran("exit 3", BUILD_LIMIT), (Some(3), vec![]));
        assert_eq!(ran("exec sleep 60", Duration::from_millis(50)), (None, vec![]));
        // 10,000 bytes, of which the first ones are kept.
        let (code, said) = ran("for i in 1 2 3 4 5 6 7 8 9 10; do printf %1000s x; done", BUILD_LIMIT);
        assert_eq!((code, said.len() as u64), (Some(0), LONGEST_OUTPUT));
        assert!(run(Path::new("/nowhere/cc"), &[], BUILD_LIMIT).is_err());
    }

    #[test]
    fn a_message_has_a_few_lines_that_are_safe_to_print() {
        assert_eq!(
            first_lines(b"a.c:1:\n\n  error: \x1b[31mno\xff\n1\n2\n"),
            "a.c:1:; error: \\u{1b}[31mno\u{fffd}; 1"
        );
        assert_eq!(first_lines(&[b'x'; 4096]).len(), SHOWN_CHARS);
        assert_eq!(first_lines(b"\n \n"), "without a message");
    }

    #[test]
    fn another_source_or_compiler_has_another_program() {
        let of = |text: &'static str, version: &str| {
            Source { name: "service", text }.path(Path::new("/cache"), &version)
        };
        let one = of("int x;", "cc 12.2");
        assert_eq!(one, of("int x;", "cc 12.2"));
        assert!(one.to_string_lossy().starts_with("/cache/service-"));
        assert!(one != of("int y;", "cc 12.2") && one != of("int x;", "cc 13.1"));
    }

    #[test]
    fn a_program_that_prints_no_port_is_an_error() {
        let started = |words: &[&str]| {
            let words: Vec<String> = words.iter().map(|word| (*word).to_owned()).collect();
            Service::start(Path::new("/bin/echo"), &words).map(|service| service.port)
        };
        assert_eq!(started(&["listening", "on", "127.0.0.1:8080"]).unwrap(), 8080);
        let wrong: [&[&str]; 3] = [&["listening", "on", "127.0.0.1:99999"], &["bind: in use"], &[]];
        for words in wrong {
            let why = format!("{:#}", started(words).unwrap_err());
            assert!(why.contains("instead of its port"), "{why}");
        }
        assert!(Service::start(Path::new("/nowhere/service"), &[]).is_err());
    }
}
