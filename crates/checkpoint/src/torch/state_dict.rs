use super::fault::TorchFault;
use super::pickle;
use super::value::{TensorRef, Value, Values};
use crate::dtype::Dtype;
use crate::text::{name_fault, quoted, shortened};

/// A state dict as `torch.save` describes it in the `data.pkl` of its archive: tensors, and where
/// in which storage each lies.
///
/// The pickle is read and never executed; see [`Self::parse`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StateDict {
    /// In the order of the names, which are unique.
    pub tensors: Vec<TensorView>,
    /// The storages that tensors lie in. Several tensors may share one, or the same bytes of it.
    pub storages: Vec<Storage>,
}

/// One tensor of a [`StateDict`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TensorView {
    /// The tensor's name.
    pub name: String,
    /// The type of its elements.
    pub dtype: Dtype,
    /// Its shape, slowest dimension first; empty for a scalar. Elements lie in that order, end to
    /// end.
    pub shape: Vec<usize>,
    /// A position in [`StateDict::storages`].
    pub storage: usize,
    /// Its first byte, from the start of the storage.
    pub start: u64,
    /// Bytes. `start` and `len` lie in the storage.
    pub len: u64,
}

/// A storage of a [`StateDict`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Storage {
    /// The name of its member of the archive, in the folder `data`.
    pub key: String,
    /// Bytes that it should have.
    pub len: u64,
}

impl StateDict {
    /// Reads a pickle that holds a state dict: a dict of tensors by name. Numbers, strings and the
    /// like beside them are ignored. A dict that holds one such dict, beside other things without
    /// tensors, is taken for that one: training programs save `{"state_dict": …, "epoch": …}`.
    ///
    /// Nothing in the pickle is executed, and it takes at most forty times its bytes of memory.
    ///
    /// # Errors
    ///
    /// If the pickle refers to anything that a state dict does not need, is damaged, or holds
    /// something else; or if a tensor does not lie end to end inside its storage, as a transposed
    /// one does not.
    pub fn parse(pickle: &[u8]) -> Result<Self, TorchFault> {
        let (root, values) = pickle::read(pickle)?;
        let entries = state_dict(root, &values)?;
        let mut tensors = Vec::new();
        for [key, value] in pairs(entries) {
            if let &Value::Tensor(at) = value {
                let name = name(*key)?;
                tensors.push(view(name, &values.tensors[at as usize], &values)?);
            }
        }
        tensors.sort_unstable_by(|one, other| one.name.cmp(&other.name));
        if let Some([tensor, _]) = tensors.array_windows().find(|[one, two]| one.name == two.name) {
            let tensor = shortened(&tensor.name);
            return Err(TorchFault::Tensor { tensor, what: "is defined twice".to_owned() });
        }

        // Only those that a tensor lies in are looked for.
        let mut storages = Vec::new();
        let mut positions = vec![None; values.storages.len()];
        for tensor in &mut tensors {
            let from = tensor.storage;
            tensor.storage = *positions[from].get_or_insert_with(|| {
                let (key, len) = (values.storages[from].key, storage_len(&values, from));
                storages.push(Storage { key: key.to_owned(), len: len.unwrap_or(u64::MAX) });
                storages.len() - 1
            });
        }
        Ok(Self { tensors, storages })
    }
}

/// The entries of the dict that holds the tensors.
fn state_dict<'v, 'a>(
    root: Value<'a>,
    values: &'v Values<'a>,
) -> Result<&'v [Value<'a>], TorchFault> {
    let other = |what: String| TorchFault::NotAStateDict { what };
    if !matches!(root, Value::Dict(_)) {
        return Err(other(format!("{} rather than a state dict", root.what())));
    }
    let entries = values.parts(root);
    let mut search = Search::new(values);
    let mut holders = pairs(entries).filter(|[_, value]| search.finds_tensor(*value));
    let holder = holders.next();
    let another = holders.next();
    let has_own = pairs(entries).any(|[_, value]| matches!(value, Value::Tensor(_)));
    let within = |key: Value<'_>| match key {
        Value::Text(key) => quoted(key),
        key => key.what().to_owned(),
    };
    match (holder, another) {
        (None, _) => Ok(entries),
        (Some([key, _]), _) if has_own => {
            Err(other(format!("tensors, and more tensors within {}", within(*key))))
        }
        (Some([key, _]), Some([other_key, _])) => {
            Err(other(format!("tensors within {} and within {}", within(*key), within(*other_key))))
        }
        (Some([key, value]), None) => {
            let inner = values.parts(*value);
            let is_flat = matches!(value, Value::Dict(_))
                && pairs(inner).all(|[_, value]| !search.finds_tensor(*value));
            match is_flat {
                true => Ok(inner),
                false => Err(other(format!("tensors deep within {}", within(*key)))),
            }
        }
    }
}

/// The keys and values of a dict.
fn pairs<'v, 'a>(entries: &'v [Value<'a>]) -> impl Iterator<Item = &'v [Value<'a>; 2]> {
    entries.as_chunks().0.iter()
}

fn name(key: Value<'_>) -> Result<String, TorchFault> {
    let Value::Text(name) = key else {
        let what = format!("a tensor whose name is {}", key.what());
        return Err(TorchFault::NotAStateDict { what });
    };
    match name_fault(name) {
        Some(fault) => {
            let what = format!("a tensor called {}, which {fault}", quoted(name));
            Err(TorchFault::NotAStateDict { what })
        }
        None => Ok(name.to_owned()),
    }
}

fn storage_len(values: &Values<'_>, storage: usize) -> Option<u64> {
    let storage = values.storages.get(storage)?;
    storage.elements.checked_mul(storage.dtype.map_or(1, Dtype::size) as u64)
}

/// Checks a tensor against its storage.
fn view(name: String, tensor: &TensorRef, values: &Values<'_>) -> Result<TensorView, TorchFault> {
    let TensorRef { storage, dtype, offset, size, stride } = tensor;
    let wrong = |what: &str| TorchFault::Tensor { tensor: shortened(&name), what: what.to_owned() };
    let shape: Result<Vec<usize>, _> = size.iter().map(|size| usize::try_from(*size)).collect();
    let shape = shape.map_err(|_| wrong("has a dimension of negative size"))?;
    let len = dtype.bytes_of(&shape).ok_or_else(|| wrong("has a shape too large to be real"))?;
    if stride.len() != shape.len() {
        return Err(wrong("has not as many strides as dimensions"));
    }
    if len > 0 && !is_contiguous(&shape, stride) {
        return Err(wrong(
            "is stored transposed, or otherwise not end to end, which is not read; load the file \
             with torch and save it again with every tensor made .contiguous()",
        ));
    }
    let start = u64::try_from(*offset).ok().and_then(|at| at.checked_mul(dtype.size() as u64));
    let end = start.and_then(|start| start.checked_add(len));
    let fits = |end: &u64| storage_len(values, *storage as usize).is_some_and(|len| *end <= len);
    match (start, end.filter(fits)) {
        (Some(start), Some(_)) => {
            Ok(TensorView { name, dtype: *dtype, shape, storage: *storage as usize, start, len })
        }
        _ => Err(TorchFault::outside(&shortened(&name), *dtype, &shape)),
    }
}

/// Whether elements of this shape, none of its dimensions zero, lie end to end.
fn is_contiguous(shape: &[usize], stride: &[i64]) -> bool {
    let mut expected = 1;
    shape.iter().zip(stride).rev().all(|(&size, &stride)| {
        // The stride of a dimension of one is never used, and may be anything.
        let fits = size == 1 || i64::try_from(expected) == Ok(stride);
        expected *= size;
        fits
    })
}

/// Looks for tensors inside of containers.
struct Search<'v, 'a> {
    values: &'v Values<'a>,
    /// Containers known to hold none, or being looked into: lists, tuples and dicts.
    seen: [Vec<bool>; 3],
}

impl<'v, 'a> Search<'v, 'a> {
    fn new(values: &'v Values<'a>) -> Self {
        let none = |count| vec![false; count];
        let seen = [none(values.lists.len()), none(values.tuples.len()), none(values.dicts.len())];
        Self { values, seen }
    }

    /// Whether a container holds a tensor, however deep. Containers may hold one
    /// another, and themselves: each is looked into once as long as nothing is found.
    fn finds_tensor(&mut self, container: Value<'a>) -> bool {
        let mut opened = Vec::new();
        let mut next = vec![container];
        while let Some(value) = next.pop() {
            let Some((kind, at)) = place(value) else { continue };
            if std::mem::replace(&mut self.seen[kind][at], true) {
                continue;
            }
            opened.push((kind, at));
            let parts = self.values.parts(value);
            if parts.iter().any(|part| matches!(part, Value::Tensor(_))) {
                // What was opened on the way is not known to be without.
                for (kind, at) in opened {
                    self.seen[kind][at] = false;
                }
                return true;
            }
            next.extend(parts);
        }
        false
    }
}

/// The kind of a container, and its number.
fn place(value: Value<'_>) -> Option<(usize, usize)> {
    match value {
        Value::List(at) => Some((0, at as usize)),
        Value::Tuple(at) => Some((1, at as usize)),
        Value::Dict(at) => Some((2, at as usize)),
        _ => None,
    }
}
