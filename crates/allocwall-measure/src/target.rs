//! What a target is: its C library, runtime and allocator, and the file and function of an address.
//!
//! A file is examined once, even if many processes map it ([`Modules`]). From its files follows what a program
//! is made of ([`Components`]), whether it runs already or not.

mod components;
mod facts;
mod modules;
mod process;
mod program;
mod scope;
mod space;
mod versions;

pub use components::Components;
pub use facts::{FileFacts, FileView, examine_file, view_file};
pub use modules::Modules;
pub use process::TargetView;
pub use program::view_program;
pub use space::{AddressSpace, Code};

#[cfg(feature = "fuzzing")]
pub(crate) use process::secure_exec;

#[cfg(test)]
mod tests;
