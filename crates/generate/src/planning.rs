//! Plans of models that are described rather than opened.

use outsize_models::{CacheOptions, KvCache, Logits, ModelConfig};
use outsize_plan::{Budget, DeviceMap, Error, Needs, Options, Tree, Workload};

use crate::describe::Described;
use crate::pipeline::{LARGEST_CHUNK, MIN_RING, PROCESS_SLACK, steady};

/// For what a model is planned.
#[derive(Debug, Clone)]
pub struct Purpose {
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
    purpose: Purpose,
}

impl Planner {
    /// For a model and a purpose.
    pub fn new(mut described: Described, mut purpose: Purpose) -> Self {
        described.set_cache(&purpose.cache);
        let options = &mut purpose.options;
        options.workload = Workload {
            batch: purpose.cache.batch as u64,
            prompt: purpose.prompt as u64,
            position: purpose.cache.context as u64,
        };
        options.min_ring = MIN_RING;
        Self {
            tree: described.tree,
            config: described.config,
            purpose,
        }
    }

    /// What is planned.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// The plan for a budget, as a pipeline would make it: with passes over the prompt as long as the budget allows. Gives the
    /// options that it was made with too.
    ///
    /// # Errors
    /// As [`infer`](outsize_plan::infer).
    pub fn plan(
        &self,
        budget: &Budget,
        mut infer: impl FnMut(&Tree, &Budget, &Options) -> Result<DeviceMap, Error>,
    ) -> Result<(DeviceMap, Options), Error> {
        let mut chunk = self.purpose.prompt.clamp(1, LARGEST_CHUNK);
        chunk = chunk.min(self.purpose.cache.context.max(1));
        loop {
            let options = self.options(chunk);
            match infer(&self.tree, budget, &options) {
                Ok(map) => return Ok((map, options)),
                Err(_) if chunk > 1 => chunk = chunk.div_ceil(2),
                Err(error) => return Err(steady(error)),
            }
        }
    }

    /// What the plan depends on if passes are of `chunk` tokens.
    fn options(&self, chunk: usize) -> Options {
        let cache = &self.purpose.cache;
        let mut options = self.purpose.options.clone();
        options.needs = Needs {
            process: self.purpose.process.saturating_add(PROCESS_SLACK),
            ..Needs::default()
        };
        if let Some(config) = &self.config {
            let activations = config.activation_bytes(chunk, cache, Logits::Last);
            options.needs.kv_cache = KvCache::bytes(config, cache);
            options.needs.activations = activations;
            options.gpu_activations = activations;
        }
        options
    }
}
