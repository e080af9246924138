//! A program beside a test.

use std::process::Child;

/// A process that is killed when the test ends, also by a panic.
pub struct Running(pub Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}
