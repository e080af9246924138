//! The cache of price lists: one file per machine and kernel, in the user's cache folder.

use allocwall_host::own;
use allocwall_model::catalogue::advice::CALIBRATE;
use allocwall_model::recording::PriceList;
use allocwall_model::units::{Absence, Measured, Reason};
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// A price list is a few KiB; a larger file is not a price list.
const MOST_BYTES: u64 = 1 << 20;

pub(super) fn file(dir: &Path, machine: &str) -> PathBuf {
    dir.join(format!("prices-{:08x}.json", crc32fast::hash(machine.as_bytes())))
}

pub(super) fn load(file: &Path, machine: &str) -> Measured<PriceList> {
    let mut text = String::new();
    File::open(file).and_then(|file| file.take(MOST_BYTES).read_to_string(&mut text)).map_err(|error| {
        match error.kind() {
            io::ErrorKind::NotFound => {
                Absence::new(Reason::NotFound, "this machine's prices have not been measured yet")
                    .mend(CALIBRATE)
            }
            io::ErrorKind::InvalidData => unusable(file, "not text"),
            _ => Absence::new(Reason::NotPermitted, format!("{}: {error}", file.display())).mend(CALIBRATE),
        }
    })?;
    let list: PriceList = serde_json::from_str(&text).map_err(|error| unusable(file, &error.to_string()))?;
    if list.machine != machine {
        return Err(Absence::new(
            Reason::NotApplicable,
            format!("{} holds the prices of another machine ({})", file.display(), list.machine),
        )
        .mend(CALIBRATE));
    }
    // Earlier versions also kept lists of machines without a stable price.
    if list.prices.is_empty() {
        return Err(
            Absence::new(Reason::NotFound, "no event had a stable price on this machine").mend(CALIBRATE)
        );
    }
    match list.prices.iter().find(|price| !is_sane(price.ns)) {
        None => Ok(list),
        Some(price) => Err(unusable(file, &format!("price {} is {:?}", price.name, price.ns))),
    }
}

fn is_sane(ns: allocwall_model::units::Interval) -> bool {
    ns.low >= 0.0 && ns.low <= ns.point && ns.point > 0.0 && ns.point <= ns.high && ns.high.is_finite()
}

fn unusable(file: &Path, detail: &str) -> Absence {
    Absence::new(Reason::Unparsable, format!("{} is not a usable price list: {detail}", file.display()))
        .mend(CALIBRATE)
}

/// Writes to a temporary name first, so that a reader sees the old list or the new one, never a part. Mode 0600.
///
/// The temporary name is always the same: if a process is killed here, the next one replaces its file. A lock keeps
/// two writers apart.
///
/// # Errors
/// Those of the file system, with the file's name. `WouldBlock`: another process writes this list now.
pub(super) fn store(file: &Path, list: &PriceList) -> io::Result<()> {
    own::create(file.parent().unwrap_or(Path::new(".")), 0o700)?;
    let part = file.with_extension("json.part");
    write(&part, file, list).map_err(|error| {
        // What another process writes now is its own to remove.
        if error.kind() != io::ErrorKind::WouldBlock {
            let _ = fs::remove_file(&part);
        }
        io::Error::new(error.kind(), format!("{}: {error}", file.display()))
    })
}

fn write(part: &Path, file: &Path, list: &PriceList) -> io::Result<()> {
    let mut text = serde_json::to_vec_pretty(list)?;
    text.push(b'\n');
    let mut options = OpenOptions::new();
    options
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed());
    let mut opened = options.open(part)?;
    flock(&opened, FlockOperation::NonBlockingLockExclusive)?;
    // The writer before this one may have renamed it after it was opened here.
    let (mine, named) = (opened.metadata()?, fs::symlink_metadata(part)?);
    if (mine.dev(), mine.ino()) != (named.dev(), named.ino()) {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    opened.set_len(0)?;
    opened.write_all(&text)?;
    fs::rename(part, file)
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::catalogue::prices;
    use allocwall_model::recording::Price;
    use allocwall_model::units::Interval;
    use std::os::unix::fs::PermissionsExt;

    fn list(machine: &str) -> PriceList {
        PriceList {
            measured_unix_s: 1_700_000_000,
            machine: machine.into(),
            prices: vec![Price {
                name: prices::TOUCH_4K.into(),
                ns: Interval::new(1500.0, 1550.5, 1600.0),
                repetitions: 200,
            }],
            absent: vec![(
                prices::TOUCH_2M.into(),
                Absence::new(Reason::Disabled, "off").mend("switch it on"),
            )],
        }
    }

    #[test]
    fn a_saved_list_is_read_back_and_readable_only_by_its_owner() {
        let root = tempfile::tempdir().unwrap();
        let file = file(&root.path().join("a/b"), "m");
        assert_eq!(load(&file, "m").unwrap_err().reason, Reason::NotFound);
        store(&file, &list("m")).unwrap();
        store(&file, &list("m")).unwrap();
        assert_eq!(load(&file, "m"), Ok(list("m")));
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(file.parent().unwrap()).unwrap().count(), 1, "no temporary file must remain");
    }

    #[test]
    fn what_a_killed_writer_left_is_replaced() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "m");
        let part = file.with_extension("json.part");
        fs::write(&part, "x".repeat(1 << 16)).unwrap();
        store(&file, &list("m")).unwrap();
        assert_eq!(load(&file, "m"), Ok(list("m")));
        assert!(!part.exists());
    }

    #[test]
    fn two_writers_are_kept_apart() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "m");
        let other = File::create(file.with_extension("json.part")).unwrap();
        flock(&other, FlockOperation::LockExclusive).unwrap();
        let error = store(&file, &list("m")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::WouldBlock);
        assert!(error.to_string().contains(&*file.to_string_lossy()), "{error}");
        assert!(!file.exists());
        drop(other);
        store(&file, &list("m")).unwrap();
    }

    #[test]
    fn a_link_in_its_place_is_not_followed() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "m");
        let kept = root.path().join("kept");
        fs::write(&kept, "kept").unwrap();
        std::os::unix::fs::symlink(&kept, file.with_extension("json.part")).unwrap();
        assert!(store(&file, &list("m")).is_err());
        assert_eq!(fs::read_to_string(kept).unwrap(), "kept");
    }

    #[test]
    fn a_list_that_cannot_be_written_leaves_no_file() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "m");
        fs::create_dir(&file).unwrap();
        assert!(store(&file, &list("m")).is_err());
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_list_without_a_price_is_an_absence() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "m");
        let empty = PriceList { prices: vec![], ..list("m") };
        store(&file, &empty).unwrap();
        assert_eq!(load(&file, "m").unwrap_err().reason, Reason::NotFound);
    }

    #[test]
    fn another_machines_list_is_refused() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "here");
        store(&file, &list("there")).unwrap();
        let absence = load(&file, "here").unwrap_err();
        assert_eq!(absence.reason, Reason::NotApplicable);
        assert_eq!(absence.mend, [CALIBRATE]);
        assert_ne!(super::file(root.path(), "here"), super::file(root.path(), "there"));
    }

    #[test]
    fn damage_is_named() {
        let root = tempfile::tempdir().unwrap();
        let file = file(root.path(), "m");
        let whole = serde_json::to_string(&list("m")).unwrap();
        for damaged in [
            "".to_owned(),
            "{}".to_owned(),
            "[1,2".to_owned(),
            whole[..whole.len() / 2].to_owned(),
            whole.replace("1550.5", "-1"),
            whole.replace("1550.5", "1e999"),
            whole.replace("1500.0", "1599.0"),
            "x".repeat(2 << 20),
            "[".repeat(1 << 16),
        ] {
            fs::write(&file, &damaged).unwrap();
            let absence = load(&file, "m").unwrap_err();
            assert_eq!(absence.reason, Reason::Unparsable, "{:.80}", damaged);
            assert!(!absence.detail.contains('\n'));
        }
        fs::write(&file, [0xff, 0xfe, 0]).unwrap();
        assert_eq!(load(&file, "m").unwrap_err().reason, Reason::Unparsable);
        fs::write(&file, whole).unwrap();
        assert!(load(&file, "m").is_ok());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_an_error_that_names_it() {
        let root = tempfile::tempdir().unwrap();
        let blocked = root.path().join("file");
        fs::write(&blocked, "").unwrap();
        let error = store(&file(&blocked, "m"), &list("m")).unwrap_err();
        assert!(error.to_string().contains(&*blocked.to_string_lossy()), "{error}");
    }
}
