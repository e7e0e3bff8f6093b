use std::collections::{BTreeSet, HashSet};

use outsize_models::{ExpertStack, ModelConfig, ModuleKind, ModuleSpec};

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
    /// Values in both matrices.
    pub fn parameter_count(&self) -> u64 {
        self.shape.iter().map(|n| *n as u64 * self.rank as u64).sum()
    }
}

impl LoraConfig {
    /// The layers of the model that an adapter of this configuration is made for, in the order in
    /// which the model declares them.
    ///
    /// # Errors
    /// [`Error::Target`]: a module is named that no adapter can be made for, such as a table of
    /// embeddings. [`Error::NoTargets`]: none matches. [`Error::Field`]: an expression that is
    /// none, or [`target_parameters`](Self::target_parameters).
    pub fn targets(&self, model: &ModelConfig) -> Result<Vec<LoraTarget>, Error> {
        let chosen = Selection::strict(self, model)?.chosen;
        Ok(chosen.into_iter().map(|chosen| chosen.target).collect())
    }
}

/// What a configuration names of a model.
pub(crate) struct Selection {
    pub(crate) chosen: Vec<Chosen>,
    /// Modules that no adapter can be added to, and why.
    pub(crate) refused: Vec<(ModuleSpec, &'static str)>,
}

/// A layer that a configuration names.
pub(crate) struct Chosen {
    pub(crate) target: LoraTarget,
    /// What its tensors may be called, without [`PREFIX`] and their own ends.
    pub(crate) names: Vec<String>,
    /// As [`ModuleSpec::interleaved_head`].
    pub(crate) interleaved_head: Option<usize>,
    pub(crate) kind: ModuleKind,
    /// Whether adapters may leave it out: of transformers 5 the names of experts are none.
    pub(crate) is_optional: bool,
    /// Where its matrices are in those of all experts, if they are.
    pub(crate) stack: Option<ExpertStack>,
}

impl Chosen {
    /// The names of its tensors `[rank, in]` and `[out, rank]` in an adapter's file.
    pub(crate) fn tensor_names(&self) -> [String; 2] {
        let module = self.names.first().map_or("", String::as_str);
        ["lora_A", "lora_B"].map(|matrix| format!("{PREFIX}{module}.{matrix}.weight"))
    }
}

impl Selection {
    /// As [`Self::new`], without what no adapter can be made for.
    pub(crate) fn strict(config: &LoraConfig, model: &ModelConfig) -> Result<Self, Error> {
        if let [first, ..] = &config.target_parameters[..] {
            return Err(Error::Field {
                field: "target_parameters".to_owned(),
                value: first.clone(),
                expected:
                    "which is for reading alone: adapters of parameters are not made or changed"
                        .to_owned(),
            });
        }
        let selection = Self::new(config, model)?;
        let is_stacked = |it: &&Chosen| it.kind == ModuleKind::Expert && model.stacks_experts();
        let stacked = selection.chosen.iter().find(is_stacked).map(|it| {
            let reason = "is an expert of a model that has the matrices of all in one: adapters of these are \
                          read, and not made";
            (it.target.module.clone(), reason)
        });
        let refused = selection.refused.first().map(|(it, reason)| (it.names[0].clone(), *reason));
        match stacked.or(refused) {
            Some((module, reason)) => Err(Error::Target { module, reason }),
            None => Ok(selection),
        }
    }

    pub(crate) fn new(config: &LoraConfig, model: &ModelConfig) -> Result<Self, Error> {
        let all = model.modules();
        let rules = Rules::new(config)?;
        let (mut chosen, mut refused) = (Vec::new(), Vec::new());
        for module in &all {
            let is_all = config.target_modules == ModulePattern::AllLinear;
            let is_parameter = rules.select_parameter(module)?;
            let is_module = (!is_all || is_linear_layer(module.kind))
                && !is_parameter
                && rules.select(&module.names)?;
            match refusal(module.kind) {
                _ if !is_parameter && !is_module => {}
                None => chosen.push((module.clone(), is_parameter)),
                Some(reason) => refused.push((module.clone(), reason)),
            }
        }
        if chosen.is_empty() && refused.is_empty() {
            return Err(none(config, model, &all));
        }
        // Of a module of which several parameters have adapters, that of the last one wraps those
        // of the others.
        let is_last = |name: &str| name.ends_with(".down_proj");
        let stacks = chosen.iter().filter(|(_, is_parameter)| *is_parameter);
        let wrapped: HashSet<String> = stacks
            .flat_map(|(module, _)| module.stack.iter().flat_map(|stack| &stack.names))
            .filter(|name| is_last(name))
            .map(|name| owner(name).to_owned())
            .collect();
        // By what ranks are found: the names of the parameter, or of the module.
        let named = |(module, is_parameter): &(ModuleSpec, bool)| match &module.stack {
            Some(stack) if *is_parameter => stack.names.clone(),
            _ => module.names.clone(),
        };
        let names: Vec<_> = chosen.iter().map(named).collect();
        let ranks = first_matches("rank_pattern", &config.rank_pattern, &names)?;
        let alphas = first_matches("alpha_pattern", &config.alpha_pattern, &names)?;
        let chosen = chosen.into_iter().zip(names).zip(ranks.into_iter().zip(alphas));
        let chosen = chosen.map(|(((module, is_parameter), names), (rank, alpha))| {
            let stack = module.stack.filter(|_| is_parameter);
            let tensor = |name: &String| match owner(name) {
                owner if wrapped.contains(owner) && !is_last(name) => format!("{owner}.base_layer"),
                owner => owner.to_owned(),
            };
            let rank = rank.unwrap_or(config.rank);
            Chosen {
                names: if stack.is_some() { names.iter().map(tensor).collect() } else { names },
                interleaved_head: module.interleaved_head,
                kind: module.kind,
                is_optional: !is_parameter
                    && matches!(module.kind, ModuleKind::Expert | ModuleKind::Router),
                stack,
                target: LoraTarget {
                    scale: config.scale(rank, alpha.unwrap_or(config.alpha)),
                    rank,
                    in_out: module.in_out,
                    module: module.names.into_iter().next().unwrap_or_default(),
                    path: module.path,
                    shape: module.shape,
                },
            }
        });
        Ok(Self { chosen: chosen.collect(), refused })
    }
}

/// The module that a parameter is of.
fn owner(parameter: &str) -> &str {
    parameter.rsplit_once('.').map_or("", |(owner, _)| owner)
}

/// Whether `all-linear` is about it: experts are no layers in transformers.
fn is_linear_layer(kind: ModuleKind) -> bool {
    use ModuleKind::{HeadMatrices, Linear, Reordered};
    matches!(kind, Linear | HeadMatrices | Reordered)
}

/// Why no adapter can be added to a module.
pub(crate) fn refusal(kind: ModuleKind) -> Option<&'static str> {
    use ModuleKind::{Embedding, Expert, Head, HeadMatrices, Linear, Reordered, Router, TiedHead};
    Some(match kind {
        Linear | Head | HeadMatrices | Expert | Router => return None,
        Embedding => "is a table of embeddings: adapters are built in for linear layers only",
        TiedHead => {
            "is the output head, which is the table of embeddings in this model: adapters are built in for linear layers only"
        }
        Reordered => {
            "is stored in another order than transformers has it in: take the model's safetensors instead of a GGUF file"
        }
    })
}

fn none(config: &LoraConfig, model: &ModelConfig, modules: &[ModuleSpec]) -> Error {
    let last = |name: &str| name.rsplit('.').next().unwrap_or(name).to_owned();
    let linear = modules.iter().filter(|module| is_linear_layer(module.kind));
    let has: BTreeSet<_> = linear.map(|module| last(&module.names[0])).collect();
    let parameters = ModulePattern::Suffixes(config.target_parameters.clone());
    let wanted = [&config.target_modules, &parameters].map(ModulePattern::shown);
    Error::NoTargets {
        wanted: wanted.into_iter().filter(|it| !it.is_empty()).collect::<Vec<_>>().join(", "),
        model_type: model.model_type(),
        has: has.into_iter().collect::<Vec<_>>().join(", "),
    }
}

/// The rules of a configuration, ready to be applied to names.
struct Rules<'a> {
    targets: Matcher<'a>,
    parameters: Matcher<'a>,
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
            parameters: Matcher::suffixes(&config.target_parameters),
            excluded: excluded.map(|it| it.matcher("exclude_modules")).transpose()?,
            layers: &config.layers_to_transform,
            numbers,
        })
    }

    /// Whether the parameter is meant that a module's matrix is, or is in.
    fn select_parameter(&self, module: &ModuleSpec) -> Result<bool, Error> {
        let of_all = module.stack.iter().flat_map(|stack| stack.names.iter().cloned());
        let own = module.names.iter().map(|name| format!("{name}.weight"));
        for name in of_all.chain(own) {
            if self.parameters.matches(&name)? {
                return Ok(true);
            }
        }
        Ok(false)
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
