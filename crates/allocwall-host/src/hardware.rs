//! How the events of this machine's processor are asked for, and whether each one can be counted.

use crate::perf;
use allocwall_model::hardware::HardwareEvent;
use allocwall_model::units::{Absence, Measured, Reason};
use perf_event::Builder;
use perf_event::events::{Cache, CacheId, CacheOp, CacheResult, Hardware, Raw};
use std::io;

/// The model of an x86 processor, as CPUID gives it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Processor {
    pub vendor: String,
    pub family: u8,
    pub model: u8,
}

impl Processor {
    /// None on other architectures.
    #[cfg(target_arch = "x86_64")]
    pub fn this() -> Option<Processor> {
        let cpuid = raw_cpuid::CpuId::new();
        let (vendor, features) = (cpuid.get_vendor_info()?, cpuid.get_feature_info()?);
        Some(Processor {
            vendor: vendor.as_str().to_owned(),
            family: features.family_id(),
            model: features.model_id(),
        })
    }

    #[cfg(not(target_arch = "x86_64"))]
    pub fn this() -> Option<Processor> {
        None
    }
}

/// What a program asks of its caches and of the TLB, with keys for metrics.
pub const OF_MEMORY: &[(&str, Encoding)] = &[
    ("cycles", Encoding::Generic(Hardware::CPU_CYCLES)),
    ("instructions", Encoding::Generic(Hardware::INSTRUCTIONS)),
    ("cache_references", Encoding::Generic(Hardware::CACHE_REFERENCES)),
    ("cache_misses", Encoding::Generic(Hardware::CACHE_MISSES)),
    ("dtlb_loads", of_tlb(CacheId::DTLB, CacheOp::READ, CacheResult::ACCESS)),
    ("dtlb_misses", of_tlb(CacheId::DTLB, CacheOp::READ, CacheResult::MISS)),
    ("dtlb_stores", of_tlb(CacheId::DTLB, CacheOp::WRITE, CacheResult::ACCESS)),
    ("dtlb_store_misses", of_tlb(CacheId::DTLB, CacheOp::WRITE, CacheResult::MISS)),
    ("itlb_misses", of_tlb(CacheId::ITLB, CacheOp::READ, CacheResult::MISS)),
];

const fn of_tlb(which: CacheId, operation: CacheOp, result: CacheResult) -> Encoding {
    Encoding::Cache(Cache { which, operation, result })
}

/// What perf_event_open(2) needs to count an event.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Encoding {
    Generic(Hardware),
    Cache(Cache),
    Raw(Raw),
}

impl Encoding {
    /// An event with this encoding. `kernel`: count in kernel mode too.
    pub(crate) fn builder(&self, kernel: bool) -> Builder<'static> {
        let mut builder = match self {
            Encoding::Generic(event) => Builder::new(*event),
            Encoding::Cache(event) => Builder::new(event.clone()),
            Encoding::Raw(event) => Builder::new(*event),
        };
        builder.exclude_kernel(!kernel).exclude_hv(true);
        builder
    }
}

/// The kernel encodes the generic events for each processor (arch/x86/events). It has no generic event for the
/// time of page walks, which is a raw event of some models.
pub fn encoding(event: HardwareEvent, processor: Option<&Processor>) -> Measured<Encoding> {
    let load = |which, result| Ok(Encoding::Cache(Cache { which, operation: CacheOp::READ, result }));
    match event {
        HardwareEvent::Cycles => Ok(Encoding::Generic(Hardware::CPU_CYCLES)),
        HardwareEvent::Instructions => Ok(Encoding::Generic(Hardware::INSTRUCTIONS)),
        HardwareEvent::CacheMisses => Ok(Encoding::Generic(Hardware::CACHE_MISSES)),
        HardwareEvent::DtlbLoadMisses => load(CacheId::DTLB, CacheResult::MISS),
        HardwareEvent::LlcLoadMisses => load(CacheId::LL, CacheResult::MISS),
        HardwareEvent::NodeLoads => load(CacheId::NODE, CacheResult::ACCESS),
        HardwareEvent::NodeLoadMisses => load(CacheId::NODE, CacheResult::MISS),
        HardwareEvent::DtlbWalkActive | HardwareEvent::DtlbGuestWalkActive => {
            match processor.and_then(walk_active) {
                Some((own, config)) if own == event => Ok(Encoding::Raw(Raw::new(config))),
                None if event == HardwareEvent::DtlbWalkActive => Err(Absence::new(
                    Reason::NotSupported,
                    "no event for the time of page walks is known for this processor",
                )),
                _ => Err(Absence::new(
                    Reason::NotApplicable,
                    "another event is the one for the time of page walks on this processor",
                )),
            }
        }
    }
}

/// DTLB_LOAD_MISSES.WALK_ACTIVE: the event in bits 0 to 7, its mask in bits 8 to 15, and at least one walk a cycle
/// (counter mask, bits 24 to 31). From tools/perf/pmu-events/arch/x86 in the kernel's source: skylake, skylakex,
/// icelake, icelakex, sapphirerapids. Processors with two kinds of cores are left out, because one kind has another event.
///
/// "EPT page walk duration are excluded in Skylake", says the list of its events; the later lists exclude nothing. On a virtual
/// machine each walk goes through the hypervisor's tables too, which makes it longer. So the count of a later processor is the
/// whole time there too, and that of Skylake a part of it.
fn walk_active(processor: &Processor) -> Option<(HardwareEvent, u64)> {
    const SKYLAKE_TO_ICE_LAKE: u64 = 0x0100_1008;
    const GOLDEN_COVE: u64 = 0x0100_1012;
    if (processor.vendor.as_str(), processor.family) != ("GenuineIntel", 6) {
        return None;
    }
    // arch/x86/include/asm/intel-family.h
    match processor.model {
        // Skylake, Kaby Lake, Comet Lake; servers from Skylake to Cooper Lake.
        0x4e | 0x5e | 0x8e | 0x9e | 0xa5 | 0xa6 | 0x55 => {
            Some((HardwareEvent::DtlbGuestWalkActive, SKYLAKE_TO_ICE_LAKE))
        }
        // Ice Lake, its servers.
        0x7d | 0x7e | 0x6a | 0x6c => Some((HardwareEvent::DtlbWalkActive, SKYLAKE_TO_ICE_LAKE)),
        // Sapphire Rapids, Emerald Rapids.
        0x8f | 0xcf => Some((HardwareEvent::DtlbWalkActive, GOLDEN_COVE)),
        _ => None,
    }
}

/// Opens an event for this thread in user mode, which needs the fewest rights, and closes it again.
pub fn try_open(encoding: &Encoding) -> io::Result<()> {
    encoding.builder(false).build().map(drop)
}

/// Whether this user may count events in kernel mode too. `encoding`: an event that this user may count in user mode.
///
/// # Errors
/// Another reason than a missing right, such as too many open files: it is not known.
pub fn counts_kernel(encoding: &Encoding) -> Measured<bool> {
    permitted(encoding.builder(true).build().map(drop))
}

fn permitted(opened: io::Result<()>) -> Measured<bool> {
    match opened {
        Ok(()) => Ok(true),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EACCES | libc::EPERM)) => Ok(false),
        Err(error) => Err(refusal(&error)),
    }
}

/// Why an event cannot be counted.
pub fn refusal(error: &io::Error) -> Absence {
    match error.raw_os_error() {
        // EINVAL: the processor has no such event among those of its cache (set_ext_hw_attr() in
        // arch/x86/events/core.c).
        Some(libc::ENOENT | libc::EOPNOTSUPP | libc::ENODEV | libc::EINVAL) => {
            Absence::new(Reason::NotSupported, "the processor or its hypervisor offers no such event")
        }
        _ => perf::absence(error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::clock;
    use crate::perf::EventCounter;

    fn processor(vendor: &str, family: u8, model: u8) -> Processor {
        Processor { vendor: vendor.into(), family, model }
    }

    #[test]
    fn the_time_of_page_walks_has_an_event_on_known_processors_only() {
        let [walks, guest] = [HardwareEvent::DtlbWalkActive, HardwareEvent::DtlbGuestWalkActive]
            .map(|event| move |p: &Processor| encoding(event, Some(p)).ok());
        let raw = |config| Some(Encoding::Raw(Raw::new(config)));
        let skylake = processor("GenuineIntel", 6, 0x55);
        assert_eq!((walks(&skylake), guest(&skylake)), (None, raw(0x1001008)));
        for (model, config) in [(0x6a, 0x1001008), (0x8f, 0x1001012)] {
            let later = processor("GenuineIntel", 6, model);
            assert_eq!((walks(&later), guest(&later)), (raw(config), None));
        }
        // Broadwell, Alder Lake with two kinds of cores, Zen 3.
        for other in [("GenuineIntel", 6, 0x4f), ("GenuineIntel", 6, 0x97), ("AuthenticAMD", 0x19, 0x01)] {
            let other = processor(other.0, other.1, other.2);
            assert_eq!((walks(&other), guest(&other)), (None, None), "{other:?}");
        }
        let reason = |of: Option<&Processor>| encoding(HardwareEvent::DtlbWalkActive, of).unwrap_err().reason;
        assert_eq!((reason(None), reason(Some(&skylake))), (Reason::NotSupported, Reason::NotApplicable));
    }

    #[test]
    fn every_other_event_has_a_generic_encoding() {
        for event in HardwareEvent::ALL {
            let is_of_walks =
                matches!(event, HardwareEvent::DtlbWalkActive | HardwareEvent::DtlbGuestWalkActive);
            assert_eq!(encoding(event, None).is_ok(), !is_of_walks, "{event:?}");
        }
    }

    #[test]
    fn each_event_of_memory_has_its_own_key_and_encoding() {
        for (nth, (key, encoding)) in OF_MEMORY.iter().enumerate() {
            let others = || OF_MEMORY[..nth].iter();
            assert!(others().all(|(other, same)| other != key && same != encoding), "{key}");
        }
        let of =
            |name: &str| OF_MEMORY.iter().find(|(key, _)| *key == name).map(|(_, encoding)| encoding.clone());
        assert_eq!(of("dtlb_misses"), encoding(HardwareEvent::DtlbLoadMisses, None).ok());
        assert_ne!(of("dtlb_loads"), of("dtlb_misses"));
    }

    #[test]
    fn only_a_missing_right_leaves_user_mode_alone() {
        let failed = |code| permitted(Err(io::Error::from_raw_os_error(code)));
        assert_eq!(permitted(Ok(())), Ok(true));
        assert_eq!([libc::EACCES, libc::EPERM].map(failed), [Ok(false), Ok(false)]);
        // The near twin: at another time it may be permitted.
        let reasons = [libc::EMFILE, libc::ENOMEM, libc::ENOENT].map(|code| failed(code).unwrap_err().reason);
        assert_eq!(reasons, [Reason::TooCostly, Reason::NotSupported, Reason::NotSupported]);
    }

    #[test]
    fn cycles_follow_the_cpu_time() {
        let encoding = encoding(HardwareEvent::Cycles, None).unwrap();
        if let Err(error) = try_open(&encoding) {
            return println!("skipped: no PMU: {}", refusal(&error));
        }
        // 0 is the calling thread.
        let mut counter = EventCounter::hardware(&encoding, &[0], false).unwrap();
        let begun = clock::thread_cpu_ns();
        let mut spun = 0u64;
        while clock::thread_cpu_ns() - begun < 50_000_000 {
            spun = std::hint::black_box(spun + 1);
        }
        let (counted, unread) = counter.total();
        assert_eq!(unread, 0);
        // No processor is slower than 100 MHz or faster than 10 GHz.
        let per_ns = counted.count as f64 / counted.running_ns as f64;
        assert!((0.1..10.0).contains(&per_ns), "{counted:?}");
        assert!(counted.running_ns <= counted.enabled_ns, "{counted:?}");
    }
}
