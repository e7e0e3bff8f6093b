//! What the software that FLUX.1 was published for calls the modules of its transformer: some of them are one matrix there.

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
];

/// Queries, keys and values of a picture and of a text, which are one matrix each.
const JOINED: &[([&str; 3], &str)] = &[
    (["attn.to_q", "attn.to_k", "attn.to_v"], "img_attn.qkv"),
    (["attn.add_q_proj", "attn.add_k_proj", "attn.add_v_proj"], "txt_attn.qkv"),
];

/// … of a block of the second kind.
const SINGLE: &[(&str, &str)] = &[("norm.linear", "modulation.lin"), ("proj_out", "linear2")];

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
    ("proj_out", "final_layer.linear"),
];

/// The published name of the module of a weight `[out, in]` that diffusers calls `module`, and its rows there.
pub(super) fn published(module: &str, shape: &[usize]) -> Option<(String, Rows)> {
    let (&out, &inputs) = (shape.first()?, shape.get(1)?);
    let same = |table: &[(&str, &str)], layer: &str| {
        table.iter().find(|(name, _)| *name == layer).map(|(_, name)| (*name).to_owned())
    };
    let some = |index: usize, of: usize| {
        let start = index * inputs;
        Rows::some(start..start + out, of)
    };
    if module == "norm_out.linear" {
        // Shifts come before scales there.
        let ranges = [out / 2..out, 0..out / 2];
        return Some(("final_layer.adaLN_modulation.1".to_owned(), Rows { ranges, of: out }));
    }
    if let Some(name) = same(WHOLE, module) {
        return Some((name, Rows::all(out)));
    }
    let (blocks, rest) = module.split_once('.')?;
    let (number, layer) = rest.split_once('.')?;
    match blocks {
        "transformer_blocks" => {
            let joined = JOINED.iter().find_map(|(layers, name)| {
                let index = layers.iter().position(|one| *one == layer)?;
                Some(((*name).to_owned(), some(index, 3 * inputs)))
            });
            let same = same(DOUBLE, layer).map(|name| (name, Rows::all(out)));
            let (name, rows) = joined.or(same)?;
            Some((format!("double_blocks.{number}.{name}"), rows))
        }
        "single_transformer_blocks" => {
            let beside = BESIDE.iter().position(|one| *one == layer);
            let beside = beside.map(|index| {
                ("linear1".to_owned(), some(index, (BESIDE.len() - 1 + EXPANSION) * inputs))
            });
            let same = same(SINGLE, layer).map(|name| (name, Rows::all(out)));
            let (name, rows) = beside.or(same)?;
            Some((format!("single_blocks.{number}.{name}"), rows))
        }
        _ => None,
    }
}
