//! How much of the processor's second-level cache a thread has to itself.

use std::arch::x86_64::{__cpuid, __cpuid_count};
use std::sync::OnceLock;

/// Bytes on the first processors that had AMX, with a thread to each core.
const SAPPHIRE_RAPIDS: usize = 2 << 20;

/// The leaves that describe caches, Intel's and AMD's; their sub-leaves are caches, the last one is
/// none.
const LEAVES: [u32; 2] = [4, 0x8000_001d];
const MOST: u32 = 16;

/// Bytes of the second-level cache of this processor, as it says, divided by the threads that share
/// it: two threads of one core have half of what one has that is alone.
pub(super) fn of_thread() -> usize {
    static BYTES: OnceLock<usize> = OnceLock::new();
    *BYTES.get_or_init(|| {
        // The first leaf of a range says which is its last.
        let there = LEAVES.into_iter().filter(|leaf| __cpuid(leaf >> 31 << 31).eax >= *leaf);
        described(there.flat_map(|leaf| {
            let described = (0..MOST).map(move |index| {
                let of = __cpuid_count(leaf, index);
                [of.eax, of.ebx, of.ecx]
            });
            described.take_while(|[eax, ..]| eax & 31 != 0)
        }))
    })
}

/// From the registers `eax`, `ebx` and `ecx` of each cache, as Intel's manual describes the
/// instruction (volume 2, `CPUID`), and AMD's its own leaf (volume 3, appendix E). If they do not
/// say it, that of [`SAPPHIRE_RAPIDS`].
fn described(caches: impl Iterator<Item = [u32; 3]>) -> usize {
    let mut found = SAPPHIRE_RAPIDS;
    for [eax, ebx, ecx] in caches {
        let field = |from: u32, bits: u32, of: u32| (of >> from & ((1 << bits) - 1)) as usize + 1;
        // Instructions have a cache of their own.
        if let (2, 1 | 3) = (eax >> 5 & 7, eax & 31) {
            let line = field(0, 12, ebx) * field(12, 10, ebx) * field(22, 10, ebx);
            let bytes = line.saturating_mul((ecx as usize).saturating_add(1));
            found = bytes / field(14, 12, eax);
        }
    }
    // No hypervisor's description may ask for less than loops can work with.
    found.max(256 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `[type, level, threads, lines, ways, sets]` to registers.
    fn registers([kind, level, threads, line, ways, sets]: [u32; 6]) -> [u32; 3] {
        [kind | level << 5 | (threads - 1) << 14, (line - 1) | (ways - 1) << 22, sets - 1]
    }

    #[test]
    fn threads_of_a_core_share_its_caches() {
        for threads in [1, 2] {
            let described = [
                [1, 1, threads, 64, 12, 64],
                [2, 1, threads, 64, 8, 64],
                [3, 2, threads, 64, 16, 2048],
                [3, 3, 64, 64, 15, 1 << 16],
            ];
            let found = super::described(described.map(registers).into_iter());
            assert_eq!(found, SAPPHIRE_RAPIDS / threads as usize);
        }
    }

    #[test]
    fn what_is_not_described_is_assumed() {
        assert_eq!(described(std::iter::empty()), SAPPHIRE_RAPIDS);
        let found = described([[u32::MAX; 3], [0x21; 3], [0x41; 3], [0; 3]].into_iter());
        assert!(found >= 256 << 10, "{found}");
    }
}
