use super::*;
use std::sync::{Mutex, MutexGuard, PoisonError};

const POOL: &str = "/sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages";

/// There is only one reserved pool, so tests that use it run one at a time.
static TURN: Mutex<()> = Mutex::new(());

/// Reserves pages for a test, and restores the pool afterwards.
struct Reserved {
    before: String,
    _turn: MutexGuard<'static, ()>,
}

impl Reserved {
    fn pages(pages: usize) -> Option<Self> {
        let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
        let before = std::fs::read_to_string(POOL).ok()?;
        std::fs::write(POOL, pages.to_string()).ok()?;
        let guard = Self { before, _turn: turn };
        (Machine::this().pool() == Ok(Pool { total: pages, free: pages })).then_some(guard)
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        let _ = std::fs::write(POOL, &self.before);
    }
}

/// Reserves pages, or skips the test with a message if that is not possible.
macro_rules! reserve {
    ($pages:expr) => {
        match Reserved::pages($pages) {
            Some(guard) => guard,
            None => {
                eprintln!("skipped: no permission to reserve huge pages, or no memory for them");
                return;
            }
        }
    };
}

fn transparent_here() -> bool {
    let here = Machine::this().transparent();
    if let Err(why) = here {
        eprintln!("skipped: {why}");
    }
    here.is_ok()
}

#[test]
fn transparent_memory_is_huge_once_touched_and_plain_memory_is_not() {
    if !transparent_here() {
        return;
    }
    let huge = Region::new(&Request { touch: true, ..Request::of(3 * HUGE) }).unwrap();
    assert_eq!(huge.got().pages, Pages::Transparent);
    assert_eq!(huge.got().transparent, Outcome::Done);
    assert_eq!(huge.got().touched, Outcome::Done);
    assert_eq!(huge.as_ptr().as_ptr() as usize % HUGE, 0);
    assert!(huge.huge_bytes().unwrap().transparent >= HUGE as u64);
    let plain =
        Region::new(&Request { pages: Pages::Plain, guards: true, touch: true, ..Request::of(3 * HUGE) })
            .unwrap();
    assert_eq!(plain.got().pages, Pages::Plain);
    assert_eq!(plain.got().transparent, Outcome::NotAsked);
    if Machine::this().mode() == Ok(Mode::Madvise) {
        assert_eq!(plain.huge_bytes(), Ok(Huge::default()));
    }
}

#[test]
fn bytes_are_rounded_up_zeroed_and_writable_to_the_last() {
    for (bytes, guards) in [(1, false), (HUGE + 1, false), (1, true), (HUGE, true)] {
        let mut region = Region::new(&Request { guards, ..Request::of(bytes) }).unwrap();
        assert_eq!(region.len(), bytes.next_multiple_of(HUGE));
        assert_eq!(region.as_ptr().as_ptr() as usize % HUGE, 0);
        let slice = region.as_mut_slice();
        assert!(slice.iter().all(|byte| *byte == 0));
        slice.fill(7);
        assert_eq!(slice.last(), Some(&7));
    }
}

#[test]
fn nonsense_is_refused() {
    assert_eq!(Region::new(&Request::of(0)).unwrap_err(), Why::Empty);
    assert_eq!(Region::new(&Request::of(usize::MAX)).unwrap_err(), Why::TooLarge);
    assert_eq!(
        Region::new(&Request::of(1 << 50)).unwrap_err(),
        Why::Failed { call: "mmap", errno: libc::ENOMEM }
    );
}

#[test]
fn a_guarded_region_ends_at_inaccessible_pages_and_a_plain_one_leaves_none_behind() {
    let region = Region::new(&Request { guards: true, ..Request::of(HUGE) }).unwrap();
    let start = region.as_ptr().as_ptr() as usize;
    for page in [start - 4096, start + HUGE] {
        assert_eq!(protection(page).as_deref(), Some("---p"), "{page:x}");
    }
    assert_eq!(protection(start).as_deref(), Some("rw-p"));
    let base = region.into_raw();
    assert_eq!(protection(start).as_deref(), Some("rw-p"));
    // SAFETY: given away above, and not used any more.
    unsafe { unmap(base, HUGE) }.unwrap();
}

/// The protection of the page at an address, from `/proc/self/maps`.
fn protection(address: usize) -> Option<String> {
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    maps.lines().find_map(|line| {
        let mut words = line.split_whitespace();
        let (start, end) = words.next()?.split_once('-')?;
        let range = usize::from_str_radix(start, 16).ok()?..usize::from_str_radix(end, 16).ok()?;
        range.contains(&address).then(|| words.next().unwrap().to_string())
    })
}

#[test]
fn an_empty_pool_falls_back_and_says_so() {
    let _reserved = reserve!(0);
    let region = Region::new(&Request { pages: Pages::Reserved, ..Request::of(HUGE) }).unwrap();
    assert_eq!(region.got().reserved, Outcome::Refused(Why::NoPool));
    assert_ne!(region.got().pages, Pages::Reserved);
}

#[test]
fn an_exhausted_pool_falls_back_and_a_sufficient_one_does_not() {
    let _reserved = reserve!(3);
    let request = Request { pages: Pages::Reserved, ..Request::of(2 * HUGE) };
    let mut first = Region::new(&request).unwrap();
    assert_eq!(first.got().pages, Pages::Reserved);
    assert_eq!(first.got().touched, Outcome::Done);
    assert_eq!(first.huge_bytes().unwrap().reserved, 2 * HUGE as u64);
    first.as_mut_slice().fill(1);
    let mut second = Region::new(&request).unwrap();
    assert_eq!(second.got().reserved, Outcome::Refused(Why::PoolExhausted { asked: 2, free: 1 }));
    second.as_mut_slice().fill(1);
    drop(first);
    // Pages return to the pool, also with guards, which are mapped in another way.
    let third = Region::new(&Request { guards: true, ..request }).unwrap();
    assert_eq!(third.got().pages, Pages::Reserved);
    drop(third);
    assert_eq!(Machine::this().pool(), Ok(Pool { total: 3, free: 3 }));
}

#[test]
fn transparent_pages_that_are_off_are_not_used() {
    let root = tempfile::tempdir().unwrap();
    let machine = Machine::at(root.path());
    let region = Region::on(&machine, &Request::of(HUGE)).unwrap();
    assert_eq!(region.got().pages, Pages::Plain);
    assert_eq!(region.got().transparent, Outcome::Refused(Why::NotBuilt));
}

#[test]
fn a_node_that_is_not_there_is_refused_and_the_memory_still_given() {
    let region = Region::new(&Request { node: Some(4711), ..Request::of(HUGE) }).unwrap();
    assert_eq!(region.got().bound, Outcome::Refused(Why::NoNode(4711)));
}

#[test]
fn locked_memory_is_resident_and_a_limit_is_named() {
    let region = Region::new(&Request { lock: true, ..Request::of(HUGE) }).unwrap();
    match region.got().locked {
        Outcome::Done => assert_eq!(resident_share(region.as_ptr().as_ptr() as usize), Ok(1.0)),
        Outcome::Refused(Why::LockLimit(limit)) => assert!(limit < HUGE as u64),
        other => panic!("{other:?}"),
    }
}

#[test]
fn small_pages_collapse_and_unmapped_ones_say_why_not() {
    if !transparent_here() {
        return;
    }
    let mut region = Region::new(&Request { pages: Pages::Plain, ..Request::of(HUGE) }).unwrap();
    let start = region.as_ptr().as_ptr() as usize;
    for (at, byte) in region.as_mut_slice().iter_mut().enumerate() {
        *byte = (at / 4096) as u8;
    }
    assert_eq!(resident_share(start), Ok(1.0));
    match region.collapse() {
        Ok(()) => assert_eq!(region.huge_bytes().unwrap().transparent, HUGE as u64),
        Err(why) => eprintln!("skipped: {why}"),
    }
    assert!(region.as_mut_slice().iter().enumerate().all(|(at, byte)| *byte == (at / 4096) as u8));
    let base = region.into_raw();
    // SAFETY: given away above, and not used any more.
    unsafe { unmap(base, HUGE) }.unwrap();
    assert_eq!(collapse(0x1000_0000, HUGE), Err(CollapseError::NoMemory));
    assert_eq!(resident_share(0x1000_0000), Err(Why::Failed { call: "mincore", errno: libc::ENOMEM }));
}

#[test]
fn only_mostly_resident_memory_is_collapsed() {
    if !transparent_here() {
        return;
    }
    let mode = Machine::this().mode();
    if mode != Ok(Mode::Madvise) {
        eprintln!("skipped: the mode of transparent huge pages is not madvise: {mode:?}");
        return;
    }
    let plain = Request { pages: Pages::Plain, guards: true, ..Request::of(2 * HUGE) };
    let mut full = Region::new(&plain).unwrap();
    full.as_mut_slice().fill(3);
    let mut sparse = Region::new(&plain).unwrap();
    sparse.as_mut_slice()[..HUGE / 2].fill(3);
    let done = collapse_resident(0.9).unwrap();
    // Free memory can be in pieces that are smaller than a huge page.
    if let Some(why @ (CollapseError::NoMemory | CollapseError::Busy | CollapseError::CgroupLimit)) =
        done.last_failure
    {
        eprintln!("skipped: the kernel had no huge page: {why:?}");
        return;
    }
    assert!(done.failed == 0 && done.pages >= 2, "{done:?}");
    assert_eq!(full.huge_bytes().unwrap().transparent, 2 * HUGE as u64);
    assert_eq!(sparse.huge_bytes().unwrap().transparent, 0);
    assert!(full.as_mut_slice().iter().all(|byte| *byte == 3));
}

#[test]
fn each_collapse_error_has_its_kind() {
    use CollapseError::*;
    for (errno, kind) in [
        (libc::EINVAL, NotEligible),
        (libc::EAGAIN, Busy),
        (libc::EBUSY, CgroupLimit),
        (libc::ENOMEM, NoMemory),
        (libc::EPERM, Failed(libc::EPERM)),
    ] {
        assert_eq!(CollapseError::from_errno(errno), kind);
    }
}
