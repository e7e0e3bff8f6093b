//! What the metadata of a burnpack file says, of which only the form was checked.

use std::fmt;

use serde::Deserialize;
use serde::de::{Deserializer, Error as _, IgnoredAny, MapAccess, Visitor};

use super::BurnpackFault;
use crate::dtype::Dtype;
use crate::header::Shape;
use crate::json::Notes;
use crate::text::{message, name_fault, quoted};

/// The metadata. Scalars beside the tensors, such as an optimizer's, belong to no module.
#[derive(Deserialize)]
pub(super) struct Claims {
    pub tensors: Tensors,
    #[serde(default)]
    pub metadata: Notes,
}

/// What is said of one tensor.
#[derive(Deserialize)]
pub(super) struct Claim {
    dtype: BurnDtype,
    pub shape: Shape,
    pub data_offsets: (u64, u64),
}

/// The types of Burn.
#[derive(Deserialize)]
enum BurnDtype {
    F64,
    F32,
    Flex32,
    F16,
    BF16,
    I64,
    I32,
    I16,
    I8,
    U64,
    U32,
    U16,
    U8,
    Bool(BoolStore),
    QFloat(IgnoredAny),
}

#[derive(Deserialize)]
enum BoolStore {
    Native,
    U8,
    U32,
}

impl Claim {
    /// The type of the tensor of this name.
    pub fn dtype(&self, name: &str) -> Result<Dtype, BurnpackFault> {
        let what = match &self.dtype {
            BurnDtype::F64 => return Ok(Dtype::F64),
            // Burn stores these in 32 bits.
            BurnDtype::F32 | BurnDtype::Flex32 => return Ok(Dtype::F32),
            BurnDtype::F16 => return Ok(Dtype::F16),
            BurnDtype::BF16 => return Ok(Dtype::BF16),
            BurnDtype::I64 => return Ok(Dtype::I64),
            BurnDtype::I32 => return Ok(Dtype::I32),
            BurnDtype::I16 => return Ok(Dtype::I16),
            BurnDtype::I8 => return Ok(Dtype::I8),
            BurnDtype::U64 => return Ok(Dtype::U64),
            BurnDtype::U32 => return Ok(Dtype::U32),
            BurnDtype::U16 => return Ok(Dtype::U16),
            BurnDtype::U8 => return Ok(Dtype::U8),
            BurnDtype::Bool(BoolStore::Native | BoolStore::U8) => return Ok(Dtype::Bool),
            BurnDtype::Bool(BoolStore::U32) => "of booleans in 32 bits",
            BurnDtype::QFloat(_) => "quantised by Burn",
        };
        Err(BurnpackFault::Dtype { tensor: name.to_owned(), what })
    }
}

/// The tensors, in the order of the file.
pub(super) struct Tensors(pub Vec<(String, Claim)>);

impl<'de> Deserialize<'de> for Tensors {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Entries;
        impl<'de> Visitor<'de> for Entries {
            type Value = Tensors;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a map of tensors")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut access: A) -> Result<Tensors, A::Error> {
                let mut tensors = Vec::new();
                while let Some(name) = access.next_key::<String>()? {
                    if let Some(fault) = name_fault(&name) {
                        return Err(A::Error::custom(format!("{} {fault}", quoted(&name))));
                    }
                    let claim = access.next_value().map_err(|error| in_tensor(&name, &error))?;
                    tensors.push((name, claim));
                }
                Ok(Tensors(tensors))
            }
        }
        deserializer.deserialize_map(Entries)
    }
}

/// Says in which tensor an error is. ciborium shows its errors as they are in its code:
/// `Semantic(None, "what is wrong")`.
fn in_tensor<E: serde::de::Error>(name: &str, error: &E) -> E {
    let shown = error.to_string();
    let what = shown.strip_prefix("Semantic(").and_then(|shown| shown.split_once(", \""));
    let what = what.and_then(|(_, text)| Some(text.strip_suffix("\")")?.replace("\\\"", "\"")));
    E::custom(format!("{}: {}", quoted(name), message(&what.unwrap_or(shown))))
}
