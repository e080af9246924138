//! Finds the folders with the files that CPython runs at start, from the layout of its folders (Lib/site.py,
//! Modules/getpath.py of CPython). No program is run.

use allocwall_model::units::{Absence, Measured, Reason};
use std::path::{Path, PathBuf};

/// The existing folders whose start files this interpreter reads. `home` is the user's home, which has its
/// own folder unless the interpreter belongs to a virtual environment.
///
/// # Errors
/// `NotFound` if none of the folders exists: this interpreter has another layout.
pub fn folders(interpreter: &Path, version: (u32, u32), home: Option<&Path>) -> Measured<Vec<PathBuf>> {
    let library = format!("python{}.{}", version.0, version.1);
    let mut found = Vec::new();
    let environment = environment(interpreter);
    if let Some((root, _)) = &environment {
        found.push(root.join("lib").join(&library).join("site-packages"));
    }
    if environment.as_ref().is_none_or(|(_, shared)| *shared) {
        let real = interpreter.canonicalize().unwrap_or_else(|_| interpreter.to_owned());
        if let Some(prefix) = real.parent().and_then(Path::parent) {
            // Debian uses dist-packages.
            for below in ["lib/{}/site-packages", "lib64/{}/site-packages", "lib/python3/dist-packages"] {
                found.push(prefix.join(below.replace("{}", &library)));
            }
            found.push(prefix.join("local/lib").join(&library).join("dist-packages"));
        }
        found.extend(home.map(|home| home.join(".local/lib").join(&library).join("site-packages")));
    }
    found.retain(|folder| folder.is_dir());
    if !found.is_empty() {
        Ok(found)
    } else {
        Err(Absence::new(
            Reason::NotFound,
            format!("no site-packages folder of {} was found", interpreter.display()),
        ))
    }
}

/// The root of a virtual environment, and whether it includes the packages of its base interpreter (PEP 405).
fn environment(interpreter: &Path) -> Option<(PathBuf, bool)> {
    let beside = interpreter.parent()?;
    for root in [Some(beside), beside.parent()].into_iter().flatten() {
        if let Ok(text) = std::fs::read_to_string(root.join("pyvenv.cfg")) {
            let shared = text.lines().filter_map(|line| line.split_once('=')).any(|(key, value)| {
                key.trim() == "include-system-site-packages" && value.trim().eq_ignore_ascii_case("true")
            });
            return Some((root.to_owned(), shared));
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    fn layout(folders: &[&str]) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        for folder in folders {
            fs::create_dir_all(root.path().join(folder)).unwrap();
        }
        root
    }

    #[test]
    fn an_interpreter_has_its_prefix_and_the_users_folder() {
        let root = layout(&[
            "usr/bin",
            "usr/lib/python3.11/site-packages",
            "usr/lib/python3.12/site-packages",
            "usr/local/lib/python3.11/dist-packages",
            "home/.local/lib/python3.11/site-packages",
        ]);
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        fs::write(at("usr/bin/python3.11"), "").unwrap();
        let found = folders(&at("usr/bin/python3.11"), (3, 11), Some(&at("home"))).unwrap();
        assert_eq!(
            found,
            [
                at("usr/lib/python3.11/site-packages"),
                at("usr/local/lib/python3.11/dist-packages"),
                at("home/.local/lib/python3.11/site-packages"),
            ]
        );
        let none = folders(&at("usr/bin/python3.11"), (3, 9), None).unwrap_err();
        assert_eq!(none.reason, Reason::NotFound);
    }

    #[test]
    fn a_virtual_environment_has_its_own_unless_it_shares() {
        let root = layout(&[
            "usr/bin",
            "usr/lib/python3.11/site-packages",
            "venv/bin",
            "venv/lib/python3.11/site-packages",
        ]);
        let at = |name: &str| root.path().canonicalize().unwrap().join(name);
        fs::write(at("usr/bin/python3.11"), "").unwrap();
        std::os::unix::fs::symlink(at("usr/bin/python3.11"), at("venv/bin/python")).unwrap();
        let found = |shared: &str| {
            let text =
                format!("home = {}\ninclude-system-site-packages = {shared}\n", at("usr/bin").display());
            fs::write(at("venv/pyvenv.cfg"), text).unwrap();
            folders(&at("venv/bin/python"), (3, 11), Some(&at("home"))).unwrap()
        };
        let own = at("venv/lib/python3.11/site-packages");
        assert_eq!(found("false"), std::slice::from_ref(&own));
        assert_eq!(found("true"), [own, at("usr/lib/python3.11/site-packages")]);
    }
}
