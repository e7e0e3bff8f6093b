//! What every architecture has.

use std::fmt::Debug;

use burn::module::Module;
use burn::tensor::Device;

use crate::config::{Fields, KnownField};
use crate::{ActivationDtype, Error};

/// What a module is created with.
#[derive(Debug, Clone)]
pub struct Init {
    /// Where its parameters will be, once they have storage.
    pub device: Device,
    /// The type in which linear layers and, in tiles, attention multiply activations; norms and
    /// sums are f32.
    pub compute: ActivationDtype,
}

impl Init {
    /// Activations multiplied in f32.
    pub fn new(device: &Device) -> Self {
        Self { device: device.clone(), compute: ActivationDtype::F32 }
    }
}

/// The names of tensors in a checkpoint of several models, of which one is a language model; or in
/// one whose names are others than those of `transformers`.
#[derive(Debug)]
pub struct MultimodalNames {
    /// What its names may begin with there, and what stands in place of that in its own.
    pub prefixes: &'static [(&'static str, &'static str)],
    /// What the names of the other models' tensors begin with.
    pub others: &'static [&'static str],
}

/// A model as one Burn module, made from its `config.json`: what all architectures have, decoders
/// or not.
///
/// Fields of the module are named, and its parameters shaped, as in the checkpoint. All else that a
/// plan needs (blocks, shapes, order of use, sizes) is read off the lazy module.
pub trait Architecture: Module + Debug + Send + Sync + 'static {
    /// Its `config.json`, checked.
    type Config: Debug + Clone + PartialEq + Send + Sync + 'static;

    /// Values of `model_type`, each with what the names of its classes in `transformers` begin
    /// with.
    const MODEL_TYPES: &'static [(&'static str, &'static str)];

    /// What the names of this module's own classes begin with.
    const CLASS_PREFIX: &'static str;

    /// Classes of the module that are not split between devices.
    const NO_SPLIT: &'static [&'static str];

    /// What the names in `architectures` end in: models for causal language modelling, unless it
    /// says otherwise.
    const HEADS: &'static [&'static str] = &["ForCausalLM", "LMHeadModel"];

    /// Classes of the module that `transformers` calls otherwise than by
    /// [`CLASS_PREFIX`](Self::CLASS_PREFIX).
    const CLASSES: &'static [(&'static str, &'static str)] = &[];

    /// A prefix of tensor names that some checkpoints leave out.
    const OPTIONAL_PREFIX: &'static str = "";

    /// Ends of the names of tensors that carry no weight: buffers which some versions saved.
    const IGNORED: &'static [&'static str] = &[];

    /// Modules of `transformers` that hold no tensor, with their classes: beside the model's own
    /// parts, and in each block.
    const WITHOUT_PARAMETERS: &'static [(&'static str, &'static str)] = &[];

    /// The fields of `config.json` that this architecture reads or refuses, beside those of all
    /// architectures.
    fn fields(model_type: &str) -> &'static [&'static [KnownField]];

    /// If a model of several has text parts of several architectures: those in
    /// `text_config.model_type` that are of this one.
    fn text_types(_model_type: &str) -> &'static [&'static str] {
        &[]
    }

    /// Where checkpoints of that type keep this model, if it is a part of what they hold.
    fn multimodal(_model_type: &str) -> Option<&'static MultimodalNames> {
        None
    }

    /// Reads the fields, which were [checked](Self::fields) against the tables.
    ///
    /// # Errors
    /// A field that is missing, out of bounds, or asks for something that is not built in.
    fn read(model_type: &'static str, fields: &Fields<'_>) -> Result<Self::Config, Error>;

    /// A model without storage.
    fn new(config: &Self::Config, init: &Init) -> Self;
}

/// What `transformers` or `diffusers` calls a class of the module. Prefixes are theirs and the
/// module's own; `classes` are those that are called otherwise.
pub(crate) fn class_name(
    (theirs, ours): (&str, &str),
    classes: &[(&str, &str)],
    class: &str,
) -> String {
    if let Some((_, named)) = classes.iter().find(|(own, _)| *own == class) {
        return (*named).to_owned();
    }
    match (class, class.strip_prefix(ours)) {
        ("Vec", _) => "ModuleList".to_owned(),
        ("RmsNorm", _) => format!("{theirs}RMSNorm"),
        ("Router", _) => format!("{theirs}TopKRouter"),
        ("Attention" | "FusedAttention" | "LatentAttention" | "SharedAttention", _) => {
            format!("{theirs}Attention")
        }
        ("Embedding", _) if theirs.starts_with("Gemma") && theirs.ends_with("Text") => {
            format!("{theirs}ScaledWordEmbedding")
        }
        ("Gemma3nForCausalLm" | "Gemma4ForCausalLm", _) => {
            format!("{}ForCausalLM", theirs.trim_end_matches("Text"))
        }
        ("Mlp" | "FusedMlp" | "FeedForward", _) => format!("{theirs}MLP"),
        ("GatedDeltaNet", _) => format!("{theirs}GatedDeltaNet"),
        ("DeltaAttention", _) if theirs == "OlmoHybrid" => format!("{theirs}GatedDeltaNet"),
        ("DeltaAttention", _) => format!("{theirs}DeltaAttention"),
        ("KimiDecoderLayer", _) => format!("{theirs}DecoderLayer"),
        ("LightningAttention", _) => format!("{theirs}LightningAttention"),
        ("Mamba2Mixer", _) if theirs == "GraniteMoeHybrid" => format!("{theirs}MambaLayer"),
        ("Mamba2Mixer", _) if theirs == "NemotronH" => format!("{theirs}Mamba2Mixer"),
        ("Mamba2Mixer", _) => format!("{theirs}Mixer"),
        ("MambaMixer", _) if theirs == "Jamba" => format!("{theirs}MambaMixer"),
        ("MambaMixer", _) => format!("{theirs}Mixer"),
        ("NemotronHBlock", _) => format!("{theirs}Block"),
        ("BambaDecoderLayer", _) => format!("{theirs}DecoderLayer"),
        ("RmsNormGated", _) => format!("{theirs}RMSNormGated"),
        ("CausalConv1d", _) => "Conv1d".to_owned(),
        ("Conv1d", _) => "Conv1D".to_owned(),
        ("HeadMatrices", _) => "Linear".to_owned(),
        (_, Some(own)) => format!("{theirs}{}", own.replace("Lm", "LM").replace("Mlp", "MLP")),
        (shared, None) => shared.to_owned(),
    }
}
