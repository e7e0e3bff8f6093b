//! What transformers calls the tensors of a vision encoder.

use std::collections::BTreeSet;

use super::super::names::{find, parted};
use super::family;
use crate::gguf::GgufHeader;
use crate::header::HeaderEntry;

pub(super) const QWEN: &str = "qwen2 qwen2_5 qwen3";
/// Those that are called so in transformers.
const VISUAL: &str = "qwen2 qwen2_5 qwen3 glm";
const OLDER_QWEN: &str = "qwen2 qwen2_5";

/// Tensors around the blocks, by the families that have them: modules, and whole tensors.
const WHOLE: &[(&str, &str, &str)] = &[
    (VISUAL, "v.patch_embd", "visual.patch_embed.proj"),
    // Of the second frame.
    (VISUAL, "v.patch_embd.weight.1", "visual.patch_embed.proj_1.weight"),
    ("qwen3", "v.position_embd", "visual.pos_embed"),
    ("qwen3", "v.post_ln", "visual.merger.norm"),
    ("qwen3", "mm.0", "visual.merger.linear_fc1"),
    ("qwen3", "mm.2", "visual.merger.linear_fc2"),
    (OLDER_QWEN, "v.post_ln", "visual.merger.ln_q"),
    (OLDER_QWEN, "mm.0", "visual.merger.mlp.0"),
    (OLDER_QWEN, "mm.2", "visual.merger.mlp.2"),
    ("glm", "v.norm_embd", "visual.post_conv_layernorm"),
    ("glm", "v.position_embd", "visual.embeddings.position_embedding"),
    ("glm", "v.post_ln", "visual.post_layernorm"),
    ("glm", "mm.patch_merger", "visual.downsample"),
    ("glm", "mm.model.fc", "visual.merger.proj"),
    ("glm", "mm.post_norm", "visual.merger.post_projection_norm"),
    ("glm", "mm.gate", "visual.merger.gate_proj"),
    ("glm", "mm.up", "visual.merger.up_proj"),
    ("glm", "mm.down", "visual.merger.down_proj"),
    ("gemma3", "v.patch_embd", "vision_tower.embeddings.patch_embedding"),
    ("gemma3", "v.position_embd", "vision_tower.embeddings.position_embedding"),
    ("gemma3", "v.post_ln", "vision_tower.post_layernorm"),
    ("gemma3", "mm.soft_emb_norm", "multi_modal_projector.mm_soft_emb_norm"),
    ("gemma3", "mm.input_projection.weight", "multi_modal_projector.mm_input_projection_weight"),
    ("gemma4", "v.patch_embd", "vision_tower.patch_embedder.input_proj"),
    ("gemma4", "v.position_embd.weight", "vision_tower.patch_embedder.position_embedding_table"),
    ("gemma4", "v.std_bias", "vision_tower.std_bias"),
    ("gemma4", "v.std_scale", "vision_tower.std_scale"),
    ("gemma4", "mm.input_projection", "embed_vision.embedding_projection"),
    ("pixtral", "v.patch_embd", "vision_tower.patch_conv"),
    ("pixtral", "v.pre_ln", "vision_tower.ln_pre"),
    ("pixtral", "mm.input_norm", "multi_modal_projector.norm"),
    ("pixtral", "mm.patch_merger", "multi_modal_projector.patch_merger.merging_layer"),
    ("pixtral", "mm.1", "multi_modal_projector.linear_1"),
    ("pixtral", "mm.2", "multi_modal_projector.linear_2"),
];

/// What the name of a block is before its number.
const BLOCKS: &[(&str, &str, &str)] = &[
    (VISUAL, "v.blk", "visual.blocks"),
    ("gemma3 gemma4", "v.blk", "vision_tower.encoder.layers"),
    ("pixtral", "v.blk", "vision_tower.transformer.layers"),
];

/// Modules of a block.
const OF_BLOCK: &[(&str, &str, &str)] = &[
    (VISUAL, "ln1", "norm1"),
    (VISUAL, "attn_qkv", "attn.qkv"),
    (QWEN, "attn_q", "attn.qkv.q_proj"),
    (QWEN, "attn_k", "attn.qkv.k_proj"),
    (QWEN, "attn_v", "attn.qkv.v_proj"),
    (VISUAL, "attn_out", "attn.proj"),
    (VISUAL, "ln2", "norm2"),
    ("qwen2", UP, "mlp.fc1"),
    ("qwen2", DOWN, "mlp.fc2"),
    ("qwen2_5 glm", "ffn_gate", "mlp.gate_proj"),
    ("qwen2_5 glm", UP, "mlp.up_proj"),
    ("qwen2_5 glm", DOWN, "mlp.down_proj"),
    ("qwen3", UP, "mlp.linear_fc1"),
    ("qwen3", DOWN, "mlp.linear_fc2"),
    ("gemma3", "ln1", "layer_norm1"),
    ("gemma3", "attn_out", "self_attn.out_proj"),
    ("gemma3", "ln2", "layer_norm2"),
    ("gemma3", UP, "mlp.fc1"),
    ("gemma3", DOWN, "mlp.fc2"),
    ("gemma4", "ln1", "input_layernorm"),
    ("gemma4", "attn_q_norm", "self_attn.q_norm"),
    ("gemma4", "attn_k_norm", "self_attn.k_norm"),
    ("gemma4", "attn_out", "self_attn.o_proj"),
    ("gemma4", "attn_post_norm", "post_attention_layernorm"),
    ("gemma4", "ln2", "pre_feedforward_layernorm"),
    ("gemma4", "ffn_gate", "mlp.gate_proj"),
    ("gemma4", UP, "mlp.up_proj"),
    ("gemma4", DOWN, "mlp.down_proj"),
    ("gemma4", "ffn_post_norm", "post_feedforward_layernorm"),
    ("gemma3 gemma4", "attn_q", "self_attn.q_proj"),
    ("gemma3 gemma4", "attn_k", "self_attn.k_proj"),
    ("gemma3 gemma4", "attn_v", "self_attn.v_proj"),
    ("pixtral", "ln1", "attention_norm"),
    ("pixtral", "attn_q", "attention.q_proj"),
    ("pixtral", "attn_k", "attention.k_proj"),
    ("pixtral", "attn_v", "attention.v_proj"),
    ("pixtral", "attn_out", "attention.o_proj"),
    ("pixtral", "ln2", "ffn_norm"),
    ("pixtral", "ffn_gate", "feed_forward.gate_proj"),
    ("pixtral", UP, "feed_forward.up_proj"),
    ("pixtral", DOWN, "feed_forward.down_proj"),
];

const UP: &str = "ffn_up";
const DOWN: &str = "ffn_down";

/// The ends of the names of what clips the inputs and outputs of a module.
const BOUNDS: [&str; 4] = ["input_min", "input_max", "output_min", "output_max"];

/// The tensors under the names of transformers; those that have none there keep theirs.
pub(in crate::gguf) fn renamed(header: &GgufHeader, tensors: &[HeaderEntry]) -> Vec<HeaderEntry> {
    let Ok((family, _)) = family(header) else { return tensors.to_vec() };
    let swapped = swaps_layers(family, header, tensors);
    let stacked = deepstack(tensors);
    let named = |entry: &HeaderEntry| {
        let name = one(family, &entry.name, swapped, &stacked);
        HeaderEntry { name: name.unwrap_or_else(|| entry.name.clone()), ..entry.clone() }
    };
    tensors.iter().map(named).collect()
}

/// The blocks behind which features are taken for the first blocks of the language model.
pub(super) fn deepstack<'a>(tensors: impl IntoIterator<Item = &'a HeaderEntry>) -> BTreeSet<u64> {
    let number = |entry: &HeaderEntry| {
        entry.name.strip_prefix("v.deepstack.")?.split_once('.')?.0.parse().ok()
    };
    tensors.into_iter().filter_map(number).collect()
}

/// Whether what is called up makes the outputs of an MLP, and down its inner layer: older
/// converters wrote it so.
fn swaps_layers(family: &str, header: &GgufHeader, tensors: &[HeaderEntry]) -> bool {
    let could = matches!(family, "qwen2" | "qwen2_5" | "gemma3");
    let down = tensors.iter().find(|entry| entry.name == "v.blk.0.ffn_down.weight");
    let hidden = header.unsigned("clip.vision.embedding_length").ok().flatten();
    could
        && matches!(down.map(|entry| &entry.shape[..]), Some(&[rows, columns])
            if hidden == Some(columns as u64) && rows != columns)
}

fn one(family: &str, name: &str, swapped: bool, deepstack: &BTreeSet<u64>) -> Option<String> {
    if let Some(theirs) = find(family, name, WHOLE) {
        return Some(theirs.to_owned());
    }
    let (module, end) = match name.rsplit_once('.') {
        Some((module, end)) if BOUNDS.contains(&end) => (module, end),
        _ => parted(name),
    };
    if let Some(theirs) = find(family, module, WHOLE) {
        return Some(format!("{theirs}.{end}"));
    }
    if let Some((number, module)) =
        module.strip_prefix("v.deepstack.").and_then(|rest| rest.split_once('.'))
    {
        let number: u64 = number.parse().ok()?;
        let place = deepstack.iter().position(|block| *block == number)?;
        let module = if module == "norm" { "norm".to_owned() } else { format!("linear_{module}") };
        return Some(format!("visual.deepstack_merger_list.{place}.{module}.{end}"));
    }
    let (number, module) = module.strip_prefix("v.blk.")?.split_once('.')?;
    let number: u64 = number.parse().ok()?;
    let module = match module {
        UP if swapped => DOWN,
        DOWN if swapped => UP,
        other => other,
    };
    let (blocks, theirs) = (find(family, "v.blk", BLOCKS)?, find(family, module, OF_BLOCK)?);
    // What may be clipped is a module within.
    let may_clip = family == "gemma4" && theirs.ends_with("_proj") && end == "weight";
    let within = if may_clip { ".linear" } else { "" };
    Some(format!("{blocks}.{number}.{theirs}{within}.{end}"))
}
