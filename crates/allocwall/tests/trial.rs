//! `allocwall trial` from the command line: outcomes of planted effects, one error line for each refusal, and no
//! process or temporary file left behind, however the trial ends.

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Much longer than any of these commands takes, much shorter than the time limit of a test run.
const PATIENCE: Duration = Duration::from_secs(60);
const PYTHON: &str = "/usr/bin/python3";
/// A variable in the environment of allocwall and of all processes that it starts.
const MARK: &str = "ALLOCWALL_TEST_PLACE";

/// The folders of one test, and a value that marks all of its processes.
struct Place {
    folder: TempDir,
    mark: String,
}

impl Place {
    fn new() -> Place {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let nth = NEXT.fetch_add(1, Ordering::Relaxed);
        let folder = tempfile::tempdir().expect("a temporary folder");
        fs::create_dir(folder.path().join("tmp")).unwrap();
        Place { folder, mark: format!("{}-{nth}", std::process::id()) }
    }

    fn at(&self, name: &str) -> String {
        self.folder.path().join(name).display().to_string()
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(BINARY);
        command
            .arg("trial")
            .args(arguments)
            .env("XDG_STATE_HOME", self.folder.path().join("state"))
            // Bundled libraries are unpacked once for all tests.
            .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"))
            .env("TMPDIR", self.folder.path().join("tmp"))
            .env(MARK, &self.mark)
            .env_remove("COLUMNS")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }

    fn start(&self, arguments: &[&str]) -> Child {
        self.command(arguments).spawn().expect("the tool starts")
    }

    /// Runs a trial to its end; nothing may be left at that moment.
    fn trial(&self, arguments: &[&str]) -> Output {
        let output = end_of(self.start(arguments));
        self.assert_nothing_left(Duration::ZERO);
        output
    }

    /// Without the preliminary diagnosis.
    fn quick(&self, arguments: &[&str]) -> Output {
        self.trial(&[&["--no-predict"], arguments].concat())
    }

    fn json(&self, arguments: &[&str]) -> Value {
        let output = self.quick(&[&["--json"], arguments].concat());
        serde_json::from_slice(&output.stdout).unwrap_or_else(|e| panic!("{e}: {}", talk(&output)))
    }

    fn processes(&self) -> Vec<String> {
        let wanted = format!("{MARK}={}", self.mark);
        let marked = |path: &Path| {
            let environ = fs::read(path.join("environ")).unwrap_or_default();
            environ.split(|b| *b == 0).any(|entry| entry == wanted.as_bytes())
        };
        let all = fs::read_dir("/proc").unwrap().flatten().map(|entry| entry.path());
        all.filter(|path| marked(path))
            .map(|path| {
                String::from_utf8_lossy(&fs::read(path.join("cmdline")).unwrap_or_default())
                    .replace('\0', " ")
            })
            .collect()
    }

    fn temporary(&self) -> Vec<PathBuf> {
        let entries = fs::read_dir(self.folder.path().join("tmp")).unwrap();
        entries.flatten().map(|entry| entry.path()).collect()
    }

    fn assert_nothing_left(&self, within: Duration) {
        let began = Instant::now();
        loop {
            let left = (self.processes(), self.temporary());
            if left.0.is_empty() && left.1.is_empty() {
                return;
            }
            assert!(began.elapsed() < within, "left behind: {left:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

fn end_of(child: Child) -> Output {
    let pid = Pid::from_raw(child.id() as i32).unwrap();
    let (done, waiting) = std::sync::mpsc::channel();
    let watch = std::thread::spawn(move || {
        if waiting.recv_timeout(PATIENCE).is_err() {
            let _ = kill_process(pid, Signal::KILL);
        }
    });
    let output = child.wait_with_output().expect("its output");
    let _ = done.send(());
    let _ = watch.join();
    output
}

fn talk(output: &Output) -> String {
    String::from_utf8(output.stderr.clone()).expect("talk is UTF-8")
}

fn data(output: &Output) -> String {
    String::from_utf8(output.stdout.clone()).expect("data is UTF-8")
}

/// Starts of the lines that announce a trial.
const ANNOUNCED: [&str; 4] = ["arms: ", "plan: ", "result: ", "time: "];

/// No data; the last line on stderr is the error, and the lines before it are `before`, apart from those that announce the trial.
fn assert_refused(output: &Output, code: i32, words: &[&str], before: &[&str]) {
    let talk = talk(output);
    assert_eq!(output.status.code(), Some(code), "{talk}");
    assert!(output.stdout.is_empty(), "data: {}", data(output));
    let lines: Vec<&str> = talk.lines().collect();
    let error = lines.iter().position(|line| line.starts_with("error: "));
    let error = error.unwrap_or_else(|| panic!("no error: {talk}"));
    for word in words {
        assert!(lines[error].contains(word), "{word:?} in {talk:?}");
    }
    let announces = |line: &&str| ANNOUNCED.iter().any(|start| line.starts_with(start));
    let said: Vec<&str> = lines[..error].iter().copied().filter(|line| !announces(line)).collect();
    assert_eq!(said, before, "{talk}");
    if code == 1 {
        assert_eq!(lines.len(), error + 1, "{talk}");
    }
}

/// One error line, exit status 1, nothing left behind, no trial saved.
fn refused(arguments: &[&str], words: &[&str]) {
    refused_after(arguments, 1, words, &[]);
}

/// The same for wrong usage.
fn misused(arguments: &[&str], words: &[&str]) {
    refused_after(arguments, 2, words, &[]);
}

fn refused_after(arguments: &[&str], code: i32, words: &[&str], before: &[&str]) {
    let place = Place::new();
    assert_refused(&place.quick(arguments), code, words, before);
    assert!(!Path::new(&place.at("state/allocwall")).exists() || saved(&place).is_empty());
}

/// Trials in the state directory.
fn saved(place: &Place) -> Vec<PathBuf> {
    let entries = fs::read_dir(place.at("state/allocwall")).into_iter().flatten();
    entries.flatten().map(|entry| entry.path()).collect()
}

/// The lines of this kind in a trial's file: `trial`, `block` or `plan`.
fn lines(file: &str, kind: &str) -> Vec<Value> {
    let text = fs::read_to_string(file).unwrap_or_default();
    let whole = text.split_inclusive('\n').filter(|line| line.ends_with('\n'));
    let lines = whole.map(|line| serde_json::from_str::<Value>(line).unwrap());
    lines.filter_map(|line| line.get(kind).cloned()).collect()
}

/// The order of the arms in each block.
fn orders(file: &str) -> Vec<Vec<u64>> {
    let order = |block: &Value| {
        let runs = block["runs"].as_array().unwrap().iter();
        runs.map(|run| run["arm"].as_u64().unwrap()).collect()
    };
    lines(file, "block").iter().map(order).collect()
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let began = Instant::now();
    while !holds() {
        assert!(began.elapsed() < PATIENCE, "did not happen: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn send(child: &Child, signal: Signal) {
    kill_process(Pid::from_raw(child.id() as i32).unwrap(), signal).unwrap();
}

fn comparison<'a>(document: &'a Value, arm: &str, metric: &str) -> &'a Value {
    let all = document["comparisons"].as_array().unwrap();
    let found = all.iter().find(|c| c["arm"] == arm && c["metric"] == metric);
    found.unwrap_or_else(|| panic!("no {arm}, {metric}: {document}"))
}

fn interval(comparison: &Value) -> (f64, f64) {
    let end = |name: &str| comparison["interval"][name].as_f64();
    (end("low").unwrap_or(f64::NAN), end("high").unwrap_or(f64::NAN))
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn on_path(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file())
}

// ---- what is refused ----

#[test]
fn commands_that_cannot_be_tried() {
    let place = Place::new();
    let plain = place.at("plain");
    fs::write(&plain, "no program").unwrap();
    let folder = place.at("");
    for (command, words) in [
        (&["/nonexistent/x"][..], &["cannot start /nonexistent/x", "(os error 2)"][..]),
        (&["no-such-program-anywhere"], &["no-such-program-anywhere", "no such program in PATH"]),
        (&[&plain], &[&plain, "not executable"]),
        (&[&folder], &["it is a folder"]),
        (&["false"], &["fails without any remedy", "exit status 1"]),
        (
            &["sh", "-c", "echo first >&2; echo 'no database' >&2; exit 3"],
            &["fails without any remedy", "exit status 3", "no database"],
        ),
        (&["sh", "-c", "kill -SEGV $$"], &["fails without any remedy", "signal 11"]),
    ] {
        refused(&[&["-w", "env:A=1", "--blocks", "4", "--"], command].concat(), words);
    }
    // The twin: --exit-ok makes this status a success.
    let output =
        place.quick(&["-w", "env:A=1", "--blocks", "4", "--exit-ok", "3", "--", "sh", "-c", "exit 3"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
}

#[test]
fn a_command_that_never_ends_is_ended() {
    refused(
        &["-w", "env:A=1", "--blocks", "4", "--timeout", "300ms", "--", "sh", "-c", "sleep 100 & sleep 100"],
        &["fails without any remedy", "time limit", "for a server, add --load URL"],
    );
}

#[test]
fn arms_that_cannot_be_applied() {
    let refused = |arm: &str, words: &[&str]| refused(&["-w", arm, "--blocks", "4", "--", "true"], words);
    let misused = |arm: &str, words: &[&str]| misused(&["-w", arm, "--blocks", "4", "--", "true"], words);
    misused("jemaloc", &["no remedy jemaloc", "nearest: jemalloc"]);
    refused("cpus=60000", &["CPU 60000 is not online"]);
    refused("nodes=1000", &["1000"]);
    misused("jemalloc+mimalloc", &["both set the allocator"]);
    refused("mimalloc@/nonexistent/lib.so", &["/nonexistent/lib.so"]);
    refused("mimalloc@/etc/passwd", &["/etc/passwd", "not an ELF file"]);
    let glibc = Command::new("getconf").arg("GNU_LIBC_VERSION").output();
    if !glibc.is_ok_and(|output| output.status.success()) {
        return println!("skipped in part: no glibc here");
    }
    misused("glibc:perturb=256", &["perturb=256", "0 to 255"]);
    misused("glibc:arena_mx=2", &["arena_mx", "nearest: arena_max"]);
}

#[test]
fn arms_that_are_given_twice_or_not_at_all() {
    misused(&["-w", "env:A=1", "-w", "env:A=1", "--blocks", "4", "--", "true"], &["given twice"]);
    misused(&["--blocks", "4", "--", "true"], &["nothing to try", "--with none"]);
    misused(&["-w", "none", "--blocks", "4"], &["no command given"]);
}

/// The library of an allocator that is always bundled.
fn library(place: &Place) -> PathBuf {
    // The first trial unpacks it.
    let output = place.quick(&["-w", "mimalloc@bundled", "--blocks", "1", "--", "true"]);
    let cache = Path::new(concat!(env!("CARGO_TARGET_TMPDIR"), "/cache/allocwall/libraries"));
    let is_library = |path: &Path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        name.starts_with("libmimalloc") && name.ends_with(".so")
    };
    let mut folders = vec![cache.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
            let path = entry.path();
            match path.is_dir() {
                true => folders.push(path),
                false if is_library(&path) => return path,
                false => {}
            }
        }
    }
    panic!("no bundled mimalloc: {}", talk(&output));
}

#[test]
fn a_library_of_another_machine() {
    let place = Place::new();
    let own = library(&place);
    let mut bytes = fs::read(&own).unwrap();
    // e_machine of the ELF header (elf(5)): set to another architecture.
    let machine = u16::from_le_bytes([bytes[18], bytes[19]]);
    let (aarch64, x86_64) = (183_u16, 62_u16);
    let other = if machine == aarch64 { x86_64 } else { aarch64 };
    bytes[18..20].copy_from_slice(&other.to_le_bytes());
    let foreign = place.at("libmimalloc.so");
    fs::write(&foreign, &bytes).unwrap();
    let arm = format!("mimalloc@{foreign}");
    refused(&["-w", &arm, "--blocks", "4", "--", "true"], &["libmimalloc.so is for"]);
    // The twin: the library for this architecture.
    fs::copy(&own, &foreign).unwrap();
    let output = place.quick(&["-w", &arm, "--blocks", "1", "--", "true"]);
    assert!(!talk(&output).contains("error"), "{}", talk(&output));
}

#[test]
fn programs_that_cannot_be_preloaded() {
    let place = Place::new();
    let preload = |program: &str, argument: &str, words: &[&str]| {
        refused(&["-w", "mimalloc", "--blocks", "4", "--", program, argument], words);
    };
    let setuid = place.at("setuid");
    fs::copy("/bin/true", &setuid).unwrap();
    fs::set_permissions(&setuid, fs::Permissions::from_mode(0o4755)).unwrap();
    preload(&setuid, "", &["has setuid rights"]);
    match on_path("go") {
        Some(go) => preload(&go.display().to_string(), "version", &["a Go program"]),
        None => println!("skipped in part: no Go program here"),
    }
    let (source, program) = (place.at("static.c"), place.at("static"));
    fs::write(&source, "int main(void) { return 0; }").unwrap();
    let built = Command::new("cc").args(["-static", &source, "-o", &program]).output();
    if built.is_ok_and(|output| output.status.success()) {
        preload(&program, "", &["statically linked"]);
        // A remedy that needs no loader can be tried.
        let output = place.quick(&["-w", "env:A=1", "--blocks", "1", "--", &program]);
        assert!(!talk(&output).contains("error"), "{}", talk(&output));
    } else {
        println!("skipped in part: nothing links statically here")
    }
}

/// The arguments of a short trial of a server.
fn served<'a>(options: &[&'a str], command: &[&'a str]) -> Vec<&'a str> {
    [&["-w", "env:A=1", "--blocks", "4"], options, &["--"], command].concat()
}

#[test]
fn servers_that_cannot_be_loaded() {
    let port = free_port();
    let url = format!("http://127.0.0.1:{port}/");
    let server =
        |options: &[&str], command: &[&str], words: &[&str]| refused(&served(options, command), words);
    let misused = |options: &[&str], words: &[&str]| misused(&served(options, &["sleep", "100"]), words);
    let load = ["--load", &url, "--rate", "50", "--load-time", "500ms"];
    let hasty = [&load[..], &["--ready-timeout", "300ms"]].concat();
    server(&hasty, &["sleep", "100"], &["was not ready after 0.3 s", "connection refused"]);
    server(&hasty, &["true"], &["ended (exit status 0) before", "ready"]);
    misused(&["--load", "ftp://x"], &["ftp://x"]);
    misused(&["--load", "http://127.0.0.1:1/", "--ready", "soon"], &["soon"]);
    let taken = TcpListener::bind(("127.0.0.1", port)).unwrap();
    server(&load, &["sleep", "100"], &[&format!("127.0.0.1:{port} is in use")]);
    drop(taken);
    if !Path::new(PYTHON).exists() {
        return println!("skipped in part: no {PYTHON}");
    }
    let (open, closed) = (free_port(), port);
    let ready = format!("tcp:127.0.0.1:{open}");
    let listens = listening(open);
    let listens = [PYTHON, "-c", &listens];
    server(&[&["--ready", &ready][..], &load].concat(), &listens, &["requests failed", "connection refused"]);
    let url = format!("http://127.0.0.1:{closed}/");
    refused_after(
        &[&["-w", "env:A=1", "--blocks", "4", "--ready", &ready, "--load", &url, "--"], &listens[..]]
            .concat(),
        1,
        &["could not find the server's capacity", "connection refused"],
        &["measuring the capacity of the baseline"],
    );
    for (load, words) in [("exit 5", "exit status 5"), ("echo p99=none", "matches nothing")] {
        let options = ["--ready", &ready, "--load-cmd", load, "--metric", "p99:lower=p99=([0-9]+)"];
        server(&options, &listens, &[words]);
    }
    misused(&["--ready", &ready, "--load-cmd", "unknown-load"], &["unknown-load", "--metric"]);
    // No process holds the ports.
    for port in [open, closed] {
        assert!(TcpListener::bind(("127.0.0.1", port)).is_ok(), "{port}");
    }
}

#[test]
fn a_load_that_cannot_be_sent_is_refused_before_the_server_is_started() {
    let place = Place::new();
    let mark = place.at("ran");
    let with = |option: &str| {
        let load = ["-w", "none", "--blocks", "1", "--load", "http://127.0.0.1:1/"];
        place.quick(&[&load[..], &[option, "--", "touch", &mark]].concat())
    };
    assert_refused(&with("--load-time=48h"), 2, &["--load-time", "at most one day"], &[]);
    for rate in ["nan", "inf", "0", "-1", "1e300"] {
        assert_refused(&with(&format!("--rate={rate}")), 2, &["--rate", rate], &[]);
    }
    assert!(!Path::new(&mark).exists());
}

/// The server answers each request after 20 ms on any number of connections, so throughput grows with the
/// connections.
#[test]
fn the_search_for_the_capacity_stays_within_the_connections() {
    use std::io::BufRead;
    if !Path::new(PYTHON).exists() {
        return println!("skipped: no {PYTHON}");
    }
    let (place, port) = (Place::new(), free_port());
    let url = format!("http://127.0.0.1:{port}/");
    let server = format!(
        "import http.server as h, time\nclass H(h.BaseHTTPRequestHandler):\n protocol_version = 'HTTP/1.1'\n def do_GET(s):\n  \
         time.sleep(.02); s.send_response(200); s.send_header('Content-Length', '0'); s.end_headers()\n def \
         log_message(s, *a): pass\nh.ThreadingHTTPServer(('127.0.0.1', {port}), H).serve_forever()"
    );
    let mut child = place.start(&[
        "--no-predict",
        "-w",
        "none",
        "--load",
        &url,
        "--connections",
        "3",
        "--",
        PYTHON,
        "-c",
        &server,
    ]);
    let talk = std::io::BufReader::new(child.stderr.take().unwrap()).lines();
    let mut said: Vec<String> = Vec::new();
    for line in talk {
        said.push(line.unwrap());
        if said.last().is_some_and(|line| line.starts_with("capacity ")) {
            send(&child, Signal::INT);
        }
    }
    end_of(child);
    place.assert_nothing_left(PATIENCE);
    let said = said.join("\n");
    assert!(said.contains("throughput still rose at 3 connections"), "{said}");
    assert!(said.contains("requests/s with 3 connections"), "{said}");
}

#[test]
fn options_without_effect_are_refused_before_any_run() {
    let place = Place::new();
    let mark = place.at("ran");
    for (options, words) in [
        (&["--rest", "1s"][..], "--rest has no effect on a command that runs to its end"),
        (&["--ready", "tcp:127.0.0.1:1"], "it is for a server under --load"),
        (
            &["--load", "http://127.0.0.1:1/", "--timeout", "1s"],
            "--timeout has no effect on a server under --load",
        ),
        (&["--first", "9"], "--first is for a server: add --load URL"),
        (
            &["--load", "http://127.0.0.1:1/", "--first", "9", "--warm-up", "1s"],
            "--warm-up has no effect on a server under --load with --first",
        ),
    ] {
        let arguments = [&["-w", "none", "--blocks", "1"], options, &["--", "touch", &mark]].concat();
        let output = place.quick(&arguments);
        assert_refused(&output, 2, &[words], &[]);
        assert_eq!(talk(&output).lines().count(), 1, "{}", talk(&output));
    }
    assert!(!Path::new(&mark).exists());
    // The twin: an option that has an effect here.
    let output = place.quick(&["-w", "none", "--blocks", "1", "--timeout", "9s", "--", "touch", &mark]);
    assert!(Path::new(&mark).exists(), "{}", talk(&output));
}

/// The start takes 0.2 s, and the first request 0.3 s.
#[test]
fn the_first_requests_count_from_the_start_of_the_process() {
    if !Path::new(PYTHON).exists() {
        return println!("skipped: no {PYTHON}");
    }
    let (place, port) = (Place::new(), free_port());
    let url = format!("http://127.0.0.1:{port}/");
    let server = format!(
        "import http.server as h, time\nslow = [.3]\nclass H(h.BaseHTTPRequestHandler):\n protocol_version = 'HTTP/1.1'\n def \
         do_GET(s):\n  time.sleep(slow.pop() if slow else 0)\n  s.send_response(200); s.send_header('Content-Length', '0'); \
         s.end_headers()\n def log_message(s, *a): pass\ntime.sleep(.2)\nh.ThreadingHTTPServer(('127.0.0.1', {port}), \
         H).serve_forever()"
    );
    let first = ["-w", "none", "--blocks", "1", "--load", &url, "--first", "20", "--rest", "10ms"];
    let document = place.json(&[&first[..], &["--", PYTHON, "-c", &server]].concat());
    let median = |metric: &str| {
        let medians = document["arms"][0]["medians"].as_array().expect("a list");
        let found = medians.iter().find(|median| median["metric"] == metric);
        found.and_then(|found| found["median"].as_f64()).unwrap_or_else(|| panic!("{metric}: {document}"))
    };
    assert!(median("first_s") >= 0.5 && median("first_s") >= median("ready_s"), "{document}");
    assert!(median("first_slowest_s") >= 0.3, "{document}");
    assert!(median("first_mean_s") < median("first_slowest_s"), "{document}");
}

/// A program that accepts connections on this port and does nothing else.
fn listening(port: u16) -> String {
    format!(
        "import socket, time\ns = socket.socket()\ns.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)\n\
         s.bind(('127.0.0.1', {port}))\ns.listen(512)\ntime.sleep(60)"
    )
}

#[test]
fn a_metric_that_is_not_printed_is_refused_and_a_printed_one_has_its_unit() {
    let metric = "took:lower=took ([0-9.]+ms)";
    let prints = |text: &str| format!("echo '{text}'");
    for text in ["", "took long", "took 12"] {
        refused(
            &["-w", "env:A=1", "--blocks", "4", "--metric", metric, "--", "sh", "-c", &prints(text)],
            &["metric took", "--metric"],
        );
    }
    misused(
        &["-w", "env:A=1", "--blocks", "4", "--metric", "took:lower=(", "--", "true"],
        &["--metric", "regular expression"],
    );
    let place = Place::new();
    let command = "sleep 0.1; echo progress took 7ms; echo \"took ${TOOK:-1.5}ms\"";
    let document =
        place.json(&["-w", "env:TOOK=3", "--blocks", "4", "--metric", metric, "--", "sh", "-c", command]);
    let own = &document["metrics"][0];
    assert_eq!((&own["key"], &own["unit"]), (&"took".into(), &"ns".into()), "{own}");
    assert_eq!((&own["direction"], &own["primary"]), (&"lower_is_better".into(), &true.into()), "{own}");
    let others = document["metrics"].as_array().unwrap().iter().skip(1);
    assert!(others.map(|m| &m["primary"]).all(|primary| *primary == Value::Bool(false)));
    let found = comparison(&document, "env:TOOK=3", "took");
    assert_eq!((&found["baseline_median"], &found["arm_median"]), (&1.5e6.into(), &3e6.into()), "{found}");
    assert_eq!(found["outcome"], "worse");
    assert!((found["effect"].as_f64().unwrap() - 1.0).abs() < 1e-9, "{found}");
    // With `higher`, the same change is better.
    let rate = "rate:higher=took ([0-9.]+)ms";
    let document =
        place.json(&["-w", "env:TOOK=3", "--blocks", "4", "--metric", rate, "--", "sh", "-c", command]);
    assert_eq!(comparison(&document, "env:TOOK=3", "rate")["outcome"], "better");
}

#[test]
fn a_budget_too_short_for_an_outcome_is_refused_before_the_first_block() {
    let place = Place::new();
    let output = place.quick(&["-w", "env:A=1", "--budget", "100ms", "--", "sleep", "0.1"]);
    let named = ["--budget 100ms is too short for a result", "at least 4 blocks are needed (--budget 2s)"];
    assert_refused(&output, 2, &named, &[]);
    // The twin: enough time.
    let output = place.quick(&["-w", "env:A=1", "--budget", "3s", "--", "sleep", "0.01"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    assert!(!talk(&output).contains("time is up after"), "{}", talk(&output));
    for time in ["--budget=0", "--budget=-1s", "--budget=2 weeks"] {
        assert_refused(&place.quick(&["-w", "env:A=1", time, "--", "true"]), 2, &["--budget"], &[]);
    }
}

#[test]
fn the_file_of_a_trial_must_be_new() {
    let place = Place::new();
    let (taken, ran, new) = (place.at("mine"), place.at("ran"), place.at("new"));
    fs::write(&taken, "mine").unwrap();
    let below = format!("{taken}/x");
    let to = |file: &str| {
        let count = format!("echo run >> '{ran}'");
        place.quick(&["-w", "none", "--blocks", "1", "-o", file, "--", "sh", "-c", &count])
    };
    for (file, words) in
        [(&taken[..], "exists"), ("/nonexistent/x", "(os error 2)"), (&below, "(os error 20)")]
    {
        assert_refused(&to(file), 1, &[file, words], &[]);
    }
    assert_eq!(fs::read(&taken).unwrap(), b"mine");
    assert!(!Path::new(&ran).exists(), "the file must be checked before any run");
    let output = to(&new);
    assert!(Path::new(&ran).exists() && !lines(&new, "block").is_empty(), "{}", talk(&output));
    let mut command = place.command(&["-w", "none", "--", "true"]);
    command.env("XDG_STATE_HOME", &taken);
    let output = end_of(command.spawn().unwrap());
    assert_refused(&output, 1, &["name a file with -o", &taken], &[]);
    for (file, words) in [("/nonexistent/x", "/nonexistent/x"), (&taken, "not a valid journal of a trial")] {
        assert_refused(&place.trial(&["--continue", file]), 1, &[words], &[]);
    }
}

// ---- reports ----

const OUTCOMES: [&str; 4] = ["better", "worse", "equivalent", "unresolved"];

#[test]
fn each_comparison_has_one_of_four_outcomes() {
    let place = Place::new();
    let command = ["-w", "env:A=1", "-w", "env:B=1", "--blocks", "5", "--seed", "7", "--", "true"];
    let document = place.json(&command);
    assert_eq!(document["version"], 1);
    assert_eq!(document["blocks"], 5);
    assert_eq!(document["settings"]["seed"], "7");
    let comparisons = document["comparisons"].as_array().unwrap();
    let metrics = document["metrics"].as_array().unwrap().len();
    assert_eq!(comparisons.len(), 2 * metrics);
    for comparison in comparisons {
        assert!(OUTCOMES.contains(&comparison["outcome"].as_str().unwrap()), "{comparison}");
        assert!(["env:A=1", "env:B=1"].contains(&comparison["arm"].as_str().unwrap()));
    }
    let output = place.quick(&[&["--csv"], &command[..]].concat());
    let table = data(&output);
    let mut rows = table.split("\r\n").filter(|row| !row.is_empty());
    let head: Vec<&str> = rows.next().unwrap().split(',').collect();
    let word = head.iter().position(|title| *title == "outcome").unwrap();
    let mut count = 0;
    for row in rows {
        // No field up to the outcome contains a comma.
        assert!(OUTCOMES.contains(&row.split(',').nth(word).unwrap()), "{row}");
        count += 1;
    }
    assert_eq!(count, comparisons.len());
}

#[test]
fn none_compares_the_command_with_itself() {
    let place = Place::new();
    let document = place.json(&["-w", "none", "--blocks", "5", "--", "true"]);
    assert_eq!(document["arms"].as_array().unwrap().len(), 2);
    let comparisons = document["comparisons"].as_array().unwrap();
    assert!(!comparisons.is_empty());
    for comparison in comparisons {
        assert_eq!((&comparison["arm"], &comparison["arm_index"]), (&"A′".into(), &1.into()));
        // Five blocks of two arms cannot show a difference: 2 / 2^5 is above 0.05.
        assert!(!["better", "worse"].contains(&comparison["outcome"].as_str().unwrap()), "{comparison}");
    }
}

/// Prints a figure: 1,000 without `SLOW`, 50 % more with SLOW=150, each with up to 2 % of noise.
const FIGURE: &str = "sleep 0.1; echo figure=$(( ${SLOW:-100} * (1000 + $$ % 41 - 20) / 100 ))";

#[test]
fn a_planted_slowdown_is_worse_within_its_interval_and_the_twin_is_not() {
    let place = Place::new();
    let tried = |script: &str| {
        let options = ["-w", "env:SLOW=150", "--blocks", "6"];
        let metric = ["--metric", "figure:lower=figure=([0-9]+)"];
        place.json(&[&options[..], &metric, &["--", "sh", "-c", script]].concat())
    };
    let document = tried(FIGURE);
    let found = comparison(&document, "env:SLOW=150", "figure");
    assert_eq!(found["outcome"], "worse", "{found}");
    let (low, high) = interval(found);
    // The true effect is +50 %; the interval may be wider by the noise.
    assert!(low < 0.52 && high > 0.48 && high - low < 0.2, "{found}");
    let twin = "sleep 0.1; echo figure=${SLOW:+1000}${SLOW:-1000} | head -c 11";
    let document = tried(twin);
    let found = comparison(&document, "env:SLOW=150", "figure");
    assert_eq!(found["outcome"], "equivalent", "{found}");
}

#[test]
fn longer_wall_time_is_worse_and_meets_fail_on() {
    let place = Place::new();
    let command = ["--", "sh", "-c", "sleep 0.${SLOW:-1}"];
    let slow = |gates: &[&str]| {
        let gates: Vec<&str> = gates.iter().flat_map(|gate| ["--fail-on", gate]).collect();
        place.quick(&[&["-w", "env:SLOW=4", "--blocks", "4"], &gates[..], &command[..]].concat())
    };
    let output = slow(&["wall_s>+50%"]);
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    let said = talk(&output);
    assert!(said.contains("warning: env:SLOW=4: wall_s changed by +"), "{said}");
    assert!(data(&output).contains("Worse: env:SLOW=4, wall time"), "{}", data(&output));
    let output = slow(&["wall_s>+900%", "wall_s<-5%"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    // Gates that cannot be judged are refused before any block.
    for (gate, words) in [("nothing>+5%", "no metric nothing"), ("wall_s", "--fail-on wall_s")] {
        misused(
            &[&["-w", "env:SLOW=4", "--blocks", "4", "--fail-on", gate], &command[..]].concat(),
            &[words],
        );
    }
}

#[test]
fn crashes_are_counted_by_arm() {
    let place = Place::new();
    // The arm counts its own runs. The first one is not part of a block; of the next four, the second and the fourth
    // fail.
    let script = format!(
        "[ -z \"$BREAKS\" ] && exit 0; echo run >> '{0}'; [ $(( $(wc -l < '{0}') % 2 )) -eq 1 ] || {{ echo broken pipe dream >&2; exit 7; }}",
        place.at("count")
    );
    let arguments = ["-w", "env:BREAKS=1", "--blocks", "4", "--", "sh", "-c", &script];
    let document = place.json(&arguments);
    let arms = document["arms"].as_array().unwrap();
    let failures = |arm: usize| arms[arm]["failures"].as_array().unwrap();
    assert_eq!(arms[2]["runs"], 4);
    assert_eq!(failures(2).len(), 2, "{}", arms[2]);
    assert_eq!(failures(2)[0]["text"], "exit status 7: broken pipe dream");
    assert!(failures(0).is_empty() && failures(1).is_empty());
    let found = comparison(&document, "env:BREAKS=1", "wall_s");
    assert_eq!(found["blocks"], 2);
    fs::remove_file(place.at("count")).unwrap();
    let text = data(&place.quick(&arguments));
    assert!(text.contains("2 of 4 runs: exit status 7: broken pipe dream"), "{text}");
}

#[test]
fn an_effect_is_planned_from_the_first_blocks_and_printed() {
    let place = Place::new();
    let file = place.at("t");
    // A metric with little noise: few blocks detect the effect.
    let output = place.quick(&[
        "-w",
        "env:A=1",
        "--effect",
        "20%",
        "--metric",
        "n:lower=n=([0-9]+)",
        "-o",
        &file,
        "--",
        "sh",
        "-c",
        "echo n=1$(( $$ % 10 ))",
    ]);
    let said = talk(&output);
    let planned = said.lines().find(|line| line.contains("blocks in total, about "));
    let first = planned.unwrap_or_default();
    assert!(first.contains("20.0 %"), "{said}");
    // The file has the plan after the pilot blocks and before the other blocks.
    let text = fs::read_to_string(&file).unwrap();
    let kinds: Vec<char> = text.lines().map(|line| line.chars().nth(2).unwrap()).collect();
    let plan = kinds.iter().position(|kind| *kind == 'p').unwrap();
    assert_eq!(kinds.iter().filter(|kind| **kind == 'p').count(), 1, "{kinds:?}");
    assert!((5..=9).contains(&plan), "{kinds:?}");
    let planned = lines(&file, "plan")[0]["settings"]["planned"].as_u64().unwrap();
    assert!(first.starts_with(&format!("{planned} blocks in total")), "{said}");
    assert!(lines(&file, "block").len() as u64 <= planned);
}

// ---- what a trial says and does before it measures ----

#[test]
fn the_plan_is_told_before_the_first_run_and_the_time_after_it() {
    let place = Place::new();
    let plan = |blocks: &str, command: &str| {
        let output = place.quick(&["-w", "env:A=1", "-w", "env:B=1", "--blocks", blocks, "--", command]);
        talk(&output)
    };
    // The first run fails: what stands before the error was printed before it.
    let said = plan("6", "false");
    let before = said.split("error: ").next().unwrap_or_default();
    for line in [
        "arms: the command itself, twice (A and A′), env:A=1, env:B=1\n",
        "plan: first 1 run of each arm that is not counted; then 6 blocks: 24 runs; ",
        "result: to be better or worse, an arm needs at least 4 blocks; if runs of one arm differ by 1.0 %, 6 blocks find changes of ",
    ] {
        assert!(before.contains(line), "{line:?} in {said}");
    }
    assert!(!said.contains("time: ") && !said.contains("warning"), "{said}");
    // A plan that can't give a result says so before the first run.
    let said = plan("3", "false");
    let before = said.split("error: ").next().unwrap_or_default();
    assert!(before.contains("warning: 3 blocks can't give a result with 2 remedies: 4 are needed"), "{said}");
    // The twin: the command works.
    let said = plan("4", "true");
    assert!(said.contains("\ntime: about ") && said.contains(", 4 blocks of "), "{said}");
    assert!(!said.contains("can't give"), "{said}");
}

#[test]
fn an_arm_whose_library_is_missing_is_left_out_and_a_wrong_name_ends_the_trial() {
    let place = Place::new();
    let file = place.at("t");
    let with = |arms: &[&str], options: &[&str]| {
        let arms: Vec<&str> = arms.iter().flat_map(|arm| ["-w", arm]).collect();
        place.quick(&[&arms[..], &["--blocks", "4"], options, &["--", "true"]].concat())
    };
    // No version 99 is known.
    let output = with(&["env:A=1", "mimalloc@99"], &["--json", "-o", &file]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    assert!(talk(&output).contains("warning: left out: mimalloc@99: "), "{}", talk(&output));
    let document: Value = serde_json::from_slice(&output.stdout).expect("a document");
    let names: Vec<&Value> =
        document["arms"].as_array().expect("a list").iter().map(|arm| &arm["name"]).collect();
    assert_eq!(names, ["A", "A′", "env:A=1"]);
    assert_eq!(document["left_out"][0]["name"], "mimalloc@99");
    assert_eq!(lines(&file, "trial")[0]["options"]["with"], serde_json::json!(["env:A=1"]));
    // A gate does not pass for an arm that was not tried. The twin: all arms were.
    let gate = ["--fail-on", "minor_faults>+1000%"];
    let output = with(&["env:A=1", "mimalloc@99"], &gate);
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    assert!(talk(&output).contains("--fail-on was not judged for mimalloc@99"), "{}", talk(&output));
    // The sentence may be broken anywhere.
    let page = data(&output).split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(page.contains("Not tried: mimalloc@99.") && page.contains("NOT TRIED"), "{page}");
    let output = with(&["env:A=1"], &gate);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    // No arm is left.
    assert_refused(&with(&["mimalloc@99"], &[]), 1, &["mimalloc@99: "], &[]);
    let both = with(&["mimalloc@99", "mimalloc@98"], &[]);
    assert_eq!(both.status.code(), Some(1));
    assert!(talk(&both).contains("error: no arm is left to try"), "{}", talk(&both));
    // What no machine could do ends the trial.
    assert_refused(&with(&["env:A=1", "mimaloc"], &[]), 2, &["nearest: mimalloc"], &[]);
}

#[test]
fn a_preparation_runs_before_each_run_and_is_not_measured() {
    let place = Place::new();
    let (fresh, count) = (place.at("fresh"), place.at("count"));
    // The command fails if it is not prepared. The preparation has no remedies.
    let prepare = format!("sleep 0.4; test -z \"$SLOW\" && touch '{fresh}' && echo run >> '{count}'");
    let command = format!("rm '{fresh}'");
    let arguments = ["-w", "env:SLOW=1", "--blocks", "1", "--json", "--prepare", &prepare];
    let output = place.quick(&[&arguments[..], &["--", "sh", "-c", &command]].concat());
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
    for arm in document["arms"].as_array().expect("a list") {
        assert_eq!(arm["failures"], serde_json::json!([]), "{arm}");
        let wall = arm["medians"].as_array().and_then(|all| all.iter().find(|m| m["metric"] == "wall_s"));
        let wall_s = wall.and_then(|wall| wall["median"].as_f64()).unwrap_or(f64::NAN);
        assert!(wall_s < 0.4, "{arm}");
    }
    // Three arms, each once before the block and once in it.
    assert_eq!(fs::read_to_string(&count).unwrap_or_default().lines().count(), 6);
    // A preparation that fails ends the trial, with its last words.
    refused(
        &["-w", "env:A=1", "--blocks", "4", "--prepare", "echo no disk >&2; exit 3", "--", "true"],
        &["the command of --prepare failed: exit status 3: no disk"],
    );
    let script = format!("echo run >> '{count}'");
    fs::remove_file(&count).expect("the runs were counted");
    let later = format!("test $(cat '{count}' | wc -l) -lt 7");
    let output = place.quick(&[
        "-w",
        "env:A=1",
        "--blocks",
        "4",
        "--prepare",
        &format!("touch '{count}'; {later}"),
        "--",
        "sh",
        "-c",
        &script,
    ]);
    // One block is done, which is reported.
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    assert!(talk(&output).contains("stopped early: the command of --prepare failed"), "{}", talk(&output));
    assert!(data(&output).contains("1 of 4 planned blocks"), "{}", data(&output));
}

#[test]
fn warm_up_runs_are_not_counted() {
    let place = Place::new();
    let runs = |options: &[&str]| {
        let count = place.at("count");
        let script = format!("echo run >> '{count}'");
        let arguments =
            [&["-w", "env:A=1", "--blocks", "2"][..], options, &["--", "sh", "-c", &script]].concat();
        let document = place.json(&arguments);
        let counted =
            document["arms"].as_array().expect("a list").iter().filter_map(|arm| arm["runs"].as_u64());
        let all = fs::read_to_string(&count).expect("the runs").lines().count();
        fs::remove_file(&count).expect("the runs were counted");
        (counted.sum::<u64>(), all)
    };
    assert_eq!(runs(&[]), (6, 3 + 6));
    assert_eq!(runs(&["--warm-up", "3"]), (6, 3 * 3 + 6));
}

// ---- proof ----

#[test]
fn a_removed_preload_is_refuted_and_a_kept_one_is_proven() {
    let place = Place::new();
    let proofs = |document: &Value, name: &str| -> Vec<(String, String, String)> {
        let arms = document["arms"].as_array().unwrap();
        let arm = arms.iter().find(|arm| arm["name"] == name).unwrap();
        let text = |item: &Value, field: &str| item[field].as_str().unwrap().to_owned();
        let items = arm["proof"].as_array().unwrap().iter();
        items.map(|item| (text(item, "what"), text(item, "state"), text(item, "detail"))).collect()
    };
    let trial = |before: &str| {
        let script = format!("{before}exec sort /dev/null");
        place.json(&["-w", "mimalloc", "-w", "env:A=1", "--blocks", "4", "--", "sh", "-c", &script])
    };
    let document = trial("unset LD_PRELOAD; ");
    let malloc = |document: &Value| {
        let all = proofs(document, "mimalloc");
        let found = all.iter().find(|(what, ..)| what.starts_with("malloc from"));
        found.cloned().unwrap_or_else(|| panic!("{all:?}"))
    };
    assert_eq!(malloc(&document).1, "refuted", "{document}");
    for comparison in document["comparisons"].as_array().unwrap() {
        if comparison["arm"] == "mimalloc" {
            assert_eq!(comparison["outcome"], "unresolved", "{comparison}");
            let why = comparison["why"]["detail"].as_str().unwrap();
            assert!(why.contains("did not take"), "{comparison}");
        }
    }
    let document = trial("");
    assert_eq!(malloc(&document).1, "proven", "{document}");
    // As the only arm, it leaves nothing to try.
    let output = place.quick(&[
        "-w",
        "mimalloc",
        "--blocks",
        "4",
        "--",
        "sh",
        "-c",
        "unset LD_PRELOAD; exec sort /dev/null",
    ]);
    assert_eq!(output.status.code(), Some(1));
    let said = talk(&output);
    assert!(said.contains("\nwarning: mimalloc: the remedy did not take effect: malloc from"), "{said}");
    assert!(
        said.ends_with("error: no arm is left to try: see the warnings above\n") && output.stdout.is_empty(),
        "{said}"
    );
    // Child processes are checked too.
    let script = "sort /dev/null; sort /dev/null";
    let document = place.json(&["-w", "mimalloc", "--blocks", "1", "--", "sh", "-c", script]);
    let (_, state, detail) = malloc(&document);
    assert_eq!(state, "proven", "{detail}");
    assert!(detail.ends_with("in 3 of 3 processes"), "{detail}");
}

/// A program that allocates for 800 ms. With a module as argument, the module makes as many allocations as the
/// program.
const CALLS: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
static void *(*volatile take)(size_t) = malloc;
static long ms(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}
int main(int count, char **words) {
    void (*also)(void) = 0;
    if (count > 1) {
        void *module = dlopen(words[1], RTLD_NOW | RTLD_DEEPBIND);
        if (!module || !(also = (void (*)(void)) dlsym(module, "also")))
            return 1;
    }
    for (long begin = ms(); ms() - begin < 800;) {
        free(take(64));
        if (also)
            also();
    }
    return 0;
}
"#;
const ALSO: &str = r#"
#include <stdlib.h>
static void *(*volatile take)(size_t) = malloc;
void also(void) { free(take(64)); }
"#;

#[test]
fn the_share_of_the_calls_that_a_library_serves() {
    let place = Place::new();
    for (name, text, flags) in [
        ("calls", CALLS, &["-fno-builtin", "-ldl"][..]),
        ("also.so", ALSO, &["-fno-builtin", "-shared", "-fPIC"]),
    ] {
        let source = place.at(&format!("{name}.c"));
        fs::write(&source, text).unwrap();
        let built = Command::new("cc").args([&source, "-O1", "-o", &place.at(name)]).args(flags).output();
        if !built.is_ok_and(|output| output.status.success()) {
            println!("skipped: no C compiler");
            return;
        }
    }
    let share = |command: &[&str]| {
        let file = place.at(&format!("trial-{}", command.len()));
        let options = ["-w", "mimalloc", "-w", "env:A=1", "--blocks", "1", "-o", &file, "--"];
        let document = place.json(&[&options[..], command].concat());
        // A report from the file has the same arms.
        let report = Command::new(BINARY).args(["report", &file, "--json"]).stdin(Stdio::null()).output();
        let reported: Value = serde_json::from_slice(&report.unwrap().stdout).unwrap();
        assert_eq!(reported["arms"], document["arms"]);
        let items = |arm: usize| document["arms"][arm]["proof"].as_array().unwrap().clone();
        let of_calls = |item: &Value| item["what"].as_str().unwrap().starts_with("calls that ");
        assert!(!items(3).iter().any(of_calls), "{document}");
        items(2).into_iter().find(of_calls).unwrap()
    };
    let (calls, also) = (place.at("calls"), place.at("also.so"));
    let alone = share(&[&calls]);
    if alone["state"] == "unknown" {
        let reason = alone["why"]["reason"].as_str().unwrap();
        assert!(["not_permitted", "not_supported"].contains(&reason), "{alone}");
        println!("skipped: {}", alone["detail"]);
        return;
    }
    let percent = |item: &Value| -> f64 {
        let detail = item["detail"].as_str().unwrap();
        detail.split_once(" % of ").unwrap().0.parse().unwrap()
    };
    assert_eq!((&alone["state"], &alone["needed"]), (&"proven".into(), &false.into()));
    assert!(percent(&alone) > 99.0, "{alone}");
    // RTLD_DEEPBIND: the module's malloc is libc's, not the preloaded one.
    let half = share(&[&calls, &also]);
    assert_eq!(half["state"], "refuted", "{half}");
    assert!((45.0..55.0).contains(&percent(&half)), "{half}");
    assert!(half["detail"].as_str().unwrap().contains("libc"), "{half}");
}

#[test]
fn cpu_time_of_children_is_counted() {
    let place = Place::new();
    let work = "i=0; while [ $i -lt 60000 ]; do i=$((i+1)); done";
    // The same work: in the command itself, or in a grandchild whose parent does not wait for it.
    let script = format!("case $WHERE in child) sh -c '({work}) & wait';; *) {work};; esac");
    let document = place.json(&["-w", "env:WHERE=child", "--blocks", "4", "--", "sh", "-c", &script]);
    let found = comparison(&document, "env:WHERE=child", "cpu_s");
    let (own, child) = (found["baseline_median"].as_f64().unwrap(), found["arm_median"].as_f64().unwrap());
    assert!(child > own * 0.6 && own > 0.005, "{own} s in the command, {child} s in its child");
}

// ---- ends of a trial ----

/// Every run leaves two children and a daemon.
const FAMILY: &str = "sleep 0.5 & sleep 0.5 & (setsid sleep 100 &)";

#[test]
fn however_it_is_ended_nothing_is_left() {
    for signal in [Signal::INT, Signal::TERM, Signal::HUP, Signal::KILL] {
        let place = Place::new();
        let file = place.at("t");
        let script = format!("{FAMILY}; wait");
        let child = place.start(&["--no-predict", "-w", "env:A=1", "-o", &file, "--", "sh", "-c", &script]);
        until("a block begins", || Path::new(&file).exists());
        until("a run is under way", || {
            place.processes().iter().filter(|p| p.starts_with("sleep")).count() == 3
        });
        assert_eq!(place.temporary().len(), 1);
        send(&child, signal);
        let output = end_of(child);
        // If allocwall is killed, the keepers end the processes, a little later.
        let patience = if signal == Signal::KILL { PATIENCE } else { Duration::ZERO };
        place.assert_nothing_left(patience);
        if signal != Signal::KILL {
            assert!(talk(&output).contains("interrupted after 0 blocks"), "{}", talk(&output));
            assert_eq!(output.status.code(), Some(1));
        }
        // The saved trial can be continued.
        assert_eq!(lines(&file, "trial").len(), 1);
    }
}

#[test]
fn before_the_first_block_nothing_is_left_either() {
    for signal in [Signal::INT, Signal::KILL] {
        // The second of three runs that are not counted, and the fourth run, which is diagnosed.
        for nth in [2, 4] {
            let place = Place::new();
            let script = format!(
                "echo run >> '{0}'; [ $(wc -l < '{0}') -ge {nth} ] || exit 0; {FAMILY}; sleep 100",
                place.at("count")
            );
            let child = place.start(&["-w", "env:A=1", "--", "sh", "-c", &script]);
            until("the run is under way", || {
                place.processes().iter().filter(|p| p.starts_with("sleep 100")).count() == 2
            });
            send(&child, signal);
            let output = end_of(child);
            let patience = if signal == Signal::KILL { PATIENCE } else { Duration::ZERO };
            place.assert_nothing_left(patience);
            if signal == Signal::INT {
                assert_refused(&output, 1, &["interrupted before the first block"], &[]);
            }
            assert!(saved(&place).is_empty());
        }
    }
}

/// Interrupts a trial after this many blocks; returns its output.
fn cut_after(place: &Place, file: &str, blocks: usize, arguments: &[&str]) -> Output {
    let child = place.start(&[&["--no-predict", "-o", file], arguments].concat());
    until("blocks are saved", || !lines(file, "trial").is_empty() && lines(file, "block").len() >= blocks);
    send(&child, Signal::INT);
    let output = end_of(child);
    place.assert_nothing_left(Duration::ZERO);
    output
}

#[test]
fn an_interrupted_trial_reports_its_blocks_and_continues_as_planned() {
    let place = Place::new();
    let (file, whole, count) = (place.at("a trial"), place.at("whole"), place.at("count"));
    let script = format!("echo run >> '{count}'; sleep 0.02");
    let arguments =
        ["-w", "env:A=1", "--seed", "11", "--blocks", "8", "--exit-ok", "9", "--", "sh", "-c", &script];
    let output = cut_after(&place, &file, 2, &arguments);
    let (said, text) = (talk(&output), data(&output));
    let done = lines(&file, "block").len();
    assert!((2..8).contains(&done), "{done}");
    let go_on = format!("interrupted after {done} blocks; to continue: allocwall trial --continue '{file}'");
    assert!(said.contains(&go_on), "{said}");
    assert!(text.contains(&format!("{done} of 8 planned blocks")), "{text}");
    assert!(text.contains("env:A=1"), "{text}");
    let kept = fs::read(&file).unwrap();

    // Options that would make it another trial are refused, and the file does not change.
    for (options, code, words) in [
        (&["--blocks", "9"][..], 2, "of 8 planned blocks"),
        (&["--blocks", "1"], 2, "of 8 planned blocks"),
        (&["--with", "env:B=1"], 2, "--with"),
        (&["--effect", "5%"], 2, "--effect"),
        (&["--seed", "12"], 2, "--seed"),
        (&["--metric", "a:lower=(1)"], 2, "--metric"),
        (&["-o", "x"], 2, "--output"),
        (&["--", "true"], 2, "CMD"),
    ] {
        let output = place.trial(&[&["--continue", &file], options].concat());
        assert_refused(&output, code, &[words], &[]);
    }
    assert_eq!(fs::read(&file).unwrap(), kept);
    // With --blocks of the done blocks, it is only reported and nothing runs.
    let runs = || fs::read_to_string(&count).unwrap().lines().count();
    let before = runs();
    let output = place.trial(&["--continue", &file, "--blocks", &done.to_string()]);
    assert!(data(&output).contains(&format!("{done} of 8 planned blocks")), "{}", talk(&output));
    assert_eq!((runs(), &fs::read(&file).unwrap()), (before, &kept));

    let output = place.trial(&["--continue", &file, "--blocks", "8", "--json"]);
    let document: Value = serde_json::from_slice(&output.stdout).unwrap();
    assert_eq!(document["settings"]["seed"], "11", "{}", talk(&output));
    assert_eq!(document["settings"]["planned_blocks"], 8);
    assert!(fs::read(&file).unwrap().starts_with(&kept), "the earlier blocks are kept");
    let orders_now = orders(&file);
    let ended = document["blocks"].as_u64().unwrap() as usize;
    assert_eq!(orders_now.len(), ended);
    // The interim look after 4 blocks may end it.
    assert!(ended == 8 || ended == 4, "{ended}");
    // An uninterrupted trial has the same orders.
    let output = place.quick(&[&["-o", &whole], &arguments[..]].concat());
    let orders_whole = orders(&whole);
    let both = orders_now.len().min(orders_whole.len());
    assert!(both >= 4, "{}", talk(&output));
    assert_eq!(orders_now[..both], orders_whole[..both]);
    // A finished trial is only reported.
    let before = runs();
    let output = place.trial(&["--continue", &file]);
    assert!(data(&output).contains("8 planned blocks"), "{}", talk(&output));
    assert_eq!(runs(), before);
}

#[test]
fn a_killed_trial_can_be_continued() {
    let place = Place::new();
    let file = place.at("t");
    let arguments = ["--no-predict", "-w", "env:A=1", "--blocks", "6", "-o", &file, "--", "sleep", "0.05"];
    let child = place.start(&arguments);
    until("a block is saved", || !lines(&file, "block").is_empty());
    // Two trials cannot write to one file.
    let output = end_of(place.start(&["--continue", &file]));
    assert_refused(&output, 1, &["another trial that is running"], &[]);
    send(&child, Signal::KILL);
    end_of(child);
    place.assert_nothing_left(PATIENCE);
    let before = orders(&file);
    // An incomplete last line is ignored.
    let mut bytes = fs::read(&file).unwrap();
    bytes.extend(b"{\"block\":{\"numb");
    fs::write(&file, bytes).unwrap();
    let output = place.trial(&["--continue", &file]);
    assert!(data(&output).contains("6 planned blocks"), "{}", talk(&output));
    let after = orders(&file);
    assert!(after.len() > before.len() && after.starts_with(&before));
}

#[test]
fn a_trial_continues_only_with_the_same_folder_program_and_environment() {
    let place = Place::new();
    let (file, other, before) = (place.at("t"), place.at("other"), place.at("before"));
    fs::create_dir(&other).unwrap();
    fs::create_dir(&before).unwrap();
    let tool = place.at("before/some-tool");
    fs::write(&tool, "#!/bin/sh\n").unwrap();
    fs::set_permissions(&tool, fs::Permissions::from_mode(0o755)).unwrap();
    fs::copy(&tool, place.at("other/some-tool")).unwrap();
    let ask = |arguments: &[&str], folder: &str, tools: &str, variable: Option<&str>| {
        let mut command = place.command(arguments);
        command
            .current_dir(folder)
            .env("PATH", format!("{tools}:/bin:/usr/bin"))
            .env_remove("MALLOC_ARENA_MAX")
            .envs(variable.map(|value| ("MALLOC_ARENA_MAX", value)));
        end_of(command.spawn().unwrap())
    };
    let begin = ["--no-predict", "-w", "env:B=1", "--blocks", "4", "-o", &file, "--", "some-tool"];
    ask(&begin, &before, &before, None);
    // Keep only the first block.
    let text = fs::read_to_string(&file).unwrap();
    let kept: String = text.split_inclusive('\n').take(2).collect();
    let cut = |text: &str| fs::write(&file, text).unwrap();
    let go_on = ["--continue", &file[..]];
    cut(&kept);
    for (folder, tools, variable, words) in [
        (&other, &before, None, "it was started in"),
        (&before, &other, None, "its program was"),
        (&before, &before, Some("1"), "MALLOC_ARENA_MAX was not set, but is now \"1\""),
    ] {
        let output = ask(&go_on, folder, tools, variable);
        assert_refused(&output, 1, &["can't be continued", words], &[]);
    }
    assert_eq!(fs::read_to_string(&file).unwrap(), kept);
    let output = ask(&go_on, &before, &before, None);
    assert_eq!(lines(&file, "block").len(), 4, "{}", talk(&output));
    assert!(!talk(&output).contains("warning"), "{}", talk(&output));
    // On another machine it continues with a warning, and also if its file does not record where it was started.
    let head: Value = lines(&file, "trial").remove(0);
    let kernel = head["machine"][0].as_str().unwrap();
    cut(&kept.replacen(kernel, "Linux 2.6 on vax", 1));
    let output = ask(&go_on, &before, &before, None);
    assert!(talk(&output).contains("another machine (Linux 2.6 on vax)"), "{}", talk(&output));
    assert_eq!(lines(&file, "block").len(), 4, "{}", talk(&output));
    // `origin` is the last key of the first line.
    let (older, rest) = kept.split_once(",\"origin\":{").unwrap();
    cut(&format!("{older}}}}}\n{}", rest.split_once('\n').unwrap().1));
    let output = ask(&go_on, &other, &before, None);
    assert!(talk(&output).contains("not compared"), "{}", talk(&output));
    assert_eq!(lines(&file, "block").len(), 4, "{}", talk(&output));
}

#[test]
fn a_continued_trial_keeps_its_gate() {
    let place = Place::new();
    let file = place.at("t");
    let metric = "n:lower=n=([0-9]+)";
    let script = "sleep 0.1; echo n=${SLOW:-2}";
    let arguments = [
        "-w",
        "env:SLOW=8",
        "--blocks",
        "6",
        "--metric",
        metric,
        "--fail-on",
        "n>+50%",
        "--",
        "sh",
        "-c",
        script,
    ];
    cut_after(&place, &file, 1, &arguments);
    let output = place.trial(&["--continue", &file]);
    assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
    assert!(talk(&output).contains("the gate is +50.0 %"), "{}", talk(&output));
    // Another gate may be given.
    let output = place.trial(&["--continue", &file, "--fail-on", "n>+900%"]);
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
}

#[test]
fn saved_options_are_checked_like_those_of_the_command_line() {
    let place = Place::new();
    let file = place.at("t");
    place.quick(&["-w", "env:A=1", "--blocks", "2", "--timeout", "9s", "-o", &file, "--", "true"]);
    // Keep only the first block.
    let text = fs::read_to_string(&file).unwrap();
    let kept: String = text.split_inclusive('\n').take(2).collect();
    for (saved, hostile) in [
        ("\"timeout\":\"9s\"", "\"timeout\":\"0s\""),
        ("\"blocks\":2", "\"blocks\":501"),
        ("\"effect\":null", "\"effect\":\"2%\""),
        ("\"header\":[]", "\"header\":[\"no colon\"]"),
        ("\"seed\":null", "\"speed\":null"),
    ] {
        let text = kept.replacen(saved, hostile, 1);
        assert_ne!(text, kept);
        fs::write(&file, text).unwrap();
        let words = "saved options are not valid";
        assert_refused(&place.trial(&["--continue", &file]), 1, &["can't be continued", words], &[]);
        // A report needs them only for the command of another trial.
        let report = |format: &str| {
            let arguments = ["report", &file, "--format", format];
            Command::new(BINARY).args(arguments).stdin(Stdio::null()).output().unwrap()
        };
        let output = report("text");
        let (said, page) = (talk(&output), data(&output));
        assert_eq!(output.status.code(), Some(0), "{said}");
        assert!(said.starts_with(&format!("warning: {file}: ")) && said.contains(words), "{said}");
        assert_eq!(said.lines().count(), 1, "{said}");
        assert!(page.contains("VERDICT") && !page.contains("allocwall trial --with"), "{page}");
        assert_eq!(talk(&report("json")), "");
    }
    // The twin: the options as they were saved.
    fs::write(&file, &kept).unwrap();
    let output = place.trial(&["--continue", &file]);
    assert_eq!(lines(&file, "block").len(), 2, "{}", talk(&output));
}

#[test]
fn a_command_that_is_not_utf8_cannot_be_continued() {
    use std::os::unix::ffi::OsStrExt;
    let place = Place::new();
    let file = place.at("t");
    let mut command =
        place.command(&["--no-predict", "-w", "env:A=1", "--blocks", "4", "-o", &file, "--", "echo"]);
    command.arg(std::ffi::OsStr::from_bytes(b"a\xffb"));
    let output = end_of(command.spawn().unwrap());
    assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
    assert_refused(&place.trial(&["--continue", &file]), 1, &["can't be continued", "text"], &[]);
}

#[test]
fn a_continued_server_is_loaded_at_the_rate_of_its_start() {
    if !Path::new(PYTHON).exists() {
        return println!("skipped: no {PYTHON}");
    }
    let place = Place::new();
    let (file, port) = (place.at("t"), free_port());
    let url = format!("http://127.0.0.1:{port}/");
    let server = format!(
        "import http.server as h\nclass H(h.BaseHTTPRequestHandler):\n protocol_version = 'HTTP/1.1'\n def do_GET(s):\n  \
         s.send_response(200); s.send_header('Content-Length', '2'); s.end_headers(); s.wfile.write(b'ok')\n def \
         log_message(s, *a): pass\nh.ThreadingHTTPServer(('127.0.0.1', {port}), H).serve_forever()"
    );
    let load = [
        "--load",
        &url,
        "--rate",
        "40",
        "--arrivals",
        "constant",
        "--load-time",
        "500ms",
        "--rest",
        "10ms",
        "--connections",
        "4",
    ];
    let arguments = [&["-w", "none", "--blocks", "1"], &load[..], &["--", PYTHON, "-c", &server]].concat();
    let output = cut_after(&place, &file, 0, &arguments);
    assert!(talk(&output).contains("--continue"), "{}", talk(&output));
    // Without --rate, each search would find another capacity, so the file keeps the rate.
    let text = fs::read_to_string(&file).unwrap();
    assert!(text.contains("[\"40/s\",40.0]"), "{text}");
    fs::write(&file, text.replacen("[\"40/s\",40.0]", "[\"40/s\",20.0]", 1)).unwrap();
    let output = place.trial(&["--continue", &file]);
    let blocks = lines(&file, "block");
    let throughput = blocks[0]["runs"][0]["metrics"]["throughput"]["Ok"].as_f64().unwrap();
    assert!((throughput - 20.0).abs() < 4.0, "{throughput} requests per second; {}", talk(&output));
    assert!(TcpListener::bind(("127.0.0.1", port)).is_ok());
}
