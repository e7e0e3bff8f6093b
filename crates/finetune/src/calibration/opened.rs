//! A model that is opened to be quantised by what goes into its layers.

use std::collections::HashMap;
use std::path::Path;
use std::sync::Arc;

use outsize_checkpoint::{Checkpoint, ShardWriter};
use outsize_core::{InputObserver, Planning, Rewrite, memory_overhead};
use outsize_kernels::BufferReuse;
use outsize_models::{AfterBlock, Init, ModelConfig, Rewriting};
use outsize_plan::DeviceMap;

use super::gram::Gram;
use super::inputs::{BlockInputs, Known};
use super::texts::sequences;
use crate::builder::FinetuneBuilder;
use crate::memory::{infer_learning, observed_pass_bytes, reusable_bytes};
use crate::opened_model::OpenedModel;
use crate::{Examples, FinetuneError};

/// What rows take that become integers, as they are and on their way, in bytes.
const ROUNDING_BYTES: u64 = 64 << 20;

/// A model that is opened to be quantised by what goes into its layers: see
/// [`FinetuneBuilder::calibration`].
#[derive(Debug)]
pub struct OpenedCalibration {
    model: OpenedModel,
}

/// What came of it.
#[derive(Debug, Clone)]
pub struct CalibrationOutcome {
    /// Tokens that ran through the model.
    pub tokens: usize,
    /// Matrices that nothing went into, of which each weight was rounded by itself.
    pub unseen: usize,
    /// Where the model's weights were.
    pub placement: DeviceMap,
}

impl FinetuneBuilder {
    /// Opens the model to have its weights become integers, chosen by what texts give rise to in
    /// it. Of what the builder was told, that of adapters is not looked at.
    ///
    /// # Errors
    /// A model that cannot be run block by block; a file that is missing, broken, or asks for
    /// something that is not built in; settings out of range.
    pub fn calibration(self) -> Result<OpenedCalibration, FinetuneError> {
        let model = OpenedModel::new(self.settings)?;
        match model.config.observing_bytes([1, 1, 1]) {
            Some(_) => Ok(OpenedCalibration { model }),
            None => Err(FinetuneError::NoBlocks { model_type: model.config.model_type() }),
        }
    }
}

impl OpenedCalibration {
    /// Reads a file of texts, as
    /// [`OpenedFinetune::read_examples`](crate::OpenedFinetune::read_examples) does.
    ///
    /// # Errors
    /// A line that is none, with its number.
    pub fn read_examples(&self, path: impl AsRef<Path>) -> Result<Examples, FinetuneError> {
        self.model.read_examples(path.as_ref())
    }

    /// The model's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.model.config
    }

    /// The model's files.
    pub fn checkpoint(&self) -> &Checkpoint {
        &self.model.checkpoint
    }

    /// Runs at most so many `tokens` of texts through the model, block after block, and writes the
    /// weights of `rewriting`, which are those of this model: the integers of those that are
    /// [quantised](Rewriting::quantize) are chosen such that products with what the texts give rise
    /// to lose the least. `begun` is told of each block before it runs, and how many there are;
    /// `go_on` is asked before each piece of a weight.
    ///
    /// # Errors
    /// How many bytes of budget would do; what reading or writing said; [`FinetuneError::Stopped`].
    pub fn write(
        &self,
        examples: &Examples,
        tokens: usize,
        rewriting: &Rewriting,
        writer: &mut ShardWriter,
        begun: &dyn Fn(usize, usize),
        go_on: &dyn Fn(&ShardWriter) -> bool,
    ) -> Result<CalibrationOutcome, FinetuneError> {
        let OpenedModel { settings, config, checkpoint, reader, .. } = &self.model;
        let batches = sequences(examples, reader.context, settings.batch, tokens)?;
        let blocks = blocks(config, rewriting);
        let (map, most) = self.placed(batches.len(), &blocks)?;
        let mut options = config.options(checkpoint.tensors());
        options.stop = settings.stop.clone();
        let init = Init { compute: settings.compute, ..Init::new(&burn::tensor::Device::flex()) };
        let model = config.dispatch(&init, checkpoint, &map, &options)?;

        let _reuse = BufferReuse::up_to(reusable_bytes(config, [settings.batch, reader.context]));
        let inputs = Arc::new(BlockInputs::new(most));
        let observer: Arc<dyn InputObserver> = inputs.clone();
        let count = config.cache().layers.len();
        let begin = |block| {
            begun(block, count);
            let columns: Option<&HashMap<String, usize>> = blocks.get(&block);
            inputs.begin(columns.into_iter().flat_map(HashMap::keys).cloned());
        };
        let mut weights =
            Weights { rest: &rewriting.weights, checkpoint, go_on, inputs: &inputs, unseen: 0 };
        weights.write_until(writer, |path| config.block_of(path).is_none())?;
        let mut failed = None;
        begin(0);
        let ran = model.observe_blocks(&batches, &observer, &mut |block| {
            inputs.end_pass();
            let written = weights.write_until(writer, |path| {
                config.block_of(path).is_none_or(|other| other <= block)
            });
            match written {
                Ok(true) => {
                    if block + 1 < count {
                        begin(block + 1);
                    }
                    AfterBlock::Next
                }
                Ok(false) => AfterBlock::Again,
                Err(error) => {
                    failed = Some(error);
                    AfterBlock::Stop
                }
            }
        });
        if let Some(error) = failed {
            return Err(error);
        }
        match ran {
            Err(outsize_core::Error::Stopped) => return Err(FinetuneError::Stopped),
            ran => ran??,
        }
        weights.write_until(writer, |_| true)?;
        let tokens = batches.iter().map(|batch| batch.rows() * batch.tokens()).sum();
        Ok(CalibrationOutcome { tokens, unseen: weights.unseen, placement: map })
    }

    /// Where the weights live, and the most bytes of what is known of the inputs of a block: as
    /// many as its layers need, if there is room.
    fn placed(
        &self,
        batches: usize,
        blocks: &HashMap<usize, HashMap<String, usize>>,
    ) -> Result<(DeviceMap, u64), FinetuneError> {
        let OpenedModel { settings, config, checkpoint, tree, reader, .. } = &self.model;
        let budget = self.model.budget()?;
        let sizes = [batches, settings.batch, reader.context];
        let pass = observed_pass_bytes(config, settings.compute, sizes).unwrap_or(u64::MAX);
        let grams = |of: &HashMap<String, usize>| -> Vec<u64> {
            of.values().map(|columns| Gram::bytes(*columns)).collect()
        };
        let grams: Vec<Vec<u64>> = blocks.values().map(grams).collect();
        let all = grams.iter().map(|of| of.iter().sum::<u64>()).max().unwrap_or(0);
        let least = grams.iter().flatten().copied().max().unwrap_or(0);
        let process = self.model.process();
        let placed = |most: u64| {
            let needed = pass.saturating_add(most).saturating_add(ROUNDING_BYTES);
            let options = outsize_core::Options {
                planning: Planning { figures: settings.figures.clone(), ..Planning::default() },
                needs: memory_overhead(process, needed),
                ..config.options(checkpoint.tensors())
            };
            infer_learning(config, tree, &budget, &options).map(|map| (map, most))
        };
        let parts = [all, all / 2, all / 4, all / 8, least];
        let placed = parts.into_iter().filter(|most| *most >= least).map(placed);
        let mut last = None;
        for placed in placed {
            match placed {
                Ok(placed) => return Ok(placed),
                Err(error) => last = Some(error),
            }
        }
        Err(outsize_core::Error::from(last.expect("the least is always tried")).into())
    }
}

/// The columns of the matrices that are quantised, by block and path.
fn blocks(config: &ModelConfig, rewriting: &Rewriting) -> HashMap<usize, HashMap<String, usize>> {
    let mut blocks: HashMap<usize, HashMap<String, usize>> = HashMap::new();
    for (path, _, columns) in rewriting.weights.iter().filter_map(Rewrite::quantized) {
        if let Some(block) = config.block_of(path) {
            blocks.entry(block).or_default().insert(path.to_owned(), columns);
        }
    }
    blocks
}

/// Weights that are still to be written.
struct Weights<'a> {
    rest: &'a [Rewrite],
    checkpoint: &'a Checkpoint,
    go_on: &'a dyn Fn(&ShardWriter) -> bool,
    inputs: &'a BlockInputs,
    unseen: usize,
}

impl Weights<'_> {
    /// Writes weights up to the first quantised one whose path is none of `these`; no further than
    /// one of which more has to be known: then it gives false.
    fn write_until(
        &mut self,
        writer: &mut ShardWriter,
        these: impl Fn(&str) -> bool,
    ) -> Result<bool, FinetuneError> {
        let stopped = |error| match error {
            outsize_core::Error::Stopped => FinetuneError::Stopped,
            error => error.into(),
        };
        while let [weight, rest @ ..] = self.rest {
            let Some((path, rounding, columns)) = weight.quantized() else {
                weight.write(self.checkpoint, writer, self.go_on).map_err(stopped)?;
                self.rest = rest;
                continue;
            };
            if !these(path) {
                break;
            }
            match self.inputs.take(path, columns) {
                Known::Later => return Ok(false),
                Known::Nothing => {
                    self.unseen += 1;
                    weight.write(self.checkpoint, writer, self.go_on).map_err(stopped)?;
                }
                Known::Feedback(feedback) => {
                    let round = |rows: &[f32]| feedback.round(rounding, rows);
                    let written = weight.write_rounded(self.checkpoint, writer, self.go_on, &round);
                    written.map_err(stopped)?;
                }
            }
            self.rest = rest;
        }
        Ok(true)
    }
}
