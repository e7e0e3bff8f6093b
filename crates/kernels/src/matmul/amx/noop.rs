//! Tiles that compute nothing: rows are read and written as the instructions do it, and all sums
//! are zero.
//!
//! With the feature `amx-noop` and `OUTSIZE_AMX=noop`, a processor that has AVX-512 with bf16 takes
//! these for AMX. So whatever else a matmul, attention or a whole prompt takes can be measured, and
//! profiled, without tiles; what comes out of it means nothing. Without the variable, no tiles are
//! used.

macro_rules! configure {
    ($from:expr) => {
        std::arch::asm!("/* {} */", in(reg) $from, options(readonly, nostack, preserves_flags))
    };
}

macro_rules! release {
    () => {
        std::arch::asm!("", options(nomem, nostack, preserves_flags))
    };
}

macro_rules! zero {
    ($tile:literal) => {
        std::arch::asm!("", options(nomem, nostack, preserves_flags))
    };
}

/// Touches each row: the line of the cache that it begins in.
macro_rules! load {
    ($tile:literal, $from:expr, $stride:expr) => {
        std::arch::asm!(
            // Odd multiples of the stride up to 7, from the first row and from the ninth.
            "lea {three}, [{stride} + 2 * {stride}]",
            "lea {five}, [{stride} + 4 * {stride}]",
            "lea {seven}, [{stride} + 2 * {three}]",
            "lea {ninth}, [{from} + 8 * {stride}]",
            "mov {word:e}, [{from}]",
            "mov {word:e}, [{from} + {stride}]",
            "mov {word:e}, [{from} + 2 * {stride}]",
            "mov {word:e}, [{from} + {three}]",
            "mov {word:e}, [{from} + 4 * {stride}]",
            "mov {word:e}, [{from} + {five}]",
            "mov {word:e}, [{from} + 2 * {three}]",
            "mov {word:e}, [{from} + {seven}]",
            "mov {word:e}, [{ninth}]",
            "mov {word:e}, [{ninth} + {stride}]",
            "mov {word:e}, [{ninth} + 2 * {stride}]",
            "mov {word:e}, [{ninth} + {three}]",
            "mov {word:e}, [{ninth} + 4 * {stride}]",
            "mov {word:e}, [{ninth} + {five}]",
            "mov {word:e}, [{ninth} + 2 * {three}]",
            "mov {word:e}, [{ninth} + {seven}]",
            from = in(reg) $from,
            stride = in(reg) $stride,
            three = out(reg) _,
            five = out(reg) _,
            seven = out(reg) _,
            ninth = out(reg) _,
            word = out(reg) _,
            options(readonly, nostack, preserves_flags)
        )
    };
}

/// Writes zeros, in rows of 64 bytes.
macro_rules! store {
    ($tile:literal, $to:expr, $stride:expr) => {{
        let (to, stride): (*mut u8, usize) = ($to.cast(), $stride);
        for row in 0..16 {
            to.wrapping_add(row * stride).cast::<[u64; 8]>().write_unaligned([0; 8]);
        }
    }};
}

macro_rules! multiply {
    ($sums:literal, $weights:literal, $x:literal) => {
        std::arch::asm!("", options(nomem, nostack, preserves_flags))
    };
}

pub(in super::super) use {configure, load, load as load_once, multiply, release, store, zero};
