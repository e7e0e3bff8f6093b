use std::collections::BTreeSet;

use outsize_models::{ModelConfig, ModuleKind, ModuleSpec};

use crate::pattern::{Expression, Matcher, first_matches};
use crate::{Error, LoraConfig, ModulePattern};

/// What all names of an adapter's tensors begin with.
pub(crate) const PREFIX: &str = "base_model.model.";

/// A linear layer that an adapter is for.
#[derive(Debug, Clone, PartialEq)]
pub struct LoraTarget {
    /// The layer, as transformers calls it: `model.layers.0.self_attn.q_proj`.
    pub module: String,
    /// The path of its weight in our own module.
    pub path: String,
    /// `[out, in]`.
    pub shape: [usize; 2],
    /// The adapter's matrices are `[rank, in]` and `[out, rank]`.
    pub rank: usize,
    /// What their product is multiplied by.
    pub scale: f64,
    /// Whether the weight is stored as `[in, out]`, as GPT-2's are.
    pub in_out: bool,
}

impl LoraTarget {
    /// The name of the tensor `[rank, in]` in the adapter's file.
    pub fn down_name(&self) -> String {
        format!("{PREFIX}{}.lora_A.weight", self.module)
    }

    /// The name of the tensor `[out, rank]` in the adapter's file.
    pub fn up_name(&self) -> String {
        format!("{PREFIX}{}.lora_B.weight", self.module)
    }

    /// Values in both matrices.
    pub fn parameter_count(&self) -> u64 {
        self.shape.iter().map(|n| *n as u64 * self.rank as u64).sum()
    }
}

impl LoraConfig {
    /// The layers of the model that the adapter is for, in the order in which the model declares
    /// them.
    ///
    /// # Errors
    /// [`Error::Target`]: a module is named that no adapter can be added to, such as an expert.
    /// [`Error::NoTargets`]: none matches. [`Error::Field`]: an expression that is none.
    pub fn targets(&self, model: &ModelConfig) -> Result<Vec<LoraTarget>, Error> {
        Ok(Selection::strict(self, model)?.targets)
    }
}

/// What a configuration names of a model.
pub(crate) struct Selection {
    pub(crate) targets: Vec<LoraTarget>,
    /// The names that each of them may have.
    pub(crate) names: Vec<Vec<String>>,
    /// As [`ModuleSpec::interleaved_head`] of each.
    pub(crate) heads: Vec<Option<usize>>,
    /// The path of the output head's weight, if it is among them.
    pub(crate) head: Option<String>,
    /// Modules that no adapter can be added to, and why.
    pub(crate) refused: Vec<(ModuleSpec, &'static str)>,
}

impl Selection {
    /// As [`Self::new`], without modules that no adapter can be added to.
    pub(crate) fn strict(config: &LoraConfig, model: &ModelConfig) -> Result<Self, Error> {
        let selection = Self::new(config, model)?;
        match selection.refused.first() {
            Some((module, reason)) => {
                Err(Error::Target { module: module.names[0].clone(), reason })
            }
            None => Ok(selection),
        }
    }

    pub(crate) fn new(config: &LoraConfig, model: &ModelConfig) -> Result<Self, Error> {
        let all = model.modules();
        let rules = Rules::new(config)?;
        let (mut chosen, mut refused) = (Vec::new(), Vec::new());
        for module in &all {
            let is_all = config.target_modules == ModulePattern::AllLinear;
            if (is_all && !is_linear_layer(module.kind)) || !rules.select(&module.names)? {
                continue;
            }
            match refusal(module.kind) {
                None => chosen.push(module.clone()),
                Some(reason) => refused.push((module.clone(), reason)),
            }
        }
        if chosen.is_empty() && refused.is_empty() {
            return Err(none(config, model, &all));
        }
        let names: Vec<_> = chosen.iter().map(|module| module.names.clone()).collect();
        let heads = chosen.iter().map(|module| module.interleaved_head).collect();
        let head = chosen.iter().find(|module| module.kind == ModuleKind::Head);
        let head = head.map(|module| module.path.clone());
        let ranks = first_matches("rank_pattern", &config.rank_pattern, &names)?;
        let alphas = first_matches("alpha_pattern", &config.alpha_pattern, &names)?;
        let targets = chosen.into_iter().zip(ranks.into_iter().zip(alphas));
        let targets = targets.map(|(module, (rank, alpha))| {
            let rank = rank.unwrap_or(config.rank);
            LoraTarget {
                scale: config.scale(rank, alpha.unwrap_or(config.alpha)),
                rank,
                in_out: module.kind == ModuleKind::InOut,
                module: module.names.into_iter().next().unwrap_or_default(),
                path: module.path,
                shape: module.shape,
            }
        });
        Ok(Self { targets: targets.collect(), names, heads, head, refused })
    }
}

/// Whether `all-linear` is about it: experts are no layers in transformers.
fn is_linear_layer(kind: ModuleKind) -> bool {
    use ModuleKind::{HeadMatrices, InOut, Linear, Reordered};
    matches!(kind, Linear | InOut | HeadMatrices | Reordered)
}

/// Why no adapter can be added to a module.
pub(crate) fn refusal(kind: ModuleKind) -> Option<&'static str> {
    Some(match kind {
        ModuleKind::Linear | ModuleKind::InOut | ModuleKind::Head | ModuleKind::HeadMatrices => {
            return None;
        }
        ModuleKind::Embedding => {
            "is a table of embeddings: adapters are built in for linear layers only"
        }
        ModuleKind::TiedHead => {
            "is the output head, which is the table of embeddings in this model: adapters are built in for linear layers only"
        }
        ModuleKind::Expert => {
            "is one of a router's experts: adapters are built in for the other linear layers only"
        }
        ModuleKind::Router => {
            "chooses experts: adapters are built in for the other linear layers only"
        }
        ModuleKind::Reordered => {
            "is stored in another order than transformers has it in: take the model's safetensors instead of a GGUF file"
        }
    })
}

fn none(config: &LoraConfig, model: &ModelConfig, modules: &[ModuleSpec]) -> Error {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let linear = modules.iter().filter(|module| is_linear_layer(module.kind));
    let has: BTreeSet<_> = linear.map(|module| last(&module.names[0])).collect();
    Error::NoTargets {
        wanted: config.target_modules.shown(),
        model_type: model.model_type(),
        has: has.into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// The rules of a configuration, ready to be applied to names.
struct Rules<'a> {
    targets: Matcher<'a>,
    excluded: Option<Matcher<'a>>,
    layers: &'a [usize],
    /// What finds a layer's number in a name.
    numbers: Vec<Expression>,
}

impl<'a> Rules<'a> {
    fn new(config: &'a LoraConfig) -> Result<Self, Error> {
        let excluded = config.exclude_modules.as_ref();
        let number = |text: &str, before: &str| {
            Expression::new("layers_pattern", text, before, r"\.(?P<idx>\d+)\.")
        };
        let numbers = match &config.layers_pattern[..] {
            _ if config.layers_to_transform.is_empty() => Vec::new(),
            [] => vec![number(r"[^.]*", r"\A.*?\.")?],
            patterns => patterns
                .iter()
                .map(|pattern| number(pattern, r"\A(?:|.*?\.)"))
                .collect::<Result<_, _>>()?,
        };
        Ok(Self {
            targets: config.target_modules.matcher("target_modules")?,
            excluded: excluded.map(|it| it.matcher("exclude_modules")).transpose()?,
            layers: &config.layers_to_transform,
            numbers,
        })
    }

    /// Whether a module of these names is meant.
    fn select(&self, names: &[String]) -> Result<bool, Error> {
        for name in names {
            if let Some(excluded) = &self.excluded
                && excluded.matches(name)?
            {
                return Ok(false);
            }
        }
        for name in names {
            if self.targets.matches(name)? && self.is_in_layers(name)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn is_in_layers(&self, name: &str) -> Result<bool, Error> {
        if self.layers.is_empty() || self.targets.is_exact(name) {
            return Ok(true);
        }
        for number in &self.numbers {
            if let Some(layer) = number.index(name)? {
                return Ok(self.layers.contains(&layer));
            }
        }
        Ok(false)
    }
}
