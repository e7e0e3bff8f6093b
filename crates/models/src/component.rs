//! Modules that are parts of a model of several, such as those of Stable Diffusion: each with a
//! folder, a configuration and weights of its own.

use std::collections::HashMap;
use std::fmt::{self, Debug};

use burn::tensor::{DType, Device};
use outsize_checkpoint::{Checkpoint, Dtype, StorageFormat, TensorInfo, shown};
use outsize_core::{
    Access, Dispatched, FloatType, Names, Options, Parameter, TensorTable, parameters,
};
use outsize_kernels::{matmul, threads};
use outsize_plan::{DeviceMap, Tree};

use crate::architecture::class_name;
use crate::config::{self, COMMON, Fields, MAX_QUOTE, check};
use crate::layers::UNPACKED_BYTES;
use crate::weights::{gated_width, gates};
use crate::{
    ActivationDtype, Architecture, Error, Init, PicturePass, WeightKind, WeightSpec, WeightUse,
};

/// An architecture that is one part of a model. Its driver calls the module's own forward within
/// [`Dispatched::run`].
///
/// [`MODEL_TYPES`](Architecture::MODEL_TYPES) has values of `model_type`, or of `_class_name` as
/// `diffusers` writes it.
pub trait Component: Architecture {
    /// Whether tiles of its gates are asked for in turns with those of what goes through them.
    const INTERLEAVES: bool = false;

    /// What parameters are called in a checkpoint with these tensors.
    fn names(_config: &Self::Config, _tensors: &[TensorInfo]) -> Names {
        Names::default().optional_prefix(Self::OPTIONAL_PREFIX)
    }

    /// The same configuration for a checkpoint with these tensors, where these tell what it does
    /// not say.
    fn of_checkpoint(config: &Self::Config, _tensors: &[TensorInfo]) -> Self::Config {
        config.clone()
    }

    /// Whether a tensor belongs to a part of the model that is not run, as nothing asks for it.
    fn is_unused(_config: &Self::Config, _tensor: &str) -> bool {
        false
    }

    /// The shape in which software that writes this configuration stores the parameter of that
    /// path: a matrix may be a 1x1 convolution, `[out, in, 1, 1]`.
    fn stored_shape(_config: &Self::Config, _path: &str, shape: Vec<usize>) -> Vec<usize> {
        shape
    }

    /// What a pass does with the weight of that path, a matrix or a convolution.
    fn weight_use(config: &Self::Config, path: &str, pass: &PicturePass) -> WeightUse;

    /// Whether a layer's bias is asked for before its matrix.
    fn is_bias_first(_path: &str) -> bool {
        false
    }

    /// How a weight is read if it is streamed.
    fn access(weight: &WeightSpec) -> Access {
        weight.access
    }
}

/// A part of a model, as its `config.json` describes it.
pub struct ComponentConfig<C: Component> {
    /// Its configuration.
    pub config: C::Config,
    /// The type that the weights were saved in, where it is said.
    pub dtype: Option<Dtype>,
    /// Fields that nobody here knows, and that were passed over; at most 32.
    pub unknown_fields: Vec<String>,
    model: C,
    parameters: Vec<Parameter>,
}

impl<C: Component> ComponentConfig<C> {
    /// Reads the text of a `config.json`.
    ///
    /// # Errors
    /// Text that is not a JSON object, the configuration of another class, a field that is missing,
    /// out of bounds, or asks for something this crate does not run; the message names the field.
    pub fn from_json(text: &str) -> Result<Self, Error> {
        let map = config::object(text)?;
        let fields = Fields::new(&map);
        let key = if fields.has("_class_name") { "_class_name" } else { "model_type" };
        let found = fields.text(key)?.ok_or_else(|| fields.missing(key))?;
        let Some((model_type, _)) = C::MODEL_TYPES.iter().find(|(known, _)| *known == found) else {
            let supported: Vec<_> = C::MODEL_TYPES.iter().map(|(known, _)| *known).collect();
            return Err(Error::ModelType {
                found: shown(found, MAX_QUOTE),
                supported: supported.join(", "),
            });
        };
        let mut tables = C::fields(model_type).to_vec();
        tables.push(COMMON);
        check(&fields, &tables)?;
        let config = C::read(model_type, &fields)?;
        let model = C::new(&config, &Init::new(&Device::flex()));
        Ok(Self {
            dtype: config::dtype(&fields)?,
            unknown_fields: fields.unknown(),
            parameters: parameters(&model),
            model,
            config,
        })
    }

    /// The same with another configuration.
    pub fn changed(mut self, change: impl FnOnce(&mut C::Config)) -> Self {
        change(&mut self.config);
        self.model = C::new(&self.config, &Init::new(&Device::flex()));
        self.parameters = parameters(&self.model);
        self
    }

    /// The module without storage: what it says of itself needs no weights.
    pub fn model(&self) -> &C {
        &self.model
    }

    /// All parameters, in the order in which a pass uses them.
    pub fn weights(&self) -> Vec<WeightSpec> {
        let weights = self.parameters.iter().map(WeightSpec::from);
        let mut weights: Vec<_> =
            weights.map(|weight| WeightSpec { access: C::access(&weight), ..weight }).collect();
        in_order(&mut weights);
        let mut pairs = weights.as_mut_slice();
        while let [matrix, bias, ..] = pairs {
            let layer = bias.name.strip_suffix(".bias").unwrap_or_default();
            let first = matrix.shape.len() > 1 && C::is_bias_first(&bias.name);
            if first && matrix.name.strip_suffix(".weight") == Some(layer) {
                std::mem::swap(matrix, bias);
            }
            pairs = &mut pairs[1..];
        }
        weights
    }

    /// Values in all parameters.
    pub fn parameter_count(&self) -> u64 {
        self.weights().iter().map(WeightSpec::elements).sum()
    }

    /// How a checkpoint with these tensors is matched and read. Budget, overhead and planning are
    /// left at their defaults.
    pub fn options(&self, tensors: &[TensorInfo]) -> Options {
        let weights = self.weights();
        let gates = gates(&weights);
        let is_unused = |tensor: &&TensorInfo| C::is_unused(&self.config, &tensor.name);
        let unused = tensors.iter().filter(is_unused);
        let used = || tensors.iter().filter(|tensor| !is_unused(tensor));
        let ignored = C::IGNORED.iter().map(|end| (*end).to_owned());
        let wide = used().any(|tensor| tensor.dtype == Dtype::F64);
        // Matrices of 8 bits have one scale each, or none.
        let scaled = used().any(|tensor| tensor.name.ends_with(".weight_scale"));
        Options {
            // The products take weights as stored, but not in 64 bits.
            float_type: match wide {
                true => FloatType::Cast(DType::F32),
                false => FloatType::AsStored,
            },
            names: C::names(&self.config, tensors),
            format: scaled.then(|| StorageFormat::compressed_fp8(false)),
            no_split: C::NO_SPLIT.iter().map(|class| (*class).to_owned()).collect(),
            order: Some(weights.iter().map(|weight| weight.name.clone()).collect()),
            access: weights.into_iter().map(|weight| (weight.name, weight.access)).collect(),
            interleaved: if C::INTERLEAVES { gates } else { HashMap::new() },
            min_ring_bytes: outsize_core::LEAST_RING,
            moves_activations: true,
            ignore: ignored.chain(unused.map(|tensor| tensor.name.clone())).collect(),
            ..Options::default()
        }
    }

    /// What there is to place, in the order in which a pass uses it. `tensors` are those of a
    /// checkpoint at `place`.
    ///
    /// # Errors
    /// [`outsize_core::Error::Mismatch`]: they are not those of this configuration.
    pub fn tree(&self, place: &str, tensors: &[TensorInfo]) -> Result<Tree, outsize_core::Error> {
        let table = TensorTable::new(place, tensors);
        let mut tree = outsize_core::tree_of(&self.parameters, &table, &self.options(tensors))?;
        let prefixes = (C::MODEL_TYPES.first().map_or("", |(_, prefix)| prefix), C::CLASS_PREFIX);
        let classes = tree.blocks.iter_mut().map(|block| &mut block.class);
        for class in classes.chain(tree.classes.values_mut()) {
            *class = class_name(prefixes, C::CLASSES, class);
        }
        Ok(tree)
    }

    /// The tensors of a checkpoint, in the order in which a pass uses them: parameters that share
    /// one are parts of it.
    pub fn stored_weights(&self) -> Vec<WeightSpec> {
        let names = C::names(&self.config, &[]);
        let parameters: HashMap<_, _> =
            self.parameters.iter().map(|parameter| (&*parameter.path, parameter)).collect();
        let mut stored: Vec<WeightSpec> = Vec::with_capacity(parameters.len());
        let mut places = HashMap::new();
        for weight in self.weights() {
            let shape = C::stored_shape(&self.config, &weight.name, weight.shape);
            let name = parameters.get(&*weight.name).map(|parameter| names.tensor(parameter));
            let name = name.unwrap_or(weight.name);
            match places.get(&name) {
                Some(place) => {
                    let whole: &mut WeightSpec = &mut stored[*place];
                    whole.shape[0] += shape[0];
                }
                None => {
                    places.insert(name.clone(), stored.len());
                    stored.push(WeightSpec { name, shape, ..weight });
                }
            }
        }
        stored
    }

    /// Name, type and shape of each tensor of a checkpoint in `dtype`.
    pub fn tensors(&self, dtype: Dtype) -> Vec<(String, Dtype, Vec<usize>)> {
        let tensor = |weight: WeightSpec| (weight.name, dtype, weight.shape);
        self.stored_weights().into_iter().map(tensor).collect()
    }

    /// What products and convolutions take besides activations, in bytes, for at most so many rows
    /// of activations: pixels or tokens of all sequences.
    pub fn packed_bytes(&self, compute: ActivationDtype, rows: u64) -> u64 {
        let (mut inputs, mut convolutions) = (0, 0);
        let weights = self.weights();
        for weight in &weights {
            match weight.shape[..] {
                [_, width] if weight.kind == WeightKind::Linear => inputs = width.max(inputs),
                [_, _, ..] if weight.kind == WeightKind::Linear => {
                    convolutions = matmul::convolution_bytes();
                }
                _ => {}
            }
        }
        matmul::packed_bytes(compute, rows, inputs as u64, gated_width(&weights))
            .saturating_add(convolutions.saturating_mul(threads() as u64))
    }

    /// The width of what goes into gated blocks: 0 if there are none.
    pub fn gated_width(&self) -> u64 {
        gated_width(&self.weights())
    }

    /// What weights in blocks are unpacked to while they are multiplied, in bytes: none if these
    /// `tensors` of a checkpoint are in floats.
    pub fn unpacked_bytes(&self, tensors: &[TensorInfo]) -> u64 {
        let is_block = |tensor: &TensorInfo| tensor.dtype.block().elements > 1;
        if self.options(tensors).format.is_none() && !tensors.iter().any(is_block) {
            return 0;
        }
        let matrices = self.weights().into_iter().filter(|weight| weight.shape.len() == 2);
        let widest = matrices.map(|weight| weight.shape[1]).max().unwrap_or(0) as u64;
        // One row may be wider than a piece.
        let piece = UNPACKED_BYTES.max(widest.saturating_mul(4));
        matmul::panel_bytes(widest).saturating_mul(threads() as u64).saturating_add(piece)
    }

    /// An empty module, dispatched: see [`outsize_core::dispatch()`].
    ///
    /// # Errors
    /// As there.
    pub fn dispatch(
        &self,
        init: &Init,
        checkpoint: &Checkpoint,
        map: &DeviceMap,
        options: &Options,
    ) -> Result<Dispatched<C>, outsize_core::Error> {
        let config = C::of_checkpoint(&self.config, checkpoint.tensors());
        outsize_core::dispatch(C::new(&config, init), checkpoint, map, options)
    }
}

impl<C: Component> Debug for ComponentConfig<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.config.fmt(f)
    }
}

/// A matrix in the shape of a 1x1 convolution.
pub(crate) fn as_convolution(mut shape: Vec<usize>) -> Vec<usize> {
    shape.extend([1, 1]);
    shape
}

/// Puts weights that are declared in the order of use into that order: in blocks as `diffusers` has
/// them, of which residual blocks and attentions take turns, and what resamples comes last.
fn in_order(weights: &mut [WeightSpec]) {
    const PARTS: [&str; 2] = ["resnets", "attentions"];
    let mut first: HashMap<String, usize> = HashMap::new();
    let mut turns: HashMap<String, (usize, usize, usize)> = HashMap::new();
    for (index, weight) in weights.iter().enumerate() {
        let path: Vec<&str> = weight.name.split('.').collect();
        let part = path.iter().enumerate().find_map(|(depth, name)| {
            let turn = PARTS.iter().position(|part| part == name)?;
            Some((depth, path.get(depth + 1)?.parse::<usize>().ok()?, turn))
        });
        let resampler = path.iter().position(|name| name.ends_with("samplers"));
        let turn = match (part, resampler) {
            (Some((depth, number, turn)), _) => {
                let block = first.entry(path[..depth].join(".")).or_insert(index);
                (*block, number, turn)
            }
            (None, Some(depth)) => {
                let block = first.get(&path[..depth].join(".")).copied().unwrap_or(index);
                (block, usize::MAX, 0)
            }
            _ => (index, 0, 0),
        };
        turns.insert(weight.name.clone(), turn);
    }
    weights.sort_by_key(|weight| turns.get(&weight.name).copied());
}
