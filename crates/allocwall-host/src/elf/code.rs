//! The machine code in a file, by the file's own addresses. Only for x86-64.

use super::{Elf, Segment, read_up_to};
use allocwall_model::units::{Absence, Measured, Reason};
use object::elf;
use object::read::ReadRef;
use std::fs::File;

#[derive(Debug)]
pub struct Code {
    file: File,
    segments: Vec<Segment>,
}

impl Code {
    pub(super) fn of<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, file: File) -> Measured<Code> {
        if !elf.facts.is_64 || elf.facts.machine != elf::EM_X86_64.0 {
            return Err(Absence::new(Reason::NotApplicable, "instructions are read on x86-64 only"));
        }
        Ok(Code { file, segments: elf.facts.segments.clone() })
    }

    #[cfg(test)]
    pub(super) fn at(file: File, segment: Segment) -> Code {
        Code { file, segments: vec![segment] }
    }

    /// Up to `size` bytes from an address on. None if no code is there.
    pub fn read(&self, address: u64, size: usize) -> Option<Vec<u8>> {
        let (offset, _, left) = self.place(address)?;
        let mut code = vec![0; (size as u64).min(left) as usize];
        let read = read_up_to(&self.file, &mut code, offset)?;
        code.truncate(read);
        Some(code)
    }

    /// The code from `before` bytes before an address to `after` bytes behind it, where there is as much, and where in it the address is.
    pub fn around(&self, address: u64, before: usize, after: usize) -> Option<(Vec<u8>, usize)> {
        let (_, into, _) = self.place(address)?;
        let before = into.min(before as u64) as usize;
        let code = self.read(address - before as u64, before + after)?;
        (code.len() > before).then_some((code, before))
    }

    /// Where the byte at an address is in the file, and how many of its segment's bytes are before it, and from it on.
    fn place(&self, address: u64) -> Option<(u64, u64, u64)> {
        self.segments.iter().filter(|s| s.executable).find_map(|s| {
            let into = address.checked_sub(s.address)?;
            Some((s.offset.checked_add(into)?, into, s.file_size.checked_sub(into)?))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    #[test]
    fn bytes_around_an_address_end_with_their_segment() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(&(0..100).collect::<Vec<u8>>()).unwrap();
        // It claims more than the file has.
        let segment =
            Segment { offset: 10, address: 0x1000, file_size: 200, memory_size: 200, executable: true };
        let code = Code::at(file, segment);
        assert_eq!(code.around(0x1005, 3, 4), Some((vec![12, 13, 14, 15, 16, 17, 18], 3)));
        assert_eq!(code.around(0x1002, 3, 2), Some((vec![10, 11, 12, 13], 2)));
        assert_eq!(code.around(0x1000 + 88, 1, 9), Some((vec![97, 98, 99], 1)));
        for outside in [0xfff, 0x1000 + 90, 0x1000 + 300, u64::MAX] {
            assert_eq!(code.around(outside, 3, 4), None, "{outside:x}");
        }
    }
}
