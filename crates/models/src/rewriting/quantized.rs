//! Matrices that are written as integers.

use std::collections::HashMap;

use outsize_checkpoint::{StorageFormat, TensorInfo};
use outsize_core::Rewrite;

use super::Rewriting;
use super::places::Places;
use crate::config::{IntegerGroups, compressed_integers};
use crate::{ModelConfig, ModuleKind};

impl Rewriting {
    /// Has the matrices of linear layers of such a model written as integers, but for its head,
    /// what chooses experts, and rows that are no whole groups. Experts in one tensor get tensors
    /// of their own where checkpoints are published so, and stay as they are elsewhere. Weights
    /// come in the order in which a pass uses them from then on. `tensors` are those of the
    /// checkpoint. How many are quantised is returned.
    pub fn quantize(
        &mut self,
        model: &ModelConfig,
        tensors: &[TensorInfo],
        integers: IntegerGroups,
    ) -> usize {
        let format = StorageFormat::packed_integers(integers.width, integers.group, false);
        let places = Places::new(&self.weights, model, tensors);
        let (mut order, mut count) = (vec![usize::MAX; self.weights.len()], 0);
        let mut stacks = HashMap::<usize, Vec<(usize, Rewrite)>>::new();
        for (place, parameter) in model.parameters().iter().enumerate() {
            // Of other kinds matrices are stored the other way round, or are not multiplied as they
            // are. Rows that do not end with a group compressed-tensors does not read.
            let columns = parameter.shape.last().copied().unwrap_or(0);
            let is_whole = integers.group == 0 || columns.is_multiple_of(integers.group);
            let kind = model.module_kind(parameter).filter(|_| is_whole);
            let is_linear = matches!(kind, Some(ModuleKind::Linear | ModuleKind::Expert))
                && parameter.class() == "Linear";
            let Some((at, location)) = places.of(&parameter.path) else { continue };
            order[at] = order[at].min(place);
            if location.parts == 1 {
                if is_linear && self.weights[at].quantize(format, &parameter.path) {
                    count += 1;
                }
                continue;
            }
            // An expert of a stack, where checkpoints are published with a tensor for each.
            let is_apart = kind == Some(ModuleKind::Expert) && !model.row.is_stacked;
            let part = is_apart.then(|| {
                let [name, _] = model.stored_names(&parameter.path, tensors);
                self.weights[at].part(location.part, location.parts, name)
            });
            if let Some(mut part) = part.flatten()
                && part.spec().shape == parameter.shape
                && part.quantize(format, &parameter.path)
            {
                let found = stacks.entry(at).or_default();
                found.push((place, part));
                count += usize::from(found.len() == location.parts) * location.parts;
            }
        }
        if count == 0 {
            return 0;
        }
        let weights = std::mem::take(&mut self.weights).into_iter().zip(order).enumerate();
        let mut weights: Vec<_> = weights
            .flat_map(|(at, (weight, place))| match stacks.remove(&at) {
                Some(parts)
                    if parts.iter().map(|(_, part)| values(part)).sum::<usize>()
                        == values(&weight) =>
                {
                    parts
                }
                _ => vec![(place, weight)],
            })
            .collect();
        weights.sort_by_key(|(place, _)| *place);
        self.weights = weights.into_iter().map(|(_, weight)| weight).collect();
        // Programs that read the tensors ask of every linear layer that is not named here that it
        // is quantised.
        let plain = self.weights.iter().filter(|weight| weight.quantized().is_none());
        let plain = plain.map(|weight| weight.spec()).filter(|spec| spec.shape.len() == 2);
        let plain = plain.filter_map(|spec| spec.name.strip_suffix(".weight").map(str::to_owned));
        // transformers calls the head by this name too, whatever a checkpoint does.
        let heads = [model.head(), "lm_head"].map(str::to_owned);
        let mut ignored: Vec<String> = plain.chain(heads).collect();
        ignored.sort();
        ignored.dedup();
        let quantization = compressed_integers(integers, ignored);
        self.config.insert("quantization_config".to_owned(), quantization);
        count
    }
}

/// How many values a weight has.
fn values(weight: &Rewrite) -> usize {
    weight.spec().shape.iter().product()
}
