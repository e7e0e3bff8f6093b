//! A model as the planner sees it.

use std::collections::{HashMap, HashSet};

use burn::tensor::DType;
use outsize_checkpoint::{Dtype, StorageFormat, TensorInfo};
use outsize_core::{Access, Error, FloatType, Options, TensorTable};
use outsize_plan::{BlockCost, Tree};

use crate::architecture::class_name;
use crate::config::Quantization;
use crate::weights::gates;
use crate::{CacheOptions, KvCache, Logits, ModelConfig, WeightKind, WeightSpec};

const MXFP4: StorageFormat = StorageFormat::mxfp4();

impl ModelConfig {
    /// How a checkpoint with these tensors is matched and read. Budget, overhead and planning are
    /// left at their defaults.
    pub fn options(&self, tensors: &[TensorInfo]) -> Options {
        let row = self.row;
        let mut weights = self.weights();
        if !self.is_headless
            && let Some((table, _)) = self.tied_head()
            && let Some(at) = weights.iter().position(|weight| weight.name == table)
        {
            // Read by rows at the beginning of a pass and by tiles at its end: what streams is the
            // latter.
            let mut table = weights.remove(at);
            table.access = Access::Tiles;
            weights.push(table);
        }
        let mut ignore: Vec<String> = row.ignored.iter().map(|end| (*end).to_owned()).collect();
        if self.quantization.is_some() {
            ignore.extend(Quantization::OF_ACTIVATIONS.iter().map(|end| (*end).to_owned()));
        }
        // The table once more: whether it is, is looked at when the model is dispatched.
        ignore.extend(self.stored_head(tensors).map(|[_, head]| head.name.clone()));
        ignore.extend(self.other_parts(tensors).map(|tensor| tensor.name.clone()));
        let mut names = self.names();
        if let Some((theirs, ours)) = self.prefix(tensors) {
            let pattern = format!("^{}", ours.replace('.', r"\."));
            names = names.rename(&pattern, theirs).unwrap_or_default();
        }
        let is_stored = |name: &str| tensors.iter().any(|tensor| tensor.name == name);
        if let Some(table) = row.spare_head.filter(|table| is_stored(table))
            && !is_stored(&format!("{}.weight", row.head))
        {
            let head = format!(r"^{}\.weight$", row.head);
            names = names.rename(&head, table).unwrap_or_default();
        }
        // What no later pass asks for comes first, and behind it in one piece what each of them
        // asks for.
        // What goes through a gate comes behind that.
        let gates = gates(&weights);
        let places: HashMap<String, usize> =
            weights.iter().map(|weight| weight.name.clone()).zip(0..).collect();
        weights.sort_by_key(|WeightSpec { name, access, .. }| {
            let is_of_passes = *access != Access::Rows && !(row.is_of_prompt)(name);
            (is_of_passes, places[gates.get(name).unwrap_or(name)])
        });
        let wide = tensors.iter().any(|tensor| tensor.dtype == Dtype::F64);
        Options {
            // The products take weights as stored, but not in 64 bits.
            float_type: match wide {
                true => FloatType::Cast(DType::F32),
                false => FloatType::AsStored,
            },
            format: self.format(),
            names,
            no_split: row.no_split.iter().map(|class| (*class).to_owned()).collect(),
            routed: (weights.iter())
                .filter_map(|weight| Some((weight.name.clone(), self.routed(&weight.name)?)))
                .collect(),
            order: Some(weights.iter().map(|weight| weight.name.clone()).collect()),
            access: (weights.into_iter()).map(|weight| (weight.name, weight.access)).collect(),
            interleaved: gates,
            min_ring_bytes: outsize_core::LEAST_RING,
            moves_activations: true,
            ignore,
            ..Options::default()
        }
    }

    /// Tensors that are passed over: those of the other models, in a checkpoint of several, and
    /// those of layers behind the last one, which guess further tokens.
    pub fn other_parts<'t>(
        &self,
        tensors: &'t [TensorInfo],
    ) -> impl Iterator<Item = &'t TensorInfo> {
        let others = self.row.multimodal.map_or(&[][..], |names| names.others);
        let layers = self.cache().layers.len() / self.row.attentions;
        let is_behind = move |name: &str| {
            let rest = name.strip_prefix(self.row.layers)?.strip_prefix('.')?;
            let (number, _) = rest.split_once('.')?;
            Some(number.parse::<usize>().ok()? >= layers)
        };
        let has_more = self.row.has_more_layers;
        let (theirs, ours) = self.prefix(tensors).unwrap_or_default();
        let is_unused = move |name: &str| match name.strip_prefix(theirs) {
            Some(rest) => self.is_unused(&format!("{ours}{rest}")),
            None => false,
        };
        let is_other = move |tensor: &&TensorInfo| {
            others.iter().any(|it| tensor.name.starts_with(it))
                || (has_more
                    && (is_behind(&tensor.name) == Some(true)
                        || ["mtp.", "model.mtp."].iter().any(|it| tensor.name.starts_with(it))))
                || is_unused(&tensor.name)
        };
        tensors.iter().filter(is_other)
    }

    /// Whether checkpoints of this type may hold other models too.
    pub fn is_text_part(&self) -> bool {
        self.row.multimodal.is_some_and(|names| !names.others.is_empty())
    }

    /// What the names in a checkpoint of several models begin with, and what stands for it in the
    /// model's own.
    fn prefix(&self, tensors: &[TensorInfo]) -> Option<(&'static str, &'static str)> {
        let in_use = |theirs: &str| tensors.iter().any(|tensor| tensor.name.starts_with(theirs));
        self.row.multimodal?.prefixes.iter().copied().find(|(theirs, _)| in_use(theirs))
    }

    /// The names that a parameter's tensor may have in a checkpoint with these tensors.
    pub(crate) fn stored_names(&self, path: &str, tensors: &[TensorInfo]) -> [String; 2] {
        let (theirs, ours) = self.prefix(tensors).unwrap_or_default();
        let named = path.strip_prefix(ours).map(|rest| format!("{theirs}{rest}"));
        let named = named.unwrap_or_else(|| path.to_owned());
        let short = named.strip_prefix(self.optional_prefix()).unwrap_or(&named).to_owned();
        [named, short]
    }

    /// The table that serves as output head, and the tensor of its size that some checkpoints have
    /// under the head's own name too.
    pub fn stored_head<'t>(&self, tensors: &'t [TensorInfo]) -> Option<[&'t TensorInfo; 2]> {
        let find = |path: &str| {
            let names = self.stored_names(path, tensors);
            tensors.iter().find(|tensor| names.contains(&tensor.name))
        };
        let (table, head) = self.tied_head()?;
        let [table, head] = [find(&table)?, find(&head)?];
        ((&table.shape, table.dtype) == (&head.shape, head.dtype)).then_some([table, head])
    }

    /// What there is to place, in the order in which a pass uses it, with the classes that
    /// `transformers` has. `tensors` are those of a checkpoint at `place`.
    ///
    /// What the blocks do besides holding weights is for [`add_work`](Self::add_work) to say.
    ///
    /// # Errors
    /// [`Error::Mismatch`]: they are not those of this configuration.
    pub fn tree(&self, place: &str, tensors: &[TensorInfo]) -> Result<Tree, Error> {
        let options = self.options(tensors);
        let table = TensorTable::new(place, tensors);
        let tree = outsize_core::tree_of(self.parameters(), &table, &options);
        let mut tree = tree.map_err(|error| match error {
            Error::Mismatch(mut misfit) => {
                misfit.advice = self.advice(tensors).or(misfit.advice);
                Error::Mismatch(misfit)
            }
            error => error,
        })?;
        for block in &mut tree.blocks {
            block.class = self.class(&block.class);
            for tensor in &mut block.tensors {
                tensor.once = (self.row.is_of_prompt)(&tensor.name);
            }
        }
        for class in tree.classes.values_mut() {
            *class = self.class(class);
        }
        Ok(tree)
    }

    /// How weights are stored that are no plain numbers, where the configuration says it.
    fn format(&self) -> Option<StorageFormat> {
        self.quantization.as_ref()?.format
    }

    /// What may be the matter with a checkpoint that does not match.
    fn advice(&self, tensors: &[TensorInfo]) -> Option<String> {
        let is_stored = tensors
            .iter()
            .any(|tensor| tensor.dtype == Dtype::U8 && tensor.name.ends_with(MXFP4.data_suffix));
        let advice = match (self.format() == Some(MXFP4), is_stored) {
            (false, true) => {
                "it has weights in MXFP4, of which config.json must say \"quantization_config\": {\"quant_method\": \
                 \"mxfp4\"}"
            }
            (true, false) => {
                "config.json says that weights are stored in MXFP4, and none is: take out its `quantization_config`"
            }
            _ => return None,
        };
        Some(advice.to_owned())
    }

    /// [`tree`](Self::tree) of a checkpoint of this configuration's own type. If it names none that
    /// is, as in `transformers`, 32-bit floats, or brain floats beside MXFP4.
    pub fn tree_without_weights(&self) -> Result<Tree, Error> {
        let absent = if self.format() == Some(MXFP4) { Dtype::BF16 } else { Dtype::F32 };
        let dtype = self.dtype.unwrap_or(absent);
        let tensors: Vec<_> = (self.tensors(dtype).into_iter())
            .map(|(name, dtype, shape)| TensorInfo {
                len: (shape.iter())
                    .fold(dtype.size() as u64, |len, n| len.saturating_mul(*n as u64)),
                name,
                dtype,
                shape,
                file: 0,
                offset: 0,
            })
            .collect();
        self.tree("config.json", &tensors)
    }

    /// Name, type and shape of each tensor of a checkpoint whose plain weights are in `dtype`:
    /// those of all weights, and the scales of weights in blocks behind these.
    pub fn tensors(&self, dtype: Dtype) -> Vec<(String, Dtype, Vec<usize>)> {
        let mut tensors = Vec::new();
        for (name, weights) in self.stored_weights() {
            let weight = &weights[0];
            let blocks = (self.quantization.as_ref())
                .and_then(|quantization| quantization.format_of(weight));
            let stored = match (blocks, weight.shape[..].try_into()) {
                // Scales of integers are of the type of other weights.
                (Some(format), Ok(shape)) if format.as_integers().is_some() => {
                    format.with_scales(dtype).tensors(&name, shape)
                }
                (Some(format), Ok(shape)) => format.tensors(&name, shape),
                _ => {
                    let is_table = weight.kind == WeightKind::ExpertTable;
                    let dtype = if is_table { Dtype::I64 } else { dtype };
                    vec![(name.clone(), dtype, weight.shape.clone())]
                }
            };
            let count = (name != weight.name).then_some(weights.len());
            let stacked = |(name, dtype, shape): (_, _, Vec<usize>)| {
                (name, dtype, count.into_iter().chain(shape).collect())
            };
            tensors.extend(stored.into_iter().map(stacked));
        }
        tensors
    }

    /// All parameters as a checkpoint of this type is published: by the name of a tensor, those of
    /// which it holds one behind the other. Under a name of its own a tensor holds one.
    pub fn stored_weights(&self) -> Vec<(String, Vec<WeightSpec>)> {
        let (names, mut stored) = (self.names(), Vec::<(String, Vec<WeightSpec>)>::new());
        let mut places = HashMap::new();
        for weight in self.weights() {
            let stacked = || names.otherwise(&weight.name).next();
            let stack = self.row.is_stacked.then(stacked).flatten();
            let name = stack.map_or_else(|| weight.name.clone(), |stack| stack.tensor);
            let place = *places.entry(name.clone()).or_insert(stored.len());
            if place == stored.len() {
                stored.push((name, Vec::new()));
            }
            stored[place].1.push(weight);
        }
        stored
    }

    /// Says of each block of `tree` that is one of this model's what it does besides holding
    /// weights: the keys and values that it keeps in a cache that is made for `cache`, and its
    /// operations when the logits of `logits` are wanted.
    pub fn add_work(&self, tree: &mut Tree, cache: &CacheOptions, logits: Logits) {
        let spec = self.cache();
        let layers: HashMap<String, _> = (spec.layers.chunks(self.row.attentions).enumerate())
            .map(|(index, layers)| {
                (format!("{}.{index}", self.row.layers), (layers, spec.cross.get(index)))
            })
            .collect();
        // Behind the last block that keeps anything only what logits are made of is run.
        let last = spec.last_that_keeps() / self.row.attentions;
        let behind = (last + 1..layers.len()).map(|index| format!("{}.{index}", self.row.layers));
        let behind: HashSet<_> = behind.filter(|_| logits == Logits::Last).collect();
        // What blocks hand on is as wide as a row of the table, or narrower.
        let tables = tree.tensors().filter(|tensor| tensor.access == Access::Rows);
        let width = tables.filter_map(|table| table.shape.last().copied()).max().unwrap_or(0);
        // Those that are no matrices of products.
        let added: HashSet<String> = (self.weights().into_iter())
            .filter(|it| {
                matches!(it.kind, WeightKind::Bias | WeightKind::Norm | WeightKind::ExpertTable)
            })
            .map(|weight| weight.name)
            .collect();
        for block in &mut tree.blocks {
            let flops = |once: bool| {
                (block.tensors.iter())
                    .filter(|tensor| tensor.shape.len() >= 2 && tensor.access != Access::Rows)
                    .filter(|tensor| !added.contains(&tensor.name))
                    .filter(|tensor| tensor.once == once)
                    .map(|tensor| {
                        let flops = tensor.shape.iter().product::<u64>().saturating_mul(2);
                        tensor.routed.map_or(flops, |routed| {
                            (flops as f64 * routed.share(1.0)).round() as u64
                        })
                    })
                    .fold(0, u64::saturating_add)
            };
            block.work = BlockCost {
                flops_per_token: Some(flops(false)),
                flops_once: flops(true).saturating_mul(cache.prompt as u64),
                input_values: if flops(false).max(flops(true)) > 0 { width } else { 0 },
                last_only: behind.contains(&block.name),
                ..BlockCost::default()
            };
            // Layers of the cache of one block are alike.
            if let Some((all @ [layer, ..], cross)) = layers.get(&block.name) {
                let times = |one: u64| one.saturating_mul(all.len() as u64);
                if let (Some(_), Some(state)) = (layer.attention(), layer.recurrent()) {
                    let flops = block.work.flops_per_token.unwrap_or(0);
                    block.work.flops_per_token = Some(flops.saturating_add(state.flops()));
                }
                let (window, _) = layer.window_and_capacity(cache);
                let chosen = layer.attention().and_then(|layer| layer.chosen);
                let window = chosen.map_or(window, |most| window.min(most));
                let cross = cross.map_or(0, |layer| KvCache::cross_bytes(layer, cache));
                block.work.cross_kv_bytes = cross;
                block.work.kv_bytes = times(layer.bytes(cache)).saturating_add(cross);
                block.work.kv_bytes_per_position = times(layer.position_bytes(cache));
                block.work.window = (window < usize::MAX).then_some(window as u64);
                block.work.attention_flops = Some(times(layer.flops()));
            } else if let (Some(cross), 1..) = (spec.cross.first(), block.work.flops_once) {
                // A layer of the encoder, which has as many heads: each token sees all of the
                // prompt.
                let seen = (cache.prompt as u64).saturating_pow(2);
                let attention = cross.flops().saturating_mul(seen);
                block.work.flops_once = block.work.flops_once.saturating_add(attention);
            }
        }
        // The last matrices are the head's.
        let head = tree.blocks.iter_mut().rev().find(|block| block.work.flops_per_token > Some(0));
        if let Some(head) = head.filter(|_| !self.is_headless) {
            head.work.last_only = logits == Logits::Last;
            head.work.output_values = self.vocab_size() as u64;
        }
    }

    /// Modules of `transformers` that hold no tensor, by their paths, with their classes.
    pub fn modules_without_parameters(&self) -> Vec<(String, String)> {
        let row = self.row;
        let layers = 0..self.cache().layers.len() / self.row.attentions;
        let head = self.tied_head().map(|_| (row.head.to_owned(), "Linear".to_owned()));
        (row.without_parameters.iter())
            .flat_map(|(path, class)| {
                let paths = match path.split_once('*') {
                    None => vec![(*path).to_owned()],
                    Some((before, after)) => {
                        layers.clone().map(|layer| format!("{before}{layer}{after}")).collect()
                    }
                };
                paths.into_iter().map(|path| (path, (*class).to_owned()))
            })
            .chain(head)
            .collect()
    }

    /// What `transformers` calls a class of the module.
    fn class(&self, class: &str) -> String {
        class_name(self.row.class_prefixes, self.row.classes, class)
    }
}

#[cfg(test)]
mod tests {
    use outsize_core::Routed;

    use super::*;
    use crate::{KvDtype, WhenFull, presets};
    use outsize_plan::WeightDtype;

    fn config(name: &str) -> ModelConfig {
        ModelConfig::from_json(presets::config(name).unwrap()).unwrap()
    }

    #[test]
    fn the_work_of_all_blocks_is_the_cache_and_the_products() {
        for name in presets::names() {
            let config = config(name);
            let without_work = config.tree_without_weights().unwrap();
            for cache in [
                CacheOptions::new(5000),
                CacheOptions {
                    batch: 3,
                    dtype: KvDtype::Bf16,
                    when_full: WhenFull::Slide,
                    ..CacheOptions::new(700)
                },
            ] {
                let mut tree = without_work.clone();
                config.add_work(&mut tree, &cache, Logits::Last);
                let sum = |of: fn(&BlockCost) -> u64| -> u64 {
                    tree.blocks.iter().map(|block| of(&block.work)).sum()
                };
                assert_eq!(
                    sum(|work| work.kv_bytes),
                    KvCache::bytes(config.cache(), &cache),
                    "{name}"
                );
                assert_eq!(
                    sum(|work| work.kv_bytes_per_position),
                    config
                        .cache()
                        .layers
                        .iter()
                        .map(|layer| layer.position_bytes(&cache))
                        .sum::<u64>()
                );
                // A tied table is a product once; norms and biases are none. What an encoder does
                // is counted apart.
                let weights = config.weights();
                let tied = config.tied_head();
                let products = weights.iter().filter(|weight| match weight.kind {
                    WeightKind::Embedding => {
                        tied.as_ref().is_some_and(|(table, _)| *table == weight.name)
                    }
                    WeightKind::Router | WeightKind::Taps => true,
                    kind => kind == WeightKind::Linear && !(config.row.is_of_prompt)(&weight.name),
                });
                // Of experts, those that a token goes to.
                let flops = products.map(|weight| match config.routed(&weight.name) {
                    None => 2 * weight.elements(),
                    Some(Routed { per_token, experts }) => {
                        2 * weight.elements() * u64::from(per_token) / u64::from(experts)
                    }
                });
                assert_eq!(sum(|work| work.flops_per_token.unwrap()), flops.sum::<u64>(), "{name}");
            }
        }
    }

    #[test]
    fn windows_are_those_of_the_layers() {
        let mut fields: serde_json::Value =
            serde_json::from_str(presets::config("qwen2-0.5b").unwrap()).unwrap();
        let mut types = vec!["sliding_attention"; 24];
        types[3] = "full_attention";
        fields["layer_types"] = types.into();
        fields["use_sliding_window"] = true.into();
        fields["sliding_window"] = 4096.into();
        let config = ModelConfig::from_json(&fields.to_string()).unwrap();
        let mut tree = config.tree_without_weights().unwrap();
        config.add_work(&mut tree, &CacheOptions::new(10_000), Logits::Last);
        let work = |layer: usize| tree.blocks[layer].work;
        assert_eq!(work(2).window, Some(4096));
        assert_eq!(work(2).kv_bytes, 4096 * work(2).kv_bytes_per_position);
        assert_eq!(work(3).window, None);
        assert_eq!(work(3).kv_bytes, 10_000 * work(3).kv_bytes_per_position);
        assert_eq!(work(3).kv_bytes_per_position, 2 * 2 * 64 * 4);
    }

    #[test]
    fn only_the_end_of_a_text_goes_through_layers_that_keep_nothing() {
        let config = config("gemma-3n-e4b");
        for (logits, expected) in [(Logits::Last, 16), (Logits::All, 0)] {
            let mut tree = config.tree_without_weights().unwrap();
            config.add_work(&mut tree, &CacheOptions::new(64), logits);
            let blocks = tree.blocks.iter().filter(|block| block.work.last_only);
            let names: Vec<_> = blocks.map(|block| block.name.as_str()).collect();
            assert_eq!(names.len(), expected);
            assert!(names.first().is_none_or(|name| *name == "model.layers.20"), "{names:?}");
        }
    }

    #[test]
    fn classes_are_those_of_transformers() {
        let tree = config("qwen2-0.5b").tree_without_weights().unwrap();
        for (module, class) in [
            ("", "Qwen2ForCausalLM"),
            ("model", "Qwen2Model"),
            ("model.embed_tokens", "Embedding"),
            ("model.layers", "ModuleList"),
            ("model.layers.23", "Qwen2DecoderLayer"),
            ("model.layers.0.self_attn", "Qwen2Attention"),
            ("model.layers.0.self_attn.q_proj", "Linear"),
            ("model.layers.0.mlp", "Qwen2MLP"),
            ("model.layers.0.mlp.down_proj", "Linear"),
            ("model.layers.0.input_layernorm", "Qwen2RMSNorm"),
            ("model.norm", "Qwen2RMSNorm"),
        ] {
            assert_eq!(tree.classes[module], class, "{module}");
        }
        assert_eq!(tree.blocks[5].class, "Qwen2DecoderLayer");
        // The head is the table, and stands at the end.
        assert!(!tree.classes.contains_key("lm_head"));
        let table = tree.blocks.last().unwrap();
        assert_eq!(table.name, "model.embed_tokens");
        assert_eq!(table.tensors[0].access, Access::Tiles);
        assert_eq!(config("llama-7b").tree_without_weights().unwrap().classes["lm_head"], "Linear");
    }

    #[test]
    fn without_a_type_it_is_f32() {
        let mut config = config("llama-demo");
        config.dtype = None;
        let tensor =
            config.tree_without_weights().unwrap().blocks.swap_remove(0).tensors.swap_remove(0);
        assert_eq!(tensor.dtype, WeightDtype::F32);
        let values = config.weights()[0].elements();
        assert_eq!((tensor.bytes, tensor.stored_bytes), (4 * values, 4 * values));
        assert_eq!(tensor.row_bytes, 4 * 1024);
    }
}
