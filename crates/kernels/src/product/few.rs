//! Products of a few rows of activations, shared among threads: several of the same activations as one piece of work.

use half::{bf16, f16};

use super::skinny::Claims;
use super::{Element, Job, Loops, Product, Size, Widened, pack};
#[cfg(target_arch = "x86_64")]
use super::{Pairs, checked};
use crate::{ActivationDtype, Isa, Weight, team};

/// Products of fewer than [`ROWS`](super::skinny::ROWS) rows: those that follow one another with weights of one dtype, as one piece of work.
pub(super) fn products(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    [m, k]: [usize; 2],
    mut products: &mut [Product],
) {
    while let Some(first) = products.first() {
        let dtype = std::mem::discriminant(&first.weight);
        let alike = products
            .iter()
            .take_while(|product| std::mem::discriminant(&product.weight) == dtype)
            .count();
        let (these, rest) = products.split_at_mut(alike);
        match (these[0].weight, compute) {
            #[cfg(target_arch = "x86_64")]
            (Weight::Bf16(_), _) if isa == Isa::AmxBf16 => {
                for Product { weight, n, y } in these {
                    checked(isa, compute, x, *weight, Size { m, n: *n, k }, y);
                }
            }
            #[cfg(target_arch = "x86_64")]
            (Weight::Bf16(_), ActivationDtype::Bf16) if isa == Isa::Avx512Bf16 => {
                share::<_, bf16>(Pairs, x, [m, k], these)
            }
            (_, ActivationDtype::Bf16) => widened(isa, &pack::rounded(x), [m, k], these),
            (_, ActivationDtype::F32) => widened(isa, x, [m, k], these),
        }
        products = rest;
    }
}

/// Products of fewer than [`ROWS`](super::skinny::ROWS) rows, with weights of one dtype widened to f32.
fn widened(isa: Isa, x: &[f32], size: [usize; 2], products: &mut [Product]) {
    match products[0].weight {
        Weight::Bf16(_) => share::<_, bf16>(Widened(isa), x, size, products),
        Weight::F16(_) => share::<_, f16>(Widened(isa), x, size, products),
        Weight::F32(_) => share::<_, f32>(Widened(isa), x, size, products),
    }
}

/// Computes products of fewer than [`ROWS`](super::skinny::ROWS) rows, run by run, on as many threads as they are worth. Weights must be of
/// type `E`; the rows of all of them are shared as if they were those of one.
pub(super) fn share<X: Sync + 'static, E: Element>(
    loops: impl Loops<X, E>,
    x: &[f32],
    [m, k]: [usize; 2],
    products: &mut [Product],
) {
    // Each row of each has its own elements of `y`: so many of them can be counted.
    let n = products.iter().map(|product| product.n).sum();
    let size = Size { m, n, k };
    let x = loops.skinny(x, size);
    let jobs: Vec<Job<X, E>> = products
        .iter_mut()
        .map(|product| Job {
            x: x.as_ptr(),
            weight: E::of(product.weight)
                .expect("weights of one dtype")
                .as_ptr(),
            y: product.y.as_mut_ptr(),
            size: Size { m, n: product.n, k },
        })
        .collect();
    let threads = rayon::current_num_threads();
    let claims = Claims::new(size, size_of::<E>(), threads, loops.unit(m));
    let threads = if claims.are_many() { threads } else { 1 };
    team::share(threads, || {
        while let Some(run) = claims.claim() {
            let mut first = 0;
            for job in &jobs {
                let rows = run.start.max(first)..run.end.min(first + job.size.n);
                if !rows.is_empty() {
                    // SAFETY: `linear_each_into_with` checked that `isa`, which chose these loops, is available, and that the
                    // slices have the lengths that their sizes ask for; `x` was packed for them. All are borrowed until `share`
                    // returns. What is left of a run lies within the rows of the weight, and no row is in two runs, so that
                    // no element of `y` is written by two calls; nothing reads `y`.
                    unsafe { loops.run(job, rows.start - first..rows.end - first) };
                }
                first += job.size.n;
            }
        }
    });
}
