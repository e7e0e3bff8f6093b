//! A checkpoint as it is written anew: in floats of one's choice, and as transformers lays it out.

use std::collections::HashSet;

use outsize_checkpoint::{Checkpoint, Dtype, StoredWeight, TensorInfo};
use outsize_core::{Change, Rewrite};
use serde_json::{Map, Value};

use crate::Error;
use crate::config::{Fields, Quantization};

/// What a checkpoint becomes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rewriting {
    /// Its `config.json`.
    pub config: Map<String, Value>,
    /// Its weights, in the order in which they lie now.
    pub weights: Vec<Rewrite>,
}

/// Decides what becomes of each tensor of a checkpoint with this `config.json` (empty if it has none).
///
/// Without a `dtype` tensors stay as they are, but for GGUF's blocks, which safetensors files cannot hold: they become
/// `F32`, exactly. With one, all floats become that, and quantised weights are dequantised. What a GGUF file has otherwise
/// than transformers (the order of rows of queries and keys, one added to the weights of norms) becomes as there.
///
/// # Errors
/// With a `dtype`: weights quantised in a way that is not built in, or tensors that do not belong together.
pub fn rewriting(
    checkpoint: &Checkpoint,
    mut config: Map<String, Value>,
    dtype: Option<Dtype>,
) -> Result<Rewriting, Error> {
    let is_set =
        |config: &Map<String, Value>, field, to| config.get(field) == Some(&Value::from(to));
    let quantization = match dtype {
        Some(_) => Quantization::read(&Fields::new(&config))?,
        None => None,
    };
    let layout = Layout {
        head: is_set(&config, "rope_interleaved", true).then(|| head(&config)),
        is_one_added: is_set(&config, "rms_norm_add_unit_offset", false),
    };
    let format = quantization.as_ref().and_then(|quantization| quantization.format);
    let stored = |tensor: &TensorInfo| {
        StoredWeight::of_data(tensor, format, |name| checkpoint.get(name).cloned())
    };
    let weights = checkpoint.tensors().iter().map(stored).collect::<Result<Vec<_>, _>>();
    let weights = weights.map_err(|fault| Error::Core(Box::new(fault.into())))?;
    let scales: HashSet<_> =
        weights.iter().filter_map(StoredWeight::scales).map(|scales| scales.name.clone()).collect();
    let weights = (weights.into_iter())
        .filter(|weight| !scales.contains(&weight.data().name))
        .map(|weight| layout.rewrite(weight, dtype).map_err(|error| Error::Core(error.into())))
        .collect::<Result<Vec<_>, _>>()?;

    config.remove("rope_interleaved");
    config.remove("rms_norm_add_unit_offset");
    let is_gguf = |config: &Value| config["quant_method"] == "gguf";
    if dtype.is_some() || config.get("quantization_config").is_some_and(is_gguf) {
        config.remove("quantization_config");
    }
    let names = ["dtype", "torch_dtype"].map(|name| config.contains_key(name).then_some(name));
    let name = names.into_iter().flatten().next();
    if (dtype.is_some() || name.is_none())
        && let Some(widest) = widest(&weights)
    {
        config.insert(name.unwrap_or("torch_dtype").to_owned(), widest.into());
    }
    Ok(Rewriting { config, weights })
}

/// The rows of a head of attention.
fn head(config: &Map<String, Value>) -> usize {
    let field = |name: &str| config.get(name).and_then(Value::as_u64);
    let share = || Some(field("hidden_size")? / field("num_attention_heads")?.max(1));
    // A number that no tensor has is refused for each of them.
    field("head_dim").or_else(share).and_then(|rows| rows.try_into().ok()).unwrap_or(0)
}

/// What a checkpoint has otherwise than transformers.
struct Layout {
    /// Rows of a head whose rows that are rotated together lie beside each other.
    head: Option<usize>,
    /// Whether the weights of norms have the one that transformers adds.
    is_one_added: bool,
}

impl Layout {
    fn rewrite(
        &self,
        weight: StoredWeight,
        dtype: Option<Dtype>,
    ) -> Result<Rewrite, outsize_core::Error> {
        let data = weight.data();
        let module = data.name.rsplit_once('.').map_or("", |(module, _)| module);
        let is_rotated = module.ends_with("_attn.q_proj") || module.ends_with("_attn.k_proj");
        let change = match self.head {
            Some(head) if is_rotated => Some(Change::Halves(head)),
            _ if self.is_one_added && module.ends_with("norm") => Some(Change::MinusOne),
            _ => None,
        };
        let is_float = matches!(data.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let is_small = matches!(data.dtype, Dtype::F8E4M3 | Dtype::F8E5M2);
        let to = match dtype {
            None if weight.format().is_plain() => data.dtype,
            None => Dtype::F32,
            Some(to) if is_float || is_small || !weight.format().is_plain() => to,
            Some(_) => data.dtype,
        };
        if to == data.dtype && change.is_none() {
            return Ok(Rewrite::kept(weight));
        }
        Rewrite::new(weight, to, change)
    }
}

/// What PyTorch calls the widest of the floats.
fn widest(weights: &[Rewrite]) -> Option<&'static str> {
    let name = |dtype| match dtype {
        Dtype::F64 => Some("float64"),
        Dtype::F32 => Some("float32"),
        Dtype::BF16 => Some("bfloat16"),
        Dtype::F16 => Some("float16"),
        _ => None,
    };
    let floats = weights.iter().filter_map(|weight| Some((weight.dtype(), name(weight.dtype())?)));
    floats.max_by_key(|(dtype, _)| dtype.size()).map(|(_, name)| name)
}
