//! Rotary position embedding, over slices.

use crate::Isa;
use crate::loops::{for_each_isa, rows_per_share, share};

/// Rotates each head of each token in place: element `i` together with element `i + width / 2`, by
/// the angle of which the token has cosine and sine. `x` is `[tokens, heads, width]`; `cos` and
/// `sin` are `[rotations, width / 2]`, token `t` taking row `t % rotations`.
///
/// All instruction sets give the same bits.
///
/// # Panics
///
/// If sizes do not fit each other.
pub fn rotate_in_place(x: &mut [f32], heads: usize, width: usize, cos: &[f32], sin: &[f32]) {
    rotate_in_place_with(Isa::detected(), x, heads, width, cos, sin);
}

/// [`rotate_in_place`] with a chosen set of instructions.
///
/// # Panics
///
/// If this processor does not have `isa`, or as [`rotate_in_place`] does.
pub fn rotate_in_place_with(
    isa: Isa,
    x: &mut [f32],
    heads: usize,
    width: usize,
    cos: &[f32],
    sin: &[f32],
) {
    let (half, token) = (width / 2, heads * width);
    if x.is_empty() {
        return;
    }
    assert!(
        half > 0 && width.is_multiple_of(2) && x.len().is_multiple_of(token),
        "{} elements are not tokens of {heads} heads of an even width, {width}",
        x.len()
    );
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
        None => rotate(isa, x, width, token, 0, cos, sin),
        Some(tokens) => share(x.chunks_mut(tokens * token).enumerate(), |(index, x)| {
            rotate(isa, x, width, token, index * tokens, cos, sin)
        }),
    }
}

for_each_isa!(
    fn rotate = rotate_tokens(
        x: &mut [f32], width: usize, token: usize, first: usize, cos: &[f32], sin: &[f32]
    )
);

/// Rotates the tokens from number `first` on.
#[inline(always)]
fn rotate_tokens(
    x: &mut [f32],
    width: usize,
    token: usize,
    first: usize,
    cos: &[f32],
    sin: &[f32],
) {
    let half = width / 2;
    let rotations = cos.len() / half;
    for (index, x) in x.chunks_exact_mut(token).enumerate() {
        let at = (first + index) % rotations * half;
        let (cos, sin) = (&cos[at..at + half], &sin[at..at + half]);
        for head in x.chunks_exact_mut(width) {
            let (left, right) = head.split_at_mut(half);
            let turned = left.iter_mut().zip(right).zip(cos.iter().zip(sin));
            for ((left, right), (cos, sin)) in turned {
                (*left, *right) = (*left * cos - *right * sin, *right * cos + *left * sin);
            }
        }
    }
}
