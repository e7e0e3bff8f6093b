//! A plan as JSON, as text for a terminal, and as an SVG.

mod bar;
mod canvas;
mod page;
mod palette;
mod report;
mod rows;
mod svg;
mod terminal;
mod what_if;
mod words;

pub use report::{ModelReport, PlanReport, Planned, stored_bytes};

#[cfg(test)]
mod drawing_tests;
#[cfg(test)]
mod report_tests;
