//! The dtypes a weight may have.

use half::{bf16, f16};

use crate::Weight;
use crate::simd::Vector;

/// An element of a stored weight: which loads of a [`Vector`] read it.
pub(crate) trait Element: Copy + Send + Sync + 'static {
    /// The elements of a weight of this dtype; `None` if it is of another.
    fn of(weight: Weight<'_>) -> Option<&[Self]>;

    /// `V::LANES` elements, widened to f32.
    ///
    /// # Safety
    ///
    /// `from` points to `V::LANES` elements, and the processor has `V`'s instructions.
    unsafe fn load<V: Vector>(from: *const Self) -> V;

    /// `count` elements, widened to f32, in the first lanes, and zero in the others.
    ///
    /// # Safety
    ///
    /// `from` points to `count < V::LANES` elements, and the processor has `V`'s instructions.
    unsafe fn load_part<V: Vector>(from: *const Self, count: usize) -> V;
}

/// A dtype that the functions `$load` and `$load_part` of a [`Vector`] read.
macro_rules! element {
    ($dtype:ty, $variant:ident, $load:ident, $load_part:ident) => {
        impl Element for $dtype {
            fn of(weight: Weight<'_>) -> Option<&[Self]> {
                match weight {
                    Weight::$variant(elements) => Some(elements),
                    _ => None,
                }
            }

            #[inline(always)]
            unsafe fn load<V: Vector>(from: *const Self) -> V {
                // SAFETY: the caller's promise; `bf16` and `f16` are transparent u16.
                unsafe { V::$load(from.cast()) }
            }

            #[inline(always)]
            unsafe fn load_part<V: Vector>(from: *const Self, count: usize) -> V {
                // SAFETY: as above.
                unsafe { V::$load_part(from.cast(), count) }
            }
        }
    };
}

element!(f32, F32, f32, f32_part);
element!(bf16, Bf16, bf16, bf16_part);
element!(f16, F16, f16, f16_part);
