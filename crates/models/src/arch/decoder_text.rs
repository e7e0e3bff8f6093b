//! Qwen3, and what of Qwen2.5-VL and Mistral 3 reads text, as text encoders of models of pictures:
//! their hidden states after some layers; those behind these are not run.

use burn::module::Module;
use burn::tensor::Tensor;

use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use super::rms_config::RmsConfig;
use super::rms_decoder::{RmsBlock, RmsModel};
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use super::{gemma3, qwen_vl};
use crate::architecture::{Architecture, Init};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::decoder::check_text_ids;
use crate::layers::{Embedding, Mlp, Rope, Rotation, fetched, joined};
use crate::pass::Pass;
use crate::{
    Activations, Batch, CacheSpec, Error, ImageFeatures, KvCache, Logits, PassShape, PicturePass,
    Residual, WeightUse,
};

/// The embeddings of a decoder and its layers up to the last of which hidden states are taken.
#[derive(Module, Debug)]
pub struct DecoderTextEncoder {
    model: RmsModel<RmsDecoderLayer<Mlp>>,
    #[module(skip)]
    ropes: Vec<Rope>,
    #[module(skip)]
    cache: CacheSpec,
    #[module(skip)]
    states: Vec<usize>,
}

/// The configuration of a decoder, and what of it is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct DecoderTextEncoderConfig {
    /// That of the whole model.
    pub model: RmsConfig,
    /// After how many layers hidden states are taken, in rising order. By default those of
    /// Qwen2.5-VL are the ones behind the last layer and its norm, and those of others the ones
    /// before it.
    states: Vec<usize>,
}

/// What texts are filled up with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TextFilling {
    /// The token that does.
    pub token: u32,
    /// Tokens of a text that is filled up.
    pub tokens: usize,
    /// Whether it stands before a text, where it sees nothing, instead of behind it.
    pub before: bool,
}

impl DecoderTextEncoderConfig {
    /// The same of which hidden states are taken after so many layers each, in rising order.
    ///
    /// # Errors
    /// [`Error::Field`]: the model has no layer behind the last of them, before whose norm states
    /// would be taken.
    ///
    /// # Panics
    /// If the states do not rise from 1 on, or if there are none.
    pub fn with_states(self, states: &[usize]) -> Result<Self, Error> {
        let rises = states.is_sorted_by(|one, next| one < next);
        assert!(rises && states.first().is_some_and(|state| *state > 0), "{states:?} do not rise");
        let (layers, last) = (self.model.num_hidden_layers, states[states.len() - 1]);
        if layers <= last {
            return Err(Error::Field {
                field: "num_hidden_layers".to_owned(),
                value: layers.to_string(),
                expected: format!("hidden states are taken after {last} layers of more"),
            });
        }
        Ok(Self { states: states.to_vec(), ..self })
    }

    /// Layers that are run.
    pub fn layers(&self) -> usize {
        self.states.last().copied().unwrap_or_default()
    }

    /// Whether the norm behind all layers is run.
    fn is_normed(&self) -> bool {
        self.layers() == self.model.num_hidden_layers
    }

    /// Width of what is made of each token: of all hidden states that are taken.
    pub fn width(&self) -> usize {
        self.states.len() * self.model.hidden_size
    }
}

impl Architecture for DecoderTextEncoder {
    type Config = DecoderTextEncoderConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("qwen3", "Qwen3"), (QWEN_VL, "Qwen2_5_VL"), ("mistral3", "Mistral3")];
    const CLASS_PREFIX: &'static str = "Rms";
    const HEADS: &'static [&'static str] = &[
        "Qwen3ForCausalLM",
        "Qwen3Model",
        "Qwen2_5_VLForConditionalGeneration",
        "Mistral3ForConditionalGeneration",
    ];
    const NO_SPLIT: &'static [&'static str] = RmsDecoderLayer::<Mlp>::NO_SPLIT;
    // As a `Qwen3Model` has it.
    const OPTIONAL_PREFIX: &'static str = PREFIX;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        <Mlp as RmsFeedForward>::fields(model_type)
    }

    fn read(
        model_type: &'static str,
        fields: &Fields<'_>,
    ) -> Result<DecoderTextEncoderConfig, Error> {
        let model = <Mlp as RmsFeedForward>::read(model_type, fields)?;
        match model.num_hidden_layers {
            layers if model_type == QWEN_VL => {
                Ok(DecoderTextEncoderConfig { model, states: vec![layers] })
            }
            1 => {
                let expected = "a text encoder has layers before the last one".to_owned();
                Err(fields.refuse("num_hidden_layers", expected))
            }
            layers => Ok(DecoderTextEncoderConfig { model, states: vec![layers - 1] }),
        }
    }

    fn new(config: &DecoderTextEncoderConfig, init: &Init) -> Self {
        let run = RmsConfig { num_hidden_layers: config.layers(), ..config.model.clone() };
        let layers = 0..run.num_hidden_layers;
        Self {
            model: RmsModel {
                embed_tokens: Some(Embedding::new(run.vocab_size, run.hidden_size, init)),
                embeddings: None,
                rotary_emb: None,
                layers: layers.map(|index| RmsDecoderLayer::new(&run, index, init)).collect(),
                hc_head: None,
                norm: config.is_normed().then(|| run.block_norm(init)),
                final_layernorm: None,
                embedding_norm: None,
                norm_f: None,
            },
            ropes: run.ropes(),
            cache: run.cache(),
            states: config.states.clone(),
        }
    }
}

/// What the names of tensors may begin with.
const PREFIX: &str = "model.";

/// What transformers calls Qwen2.5-VL.
const QWEN_VL: &str = "qwen2_5_vl";

impl Component for DecoderTextEncoder {
    const INTERLEAVES: bool = true;

    fn names(_: &DecoderTextEncoderConfig, tensors: &[TensorInfo]) -> Names {
        let within = |(prefix, own): &(&str, &'static str)| {
            let is_within = tensors.iter().any(|tensor| tensor.name.starts_with(prefix));
            is_within.then(|| (format!("^{}", own.replace('.', r"\.")), (*prefix).to_owned()))
        };
        // Those of Mistral 3 are among these.
        let rule = gemma3::NAMES.prefixes.iter().find_map(within);
        let names = Names::default().optional_prefix(PREFIX);
        match rule {
            // The expression is ours, and valid.
            Some((own, prefix)) => names.clone().rename(&own, &prefix).unwrap_or(names),
            None => names,
        }
    }

    fn is_unused(config: &DecoderTextEncoderConfig, tensor: &str) -> bool {
        let others = [qwen_vl::NAMES, gemma3::NAMES].map(|names| names.others).concat();
        if others.iter().any(|other| tensor.starts_with(other)) {
            return true;
        }
        let prefixes = gemma3::NAMES.prefixes.iter().map(|(prefix, _)| *prefix).chain([PREFIX]);
        let name = prefixes.fold(tensor, |name, prefix| name.strip_prefix(prefix).unwrap_or(name));
        let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
        let layer = layer.and_then(|number| number.parse::<usize>().ok());
        let behind = config.layers()..config.model.num_hidden_layers;
        layer.is_some_and(|layer| behind.contains(&layer))
            || name.starts_with("norm.") && !config.is_normed()
            || name.starts_with("lm_head.")
    }

    fn weight_use(_: &DecoderTextEncoderConfig, path: &str, pass: &PicturePass) -> WeightUse {
        // A token attends to those before it.
        let attended = if path.contains(".q_proj.") { pass.tokens as u64 / 2 } else { 0 };
        WeightUse { rows: pass.all_tokens(), attended }
    }
}

impl DecoderTextEncoder {
    /// Runs texts of any length, each as it would be alone: `[texts, tokens, states · hidden]` f32,
    /// the hidden states side by side, in main memory. Of each text the last ones count, as many as
    /// it has tokens.
    ///
    /// # Errors
    /// No texts, one without ids, or an id outside the vocabulary.
    pub fn forward(&self, texts: &[impl AsRef<[u32]>]) -> Result<Tensor<3>, Error> {
        self.run(&Batch::left_padded(texts)?, &[], &[])
    }

    /// The same of texts that are filled up, with what does so, whose hidden states count too.
    /// Behind a text each of these tokens sees the text and nothing else, not even itself, from a
    /// position of its own.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    ///
    /// # Panics
    /// If a text is longer.
    pub fn forward_filled(
        &self,
        texts: &[impl AsRef<[u32]>],
        TextFilling { token, tokens, before }: TextFilling,
    ) -> Result<Tensor<3>, Error> {
        if before {
            return self.run(&Batch::left_filled(texts, token, tokens)?, &[], &[]);
        }
        let texts = texts.iter().map(AsRef::as_ref);
        let lengths: Vec<usize> = texts.clone().map(<[u32]>::len).collect();
        if lengths.contains(&0) {
            return Err(Error::NoTokens);
        }
        let filled = texts.map(|text| {
            assert!(text.len() <= tokens, "a text has more than {tokens} tokens");
            let rest = std::iter::repeat_n(token, tokens - text.len());
            text.iter().copied().chain(rest).collect::<Vec<_>>()
        });
        self.run(&Batch::left_padded(&filled.collect::<Vec<_>>())?, &lengths, &[])
    }

    /// The same of one text with images: `[1, tokens, states · hidden]` f32. Each image has as many
    /// ids as tokens, from the one given on, which is [`FIRST_IMAGE_ID`](crate::FIRST_IMAGE_ID) or
    /// above.
    ///
    /// # Errors
    /// As [`forward`](Self::forward), ids of images that overlap, and those of no image.
    pub fn forward_seeing(
        &self,
        text: &[u32],
        images: &[(u32, ImageFeatures)],
    ) -> Result<Tensor<3>, Error> {
        self.run(&Batch::left_padded(&[text])?, &[], images)
    }

    /// Of each text so many tokens are seen, or all if there are no `lengths`.
    fn run(
        &self,
        batch: &Batch,
        lengths: &[usize],
        images: &[(u32, ImageFeatures)],
    ) -> Result<Tensor<3>, Error> {
        let table = self.table();
        check_text_ids(batch, table.weight.lazy_shape()[0])?;
        let mut cache = KvCache::without_storage(&self.cache, batch);
        for (first, features) in images {
            cache.add_image(*first, features.clone())?;
        }
        cache.check_images(batch)?;
        cache.begin(batch);
        let pass = Pass::new(batch, &cache, Logits::All).with_lengths(lengths);
        let x = pass.embed_images(pass.embed(table));
        let rotations: Vec<Rotation> =
            self.ropes.iter().map(|rope| pass.rotation(rope, &x.device())).collect();
        let mut residual = Residual::new(x);
        let mut taken = Vec::with_capacity(self.states.len());
        let layers = self.model.layers.len();
        for (index, layer) in self.model.layers.iter().enumerate() {
            residual = layer.forward(residual, &rotations, &pass, &mut cache, index)?;
            if self.states.contains(&(index + 1)) {
                let states = match self.model.norm.as_ref().filter(|_| index + 1 == layers) {
                    Some(norm) => norm.after(residual.stream, residual.pending).1,
                    None => residual.summed(),
                };
                taken.push(fetched(states.clone(), &table.weight));
                residual = Residual::new(states);
            }
        }
        drop(residual);
        Ok(joined(taken, 2))
    }

    /// An upper bound on the bytes of activations that a pass of `rows` texts of up to `tokens`
    /// tokens each holds at once, with the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, rows: usize, tokens: usize, threads: usize) -> u64 {
        let pass = PassShape::of_texts(rows, tokens, threads);
        let layers = self.model.layers.iter().map(|layer| layer.activations(&pass));
        let most = layers.fold(Activations::default(), Activations::or);
        let (hidden, states) = (self.table().width(), self.states.len());
        // Alive throughout: the residual stream, hidden states that were taken before, and the
        // rotations.
        let alive = states * hidden + self.ropes.iter().map(Rope::width).sum::<usize>();
        let values = |width: usize| Activations::values(pass.rows() * width as u64);
        // At the end, several hidden states and what they are put together to.
        let together = if states > 1 { 2 * states * hidden } else { 0 };
        most.and(values(alive)).or(values(together)).bytes()
    }

    fn table(&self) -> &Embedding {
        self.model.embed_tokens.as_ref().expect("it is made with a table of this name")
    }
}
