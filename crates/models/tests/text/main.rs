//! Models of text: beside other programs, and in any placement the same bits.

#[path = "../common/mod.rs"]
mod common;
#[path = "../low_rank/fixtures.rs"]
mod fixtures;

mod decoders;
mod defaults;
mod fields;
mod full;
mod gguf;
mod linear_attention;
mod llama;
mod low_rank;
mod low_rank_quantised;
mod placement;
mod refused;
mod resting;
mod scores;
mod snapshot;
mod t5;
mod training;
mod vision;
