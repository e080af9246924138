//! What shows that the target's threads wait for storage.

use super::classify::Classifier;
use allocwall_model::catalogue::cost::WaitClass;
use allocwall_model::recording::Recording;

/// From this part of the waits on, they are of one kind.
const MOST: f64 = 0.5;

/// The waits of the target's threads for storage, by what the kernel shows of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StorageWaits {
    pub all_ns: u64,
    /// A function or the system call shows that they are for storage. The others are any uninterruptible sleep.
    pub sure_ns: u64,
    /// For a file system of the network, or of another process.
    pub remote_ns: u64,
    /// Neither a function nor the system call could be read.
    pub unread_ns: u64,
}

impl StorageWaits {
    pub fn of(recording: &Recording, classifier: &Classifier) -> StorageWaits {
        let mut waits = StorageWaits::default();
        for wait in recording.waits.iter().filter(|wait| classifier.wait(wait) == WaitClass::Storage) {
            let remote = classifier.waits_for_remote_storage(wait);
            let sure = remote || classifier.surely_waits_for_storage(wait);
            let unread = wait.syscall.is_none() && wait.kernel.is_none();
            let sums = [
                (&mut waits.all_ns, true),
                (&mut waits.sure_ns, sure),
                (&mut waits.remote_ns, remote),
                (&mut waits.unread_ns, unread),
            ];
            for (sum, _) in sums.into_iter().filter(|(_, counts)| *counts) {
                *sum = sum.saturating_add(wait.weight_ns);
            }
        }
        waits
    }

    pub fn part(&self, ns: u64) -> f64 {
        ns as f64 / self.all_ns.max(1) as f64
    }

    pub fn are_sure(&self) -> bool {
        self.part(self.sure_ns) >= MOST
    }

    pub fn are_remote(&self) -> bool {
        self.part(self.remote_ns) >= MOST
    }

    pub fn are_unread(&self) -> bool {
        self.part(self.unread_ns) >= MOST
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::context::percent;
    use allocwall_model::catalogue::walls::Wall;
    use allocwall_sketches::recording::{MS, PID, Sketch};

    #[test]
    fn waits_are_counted_by_what_shows_them() {
        let mut s = Sketch::new();
        for (count, state, call, kernel) in [
            (4, 'D', Some(0), "folio_wait_bit_common;filemap_read;vfs_read"),
            (3, 'D', Some(0), "rpc_wait_bit_killable;nfs_file_read;vfs_read"),
            (2, 'D', Some(16), "rtnl_lock;dev_ioctl;sock_ioctl"),
            (1, 'D', None, ""),
            // Not for storage.
            (9, 'S', Some(0), "pipe_read;vfs_read"),
        ] {
            s.waits(count, PID, state, call, kernel, "");
        }
        let period_ns = 10 * MS;
        let expected = StorageWaits {
            all_ns: 10 * period_ns,
            sure_ns: 7 * period_ns,
            remote_ns: 3 * period_ns,
            unread_ns: period_ns,
        };
        let waits = StorageWaits::of(&s.recording, &Classifier::new(&s.recording));
        assert_eq!(waits, expected);
        assert_eq!((waits.are_sure(), waits.are_remote(), waits.are_unread()), (true, false, false));
    }

    #[test]
    fn the_text_about_disks_has_the_limit() {
        let about = Wall::Disk.about();
        assert!(about.contains(&format!("at least {} of them", percent(MOST))), "{about}");
    }
}
