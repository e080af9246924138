//! Two reads for the sanitizer: one that it must report, and its near twin.

fn read(at: usize) -> i32 {
    let bytes = vec![7_u8; std::hint::black_box(32)];
    // SAFETY: none for 32, which is what this is for.
    unsafe { bytes.as_ptr().add(std::hint::black_box(at)).read_volatile() }.into()
}

#[unsafe(no_mangle)]
pub extern "C" fn read_the_last() -> i32 {
    read(31)
}

#[unsafe(no_mangle)]
pub extern "C" fn read_behind() -> i32 {
    read(32)
}
