//! Rotary position embedding, over slices.

use crate::Isa;
use crate::loops::{for_each_isa, rows_per_share, share};

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
/// If sizes do not fit each other.
pub fn rotate_in_place(x: &mut [f32], shape: RotaryShape, cos: &[f32], sin: &[f32]) {
    rotate_in_place_with(Isa::detected(), x, shape, cos, sin);
}

/// [`rotate_in_place`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`rotate_in_place`] does.
pub fn rotate_in_place_with(isa: Isa, x: &mut [f32], shape: RotaryShape, cos: &[f32], sin: &[f32]) {
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
    match rows_per_share(x.len() / token, token) {
        None => rotate(isa, x, shape, 0, cos, sin),
        Some(tokens) => share(x.chunks_mut(tokens * token).enumerate(), |(index, x)| {
            rotate(isa, x, shape, index * tokens, cos, sin)
        }),
    }
}

for_each_isa!(
    fn rotate = rotate_tokens(
        x: &mut [f32], shape: RotaryShape, first: usize, cos: &[f32], sin: &[f32]
    )
);

/// Rotates the tokens from number `first` on.
#[inline(always)]
fn rotate_tokens(x: &mut [f32], shape: RotaryShape, first: usize, cos: &[f32], sin: &[f32]) {
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
                    let pairs = left.iter_mut().zip(right);
                    pairs.zip(angles).for_each(|((a, b), by)| turn(a, b, by));
                }
                RotaryPairs::Interleaved => {
                    let (pairs, _) = head.as_chunks_mut::<2>();
                    let pairs = pairs.iter_mut().zip(angles);
                    pairs.for_each(|([a, b], by)| turn(a, b, by));
                }
            }
        }
    }
}

#[inline(always)]
fn turn(a: &mut f32, b: &mut f32, (cos, sin): (&f32, &f32)) {
    (*a, *b) = (*a * cos - *b * sin, *b * cos + *a * sin);
}
