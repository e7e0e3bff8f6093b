use burn::tensor::{DType, Device, Distribution};
use outsize_kernels::attention::Alibi;
use proptest::prelude::*;

use super::composed::chunk_tokens;
use super::seen::attend_seen;
use super::*;
use crate::kv_cache::{Part, Seen};
use crate::{AttentionCache, Batch, CacheLayer, CacheOptions, CacheSpec, KvDtype, WhenFull};

const HEADS: usize = 4;
const KEY_HEADS: usize = 2;
const WIDTH: usize = 6;

fn spec([_, key_value_heads, head_dim]: [usize; 3], window: Option<usize>) -> CacheSpec {
    let mut spec = CacheSpec::uniform(1, key_value_heads, key_value_heads, head_dim, 1 << 20);
    attention(&mut spec).window = window;
    spec
}

/// Its first layer.
fn attention(spec: &mut CacheSpec) -> &mut AttentionCache {
    match &mut spec.layers[0] {
        CacheLayer::Attention(layer) => layer,
        _ => unreachable!("attention alone"),
    }
}

fn random(shape: [usize; 4]) -> Tensor<4> {
    Tensor::random(shape, Distribution::Normal(0.0, 1.0), &Device::default())
}

const UNCHANGED: Scores<'static> = Scores {
    compute: crate::ActivationDtype::F32,
    scale: None,
    softcap: None,
    bias: None,
    sinks: None,
};

fn scaled(scale: Option<f64>) -> Scores<'static> {
    Scores { scale, ..UNCHANGED }
}

fn values<const D: usize>(tensor: &Tensor<D>) -> Vec<f32> {
    tensor.clone().cast(DType::F32).to_data().try_to_vec().unwrap()
}

/// One text's keys and values in the order of their columns, `[key_heads, width]` each.
#[derive(Default, Clone)]
struct Text {
    keys: Vec<Vec<f32>>,
    values: Vec<Vec<f32>>,
}

impl Text {
    /// Attention as the formula has it, for one query `[heads, width]`, over the columns that are
    /// `visible`; in f64.
    fn attend(
        &self,
        query: &[f32],
        [heads, key_heads, width]: [usize; 3],
        visible: impl Fn(usize) -> bool,
    ) -> Vec<f32> {
        let columns: Vec<_> = (0..self.keys.len()).filter(|&c| visible(c)).collect();
        let mut mixed = Vec::new();
        for head in 0..heads {
            let from = head / (heads / key_heads) * width;
            let query = &query[head * width..][..width];
            let score = |column: usize| {
                let key = &self.keys[column][from..from + width];
                let dot = query.iter().zip(key).map(|(a, b)| f64::from(a * b));
                (dot.sum::<f64>() / (width as f64).sqrt()).exp()
            };
            let weights: Vec<f64> = columns.iter().map(|&column| score(column)).collect();
            let sum: f64 = weights.iter().sum();
            for i in from..from + width {
                let weighted = weights.iter().zip(&columns);
                let value = |(w, &c): (&f64, &usize)| w * f64::from(self.values[c][i]);
                mixed.push((weighted.map(value).sum::<f64>() / sum) as f32);
            }
        }
        mixed
    }
}

/// A cache, beside it all that was ever put there, and one to be compared with the other.
struct Bench {
    cache: KvCache,
    shape: [usize; 3],
    keys_are_values: bool,
    /// Columns that a token sees.
    window: usize,
    texts: Vec<Text>,
}

impl Bench {
    fn new(shape: [usize; 3], window: Option<usize>, options: CacheOptions) -> Self {
        Self::of(shape, spec(shape, window), options)
    }

    fn of(shape: [usize; 3], mut spec: CacheSpec, options: CacheOptions) -> Self {
        let AttentionCache { window, keys_are_values, .. } = *attention(&mut spec);
        let slide = match options.when_full {
            WhenFull::Refuse => usize::MAX,
            WhenFull::Slide | WhenFull::Replace => options.context,
        };
        Self {
            cache: KvCache::new(&spec, &options, &Device::default()).unwrap(),
            shape,
            keys_are_values,
            window: window.unwrap_or(usize::MAX).min(slide),
            texts: vec![Text::default(); options.batch],
        }
    }

    /// Runs a pass of random tokens; the greatest difference to the formula, at columns with
    /// tokens.
    fn pass(&mut self, batch: &Batch) -> f32 {
        let [heads, key_heads, width] = self.shape;
        let (rows, tokens, start) = (batch.rows(), batch.tokens(), self.cache.position());
        let queries = random([rows, tokens, heads, width]);
        let keys = random([rows, key_heads, tokens, width]);
        let new_values = match self.keys_are_values {
            true => keys.clone(),
            false => random([rows, key_heads, tokens, width]),
        };
        // What the cache keeps, rounded as it says.
        let dtype = self.cache.options().dtype.dtype();
        let by_column = |tensor: &Tensor<4>| values(&tensor.clone().cast(dtype).swap_dims(1, 2));
        let (k, v) = (by_column(&keys), by_column(&new_values));
        self.texts.resize(rows, Text::default());
        for (row, text) in self.texts.iter_mut().enumerate() {
            text.keys.truncate(start);
            text.values.truncate(start);
            for column in 0..tokens {
                let from = (row * tokens + column) * key_heads * width;
                text.keys.push(k[from..from + key_heads * width].to_vec());
                text.values.push(v[from..from + key_heads * width].to_vec());
            }
        }
        self.cache.begin(batch);
        let padding: Vec<usize> = self.cache.padding().to_vec();
        let padding: Vec<usize> = padding.iter().zip(batch.padding()).map(|(a, b)| a + b).collect();
        let seen = self.cache.see(0, keys, new_values).unwrap();
        let positions = QueryPositions { start, padding: &padding, ..Default::default() };
        // On the CPU in one operation, elsewhere in several; scaled by default, and as asked.
        let (half, twice) = (queries.clone() * 0.5, Some(2.0 / (width as f64).sqrt()));
        let ways = [
            attend_seen(queries.clone(), &seen, &positions, scaled(None)),
            attend_seen(half.clone(), &seen, &positions, scaled(twice)),
            composed::attend(queries.clone(), &seen, &positions, scaled(None)),
            composed::attend(half, &seen, &positions, scaled(twice)),
        ]
        .map(|found| values(&found));
        let biased = [Alibi::new(heads), Alibi::falcon(heads)].map(|alibi| {
            let positions = QueryPositions { alibi: Some(&alibi), ..positions };
            [attend_seen, composed::attend]
                .map(|attend| values(&attend(queries.clone(), &seen, &positions, scaled(None))))
        });
        self.cache.keep(0, seen).unwrap();
        self.cache.advance(batch);

        let queries = values(&queries);
        let mut worst = 0.0f32;
        for (row, text) in self.texts.iter().enumerate() {
            for token in 0..tokens {
                let (column, from) = (start + token, (row * tokens + token) * heads * width);
                let ways = ways.each_ref().map(|y| &y[from..from + heads * width]);
                assert!(
                    ways.iter().all(|y| y.iter().all(|v| v.is_finite())),
                    "padding must be finite"
                );
                if column < padding[row] {
                    continue;
                }
                let visible =
                    |key: usize| key <= column && column - key < self.window && key >= padding[row];
                for [one, other] in &biased {
                    let pairs = one[from..].iter().zip(&other[from..]).take(heads * width);
                    worst = pairs.fold(worst, |worst, (a, b)| worst.max((a - b).abs()));
                }
                let query = &queries[from..from + heads * width];
                let expected = text.attend(query, self.shape, visible);
                for found in ways {
                    for (found, expected) in found.iter().zip(&expected) {
                        worst = worst.max((found - expected).abs());
                    }
                }
            }
        }
        worst
    }

    /// Copies a text, and keeps the first `rows`.
    fn copy(&mut self, from: usize, to: usize, rows: usize) {
        self.cache.copy_rows(&[(from, to)], rows).unwrap();
        self.texts.resize(self.texts.len().max(to + 1), Text::default());
        self.texts[to] = self.texts[from].clone();
        self.texts.truncate(rows);
    }

    fn single(&mut self, tokens: usize) -> f32 {
        self.pass(&Batch::left_padded(&[vec![0; tokens]]).unwrap())
    }
}

#[test]
fn in_chunks_or_at_once_it_follows_the_formula() {
    let shape = [32, 4, 6];
    // The last has more scores than the bound: 32 · 300 · 500 · 4 bytes are 19 MB, three chunks.
    for (tokens, length) in [(1, 1), (1, 9), (5, 5), (3, 11), (300, 500usize)] {
        let chunks = usize::div_ceil(tokens, chunk_tokens(32, length));
        assert_eq!(chunks, if tokens == 300 { 3 } else { 1 });
        let mut bench = Bench::new(shape, None, CacheOptions::new(length));
        if length > tokens {
            bench.single(length - tokens);
        }
        let worst = bench.single(tokens);
        assert!(worst < 1e-5, "{tokens} of {length}: {worst}");
    }
}

#[test]
fn in_chunks_a_window_follows_the_formula() {
    let mut bench = Bench::new([32, 4, 6], Some(400), CacheOptions::new(2000));
    assert!(bench.single(350) < 1e-5);
    // 32 · 300 · 700 · 4 bytes are 27 MB, and the window's end is passed.
    assert!(chunk_tokens(32, 700) < 300);
    assert!(bench.single(300) < 1e-5);
    assert!(bench.single(1) < 1e-5);
}

#[test]
fn values_wider_than_one_piece_follow_the_formula() {
    for dtype in [KvDtype::Bf16, KvDtype::F16] {
        let options = CacheOptions { dtype, ..CacheOptions::new(700) };
        // 4 · 256 · 4 bytes a column: 256 columns are a piece.
        let mut bench = Bench::new([4, 4, 256], None, options);
        assert!(bench.single(600) < 1e-5);
        assert!(bench.single(1) < 1e-5);
    }
}

#[test]
fn chunks_keep_their_bound() {
    for (heads, length) in [(32, 2048), (32, 1 << 17), (1, 1), (4096, 1 << 24)] {
        let tokens = chunk_tokens(heads, length);
        assert!(tokens == 1 || tokens * heads * length * 4 <= SCORE_BYTES);
        assert!((tokens + 1) * heads * length * 4 > SCORE_BYTES);
    }
}

/// In an encoder and in a decoder, padded: the kernel and Burn's own operations are two ways to the
/// same.
#[test]
fn a_bias_by_distance_is_the_same_both_ways() {
    let init = crate::Init::new(&Device::default());
    for (bidirectional, batch, tokens) in [(true, 2, 90), (false, 2, 90), (false, 1, 1)] {
        let buckets = DistanceBuckets { buckets: 12, max_distance: 30, bidirectional };
        let table = crate::layers::Embedding::new(12, HEADS, &init);
        let bias = PositionBias::new(&table, &buckets);
        let bias = Scores { scale: Some(1.0), bias: Some(&bias), ..UNCHANGED };
        let padding: Vec<usize> = (0..batch).map(|row| row * 17).collect();
        let positions = QueryPositions { padding: &padding, ..Default::default() };
        let queries = random([batch, tokens, HEADS, WIDTH]);
        let [keys, values_of] = [(); 2].map(|()| random([batch, HEADS, tokens, WIDTH]));
        let whole = Seen::whole(Part::of(keys, values_of));
        let seen = Seen { all: bidirectional, ..whole };
        let kernel = values(&attend_seen(queries.clone(), &seen, &positions, bias));
        let composed = values(&composed::attend(queries.clone(), &seen, &positions, bias));
        let without = values(&attend_seen(queries, &seen, &positions, scaled(Some(1.0))));
        let width = HEADS * WIDTH;
        let of_tokens = |all: &[f32]| -> Vec<f32> {
            let rows = all.chunks(width).enumerate();
            rows.filter(|(row, _)| row % tokens >= padding[row / tokens])
                .flat_map(|(_, row)| row.to_vec())
                .collect()
        };
        let worst = |a: &[f32], b: &[f32]| {
            let pairs = of_tokens(a).into_iter().zip(of_tokens(b));
            pairs.map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max)
        };
        assert!(worst(&kernel, &composed) < 1e-5, "{}", worst(&kernel, &composed));
        // A single token sees itself alone.
        assert!(tokens == 1 || worst(&kernel, &without) > 1e-4);
    }
}

/// What stands behind a text sees it, and is not seen: the kernel and Burn's own operations are two
/// ways to the same.
#[test]
fn what_is_behind_a_text_is_the_same_both_ways() {
    let (tokens, lengths) = (90, [40, 90, 1]);
    let positions = QueryPositions { padding: &[0; 3], lengths: &lengths, ..Default::default() };
    let queries = random([3, tokens, HEADS, WIDTH]);
    let [keys, values_of] = [(); 2].map(|()| random([3, HEADS, tokens, WIDTH]));
    let seen = Seen { all: false, ..Seen::whole(Part::of(keys, values_of)) };
    let kernel = values(&attend_seen(queries.clone(), &seen, &positions, scaled(None)));
    let composed = values(&composed::attend(queries.clone(), &seen, &positions, scaled(None)));
    let worst = |one: &[f32], other: &[f32]| {
        one.iter().zip(other).map(|(a, b)| (a - b).abs()).fold(0.0f32, f32::max)
    };
    assert!(worst(&kernel, &composed) < 1e-5, "{}", worst(&kernel, &composed));
    let positions = QueryPositions { lengths: &[], ..positions };
    let causal = values(&attend_seen(queries, &seen, &positions, scaled(None)));
    assert!(worst(&kernel, &causal) > 1e-2);
}

#[derive(Debug, Clone)]
enum Step {
    Pass(usize),
    /// A pass that fails after the layer was written.
    Fail(usize),
    Truncate(usize),
    /// From the column that comes next, or some behind it.
    SnapshotAt(usize),
    GoBack(usize),
    /// One text becomes another, perhaps as one more; then so many stay.
    Copy([usize; 3]),
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        6 => (1usize..12).prop_map(Step::Pass),
        4 => Just(Step::Pass(1)),
        1 => (1usize..12).prop_map(Step::Fail),
        3 => (0usize..40).prop_map(Step::Truncate),
        2 => (0usize..9).prop_map(Step::SnapshotAt),
        2 => (0usize..40).prop_map(Step::GoBack),
        3 => [0usize..9, 0..9, 0..9].prop_map(Step::Copy),
    ]
}

/// How many columns are held.
fn capacity(bench: &Bench) -> usize {
    let CacheOptions { context, when_full, draft_tokens, .. } = *bench.cache.options();
    let capacity = bench.window.saturating_add(draft_tokens);
    if when_full == WhenFull::Refuse { capacity.min(context) } else { capacity }
}

/// Whether a text cannot go back to `position`.
fn gone(bench: &Bench, written: usize, position: usize) -> bool {
    let oldest = written.saturating_sub(capacity(bench));
    let needed = (position + 1).saturating_sub(bench.window);
    (1..=bench.cache.position()).contains(&position) && oldest > needed
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 200, ..ProptestConfig::default() })]

    /// Passes of any length, with a window or a sliding context, padded, wound back, failed or
    /// copied in between: what comes out is the formula over what is in sight, or an error that
    /// says why not.
    #[test]
    fn whatever_is_done_it_follows_the_formula(
        window in prop::option::of(1usize..14),
        context in 1usize..40,
        slide in any::<bool>(),
        draft_tokens in 0usize..5,
        keys_are_values in any::<bool>(),
        dtype in prop::sample::select(KvDtype::ALL),
        lengths in prop::collection::vec(1usize..9, 1..4),
        steps in prop::collection::vec(step(), 0..12),
    ) {
        let options = CacheOptions {
            prompt: 0,
            batch: lengths.len(),
            beams: 2,
            dtype,
            when_full: if slide { WhenFull::Slide } else { WhenFull::Refuse },
            context,
            snapshot: true,
            draft_tokens,
        };
        let shape = [HEADS, KEY_HEADS, WIDTH];
        let mut spec = spec(shape, window);
        attention(&mut spec).keys_are_values = keys_are_values;
        let mut bench = Bench::of(shape, spec.clone(), options);
        let rows: Vec<_> = lengths.iter().map(|&length| vec![0; length]).collect();
        let first = Batch::left_padded(&rows).unwrap();
        // One past the last column that was written.
        let mut written = 0;
        // Where a snapshot is asked for, and where there is one.
        let (mut wanted, mut taken) = (None, None);
        let go_on = |rows, tokens| Batch::left_padded(&vec![vec![0; tokens]; rows]).unwrap();
        let mut batch = Some(first.clone());
        for step in std::iter::once(Step::Pass(1)).chain(steps) {
            match step {
                Step::Pass(tokens) | Step::Fail(tokens) => {
                    let batch = batch.take().unwrap_or_else(|| go_on(bench.cache.rows(), tokens));
                    let position = bench.cache.position();
                    let end = position + batch.tokens();
                    match bench.cache.check(&spec, &batch) {
                        Ok(()) => prop_assert!(slide || end <= context),
                        Err(Error::ContextFull { .. }) => {
                            prop_assert!(!slide && end > context);
                            continue;
                        }
                        Err(Error::Forgotten { oldest, needed, .. }) => {
                            prop_assert_eq!(oldest, written - capacity(&bench));
                            prop_assert_eq!(needed, (position + 1).saturating_sub(bench.window));
                            prop_assert!(needed < oldest);
                            bench.cache.clear();
                            (written, wanted, taken) = (0, None, None);
                            continue;
                        }
                        Err(other) => return Err(TestCaseError::fail(other.to_string())),
                    }
                    written = written.max(end);
                    let takes = wanted.filter(|at| (position..end).contains(at));
                    taken = taken.filter(|_| takes.is_none());
                    if matches!(step, Step::Fail(_)) {
                        let shape = [batch.rows(), KEY_HEADS, batch.tokens(), WIDTH];
                        bench.cache.begin(&batch);
                        let seen = bench.cache.see(0, random(shape), random(shape)).unwrap();
                        bench.cache.keep(0, seen).unwrap();
                        continue;
                    }
                    let worst = bench.pass(&batch);
                    prop_assert!(worst < 1e-5, "off by {worst}");
                    if takes.is_some() {
                        (wanted, taken) = (None, takes);
                    }
                }
                Step::SnapshotAt(ahead) => {
                    let at = bench.cache.position() + ahead;
                    bench.cache.snapshot_at(at);
                    wanted = Some(at).filter(|&at| at > 0);
                }
                Step::GoBack(position) => {
                    let before = bench.cache.position();
                    let gone = gone(&bench, written, position);
                    let now = match (gone, taken.filter(|&taken| taken <= position)) {
                        (true, Some(taken)) => {
                            written = taken;
                            taken
                        }
                        (true, None) => 0,
                        (false, _) => position.min(before),
                    };
                    prop_assert_eq!(bench.cache.go_back(position), now);
                    taken = taken.filter(|&taken| taken <= now);
                    if now == 0 && (gone || position == 0) {
                        (written, wanted, taken) = (0, None, None);
                    }
                }
                Step::Truncate(position) => {
                    let before = bench.cache.position();
                    let gone = gone(&bench, written, position);
                    prop_assert_eq!(bench.cache.truncate(position).is_err(), gone);
                    let now = if gone { before } else { position.min(before) };
                    prop_assert_eq!(bench.cache.position(), now);
                    taken = taken.filter(|&taken| taken <= now);
                    if position == 0 {
                        (written, wanted, taken) = (0, None, None);
                    }
                }
                Step::Copy([from, to, rows]) => {
                    let held = bench.cache.rows();
                    if bench.cache.position() > 0 {
                        taken = None;
                        let to = (to % (held + 1)).min(options.sequences() - 1);
                        bench.copy(from % held, to, 1 + rows % held.max(to + 1));
                    }
                }
            }
        }
    }
}
