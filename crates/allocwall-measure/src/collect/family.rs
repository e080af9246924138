//! The processes of the target: which belong to it, which image each one runs, and what is known of each.

use crate::reading::Readers;
use crate::symbols;
use crate::target::{AddressSpace, Modules};
use allocwall_host::clock;
use allocwall_host::maps::Mapping;
use allocwall_host::proc::{ProcFs, ProcessStat};
use allocwall_model::recording::{Neighbour, Process, Runtime};
use allocwall_model::units::{Absence, Measured, Reason};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::fs::File;

/// The most processes of one target that run at the same time, and the most processes whose facts are kept.
pub(super) const PROCESS_LIMIT: usize = 4096;
/// How many ended members, and images without a process, are kept before they are removed.
pub(super) const ENDED_KEPT: usize = 1024;
/// How late a member's samples can arrive after its end is noticed: rings are read far more often.
pub(super) const LATE_NS: u64 = 1_000_000_000;
/// How many processes are inspected a second time per batch, about half a millisecond each, and at the end of
/// the window.
const FACTS_AT_ONCE: usize = 8;
const FACTS_AT_END: usize = 32;

/// One process image: which file is mapped at which address. Children share their parent's image until one of
/// them maps code or execs.
pub struct Image {
    pub space: AddressSpace,
    /// Unique among all images; increased with each change of `space`.
    pub version: u64,
    /// The file in which its JIT compiler writes names. It is kept open, because the file is removed when its
    /// process ends.
    pub perf_map: Option<File>,
    /// 32-bit code.
    pub narrow: bool,
    /// The number of members that run it.
    users: usize,
}

impl Image {
    fn new(space: AddressSpace) -> Image {
        Image { space, version: 0, perf_map: None, narrow: false, users: 0 }
    }
}

/// A process of the target.
#[derive(Clone, Copy)]
pub struct Member {
    pub image: u32,
    /// CLOCK_MONOTONIC. Older fork records for this pid are ignored.
    since_ns: u64,
}

/// Images by index. An index stays valid while a process, or a stack that waits for unwinding, refers to it.
#[derive(Default)]
pub struct Images {
    pub list: Vec<Image>,
    versions: u64,
    /// The number of images without a process, and the images among them that were emptied.
    pub(super) unused: usize,
    pub(super) free: Vec<u32>,
}

/// The processes that the recording lists.
#[derive(Default)]
pub struct Listing {
    /// In order of appearance, with those that ended.
    pub processes: Vec<Process>,
    /// The index of each process in the list.
    index: HashMap<i32, usize>,
    /// Processes that are measured, but above the limit of listed processes.
    unlisted: HashSet<i32>,
    /// Processes to inspect again: directly after exec, the libraries that show what it is may not be mapped
    /// yet.
    young: VecDeque<i32>,
    checked: Vec<i32>,
}

pub struct Family {
    proc: ProcFs,
    /// This process, unless `proc` is a copy. It is not part of the shell that started it.
    own: Option<i32>,
    pub modules: Modules,
    pub members: HashMap<i32, Member>,
    /// Members whose end was noticed, with the time. They are not read at every tick. Their late samples
    /// still count.
    pub(super) ended: HashMap<i32, u64>,
    /// When the kernel reported the last end of a thread of the target (CLOCK_MONOTONIC).
    pub last_exit_ns: Option<u64>,
    /// Processes outside the target, with their parents. If the parent joins the target later, its children
    /// join too.
    pub(super) strangers: HashMap<i32, i32>,
    /// Processes of the target above the limit: neither measured nor neighbours.
    pub(super) left_out: HashSet<i32>,
    processes_left_out: u64,
    pub images: Images,
    pub listing: Listing,
    /// Processes that ran 32-bit code: it is not unwound.
    pub narrow: HashSet<i32>,
    /// Why the code of a process is known only in part.
    pub code_cut: Option<Absence>,
    /// Samples of processes outside the target.
    pub(super) neighbours: BTreeMap<i32, u64>,
    pub(super) comms: HashMap<i32, String>,
}

impl Family {
    pub fn new(proc: ProcFs, readers: Readers) -> Family {
        let modules = Modules::new(proc.root(), readers);
        Family {
            own: proc.is_live().then(|| std::process::id() as i32),
            proc,
            modules,
            members: HashMap::new(),
            ended: HashMap::new(),
            last_exit_ns: None,
            strangers: HashMap::new(),
            left_out: HashSet::new(),
            processes_left_out: 0,
            images: Images::default(),
            listing: Listing::default(),
            narrow: HashSet::new(),
            code_cut: None,
            neighbours: BTreeMap::new(),
            comms: HashMap::new(),
        }
    }

    /// The image that a member runs.
    pub fn image_of(&self, pid: i32) -> Option<u32> {
        self.members.get(&pid).map(|member| member.image)
    }

    /// The process whose memory a member that has ended had in common: the one that it was forked from, as long as that
    /// one lives and has neither executed nor mapped other code since. Else the member itself: the number may belong to
    /// another process by now.
    pub fn origin_of(&self, pid: i32) -> i32 {
        let Some(image) = self.image_of(pid) else { return pid };
        let origin = self.image(image).space.pid;
        let shares_it = self.image_of(origin) == Some(image) && !self.ended.contains_key(&origin);
        if shares_it { origin } else { pid }
    }

    /// The runtime of a process, if it is known.
    pub fn runtime(&self, pid: i32) -> Option<&Runtime> {
        let at = *self.listing.index.get(&pid)?;
        self.listing.processes[at].runtime.as_ref().ok()
    }

    pub fn image(&self, index: u32) -> &Image {
        &self.images.list[index as usize]
    }

    /// A member, or another process, mapped code.
    pub fn take_mapping(&mut self, pid: i32, mapping: &Mapping) {
        let Some(image) = self.own_image(pid) else {
            return;
        };
        let version = self.next_version();
        let image = &mut self.images.list[image as usize];
        if let Some(code) = image.space.add_mapping(&mut self.modules, mapping) {
            image.version = version;
            if self.modules.is_narrow(code.module) {
                image.narrow = true;
                self.narrow.insert(pid);
            }
        }
    }

    pub fn take_exec(&mut self, pid: i32, comm: &[u8]) {
        self.take_name(pid, comm);
        if self.members.contains_key(&pid) {
            self.enter_inspected(pid);
        }
    }

    pub fn take_name(&mut self, pid: i32, comm: &[u8]) {
        self.comms.insert(pid, String::from_utf8_lossy(comm).into_owned());
    }

    /// Counts a sample of a process that does not belong to the target.
    pub fn count_neighbour(&mut self, pid: i32) {
        if !self.left_out.contains(&pid) {
            *self.neighbours.entry(pid).or_default() += 1;
        }
    }

    /// Whether so many processes ended that they and their images are to be removed.
    pub fn has_many_ended(&self) -> bool {
        self.ended.len().max(self.images.unused) >= ENDED_KEPT
    }

    /// Removes members that ended a while ago.
    pub fn forget_ended(&mut self, now_ns: u64) {
        let ended: Vec<i32> = self
            .ended
            .iter()
            .filter(|&(_, at)| now_ns.saturating_sub(*at) > LATE_NS)
            .map(|(&pid, _)| pid)
            .collect();
        ended.iter().for_each(|&pid| self.forget(pid));
    }

    /// Empties images without a process. No stack may refer to them any more.
    pub fn free_images(&mut self) {
        let images = &mut self.images;
        let free: HashSet<u32> = images.free.iter().copied().collect();
        for (index, image) in images.list.iter_mut().enumerate() {
            if image.users == 0 && !free.contains(&(index as u32)) {
                *image = Image::new(AddressSpace::new(0));
                images.free.push(index as u32);
            }
        }
        images.unused = 0;
    }

    /// The processes outside the target that used most CPU time.
    pub fn neighbours(&self, sample_period_ns: u64) -> Vec<Neighbour> {
        let neighbours = self.neighbours.iter().map(|(&pid, &samples)| Neighbour {
            pid,
            comm: self.comms.get(&pid).cloned().or_else(|| self.proc.comm(pid).ok()).unwrap_or_default(),
            cpu_ns: samples * sample_period_ns,
        });
        let mut neighbours: Vec<Neighbour> = neighbours.collect();
        neighbours.sort_by(|a, b| b.cpu_ns.cmp(&a.cpu_ns).then(a.pid.cmp(&b.pid)));
        neighbours.truncate(32);
        neighbours
    }

    /// Makes a process part of the target and inspects it.
    pub fn adopt(&mut self, pid: i32) {
        if self.members.contains_key(&pid) {
            return;
        }
        if self.full() {
            self.leave_out(pid);
            return;
        }
        self.enter_inspected(pid);
        self.strangers.remove(&pid);
        self.left_out.remove(&pid);
        // Children that it started before belong to the target too, and are not neighbours.
        let children: Vec<i32> =
            self.strangers.iter().filter(|&(_, parent)| *parent == pid).map(|(&child, _)| child).collect();
        for child in children {
            self.neighbours.remove(&child);
            if self.proc.exists(child) {
                self.adopt(child);
            }
        }
    }

    /// Whether a process without a fork record belongs to the target, judged by its ancestors.
    pub fn belongs(&mut self, pid: i32) -> bool {
        if self.members.contains_key(&pid) {
            return true;
        }
        if self.strangers.contains_key(&pid) || self.left_out.contains(&pid) || self.own == Some(pid) {
            return false;
        }
        let mut parent = None;
        let mut ancestor = pid;
        for _ in 0..64 {
            let stat = match self.proc.process_stat(ancestor) {
                Ok(stat) => stat,
                Err(absence) if absence.is_gone() => break,
                // Unknown now; tried again at its next sample.
                Err(_) => return false,
            };
            ancestor = stat.ppid;
            parent.get_or_insert(ancestor);
            if self.members.contains_key(&ancestor) {
                self.adopt(pid);
                return self.members.contains_key(&pid);
            }
            if self.left_out.contains(&ancestor) {
                self.leave_out(pid);
                return false;
            }
            if ancestor <= 1 || self.own == Some(ancestor) {
                break;
            }
        }
        self.strangers.insert(pid, parent.unwrap_or(0));
        false
    }

    pub fn take_fork(&mut self, time_ns: u64, pid: i32, parent: i32) {
        if self.members.get(&pid).is_some_and(|member| time_ns <= member.since_ns) {
            return;
        }
        // The pid belongs to a new process now.
        self.forget(pid);
        self.strangers.remove(&pid);
        self.left_out.remove(&pid);
        let Some(&Member { image, .. }) = self.members.get(&parent) else {
            match self.left_out.contains(&parent) {
                true => self.leave_out(pid),
                false => _ = self.strangers.insert(pid, parent),
            }
            return;
        };
        if self.full() {
            self.leave_out(pid);
            return;
        }
        // The child has the same image until exec.
        self.enter(pid, image, time_ns);
        if let Some(mut process) = self.listed(parent).cloned() {
            (process.pid, process.ppid) = (pid, parent);
            self.list(process);
        }
    }

    /// On a machine that constantly starts processes, data of processes outside the target would fill the
    /// memory. Members stay until /proc shows their end: a leader may end before its threads.
    pub fn take_exit(&mut self, pid: i32) {
        self.strangers.remove(&pid);
        self.left_out.remove(&pid);
        if !self.members.contains_key(&pid) && !self.neighbours.contains_key(&pid) {
            self.comms.remove(&pid);
        }
    }

    /// The members that can still run. A zombie has ended.
    pub fn alive(&mut self) -> Vec<i32> {
        let now = clock::monotonic_ns();
        let mut alive = Vec::new();
        for &pid in self.members.keys() {
            if self.ended.contains_key(&pid) {
                continue;
            }
            if may_run(&self.proc.process_stat(pid)) {
                alive.push(pid);
            } else {
                self.ended.insert(pid, now);
            }
        }
        alive
    }

    /// Inspects recently started processes again, and keeps the better facts.
    pub fn check_facts(&mut self, at_end: bool) {
        let mut due: Vec<i32> = Vec::new();
        if at_end {
            due.extend(self.listing.young.drain(..).chain(self.listing.checked.drain(..)));
            due.truncate(FACTS_AT_END);
        } else {
            let count = self.listing.young.len().min(FACTS_AT_ONCE);
            due.extend(self.listing.young.drain(..count));
            let room = FACTS_AT_END.saturating_sub(self.listing.checked.len());
            self.listing.checked.extend(due.iter().take(room));
        }
        for pid in due {
            if self.ended.contains_key(&pid) || !self.members.contains_key(&pid) {
                continue;
            }
            if let Ok(view) = self.modules.inspect(pid)
                && let Some(known) = self.listed(pid)
            {
                keep_better(known, view.process);
            }
        }
    }

    /// Processes of the target that are not recorded, or not listed; None if all are.
    pub fn missing(&self) -> Option<String> {
        let mut missing = Vec::new();
        if self.processes_left_out > 0 {
            missing.push(format!(
                "{} processes were not measured: more than {PROCESS_LIMIT} ran at the same time",
                self.processes_left_out
            ));
        }
        if !self.listing.unlisted.is_empty() {
            missing.push(format!(
                "{} processes beyond the first {PROCESS_LIMIT} were measured but are not listed",
                self.listing.unlisted.len()
            ));
        }
        (!missing.is_empty()).then(|| missing.join("; "))
    }

    /// Opens the files with names of generated code, again if they were open before: the JIT compiler may
    /// have started a new file.
    pub fn open_perf_maps(&mut self) {
        for (pid, member) in &self.members {
            let image = &mut self.images.list[member.image as usize];
            // The file of the image's own process takes precedence over that of a child that shares the
            // image.
            if image.perf_map.is_some() && image.space.pid != *pid {
                continue;
            }
            // A process that has ended keeps the file that was opened before.
            let Ok(status) = self.proc.status(*pid) else {
                continue;
            };
            let inner = status.ns_pids.last().copied().unwrap_or(*pid);
            let thread = self.proc.living_thread(*pid);
            if let Some(map) = symbols::perf_map(self.proc.root(), thread, inner, status.uid[1]) {
                image.perf_map = Some(map);
            }
        }
    }

    /// An image that only this member uses: later mappings must not appear in other processes of the same
    /// fork.
    pub fn own_image(&mut self, pid: i32) -> Option<u32> {
        let member = *self.members.get(&pid)?;
        let image = &self.images.list[member.image as usize];
        if image.users == 1 {
            return Some(member.image);
        }
        let space = image.space.forked(pid);
        let copy = self.add_image(space);
        self.images.list[member.image as usize].users -= 1;
        self.images.list[copy as usize].users = 1;
        self.members.insert(pid, Member { image: copy, ..member });
        Some(copy)
    }

    fn full(&self) -> bool {
        self.members.len() - self.ended.len() >= PROCESS_LIMIT
    }

    pub fn leave_out(&mut self, pid: i32) {
        self.strangers.remove(&pid);
        if self.left_out.insert(pid) {
            self.processes_left_out += 1;
        }
    }

    /// Adds the process with the image that /proc shows now.
    pub fn enter_inspected(&mut self, pid: i32) {
        let since_ns = clock::monotonic_ns();
        let (process, space) = match self.modules.inspect(pid) {
            Ok(view) => {
                if view.cut.is_some() {
                    self.code_cut = view.cut;
                }
                (view.process, view.space)
            }
            // It ended before it could be inspected: only perf's mapping records are known.
            Err(error) => {
                let mut process = unseen(pid, &error.to_string());
                process.comm = self.comms.get(&pid).cloned().unwrap_or_default();
                process.ppid = self.listed(pid).map_or(0, |p| p.ppid);
                (process, AddressSpace::new(pid))
            }
        };
        self.list(process);
        let image = self.add_image(space);
        self.enter(pid, image, since_ns);
        self.listing.young.push_back(pid);
    }

    fn enter(&mut self, pid: i32, image: u32, since_ns: u64) {
        self.forget(pid);
        self.images.list[image as usize].users += 1;
        if self.images.list[image as usize].narrow {
            self.narrow.insert(pid);
        }
        self.members.insert(pid, Member { image, since_ns });
    }

    /// Removes a member: it has ended, or its pid belongs to another process now.
    pub fn forget(&mut self, pid: i32) {
        self.ended.remove(&pid);
        if let Some(member) = self.members.remove(&pid) {
            let image = &mut self.images.list[member.image as usize];
            image.users -= 1;
            self.images.unused += usize::from(image.users == 0);
        }
    }

    fn add_image(&mut self, space: AddressSpace) -> u32 {
        let mut image = Image::new(space);
        image.version = self.next_version();
        image.narrow = image.space.code().any(|code| self.modules.is_narrow(code.module));
        if let Some(slot) = self.images.free.pop() {
            self.images.list[slot as usize] = image;
            return slot;
        }
        self.images.list.push(image);
        (self.images.list.len() - 1) as u32
    }

    pub fn next_version(&mut self) -> u64 {
        self.images.versions += 1;
        self.images.versions
    }

    fn listed(&mut self, pid: i32) -> Option<&mut Process> {
        Some(&mut self.listing.processes[*self.listing.index.get(&pid)?])
    }

    fn list(&mut self, process: Process) {
        if let Some(known) = self.listed(process.pid) {
            *known = process;
        } else if self.listing.processes.len() < PROCESS_LIMIT {
            self.listing.index.insert(process.pid, self.listing.processes.len());
            self.listing.processes.push(process);
        } else {
            self.listing.unlisted.insert(process.pid);
        }
    }
}

/// Whether a process can still run, judged by /proc. A failed read is not an end: without descriptors nothing
/// can be read, but the target still exists.
pub(super) fn may_run(stat: &Measured<ProcessStat>) -> bool {
    match stat {
        // A leader may end before its threads: then it is a zombie with living threads.
        Ok(stat) => !stat.ended() || stat.threads > 1,
        Err(absence) => !matches!(absence.reason, Reason::Vanished | Reason::NotFound),
    }
}

/// Merges a later inspection of the same program, when more of it is mapped. Facts that it lacks are kept.
pub(super) fn keep_better(known: &mut Process, later: Process) {
    fn take<T>(known: &mut Measured<T>, later: Measured<T>) {
        if later.is_ok() || known.is_err() {
            *known = later;
        }
    }
    if !(matches!(later.runtime, Ok(Runtime::Native)) && known.runtime.is_ok()) {
        take(&mut known.runtime, later.runtime);
    }
    take(&mut known.exe, later.exe);
    take(&mut known.libc, later.libc);
    take(&mut known.allocator, later.allocator);
    take(&mut known.thp_disabled, later.thp_disabled);
    take(&mut known.secure_exec, later.secure_exec);
    known.pid_inside = later.pid_inside.or(known.pid_inside);
    if known.cmdline.is_empty() {
        known.cmdline = later.cmdline;
    }
    if known.environment.is_empty() {
        known.environment = later.environment;
    }
}

pub(super) fn unseen(pid: i32, why: &str) -> Process {
    let absence = Absence::new(Reason::Vanished, why);
    Process {
        pid,
        pid_inside: None,
        ppid: 0,
        comm: String::new(),
        exe: Err(absence.clone()),
        cmdline: Vec::new(),
        libc: Err(absence.clone()),
        runtime: Err(absence.clone()),
        allocator: Err(absence.clone()),
        environment: Vec::new(),
        thp_disabled: Err(absence.clone()),
        secure_exec: Err(absence.clone()),
        ended: false,
        age_ns: Err(absence),
    }
}
