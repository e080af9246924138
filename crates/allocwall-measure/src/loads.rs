//! Which samples of a program's code were taken where a load had to be waited for.
//!
//! A timer interrupts a thread between two instructions: the one before has ended, and the next one has not. So an instruction that
//! takes long is followed by more samples than its neighbours, and the address of a sample is that of the instruction *after* it. This
//! needs no hardware counters. Loads from the stack and of the program's own variables are left out: no allocator decides where they
//! are.

use iced_x86::{Decoder, DecoderOptions, Instruction, InstructionInfoFactory, Mnemonic, OpAccess, Register};
use serde::{Deserialize, Serialize};

/// The neighbourhood of a sample begins and ends at this distance from it, bytes.
const NEAR: usize = 64;
/// Decoding starts at the first byte of the neighbourhood, and at each of the 16 bytes before it: most of these attempts soon agree on
/// where instructions begin.
const STARTS: usize = 16;
/// Bytes of code that are needed before and after an address.
pub const BEFORE: usize = NEAR + STARTS;
pub const AFTER: usize = NEAR;

/// The place of a sample in its code.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Place {
    /// The instruction before it loads.
    pub after_load: bool,
    /// The part of the instructions nearby that do.
    pub nearby: f32,
}

impl Place {
    /// Of an answer that may be wrong.
    pub fn is_sound(&self) -> bool {
        (0.0..=1.0).contains(&self.nearby)
    }
}

/// `code[at]` is the first byte of the instruction at the sample. None if its neighbours can't be decoded, or if none is before it.
pub fn place(code: &[u8], at: usize) -> Option<Place> {
    let near = start(code, at)?;
    let mut info = InstructionInfoFactory::new();
    let (mut before, mut found) = (None, None);
    let (mut all, mut loading) = (0_u32, 0_u32);
    for (address, instruction) in decoded(code, near).take_while(|(_, one)| !one.is_invalid()) {
        if address == at {
            found = before;
        }
        let loads = loads(&instruction, &mut info);
        (all, loading) = (all + 1, loading + u32::from(loads));
        before = Some(loads);
    }
    Some(Place { after_load: found?, nearby: loading as f32 / all as f32 })
}

/// Where the neighbourhood begins: the place on which most attempts agree that lead to an instruction at `at`.
fn start(code: &[u8], at: usize) -> Option<usize> {
    let from = at.saturating_sub(NEAR);
    let mut votes: Vec<(usize, u32)> = Vec::new();
    for begin in from.saturating_sub(STARTS)..=from.min(at.saturating_sub(1)) {
        let mut first = None;
        for (address, instruction) in decoded(code, begin) {
            if address >= at {
                if let Some(first) = first.filter(|_| address == at) {
                    match votes.iter_mut().find(|(place, _)| *place == first) {
                        Some((_, count)) => *count += 1,
                        None => votes.push((first, 1)),
                    }
                }
                break;
            }
            if instruction.is_invalid() {
                break;
            }
            if address >= from {
                first.get_or_insert(address);
            }
        }
    }
    votes.into_iter().max_by_key(|(_, count)| *count).map(|(place, _)| place)
}

/// Instructions with the places of their first bytes.
fn decoded(code: &[u8], from: usize) -> impl Iterator<Item = (usize, Instruction)> {
    let mut decoder = Decoder::new(64, &code[from..], DecoderOptions::NONE);
    std::iter::from_fn(move || {
        let address = from + decoder.position();
        decoder.can_decode().then(|| (address, decoder.decode()))
    })
}

/// Whether it reads memory that an allocator may have placed, and takes long for no other reason: a locked operation waits wherever its
/// memory is.
fn loads(instruction: &Instruction, info: &mut InstructionInfoFactory) -> bool {
    // With a memory operand, xchg is locked without a prefix.
    if instruction.has_lock_prefix() || instruction.mnemonic() == Mnemonic::Xchg {
        return false;
    }
    info.info(instruction).used_memory().iter().any(|memory| {
        let reads = matches!(
            memory.access(),
            OpAccess::Read | OpAccess::CondRead | OpAccess::ReadWrite | OpAccess::ReadCondWrite
        );
        // Code with frame pointers has its variables below RBP.
        let of_frame = memory.base() == Register::RBP
            && memory.index() == Register::None
            && (memory.displacement() as i64) < 0;
        // A place that is relative to the instruction has no base here.
        let own = matches!(memory.base(), Register::RSP | Register::None)
            || of_frame
            || matches!(memory.segment(), Register::FS | Register::GS);
        reads && !own
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `mov rax, [rdi]`, `add eax, 1`, `mov rax, [rsp]`, `mov [rdi], rax`, `lea rax, [rdi + 8]`, `mov rax, [rip + 8]`,
    /// `mov rax, [rbp - 8]`, `mov rax, [rbp + 8]`, `add [rdi], eax`, `lock add [rdi], eax`, `xchg [rdi], eax`, `mov rax, fs:[8]`.
    const LOAD: &[u8] = &[0x48, 0x8b, 0x07];
    const ADD: &[u8] = &[0x83, 0xc0, 0x01];
    const OF_STACK: &[u8] = &[0x48, 0x8b, 0x04, 0x24];
    const STORE: &[u8] = &[0x48, 0x89, 0x07];
    const ADDRESS: &[u8] = &[0x48, 0x8d, 0x47, 0x08];
    const OF_PROGRAM: &[u8] = &[0x48, 0x8b, 0x05, 8, 0, 0, 0];
    const OF_FRAME: &[u8] = &[0x48, 0x8b, 0x45, 0xf8];
    const OF_OBJECT: &[u8] = &[0x48, 0x8b, 0x45, 0x08];
    const CHANGE: &[u8] = &[0x01, 0x07];
    const LOCKED: &[u8] = &[0xf0, 0x01, 0x07];
    const EXCHANGE: &[u8] = &[0x87, 0x07];
    const OF_THREAD: &[u8] = &[0x64, 0x48, 0x8b, 0x04, 0x25, 8, 0, 0, 0];

    #[test]
    fn a_sample_after_a_load_is_known() {
        for (before, after_load) in [
            (LOAD, true),
            (ADD, false),
            (OF_STACK, false),
            (STORE, false),
            (ADDRESS, false),
            (OF_PROGRAM, false),
            (OF_FRAME, false),
            (OF_OBJECT, true),
            (CHANGE, true),
            (LOCKED, false),
            (EXCHANGE, false),
            (OF_THREAD, false),
        ] {
            // One-byte instructions, so that decoding agrees from all starts.
            let code = [&[0x90; 100][..], before, &[0x90; 100]].concat();
            let place = place(&code, 100 + before.len()).unwrap();
            assert_eq!(place.after_load, after_load, "{before:x?}");
            assert_eq!(place.nearby > 0.0, after_load, "{before:x?}");
        }
    }

    #[test]
    fn the_part_of_loads_nearby_is_counted() {
        let code = [LOAD, ADD, STORE].concat().repeat(40);
        for (at, after_load) in [(180, false), (183, true), (186, false)] {
            let place = place(&code, at).unwrap();
            assert!(place.after_load == after_load && (place.nearby - 1.0 / 3.0).abs() < 0.03, "{place:?}");
        }
    }

    #[test]
    fn a_part_is_between_nothing_and_all() {
        for (nearby, sound) in [(0.0, true), (1.0, true), (-0.1, false), (1.5, false), (f32::NAN, false)] {
            assert_eq!(Place { after_load: true, nearby }.is_sound(), sound, "{nearby}");
        }
    }

    #[test]
    fn bytes_without_a_neighbour_have_no_place() {
        assert_eq!(place(&[], 0), None);
        assert_eq!(place(ADD, 0), None, "nothing is before it");
        assert_eq!(place(ADD, 3), None, "nothing is there");
        // Not an instruction.
        assert_eq!(place(&[0x06; 200], 100), None);
        let any: Vec<u8> = (0..200_u32).map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
        (0..any.len()).for_each(|at| _ = place(&any, at));
    }
}
