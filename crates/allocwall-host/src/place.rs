//! Which CPUs a thread may use, and which NUMA nodes its memory comes from. Children inherit both. For a
//! process with one thread, the thread's setting is the process's setting.

use std::io;

const WORD_BITS: usize = usize::BITS as usize;
/// Twice the kernel's largest configuration (NR_CPUS 8192), and far above its nodes (MAX_NUMNODES 1024).
const MOST: usize = 16 << 10;

/// Restricts the calling thread to these CPUs.
///
/// # Errors
/// The errors of sched_setaffinity(2). `InvalidInput` if the list is empty, or if a CPU doesn't exist or
/// isn't permitted here: the kernel would ignore it silently. After an error the thread may use the same CPUs
/// as before.
pub fn set_affinity(cpus: &[u32]) -> io::Result<()> {
    let asked = mask(cpus)?;
    let before = affinity()?;
    // If no CPU is usable, the kernel returns EINVAL. If only some are, it uses those and reports nothing.
    apply_affinity(&asked).map_err(|error| named(error, "CPU", cpus))?;
    let missing = missing(cpus, &affinity()?);
    if missing.is_empty() {
        return Ok(());
    }
    apply_affinity(&before)?;
    Err(not_here("CPU", &missing))
}

/// Binds new pages of the calling thread to these NUMA nodes (MPOL_BIND).
///
/// # Errors
/// The errors of set_mempolicy(2): ENOSYS without NUMA in the kernel, EPERM behind a container's seccomp
/// filter. `InvalidInput` if the list is empty, or if a node doesn't exist or isn't permitted here: the
/// kernel would ignore it silently.
pub fn bind_memory(nodes: &[u32]) -> io::Result<()> {
    let asked = mask(nodes)?;
    // The kernel reads one bit less than the given number (get_nodes, mm/mempolicy.c).
    let bits = asked.len() * WORD_BITS + 1;
    set_policy(libc::MPOL_BIND, &asked, bits).map_err(|error| named(error, "NUMA node", nodes))?;
    let mut effective = vec![0usize; MOST / WORD_BITS];
    // SAFETY: `effective` has the stated length and outlives the call; the call returns no mode and takes no
    // address.
    let read = unsafe {
        libc::syscall(
            libc::SYS_get_mempolicy,
            std::ptr::null_mut::<libc::c_int>(),
            effective.as_mut_ptr(),
            MOST,
            std::ptr::null_mut::<libc::c_void>(),
            0,
        )
    };
    if read != 0 {
        return Err(io::Error::last_os_error());
    }
    let missing = missing(nodes, &effective);
    if missing.is_empty() {
        return Ok(());
    }
    set_policy(libc::MPOL_DEFAULT, &[], 0)?;
    Err(not_here("NUMA node", &missing))
}

/// The CPUs that the calling thread may use, for any number of CPUs: a `cpu_set_t` ends at 1,024.
pub fn allowed_cpus() -> io::Result<Vec<u32>> {
    Ok(members(&affinity()?))
}

fn members(mask: &[usize]) -> Vec<u32> {
    let set = |&number: &usize| mask[number / WORD_BITS] & (1 << (number % WORD_BITS)) != 0;
    let numbers = (0..mask.len() * WORD_BITS).filter(set);
    numbers.map(|number| number as u32).collect()
}

fn affinity() -> io::Result<Vec<usize>> {
    let mut mask = vec![0usize; MOST / WORD_BITS];
    // SAFETY: `mask` has the stated length and outlives the call, which writes at most that many bytes.
    let length =
        unsafe { libc::syscall(libc::SYS_sched_getaffinity, 0, size_of_val(&mask[..]), mask.as_mut_ptr()) };
    if length < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(mask)
}

fn apply_affinity(mask: &[usize]) -> io::Result<()> {
    // SAFETY: `mask` has the stated length and outlives the call, which only reads it.
    let outcome = unsafe { libc::syscall(libc::SYS_sched_setaffinity, 0, size_of_val(mask), mask.as_ptr()) };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

fn set_policy(mode: libc::c_int, nodes: &[usize], bits: usize) -> io::Result<()> {
    // The kernel takes zero bits as the maximum, unless the address is null.
    let start = if nodes.is_empty() { std::ptr::null() } else { nodes.as_ptr() };
    // SAFETY: `nodes` holds `bits` - 1 bits, which is what the kernel reads; it does not read through a null
    // address.
    let outcome = unsafe { libc::syscall(libc::SYS_set_mempolicy, mode, start, bits) };
    match outcome {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Binds the untouched pages of a mapping of this process to a NUMA node (mbind(2), MPOL_BIND). The kernel's NUMA
/// balancing does not move them.
///
/// # Errors
/// The errors of mbind(2); `InvalidInput` for a node number that no kernel has.
pub(crate) fn bind_mapping(start: *mut u8, length: usize, node: u32) -> io::Result<()> {
    let asked = mask(&[node])?;
    // As for set_mempolicy.
    let bits = asked.len() * WORD_BITS + 1;
    // SAFETY: `asked` holds `bits` - 1 bits, which is what the kernel reads, and outlives the call. The policy of a
    // mapping changes no contents, whatever the address.
    let outcome =
        unsafe { libc::syscall(libc::SYS_mbind, start, length, libc::MPOL_BIND, asked.as_ptr(), bits, 0) };
    match outcome {
        0 => Ok(()),
        _ => Err(named(io::Error::last_os_error(), "NUMA node", &[node])),
    }
}

fn mask(numbers: &[u32]) -> io::Result<Vec<usize>> {
    let highest = numbers.iter().max().map_or(0, |&n| n as usize);
    if numbers.is_empty() || highest >= MOST {
        return Err(io::Error::new(
            io::ErrorKind::InvalidInput,
            format!("expected a list of 1 or more numbers below {MOST}"),
        ));
    }
    let mut mask = vec![0usize; highest / WORD_BITS + 1];
    for &number in numbers {
        mask[number as usize / WORD_BITS] |= 1 << (number as usize % WORD_BITS);
    }
    Ok(mask)
}

fn missing(asked: &[u32], given: &[usize]) -> Vec<u32> {
    let has = |number: &u32| {
        let word = given.get(*number as usize / WORD_BITS).copied().unwrap_or(0);
        word >> (*number as usize % WORD_BITS) & 1 == 1
    };
    asked.iter().copied().filter(|number| !has(number)).collect()
}

fn named(error: io::Error, what: &str, numbers: &[u32]) -> io::Error {
    match error.raw_os_error() {
        Some(libc::EINVAL) => not_here(what, numbers),
        _ => error,
    }
}

fn not_here(what: &str, numbers: &[u32]) -> io::Error {
    let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
    io::Error::new(
        io::ErrorKind::InvalidInput,
        format!("no {what} {} is available to this process", numbers.join(", ")),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs in its own thread, so that the test's thread keeps its CPUs and nodes.
    fn aside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
        std::thread::spawn(f).join().unwrap()
    }

    fn allowed() -> String {
        let status = std::fs::read_to_string("/proc/thread-self/status").unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("Cpus_allowed_list:"));
        line.unwrap().trim().to_owned()
    }

    fn first_allowed() -> u32 {
        let text = allowed();
        let digits = text.split(|c: char| !c.is_ascii_digit()).next().unwrap();
        digits.parse().unwrap()
    }

    #[test]
    fn allowed_cpus_are_the_kernel_s_list_and_may_lie_beyond_1024() {
        let (list, own) = aside(|| (allowed(), allowed_cpus().unwrap()));
        assert_eq!(crate::topology::parse_cpu_list(&list), Some(own));
        let wide = [0, 63, 64, 1023, 1024, 2047];
        assert_eq!(members(&mask(&wide).unwrap()), wide);
    }

    #[test]
    fn a_thread_stays_where_it_is_put() {
        let cpu = first_allowed();
        aside(move || {
            set_affinity(&[cpu]).unwrap();
            assert_eq!(allowed(), cpu.to_string());
        });
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused_and_nothing_changes() {
        let cpu = first_allowed();
        aside(move || {
            let before = allowed();
            // The kernel would use the first CPU and silently ignore the second.
            let error = set_affinity(&[cpu, 8191]).unwrap_err();
            assert_eq!(error.to_string(), not_here("CPU", &[8191]).to_string());
            assert!(set_affinity(&[8191]).is_err());
            assert!(set_affinity(&[u32::MAX]).is_err());
            assert!(set_affinity(&[]).is_err());
            assert_eq!(allowed(), before);
        });
    }

    #[test]
    fn memory_is_bound_where_the_kernel_knows_nodes() {
        aside(|| {
            if let Err(error) = bind_memory(&[0]) {
                println!("skipped: set_mempolicy: {error}");
                return;
            }
            let maps = std::fs::read_to_string("/proc/thread-self/numa_maps").unwrap();
            assert!(maps.lines().any(|line| line.contains("bind:0")), "{maps}");
            let error = bind_memory(&[0, 999]).unwrap_err();
            // Not the kernel's own error, which names no node.
            assert_eq!((error.kind(), error.raw_os_error()), (io::ErrorKind::InvalidInput, None));
        });
    }
}
