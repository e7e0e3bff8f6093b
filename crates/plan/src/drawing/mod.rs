//! A plan as a person sees it: in a terminal, and as an SVG.

mod bar;
mod palette;
mod rows;
mod svg;
mod terminal;
mod text;
mod words;

pub(crate) use rows::numbered;
pub use terminal::Style;
pub(crate) use text::plain;
