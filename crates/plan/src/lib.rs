//! Sizes, budgets and machine figures in; device map out; pure data, no I/O.
//!
//! | what goes in | |
//! |---|---|
//! | [`Tree`] | the blocks of a model in the order in which a pass uses them, with the size of each tensor |
//! | [`Budget`] | bytes that may be held on each [`Tier`] |
//! | [`MemoryOverhead`] | what must fit besides weights |
//!
//! [`infer`] turns them into a [`DeviceMap`]: which tensors stay in memory, which are streamed, and
//! how large the ring is that they are streamed through. [`place`] does the same for somebody
//! else's choice.
//!
//! ```
//! use outsize_plan::{Access, Block, Budget, Options, Residency, Tensor, Tree, infer};
//!
//! let layer = |number: usize| Block {
//!     name: format!("layers.{number}"),
//!     class: "Linear".to_string(),
//!     tensors: vec![Tensor {
//!         name: format!("layers.{number}.weight"),
//!         bytes: 64_000_000,
//!         stored_bytes: 64_000_000,
//!         row_bytes: 16_384,
//!         access: Access::Tiles,
//!         ..Tensor::default()
//!     }],
//!     ..Block::default()
//! };
//! let tree = Tree { blocks: (0..10).map(layer).collect(), ..Tree::default() };
//! let map = infer(&tree, &Budget::parse("cpu=210MB")?, &Options::default())?;
//! assert_eq!(map.residency("layers.9.weight"), Some(Residency::Streamed));
//! assert_eq!(map.streamed_bytes(), 7 * 64_000_000);
//! println!("{}", map.picture(80));
//! # Ok::<(), outsize_plan::Error>(())
//! ```
#![forbid(unsafe_code)]

mod accelerate;
mod auto;
mod budget;
mod casts;
mod cost;
mod device_map;
mod dtype;
mod error;
mod estimate;
#[cfg(test)]
mod fixtures;
mod groups;
mod hardware_profile;
mod infer;
mod manual;
mod memory_overhead;
mod module_map;
mod module_tree;
mod nearest;
mod options;
mod picture;
mod placement;
mod prediction;
mod size;
mod steps;
mod strategy;
mod tier;
mod tree;
mod units;
mod workload;

pub use accelerate::assign;
pub use budget::Budget;
pub use casts::Casts;
pub use cost::break_even_prompt;
pub use device_map::{DeviceMap, PlacedBlock, Residency, RoutedBytes, TierUse};
pub use dtype::WeightDtype;
pub use error::{Error, Shortfall};
pub use estimate::{Estimate, LargestBlock, Passes, Training, estimate};
pub use hardware_profile::{Bandwidth, GemmRates, Gpu, HardwareProfile, PrefillRates, Processor};
pub use infer::{from_assignment, infer, place};
pub use manual::ManualMap;
pub use memory_overhead::MemoryOverhead;
pub use module_map::ModuleMap;
pub use options::Options;
pub use picture::list_index;
pub use prediction::{BlockTime, Bound, PhaseTime, Prediction, predict};
pub use size::parse_size;
pub use strategy::{Assignment, ChosenBy, Strategy};
pub use tier::Tier;
pub use tree::{Access, Block, Routed, Tensor, TensorKind, Tree, unit_footprint};
pub use units::format_size;
pub use workload::{BlockCost, PassCost, Workload};
