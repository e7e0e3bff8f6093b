//! Plans of models that are described rather than opened.

use std::collections::HashSet;

use outsize_models::{ActivationDtype, CacheOptions, Logits, ModelConfig};
use outsize_plan::{
    Budget, Casts, DeviceMap, Error, ManualMap, MemoryOverhead, Options, Strategy, Tier, Tree,
    Workload, assign, from_assignment, infer,
};

use crate::describe::Described;
use crate::pipeline::{MIN_RING, PROCESS_SLACK, steady, with_longest_passes};

/// Modules of the architectures that hold no tensor of a checkpoint, as maps of Accelerate's name them.
const WITHOUT_TENSORS: [(&str, &str); 3] = [
    ("rotary_emb", "RotaryEmbedding"),
    ("self_attn.rotary_emb", "RotaryEmbedding"),
    ("mlp.act_fn", "Activation"),
];

/// For what a model is planned.
#[derive(Debug, Clone)]
pub struct GenerationWorkload {
    /// What the KV cache is made for.
    pub cache: CacheOptions,
    /// Tokens of the prompt of each text.
    pub prompt: usize,
    /// The resident set of the process that will run it, when it opens the model, in bytes.
    pub process: u64,
    /// What else the plan depends on. Needs, the workload and what depends on the architecture are filled in.
    pub options: Options,
}

/// Plans a described model for any budget.
#[derive(Debug, Clone)]
pub struct Planner {
    tree: Tree,
    config: Option<ModelConfig>,
    purpose: GenerationWorkload,
    manual: Option<ManualMap>,
}

/// A plan.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Where everything lives.
    pub map: DeviceMap,
    /// The options that it was made with.
    pub options: Options,
    /// What a user should know of it.
    pub warnings: Vec<String>,
}

impl Planner {
    /// For a model and a purpose. Without classes in [`Options::no_split`], strategies of Accelerate's do not split blocks that are
    /// numbered, such as decoder layers.
    pub fn new(mut described: Described, mut purpose: GenerationWorkload) -> Self {
        described.set_cache(&purpose.cache);
        let options = &mut purpose.options;
        options.workload = Workload {
            batch: purpose.cache.batch as u64,
            prompt: purpose.prompt as u64,
            position: purpose.cache.context as u64,
            ..Workload::default()
        };
        options.min_ring = MIN_RING;
        if options.no_split.is_empty() {
            options.no_split = numbered_classes(&described.tree);
        }
        let mut planner = Self {
            tree: described.tree,
            config: described.config,
            purpose,
            manual: None,
        };
        planner.name_modules();
        planner
    }

    /// Holds weights in other types than they are stored in.
    ///
    /// # Errors
    /// As [`Tree::cast`].
    pub fn cast(&mut self, casts: &Casts) -> Result<(), Error> {
        let mut tree = self.tree.cast(casts)?;
        let mut tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
        if tensors.any(|tensor| tensor.bytes != tensor.stored_bytes) {
            // Readers convert what they read.
            let staging = outsize_stream::Options::default().staging_bytes();
            tree.staging_bytes = tree.staging_bytes.max(staging);
        }
        self.tree = tree;
        Ok(())
    }

    /// Places everything as `map` says, instead of by a strategy.
    pub fn place_by(&mut self, map: ManualMap) {
        self.manual = Some(map);
    }

    /// The names that a checkpoint's modules have for tensors which are there under another one: a tied head's weight, and the
    /// table that it is.
    pub fn aliases(&self) -> Vec<(String, String)> {
        let tensors = self.tree.blocks.iter().flat_map(|block| &block.tensors);
        let names: HashSet<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
        let blocks = self.config.iter().flat_map(|config| config.blocks());
        blocks
            .filter_map(|block| Some((format!("{}.weight", block.name), block.tied_to?)))
            // A checkpoint that is not as its configuration says may have both, or neither.
            .filter(|(alias, name)| {
                names.contains(name.as_str()) && !names.contains(alias.as_str())
            })
            .collect()
    }

    /// Makes the names of modules known that hold no tensor of their own.
    fn name_modules(&mut self) {
        let Some(config) = &self.config else {
            return;
        };
        let classes = &mut self.tree.classes;
        let layers = (0..config.num_hidden_layers).map(|layer| format!("model.layers.{layer}"));
        for module in std::iter::once("model".to_owned()).chain(layers) {
            for (name, class) in WITHOUT_TENSORS {
                let path = format!("{module}.{name}");
                classes.entry(path).or_insert_with(|| class.to_owned());
            }
        }
        for block in config.blocks() {
            classes.entry(block.name).or_insert(block.class);
        }
    }

    /// What is planned.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The plan for a budget, as a pipeline would make it: with passes over the prompt as long as the budget allows.
    ///
    /// # Errors
    /// As [`infer`], [`assign`] and [`from_assignment`].
    pub fn plan(&self, budget: &Budget) -> Result<Plan, Error> {
        let GenerationWorkload { prompt, cache, .. } = &self.purpose;
        with_longest_passes(*prompt, cache.context, |chunk| {
            self.place(budget, self.options(chunk))
        })
        .map_err(steady)
    }

    fn place(&self, budget: &Budget, options: Options) -> Result<Plan, Error> {
        let tree = &self.tree;
        let assignment = match (&self.manual, options.strategy) {
            (Some(manual), _) => {
                self.check_aliases(manual)?;
                manual.assign(tree, budget, &options)?
            }
            (None, Strategy::Auto) => {
                let map = infer(tree, budget, &options)?;
                return Ok(Plan {
                    map,
                    options,
                    warnings: Vec::new(),
                });
            }
            (None, _) => assign(tree, budget, &options)?,
        };
        let map = from_assignment(tree, &assignment, budget, &options)?;
        Ok(Plan {
            map,
            options,
            warnings: assignment.warnings,
        })
    }

    /// What has two names has one place.
    fn check_aliases(&self, manual: &ManualMap) -> Result<(), Error> {
        for (alias, name) in self.aliases() {
            if let (Some(tier), Some(other_tier)) = (place(manual, &name), place(manual, &alias))
                && tier != other_tier
            {
                return Err(Error::Tied {
                    name,
                    tier,
                    other: alias,
                    other_tier,
                });
            }
        }
        Ok(())
    }

    /// What the plan depends on if passes are of `chunk` tokens.
    fn options(&self, chunk: usize) -> Options {
        let cache = &self.purpose.cache;
        let mut options = self.purpose.options.clone();
        options.workload.chunk = chunk as u64;
        // Blocks say what their part of the KV cache takes.
        options.needs = MemoryOverhead {
            process: self.purpose.process.saturating_add(PROCESS_SLACK),
            ..MemoryOverhead::default()
        };
        if let Some(config) = &self.config {
            let activations = config.activation_bytes(chunk, cache, Logits::Last);
            // Products on the CPU pack theirs.
            options.needs.activations = activations.saturating_add(config.packed_bytes(
                ActivationDtype::F32,
                chunk,
                cache.batch,
            ));
            options.gpu_activations = activations;
        }
        options
    }
}

/// Where a map puts the tensor of a path: as its longest entry that leads there says.
fn place(manual: &ManualMap, path: &str) -> Option<Tier> {
    let leads = |entry: &str| {
        let rest = path.strip_prefix(entry);
        rest.is_some_and(|rest| entry.is_empty() || rest.is_empty() || rest.starts_with('.'))
    };
    manual
        .iter()
        .filter(|(entry, _)| leads(entry))
        .max_by_key(|(entry, _)| entry.len())
        .map(|(_, tier)| tier)
}

/// The classes of blocks whose names end in a number.
fn numbered_classes(tree: &Tree) -> Vec<String> {
    let is_number = |name: &str| !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_digit());
    let numbered = tree.blocks.iter().filter(|block| {
        let last = block.name.rsplit('.').next().unwrap_or_default();
        is_number(last) && !block.class.is_empty()
    });
    let mut classes: Vec<String> = numbered.map(|block| block.class.clone()).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}
