//! LoRA adapters of models of pictures ([Hu et al., 2021](https://arxiv.org/abs/2106.09685)): one
//! file of small matrices, added to what layers give while the model runs.

mod file;
mod layers;
mod module_names;
mod tensor_name;

pub(crate) use self::file::AdapterFile;
pub use self::file::{ADAPTER_FILES, adapter_file};
pub(crate) use self::layers::{AdaptedLayer, AdaptedLayers};
pub(crate) use self::module_names::ModuleNames;
