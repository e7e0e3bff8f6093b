//! Products of matrices that both lie as tiles take them, in bf16 and small enough for the caches:
//! what attention multiplies.

use half::bf16;

use super::tiles::{self, COLUMNS, ROWS, STEP, Tiles};

/// Elements of bf16, or pairs of them, that rows of tiles are read from.
#[derive(Clone, Copy)]
pub(crate) struct TileRows {
    /// The first one of the first row.
    pub(crate) from: *const bf16,
    /// Bytes from one row to the next.
    pub(crate) row_bytes: usize,
    /// Elements from a tile to the one beside it: below in a first operand, to the right in a
    /// second.
    pub(crate) tile: usize,
    /// Elements from a tile to that of the next step.
    pub(crate) step: usize,
    /// Elements from a part of all to the next one, the smallest first.
    pub(crate) part: usize,
}

/// Which parts of the operands are multiplied, the smallest products first: of three parts each,
/// which have eight bits, those whose product is above 2⁻²² of the whole. Where neighbours have a
/// part in common, it is loaded once.
const fn products(parts: usize) -> &'static [[usize; 2]] {
    match parts {
        1 => &[[0, 0]],
        _ => &[[0, 2], [1, 1], [2, 0], [2, 1], [1, 2], [2, 2]],
    }
}

/// Where tiles of sums go.
#[derive(Clone, Copy)]
pub(crate) struct TileSums {
    /// The first one of the first row.
    pub(crate) to: *mut f32,
    /// Bytes from one row to the next.
    pub(crate) row_bytes: usize,
    /// Elements from a tile to the one below.
    pub(crate) down: usize,
    /// Elements from a tile to the one to the right.
    pub(crate) right: usize,
}

/// Stores one of the four tiles, if it is one of the sums.
macro_rules! store_held {
    ($held:expr, $tile:literal) => {
        let Held { sums, size: [height, width] } = $held;
        if $tile / 2 < height && $tile % 2 < width {
            let to = sums.to.wrapping_add($tile / 2 * sums.down + $tile % 2 * sums.right);
            tiles::store!($tile, to, sums.row_bytes);
        }
    };
}

/// Tile registers of this thread that are ready for products of full tiles, until dropped.
pub(crate) struct TileProducts(#[allow(dead_code, reason = "dropping it is its use")] Tiles);

impl TileProducts {
    /// Rows of a tile of the first operand.
    pub(crate) const ROWS: usize = ROWS;

    /// Columns of a tile of the second operand.
    pub(crate) const COLUMNS: usize = COLUMNS;

    /// Elements of a row that a step multiplies.
    pub(crate) const STEP: usize = STEP;

    /// Configures the registers.
    ///
    /// # Safety
    ///
    /// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available, and nothing else of this thread uses
    /// tiles while this is there.
    pub(crate) unsafe fn begin() -> Self {
        // SAFETY: the caller's promise.
        Self(unsafe { Tiles::configure(COLUMNS) })
    }

    /// Writes `a · b`, `[16 · down, 32 · steps]` by `[32 · steps, 16 · across]`, both in as many
    /// parts (one or three): `b` has the elements of two neighbouring rows side by side. An element
    /// is summed as in a [matmul](super), step by step.
    ///
    /// # Safety
    ///
    /// `a` and `b` point to the rows of so many tiles and steps, and `sums` to room for as many
    /// that nothing else reads or writes meanwhile.
    pub(crate) unsafe fn multiply<const PARTS: usize>(
        &self,
        a: TileRows,
        b: TileRows,
        [down, across]: [usize; 2],
        steps: usize,
        sums: TileSums,
    ) {
        let mut held = None;
        for row in (0..down).step_by(2) {
            let a = TileRows { from: a.from.wrapping_add(row * a.tile), ..a };
            for column in (0..across).step_by(2) {
                let b = TileRows { from: b.from.wrapping_add(column * b.tile), ..b };
                let to = sums.to.wrapping_add(row * sums.down + column * sums.right);
                let size = [(down - row).min(2), (across - column).min(2)];
                // SAFETY: the caller's promises, and that this is there says that tiles are
                // configured.
                unsafe {
                    match size {
                        [2, 2] => block::<2, 2, PARTS>(a, b, steps, held),
                        [2, _] => block::<2, 1, PARTS>(a, b, steps, held),
                        [_, 2] => block::<1, 2, PARTS>(a, b, steps, held),
                        _ => block::<1, 1, PARTS>(a, b, steps, held),
                    }
                }
                held = Some(Held { sums: TileSums { to, ..sums }, size });
            }
        }
        if let Some(held) = held {
            // SAFETY: as above.
            unsafe {
                store_held!(held, 0);
                store_held!(held, 1);
                store_held!(held, 2);
                store_held!(held, 3);
            }
        }
    }
}

/// Sums that are in registers: so many tiles down and across.
#[derive(Clone, Copy)]
struct Held {
    sums: TileSums,
    size: [usize; 2],
}

/// `HEIGHT` by `WIDTH` tiles of sums, which stay in registers. Stores what was there before, each
/// tile right before its register is taken.
///
/// # Safety
///
/// As for [`TileProducts::multiply`]; full tiles are configured.
#[inline(always)]
unsafe fn block<const HEIGHT: usize, const WIDTH: usize, const PARTS: usize>(
    a: TileRows,
    b: TileRows,
    steps: usize,
    held: Option<Held>,
) {
    // SAFETY: the caller's promises: all rows of these tiles are there.
    unsafe {
        macro_rules! switch {
            ($tile:literal) => {
                if let Some(held) = held {
                    store_held!(held, $tile);
                }
                tiles::zero!($tile);
            };
        }
        for step in 0..steps {
            let mut before = [usize::MAX; 2];
            for (index, parts) in products(PARTS).iter().enumerate() {
                let [a_part, b_part] = *parts;
                let switches = step == 0 && index == 0;
                let a_from = a.from.wrapping_add(step * a.step + a_part * a.part);
                let b_from = b.from.wrapping_add(step * b.step + b_part * b.part);
                let [other_a, other_b] = [before[0] != a_part, before[1] != b_part];
                before = *parts;
                if other_a {
                    tiles::load!(4, a_from, a.row_bytes);
                    if HEIGHT == 2 {
                        tiles::load!(5, a_from.wrapping_add(a.tile), a.row_bytes);
                    }
                }
                if other_b {
                    tiles::load!(6, b_from, b.row_bytes);
                    if WIDTH == 2 {
                        tiles::load!(7, b_from.wrapping_add(b.tile), b.row_bytes);
                    }
                }
                if switches {
                    switch!(0);
                }
                tiles::multiply!(0, 4, 6);
                if switches {
                    switch!(2);
                }
                if HEIGHT == 2 {
                    tiles::multiply!(2, 5, 6);
                }
                if switches {
                    switch!(1);
                }
                if WIDTH == 2 {
                    tiles::multiply!(1, 4, 7);
                }
                if switches {
                    switch!(3);
                }
                if HEIGHT == 2 && WIDTH == 2 {
                    tiles::multiply!(3, 5, 7);
                }
            }
        }
    }
}
