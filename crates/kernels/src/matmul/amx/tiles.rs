//! The eight tile registers of AMX, and the instructions on them.
//!
//! | registers | hold | rows of | are |
//! |---|---|---|---|
//! | 0 to 3 | sums `[16 weight rows, columns]`, f32 | `4 · columns` bytes | `2 · i + j` for weights `i` and activations `j` |
//! | 4, 5 | weights `[16 rows, 32]`, bf16 | 64 bytes | `4 + i` |
//! | 6, 7 | activations `[16, columns, 2]`, bf16 | `4 · columns` bytes | `6 + j` |
//!
//! The compiler knows nothing of these registers and never uses them, so that what one piece of
//! assembly leaves in them the next one finds. All of it is volatile: it stays in the order in
//! which it is written.

#[cfg(not(feature = "amx-noop"))]
#[path = "instructions.rs"]
mod instructions;
#[cfg(feature = "amx-noop")]
#[path = "noop.rs"]
mod instructions;

use instructions::{configure, release};
pub(super) use instructions::{load, load_once, multiply, store, zero};

/// Rows of a tile: of weights, pairs of elements of activations, sums.
pub(super) const ROWS: usize = 16;

/// Elements of a weight row that one tile holds.
pub(super) const STEP: usize = 32;

/// The most columns of a tile of activations or of sums.
pub(super) const COLUMNS: usize = 16;

/// Elements of a tile of weights.
pub(super) const TILE: usize = ROWS * STEP;

/// Bytes of a full row of a tile.
pub(super) const ROW_BYTES: usize = 64;

/// What begins with a cache line, as rows of tiles should: across two lines they take twice as
/// long.
#[repr(align(64))]
pub(super) struct Aligned<T>(pub(super) T);

/// The registers of this thread, configured; released when dropped, so that the system need not
/// save them any more.
pub(super) struct Tiles(());

/// What `ldtilecfg` reads.
#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

const _: () = assert!(size_of::<Configuration>() == 64);

impl Tiles {
    /// Configures them for so many columns, with zeros in all.
    ///
    /// # Safety
    ///
    /// [`Isa::AmxBf16`](crate::Isa::AmxBf16) is available, and no other `Tiles` of this thread is
    /// alive.
    ///
    /// # Panics
    ///
    /// If `columns` is not between 1 and 16.
    #[inline(always)]
    pub(super) unsafe fn configure(columns: usize) -> Self {
        assert!((1..=COLUMNS).contains(&columns), "{columns} columns");
        let mut configuration = Configuration {
            palette: 1,
            start_row: 0,
            reserved: [0; 14],
            row_bytes: [0; 16],
            rows: [0; 16],
        };
        for tile in 0..8 {
            configuration.rows[tile] = ROWS as u8;
            configuration.row_bytes[tile] = match (4..=5).contains(&tile) {
                true => ROW_BYTES as u16,
                false => 4 * columns as u16,
            };
        }
        // SAFETY: the processor has the instruction, which reads these 64 bytes; the configuration
        // is one that it takes: palette 1, at most 16 rows of at most 64 bytes, whole elements.
        unsafe { configure!(&configuration) }
        Self(())
    }
}

impl Drop for Tiles {
    #[inline(always)]
    fn drop(&mut self) {
        // SAFETY: `configure` ran, so that the processor has the instruction; it changes tile
        // registers only.
        unsafe { release!() }
    }
}
