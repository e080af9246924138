//! How the processes and threads of the target start and end: by forks, which copy an address space, or otherwise; and
//! whether processes copy the pages that they share since a fork.

use super::Classified;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::symbols::ProcessStep;
use allocwall_model::recording::Recording;
use allocwall_model::stats::wilson;
use allocwall_model::units::Interval;

/// Samples on the line of starting and ending processes, by what they do with an address space, and samples that copy a page.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Starts {
    pub all: u64,
    pub copy: u64,
    pub replace: u64,
    pub exec: u64,
    pub end: u64,
    /// On the line of copy-on-write, and in the copying itself.
    pub copied_pages: u64,
}

impl Starts {
    pub fn of(recording: &Recording, Classified { classifier, classes }: &Classified) -> Starts {
        let mut starts = Starts::default();
        for (sample, class) in recording.samples.iter().zip(classes) {
            if *class == CostClass::CopyOnWrite {
                starts.copied_pages += u64::from(classifier.copies_page(sample));
            }
            if *class != CostClass::ForkExit {
                continue;
            }
            starts.all += 1;
            match classifier.process_step(sample) {
                Some(ProcessStep::Copy) => starts.copy += 1,
                Some(ProcessStep::Replace) => starts.replace += 1,
                Some(ProcessStep::Exec) => starts.exec += 1,
                Some(ProcessStep::End) => starts.end += 1,
                None => {}
            }
        }
        starts
    }

    /// Whether a process of the target forked in the window.
    pub fn forked(&self) -> bool {
        self.copy > 0
    }

    /// Whether processes of the target started programs again and again. A command that allocwall started does it once.
    pub fn execute(&self) -> bool {
        const LEAST: f64 = 0.05;
        let programs = self.replace + self.exec;
        programs > 0 && programs as f64 >= LEAST * self.all as f64
    }

    /// Whether enough samples copy a page to show that processes share pages. Others may only make a page writable.
    pub fn copies_pages(&self) -> bool {
        const LEAST: u64 = 10;
        self.copied_pages >= LEAST
    }

    /// Whether only threads start and end: with a process, the kernel works on its address space too.
    pub fn only_threads(&self) -> bool {
        const LEAST: u64 = 30;
        self.all >= LEAST && self.copy + self.replace + self.exec + self.end == 0
    }

    /// The part of the line that copies an address space, or frees the copy at exec. 0 without a fork.
    pub fn copies(&self) -> Interval {
        self.part(self.copy + self.replace)
    }

    /// The part of the line that belongs to forks. Where processes start no programs, the address spaces that end are those
    /// of forks too.
    pub fn of_forks(&self) -> Interval {
        let end = if self.execute() { 0 } else { self.end };
        self.part(self.copy + self.replace + end)
    }

    fn part(&self, samples: u64) -> Interval {
        if self.forked() { wilson(samples, self.all) } else { Interval::exact(0.0) }
    }

    /// The steps as parts of the line. None if no sample shows one.
    pub fn text(&self) -> Option<String> {
        let steps = [
            (self.copy, "copies memory maps for forks"),
            (self.replace, "frees the old memory map at exec"),
            (self.exec, "loads programs"),
            (self.end, "frees memory maps at exit"),
        ];
        let part = |samples: u64| crate::context::percent(samples as f64 / self.all.max(1) as f64);
        let shown: Vec<String> = steps
            .into_iter()
            .filter(|(samples, _)| *samples > 0)
            .map(|(samples, what)| format!("{} {what}", part(samples)))
            .collect();
        (!shown.is_empty()).then(|| format!("of {}: {}", CostClass::ForkExit.title(), shown.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_sketches::recording::{PID, Sketch};

    const COPY: &str = "copy_page_range;dup_mmap;dup_mm;copy_process;kernel_clone;__do_sys_clone";
    const REPLACE: &str = "zap_pte_range;exit_mmap;__mmput;begin_new_exec;load_elf_binary;bprm_execve";
    const EXEC: &str = "do_mmap;elf_load;load_elf_binary;bprm_execve;__x64_sys_execve";
    const END: &str = "zap_pte_range;unmap_vmas;exit_mmap;mmput;do_exit;do_group_exit";
    const THREAD: &str = "dup_task_struct;copy_process;kernel_clone;__do_sys_clone3";

    fn starts(stacks: &[(&str, u64)]) -> Starts {
        let mut s = Sketch::new();
        s.samples(100, PID, "", "app!work");
        for &(stack, count) in stacks {
            s.samples(count, PID, stack, "app!start");
        }
        Starts::of(&s.recording, &Classified::of(&s.recording))
    }

    #[test]
    fn pages_are_shared_only_if_samples_copy_them() {
        let writes = |leaf: &str, count| {
            let stack = format!("{leaf};do_wp_page;handle_mm_fault;exc_page_fault");
            starts(&[(stack.as_str(), count)]).copies_pages()
        };
        assert!(writes("copy_mc_enhanced_fast_string", 10) && !writes("copy_mc_enhanced_fast_string", 9));
        // They may only make pages writable.
        assert!(!writes("_raw_spin_lock", 20) && !writes("clear_page_erms", 20));
    }

    #[test]
    fn a_fork_is_known_by_the_copy_of_the_address_space() {
        let spawns = starts(&[(EXEC, 40), (END, 30), (THREAD, 30)]);
        assert_eq!(spawns, Starts { all: 100, exec: 40, end: 30, ..Starts::default() });
        assert_eq!((spawns.forked(), spawns.execute()), (false, true));
        assert_eq!((spawns.copies().high, spawns.of_forks().high), (0.0, 0.0));
        let threads = starts(&[(THREAD, 100)]);
        assert_eq!((threads.forked(), threads.execute(), threads.text()), (false, false, None));
        assert!(threads.only_threads() && !spawns.only_threads() && !starts(&[(THREAD, 20)]).only_threads());

        let forks = starts(&[(COPY, 30), (REPLACE, 20), (EXEC, 20), (END, 30)]);
        assert_eq!((forks.forked(), forks.copies().point, forks.of_forks().point), (true, 0.5, 0.5));
        // Without exec, it is the copies that end.
        let servers = starts(&[(COPY, 30), (END, 30), (THREAD, 40)]);
        assert_eq!((servers.copies().point, servers.of_forks().point), (0.3, 0.6));
        // The start of the program itself changes nothing.
        let started = starts(&[(EXEC, 4), (COPY, 30), (END, 30), (THREAD, 36)]);
        assert_eq!((started.execute(), started.of_forks().point), (false, 0.6));
    }
}
