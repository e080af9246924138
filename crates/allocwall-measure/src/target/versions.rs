//! Versions, from the constants of a file, from its name, and from files next to it.

use allocwall_host::elf::Elf;
use allocwall_host::installed;
use allocwall_model::catalogue::modules::{AllocatorKind, JEMALLOC_CONF};
use allocwall_model::recording::Runtime;
use memchr::memmem;
use object::read::ReadRef;
use std::path::Path;

/// Of the form " stable release version 2.36." (csu/version.c of glibc).
pub(super) fn glibc(constants: &[u8]) -> Option<String> {
    dotted_behind(constants, b" release version ").map(|version| version.trim_end_matches('.').to_owned())
}

pub(super) fn musl(constants: &[u8]) -> Option<String> {
    c_strings(constants).find(|text| is_version(text, "1.")).map(str::to_owned)
}

/// `name` is the name of the allocator's file.
pub(super) fn allocator(kind: AllocatorKind, name: &str, constants: &[u8]) -> Option<String> {
    match kind {
        // "5.3.0-0-g54eaed1d8b56…": release, number of commits since, commit.
        AllocatorKind::Jemalloc => c_strings(constants).find_map(|text| {
            let (release, rest) = text.split_once('-')?;
            let (since, commit) = rest.split_once("-g")?;
            let sound = is_version(release, "")
                && since.bytes().all(|b| b.is_ascii_digit())
                && commit.len() >= 7
                && commit.bytes().all(|b| b.is_ascii_hexdigit());
            sound.then(|| release.to_owned())
        }),
        AllocatorKind::Tcmalloc => dotted_behind(constants, b"gperftools "),
        AllocatorKind::Glibc => glibc(constants),
        // The code has only a number; the name of the library's file contains the version.
        _ => installed::version_after_so(name).filter(|version| is_version(version, "")),
    }
}

/// The variable that a build of jemalloc reads, with any prefix (JEMALLOC_CPREFIX in src/jemalloc.c).
pub(super) fn jemalloc_variable(constants: &[u8]) -> Option<String> {
    let mut texts = c_strings(constants);
    texts.find(|text| text.ends_with(JEMALLOC_CONF) && !text.contains(' ')).map(str::to_owned)
}

/// From the address of its headers on the web.
pub(super) fn node(constants: &[u8]) -> Option<String> {
    dotted_behind(constants, b"/download/release/v")
}

/// `libpython3.13t.so.1.0` or `python3.13t`: the version, and whether it has the mark of free-threaded
/// builds.
pub(super) fn python_name(name: &str) -> (String, bool) {
    let rest = name.strip_prefix("lib").unwrap_or(name).strip_prefix("python").unwrap_or("");
    let end = rest
        .bytes()
        .enumerate()
        .position(|(at, b)| {
            let next_is_digit = rest.as_bytes().get(at + 1).is_some_and(u8::is_ascii_digit);
            !(b.is_ascii_digit() || (b == b'.' && next_is_digit))
        })
        .unwrap_or(rest.len());
    (rest[..end].to_owned(), rest[end..].starts_with('t'))
}

/// The full version if the file contains it, else the one in its name, else `unknown`. `at` is the address of
/// Py_Version.
pub(super) fn python<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>, at: Option<u64>, named: &str) -> String {
    // `const unsigned long Py_Version = PY_VERSION_HEX`, since 3.11: 0x030B02F0 is 3.11.2 final.
    let encoded = at.and_then(|address| elf.bytes_at(address, 4)).and_then(|bytes| bytes.try_into().ok());
    if let Some(hex) = encoded.map(u32::from_le_bytes)
        && matches!(hex >> 24, 3..=9)
    {
        let suffix = match (hex >> 4) & 0xf {
            0xa => format!("a{}", hex & 0xf),
            0xb => format!("b{}", hex & 0xf),
            0xc => format!("rc{}", hex & 0xf),
            _ => String::new(),
        };
        return format!("{}.{}.{}{suffix}", hex >> 24, (hex >> 16) & 0xff, (hex >> 8) & 0xff);
    }
    // Before 3.11: the string that Py_GetVersion prints, recognised by the two numbers in the name.
    let prefix = format!("{named}.");
    // The linker may have stored it as the end of a longer string: `/opt/python/3.7.16`.
    let mut last_words = c_strings(super::facts::constants(elf))
        .map(|text| text.rsplit([' ', '/', '-']).next().unwrap_or(text));
    let full = named.contains('.').then(|| last_words.find(|word| is_version(word, &prefix))).flatten();
    match (full, named) {
        (Some(full), _) => full.to_owned(),
        (None, "") => "unknown".to_owned(),
        (None, named) => named.to_owned(),
    }
}

/// debug/buildinfo of Go: 14 bytes of magic, pointer size, flags. Since 1.18, the version is at byte 32 as
/// length and text; before, byte 16 points to a Go string.
pub(super) fn go<'d, R: ReadRef<'d>>(elf: &Elf<'d, R>) -> Option<String> {
    let info = elf.section_bytes(".go.buildinfo", 4096)?;
    if !info.starts_with(b"\xff Go buildinf:") {
        return None;
    }
    let (pointer_size, flags) = (*info.get(14)?, *info.get(15)?);
    let text = if flags & 2 != 0 {
        // A length of two bytes or more would not be a version.
        let length = usize::from(*info.get(32)?);
        info.get(33..33 + length)?
    } else if pointer_size == 8 && flags & 1 == 0 {
        let word = |bytes: &[u8]| Some(u64::from_le_bytes(bytes.get(..8)?.try_into().ok()?));
        let header = elf.bytes_at(word(info.get(16..)?)?, 16)?;
        elf.bytes_at(word(header)?, word(&header[8..])?.min(64))?
    } else {
        return None;
    };
    let version = std::str::from_utf8(text).ok()?.strip_prefix("go")?;
    Some(version.split(' ').next().unwrap_or(version).to_owned())
}

/// Adds the version of a runtime whose file at `path` has none. `read` gives the text of a small file.
pub(super) fn complete(runtime: &mut Runtime, path: &Path, read: impl Fn(&Path) -> Option<String>) {
    match runtime {
        // JAVA_HOME/lib/server/libjvm.so, JAVA_HOME/lib/libjli.so; before version 9 with jre/ and the
        // architecture in between.
        Runtime::Jvm { version: version @ None } => {
            let mut homes = path.ancestors().skip(2).take(5);
            *version = homes.find_map(|home| installed::release_version(&read(&home.join("release"))?));
        }
        Runtime::Node { version: version @ None } => {
            *version = path.ancestors().nth(2).and_then(|prefix| {
                installed::node_header_version(&read(&prefix.join("include/node/node_version.h"))?)
            });
        }
        _ => {}
    }
}

/// Digits and dots after a marker.
fn dotted_behind(bytes: &[u8], marker: &[u8]) -> Option<String> {
    let belongs = |b: &u8| b.is_ascii_digit() || *b == b'.';
    let at = memmem::find_iter(bytes, marker)
        .map(|at| at + marker.len())
        .find(|&at| bytes.get(at).is_some_and(belongs))?;
    let value = bytes[at..].iter().copied().take(64).take_while(belongs).collect();
    String::from_utf8(value).ok()
}

fn c_strings(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes
        .split(|&b| b == 0)
        .filter(|text| (4..=80).contains(&text.len()))
        .filter_map(|text| std::str::from_utf8(text).ok())
}

/// Dotted numbers with at least one dot. The last one may have a short suffix (`3.10.0rc1`).
pub(super) fn is_version(text: &str, start: &str) -> bool {
    let mut parts = 0;
    text.starts_with(start)
        && text.split('.').all(|part| {
            parts += 1;
            part.starts_with(|c: char| c.is_ascii_digit())
                && part.len() <= 6
                && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'+')
        })
        && (2..=4).contains(&parts)
}
