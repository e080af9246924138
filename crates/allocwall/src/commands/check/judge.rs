//! Surroundings -> checks, by one table of probes. No I/O, so every blocker can be tested on any machine.

use super::blame::{Cause, Reach, blame, blame_memory, blame_symbols, foreign, grant, holds, run_as_root};
use super::surroundings::{Surroundings, TargetView, Tried};
use Judge::{Always, OfTarget, WithoutTarget};
use State::{Absent, Available, Partial};
use allocwall_host::file::errno_text;
use allocwall_host::rights::{Capabilities, Seccomp};
use allocwall_model::catalogue::advice::Advice;
use allocwall_model::catalogue::remedies::Library;
use allocwall_model::hardware::HardwareEvent;
use allocwall_model::units::{Absence, Measured, Reason, count};
use serde::Serialize;
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    Available,
    Partial,
    Absent,
}

impl State {
    pub fn word(self) -> &'static str {
        match self {
            State::Available => "yes",
            State::Partial => "partly",
            State::Absent => "no",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Group {
    Target,
    Sampling,
    Counters,
    Rights,
    Memory,
    Machine,
    Software,
}

impl Group {
    pub fn title(self) -> &'static str {
        match self {
            Group::Target => "The process",
            Group::Sampling => "Where CPU time goes",
            Group::Counters => "Counters and waits",
            Group::Rights => "Rights and kernel settings (what they block is listed above)",
            Group::Memory => "Memory policies (change them only if a remedy asks for it)",
            Group::Machine => "The machine",
            Group::Software => "Software found",
        }
    }

    /// Whether a diagnosis uses these measurements; the other groups are settings and what was found.
    pub fn is_needed(self) -> bool {
        matches!(self, Group::Sampling | Group::Counters)
    }
}

/// What a probe found.
#[derive(Clone, Debug)]
pub struct Answer {
    pub state: State,
    pub detail: String,
    /// For the summary: what blocks a measurement. None for settings, and where nothing blocks it.
    pub cause: Option<Cause>,
    /// Alternatives: each helps by itself. Empty if nothing has to be changed, or nothing can be.
    pub mend: Vec<Advice>,
}

impl Answer {
    fn new(state: State, detail: impl Into<String>) -> Self {
        Answer { state, detail: detail.into(), cause: None, mend: Vec::new() }
    }

    pub fn blocked(cause: Cause, detail: impl Into<String>) -> Self {
        Answer { cause: Some(cause), ..Answer::new(Absent, detail) }
    }

    fn absent(absence: &Absence) -> Self {
        Answer::blocked(absence.reason.into(), &absence.detail).mend(absence.mend.iter().cloned())
    }

    /// From a reading: what it says, or why it is absent.
    fn of_reading<T>(read: &Measured<T>, judge: impl FnOnce(&T) -> Answer) -> Self {
        match read {
            Ok(value) => judge(value),
            Err(absence) => Answer::absent(absence),
        }
    }

    /// From a try that the kernel granted or refused.
    fn of_try(tried: &Tried, gives: impl Into<String>, blame: impl FnOnce(&io::Error) -> Answer) -> Self {
        match tried {
            Ok(()) => Answer::new(Available, gives),
            Err(error) => blame(error),
        }
    }

    pub fn mend(mut self, mend: impl IntoIterator<Item = Advice>) -> Self {
        self.mend.extend(mend);
        self
    }
}

/// A row of the table: one source of measurements, or one fact about the machine.
pub struct Probe {
    pub group: Group,
    /// Stable key of the JSON format.
    pub name: &'static str,
    /// The name for people.
    pub what: &'static str,
    judge: Judge,
}

/// How a probe is judged, and when it applies.
enum Judge {
    Always(fn(&Surroundings) -> Answer),
    WithoutTarget(fn(&Surroundings) -> Answer),
    OfTarget(fn(&Surroundings, &TargetView) -> Answer),
}

impl Judge {
    /// None if the probe does not apply.
    fn answer(&self, s: &Surroundings) -> Option<Answer> {
        match (self, &s.target) {
            (Always(judge), _) | (WithoutTarget(judge), None) => Some(judge(s)),
            (OfTarget(judge), Some(target)) => Some(judge(s, target)),
            (WithoutTarget(_), Some(_)) | (OfTarget(_), None) => None,
        }
    }
}

const fn probe(group: Group, name: &'static str, what: &'static str, judge: Judge) -> Probe {
    Probe { group, name, what, judge }
}

/// In the order of the output.
pub static PROBES: &[Probe] = &[
    probe(Group::Target, "target", "process", OfTarget(target_process)),
    probe(Group::Target, "target_user", "user", OfTarget(target_user)),
    probe(Group::Target, "target_dumpable", "process can be inspected", OfTarget(target_dumpable)),
    probe(Group::Target, "target_namespaces", "namespaces", OfTarget(target_namespaces)),
    probe(Group::Sampling, "cpu_samples", "CPU samples, own processes", WithoutTarget(own_samples)),
    probe(Group::Sampling, "cpu_samples_others", "CPU samples, other users'", WithoutTarget(others_samples)),
    probe(Group::Sampling, "target_samples", "CPU samples", OfTarget(target_samples)),
    probe(Group::Sampling, "kernel_stacks", "kernel stacks", Always(kernel_stacks)),
    probe(Group::Sampling, "kernel_symbols", "kernel symbols", Always(kernel_symbols)),
    probe(Group::Sampling, "every_cpu", "other processes on all CPUs", Always(every_cpu)),
    probe(Group::Sampling, "memory_read", "Python stacks, memory owners", Always(memory_read)),
    probe(Group::Counters, "tracepoints", "tracepoints", Always(tracepoints)),
    probe(Group::Counters, "hardware_counters", "hardware counters", Always(hardware_counters)),
    probe(Group::Counters, "wait_stacks", "kernel stacks of waits", Always(wait_stacks)),
    probe(Group::Counters, "schedstat", "run-queue wait", Always(schedstat)),
    probe(Group::Counters, "smaps", "memory breakdown", Always(smaps)),
    probe(Group::Counters, "psi", "pressure (PSI)", Always(psi)),
    probe(Group::Counters, "cgroup", "cgroup quota and throttling", Always(cgroup)),
    probe(Group::Rights, "perf_event_paranoid", "perf_event_paranoid", Always(perf_event_paranoid)),
    probe(Group::Rights, "kptr_restrict", "kptr_restrict", Always(kptr_restrict)),
    probe(Group::Rights, "capabilities", "capabilities", Always(capabilities)),
    probe(Group::Rights, "seccomp", "seccomp", Always(seccomp)),
    probe(Group::Rights, "yama", "yama", Always(yama)),
    probe(Group::Rights, "hidepid", "/proc shows all processes", Always(hidepid)),
    probe(Group::Memory, "thp", "transparent huge pages", Always(thp)),
    probe(Group::Memory, "hugetlb", "reserved huge pages", Always(hugetlb)),
    probe(Group::Memory, "host_memory", "host never reclaims memory", Always(host_memory)),
    probe(Group::Memory, "numa", "NUMA", Always(numa)),
    probe(Group::Machine, "machine", "machine", Always(machine)),
    probe(Group::Machine, "hypervisor", "virtual machine", Always(hypervisor)),
    probe(Group::Machine, "container", "container", Always(container)),
    probe(Group::Software, "allocators", "allocators to preload", Always(allocators)),
    probe(Group::Software, "runtimes", "runtimes in PATH", Always(runtimes)),
];

pub struct Check {
    pub probe: &'static Probe,
    pub answer: Answer,
}

pub struct Report {
    pub summary: String,
    pub checks: Vec<Check>,
}

pub fn judge(s: &Surroundings) -> Report {
    let applied = PROBES.iter().filter_map(|probe| Some(Check { probe, answer: probe.judge.answer(s)? }));
    let checks: Vec<Check> = applied.collect();
    Report { summary: summary(s, &checks), checks }
}

/// One sentence; measurements with the same cause are named together.
fn summary(s: &Surroundings, checks: &[Check]) -> String {
    let (of, sampled) = match &s.target {
        Some(target) => (format!(" of process {} ({})", target.pid, target.comm), target.samples.is_ok()),
        None => (String::new(), s.own_samples.is_ok()),
    };
    // If the process cannot be a target, report only that.
    let no_target = |check: &&Check| check.probe.group == Group::Target && check.answer.state == Absent;
    if let Some(check) = checks.iter().find(no_target) {
        return format!("Nothing{of} can be diagnosed: {}.", check.answer.detail);
    }
    let mut blocked: Vec<(String, Vec<&str>)> = Vec::new();
    for Check { probe, answer } in checks.iter().filter(|check| check.probe.group.is_needed()) {
        let cause = match answer.cause {
            Some(cause) => cause.to_string(),
            None if answer.state == Absent => answer.detail.clone(),
            None => continue,
        };
        match blocked.iter_mut().find(|(known, _)| *known == cause) {
            Some((_, whats)) => whats.push(probe.what),
            None => blocked.push((cause, vec![probe.what])),
        }
    }
    let exceptions = blocked.iter().map(|(cause, whats)| format!("{} ({cause})", whats.join(", ")));
    let exceptions = exceptions.collect::<Vec<_>>().join("; ");
    if blocked.is_empty() {
        format!("Everything that diagnose needs{of} can be measured here.")
    } else if sampled {
        format!("Everything that diagnose needs{of} can be measured here, except: {exceptions}.")
    } else {
        format!(
            "CPU time{of} cannot be sampled here: a diagnosis has no bill, only counters from /proc. Blocked: \
             {exceptions}."
        )
    }
}

fn target_process(_: &Surroundings, target: &TargetView) -> Answer {
    let lives = |state: State, life: &str| {
        let threads = count(target.threads as usize, "thread");
        Answer::new(state, format!("{} ({}), {threads}, {life}", target.pid, target.comm))
    };
    match (target.state, target.status.vm_size) {
        ('Z' | 'X', _) => Answer::new(
            Absent,
            "the process has exited and its parent has not reaped it: there is nothing to measure",
        ),
        (_, None) => Answer::new(Absent, "the process is a kernel thread: it has no memory of its own"),
        ('T' | 't', _) => lives(Partial, "stopped: it uses no CPU time until it is continued"),
        _ => lives(Available, "alive"),
    }
}

fn target_user(s: &Surroundings, target: &TargetView) -> Answer {
    let [real, effective, saved, _] = target.status.uid;
    if real != effective || effective != saved {
        return Answer::new(
            Absent,
            format!(
                "real uid {real}, effective {effective}, saved {saved}: a setuid program, which allocwall does \
                 not diagnose"
            ),
        );
    }
    match s.rights.as_ref().map(|rights| rights.euid) {
        Ok(ours) if ours == effective => {
            Answer::new(Available, format!("uid {effective}, the user of allocwall"))
        }
        Ok(ours) => {
            let state = if ours == 0 { Available } else { Partial };
            Answer::new(state, format!("uid {effective}; allocwall runs as uid {ours}"))
        }
        // Not Absent: the process can be a target all the same.
        Err(_) => Answer::new(Partial, format!("uid {effective}; the user of allocwall is unknown")),
    }
}

fn target_dumpable(_: &Surroundings, target: &TargetView) -> Answer {
    match target.dumpable {
        Some(false) => Answer::new(
            Partial,
            "undumpable: its /proc files belong to root (it changed its ids, or has file capabilities)",
        ),
        _ => Answer::new(Available, "dumpable, according to /proc"),
    }
}

fn target_namespaces(s: &Surroundings, target: &TargetView) -> Answer {
    match &target.namespaces {
        Ok(differing) if differing.is_empty() => Answer::new(Available, "the same as allocwall's"),
        Ok(differing) => Answer::new(
            Available,
            format!(
                "differ from allocwall's in: {}; files of the process are read through /proc/{}/root",
                differing.join(", "),
                target.pid
            ),
        ),
        Err(_) => Answer::new(Partial, "not readable by allocwall").mend(grant(s)),
    }
}

fn own_samples(s: &Surroundings) -> Answer {
    Answer::of_try(&s.own_samples, "user stacks of this user's processes", |error| {
        blame(s, Reach::User, error)
    })
}

fn others_samples(s: &Surroundings) -> Answer {
    match &s.stranger {
        Some((pid, tried)) => Answer::of_try(tried, format!("tried on process {pid}"), |error| {
            blame(s, Reach::OthersProcess, error)
        }),
        None if has_perfmon(s) => Answer::new(
            Available,
            "not tried: no other user's process is visible here; CAP_PERFMON would allow it",
        ),
        None => Answer::new(Partial, "not tried: no other user's process is visible here"),
    }
}

fn target_samples(s: &Surroundings, target: &TargetView) -> Answer {
    let reach = if foreign(s, target) { Reach::OthersProcess } else { Reach::User };
    Answer::of_try(&target.samples, "user stacks of this process", |error| {
        let answer = blame(s, reach, error);
        // Same user and a permissive setting: EACCES then means that the process may not be traced.
        if answer.cause == Some(Cause::SecurityPolicy) && target.dumpable == Some(false) {
            let errno = errno_text(error);
            Answer::blocked(
                Cause::NotDumpable,
                format!("the process made itself undumpable, so only root may sample it: {errno}"),
            )
            .mend(grant(s))
        } else {
            answer
        }
    })
}

fn kernel_stacks(s: &Surroundings) -> Answer {
    let (tried, reach) = match &s.target {
        None => (&s.kernel_samples, Reach::Kernel),
        // What forbids the process forbids its kernel stacks too.
        Some(target) if target.samples.is_err() && foreign(s, target) => {
            (&target.kernel_samples, Reach::OthersProcess)
        }
        Some(target) => (&target.kernel_samples, Reach::Kernel),
    };
    let gives = "page faults, zeroing, map calls and kernel locks are in the bill";
    Answer::of_try(tried, gives, |error| blame(s, reach, error))
}

fn kernel_symbols(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.kernel_symbols, |&shown| {
        if shown {
            Answer::new(Available, "kernel frames have names (/proc/kallsyms)")
        } else {
            blame_symbols(s)
        }
    })
}

fn every_cpu(s: &Surroundings) -> Answer {
    let gives = "which other processes use the CPUs while the target waits";
    Answer::of_try(&s.every_cpu, gives, |error| blame(s, Reach::EveryCpu, error))
}

fn memory_read(s: &Surroundings) -> Answer {
    match &s.memory {
        None => {
            Answer::new(Partial, "not tried: this user has no other process to read from (process_vm_readv)")
        }
        Some(tried) => {
            Answer::of_try(tried, "memory of other processes can be read (process_vm_readv)", |error| {
                blame_memory(s, error)
            })
        }
    }
}

fn tracepoints(s: &Surroundings) -> Answer {
    match &s.tracepoint {
        Ok(tried) => Answer::of_try(tried, "context switches and map calls can be counted", |error| {
            blame(s, Reach::EveryCpu, error)
        }),
        Err(absence) => Answer { cause: Some(Cause::NoTracefs), ..Answer::absent(absence) },
    }
}

fn hardware_counters(s: &Surroundings) -> Answer {
    match (&s.facts.pmu, &s.own_samples) {
        (Ok(()), _) => each_event(&s.hardware),
        (Err(absence), _) if absence.reason == Reason::NotSupported => {
            let detail = format!("{}; the cost of TLB misses has only an upper bound", absence.detail);
            match s.facts.hypervisor {
                Some(_) => Answer::blocked(Cause::NoVirtualPmu, detail).mend([
                    Advice::text("host or cloud provider: enable a virtual PMU (KVM: -cpu host,pmu=on)"),
                    Advice::text("use bare metal"),
                ]),
                None => Answer::blocked(Cause::NoPmuDriver, detail)
                    .mend([Advice::command("sudo dmesg | grep -i 'performance events'")
                        .note("to find the driver")]),
            }
        }
        // Counting cycles in user mode needs the same rights as CPU samples.
        (Err(_), Err(error)) => blame(s, Reach::User, error),
        (Err(absence), Ok(())) => Answer::absent(absence),
    }
}

/// Which events the processor counts, and which ones it does not, by reason. An event that the processor does not have
/// blocks no measurement.
fn each_event(events: &[(HardwareEvent, Measured<()>)]) -> Answer {
    let counted: Vec<&str> =
        events.iter().filter(|(_, tried)| tried.is_ok()).map(|(event, _)| event.name()).collect();
    let mut refused: Vec<(&Absence, Vec<&str>)> = Vec::new();
    for (event, tried) in events {
        let Err(absence) = tried else { continue };
        match refused.iter_mut().find(|(known, _)| known.detail == absence.detail) {
            Some((_, names)) => names.push(event.name()),
            None => refused.push((absence, vec![event.name()])),
        }
    }
    let counts = match counted.is_empty() {
        true => "no event".to_owned(),
        false => counted.join(", "),
    };
    let refusals = refused.iter().map(|(absence, names)| format!("; not {} ({absence})", names.join(", ")));
    let state = if refused.is_empty() { Available } else { Partial };
    let mend = refused.iter().flat_map(|(absence, _)| absence.mend.iter().cloned());
    Answer::new(state, format!("{counts}{}", refusals.collect::<String>())).mend(mend)
}

fn wait_stacks(s: &Surroundings) -> Answer {
    match &s.kernel_stack {
        Ok(()) => Answer::new(Available, "what waiting threads wait for (/proc/PID/stack)"),
        Err(_) => Answer {
            state: Partial,
            ..Answer::blocked(
                Cause::Lacks("CAP_SYS_ADMIN"),
                "only root can read /proc/PID/stack; only the system call and the kernel function of a wait are \
                 known",
            )
            .mend([run_as_root()])
        },
    }
}

fn schedstat(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.schedstat, |&counts| {
        if counts {
            Answer::new(Available, "CPU time and run delay of each thread in nanoseconds (schedstat)")
        } else {
            Answer::blocked(
                Cause::NoRunDelays,
                "/proc/PID/schedstat holds only zeros: this kernel does not account run delays",
            )
        }
    })
}

fn smaps(s: &Surroundings) -> Answer {
    let whose = if s.target.is_some() { "of the process" } else { "of this user's processes" };
    match &s.smaps {
        Ok(()) => {
            Answer::new(Available, format!("resident, lazily freed and huge pages {whose} (smaps_rollup)"))
        }
        Err(absence) if absence.mend.is_empty() => Answer::absent(absence).mend(grant(s)),
        Err(absence) => Answer::absent(absence),
    }
}

fn psi(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.psi, |_| Answer::new(Available, "waiting time due to CPU, memory and I/O pressure"))
}

fn cgroup(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.cgroup, |view| {
        let both = if view.hybrid { " (both mounted)" } else { "" };
        let quota = match view.now.quota_cpus {
            Some(cpus) => format!(
                "quota {cpus:.2} CPUs, throttled in {} of {} periods so far",
                view.now.throttled_periods, view.now.periods
            ),
            None => "no CPU quota".to_owned(),
        };
        let memory = match view.now.memory_limit {
            Some(limit) => format!(", memory limit {} MiB", limit >> 20),
            None => String::new(),
        };
        Answer::new(Available, format!("v{}{both}, path {}, {quota}{memory}", view.version, view.path))
    })
}

/// Whether perf_event_open(2) accepts the capabilities: it ignores those that hold only inside a user namespace.
fn has_perfmon(s: &Surroundings) -> bool {
    holds(s, Capabilities::perfmon) && s.first_user_namespace
}

fn perf_event_paranoid(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.facts.perf_event_paranoid, |&value| {
        let (state, effect) = match (has_perfmon(s), value) {
            (true, _) => (Available, "no limit, because allocwall has CAP_PERFMON or CAP_SYS_ADMIN"),
            (false, ..=0) => (Available, "no limit"),
            (false, 1) => (Partial, "only this user's processes, with kernel stacks; not all CPUs"),
            (false, 2) => (Partial, "only this user's processes, without kernel stacks"),
            (false, _) => (Absent, "no samples for unprivileged users"),
        };
        Answer::new(state, format!("{value}: {effect}"))
    })
}

fn kptr_restrict(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.facts.kptr_restrict, |&value| {
        let (state, effect) = match (value, &s.kernel_symbols) {
            (0, _) => (Available, "no limit by itself"),
            (_, Ok(true)) => (Available, "no limit, because allocwall has CAP_SYSLOG"),
            _ => (Absent, "kernel symbols are hidden from allocwall"),
        };
        Answer::new(state, format!("{value}: {effect}"))
    })
}

fn capabilities(s: &Surroundings) -> Answer {
    const NEEDED: [(u32, &str); 4] = [
        (Capabilities::PERFMON, "CAP_PERFMON"),
        (Capabilities::SYS_ADMIN, "CAP_SYS_ADMIN"),
        (Capabilities::SYS_PTRACE, "CAP_SYS_PTRACE"),
        (Capabilities::SYSLOG, "CAP_SYSLOG"),
    ];
    Answer::of_reading(&s.rights, |rights| {
        let (have, lack): (Vec<_>, Vec<_>) =
            NEEDED.iter().partition(|(capability, _)| rights.capabilities.has(*capability));
        let names = |list: &[&(u32, &str)]| match list {
            [] => "none".to_owned(),
            list => list.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", "),
        };
        let user = format!("uid {}", rights.euid);
        match (have.is_empty(), lack.is_empty()) {
            _ if !s.first_user_namespace => {
                Answer::new(Partial, format!("{user}; inside this user namespace only: {}", names(&have)))
            }
            (_, true) => {
                Answer::new(Available, format!("{user}, with all that allocwall uses: {}", names(&have)))
            }
            (true, _) => Answer::new(Absent, format!("{user}, with none of {}", names(&lack))),
            _ => Answer::new(Partial, format!("{user}, with {}; without {}", names(&have), names(&lack))),
        }
    })
}

fn seccomp(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.rights, |rights| {
        let privileges = match rights.no_new_privs {
            Some(true) => "; no_new_privs is set: setcap and sudo have no effect here",
            _ => "",
        };
        let (state, detail) = match rights.seccomp {
            Seccomp::None => (Available, "no system-call filter"),
            Seccomp::Filter => (Partial, "a filter is active; what it refuses is listed above"),
            Seccomp::Strict => (Absent, "strict mode"),
            Seccomp::Unknown => (Available, "not in this kernel"),
        };
        Answer::new(state, format!("{detail}{privileges}"))
    })
}

fn yama(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.rights, |rights| {
        let Some(scope) = rights.yama_ptrace_scope else {
            return Answer::new(Available, "not in this kernel: no limit");
        };
        let (state, effect) = match (scope, rights.capabilities.ptrace()) {
            (0, _) => (Available, "no limit"),
            (3, _) => (Absent, "no process may read the memory of another"),
            (_, true) => (Available, "no limit, because allocwall has CAP_SYS_PTRACE"),
            (1, false) => (Partial, "allocwall can read only commands that it starts itself"),
            (_, false) => (Absent, "needs CAP_SYS_PTRACE"),
        };
        Answer::new(state, format!("ptrace_scope {scope}: {effect}"))
    })
}

fn hidepid(s: &Surroundings) -> Answer {
    match &s.hidden {
        Ok(None) => Answer::new(Available, "no hidepid"),
        Ok(Some(options)) => {
            let detail = format!("mounted with {options}");
            // CAP_SYS_PTRACE overrides hidepid; nothing overrides subset=pid.
            let subset = options.split(',').any(|option| option.starts_with("subset="));
            if holds(s, Capabilities::ptrace) && !subset {
                Answer::new(Available, detail)
            } else {
                Answer::new(Partial, detail)
                    .mend([run_as_root(), Advice::command("sudo mount -o remount,hidepid=0 /proc")])
            }
        }
        Err(absence) => Answer { state: Partial, ..Answer::absent(absence) },
    }
}

fn thp(s: &Surroundings) -> Answer {
    Answer::of_reading(&s.facts.thp_enabled, |mode| {
        let meaning = match mode.as_str() {
            "never" => {
                return Answer::new(Absent, "never: no remedy can use them").mend([Advice::command(
                    "echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                )]);
            }
            "madvise" => "only where a program asks for them (madvise)",
            "always" => "wherever they fit",
            _ => "a mode unknown to this version",
        };
        let defrag = s.facts.thp_defrag.as_ref().map_or("unreadable", |defrag| defrag);
        Answer::new(Available, format!("{mode}: {meaning}; defrag {defrag}"))
    })
}

fn hugetlb(s: &Surroundings) -> Answer {
    match s.facts.hugepages_total {
        0 => Answer::new(Absent, "none reserved").mend([Advice::command("sudo sysctl vm.nr_hugepages=512")
            .note("reserves 1 GiB of 2 MiB pages, which other programs cannot use")]),
        total => Answer::new(Available, format!("{total} reserved, {} free", s.facts.hugepages_free)),
    }
}

fn host_memory(s: &Surroundings) -> Answer {
    match (&s.facts.free_page_reporting, s.balloon) {
        (Ok(true), _) => Answer::new(
            Absent,
            "free-page reporting is on: the host can take idle memory back. Touching that again may cost more than \
             the counters here show; `allocwall calibrate` measures whether it does",
        ),
        (Ok(false), true) => Answer::new(
            Partial,
            "a balloon device is present: the host can ask for memory back; free pages are not reported",
        ),
        (Ok(false), false) => {
            Answer::new(Available, "no balloon device and no free-page reporting are visible")
        }
        (Err(absence), _) => Answer { state: Partial, ..Answer::absent(absence) },
    }
}

fn numa(s: &Surroundings) -> Answer {
    match s.facts.numa_nodes {
        0 | 1 => Answer::new(Available, "one node: no memory is remote"),
        nodes => Answer::new(Available, format!("{nodes} nodes; page placement is read from numa_maps")),
    }
}

fn machine(s: &Surroundings) -> Answer {
    let facts = &s.facts;
    let memory = match facts.memory_bytes {
        0 => "memory unknown".to_owned(),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    };
    Answer::new(
        Available,
        format!(
            "Linux {} {}, {} CPUs, {memory}, {}",
            facts.kernel_release, facts.architecture, facts.online_cpus, facts.cpu_model
        ),
    )
}

fn hypervisor(s: &Surroundings) -> Answer {
    match &s.facts.hypervisor {
        Some(name) => Answer::new(Available, format!("{name}; steal time is read from /proc/stat")),
        None if s.facts.architecture == "x86_64" => Answer::new(Absent, "none, according to CPUID"),
        None => Answer::new(Absent, "the firmware names none"),
    }
}

fn container(s: &Surroundings) -> Answer {
    match &s.facts.container {
        Some(name) => Answer::new(
            Available,
            format!("{name}: processes, settings and limits outside the container may be invisible"),
        ),
        None => Answer::new(Absent, "none: the whole machine is visible"),
    }
}

fn allocators(s: &Surroundings) -> Answer {
    if s.allocators.is_empty() {
        let packages: Vec<&str> = [Library::Jemalloc, Library::Tcmalloc, Library::Mimalloc]
            .into_iter()
            .filter_map(|library| library.package(false))
            .collect();
        return Answer::new(Absent, "none found").mend([Advice::command(format!(
            "sudo apt install {}",
            packages.join(" ")
        ))
        .note("or your distribution's names")]);
    }
    let paths: Vec<_> = s.allocators.iter().map(|library| library.path.display().to_string()).collect();
    Answer::new(Available, paths.join(", "))
}

fn runtimes(s: &Surroundings) -> Answer {
    if s.runtimes.is_empty() {
        return Answer::new(Absent, "no Python, Java, Go or Node; each is needed only for its own programs");
    }
    let named = s.runtimes.iter().map(|runtime| match &runtime.version {
        Some(version) if !runtime.name.ends_with(version.as_str()) => format!("{} {version}", runtime.name),
        _ => runtime.name.clone(),
    });
    Answer::new(Available, named.collect::<Vec<_>>().join(", "))
}

#[cfg(test)]
mod tests {
    use super::super::surroundings::CgroupView;
    use super::*;
    use allocwall_host::proc::Status;
    use allocwall_host::rights::Rights;
    use allocwall_model::machine::{CgroupTick, HostFacts};

    /// Root on bare metal: nothing is missing.
    fn complete() -> Surroundings {
        Surroundings {
            facts: HostFacts {
                kernel_release: "6.1".to_owned(),
                architecture: "x86_64".to_owned(),
                cpu_model: "x".to_owned(),
                online_cpus: 2,
                numa_nodes: 1,
                memory_bytes: 1 << 30,
                page_bytes: 4096,
                hypervisor: None,
                free_page_reporting: Ok(false),
                thp_enabled: Ok("madvise".to_owned()),
                thp_defrag: Ok("madvise".to_owned()),
                hugepages_total: 0,
                hugepages_free: 0,
                cgroup_version: Ok(2),
                container: None,
                euid: 0,
                perf_event_paranoid: Ok(2),
                kptr_restrict: Ok(0),
                pmu: Ok(()),
            },
            rights: Ok(Rights {
                euid: 0,
                capabilities: Capabilities(u64::MAX >> 23),
                seccomp: Seccomp::None,
                no_new_privs: Some(false),
                yama_ptrace_scope: None,
            }),
            first_user_namespace: true,
            own_samples: Ok(()),
            kernel_samples: Ok(()),
            every_cpu: Ok(()),
            stranger: Some((1, Ok(()))),
            kernel_symbols: Ok(true),
            tracepoint: Ok(Ok(())),
            hardware: HardwareEvent::ALL.map(|event| (event, Ok(()))).into(),
            memory: Some(Ok(())),
            kernel_stack: Ok(()),
            smaps: Ok(()),
            schedstat: Ok(true),
            psi: Ok(1),
            hidden: Ok(None),
            cgroup: Ok(CgroupView {
                version: 2,
                hybrid: false,
                path: "/".to_owned(),
                now: CgroupTick::default(),
            }),
            balloon: false,
            allocators: Vec::new(),
            runtimes: Vec::new(),
            target: None,
        }
    }

    fn unprivileged(mut s: Surroundings) -> Surroundings {
        if let Ok(rights) = &mut s.rights {
            (rights.euid, rights.capabilities) = (1000, Capabilities(0));
        }
        s
    }

    fn refused(errno: i32) -> Tried {
        Err(io::Error::from_raw_os_error(errno))
    }

    fn answer(s: &Surroundings, name: &str) -> Answer {
        let found = judge(s).checks.into_iter().find(|check| check.probe.name == name);
        found.unwrap_or_else(|| panic!("no check {name}")).answer
    }

    /// What the alternatives of a mend say; a command starts with `$`.
    fn ways(answer: &Answer) -> Vec<String> {
        let mark = |mend: &Advice| if mend.is_command { "$ " } else { "" };
        answer.mend.iter().map(|mend| format!("{}{}", mark(mend), mend.how)).collect()
    }

    const SETCAP: &str = "$ sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep $(command -v allocwall)";

    fn target(uid: [u32; 4], state: char) -> TargetView {
        TargetView {
            pid: 7,
            comm: "redis".to_owned(),
            status: Status { tgid: 7, uid, vm_size: Some(1), ..Status::default() },
            state,
            threads: 3,
            dumpable: Some(true),
            namespaces: Ok(vec![]),
            samples: Ok(()),
            kernel_samples: Ok(()),
        }
    }

    #[test]
    fn with_nothing_missing_the_summary_is_one_sentence() {
        let report = judge(&complete());
        assert_eq!(report.summary, "Everything that diagnose needs can be measured here.");
        for Check { probe, answer } in report.checks.iter().filter(|check| check.probe.group.is_needed()) {
            assert!(answer.state == Available && answer.cause.is_none(), "{}: {answer:?}", probe.name);
            assert!(answer.mend.is_empty(), "{}: {answer:?}", probe.name);
        }
    }

    #[test]
    fn a_virtual_machine_without_a_pmu_is_the_only_exception() {
        let mut s = complete();
        s.facts.hypervisor = Some("KVM".to_owned());
        s.facts.pmu = Err(Absence::new(Reason::NotSupported, "no PMU"));
        assert_eq!(
            judge(&s).summary,
            "Everything that diagnose needs can be measured here, except: hardware counters (virtual machine without a PMU)."
        );
    }

    #[test]
    fn no_hypervisor_has_its_source() {
        let mut s = complete();
        assert_eq!(answer(&s, "hypervisor").detail, "none, according to CPUID");
        s.facts.architecture = "aarch64".to_owned();
        assert_eq!(answer(&s, "hypervisor").detail, "the firmware names none");
    }

    #[test]
    fn each_hardware_event_works_or_has_its_reason() {
        let mut s = complete();
        let all = answer(&s, "hardware_counters");
        assert_eq!(all.state, Available);
        assert!(HardwareEvent::ALL.iter().all(|event| all.detail.contains(event.name())), "{}", all.detail);
        for (event, tried) in &mut s.hardware {
            *tried = match event {
                HardwareEvent::Cycles | HardwareEvent::Instructions => Ok(()),
                HardwareEvent::DtlbWalkActive | HardwareEvent::DtlbGuestWalkActive => {
                    Err(Absence::new(Reason::NotSupported, "unknown here"))
                }
                _ => Err(Absence::new(Reason::NotSupported, "no such event")),
            };
        }
        let some = answer(&s, "hardware_counters");
        assert_eq!((some.state, some.cause), (Partial, None));
        assert_eq!(
            some.detail,
            "cycles, instructions; not dTLB-load-misses, LLC-load-misses, cache-misses, node-loads, node-load-misses \
             (no such event); not dtlb_load_misses.walk_active, dtlb_load_misses.walk_active-without-ept (unknown here)"
        );
        // Events that the processor does not have block no measurement.
        assert_eq!(judge(&s).summary, "Everything that diagnose needs can be measured here.");
    }

    #[test]
    fn the_summary_names_what_has_the_same_cause_together() {
        let mut s = unprivileged(complete());
        (s.kernel_samples, s.every_cpu) = (refused(libc::EACCES), refused(libc::EACCES));
        s.smaps = Err(Absence::new(Reason::NotFound, "no file"));
        s.psi = Err(Absence::new(Reason::NotSupported, "no such call"));
        assert_eq!(
            judge(&s).summary,
            "Everything that diagnose needs can be measured here, except: kernel stacks, other processes on all CPUs \
             (perf_event_paranoid is 2); memory breakdown, pressure (PSI) (not offered here)."
        );
    }

    #[test]
    fn each_value_of_perf_event_paranoid_has_its_blocker() {
        let mut s = unprivileged(complete());
        (s.kernel_samples, s.every_cpu) = (refused(libc::EACCES), refused(libc::EACCES));
        assert_eq!(answer(&s, "cpu_samples").state, Available);
        let kernel = answer(&s, "kernel_stacks");
        assert_eq!((kernel.state, kernel.cause), (Absent, Some(Cause::PerfEventParanoid(2))));
        assert!(kernel.detail.ends_with("(EACCES)"), "{}", kernel.detail);
        let setting = |value| format!("$ sudo sysctl kernel.perf_event_paranoid={value}");
        assert_eq!(ways(&kernel), [setting(1).as_str(), "run allocwall as root", SETCAP]);
        assert_eq!(ways(&answer(&s, "every_cpu"))[0], setting(0));
        // If the setting allows it, the same errno has another cause.
        s.facts.perf_event_paranoid = Ok(1);
        assert_eq!(answer(&s, "kernel_stacks").cause, Some(Cause::SecurityPolicy));
        // 3 forbids user samples too: then there is no bill.
        s.facts.perf_event_paranoid = Ok(3);
        s.own_samples = refused(libc::EACCES);
        let summary = judge(&s).summary;
        assert!(summary.starts_with("CPU time cannot be sampled here"), "{summary}");
        assert_eq!(ways(&answer(&s, "cpu_samples"))[0], setting(2));
    }

    #[test]
    fn one_errno_may_have_different_blockers() {
        let cause = |s: &Surroundings| answer(s, "cpu_samples").cause.unwrap();
        let mut s = unprivileged(complete());
        s.own_samples = refused(libc::ENOSYS);
        assert_eq!(cause(&s), Cause::NoPerfEvents);
        if let Ok(rights) = &mut s.rights {
            rights.seccomp = Seccomp::Filter;
        }
        assert_eq!(cause(&s), Cause::SeccompFilter);
        s.own_samples = refused(libc::EPERM);
        assert_eq!(cause(&s), Cause::SeccompFilter);
        s.facts.container = Some("docker".to_owned());
        assert_eq!(answer(&s, "cpu_samples").mend, grant(&s));
        s.own_samples = refused(libc::ENOENT);
        assert_eq!(cause(&s), Cause::NoEvent);
        let mut s = complete();
        (s.own_samples, s.first_user_namespace) = (refused(libc::EACCES), false);
        assert_eq!(cause(&s), Cause::UserNamespace);
    }

    #[test]
    fn a_container_gets_its_rights_and_settings_from_outside() {
        let mut s = unprivileged(complete());
        s.kernel_samples = refused(libc::EACCES);
        for (name, part) in [("kubernetes", "[PERFMON,"), ("podman", "podman run"), ("lxc", "docker run")] {
            s.facts.container = Some(name.to_owned());
            let mend = answer(&s, "kernel_stacks").mend;
            assert_eq!(mend.len(), 3, "{mend:?}");
            assert!(mend[0].is_command && mend[0].note.as_deref() == Some("on the host"), "{mend:?}");
            assert!(!mend[1].is_command && mend[1].how.contains(part), "{mend:?}");
            assert!(!mend[2].is_command && mend[2].how.ends_with("as root"), "{mend:?}");
        }
    }

    #[test]
    fn hidden_kernel_symbols_name_their_setting() {
        let mut s = complete();
        s.kernel_symbols = Ok(false);
        s.facts.kptr_restrict = Ok(2);
        let symbols = answer(&s, "kernel_symbols");
        assert_eq!((symbols.state, symbols.cause), (Absent, Some(Cause::KptrRestrict)));
        assert_eq!(ways(&symbols), ["$ sudo sysctl kernel.kptr_restrict=1"]);
        s.facts.kptr_restrict = Ok(0);
        let s = unprivileged(s);
        assert_eq!(answer(&s, "kernel_symbols").cause, Some(Cause::Lacks("CAP_SYSLOG")));
        assert_eq!(answer(&s, "kptr_restrict").state, Available);
    }

    #[test]
    fn python_stacks_are_blocked_by_yama_or_by_the_owner() {
        let mut s = unprivileged(complete());
        s.memory = Some(refused(libc::EPERM));
        if let Ok(rights) = &mut s.rights {
            rights.yama_ptrace_scope = Some(1);
        }
        let stacks = answer(&s, "memory_read");
        assert_eq!(stacks.cause, Some(Cause::Yama));
        assert_eq!(ways(&stacks)[0], "$ sudo sysctl kernel.yama.ptrace_scope=0");
        s.target = Some(target([5; 4], 'S'));
        assert_eq!(answer(&s, "memory_read").cause, Some(Cause::OthersProcess));
        s.memory = None;
        let untried = answer(&s, "memory_read");
        assert_eq!((untried.state, untried.cause), (Partial, None));
    }

    #[test]
    fn a_process_that_cannot_be_a_target_is_the_whole_summary() {
        for (uid, state, probe) in [([1000, 0, 0, 0], 'S', "target_user"), ([0; 4], 'Z', "target")] {
            let mut s = complete();
            s.target = Some(target(uid, state));
            let why = answer(&s, probe);
            assert_eq!(why.state, Absent, "{why:?}");
            let summary = format!("Nothing of process 7 (redis) can be diagnosed: {}.", why.detail);
            assert_eq!(judge(&s).summary, summary);
        }
        let mut s = complete();
        s.target = Some(target([0; 4], 'S'));
        assert_eq!(
            judge(&s).summary,
            "Everything that diagnose needs of process 7 (redis) can be measured here."
        );
    }

    #[test]
    fn unknown_rights_of_allocwall_do_not_make_a_target_no_target() {
        let mut s = complete();
        s.target = Some(target([0; 4], 'S'));
        s.rights = Err(Absence::new(Reason::Unparsable, "no status"));
        assert_eq!(answer(&s, "target_user").state, Partial);
        for name in ["capabilities", "seccomp", "yama"] {
            assert_eq!(answer(&s, name).state, Absent, "{name}");
        }
        assert!(judge(&s).summary.starts_with("Everything"), "{}", judge(&s).summary);
    }

    #[test]
    fn another_users_process_needs_a_capability_not_a_sysctl() {
        let mut s = unprivileged(complete());
        let mut other = target([5; 4], 'S');
        (other.samples, other.kernel_samples) = (refused(libc::EACCES), refused(libc::EACCES));
        s.target = Some(other);
        for name in ["target_samples", "kernel_stacks"] {
            let samples = answer(&s, name);
            assert_eq!(samples.cause, Some(Cause::OthersProcess), "{name}");
            assert_eq!(ways(&samples), ["run allocwall as root", SETCAP], "{name}");
        }
        let summary = judge(&s).summary;
        assert!(summary.starts_with("CPU time of process 7"), "{summary}");
    }

    #[test]
    fn an_undumpable_process_of_the_same_user_is_told_from_a_security_policy() {
        let mut s = unprivileged(complete());
        for (dumpable, cause) in [(true, Cause::SecurityPolicy), (false, Cause::NotDumpable)] {
            let samples = refused(libc::EACCES);
            s.target = Some(TargetView { samples, dumpable: Some(dumpable), ..target([1000; 4], 'S') });
            assert_eq!(answer(&s, "target_samples").cause, Some(cause));
        }
    }

    #[test]
    fn a_host_that_takes_memory_back_is_reported() {
        let mut s = complete();
        assert_eq!(answer(&s, "host_memory").state, Available);
        (s.facts.free_page_reporting, s.balloon) = (Ok(true), true);
        assert_eq!(answer(&s, "host_memory").state, Absent);
        s.facts.free_page_reporting = Ok(false);
        assert_eq!(answer(&s, "host_memory").state, Partial);
    }

    #[test]
    fn names_are_unique_and_groups_are_whole() {
        let mut names: Vec<_> = PROBES.iter().map(|probe| probe.name).collect();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), PROBES.len());
        let mut groups: Vec<_> = PROBES.iter().map(|probe| probe.group).collect();
        groups.dedup();
        assert!((1..groups.len()).all(|n| !groups[..n].contains(&groups[n])), "{groups:?}");
    }
}
