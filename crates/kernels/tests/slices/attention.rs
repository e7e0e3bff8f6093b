//! Attention over slices: beside the formula in f64, and what its bits depend on.

use std::ops::Range;

use crate::common::{COMPUTES, DTYPES, Dtype, Stored, available, bits, values};
use outsize_kernels::attention::{
    Alibi, AttentionMask, AttentionShape, BLOCK, KvSegment, RelativeBias, RingLayout, StridedRows,
    attend_into,
};
use outsize_kernels::{ActivationDtype, Isa, Weight};
use proptest::prelude::*;

/// How attention is computed.
type Way = (Isa, ActivationDtype);

/// All ways that differ.
fn ways() -> impl Iterator<Item = Way> {
    let all = available().flat_map(|isa| COMPUTES.map(|compute| (isa, compute)));
    all.filter(|way| way.1 == ActivationDtype::F32 || rounds(*way))
}

/// Whether numbers are rounded: for tiles alone.
fn rounds((isa, compute): Way) -> bool {
    (isa, compute) == (Isa::AmxBf16, ActivationDtype::Bf16)
}

fn causal(start: usize, window: usize, padding: Vec<usize>) -> AttentionMask {
    AttentionMask { start, window, padding, ..AttentionMask::default() }
}

/// Queries, keys and values of sequences, by column.
#[derive(Clone, Debug)]
struct Sequences {
    heads: AttentionShape,
    mask: AttentionMask,
    scale: Option<f32>,
    /// `[batch, tokens, heads, width]`.
    queries: Vec<f32>,
    /// `[batch, columns, key_heads, width]`, rounded to the type that they are stored in.
    keys: Vec<f32>,
    values: Vec<f32>,
    dtype: Dtype,
}

/// Where columns are kept.
#[derive(Clone, Copy, Debug)]
enum Layout {
    /// One behind the other, with some slots to spare.
    Straight,
    /// The newest take the slots of the oldest: the last so many columns.
    Ring(usize),
    /// Columns of earlier passes as in `Ring`, those of this pass beside them, token after token.
    Beside(usize),
}

impl Sequences {
    fn new(heads: AttentionShape, mask: AttentionMask, dtype: Dtype, seed: u64) -> Self {
        let columns = mask.start + heads.tokens;
        let stored = |seed| {
            let count = heads.batch * columns * heads.key_heads * heads.width;
            Stored::new(dtype, &values(count, seed)).values()
        };
        let queries = heads.batch * heads.tokens * heads.heads * heads.width;
        Self {
            heads,
            // Scores far apart and close together.
            queries: values(queries, seed).iter().map(|q| q * 8.0).collect(),
            keys: stored(seed + 1),
            values: stored(seed + 2),
            mask,
            scale: None,
            dtype,
        }
    }

    /// The same with scores as close together as those of rounded numbers must be to have a bound.
    fn near(&self) -> Self {
        let queries = self.queries.iter().map(|query| query / 8.0).collect();
        Self { queries, ..self.clone() }
    }

    fn columns(&self) -> usize {
        self.mask.end.unwrap_or(self.mask.start + self.heads.tokens)
    }

    /// The columns that a token sees.
    fn seen(&self, sequence: usize, token: usize) -> Range<usize> {
        let own = self.mask.start + token + 1;
        let end = self.mask.end.unwrap_or(own);
        let padding = self.mask.padding[sequence];
        if self.mask.end.is_some() {
            return padding..end;
        }
        let sees = |column: &usize| {
            let is_near = own - 1 < column.saturating_add(self.mask.window);
            let chunk_of = |column: usize| self.mask.chunk.map(|chunk| (column - padding) / chunk);
            is_near && chunk_of(*column) == chunk_of(own - 1)
        };
        (padding..own).find(sees).unwrap_or(padding)..end
    }

    /// What is added to the score of a query's and a key's column: by slope, and by distance.
    fn bias(&self, sequence: usize, head: usize, columns: [usize; 2]) -> [f64; 2] {
        let AttentionShape { width, .. } = self.heads;
        let scale = self.scale.unwrap_or_else(|| (width as f32).sqrt().recip());
        let padding = self.mask.padding[sequence];
        let [query, key] = columns.map(|column| column.saturating_sub(padding));
        let alibi = self.mask.alibi.as_ref().map(|alibi| alibi.bias(head, query, key, scale));
        let [query, key] = columns;
        let relative = self.mask.relative_bias.as_ref().map(|bias| bias.at(head, query, key));
        [alibi, relative].map(|bias| f64::from(bias.unwrap_or(0.0)))
    }

    /// A row of keys or values.
    fn row<'a>(&self, of: &'a [f32], sequence: usize, column: usize, head: usize) -> &'a [f32] {
        let AttentionShape { key_heads, width, .. } = self.heads;
        &of[((sequence * self.columns() + column) * key_heads + head) * width..][..width]
    }

    /// The formula in f64, and what the documentation allows to be off.
    fn reference(&self, way: Way) -> Vec<(f64, f64)> {
        let AttentionShape { batch, tokens, heads, key_heads, width } = self.heads;
        let scale = self.scale.map_or((width as f64).sqrt().recip(), f64::from);
        let mut results = vec![];
        for row in 0..batch * tokens * heads {
            let (sequence, token, head) =
                (row / heads / tokens, row / heads % tokens, row % heads / (heads / key_heads));
            let query = &self.queries[row * width..][..width];
            let seen = self.seen(sequence, token);
            let scores: Vec<(f64, f64)> = seen
                .clone()
                .map(|column| {
                    let key = self.row(&self.keys, sequence, column, head);
                    let matmuls =
                        query.iter().zip(key).map(|(&q, &k)| f64::from(q) * f64::from(k) * scale);
                    let bias = self.bias(sequence, row % heads, [self.mask.start + token, column]);
                    let score = matmuls.clone().sum::<f64>();
                    let score = match self.mask.softcap.map(f64::from) {
                        Some(cap) => cap * (score / cap).tanh(),
                        None => score,
                    };
                    (
                        score + bias.iter().sum::<f64>(),
                        matmuls.chain(bias).map(f64::abs).sum::<f64>(),
                    )
                })
                .collect();
            let most = scores.iter().fold(f64::NEG_INFINITY, |most, s| most.max(s.0));
            let magnitude = scores.iter().fold(0.0f64, |most, s| most.max(s.1));
            let rounded = if rounds(way) { 2f64.powi(-7) } else { 0.0 };
            let capped = self.mask.softcap.map_or(0.0, |cap| f64::from(cap) * 2f64.powi(-20));
            let off = ((width as f64 + 6.0) * 2f64.powi(-23) + rounded) * magnitude + capped;
            let allowed = 4.0 * off + (1.25 * seen.len() as f64 + 32.0) * 2f64.powi(-23) + rounded;
            let weights: Vec<f64> = scores.iter().map(|s| (s.0 - most).exp()).collect();
            let sink = self.mask.sinks.as_ref().map(|sinks| f64::from(sinks[row % heads]));
            let sum = weights.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - most).exp());
            for i in 0..width {
                let parts = weights.iter().zip(seen.clone()).map(|(weight, column)| {
                    weight * f64::from(self.row(&self.values, sequence, column, head)[i])
                });
                let (mixed, size): (f64, f64) =
                    parts.fold((0.0, 0.0), |(a, b), part| (a + part, b + part.abs()));
                results.push(match seen.is_empty() {
                    true => (0.0, 0.0),
                    false => (mixed / sum, allowed * size / sum),
                });
            }
        }
        results
    }

    /// Attention with keys and values in a layout; what no token may see is NaN.
    fn attend(&self, way: Way, layout: Layout) -> Vec<f32> {
        let (columns, start) = (self.columns(), self.mask.start);
        let parts = match layout {
            Layout::Straight => vec![(0..columns, columns + 3, 0, false)],
            Layout::Ring(capacity) => {
                vec![(columns.saturating_sub(capacity)..columns, capacity, 0, false)]
            }
            Layout::Beside(capacity) => vec![
                (start.saturating_sub(capacity)..start, capacity, 0, false),
                (start..columns, self.heads.tokens, start, true),
            ],
        };
        let stored: Vec<_> = parts
            .into_iter()
            .map(|(columns, capacity, origin, by_token)| {
                let ring = RingLayout { first: columns.start, end: columns.end, capacity, origin };
                let [keys, values] =
                    [&self.keys, &self.values].map(|of| self.store(of, &ring, by_token));
                (ring, by_token, keys, values)
            })
            .collect();
        let held: Vec<KvSegment> = stored
            .iter()
            .map(|(ring, by_token, keys, values)| KvSegment {
                keys: self.rows(keys.weight(), ring.capacity, *by_token),
                values: self.rows(values.weight(), ring.capacity, *by_token),
                ring: *ring,
            })
            .collect();
        let mut y = vec![f32::NAN; self.queries.len()];
        attend_into(way, &self.queries, self.heads, &held, &self.mask, self.scale, &mut y);
        y
    }

    fn rows<'a>(&self, elements: Weight<'a>, capacity: usize, by_token: bool) -> StridedRows<'a> {
        let AttentionShape { key_heads, width, .. } = self.heads;
        let (head, slot) = match by_token {
            true => (width, key_heads * width),
            false => (capacity * width, width),
        };
        StridedRows {
            elements,
            sequence_stride: capacity * key_heads * width,
            head_stride: head,
            slot_stride: slot,
        }
    }

    fn store(&self, of: &[f32], ring: &RingLayout, by_token: bool) -> Stored {
        let AttentionShape { batch, key_heads, width, .. } = self.heads;
        let mut storage = vec![f32::NAN; batch * key_heads * ring.capacity * width];
        for sequence in 0..batch {
            for column in ring.first.max(self.mask.padding[sequence])..ring.end {
                let place = (column - ring.origin) % ring.capacity;
                for head in 0..key_heads {
                    let at = match by_token {
                        true => (sequence * ring.capacity + place) * key_heads + head,
                        false => (sequence * key_heads + head) * ring.capacity + place,
                    };
                    storage[at * width..][..width]
                        .copy_from_slice(self.row(of, sequence, column, head));
                }
            }
        }
        Stored::new(self.dtype, &storage)
    }

    /// Layouts that hold all that is visible.
    fn layouts(&self) -> Vec<Layout> {
        let oldest =
            (0..self.heads.batch).map(|sequence| self.seen(sequence, 0).start).min().unwrap_or(0);
        let start = self.mask.start;
        vec![
            Layout::Straight,
            Layout::Ring((self.columns() - oldest.min(start)).max(1)),
            Layout::Beside(start.saturating_sub(oldest).max(1)),
        ]
    }
}

fn sequences() -> impl Strategy<Value = Sequences> {
    let window = prop_oneof![Just(usize::MAX), 1usize..700];
    let start = prop_oneof![0usize..40, 200usize..600];
    let heads = (1usize..=3, 1usize..=3, 1usize..=5, prop_oneof![1usize..40, Just(64), Just(80)]);
    let scale = prop::option::of(0.01f32..0.5);
    let alibi = prop::sample::select(vec![
        None,
        None,
        Some(Alibi::new as fn(_) -> _),
        Some(Alibi::falcon as fn(_) -> _),
    ]);
    // Whether all is seen, what scores stay below, what is added by a head's slope, how far a
    // relative bias reaches, whether there are sinks, and how long chunks are.
    let softcap = prop::option::of(0.2f32..20.0);
    let reach = prop::option::of(1usize..30);
    let mask = (any::<bool>(), softcap, alibi, reach, any::<bool>(), prop::option::of(1usize..30));
    (heads, 1usize..=20, start, window, (scale, mask), 0usize..=3, any::<u32>()).prop_map(
        |((batch, key_heads, group, width), tokens, start, window, (scale, mask), dtype, seed)| {
            let heads =
                AttentionShape { batch, tokens, heads: key_heads * group, key_heads, width };
            let padding = (0..batch)
                .map(|sequence| {
                    seed as usize / (sequence + 1) % (start + tokens + 1) * (sequence % 2)
                })
                .collect();
            let (all, softcap, alibi, reach, has_sinks, chunk) = mask;
            let mask = AttentionMask {
                start,
                end: all.then_some(start + tokens),
                window: if all { usize::MAX } else { window },
                chunk,
                padding,
                lengths: Vec::new(),
                groups: Vec::new(),
                softcap,
                alibi: alibi.map(|alibi| alibi(heads.heads)),
                relative_bias: reach.map(|reach| {
                    let count = heads.heads * (2 * reach + 1);
                    RelativeBias::new(values(count, u64::from(seed) + 3), reach)
                }),
                sinks: has_sinks.then(|| {
                    let sinks = values(heads.heads, u64::from(seed) + 4);
                    sinks.iter().map(|sink| sink * 8.0).collect()
                }),
            };
            Sequences { scale, ..Sequences::new(heads, mask, DTYPES[dtype.min(2)], seed.into()) }
        },
    )
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn follows_the_formula_and_no_layout_changes_a_bit(sequences in sequences()) {
        for way in ways() {
            // Where scores are far off, so is what comes of them.
            let sequences = match rounds(way) {
                true => sequences.near(),
                false => sequences.clone(),
            };
            let expected = sequences.reference(way);
            let found = sequences.attend(way, Layout::Straight);
            for (at, (&found, &(expected, allowed))) in found.iter().zip(&expected).enumerate() {
                prop_assert!(
                    (f64::from(found) - expected).abs() <= allowed,
                    "{:?}, element {}: {} for {}, {} allowed", way, at, found, expected, allowed
                );
            }
            for layout in sequences.layouts() {
                prop_assert_eq!(bits(&sequences.attend(way, layout)), bits(&found), "{:?} {:?}", way, layout);
            }
        }
    }

    /// The tokens of a pass one by one, and each sequence of a batch alone and without its padding.
    #[test]
    fn a_token_alone_has_the_same_bits(sequences in sequences()) {
        let AttentionShape { batch, tokens, heads, key_heads, width } = sequences.heads;
        let (row, columns) = (heads * width, sequences.columns());
        for way in ways() {
            let whole = sequences.attend(way, Layout::Straight);
            for sequence in 0..batch {
                let padding = sequences.mask.padding[sequence];
                // An emulated instruction takes microseconds: some tokens must do.
                let every = match way.0 == Isa::AmxBf16 && crate::common::amx_is_emulated() {
                    true => tokens.div_ceil(3),
                    false => 1,
                };
                for token in (0..tokens).rev().step_by(every) {
                    let own = sequences.mask.start + token + 1;
                    let end = sequences.mask.end.unwrap_or(own);
                    let found = &whole[(sequence * tokens + token) * row..][..row];
                    if own <= padding {
                        let all = sequences.mask.end.is_some_and(|end| end > padding);
                        let right = |&y: &f32| if all { y.is_finite() } else { y == 0.0 };
                        prop_assert!(found.iter().all(right));
                        continue;
                    }
                    let cut = |of: &[f32]| {
                        let size = key_heads * width;
                        of[(sequence * columns + padding) * size..(sequence * columns + end) * size].to_vec()
                    };
                    let alone = Sequences {
                        heads: AttentionShape { batch: 1, tokens: 1, ..sequences.heads },
                        mask: AttentionMask {
                            start: own - padding - 1,
                            end: sequences.mask.end.map(|end| end - padding),
                            padding: vec![0],
                            ..sequences.mask.clone()
                        },
                        queries: sequences.queries[(sequence * tokens + token) * row..][..row].to_vec(),
                        keys: cut(&sequences.keys),
                        values: cut(&sequences.values),
                        dtype: sequences.dtype,
                        scale: sequences.scale,
                    };
                    prop_assert_eq!(bits(&alone.attend(way, Layout::Straight)), bits(found));
                }
            }
        }
    }
}

/// What stands behind all that is seen sees it as an encoder's tokens do, and is not seen itself.
#[test]
fn what_is_behind_a_sequence_sees_all_of_it() {
    let (tokens, lengths) = (150, [70, 150, 1]);
    let heads = AttentionShape { batch: 3, tokens, heads: 4, key_heads: 2, width: 24 };
    let mask = |lengths: &[usize], end| AttentionMask {
        end,
        window: usize::MAX,
        padding: vec![0; 3],
        lengths: lengths.to_vec(),
        ..AttentionMask::default()
    };
    let of = |lengths: &[usize], end| Sequences::new(heads, mask(lengths, end), DTYPES[0], 5);
    let row = 4 * 24;
    for way in ways() {
        let found = of(&lengths, None).attend(way, Layout::Straight);
        let causal = of(&[], None).attend(way, Layout::Straight);
        let all = of(&lengths, Some(tokens)).attend(way, Layout::Straight);
        for (sequence, length) in lengths.into_iter().enumerate() {
            for token in 0..tokens {
                let expected = if token < length { &causal } else { &all };
                let place = (sequence * tokens + token) * row;
                let [found, expected] = [&found, expected].map(|y| &y[place..place + row]);
                assert_eq!(bits(found), bits(expected), "{way:?}, {sequence}, {token}");
            }
        }
        // One that sees all of another length sees other keys.
        assert_ne!(bits(&all), bits(&of(&[], Some(tokens)).attend(way, Layout::Straight)));
    }
}

/// The tokens of an image see what an encoder's tokens see up to its end.
#[test]
fn tokens_of_a_group_see_each_other() {
    let tokens = 150;
    let groups = [20..60, 100..101, 110..150];
    let heads = AttentionShape { batch: 1, tokens, heads: 4, key_heads: 2, width: 24 };
    let of = |groups: &[std::ops::Range<usize>], end, window| {
        let (padding, groups) = (vec![0], groups.to_vec());
        let mask = AttentionMask { end, window, padding, groups, ..AttentionMask::default() };
        Sequences::new(heads, mask, DTYPES[0], 5)
    };
    let row = 4 * 24;
    for way in ways() {
        let attend =
            |groups: &[_], end, window| of(groups, end, window).attend(way, Layout::Straight);
        let found = attend(&groups, None, usize::MAX);
        let causal = attend(&[], None, usize::MAX);
        let seen = groups.clone().map(|group| attend(&[], Some(group.end), usize::MAX));
        for token in 0..tokens {
            let group = groups.iter().position(|group| group.contains(&token));
            let expected = group.map_or(&causal, |group| &seen[group]);
            let [found, expected] =
                [&found, expected].map(|y| bits(&y[token * row..(token + 1) * row]));
            assert_eq!(found, expected, "{way:?}, {token}");
        }
        // What a window hides of an image stays hidden.
        let short = attend(&groups, None, 15);
        let last = 59 * row..60 * row;
        assert_eq!(bits(&short[last.clone()]), bits(&attend(&[], None, 15)[last]), "{way:?}");
        assert_ne!(bits(&short), bits(&attend(&[], None, 15)), "{way:?}");
    }
}

/// Nothing is seen beside work that is shared by blocks of columns.
#[test]
fn a_sequence_of_padding_is_zero() {
    let heads = AttentionShape { batch: 2, tokens: 4, heads: 2, key_heads: 1, width: 80 };
    let mask = AttentionMask {
        start: 466,
        end: None,
        window: usize::MAX,
        padding: vec![0, 470],
        sinks: Some([0.5, -0.5].into()),
        ..AttentionMask::default()
    };
    let sequences = Sequences::new(heads, mask, DTYPES[0], 1);
    for way in ways() {
        let y = sequences.attend(way, Layout::Straight);
        assert!(y[4 * 2 * 80..].iter().all(|&y| y == 0.0), "{way:?}");
    }
}

/// Work enough to be shared: by tasks, and by blocks of columns where there are few tasks.
#[test]
fn threads_change_nothing() {
    let sizes = [
        (1, 1, 8, 1, 3000, 64),
        (1, 1, 2, 2, 5000, 128),
        (2, 1, 32, 4, 1000, 64),
        (1, 130, 8, 2, 40, 64),
    ];
    for (batch, tokens, heads, key_heads, start, width) in sizes {
        let heads = AttentionShape { batch, tokens, heads, key_heads, width };
        let mask = AttentionMask {
            start,
            window: usize::MAX,
            padding: (0..batch).map(|sequence| sequence * 17).collect(),
            alibi: (tokens == 1).then(|| Alibi::new(heads.heads)),
            ..AttentionMask::default()
        };
        let sequences = Sequences::new(heads, mask, Dtype::Bf16, 3);
        for way in ways() {
            let on = |threads| {
                let pool = rayon::ThreadPoolBuilder::new()
                    .num_threads(threads)
                    .build()
                    .expect("threads can be started");
                bits(&pool.install(|| sequences.attend(way, Layout::Straight)))
            };
            let alone = on(1);
            for threads in [2, 3, 8] {
                assert_eq!(on(threads), alone, "{way:?} {heads:?} on {threads} threads");
            }
        }
    }
}

/// The type they are stored in only saves memory.
#[test]
fn widened_keys_and_values_give_the_same_bits() {
    let heads = AttentionShape { batch: 2, tokens: 5, heads: 6, key_heads: 2, width: 72 };
    let mask = causal(2 * BLOCK, 300, vec![0, 7]);
    for dtype in [Dtype::Bf16, Dtype::F16] {
        let stored = Sequences::new(heads, mask.clone(), dtype, 9);
        let wide = Sequences { dtype: Dtype::F32, ..stored.clone() };
        for way in ways() {
            let [stored, wide] = [&stored, &wide].map(|t| bits(&t.attend(way, Layout::Straight)));
            assert_eq!(stored, wide, "{way:?} {dtype:?}");
        }
    }
}

/// What is no number stays with those who see it.
#[test]
fn a_nan_is_seen_by_later_tokens_alone() {
    let heads = AttentionShape { batch: 1, tokens: 6, heads: 1, key_heads: 1, width: 16 };
    let mask = causal(20, usize::MAX, vec![0]);
    for spoil_keys in [true, false] {
        let mut sequences = Sequences::new(heads, mask.clone(), Dtype::F32, 4);
        let column = 22 * heads.width..23 * heads.width;
        match spoil_keys {
            true => sequences.keys[column].fill(f32::NAN),
            false => sequences.values[column].fill(f32::NAN),
        }
        for way in ways() {
            let y = sequences.attend(way, Layout::Straight);
            let (before, after) = y.split_at(2 * heads.width);
            assert!(before.iter().all(|y| y.is_finite()), "{way:?}");
            assert!(after.iter().all(|y| y.is_nan()), "{way:?}");
        }
    }
}

#[test]
fn no_tokens_give_nothing() {
    let heads = AttentionShape { batch: 1, tokens: 0, heads: 2, key_heads: 1, width: 4 };
    let mask = causal(0, 1, vec![0]);
    attend_into((Isa::detected(), ActivationDtype::F32), &[], heads, &[], &mask, None, &mut []);
}

#[test]
#[should_panic(expected = "columns 0..3 are seen, but not all of them are held: [1..3]")]
fn columns_that_are_not_held_are_refused() {
    let heads = AttentionShape { batch: 1, tokens: 1, heads: 1, key_heads: 1, width: 2 };
    let mask = causal(2, usize::MAX, vec![0]);
    let rows = StridedRows {
        elements: Weight::F32(&[0.0; 6]),
        sequence_stride: 6,
        head_stride: 6,
        slot_stride: 2,
    };
    let held = KvSegment {
        keys: rows,
        values: rows,
        ring: RingLayout { first: 1, end: 3, capacity: 3, origin: 0 },
    };
    attend_into(
        (Isa::detected(), ActivationDtype::F32),
        &[0.0; 2],
        heads,
        &[held],
        &mask,
        None,
        &mut [0.0; 2],
    );
}
