//! How a layer reads its weight.

pub use outsize_core::Access;
