//! Plain loops, compiled once for each set of instructions, and how rows are shared among threads.

use std::sync::{Mutex, PoisonError};

use crate::thread_pool;

/// Defines a function that runs a plain one, compiled for the set asked for. The loops in it are
/// vectorized by the compiler; the plain function must be `#[inline(always)]`.
///
/// # Panics
///
/// The function panics if this processor does not have the set.
macro_rules! for_each_isa {
    ($(#[$doc:meta])* fn $name:ident = $plain:ident($($arg:ident: $type:ty),*)) => {
        $(#[$doc])*
        fn $name(isa: $crate::Isa, $($arg: $type),*) {
            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c")]
            fn avx2($($arg: $type),*) {
                $plain($($arg),*);
            }

            #[cfg(target_arch = "x86_64")]
            #[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl")]
            fn avx512($($arg: $type),*) {
                $plain($($arg),*);
            }

            assert!(isa.is_available(), "this processor does not have {isa:?}");
            match isa {
                // SAFETY: the assertion above: this processor has these instructions.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx2 => unsafe { avx2($($arg),*) },
                // SAFETY: as above.
                #[cfg(target_arch = "x86_64")]
                $crate::Isa::Avx512 | $crate::Isa::Avx512Bf16 | $crate::Isa::AmxBf16 => unsafe {
                    avx512($($arg),*)
                },
                _ => $plain($($arg),*),
            }
        }
    };
}

pub(crate) use for_each_isa;

/// How many rows of `width` elements each of several threads takes at a time: enough to be worth
/// it. `None` if there are too few for several.
pub(crate) fn rows_per_share(rows: usize, width: usize) -> Option<usize> {
    /// Below so many elements, sharing takes longer than the work.
    const MIN_ELEMENTS: usize = 8 << 10;
    let least = MIN_ELEMENTS.div_ceil(width.max(1));
    let share = rows.div_ceil(4 * crate::threads()).max(least);
    (share < rows && crate::threads() > 1).then_some(share)
}

/// Does the work on each piece on some thread.
pub(crate) fn share<I>(pieces: I, work: impl Fn(I::Item) + Sync)
where
    I: Iterator + Send,
{
    let pieces = Mutex::new(pieces);
    // No thread holds the lock while it works, and taking the next piece cannot fail half way.
    let next = || pieces.lock().unwrap_or_else(PoisonError::into_inner).next();
    thread_pool::share(crate::threads(), || {
        while let Some(piece) = next() {
            work(piece);
        }
    });
}
