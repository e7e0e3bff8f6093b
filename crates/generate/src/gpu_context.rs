//! What drivers take of GPUs for a process.

use std::collections::BTreeMap;
use std::sync::OnceLock;

use burn::tensor::{DType, Tensor};
use outsize_kernels::gpu::{BACKENDS, download, gpus};
use outsize_machine::gpu_free_memory;

/// Bytes of each GPU's memory that its driver took when this process opened it and ran a first
/// kernel, by its number: free memory before less that behind. GPUs whose free memory no driver
/// tells are left out. The first call opens all GPUs; where the process opened them before, nothing
/// is seen of it.
pub fn gpu_contexts() -> &'static BTreeMap<usize, u64> {
    static TAKEN: OnceLock<BTreeMap<usize, u64>> = OnceLock::new();
    TAKEN.get_or_init(|| {
        if BACKENDS.is_empty() {
            return BTreeMap::new();
        }
        let before = gpu_free_memory();
        for gpu in gpus().iter().filter(|gpu| before.contains_key(&gpu.number)) {
            let one = Tensor::<1>::ones([1], (&gpu.device, DType::F32));
            // What is wrong with it is for those to say who use it.
            let _ = download(one + 1.0);
        }
        taken(&before, &gpu_free_memory())
    })
}

fn taken(before: &BTreeMap<usize, u64>, after: &BTreeMap<usize, u64>) -> BTreeMap<usize, u64> {
    let taken = before.iter().map(|(number, before)| {
        let after = after.get(number).unwrap_or(before);
        (*number, before.saturating_sub(*after))
    });
    taken.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_no_longer_free_is_taken() {
        let [before, after] = [[(0, 1000), (1, 500), (3, 7)], [(0, 600), (1, 800), (4, 1)]];
        let taken = taken(&before.into(), &after.into());
        assert_eq!(taken, [(0, 400), (1, 0), (3, 0)].into());
    }

    #[test]
    fn this_machine_is_looked_at_without_failing() {
        assert!(gpu_contexts().keys().all(|number| gpu_free_memory().contains_key(number)));
    }
}
