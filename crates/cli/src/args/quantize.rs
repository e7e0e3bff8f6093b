//! `outsize quantize`.

use super::values::{Named, batch, one_of, some, some_bytes};
use clap::Args;
use outsize::checkpoint::IntegerWidth;
use outsize::plan::Budget;
use std::path::PathBuf;

const INTEGERS: &Named<IntegerWidth> = &[
    ("int4", "Integers of 4 bits", IntegerWidth::U4),
    ("int8", "Integers of 8 bits", IntegerWidth::U8),
];

/// `outsize quantize`.
#[derive(Args, Debug)]
pub struct QuantizeArgs {
    /// A checkpoint's folder, its file of weights (.safetensors, .bin, .gguf), or a model on the
    /// Hub as org/name
    pub model: PathBuf,
    /// Folder to make; must not exist
    pub out: PathBuf,
    /// What the weights of linear layers become
    #[arg(long, value_parser = one_of(INTEGERS), default_value = "int4")]
    pub dtype: IntegerWidth,
    /// Neighbouring weights that share a scale; 0 for all of a row [default: 32 of int4, all of
    /// int8]
    #[arg(long, value_name = "N")]
    pub group_size: Option<usize>,
    /// Texts such as the model will meet, which run through it: the integers are then chosen such
    /// that its layers' results change the least, as GPTQ does. JSON, one object a line, {"text":
    /// ".."}, {"prompt": "..", "completion": ".."} or {"messages": [..]}
    #[arg(long, value_name = "FILE")]
    pub texts: Option<PathBuf>,
    /// The largest file
    #[arg(long, default_value = "5GB", value_name = "SIZE", value_parser = some_bytes)]
    pub max_shard_size: u64,
    /// Print one JSON object instead of text
    #[arg(long)]
    pub json: bool,
    #[command(flatten)]
    pub calibration: CalibrationArgs,
}

/// How texts run through the model.
#[derive(Args, Debug)]
#[command(next_help_heading = "With --texts")]
pub struct CalibrationArgs {
    /// The most memory to hold, the process itself included: `cpu=4GB` [default: nine tenths of
    /// what is available]
    #[arg(long, value_name = "DEVICE=SIZE", value_parser = Budget::parse, requires = "texts")]
    pub max_memory: Option<Budget>,
    /// The most tokens of the texts
    #[arg(long, value_name = "N", value_parser = some(), default_value = "16384", requires = "texts")]
    pub tokens: usize,
    /// Tokens of a sequence that they are cut to [default: 512, or as many as the model can have]
    #[arg(long, value_name = "N", value_parser = some(), requires = "texts")]
    pub context: Option<usize>,
    /// Sequences of one pass over a block
    #[arg(long, value_name = "N", value_parser = batch(), default_value = "4", requires = "texts")]
    pub batch: usize,
}
