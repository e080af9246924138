//! What the kernel's own allocator works for: connections, messages, or files and names.

use super::Classified;
use crate::context::percent;
use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::symbols::KernelObject;
use allocwall_model::recording::Recording;

/// Samples on the line of kernel slab, by the objects that its callers show.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SlabUse {
    pub all: u64,
    pub messages: u64,
    pub connections: u64,
    pub files: u64,
    /// Not on the line: samples in callbacks of RCU, which free the objects of any process.
    pub late: u64,
    /// All samples of CPU time.
    pub samples: u64,
}

/// With fewer samples, the callers show nothing.
const FEWEST: u64 = 20;
/// From this part on, a change of the number of these objects is worth it. Our choice.
const MUCH: f64 = 0.2;
/// A smaller part of CPU time in callbacks of RCU is not worth a line.
pub const LEAST_LATE: f64 = 0.01;
/// A socket has a file too, which is made and freed like that of any other file: for each sample of sockets there are up to so many
/// of their files.
const FILES_OF_SOCKETS: f64 = 0.5;

impl SlabUse {
    pub fn of(recording: &Recording, Classified { classifier, classes }: &Classified) -> SlabUse {
        let mut slab = SlabUse { samples: recording.samples.len() as u64, ..SlabUse::default() };
        for (sample, class) in recording.samples.iter().zip(classes) {
            if *class != CostClass::KernelSlab {
                slab.late += u64::from(classifier.runs_callbacks(sample));
                continue;
            }
            slab.all += 1;
            match classifier.kernel_object(sample) {
                Some(KernelObject::Message) => slab.messages += 1,
                Some(KernelObject::Connection) => slab.connections += 1,
                Some(KernelObject::File) => slab.files += 1,
                None => {}
            }
        }
        slab
    }

    /// Whether many of the objects are of this kind, or may be: too few samples show nothing.
    pub fn is_for(&self, object: KernelObject) -> bool {
        let part = |samples: u64| samples as f64 / self.all.max(1) as f64;
        self.all < FEWEST
            || match object {
                KernelObject::Message => part(self.messages) >= MUCH,
                KernelObject::Connection => part(self.connections) >= MUCH,
                KernelObject::File => {
                    part(self.files) >= MUCH && self.files as f64 > FILES_OF_SOCKETS * self.connections as f64
                }
            }
    }

    /// The part of CPU time that is not on the line, although it may be of the target. None if it is little.
    pub fn late_part(&self) -> Option<f64> {
        Some(self.late as f64 / self.samples.max(1) as f64).filter(|part| *part >= LEAST_LATE)
    }

    pub fn late_text(&self) -> Option<String> {
        let part = percent(self.late_part()?);
        Some(format!(
            "{part} of CPU, in callbacks of RCU, is not counted as {}: they free the objects of any process",
            CostClass::KernelSlab.title()
        ))
    }

    /// The kinds of object as parts of the line. None if the callers show nothing.
    pub fn text(&self) -> Option<String> {
        let kinds = [
            (self.connections, "sockets and pipes"),
            (self.messages, "messages (sk_buffs)"),
            (self.files, "files and names"),
        ];
        let part = |samples: u64| percent(samples as f64 / self.all.max(1) as f64);
        let shown: Vec<String> = kinds
            .into_iter()
            .filter(|(samples, _)| *samples > 0)
            .map(|(samples, what)| format!("{} {what}", part(samples)))
            .collect();
        (self.all >= FEWEST && !shown.is_empty())
            .then(|| format!("of {}: {}", CostClass::KernelSlab.title(), shown.join(", ")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use allocwall_sketches::recording::{PID, Sketch};

    const CONNECTION: &str = "kmem_cache_alloc;sk_prot_alloc;unix_create1;__sys_socketpair";
    const MESSAGE: &str = "kmem_cache_alloc_node;__alloc_skb;sock_alloc_send_pskb;unix_stream_sendmsg";
    const FILE: &str = "kmem_cache_free;__fput;task_work_run;do_syscall_64";
    const UNKNOWN: &str = "kfree;tty_ioctl;__x64_sys_ioctl";
    const LATE: &str = "kfree;rcu_do_batch;handle_softirqs;sysvec_apic_timer_interrupt";

    fn slab(stacks: &[(&str, u64)]) -> SlabUse {
        let mut s = Sketch::new();
        s.samples(100, PID, "", "app!work");
        for &(stack, count) in stacks {
            s.samples(count, PID, stack, "app!serve");
        }
        SlabUse::of(&s.recording, &Classified::of(&s.recording))
    }

    #[test]
    fn objects_are_counted_by_their_callers() {
        let counted =
            slab(&[(CONNECTION, 50), (MESSAGE, 20), (FILE, 20), (UNKNOWN, 10), (LATE, 30), ("vfs_read", 40)]);
        let expected = SlabUse { all: 100, messages: 20, connections: 50, files: 20, late: 30, samples: 270 };
        assert_eq!(counted, expected);
        assert_eq!(
            counted.text().as_deref(),
            Some("of kernel slab: 50 % sockets and pipes, 20 % messages (sk_buffs), 20 % files and names")
        );
        assert_eq!((slab(&[(UNKNOWN, 100)]).text(), slab(&[(FILE, 19)]).text()), (None, None));
    }

    #[test]
    fn callbacks_of_rcu_are_said_from_a_hundredth_of_cpu_time_on() {
        let late = slab(&[(FILE, 50), (LATE, 50)]).late_text().expect("a quarter");
        assert!(late.starts_with("25 % of CPU, in callbacks of RCU, is not counted"), "{late}");
        assert_eq!(slab(&[(FILE, 398), (LATE, 2)]).late_text(), None);
    }

    #[test]
    fn a_kind_counts_from_a_fifth_on_and_the_files_of_sockets_are_none_of_their_own() {
        use KernelObject::{Connection, File, Message};
        let kinds =
            |stacks: &[(&str, u64)]| [Connection, Message, File].map(|object| slab(stacks).is_for(object));
        assert_eq!(kinds(&[(CONNECTION, 70), (FILE, 30)]), [true, false, false]);
        assert_eq!(kinds(&[(CONNECTION, 50), (FILE, 50)]), [true, false, true]);
        assert_eq!(kinds(&[(MESSAGE, 85), (FILE, 15)]), [false, true, false]);
        assert_eq!(kinds(&[(FILE, 40), (UNKNOWN, 60)]), [false, false, true]);
        // Too few show nothing.
        assert_eq!(kinds(&[(FILE, 19)]), [true; 3]);
    }
}
