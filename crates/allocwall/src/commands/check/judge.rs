//! Surroundings -> checks. No I/O, so every blocker can be tested on any machine.

use super::surroundings::{Surroundings, TargetView, Tried};
use allocwall_host::file::errno_text;
use allocwall_host::rights::{Capabilities, Rights, Seccomp};
use allocwall_model::units::{Absence, Measured, Reason};
use std::io;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Available,
    Partial,
    Absent,
}

impl State {
    pub fn key(self) -> &'static str {
        match self {
            State::Available => "available",
            State::Partial => "partial",
            State::Absent => "absent",
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            State::Available => "yes",
            State::Partial => "partly",
            State::Absent => "no",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
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
    pub fn key(self) -> &'static str {
        match self {
            Group::Target => "target",
            Group::Sampling => "sampling",
            Group::Counters => "counters",
            Group::Rights => "rights",
            Group::Memory => "memory",
            Group::Machine => "machine",
            Group::Software => "software",
        }
    }

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
}

#[derive(Clone, Debug)]
pub struct Check {
    pub group: Group,
    /// Stable key of the JSON format.
    pub name: &'static str,
    pub what: String,
    pub state: State,
    pub detail: String,
    pub mend: Option<String>,
    /// The blocker in a few words, for the summary.
    pub blocker: Option<String>,
    /// Whether a diagnosis uses this measurement; false for settings and for software that was found.
    pub needed: bool,
}

pub struct Report {
    pub summary: String,
    pub checks: Vec<Check>,
}

impl Check {
    fn new(
        group: Group,
        name: &'static str,
        what: impl Into<String>,
        state: State,
        detail: impl Into<String>,
    ) -> Self {
        Check {
            group,
            name,
            what: what.into(),
            state,
            detail: detail.into(),
            mend: None,
            blocker: None,
            needed: matches!(group, Group::Sampling | Group::Counters),
        }
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    fn blocked(mut self, blocker: Blocker) -> Self {
        self.detail = blocker.detail;
        self.blocker = Some(blocker.short);
        self.mend = blocker.mend;
        self
    }

    /// From a reading: what it gives, or why it is absent.
    fn reading<T>(
        group: Group,
        name: &'static str,
        what: &str,
        read: &Measured<T>,
        gives: impl FnOnce(&T) -> String,
    ) -> Self {
        match read {
            Ok(value) => Check::new(group, name, what, State::Available, gives(value)),
            Err(absence) => Check::new(group, name, what, State::Absent, "").blocked(Blocker::of(absence)),
        }
    }

    /// From a try that the kernel granted or refused.
    fn tried(
        group: Group,
        name: &'static str,
        what: &str,
        tried: &Tried,
        gives: &str,
        blame: impl FnOnce(&io::Error) -> Blocker,
    ) -> Self {
        match tried {
            Ok(()) => Check::new(group, name, what, State::Available, gives),
            Err(error) => Check::new(group, name, what, State::Absent, "").blocked(blame(error)),
        }
    }
}

/// Why something cannot be measured.
struct Blocker {
    short: String,
    detail: String,
    mend: Option<String>,
}

impl Blocker {
    fn new(short: impl Into<String>, detail: impl Into<String>) -> Self {
        Blocker { short: short.into(), detail: detail.into(), mend: None }
    }

    fn mend(mut self, mend: impl Into<String>) -> Self {
        self.mend = Some(mend.into());
        self
    }

    fn of(absence: &Absence) -> Self {
        let short = match absence.reason {
            Reason::NotPermitted => "not permitted",
            Reason::Disabled => "switched off",
            Reason::Vanished => "the process has exited",
            Reason::Exhausted => "too few descriptors or too little memory",
            _ => "not offered here",
        };
        Blocker { short: short.to_owned(), detail: absence.detail.clone(), mend: absence.mend.clone() }
    }
}

/// What a perf event covers. Each setting of perf_event_paranoid forbids some of these.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reach {
    User,
    Kernel,
    EveryCpu,
    OthersProcess,
}

impl Reach {
    /// Lowest value of kernel.perf_event_paranoid that forbids it to unprivileged users:
    /// Documentation/admin-guide/sysctl/kernel.rst. Values from 3 come from patches of Debian and Ubuntu.
    fn forbidden_from(self) -> i32 {
        match self {
            Reach::User | Reach::OthersProcess => 3,
            Reach::Kernel => 2,
            Reach::EveryCpu => 1,
        }
    }
}

/// Separates the alternatives of a mend; the text output prints each on its own line, to be copied whole.
pub const OR: &str = ", or: ";

const GRANT: &str =
    "run allocwall as root, or: sudo setcap cap_perfmon,cap_sys_ptrace,cap_syslog+ep $(command -v allocwall)";

pub fn judge(s: &Surroundings) -> Report {
    let mut checks = Vec::new();
    if let Some(target) = &s.target {
        checks.extend(target_checks(s, target));
    }
    checks.extend(sampling_checks(s));
    checks.extend(counter_checks(s));
    checks.extend(right_checks(s));
    checks.extend(memory_checks(s));
    checks.extend(machine_checks(s));
    checks.extend(software_checks(s));
    Report { summary: summary(&checks, s.target.as_ref()), checks }
}

/// One sentence; measurements with the same blocker are named together.
fn summary(checks: &[Check], target: Option<&TargetView>) -> String {
    let of = match target {
        Some(target) => format!(" of process {} ({})", target.pid, target.comm),
        None => String::new(),
    };
    // If the process cannot be a target, report only that.
    let hopeless = |check: &&Check| check.group == Group::Target && check.state == State::Absent;
    if let Some(check) = checks.iter().find(hopeless) {
        return format!("Nothing{of} can be diagnosed: {}.", check.detail);
    }
    let mut blockers: Vec<(String, Vec<&str>)> = Vec::new();
    for check in checks.iter().filter(|check| check.needed && check.state != State::Available) {
        let blocker = check.blocker.clone().unwrap_or_else(|| check.detail.clone());
        match blockers.iter_mut().find(|(known, _)| *known == blocker) {
            Some((_, whats)) => whats.push(&check.what),
            None => blockers.push((blocker, vec![&check.what])),
        }
    }
    let exceptions: Vec<String> =
        blockers.iter().map(|(blocker, whats)| format!("{} ({blocker})", whats.join(", "))).collect();
    if exceptions.is_empty() {
        return format!("Everything that diagnose needs{of} can be measured here.");
    }
    let key = if target.is_some() { "target_samples" } else { "cpu_samples" };
    let sampled = checks.iter().any(|check| check.name == key && check.state == State::Available);
    if sampled {
        format!("Everything that diagnose needs{of} can be measured here, except: {}.", exceptions.join("; "))
    } else {
        format!(
            "CPU time{of} cannot be sampled here: a diagnosis has no bill, only counters from /proc. Blocked: {}.",
            exceptions.join("; ")
        )
    }
}

/// Names the blocker behind a refusal of perf_event_open(2). One errno has several causes; other facts tell them
/// apart.
fn blame(s: &Surroundings, reach: Reach, error: &io::Error) -> Blocker {
    let errno = errno_text(error);
    let rights = s.rights.as_ref().ok();
    let filtered = rights.is_some_and(|rights| rights.seccomp == Seccomp::Filter);
    let perfmon = rights.is_some_and(|rights| rights.capabilities.perfmon());
    let paranoid = s.facts.perf_event_paranoid.as_ref().ok().copied();
    match error.raw_os_error() {
        Some(libc_errno::ENOSYS | libc_errno::EPERM) if filtered => {
            Blocker::new("seccomp filter", format!("allocwall runs under a seccomp filter, which refuses perf_event_open: {errno}"))
                .mend(container_grant(s))
        }
        Some(libc_errno::ENOSYS) => Blocker::new(
            "kernel without perf events",
            format!("this kernel was built without perf events, or a sandbox hides them: {errno}"),
        ),
        Some(libc_errno::ESRCH) => Blocker::new("the process has exited", format!("the process has exited: {errno}")),
        Some(libc_errno::ENOENT | libc_errno::EOPNOTSUPP | libc_errno::ENODEV) => {
            Blocker::new("event not offered by this kernel", format!("this kernel does not offer the event: {errno}"))
        }
        Some(libc_errno::EACCES | libc_errno::EPERM) if perfmon && !s.first_user_namespace => Blocker::new(
            "user namespace",
            format!("allocwall's capabilities hold only inside this user namespace, and perf_event_open ignores those: {errno}"),
        )
        .mend("run allocwall on the host as root"),
        Some(libc_errno::EACCES | libc_errno::EPERM) if !perfmon && paranoid.is_some_and(|p| p >= reach.forbidden_from()) => {
            let paranoid = paranoid.unwrap_or_default();
            let limit = reach.forbidden_from() - 1;
            let mend = match s.facts.container {
                Some(_) => format!("on the host: sudo sysctl kernel.perf_event_paranoid={limit}{OR}{}", container_grant(s)),
                None => format!("sudo sysctl kernel.perf_event_paranoid={limit}{OR}{GRANT}"),
            };
            Blocker::new(
                format!("perf_event_paranoid is {paranoid}"),
                format!("kernel.perf_event_paranoid is {paranoid} and allocwall has no CAP_PERFMON: {errno}"),
            )
            .mend(mend)
        }
        Some(libc_errno::EACCES | libc_errno::EPERM) if reach == Reach::OthersProcess && !perfmon => Blocker::new(
            "another user's process",
            format!("another user's process (or an undumpable one), and allocwall has no CAP_PERFMON: {errno}"),
        )
        .mend(match s.facts.container {
            Some(_) => container_grant(s),
            None => GRANT.to_owned(),
        }),
        _ => Blocker::new(
            "security policy",
            format!("a security module (SELinux, AppArmor, lockdown) or the kernel refused it: {errno}"),
        )
            .mend("find the refusal: sudo dmesg | grep -iE 'denied|lockdown'"),
    }
}

/// How to grant the missing rights in this container or sandbox.
fn container_grant(s: &Surroundings) -> String {
    match s.facts.container.as_deref() {
        Some("kubernetes" | "containerd") => {
            "in the pod: securityContext.capabilities.add: [PERFMON, SYS_PTRACE, SYSLOG], or: run on the node as root".to_owned()
        }
        Some("podman") => "podman run --cap-add=PERFMON,SYS_PTRACE,SYSLOG …, or: run on the host as root".to_owned(),
        Some(_) => "docker run --cap-add=PERFMON --cap-add=SYS_PTRACE --cap-add=SYSLOG …, or: run on the host as root".to_owned(),
        None => "run outside the sandbox (systemd unit: SystemCallFilter=@debug perf_event_open)".to_owned(),
    }
}

fn sampling_checks(s: &Surroundings) -> Vec<Check> {
    use Group::Sampling;
    let mut checks = Vec::new();
    match &s.target {
        None => {
            checks.push(Check::tried(
                Sampling,
                "cpu_samples",
                "CPU samples, own processes",
                &s.own_samples,
                "user stacks of this user's processes",
                |error| blame(s, Reach::User, error),
            ));
            checks.push(match &s.stranger {
                Some((pid, tried)) => Check::tried(
                    Sampling,
                    "cpu_samples_others",
                    "CPU samples, other users'",
                    tried,
                    &format!("tried on process {pid}"),
                    |error| blame(s, Reach::OthersProcess, error),
                ),
                None => not_tried(s),
            });
            checks.push(Check::tried(
                Sampling,
                "kernel_stacks",
                "kernel stacks",
                &s.kernel_samples,
                "page faults, zeroing, map calls and kernel locks are in the bill",
                |error| blame(s, Reach::Kernel, error),
            ));
        }
        Some(target) => {
            let reach = if s.rights.as_ref().is_ok_and(|rights| rights.euid == target.status.uid[1]) {
                Reach::User
            } else {
                Reach::OthersProcess
            };
            checks.push(Check::tried(
                Sampling,
                "target_samples",
                "CPU samples",
                &target.samples,
                "user stacks of this process",
                |error| {
                    // Same user and a permissive setting: EACCES then means that the process may not be traced.
                    match blame(s, reach, error) {
                        blocker if blocker.short == "security policy" && target.dumpable == Some(false) => {
                            Blocker {
                                short: "not dumpable".to_owned(),
                                detail: format!(
                                    "the process made itself undumpable, so only root may sample it: {}",
                                    errno_text(error)
                                ),
                                mend: Some(GRANT.to_owned()),
                            }
                        }
                        blocker => blocker,
                    }
                },
            ));
            checks.push(Check::tried(
                Sampling,
                "kernel_stacks",
                "kernel stacks",
                &target.kernel_samples,
                "page faults, zeroing, map calls and kernel locks are in the bill",
                |error| match &target.samples {
                    Ok(()) => blame(s, Reach::Kernel, error),
                    // A blocker that forbids the process forbids its kernel stacks too.
                    Err(_) if reach == Reach::OthersProcess => blame(s, reach, error),
                    Err(_) => blame(s, Reach::Kernel, error),
                },
            ));
        }
    }
    checks.push(kernel_symbols(s));
    checks.push(Check::tried(
        Sampling,
        "every_cpu",
        "other processes on all CPUs",
        &s.every_cpu,
        "which other processes use the CPUs while the target waits",
        |error| blame(s, Reach::EveryCpu, error),
    ));
    checks.push(python_stacks(s));
    checks
}

/// No other user's process is visible: report that it was not tried, and what the rights would allow.
fn not_tried(s: &Surroundings) -> Check {
    let capable =
        s.rights.as_ref().is_ok_and(|rights| rights.capabilities.perfmon()) && s.first_user_namespace;
    let (state, detail) = if capable {
        (State::Available, "not tried: no other user's process is visible here; CAP_PERFMON would allow it")
    } else {
        (State::Partial, "not tried: no other user's process is visible here")
    };
    let mut check =
        Check::new(Group::Sampling, "cpu_samples_others", "CPU samples, other users'", state, detail);
    // There is no such process to diagnose, so this is not an exception.
    check.needed = false;
    check
}

fn kernel_symbols(s: &Surroundings) -> Check {
    let check =
        |state, detail: &str| Check::new(Group::Sampling, "kernel_symbols", "kernel symbols", state, detail);
    match &s.kernel_symbols {
        Ok(true) => check(State::Available, "kernel frames have names (/proc/kallsyms)"),
        Ok(false) => {
            let restrict = s.facts.kptr_restrict.as_ref().ok().copied().unwrap_or(0);
            let syslog = s.rights.as_ref().is_ok_and(|rights| rights.capabilities.has(Capabilities::SYSLOG));
            let paranoid = s.facts.perf_event_paranoid.as_ref().ok().copied().unwrap_or(2);
            // kallsyms_show_value() in kernel/ksyms_common.c.
            let (short, why, mend) = match (restrict, syslog) {
                (2.., _) => (
                    "kptr_restrict",
                    format!("kernel.kptr_restrict is {restrict}"),
                    format!("sudo sysctl kernel.kptr_restrict={}", if syslog { 1 } else { 0 }),
                ),
                (1, _) => (
                    "kptr_restrict",
                    "kernel.kptr_restrict is 1 and allocwall has no CAP_SYSLOG".to_owned(),
                    GRANT.to_owned(),
                ),
                (_, true) if !s.first_user_namespace => (
                    "user namespace",
                    "allocwall's capabilities hold only inside this user namespace".to_owned(),
                    "run allocwall on the host as root".to_owned(),
                ),
                _ => (
                    "no CAP_SYSLOG",
                    format!("allocwall has no CAP_SYSLOG and perf_event_paranoid is {paranoid}"),
                    format!("sudo sysctl kernel.perf_event_paranoid=1{OR}{GRANT}"),
                ),
            };
            let mend = if s.facts.container.is_some() && mend.starts_with("sudo") {
                format!("on the host: {mend}")
            } else {
                mend
            };
            check(State::Absent, "").blocked(
                Blocker::new(
                    short,
                    format!("addresses in /proc/kallsyms are hidden ({why}): kernel functions have no names"),
                )
                .mend(mend),
            )
        }
        Err(absence) => check(State::Absent, "").blocked(Blocker::of(absence)),
    }
}

fn python_stacks(s: &Surroundings) -> Check {
    const NAME: &str = "memory_read";
    const WHAT: &str = "Python stacks";
    match &s.memory {
        None => {
            let mut check = Check::new(
                Group::Sampling,
                NAME,
                WHAT,
                State::Partial,
                "not tried: this user has no other process to read from (process_vm_readv)",
            );
            check.needed = false;
            check
        }
        Some(tried) => Check::tried(
            Group::Sampling,
            NAME,
            WHAT,
            tried,
            "memory of other processes can be read (process_vm_readv)",
            |error| blame_memory(s, error),
        ),
    }
}

/// __ptrace_may_access() in kernel/ptrace.c, then Yama.
fn blame_memory(s: &Surroundings, error: &io::Error) -> Blocker {
    let errno = errno_text(error);
    let rights = s.rights.as_ref().ok();
    let ptrace = rights.is_some_and(|rights| rights.capabilities.ptrace());
    let scope = rights.and_then(|rights| rights.yama_ptrace_scope).unwrap_or(0);
    let grant = if s.facts.container.is_some() { container_grant(s) } else { GRANT.to_owned() };
    let others = s
        .target
        .as_ref()
        .is_some_and(|target| rights.is_some_and(|rights| rights.euid != target.status.uid[1]));
    match error.raw_os_error() {
        Some(libc_errno::ESRCH) => {
            Blocker::new("the process has exited", format!("the process has exited: {errno}"))
        }
        Some(libc_errno::ENOSYS) => Blocker::new(
            "no process_vm_readv",
            format!("this kernel or its sandbox has no process_vm_readv: {errno}"),
        ),
        _ if scope == 3 => Blocker::new(
            "yama",
            format!("kernel.yama.ptrace_scope is 3, which no capability overrides: {errno}"),
        )
        .mend("boot without kernel.yama.ptrace_scope=3 (it cannot be lowered at run time)"),
        _ if !ptrace && others => Blocker::new(
            "another user's process",
            format!("another user's process, and allocwall has no CAP_SYS_PTRACE: {errno}"),
        )
        .mend(grant),
        _ if !ptrace && scope > 0 => Blocker::new(
            "yama",
            format!("kernel.yama.ptrace_scope is {scope} and allocwall has no CAP_SYS_PTRACE: {errno}"),
        )
        .mend(format!("sudo sysctl kernel.yama.ptrace_scope=0{OR}{grant}")),
        _ if rights.is_some_and(|rights| rights.seccomp == Seccomp::Filter) => Blocker::new(
            "seccomp filter",
            format!("allocwall runs under a seccomp filter, which refuses process_vm_readv: {errno}"),
        )
        .mend(grant),
        _ => Blocker::new(
            "no CAP_SYS_PTRACE",
            format!(
                "allocwall may not trace the process (it is undumpable, or has more capabilities): {errno}"
            ),
        )
        .mend(grant),
    }
}

fn counter_checks(s: &Surroundings) -> Vec<Check> {
    use Group::Counters;
    let whose = if s.target.is_some() { "of the process" } else { "of this user's processes" };
    let mut checks = Vec::new();
    checks.push(match (&s.event, &s.tracepoint) {
        (Ok(_), Some(tried)) => Check::tried(
            Counters,
            "tracepoints",
            "tracepoints",
            tried,
            "context switches and map calls can be counted",
            |error| blame(s, Reach::EveryCpu, error),
        ),
        (Err(absence), _) => {
            let mut blocker = Blocker::of(absence);
            blocker.short = "no access to tracefs".to_owned();
            Check::new(Counters, "tracepoints", "tracepoints", State::Absent, "").blocked(blocker)
        }
        (Ok(_), None) => Check::new(Counters, "tracepoints", "tracepoints", State::Partial, "not tried"),
    });
    checks.push(hardware(s));
    checks.push(match &s.kernel_stack {
        Ok(()) => Check::new(
            Counters,
            "wait_stacks",
            "kernel stacks of waits",
            State::Available,
            "what waiting threads wait for (/proc/PID/stack)",
        ),
        Err(_) => Check::new(
            Counters,
            "wait_stacks",
            "kernel stacks of waits",
            State::Partial,
            "",
        )
        .blocked(
            Blocker::new(
                "no CAP_SYS_ADMIN",
                "only root can read /proc/PID/stack; only the system call and the kernel function of a wait are known",
            )
            .mend("run allocwall as root"),
        ),
    });
    checks.push(match &s.schedstat {
        Ok(true) => Check::new(
            Counters,
            "schedstat",
            "run-queue wait",
            State::Available,
            "CPU time and run delay of each thread in nanoseconds (schedstat)",
        ),
        Ok(false) => {
            Check::new(Counters, "schedstat", "run-queue wait", State::Absent, "").blocked(Blocker::new(
                "schedstat is empty",
                "/proc/PID/schedstat holds only zeros: this kernel does not account run delays",
            ))
        }
        Err(absence) => Check::new(Counters, "schedstat", "run-queue wait", State::Absent, "")
            .blocked(Blocker::of(absence)),
    });
    checks.push(Check::reading(Counters, "smaps", "memory breakdown", &s.smaps, |()| {
        format!("resident, lazily freed and huge pages {whose} (smaps_rollup)")
    }));
    if let Some(check) =
        checks.last_mut().filter(|check| check.state == State::Absent && check.mend.is_none())
    {
        check.mend = Some(GRANT.to_owned());
    }
    checks.push(Check::reading(Counters, "psi", "pressure (PSI)", &s.psi, |_| {
        "waiting time due to CPU, memory and I/O pressure".to_owned()
    }));
    checks.push(cgroup(s));
    checks
}

fn hardware(s: &Surroundings) -> Check {
    const WHAT: &str = "hardware counters";
    let check = |state| {
        Check::new(Group::Counters, "hardware_counters", WHAT, state, "cycles, dTLB and cache misses")
    };
    match &s.facts.pmu {
        Ok(()) => check(State::Available),
        Err(absence) if absence.reason == Reason::NotSupported => {
            let (short, mend) = match &s.facts.hypervisor {
                Some(_) => (
                    "virtual machine without a PMU",
                    "host or cloud provider: enable a virtual PMU (KVM: -cpu host,pmu=on), or use bare metal",
                ),
                None => ("no PMU driver", "find the driver: sudo dmesg | grep -i 'performance events'"),
            };
            check(State::Absent).blocked(
                Blocker::new(
                    short,
                    format!("{}; TLB costs are estimated from huge-page coverage", absence.detail),
                )
                .mend(mend),
            )
        }
        Err(absence) => {
            // Counting cycles in user mode needs the same rights as CPU samples.
            match &s.own_samples {
                Err(error) => check(State::Absent).blocked(blame(s, Reach::User, error)),
                Ok(()) => check(State::Absent).blocked(Blocker::of(absence)),
            }
        }
    }
}

fn cgroup(s: &Surroundings) -> Check {
    const WHAT: &str = "cgroup quota and throttling";
    let view = match &s.cgroup {
        Ok(view) => view,
        Err(absence) => {
            return Check::new(Group::Counters, "cgroup", WHAT, State::Absent, "")
                .blocked(Blocker::of(absence));
        }
    };
    let version = match (view.version, view.hybrid) {
        (version, true) => format!("v{version} (both mounted)"),
        (version, false) => format!("v{version}"),
    };
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
    Check::new(
        Group::Counters,
        "cgroup",
        WHAT,
        State::Available,
        format!("{version}, path {}, {quota}{memory}", view.path),
    )
}

fn right_checks(s: &Surroundings) -> Vec<Check> {
    use Group::Rights as G;
    let mut checks = Vec::new();
    let privileged =
        s.rights.as_ref().is_ok_and(|rights| rights.capabilities.perfmon()) && s.first_user_namespace;
    checks.push(match &s.facts.perf_event_paranoid {
        Ok(value) => {
            let (state, effect) = match (privileged, *value) {
                (true, _) => {
                    (State::Available, "no limit, because allocwall has CAP_PERFMON or CAP_SYS_ADMIN")
                }
                (false, ..=0) => (State::Available, "no limit"),
                (false, 1) => {
                    (State::Partial, "only this user's processes, with kernel stacks; not all CPUs")
                }
                (false, 2) => (State::Partial, "only this user's processes, without kernel stacks"),
                (false, _) => (State::Absent, "no samples for unprivileged users"),
            };
            Check::new(G, "perf_event_paranoid", "perf_event_paranoid", state, format!("{value}: {effect}"))
        }
        Err(absence) => Check::new(G, "perf_event_paranoid", "perf_event_paranoid", State::Absent, "")
            .blocked(Blocker::of(absence)),
    });
    checks.push(match &s.facts.kptr_restrict {
        Ok(value) => {
            let shown = matches!(s.kernel_symbols, Ok(true));
            let (state, effect) = match (*value, shown) {
                (0, _) => (State::Available, "no limit by itself"),
                (_, true) => (State::Available, "no limit, because allocwall has CAP_SYSLOG"),
                (_, false) => (State::Absent, "kernel symbols are hidden from allocwall"),
            };
            Check::new(G, "kptr_restrict", "kptr_restrict", state, format!("{value}: {effect}"))
        }
        Err(absence) => {
            Check::new(G, "kptr_restrict", "kptr_restrict", State::Absent, "").blocked(Blocker::of(absence))
        }
    });
    match &s.rights {
        Ok(rights) => {
            checks.push(capabilities(s, rights));
            checks.push(seccomp(rights));
            checks.push(yama(rights));
        }
        Err(absence) => checks.push(
            Check::new(G, "capabilities", "capabilities", State::Absent, "").blocked(Blocker::of(absence)),
        ),
    }
    checks.push(match &s.hidden {
        Ok(None) => Check::new(G, "hidepid", "/proc shows all processes", State::Available, "no hidepid"),
        Ok(Some(options)) => {
            // CAP_SYS_PTRACE overrides hidepid; nothing overrides subset=pid.
            let sees = s.rights.as_ref().is_ok_and(|rights| rights.capabilities.ptrace())
                && !options.contains("subset");
            let state = if sees { State::Available } else { State::Partial };
            let check = Check::new(
                G,
                "hidepid",
                "/proc shows all processes",
                state,
                format!("mounted with {options}"),
            );
            if sees {
                check
            } else {
                check.mend("run allocwall as root, or: sudo mount -o remount,hidepid=0 /proc")
            }
        }
        Err(absence) => {
            Check::new(G, "hidepid", "/proc shows all processes", State::Partial, absence.detail.clone())
        }
    });
    checks
}

fn capabilities(s: &Surroundings, rights: &Rights) -> Check {
    const NEEDED: [(u32, &str); 4] = [
        (Capabilities::PERFMON, "CAP_PERFMON"),
        (Capabilities::SYS_ADMIN, "CAP_SYS_ADMIN"),
        (Capabilities::SYS_PTRACE, "CAP_SYS_PTRACE"),
        (Capabilities::SYSLOG, "CAP_SYSLOG"),
    ];
    let (have, lack): (Vec<_>, Vec<_>) =
        NEEDED.iter().partition(|(capability, _)| rights.capabilities.has(*capability));
    let names = |list: &[&(u32, &str)]| list.iter().map(|(_, name)| *name).collect::<Vec<_>>().join(", ");
    let user = format!("uid {}", rights.euid);
    let (state, detail) = match (have.is_empty(), lack.is_empty()) {
        _ if !s.first_user_namespace => (
            State::Partial,
            format!(
                "{user}; {} inside a user namespace only",
                if have.is_empty() { "none, and".to_owned() } else { names(&have) }
            ),
        ),
        (_, true) => (State::Available, format!("{user}, with all that allocwall uses: {}", names(&have))),
        (true, _) => (State::Absent, format!("{user}, with none of {}", names(&lack))),
        _ => (State::Partial, format!("{user}, with {}; without {}", names(&have), names(&lack))),
    };
    Check::new(Group::Rights, "capabilities", "capabilities", state, detail)
}

fn seccomp(rights: &Rights) -> Check {
    let privileges = match rights.no_new_privs {
        Some(true) => "; no_new_privs is set: setcap and sudo have no effect here",
        _ => "",
    };
    let (state, detail) = match rights.seccomp {
        Seccomp::None => (State::Available, "no system-call filter"),
        Seccomp::Filter => (State::Partial, "a filter is active; what it refuses is listed above"),
        Seccomp::Strict => (State::Absent, "strict mode"),
        Seccomp::Unknown => (State::Available, "not in this kernel"),
    };
    Check::new(Group::Rights, "seccomp", "seccomp", state, format!("{detail}{privileges}"))
}

fn yama(rights: &Rights) -> Check {
    let (state, detail) = match (rights.yama_ptrace_scope, rights.capabilities.ptrace()) {
        (None, _) => (State::Available, "not in this kernel: no limit".to_owned()),
        (Some(0), _) => (State::Available, "ptrace_scope 0: no limit".to_owned()),
        (Some(3), _) => {
            (State::Absent, "ptrace_scope 3: no process may read the memory of another".to_owned())
        }
        (Some(scope), true) => (
            State::Available,
            format!("ptrace_scope {scope}: no limit, because allocwall has CAP_SYS_PTRACE"),
        ),
        (Some(1), false) => (
            State::Partial,
            "ptrace_scope 1: allocwall can read only commands that it starts itself".to_owned(),
        ),
        (Some(scope), false) => (State::Absent, format!("ptrace_scope {scope}: needs CAP_SYS_PTRACE")),
    };
    Check::new(Group::Rights, "yama", "yama", state, detail)
}

fn memory_checks(s: &Surroundings) -> Vec<Check> {
    use Group::Memory;
    let facts = &s.facts;
    let mut checks = Vec::new();
    checks.push(match &facts.thp_enabled {
        Ok(mode) if mode == "never" => Check::new(
            Memory,
            "thp",
            "transparent huge pages",
            State::Absent,
            "never: no remedy can use them",
        )
        .mend("echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"),
        Ok(mode) => {
            let meaning = match mode.as_str() {
                "madvise" => "only where a program asks for them (madvise)",
                "always" => "wherever they fit",
                _ => "a mode unknown to this version",
            };
            let defrag = facts.thp_defrag.as_ref().map_or("unreadable", |defrag| defrag);
            Check::new(
                Memory,
                "thp",
                "transparent huge pages",
                State::Available,
                format!("{mode}: {meaning}; defrag {defrag}"),
            )
        }
        Err(absence) => {
            Check::new(Memory, "thp", "transparent huge pages", State::Absent, absence.detail.clone())
        }
    });
    checks.push(match facts.hugepages_total {
        0 => Check::new(
            Memory,
            "hugetlb",
            "reserved huge pages",
            State::Absent,
            "none reserved",
        )
        .mend("sudo sysctl vm.nr_hugepages=512 (reserves 1 GiB of 2 MiB pages, which other programs cannot use)"),
        total => Check::new(
            Memory,
            "hugetlb",
            "reserved huge pages",
            State::Available,
            format!("{total} reserved, {} free", facts.hugepages_free),
        ),
    });
    checks.push(match (&facts.free_page_reporting, s.balloon) {
        (Ok(true), _) => Check::new(
            Memory,
            "host_memory",
            "host never reclaims memory",
            State::Absent,
            "free-page reporting is on: the host takes idle memory back. Touching it again costs more than the counters \
             here show; `allocwall calibrate` measures both prices",
        ),
        (Ok(false), true) => Check::new(
            Memory,
            "host_memory",
            "host never reclaims memory",
            State::Partial,
            "a balloon device is present: the host can ask for memory back; free pages are not reported",
        ),
        (Ok(false), false) => Check::new(
            Memory,
            "host_memory",
            "host never reclaims memory",
            State::Available,
            "no balloon device and no free-page reporting are visible",
        ),
        (Err(absence), _) => Check::new(Memory, "host_memory", "host never reclaims memory", State::Partial, absence.detail.clone()),
    });
    checks.push(match facts.numa_nodes {
        0 | 1 => Check::new(Memory, "numa", "NUMA", State::Available, "one node: no memory is remote"),
        nodes => Check::new(
            Memory,
            "numa",
            "NUMA",
            State::Available,
            format!("{nodes} nodes; page placement is read from numa_maps"),
        ),
    });
    checks
}

fn machine_checks(s: &Surroundings) -> Vec<Check> {
    use Group::Machine;
    let facts = &s.facts;
    let memory = match facts.memory_bytes {
        0 => "memory unknown".to_owned(),
        bytes => format!("{:.1} GiB", bytes as f64 / f64::from(1 << 30)),
    };
    let mut checks = vec![Check::new(
        Machine,
        "machine",
        "machine",
        State::Available,
        format!(
            "Linux {} {}, {} CPUs, {memory}, {}",
            facts.kernel_release, facts.architecture, facts.online_cpus, facts.cpu_model
        ),
    )];
    checks.push(match &facts.hypervisor {
        Some(name) => Check::new(
            Machine,
            "hypervisor",
            "virtual machine",
            State::Available,
            format!("{name}; steal time is read from /proc/stat"),
        ),
        None => {
            Check::new(Machine, "hypervisor", "virtual machine", State::Absent, "none, according to CPUID")
        }
    });
    checks.push(match &facts.container {
        Some(name) => Check::new(
            Machine,
            "container",
            "container",
            State::Available,
            format!("{name}: processes, settings and limits outside the container may be invisible"),
        ),
        None => {
            Check::new(Machine, "container", "container", State::Absent, "none: the whole machine is visible")
        }
    });
    checks
}

fn software_checks(s: &Surroundings) -> Vec<Check> {
    use Group::Software;
    let mut checks = Vec::new();
    if s.allocators.is_empty() {
        checks.push(
            Check::new(Software, "allocators", "allocators to preload", State::Absent, "none found")
                .mend("sudo apt install libjemalloc2 libtcmalloc-minimal4 libmimalloc2.0 (or your distribution's names)"),
        );
    }
    for (n, allocator) in s.allocators.iter().enumerate() {
        let what = if n == 0 { "allocators to preload" } else { "" };
        checks.push(Check::new(
            Software,
            "allocators",
            what,
            State::Available,
            allocator.path.display().to_string(),
        ));
    }
    let list: Vec<String> = s
        .runtimes
        .iter()
        .map(|runtime| match &runtime.version {
            Some(version) if !runtime.name.ends_with(version.as_str()) => {
                format!("{} {version}", runtime.name)
            }
            _ => runtime.name.clone(),
        })
        .collect();
    checks.push(if list.is_empty() {
        Check::new(
            Software,
            "runtimes",
            "runtimes in PATH",
            State::Absent,
            "no Python, Java, Go or Node; each is needed only for its own programs",
        )
    } else {
        Check::new(Software, "runtimes", "runtimes in PATH", State::Available, list.join(", "))
    });
    checks
}

fn target_checks(s: &Surroundings, target: &TargetView) -> Vec<Check> {
    use Group::Target;
    let mut checks = Vec::new();
    let [real, effective, saved, _] = target.status.uid;
    let ours = s.rights.as_ref().map_or(u32::MAX, |rights| rights.euid);
    let (state, life) = match (target.state, target.status.vm_size) {
        ('Z' | 'X', _) => (
            State::Absent,
            "the process has exited and its parent has not reaped it: there is nothing to measure",
        ),
        (_, None) => (State::Absent, "the process is a kernel thread: it has no memory of its own"),
        ('T' | 't', _) => (State::Partial, "stopped: it uses no CPU time until it is continued"),
        _ => (State::Available, "alive"),
    };
    let threads =
        if target.threads == 1 { "1 thread".to_owned() } else { format!("{} threads", target.threads) };
    checks.push(Check::new(
        Target,
        "target",
        "process",
        state,
        match state {
            State::Absent => life.to_owned(),
            _ => format!("{} ({}), {threads}, {life}", target.pid, target.comm),
        },
    ));
    let check = |state, detail: String| Check::new(Target, "target_user", "user", state, detail);
    checks.push(match () {
        () if real != effective || effective != saved => check(
            State::Absent,
            format!("real uid {real}, effective {effective}, saved {saved}: a setuid program, which allocwall does not diagnose"),
        ),
        () if effective == ours => check(State::Available, format!("uid {effective}, the user of allocwall")),
        () => check(if ours == 0 { State::Available } else { State::Partial }, format!("uid {effective}; allocwall runs as uid {ours}")),
    });
    checks.push(match target.dumpable {
        Some(false) => Check::new(
            Target,
            "target_dumpable",
            "process can be inspected",
            State::Partial,
            "undumpable: its /proc files belong to root (it changed its ids, or has file capabilities)",
        ),
        _ => Check::new(
            Target,
            "target_dumpable",
            "process can be inspected",
            State::Available,
            "dumpable, according to /proc",
        ),
    });
    checks.push(match &target.namespaces {
        Ok(differing) if differing.is_empty() => {
            Check::new(Target, "target_namespaces", "namespaces", State::Available, "the same as allocwall's")
        }
        Ok(differing) => Check::new(
            Target,
            "target_namespaces",
            "namespaces",
            State::Available,
            format!(
                "differ from allocwall's in: {}; files of the process are read through /proc/{}/root",
                differing.join(", "),
                target.pid
            ),
        ),
        Err(_) => {
            Check::new(Target, "target_namespaces", "namespaces", State::Partial, "not readable by allocwall")
                .mend(GRANT)
        }
    });
    checks
}

/// The errno values used here. They are the same on all architectures that Rust's std supports, except MIPS and
/// SPARC.
mod libc_errno {
    pub const EPERM: i32 = 1;
    pub const ENOENT: i32 = 2;
    pub const ESRCH: i32 = 3;
    pub const EACCES: i32 = 13;
    pub const ENODEV: i32 = 19;
    pub const ENOSYS: i32 = 38;
    pub const EOPNOTSUPP: i32 = 95;
}

#[cfg(test)]
mod tests {
    use super::super::surroundings::CgroupView;
    use super::*;
    use allocwall_host::proc::Status;
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
            event: Ok(300),
            tracepoint: Some(Ok(())),
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

    fn check<'a>(report: &'a Report, name: &str) -> &'a Check {
        report.checks.iter().find(|check| check.name == name).unwrap()
    }

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
        assert!(
            report
                .checks
                .iter()
                .filter(|c| c.needed)
                .all(|c| c.state == State::Available && c.mend.is_none())
        );
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
    fn each_value_of_perf_event_paranoid_has_its_blocker() {
        let mut s = unprivileged(complete());
        (s.kernel_samples, s.every_cpu) = (refused(libc_errno::EACCES), refused(libc_errno::EACCES));
        let report = judge(&s);
        assert_eq!(check(&report, "cpu_samples").state, State::Available);
        let kernel = check(&report, "kernel_stacks");
        assert_eq!(kernel.state, State::Absent);
        assert!(kernel.detail.contains("perf_event_paranoid is 2") && kernel.detail.contains("EACCES"));
        assert!(kernel.mend.as_deref().unwrap().starts_with("sudo sysctl kernel.perf_event_paranoid=1"));
        assert!(check(&report, "every_cpu").mend.as_deref().unwrap().contains("perf_event_paranoid=0"));
        // If the setting allows it, the same errno has another cause.
        s.facts.perf_event_paranoid = Ok(1);
        assert!(check(&judge(&s), "kernel_stacks").detail.contains("security module"));
        // 3 forbids user samples too: then there is no bill.
        s.facts.perf_event_paranoid = Ok(3);
        s.own_samples = refused(libc_errno::EACCES);
        let report = judge(&s);
        assert!(report.summary.starts_with("CPU time cannot be sampled here"), "{}", report.summary);
        assert!(check(&report, "cpu_samples").mend.as_deref().unwrap().contains("perf_event_paranoid=2"));
    }

    #[test]
    fn one_errno_may_have_different_blockers() {
        let blocker = |s: &Surroundings| check(&judge(s), "cpu_samples").blocker.clone().unwrap();
        let mut s = unprivileged(complete());
        s.own_samples = refused(libc_errno::ENOSYS);
        assert_eq!(blocker(&s), "kernel without perf events");
        if let Ok(rights) = &mut s.rights {
            rights.seccomp = Seccomp::Filter;
        }
        assert_eq!(blocker(&s), "seccomp filter");
        s.own_samples = refused(libc_errno::EPERM);
        assert_eq!(blocker(&s), "seccomp filter");
        s.facts.container = Some("docker".to_owned());
        assert!(check(&judge(&s), "cpu_samples").mend.as_deref().unwrap().contains("--cap-add=PERFMON"));
        s.own_samples = refused(libc_errno::ENOENT);
        assert_eq!(blocker(&s), "event not offered by this kernel");
        let mut s = complete();
        (s.own_samples, s.first_user_namespace) = (refused(libc_errno::EACCES), false);
        assert_eq!(blocker(&s), "user namespace");
    }

    #[test]
    fn hidden_kernel_symbols_name_their_setting() {
        let mut s = complete();
        s.kernel_symbols = Ok(false);
        s.facts.kptr_restrict = Ok(2);
        let report = judge(&s);
        assert!(check(&report, "kernel_symbols").mend.as_deref().unwrap().contains("kptr_restrict=1"));
        s.facts.kptr_restrict = Ok(0);
        let report = judge(&unprivileged(s));
        assert!(check(&report, "kernel_symbols").detail.contains("no CAP_SYSLOG"));
        assert_eq!(check(&report, "kptr_restrict").state, State::Available);
    }

    #[test]
    fn python_stacks_are_blocked_by_yama_or_by_the_owner() {
        let mut s = unprivileged(complete());
        s.memory = Some(refused(libc_errno::EPERM));
        if let Ok(rights) = &mut s.rights {
            rights.yama_ptrace_scope = Some(1);
        }
        let report = judge(&s);
        assert_eq!(check(&report, "memory_read").blocker.as_deref(), Some("yama"));
        assert!(check(&report, "memory_read").mend.as_deref().unwrap().contains("ptrace_scope=0"));
        s.target = Some(target([5; 4], 'S'));
        assert_eq!(check(&judge(&s), "memory_read").blocker.as_deref(), Some("another user's process"));
        s.memory = None;
        assert_eq!(check(&judge(&s), "memory_read").state, State::Partial);
    }

    #[test]
    fn a_process_that_cannot_be_a_target_is_the_whole_summary() {
        for (uid, state, says) in [([1000, 0, 0, 0], 'S', "setuid"), ([0; 4], 'Z', "exited")] {
            let mut s = complete();
            s.target = Some(target(uid, state));
            let summary = judge(&s).summary;
            assert!(
                summary.starts_with("Nothing of process 7 (redis)") && summary.contains(says),
                "{summary}"
            );
        }
        let mut s = complete();
        s.target = Some(target([0; 4], 'S'));
        assert_eq!(
            judge(&s).summary,
            "Everything that diagnose needs of process 7 (redis) can be measured here."
        );
    }

    #[test]
    fn another_users_process_needs_a_capability_not_a_sysctl() {
        let mut s = unprivileged(complete());
        let mut other = target([5; 4], 'S');
        (other.samples, other.kernel_samples) = (refused(libc_errno::EACCES), refused(libc_errno::EACCES));
        s.target = Some(other);
        let report = judge(&s);
        let samples = check(&report, "target_samples");
        assert_eq!(samples.blocker.as_deref(), Some("another user's process"));
        assert!(!samples.mend.as_deref().unwrap().contains("sysctl"));
        assert!(report.summary.starts_with("CPU time of process 7"), "{}", report.summary);
    }

    #[test]
    fn a_host_that_takes_memory_back_is_reported() {
        let mut s = complete();
        assert_eq!(check(&judge(&s), "host_memory").state, State::Available);
        (s.facts.free_page_reporting, s.balloon) = (Ok(true), true);
        assert_eq!(check(&judge(&s), "host_memory").state, State::Absent);
        s.facts.free_page_reporting = Ok(false);
        assert_eq!(check(&judge(&s), "host_memory").state, State::Partial);
    }

    #[test]
    fn names_are_unique_except_allocators() {
        let report = judge(&complete());
        let mut names: Vec<_> =
            report.checks.iter().map(|check| check.name).filter(|name| *name != "allocators").collect();
        names.sort_unstable();
        let all = names.len();
        names.dedup();
        assert_eq!(names.len(), all);
    }
}
