//! A checkpoint as it is written anew: in floats of one's choice, and as transformers lays it out.

mod gates;
mod linear_attention;
mod places;
mod quantized;

use std::collections::{BTreeMap, HashMap, HashSet};

use outsize_checkpoint::{Checkpoint, Dtype, StoredWeight, TensorInfo};
use outsize_core::{Change, LowRank, Rewrite};
use serde_json::{Map, Value, json};

use self::gates::Gates;
use self::linear_attention::LinearAttention;
use self::places::Places;
use crate::config::{Fields, PACKED_BF16, Quantization};
use crate::stored_layout::{in_parts, interleaved_head, is_rotated};
use crate::{Error, ModelConfig};

/// What a checkpoint becomes.
#[derive(Debug)]
#[non_exhaustive]
pub struct Rewriting {
    /// Its `config.json`.
    pub config: Map<String, Value>,
    /// Its weights, in the order in which they lie now.
    pub weights: Vec<Rewrite>,
}

impl Rewriting {
    /// Adds what an adapter says to the weights of a checkpoint with these tensors, which holds
    /// such a model: `parts` by the path of the parameter that they are for.
    ///
    /// # Errors
    /// A weight that is not there, or does not become floats.
    pub fn merge(
        &mut self,
        model: &ModelConfig,
        tensors: &[TensorInfo],
        parts: HashMap<String, LowRank>,
    ) -> Result<(), Error> {
        let places = Places::new(&self.weights, model, tensors);
        for (path, part) in parts {
            let core = |error: outsize_core::Error| Error::Core(error.into());
            let found = places.of(&path).filter(|(_, location)| location.count == 1);
            let Some((at, location)) = found else {
                let reason = "the checkpoint has no tensor of that name that becomes floats: have quantised weights \
                              written as floats"
                    .to_owned();
                return Err(core(outsize_core::Error::Adapter { path, reason }));
            };
            let weight = &mut self.weights[at];
            *weight = (weight.clone())
                .with_low_rank([location.part, location.parts], part)
                .map_err(core)?;
        }
        Ok(())
    }
}

impl Rewriting {
    /// Has the matrices that become bf16 written as [packed bf16](outsize_checkpoint::PackedBf16),
    /// where that takes less: reads them. `go_on` is told how many [bytes](Rewrite::bytes_to_pack)
    /// more have been looked at. How many matrices are packed is returned.
    ///
    /// # Errors
    /// If reading fails; [`outsize_core::Error::Stopped`] if `go_on` said no.
    pub fn pack(
        &mut self,
        checkpoint: &Checkpoint,
        mut go_on: impl FnMut(u64) -> bool,
    ) -> Result<usize, outsize_core::Error> {
        for weight in &mut self.weights {
            *weight = weight.clone().pack(checkpoint, &mut go_on)?;
        }
        let packed = self.weights.iter().filter(|weight| weight.is_packed()).count();
        if packed > 0 {
            let entry = self.config.entry("quantization_config");
            entry.or_insert_with(|| json!({ "quant_method": PACKED_BF16 }));
        }
        Ok(packed)
    }
}

/// Decides what becomes of each tensor of a checkpoint with this `config.json` (empty if it has
/// none).
///
/// Without a `dtype` tensors stay as they are, but for GGUF's blocks, which safetensors files
/// cannot hold: they become `F32`, exactly. With one, all floats become that, and quantised weights
/// are dequantised. What a GGUF file has otherwise than transformers (the order of rows of queries
/// and keys, one added to the weights of norms) becomes as there.
///
/// # Errors
/// With a `dtype`: weights quantised in a way that is not built in, or tensors that do not belong
/// together.
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
    if in_parts(&config) {
        let expected = "rows of queries and keys of a GGUF file of a GLM that sees images are in an order of their own, which cannot \
            be undone here: take the checkpoint that it was made of"
            .to_owned();
        return Err(Fields::new(&config).refuse("rope_interleaved", expected));
    }
    let one_added = "rms_norm_add_unit_offset";
    let text = config.get("text_config").and_then(Value::as_object);
    let layout = Layout {
        head: interleaved_head(&config),
        is_one_added: is_set(text.unwrap_or(&config), one_added, false),
    };
    let format = quantization.as_ref().and_then(|quantization| quantization.format);
    let core = |error: outsize_core::Error| Error::Core(error.into());
    let mut others = HashSet::new();
    let stored = |tensor: &TensorInfo| {
        let shape = format.and_then(|format| format.shape_name(&tensor.name));
        let shape = shape.and_then(|name| checkpoint.get(&name));
        let columns = shape.map(|shape| columns(checkpoint, shape)).transpose()?.flatten();
        others.extend(shape.map(|shape| shape.name.clone()));
        let weight = StoredWeight::of_data(tensor, format, columns, |name| {
            let found = checkpoint.get(name);
            others.extend(found.map(|tensor| tensor.name.clone()));
            found.cloned()
        });
        weight.map_err(outsize_core::Error::from)
    };
    let weights = checkpoint.tensors().iter().map(stored).collect::<Result<Vec<_>, _>>();
    let weights = weights.map_err(core)?;
    let mut rewritten = Vec::with_capacity(weights.len());
    let mut of_heads = HeadMatrices::default();
    let mut linear = LinearAttention::of(&config);
    // Those of the last one are apart by experts alone.
    let are_apart = is_set(&config, "gates_apart", true)
        || is_set(&config, "experts_gate_apart", true)
        || config.get("model_type") == Some(&Value::from("gemma4_text"));
    let mut gates = are_apart.then(Gates::default);
    for (weight, stored) in weights.into_iter().zip(checkpoint.tensors()) {
        let name = &weight.data().name;
        let of_activations = || Quantization::OF_ACTIVATIONS.iter().any(|end| name.ends_with(end));
        if others.contains(name) || (quantization.is_some() && of_activations()) {
            continue;
        }
        if gates.as_mut().is_some_and(|gates| gates.add(&weight)) {
            continue;
        }
        // What transformers has otherwise: experts of gpt-oss.
        if weight.data().dtype == Dtype::F4 && stored.shape.len() == 4 {
            let (experts, rows) = (stored.shape[0], stored.shape[1]);
            let parts = (0..experts).map(|at| vec![weight.slice(at * rows..(at + 1) * rows)]);
            let name = stored.name.trim_end_matches(weight.format().data_suffix).to_owned();
            let to = dtype.unwrap_or(Dtype::F32);
            rewritten.push(Rewrite::stacked(name, parts.collect(), true, to).map_err(core)?);
        } else if stored.name.ends_with(KEYS) || stored.name.ends_with(VALUES) {
            of_heads.add(weight);
        } else {
            let linear = linear.as_mut().map(|linear| linear.rewrite(&weight, dtype));
            match linear.transpose().map_err(core)?.flatten() {
                Some(others) => rewritten.extend(others),
                None => rewritten.push(layout.rewrite(weight, dtype).map_err(core)?),
            }
        }
    }
    let heads = config.get("num_attention_heads").and_then(Value::as_u64).unwrap_or(0);
    rewritten.extend(of_heads.rewritten(heads as usize, dtype).map_err(core)?);
    if let Some(gates) = gates {
        rewritten.extend(gates.rewritten(dtype).map_err(core)?);
    }
    if let Some(linear) = linear {
        rewritten.extend(linear.rest(dtype).map_err(core)?);
    }
    let weights = rewritten;

    LinearAttention::remove_fields(&mut config);
    config.remove("experts_gate_apart");
    config.remove("gates_apart");
    config.remove("kv_b_apart");
    config.remove("rope_interleaved");
    config.remove(one_added);
    if let Some(Value::Object(text)) = config.get_mut("text_config") {
        text.remove(one_added);
    }
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

/// The columns of a weight whose shape a tensor says.
fn columns(
    checkpoint: &Checkpoint,
    shape: &TensorInfo,
) -> Result<Option<usize>, outsize_core::Error> {
    if shape.dtype != Dtype::I64 || shape.shape != [2] {
        return Ok(None);
    }
    let bytes = checkpoint.read(shape)?;
    let last = bytes.last_chunk();
    Ok(last.and_then(|last| usize::try_from(i64::from_le_bytes(*last)).ok()))
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
        let change = match self.head {
            Some(head) if is_rotated(module) => Some(Change::Halves(head)),
            // That of linear attention has none in transformers either.
            _ if self.is_one_added && module.ends_with("linear_attn.norm") => None,
            _ if self.is_one_added && data.name.ends_with("norm.weight") => Some(Change::MinusOne),
            _ => None,
        };
        let is_float = matches!(data.dtype, Dtype::F64 | Dtype::F32 | Dtype::F16 | Dtype::BF16);
        let is_small = matches!(data.dtype, Dtype::F8E4M3 | Dtype::F8E5M2);
        let to = match dtype {
            None if is_packed(&weight) => data.dtype,
            None => as_float(&weight),
            Some(to) if is_float || is_small || !weight.format().is_plain() => to,
            Some(_) => data.dtype,
        };
        if to == data.dtype && change.is_none() {
            return Ok(Rewrite::kept(weight));
        }
        Rewrite::new(weight, to, change)
    }
}

/// Ends of the names of what makes keys and values of a compressed cache, where these are apart.
const KEYS: &str = ".kv_b_proj.keys";
const VALUES: &str = ".kv_b_proj.values";

/// Those of all layers, on their way to one matrix in each: by its name, keys before values.
#[derive(Default)]
struct HeadMatrices(BTreeMap<String, BTreeMap<bool, StoredWeight>>);

impl HeadMatrices {
    fn add(&mut self, weight: StoredWeight) {
        let name = &weight.data().name;
        let are_values = name.ends_with(VALUES);
        let module = name.rsplit_once('.').map_or(name.as_str(), |(module, _)| module);
        let both = self.0.entry(format!("{module}.weight")).or_default();
        both.insert(are_values, weight);
    }

    fn rewritten(
        self,
        heads: usize,
        dtype: Option<Dtype>,
    ) -> Result<Vec<Rewrite>, outsize_core::Error> {
        let rewritten = |(name, both): (_, BTreeMap<_, StoredWeight>)| {
            let of_head = |weight: &StoredWeight, head: usize| {
                let rows = weight.rows() / heads;
                weight.slice(head * rows..(head + 1) * rows)
            };
            let fits = heads > 0 && both.values().all(|it| it.rows().is_multiple_of(heads));
            let (keys, values) = (both.get(&false).filter(|_| fits), both.get(&true));
            let modules = keys.zip(values).into_iter().flat_map(|(keys, values)| {
                (0..heads).map(move |head| [of_head(keys, head), of_head(values, head)])
            });
            Rewrite::turned(name, modules.collect(), type_of_all(both.values(), dtype))
        };
        self.0.into_iter().map(rewritten).collect()
    }
}

/// What weights become that become one: that type, or the one that all have. Of several types each
/// is exact as the widest.
fn type_of_all<'a>(weights: impl Iterator<Item = &'a StoredWeight>, dtype: Option<Dtype>) -> Dtype {
    let mut types = weights.map(as_float);
    let first = types.next().filter(|first| types.all(|other| other == *first));
    dtype.or(first).unwrap_or(Dtype::F32)
}

/// The type in which safetensors files hold a weight.
fn as_float(weight: &StoredWeight) -> Dtype {
    match weight.format().is_plain() {
        true => weight.data().dtype,
        false if is_packed(weight) => Dtype::BF16,
        false => Dtype::F32,
    }
}

fn is_packed(weight: &StoredWeight) -> bool {
    matches!(weight.data().dtype, Dtype::PackedBf16(_))
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
