//! The services of examples/incidents: built by the C compiler of this machine, and started as children of a run.

use allocwall_host::clock::{monotonic_ns, process_cpu_ns};
use allocwall_host::own::{self, Kind};
use allocwall_host::proc::ProcFs;
use allocwall_host::program;
use allocwall_model::units::{Absence, Measured, Reason};
use anyhow::{Context, anyhow};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io::{self, BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// All of them include it.
const HTTP: &str = include_str!("../../../../../examples/incidents/http.h");
const FLAGS: [&str; 3] = ["-O2", "-g", "-pthread"];
/// A build takes some tenths of a second.
const BUILD_LIMIT: Duration = Duration::from_secs(60);
/// Pause between two checks whether the compiler has ended.
const GLANCE: Duration = Duration::from_millis(5);
/// What a service prints before its port.
const LISTENS: &str = "listening on 127.0.0.1:";
const LONGEST_LINE: u64 = 100;

pub struct Source {
    /// The name of its folder, of its file without the extension, and of its experiment.
    pub name: &'static str,
    pub text: &'static str,
}

impl Source {
    /// The path of the program, which is kept in allocwall's cache. A changed source has another path.
    ///
    /// # Errors
    /// There is no C compiler, it fails, or the cache cannot be written.
    pub fn built(&self) -> Measured<PathBuf> {
        // One at a time: the folder of a build has the number of the process.
        static BUILDING: Mutex<()> = Mutex::new(());
        let _building = BUILDING.lock().unwrap_or_else(PoisonError::into_inner);
        let folder = own::folder(Kind::Cache)?.folder.join("incidents");
        let mut hasher = DefaultHasher::new();
        (HTTP, self.text, FLAGS).hash(&mut hasher);
        let file = folder.join(format!("{}-{:016x}", self.name, hasher.finish()));
        if file.is_file() {
            return Ok(file);
        }
        let compiler = program::find("cc".as_ref(), std::env::var_os("PATH").as_deref(), Path::new("."))
            .map_err(|why| Absence::new(Reason::NotFound, format!("no C compiler: {why}")))?;
        let place = folder.join(format!("build-{}", std::process::id()));
        // One may be left of a process that was killed and had the same number.
        let _ = fs::remove_dir_all(&place);
        let made = self.build(&compiler, &place, &file);
        let _ = fs::remove_dir_all(&place);
        made.map(|()| file)
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
        let mut child = Command::new(compiler)
            .args(FLAGS)
            .arg("-o")
            .arg(&output)
            .arg(&source)
            .env_remove("LD_PRELOAD")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| {
                let why = format!("cannot start {}: {error}", compiler.display());
                Absence::new(Reason::NotPermitted, why)
            })?;
        let until = Instant::now() + BUILD_LIMIT;
        let succeeded = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status.success(),
                Ok(None) if Instant::now() < until => thread::sleep(GLANCE),
                _ => {
                    let _ = child.kill();
                    let _ = child.wait();
                    break false;
                }
            }
        };
        if !succeeded {
            let why = format!("{} cannot build {name}.c", compiler.display());
            return Err(Absence::new(Reason::NotSupported, why));
        }
        fs::rename(&output, file).map_err(not_written)
    }
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
