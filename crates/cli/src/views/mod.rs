//! Views of results: JSON, text for terminals, and SVG.

pub mod bench;
pub mod calibration;
pub mod embed;
pub mod env;
pub mod estimate;
pub mod finetune;
pub mod human;
pub mod image;
pub mod list;
pub mod memory;
pub mod output;
pub mod plan;
pub mod progress;
pub mod run;
pub mod style;
pub mod table;
pub mod text;
