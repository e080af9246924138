//! The huge pages that this machine and this process allow, read from files below a root.

use super::{HUGE, Why};
use std::path::{Path, PathBuf};

const THP: &str = "sys/kernel/mm/transparent_hugepage";
const POOL: &str = "sys/kernel/mm/hugepages/hugepages-2048kB";
const NODES: &str = "sys/devices/system/node/online";

/// The mode of transparent huge pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// For all memory.
    Always,
    /// Only for memory with the advice `MADV_HUGEPAGE`.
    Madvise,
    /// For no memory.
    Never,
}

/// The reserved pool of 2 MiB pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pool {
    /// All pages of the pool.
    pub total: usize,
    /// Pages that are free and not reserved for a mapping.
    pub free: usize,
}

/// The huge pages that the machine and the process allow.
#[derive(Clone, Debug)]
pub struct Machine {
    root: PathBuf,
    transparent: Result<Mode, Why>,
}

impl Machine {
    /// Reads the state of this machine and process.
    ///
    /// ```
    /// use allocwall_pool::region::Machine;
    ///
    /// println!("{:?}", Machine::this().mode());
    /// ```
    pub fn this() -> Self {
        let mut machine = Self::at(Path::new("/"));
        if machine.transparent.is_ok() && disabled_for_process() {
            machine.transparent = Err(Why::Disabled);
        }
        machine
    }

    /// Reads the state of a machine whose `/sys` is below `root`.
    ///
    /// ```
    /// use allocwall_pool::region::Machine;
    ///
    /// // No /sys is there, so nothing is known.
    /// assert!(Machine::at("/nonexistent".as_ref()).transparent().is_err());
    /// ```
    pub fn at(root: &Path) -> Self {
        Self { root: root.to_path_buf(), transparent: mode(root) }
    }

    /// Whether memory with the advice `MADV_HUGEPAGE` can be on huge pages.
    ///
    /// ```
    /// use allocwall_pool::region::Machine;
    ///
    /// match Machine::this().transparent() {
    ///     Ok(()) => println!("huge pages on request"),
    ///     Err(why) => println!("no huge pages: {why}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::NotBuilt`], [`Why::Never`], [`Why::Disabled`], [`Why::Size`], [`Why::Unreadable`].
    pub fn transparent(&self) -> Result<(), Why> {
        match self.transparent? {
            Mode::Always | Mode::Madvise => Ok(()),
            Mode::Never => Err(Why::Never),
        }
    }

    /// The mode for 2 MiB pages: the mode of this size if the kernel has one for each size, else the general mode.
    ///
    /// ```
    /// use allocwall_pool::region::{Machine, Mode};
    ///
    /// if Machine::this().mode() == Ok(Mode::Never) {
    ///     println!("switched off for the whole machine");
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// As for [`transparent`](Self::transparent), but [`Mode::Never`] is a result and not an error.
    pub fn mode(&self) -> Result<Mode, Why> {
        self.transparent
    }

    /// Reads the state of the reserved pool.
    ///
    /// ```
    /// use allocwall_pool::region::Machine;
    ///
    /// match Machine::this().pool() {
    ///     Ok(pool) => println!("{} of {} reserved pages are free", pool.free, pool.total),
    ///     Err(why) => println!("no reserved pages: {why}"),
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Why::Unreadable`] if the kernel has no such pool.
    pub fn pool(&self) -> Result<Pool, Why> {
        let number = |name| {
            std::fs::read_to_string(self.root.join(POOL).join(name))
                .ok()
                .and_then(|text| text.trim().parse::<usize>().ok())
                .ok_or(Why::Unreadable("/sys/kernel/mm/hugepages/hugepages-2048kB"))
        };
        let free = number("free_hugepages")?;
        Ok(Pool { total: number("nr_hugepages")?, free: free.saturating_sub(number("resv_hugepages")?) })
    }

    /// Why the pool had no pages. Called only after a failure.
    pub(super) fn pool_says(&self, why: Why, len: usize) -> Why {
        let asked = len / HUGE;
        match (why, self.pool()) {
            (Why::Failed { errno: libc::ENOMEM, .. }, Ok(Pool { total: 0, .. })) => Why::NoPool,
            (Why::Failed { errno: libc::ENOMEM, .. }, Ok(Pool { free, .. })) if free < asked => {
                Why::PoolExhausted { asked, free }
            }
            _ => why,
        }
    }

    /// Whether memory can be bound to a node.
    pub(super) fn node(&self, node: u32) -> Result<(), Why> {
        let text = std::fs::read_to_string(self.root.join(NODES))
            .map_err(|_| Why::Unreadable("/sys/devices/system/node/online"))?;
        let online = ranges(&text).ok_or(Why::Unreadable("/sys/devices/system/node/online"))?;
        if !online.iter().any(|(first, last)| (*first..=*last).contains(&node)) {
            Err(Why::NoNode(node))
        } else if matches!(online[..], [(first, last)] if first == last) {
            Err(Why::OneNode)
        } else {
            Ok(())
        }
    }
}

fn mode(root: &Path) -> Result<Mode, Why> {
    let folder = root.join(THP);
    let general = std::fs::read_to_string(folder.join("enabled")).map_err(|_| Why::NotBuilt)?;
    let size = std::fs::read_to_string(folder.join("hpage_pmd_size"))
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .ok_or(Why::Unreadable("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size"))?;
    if size != HUGE {
        return Err(Why::Size(size));
    }
    // Since Linux 6.8 each size has its own file; `inherit` defers to the general one.
    let own = std::fs::read_to_string(folder.join("hugepages-2048kB/enabled")).unwrap_or_default();
    [own, general]
        .iter()
        .find_map(|text| match chosen(text)? {
            "always" => Some(Mode::Always),
            "madvise" => Some(Mode::Madvise),
            "never" => Some(Mode::Never),
            _ => None,
        })
        .ok_or(Why::Unreadable("/sys/kernel/mm/transparent_hugepage/enabled"))
}

/// The word in brackets: `always [madvise] never`.
fn chosen(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('[')?;
    rest.split_once(']').map(|(word, _)| word)
}

/// `0-3,8` as ranges.
fn ranges(text: &str) -> Option<Vec<(u32, u32)>> {
    text.trim()
        .split(',')
        .map(|part| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some((first.parse().ok()?, last.parse().ok()?))
        })
        .collect()
}

/// `PR_GET_THP_DISABLE` returns 1 if huge pages are off for all memory, and 3 (Linux 6.18) if advised memory may
/// still use them.
fn disabled_for_process() -> bool {
    // SAFETY: reads a flag of this process; the unused arguments must be 0.
    unsafe { libc::prctl(libc::PR_GET_THP_DISABLE, 0, 0, 0, 0) == 1 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn root(files: &[(&str, &str)]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for (path, text) in files {
            let path = root.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        root
    }

    const SIZE: (&str, &str) = ("sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "2097152\n");
    const ENABLED: &str = "sys/kernel/mm/transparent_hugepage/enabled";
    const OWN: &str = "sys/kernel/mm/transparent_hugepage/hugepages-2048kB/enabled";

    #[test]
    fn the_mode_is_that_of_the_size_or_else_the_general_one() {
        for (general, own, expected) in [
            ("always [madvise] never\n", None, Ok(Mode::Madvise)),
            ("[always] madvise never\n", None, Ok(Mode::Always)),
            ("always madvise [never]\n", None, Ok(Mode::Never)),
            ("always [madvise] never\n", Some("always [inherit] madvise never\n"), Ok(Mode::Madvise)),
            ("always [madvise] never\n", Some("always inherit madvise [never]\n"), Ok(Mode::Never)),
            ("always madvise [never]\n", Some("[always] inherit madvise never\n"), Ok(Mode::Always)),
            ("nonsense", None, Err(Why::Unreadable("/sys/kernel/mm/transparent_hugepage/enabled"))),
        ] {
            let mut files = vec![SIZE, (ENABLED, general)];
            files.extend(own.map(|text| (OWN, text)));
            let root = root(&files);
            assert_eq!(Machine::at(root.path()).mode(), expected, "{general:?} {own:?}");
        }
    }

    #[test]
    fn the_reason_for_no_transparent_pages_is_reported() {
        let never = root(&[SIZE, (ENABLED, "always madvise [never]\n")]);
        assert_eq!(Machine::at(never.path()).transparent(), Err(Why::Never));
        let none = root(&[]);
        assert_eq!(Machine::at(none.path()).transparent(), Err(Why::NotBuilt));
        let large = root(&[(SIZE.0, "536870912\n"), (ENABLED, "[always] madvise never\n")]);
        assert_eq!(Machine::at(large.path()).transparent(), Err(Why::Size(512 << 20)));
        let fine = root(&[SIZE, (ENABLED, "[always] madvise never\n")]);
        assert_eq!(Machine::at(fine.path()).transparent(), Ok(()));
    }

    #[test]
    fn the_pool_tells_empty_from_exhausted_from_another_error() {
        let pool = |total: &str, free: &str, promised: &str| {
            root(&[
                ("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", total),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages", free),
                ("sys/kernel/mm/hugepages/hugepages-2048kB/resv_hugepages", promised),
            ])
        };
        let failed = Why::Failed { call: "mmap", errno: libc::ENOMEM };
        for (files, expected) in [
            (pool("0\n", "0\n", "0\n"), Why::NoPool),
            (pool("8\n", "3\n", "2\n"), Why::PoolExhausted { asked: 2, free: 1 }),
            // Pages are free: it failed for another reason, which is kept.
            (pool("8\n", "8\n", "0\n"), failed),
        ] {
            assert_eq!(Machine::at(files.path()).pool_says(failed, 2 * HUGE), expected);
        }
    }

    #[test]
    fn a_node_is_bound_only_if_there_are_several() {
        for (online, node, expected) in [
            ("0\n", 0, Err(Why::OneNode)),
            ("0\n", 1, Err(Why::NoNode(1))),
            ("0-1\n", 1, Ok(())),
            ("0,2\n", 1, Err(Why::NoNode(1))),
            ("0,2\n", 2, Ok(())),
            ("x\n", 0, Err(Why::Unreadable("/sys/devices/system/node/online"))),
        ] {
            let root = root(&[(NODES, online)]);
            assert_eq!(Machine::at(root.path()).node(node), expected, "{online:?} {node}");
        }
    }
}
