//! AWQ and GPTQ: integers of 4 or 8 bits, the weight's inputs from top to bottom.

use outsize_checkpoint::{IntegerWidth, StorageFormat, ZeroPoints};
use serde_json::Value;

use super::super::fields::Fields;
use super::super::known::{self, Effect, KnownField};
use super::MAX_BLOCK;
use crate::Error;

/// How AWQ stores weights.
pub(super) fn awq(fields: &Fields<'_>) -> Result<StorageFormat, Error> {
    known::check(fields, &[AWQ, BOTH])?;
    Ok(StorageFormat::awq(group(fields)?))
}

/// How GPTQ stores weights.
pub(super) fn gptq(fields: &Fields<'_>) -> Result<StorageFormat, Error> {
    known::check(fields, &[GPTQ, BOTH])?;
    if let Some(dynamic) = fields.object("dynamic")?
        && dynamic.iter().any(|(pattern, _)| !pattern.starts_with("-:"))
    {
        let expected =
            "only patterns of layers that are left alone, which begin with \"-:\", are supported";
        return Err(fields.refuse("dynamic", expected.to_owned()));
    }
    let width = match fields.size("bits", MAX_BLOCK)? {
        8 => IntegerWidth::U8,
        _ => IntegerWidth::U4,
    };
    let zeros = match fields.text("checkpoint_format")? {
        Some("gptq_v2") => ZeroPoints::Stored,
        _ => ZeroPoints::StoredLessOne,
    };
    Ok(StorageFormat::gptq(width, group(fields)?, zeros))
}

/// Columns that share a scale; zero for all of a row.
fn group(fields: &Fields<'_>) -> Result<usize, Error> {
    match fields.get("group_size").and_then(Value::as_i64) {
        Some(-1) => Ok(0),
        _ => fields.size("group_size", MAX_BLOCK),
    }
}

/// Of `quantization_config` of both.
const BOTH: &[KnownField] = &[
    ("adapter", Effect::UNSET),
    ("group_size", Effect::Read),
    ("modules_to_not_convert", Effect::Read),
    ("pack_dtype", Effect::Only(&["\"int32\""])),
    ("quant_method", Effect::Read),
    ("rotation", Effect::UNSET),
    // Which layers were quantised, their tensors say.
    ("lm_head", Effect::Read),
    // How the weights were made, or are computed with elsewhere.
    ("backend", Effect::Only(&["\"auto\"", "\"autoawq\"", "\"auto_trainable\""])),
    ("batch_size", Effect::Harmless),
    ("damp_auto_increment", Effect::Harmless),
    ("damp_percent", Effect::Harmless),
    ("dataset", Effect::Harmless),
    ("disable_exllama", Effect::Harmless),
    ("do_fuse", Effect::Harmless),
    ("exllama_config", Effect::Harmless),
    ("fuse_max_seq_len", Effect::Harmless),
    ("max_input_length", Effect::Harmless),
    ("meta", Effect::Harmless),
    ("model_file_base_name", Effect::Harmless),
    ("model_name_or_path", Effect::Harmless),
    ("model_seqlen", Effect::Harmless),
    ("modules_to_fuse", Effect::Harmless),
    ("pad_token_id", Effect::Harmless),
    ("tokenizer", Effect::Harmless),
    ("use_cuda_fp16", Effect::Harmless),
    ("use_exllama", Effect::Harmless),
];

const AWQ: &[KnownField] = &[
    ("bits", Effect::Only(&["4"])),
    ("checkpoint_format", Effect::Only(&["\"gemm\""])),
    ("format", Effect::Only(&["\"gemm\""])),
    ("version", Effect::Only(&["\"gemm\"", "\"GEMM\""])),
    ("zero_point", Effect::ON),
];

const GPTQ: &[KnownField] = &[
    ("bits", Effect::Only(&["4", "8"])),
    ("checkpoint_format", Effect::Only(&["\"gptq\"", "\"gptq_v2\""])),
    ("dynamic", Effect::Read),
    ("format", Effect::Only(&["\"gptq\"", "\"gptq_v2\""])),
    ("is_marlin_format", Effect::OFF),
    // In which order weights were quantised; whether that changed their groups, a tensor says
    // (`g_idx`).
    ("act_group_aware", Effect::Harmless),
    ("desc_act", Effect::Harmless),
    ("static_groups", Effect::Harmless),
    // Zero points are stored in any case.
    ("sym", Effect::Harmless),
    // Which layers were quantised, their tensors say.
    ("block_name_to_quantize", Effect::Harmless),
    ("module_name_preceding_first_block", Effect::Harmless),
    ("modules_in_block_to_quantize", Effect::Harmless),
    ("cache_block_outputs", Effect::Harmless),
    ("gptaq", Effect::Harmless),
    ("hyb_act", Effect::Harmless),
    ("mse", Effect::Harmless),
    ("true_sequential", Effect::Harmless),
];
