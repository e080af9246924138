//! Event ids of tracepoints. tracefs is often not mounted, and only its `id` files are needed.

use crate::facts::Machine;
use crate::file::{self, errno_text};
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::fd::OwnedFd;
use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};
use std::io::Read;
use std::path::{Path, PathBuf};

/// The source of the event files.
#[derive(Debug)]
pub enum TraceFs {
    Mounted(PathBuf),
    /// allocwall's own mount, attached to no path. No other process sees it, and it ends with this value.
    Detached(OwnedFd),
}

impl TraceFs {
    pub fn live() -> Measured<Self> {
        Self::mounted_below(Path::new("/")).or_else(|unmounted| {
            Self::detached().map_err(|refused| Absence {
                reason: refused.reason,
                detail: format!("{unmounted}, and {refused}"),
                mend: unmounted.mend,
            })
        })
    }

    /// The tracefs of a machine. Only the live machine mounts it if it is not mounted.
    pub fn of(machine: &Machine) -> Measured<Self> {
        if machine.is_live() { Self::live() } else { Self::mounted_below(&machine.path("/")) }
    }

    /// A tracefs that is already mounted and readable.
    pub fn mounted_below(root: &Path) -> Measured<Self> {
        let mut refused = None;
        for place in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
            let point = root.join(place);
            match file::read(&point.join("events/sched/sched_switch/id"), |_| Ok(())) {
                Ok(()) => return Ok(TraceFs::Mounted(point)),
                Err(absence) if absence.reason == Reason::NotPermitted => refused = Some(absence),
                Err(_) => {}
            }
        }
        Err(match refused {
            Some(absence) => absence.mend("run allocwall as root"),
            None => Absence::new(Reason::NotFound, "tracefs is not mounted at /sys/kernel/tracing")
                .mend("run allocwall as root: it then mounts tracefs privately"),
        })
    }

    /// fsopen(2), since Linux 5.2; needs CAP_SYS_ADMIN.
    fn detached() -> Measured<Self> {
        let open = || -> rustix::io::Result<OwnedFd> {
            let context = fsopen("tracefs", FsOpenFlags::FSOPEN_CLOEXEC)?;
            fsconfig_create(&context)?;
            let attributes = MountAttrFlags::MOUNT_ATTR_RDONLY
                | MountAttrFlags::MOUNT_ATTR_NOSUID
                | MountAttrFlags::MOUNT_ATTR_NOEXEC;
            fsmount(&context, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
        };
        open().map(TraceFs::Detached).map_err(|errno| {
            let error = std::io::Error::from(errno);
            let reason = match errno {
                rustix::io::Errno::PERM | rustix::io::Errno::ACCESS => Reason::NotPermitted,
                _ => Reason::NotSupported,
            };
            Absence::new(reason, format!("tracefs cannot be mounted privately: {}", errno_text(&error)))
        })
    }

    /// The `config` value of a tracepoint for perf_event_open(2).
    pub fn event_id(&self, system: &str, event: &str) -> Measured<u64> {
        if [system, event].iter().any(|name| name.is_empty() || name.contains(['/', '.'])) {
            return Err(Absence::new(Reason::NotFound, format!("{system}:{event} is not a tracepoint name")));
        }
        let path = format!("events/{system}/{event}/id");
        match self {
            TraceFs::Mounted(point) => file::read_number(&point.join(path)),
            TraceFs::Detached(root) => {
                let read = || -> std::io::Result<Vec<u8>> {
                    let id = openat(root, path.as_str(), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
                    let mut bytes = Vec::new();
                    std::fs::File::from(id).take(64).read_to_end(&mut bytes)?;
                    Ok(bytes)
                };
                let bytes = read().map_err(|error| file::absence_of(Path::new(&path), &error))?;
                file::number(&bytes).ok_or_else(|| file::unparsable(&path, &bytes))
            }
        }
    }
}

/// The id of one event. Open a `TraceFs` once to read several.
pub fn event_id(system: &str, event: &str) -> Measured<u64> {
    TraceFs::live()?.event_id(system, event)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fake(place: &str, id: &str) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        let events = dir.path().join(place).join("events/sched/sched_switch");
        std::fs::create_dir_all(&events).unwrap();
        std::fs::write(events.join("id"), id).unwrap();
        dir
    }

    #[test]
    fn both_mount_places_are_tried() {
        for place in ["sys/kernel/tracing", "sys/kernel/debug/tracing"] {
            let dir = fake(place, "316\n");
            let traces = TraceFs::mounted_below(dir.path()).unwrap();
            assert_eq!(traces.event_id("sched", "sched_switch"), Ok(316));
            assert_eq!(traces.event_id("sched", "nope").unwrap_err().reason, Reason::NotFound);
            assert_eq!(traces.event_id("sched", "../sched_switch").unwrap_err().reason, Reason::NotFound);
        }
    }

    #[test]
    fn no_tracefs_and_a_broken_id_are_absent() {
        let empty = tempfile::tempdir().unwrap();
        let absence = TraceFs::mounted_below(empty.path()).unwrap_err();
        assert_eq!(absence.reason, Reason::NotFound);
        assert!(absence.mend[0].how.contains("as root"));
        let broken = fake("sys/kernel/tracing", "three\n");
        let traces = TraceFs::mounted_below(broken.path()).unwrap();
        assert_eq!(traces.event_id("sched", "sched_switch").unwrap_err().reason, Reason::Unparsable);
    }

    #[test]
    fn live_event_has_a_number() {
        match event_id("sched", "sched_switch") {
            Ok(id) => assert!(id > 0),
            Err(absence) => println!("skipped: {absence}"),
        }
    }
}
