//! compressed-tensors: fp8, and integers of 4 or 8 bits.

use outsize_checkpoint::{IntegerWidth, StorageFormat};
use serde_json::{Value, json};

use super::super::fields::Fields;
use super::super::known::{self, Effect, KnownField};
use super::MAX_BLOCK;
use crate::Error;

/// How the one group of weights is stored.
pub(super) fn read(fields: &Fields<'_>) -> Result<StorageFormat, Error> {
    known::check(fields, &[COMPRESSED])?;
    let name = "config_groups";
    let groups = fields.required_object(name)?;
    let mut names = groups.iter().map(|(name, _)| name);
    let (Some(group), None) = (names.next(), names.next()) else {
        return Err(fields.refuse(name, "only one group of weights is supported".to_owned()));
    };
    let group = groups.object(group)?.ok_or_else(|| fields.missing(name))?;
    known::check(&group, &[GROUP])?;
    if let Some(activations) = group.object("input_activations")? {
        known::check(&activations, &[ACTIVATIONS])?;
    }
    let weights = group.object("weights")?.ok_or_else(|| group.missing("weights"))?;
    let format = fields.text("format")?.unwrap_or(FLOAT);
    if group.text("format")?.is_some_and(|other| other != format) {
        return Err(group.refuse("format", format!("only that of all, {format:?}, is supported")));
    }
    if format == FLOAT {
        known::check(&weights, &[FLOATS, WEIGHTS])?;
        return Ok(StorageFormat::compressed_fp8(weights.text("strategy")? == Some("channel")));
    }
    known::check(&weights, &[INTEGERS, WEIGHTS])?;
    let width = match (weights.size("num_bits", MAX_BLOCK)?, format) {
        (8, "int-quantized") => IntegerWidth::I8,
        (_, "int-quantized") => {
            return Err(weights.refuse("num_bits", "only 8 is supported in this format".to_owned()));
        }
        (4, _) => IntegerWidth::U4,
        _ => IntegerWidth::U8,
    };
    let columns = match weights.text("strategy")? {
        Some("group") => weights.size("group_size", MAX_BLOCK)?,
        _ => 0,
    };
    let symmetric = weights.flag_or("symmetric", true)?;
    Ok(StorageFormat::packed_integers(width, columns, !symmetric))
}

/// Integers that matrices of linear layers become, as compressed-tensors packs them, each times the
/// scale of its group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct IntegerGroups {
    /// Of 4 bits, or of 8.
    pub width: IntegerWidth,
    /// Neighbours in a row that share a scale; all of a row if that is zero.
    pub group: usize,
}

/// How compressed-tensors says that the linear layers of a model are such integers, but for those
/// of some names.
pub fn compressed_integers(integers: IntegerGroups, ignored: Vec<String>) -> Value {
    let IntegerGroups { width, group } = integers;
    let (strategy, group) = match group {
        0 => ("channel", None),
        group => ("group", Some(group)),
    };
    let (bits, format) = match width {
        IntegerWidth::U4 => (4, "pack-quantized"),
        IntegerWidth::U8 => (8, "pack-quantized"),
        IntegerWidth::I8 => (8, "int-quantized"),
    };
    let weights = json!({
        "actorder": null, "block_structure": null, "dynamic": false, "group_size": group, "num_bits": bits,
        "observer": "minmax", "observer_kwargs": {}, "strategy": strategy, "symmetric": true, "type": "int",
    });
    let all = json!({
        "input_activations": null, "output_activations": null, "targets": ["Linear"], "weights": weights,
    });
    json!({
        "config_groups": {"group_0": all}, "format": format, "ignore": ignored,
        "quant_method": "compressed-tensors", "quantization_status": "compressed",
    })
}

const FLOAT: &str = "float-quantized";

/// Of `quantization_config`.
const COMPRESSED: &[KnownField] = &[
    ("quant_method", Effect::Read),
    ("config_groups", Effect::Read),
    ("format", Effect::Only(&["\"float-quantized\"", "\"pack-quantized\"", "\"int-quantized\""])),
    ("global_compression_ratio", Effect::Harmless),
    ("ignore", Effect::Read),
    ("kv_cache_scheme", Effect::UNSET),
    ("quantization_status", Effect::Only(&["\"compressed\""])),
    ("sparsity_config", Effect::Only(&["{}"])),
    ("transform_config", Effect::Only(&["{}"])),
    ("version", Effect::Harmless),
];

/// Of a group in it.
const GROUP: &[KnownField] = &[
    ("format", Effect::Read),
    ("input_activations", Effect::Read),
    ("output_activations", Effect::UNSET),
    ("targets", Effect::Only(&["[\"Linear\"]"])),
    ("weights", Effect::Read),
];

/// Of a group's weights.
const WEIGHTS: &[KnownField] = &[
    ("block_structure", Effect::UNSET),
    ("dynamic", Effect::OFF),
    ("observer", Effect::Harmless),
    ("observer_kwargs", Effect::Harmless),
    ("scale_dtype", Effect::Harmless),
    ("zp_dtype", Effect::Harmless),
];

/// Of weights in fp8.
const FLOATS: &[KnownField] = &[
    ("actorder", Effect::UNSET),
    ("group_size", Effect::UNSET),
    ("num_bits", Effect::Only(&["8"])),
    ("strategy", Effect::Only(&["\"channel\"", "\"tensor\""])),
    ("symmetric", Effect::ON),
    ("type", Effect::Only(&["\"float\""])),
];

/// Of integers.
const INTEGERS: &[KnownField] = &[
    // In which order weights were quantised; whether that changed their groups, a tensor says
    // (`weight_g_idx`).
    ("actorder", Effect::Harmless),
    ("group_size", Effect::Read),
    ("num_bits", Effect::Only(&["4", "8"])),
    ("strategy", Effect::Only(&["\"channel\"", "\"group\""])),
    ("symmetric", Effect::Read),
    ("type", Effect::Only(&["\"int\""])),
];

/// Of a group's activations, which are not quantised here: with scales made in each pass, so that
/// no tensor holds them.
const ACTIVATIONS: &[KnownField] = &[
    ("actorder", Effect::Harmless),
    ("block_structure", Effect::Harmless),
    ("dynamic", Effect::Harmless),
    ("group_size", Effect::Harmless),
    ("num_bits", Effect::Harmless),
    ("observer", Effect::Harmless),
    ("observer_kwargs", Effect::Harmless),
    ("scale_dtype", Effect::Harmless),
    ("strategy", Effect::Harmless),
    ("symmetric", Effect::Harmless),
    ("type", Effect::Harmless),
    ("zp_dtype", Effect::Harmless),
];
