//! The instructions, as assembly.

/// Configures tiles as 64 bytes say.
macro_rules! configure {
    ($from:expr) => {
        std::arch::asm!(
            "ldtilecfg [{}]",
            in(reg) $from,
            options(readonly, nostack, preserves_flags),
        )
    };
}

/// Gives configured tiles up.
macro_rules! release {
    () => {
        std::arch::asm!("tilerelease", options(nomem, nostack, preserves_flags))
    };
}

/// Zeros a tile. Needs configured tiles.
macro_rules! zero {
    ($tile:literal) => {
        std::arch::asm!(concat!("tilezero tmm", $tile), options(nomem, nostack, preserves_flags))
    };
}

/// Loads the rows of a tile, which lie so many bytes apart. Needs configured tiles, and memory for
/// the rows.
macro_rules! load {
    ($tile:literal, $from:expr, $stride:expr) => {
        std::arch::asm!(
            concat!("tileloadd tmm", $tile, ", [{from} + {stride}*1]"),
            from = in(reg) $from,
            stride = in(reg) $stride,
            options(readonly, nostack, preserves_flags)
        )
    };
}

/// The same for rows that are read once: in the first-level cache they give way to all others.
macro_rules! load_once {
    ($tile:literal, $from:expr, $stride:expr) => {
        std::arch::asm!(
            concat!("tileloaddt1 tmm", $tile, ", [{from} + {stride}*1]"),
            from = in(reg) $from,
            stride = in(reg) $stride,
            options(readonly, nostack, preserves_flags)
        )
    };
}

/// Stores the rows of a tile so many bytes apart. Needs configured tiles, and memory for the rows.
macro_rules! store {
    ($tile:literal, $to:expr, $stride:expr) => {
        std::arch::asm!(
            concat!("tilestored [{to} + {stride}*1], tmm", $tile),
            to = in(reg) $to,
            stride = in(reg) $stride,
            options(nostack, preserves_flags)
        )
    };
}

/// Adds the products of two tiles to a third. Needs configured tiles.
macro_rules! multiply {
    ($sums:literal, $weights:literal, $x:literal) => {
        std::arch::asm!(
            concat!("tdpbf16ps tmm", $sums, ", tmm", $weights, ", tmm", $x),
            options(nomem, nostack, preserves_flags)
        )
    };
}

pub(in super::super) use {configure, load, load_once, multiply, release, store, zero};
