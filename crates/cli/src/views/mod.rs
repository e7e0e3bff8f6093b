//! What results look like: text for terminals, and SVG.

pub mod estimate;
pub mod human;
pub mod plan;
pub mod style;
pub mod text;
