//! What the pickle of a state dict is made of.

use std::collections::HashMap;

use crate::dtype::Dtype;

/// A value. What has parts is in [`Values`], under a number: so nothing here is recursive, however
/// deep a pickle nests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    None,
    Bool,
    Int(i64),
    Text(&'a str),
    /// What no tensor is made of: bytes, fractions, integers beyond 64 bits.
    Scalar,
    Global(Global),
    Tuple(u32),
    List(u32),
    Dict(u32),
    Storage(u32),
    Tensor(u32),
}

impl Value<'_> {
    /// The value in words.
    pub fn what(self) -> &'static str {
        match self {
            Self::None => "None",
            Self::Bool => "a boolean",
            Self::Int(_) | Self::Scalar => "a number or bytes",
            Self::Text(_) => "a string",
            Self::Global(_) => "a function or class",
            Self::Tuple(_) => "a tuple",
            Self::List(_) => "a list",
            Self::Dict(_) => "a dict",
            Self::Storage(_) => "a storage",
            Self::Tensor(_) => "one tensor",
        }
    }
}

/// A function or class that a state dict needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Global {
    OrderedDict,
    /// `_rebuild_tensor_v2`: a tensor of its storage's type.
    Tensor,
    /// `_rebuild_tensor_v3`: a tensor of a type given, in a storage without one.
    TypedTensor,
    Parameter,
    /// A class of storages, with the type of their elements.
    Storage(Option<Dtype>),
    Dtype(Dtype),
}

impl Global {
    /// The one of this module and name; none if a state dict does not need it.
    pub fn find(module: &str, name: &str) -> Option<Self> {
        match (module, name) {
            ("collections", "OrderedDict") => Some(Self::OrderedDict),
            ("torch._utils", "_rebuild_tensor_v2") => Some(Self::Tensor),
            ("torch._utils", "_rebuild_tensor_v3") => Some(Self::TypedTensor),
            ("torch._utils", "_rebuild_parameter") => Some(Self::Parameter),
            ("torch.storage", "UntypedStorage") => Some(Self::Storage(None)),
            ("torch", name) => match name.strip_suffix("Storage") {
                Some(kind) => Some(Self::Storage(Some(storage_dtype(kind)?))),
                None => Some(Self::Dtype(dtype(name)?)),
            },
            _ => None,
        }
    }
}

fn storage_dtype(kind: &str) -> Option<Dtype> {
    Some(match kind {
        "Double" => Dtype::F64,
        "Float" => Dtype::F32,
        "Half" => Dtype::F16,
        "BFloat16" => Dtype::BF16,
        "Long" => Dtype::I64,
        "Int" => Dtype::I32,
        "Short" => Dtype::I16,
        "Char" => Dtype::I8,
        "Byte" => Dtype::U8,
        "Bool" => Dtype::Bool,
        _ => return None,
    })
}

fn dtype(name: &str) -> Option<Dtype> {
    Some(match name {
        "float64" => Dtype::F64,
        "float32" => Dtype::F32,
        "float16" => Dtype::F16,
        "bfloat16" => Dtype::BF16,
        "int64" => Dtype::I64,
        "int32" => Dtype::I32,
        "int16" => Dtype::I16,
        "int8" => Dtype::I8,
        "uint64" => Dtype::U64,
        "uint32" => Dtype::U32,
        "uint16" => Dtype::U16,
        "uint8" => Dtype::U8,
        "float8_e4m3fn" => Dtype::F8E4M3,
        "float8_e5m2" => Dtype::F8E5M2,
        "float8_e8m0fnu" => Dtype::F8E8M0,
        "bool" => Dtype::Bool,
        _ => return None,
    })
}

/// A storage that a pickle refers to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StorageRef<'a> {
    /// Names its member of the archive.
    pub key: &'a str,
    /// None if tensors say it themselves.
    pub dtype: Option<Dtype>,
    /// Elements; bytes if it has no type.
    pub elements: u64,
}

/// A tensor, nothing of it checked but that its numbers are numbers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorRef {
    pub storage: u32,
    pub dtype: Dtype,
    /// Elements of the storage before its first.
    pub offset: i64,
    pub size: Box<[i64]>,
    pub stride: Box<[i64]>,
}

/// The parts of all values. Takes memory within a limit.
#[derive(Debug)]
pub(super) struct Values<'a> {
    pub tuples: Vec<Box<[Value<'a>]>>,
    pub lists: Vec<Vec<Value<'a>>>,
    /// Keys and values in turn, in the order of insertion.
    pub dicts: Vec<Vec<Value<'a>>>,
    pub storages: Vec<StorageRef<'a>>,
    pub tensors: Vec<TensorRef>,
    keys: HashMap<&'a str, u32>,
    /// Bytes that may still be taken.
    left: usize,
}

/// More memory would be taken than the pickle of any state dict needs.
#[derive(Debug)]
pub(super) struct Exhausted;

impl<'a> Values<'a> {
    /// None yet. They may take `limit` bytes.
    pub fn new(limit: usize) -> Self {
        Self {
            tuples: Vec::new(),
            lists: Vec::new(),
            dicts: Vec::new(),
            storages: Vec::new(),
            tensors: Vec::new(),
            keys: HashMap::new(),
            left: limit,
        }
    }

    /// Counts memory for `count` things of type `T`.
    pub fn take<T>(&mut self, count: usize) -> Result<(), Exhausted> {
        let bytes = count.checked_mul(size_of::<T>()).ok_or(Exhausted)?;
        self.left = self.left.checked_sub(bytes).ok_or(Exhausted)?;
        Ok(())
    }

    pub fn tuple(&mut self, parts: &[Value<'a>]) -> Result<Value<'a>, Exhausted> {
        self.take::<Box<[Value<'_>]>>(1)?;
        self.take::<Value<'_>>(parts.len())?;
        self.tuples.push(parts.into());
        Ok(Value::Tuple(last(&self.tuples)))
    }

    pub fn list(&mut self) -> Result<Value<'a>, Exhausted> {
        self.take::<Vec<Value<'_>>>(1)?;
        self.lists.push(Vec::new());
        Ok(Value::List(last(&self.lists)))
    }

    pub fn dict(&mut self) -> Result<Value<'a>, Exhausted> {
        self.take::<Vec<Value<'_>>>(1)?;
        self.dicts.push(Vec::new());
        Ok(Value::Dict(last(&self.dicts)))
    }

    pub fn tensor(&mut self, tensor: TensorRef) -> Result<Value<'a>, Exhausted> {
        self.take::<TensorRef>(1)?;
        self.take::<i64>(tensor.size.len() + tensor.stride.len())?;
        self.tensors.push(tensor);
        Ok(Value::Tensor(last(&self.tensors)))
    }

    /// The storage of a key, whether new or not; none if it was another one before.
    pub fn storage(&mut self, storage: StorageRef<'a>) -> Result<Option<Value<'a>>, Exhausted> {
        if let Some(&at) = self.keys.get(storage.key) {
            let same = self.storages.get(at as usize) == Some(&storage);
            return Ok(same.then_some(Value::Storage(at)));
        }
        self.take::<(StorageRef<'_>, &str, u32)>(2)?;
        self.storages.push(storage);
        let at = last(&self.storages);
        self.keys.insert(storage.key, at);
        Ok(Some(Value::Storage(at)))
    }

    /// The parts of a tuple, a list or a dict; none of anything else.
    pub fn parts(&self, value: Value<'a>) -> &[Value<'a>] {
        match value {
            Value::Tuple(at) => self.tuples.get(at as usize).map_or(&[], |tuple| tuple),
            Value::List(at) => self.lists.get(at as usize).map_or(&[], |list| list),
            Value::Dict(at) => self.dicts.get(at as usize).map_or(&[], |dict| dict),
            _ => &[],
        }
    }
}

/// The position of what was added last. The limit of memory keeps it far below the type's.
fn last<T>(list: &[T]) -> u32 {
    list.len().saturating_sub(1) as u32
}
