//! A module that burn-onnx generated of a network of PyTorch, `scripts/fixtures/onnx_module.py`,
//! against what PyTorch computes.

use crate::common::{bits, flat, options};
use burn::tensor::{Device, Int, Tensor, TensorData};
use outsize_checkpoint::Checkpoint;
use outsize_core::{dispatch, tree};
use outsize_plan::{Budget, place};
use std::path::{Path, PathBuf};

#[allow(dead_code, unused, clippy::all)]
mod network {
    include!("../fixtures/onnx/network.rs");
}
use network::Model;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/onnx").join(name)
}

#[test]
fn what_burn_onnx_generates_runs_streamed() {
    let expected = std::fs::read(fixture("expected.json")).unwrap();
    let expected: serde_json::Value = serde_json::from_slice(&expected).unwrap();
    let ids: Vec<i64> = serde_json::from_value(expected["ids"].clone()).unwrap();
    let scores: Vec<f32> = serde_json::from_value(expected["scores"].clone()).unwrap();
    let device = Device::flex();
    let ids = || Tensor::<2, Int>::from_data(TensorData::new(ids.clone(), [1, ids.len()]), &device);
    let file = fixture("network.bpk");
    let alone = bits(flat(Model::from_file(&file, &device).forward(ids())));

    let (checkpoint, options, model) =
        (Checkpoint::open(&file).unwrap(), options(None), Model::new(&device));
    let tree = tree(&model, &checkpoint, &options).unwrap();
    let map = place(&tree, &Budget::default(), &options.plan(), |_| false).unwrap();
    let model = dispatch(model, &checkpoint, &map, &options).unwrap();
    for _ in 0..3 {
        let output = model.run(|model| flat(model.forward(ids()))).unwrap();
        assert!(bits(output.clone()) == alone, "other bits than without outsize");
        let found: Vec<f32> = output.into_data().try_to_vec().unwrap();
        let off = found.iter().zip(&scores).map(|(a, b)| (a - b).abs()).fold(0.0, f32::max);
        let largest = scores.iter().fold(0.0, |most: f32, score| most.max(score.abs()));
        println!("off by {:.1e} of the largest score", off / largest);
        assert!(off <= 1e-5 * largest, "{off} of {largest}");
    }
    assert!(map.streamed_bytes() > 50_000 && model.stats().bytes_read > 2 * map.streamed_bytes());
}
