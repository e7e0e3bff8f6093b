//! What an adapter adds to the weights of an unmodified module.

use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, Tensor, TensorData};
use outsize_checkpoint::{Dtype, ShardWriter, TensorSpec};
use outsize_core::{
    Dispatched, Error, Layout, LowRank, Names, Options, Planning, load_checkpoint_and_dispatch,
};
use outsize_plan::{Budget, ManualMap, MemoryOverhead};
use std::collections::HashMap;
use std::path::Path;
use tempfile::tempdir;

const INPUTS: usize = 192;
const OUTPUTS: usize = 256;
const RANK: usize = 3;

fn values(seed: u64, count: usize) -> Vec<f32> {
    let mut state = seed;
    let next = |_| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (state >> 40) as f32 / (1 << 24) as f32 - 0.5
    };
    (0..count).map(next).collect()
}

fn tensor(seed: u64, shape: [usize; 2]) -> Tensor<2> {
    let data = TensorData::new(values(seed, shape.iter().product()), shape);
    Tensor::from_data(data, &Device::flex())
}

/// A linear layer in a checkpoint, `[out, in]` as PyTorch has it or `[in, out]` as Burn has.
fn dispatched(folder: &Path, layout: Layout, place: &str) -> Dispatched<Linear> {
    let shape = if layout == Layout::PyTorch { [OUTPUTS, INPUTS] } else { [INPUTS, OUTPUTS] };
    if !folder.exists() {
        let specs = vec![
            TensorSpec::new("weight", Dtype::F32, shape),
            TensorSpec::new("bias", Dtype::F32, [OUTPUTS]),
        ];
        let mut writer = ShardWriter::create(folder, specs, 1 << 30).unwrap();
        for (name, seed, count) in [("weight", 1, INPUTS * OUTPUTS), ("bias", 2, OUTPUTS)] {
            let floats = values(seed, count);
            let bytes: Vec<u8> = floats.iter().flat_map(|value| value.to_le_bytes()).collect();
            writer.write(name, &bytes).unwrap();
        }
        writer.finish().unwrap();
    }
    let options = Options {
        budget: Budget::parse("cpu=64MiB").unwrap(),
        planning: Planning {
            device_map: Some(ManualMap::parse(&format!(r#"{{"": "{place}"}}"#)).unwrap()),
            ..Planning::default()
        },
        names: Names::new(layout),
        read_bytes: 64 << 10,
        min_ring_bytes: 0,
        needs: MemoryOverhead::default(),
        ..Options::default()
    };
    let layer = LinearConfig::new(INPUTS, OUTPUTS).init(&Device::flex());
    load_checkpoint_and_dispatch(layer, folder, &options).unwrap()
}

fn assert_close(found: Tensor<2>, expected: Tensor<2>) {
    let off = (found - expected.clone()).abs().max().into_scalar::<f32>();
    let largest = expected.abs().max().into_scalar::<f32>();
    assert!(off <= 1e-5 * largest, "{off} of {largest}");
}

#[test]
fn a_linear_layer_computes_with_what_is_added() {
    for (layout, in_out) in [(Layout::PyTorch, false), (Layout::Burn, true)] {
        let dir = tempdir().unwrap();
        let folder = dir.path().join("checkpoint");
        let x = tensor(5, [4, INPUTS]);
        let [down, up] = [tensor(3, [RANK, INPUTS]), tensor(4, [OUTPUTS, RANK])];
        let weight = match in_out {
            false => tensor(1, [OUTPUTS, INPUTS]),
            true => tensor(1, [INPUTS, OUTPUTS]).transpose(),
        };
        let bias = tensor(2, [1, OUTPUTS]);
        let with =
            |more: Tensor<2>| x.clone().matmul((weight.clone() + more).transpose()) + bias.clone();
        let more = up.clone().matmul(down.clone()) * 0.75;
        for place in ["cpu", "disk"] {
            let model = dispatched(&folder, layout, place);
            let is_streamed = model.device_map().streamed_bytes() > 0;
            assert_eq!(is_streamed, place == "disk");
            let run = || model.run(|layer| layer.forward(x.clone())).unwrap();
            let plain = run();
            assert_close(plain.clone(), with(weight.clone() * 0.0));
            let part = LowRank { down: down.clone(), up: up.clone(), scale: 0.75, in_out };
            let set = |path: &str, part: &LowRank| {
                model.set_low_rank(&HashMap::from([(path.to_owned(), part.clone())]))
            };
            set("weight", &part).unwrap();
            assert_close(run(), with(more.clone()));
            // What is refused changes nothing.
            let wide = LowRank { up: tensor(4, [OUTPUTS + 1, RANK]), ..part.clone() };
            let turned = LowRank { in_out: !in_out, ..part.clone() };
            for (path, part) in
                [("weight", &wide), ("weight", &turned), ("bias", &part), ("none", &part)]
            {
                let error = set(path, part).unwrap_err();
                assert!(
                    matches!(&error, Error::Adapter { path: named, .. } if named == path),
                    "{error}"
                );
            }
            assert_close(run(), with(more.clone()));
            let rounded = [&down, &up].map(|part| part.clone().cast(DType::BF16));
            let part = LowRank { down: rounded[0].clone(), up: rounded[1].clone(), ..part };
            set("weight", &part).unwrap();
            let [down, up] = rounded.map(|part| part.cast(DType::F32));
            assert_close(run(), with(up.matmul(down) * 0.75));
            model.set_low_rank(&HashMap::new()).unwrap();
            let same = run().into_data() == plain.into_data();
            assert!(same, "{layout:?} on {place}");
        }
    }
}
