//! What a model takes in memory.

use crate::common::{block, cpu, tree};
use outsize_plan::{
    Access, BlockCost, Casts, Error, Estimate, MemoryOverhead, Options, Passes, Tensor, TensorKind,
    Tree, WeightDtype, estimate, infer, unit_footprint,
};
use proptest::prelude::*;

fn tensor(name: &str, shape: &[u64], dtype: WeightDtype) -> Tensor {
    let bytes = dtype.bytes(shape.iter().product());
    Tensor {
        shape: shape.to_vec(),
        dtype,
        row_bytes: bytes / shape[0],
        ..crate::common::tensor(name, bytes)
    }
}

/// 64 x 10 embedding, two layers of a 30 x 11 matrix and a norm, a head.
fn model(dtype: WeightDtype) -> Tree {
    let layer = |n: u64| {
        block(
            &format!("layers.{n}"),
            vec![
                tensor(&format!("layers.{n}.norm"), &[10], dtype),
                tensor(&format!("layers.{n}.w"), &[30, 11], dtype),
            ],
        )
    };
    tree(vec![
        block("embed", vec![tensor("embed.w", &[64, 10], dtype)]),
        layer(0),
        layer(1),
        block("head", vec![tensor("head.w", &[64, 10], dtype)]),
    ])
}

#[test]
fn types_of_16_bits_and_more_are_for_everything() {
    let values = 2 * 640 + 2 * 340;
    let stored = estimate(&model(WeightDtype::Bf16), None, None).unwrap();
    assert_eq!((stored.dtype, stored.weights), (None, 2 * values));
    assert_eq!(stored.parameters, values);
    let wide = estimate(&model(WeightDtype::Bf16), Some(WeightDtype::F32), None).unwrap();
    assert_eq!((wide.weights, wide.parameters), (4 * values, values));
    let largest = wide.largest_block.unwrap();
    assert_eq!((largest.name.as_str(), largest.bytes), ("embed", 4 * 640));
    let unknown = (wide.kv_cache, wide.activations, wide.resident, wide.least);
    assert_eq!(unknown, (None, None, None, None));
}

fn cast(tree: &Tree, dtype: WeightDtype) -> Tree {
    tree.cast(&Casts::stored(dtype)).unwrap()
}

#[test]
fn smaller_types_are_for_the_matrices_of_layers() {
    let int4 = cast(&model(WeightDtype::Bf16), WeightDtype::Int4);
    let [norm, matrix] = &int4.blocks[1].tensors[..] else {
        panic!("{int4:?}");
    };
    assert_eq!((norm.dtype, norm.bytes), (WeightDtype::Bf16, 20));
    // 330 values of half a byte; a row of 11 takes whole bytes.
    assert_eq!((matrix.bytes, matrix.row_bytes), (165, 6));
    assert_eq!(int4.blocks[0], model(WeightDtype::Bf16).blocks[0]);
    assert_eq!(int4.blocks[3], model(WeightDtype::Bf16).blocks[3]);
    let estimate = estimate(&model(WeightDtype::Bf16), Some(WeightDtype::Int4), None).unwrap();
    assert_eq!(estimate.weights, 2 * (2 * 640 + 2 * 10) + 2 * 165);
    // As many values as before.
    assert_eq!(estimate.parameters, 2 * 640 + 2 * 340);
    assert_eq!(estimate.training, None);
}

#[test]
fn without_numbered_blocks_all_matrices_are_cast() {
    let tree = tree(vec![block("fc1", vec![tensor("fc1.w", &[8, 8], WeightDtype::F32)])]);
    assert_eq!(cast(&tree, WeightDtype::Int8).blocks[0].tensors[0].bytes, 64);
}

#[test]
fn integers_and_buffers_stay_as_they_are() {
    let mut tree = model(WeightDtype::F32);
    let packed = tensor("layers.0.qweight", &[16, 16], WeightDtype::Int32);
    let mut mean = tensor("layers.0.mean", &[4, 4], WeightDtype::F32);
    mean.kind = TensorKind::Buffer;
    tree.blocks[1].tensors = vec![packed.clone(), mean.clone()];
    for dtype in [WeightDtype::F16, WeightDtype::Int4] {
        assert_eq!(cast(&tree, dtype).blocks[1].tensors[0], packed);
    }
    assert_eq!(cast(&tree, WeightDtype::Int4).blocks[1].tensors[1], mean);
    assert_eq!(cast(&tree, WeightDtype::F16).blocks[1].tensors[1].bytes, 32);
    // Weights in integers are not trained.
    assert_eq!(estimate(&tree, None, None).unwrap().training, None);
    assert_eq!(estimate(&tree, None, None).unwrap().parameters, 2 * 640 + 340 + 256);
}

#[test]
fn training_is_as_documented() {
    let values = 2 * 640 + 2 * 340;
    let of = |dtype| {
        let estimate = estimate(&model(WeightDtype::Bf16), dtype, None).unwrap();
        estimate.training.unwrap()
    };
    let full = of(Some(WeightDtype::F32));
    assert_eq!((full.copy, full.total), (0, 16 * values));
    for mixed in [of(None), of(Some(WeightDtype::F16))] {
        assert_eq!(mixed.total, 18 * values);
        assert_eq!((mixed.weights, mixed.copy), (4 * values, 2 * values));
        assert_eq!((mixed.gradients, mixed.moments), (4 * values, 8 * values));
    }
    assert_eq!(of(Some(WeightDtype::F64)).total, 32 * values);
    assert_eq!(estimate(&Tree::default(), None, None).unwrap().training, None);
}

#[test]
fn what_is_tied_counts_once() {
    let mut tree = model(WeightDtype::F32);
    for at in [0, 3] {
        tree.blocks[at].tensors[0].tied = Some("table".to_owned());
    }
    let estimate = estimate(&tree, None, None).unwrap();
    assert_eq!(estimate.parameters, 640 + 2 * 340);
    assert_eq!(estimate.weights, 4 * (640 + 2 * 340));
    assert_eq!(estimate.training.unwrap().total, 16 * (640 + 2 * 340));
}

#[test]
fn running_is_what_the_planner_says() {
    let mut tree = model(WeightDtype::Bf16);
    tree.blocks[1].work.kv_bytes = 5000;
    tree.blocks[2].work.kv_bytes = 700;
    let options = |activations| Options {
        needs: MemoryOverhead { process: 100_000, activations, ..MemoryOverhead::default() },
        small_tensor: 0,
        ..Options::default()
    };
    let passes = Passes { longest: options(30_000), shortest: options(1000) };
    let estimate = estimate(&tree, None, Some(&passes)).unwrap();
    assert_eq!(estimate.kv_cache, Some(5700));
    assert_eq!(estimate.activations, Some(30_000));
    let footprints = 2 * unit_footprint(1280) + 2 * unit_footprint(20) + 2 * unit_footprint(660);
    assert_eq!(estimate.resident, Some(135_700 + footprints));
    // The least budget does, and a byte less does not.
    let least = estimate.least.unwrap();
    for block in &mut tree.blocks {
        block.work = BlockCost::default();
    }
    let mut options = options(1000);
    options.needs.kv_cache = 5700;
    let fits = |bytes| infer(&tree, &cpu(bytes), &options).is_ok();
    assert!(fits(least) && !fits(least - 1));
    assert!(least < estimate.resident.unwrap());
}

#[test]
fn impossible_trees_are_refused() {
    let mut tree = model(WeightDtype::F32);
    tree.blocks[1].name = "embed".to_owned();
    assert!(matches!(estimate(&tree, None, None), Err(Error::Duplicate { .. })));
    let mut tree = model(WeightDtype::F32);
    tree.blocks[1].tensors[0].bytes = u64::MAX;
    assert!(matches!(estimate(&tree, None, None), Err(Error::TooLarge { .. })));
}

proptest! {
    #[test]
    fn any_tree_is_counted_or_refused(
        sizes in proptest::collection::vec((0u32..64, 0usize..13, 0usize..3, any::<bool>()), 0..12),
    ) {
        let blocks = sizes.iter().enumerate().map(|(at, (bits, dtype, rank, numbered))| {
            let bytes = (1u64 << bits) | 1;
            let name = match numbered {
                true => format!("layers.{at}"),
                false => format!("other{at}"),
            };
            let tensor = Tensor {
                shape: vec![1; *rank],
                dtype: WeightDtype::ALL[*dtype],
                row_bytes: bytes,
                access: Access::Tiles,
                ..crate::common::tensor(&format!("{name}.w"), bytes)
            };
            block(&name, vec![tensor])
        });
        let tree = tree(blocks.collect());
        let mut before: Option<Estimate> = None;
        for dtype in [WeightDtype::F64, WeightDtype::F32, WeightDtype::Bf16] {
            // Fewer bits take no more memory.
            if let Ok(estimate) = estimate(&tree, Some(dtype), None) {
                if let Some(before) = &before {
                    prop_assert!(estimate.weights <= before.weights);
                }
                prop_assert!(estimate.largest_block.as_ref().map_or(0, |most| most.bytes) <= estimate.weights);
                before = Some(estimate);
            }
        }
    }
}
