//! Transposition of sixteen by sixteen numbers in registers.

use std::arch::x86_64::*;

/// Row `i` of the result holds lane `i` of each row.
///
/// # Safety
///
/// The processor has AVX-512 F.
#[inline(always)]
pub(crate) unsafe fn transposed(rows: [__m512i; 16]) -> [__m512i; 16] {
    // SAFETY: the caller's promise.
    unsafe {
        let zero = _mm512_setzero_si512();
        // Lanes of 128 bits: first two rows each, then four: `quads[4 * g + c]` holds, in its part
        // `p`, of rows `4 * g..4 * g + 4` the lanes `4 * p + c`.
        let mut pairs = [zero; 16];
        for i in 0..8 {
            pairs[2 * i] = _mm512_unpacklo_epi32(rows[2 * i], rows[2 * i + 1]);
            pairs[2 * i + 1] = _mm512_unpackhi_epi32(rows[2 * i], rows[2 * i + 1]);
        }
        let mut quads = [zero; 16];
        for g in 0..4 {
            let (low, high) = (4 * g, 4 * g + 2);
            quads[4 * g] = _mm512_unpacklo_epi64(pairs[low], pairs[high]);
            quads[4 * g + 1] = _mm512_unpackhi_epi64(pairs[low], pairs[high]);
            quads[4 * g + 2] = _mm512_unpacklo_epi64(pairs[low + 1], pairs[high + 1]);
            quads[4 * g + 3] = _mm512_unpackhi_epi64(pairs[low + 1], pairs[high + 1]);
        }
        // Then the parts of four vectors each: even ones, odd ones.
        const EVEN: i32 = 0b10_00_10_00;
        const ODD: i32 = 0b11_01_11_01;
        let mut all = [zero; 16];
        for c in 0..4 {
            let (a, b, d, e) = (quads[c], quads[4 + c], quads[8 + c], quads[12 + c]);
            let (first, last) =
                (_mm512_shuffle_i32x4::<EVEN>(a, b), _mm512_shuffle_i32x4::<EVEN>(d, e));
            all[c] = _mm512_shuffle_i32x4::<EVEN>(first, last);
            all[8 + c] = _mm512_shuffle_i32x4::<ODD>(first, last);
            let (first, last) =
                (_mm512_shuffle_i32x4::<ODD>(a, b), _mm512_shuffle_i32x4::<ODD>(d, e));
            all[4 + c] = _mm512_shuffle_i32x4::<EVEN>(first, last);
            all[12 + c] = _mm512_shuffle_i32x4::<ODD>(first, last);
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_become_columns() {
        if !is_x86_feature_detected!("avx512f") {
            eprintln!("SKIPPED: this processor does not have AVX-512");
            return;
        }
        let rows: [[i32; 16]; 16] =
            std::array::from_fn(|row| std::array::from_fn(|lane| (16 * row + lane) as i32));
        // SAFETY: the processor has AVX-512, and arrays of sixteen i32 are as large as its vectors.
        let columns: [[i32; 16]; 16] = unsafe {
            std::mem::transmute(transposed(std::mem::transmute::<[[i32; 16]; 16], [__m512i; 16]>(
                rows,
            )))
        };
        for (row, values) in rows.iter().enumerate() {
            for (lane, &value) in values.iter().enumerate() {
                assert_eq!(columns[lane][row], value, "row {row}, lane {lane}");
            }
        }
    }
}
