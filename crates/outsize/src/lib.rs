//! Run models bigger than memory, on [Burn](https://burn.dev).
//!
//! Any Burn module, unmodified: its weights are placed within a memory budget, and what does not
//! stay is streamed from the checkpoint just ahead of the layer that needs it.
//!
//! ```no_run
//! use burn::nn::LinearConfig;
//! use burn::tensor::{Device, Tensor};
//! use outsize::core::{Layout, Names, Options, load_checkpoint_and_dispatch};
//! use outsize::plan::Budget;
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let device = Device::flex();
//! let model = LinearConfig::new(4096, 4096).init(&device); // any module; no weight is allocated
//! let options = Options {
//!     budget: Budget::parse("cpu=600MB")?,
//!     names: Names::new(Layout::PyTorch),
//!     ..Options::default()
//! };
//! let model = load_checkpoint_and_dispatch(model, "path/to/checkpoint", &options)?;
//! let output = model.run(|model| model.forward(Tensor::<2>::zeros([1, 4096], &device)))?;
//! # let _ = output;
//! # Ok(())
//! # }
//! ```
//!
//! Text pipelines know the models that are built in, and need no module:
//!
//! ```no_run
//! use outsize::plan::Strategy;
//! use outsize::{Budget, GenerateOptions, Task, pipeline};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut pipe = pipeline(Task::TextGeneration, "path/to/checkpoint")
//!     .device_map(Strategy::Auto)
//!     .max_memory(Budget::parse("cpu=600MB")?)
//!     .build()?;
//! for part in pipe.stream("Once upon a time", &GenerateOptions::default())? {
//!     print!("{}", part?);
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Models of pictures are one more task of the same call:
//!
//! ```no_run
//! use outsize::{Budget, ImageRequest, Task, pipeline};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let pipe = pipeline(Task::TextToImage, "path/to/stable-diffusion")
//!     .max_memory(Budget::parse("cpu=800MB")?)
//!     .build()?;
//! for picture in pipe.generate(&ImageRequest::new("a horse on the moon"))? {
//!     picture.write_png("horse.png", &[])?;
//! }
//! # Ok(())
//! # }
//! ```
//!
//! Each crate of the workspace is a module here:
//!
//! | module | its one job |
//! |---|---|
//! | [`checkpoint`] | a checkpoint on disk as an index of tensors |
//! | [`plan`] | sizes and budgets in, device map out |
//! | [`core`] | the five steps for any Burn module |
//! | [`models`] | well-known architectures |
//! | [`finetune`] | adapters learn from texts, on models bigger than memory |
//! | [`lora`] | adapters of PEFT: read, checked against a model, written |
//! | [`generate`] | tokens in, tokens out |
//! | [`diffuse`] | noise in, pictures out |
//! | [`picture`] | pictures in 8 bits: read, resized, written |
//! | [`mod@bench`] | measures the machine, and runs a model beside its limits |
//! | [`launch`] | starts a training program on n processes or machines |
//! | [`kernels`] | products with weights kept as stored |
//! | [`stream`] | bytes from disk into a fixed pool of memory |
//! | [`machine`] | what this machine has |
//! | [`train`] | the same training loop on one rank or many |
#![forbid(unsafe_code)]

mod task;

pub use outsize_bench as bench;
pub use outsize_checkpoint as checkpoint;
pub use outsize_core as core;
pub use outsize_diffuse as diffuse;
pub use outsize_finetune as finetune;
pub use outsize_generate as generate;
pub use outsize_kernels as kernels;
pub use outsize_launch as launch;
pub use outsize_lora as lora;
pub use outsize_machine as machine;
pub use outsize_models as models;
pub use outsize_picture as picture;
pub use outsize_plan as plan;
pub use outsize_stream as stream;
pub use outsize_train as train;

pub use outsize_checkpoint::Checkpoint;
pub use outsize_core::{
    Dispatched, Error, Options, Streamed, dispatch, load_checkpoint_and_dispatch,
};
pub use outsize_diffuse::ImageRequest;
pub use outsize_generate::{GenerateOptions, pipeline};
pub use outsize_plan::{Budget, DeviceMap};
pub use task::Task;
