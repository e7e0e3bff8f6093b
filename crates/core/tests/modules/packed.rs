//! Unmodified modules get from packed bf16 what they get from the same bf16 as they are.

use crate::common::{Numbers, folder, options};
use burn::module::Module;
use burn::nn::{Linear, LinearConfig};
use burn::tensor::{DType, Device, TensorData};
use half::bf16;
use outsize_checkpoint::StoredWeight;
use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
use outsize_core::{FloatType, Layout, Names, Options, Rewrite, dispatch, load, plan, tree};
use outsize_plan::Residency;
use std::path::Path;

/// Columns that are three groups.
const SHAPE: [usize; 2] = [300, 192];

#[derive(Module, Debug)]
struct Net {
    a: Linear,
    b: Linear,
    c: Linear,
}

fn net() -> Net {
    let config = LinearConfig::new(SHAPE[1], SHAPE[0]).with_bias(false);
    let layer = || config.init(&Device::flex());
    Net { a: layer(), b: layer(), c: layer() }
}

fn write(out: &Path) {
    let specs =
        ["a", "b", "c"].map(|name| TensorSpec::new(format!("{name}.weight"), Dtype::BF16, SHAPE));
    let mut writer = ShardWriter::create(out, specs.to_vec(), 1 << 30).unwrap();
    let mut numbers = Numbers(7);
    for spec in &specs {
        let sum = |numbers: &mut Numbers| (0..6).map(|_| numbers.float()).sum::<f32>();
        let values = (0..SHAPE[0] * SHAPE[1]).map(|_| bf16::from_f32(sum(&mut numbers)));
        let bytes: Vec<u8> = values.flat_map(|value| value.to_le_bytes()).collect();
        writer.write(&spec.name, &bytes).unwrap();
    }
    writer.finish().unwrap();
}

fn pack(from: &Path, out: &Path) {
    let checkpoint = Checkpoint::open(from).unwrap();
    let weights = checkpoint.tensors().iter().map(|tensor| {
        let weight = Rewrite::kept(StoredWeight::plain(tensor.clone()));
        let mut seen = 0;
        let packed = weight
            .clone()
            .pack(&checkpoint, |more| {
                seen += more;
                true
            })
            .unwrap();
        assert!(packed.is_packed());
        assert_eq!(seen, weight.bytes_to_pack());
        packed
    });
    let weights: Vec<_> = weights.collect();
    let specs = weights.iter().flat_map(Rewrite::specs).collect();
    let mut writer = ShardWriter::create(out, specs, 1 << 30).unwrap();
    for weight in weights {
        weight.write(&checkpoint, &mut writer, |_| true).unwrap();
    }
    writer.finish().unwrap();
}

fn values(net: &Net) -> Vec<TensorData> {
    [&net.a, &net.b, &net.c].map(|layer| layer.weight.val().into_data()).to_vec()
}

#[test]
fn unmodified_modules_get_the_same_values_from_fewer_bytes() {
    let (dir, plain) = folder();
    let packed = dir.path().join("packed");
    write(&plain);
    pack(&plain, &packed);
    let [plain, packed] = [plain, packed].map(|path| Checkpoint::open(path).unwrap());
    assert!(packed.total_bytes() * 10 < plain.total_bytes() * 8);
    for float_type in
        [FloatType::AsStored, FloatType::Cast(DType::F32), FloatType::Cast(DType::F16)]
    {
        let options =
            |budget| Options { float_type, names: Names::new(Layout::PyTorch), ..options(budget) };
        let wanted = values(&load(net(), &plain, &options(None)).unwrap());
        assert!(values(&load(net(), &packed, &options(None)).unwrap()) == wanted, "{float_type:?}");
        // They take in memory what they took before.
        let sizes = |checkpoint| {
            let tree = tree(&net(), checkpoint, &options(None)).unwrap();
            let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
            tensors.map(|tensor| tensor.bytes).collect::<Vec<_>>()
        };
        let bytes = sizes(&plain);
        assert_eq!(sizes(&packed), bytes);
        let mut streamed = 0;
        for budget in [2 * bytes[0] + (90 << 10), 4 * bytes[0] + (90 << 10)] {
            let options = options(Some(budget));
            let map = plan(&net(), &packed, &options).unwrap();
            streamed += u64::from(map.residency("b.weight") == Some(Residency::Streamed));
            let model = dispatch(net(), &packed, &map, &options).unwrap();
            for _ in 0..2 {
                model.run(|net| assert!(values(net) == wanted, "{float_type:?}")).unwrap();
            }
        }
        assert!(streamed > 0, "{float_type:?}");
    }
}
