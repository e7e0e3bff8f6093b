use crate::common::{Numbers, bits, flat, options};
use crate::specimen::{Specimen, Stored, check, dispatched};
use burn::module::Module;
use burn::nn::{BiGru, BiGruConfig, BiLstm, BiLstmConfig, Gru, GruConfig, Lstm, LstmConfig};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Dtype;
use outsize_core::tree;
use outsize_plan::{Budget, place};

const WIDTH: usize = 24;

#[derive(Module, Debug)]
pub struct Lstms {
    lstm: Lstm,
    both: BiLstm,
}

impl Specimen for Lstms {
    fn new(device: &Device) -> Self {
        Self {
            lstm: LstmConfig::new(WIDTH, WIDTH, true).init(device),
            both: BiLstmConfig::new(WIDTH, WIDTH, true).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let (x, _) = self.lstm.forward(Numbers(seed).tensor([2, 6, WIDTH]), None);
        flat(self.both.forward(x, None).0)
    }
}

#[derive(Module, Debug)]
pub struct Grus {
    gru: Gru,
    both: BiGru,
}

impl Specimen for Grus {
    fn new(device: &Device) -> Self {
        Self {
            gru: GruConfig::new(WIDTH, WIDTH, true)
                .with_reset_after(false)
                .init(device),
            both: BiGruConfig::new(WIDTH, WIDTH, true).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let x = self.gru.forward(Numbers(seed).tensor([2, 6, WIDTH]), None);
        flat(self.both.forward(x, None).0)
    }
}

#[test]
fn lstm() {
    check::<Lstms>();
}

#[test]
fn gru() {
    check::<Grus>();
}

/// A recurrent layer asks for each weight at every step. As long as it is in the ring that reads nothing: a
/// pass reads what it streams once, however many steps it makes.
#[test]
fn a_weight_still_in_the_ring_costs_nothing() {
    let mut stored = Stored::<Lstms>::new();
    let checkpoint = stored.checkpoint(Dtype::F32);
    // The ring holds one of three layers: 8 weights of 3 pages and 8 biases of 2.
    let mut options = options(None);
    let tree = tree(&Lstms::new(&Device::flex()), &checkpoint, &options).unwrap();
    options.min_ring_bytes = 8 * (3 + 2 + 1) * 4096;
    let budget = Budget::default();
    let map = place(&tree, &budget, &options.plan(), |_| false).unwrap();
    assert!(map.ring_bytes() < map.streamed_bytes() * 3);
    let model = dispatched::<Lstms>(&checkpoint, &map, &options);
    for seed in [1, 2, 3] {
        let before = model.stats();
        let output = model.run(|lstms| bits(lstms.pass(seed))).unwrap();
        assert_eq!(output, stored.expected(seed));
        let stats = model.stats().since(&before);
        assert!(stats.hits > 6 * 16, "{stats:?}");
        // Whole pages are read: each of the 48 units has up to two that it fills in part.
        let once = map.streamed_bytes() + 48 * 2 * 4096;
        assert!(stats.bytes_read <= once, "{stats:?} for {once}");
    }
}
