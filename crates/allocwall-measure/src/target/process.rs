//! A running process, from its files in /proc.

use super::components::Components;
use super::modules::Modules;
use super::scope::Loaded;
use super::space::AddressSpace;
use allocwall_host::proc::{ProcFs, Status};
use allocwall_host::rights::run_as_root;
use allocwall_host::{clock, file, link_map, maps};
use allocwall_model::catalogue::modules::{ModuleRole, is_setting, role_of_library};
use allocwall_model::error::{Error, Result};
use allocwall_model::recording::{Allocator, CMDLINE_WORDS, Process};
use allocwall_model::units::{Absence, Measured, Reason};
use std::path::Path;

/// One process, as known from its files.
#[derive(Debug)]
pub struct TargetView {
    pub process: Process,
    /// The allocators in the process that do not serve `malloc`.
    pub also: Vec<Allocator>,
    pub space: AddressSpace,
    /// Why its code is known only in part.
    pub cut: Option<Absence>,
}

impl Modules {
    /// Inspects a running process. Each fact that could not be found is an [`Absence`].
    ///
    /// # Errors
    /// The process does not exist, or may not be inspected.
    pub fn inspect(&mut self, pid: i32) -> Result<TargetView> {
        let root = self.proc_root.clone();
        let proc = ProcFs::at(&root);
        let refused = |absence: Absence| match absence.is_gone() {
            true => Error::NoSuchProcess(pid),
            false => Error::Refused(absence.detail),
        };
        let stat = proc.process_stat(pid).map_err(refused)?;
        // A thread whose /proc entries still show the memory, the files and the root.
        let thread = proc.living_thread(pid);
        // Executable mappings only: every relevant file has one.
        let code = proc.code(thread).map_err(|absence| match absence.reason {
            Reason::NotPermitted => Error::NotPermitted {
                pid,
                detail: absence.detail,
                mend: format!("{}, or as the owner of the process", run_as_root()),
            },
            _ => refused(absence),
        })?;
        let mut space = AddressSpace::new(pid);
        for mapping in &code.mappings {
            space.add_mapping(self, mapping);
        }

        let environ = proc.environ(thread);
        let exe_path = proc.exe(thread);
        let exe = exe_path.as_ref().ok().and_then(|path| self.find_executable(thread, &space, path));
        let files = Loaded::new(self, thread, &space, exe).files(environ.as_deref().unwrap_or(&[]));
        let Components { libc, runtime, allocator, also, .. } = files.components();
        let process = Process {
            pid,
            pid_inside: proc.status(pid).ok().and_then(|status| pid_inside(&status)),
            ppid: stat.ppid,
            comm: proc.comm(pid).unwrap_or_default(),
            exe: exe_path.map(|path| path.to_string_lossy().into_owned()),
            cmdline: words_kept(proc.cmdline(thread).unwrap_or_default()),
            libc,
            runtime,
            allocator,
            environment: settings(environ.unwrap_or_default()),
            thp_disabled: proc.status(thread).and_then(|status| thp_disabled(&status)),
            secure_exec: file::read(&root.join(format!("{thread}/auxv")), secure_exec),
            ended: false,
            age_ns: age_ns(&proc, stat.start_ticks),
        };
        Ok(TargetView { process, also, space, cut: code.cut })
    }

    /// The mapped file of /proc/PID/exe. It is found by path if the paths agree (some file systems number
    /// devices differently in maps), else by device and inode (the path of a deleted or renamed file
    /// differs).
    fn find_executable(&self, thread: i32, space: &AddressSpace, path: &Path) -> Option<usize> {
        let shown = path.to_string_lossy();
        let identity = maps::identity(&self.proc_root.join(thread.to_string()).join("exe"));
        let mut mapped = space.code().map(|code| code.module);
        mapped
            .find(|&module| self.list[module].path == shown)
            .or_else(|| self.module_with_identity(space, identity?))
    }

    fn module_with_identity(&self, space: &AddressSpace, identity: ((u32, u32), u64)) -> Option<usize> {
        let mut mapped = space.code().map(|code| code.module);
        mapped.find(|&module| self.known[module].identity == Some(identity))
    }
}

/// The start of a command line, limited in words and bytes: it is kept for thousands of processes.
pub(super) fn words_kept(words: Vec<String>) -> Vec<String> {
    const BYTES: usize = 16 << 10;
    let mut left = BYTES;
    let fits = |word: &String| {
        left = left.saturating_sub(word.len() + 1);
        left > 0
    };
    words.into_iter().take(CMDLINE_WORDS).take_while(fits).collect()
}

/// Only the variables that a diagnosis reads. System properties among Java's options are removed: they may
/// contain passwords. The library that counts is removed too: allocwall preloads it, not the user.
pub(super) fn settings(environ: Vec<(String, String)>) -> Vec<(String, String)> {
    let without_properties = |name: &str, value: String| {
        if name.contains("JAVA") {
            value.split_whitespace().filter(|word| word.starts_with("-X")).collect::<Vec<_>>().join(" ")
        } else {
            value
        }
    };
    environ
        .into_iter()
        .filter(|(name, _)| is_setting(name))
        .filter_map(|(name, value)| {
            let value = without_properties(&name, value);
            let value = if name == "LD_PRELOAD" { without_counting(&value)? } else { value };
            Some((name, value))
        })
        .collect()
}

/// A list of preloads without the library that counts, which is the first one. None if nothing else is in it.
fn without_counting(preloads: &str) -> Option<String> {
    let (first, rest) = preloads.split_once(':').unwrap_or((preloads, ""));
    let counts = role_of_library(first.rsplit('/').next().unwrap_or(first)) == Some(ModuleRole::Counter);
    match counts {
        true => (!rest.is_empty()).then(|| rest.to_owned()),
        false => Some(preloads.to_owned()),
    }
}

/// AT_SECURE (getauxval(3)): the loader ignores LD_PRELOAD and tunables.
pub(crate) fn secure_exec(auxv: &[u8]) -> Measured<bool> {
    const AT_SECURE: u64 = 23;
    link_map::auxiliary(auxv, AT_SECURE)
        .map(|value| value != 0)
        .ok_or_else(|| Absence::new(Reason::NotFound, "no AT_SECURE in the auxiliary vector"))
}

/// The last of the numbers that it has, one for each namespace (NSpid, proc_pid_status(5)).
pub(super) fn pid_inside(status: &Status) -> Option<i32> {
    status.ns_pids.get(1..)?.last().copied()
}

/// `start_ticks`: its start, in clock ticks since the boot.
pub(super) fn age_ns(proc: &ProcFs, start_ticks: u64) -> Measured<u64> {
    if !proc.is_live() {
        let detail = "the processes are read from a copy of their files, so their age is unknown";
        return Err(Absence::new(Reason::NotApplicable, detail));
    }
    Ok(clock::since_boot_ns().saturating_sub(start_ticks.saturating_mul(proc.ns_per_tick())))
}

pub(super) fn thp_disabled(status: &Status) -> Measured<bool> {
    let enabled = status.thp_enabled.ok_or_else(|| {
        Absence::new(
            Reason::NotSupported,
            "/proc/PID/status has no THP_enabled line: the kernel has no transparent huge pages, or is older than 5.0",
        )
    })?;
    Ok(!enabled)
}
