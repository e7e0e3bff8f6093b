//! GGUF files, made byte by byte.

#![allow(dead_code, reason = "each test binary uses a part")]

/// A value of metadata: the number of its type, and its bytes.
pub type Value = (u32, Vec<u8>);

pub fn text(text: &str) -> Value {
    (8, string(text.as_bytes()))
}

pub fn u32(value: u32) -> Value {
    (4, value.to_le_bytes().into())
}

pub fn f32(value: f32) -> Value {
    (6, value.to_le_bytes().into())
}

pub fn flag(value: bool) -> Value {
    (7, vec![value.into()])
}

/// An array; all values must be of one type, which is that of texts if there are none.
pub fn array(values: &[Value]) -> Value {
    let mut bytes = values.first().map_or(8u32, |(kind, _)| *kind).to_le_bytes().to_vec();
    bytes.extend((values.len() as u64).to_le_bytes());
    bytes.extend(values.iter().flat_map(|(_, value)| value));
    (9, bytes)
}

pub fn texts(texts: &[&str]) -> Value {
    array(&texts.iter().map(|it| text(it)).collect::<Vec<_>>())
}

pub fn string(bytes: &[u8]) -> Vec<u8> {
    [&(bytes.len() as u64).to_le_bytes(), bytes].concat()
}

/// Name, dimensions (the fastest first), the number of the type, and the offset in the data.
pub type Tensor<'a> = (&'a str, &'a [u64], u32, u64);

/// A file with so many bytes of data.
pub fn file(values: &[(&str, Value)], tensors: &[Tensor<'_>], data: usize) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend((tensors.len() as u64).to_le_bytes());
    bytes.extend((values.len() as u64).to_le_bytes());
    for (key, (kind, value)) in values {
        bytes.extend(string(key.as_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(value);
    }
    for (name, shape, kind, offset) in tensors {
        bytes.extend(string(name.as_bytes()));
        bytes.extend((shape.len() as u32).to_le_bytes());
        bytes.extend(shape.iter().flat_map(|size| size.to_le_bytes()));
        bytes.extend(kind.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
    }
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    let values = (0..data).map(|at| at as u8);
    bytes.extend(values);
    bytes
}

/// A model of one layer without its layer, for configurations.
pub fn model<'a>(architecture: &'a str, more: &[(&'a str, Value)]) -> Vec<u8> {
    let mut values = vec![("general.architecture", text(architecture))];
    values.extend_from_slice(more);
    let tensors: &[Tensor<'_>] = &[("token_embd.weight", &[32, 3], 8, 0), ("x", &[2], 0, 128)];
    file(&values, tensors, 136)
}
