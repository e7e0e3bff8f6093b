//! A checkpoint on disk as an index of tensors: open, check, write sharded.
//!
//! [`Checkpoint::open`] reads the headers of a Hugging Face checkpoint (one `.safetensors` file, or
//! shards and their index; the same of PyTorch's own `.bin` files; one `.gguf` file; or one `.bpk`
//! file of Burn), proves that every tensor lies where it says, and keeps the files open for
//! positioned reads. No weight is read until it is asked for. [`ShardWriter`] goes the other way,
//! in bounded memory, and makes the finished folder appear in one step.
//!
//! The format is [safetensors](https://huggingface.co/docs/safetensors); the layout of folders,
//! shards and index is the one that `save_pretrained` of transformers writes. Whatever a file
//! claims is checked before it is used: a hostile or damaged checkpoint gives an [`Error`] that
//! names the file, the tensor and the fault.
//!
//! ```
//! use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let place = tempfile::tempdir()?;
//! let out = place.path().join("tiny");
//! let specs = vec![TensorSpec::new("bias", Dtype::F32, [2])];
//! let mut writer = ShardWriter::create(&out, specs, 5_000_000_000)?;
//! writer.add_file("config.json", b"{}")?;
//! writer.write("bias", &1.5f32.to_le_bytes())?;
//! writer.write("bias", &2.5f32.to_le_bytes())?;
//! writer.finish()?;
//!
//! let checkpoint = Checkpoint::open(&out)?;
//! let bias = checkpoint.get("bias").ok_or("no bias")?;
//! assert_eq!(bias.shape, [2]);
//! assert_eq!(checkpoint.read(bias)?[4..], 2.5f32.to_le_bytes());
//! # Ok(())
//! # }
//! ```
#![forbid(unsafe_code)]

mod buffered_file;
mod burnpack;
mod checkpoint;
mod config_file;
mod dtype;
mod error;
mod fault;
mod file;
mod file_writer;
mod folder;
mod format;
mod format_fault;
mod gguf;
mod header;
mod index;
mod integers;
mod json;
mod layout;
mod masquerade;
mod output_folder;
mod packed_bf16;
mod parallel;
mod partial;
mod remote;
mod small_files;
mod stored_weight;
mod text;
mod torch;
mod unnamed;
mod whole_file;
mod writer;

pub use burnpack::{BurnpackFault, BurnpackHeader};
pub use checkpoint::{Checkpoint, TensorInfo};
pub use config_file::{
    CONFIG_LIMIT, ConfigFileError, made_length, parse_json, parse_object, read_object,
    read_optional, read_optional_text,
};
pub use dtype::{Dtype, ElementBlock, UnknownDtype};
pub use error::Error;
pub use fault::{HeaderFault, IndexFault, SpecFault};
pub use file::ShardFile;
pub use file_writer::FileWriter;
pub use folder::model_folder;
pub use format::{Encoding, ScaleGrid, StorageFormat};
pub use format_fault::FormatFault;
pub use gguf::{GgufFault, GgufHeader, GgufPartName, GgufValue, GgufVision};
pub use header::{Header, HeaderEntry};
pub use index::Index;
pub use integers::{INTERLEAVED, IntegerOrder, IntegerWidth, Integers, ZeroPoints};
pub use layout::TensorSpec;
pub use output_folder::OutputFolder;
pub use packed_bf16::PackedBf16;
pub use remote::{GgufDescription, Headers, Part, RemoteFile, weights_file};
pub use small_files::SmallFiles;
pub use stored_weight::StoredWeight;
pub use text::{plain, shown};
pub use torch::{StateDict, Storage, TensorView, TorchFault};
pub use whole_file::{read_file, read_text, write_file};
pub use writer::ShardWriter;
