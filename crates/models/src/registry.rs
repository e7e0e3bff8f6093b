//! Which architecture belongs to which `model_type`.

use std::sync::LazyLock;

use outsize_checkpoint::shown;

use crate::any_decoder::EmptyDecoder;
use crate::arch;
use crate::config::{COMMON, Fields, MAX_QUOTE, check};
use crate::{DecoderArchitecture, Error, MultimodalNames};

/// One value of `model_type`, and the constants of its architecture.
pub(crate) struct Row {
    pub model_type: &'static str,
    /// What the names of its classes begin with: in `transformers`, and in the module.
    pub class_prefixes: (&'static str, &'static str),
    /// Classes of the module, and what `transformers` calls them.
    pub classes: &'static [(&'static str, &'static str)],
    pub no_split: &'static [&'static str],
    pub optional_prefix: &'static str,
    pub ignored: &'static [&'static str],
    pub text_types: &'static [&'static str],
    pub multimodal: Option<&'static MultimodalNames>,
    pub without_parameters: &'static [(&'static str, &'static str)],
    pub layers: &'static str,
    pub head: &'static str,
    /// The tensor that serves as head where the configuration has one of its own and the checkpoint
    /// has none.
    pub spare_head: Option<&'static str>,
    /// Layers of the cache that each block has.
    pub attentions: usize,
    pub is_stacked: bool,
    pub has_more_layers: bool,
    /// Whether a parameter is used for the prompt alone.
    pub is_of_prompt: fn(&str) -> bool,
    read: fn(&'static str, &Fields<'_>) -> Result<EmptyDecoder, Error>,
}

/// Every architecture has one line here.
static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let rows = [
        decoder::<arch::LlamaForCausalLm>(),
        decoder::<arch::ArceeForCausalLm>(),
        decoder::<arch::GlmForCausalLm>(),
        decoder::<arch::ErnieMoeForCausalLm>(),
        decoder::<arch::HunyuanMoeForCausalLm>(),
        decoder::<arch::MixtralForCausalLm>(),
        decoder::<arch::MiniMaxForCausalLm>(),
        decoder::<arch::SparseMoeForCausalLm>(),
        decoder::<arch::Qwen3VlMoeForCausalLm>(),
        decoder::<arch::Llama4ForCausalLm>(),
        decoder::<arch::Lfm2ForCausalLm>(),
        decoder::<arch::GraniteMoeForCausalLm>(),
        decoder::<arch::GraniteMoeHybridForCausalLm>(),
        decoder::<arch::BambaForCausalLm>(),
        decoder::<arch::FalconH1ForCausalLm>(),
        decoder::<arch::NemotronHForCausalLm>(),
        decoder::<arch::ApertusForCausalLm>(),
        decoder::<arch::Gemma3nForCausalLm>(),
        decoder::<arch::Gemma4ForCausalLm>(),
        decoder::<arch::GptOssForCausalLm>(),
        decoder::<arch::LongcatForCausalLm>(),
        decoder::<arch::DeepseekV4ForCausalLm>(),
        decoder::<arch::HyV4ForCausalLm>(),
        decoder::<arch::MuseSparkForCausalLm>(),
        decoder::<arch::KimiForCausalLm>(),
        decoder::<arch::DeepseekForCausalLm>(),
        decoder::<arch::DbrxForCausalLm>(),
        decoder::<arch::Gpt2LmHeadModel>(),
        decoder::<arch::GptjForCausalLm>(),
        decoder::<arch::Starcoder2ForCausalLm>(),
        decoder::<arch::PhiForCausalLm>(),
        decoder::<arch::Phi3ForCausalLm>(),
        decoder::<arch::GptNeoxForCausalLm>(),
        decoder::<arch::OptForCausalLm>(),
        decoder::<arch::BloomForCausalLm>(),
        decoder::<arch::FalconForCausalLm>(),
        decoder::<arch::T5ForConditionalGeneration>(),
    ];
    rows.into_iter().flatten().collect()
});

fn decoder<D: DecoderArchitecture>() -> Vec<Row> {
    let types = D::MODEL_TYPES.iter();
    let row = |&(model_type, class_prefix)| Row {
        model_type,
        class_prefixes: (class_prefix, D::CLASS_PREFIX),
        classes: D::CLASSES,
        no_split: D::NO_SPLIT,
        optional_prefix: D::OPTIONAL_PREFIX,
        ignored: D::IGNORED,
        text_types: D::text_types(model_type),
        multimodal: D::multimodal(model_type),
        without_parameters: D::WITHOUT_PARAMETERS,
        layers: D::LAYERS,
        head: D::HEAD,
        spare_head: D::SPARE_HEAD,
        attentions: D::ATTENTIONS,
        is_stacked: D::IS_STACKED,
        has_more_layers: D::has_more_layers(model_type),
        is_of_prompt: D::is_of_prompt,
        read: |model_type, fields| {
            let mut tables = D::fields(model_type).to_vec();
            tables.push(COMMON);
            check(fields, &tables)?;
            check_head(fields, D::HEADS)?;
            Ok(EmptyDecoder::new::<D>(D::read(model_type, fields)?))
        },
    };
    types.map(row).collect()
}

/// The values of `model_type` that are built in.
pub fn model_types() -> impl Iterator<Item = &'static str> {
    ROWS.iter().filter(|row| row.text_types.is_empty()).map(|row| row.model_type)
}

/// Reads the fields as the architecture of their `model_type` does.
pub(crate) fn read(fields: &Fields<'_>) -> Result<(&'static Row, EmptyDecoder), Error> {
    let row = row(fields)?;
    Ok((row, (row.read)(row.model_type, fields)?))
}

/// The row of their `model_type`.
pub(crate) fn row(fields: &Fields<'_>) -> Result<&'static Row, Error> {
    let found = fields.text("model_type")?;
    let found = found.ok_or_else(|| fields.missing("model_type"))?;
    let text = fields.object("text_config").ok().flatten();
    let text = text.as_ref().and_then(|text| text.text("model_type").ok().flatten());
    let mut rows = ROWS.iter().filter(|row| row.model_type == found);
    let of_text = |row: &&Row| text.is_some_and(|text| row.text_types.contains(&text));
    let row = rows.clone().find(of_text).or_else(|| rows.find(|row| row.text_types.is_empty()));
    row.ok_or_else(|| Error::ModelType {
        found: shown(found, MAX_QUOTE),
        supported: format!("{} types, nearest by name {}", model_types().count(), nearest(found)),
    })
}

/// The supported types that begin most like this one.
fn nearest(found: &str) -> String {
    /// More than these are of no use to anyone.
    const NAMED: usize = 8;
    let common = |name: &&str| {
        name.bytes().zip(found.bytes()).take_while(|(ours, theirs)| ours == theirs).count()
    };
    let mut types: Vec<_> = model_types().collect();
    types.sort_by_key(|name| std::cmp::Reverse(common(name)));
    types.truncate(NAMED);
    types.join(", ")
}

/// Refuses models that end in anything but logits of the next token: those whose names have other
/// ends.
fn check_head(fields: &Fields<'_>, heads: &[&str]) -> Result<(), Error> {
    let Some(value) = fields.get("architectures") else {
        return Ok(());
    };
    let names = value.as_array().map_or(&[][..], Vec::as_slice);
    let causal = |name: &serde_json::Value| {
        let name = name.as_str();
        name.is_some_and(|name| heads.iter().any(|head| name.ends_with(head)))
    };
    if names.iter().any(causal) {
        return Ok(());
    }
    let expected = match heads.first() {
        Some(&"ForCausalLM") | None => {
            "only models for causal language modelling (\"…ForCausalLM\") are supported".to_owned()
        }
        Some(head) => format!("only models that generate text (\"…{head}\") are supported"),
    };
    Err(fields.refuse("architectures", expected))
}
