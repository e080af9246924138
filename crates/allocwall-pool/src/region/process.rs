//! Moves existing memory of this process to huge pages.

use super::smaps::addresses;
use super::{CollapseError, HUGE, Why, collapse, resident_share};

/// The result of [`collapse_resident`], in ranges of 2 MiB.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collapsed {
    /// Ranges that are on huge pages now, including those that were before.
    pub pages: usize,
    /// Ranges that were skipped, because too little of them was resident.
    pub sparse: usize,
    /// Ranges for which the kernel returned an error.
    pub failed: usize,
    /// The last of these errors.
    pub last_failure: Option<CollapseError>,
}

/// Collapses each aligned 2 MiB of this process's private, anonymous, unnamed memory of which at least the share
/// `least` (0 to 1) is resident: arenas and large blocks. The heap of `brk` and the first thread's stack have names
/// and are skipped.
///
/// It continues after a failure, unless the kernel does not have the call. Memory that another thread unmaps
/// meanwhile counts as failed. Cost: a copy of each range, some 0.3 ms; page faults of other threads wait for one
/// copy.
///
/// ```
/// // A start-up that has loaded its data moves what is at least half resident.
/// match allocwall_pool::region::collapse_resident(0.5) {
///     Ok(done) => println!("{} huge pages, {} failed", done.pages, done.failed),
///     Err(why) => println!("not moved: {why}"),
/// }
/// ```
///
/// # Errors
///
/// [`Why::Unreadable`] if `/proc/self/maps` cannot be read, [`Why::Kernel`] before Linux 6.1.
pub fn collapse_resident(least: f64) -> Result<Collapsed, Why> {
    let maps = std::fs::read("/proc/self/maps").map_err(|_| Why::Unreadable("/proc/self/maps"))?;
    let mut done = Collapsed::default();
    for start in maps.split(|byte| *byte == b'\n').filter_map(anonymous).flat_map(|(from, to)| {
        let first = from.next_multiple_of(HUGE);
        (first..to.saturating_sub(HUGE - 1).max(first)).step_by(HUGE)
    }) {
        match resident_share(start) {
            Ok(share) if share >= least => match collapse(start, HUGE) {
                Ok(()) => done.pages += 1,
                Err(CollapseError::NotEligible) if done.pages == 0 && done.failed >= 16 => {
                    return Err(Why::Kernel { call: "madvise(MADV_COLLAPSE)", since: "6.1" });
                }
                Err(why) => {
                    done.failed += 1;
                    done.last_failure = Some(why);
                }
            },
            Ok(_) => done.sparse += 1,
            // Unmapped meanwhile.
            Err(_) => {}
        }
    }
    Ok(done)
}

/// The addresses of a line of `maps` that is private, anonymous, unnamed, readable and writable.
fn anonymous(line: &[u8]) -> Option<(usize, usize)> {
    let mut words = std::str::from_utf8(line).ok()?.split_ascii_whitespace();
    let range = addresses(words.next()?)?;
    // Protection, offset, device and inode, without a name after them.
    let rest: Vec<&str> = words.collect();
    (matches!(rest[..], ["rw-p", _, _, "0"]) && range.0 < range.1).then_some(range)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_unnamed_private_writable_memory_is_taken() {
        assert_eq!(
            anonymous(b"7f0000000000-7f0000600000 rw-p 00000000 00:00 0 "),
            Some((0x7f00_0000_0000, 0x7f00_0060_0000))
        );
        for line in [
            &b""[..],
            b"7f0000000000-7f0000600000 r--p 00000000 00:00 0",
            b"7f0000000000-7f0000600000 rw-s 00000000 00:00 0",
            b"7f0000000000-7f0000600000 rw-p 00000000 00:00 0   [stack]",
            b"7f0000000000-7f0000600000 rw-p 00000000 fe:00 1234 /usr/lib/x.so",
            b"7f0000600000-7f0000000000 rw-p 00000000 00:00 0",
            b"x-y rw-p 00000000 00:00 0",
            b"\xff",
        ] {
            assert_eq!(anonymous(line), None, "{:?}", String::from_utf8_lossy(line));
        }
    }
}
