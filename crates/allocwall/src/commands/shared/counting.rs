//! What `count`, `diagnose --count` and `trial` need to count the calls of a command: the library, and why a command can't be
//! counted.

use super::arms;
use super::diagnosis::readers;
use crate::printer::Printer;
use allocwall_host::elf::ElfKind;
use allocwall_measure::allocations::Counting;
use allocwall_measure::target::{FileView, view_file};
use allocwall_model::recording::{Libc, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use allocwall_trial::arm::TargetFacts;
use rustix::process::{Resource, getrlimit};
use std::ffi::OsString;

/// A file of counts without samples (crates/allocwall-preload/src/count.h).
pub const SMALL_FILE: u64 = 128 << 10;

/// What reads the counts of a command that is started in its environment.
///
/// # Errors
/// The command can't be counted, or nothing on this machine can: why.
pub fn start(command: &[OsString], printer: &Printer) -> Measured<Counting> {
    let facts = TargetFacts::of(command, &arms::environment())
        .map_err(|refusal| Absence::new(Reason::NotFound, refusal.to_string()))?;
    let library = arms::folder(printer)
        .and_then(|folder| Ok(allocwall_preload::unpack(allocwall_preload::count(), &folder)?))
        .map_err(|error| {
            Absence::new(Reason::NotSupported, format!("cannot unpack the library that counts: {error:#}"))
        })?;
    if let Some(why) = uncountable(&facts, &view_file(&library)?) {
        return Err(why);
    }
    if let Some(bytes) = getrlimit(Resource::Fsize).current.filter(|bytes| *bytes < SMALL_FILE) {
        let detail =
            format!("the command may not write files of more than {bytes} bytes, which counting needs");
        return Err(Absence::new(Reason::Exhausted, detail).mend("raise the limit: ulimit -f"));
    }
    Counting::start(&library, None, readers())
}

/// Why the calls of this command can't be counted, as far as that is known before it starts.
pub fn uncountable(facts: &TargetFacts, library: &FileView) -> Option<Absence> {
    let raised = facts.programs.iter().find_map(|program| Some((program.path.display(), program.raised?)));
    if let Some((path, raised)) = raised {
        let detail = format!("{path} has {}, so its loader ignores the library that counts", raised.text());
        return Some(Absence::new(Reason::NotPermitted, detail).mend(RUNNING));
    }
    if facts.env_cleared {
        let why = Absence::new(Reason::NotApplicable, "`env -i` in the command removes LD_PRELOAD");
        return Some(why.mend("put allocwall after it"));
    }
    let needed = |name: &&String| *name == "LD_PRELOAD" || name.starts_with("ALLOCWALL_");
    if let Some(name) = facts.env_changed.iter().find(needed) {
        let detail = format!("`env` in the command sets or removes {name}, which counting needs");
        return Some(Absence::new(Reason::NotApplicable, detail).mend("set it for allocwall instead"));
    }
    let program = facts.certain()?;
    let view = &program.view;
    let is_static = matches!(view.kind, ElfKind::StaticExecutable | ElfKind::StaticPieExecutable);
    let own_allocator =
        program.allocator.as_ref().is_ok_and(|(_, file)| file.is_none()) && view.serves_malloc;
    let (reason, why) = match (&program.runtime, &program.libc) {
        _ if (view.machine, view.is_64) != (library.machine, library.is_64) => {
            (Reason::NotSupported, "is for another architecture than the library that counts")
        }
        (Ok(Runtime::Go { .. }), _) if is_static => (
            Reason::NotApplicable,
            "is a Go program without the C library: Go's own allocator does not call malloc",
        ),
        (_, Ok(Libc::Static)) => STATIC,
        _ if is_static => STATIC,
        (_, Ok(Libc::Musl { .. })) => {
            (Reason::NotSupported, "is linked with musl: counting from its start needs glibc")
        }
        _ if own_allocator => (
            Reason::NotSupported,
            "contains an allocator of its own, so its calls do not reach the library that counts",
        ),
        _ => return None,
    };
    let absence = Absence::new(reason, format!("{} {why}", program.name()));
    Some(if reason == Reason::NotApplicable { absence } else { absence.mend(RUNNING) })
}

const STATIC: (Reason, &str) =
    (Reason::NotSupported, "is statically linked, so no library can count its calls");
const RUNNING: &str = "while it runs, use `allocwall count -p PID`, as root";

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_host::program::RaisedRights;
    use allocwall_model::catalogue::modules::AllocatorKind;

    /// A program that can be counted, and its file in the place of the library.
    fn shell() -> (TargetFacts, FileView) {
        let mut facts = TargetFacts::of(&["/bin/sh".into()], &[]).expect("a shell");
        facts.beyond = None;
        let view = facts.programs[0].view.clone();
        (facts, view)
    }

    #[test]
    fn commands_that_cannot_be_counted_have_a_reason() {
        let (facts, library) = shell();
        if matches!(facts.programs[0].libc, Ok(Libc::Glibc { .. })) {
            assert_eq!(uncountable(&facts, &library), None);
        }
        let refused = |change: &dyn Fn(&mut TargetFacts), words: &str| {
            let (mut facts, library) = shell();
            change(&mut facts);
            let why = uncountable(&facts, &library).unwrap_or_else(|| panic!("{words}"));
            assert!(why.detail.contains(words) && !why.detail.contains('\n'), "{words}: {why}");
            // That is the reason of those who did not ask.
            assert_ne!(why.reason, Reason::Disabled);
        };
        refused(&|facts| facts.programs[0].raised = Some(RaisedRights::SetUser), "has setuid rights");
        refused(&|facts| facts.env_cleared = true, "removes LD_PRELOAD");
        refused(&|facts| facts.env_changed = vec!["LD_PRELOAD".into()], "sets or removes LD_PRELOAD");
        refused(&|facts| facts.programs[0].libc = Ok(Libc::Static), "statically linked");
        refused(&|facts| facts.programs[0].view.kind = ElfKind::StaticPieExecutable, "statically linked");
        refused(&|facts| facts.programs[0].libc = Ok(Libc::Musl { version: None }), "musl");
        refused(&|facts| facts.programs[0].view.machine += 1, "another architecture");
        refused(&|facts| facts.programs[0].view.is_64 ^= true, "another architecture");
        let go = |facts: &mut TargetFacts| {
            facts.programs[0].runtime = Ok(Runtime::Go { version: None });
            facts.programs[0].view.kind = ElfKind::StaticExecutable;
        };
        refused(&go, "Go's own allocator");
        let own = |facts: &mut TargetFacts| {
            facts.programs[0].allocator = Ok((AllocatorKind::Jemalloc, None));
            facts.programs[0].view.serves_malloc = true;
        };
        refused(&own, "an allocator of its own");
    }

    #[test]
    fn a_program_that_another_one_starts_is_not_judged() {
        let (mut facts, library) = shell();
        facts.programs[0].libc = Ok(Libc::Static);
        facts.beyond = Some(Absence::new(Reason::NotApplicable, "a shell decides which program it starts"));
        assert_eq!(uncountable(&facts, &library), None);
        facts.env_changed = vec!["PATH".into()];
        assert_eq!(uncountable(&facts, &library), None);
    }
}
