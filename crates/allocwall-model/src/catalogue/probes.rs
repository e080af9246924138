//! The sources of measurements of a recording.

use serde::{Deserialize, Serialize};

macro_rules! probes {
    ($($name:ident: $key:literal, $what:literal;)*) => {
        /// One source of measurements. Recordings and JSON contain its key.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(into = "&'static str", try_from = "String")]
        pub enum ProbeName {
            $($name,)*
        }

        impl ProbeName {
            pub const ALL: &'static [ProbeName] = &[$(ProbeName::$name,)*];

            /// Stable key of recordings and of the JSON format.
            pub const fn key(self) -> &'static str {
                match self {
                    $(ProbeName::$name => $key,)*
                }
            }

            /// What it measures, as text for the report.
            pub const fn what(self) -> &'static str {
                match self {
                    $(ProbeName::$name => $what,)*
                }
            }
        }
    };
}

probes! {
    CpuSamples: "cpu_samples", "where the CPU time goes";
    KernelStacks: "kernel_stacks", "what the kernel does for the target";
    Waits: "waits", "what waiting threads wait for";
    Cgroup: "cgroup", "quota and throttling";
    Counters: "counters", "CPU time and faults, from the kernel's counters";
    Sizes: "sizes", "anonymous memory and data";
    Smaps: "smaps", "huge pages, lazily freed pages, shares";
    Resident: "resident", "resident memory by owner";
    Numa: "numa", "resident memory by node";
    Host: "host", "counters of the whole machine";
    FaultOwners: "fault_owners", "owners of page faults";
    MapCalls: "map_calls", "number of mmap, munmap and similar calls";
    Tree: "tree", "every process of the target";
    Processes: "processes", "every process of the target";
    Names: "names", "function names and callers";
    Code: "code", "the addresses of code";
    Pmu: "pmu", "cycles, dTLB and cache misses";
    RunDelay: "run_delay", "CPU time and run-queue time of the threads";
    Stopped: "stopped", "the target's work while it runs";
    PythonStacks: "python_stacks", "Python function names";
    Tail: "tail", "symbols, complete stacks and thread times";
}

impl From<ProbeName> for &'static str {
    fn from(name: ProbeName) -> &'static str {
        name.key()
    }
}

impl TryFrom<String> for ProbeName {
    type Error = &'static str;

    fn try_from(key: String) -> Result<ProbeName, &'static str> {
        ProbeName::ALL.iter().copied().find(|name| name.key() == key).ok_or("unknown probe")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_key_is_read_back() {
        for &name in ProbeName::ALL {
            assert_eq!(ProbeName::try_from(name.key().to_owned()), Ok(name));
        }
        assert!(ProbeName::try_from("heap".to_owned()).is_err());
    }
}
