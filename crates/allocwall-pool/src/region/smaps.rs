//! How much memory is on huge pages, from `/proc/self/smaps`.

use super::Why;

/// Memory on huge pages, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Huge {
    /// Bytes on transparent huge pages (`AnonHugePages`).
    pub transparent: u64,
    /// Bytes on pages of the reserved pool (`Private_Hugetlb` and `Shared_Hugetlb`).
    pub reserved: u64,
}

/// The memory of this process within `ranges` (start and end addresses) that is on huge pages now. Cost: the kernel
/// reads the whole address space for `/proc/self/smaps`, which takes milliseconds for a large process.
///
/// ```
/// use allocwall_pool::region::{Region, Request, huge_bytes};
///
/// let region = Region::new(&Request::of(2 << 20))?;
/// let start = region.as_ptr().addr().get();
/// println!("{:?}", huge_bytes(&[(start, start + region.len())])?);
/// # Ok::<(), allocwall_pool::region::Why>(())
/// ```
///
/// # Errors
///
/// [`Why::Unreadable`] if `/proc/self/smaps` cannot be read.
pub fn huge_bytes(ranges: &[(usize, usize)]) -> Result<Huge, Why> {
    std::fs::read("/proc/self/smaps")
        .map(|text| huge_within(&text, ranges))
        .map_err(|_| Why::Unreadable("/proc/self/smaps"))
}

/// As [`huge_bytes`], from the text of an `smaps` file (Documentation/filesystems/proc.rst).
///
/// The kernel reports per mapping. If a mapping extends beyond the ranges, its value is limited to the bytes that the
/// ranges cover; the result is then an upper bound. Malformed lines count as 0.
///
/// ```
/// let text = b"7f0000000000-7f0000400000 rw-p 00000000 00:00 0\nAnonHugePages:      2048 kB\n";
/// let huge = allocwall_pool::region::huge_within(text, &[(0x7f00_0000_0000, 0x7f00_0040_0000)]);
/// assert_eq!(huge.transparent, 2 << 20);
/// ```
pub fn huge_within(text: &[u8], ranges: &[(usize, usize)]) -> Huge {
    let mut huge = Huge::default();
    // The bytes of the current mapping that the ranges cover.
    let mut covered = 0;
    for line in text.split(|byte| *byte == b'\n') {
        if let Some((start, end)) = header(line) {
            covered =
                ranges.iter().map(|(from, to)| end.min(*to).saturating_sub(start.max(*from)) as u64).sum();
        } else if let Some(bytes) = field(line, b"AnonHugePages:") {
            huge.transparent += bytes.min(covered);
        } else if let Some(bytes) =
            field(line, b"Private_Hugetlb:").or_else(|| field(line, b"Shared_Hugetlb:"))
        {
            huge.reserved += bytes.min(covered);
        }
    }
    huge
}

/// The addresses of a header line, `7f0000000000-7f0000200000 rw-p …`. A field line has a colon before the first
/// space; a header has none.
fn header(line: &[u8]) -> Option<(usize, usize)> {
    addresses(std::str::from_utf8(line.split(|byte| *byte == b' ').next()?).ok()?)
}

/// The addresses `7f0000000000-7f0000200000` at the start of a line of `maps` or a header of `smaps`.
pub(super) fn addresses(word: &str) -> Option<(usize, usize)> {
    let (start, end) = word.split_once('-')?;
    Some((usize::from_str_radix(start, 16).ok()?, usize::from_str_radix(end, 16).ok()?))
}

/// The bytes of a field line, `AnonHugePages:      2048 kB`.
fn field(line: &[u8], name: &[u8]) -> Option<u64> {
    let rest = std::str::from_utf8(line.strip_prefix(name)?).ok()?;
    let kib: u64 = rest.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kib.checked_mul(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TWO: &[u8] = b"\
7f0000000000-7f0000600000 rw-p 00000000 00:00 0 \n\
Size:               6144 kB\n\
Rss:                6144 kB\n\
AnonHugePages:      4096 kB\n\
Shared_Hugetlb:        0 kB\n\
Private_Hugetlb:       0 kB\n\
VmFlags: rd wr mr mw me ac sd hg \n\
7f0000800000-7f0000a00000 rw-p 00000000 00:0f 12345 /anon_hugepage (deleted)\n\
AnonHugePages:         0 kB\n\
Private_Hugetlb:    2048 kB\n";

    #[test]
    fn only_what_the_ranges_cover_is_counted() {
        let mib = |n: u64| n << 20;
        let start = 0x7f0000000000;
        for (ranges, transparent, reserved) in [
            (vec![(start, start + (6 << 20))], mib(4), 0),
            // Less covered than is huge: at most what is covered.
            (vec![(start, start + (2 << 20))], mib(2), 0),
            (vec![(start, start + (2 << 20)), (start + (4 << 20), start + (10 << 20))], mib(4), mib(2)),
            (vec![(start + (6 << 20), start + (8 << 20))], 0, 0),
            (vec![], 0, 0),
        ] {
            assert_eq!(huge_within(TWO, &ranges), Huge { transparent, reserved }, "{ranges:x?}");
        }
    }

    #[test]
    fn malformed_lines_count_as_nothing() {
        let all = [(0, usize::MAX)];
        for text in [
            &b""[..],
            b"AnonHugePages:      4096 kB\n",
            b"zz-10 rw-p\nAnonHugePages:      4096 kB\n",
            b"10-5 rw-p\nAnonHugePages:      4096 kB\n",
            b"0-200000 rw-p\nAnonHugePages:      x kB\n",
            b"0-200000 rw-p\nAnonHugePages:      4096\n",
            b"0-200000 rw-p\nAnonHugePages:  99999999999999999999 kB\n",
            b"0-200000 rw-p\nAnonHugePages:  18446744073709551615 kB\n",
            b"\xff\xfe-1 rw\nAnonHugePages: \xff kB\n",
        ] {
            assert_eq!(huge_within(text, &all), Huge::default(), "{text:?}");
        }
    }
}
