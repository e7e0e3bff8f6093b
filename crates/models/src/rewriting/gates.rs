//! Experts of Granite, Llama 4, gpt-oss and Gemma 4 in GGUF files, which are stacks in
//! transformers, with gates as one weight with what they let through.

use std::collections::BTreeMap;

use outsize_checkpoint::{Dtype, StoredWeight};
use outsize_core::{Error, Rewrite};

use super::type_of_all;

/// Experts and MLPs on their way to weights of gate and up, by the names of these: of each expert
/// by its number the parts in order. An MLP is one expert.
#[derive(Default)]
pub(super) struct Gates(BTreeMap<String, BTreeMap<usize, BTreeMap<bool, StoredWeight>>>);

impl Gates {
    /// Takes a weight if it is a part of one.
    pub fn add(&mut self, weight: &StoredWeight) -> bool {
        let Some((stack, number, is_up)) = place(&weight.data().name) else {
            return false;
        };
        let experts = self.0.entry(stack).or_default();
        experts.entry(number).or_default().insert(is_up, weight.clone());
        true
    }

    /// What becomes of them.
    pub fn rewritten(self, dtype: Option<Dtype>) -> Result<Vec<Rewrite>, Error> {
        let joined = |(name, experts): (String, BTreeMap<usize, BTreeMap<bool, StoredWeight>>)| {
            let count = experts.len();
            let is_whole = experts.keys().copied().eq(0..count)
                && experts.values().all(|parts| parts.len() == experts[&0].len());
            if !is_whole {
                let reason = "its parts are not all there".to_owned();
                return Err(Error::Rewrite { tensor: name, reason });
            }
            let experts = experts.into_values().map(|parts| parts.into_values().collect());
            let experts: Vec<Vec<_>> = experts.collect();
            let to = type_of_all(experts.iter().flatten(), dtype);
            let in_turns = name.contains(GPT_OSS);
            if in_turns || name.contains(LLAMA4) {
                return Rewrite::stacked(name, experts, in_turns, to);
            }
            let is_stack = name.contains(".block_sparse_moe.") || name.contains(GEMMA4);
            let parts = experts.into_iter().flatten().map(|part| (part, None)).collect();
            let rewrite = Rewrite::rows(name, parts, to)?;
            if is_stack { rewrite.in_stack(count) } else { Ok(rewrite) }
        };
        self.0.into_iter().map(joined).collect()
    }
}

/// What the names of experts of Llama 4 have, whose weights are `[in, out]` in transformers.
const LLAMA4: &str = ".feed_forward.experts.";

/// The same of gpt-oss, whose outputs of gate and up are in turns; biases have stacks of their own.
const GPT_OSS: &str = ".mlp.experts.";

/// The same of Gemma 4, right behind the number of a layer, whose weights are `[out, in]`.
const GEMMA4: &str = ".experts.";

/// The name of the weight that a tensor is a part of, its expert, and whether it is what goes
/// through the gate.
fn place(name: &str) -> Option<(String, usize, bool)> {
    let (path, end) = name.rsplit_once('.')?;
    let (module, layer) = path.rsplit_once('.')?;
    let is_up = layer == "up_proj";
    let of_both = if layer == "down_proj" { layer } else { "gate_up_proj" };
    if let Some((block, number)) = module.split_once(GPT_OSS) {
        let bias = if end == "bias" { "_bias" } else { "" };
        return Some((format!("{block}{GPT_OSS}{of_both}{bias}"), number.parse().ok()?, is_up));
    }
    if end != "weight" {
        return None;
    }
    let theirs = match layer {
        "gate_proj" | "up_proj" => "input_linear",
        "down_proj" => "output_linear",
        // Of Gemma 4, as it is.
        "gate_up_proj" => layer,
        _ => return None,
    };
    if let Some((block, number)) = module.split_once(GEMMA4)
        && block.rsplit_once('.').is_some_and(|(_, layer)| layer.parse::<usize>().is_ok())
    {
        return Some((format!("{block}{GEMMA4}{layer}"), number.parse().ok()?, false));
    }
    if module.ends_with(".shared_mlp") {
        return Some((format!("{module}.{theirs}.weight"), 0, is_up));
    }
    if let Some((block, number)) = module.split_once(LLAMA4) {
        return Some((format!("{block}{LLAMA4}{of_both}"), number.parse().ok()?, is_up));
    }
    let (block, number) = module.split_once(".block_sparse_moe.experts.")?;
    let stack = format!("{block}.block_sparse_moe.{theirs}.weight");
    Some((stack, number.parse().ok()?, is_up))
}
