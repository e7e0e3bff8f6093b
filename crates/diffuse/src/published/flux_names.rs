//! What the software that FLUX.1 and FLUX.2 were published for calls the modules of their
//! transformers: some of them are one matrix there.

use outsize_models::arch::SHIFT_FIRST;

use super::rows::Rows;

/// Layers that are the same in both, of a block of the first kind.
const DOUBLE: &[(&str, &str)] = &[
    ("norm1.linear", "img_mod.lin"),
    ("norm1_context.linear", "txt_mod.lin"),
    ("attn.to_out.0", "img_attn.proj"),
    ("attn.to_add_out", "txt_attn.proj"),
    ("ff.net.0.proj", "img_mlp.0"),
    ("ff.net.2", "img_mlp.2"),
    ("ff_context.net.0.proj", "txt_mlp.0"),
    ("ff_context.net.2", "txt_mlp.2"),
    ("ff.linear_in", "img_mlp.0"),
    ("ff.linear_out", "img_mlp.2"),
    ("ff_context.linear_in", "txt_mlp.0"),
    ("ff_context.linear_out", "txt_mlp.2"),
];

/// Queries, keys and values of a picture and of a text, which are one matrix each.
const JOINED: &[([&str; 3], &str)] = &[
    (["attn.to_q", "attn.to_k", "attn.to_v"], "img_attn.qkv"),
    (["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"], "txt_attn.qkv"),
];

/// … of a block of the second kind.
const SINGLE: &[(&str, &str)] = &[
    ("norm.linear", "modulation.lin"),
    ("proj_out", "linear2"),
    ("attn.to_qkv_mlp_proj", "linear1"),
    ("attn.to_out", "linear2"),
];

/// Norms of queries and keys of a block of the first kind, whose only field is called otherwise.
const NORMS: &[(&str, &str)] = &[
    ("attn.norm_q", "img_attn.norm.query_norm.scale"),
    ("attn.norm_k", "img_attn.norm.key_norm.scale"),
    ("attn.norm_added_q", "txt_attn.norm.query_norm.scale"),
    ("attn.norm_added_k", "txt_attn.norm.key_norm.scale"),
];

/// … of a block of the second kind.
const SINGLE_NORMS: &[(&str, &str)] =
    &[("attn.norm_q", "norm.query_norm.scale"), ("attn.norm_k", "norm.key_norm.scale")];

/// What goes into attention and beside it in a block of the second kind, one matrix.
const BESIDE: [&str; 4] = ["attn.to_q", "attn.to_k", "attn.to_v", "proj_mlp"];

/// What `proj_mlp` is wider by.
const EXPANSION: usize = 4;

/// … of the whole.
const WHOLE: &[(&str, &str)] = &[
    ("x_embedder", "img_in"),
    ("context_embedder", "txt_in"),
    ("time_text_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_text_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_text_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_text_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("time_text_embed.text_embedder.linear_1", "vector_in.in_layer"),
    ("time_text_embed.text_embedder.linear_2", "vector_in.out_layer"),
    ("time_guidance_embed.timestep_embedder.linear_1", "time_in.in_layer"),
    ("time_guidance_embed.timestep_embedder.linear_2", "time_in.out_layer"),
    ("time_guidance_embed.guidance_embedder.linear_1", "guidance_in.in_layer"),
    ("time_guidance_embed.guidance_embedder.linear_2", "guidance_in.out_layer"),
    ("double_stream_modulation_img.linear", "double_stream_modulation_img.lin"),
    ("double_stream_modulation_txt.linear", "double_stream_modulation_txt.lin"),
    ("single_stream_modulation.linear", "single_stream_modulation.lin"),
    ("proj_out", "final_layer.linear"),
];

/// The projection of the last norm, whose shifts come before its scales there.
pub(crate) const LAST_NORM: &str = "norm_out.linear";

/// The published name of the module of a weight `[out, in]` that diffusers calls `module`, and its
/// rows there.
pub(crate) fn published(module: &str, shape: &[usize]) -> Option<(String, Rows)> {
    let (&out, &inputs) = (shape.first()?, shape.get(1)?);
    if module == LAST_NORM {
        return Some((SHIFT_FIRST.to_owned(), Rows::all(out).halves_turned()));
    }
    if let Some(name) = found(WHOLE, module) {
        return Some((name, Rows::all(out)));
    }
    let (blocks, number, layer) = of_block(module)?;
    let (same, joined) = match blocks {
        "transformer_blocks" => {
            let joined = JOINED.iter().find_map(|(layers, name)| {
                let index = layers.iter().position(|one| *one == layer)?;
                Some(((*name).to_owned(), Rows::part(index, layers.len(), out)))
            });
            (found(DOUBLE, layer), joined)
        }
        _ => {
            let beside = BESIDE.iter().position(|one| *one == layer).map(|index| {
                let start = index * inputs;
                let rows = Rows::some(start..start + out, (BESIDE.len() - 1 + EXPANSION) * inputs);
                ("linear1".to_owned(), rows)
            });
            (found(SINGLE, layer), beside)
        }
    };
    let (name, rows) = joined.or(same.map(|name| (name, Rows::all(out))))?;
    Some((published_block(blocks, number, &name)?, rows))
}

/// The published name of the only parameter of a norm that diffusers calls `module`.
pub(super) fn norm(module: &str) -> Option<String> {
    let (blocks, number, layer) = of_block(module)?;
    let table = if blocks == "transformer_blocks" { NORMS } else { SINGLE_NORMS };
    published_block(blocks, number, &found(table, layer)?)
}

fn found(table: &[(&str, &str)], layer: &str) -> Option<String> {
    table.iter().find(|(name, _)| *name == layer).map(|(_, name)| (*name).to_owned())
}

/// The kind of a block, its number, and the layer in it.
fn of_block(module: &str) -> Option<(&str, &str, &str)> {
    let (blocks, rest) = module.split_once('.')?;
    let (number, layer) = rest.split_once('.')?;
    Some((blocks, number, layer))
}

fn published_block(blocks: &str, number: &str, name: &str) -> Option<String> {
    let blocks = match blocks {
        "transformer_blocks" => "double_blocks",
        "single_transformer_blocks" => "single_blocks",
        _ => return None,
    };
    Some(format!("{blocks}.{number}.{name}"))
}
