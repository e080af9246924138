//! The colours of the lines of the bill, the same in the flamegraph and on a terminal.

use allocwall_model::catalogue::cost::CostClass;
use allocwall_model::catalogue::owners::Owner;

/// Fill colour of each class. The colours are light enough for black text. They also differ in lightness, so that
/// they can be distinguished in grey and by readers who are red-green blind. Hues after Okabe and Ito's palette.
pub fn fill(class: CostClass) -> (u8, u8, u8) {
    match class {
        CostClass::Application => (232, 232, 232),
        CostClass::AllocatorCode => (86, 180, 233),
        CostClass::AllocatorLocks => (30, 130, 190),
        CostClass::RuntimeAllocator => (168, 215, 242),
        CostClass::BlockFilling => (130, 220, 225),
        CostClass::GarbageCollector => (120, 200, 160),
        CostClass::FaultPath => (230, 120, 50),
        CostClass::Zeroing => (250, 180, 70),
        CostClass::CopyOnWrite => (245, 150, 130),
        CostClass::FileFault => (215, 155, 95),
        CostClass::MapCalls => (240, 228, 66),
        CostClass::PageRelease => (200, 180, 90),
        CostClass::AddressSpaceLock => (214, 80, 90),
        CostClass::Reclaim => (204, 140, 180),
        CostClass::KernelSlab => (175, 145, 225),
        CostClass::ForkExit => (225, 165, 200),
        CostClass::FileSystem => (180, 195, 205),
        CostClass::Sockets => (165, 180, 215),
        CostClass::Scheduling => (205, 200, 225),
        CostClass::OtherKernel => (190, 185, 205),
        CostClass::UnnamedKernel => (165, 165, 165),
    }
}

/// Fill colour of memory by its owner. Neighbours in the order of [`Owner`] differ in lightness.
pub fn of_owner(owner: Owner) -> (u8, u8, u8) {
    match owner {
        Owner::Heap => (86, 180, 233),
        Owner::Arena => (230, 159, 0),
        Owner::MappedBlock => (168, 215, 242),
        Owner::PythonArena => (213, 137, 90),
        Owner::Stack => (200, 180, 220),
        Owner::File => (120, 200, 160),
        Owner::Shared => (240, 228, 66),
        Owner::Private => (204, 140, 180),
        Owner::Unmapped => (189, 189, 189),
        Owner::Unknown => (154, 154, 154),
    }
}

/// The nearest of the colours that Firefox Profiler has for categories (`src/utils/colors.ts`). Its default is the grey one.
pub fn firefox(class: CostClass) -> &'static str {
    match class {
        CostClass::Application => "grey",
        CostClass::AllocatorCode | CostClass::RuntimeAllocator | CostClass::BlockFilling => "lightblue",
        CostClass::AllocatorLocks => "blue",
        CostClass::GarbageCollector => "green",
        CostClass::FaultPath => "orange",
        CostClass::Zeroing | CostClass::MapCalls => "yellow",
        CostClass::CopyOnWrite => "lightred",
        CostClass::FileFault | CostClass::PageRelease => "brown",
        CostClass::AddressSpaceLock => "red",
        CostClass::Reclaim | CostClass::ForkExit => "magenta",
        CostClass::KernelSlab | CostClass::Scheduling => "purple",
        CostClass::FileSystem | CostClass::Sockets | CostClass::OtherKernel | CostClass::UnnamedKernel => {
            "darkgrey"
        }
    }
}

/// The same for a terminal: ANSI SGR parameters of the nearest colour of the 6 × 6 × 6 cube that terminals with 256 colours
/// share (xterm, ctlseqs). None for the application, whose pale grey can't be seen on a white ground.
pub fn sgr(class: CostClass) -> Option<String> {
    /// The six levels of a channel: 0, 95, 135, 175, 215, 255.
    fn level(channel: u8) -> u32 {
        match channel {
            0..48 => 0,
            48..115 => 1,
            _ => (u32::from(channel) - 35) / 40,
        }
    }
    let (red, green, blue) = fill(class);
    let nearest = 16 + 36 * level(red) + 6 * level(green) + level(blue);
    (class != CostClass::Application).then(|| format!("38;5;{nearest}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_stand_beside_one_another_differ_on_a_terminal() {
        assert_eq!(sgr(CostClass::Application), None);
        let faults = [CostClass::FaultPath, CostClass::Zeroing, CostClass::CopyOnWrite, CostClass::FileFault];
        for (nth, class) in faults.iter().enumerate() {
            assert!(faults[..nth].iter().all(|other| sgr(*other) != sgr(*class)), "{class:?}");
        }
        // (230, 120, 50) is near (215, 135, 95).
        assert_eq!(sgr(CostClass::FaultPath).unwrap(), "38;5;173");
    }
}
