//! Runs each built-in subject for seconds: it becomes ready, its own account agrees with its dial, its twin does not
//! have the wall, and it leaves no files or cgroups behind.

#[path = "common/running.rs"]
mod running;

mod common;

use common::{MachineTime, STOLEN, favoured};
use running::Running;
use serde_json::Value;
use std::io::{BufRead, BufReader, Read};
use std::path::{Path, PathBuf};
use std::process::{ChildStdout, Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const BINARY: &str = env!("CARGO_BIN_EXE_allocwall");

/// One at a time: two subjects with two threads each would disturb each other on two CPUs.
fn alone() -> MutexGuard<'static, ()> {
    static MACHINE: Mutex<()> = Mutex::new(());
    MACHINE.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Running {
    fn start(arguments: &[&str]) -> Running {
        let mut command = Command::new(BINARY);
        command.arg("subject").args(arguments);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // Subjects with two threads need two CPUs at the same time.
        Running(favoured(&mut command).spawn().expect("the binary starts"))
    }

    /// The subject's output, and its first line, which reports that it is ready. Err: why it cannot run here.
    fn ready(&mut self) -> Result<(BufReader<ChildStdout>, Value), String> {
        let mut out = BufReader::new(self.0.stdout.take().unwrap());
        let mut line = String::new();
        out.read_line(&mut line).unwrap();
        if line.is_empty() {
            let mut talk = String::new();
            self.0.stderr.take().unwrap().read_to_string(&mut talk).unwrap();
            let at = talk.find("skipped: ").unwrap_or_else(|| panic!("no output line; stderr: {talk}"));
            return Err(talk[at..].trim().to_owned());
        }
        let ready: Value = serde_json::from_str(&line).expect(&line);
        assert_eq!(ready["ready"], true, "{line}");
        Ok((out, ready))
    }
}

/// The subject's readings when it was ready and at its end.
struct Truth {
    first: Value,
    last: Value,
    /// CPU time of the whole machine between them.
    machine: MachineTime,
}

fn truth(arguments: &[&str]) -> Result<Truth, String> {
    let mut running = Running::start(arguments);
    let (mut out, first) = running.ready()?;
    let before = MachineTime::now();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(running.0.wait().unwrap().success(), "{arguments:?}");
    let last: Value = serde_json::from_str(rest.lines().last().expect("a last line")).expect(&rest);
    assert_eq!(last["final"], true, "{arguments:?}: {rest}");
    let truth = Truth { first, last, machine: MachineTime::now().since(before) };
    let runnable = truth.grown("/cpu_s") + truth.queued();
    assert!(runnable > 0.1, "{arguments:?} hardly ran");
    Ok(truth)
}

impl Truth {
    fn grown(&self, pointer: &str) -> f64 {
        let at = |line: &Value| {
            line.pointer(pointer).and_then(Value::as_f64).unwrap_or_else(|| panic!("no {pointer}"))
        };
        at(&self.last) - at(&self.first)
    }

    /// Time in the run queue; 0 if the kernel does not account it.
    fn queued(&self) -> f64 {
        match self.last.get("queued_s") {
            Some(_) => self.grown("/queued_s"),
            None => 0.0,
        }
    }

    /// Whether other programs used CPUs that the subject needed, by the kernel's account.
    fn shared(&self) -> bool {
        let queued = self.queued();
        queued > 0.05 * (queued + self.grown("/cpu_s"))
    }

    /// Why the machine, not the subject, may have caused a wrong share.
    fn excuse(&self, waited_less: bool) -> Option<String> {
        let stolen = self.machine.stolen();
        if stolen > STOLEN {
            return Some(format!("the hypervisor took {:.1} % of the CPUs", stolen * 100.0));
        }
        // A thread that waits for a CPU does not wait for anything else at that time.
        (waited_less && self.shared()).then(|| "the machine was shared".to_owned())
    }

    fn share_of_cpu(&self, line: &str) -> f64 {
        self.grown(&format!("/lines/{line}")) / self.grown("/cpu_s")
    }

    /// Thread-seconds of the whole window.
    fn thread_seconds(&self) -> f64 {
        self.grown("/t_mono_ns") / 1e9 * self.last["threads"].as_f64().unwrap()
    }

    fn share_of_threads(&self, wait: &str) -> f64 {
        self.grown(&format!("/waits/{wait}")) / self.thread_seconds()
    }
}

/// Subjects whose waits become shorter if other programs use the CPUs.
const LESSENED: [&str; 4] = ["io-wait", "pipe-wait", "application-mutex", "address-space-lock"];

/// Runs subject and twin, and checks the `share` of each. Returns their readings; None if one cannot run here.
fn pair(
    name: &str,
    dial: f64,
    tolerance: f64,
    twin: f64,
    share: impl Fn(&Truth) -> f64,
) -> Option<[Truth; 2]> {
    let _alone = alone();
    let dial_text = dial.to_string();
    let run = |flag: Option<&str>, seconds: &str, expected: f64| {
        let mut arguments = vec![name, "--seconds", seconds, "--dial", &dial_text];
        arguments.extend(flag);
        let mut tries = 0;
        loop {
            tries += 1;
            let truth = truth(&arguments).map_err(|reason| println!("{reason}")).ok()?;
            let share = share(&truth);
            let told = format!("{arguments:?}: {share:.3}, expected {expected:.3}");
            println!("{told}");
            if (share - expected).abs() < tolerance {
                return Some(truth);
            }
            let excuse = truth.excuse(LESSENED.contains(&name) && share < expected);
            match excuse {
                // Another try may meet a quieter machine, or a disk that does not stall for a tenth of a second.
                _ if tries < 3 && (excuse.is_some() || name == "io-wait") => {}
                None => panic!("{told}"),
                Some(excuse) => {
                    println!("skipped in part: {excuse}: {told}");
                    return Some(truth);
                }
            }
        }
    };
    Some([run(None, "3", dial)?, run(Some("--twin"), "2", twin)?])
}

#[test]
fn cold_touch_faults_and_a_warm_pool_does_not() {
    pair("cold-touch", 0.3, 0.05, 0.0, |t| t.share_of_cpu("fault_path+zeroing"));
}

#[test]
fn children_copy_what_they_write_and_the_parent_alone_does_not() {
    pair("fork-write", 0.3, 0.05, 0.0, |t| t.share_of_cpu("copy_on_write+fork_exit"));
}

#[test]
fn a_file_is_mapped_page_by_page_and_a_kept_mapping_is_not() {
    pair("file-touch", 0.3, 0.05, 0.0, |t| t.share_of_cpu("file_fault"));
}

#[test]
fn map_churn_maps_and_kept_blocks_do_not() {
    pair("map-churn", 0.3, 0.05, 0.0, |t| {
        t.share_of_cpu("fault_path+zeroing+map_calls+page_release+address_space_lock+allocator_code")
    });
}

#[test]
fn map_direct_maps_and_one_mapping_does_not() {
    pair("map-direct", 0.3, 0.05, 0.0, |t| t.share_of_cpu("map_calls+page_release+address_space_lock"));
}

#[test]
fn call_rate_calls_and_a_pool_does_not() {
    pair("call-rate", 0.3, 0.05, 0.0, |t| t.share_of_cpu("allocator_code"));
}

#[test]
fn large_blocks_are_filled_and_small_ones_are_not() {
    pair("large-calloc", 0.3, 0.05, 0.0, |t| t.share_of_cpu("block_filling"));
}

#[test]
fn sockets_are_made_and_closed_and_kept_ones_are_not() {
    pair("socket-churn", 0.5, 0.05, 0.0, |t| t.share_of_cpu("kernel_slab+file_system+sockets+other_kernel"));
}

#[test]
fn the_collector_collects_and_without_cycles_it_does_not() {
    pair("collector", 0.3, 0.05, 0.0, |t| t.share_of_cpu("garbage_collector"));
}

#[test]
fn a_competitor_makes_the_run_queue_wait() {
    // Wide tolerance: other work on this machine adds to the competitor's share.
    pair("run-queue", 0.4, 0.15, 0.0, |t| t.share_of_threads("run_queue"));
}

#[test]
fn a_slow_peer_is_waited_for() {
    pair("pipe-wait", 0.6, 0.05, 0.0, |t| t.share_of_threads("idle"));
}

#[test]
fn a_slow_disk_is_waited_for() {
    pair("io-wait", 0.5, 0.05, 0.0, |t| t.share_of_threads("storage"));
}

#[test]
fn one_mutex_is_waited_for_and_two_are_not() {
    pair("application-mutex", 0.2, 0.05, 0.0, |t| t.share_of_threads("application_lock"));
}

#[test]
fn mappers_wait_for_one_another_and_one_alone_does_not() {
    pair("address-space-lock", 0.15, 0.05, 0.0, |t| t.share_of_threads("address_space_lock"));
}

/// The twin spends as much CPU time in the allocator, but its threads do not wait there.
fn lock_pair(name: &str, dial: f64) {
    // By chance, two threads may not meet at the lock during a whole run.
    for last in [false, false, true] {
        let Some(pair) = pair(name, dial, 0.05, dial, |t| t.share_of_cpu("allocator_code+allocator_locks"))
        else {
            return;
        };
        // The subject's clocks count steal as waiting, so subtract it.
        let [subject, twin] = pair.each_ref().map(|t| {
            let waited = t.share_of_threads("allocator") - t.machine.stolen_s / t.thread_seconds();
            waited.max(0.0)
        });
        let told = format!("{name} waits {subject:.4}, its twin {twin:.4}");
        println!("{told}");
        if subject > 0.005 && twin < subject / 4.0 {
            return;
        }
        // Threads in the run queue don't meet at the lock.
        if let Some(excuse) = pair[0].excuse(true).or_else(|| pair[1].excuse(false)) {
            return println!("skipped in part: {excuse}: {told}");
        }
        assert!(!last, "{told}");
    }
}

#[test]
fn one_arena_is_waited_for_and_two_are_not() {
    lock_pair("contention", 0.5);
}

#[test]
fn remote_frees_meet_at_the_arena_and_own_frees_do_not() {
    lock_pair("remote-free", 0.5);
}

#[test]
fn a_fragmented_heap_stays_and_a_sound_one_shrinks() {
    let _alone = alone();
    let resident_and_live = |flag: Option<&str>| {
        let mut arguments = vec!["retention"];
        arguments.extend(flag);
        let mut running = Running::start(&arguments);
        let (_out, ready) = running.ready().expect("it runs everywhere");
        let statm = std::fs::read_to_string(format!("/proc/{}/statm", running.0.id())).unwrap();
        let pages: f64 = statm.split(' ').nth(1).unwrap().parse().unwrap();
        (pages * 4096.0, ready["live_bytes"].as_f64().unwrap())
    };
    let (resident, live) = resident_and_live(None);
    assert!(resident > 5.0 * live, "resident {resident}, live {live}");
    let (resident, live) = resident_and_live(Some("--twin"));
    // 16 MB for the program itself.
    assert!(resident < 1.2 * live + 16e6, "resident {resident}, live {live}");
}

/// The cgroups that subjects have made and not yet removed.
fn quotas() -> Vec<PathBuf> {
    fn below(directory: &Path, found: &mut Vec<PathBuf>) {
        for entry in std::fs::read_dir(directory).into_iter().flatten().flatten() {
            if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
                if entry.file_name().to_string_lossy().starts_with("allocwall-subject-") {
                    found.push(entry.path())
                } else {
                    below(&entry.path(), found)
                }
            }
        }
    }
    let mut found = Vec::new();
    below(Path::new("/sys/fs/cgroup"), &mut found);
    found
}

#[test]
fn a_quota_throttles_and_is_removed_with_its_subject() {
    // Wide tolerance: with other work on this machine, the quota lasts longer and less of the period is throttled.
    pair("throttling", 0.5, 0.15, 0.0, |t| t.share_of_threads("throttled"));
    let _alone = alone();
    assert!(quotas().is_empty(), "left behind by a subject that ended: {:?}", quotas());
    let mut running = Running::start(&["throttling", "--quota", "0.5"]);
    let _out = match running.ready() {
        Ok((out, _)) => out,
        Err(reason) => return println!("{reason}"),
    };
    assert_eq!(quotas().len(), 1);
    running.0.kill().unwrap();
    running.0.wait().unwrap();
    let end = Instant::now() + Duration::from_secs(10);
    while !quotas().is_empty() && Instant::now() < end {
        std::thread::sleep(Duration::from_millis(50));
    }
    assert!(quotas().is_empty(), "left behind by a subject that was killed: {:?}", quotas());
}

#[test]
fn a_signal_ends_a_subject_with_a_last_line() {
    let _alone = alone();
    for signal in [libc::SIGTERM, libc::SIGINT] {
        let mut running = Running::start(&["computing", "--seconds", "600"]);
        let (mut out, _) = running.ready().expect("it runs everywhere");
        // SAFETY: the process is this test's own child and has not been waited for.
        unsafe { libc::kill(running.0.id() as i32, signal) };
        let mut rest = String::new();
        out.read_to_string(&mut rest).unwrap();
        assert!(rest.lines().last().unwrap().contains("\"final\":true"), "{rest}");
        assert!(running.0.wait().unwrap().success());
    }
}

#[test]
fn a_subject_ends_when_its_stdin_closes() {
    let _alone = alone();
    let mut command = Command::new(BINARY);
    command.args(["subject", "computing", "--seconds", "60"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running(command.spawn().unwrap());
    let stdin = running.0.stdin.take();
    let (mut out, _) = running.ready().expect("it runs everywhere");
    let closed = Instant::now();
    drop(stdin);
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert!(closed.elapsed().as_secs() < 5 && rest.contains("\"final\":true"), "{rest}");
}

#[test]
fn bad_arguments_are_refused() {
    for arguments in [
        &["no-such-subject"][..],
        &["cold-touch", "--dial", "1.5"],
        &["cold-touch", "--dial", "NaN"],
        &["cold-touch", "--seconds", "0"],
        &["cold-touch", "--seconds", "601"],
        &["remote-free", "--threads", "3"],
        &["computing", "--twin"],
        &[],
    ] {
        let output = Command::new(BINARY).arg("subject").args(arguments).output().unwrap();
        let talk = String::from_utf8(output.stderr).unwrap();
        assert!(!output.status.success() && output.stdout.is_empty(), "{arguments:?}");
        assert!(talk.starts_with("error: "), "{arguments:?}: {talk}");
    }
}
