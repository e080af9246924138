//! A 32-bit program on a 64-bit kernel: its samples are classified by their leaf, and its stack is not
//! guessed.

#![cfg(target_arch = "x86_64")]

use allocwall_measure::reading::Readers;
use allocwall_measure::record::{self, Request, Target};
use allocwall_model::allocations::not_counted;
use allocwall_model::recording::{ProbeName, ProbeState};
use allocwall_model::units::{Absence, Reason};
use std::path::Path;
use std::process::{Child, Command};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Runs a loop and sometimes calls getpid.
const SOURCE: &str = "
.globl _start
_start: pushl $0x1234
        call work
work:   movl $100000, %ecx
spin:   decl %ecx
        jnz spin
        movl $20, %eax
        int $0x80
        jmp work
";

fn built(folder: &Path) -> Option<Child> {
    let source = folder.join("narrow.s");
    let (object, program) = (folder.join("narrow.o"), folder.join("narrow"));
    std::fs::write(&source, SOURCE).unwrap();
    let run = |program: &str, kind: &str, from: &Path, to: &Path| {
        let kind: Vec<&str> = kind.split(' ').collect();
        let done = Command::new(program).args(kind).arg(from).arg("-o").arg(to).status();
        done.is_ok_and(|status| status.success())
    };
    if !(run("as", "--32", &source, &object) && run("ld", "-m elf_i386", &object, &program)) {
        println!("skipped: no assembler and linker for 32-bit programs");
        return None;
    }
    match Command::new(&program).spawn() {
        Ok(child) => Some(child),
        Err(error) => {
            println!("skipped: this kernel runs no 32-bit programs: {error}");
            None
        }
    }
}

#[test]
fn a_32_bit_program_keeps_its_leaves() {
    let folder = tempfile::tempdir().unwrap();
    let Some(mut child) = built(folder.path()) else {
        return;
    };
    let recorded = record::record(Request {
        target: Target::Pids(vec![child.id() as i32]),
        window: Duration::from_millis(800),
        rate_hz: None,
        closely: false,
        counting: Err(not_counted()),
        memory: true,
        output: None,
        prices: Err(Absence::new(Reason::NotFound, "no price list")),
        readers: Readers::Here,
        interrupted: &AtomicBool::new(false),
        progress: &mut |_| {},
    });
    child.kill().unwrap();
    child.wait().unwrap();
    let recording = recorded.expect("a recording").recording;
    let state = |name: ProbeName| &recording.probe(name).unwrap().state;
    match state(ProbeName::CpuSamples) {
        ProbeState::Absent(absence) => return println!("skipped: {absence}"),
        ProbeState::Partial(absence) => assert!(absence.detail.contains("32-bit"), "{absence}"),
        ProbeState::Measured => panic!("the missing callers are not reported"),
    }
    let in_program = |index: u32| {
        let stack = &recording.stacks[index as usize];
        let leaf = &recording.frames[stack.frames[0] as usize];
        assert!(stack.frames.len() == 1 && !stack.complete, "{stack:?}");
        recording.modules[leaf.module.unwrap() as usize].path.ends_with("/narrow")
    };
    let user: Vec<u32> = recording.samples.iter().filter_map(|s| s.user).collect();
    assert!(!user.is_empty() && user.into_iter().all(in_program));
    // Tracepoints do not include its calls: a count of none does not mean no calls.
    assert!(recording.counts.is_empty(), "{:?}", recording.counts);
    assert!(matches!(state(ProbeName::MapCalls), ProbeState::Absent(_)));
    assert!(recording.heap.is_err());
}
