//! Matrices that are written as integers.

use std::collections::HashMap;

use outsize_checkpoint::{StorageFormat, TensorInfo};

use super::Rewriting;
use crate::config::{IntegerGroups, compressed_integers};
use crate::{ModelConfig, WeightKind, WeightSpec};

impl Rewriting {
    /// Has the matrices of linear layers of such a model written as integers, but for its head, what chooses experts, and what a
    /// checkpoint holds in tensors of three dimensions; weights come in the order in which a pass uses them from then on.
    /// `tensors` are those of the checkpoint. How many are quantised is returned.
    pub fn quantize(
        &mut self,
        model: &ModelConfig,
        tensors: &[TensorInfo],
        integers: IntegerGroups,
    ) -> usize {
        let format = StorageFormat::packed_integers(integers.width, integers.group, false);
        let names = self.weights.iter().enumerate().map(|(at, weight)| (weight.spec().name, at));
        let by_name: HashMap<String, usize> = names.collect();
        let (mut order, mut count) = (vec![usize::MAX; self.weights.len()], 0);
        for (place, parameter) in model.parameters().iter().enumerate() {
            let names = model.stored_names(&parameter.path, tensors);
            let Some(at) = names.iter().find_map(|name| by_name.get(name)) else { continue };
            order[*at] = place;
            // Other classes store their matrices the other way round, or do not multiply them as they are.
            let is_linear = WeightSpec::from(parameter).kind == WeightKind::Linear
                && parameter.class() == "Linear"
                && !model.is_head(&parameter.path);
            if is_linear && self.weights[*at].quantize(format, &parameter.path) {
                count += 1;
            }
        }
        if count == 0 {
            return 0;
        }
        let mut weights: Vec<_> =
            std::mem::take(&mut self.weights).into_iter().zip(order).collect();
        weights.sort_by_key(|(_, place)| *place);
        self.weights = weights.into_iter().map(|(weight, _)| weight).collect();
        // Programs that read the tensors ask of every linear layer that is not named here that it is quantised.
        let plain = self.weights.iter().filter(|weight| weight.quantized().is_none());
        let plain = plain.map(|weight| weight.spec()).filter(|spec| spec.shape.len() == 2);
        let plain = plain.filter_map(|spec| spec.name.strip_suffix(".weight").map(str::to_owned));
        let mut ignored: Vec<String> = plain.chain([model.head().to_owned()]).collect();
        ignored.sort();
        ignored.dedup();
        let quantization = compressed_integers(integers, ignored);
        self.config.insert("quantization_config".to_owned(), quantization);
        count
    }
}
