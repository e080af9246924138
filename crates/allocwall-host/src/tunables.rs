//! The tunables that a glibc supports, from its own loader: `ld.so --list-tunables`, since 2.33.

use crate::loader::{self, Surroundings};
use allocwall_model::units::{Absence, Measured, Reason};
use std::path::Path;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tunable {
    /// `glibc.malloc.arena_max`
    pub name: String,
    pub values: Values,
}

/// The format of the loader's line shows the type (elf/dl-tunables.c, __tunables_print).
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// A signed 32-bit number; both ends are included.
    Number {
        default: i64,
        min: i64,
        max: i64,
    },
    /// A size or an unsigned 64-bit number.
    Size {
        default: u64,
        min: u64,
        max: u64,
    },
    Text,
}

/// Parses the loader's list: `glibc.malloc.perturb: 0 (min: 0, max: 255)`, sizes in hexadecimal, text without
/// bounds.
///
/// # Errors
/// No line has that form.
pub fn parse(bytes: &[u8]) -> Measured<Vec<Tunable>> {
    let mut found: Vec<Tunable> = String::from_utf8_lossy(bytes).lines().filter_map(line).collect();
    if found.is_empty() {
        return Err(Absence::new(
            Reason::Unparsable,
            "the loader's list of tunables has no line in the known format",
        ));
    }
    found.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(found)
}

fn line(line: &str) -> Option<Tunable> {
    let (name, rest) = line.trim().split_once(':')?;
    let plain = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    if !name.contains('.') || !name.chars().all(plain) {
        return None;
    }
    let bounded = || {
        let (default, bounds) = rest.trim().split_once(" (min: ")?;
        let (min, max) = bounds.strip_suffix(')')?.split_once(", max: ")?;
        if let (Some(default), Some(min), Some(max)) =
            (hexadecimal(default), hexadecimal(min), hexadecimal(max))
        {
            return Some(Values::Size { default, min, max });
        }
        Some(Values::Number {
            default: default.parse().ok()?,
            min: min.parse().ok()?,
            max: max.parse().ok()?,
        })
    };
    let values = bounded().unwrap_or(Values::Text);
    let name = name.to_owned();
    Some(Tunable { name, values })
}

fn hexadecimal(text: &str) -> Option<u64> {
    u64::from_str_radix(text.strip_prefix("0x")?, 16).ok()
}

/// The tunables that this loader lists.
///
/// # Errors
/// The loader has no such list (before 2.33, or not glibc's), or can't be run.
pub fn of_loader(loader: &Path) -> Measured<Vec<Tunable>> {
    let answer = loader::ask(loader, &["--list-tunables".as_ref()], Surroundings::Empty);
    answer.and_then(|bytes| parse(&bytes)).map_err(|absence| Absence {
        detail: format!("{} lists no tunables (glibc does since 2.33): {}", loader.display(), absence.detail),
        ..absence
    })
}

impl Tunable {
    /// The value as it is written in GLIBC_TUNABLES.
    ///
    /// # Errors
    /// Why the value is not valid, with the range, in one line.
    pub fn check(&self, value: &str) -> Result<String, String> {
        let refuse = |what: &str| Err(format!("{}={value} {what}: {}", self.name, self.range()));
        match self.values {
            Values::Text => Ok(value.to_owned()),
            Values::Number { min, max, .. } => match value.parse::<i64>() {
                Ok(number) if (min..=max).contains(&number) => Ok(number.to_string()),
                Ok(_) => refuse("is out of range"),
                Err(_) => refuse("is not a whole number"),
            },
            Values::Size { min, max, .. } => match parse_size(value) {
                Some(size) if (min..=max).contains(&size) => Ok(size.to_string()),
                // 0 is the state of malloc's own tunables before they are set, and means glibc's own choice.
                Some(_) => refuse("is out of range"),
                None => refuse("is not a size"),
            },
        }
    }

    /// The range for display: `1 to 255`.
    pub fn range(&self) -> String {
        match self.values {
            Values::Text => "any text".to_owned(),
            Values::Number { min, max, .. } => format!("{min} to {max}"),
            Values::Size { min, max: u64::MAX, .. } => format!("{min} to 2^64 - 1"),
            Values::Size { min, max, .. } => format!("{min} to {max}"),
        }
    }
}

/// Bytes or another unsigned number: decimal, `0x…`, or with K, M or G (or KiB, MiB, GiB) for powers of
/// 1,024.
pub fn parse_size(text: &str) -> Option<u64> {
    if let Some(number) = hexadecimal(text) {
        return Some(number);
    }
    let end = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (digits, suffix) = text.split_at(end);
    let shift = match suffix {
        "" | "B" => 0,
        "K" | "k" | "KiB" => 10,
        "M" | "m" | "MiB" => 20,
        "G" | "g" | "GiB" => 30,
        _ => return None,
    };
    digits.parse::<u64>().ok()?.checked_mul(1 << shift)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// From Debian's 2.36-9+deb12u14 on x86-64, shortened.
    const LIST_2_36: &[u8] = b"glibc.rtld.nns: 0x4 (min: 0x1, max: 0x10)\n\
glibc.elision.skip_lock_after_retries: 3 (min: 0, max: 2147483647)\n\
glibc.malloc.trim_threshold: 0x0 (min: 0x0, max: 0xffffffffffffffff)\n\
glibc.malloc.perturb: 0 (min: 0, max: 255)\n\
glibc.cpu.x86_shstk:\n\
glibc.malloc.arena_max: 0x0 (min: 0x1, max: 0xffffffffffffffff)\n\
glibc.cpu.hwcaps: \n\
glibc.gmon.minarcs: 50 (min: 50, max: 2147483647)\n";

    fn tunable(name: &str) -> Tunable {
        let list = parse(LIST_2_36).unwrap();
        list.into_iter().find(|tunable| tunable.name == name).unwrap()
    }

    #[test]
    fn a_real_list() {
        assert_eq!(parse(LIST_2_36).unwrap().len(), 8);
        assert_eq!(tunable("glibc.cpu.x86_shstk").values, Values::Text);
        assert_eq!(tunable("glibc.cpu.hwcaps").values, Values::Text);
        assert_eq!(tunable("glibc.malloc.perturb").values, Values::Number { default: 0, min: 0, max: 255 });
        assert_eq!(tunable("glibc.rtld.nns").values, Values::Size { default: 4, min: 1, max: 16 });
    }

    #[test]
    fn output_that_is_not_a_list_is_refused() {
        let usage =
            b"Usage: ld.so [OPTION]... EXECUTABLE-FILE\nYou have invoked `ld.so', the helper: run it not\n";
        for bytes in [&b""[..], usage, b"\xff\xfe", b"a b.c: 1\n"] {
            assert_eq!(
                parse(bytes).unwrap_err().reason,
                Reason::Unparsable,
                "{:?}",
                String::from_utf8_lossy(bytes)
            );
        }
    }

    #[test]
    fn values_are_checked_against_the_range() {
        let check = |name: &str, value: &str| tunable(name).check(value);
        assert_eq!(check("glibc.malloc.perturb", "255"), Ok("255".into()));
        let refused = check("glibc.malloc.perturb", "256").unwrap_err();
        let range = tunable("glibc.malloc.perturb").range();
        assert!(refused.contains(&range), "{refused}");
        let unreadable = check("glibc.malloc.perturb", "many").unwrap_err();
        assert!(unreadable.contains(&range), "{unreadable}");
        assert_ne!(refused.replace("256", "many"), unreadable, "one reason for both");
        assert_eq!(check("glibc.malloc.arena_max", "2"), Ok("2".into()));
        assert!(check("glibc.malloc.arena_max", "0").is_err());
        assert!(check("glibc.malloc.arena_max", "-1").is_err());
        assert_eq!(check("glibc.malloc.trim_threshold", "64M"), Ok("67108864".into()));
        assert_eq!(check("glibc.rtld.nns", "0x10"), Ok("16".into()));
        let refused = check("glibc.rtld.nns", "17").unwrap_err();
        assert!(refused.contains(&tunable("glibc.rtld.nns").range()), "{refused}");
    }

    #[test]
    fn sizes() {
        for (text, size) in [
            ("0", Some(0)),
            ("1K", Some(1024)),
            ("256M", Some(256 << 20)),
            ("3GiB", Some(3 << 30)),
            ("0x10", Some(16)),
            ("", None),
            ("M", None),
            ("1.5G", None),
            ("-1", None),
            ("1KB", None),
            ("18446744073709551616", None),
            ("99999999999G", None),
        ] {
            assert_eq!(parse_size(text), size, "{text}");
        }
    }

    #[test]
    fn a_loader_without_a_list_is_an_absence() {
        for program in ["/bin/true", "/bin/false", "/nonexistent"] {
            let absence = of_loader(Path::new(program)).unwrap_err();
            assert!(absence.detail.starts_with(program), "{absence}");
        }
    }

    #[test]
    fn the_loader_of_this_machine() {
        let loader = ["/lib64/ld-linux-x86-64.so.2", "/lib/ld-linux-aarch64.so.1"]
            .iter()
            .map(Path::new)
            .find(|path| path.exists());
        let Some(loader) = loader else {
            return println!("skipped: no loader of glibc's at its usual place");
        };
        match of_loader(loader) {
            Ok(list) => assert!(list.iter().any(|tunable| tunable.name == "glibc.malloc.arena_max")),
            Err(absence) => println!("skipped: {absence}"),
        }
    }
}
