//! A program that does not run yet: its file, and the files that its loader would load.

use super::components::{Components, Files};
use super::facts::{FileView, view_with_facts};
use super::modules::Modules;
use crate::reading::Readers;
use allocwall_host::loader;
use allocwall_model::units::Measured;
use std::path::Path;

/// Examines a program before it runs. Its loader is asked for the libraries, without preloads; the program
/// itself is not run.
///
/// # Errors
/// The file can't be opened, or is not an ELF file.
pub fn view_program(path: &Path) -> Measured<(FileView, Components)> {
    // As the kernel would show it: libraries are found relative to that path ($ORIGIN), and its name may have
    // the version (python3.11).
    let path = path.canonicalize().unwrap_or_else(|_| path.to_owned());
    let (view, module, facts) = view_with_facts(&path)?;
    let libraries = match &view.interpreter {
        Some(interpreter) => loader::libraries(Path::new(interpreter), &path),
        None => Ok(Vec::new()),
    };
    let mut missing = libraries.as_ref().err().cloned();
    let mut modules = Modules::new("/proc", Readers::Here);
    let exe = modules.add_unmapped(&path.to_string_lossy(), module, facts);
    let mut linked = vec![exe];
    for (_, library) in libraries.iter().flatten() {
        match view_with_facts(library) {
            Ok((_, module, facts)) => {
                linked.push(modules.add_unmapped(&library.to_string_lossy(), module, facts));
            }
            // The list is text, so a path that is not UTF-8 can't be opened.
            Err(absence) => missing = missing.or(Some(absence)),
        }
    }
    let files = Files {
        modules: &modules,
        exe: Ok(exe),
        // The loader prints them in the order in which it searches them.
        scope: linked.clone(),
        all: linked.clone(),
        linked,
        preloaded: Vec::new(),
        missing,
    };
    Ok((view, files.components()))
}
