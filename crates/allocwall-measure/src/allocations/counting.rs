//! Counts the calls of a command in a thread, while something else measures the command.

use super::environment;
use super::watch::{Folder, Watch, Watched};
use crate::collect::stacks::Compactor;
use crate::reading::Readers;
use allocwall_host::clock::monotonic_ns;
use allocwall_host::worker::Worker;
use allocwall_model::allocations::Counted;
use allocwall_model::units::{Absence, Measured, Reason};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

/// The time between two readings: short in the first second, because what ends sooner leaves no names of its functions.
const POLLED: Duration = Duration::from_millis(50);
const POLLED_AT_FIRST: Duration = Duration::from_millis(5);
const AT_FIRST: Duration = Duration::from_secs(1);

/// The time from one reading to the next, if so much has passed.
pub fn pause(passed: Duration) -> Duration {
    if passed < AT_FIRST { POLLED_AT_FIRST } else { POLLED }
}

/// What a recording keeps one by one: processes, threads of a process, and call sites of all processes.
const PROCESSES: usize = 64;
const THREADS: usize = 256;
const SITES: usize = 4096;

/// A thread that reads the counts of the processes that were started with [`Counting::environment`]. Dropping it ends the thread.
pub struct Counting {
    folder: PathBuf,
    library: PathBuf,
    every: Option<u64>,
    began_ns: u64,
    stop: Sender<()>,
    thread: Worker<Measured<Watched>>,
}

impl Counting {
    /// `library`: the file of the library that counts. `every`: mean distance of samples in bytes; 0 takes none; None is the
    /// library's own.
    ///
    /// # Errors
    /// No file system in memory has room for the counts.
    pub fn start(library: &Path, every: Option<u64>, readers: Readers) -> Measured<Counting> {
        let folder = Folder::new(true).map_err(|error| {
            Absence::new(Reason::Exhausted, format!("there is no folder for the counted calls: {error}"))
        })?;
        let (stop, stopped) = channel();
        Ok(Counting {
            folder: folder.path().to_path_buf(),
            library: library.to_path_buf(),
            every,
            began_ns: monotonic_ns(),
            stop,
            thread: Worker::start("reads the counted calls", move || watch(&folder, readers, &stopped)),
        })
    }

    /// The folder of the counts, which whoever ends the command removes if allocwall is killed.
    pub fn folder(&self) -> &Path {
        &self.folder
    }

    /// What a command needs in its environment to be counted.
    pub fn environment(&self) -> Vec<(OsString, OsString)> {
        let mut variables = environment(&self.folder, self.every, true);
        let preloads = preloads(&self.library, std::env::var_os("LD_PRELOAD").as_deref());
        variables.push(("LD_PRELOAD".into(), preloads));
        variables
    }

    /// Since the start of the watch, as the times of [`Counted`].
    pub fn now_ns(&self) -> u64 {
        monotonic_ns().saturating_sub(self.began_ns)
    }

    /// Takes the last readings now, in the thread. Calls that come later do not count.
    pub fn stop(&self) {
        // If the thread has ended, there is nothing to stop.
        let _ = self.stop.send(());
    }

    /// Waits for the last readings, and for the names of call sites.
    ///
    /// # Errors
    /// Nothing was counted: why.
    pub fn finish(self) -> Measured<Watched> {
        self.stop();
        self.thread.finish().and_then(|counted| counted)
    }
}

/// LD_PRELOAD with the library before what is preloaded already: it passes each call on to the next one (ld.so(8)).
pub fn preloads(library: &Path, present: Option<&OsStr>) -> OsString {
    let mut list = library.as_os_str().to_owned();
    if let Some(present) = present.filter(|present| !present.is_empty()) {
        list.push(":");
        list.push(present);
    }
    list
}

fn watch(folder: &Folder, readers: Readers, stopped: &Receiver<()>) -> Measured<Watched> {
    let mut watch = Watch::start(folder, readers).map_err(|error| {
        Absence::new(Reason::Exhausted, format!("cannot read the counted calls: {error}"))
    })?;
    let began = Instant::now();
    loop {
        watch.poll();
        match stopped.recv_timeout(pause(began.elapsed())) {
            Err(RecvTimeoutError::Timeout) => {}
            Ok(()) => {
                let Watched { counted, traces } = watch.finish();
                return kept(counted).map(|counted| Watched { counted, traces });
            }
            Err(RecvTimeoutError::Disconnected) => {
                return Err(Absence::new(Reason::Vanished, "counting was given up"));
            }
        }
    }
}

/// As much as a recording keeps: the busiest processes and threads, and the call sites with most bytes.
fn kept(mut counted: Counted) -> Measured<Counted> {
    if counted.calls().all() == 0 {
        return Err(why_nothing(&counted));
    }
    let most = PROCESSES.min(counted.processes.len());
    for process in counted.processes.split_off(most) {
        counted.further.get_or_insert_default().add(&process);
    }
    for process in &mut counted.processes {
        let left_out = process.threads.len().saturating_sub(THREADS) as u64;
        process.threads_left_out = process.threads_left_out.saturating_add(left_out);
        process.threads.truncate(THREADS);
    }
    let (stacks, frames) = (std::mem::take(&mut counted.stacks), std::mem::take(&mut counted.frames));
    let mut keep = Compactor::new(&stacks, &frames);
    let mut left = SITES;
    for samples in counted.processes.iter_mut().flat_map(|process| &mut process.samples) {
        samples.sites.truncate(left);
        left -= samples.sites.len();
        for stack in samples.sites.iter_mut().flat_map(|site| &mut site.stack) {
            *stack = keep.stack(Some(*stack)).unwrap_or(0);
        }
    }
    (counted.stacks, counted.frames) = (keep.new_stacks, keep.new_frames);
    Ok(counted)
}

/// Why no call was counted.
pub fn why_nothing(counted: &Counted) -> Absence {
    let of_processes = counted.processes.iter().flat_map(|process| &process.missing);
    match of_processes.chain(&counted.missing).next() {
        Some(why) => why.clone(),
        None if counted.processes.is_empty() => {
            let detail = "the library that counts was loaded into no process of the command";
            Absence::new(Reason::NotFound, detail)
        }
        None => Absence::new(Reason::TooLittle, "the command does not call malloc"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_model::allocations::{Calls, Site, ThreadCount};
    use allocwall_model::recording::{Frame, Stack};
    use allocwall_model::units::Interval;
    use allocwall_sketches::recording;

    fn counts() -> Counted {
        recording::counted(1, &[(1000, 64)], 500, 0.1)
    }

    #[test]
    fn the_library_is_the_first_one() {
        let list = |present: Option<&str>| preloads(Path::new("/a/count.so"), present.map(OsStr::new));
        assert_eq!(list(None), "/a/count.so");
        assert_eq!(list(Some("")), "/a/count.so");
        assert_eq!(list(Some("/b.so /c.so")), "/a/count.so:/b.so /c.so");
    }

    #[test]
    fn a_command_that_was_never_started_has_a_reason_and_leaves_no_folder() {
        let counting = match Counting::start(Path::new("/a/count.so"), Some(0), Readers::Here) {
            Ok(counting) => counting,
            Err(absence) => return println!("skipped: {absence}"),
        };
        let folder = counting.folder().to_owned();
        assert!(folder.is_dir());
        let variables = counting.environment();
        assert!(variables.contains(&("ALLOCWALL_COUNT".into(), folder.clone().into())), "{variables:?}");
        assert!(variables.iter().any(|(name, _)| name == "LD_PRELOAD"), "{variables:?}");
        let absence = counting.finish().expect_err("nothing was started");
        assert!(absence.detail.contains("loaded into no process"), "{absence}");
        assert!(!folder.exists());
    }

    #[test]
    fn nothing_that_was_counted_has_the_reason_of_its_process() {
        let mut counted = counts();
        counted.processes[0].calls = Calls::default();
        assert!(kept(counted.clone()).unwrap_err().detail.contains("does not call malloc"));
        let why = Absence::new(Reason::NotSupported, "it has an allocator of its own");
        counted.processes[0].missing.push(why.clone());
        assert_eq!(kept(counted), Err(why));
    }

    #[test]
    fn a_recording_keeps_the_sums_of_all_and_the_sites_and_threads_with_most() {
        let whole = counts();
        assert_eq!(kept(whole.clone()), Ok(whole.clone()), "a small one is kept as it is");
        let mut many = whole.clone();
        let process = &mut many.processes[0];
        let thread = ThreadCount {
            tid: Some(1),
            threads: 1,
            name: Ok("t".into()),
            ended: false,
            calls: Calls::default(),
        };
        process.threads = vec![thread; THREADS + 3];
        let one = Interval::exact(1.0);
        let site = |nth: usize| Site {
            stack: Ok(nth as u32),
            samples: 1,
            calls: one,
            bytes: one,
            live_bytes: one,
            remote_share: Ok(one),
        };
        let sites = SITES + 5;
        process.samples.as_mut().unwrap().sites = (0..sites).rev().map(site).collect();
        many.frames = (0..sites).map(|n| Frame { module: None, symbol: None, offset: n as u64 }).collect();
        many.stacks = (0..sites).map(|n| Stack { frames: vec![n as u32], complete: true }).collect();
        many.processes.resize(PROCESSES + 2, whole.processes[0].clone());
        let calls = many.calls();
        let kept = kept(many).unwrap();
        assert_eq!((kept.calls(), kept.processes.len()), (calls, PROCESSES));
        assert_eq!(kept.further.as_ref().map(|further| further.processes), Some(2));
        assert_eq!((kept.processes[0].threads.len(), kept.processes[0].threads_left_out), (THREADS, 3));
        assert!(kept.is_sound());
        assert_eq!((kept.stacks.len(), kept.frames.len()), (SITES, SITES));
        // The first site is that of the last stack.
        let first = kept.processes[0].samples.as_ref().unwrap().sites[0].stack.clone().unwrap();
        let frame = kept.stacks[first as usize].frames[0];
        assert_eq!(kept.frames[frame as usize].offset, sites as u64 - 1);
    }
}
