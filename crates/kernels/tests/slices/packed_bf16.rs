//! Packed bf16 gives the bits of the same bf16 that are not packed, in all that is computed with
//! it.

use crate::common::{COMPUTES, available};
use bytes::Bytes;
use half::bf16;
use outsize_checkpoint::{Dtype, StorageFormat};
use outsize_kernels::matmul::{InOutMatmul, Matmul, add_linear_in_out_into, linear_each_into};
use outsize_kernels::{ActivationDtype, BlockWeight, Isa, PackedBf16Scan, Weight, pack_bf16};
use proptest::prelude::*;

/// About normally distributed, with so many in a thousand that are anything finite.
fn values(seed: u64, count: usize, wild: u64) -> Vec<bf16> {
    let mut state = seed | 1;
    let mut next = || {
        state =
            state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        state >> 32
    };
    let mut one = || {
        if next() % 1000 < wild {
            // Of these some are subnormal, and none is so large that sums overflow.
            return bf16::from_bits(next() as u16 & 0xc7ff);
        }
        let sum: f32 = (0..12).map(|_| next() as f32 / u32::MAX as f32).sum();
        bf16::from_f32((sum - 6.0) * 0.02)
    };
    (0..count).map(|_| one()).collect()
}

fn packed(values: &[bf16], shape: [usize; 2]) -> Option<BlockWeight<Bytes>> {
    let mut scan = PackedBf16Scan::new(shape[1])?;
    scan.add(values);
    let packed = scan.finish()?;
    let format = StorageFormat::plain(Dtype::PackedBf16(packed));
    BlockWeight::new(format, shape, pack_bf16(packed, values).into(), Bytes::new(), 0)
}

fn input(len: usize) -> Vec<f32> {
    (0..len).map(|at| ((at * 37 % 101) as f32 - 50.0) * 0.01).collect()
}

/// Several products of the same activations.
fn products(
    isa: Isa,
    compute: ActivationDtype,
    x: &[f32],
    size: [usize; 2],
    weights: Vec<(Weight, usize)>,
) -> Vec<u32> {
    let mut ys: Vec<_> = weights.iter().map(|(_, n)| vec![f32::NAN; size[0] * n]).collect();
    let matmuls = weights.into_iter().zip(&mut ys);
    let mut matmuls: Vec<_> =
        matmuls.map(|((weight, n), y)| Matmul { weight, n, y, stride: n }).collect();
    linear_each_into(isa, compute, x, size, &mut matmuls);
    ys.concat().into_iter().map(f32::to_bits).collect()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn matmuls_are_those_of_the_weights_unpacked(
        m in prop_oneof![1usize..6, 1usize..70], groups in prop_oneof![1usize..10, Just(37), Just(40)],
        rows in prop::collection::vec(0usize..140, 1..4), seed in any::<u64>(), wild in prop_oneof![Just(0u64), 0u64..150],
    ) {
        let k = 64 * groups;
        let plain: Vec<_> = rows.iter().map(|n| values(seed ^ *n as u64, n * k, wild)).collect();
        let packed: Option<Vec<_>> =
            plain.iter().zip(&rows).map(|(plain, n)| packed(plain, [*n, k])).collect();
        // Too many that are wild.
        let Some(packed) = packed else { return Ok(()) };
        let x = input(m * k);
        for isa in available() {
            if isa == Isa::AmxBf16 && crate::common::amx_is_emulated() && seed % 8 != 0 {
                continue;
            }
            for compute in COMPUTES {
                let of_plain = plain.iter().map(|plain| Weight::Bf16(plain));
                let wanted = products(isa, compute, &x, [m, k], of_plain.zip(rows.iter().copied()).collect());
                let of_packed = packed.iter().map(|packed| Weight::Blocks(packed.view()));
                let found = products(isa, compute, &x, [m, k], of_packed.zip(rows.iter().copied()).collect());
                prop_assert!(found == wanted, "{isa:?} {compute:?} {:?}", packed[0].format().encoding);
                // Beside a weight that is not packed.
                let mixed: Vec<_> = plain.iter().zip(&packed).zip(&rows).enumerate().map(|(at, ((plain, packed), n))| {
                    (if at % 2 == 0 { Weight::Bf16(plain) } else { Weight::Blocks(packed.view()) }, *n)
                }).collect();
                prop_assert!(products(isa, compute, &x, [m, k], mixed) == wanted, "{isa:?} {compute:?}");
            }
        }
    }

    /// A weight stored `[in, out]`, in tiles.
    #[test]
    fn other_sums_are_those_of_the_weight_unpacked(
        m in 1usize..50, n in (1usize..6).prop_map(|n| 64 * n), k in 1usize..60, cut in 0usize..60, seed in any::<u64>(),
    ) {
        let plain = values(seed, k * n, 10);
        let Some(packed) = packed(&plain, [k, n]) else { return Ok(()) };
        let (x, cut) = (input(m * k), cut.min(k));
        for isa in available().filter(|isa| *isa != Isa::AmxBf16) {
            for compute in COMPUTES {
                let run = |weight: Weight| {
                    let mut y = input(m * n);
                    for rows in [0..cut, cut..k] {
                        let weight = weight.slice(rows.start * n, rows.end * n);
                        let matmul = InOutMatmul { x: &x, k, weight, rows, y: &mut y, n };
                        add_linear_in_out_into(isa, compute, matmul);
                    }
                    y.into_iter().map(f32::to_bits).collect::<Vec<_>>()
                };
                let (found, wanted) = (run(Weight::Blocks(packed.view())), run(Weight::Bf16(&plain)));
                prop_assert!(found == wanted, "{isa:?} {compute:?}");
            }
        }
    }
}
