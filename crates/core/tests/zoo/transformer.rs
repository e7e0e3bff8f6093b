use crate::common::{Numbers, flat};
use crate::specimen::{Specimen, check};
use burn::module::Module;
use burn::nn::attention::{
    CrossAttention, CrossAttentionConfig, MhaInput, MultiHeadAttention, MultiHeadAttentionConfig,
};
use burn::nn::transformer::{
    TransformerDecoder, TransformerDecoderConfig, TransformerDecoderInput, TransformerEncoder,
    TransformerEncoderConfig, TransformerEncoderInput,
};
use burn::tensor::{Device, Tensor};

const WIDTH: usize = 32;

#[derive(Module, Debug)]
pub struct Encoders {
    last: TransformerEncoder,
    first: TransformerEncoder,
}

impl Specimen for Encoders {
    fn new(device: &Device) -> Self {
        let config = TransformerEncoderConfig::new(WIDTH, 48, 4, 2).with_dropout(0.0);
        Self { last: config.init(device), first: config.with_norm_first(true).init(device) }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let mut numbers = Numbers(seed);
        let x = numbers.tensor([2, 5, WIDTH]);
        let pad = numbers.ids([2, 5], 4).equal_elem(0);
        let x = self.last.forward(TransformerEncoderInput::new(x).mask_pad(pad));
        flat(self.first.forward(TransformerEncoderInput::new(x)))
    }
}

#[derive(Module, Debug)]
pub struct Decoders {
    last: TransformerDecoder,
    first: TransformerDecoder,
}

impl Specimen for Decoders {
    fn new(device: &Device) -> Self {
        let config = TransformerDecoderConfig::new(WIDTH, 48, 4, 2).with_dropout(0.0);
        Self { last: config.init(device), first: config.with_norm_first(true).init(device) }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let mut numbers = Numbers(seed);
        let x = numbers.tensor([2, 5, WIDTH]);
        let memory: Tensor<3> = numbers.tensor([2, 4, WIDTH]);
        let x = self.last.forward(TransformerDecoderInput::new(x, memory.clone()));
        // Step by step, with a cache.
        let mut cache = self.first.new_autoregressive_cache();
        let steps = (1..=5)
            .map(|length| {
                let seen = x.clone().narrow(1, 0, length);
                let input = TransformerDecoderInput::new(seen, memory.clone());
                self.first.forward_autoregressive_inference(input, &mut cache)
            })
            .collect::<Vec<_>>();
        flat(Tensor::cat(steps, 1))
    }
}

#[derive(Module, Debug)]
pub struct Attentions {
    own: MultiHeadAttention,
    cross: CrossAttention,
}

impl Specimen for Attentions {
    fn new(device: &Device) -> Self {
        Self {
            own: MultiHeadAttentionConfig::new(WIDTH, 4)
                .with_dropout(0.0)
                .with_quiet_softmax(true)
                .init(device),
            cross: CrossAttentionConfig::new(WIDTH, 24, 4, 2, 8).with_dropout(0.0).init(device),
        }
    }

    fn pass(&self, seed: u64) -> Tensor<1> {
        let mut numbers = Numbers(seed);
        let x: Tensor<3> = numbers.tensor([2, 5, WIDTH]);
        let mask = numbers.ids([2, 5, 5], 3).equal_elem(0);
        let x = self.own.forward(MhaInput::self_attn(x).mask_attn(mask)).context;
        flat(self.cross.forward(x, numbers.tensor([2, 3, 24]), None))
    }
}

#[test]
fn transformer_encoder() {
    check::<Encoders>();
}

#[test]
fn transformer_decoder() {
    check::<Decoders>();
}

#[test]
fn attention() {
    check::<Attentions>();
}
