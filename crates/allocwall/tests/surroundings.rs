//! Difficult targets and surroundings: other time and PID namespaces, a main thread that has ended, stopped
//! processes, too few file descriptors. All are real, and most have a twin without the difficulty.

use serde_json::Value;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

/// Tests run one at a time: each needs a CPU.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process that is killed when the test ends, also by a panic.
struct Running(Child);

impl Running {
    fn start(command: &mut Command) -> Running {
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        // SAFETY: only a system call between fork and exec.
        unsafe {
            command.pre_exec(|| {
                libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
                Ok(())
            })
        };
        Running(command.spawn().expect("it starts"))
    }

    fn busy() -> Running {
        Running::start(Command::new("sh").args(["-c", "while :; do :; done"]))
    }

    fn idle() -> Running {
        Running::start(Command::new("sleep").arg("600"))
    }

    fn pid(&self) -> i32 {
        self.0.id() as i32
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The output of a diagnosis: its JSON document (null if there is none), and all text.
struct Said {
    document: Value,
    all: String,
}

impl Said {
    fn of(output: Output) -> Said {
        let out = String::from_utf8_lossy(&output.stdout).into_owned();
        let talk = String::from_utf8_lossy(&output.stderr).into_owned();
        Said { document: serde_json::from_str(&out).unwrap_or(Value::Null), all: out + &talk }
    }

    fn sentence(&self) -> &str {
        self.document["verdict"]["sentence"].as_str().unwrap_or(&self.all)
    }

    fn samples(&self) -> u64 {
        self.document["recording"]["cpu_samples"].as_u64().unwrap_or(0)
    }

    fn cpu_s(&self) -> f64 {
        self.document["bill"]["cpu_s"].as_f64().unwrap_or(0.0)
    }
}

fn diagnosis(pid: i32) -> Vec<String> {
    ["diagnose", "--json", "-d", "1s", "-p", &pid.to_string()].map(str::to_owned).to_vec()
}

/// Runs with its own state directory, which is removed.
fn run(command: &mut Command) -> Said {
    let state = tempfile::tempdir().unwrap();
    Said::of(command.env("XDG_STATE_HOME", state.path()).output().expect("it runs"))
}

fn diagnose(pid: i32) -> Said {
    run(Command::new(BINARY).args(diagnosis(pid)))
}

/// The command under util-linux's unshare with these options; None if this user or machine does not permit it.
fn unshared(options: &[&str], command: &[String]) -> Option<Command> {
    let permitted = Command::new("unshare").args(options).arg("true").output();
    match permitted {
        Ok(output) if output.status.success() => {}
        Ok(output) => {
            println!("skipped: unshare {options:?}: {}", String::from_utf8_lossy(&output.stderr).trim());
            return None;
        }
        Err(e) => {
            println!("skipped: unshare: {e}");
            return None;
        }
    }
    let mut unshare = Command::new("unshare");
    unshare.args(options).args(command);
    Some(unshare)
}

fn with_binary(arguments: Vec<String>) -> Vec<String> {
    [BINARY.to_owned()].into_iter().chain(arguments).collect()
}

/// The samples must cover the CPU time that the kernel charged.
fn covered(said: &Said) {
    let sampled = said.document["bill"]["sampled_cpu_s"].as_f64().unwrap_or(0.0);
    assert!(said.document["bill"]["on_cpu"].is_array(), "{}", said.all);
    assert!(
        said.samples() > 20 && sampled > 0.5 * said.cpu_s(),
        "{} samples, {sampled} of {} s: {}",
        said.samples(),
        said.cpu_s(),
        said.sentence()
    );
}

#[test]
fn time_namespaces_shift_no_sample_out_of_the_window() {
    let _alone = alone();
    let target = Running::busy();
    // allocwall with a clock ahead of and behind the machine's; forked into the namespace, or exec'd in it.
    for options in [
        &["-T", "--monotonic", "864000", "--boottime", "864000", "-f"][..],
        &["-T", "--monotonic", "-5", "--boottime", "-5", "-f"],
        &["-T", "--monotonic", "864000", "--boottime", "864000"],
    ] {
        if let Some(mut command) = unshared(options, &with_binary(diagnosis(target.pid()))) {
            let said = run(&mut command);
            println!("tool under unshare {options:?}: {}", said.sentence());
            covered(&said);
        }
    }
    // The target in a time namespace.
    let spin = ["sh", "-c", "while :; do :; done"].map(str::to_owned);
    let options = ["-T", "--monotonic", "864000", "--boottime", "864000", "-f", "--kill-child"];
    if let Some(mut command) = unshared(&options, &spin) {
        let other = Running::start(&mut command);
        std::thread::sleep(std::time::Duration::from_millis(200));
        covered(&diagnose(other.pid()));
    }
    covered(&diagnose(target.pid()));
}

#[test]
fn a_tool_in_a_pid_namespace_measures_what_is_in_it_and_refuses_a_foreign_proc() {
    let _alone = alone();
    // allocwall and target in one namespace, with its own /proc.
    let script = format!(
        "(while :; do :; done) & target=$!; {BINARY} diagnose --json -d 1s -p $target; kill -9 $target"
    );
    let inside = ["sh".to_owned(), "-c".to_owned(), script];
    if let Some(mut command) = unshared(&["-p", "-f", "--mount-proc", "--kill-child"], &inside) {
        covered(&run(&mut command));
    }
    // A command that allocwall launches inside the namespace.
    let launched = format!("{BINARY} diagnose --json -d 1s -- sh -c 'while :; do :; done'");
    let inside = ["sh".to_owned(), "-c".to_owned(), launched];
    if let Some(mut command) = unshared(&["-p", "-f", "--mount-proc", "--kill-child"], &inside) {
        covered(&run(&mut command));
    }
    // With the outer /proc, pids in /proc and pids in system calls mean different processes.
    let target = Running::busy();
    if let Some(mut command) = unshared(&["-p", "-f", "--kill-child"], &with_binary(diagnosis(target.pid())))
    {
        let said = run(&mut command);
        assert!(
            said.document.is_null() && said.all.contains("/proc belongs to another PID namespace"),
            "{}",
            said.all
        );
    }
    // A target in a namespace, diagnosed from outside: a container.
    let spin = ["sh", "-c", "while :; do :; done"].map(str::to_owned);
    if let Some(mut command) = unshared(&["-p", "-f", "--kill-child"], &spin) {
        let container = Running::start(&mut command);
        std::thread::sleep(std::time::Duration::from_millis(200));
        covered(&diagnose(container.pid()));
    }
}

#[test]
fn root_of_a_user_namespace_is_not_told_to_become_root() {
    let target = Running::busy();
    let command = with_binary(diagnosis(target.0.id() as i32));
    let Some(mut unshare) = unshared(&["--user", "--map-root-user"], &command) else {
        return;
    };
    let output = unshare.output().expect("unshare starts");
    let told = String::from_utf8_lossy(&output.stderr);
    // A process of an ordinary user may be read from within the namespace, a process of root may not.
    if output.status.success() {
        return println!("skipped: unshare: what this user owns may be read from a user namespace as well");
    }
    assert!(!told.contains("run as root"), "{told}");
    assert!(told.contains("the machine's own root"), "{told}");
}

/// Runs a copy of allocwall as the user nobody, which launches this subject of the same copy. None if that is not
/// permitted here.
fn subject_as_nobody(subject: &[&str]) -> Option<Said> {
    // SAFETY: only reads this process's own user.
    if unsafe { libc::geteuid() } != 0 {
        println!("skipped: needs root to become somebody else");
        return None;
    }
    let place = tempfile::tempdir().unwrap();
    let (copy, state) = (place.path().join("allocwall"), place.path().join("state"));
    std::fs::copy(BINARY, &copy).unwrap();
    std::fs::create_dir(&state).unwrap();
    for (path, mode) in [(place.path(), 0o755), (copy.as_path(), 0o755), (state.as_path(), 0o777)] {
        std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
    }
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(&copy);
    command.args(["diagnose", "--json", "-d", "4s", "--"]).arg(&copy).arg("subject").args(subject);
    match command.env("XDG_STATE_HOME", &state).current_dir("/").output() {
        Ok(output) => Some(Said::of(output)),
        Err(error) => {
            println!("skipped: setpriv: {error}");
            None
        }
    }
}

#[test]
fn without_root_faults_are_counted_by_owner_and_a_warm_pool_has_few() {
    let _alone = alone();
    let subject = ["cold-touch", "--seconds", "20", "--dial", "0.3"];
    let Some(cold) = subject_as_nobody(&subject) else { return };
    let probes = cold.document["probes"].as_array().unwrap_or_else(|| panic!("{}", cold.all));
    let owners = probes.iter().find(|probe| probe["name"] == "fault_owners").expect("it is not root");
    if owners["state"] == "absent" {
        return println!("skipped: {}", owners["missing"]["detail"]);
    }
    let touches = &cold.document["bill"]["faulted"][0];
    assert!(touches["wall"] == "first_touch" && touches["basis"] == "number", "{touches}");
    assert!(touches["samples"].as_u64() > Some(200) && touches["known"].as_f64() > Some(0.5), "{touches}");
    let first = &touches["owners"][0];
    assert!(first["owner"] == "private" && first["share"]["point"].as_f64() > Some(0.95), "{touches}");
    let Some(warm) = subject_as_nobody(&[&subject[..], &["--twin"]].concat()) else { return };
    let touches = &warm.document["bill"]["faulted"][0];
    assert!(touches["samples"].as_u64().unwrap_or(0) < 100, "{touches}");
}

#[test]
fn an_idle_target_used_no_cpu_and_a_busy_one_did() {
    let _alone = alone();
    let idle = diagnose(Running::idle().pid());
    assert!(idle.all.contains("it used no CPU in the window"), "{}", idle.all);
    let busy = diagnose(Running::busy().pid());
    assert!(!busy.all.contains("used no CPU"), "{}", busy.all);
    covered(&busy);
}

/// A process whose main thread has ended while another thread computes.
fn headless() -> i32 {
    extern "C" fn spin(_: *mut libc::c_void) -> *mut libc::c_void {
        let mut x = 1u64;
        loop {
            x = std::hint::black_box(x.wrapping_mul(6_364_136_223_846_793_005));
        }
    }
    // SAFETY: the child calls pthread_create, which glibc keeps usable after fork, and system calls.
    unsafe {
        let pid = libc::fork();
        assert!(pid >= 0);
        if pid == 0 {
            libc::prctl(libc::PR_SET_PDEATHSIG, 0);
            let mut thread = 0;
            libc::pthread_create(&mut thread, std::ptr::null(), spin, std::ptr::null_mut());
            // Ends the main thread like pthread_exit, but without unwinding through the test.
            libc::syscall(libc::SYS_exit, 0);
            libc::abort();
        }
        pid
    }
}

#[test]
fn a_process_whose_main_thread_has_ended_is_diagnosed_by_the_others() {
    let _alone = alone();
    let pid = headless();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let said = diagnose(pid);
    // SAFETY: the process is this test's own child.
    unsafe {
        libc::kill(pid, libc::SIGKILL);
        libc::waitpid(pid, std::ptr::null_mut(), 0);
    }
    covered(&said);
    let process = &said.document["target"]["processes"][0];
    assert!(process["exe"].as_str().is_some_and(|exe| exe.contains("surroundings")), "{process}");
    assert!(process["allocator"]["kind"] == "glibc" || process["allocator"]["kind"] == "musl", "{process}");
    assert!(said.document["bill"]["rates"]["resident_end_bytes"].as_u64() > Some(0), "{}", said.all);
    // A zombie and a kernel thread have messages of their own.
    let zombie = Command::new("true").spawn().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(100));
    let ended = diagnose(zombie.id() as i32);
    assert!(ended.all.contains("has exited; its parent has not waited for it yet"), "{}", ended.all);
    let _ = { zombie }.wait();
    if std::fs::read_to_string("/proc/2/comm").is_ok_and(|comm| comm == "kthreadd\n") {
        let kernel = diagnose(2);
        assert!(kernel.all.contains("process 2 (kthreadd) is a kernel thread"), "{}", kernel.all);
    } else {
        println!("skipped: no kthreadd here");
    }
}

/// A cgroup that can be frozen. Dropping it thaws its processes and removes it.
struct Freezer {
    dir: PathBuf,
    file: &'static str,
    thaw: &'static str,
}

impl Freezer {
    /// None if this machine has no such cgroup version, or this user may not make cgroups.
    fn new(top: &str, file: &'static str, thaw: &'static str) -> Option<Freezer> {
        let dir = PathBuf::from(top).join(format!("allocwall-test-{}", std::process::id()));
        if let Err(e) = std::fs::create_dir(&dir) {
            println!("skipped: {}: {e}", dir.display());
            return None;
        }
        let freezer = Freezer { dir, file, thaw };
        if freezer.dir.join(file).is_file() {
            Some(freezer)
        } else {
            println!("skipped: {top} has no {file}");
            None
        }
    }

    fn write(&self, file: &str, text: &str) {
        std::fs::write(self.dir.join(file), text).unwrap_or_else(|e| panic!("{file}: {e}"));
    }
}

impl Drop for Freezer {
    fn drop(&mut self) {
        let _ = std::fs::write(self.dir.join(self.file), self.thaw);
        // A cgroup with processes cannot be removed, so they move to the parent.
        for pid in std::fs::read_to_string(self.dir.join("cgroup.procs")).unwrap_or_default().lines() {
            let _ = std::fs::write(self.dir.parent().unwrap().join("cgroup.procs"), pid);
        }
        let _ = std::fs::remove_dir(&self.dir);
    }
}

fn is_not_told_of_its_walls(said: &Said) {
    let findings = said.document["findings"].as_array().expect("findings");
    let of_time = |f: &&Value| f["of"] != "resident";
    for finding in findings.iter().filter(of_time) {
        assert_eq!(finding["status"], "not_measured", "{finding}");
    }
}

#[test]
fn a_stopped_process_is_reported_with_what_stopped_it() {
    let _alone = alone();
    let target = Running::busy();
    let pid = target.pid();
    // SAFETY: the process is this test's own child.
    let signal = |signal| unsafe { libc::kill(pid, signal) };
    signal(libc::SIGSTOP);
    let said = diagnose(pid);
    println!("{}", said.sentence());
    assert!(said.sentence().contains(&format!("process {pid} (sh) is stopped by a signal")), "{}", said.all);
    is_not_told_of_its_walls(&said);
    let next = said.document["next"].to_string();
    assert!(next.contains(&format!("kill -CONT {pid}")), "{next}");
    let stopped = said.document["bill"]["off_cpu"].as_array().unwrap();
    let stopped = stopped.iter().find(|l| l["class"] == "stopped").unwrap();
    assert!(stopped["thread_s"]["point"].as_f64() > Some(0.5), "{stopped}");
    signal(libc::SIGCONT);
    let twin = diagnose(pid);
    assert!(!twin.sentence().contains("stopped"), "{}", twin.sentence());
    covered(&twin);
}

#[test]
fn a_process_stopped_by_its_tracer_is_reported() {
    let _alone = alone();
    let target = Running::busy();
    let pid = target.pid();
    // SAFETY: the process is this test's own child. Attaching stops it, detaching continues it.
    let attached = unsafe { libc::ptrace(libc::PTRACE_ATTACH, pid, 0, 0) };
    if attached != 0 {
        println!("skipped: ptrace: {}", std::io::Error::last_os_error());
        return;
    }
    // SAFETY: waits for the stop that attaching causes.
    unsafe { libc::waitpid(pid, std::ptr::null_mut(), libc::__WALL) };
    let said = diagnose(pid);
    // SAFETY: as above.
    unsafe { libc::ptrace(libc::PTRACE_DETACH, pid, 0, 0) };
    println!("{}", said.sentence());
    let by = format!("is stopped by its tracer, process {}", std::process::id());
    assert!(said.sentence().contains(&by), "{}", said.all);
}

#[test]
fn a_frozen_process_is_told_as_frozen_and_by_which_group() {
    let _alone = alone();
    for (top, file, frozen, thaw) in [
        ("/sys/fs/cgroup/freezer", "freezer.state", "FROZEN", "THAWED"),
        ("/sys/fs/cgroup/unified", "cgroup.freeze", "1", "0"),
        ("/sys/fs/cgroup", "cgroup.freeze", "1", "0"),
    ] {
        let target = Running::busy();
        let Some(freezer) = Freezer::new(top, file, thaw) else {
            continue;
        };
        freezer.write("cgroup.procs", &target.pid().to_string());
        let twin = diagnose(target.pid());
        assert!(!twin.sentence().contains("frozen"), "{}", twin.sentence());
        freezer.write(file, frozen);
        let said = diagnose(target.pid());
        println!("{}", said.sentence());
        let by = format!("its cgroup {} is frozen", freezer.dir.display());
        assert!(said.sentence().contains(&by), "{}", said.all);
        is_not_told_of_its_walls(&said);
    }
}

/// With fewer descriptors, fewer files can be read. The subject faults in pages for most of its time, so a diagnosis
/// must never report that it is idle or has no memory wall, however little was read.
#[test]
fn without_descriptors_nothing_unread_is_ruled_out() {
    let _alone = alone();
    let target = Running::start(Command::new(BINARY).args([
        "subject",
        "cold-touch",
        "--dial",
        "0.7",
        "--seconds",
        "300",
    ]));
    std::thread::sleep(std::time::Duration::from_millis(500));
    let mut measured = 0;
    for limit in (4..=16).chain((18..=40).step_by(2)).chain([256]) {
        let mut command = Command::new(BINARY);
        command.args(diagnosis(target.pid()));
        // SAFETY: only a system call between fork and exec.
        unsafe {
            command.pre_exec(move || {
                let limit = libc::rlimit { rlim_cur: limit, rlim_max: limit };
                libc::setrlimit(libc::RLIMIT_NOFILE, &limit);
                Ok(())
            })
        };
        let said = run(&mut command);
        println!("{limit} descriptors: {}", said.sentence().trim());
        for lie in ["Memory is not your wall", "used no CPU", "does not exist", "not a CPU problem"] {
            assert!(!said.sentence().contains(lie), "{limit}: {}", said.all);
        }
        let findings = said.document["findings"].as_array().cloned().unwrap_or_default();
        for finding in findings.iter().filter(|f| f["wall"] == "first_touch") {
            assert_ne!(finding["status"], "ruled_out", "{limit}: {finding}");
            measured += u32::from(finding["status"] != "not_measured");
        }
    }
    assert!(measured > 0, "with 256 descriptors, first touch must be measured");
}

#[test]
fn the_shell_that_starts_it_is_measured_without_it() {
    let _alone = alone();
    let line = "while :; do :; done & sleep 60 & \"$0\" diagnose --json -d 1s -p $$; kill $(jobs -p)";
    let said = run(Command::new("bash").args(["-c", line, BINARY]));
    let processes = said.document["target"]["processes"].as_array().expect(&said.all);
    let named = |comm: &str| processes.iter().filter(|process| process["comm"] == comm).count();
    // The shell, and its loop; another child of it belongs to the target too.
    assert_eq!((named("bash"), named("sleep"), named("allocwall")), (2, 1, 0), "{}", said.all);
}
