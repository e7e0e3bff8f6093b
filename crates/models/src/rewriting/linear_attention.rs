//! Linear attention of GGUF files, as transformers lays it out.

use std::collections::BTreeMap;
use std::ops::Range;

use outsize_checkpoint::{Dtype, StoredWeight};
use outsize_core::{Change, Error, Rewrite};
use serde_json::{Map, Value};

use super::{as_float, type_of_all};

/// What the names of its tensors have.
const MODULE: &str = ".linear_attn.";

/// Fields of what is otherwise than in transformers.
const FIELDS: [&str; 3] = ["linear_heads_in_turns", "linear_qkvz_apart", "linear_rates_negated"];

/// The most heads, and the widest.
const MAX_SIZE: u64 = 1 << 20;

/// What linear attention of a checkpoint has otherwise than in transformers.
pub(super) struct LinearAttention {
    in_turns: bool,
    qkvz_apart: bool,
    rates_negated: bool,
    /// Heads of keys and of values, and the rows of one.
    heads: [usize; 2],
    rows: [usize; 2],
    /// Of each layer, what makes queries, keys and values, and what makes gates.
    joint: BTreeMap<String, BTreeMap<bool, StoredWeight>>,
}

impl LinearAttention {
    /// As the configuration has it, if anything is otherwise.
    pub fn of(config: &Map<String, Value>) -> Option<Self> {
        let [in_turns, qkvz_apart, rates_negated] =
            FIELDS.map(|field| config.get(field) == Some(&Value::from(true)));
        // What is beyond all bounds fits no tensor, and neither does nothing.
        let size = |field: &str| {
            let size = config.get(field).and_then(Value::as_u64);
            size.filter(|size| *size <= MAX_SIZE).unwrap_or(0) as usize
        };
        (in_turns || qkvz_apart || rates_negated).then(|| Self {
            in_turns,
            qkvz_apart,
            rates_negated,
            heads: ["linear_num_key_heads", "linear_num_value_heads"].map(size),
            rows: ["linear_key_head_dim", "linear_value_head_dim"].map(size),
            joint: BTreeMap::new(),
        })
    }

    /// Leaves the fields out that transformers does not have.
    pub fn remove_fields(config: &mut Map<String, Value>) {
        for field in FIELDS {
            config.remove(field);
        }
    }

    /// What becomes of a weight, if it becomes another; a part of one that comes
    /// [later](Self::rest) becomes nothing.
    pub fn rewrite(
        &mut self,
        weight: &StoredWeight,
        dtype: Option<Dtype>,
    ) -> Result<Option<Vec<Rewrite>>, Error> {
        let name = &weight.data().name;
        let to = dtype.unwrap_or(as_float(weight));
        let Some((_, parameter)) = name.split_once(MODULE) else {
            // Of Mamba.
            let are_rates = self.rates_negated && name.ends_with(".A_log");
            let change = are_rates.then_some(Change::LogOfNegated);
            let changed = |change| Ok(vec![Rewrite::new(weight.clone(), to, Some(change))?]);
            return change.map(changed).transpose();
        };
        let before = 2 * self.heads[0] * self.rows[0];
        let (before, width, change) = match parameter {
            "in_proj_qkv.weight" | "in_proj_z.weight" if self.qkvz_apart => {
                let (layer, _) = name.split_at(name.len() - parameter.len());
                let both = self.joint.entry(layer.to_owned()).or_default();
                both.insert(parameter == "in_proj_z.weight", weight.clone());
                return Ok(Some(Vec::new()));
            }
            "A_log" => (0, 1, self.rates_negated.then_some(Change::LogOfNegated)),
            "dt_bias" | "in_proj_a.weight" | "in_proj_b.weight" => (0, 1, None),
            "in_proj_z.weight" => (0, self.rows[1], None),
            "in_proj_qkv.weight" | "conv1d.weight" => (before, self.rows[1], None),
            "out_proj.weight" if self.in_turns => {
                let change = Change::Groups { heads: self.heads[1], groups: self.heads[0] };
                return Ok(Some(vec![Rewrite::new(weight.clone(), to, Some(change))?]));
            }
            _ => return Ok(None),
        };
        if !self.in_turns {
            return match change {
                Some(_) => Ok(Some(vec![Rewrite::new(weight.clone(), to, change)?])),
                None => Ok(None),
            };
        }
        let [groups, heads] = self.heads;
        if groups == 0 || weight.rows() != before + heads * width {
            let reason = format!("its {} rows are not those of {heads} heads", weight.rows());
            return Err(Error::Rewrite { tensor: name.clone(), reason });
        }
        let order = (0..groups).flat_map(|group| (group..heads).step_by(groups));
        let of_heads = order.map(|head| before + head * width..before + (head + 1) * width);
        let rows: Vec<Range<usize>> =
            (before > 0).then_some(0..before).into_iter().chain(of_heads).collect();
        let parts = rows.into_iter().map(|rows| (weight.slice(rows), change)).collect();
        Ok(Some(vec![Rewrite::rows(name.clone(), parts, to)?]))
    }

    /// What comes of parts.
    pub fn rest(self, dtype: Option<Dtype>) -> Result<Vec<Rewrite>, Error> {
        let ([groups, heads], [key, value]) = (self.heads, self.rows);
        let joined = |(layer, both): (String, BTreeMap<bool, StoredWeight>)| {
            let name = format!("{layer}in_proj_qkvz.weight");
            let fits = groups > 0
                && both.len() == 2
                && both[&false].rows() == 2 * groups * key + heads * value
                && both[&true].rows() == heads * value;
            if !fits {
                let reason = format!("its parts are not those of {heads} heads");
                return Err(Error::Rewrite { tensor: name, reason });
            }
            let (mixed, gates) = (&both[&false], &both[&true]);
            let values = heads / groups * value;
            let parts = (0..groups).flat_map(|group| {
                let rows = |from: usize, width: usize| {
                    mixed.slice(from + group * width..from + (group + 1) * width)
                };
                [
                    rows(0, key),
                    rows(groups * key, key),
                    rows(2 * groups * key, values),
                    gates.slice(group * values..(group + 1) * values),
                ]
            });
            let to = type_of_all(both.values(), dtype);
            let parts = parts.map(|part| (part, None)).collect();
            Rewrite::rows(name, parts, to)
        };
        self.joint.into_iter().map(joined).collect()
    }
}
