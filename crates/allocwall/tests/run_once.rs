//! One command under its keeper: its figures are compared with /proc and system programs, and none of its processes
//! may be left, whichever process is killed.

use allocwall_host::keeper::Ended;
use allocwall_model::error::Error;
use allocwall_model::units::Reason;
use allocwall_trial::account::Room;
use allocwall_trial::arm::Expectation;
use allocwall_trial::batch::{Batch, Fresh, Prepared};
use allocwall_trial::proof::FirstRun;
use allocwall_trial::run::{self, Exit, Finished, MARK, Output, Running, Start};
use allocwall_trial::{ProofItem, ProofState};
use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");
/// Much longer than any of these commands takes.
const PATIENCE: Duration = Duration::from_secs(60);
static NEVER: AtomicBool = AtomicBool::new(false);

fn of(words: &[&str]) -> Start {
    Start::new(words.iter().map(OsString::from).collect(), PATIENCE)
}

fn shell(script: &str) -> Start {
    of(&["sh", "-c", script])
}

fn started(start: &Start) -> Running {
    run::start(start, Path::new(BINARY)).unwrap_or_else(|error| panic!("{error}"))
}

fn finished(start: &Start) -> Finished {
    started(start).wait(&NEVER).unwrap_or_else(|error| panic!("{error}"))
}

fn refused(start: &Start) -> String {
    match run::start(start, Path::new(BINARY)) {
        Ok(running) => panic!("started as {}", running.pid()),
        Err(error) => {
            let text = error.to_string();
            assert_eq!(text.lines().count(), 1, "{text}");
            text
        }
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn alive(pid: i32) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat"))
        .is_ok_and(|stat| !stat.rsplit(')').next().unwrap().trim_start().starts_with('Z'))
}

/// Live processes with this word in their command line.
fn with_word(word: &str) -> Vec<i32> {
    let own = std::process::id() as i32;
    let numbers = fs::read_dir("/proc").unwrap().flatten();
    numbers
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .filter(|&pid: &i32| {
            let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
            pid != own && line.split(|&b| b == 0).any(|w| w == word.as_bytes()) && alive(pid)
        })
        .collect()
}

fn within(patience: Duration, mut happens: impl FnMut() -> bool) -> bool {
    let until = Instant::now() + patience;
    loop {
        if happens() {
            return true;
        }
        if Instant::now() >= until {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn parent(pid: i32) -> i32 {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap();
    stat.rsplit(')').next().unwrap().split_whitespace().nth(1).unwrap().parse().unwrap()
}

fn kill(pid: i32) {
    let pid = rustix::process::Pid::from_raw(pid).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
}

/// A unique time for `sleep`, to find its process by the command line.
fn lonely_sleep(n: u32) -> String {
    format!("3{:05}.{n:03}", std::process::id() % 100_000)
}

/// Prints utime, stime, cutime and cstime of the shell in clock ticks, after its own work and its children's.
const TICKS: &str =
    "read -r line </proc/$$/stat; set -- ${line##*) }; echo $((${12} + ${13} + ${14} + ${15}))";

fn ticks_per_second() -> f64 {
    rustix::param::clock_ticks_per_second() as f64
}

#[test]
fn cpu_time_equals_the_kernels_account() {
    let burn = "i=0; while [ $i -lt 200000 ]; do i=$((i+1)); done";
    for script in [format!("{burn}; {TICKS}"), format!("({burn}) & ({burn}) & wait; {TICKS}")] {
        let over = finished(&shell(&script));
        assert!(over.exit.success(), "{}", text(&over.stderr.bytes));
        let ticks: f64 = text(&over.stdout.bytes).trim().parse().unwrap();
        let truth = ticks / ticks_per_second();
        assert!(truth > 0.05, "{truth}");
        let said = over.user_s + over.system_s;
        // The difference: four numbers rounded down to ticks, and the end of the shell.
        assert!((truth - 0.001..truth + 0.07).contains(&said), "{said} against {truth}");
        let metrics = over.metrics();
        assert_eq!(metrics["cpu_s"], Ok(said));
        assert_eq!(metrics["wall_s"], Ok(over.wall_ns as f64 / 1e9));
    }
}

#[test]
fn a_sleeper_uses_time_and_no_cpu() {
    let before = Instant::now();
    let over = finished(&of(&["sleep", "0.5"]));
    let outer = before.elapsed().as_secs_f64();
    let wall = over.wall_ns as f64 / 1e9;
    assert!((0.5..outer).contains(&wall), "{wall} within {outer}");
    assert!(over.user_s + over.system_s < 0.2);
    assert!(over.voluntary_switches >= 1);
    assert_eq!((over.exit, over.ended), (Exit::Code(0), Ended::Itself));
}

#[test]
fn the_end_of_the_command_is_the_end_of_the_clock() {
    // The child lives for 150 ms more and ends by itself. Other programs may delay the shell as long, but not five
    // times.
    let over = (0..5)
        .map(|_| finished(&shell("sleep 0.15 & exit 3")))
        .find(|over| over.wall_ns < 140_000_000)
        .expect("a shell that was not delayed");
    assert_eq!(over.exit, Exit::Code(3));
    assert_eq!(over.left_behind, Vec::<String>::new());
}

#[test]
fn memory_is_what_was_touched() {
    const BLOCK: u64 = 64 << 20;
    let over = finished(&of(&["dd", "if=/dev/zero", "of=/dev/null", "bs=64M", "count=60"]));
    assert!(over.exit.success(), "{}", text(&over.stderr.bytes));
    let room = BLOCK..BLOCK + (16 << 20);
    let largest = over.largest_process_peak_rss_bytes.clone().unwrap();
    assert!(room.contains(&largest), "{largest}");
    let peak = over.peak_rss_bytes.clone().unwrap();
    assert!(peak >= largest && room.contains(&peak), "{peak}");
    let looks = &over.memory;
    assert!(looks.windows(2).all(|pair| pair[0].at_ns < pair[1].at_ns));
    assert!(looks.iter().all(|look| look.processes == 1));
    if over.wall_ns > 400_000_000 {
        let pss = over.peak_pss_bytes.clone().unwrap();
        assert!((BLOCK / 2..room.end).contains(&pss), "{pss}");
        assert!(room.contains(over.final_rss_bytes.as_ref().unwrap()));
    } else {
        println!("skipped in part: 60 blocks took {} ns", over.wall_ns);
    }
    // 32 faults with huge pages, 16,384 without.
    assert!(over.minor_faults >= 32);
    assert!(over.metrics()["peak_rss_bytes"].is_ok());
}

#[test]
fn memory_of_a_tree_is_summed() {
    let part = "head -c 40000000 /dev/zero | tail -c 40000000";
    let over = finished(&shell(&format!("({part} | (sleep 1; wc -c)) & ({part} | (sleep 1; wc -c)) & wait")));
    let count = text(&over.stdout.bytes).matches("40000000").count();
    assert_eq!(count, 2, "{}", text(&over.stdout.bytes));
    let peak = over.peak_rss_bytes.unwrap();
    let largest = over.largest_process_peak_rss_bytes.unwrap();
    // Two `tail` processes, each with its 40 MB.
    assert!((40_000_000..60_000_000).contains(&largest), "{largest}");
    assert!((80_000_000..130_000_000).contains(&peak), "{peak}");
}

#[test]
fn memory_of_a_too_short_run_is_absent_with_its_reason() {
    // With other programs running, even this run may last until the first memory sample, but not five times.
    let over = (0..5)
        .map(|_| finished(&of(&["true"])))
        .find(|over| over.memory.is_empty())
        .expect("a run without a memory sample");
    assert!(over.exit.success());
    let metrics = over.metrics();
    for key in ["peak_pss_bytes", "final_rss_bytes", "final_pss_bytes", "final_lazy_free_bytes"] {
        assert_eq!(metrics[key].as_ref().unwrap_err().reason, Reason::TooLittle, "{key}");
    }
    assert!(over.stdout.whole() && over.stdout.written == 0);
    assert_eq!(metrics.len(), 13);
}

#[test]
fn the_keepers_memory_is_not_counted_as_the_commands() {
    let over = finished(&of(&["grep", "VmHWM", "/proc/self/status"]));
    let said = text(&over.stdout.bytes);
    let kib: u64 = said.split_whitespace().nth(1).unwrap().parse().unwrap();
    // grep prints VmHWM before its end, and wait4's value leaves out what the per-CPU counters still hold.
    match over.largest_process_peak_rss_bytes {
        Ok(peak) => assert!(peak.abs_diff(kib << 10) < 1 << 20, "{peak} against {said}"),
        Err(absence) => assert_eq!(absence.reason, Reason::TooLittle),
    }
}

#[test]
fn a_daemon_is_ended_and_named() {
    let time = lonely_sleep(1);
    let over = finished(&shell(&format!("(setsid sleep {time} &) ; sleep 0.5; exit 0")));
    assert!(over.exit.success());
    assert_eq!(over.left_behind.len(), 1, "{:?}", over.left_behind);
    assert!(over.left_behind[0].starts_with(&format!("sleep {time} (pid ")));
    assert_eq!(with_word(&time), Vec::<i32>::new());
    assert_eq!(over.still_there, Vec::<String>::new());
}

#[test]
fn many_processes_that_ignore_signals_are_ended() {
    let time = lonely_sleep(2);
    let one = format!("(setsid sh -c 'trap \"\" TERM HUP INT; sleep {time} & sleep {time}; wait' &)");
    let over = finished(&shell(&format!("for i in $(seq 30); do {one}; done; sleep 0.2")));
    assert_eq!(over.left_behind.len(), 21, "{:?}", over.left_behind);
    assert!(over.left_behind[20].starts_with("and "));
    assert_eq!(with_word(&time), Vec::<i32>::new());
}

#[test]
fn a_chain_of_forks_is_ended() {
    // Each process starts the next one and ends at once.
    let word = format!("chain-{}", lonely_sleep(9));
    let over = finished(&of(&["sh", "-c", "f() { f & }; f & sleep 0.3", &word]));
    assert!(over.exit.success());
    assert_eq!(over.still_there, Vec::<String>::new());
    assert_eq!(with_word(&word), Vec::<i32>::new());
}

#[test]
fn the_time_limit_ends_commands_that_ignore_or_handle_sigterm() {
    let mut deaf = shell("trap '' TERM; while :; do sleep 0.02; done");
    deaf.limit = Duration::from_millis(300);
    deaf.grace = Duration::from_millis(200);
    let over = finished(&deaf);
    assert!(over.timed_out());
    assert_eq!(over.exit, Exit::Signal(9));
    assert!(over.wall_ns >= 500_000_000, "{}", over.wall_ns);
    assert_eq!(over.metrics()["wall_s"].as_ref().unwrap_err().reason, Reason::NotApplicable);
    assert!(over.metrics()["cpu_s"].is_ok());

    // A command that handles SIGTERM can end by itself, also if it is stopped.
    for script in [
        "trap 'echo bye; exit 5' TERM; while :; do sleep 0.02; done",
        "trap 'echo bye; exit 5' TERM; kill -STOP $$",
    ] {
        let mut polite = shell(script);
        polite.limit = Duration::from_millis(300);
        polite.grace = PATIENCE;
        let over = finished(&polite);
        assert!(over.timed_out());
        assert_eq!((over.exit, &over.stdout.bytes[..]), (Exit::Code(5), &b"bye\n"[..]), "{script}");
    }
    // Without grace time there is no SIGTERM, only SIGKILL.
    let mut rude = shell("trap 'echo bye; exit 5' TERM; while :; do sleep 0.02; done");
    rude.limit = Duration::from_millis(200);
    assert_eq!(finished(&rude).exit, Exit::Signal(9));
}

#[test]
fn an_interruption_ends_it() {
    let time = lonely_sleep(3);
    let running = started(&shell(&format!("sleep {time} & sleep {time}")));
    assert!(within(PATIENCE, || running.processes().len() == 3));
    let flag = AtomicBool::new(false);
    let over = std::thread::scope(|scope| {
        let waiting = scope.spawn(|| running.wait(&flag));
        std::thread::sleep(Duration::from_millis(100));
        assert!(!waiting.is_finished());
        flag.store(true, Ordering::Relaxed);
        waiting.join().unwrap().unwrap()
    });
    assert_eq!((over.ended, over.exit), (Ended::Asked, Exit::Signal(9)));
    assert!(!over.timed_out() && over.metrics()["wall_s"].is_err());
    assert_eq!(with_word(&time), Vec::<i32>::new());
}

#[test]
fn a_server_is_ended_by_end_and_by_drop() {
    let time = lonely_sleep(4);
    let mut start = shell(&format!("echo ready; sleep {time}"));
    start.grace = Duration::from_secs(5);
    let mut running = started(&start);
    assert!(within(PATIENCE, || running.output().0.bytes == b"ready\n"));
    assert_eq!(running.exited(), None);
    assert!(within(PATIENCE, || !running.memory().is_empty()));
    let over = running.end().unwrap();
    assert_eq!((over.ended, over.exit), (Ended::Asked, Exit::Signal(15)));
    assert_eq!(with_word(&time), Vec::<i32>::new());

    let running = started(&start);
    let pid = running.pid();
    drop(running);
    assert!(!alive(pid) && with_word(&time).is_empty());

    // A server that ends early is reported.
    let mut running = started(&shell("exit 4"));
    assert!(within(PATIENCE, || running.exited() == Some(Exit::Code(4))));
    std::thread::sleep(Duration::from_millis(50));
    assert_eq!(running.exited(), Some(Exit::Code(4)));
    let over = running.end().unwrap();
    assert_eq!((over.ended, over.exit), (Ended::Itself, Exit::Code(4)));
}

#[test]
fn the_command_dies_with_a_killed_keeper() {
    let (time, place) = (lonely_sleep(5), tempfile::tempdir().unwrap());
    let folder = place.path().join("scratch");
    fs::create_dir(&folder).unwrap();
    let mut start = shell(&format!("(setsid sleep {time} &); sleep {time} & sleep {time}"));
    start.folder = Some(folder.clone());
    let running = started(&start);
    assert!(within(PATIENCE, || with_word(&time).len() == 3));
    let pid = running.pid();
    kill(parent(pid));
    let error = running.wait(&NEVER).unwrap_err().to_string();
    assert!(error.contains("keeper") && error.contains("signal: 9"), "{error}");
    assert!(!alive(pid));
    assert!(within(PATIENCE, || with_word(&time).is_empty()));
    assert!(!folder.exists());
}

#[test]
fn a_signal_to_the_keeper_ends_the_command() {
    let running = started(&of(&["sleep", &lonely_sleep(6)]));
    let keeper = rustix::process::Pid::from_raw(parent(running.pid())).unwrap();
    rustix::process::kill_process(keeper, rustix::process::Signal::TERM).unwrap();
    let over = running.wait(&NEVER).unwrap();
    assert_eq!((over.ended, over.exit), (Ended::Signal(15), Exit::Signal(9)));
}

const VICTIM: &str = "ALLOCWALL_TEST_VICTIM";

/// Not a test by itself: later tests start it in another process and kill that process.
#[test]
fn victim() {
    let Some(place) = std::env::var_os(VICTIM).map(PathBuf::from) else {
        return;
    };
    let time = text(&fs::read(place.join("time")).unwrap());
    let scratch = place.join("scratch");
    fs::create_dir(&scratch).unwrap();
    fs::write(scratch.join("file"), "x").unwrap();
    let shared = place.join("shared");
    fs::create_dir(&shared).unwrap();
    let _guard = run::guard(Some(&shared), Path::new(BINARY)).unwrap();
    let mut start =
        shell(&format!("(setsid sleep {time} &); (trap '' TERM HUP; sleep {time}) & sleep {time}"));
    start.folder = Some(scratch);
    let running = started(&start);
    fs::write(place.join("pid.new"), running.pid().to_string()).unwrap();
    fs::rename(place.join("pid.new"), place.join("pid")).unwrap();
    let _ = running.wait(&NEVER);
}

/// Starts another process that runs a command; returns it with the command's pid.
fn start_victim(place: &Path, time: &str) -> (std::process::Child, i32) {
    fs::write(place.join("time"), time).unwrap();
    let victim = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "victim"])
        .env(VICTIM, place)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let pid_file = place.join("pid");
    assert!(within(PATIENCE, || pid_file.exists() && with_word(time).len() == 3));
    (victim, text(&fs::read(&pid_file).unwrap()).parse().unwrap())
}

#[test]
fn everything_ends_with_a_killed_starter() {
    let (time, place) = (lonely_sleep(7), tempfile::tempdir().unwrap());
    let (mut victim, pid) = start_victim(place.path(), &time);
    let keeper = parent(pid);
    victim.kill().unwrap();
    let killed = Instant::now();
    victim.wait().unwrap();
    let (scratch, shared) = (place.path().join("scratch"), place.path().join("shared"));
    let gone = || {
        with_word(&time).is_empty() && !alive(pid) && !alive(keeper) && !scratch.exists() && !shared.exists()
    };
    assert!(within(PATIENCE, gone), "after {:?}", killed.elapsed());
}

#[test]
fn the_command_dies_with_its_keeper_while_the_starter_is_stopped() {
    let (time, place) = (lonely_sleep(10), tempfile::tempdir().unwrap());
    let (mut victim, pid) = start_victim(place.path(), &time);
    let stopped = rustix::process::Pid::from_raw(victim.id() as i32).unwrap();
    rustix::process::kill_process(stopped, rustix::process::Signal::STOP).unwrap();
    kill(parent(pid));
    assert!(within(PATIENCE, || !alive(pid)));
    // The keeper's starter ends the other processes when it runs again.
    assert!(!with_word(&time).is_empty());
    rustix::process::kill_process(stopped, rustix::process::Signal::CONT).unwrap();
    assert!(within(Duration::from_secs(5), || with_word(&time).is_empty()));
    victim.wait().unwrap();
}

const POWERLESS: &str = "ALLOCWALL_TEST_POWERLESS";

/// Not a test by itself: the next test starts it as a user who may not end processes of root.
#[test]
fn powerless() {
    let Some(place) = std::env::var_os(POWERLESS).map(PathBuf::from) else {
        return;
    };
    let time = text(&fs::read(place.join("time")).unwrap());
    let strong = place.join("strong");
    let mut start = shell(&format!("{} --reuid=0 sleep {time} & sleep 0.3", strong.display()));
    start.limit = Duration::from_secs(20);
    let over = run::start(&start, &place.join("allocwall")).unwrap().wait(&NEVER).unwrap();
    fs::write(place.join("told"), over.still_there.join("\n")).unwrap();
}

#[test]
fn a_process_that_may_not_be_ended_is_reported_and_not_waited_for() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: needs root to make a set-user-ID program");
        return;
    }
    let (time, place) = (lonely_sleep(8), tempfile::tempdir().unwrap());
    let at = |name: &str| place.path().join(name);
    fs::write(at("time"), &time).unwrap();
    for (from, to, mode) in [
        (Path::new("/usr/bin/setpriv"), "strong", 0o4755),
        (Path::new(BINARY), "allocwall", 0o755),
        (&std::env::current_exe().unwrap(), "test", 0o755),
    ] {
        if let Err(error) = fs::copy(from, at(to)) {
            println!("skipped: {}: {error}", from.display());
            return;
        }
        fs::set_permissions(at(to), fs::Permissions::from_mode(mode)).unwrap();
    }
    fs::set_permissions(place.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let helper = Command::new("setpriv")
        .args(["--reuid=65534", "--regid=65534", "--clear-groups"])
        .arg(at("test"))
        .args(["--exact", "powerless"])
        .env(POWERLESS, place.path())
        .current_dir("/")
        .output()
        .unwrap();
    let left = with_word(&time);
    for &pid in &left {
        kill(pid);
    }
    if left.is_empty() {
        println!("skipped: nobody may not become root here: {}", text(&helper.stdout));
        return;
    }
    let told = fs::read_to_string(at("told")).unwrap_or_else(|_| panic!("{}", text(&helper.stdout)));
    assert_eq!(told, format!("sleep {time} (pid {})", left[0]));
}

#[test]
fn a_guarded_folder_is_removed_with_its_guard() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("shared");
    fs::create_dir(&folder).unwrap();
    let guard = run::guard(Some(&folder), Path::new(BINARY)).unwrap();
    fs::write(folder.join("file"), "x").unwrap();
    drop(guard);
    assert!(!folder.exists() && place.path().exists());
    assert!(run::guard(Some(&folder), Path::new(BINARY)).is_err());
    assert!(run::guard(Some(place.path()), Path::new("/bin/false")).is_err());
}

#[test]
fn a_command_that_cannot_start_has_its_reason() {
    let place = tempfile::tempdir().unwrap();
    let plain = place.path().join("plain");
    fs::write(&plain, "no program").unwrap();
    for (command, errno) in [
        ("/nonexistent/program", libc::ENOENT),
        ("no-such-command-anywhere", libc::ENOENT),
        (plain.to_str().unwrap(), libc::EACCES),
        (place.path().to_str().unwrap(), libc::EACCES),
    ] {
        let scratch = place.path().join("scratch");
        fs::create_dir(&scratch).unwrap();
        let mut start = of(&[command, "x"]);
        // A fixed PATH: for folders that this user may not search, exec returns EACCES.
        start.env = vec![("PATH".into(), Some("/bin:/usr/bin".into()))];
        start.folder = Some(scratch.clone());
        match run::start(&start, Path::new(BINARY)) {
            Err(Error::Launch { command: shown, cause }) => {
                assert_eq!(cause.raw_os_error(), Some(errno), "{command}");
                assert_eq!(shown, format!("{command} x"));
            }
            other => panic!("{command}: {:?}", other.err()),
        }
        assert!(!scratch.exists());
    }
    let mut nowhere = of(&["true"]);
    nowhere.cwd = Some("/nonexistent".into());
    assert!(refused(&nowhere).contains("working directory /nonexistent"));
    let mut unfed = of(&["true"]);
    unfed.stdin = Some("/nonexistent/input".into());
    assert!(refused(&unfed).contains("standard input /nonexistent/input"));
    assert!(refused(&of(&[])).contains("no command"));
    assert!(refused(&of(&["echo", "a\0b"])).contains("NUL"));
    let mut odd = of(&["true"]);
    odd.env = vec![("A=B".into(), Some("c".into()))];
    assert!(refused(&odd).contains("is not a valid name"));
    let mut taken = of(&["true"]);
    taken.stdout = Output::File(plain.clone());
    assert!(refused(&taken).contains("plain"));
    assert_eq!(fs::read(&plain).unwrap(), b"no program");
}

#[test]
fn output_is_bounded_and_counted() {
    let mut start = shell("head -c 100000000 /dev/zero; echo end; echo oops >&2");
    start.stdout = Output::Keep(10_000);
    let over = finished(&start);
    assert_eq!(over.stdout.written, 100_000_004);
    assert_eq!(over.stdout.bytes.len(), 10_000);
    assert!(over.stdout.bytes.ends_with(b"\0end\n") && !over.stdout.whole());
    assert_eq!((text(&over.stderr.bytes), over.stderr.whole()), ("oops\n".into(), true));

    let place = tempfile::tempdir().unwrap();
    start.stdout = Output::File(place.path().join("out"));
    start.stderr = Output::Nowhere;
    let over = finished(&start);
    let facts = fs::metadata(place.path().join("out")).unwrap();
    assert_eq!((facts.len(), facts.permissions().mode() & 0o777), (100_000_004, 0o600));
    assert_eq!((over.stdout.written, over.stderr.written), (0, 0));
}

#[test]
fn environment_folder_and_stdin_are_as_requested() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("input"), "from a file").unwrap();
    let mut start =
        shell("echo \"$ADDED:${HOME-unset}:$(pwd):$(cat)\"; test -n \"$PATH\"; readlink /proc/self/fd/0");
    start.env = vec![("ADDED".into(), Some("a=b c".into())), ("HOME".into(), None)];
    start.cwd = Some(place.path().into());
    start.stdin = Some("input".into());
    let over = finished(&start);
    let expected = format!("a=b c:unset:{}:from a file\n", place.path().display());
    assert!(text(&over.stdout.bytes).starts_with(&expected), "{}", text(&over.stdout.bytes));

    let plain = finished(&shell(
        "echo \"${ADDED-unset}\"; readlink /proc/self/fd/0; ps -o sid= $$ | tr -d ' '; echo $$",
    ));
    let said = text(&plain.stdout.bytes);
    let lines: Vec<&str> = said.lines().collect();
    assert_eq!(lines[..2], ["unset", "/dev/null"]);
    if lines.len() == 4 {
        assert_eq!(lines[2], lines[3], "leader of a session");
    }
}

#[test]
fn signals_are_neither_blocked_nor_ignored() {
    // A shell starts programs with no blocked and no ignored signals; so does the keeper.
    let over = finished(&of(&["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]));
    let said = text(&over.stdout.bytes);
    assert!(said.contains("SigBlk:\t0000000000000000"), "{said}");
    let pipe = 1u64 << (libc::SIGPIPE - 1);
    let ignored = said.split("SigIgn:\t").nth(1).unwrap().trim();
    assert_eq!(u64::from_str_radix(ignored, 16).unwrap() & pipe, 0, "{said}");
}

/// Number of strings and bytes in the arguments and the environment of the process.
fn room(running: &Running) -> (usize, usize) {
    let read = |name: &str| fs::read(format!("/proc/{}/{name}", running.pid())).unwrap();
    let all = [read("cmdline"), read("environ")].concat();
    (all.iter().filter(|&&byte| byte == 0).count(), all.len())
}

#[test]
fn padded_arms_have_the_same_room() {
    let base = of(&["sleep", "20"]);
    let mut longer = of(&["sleep", "20", "0.001"]);
    longer.env = vec![
        ("GLIBC_TUNABLES".into(), Some("glibc.malloc.arena_max=2".into())),
        ("A_SECOND_ONE".into(), Some("".into())),
    ];
    let mut shorter = of(&["sleep", "20"]);
    shorter.env = vec![("PATH".into(), Some("/bin:/usr/bin".into())), ("HOME".into(), None)];
    let rooms = |starts: &[Start]| -> Vec<(usize, usize)> {
        starts.iter().map(|start| room(&started(start))).collect()
    };
    let mut starts = vec![base, longer, shorter];
    let without = rooms(&starts);
    assert!(without[0] != without[1] && without[0] != without[2]);
    run::equalise(&mut starts);
    let with = rooms(&starts);
    assert!(with[0] == with[1] && with[0] == with[2], "{with:?}");
    assert!(with[0].1 > without[1].1);
}

fn allowed_cpu() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
    let text = line.unwrap().trim();
    text.split(|c: char| !c.is_ascii_digit()).next_back().unwrap().parse().unwrap()
}

#[test]
fn the_command_runs_on_its_cpus_and_the_keeper_on_all() {
    let cpu = allowed_cpu();
    // The keeper restores its own CPUs after the exec, so wait for that.
    let script = "sleep 0.3; grep Cpus_allowed_list /proc/self/status /proc/$PPID/status";
    let mut start = shell(script);
    start.cpus = Some(vec![cpu]);
    let said = text(&finished(&start).stdout.bytes);
    let lists: Vec<&str> = said.lines().map(|line| line.rsplit('\t').next().unwrap()).collect();
    assert_eq!(lists[0], cpu.to_string());
    let free = text(&finished(&shell(script)).stdout.bytes);
    assert_eq!(free.lines().next().unwrap().rsplit('\t').next().unwrap(), lists[1]);
    start.cpus = Some(vec![8191]);
    let said = refused(&start);
    assert!(said.contains("no CPU 8191 "), "{said}");
    start.cpus = Some(vec![]);
    refused(&start);
}

#[test]
fn memory_is_bound_to_the_requested_nodes() {
    let mut start = of(&["cat", "/proc/self/numa_maps"]);
    start.nodes = Some(vec![0]);
    match run::start(&start, Path::new(BINARY)) {
        Ok(running) => {
            let said = text(&running.wait(&NEVER).unwrap().stdout.bytes);
            assert!(said.contains("bind:0"), "{said}");
            start.nodes = Some(vec![0, 900]);
            let said = refused(&start);
            assert!(said.contains("no NUMA node"), "{said}");
        }
        Err(error) => println!("skipped: {error}"),
    }
}

#[test]
fn settings_that_a_setuid_program_ignores_are_refused() {
    let place = tempfile::tempdir().unwrap();
    let program = place.path().join("true");
    fs::copy("/bin/true", &program).unwrap();
    fs::set_permissions(&program, fs::Permissions::from_mode(0o4755)).unwrap();
    let mount = rustix::fs::statvfs(place.path()).unwrap();
    if mount.f_flag.contains(rustix::fs::StatVfsMountFlags::NOSUID) {
        println!("skipped: temporary folders are on a nosuid mount");
        return;
    }
    let mut start = of(&[program.to_str().unwrap()]);
    assert!(finished(&start).exit.success(), "no settings");
    start.env = vec![("HARMLESS".into(), Some("1".into())), ("LD_PRELOAD".into(), None)];
    assert!(finished(&start).exit.success(), "no settings that it ignores");
    for name in ["LD_PRELOAD", "GLIBC_TUNABLES", "MALLOC_CONF"] {
        start.env = vec![(name.into(), Some("".into()))];
        let said = refused(&start);
        assert!(said.contains("set-user-ID") && said.contains(name), "{said}");
    }
    start.command = vec!["true".into()];
    start.env.push(("PATH".into(), Some(place.path().into())));
    assert!(refused(&start).contains("set-user-ID"), "found by the changed PATH");
    fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).unwrap();
    assert!(finished(&start).exit.success());
}

#[test]
fn keep_is_only_for_internal_use() {
    let output = Command::new(BINARY).arg("keep").stdin(Stdio::null()).output().unwrap();
    let talk = text(&output.stderr);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!((talk.lines().count(), talk.contains("keep")), (1, true), "{talk}");
    let missing = run::start(&of(&["true"]), Path::new("/nonexistent/keeper"));
    assert!(missing.err().unwrap().to_string().contains("/nonexistent/keeper"));
    let other = run::start(&of(&["true"]), Path::new("/bin/true"));
    assert!(other.err().unwrap().to_string().contains("keep"));
}

#[test]
fn everything_of_a_run_carries_its_mark() {
    let over = finished(&shell(&format!("echo ${MARK}; sh -c 'echo ${MARK}'")));
    let said = text(&over.stdout.bytes);
    let marks: Vec<&str> = said.lines().collect();
    assert_eq!((marks.len(), marks[0].len()), (2, 24));
    assert_eq!(marks[0], marks[1]);
    let other = finished(&shell(&format!("echo ${MARK}")));
    assert_ne!(text(&other.stdout.bytes).trim(), marks[0]);
}

// ---- the loader's log of a process tree ----

/// The C library that this test runs on.
fn libc() -> PathBuf {
    let maps = fs::read_to_string("/proc/self/maps").unwrap();
    let path = maps.lines().filter_map(|line| line.split_whitespace().nth(5));
    path.filter(|path| path.contains("/libc.so") || path.contains("/libc-"))
        .map(PathBuf::from)
        .next()
        .expect("a shared C library")
}

/// One uncounted run of the command, which must get malloc from the C library, with a log of limited size; then a run
/// of a second command without expectations. Returns failure and proof of both.
fn proofs(room: &Room, command: &str) -> [(Option<String>, Vec<ProofItem>); 2] {
    let arm = |(script, expects)| Prepared { start: shell(script), expects, first: FirstRun::default() };
    let arms = [(command, vec![Expectation::MallocFrom(libc())]), ("exit 7", vec![])];
    let mut batch = Batch {
        arms: arms.map(arm).to_vec(),
        keeper_exe: BINARY.into(),
        figures: vec![],
        events: &[],
        fine: vec![],
        prepare: None,
        interrupted: &NEVER,
    };
    let ran = batch.prove(room, &NEVER, |_| ()).unwrap_or_else(|error| panic!("{error}"));
    let outcomes: Vec<_> = ran.into_iter().map(|ran| (ran.failure, ran.proof)).collect();
    outcomes.try_into().expect("both were run")
}

#[test]
fn a_log_that_grows_too_long_ends_its_run_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let word = format!("{}", 61_000_000 + u64::from(std::process::id()));
    let many = format!("i=0; while [ $i -lt 50 ]; do ls / >/dev/null; i=$((i+1)); done; exec sleep {word}");
    let few = "ls / >/dev/null; ls / >/dev/null; :";
    let began = Instant::now();
    let [(failure, proof), second] = proofs(&Room::of(folder.path(), 4096), &many);
    // The run was ended by the size of the log, not by its time limit.
    assert!(began.elapsed() < PATIENCE);
    assert_eq!(failure, None);
    // The next run is not affected.
    assert_eq!(second.0.as_deref(), Some("exit status 7"));
    let [item] = &proof[..] else { panic!("{proof:?}") };
    if item.state == ProofState::Unknown && item.absent.is_none() {
        println!("skipped: this loader tells no bindings");
        return;
    }
    assert_eq!((item.state, item.needed), (ProofState::Unknown, true), "{item:?}");
    assert_eq!(item.absent.as_ref().map(|a| a.reason), Some(Reason::TooCostly));
    assert!(item.detail.contains("so allocwall ended that run"), "{}", item.detail);
    assert_eq!(with_word(&word), [0; 0]);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    // The twin: enough room. The log covers all processes, and the files are removed too.
    let [(failure, proof), _] = proofs(&Room::new(folder.path()), few);
    assert_eq!(failure, None);
    let [item] = &proof[..] else { panic!("{proof:?}") };
    assert_eq!(item.state, ProofState::Proven, "{item:?}");
    assert!(item.detail.contains("in 3 of 3 processes"), "{}", item.detail);
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
}
