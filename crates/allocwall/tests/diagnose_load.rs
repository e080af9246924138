//! `allocwall diagnose --load` and `--load-cmd` from the command line: the recorded server is under load during the whole window,
//! and is gone afterwards; what can't be loaded is an error before the window.

use serde_json::Value;
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
const PYTHON: &str = "/usr/bin/python3";

struct Place {
    folder: TempDir,
    port: u16,
}

impl Place {
    fn new() -> Place {
        let port = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let port = port.expect("a free port").port();
        Place { folder: tempfile::tempdir().expect("a temporary folder"), port }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn diagnose(&self, options: &[&str], server: &[&str]) -> Output {
        Command::new(BINARY)
            .args(["diagnose", "-d", "1500ms"])
            .args(options)
            .arg("--")
            .args(server)
            .env("XDG_CACHE_HOME", concat!(env!("CARGO_TARGET_TMPDIR"), "/cache"))
            .env("XDG_STATE_HOME", self.at("state"))
            .current_dir(self.folder.path())
            .stdin(Stdio::null())
            .output()
            .expect("the tool starts")
    }

    /// A load generator with the output of wrk: it sends requests for 0.3 s, and notes that it ran. With an argument it fails.
    fn generator(&self) -> String {
        let script = format!(
            "#!{PYTHON}\nimport sys, time, urllib.request\nopen('loads', 'a').write('run\\n')\nend = time.time() + .3\nn = 0\n\
             while time.time() < end:\n  urllib.request.urlopen('http://127.0.0.1:{}/').read()\n  n += 1\n\
             print('Requests/sec: %d.00' % (n / .3))\nsys.exit(5 if len(sys.argv) > 1 else 0)\n",
            self.port
        );
        let path = self.at("wrk");
        std::fs::write(&path, script).expect("a file");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("its mode");
        path.display().to_string()
    }

    fn ready(&self) -> String {
        format!("tcp:127.0.0.1:{}", self.port)
    }
}

fn talk(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_server_is_recorded_under_its_load() {
    if !Path::new(PYTHON).exists() {
        return println!("skipped: no {PYTHON}");
    }
    let place = Place::new();
    let port = place.port.to_string();
    let server = [PYTHON, "-m", "http.server", "--bind", "127.0.0.1", port.as_str()];
    let (generator, ready) = (place.generator(), place.ready());
    let output = place.diagnose(&["--json", "--load-cmd", &generator, "--ready", &ready], &server);
    let document: Value =
        serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{}", talk(&output)));
    let figure = |name: &str| document["bill"][name].as_f64().unwrap_or_default();
    assert!(figure("window_s") >= 1.4 && figure("cpu_s") > 0.02, "{}", document["bill"]);
    // A load is repeated until the window is over.
    let loads = std::fs::read_to_string(place.at("loads")).unwrap_or_default().lines().count();
    assert!(loads >= 2, "{loads} runs of the load: {}", talk(&output));
    let is_gone = || TcpListener::bind(("127.0.0.1", place.port)).is_ok();
    assert!(is_gone(), "the server holds its port");
    // A server that ends, and a load that fails, are errors.
    let fails = format!("{generator} fail");
    for (load, server, words) in [
        (&generator, &["true"][..], "ended (exit status 0) before"),
        (&fails, &server, "the load command failed: exit status 5"),
    ] {
        let output = place.diagnose(&["--load-cmd", load, "--ready", &ready], server);
        assert_eq!(output.status.code(), Some(1), "{}", talk(&output));
        assert!(output.stdout.is_empty() && talk(&output).contains(words), "{words}: {}", talk(&output));
    }
    assert!(is_gone());
}

/// A server that writes the method, a header and the length of the body of its last request to the file `request`.
const NOTES: &str = "
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'
    def answer(self):
        body = self.rfile.read(int(self.headers.get('Content-Length', 0)))
        with open('request', 'w') as notes:
            notes.write(f'{self.command} {self.headers.get(\"X-Kind\")} {len(body)}')
        self.send_response(200)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'ok')
    do_GET = do_POST = answer
    def log_message(self, *_): pass
http.server.ThreadingHTTPServer(('127.0.0.1', int(sys.argv[1])), Handler).serve_forever()
";

#[test]
fn requests_have_the_body_and_the_headers_that_are_asked_for() {
    if !Path::new(PYTHON).exists() {
        return println!("skipped: no {PYTHON}");
    }
    let place = Place::new();
    std::fs::write(place.at("body"), "x".repeat(77)).expect("a file");
    let port = place.port.to_string();
    let url = format!("http://127.0.0.1:{port}/");
    for (options, request) in [
        (&["--body", "body", "--header", "X-Kind: a"][..], "POST a 77"),
        // The near twin asks for neither.
        (&[], "GET None 0"),
    ] {
        let options = [&["--json", "--no-calibrate", "--load", &url], options].concat();
        let output = place.diagnose(&options, &[PYTHON, "-c", NOTES, &port]);
        assert_eq!(output.status.code(), Some(0), "{}", talk(&output));
        assert_eq!(std::fs::read_to_string(place.at("request")).unwrap_or_default(), request);
    }
}

#[test]
fn a_load_needs_a_server_that_is_started() {
    let place = Place::new();
    for (options, words) in [
        (&["--load", "http://127.0.0.1:1/", "-p", "1"][..], "--load"),
        (&["--load", "http://127.0.0.1:1/"], "CMD"),
        (&["--load-cmd", "wrk"], "--ready"),
        (&["--load", "http://127.0.0.1:1/", "--load-cmd", "wrk"], "--load-cmd"),
        (&["--body", "body.json", "--", "true"], "--load"),
        (&["--header", "A: b", "--", "true"], "--load"),
        (&["--load", "http://127.0.0.1:1/", "--budget", "1m", "--", "true"], "--verify"),
    ] {
        let output = Command::new(BINARY).arg("diagnose").args(options).output().expect("the tool starts");
        assert_eq!(output.status.code(), Some(2), "{options:?}: {}", talk(&output));
        assert!(talk(&output).contains(words), "{options:?}: {}", talk(&output));
    }
    let output = place.diagnose(&["--ready", "tcp:127.0.0.1:1"], &["true"]);
    assert_eq!(output.status.code(), Some(2), "{}", talk(&output));
    assert!(talk(&output).contains("--ready has no effect without --load"), "{}", talk(&output));
}
