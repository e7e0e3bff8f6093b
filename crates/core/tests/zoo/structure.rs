use crate::common::{Numbers, flat};
use crate::specimen::{Specimen, check};
use burn::module::{Module, Param, ParamId};
use burn::nn::{
    Embedding, EmbeddingConfig, Linear, LinearConfig, LinearLayout, PRelu, PReluConfig, SwiGlu,
    SwiGluConfig,
};
use burn::tensor::{Bool, Device, Int, Tensor};

const WIDTH: usize = 32;

fn linear(device: &Device) -> Linear {
    LinearConfig::new(WIDTH, WIDTH).init(device)
}

#[derive(Module, Debug)]
pub enum Layer {
    Linear(Linear),
    Gated(SwiGlu),
    Curved(PRelu),
}

impl Layer {
    fn forward(&self, x: Tensor<2>) -> Tensor<2> {
        match self {
            Self::Linear(linear) => linear.forward(x),
            Self::Gated(gated) => gated.forward(x),
            Self::Curved(curved) => curved.forward(x),
        }
    }
}

/// Enums, options, vectors, arrays and tuples of modules; a table; weights stored the other way
/// round.
#[derive(Module, Debug)]
pub struct Containers {
    table: Embedding,
    layers: Vec<Layer>,
    some: Option<Linear>,
    none: Option<Linear>,
    pair: (Linear, Linear),
    three: [Linear; 3],
    column: Linear,
}

impl Specimen for Containers {
    fn new(device: &Device) -> Self {
        Self {
            table: EmbeddingConfig::new(50, WIDTH).init(device),
            layers: vec![
                Layer::Linear(linear(device)),
                Layer::Gated(SwiGluConfig::new(WIDTH, WIDTH).with_bias(true).init(device)),
                Layer::Curved(PReluConfig::new().with_num_parameters(WIDTH).init(device)),
                Layer::Linear(linear(device)),
            ],
            some: Some(linear(device)),
            none: None,
            pair: (linear(device), linear(device)),
            three: [linear(device), linear(device), linear(device)],
            column: LinearConfig::new(WIDTH, 48).with_layout(LinearLayout::Col).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let ids = Numbers(seed).ids([1, 7], 50);
        let mut x = self.table.forward(ids).squeeze_dim::<2>(0);
        for layer in &self.layers {
            x = layer.forward(x);
        }
        for linear in self.some.iter().chain(&self.none) {
            x = linear.forward(x);
        }
        x = self.pair.1.forward(self.pair.0.forward(x));
        for linear in &self.three {
            x = linear.forward(x);
        }
        flat(self.column.forward(x))
    }
}

/// A module used twice in a pass, modules that share a parameter, layers of which each pass skips
/// half.
#[derive(Module, Debug)]
pub struct Sharing {
    twice: Linear,
    first: Linear,
    second: Linear,
    layers: Vec<Linear>,
}

impl Specimen for Sharing {
    fn new(device: &Device) -> Self {
        let first = linear(device);
        let second = Linear { weight: first.weight.clone(), bias: None };
        Self {
            twice: linear(device),
            first,
            second,
            layers: (0..6).map(|_| linear(device)).collect(),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let x: Tensor<2> = Numbers(seed).tensor([3, WIDTH]);
        let mut x = self.twice.forward(self.twice.forward(x));
        x = self.second.forward(self.first.forward(x));
        for (at, layer) in self.layers.iter().enumerate() {
            if (at as u64 + seed).is_multiple_of(2) {
                x = layer.forward(x);
            }
        }
        flat(self.twice.forward(x))
    }
}

/// Integers, booleans, a single number and nothing at all.
#[derive(Module, Debug)]
pub struct Oddities {
    shifts: Param<Tensor<1, Int>>,
    keep: Param<Tensor<2, Bool>>,
    scale: Param<Tensor<1>>,
    empty: Param<Tensor<2>>,
    linear: Linear,
}

impl Specimen for Oddities {
    fn new(device: &Device) -> Self {
        let lazy = |shape: [usize; 2]| {
            Param::uninitialized(
                ParamId::new(),
                move |device: &Device, _| Tensor::ones(shape, device),
                device.clone(),
                false,
                shape.into(),
            )
        };
        Self {
            shifts: Param::initialized(ParamId::new(), Tensor::zeros([WIDTH], device)),
            keep: Param::initialized(
                ParamId::new(),
                Tensor::<2, Int>::zeros([3, WIDTH], device).equal_elem(0),
            ),
            scale: Param::uninitialized(
                ParamId::new(),
                |device: &Device, _| Tensor::ones([1], device),
                device.clone(),
                false,
                [1].into(),
            ),
            empty: lazy([0, WIDTH]),
            linear: linear(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let x: Tensor<2> = Numbers(seed).tensor([3, WIDTH]);
        let x = x * self.scale.val().unsqueeze() + self.shifts.val().float().unsqueeze();
        let x = self.linear.forward(x.mask_fill(self.keep.val(), 2.0));
        flat(Tensor::cat(vec![x, self.empty.val()], 0))
    }
}

#[test]
fn containers() {
    check::<Containers>();
}

#[test]
fn sharing() {
    check::<Sharing>();
}

#[test]
fn oddities() {
    check::<Oddities>();
}
