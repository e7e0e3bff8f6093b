use crate::common::{Numbers, flat};
use crate::specimen::{Specimen, Stored, check, dispatched, least};
use burn::module::Module;
use burn::nn::{
    BatchNorm, BatchNormConfig, GroupNorm, GroupNormConfig, InstanceNorm, InstanceNormConfig,
    LayerNorm, LayerNormConfig, RmsNorm, RmsNormConfig,
};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Dtype;
use outsize_core::{Options, parameters, tree};
use outsize_plan::place;

/// More features than a page holds.
const WIDTH: usize = 1200;

#[derive(Module, Debug)]
pub struct Norms {
    batch: BatchNorm,
    group: GroupNorm,
    instance: InstanceNorm,
    layer: LayerNorm,
    rms: RmsNorm,
}

impl Specimen for Norms {
    fn new(device: &Device) -> Self {
        Self {
            batch: BatchNormConfig::new(WIDTH).init(device),
            group: GroupNormConfig::new(4, WIDTH).init(device),
            instance: InstanceNormConfig::new(WIDTH).init(device),
            layer: LayerNormConfig::new(WIDTH).init(device),
            rms: RmsNormConfig::new(WIDTH).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let x: Tensor<3> = Numbers(seed).tensor([2, WIDTH, 3]);
        let x = self.group.forward(self.batch.forward(x));
        let x = self.instance.forward(x).swap_dims(1, 2);
        flat(self.rms.forward(self.layer.forward(x)))
    }
}

#[test]
fn norms() {
    check::<Norms>();
}

/// Running state discards the handle: it is found out before planning, counted, and loaded.
#[test]
fn running_state_is_always_resident() {
    let module = Norms::new(&Device::flex());
    let stay: Vec<_> = parameters(&module)
        .into_iter()
        .filter(|parameter| !parameter.streams)
        .map(|parameter| parameter.path)
        .collect();
    assert_eq!(stay, ["batch.running_mean", "batch.running_var"]);

    let stored = Stored::<Norms>::new();
    let checkpoint = stored.checkpoint(Dtype::BF16);
    let options = crate::common::options(None);
    let tree = tree(&module, &checkpoint, &options).unwrap();
    let map = place(&tree, &options.budget, &options.plan(), |_| false).unwrap();
    // Held as f32, though stored as bf16.
    assert_eq!(map.resident_bytes(), 2 * 4 * WIDTH as u64);
    assert_eq!(map.memory_bytes(), least(&tree, &options));
    let model = dispatched::<Norms>(&checkpoint, &map, &Options { ..options });
    let state = model
        .run(|norms| [norms.batch.running_mean.value(), norms.batch.running_var.value()])
        .unwrap();
    for (state, least) in state.into_iter().zip([-0.5, 0.25]) {
        let values: Vec<f32> = state.into_data().try_to_vec().unwrap();
        assert!(values.iter().all(|value| (least..=least + 1.0).contains(value)));
        assert!(values.iter().any(|value| *value != values[0]), "as initialised");
    }
    // No read of a pass is for it: what streams is all that is read.
    let before = model.stats();
    model.run(|norms| norms.pass(1)).unwrap();
    let read = model.stats().since(&before).bytes_read;
    assert!(read <= 2 * map.streamed_bytes() + 20 * 8192, "{read}");
}
