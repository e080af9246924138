//! Two reads for the sanitizer: one that it must report, and a twin that it must not report.

fn read(at: usize) -> i32 {
    let bytes = vec![7_u8; std::hint::black_box(32)];
    // SAFETY: not sound for 32: this is the error that the sanitizer must report.
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
