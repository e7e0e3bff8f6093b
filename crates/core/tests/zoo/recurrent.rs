use crate::common::{Numbers, bits, flat, options};
use crate::specimen::{Specimen, Stored, check, dispatched, least};
use burn::module::Module;
use burn::nn::{BiGru, BiGruConfig, BiLstm, BiLstmConfig, Gru, GruConfig, Lstm, LstmConfig};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::Dtype;
use outsize_core::{plan, tree};
use outsize_plan::{Budget, place, unit_footprint};

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
            gru: GruConfig::new(WIDTH, WIDTH, true).with_reset_after(false).init(device),
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

/// A recurrent layer asks for each weight at every step. As long as it is in the ring that reads
/// nothing: a pass reads what it streams once, however many steps it makes.
#[test]
fn a_weight_still_in_the_ring_costs_nothing() {
    let mut stored = Stored::<Lstms>::new();
    let checkpoint = stored.checkpoint(Dtype::F32);
    let options = options(None);
    let tree = tree(&Lstms::new(&Device::flex()), &checkpoint, &options).unwrap();
    // A pass makes six steps through each of three layers of 16 parameters.
    let (steps, layers, units) = (6, 3, 16);
    let once = layers * units * unit_footprint(4 * (WIDTH * WIDTH) as u64);
    let mut passes = |ring: u64| {
        let plan = outsize_plan::Options { min_ring: ring, ..options.plan() };
        let map = place(&tree, &Budget::default(), &plan, |_| false).unwrap();
        let model = dispatched::<Lstms>(&checkpoint, &map, &options);
        [1, 2, 3].map(|seed| {
            let before = model.stats();
            let output = model.run(|lstms| bits(lstms.pass(seed))).unwrap();
            assert!(output == stored.expected(seed));
            model.stats().since(&before)
        })
    };
    // The ring holds one layer and a half.
    for stats in passes(once / 2) {
        assert!(stats.bytes_read <= once, "{stats:?} for {once}");
        // The first step may come before its reads, the others never do.
        assert!(stats.hits >= (steps - 1) * layers * units, "{stats:?}");
    }
    // One that does not hold the layer reads it again at each step.
    for stats in passes(0) {
        assert!(stats.bytes_read > once, "{stats:?} for {once}");
    }
}

/// The planner rather makes room for a whole layer in the ring than for some of its weights outside
/// of it; in less memory the layer runs nevertheless.
#[test]
fn the_ring_holds_a_recurrent_layer_if_it_can() {
    let mut stored = Stored::<Lstms>::new();
    let checkpoint = stored.checkpoint(Dtype::F32);
    let none = options(None);
    let module = Lstms::new(&Device::flex());
    let tree = tree(&module, &checkpoint, &none).unwrap();
    let (layer, least) = (16 * unit_footprint(4 * (WIDTH * WIDTH) as u64), least(&tree, &none));
    for (budget, holds) in [(2 * layer, true), (least, false)] {
        let options = options(Some(budget));
        let map = plan(&module, &checkpoint, &options).unwrap();
        assert_eq!(map.ring_bytes() >= layer, holds);
        let model = dispatched::<Lstms>(&checkpoint, &map, &options);
        let output = model.run(|lstms| bits(lstms.pass(1))).unwrap();
        assert!(output == stored.expected(1));
    }
}
