//! Rotary position embedding, over slices.

use crate::Isa;
use crate::loops::{share, share_size};
use crate::simd::for_each_isa;

/// Which elements of a head are rotated together. Of a head, the first `r` elements are rotated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum RotaryPairs {
    /// Element `i` with `i + r / 2`, as Llama and GPT-NeoX do.
    #[default]
    Halves,
    /// Element `2 i` with `2 i + 1`, as GPT-J does.
    Interleaved,
}

/// The sizes of a rotation of `x [tokens, heads, width]`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RotaryShape {
    /// Heads of a token.
    pub heads: usize,
    /// Elements of a head.
    pub width: usize,
    /// Elements of a head that are rotated, the first ones; even. The others stay as they are.
    pub rotary: usize,
    /// Which of them are rotated together.
    pub pairs: RotaryPairs,
}

/// Rotates each head of each token in place, each pair by the angle of which the token has cosine
/// and sine. `x` is `[tokens, heads, width]`; `cos` and `sin` are `[rotations, rotary / 2]`, token
/// `t` taking row `t % rotations`.
///
/// All instruction sets give the same bits.
///
/// # Panics
///
/// If sizes do not fit each other, or if this processor does not have `isa`.
pub fn rotate_in_place(isa: Isa, x: &mut [f32], shape: RotaryShape, cos: &[f32], sin: &[f32]) {
    let (half, token) = (shape.rotary / 2, shape.heads * shape.width);
    if x.is_empty() {
        return;
    }
    assert!(
        half > 0 && shape.rotary.is_multiple_of(2) && shape.rotary <= shape.width,
        "an even number of a head's elements is rotated, not that of {shape:?}"
    );
    assert!(x.len().is_multiple_of(token), "{} elements are not tokens of {shape:?}", x.len());
    assert!(
        cos.len() == sin.len()
            && !cos.is_empty()
            && (x.len() / token * half).is_multiple_of(cos.len()),
        "{} cosines and {} sines must fit {} tokens of {half} angles",
        cos.len(),
        sin.len(),
        x.len() / token
    );
    let size = share_size(x.len(), token);
    share(x.chunks_mut(size).enumerate(), |(index, x)| {
        rotate(isa, x, shape, index * size / token, cos, sin)
    });
}

for_each_isa! {
    /// Rotates the tokens from number `first` on.
    fn rotate(x: &mut [f32], shape: RotaryShape, first: usize, cos: &[f32], sin: &[f32]) {
        let half = shape.rotary / 2;
        let rotations = cos.len() / half;
        let tokens = x.chunks_exact_mut(shape.heads * shape.width);
        for (index, x) in tokens.enumerate() {
            let at = (first + index) % rotations * half;
            let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
            for head in x.chunks_exact_mut(shape.width) {
                let angles = cos.iter().zip(sin);
                match shape.pairs {
                    RotaryPairs::Halves => {
                        let (left, right) = head.split_at_mut(half);
                        for ((a, b), by) in left.iter_mut().zip(right).zip(angles) {
                            turn(a, b, by);
                        }
                    }
                    RotaryPairs::Interleaved => {
                        for ([a, b], by) in head.as_chunks_mut::<2>().0.iter_mut().zip(angles) {
                            turn(a, b, by);
                        }
                    }
                }
            }
        }
    }
}

#[inline(always)]
fn turn(a: &mut f32, b: &mut f32, (cos, sin): (&f32, &f32)) {
    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
}
