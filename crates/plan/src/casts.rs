use crate::nearest::nearest;
use crate::{Block, Error, Tensor, TensorKind, Tree, WeightDtype};
use std::collections::{BTreeMap, HashMap};

/// The dtypes that tensors are held in, where these are not those that they are stored in.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Casts {
    /// The dtype of all floating point tensors; integers and booleans stay what they are.
    pub dtype: Option<WeightDtype>,
    /// The dtypes of single tensors by their path, whatever they are stored in. They take
    /// precedence over everything else.
    pub special: BTreeMap<String, WeightDtype>,
    /// Modules or tensors whose floating point tensors are held in 32 bits at least, as
    /// transformers' `_keep_in_fp32_modules_strict` has them: `wo` means every tensor of whose path
    /// `wo` is a part between dots, such as `decoder.0.wo.weight` but not `decoder.0.two.weight`;
    /// `decoder.wo` means two such parts that follow each other. Those that would be held in less
    /// than 32 bits, by `dtype` or because they are stored so, are held in [`WeightDtype::F32`].
    pub keep_in_f32: Vec<String>,
    /// Whether the checkpoint itself would be in these dtypes, as a quantiser writes it: stored
    /// sizes change too, and a `dtype` of less than 16 bits is for the matrices of numbered blocks
    /// alone (such as `model.layers.3`; of all blocks if none is numbered). Embeddings, heads,
    /// norms and biases stay as they are, and scales of quantised groups are not counted.
    pub stored: bool,
}

impl Casts {
    /// A checkpoint in this dtype, see [`Self::stored`].
    pub fn stored(dtype: WeightDtype) -> Self {
        Self { dtype: Some(dtype), stored: true, ..Self::default() }
    }

    /// The dtype of an untied tensor; `layer` if quantisers change its block.
    fn of(&self, tensor: &Tensor, layer: bool) -> WeightDtype {
        if let Some(dtype) = self.special.get(&tensor.name) {
            return *dtype;
        }
        if !tensor.dtype.is_float() {
            return tensor.dtype;
        }
        let is_matrix = tensor.kind == TensorKind::Parameter && tensor.shape.len() >= 2;
        let changes =
            |dtype: &WeightDtype| !self.stored || dtype.bits() >= 16 || layer && is_matrix;
        let dtype = self.dtype.filter(changes).unwrap_or(tensor.dtype);
        if dtype.bits() < WeightDtype::F32.bits() && self.is_kept(&tensor.name) {
            WeightDtype::F32
        } else {
            dtype
        }
    }

    fn is_kept(&self, name: &str) -> bool {
        self.keep_in_f32.iter().any(|pattern| {
            !pattern.is_empty()
                && name.match_indices(pattern.as_str()).any(|(begin, found)| {
                    let (before, behind) = (&name[..begin], &name[begin + found.len()..]);
                    (before.is_empty() || before.ends_with('.'))
                        && (behind.is_empty() || behind.starts_with('.'))
                })
        })
    }

    /// How much the dtype found for a tensor counts in its tied group.
    fn weight(&self, tensor: &Tensor) -> u8 {
        let special = self.special.contains_key(&tensor.name);
        (2 * u8::from(special)).max(u8::from(self.is_kept(&tensor.name)))
    }
}

impl Tree {
    /// The tree with tensors held in other dtypes: [`Tensor::bytes`] and [`Tensor::row_bytes`]
    /// change, while [`Tensor::stored_bytes`] and [`Tensor::dtype`] remain those of the checkpoint
    /// unless [`Casts::stored`] is set. Dtypes of less than 8 bits take whole bytes for a tensor
    /// and for a row. Tied tensors are held in one dtype: a special one of any of them, else what
    /// one of them is kept in, else that of the first.
    ///
    /// # Errors
    /// [`Error::UnknownName`] if [`Casts::special`] names a tensor that is not there.
    pub fn cast(&self, casts: &Casts) -> Result<Self, Error> {
        let mut special = casts.special.clone();
        let any_numbered = self.blocks.iter().any(Block::is_numbered);
        let mut dtypes = Vec::new();
        let mut shared: HashMap<&str, (u8, WeightDtype)> = HashMap::new();
        for block in &self.blocks {
            let layer = block.is_numbered() || !any_numbered;
            for tensor in &block.tensors {
                special.remove(&tensor.name);
                let dtype = casts.of(tensor, layer);
                dtypes.push(dtype);
                if let Some(key) = &tensor.tied {
                    let found = (casts.weight(tensor), dtype);
                    let best = shared.entry(key).or_insert(found);
                    if found.0 > best.0 {
                        *best = found;
                    }
                }
            }
        }
        if let Some(name) = special.into_keys().next() {
            let names = self.tensors().map(|tensor| tensor.name.as_str());
            return Err(Error::UnknownName {
                nearest: nearest(&name, names).map(String::from),
                name,
            });
        }
        let mut tree = self.clone();
        let tensors = tree.blocks.iter_mut().flat_map(|block| &mut block.tensors);
        for (tensor, own) in tensors.zip(dtypes) {
            let key = tensor.tied.as_deref();
            let dtype = key.and_then(|key| shared.get(key));
            let dtype = dtype.map_or(own, |(_, dtype)| *dtype);
            let same = tensor.dtype == dtype;
            if casts.stored && (!same || casts.dtype == Some(dtype)) {
                tensor.hold_in(dtype, tensor.values());
                (tensor.dtype, tensor.stored_bytes) = (dtype, tensor.bytes);
            } else if !casts.stored && !same {
                // What is stored in it is held so already, with the scales that it may have.
                tensor.hold_in(dtype, tensor.values());
            }
        }
        if casts.stored {
            // Nothing is converted by the readers.
            tree.staging_bytes = 0;
        }
        Ok(tree)
    }
}

impl Block {
    /// Whether it is an element of a module list, such as `model.layers.3`.
    pub fn is_numbered(&self) -> bool {
        let own = self.name.rsplit('.').next().unwrap_or_default();
        !own.is_empty() && own.bytes().all(|byte| byte.is_ascii_digit())
    }
}

impl Tensor {
    fn hold_in(&mut self, dtype: WeightDtype, values: u64) {
        if self.row_bytes > 0 {
            // How many values a row has, rows being as they were: mostly those of the shape.
            let rows = match self.shape.first() {
                Some(rows) if *rows > 0 && self.bytes.div_ceil(*rows) == self.row_bytes => *rows,
                _ => self.bytes.div_ceil(self.row_bytes).max(1),
            };
            self.row_bytes = dtype.bytes(values.div_ceil(rows));
        }
        self.bytes = dtype.bytes(values);
    }

    /// How many values it has: by its shape, or by its bytes if that is not known.
    pub(crate) fn values(&self) -> u64 {
        if self.shape.is_empty() {
            let bits = u128::from(self.stored_bytes) * 8 / u128::from(self.dtype.bits());
            return u64::try_from(bits).unwrap_or(u64::MAX);
        }
        let sizes = self.shape.iter();
        sizes.fold(1, |values, size| values.saturating_mul(*size))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixtures::{self, block, tree};

    fn tensor(name: &str, dtype: WeightDtype, shape: &[u64]) -> Tensor {
        let mut tensor = Tensor { shape: shape.to_vec(), dtype, ..fixtures::tensor(name, 0) };
        tensor.bytes = dtype.bytes(tensor.values());
        tensor.stored_bytes = tensor.bytes;
        tensor.row_bytes = shape.get(1).map_or(0, |columns| dtype.bytes(*columns));
        tensor
    }

    fn to(dtype: WeightDtype) -> Casts {
        Casts { dtype: Some(dtype), ..Casts::default() }
    }

    /// The same, with a pattern of what is kept in 32 bits.
    fn to_but(dtype: WeightDtype, pattern: &str) -> Casts {
        Casts { keep_in_f32: vec![pattern.to_string()], ..to(dtype) }
    }

    fn one_block(tensors: Vec<Tensor>) -> Tree {
        tree(vec![block("", tensors)])
    }

    fn sizes(tree: &Tree, casts: &Casts) -> Vec<(u64, u64)> {
        let cast = tree.cast(casts).unwrap();
        let stored = |tree: &Tree| tree.tensors().map(|t| t.stored_bytes).collect::<Vec<_>>();
        assert_eq!(stored(&cast), stored(tree));
        cast.tensors().map(|t| (t.bytes, t.row_bytes)).collect()
    }

    #[test]
    fn only_floating_point_is_cast() {
        let tree = one_block(vec![
            tensor("w", WeightDtype::Bf16, &[3, 5]),
            tensor("norm", WeightDtype::F32, &[5]),
            tensor("ids", WeightDtype::Int64, &[4]),
            tensor("mask", WeightDtype::Bool, &[7]),
        ]);
        let as_stored = [(30, 10), (20, 0), (32, 0), (7, 0)];
        assert_eq!(sizes(&tree, &Casts::default()), as_stored);
        // An up-cast counts.
        assert_eq!(sizes(&tree, &to(WeightDtype::F32))[..2], [(60, 20), (20, 0)]);
        assert_eq!(sizes(&tree, &to(WeightDtype::F16)), [(30, 10), (10, 0), (32, 0), (7, 0)]);
        // Less than a byte counts in whole bytes.
        assert_eq!(sizes(&tree, &to(WeightDtype::Int4)), [(8, 3), (3, 0), (32, 0), (7, 0)]);
    }

    #[test]
    fn special_types_come_first_and_hold_for_all() {
        let tree = one_block(vec![
            tensor("a.w", WeightDtype::F32, &[2, 7]),
            tensor("a.ids", WeightDtype::Int64, &[7]),
        ]);
        let mut casts = to_but(WeightDtype::F16, "a");
        casts.special.insert("a.w".to_string(), WeightDtype::Int2);
        casts.special.insert("a.ids".to_string(), WeightDtype::Int8);
        assert_eq!(sizes(&tree, &casts), [(4, 2), (7, 0)]);
        let unknown = Casts {
            special: BTreeMap::from([("a.v".to_string(), WeightDtype::Int2)]),
            ..Casts::default()
        };
        let error = tree.cast(&unknown).unwrap_err().to_string();
        assert!(error.contains("`a.v`") && error.contains("`a.w`"), "{error}");
    }

    #[test]
    fn patterns_are_whole_parts_of_a_path() {
        let names = ["wo.weight", "layers.0.wo.weight", "layers.0.two.weight", "layers.0.wo2"];
        let tree = one_block(names.map(|name| tensor(name, WeightDtype::F16, &[10])).to_vec());
        let keep = |pattern: &str| {
            let sizes = sizes(&tree, &to_but(WeightDtype::F8, pattern)).into_iter();
            sizes.map(|(bytes, _)| bytes).collect::<Vec<_>>()
        };
        assert_eq!(keep("wo"), [40, 40, 10, 10]);
        assert_eq!(keep("0.wo"), [10, 40, 10, 10]);
        assert_eq!(keep("0.wo2"), [10, 10, 10, 40]);
        assert_eq!(keep(""), [10; 4]);
        assert_eq!(keep("weight"), [40, 40, 40, 10]);
        // What would be wider than 32 bits remains so.
        assert_eq!(sizes(&tree, &to_but(WeightDtype::F64, "wo")), [(80, 0); 4]);
    }

    #[test]
    fn shared_memory_has_one_type() {
        let mut tied = one_block(vec![
            tensor("embed.w", WeightDtype::F32, &[4, 4]),
            tensor("head.w", WeightDtype::F32, &[4, 4]),
        ]);
        for tensor in &mut tied.blocks[0].tensors {
            tensor.tied = Some("w".to_string());
        }
        let mut casts = to_but(WeightDtype::F16, "head");
        assert_eq!(sizes(&tied, &casts), [(64, 16); 2]);
        casts.special.insert("embed.w".to_string(), WeightDtype::Int8);
        assert_eq!(sizes(&tied, &casts), [(16, 4); 2]);
    }

    #[test]
    fn without_a_shape_bytes_tell_how_many_values_there_are() {
        let mut unknown = tensor("w", WeightDtype::Bf16, &[]);
        (unknown.bytes, unknown.stored_bytes, unknown.row_bytes) = (2000, 1000, 40);
        let mut absurd = tensor("v", WeightDtype::F16, &[u64::MAX, 3]);
        (absurd.bytes, absurd.row_bytes) = (0, 0);
        let sizes = sizes(&one_block(vec![unknown, absurd]), &to(WeightDtype::F32));
        assert_eq!(sizes, [(2000, 40), (u64::MAX, 0)]);
    }
}
