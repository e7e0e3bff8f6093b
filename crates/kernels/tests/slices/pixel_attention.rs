//! Attention of pixels: beside plain loops in f64, and the same bits however the work is cut.

use crate::common::{COMPUTES, available, bits, values};
use outsize_kernels::attention::{PixelAttentionShape, attend_pixels_into};
use outsize_kernels::{ActivationDtype, Isa};
use proptest::prelude::*;

fn attended(
    (isa, compute): (Isa, ActivationDtype),
    [queries, keys, values]: [&[f32]; 3],
    shape: PixelAttentionShape,
) -> Vec<f32> {
    let mut y = vec![f32::NAN; queries.len()];
    let scale = (shape.width as f32).sqrt().recip();
    attend_pixels_into(isa, compute, [queries, keys, values], shape, scale, &mut y);
    y
}

/// Of one query and element: the result, that of the magnitudes of values, and the most that
/// products with a key come to.
fn reference(
    [queries, keys, values]: [&[f32]; 3],
    shape: &PixelAttentionShape,
    at: [usize; 4],
) -> [f64; 3] {
    let PixelAttentionShape { tokens, seen, heads, width, .. } = *shape;
    let [picture, token, head, element] = at;
    let row = |x: &[f32], rows: usize, row: usize| -> Vec<f64> {
        let begin = ((picture * rows + row) * heads + head) * width;
        x[begin..begin + width].iter().map(|x| f64::from(*x)).collect()
    };
    let (query, scale) = (row(queries, tokens, token), (width as f64).sqrt().recip());
    let score = |key: usize, of: fn(f64) -> f64| {
        let key = row(keys, seen, key);
        query.iter().zip(key).map(|(query, key)| of(query * key * scale)).sum::<f64>()
    };
    let weights: Vec<f64> = (0..seen).map(|key| score(key, |product| product).exp()).collect();
    let most = (0..seen).map(|key| score(key, f64::abs)).fold(0.0, f64::max);
    let total: f64 = weights.iter().sum();
    let mixed = |of: fn(f64) -> f64| {
        let values = (0..seen).map(|key| of(row(values, seen, key)[element]));
        values.zip(&weights).map(|(value, weight)| value * weight).sum::<f64>() / total
    };
    [mixed(|value| value), mixed(f64::abs), most]
}

fn check(shape: PixelAttentionShape, seed: u64) -> Result<(), TestCaseError> {
    let PixelAttentionShape { batch, tokens, seen, heads, width } = shape;
    let of = |rows: usize, more: u64| values(batch * rows * heads * width, seed + more);
    let [queries, keys, mixed] = [of(tokens, 0), of(seen, 1), of(seen, 2)];
    let inputs = [&queries[..], &keys, &mixed];
    for isa in available() {
        for compute in COMPUTES {
            let y = attended((isa, compute), inputs, shape);
            // All of the first and the last queries, some of the others.
            for (index, y) in y.iter().enumerate().step_by(1 + y.len() / 400) {
                let (element, head) = (index % width, index / width % heads);
                let (token, picture) =
                    (index / (width * heads) % tokens, index / (width * heads * tokens));
                let [expected, magnitude, most] =
                    reference(inputs, &shape, [picture, token, head, element]);
                let e = (width as f64 + 6.0) * 2f64.powi(-23) * most;
                let mut allowed =
                    (4.0 * e + (1.25 * seen as f64 + 32.0) * 2f64.powi(-23)) * magnitude;
                if compute == ActivationDtype::Bf16 {
                    allowed += (4.0 * 2f64.powi(-7) * most + 2f64.powi(-7)) * magnitude;
                }
                prop_assert!(
                    (f64::from(*y) - expected).abs() <= allowed,
                    "{isa:?} {compute:?} {shape:?} at {index}: {y} for {expected}, off by more than {allowed}"
                );
            }
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(40))]

    #[test]
    fn attention_agrees_with_f64(
        batch in 1usize..3, tokens in 1usize..90, seen in 1usize..90, heads in 1usize..4, width in 1usize..90,
        seed in any::<u32>(),
    ) {
        check(PixelAttentionShape { batch, tokens, seen, heads, width }, seed.into())?;
    }

    /// Of a query alone, and of a picture alone.
    #[test]
    fn attention_has_the_same_bits_however_it_is_cut(
        tokens in 2usize..80, seen in 1usize..300, heads in 1usize..3, width in 1usize..50,
        threads in 1usize..4, cut in any::<prop::sample::Index>(), seed in any::<u32>(),
    ) {
        let shape = PixelAttentionShape { batch: 2, tokens, seen, heads, width };
        let row = heads * width;
        let of = |rows: usize, more: u64| values(2 * rows * row, u64::from(seed) + more);
        let [queries, keys, mixed] = [of(tokens, 0), of(seen, 1), of(seen, 2)];
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        let cut = 1 + cut.index(tokens - 1);
        for way in available().flat_map(|isa| COMPUTES.map(|compute| (isa, compute))) {
            let y = pool.install(|| attended(way, [&queries, &keys, &mixed], shape));
            let mut parts = Vec::new();
            for picture in 0..2 {
                let queries = &queries[picture * tokens * row..][..tokens * row];
                let [keys, mixed] = [&keys, &mixed].map(|x| &x[picture * seen * row..][..seen * row]);
                for queries in [&queries[..cut * row], &queries[cut * row..]] {
                    let shape = PixelAttentionShape { batch: 1, tokens: queries.len() / row, ..shape };
                    parts.extend(attended(way, [queries, keys, mixed], shape));
                }
            }
            prop_assert_eq!(bits(&parts), bits(&y), "{:?} cut at {}", way, cut);
        }
    }
}

/// Several blocks of keys, and groups of queries.
#[test]
fn large_attention_agrees_with_f64() {
    for (tokens, seen, heads, width) in [(150, 700, 2, 40), (70, 513, 1, 160), (9, 256, 1, 512)] {
        let shape = PixelAttentionShape { batch: 1, tokens, seen, heads, width };
        check(shape, 3).unwrap_or_else(|error| panic!("{error}"));
    }
}

#[test]
fn nothing_seen_is_nothing() {
    let shape = PixelAttentionShape { batch: 1, tokens: 2, seen: 0, heads: 1, width: 3 };
    let y = attended((Isa::detected(), ActivationDtype::F32), [&[1.0; 6], &[], &[]], shape);
    assert_eq!(y, [0.0; 6]);
}
