//! Plans of models that are described rather than opened.

use std::borrow::Cow;

use outsize_models::{CacheOptions, Logits, ModelConfig};
use outsize_plan::{
    Assignment, Budget, DeviceMap, Error, Needs, Options, Strategy, Tree, Workload, assign,
    from_assignment, infer,
};

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
    assignment: Option<Assignment>,
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
    pub fn new(mut described: Described, mut purpose: Purpose) -> Self {
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
        Self {
            tree: described.tree,
            config: described.config,
            purpose,
            assignment: None,
        }
    }

    /// What is planned.
    pub fn tree(&self) -> &Tree {
        &self.tree
    }

    /// Places everything as `assignment` says, instead of by a strategy.
    pub fn assign(&mut self, assignment: Assignment) {
        self.assignment = Some(assignment);
    }

    /// The plan for a budget, as a pipeline would make it: with passes over the prompt as long as the budget allows.
    ///
    /// # Errors
    /// As [`infer`], [`assign`] and [`from_assignment`].
    pub fn plan(&self, budget: &Budget) -> Result<Plan, Error> {
        let mut chunk = self.purpose.prompt.clamp(1, LARGEST_CHUNK);
        chunk = chunk.min(self.purpose.cache.context.max(1));
        loop {
            let options = self.options(chunk);
            match self.place(budget, options) {
                Err(_) if chunk > 1 => chunk = chunk.div_ceil(2),
                Err(error) => return Err(steady(error)),
                Ok(plan) => return Ok(plan),
            }
        }
    }

    fn place(&self, budget: &Budget, options: Options) -> Result<Plan, Error> {
        let tree = &self.tree;
        let assignment = match (&self.assignment, options.strategy) {
            (Some(assignment), _) => Cow::Borrowed(assignment),
            (None, Strategy::Auto) => {
                let map = infer(tree, budget, &options)?;
                return Ok(Plan {
                    map,
                    options,
                    warnings: Vec::new(),
                });
            }
            (None, _) => Cow::Owned(assign(tree, budget, &options)?),
        };
        let map = from_assignment(tree, &assignment, budget, &options)?;
        Ok(Plan {
            map,
            options,
            warnings: assignment.into_owned().warnings,
        })
    }

    /// What the plan depends on if passes are of `chunk` tokens.
    fn options(&self, chunk: usize) -> Options {
        let cache = &self.purpose.cache;
        let mut options = self.purpose.options.clone();
        options.workload.chunk = chunk as u64;
        // Blocks say what their part of the KV cache takes.
        options.needs = Needs {
            process: self.purpose.process.saturating_add(PROCESS_SLACK),
            ..Needs::default()
        };
        if let Some(config) = &self.config {
            let activations = config.activation_bytes(chunk, cache, Logits::Last);
            options.needs.activations = activations;
            options.gpu_activations = activations;
        }
        options
    }
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
