//! What linear attention keeps of a text: a matrix a head, in blocks of columns.

use crate::simd::Vector;

/// Columns of a head's matrix that lie together: each token changes these by themselves, and so
/// many of all rows fit a first-level cache.
pub const STATE_COLUMNS: usize = 32;

/// The heads of linear attention, each of which keeps of a text a matrix. Where the matrix is the
/// state of a state space model, its inputs and outputs are keys and queries ([Dao and Gu,
/// 2024](https://arxiv.org/abs/2405.21060)).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LinearAttentionHeads {
    /// Heads of queries and keys; divides those of values.
    pub key_heads: usize,
    /// Heads of values: as many as there are matrices.
    pub value_heads: usize,
    /// Width of a query and of a key.
    pub key_dim: usize,
    /// Width of a value.
    pub value_dim: usize,
    /// Whether heads of values take those of keys in turns; else neighbours take the same one.
    pub in_turns: bool,
}

impl LinearAttentionHeads {
    /// Queries, keys and values of a token.
    pub fn channels(&self) -> usize {
        2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim
    }

    /// Blocks of [`STATE_COLUMNS`] that a head's matrix has.
    pub(crate) fn blocks(&self) -> usize {
        self.value_dim.div_ceil(STATE_COLUMNS)
    }

    /// The state of a text: `[value_heads · blocks, key_dim, STATE_COLUMNS]`. What the last block
    /// of a head has too many columns is zero.
    pub fn state(&self) -> [usize; 3] {
        [self.value_heads * self.blocks(), self.key_dim, STATE_COLUMNS]
    }
}

/// Rows that are summed apart, for eight sums that do not wait for each other.
pub(crate) fn rows_apart<V: Vector>() -> usize {
    V::LANES / 4
}

/// Makes each row so much times itself as `keep` says of the row and a vector of columns, and its
/// element of the key times the change; gives the sum of all rows then, each times its element of
/// the query.
///
/// # Safety
///
/// The state has `STATE_COLUMNS` elements for each of the key and the query, and the processor has
/// the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn change_rows<V: Vector>(
    state: &mut [f32],
    keep: impl Fn(usize, usize) -> V,
    key: &[f32],
    change: &[V; 8],
    query: &[f32],
) -> [V; 8] {
    let (rows, apart) = (key.len(), rows_apart::<V>());
    let even = rows / apart * apart;
    // SAFETY: the caller's promise: all rows lie within the state.
    unsafe {
        let place = state.as_mut_ptr();
        let row = |row: usize| place.add(row * STATE_COLUMNS);
        let mut sums = [[V::zero(); 8]; 4];
        for first in (0..even).step_by(apart) {
            for (at, sums) in (first..).zip(&mut sums[..apart]) {
                change_row(row(at), |column| keep(at, column), *key.get_unchecked(at), change);
                add_row(sums, row(at), *query.get_unchecked(at));
            }
        }
        for at in even..rows {
            change_row(row(at), |column| keep(at, column), *key.get_unchecked(at), change);
            add_row(&mut sums[0], row(at), *query.get_unchecked(at));
        }
        sums_together(&sums, apart)
    }
}

/// Adds a row, multiplied by `by`.
///
/// # Safety
///
/// The row has `STATE_COLUMNS` elements, and the processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn add_row<V: Vector>(sums: &mut [V; 8], row: *const f32, by: f32) {
    for (column, sum) in sums[..STATE_COLUMNS / V::LANES].iter_mut().enumerate() {
        // SAFETY: the caller's promise.
        *sum = unsafe { sum.fma(V::f32(row.add(column * V::LANES)), V::splat(by)) };
    }
}

/// Makes a row `keep` times itself and `key` times the change.
///
/// # Safety
///
/// As for [`add_row`].
#[inline(always)]
unsafe fn change_row<V: Vector>(
    row: *mut f32,
    keep: impl Fn(usize) -> V,
    key: f32,
    change: &[V; 8],
) {
    for (column, change) in change[..STATE_COLUMNS / V::LANES].iter().enumerate() {
        // SAFETY: the caller's promise.
        unsafe {
            let at = row.add(column * V::LANES);
            V::f32(at).mul(keep(column)).fma(*change, V::splat(key)).store(at);
        }
    }
}

/// Sums of so many parts together.
///
/// # Safety
///
/// The processor has the instructions of `V`.
#[inline(always)]
pub(crate) unsafe fn sums_together<V: Vector>(sums: &[[V; 8]; 4], parts: usize) -> [V; 8] {
    let mut all = sums[0];
    for part in &sums[1..parts] {
        for (sum, more) in all.iter_mut().zip(part).take(STATE_COLUMNS / V::LANES) {
            // SAFETY: the caller's promise.
            *sum = unsafe { sum.fma(*more, V::splat(1.0)) };
        }
    }
    all
}
