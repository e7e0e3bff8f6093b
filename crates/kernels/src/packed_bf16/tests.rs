use proptest::prelude::*;

use super::*;
use crate::BlockWeight;

/// bf16 of any bits, or distributed as weights are.
fn values(seed: u64, count: usize, wild: u64) -> Vec<bf16> {
    let mut state = seed | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 32
    };
    let mut one = || {
        if next() % 1000 < wild {
            return bf16::from_bits(next() as u16);
        }
        // About normally distributed.
        let sum: f32 = (0..12).map(|_| next() as f32 / u32::MAX as f32).sum();
        bf16::from_f32((sum - 6.0) * 0.02)
    };
    (0..count).map(|_| one()).collect()
}

fn bits(values: &[bf16]) -> Vec<u16> {
    values.iter().map(|value| value.to_bits()).collect()
}

fn packing(values: &[bf16], columns: usize) -> Option<PackedBf16> {
    let mut scan = PackedBf16Scan::new(columns)?;
    // In parts, as a file is read.
    for rows in values.chunks(3 * columns) {
        scan.add(rows);
    }
    scan.finish()
}

proptest! {
    /// What is packed comes back bit for bit, with every set of instructions.
    #[test]
    fn nothing_is_lost(
        seed in any::<u64>(), rows in 1usize..9, groups in 1usize..70, wild in prop_oneof![0u64..20, 0u64..400],
    ) {
        let columns = groups * GROUP;
        let values = values(seed, rows * columns, wild);
        let Some(packed) = packing(&values, columns) else {
            // Of few groups with wild numbers among them, or of a prime number of groups.
            prop_assert!(wild > 0 || PackedBf16::groups_of(columns) < Some(4), "{columns} {wild}");
            return Ok(());
        };
        let bytes = pack_bf16(packed, &values);
        prop_assert!(10 * bytes.len() <= 9 * 2 * values.len());
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            let mut found = vec![bf16::ONE; values.len()];
            unpack(isa, packed, &bytes, &mut found);
            prop_assert!(bits(&found) == bits(&values), "{isa:?}");
        }
        let format = outsize_checkpoint::StorageFormat::plain(outsize_checkpoint::Dtype::PackedBf16(packed));
        let weight = BlockWeight::new(format, [rows, columns], &bytes[..], &[], 0).unwrap();
        let mut found = vec![1.0; columns];
        weight.dequantize(rows - 1..rows, &mut found);
        let last = values[(rows - 1) * columns..].iter();
        let is_it = |(found, wanted): (&f32, &bf16)| found.to_bits() == u32::from(wanted.to_bits()) << 16;
        prop_assert!(found.iter().zip(last).all(is_it));
    }

    /// Damaged blocks are unpacked to something.
    #[test]
    fn any_bytes_are_unpacked(
        bytes in prop::collection::vec(any::<u8>(), 32 * 127), groups in 1usize..33, size in 89usize..128,
    ) {
        let packed = PackedBf16::new(groups, size).unwrap();
        for isa in Isa::ALL.into_iter().filter(|isa| isa.is_available()) {
            for bytes in [&bytes[..groups * size], &vec![0xff; groups * size]] {
                // A copy that ends where it is allocated.
                let bytes = bytes.to_vec();
                unpack(isa, packed, &bytes, &mut vec![bf16::ZERO; groups * GROUP]);
            }
        }
    }
}

#[test]
fn weights_take_eleven_and_a_half_bits() {
    let columns = 2048;
    let values = values(7, 64 * columns, 0);
    let packed = packing(&values, columns).unwrap();
    let bits = 8.0 * pack_bf16(packed, &values).len() as f64 / values.len() as f64;
    assert!(bits < 11.5, "{bits}");
}

#[test]
fn a_window_has_the_most_exponents() {
    let of = |exponents: &[u8], bits| {
        let values: Vec<bf16> =
            exponents.iter().map(|exponent| bf16::from_bits(u16::from(*exponent) << 7)).collect();
        let Window { lowest, outside } = Window::best(&counts(&values), bits);
        (lowest, outside)
    };
    assert_eq!(of(&[10, 11, 16, 17], 3), (11, 1));
    assert_eq!(of(&[0, 255, 255, 249], 3), (249, 1));
    assert_eq!(of(&[10, 11, 16, 24, 25], 4), (11, 1));
    assert_eq!(of(&[0; 64], 3), (0, 0));
}
