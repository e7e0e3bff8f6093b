//! What the names of an adapter's tensors say, as several trainers write them.

use outsize_lora::{LoraMatrix, lora_matrix};

/// What a tensor is of a module's adapter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Role {
    /// `[rank, in]`, or of a convolution `[rank, in, ..]`.
    Down,
    /// `[out, rank]`, perhaps with sides of one behind it.
    Up,
    /// A number: what is added is multiplied by it, divided by the rank.
    Alpha,
}

use Role::{Alpha, Down, Up};

/// The ends of names, of kohya's scripts, of PEFT, and of diffusers before and since.
const ENDS: &[(&str, Role)] = &[
    (".lora_down.weight", Down),
    (".lora_up.weight", Up),
    (".lora_linear_layer.down.weight", Down),
    (".lora_linear_layer.up.weight", Up),
    (".lora.down.weight", Down),
    (".lora.up.weight", Up),
    ("_lora.down.weight", Down),
    ("_lora.up.weight", Up),
    (".alpha", Alpha),
];

/// Parts of names of what is no such adapter, and what it is.
const OTHERS: &[(&[&str], &str)] = &[
    (&["dora_scale", "lora_magnitude_vector"], "DoRA"),
    (&["hada_", "lokr_", "oft_", "boft_"], "LoHa, LoKr or OFT"),
    (&["lora_mid"], "LoRA of a Tucker decomposition"),
    (&[".diff", "lora_B.bias"], "a whole difference of weights or biases"),
    (&["bundle_emb", "emb_params"], "a textual inversion"),
];

/// The module that a tensor is for, as the file calls it, and what it is of its adapter; `None` if
/// it is of none.
pub(super) fn parsed(name: &str) -> Option<(String, Role)> {
    let name = name.replacen("base_model.model.", "", 1);
    let ended = ENDS.iter().find_map(|(end, role)| Some((name.strip_suffix(end)?, *role)));
    let (module, role) = ended.or_else(|| of_peft(&name))?;
    // Former processors of attention: `attn1.processor.to_out_lora` is what adapts
    // `attn1.to_out.0`.
    let mut module = module.replace(".processor.", ".");
    if role == Alpha {
        module = module.strip_suffix("_lora").map(str::to_owned).unwrap_or(module);
    }
    if module.ends_with(".to_out") {
        module += ".0";
    }
    Some((module, role))
}

/// As PEFT has it.
fn of_peft(name: &str) -> Option<(&str, Role)> {
    let (module, matrix) = lora_matrix(name)?;
    Some((module, if matrix == LoraMatrix::Down { Down } else { Up }))
}

/// What a tensor is that is of no adapter of this kind.
pub(super) fn other_kind(name: &str) -> Option<&'static str> {
    let other = OTHERS.iter().find(|(parts, _)| parts.iter().any(|part| name.contains(part)));
    other.map(|(_, kind)| *kind)
}
