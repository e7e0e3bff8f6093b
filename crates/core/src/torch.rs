//! What PyTorch's own modules call the parameters of Burn's.

use crate::{Location, Parameter};

/// Burn's classes whose scale and shift are called `gamma` and `beta`, and `weight` and `bias` by
/// PyTorch.
const NORMS: [&str; 5] = ["BatchNorm", "GroupNorm", "InstanceNorm", "LayerNorm", "RmsNorm"];

/// The last component of the parameter's path as PyTorch writes it.
pub(crate) fn field(parameter: &Parameter) -> &str {
    match (parameter.class(), parameter.field()) {
        (class, "gamma") if NORMS.contains(&class) => "weight",
        (class, "beta") if NORMS.contains(&class) => "bias",
        ("PRelu", "alpha") => "weight",
        (_, field) => field,
    }
}

/// There are two answers, and which one is right cannot be seen in the module.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NormOrder;

/// Where `torch.nn`'s counterpart of the module that holds the parameter keeps it:
/// `MultiheadAttention`, `LSTM`, `GRU`, `RNN` and the layers of a transformer name and pack their
/// parameters in their own way. The path with [`field`] for everything else.
pub(crate) fn location(
    parameter: &Parameter,
    norm_first: Option<bool>,
) -> Result<Location, NormOrder> {
    let mut name: Vec<String> = Vec::new();
    // What the gates and projections around a `Linear` make of it.
    let (mut packed, mut suffix) = (None, "");
    let fields: Vec<&str> = parameter.path.split('.').collect();
    for (depth, component) in fields.iter().enumerate() {
        let last = depth + 1 == fields.len();
        let component = if last { field(parameter) } else { component };
        match (parameter.class_at(depth), component) {
            ("TransformerEncoderLayer", "mha") => name.push("self_attn".into()),
            ("TransformerDecoderLayer", "cross_attn") => name.push("multihead_attn".into()),
            ("TransformerEncoderLayer" | "TransformerDecoderLayer", "pwff") => {}
            ("PositionWiseFeedForward", "linear_inner") => name.push("linear1".into()),
            ("PositionWiseFeedForward", "linear_outer") => name.push("linear2".into()),
            (class @ ("TransformerEncoderLayer" | "TransformerDecoderLayer"), norm)
                if norm.starts_with("norm_") =>
            {
                let decoder = class == "TransformerDecoderLayer";
                name.push(transformer_norm(norm, decoder, norm_first.ok_or(NormOrder)?).into());
            }
            ("MultiHeadAttention", "query") => packed = Some((Packed::Projection, 0, 3)),
            ("MultiHeadAttention", "key") => packed = Some((Packed::Projection, 1, 3)),
            ("MultiHeadAttention", "value") => packed = Some((Packed::Projection, 2, 3)),
            ("MultiHeadAttention", "output") => name.push("out_proj".into()),
            ("Lstm", "input_gate") => packed = Some((Packed::Gate, 0, 4)),
            ("Lstm", "forget_gate") => packed = Some((Packed::Gate, 1, 4)),
            ("Lstm", "cell_gate") => packed = Some((Packed::Gate, 2, 4)),
            ("Lstm", "output_gate") => packed = Some((Packed::Gate, 3, 4)),
            ("Gru", "reset_gate") => packed = Some((Packed::Gate, 0, 3)),
            ("Gru", "update_gate") => packed = Some((Packed::Gate, 1, 3)),
            ("Gru", "new_gate") => packed = Some((Packed::Gate, 2, 3)),
            ("Rnn", "gate") => packed = Some((Packed::Gate, 0, 1)),
            ("BiLstm" | "BiGru" | "BiRnn", "forward") => {}
            ("BiLstm" | "BiGru" | "BiRnn", "reverse") => suffix = "_reverse",
            ("GateController", "input_transform") => {
                packed = packed.map(|(_, part, parts)| (Packed::Input, part, parts));
            }
            ("GateController", "hidden_transform") => {
                packed = packed.map(|(_, part, parts)| (Packed::Hidden, part, parts));
            }
            ("Linear", field @ ("weight" | "bias")) if last => {
                name.push(match packed {
                    Some((Packed::Projection, ..)) => format!("in_proj_{field}"),
                    Some((Packed::Input, ..)) => format!("{field}_ih_l0{suffix}"),
                    Some((Packed::Hidden, ..)) => format!("{field}_hh_l0{suffix}"),
                    Some((Packed::Gate, ..)) | None => field.to_string(),
                });
            }
            (_, component) => name.push(component.to_string()),
        }
    }
    let (_, part, parts) = packed.unwrap_or((Packed::Projection, 0, 1));
    Ok(Location { tensor: name.join("."), part, parts, count: 1 })
}

/// What a packed tensor consists of.
#[derive(Debug, Clone, Copy)]
enum Packed {
    Projection,
    Gate,
    Input,
    Hidden,
}

/// PyTorch numbers a layer's norms in the order of its sublayers. Burn does so only if they come
/// after them: with `norm_first` the first sublayer's norm is the one with the highest number.
fn transformer_norm(norm: &str, decoder: bool, norm_first: bool) -> &'static str {
    match (norm, decoder, norm_first) {
        ("norm_1", _, false) | ("norm_2", false, true) | ("norm_3", true, true) => "norm1",
        ("norm_2", _, false) | ("norm_1", _, true) => "norm2",
        _ => "norm3",
    }
}
