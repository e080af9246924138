//! Why something cannot be measured, and what to change.

use super::judge::Answer;
use super::surroundings::{Surroundings, TargetView};
use allocwall_host::file::errno_text;
use allocwall_host::rights::{Capabilities, Seccomp};
use allocwall_model::catalogue::advice::{self, Advice};
use allocwall_model::units::Reason;
use std::fmt;
use std::io;

/// Why something cannot be measured. Its text is for the summary, which names what has the same cause together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cause {
    NotPermitted,
    SwitchedOff,
    Exited,
    Exhausted,
    NotOffered,
    PerfEventParanoid(i32),
    KptrRestrict,
    Yama,
    /// A capability that allocwall does not have.
    Lacks(&'static str),
    OthersProcess,
    NotDumpable,
    UserNamespace,
    SeccompFilter,
    SecurityPolicy,
    NoPerfEvents,
    NoEvent,
    NoMemoryReads,
    NoTracefs,
    NoRunDelays,
    NoVirtualPmu,
    NoPmuDriver,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self {
            Cause::PerfEventParanoid(value) => return write!(f, "perf_event_paranoid is {value}"),
            Cause::Lacks(capability) => return write!(f, "no {capability}"),
            Cause::NotPermitted => "not permitted",
            Cause::SwitchedOff => "switched off",
            Cause::Exited => "the process has exited",
            Cause::Exhausted => "too few descriptors or too little memory",
            Cause::NotOffered => "not offered here",
            Cause::KptrRestrict => "kptr_restrict",
            Cause::Yama => "yama",
            Cause::OthersProcess => "another user's process",
            Cause::NotDumpable => "not dumpable",
            Cause::UserNamespace => "user namespace",
            Cause::SeccompFilter => "seccomp filter",
            Cause::SecurityPolicy => "security policy",
            Cause::NoPerfEvents => "kernel without perf events",
            Cause::NoEvent => "event not offered by this kernel",
            Cause::NoMemoryReads => "no process_vm_readv",
            Cause::NoTracefs => "no access to tracefs",
            Cause::NoRunDelays => "schedstat is empty",
            Cause::NoVirtualPmu => "virtual machine without a PMU",
            Cause::NoPmuDriver => "no PMU driver",
        };
        f.write_str(text)
    }
}

impl From<Reason> for Cause {
    fn from(reason: Reason) -> Self {
        match reason {
            Reason::NotPermitted => Cause::NotPermitted,
            Reason::Disabled => Cause::SwitchedOff,
            Reason::Vanished => Cause::Exited,
            Reason::Exhausted => Cause::Exhausted,
            _ => Cause::NotOffered,
        }
    }
}

pub fn run_as_root() -> Advice {
    Advice::text("run allocwall as root")
}

fn run_on_the_host() -> Advice {
    Advice::text("run allocwall on the host as root")
}

/// A setting of the kernel; a container cannot change it.
fn sysctl(s: &Surroundings, name: &str, value: i32) -> Advice {
    let mend = Advice::command(format!("sudo sysctl {name}={value}"));
    if s.facts.container.is_some() { mend.note("on the host") } else { mend }
}

/// How to get the missing capabilities here.
pub fn grant(s: &Surroundings) -> [Advice; 2] {
    let on_the_host = Advice::text("run on the host as root");
    match s.facts.container.as_deref() {
        None => [run_as_root(), advice::SETCAP],
        Some("kubernetes" | "containerd") => [
            Advice::text("in the pod: securityContext.capabilities.add: [PERFMON, SYS_PTRACE, SYSLOG]"),
            Advice::text("run on the node as root"),
        ],
        Some("podman") => [Advice::text("podman run --cap-add=PERFMON,SYS_PTRACE,SYSLOG …"), on_the_host],
        Some(_) => [
            Advice::text("docker run --cap-add=PERFMON --cap-add=SYS_PTRACE --cap-add=SYSLOG …"),
            on_the_host,
        ],
    }
}

/// Whether allocwall holds a right, by its capabilities.
pub fn holds(s: &Surroundings, right: fn(Capabilities) -> bool) -> bool {
    s.rights.as_ref().is_ok_and(|rights| right(rights.capabilities))
}

fn filtered(s: &Surroundings) -> bool {
    s.rights.as_ref().is_ok_and(|rights| rights.seccomp == Seccomp::Filter)
}

/// Whether the target runs as another user than allocwall.
pub fn foreign(s: &Surroundings, target: &TargetView) -> bool {
    !s.rights.as_ref().is_ok_and(|rights| rights.euid == target.status.uid[1])
}

/// What a perf event covers. Each setting of perf_event_paranoid forbids some of these.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Reach {
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

fn exited(errno: &str) -> Answer {
    Answer::blocked(Cause::Exited, format!("the process has exited: {errno}"))
}

/// Names the cause of a refusal of perf_event_open(2). One errno has several causes; other facts tell them apart.
pub fn blame(s: &Surroundings, reach: Reach, error: &io::Error) -> Answer {
    let errno = errno_text(error);
    let perfmon = holds(s, Capabilities::perfmon);
    let paranoid = s.facts.perf_event_paranoid.as_ref().ok().copied();
    let forbids = paranoid.filter(|value| !perfmon && *value >= reach.forbidden_from());
    match (error.raw_os_error(), forbids) {
        (Some(libc::ENOSYS | libc::EPERM), _) if filtered(s) => {
            let answer = Answer::blocked(
                Cause::SeccompFilter,
                format!("allocwall runs under a seccomp filter, which refuses perf_event_open: {errno}"),
            );
            match s.facts.container {
                Some(_) => answer.mend(grant(s)),
                None => answer.mend([Advice::text(
                    "run outside the sandbox (systemd unit: SystemCallFilter=@debug perf_event_open)",
                )]),
            }
        }
        (Some(libc::ENOSYS), _) => Answer::blocked(
            Cause::NoPerfEvents,
            format!("this kernel was built without perf events, or a sandbox hides them: {errno}"),
        ),
        (Some(libc::ESRCH), _) => exited(&errno),
        (Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV), _) => {
            Answer::blocked(Cause::NoEvent, format!("this kernel does not offer the event: {errno}"))
        }
        (Some(libc::EACCES | libc::EPERM), Some(paranoid)) => Answer::blocked(
            Cause::PerfEventParanoid(paranoid),
            format!("kernel.perf_event_paranoid is {paranoid} and allocwall has no CAP_PERFMON: {errno}"),
        )
        .mend([sysctl(s, "kernel.perf_event_paranoid", reach.forbidden_from() - 1)])
        .mend(grant(s)),
        (Some(libc::EACCES | libc::EPERM), None) if perfmon && !s.first_user_namespace => Answer::blocked(
            Cause::UserNamespace,
            format!(
                "allocwall's capabilities hold only inside this user namespace, and perf_event_open ignores \
                 those: {errno}"
            ),
        )
        .mend([run_on_the_host()]),
        (Some(libc::EACCES | libc::EPERM), None) if !perfmon && reach == Reach::OthersProcess => {
            Answer::blocked(
                Cause::OthersProcess,
                format!(
                    "another user's process (or an undumpable one), and allocwall has no CAP_PERFMON: {errno}"
                ),
            )
            .mend(grant(s))
        }
        _ => Answer::blocked(
            Cause::SecurityPolicy,
            format!("a security module (SELinux, AppArmor, lockdown) or the kernel refused it: {errno}"),
        )
        .mend([Advice::command("sudo dmesg | grep -iE 'denied|lockdown'").note("to find the refusal")]),
    }
}

/// The same for process_vm_readv(2): __ptrace_may_access() in kernel/ptrace.c, then Yama.
pub fn blame_memory(s: &Surroundings, error: &io::Error) -> Answer {
    let errno = errno_text(error);
    let ptrace = holds(s, Capabilities::ptrace);
    let scope = s.rights.as_ref().ok().and_then(|rights| rights.yama_ptrace_scope).unwrap_or(0);
    let others = s.rights.is_ok() && s.target.as_ref().is_some_and(|target| foreign(s, target));
    match error.raw_os_error() {
        Some(libc::ESRCH) => exited(&errno),
        Some(libc::ENOSYS) => Answer::blocked(
            Cause::NoMemoryReads,
            format!("this kernel or its sandbox has no process_vm_readv: {errno}"),
        ),
        _ if scope == 3 => Answer::blocked(
            Cause::Yama,
            format!("kernel.yama.ptrace_scope is 3, which no capability overrides: {errno}"),
        )
        .mend([
            Advice::text("boot without kernel.yama.ptrace_scope=3").note("it cannot be lowered at run time")
        ]),
        _ if !ptrace && others => Answer::blocked(
            Cause::OthersProcess,
            format!("another user's process, and allocwall has no CAP_SYS_PTRACE: {errno}"),
        )
        .mend(grant(s)),
        _ if !ptrace && scope > 0 => Answer::blocked(
            Cause::Yama,
            format!("kernel.yama.ptrace_scope is {scope} and allocwall has no CAP_SYS_PTRACE: {errno}"),
        )
        .mend([sysctl(s, "kernel.yama.ptrace_scope", 0)])
        .mend(grant(s)),
        _ if filtered(s) => Answer::blocked(
            Cause::SeccompFilter,
            format!("allocwall runs under a seccomp filter, which refuses process_vm_readv: {errno}"),
        )
        .mend(grant(s)),
        _ => Answer::blocked(
            Cause::Lacks("CAP_SYS_PTRACE"),
            format!(
                "allocwall may not trace the process (it is undumpable, or has more capabilities): {errno}"
            ),
        )
        .mend(grant(s)),
    }
}

/// The same for addresses in /proc/kallsyms: kallsyms_show_value() in kernel/ksyms_common.c.
pub fn blame_symbols(s: &Surroundings) -> Answer {
    let restrict = s.facts.kptr_restrict.as_ref().ok().copied().unwrap_or(0);
    let paranoid = s.facts.perf_event_paranoid.as_ref().ok().copied().unwrap_or(2);
    let syslog = holds(s, |held| held.has(Capabilities::SYSLOG));
    let hidden = |cause, why: String| {
        Answer::blocked(
            cause,
            format!("addresses in /proc/kallsyms are hidden ({why}): kernel functions have no names"),
        )
    };
    match restrict {
        2.. => hidden(Cause::KptrRestrict, format!("kernel.kptr_restrict is {restrict}")).mend([sysctl(
            s,
            "kernel.kptr_restrict",
            i32::from(syslog),
        )]),
        1 => hidden(
            Cause::KptrRestrict,
            "kernel.kptr_restrict is 1 and allocwall has no CAP_SYSLOG".to_owned(),
        )
        .mend(grant(s)),
        _ if syslog && !s.first_user_namespace => hidden(
            Cause::UserNamespace,
            "allocwall's capabilities hold only inside this user namespace".to_owned(),
        )
        .mend([run_on_the_host()]),
        _ => hidden(
            Cause::Lacks("CAP_SYSLOG"),
            format!("allocwall has no CAP_SYSLOG and perf_event_paranoid is {paranoid}"),
        )
        .mend([sysctl(s, "kernel.perf_event_paranoid", 1)])
        .mend(grant(s)),
    }
}
