//! Qwen3, and what of Qwen2.5-VL reads text, as text encoders of models of pictures: their hidden states after some layers; those
//! behind these are not run.

use burn::module::Module;
use burn::tensor::Tensor;

use outsize_checkpoint::TensorInfo;
use outsize_core::Names;

use super::qwen_vl;
use super::rms_config::RmsConfig;
use super::rms_decoder::{RmsBlock, RmsModel};
use super::rms_layer::{RmsDecoderLayer, RmsFeedForward};
use crate::architecture::{Architecture, Init, MultimodalNames};
use crate::component::Component;
use crate::config::{Fields, KnownField};
use crate::decoder::check_text_ids;
use crate::layers::{Embedding, Mlp, Rope, Rotation, fetched, joined};
use crate::pass::Pass;
use crate::{
    Activations, Batch, CacheSpec, Error, ImageFeatures, KvCache, Logits, PassShape, PicturePass,
    Residual, WeightUse,
};

/// The embeddings of a Qwen and its layers up to the last of which hidden states are taken.
#[derive(Module, Debug)]
pub struct QwenTextEncoder {
    model: RmsModel<RmsDecoderLayer<Mlp>>,
    #[module(skip)]
    ropes: Vec<Rope>,
    #[module(skip)]
    cache: CacheSpec,
    #[module(skip)]
    states: Vec<usize>,
}

/// The configuration of a Qwen, and what of it is wanted.
#[derive(Debug, Clone, PartialEq)]
pub struct QwenTextEncoderConfig {
    /// That of the whole model.
    pub model: RmsConfig,
    /// After how many layers hidden states are taken, in rising order. By default those of Qwen3 are the ones before the last
    /// layer, and those of Qwen2.5-VL the ones behind it and its norm.
    states: Vec<usize>,
}

impl QwenTextEncoderConfig {
    /// The same of which hidden states are taken after so many layers each, in rising order.
    ///
    /// # Errors
    /// [`Error::Field`]: the model has no layer behind the last of them, before whose norm states would be taken.
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

impl Architecture for QwenTextEncoder {
    type Config = QwenTextEncoderConfig;

    const MODEL_TYPES: &'static [(&'static str, &'static str)] =
        &[("qwen3", "Qwen3"), (QWEN_VL, "Qwen2_5_VL")];
    const CLASS_PREFIX: &'static str = "Rms";
    const HEADS: &'static [&'static str] =
        &["Qwen3ForCausalLM", "Qwen3Model", "Qwen2_5_VLForConditionalGeneration"];
    const NO_SPLIT: &'static [&'static str] = RmsDecoderLayer::<Mlp>::NO_SPLIT;
    // As a `Qwen3Model` has it.
    const OPTIONAL_PREFIX: &'static str = PREFIX;

    fn fields(model_type: &str) -> &'static [&'static [KnownField]] {
        <Mlp as RmsFeedForward>::fields(model_type)
    }

    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<QwenTextEncoderConfig, Error> {
        let model = <Mlp as RmsFeedForward>::read(model_type, fields)?;
        match model.num_hidden_layers {
            layers if model_type == QWEN_VL => {
                Ok(QwenTextEncoderConfig { model, states: vec![layers] })
            }
            1 => {
                let expected = "a text encoder has layers before the last one".to_owned();
                Err(fields.refuse("num_hidden_layers", expected))
            }
            layers => Ok(QwenTextEncoderConfig { model, states: vec![layers - 1] }),
        }
    }

    fn new(config: &QwenTextEncoderConfig, init: &Init) -> Self {
        let run = RmsConfig { num_hidden_layers: config.layers(), ..config.model.clone() };
        let layers = 0..run.num_hidden_layers;
        Self {
            model: RmsModel {
                embed_tokens: Some(Embedding::new(run.vocab_size, run.hidden_size, init)),
                embeddings: None,
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

impl Component for QwenTextEncoder {
    fn names(_: &QwenTextEncoderConfig, tensors: &[TensorInfo]) -> Names {
        let within = |(prefix, own): &(&str, &'static str)| {
            let is_within = tensors.iter().any(|tensor| tensor.name.starts_with(prefix));
            is_within.then(|| (format!("^{}", own.replace('.', r"\.")), (*prefix).to_owned()))
        };
        let rule = qwen_vl::NAMES.prefixes.iter().find_map(within);
        let names = Names::default().optional_prefix(PREFIX);
        match rule {
            // The expression is ours, and valid.
            Some((own, prefix)) => names.clone().rename(&own, &prefix).unwrap_or(names),
            None => names,
        }
    }

    fn is_unused(config: &QwenTextEncoderConfig, tensor: &str) -> bool {
        let MultimodalNames { prefixes, others } = qwen_vl::NAMES;
        if others.iter().any(|other| tensor.starts_with(other)) {
            return true;
        }
        let prefixes = prefixes.iter().map(|(prefix, _)| *prefix).chain([PREFIX]);
        let name = prefixes.filter_map(|prefix| tensor.strip_prefix(prefix)).next();
        let name = name.unwrap_or(tensor);
        let layer = name.strip_prefix("layers.").and_then(|rest| rest.split('.').next());
        let layer = layer.and_then(|number| number.parse::<usize>().ok());
        let behind = config.layers()..config.model.num_hidden_layers;
        layer.is_some_and(|layer| behind.contains(&layer))
            || name.starts_with("norm.") && !config.is_normed()
            || name.starts_with("lm_head.")
    }

    fn weight_use(_: &QwenTextEncoderConfig, path: &str, pass: &PicturePass) -> WeightUse {
        // A token attends to those before it.
        let attended = if path.contains(".q_proj.") { pass.tokens as u64 / 2 } else { 0 };
        WeightUse { rows: pass.all_tokens(), attended }
    }
}

impl QwenTextEncoder {
    /// Runs texts of any length, each as it would be alone: `[texts, tokens, states · hidden]` f32, the hidden states side by side,
    /// in main memory. Of each text the last ones count, as many as it has tokens.
    ///
    /// # Errors
    /// No texts, one without ids, or an id outside the vocabulary.
    pub fn forward(&self, texts: &[impl AsRef<[u32]>]) -> Result<Tensor<3>, Error> {
        self.run(&Batch::left_padded(texts)?, &[], &[])
    }

    /// The same of texts that are filled up to so many `tokens` with `padding` behind them, whose hidden states count too: each
    /// sees the text and nothing else, not even itself, from a position of its own.
    ///
    /// # Errors
    /// As [`forward`](Self::forward).
    ///
    /// # Panics
    /// If a text is longer.
    pub fn forward_filled(
        &self,
        texts: &[impl AsRef<[u32]>],
        padding: u32,
        tokens: usize,
    ) -> Result<Tensor<3>, Error> {
        let texts = texts.iter().map(AsRef::as_ref);
        let lengths: Vec<usize> = texts.clone().map(<[u32]>::len).collect();
        if lengths.contains(&0) {
            return Err(Error::NoTokens);
        }
        let filled = texts.map(|text| {
            assert!(text.len() <= tokens, "a text has more than {tokens} tokens");
            let rest = std::iter::repeat_n(padding, tokens - text.len());
            text.iter().copied().chain(rest).collect::<Vec<_>>()
        });
        self.run(&Batch::left_padded(&filled.collect::<Vec<_>>())?, &lengths, &[])
    }

    /// The same of one text with images: `[1, tokens, states · hidden]` f32. Each image has as many ids as tokens, from the one
    /// given on, which is [`FIRST_IMAGE_ID`](crate::FIRST_IMAGE_ID) or above.
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

    /// An upper bound on the bytes of activations that a pass of `rows` texts of up to `tokens` tokens each holds at once, with
    /// the scratch memory of attention on so many threads.
    pub fn activation_bytes(&self, rows: usize, tokens: usize, threads: usize) -> u64 {
        let pass = PassShape::of_texts(rows, tokens, threads);
        let layers = self.model.layers.iter().map(|layer| layer.activations(&pass));
        let most = layers.fold(Activations::default(), Activations::or);
        let (hidden, states) = (self.table().width(), self.states.len());
        // Alive throughout: the residual stream, hidden states that were taken before, and the rotations.
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
