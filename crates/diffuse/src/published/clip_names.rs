//! What OpenCLIP calls the parameters of its text encoder.

/// The name of the tensor that holds the parameter which transformers calls `parameter`, and which
/// third of it that is, if it holds three.
pub(super) fn published(parameter: &str) -> Option<(String, Option<usize>)> {
    let parameter = parameter.strip_prefix("text_model.").unwrap_or(parameter);
    let whole = match parameter {
        "embeddings.token_embedding.weight" => "token_embedding.weight",
        "embeddings.position_embedding.weight" => "positional_embedding",
        "final_layer_norm.weight" => "ln_final.weight",
        "final_layer_norm.bias" => "ln_final.bias",
        // Stored the other way round.
        "text_projection.weight" => "text_projection",
        _ => return of_layer(parameter),
    };
    Some((whole.to_owned(), None))
}

fn of_layer(parameter: &str) -> Option<(String, Option<usize>)> {
    let (number, rest) = parameter.strip_prefix("encoder.layers.")?.split_once('.')?;
    let (module, field) = rest.rsplit_once('.')?;
    let joined = ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
    let third = joined.iter().position(|one| *one == module);
    let name = match (module, third) {
        (_, Some(_)) => format!("attn.in_proj_{field}"),
        ("self_attn.out_proj", _) => format!("attn.out_proj.{field}"),
        ("layer_norm1", _) => format!("ln_1.{field}"),
        ("layer_norm2", _) => format!("ln_2.{field}"),
        ("mlp.fc1", _) => format!("mlp.c_fc.{field}"),
        ("mlp.fc2", _) => format!("mlp.c_proj.{field}"),
        _ => return None,
    };
    Some((format!("transformer.resblocks.{number}.{name}"), third))
}
