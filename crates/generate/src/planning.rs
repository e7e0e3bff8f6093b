//! Plans of models that are described rather than opened.

use std::collections::HashSet;

use outsize_core::{
    LEAST_RING, PROCESS_BYTES, gpu_overhead, longest_pass, many_parameters_bytes, memory_overhead,
    upload_bytes, with_longest_passes,
};
use outsize_lora::AdapterMemory;
use outsize_models::{ActivationDtype, CacheOptions, Logits, ModelConfig, WhenFull};
use outsize_plan::{
    Budget, Casts, DeviceMap, Error, ManualMap, Options, Passes, Strategy, Tree, Workload, assign,
    from_assignment, infer,
};

/// For what a model is planned, and run.
#[derive(Debug, Clone)]
pub struct GenerationWorkload {
    /// What the KV cache is made for. Where an encoder reads the prompt, the context is that of the
    /// answer.
    pub cache: CacheOptions,
    /// Tokens of the prompt of each sequence, or those that the decoder begins with if an encoder
    /// reads the prompt. A longer one is run in several passes.
    pub prompt: usize,
    /// Tokens of a sequence when the token is generated whose speed is predicted.
    pub position: usize,
    /// Of which positions logits are wanted.
    pub logits: Logits,
    /// Whether texts may be [scored](crate::Pipeline::score).
    pub scores: bool,
    /// The type in which activations are multiplied with weights.
    pub compute: ActivationDtype,
    /// What the process takes by itself, in bytes.
    pub process: u64,
    /// What the tokenizer takes, in bytes.
    pub tokenizer: u64,
    /// Tokens that prompts are not cut below: those of an image that one pass has to run.
    pub least_pass: usize,
    /// What images of a prompt take, and what encodes them, in bytes.
    pub images: u64,
    /// What an adapter takes.
    pub adapter: AdapterMemory,
    /// What a GPU's driver takes of its memory, in bytes.
    pub gpu_context: u64,
}

impl GenerationWorkload {
    /// The last position's logits of one sequence, in the command's own process, without a
    /// tokenizer.
    pub fn new(cache: CacheOptions, prompt: usize) -> Self {
        Self {
            cache,
            prompt,
            position: cache.context,
            logits: Logits::Last,
            scores: false,
            compute: ActivationDtype::F32,
            process: PROCESS_BYTES,
            tokenizer: 0,
            least_pass: 1,
            images: 0,
            adapter: AdapterMemory::default(),
            gpu_context: 0,
        }
    }

    /// The same for a model of this configuration: where an encoder reads the prompt, it is the
    /// cache's, and the decoder begins with one token. Does nothing if the cache has a prompt
    /// already.
    pub fn for_model(mut self, config: &ModelConfig) -> Self {
        if config.decoder_start().is_some() && self.cache.prompt == 0 {
            self.cache.prompt = self.prompt;
            self.prompt = 1;
        }
        self
    }

    /// Tokens of each text in the longest pass over the prompts, and over texts that are computed
    /// anew, if there is room for it.
    fn longest_pass(&self, config: Option<&ModelConfig>) -> usize {
        let anew = config.and_then(|config| config.cache().recomputed_beyond());
        let anew =
            anew.filter(|beyond| self.cache.context > *beyond).map_or(0, |beyond| beyond + 1);
        longest_pass(self.cache.batch, self.prompt.max(anew), self.cache.context)
    }

    /// The most that `bytes` says of passes of `tokens` tokens of each text.
    fn most(
        &self,
        config: &ModelConfig,
        tokens: usize,
        bytes: impl Fn(&ModelConfig, usize, &CacheOptions) -> u64,
    ) -> u64 {
        let cache = &self.cache;
        let of_all = bytes(config, tokens, cache);
        if cache.when_full != WhenFull::Replace {
            return of_all;
        }
        // A pass over some of the texts takes as many tokens of them as one over all.
        let few = CacheOptions { batch: 1, ..*cache };
        of_all.max(bytes(config, tokens.saturating_mul(cache.batch), &few))
    }

    /// What of the activations of passes of `tokens` tokens is in buffers that layers can use
    /// again, in bytes: what is sure to be, whatever else a pass holds at the same time.
    pub(crate) fn reusable_bytes(&self, config: &ModelConfig, tokens: usize) -> u64 {
        let most = |bytes: fn(&ModelConfig, usize, &CacheOptions, Logits) -> u64| {
            self.most(config, tokens, |config, tokens, cache| {
                bytes(config, tokens, cache, self.logits)
            })
        };
        let activations = most(ModelConfig::activation_bytes);
        activations.saturating_sub(most(ModelConfig::unpooled_activation_bytes))
    }

    /// What planning with passes of `tokens` tokens depends on, beside strategy and budget.
    fn adjust(&self, options: &mut Options, config: Option<&ModelConfig>, tokens: usize) {
        let cache = &self.cache;
        let most = |bytes: &dyn Fn(&ModelConfig, usize, &CacheOptions) -> u64| {
            config.map_or(0, |config| self.most(config, tokens, bytes))
        };
        let pass_bytes = |config: &ModelConfig, tokens, cache: &CacheOptions, logits| {
            let [rows, logit_rows] = config.pass_rows(tokens, cache, logits);
            let added = rows.saturating_mul(self.adapter.row_bytes);
            let added = added.max(logit_rows.saturating_mul(self.adapter.logit_row_bytes));
            config.activation_bytes(tokens, cache, logits).saturating_add(added)
        };
        let activations = most(&|config, tokens, cache| {
            let of_drafts = match cache.draft_tokens {
                0 => 0,
                more => pass_bytes(config, 1 + more, cache, Logits::All),
            };
            let of_scores = match self.scores {
                false => 0,
                true => pass_bytes(config, tokens, cache, Logits::Scored),
            };
            pass_bytes(config, tokens, cache, self.logits).max(of_drafts).max(of_scores)
        });
        let packed =
            most(&|config, tokens, cache| config.packed_bytes(self.compute, tokens, cache));
        let process = self.process.saturating_add(self.tokenizer);
        let process = process.saturating_add(self.adapter.bytes).saturating_add(self.images);
        options.needs = memory_overhead(process, activations.saturating_add(packed));
        // A GPU's products pack nothing.
        options.gpu_activations = gpu_overhead(activations).saturating_add(self.gpu_context);
        options.workload = Workload {
            batch: cache.sequences() as u64,
            prompt: if cache.prompt > 0 { cache.prompt } else { self.prompt } as u64,
            position: self.position as u64,
            chunk: tokens as u64,
            bf16: self.compute == ActivationDtype::Bf16,
        };
        let defaults = outsize_core::Options::default().plan();
        options.tile_bytes = defaults.tile_bytes;
        options.small_tensor = defaults.small_tensor;
        options.min_ring = LEAST_RING;
    }

    /// What a plan depends on in passes over the prompt, the longest ones and the shortest.
    pub fn passes(&self, config: &ModelConfig) -> Passes {
        let of = |tokens| {
            let mut options = Options::default();
            self.adjust(&mut options, Some(config), tokens);
            options
        };
        Passes { longest: of(self.longest_pass(Some(config))), shortest: of(1) }
    }
}

/// Plans a described model for any budget.
#[derive(Debug, Clone)]
pub struct Planner {
    tree: Tree,
    config: Option<ModelConfig>,
    workload: GenerationWorkload,
    options: Options,
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
    /// For a model as its tree says, its configuration, what it is to do, and what else the plan
    /// depends on: overhead, workload and what depends on the architecture are filled in. Without
    /// classes in [`Options::no_split`], strategies of Accelerate's do not split blocks that are
    /// numbered, such as decoder layers.
    pub fn new(
        mut tree: Tree,
        config: Option<ModelConfig>,
        workload: GenerationWorkload,
        mut options: Options,
    ) -> Self {
        if options.no_split.is_empty() {
            options.no_split = numbered_classes(&tree);
        }
        let mut workload = match &config {
            Some(config) => workload.for_model(config),
            None => workload,
        };
        workload.process = workload.process.saturating_add(many_parameters_bytes(&tree));
        if let Some(config) = &config {
            config.add_work(&mut tree, &workload.cache, workload.logits);
            for (path, class) in config.modules_without_parameters() {
                tree.classes.entry(path).or_insert(class);
            }
        }
        Self { tree, config, workload, options, manual: None }
    }

    /// Holds weights in other types than they are stored in.
    ///
    /// # Errors
    /// As [`Tree::cast`].
    pub fn cast(&mut self, casts: &Casts) -> Result<(), Error> {
        let mut tree = self.tree.cast(casts)?;
        let converted =
            (tree.tensors().zip(self.tree.tensors())).any(|(held, was)| held.bytes != was.bytes);
        if converted {
            // Readers convert what they read.
            let staging = outsize_stream::Options::default().staging_bytes();
            tree.staging_bytes = tree.staging_bytes.max(staging);
        }
        self.tree = tree;
        Ok(())
    }

    /// The same for a process that takes `bytes` less.
    pub(crate) fn with_less_process(&self, bytes: u64) -> Self {
        let mut planner = self.clone();
        planner.workload.process = planner.workload.process.saturating_sub(bytes);
        planner
    }

    /// Places everything as `map` says, instead of by a strategy.
    pub fn place_by(&mut self, map: ManualMap) {
        self.manual = Some(map);
    }

    /// The names that a checkpoint's modules have for tensors which are there under another one: a
    /// tied head's weight, and the table that it is.
    pub fn aliases(&self) -> Vec<(String, String)> {
        let tensors = self.tree.blocks.iter().flat_map(|block| &block.tensors);
        let names: HashSet<&str> = tensors.map(|tensor| tensor.name.as_str()).collect();
        let tied = self.config.iter().filter_map(ModelConfig::tied_head);
        tied.map(|(table, head)| (head, table))
            // A checkpoint that is not as its configuration says may have both, or neither.
            .filter(|(alias, name)| {
                names.contains(name.as_str()) && !names.contains(alias.as_str())
            })
            .collect()
    }

    /// What is planned.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The plan for a budget, as a pipeline would make it: with passes over the prompt as long as
    /// the budget allows.
    ///
    /// # Errors
    /// As [`infer`], [`assign`] and [`from_assignment`].
    pub fn plan(&self, budget: &Budget) -> Result<Plan, Error> {
        let longest = self.workload.longest_pass(self.config.as_ref());
        with_longest_passes(longest, self.workload.least_pass, |tokens| {
            let mut options = self.options.clone();
            self.workload.adjust(&mut options, self.config.as_ref(), tokens);
            self.place(budget, options)
        })
    }

    fn place(&self, budget: &Budget, mut options: Options) -> Result<Plan, Error> {
        let tree = &self.tree;
        let passing = upload_bytes(budget, options.tile_bytes);
        options.needs.process = options.needs.process.saturating_add(passing);
        let assignment = match (&self.manual, options.strategy) {
            (Some(manual), _) => {
                self.check_aliases(manual)?;
                manual.assign(tree, budget, &options)?
            }
            (None, Strategy::Auto) => {
                let map = infer(tree, budget, &options)?;
                return Ok(Plan { map, options, warnings: Vec::new() });
            }
            (None, _) => assign(tree, budget, &options)?,
        };
        let map = from_assignment(tree, &assignment, budget, &options)?;
        Ok(Plan { map, options, warnings: assignment.warnings })
    }

    /// What has two names has one place.
    fn check_aliases(&self, manual: &ManualMap) -> Result<(), Error> {
        for (alias, name) in self.aliases() {
            if let (Some(tier), Some(other_tier)) = (manual.get(&name), manual.get(&alias))
                && tier != other_tier
            {
                return Err(Error::Tied { name, tier, other: alias, other_tier });
            }
        }
        Ok(())
    }
}

/// The classes of blocks whose names end in a number.
fn numbered_classes(tree: &Tree) -> Vec<String> {
    let numbered =
        tree.blocks.iter().filter(|block| block.is_numbered() && !block.class.is_empty());
    let mut classes: Vec<String> = numbered.map(|block| block.class.clone()).collect();
    classes.sort_unstable();
    classes.dedup();
    classes
}

#[cfg(test)]
mod tests {
    use super::*;
    use outsize_models::presets;

    #[test]
    fn products_in_bf16_are_predicted_by_their_own_rate() {
        let config = ModelConfig::from_json(presets::config("llama-demo").unwrap()).unwrap();
        for compute in [ActivationDtype::F32, ActivationDtype::Bf16] {
            let cache = CacheOptions::new(512);
            let workload = GenerationWorkload { compute, ..GenerationWorkload::new(cache, 256) };
            let predicted = workload.passes(&config).longest.workload.bf16;
            assert_eq!(predicted, compute == ActivationDtype::Bf16);
        }
    }
}
