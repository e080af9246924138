#!/usr/bin/env python3
"""The program for aarch64, on a machine of another architecture: Debian's cross compiler, and QEMU's user emulation.

    tests/aarch64.py check    only that the program compiles; for CI
    tests/aarch64.py build    target/aarch64-unknown-linux-gnu/debug/allocwall
    tests/aarch64.py test     the unit tests of the crates, emulated

Installs what is missing. Standard library only. The emulator runs the tests on this machine's kernel. ABSENT has the tests that it
cannot run, with the reason; they are reported as skipped, and so is everything on a machine without a compiler for aarch64.
"""

import argparse
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TARGET = "aarch64-unknown-linux-gnu"
# The cross compiler's C library.
LIBRARIES = Path("/usr/aarch64-linux-gnu/lib")
# The root folder of emulated programs. Tests that go through every folder of a path write there.
INSIDE = ROOT / "target/aarch64-root"
COMPILER = {
    "aarch64-linux-gnu-gcc": "gcc-aarch64-linux-gnu",
    "aarch64-linux-gnu-g++": "g++-aarch64-linux-gnu",
    f"{LIBRARIES}/libc.so": "libc6-dev-arm64-cross",
}
EMULATOR = {"qemu-aarch64": "qemu-user"}
# Not the command line and the experiments, whose tests start the program; not the reports, which have no code of the machine's; not the
# trials, whose simulations take many minutes; not the Python extension, whose tests need CPython for aarch64.
CRATES = ("model", "diagnose", "host", "measure", "pool", "preload")
SETTINGS = {
    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER": "aarch64-linux-gnu-gcc",
    "CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER": f"qemu-aarch64 -L {INSIDE}",
}
# Why the emulator cannot run tests, and parts of their names.
ABSENT = {
    "the emulator does not pass on madvise": (
        "region::tests::an_empty_pool_falls_back_and_says_so",
        "region::tests::an_exhausted_pool_falls_back_and_a_sufficient_one_does_not",
        "region::tests::only_mostly_resident_memory_is_collapsed",
        "region::tests::small_pages_collapse_and_unmapped_ones_say_why_not",
        "region::tests::transparent_memory_is_huge_once_touched_and_plain_memory_is_not",
        "slab::tests::on_this_machine_arenas_are_writable_apart_and_huge",
        "a_child_forked_while_the_lock_is_held_finds_it_open_and_the_parent_does_not",
        "a_child_forked_at_any_moment_can_allocate_and_free",
    ),
    "the emulator has another root folder": (
        "inside::tests::links_stay_within_the_target_s_root",
        "own::tests::a_user_of_an_access_list_can_change_a_folder_as_far_as_its_mask",
        "own::tests::an_obstacle_is_an_error_that_names_the_folder",
        "own::tests::links_of_others_are_not_followed_and_our_own_are",
        "own::tests::root_does_not_use_folders_that_others_can_change",
        "calibrate::cache::tests::a_list_that_cannot_be_written_leaves_no_file",
        "calibrate::cache::tests::a_saved_list_is_read_back_and_readable_only_by_its_owner",
    ),
    "this machine's files and processes are not of aarch64": (
        "launch::tests::exec_waits_for_the_gate",
        "loader::tests::a_loader_that_fails_or_is_missing_is_an_absence",
        "subject::tests::the_file_of_an_allocator_must_have_symbols_and_be_for_this_machine",
        "calibrate::replay::tests::a_child_that_failed_says_why",
    ),
    "the emulator's /proc, or another process's memory, is not that of a program for aarch64": (
        "libc_malloc::tests::a_hole_in_the_heap_is_not_timed_as_a_mapping",
        "libc_malloc::tests::a_mapped_block_is_dearer_than_a_cached_one",
        "maps::tests::a_deleted_file_opens_through_its_mapping",
        "maps::tests::a_single_mapping_is_found_like_in_the_list",
        "proc::tests::own_process_reads_whole",
        "threads::tests::own_memory_is_readable",
        "threads::tests::reads_stop_where_memory_ends",
        "faults::tests::a_reported_address_needs_no_registers",
        "faults::tests::a_stack_is_near_the_stack_pointer_and_in_its_mapping",
        "faults::tests::look_ups_at_once_read_no_lists",
        "faults::tests::memory_",
        "faults::tests::nothing_is_read_when_the_time_is_over",
        "faults::tests::objects_of_python_are_in_its_arenas",
        "faults::tests::only_the_process_whose_memory_did_not_answer_is_left_out",
        "faults::tests::the_origin_is_asked_only_after_the_process_has_ended",
        "target::tests::a_file_is_examined_once_for_all_processes",
        "bills::tests::a_busiest_process_that_is_refused_leaves_its_reason_and_its_heap_is_walked",
    ),
    "emulated, it takes minutes, and has no code of the machine's": (
        "diff::tests::two_windows_of_the_same_load_show_no_change_and_a_planted_one_is_found",
    ),
}


def missing(needed):
    """Installs what is missing; returns why that failed, or None."""
    pairs = [f"{program}={package}" for program, package in needed.items()]
    if subprocess.run([ROOT / "tools/need.sh", *pairs], stdin=subprocess.DEVNULL).returncode != 0:
        return f"not installed: {', '.join(needed.values())}"
    library = subprocess.run(["rustc", "--print", "target-libdir", "--target", TARGET], capture_output=True, text=True).stdout.strip()
    if not Path(library).is_dir():
        if shutil.which("rustup") is None or subprocess.run(["rustup", "target", "add", TARGET]).returncode != 0:
            return f"no Rust library for {TARGET}"
    return None


def cargo(*words):
    command = ["cargo", words[0], "--locked", "--target", TARGET, *words[1:]]
    return subprocess.run(command, cwd=ROOT, env={**os.environ, **SETTINGS}).returncode


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=("check", "build", "test"))
    action = parser.parse_args().action
    needed = {**COMPILER, **(EMULATOR if action == "test" else {})}
    if reason := missing(needed):
        print(f"skipped: aarch64: {reason}\n0 passed, 0 failed, 1 skipped")
        return 0
    if action != "test":
        return cargo(action)
    INSIDE.mkdir(parents=True, exist_ok=True)
    (INSIDE / "lib").unlink(missing_ok=True)
    (INSIDE / "lib").symlink_to(LIBRARIES)
    packages = [word for crate in CRATES for word in ("-p", f"allocwall-{crate}")]
    skipped = [word for names in ABSENT.values() for name in names for word in ("--skip", name)]
    status = cargo("test", "--no-fail-fast", "--lib", *packages, "--", "--show-output", *skipped)
    for reason, names in ABSENT.items():
        for name in names:
            print(f"skipped: aarch64 {name}: {reason}")
    print(f"0 passed, 0 failed, {sum(map(len, ABSENT.values()))} skipped")
    return status


if __name__ == "__main__":
    sys.exit(main())
