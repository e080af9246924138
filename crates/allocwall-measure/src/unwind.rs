//! Unwinds user stacks from registers and a copy of stack memory, with each module's own unwind tables. Frame
//! pointers are not needed.

use allocwall_host::elf::ElfFile;
use allocwall_host::perf::Registers;
use framehop::{ExplicitModuleSectionInfo, FrameAddress, MayAllocateDuringUnwind, Module, Unwinder as _};
use serde::{Deserialize, Serialize};
use std::fs::File;
use std::ops::{Deref, Range};
use std::sync::Arc;

/// Deeper stacks are truncated; deeper frames of a recursion add no information.
const FRAME_LIMIT: usize = 192;

/// A section that is read, not mapped: a file that shrinks under a mapping would kill the reader.
#[derive(Clone)]
pub struct Bytes(pub(crate) Arc<[u8]>);

impl Deref for Bytes {
    type Target = [u8];
    fn deref(&self) -> &[u8] {
        &self.0
    }
}

/// The unwind tables of one file, with the file's own addresses.
#[derive(Clone)]
pub struct Tables(pub(crate) ExplicitModuleSectionInfo<Bytes>);

impl Tables {
    /// For a file without tables, or that is not an ELF file: its frames are unwound by frame pointer.
    pub fn none() -> Tables {
        Tables(ExplicitModuleSectionInfo {
            base_svma: 0,
            text_svma: None,
            text: None,
            stubs_svma: None,
            stub_helper_svma: None,
            got_svma: None,
            unwind_info: None,
            eh_frame_svma: None,
            eh_frame: None,
            eh_frame_hdr_svma: None,
            eh_frame_hdr: None,
            debug_frame: None,
            text_segment_svma: None,
            text_segment: None,
        })
    }

    /// Subtracts what it reads from `left`; None if that is not enough.
    pub fn of(file: &File, left: &mut u64) -> Option<Tables> {
        let Tables(mut info) = Tables::none();
        let Ok(copy) = file.try_clone() else {
            return Some(Tables(info));
        };
        let elf_file = ElfFile::new(copy);
        let Ok(elf) = elf_file.parse() else {
            return Some(Tables(info));
        };
        let range = |name: &str| elf.facts.section(name).map(|s| s.address..s.address.saturating_add(s.size));
        let size = |name: &str| elf.facts.section(name).map_or(0, |s| s.size);
        *left = left.checked_sub(size(".eh_frame").saturating_add(size(".eh_frame_hdr")))?;
        let data = |name: &str| Some(Bytes(elf.section_copy(file, name)?.into()));
        info.text_svma = range(".text");
        info.eh_frame_svma = range(".eh_frame");
        info.eh_frame = data(".eh_frame");
        info.eh_frame_hdr_svma = range(".eh_frame_hdr");
        info.eh_frame_hdr = data(".eh_frame_hdr");
        info.got_svma = range(".got");
        Some(Tables(info).with_sound_index())
    }

    /// Drops an index that points before the table: gimli 0.33 subtracts one address from the other
    /// unchecked. The unwinder then builds its own index.
    pub(crate) fn with_sound_index(mut self) -> Tables {
        let start = self.0.eh_frame_hdr_svma.as_ref().map_or(0, |range| range.start);
        self.0.eh_frame_hdr.take_if(|header| !is_sound_index(header, start));
        self
    }
}

/// Checks an `.eh_frame_hdr` as linkers write it (Linux Standard Base, Exception Frames): the table's
/// address, then pairs of the addresses of a function and of its entry, which is within the table.
fn is_sound_index(header: &[u8], start: u64) -> bool {
    // DW_EH_PE_pcrel | sdata4, udata4, datarel | sdata4.
    let [1, 0x1b, 0x03, 0x3b, rest @ ..] = header else {
        return false;
    };
    let (words, _) = rest.as_chunks::<4>();
    let address = |base: u64, word: &[u8; 4]| base.wrapping_add_signed(i32::from_le_bytes(*word).into());
    let Some((table, [_, pairs @ ..])) = words.split_first() else {
        return false;
    };
    let table = address(start.wrapping_add(4), table);
    pairs.chunks_exact(2).all(|pair| address(start, &pair[1]) >= table)
}

/// Unwinds within one address space.
pub struct Unwinder(framehop::UnwinderNative<Bytes, MayAllocateDuringUnwind>);

pub type Cache = framehop::CacheNative<MayAllocateDuringUnwind>;

/// Return addresses, leaf first. Each is moved back into the call instruction that it returns from.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Unwound {
    pub addresses: Vec<u64>,
    /// The walk ended before the thread's first frame, for example at the end of the copied stack: outer
    /// frames are missing.
    pub truncated: bool,
}

impl Unwound {
    /// A recording with deeper stacks can't be read.
    pub fn is_within_limits(&self) -> bool {
        self.addresses.len() <= FRAME_LIMIT
    }
}

impl Default for Unwinder {
    fn default() -> Unwinder {
        Unwinder(framehop::UnwinderNative::new())
    }
}

impl Unwinder {
    /// `bias`: address in memory minus the file's own address.
    pub fn add(&mut self, range: Range<u64>, bias: u64, tables: &Tables) {
        // framehop's base address is the address of the file's address 0.
        self.0.add_module(Module::new(String::new(), range, bias, tables.0.clone()));
    }

    pub fn unwind(&self, cache: &mut Cache, registers: &Registers, stack: &[u8], out: &mut Unwound) {
        out.addresses.clear();
        out.truncated = false;
        let (pc, sp, regs) = native(registers);
        let mut left_dump = false;
        let mut read = |address: u64| {
            let offset = address.checked_sub(sp).ok_or(())?;
            let start = usize::try_from(offset).map_err(|_| ())?;
            match stack.get(start..start.saturating_add(8)).and_then(|b| b.try_into().ok()) {
                Some(word) => Ok(u64::from_le_bytes(word)),
                None => {
                    left_dump = true;
                    Err(())
                }
            }
        };
        let mut reached_first = false;
        let mut frames = self.0.iter_frames(pc, regs, cache, &mut read);
        while out.addresses.len() < FRAME_LIMIT {
            match frames.next() {
                Ok(Some(FrameAddress::InstructionPointer(address))) => out.addresses.push(address),
                Ok(Some(frame)) => out.addresses.push(frame.address_for_lookup()),
                Ok(None) => {
                    reached_first = true;
                    break;
                }
                // No rule for this address, or a rule that leads to unreadable memory: the outer frames are
                // unknown.
                Err(_) => break,
            }
        }
        out.truncated = left_dump || !reached_first;
    }
}

/// Program counter, stack pointer and the unwinder's registers from perf's order (see `host::perf`).
#[cfg(target_arch = "x86_64")]
fn native(r: &Registers) -> (u64, u64, framehop::UnwindRegsNative) {
    use framehop::x86_64::Reg;
    let mut regs = framehop::UnwindRegsNative::new(r[8], r[7], r[6]);
    for (register, index) in [
        (Reg::RAX, 0),
        (Reg::RBX, 1),
        (Reg::RCX, 2),
        (Reg::RDX, 3),
        (Reg::RSI, 4),
        (Reg::RDI, 5),
        (Reg::R8, 9),
        (Reg::R9, 10),
        (Reg::R10, 11),
        (Reg::R11, 12),
        (Reg::R12, 13),
        (Reg::R13, 14),
        (Reg::R14, 15),
        (Reg::R15, 16),
    ] {
        regs.set(register, r[index]);
    }
    (r[8], r[7], regs)
}

#[cfg(target_arch = "aarch64")]
fn native(r: &Registers) -> (u64, u64, framehop::UnwindRegsNative) {
    // Where the processor signs return addresses, the signature is in the bits above the address. User memory ends at
    // 2^48, unless a program asks for more (Documentation/arch/arm64/memory.rst, pointer-authentication.rst).
    const UNSIGNED: framehop::aarch64::PtrAuthMask = framehop::aarch64::PtrAuthMask((1 << 48) - 1);
    let registers = framehop::UnwindRegsNative::new_with_ptr_auth_mask(UNSIGNED, r[30], r[31], r[29]);
    (r[32], r[31], registers)
}

/// Instruction pointer and stack pointer of a register set.
#[cfg(target_arch = "x86_64")]
pub fn ip_sp(r: &Registers) -> (u64, u64) {
    (r[8], r[7])
}

#[cfg(target_arch = "aarch64")]
pub fn ip_sp(r: &Registers) -> (u64, u64) {
    (r[32], r[31])
}

/// The registers of a thread that waits in the kernel: only these two are known from outside.
pub fn waiting_registers(ip: u64, sp: u64) -> Registers {
    let mut r = [0; allocwall_host::perf::REGISTERS];
    #[cfg(target_arch = "x86_64")]
    {
        r[8] = ip;
        r[7] = sp;
    }
    #[cfg(target_arch = "aarch64")]
    {
        r[32] = ip;
        r[31] = sp;
    }
    r
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_that_points_before_its_table_is_not_used() {
        let index = |entries: &[i32]| {
            // The table is 0x100 bytes after the index.
            let words = [0xfc, 1].iter().chain(entries).flat_map(|word: &i32| word.to_le_bytes());
            [1, 0x1b, 0x03, 0x3b].into_iter().chain(words).collect::<Vec<u8>>()
        };
        assert!(is_sound_index(&index(&[-0x40, 0x100, -0x20, 0x180]), 0x1000));
        assert!(!is_sound_index(&index(&[-0x40, 0x100, -0x20, 0xff]), 0x1000));
        assert!(!is_sound_index(&[1, 0x1b, 0x03, 0x3b], 0x1000));
        assert!(!is_sound_index(&[1, 0x1b, 0xff, 0x3b, 0, 0, 0, 0, 0, 0, 0, 0], 0x1000));
        let own = File::open("/proc/self/exe").unwrap();
        let tables = Tables::of(&own, &mut (1 << 30)).unwrap();
        assert!(tables.0.eh_frame_hdr.is_some(), "the index of a linker is sound");
    }

    #[test]
    fn a_hostile_dump_ends_the_walk() {
        let unwinder = Unwinder::default();
        let mut cache = Cache::default();
        let mut out = Unwound::default();
        let frame_pointer = if cfg!(target_arch = "x86_64") { 6 } else { 29 };
        // A frame pointer that points at itself, past the stack, or to no memory: no endless walk, no panic.
        for bp in [0u64, 0x1000, 0x1008, u64::MAX, u64::MAX - 7] {
            let mut registers = waiting_registers(0x400000, 0x1000);
            registers[frame_pointer] = bp;
            let stack: Vec<u8> = (0..64).flat_map(|_| 0x1000u64.to_le_bytes()).collect();
            unwinder.unwind(&mut cache, &registers, &stack, &mut out);
            assert_eq!(out.addresses.first(), Some(&0x400000));
            assert!(out.addresses.len() <= FRAME_LIMIT);
            // Within the copy it went in a circle: that is not the thread's first frame.
            assert!(out.truncated || bp != 0x1000, "{bp:#x}");
        }
    }

    #[cfg(target_arch = "aarch64")]
    #[test]
    fn a_signed_return_address_is_found() {
        let walk = |signature: u64| {
            let mut registers = waiting_registers(0x40_0000, 0x1000);
            registers[29] = 0x1000;
            // Two frame records: the caller's frame pointer, and the return address. The second is the thread's first.
            let stack = [0x1010, 0xffff_8040_1000 | signature, 0, 0];
            let stack: Vec<u8> = stack.into_iter().flat_map(u64::to_le_bytes).collect();
            let mut out = Unwound::default();
            Unwinder::default().unwind(&mut Cache::default(), &registers, &stack, &mut out);
            out.addresses
        };
        assert_eq!(walk(0), [0x40_0000, 0xffff_8040_0fff]);
        assert_eq!(walk(0x2f << 48), walk(0));
    }

    #[test]
    fn files_that_are_no_elf_have_no_tables() {
        let own = File::open("/proc/self/exe").unwrap();
        let mut left = 64 << 20;
        assert!(Tables::of(&own, &mut left).unwrap().0.eh_frame.is_some());
        assert!(left < 64 << 20);
        assert!(Tables::of(&own, &mut 100).is_none(), "no room");
        let text = File::open("/proc/self/status").unwrap();
        assert!(Tables::of(&text, &mut left).unwrap().0.eh_frame.is_none());
    }
}
