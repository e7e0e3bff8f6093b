use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use crate::fields::{Fields, is_unset};
use crate::pattern::first_matches;
use crate::{Error, ModulePattern};

/// The file that an adapter's configuration is in.
pub const ADAPTER_CONFIG: &str = "adapter_config.json";

/// The greatest rank: as wide as any layer.
pub const MAX_RANK: usize = 1 << 20;
/// What transformers counts layers up to, and more.
const MAX_LAYERS: u64 = 1 << 20;

/// What an adapter is for, and how much it adds: PEFT's `adapter_config.json`.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraConfig {
    /// The model that it was trained on, by its name on the Hub or its folder.
    pub base_model: Option<String>,
    /// The version of that model.
    pub revision: Option<String>,
    /// What the model is for, such as `CAUSAL_LM`.
    pub task_type: Option<String>,
    /// Columns of the one matrix and rows of the other (`r`).
    pub rank: usize,
    /// What is added is multiplied by this, divided by the rank.
    pub alpha: f64,
    /// Whether it is divided by the rank's square root instead
    /// ([Kalajdzievski, 2023](https://arxiv.org/abs/2312.03732)).
    pub use_rslora: bool,
    /// Share of a layer's inputs that was dropped in training. Of no effect here.
    pub dropout: f64,
    /// The modules that it is for.
    pub target_modules: ModulePattern,
    /// The parameters that it is for beside these, by their names or ends of them, such as those
    /// of all experts: `mlp.experts.down_proj`. Adapters of them are read, and not written.
    pub target_parameters: Vec<String>,
    /// Of these the modules that it is not for.
    pub exclude_modules: Option<ModulePattern>,
    /// The layers that it is for; all, if empty.
    pub layers_to_transform: Vec<usize>,
    /// Names of the list that layers are counted in, as regular expressions; any list, if empty.
    pub layers_pattern: Vec<String>,
    /// Ranks of modules whose names end so, regular expressions; the first one in alphabetical
    /// order counts, as PEFT writes them.
    pub rank_pattern: BTreeMap<String, usize>,
    /// What [`alpha`](Self::alpha) is for modules whose names end so, likewise.
    pub alpha_pattern: BTreeMap<String, f64>,
    /// Whether layers are stored as `[in, out]`, as GPT-2's are. The model tells; this is only
    /// kept.
    pub fan_in_fan_out: bool,
}

/// Fields that change no logit, or are read with others.
const HARMLESS: &[&str] = &[
    "auto_mapping",
    "corda_config",
    "ensure_weight_tying",
    "eva_config",
    "inference_mode",
    "lora_ga_config",
    "loftq_config",
    "megatron_core",
    "merge_weights",
    "peft_version",
    "qalora_group_size",
    "runtime_config",
];

/// Fields that [`LoraConfig::from_json`] reads.
const READ: &[&str] = &[
    "alpha_pattern",
    "base_model_name_or_path",
    "bias",
    "exclude_modules",
    "fan_in_fan_out",
    "init_lora_weights",
    "layers_pattern",
    "layers_to_transform",
    "lora_alpha",
    "lora_dropout",
    "peft_type",
    "r",
    "rank_pattern",
    "revision",
    "target_modules",
    "target_parameters",
    "task_type",
    "use_rslora",
];

/// Fields that must not be set, and what to do about one that is.
const REFUSED: &[(&str, &str)] = &[
    ("alora_invocation_tokens", "adapters that begin at a token (aLoRA) are not built in"),
    ("arrow_config", "routing between adapters is not built in"),
    ("layer_replication", "models with layers repeated are not built in"),
    ("lora_bias", "biases of adapters are not built in: merge it into the model with PEFT"),
    (
        "modules_to_save",
        "an adapter that replaces whole modules is not built in: merge it into the model with PEFT (merge_and_unload)",
    ),
    (
        "trainable_token_indices",
        "trained tokens are not built in: merge it into the model with PEFT",
    ),
    ("use_bdlora", "block-diagonal adapters are not built in"),
    ("use_dora", "DoRA is not built in: merge it into the model with PEFT (merge_and_unload)"),
    ("use_qalora", "QALoRA is not built in"),
];

/// Ways in which an adapter begins that leave the model's own weights as they are.
const PLAIN_STARTS: &[&str] = &["gaussian", "eva", "orthogonal", "mica"];

impl LoraConfig {
    /// An adapter of one rank for all modules that match, added as `alpha / rank`.
    pub fn new(rank: usize, alpha: f64, target_modules: ModulePattern) -> Self {
        Self {
            base_model: None,
            revision: None,
            task_type: Some("CAUSAL_LM".to_owned()),
            rank,
            alpha,
            use_rslora: false,
            dropout: 0.0,
            target_modules,
            target_parameters: Vec::new(),
            exclude_modules: None,
            layers_to_transform: Vec::new(),
            layers_pattern: Vec::new(),
            rank_pattern: BTreeMap::new(),
            alpha_pattern: BTreeMap::new(),
            fan_in_fan_out: false,
        }
    }

    /// Reads the text of an `adapter_config.json`.
    ///
    /// # Errors
    /// Text that is not a JSON object; a field that is missing, out of bounds, or asks for what is
    /// not built in; a field that is not known and is set. The message names the field.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let value = serde_json::from_str(text);
        match value.map_err(|error| Error::Json { message: error.to_string() })? {
            Value::Object(map) => Self::read(&map),
            _ => Err(Error::Json { message: "it is not an object".to_owned() }),
        }
    }

    pub(crate) fn read(map: &Map<String, Value>) -> Result<Self, Error> {
        let fields = Fields(map);
        check(&fields)?;
        let rank =
            |value: &Value| value.as_u64().filter(|rank| (1..=MAX_RANK as u64).contains(rank));
        let rank = |value: &Value| rank(value).map(|rank| rank as usize);
        let number = |value: &Value| value.as_f64().filter(|number| number.is_finite());
        let layer = |value: &Value| value.as_u64().filter(|layer| *layer < MAX_LAYERS);
        // PEFT's own defaults.
        let [r, alpha, dropout] =
            ["r", "lora_alpha", "lora_dropout"].map(|field| (field, fields.get(field)));
        let read_number = |(field, value): (&str, Option<&Value>), default| match value {
            None => Ok(default),
            Some(value) => {
                number(value).ok_or_else(|| fields.refuse(field, "it must be a finite number"))
            }
        };
        let target_parameters = fields.texts("target_parameters")?;
        let of_parameters_alone =
            || (!target_parameters.is_empty()).then(|| ModulePattern::Suffixes(Vec::new()));
        let target_modules = ModulePattern::read(&fields, "target_modules")?;
        let target_modules = target_modules.or_else(of_parameters_alone).ok_or_else(|| {
            fields.refuse(
                "target_modules",
                "it must name the modules that the adapter is for, as PEFT writes them",
            )
        })?;
        let config = Self {
            base_model: fields.text("base_model_name_or_path")?,
            revision: fields.text("revision")?,
            task_type: fields.text("task_type")?,
            rank: match r.1 {
                None => 8,
                Some(value) => rank(value).ok_or_else(|| {
                    fields.refuse("r", &format!("it must be a whole number from 1 to {MAX_RANK}"))
                })?,
            },
            alpha: read_number(alpha, 8.0)?,
            use_rslora: fields.flag("use_rslora")?,
            dropout: read_number(dropout, 0.0)?,
            target_modules,
            target_parameters,
            exclude_modules: ModulePattern::read(&fields, "exclude_modules")?,
            layers_to_transform: fields
                .list("layers_to_transform", "numbers of layers", layer)?
                .into_iter()
                .map(|layer| layer as usize)
                .collect(),
            layers_pattern: fields.texts("layers_pattern")?,
            rank_pattern: fields.object("rank_pattern", "ranks", rank)?,
            alpha_pattern: fields.object("alpha_pattern", "numbers", number)?,
            fan_in_fan_out: fields.flag("fan_in_fan_out")?,
        };
        let some_layers = !config.layers_to_transform.is_empty();
        if some_layers && !matches!(config.target_modules, ModulePattern::Suffixes(_)) {
            return Err(fields.refuse(
                "layers_to_transform",
                "PEFT takes it only with a list of target_modules",
            ));
        }
        if !some_layers && !config.layers_pattern.is_empty() {
            return Err(
                fields.refuse("layers_pattern", "PEFT takes it only with layers_to_transform")
            );
        }
        Ok(config)
    }

    /// The text of an `adapter_config.json` that PEFT loads.
    pub fn to_json(&self) -> String {
        let some = |list: &[String]| (!list.is_empty()).then(|| list.to_vec());
        let layers = (!self.layers_to_transform.is_empty()).then_some(&self.layers_to_transform);
        let value = json!({
            "alpha_pattern": self.alpha_pattern,
            "base_model_name_or_path": self.base_model,
            "bias": "none",
            "exclude_modules": self.exclude_modules.as_ref().map(ModulePattern::to_json),
            "fan_in_fan_out": self.fan_in_fan_out,
            "inference_mode": true,
            "init_lora_weights": true,
            "layers_pattern": some(&self.layers_pattern),
            "layers_to_transform": layers,
            "lora_alpha": whole(self.alpha),
            "lora_dropout": self.dropout,
            "modules_to_save": null,
            "peft_type": "LORA",
            "r": self.rank,
            "rank_pattern": self.rank_pattern,
            "revision": self.revision,
            "target_modules": self.target_modules.to_json(),
            "target_parameters": some(&self.target_parameters),
            "task_type": self.task_type,
            "use_dora": false,
            "use_rslora": self.use_rslora,
        });
        format!("{value:#}\n")
    }

    /// What is added is multiplied by this, for each of some modules, by their names, whose
    /// matrices have such ranks.
    ///
    /// # Errors
    /// [`Error::Field`]: an expression that is none.
    pub fn scales(&self, modules: &[Vec<String>], ranks: &[usize]) -> Result<Vec<f64>, Error> {
        let alphas = first_matches("alpha_pattern", &self.alpha_pattern, modules)?;
        let scale =
            |(alpha, rank): (Option<f64>, &usize)| self.scale(*rank, alpha.unwrap_or(self.alpha));
        Ok(alphas.into_iter().zip(ranks).map(scale).collect())
    }

    /// What is added is multiplied by this, at a rank and an `alpha` of a module.
    pub(crate) fn scale(&self, rank: usize, alpha: f64) -> f64 {
        let rank = rank as f64;
        alpha / if self.use_rslora { rank.sqrt() } else { rank }
    }
}

/// A number as PEFT writes it, whose `lora_alpha` is an integer.
fn whole(number: f64) -> Value {
    match number as i64 {
        whole if whole as f64 == number => json!(whole),
        _ => json!(number),
    }
}

/// Refuses what would change the result and is not built in.
fn check(fields: &Fields<'_>) -> Result<(), Error> {
    let kind = fields.text("peft_type")?.unwrap_or_default();
    if kind != "LORA" {
        return Err(fields.refuse("peft_type", "only \"LORA\" is built in"));
    }
    if fields.text("bias")?.is_some_and(|bias| bias != "none") {
        let advice = "only \"none\" is built in: merge the adapter into the model with PEFT";
        return Err(fields.refuse("bias", advice));
    }
    let start = fields.get("init_lora_weights");
    let is_plain = |value: &Value| match value {
        Value::Bool(_) => true,
        value => value.as_str().is_some_and(|start| PLAIN_STARTS.contains(&start)),
    };
    if !start.is_none_or(is_plain) {
        return Err(fields.refuse(
            "init_lora_weights",
            "such an adapter is one of changed weights: save it anew with PEFT, with path_initial_model_for_weight_conversion",
        ));
    }
    let harmless = |name: &str| HARMLESS.contains(&name) || READ.contains(&name);
    let mut set = fields.0.iter().filter(|(name, value)| !is_unset(value) && !harmless(name));
    if let Some((name, _)) = set.next() {
        let refused = REFUSED.iter().find(|(refused, _)| refused == name);
        let unknown =
            "the field is not known, and could change the result: take it out if it does not";
        return Err(fields.refuse(name, refused.map_or(unknown, |(_, advice)| advice)));
    }
    Ok(())
}
