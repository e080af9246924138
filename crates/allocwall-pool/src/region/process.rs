//! Making huge what a process has already.

use super::smaps::addresses;
use super::{CollapseError, HUGE, Why, collapse, resident_share};

/// What [`collapse_resident`] did.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Collapsed {
    /// Huge pages that stand now where enough was resident; those that were huge before among them.
    pub pages: usize,
    /// Those left alone because too little of them was resident.
    pub sparse: usize,
    pub failed: usize,
    pub last_failure: Option<CollapseError>,
}

/// Collapses each aligned 2 MiB of this process's private, anonymous, unnamed memory of which at least this share (0 to 1)
/// is resident: arenas and large blocks. The heap of `brk` and the first thread's stack have names and are left alone.
///
/// It goes on after a failure, except where the kernel doesn't know the call. What another thread unmaps meanwhile counts
/// as failed. Other threads wait at their page faults for as long as a copy of 2 MiB takes.
///
/// # Errors
///
/// [`Why::Unreadable`] without `/proc/self/maps`, [`Why::Kernel`] before Linux 6.1.
pub fn collapse_resident(least: f64) -> Result<Collapsed, Why> {
    let maps = std::fs::read("/proc/self/maps").map_err(|_| Why::Unreadable("/proc/self/maps"))?;
    let mut done = Collapsed::default();
    for start in maps
        .split(|byte| *byte == b'\n')
        .filter_map(anonymous)
        .flat_map(|(from, to)| {
            let first = from.next_multiple_of(HUGE);
            (first..to.saturating_sub(HUGE - 1).max(first)).step_by(HUGE)
        })
    {
        match resident_share(start) {
            Ok(share) if share >= least => match collapse(start, HUGE) {
                Ok(()) => done.pages += 1,
                Err(CollapseError::NotEligible) if done.pages == 0 && done.failed >= 16 => {
                    return Err(Why::Kernel {
                        call: "madvise(MADV_COLLAPSE)",
                        since: "6.1",
                    });
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
    // Protection, offset, device, inode, and nothing behind it.
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
