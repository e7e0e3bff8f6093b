//! The report of `outsize image`, and the parts of a pipeline as `outsize plan` and `estimate` show
//! them.

use super::human;
use super::memory::GpuPools;
use super::style::WIDTH;
use super::table::Table;
use super::text::wrapped;
use outsize::checkpoint::plain;
use outsize::diffuse::{ImagePrediction, PartPlan, PipelinePart};
use outsize::plan::{DeviceMap, Estimate, Tier, format_size};
use outsize::stream::Stats;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The result of `outsize image --json`. All times in seconds, all sizes in bytes.
#[derive(Debug, Serialize)]
pub struct ImageOutput {
    /// The files written.
    pub pictures: Vec<PictureOutput>,
    /// Pixels of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// Steps that were asked for.
    pub steps: usize,
    /// The scheduler's class.
    pub scheduler: &'static str,
    /// The guidance scale.
    pub guidance_scale: f32,
    /// Mean over all steps but the first; none if there was one only.
    pub seconds_per_step: Option<f64>,
    /// From the start of the process until the files were written.
    pub seconds: f64,
    /// The parts, in the order in which they took turns.
    pub parts: Vec<PartOutput>,
    /// How long it was predicted to take.
    pub predicted: Option<PredictionOutput>,
    /// The largest resident set of the process.
    pub peak_rss_bytes: Option<u64>,
    /// The ends of prompts for which there was no room.
    pub cut: Vec<String>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// A picture that was written.
#[derive(Debug, Serialize)]
pub struct PictureOutput {
    /// The file.
    pub path: PathBuf,
    /// The seed of its noise.
    pub seed: u64,
}

/// One part's turn.
#[derive(Debug, Serialize)]
pub struct PartOutput {
    /// vision_encoder, text_encoder, text_encoder_2, vae_encoder, unet, transformer or vae.
    pub part: &'static str,
    /// How long its turn was.
    pub seconds: f64,
    /// Read from its files.
    pub bytes_read: u64,
    /// Time that computing waited for weights.
    pub waiting_for_data_seconds: f64,
    /// What the memory pools of the GPUs that computed it held when it was done.
    pub gpu_memory_bytes: GpuPools,
    /// Where its weights lived.
    pub placement: DeviceMap,
}

impl PartOutput {
    /// A part whose turn begins.
    pub fn new(part: PipelinePart, map: &DeviceMap) -> Self {
        Self {
            part: part.name(),
            seconds: 0.0,
            bytes_read: 0,
            waiting_for_data_seconds: 0.0,
            gpu_memory_bytes: GpuPools::default(),
            placement: map.clone(),
        }
    }

    /// Notes what its turn took.
    pub fn ended(&mut self, elapsed: Duration, stats: &Stats) {
        self.seconds = elapsed.as_secs_f64();
        self.bytes_read = stats.bytes_read;
        self.waiting_for_data_seconds = stats.waiting_for_data.as_secs_f64();
        self.gpu_memory_bytes = GpuPools::now(&self.placement);
    }
}

impl ImageOutput {
    /// A summary in a few lines.
    pub fn summary(&self) -> String {
        let files: Vec<_> =
            self.pictures.iter().map(|one| one.path.display().to_string()).collect();
        let step = self
            .seconds_per_step
            .map_or_else(String::new, |step| format!(" · {} per step", human::seconds(step)));
        let parts = self.parts.iter().map(|part| {
            let read = format_size(part.bytes_read);
            let (seconds, gpus) = (human::seconds(part.seconds), &part.gpu_memory_bytes);
            format!("{} {seconds} ({read} read{gpus})", part.part)
        });
        let peak = self
            .peak_rss_bytes
            .map_or_else(String::new, |peak| format!(" · peak memory {}", format_size(peak)));
        format!(
            "wrote {}\n{}{step}{peak}\n{}",
            files.join(", "),
            human::seconds(self.seconds),
            parts.collect::<Vec<_>>().join(" · ")
        )
    }
}

/// How long pictures are predicted to take.
#[derive(Debug, Serialize)]
pub struct PredictionOutput {
    #[serde(flatten)]
    pub prediction: ImagePrediction,
    /// Where the figures of the machine come from.
    pub figures_source: String,
}

impl PredictionOutput {
    /// In one line, without where the figures come from.
    pub fn text(&self) -> String {
        let time = &self.prediction;
        format!(
            "{}: text encoding {}, {} passes of the denoiser {} ({} each after the first), decoder {}",
            human::seconds(time.seconds),
            human::seconds(time.text_encoder_seconds),
            time.steps,
            human::seconds(time.denoiser_seconds),
            human::seconds(time.seconds_per_step),
            human::seconds(time.vae_seconds),
        )
    }
}

/// The parts of a pipeline. All sizes in bytes.
#[derive(Debug, Serialize)]
pub struct PartsOutput {
    /// The model as it was named.
    pub model: String,
    /// Width and height of the picture that activations are counted for.
    pub size: [usize; 2],
    /// Whether a negative prompt is looked at too.
    pub guidance: bool,
    /// The parts, which take turns in memory.
    pub parts: Vec<PartRow>,
    /// The least budget with which each part runs.
    pub least: Option<u64>,
    /// How long a picture of that size takes: placed as planned, or with all weights in memory.
    /// None for a scheduler that is not built in.
    pub prediction: Option<PredictionOutput>,
    /// What a user should know.
    pub notes: Vec<String>,
}

/// A part, and what its turn takes.
#[derive(Debug, Serialize)]
pub struct PartRow {
    /// vision_encoder, text_encoder, text_encoder_2, vae_encoder, unet, transformer or vae.
    pub part: &'static str,
    /// What it takes as it is stored.
    pub estimate: Estimate,
    /// Where its weights live, if there is a budget.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<DeviceMap>,
}

impl PartsOutput {
    /// The parts with their estimates, the plans of those that are planned, and how long a picture
    /// takes.
    pub fn new(
        model: &Path,
        (size, guidance): ([usize; 2], bool),
        (plans, prediction): (&[PartPlan], Option<PredictionOutput>),
        estimates: Vec<(PipelinePart, Estimate)>,
        notes: Vec<String>,
    ) -> Self {
        let least = estimates.iter().map(|(_, estimate)| estimate.least).max().flatten();
        let row = |(part, estimate): (PipelinePart, Estimate)| PartRow {
            part: part.name(),
            estimate,
            placement: plans.iter().find(|plan| plan.part == part).map(|plan| plan.map.clone()),
        };
        Self {
            model: model.display().to_string(),
            size,
            guidance,
            parts: estimates.into_iter().map(row).collect(),
            least,
            prediction,
            notes,
        }
    }

    /// A table of the parts.
    pub fn text(&self, terminal: Option<usize>) -> String {
        let width = terminal.unwrap_or(WIDTH);
        let planned = self.parts.iter().any(|row| row.placement.is_some());
        let mut table = Table::default();
        match planned {
            true => {
                table.row([
                    "part",
                    "weights",
                    "in memory",
                    "streamed",
                    "ring",
                    "activations",
                    "holds",
                ]);
            }
            false => {
                table.row(["part", "parameters", "weights", "activations", "to run", "at least"]);
            }
        }
        for row in &self.parts {
            table.0.push(cells(row));
        }
        table.align_right(&[1, 2, 3, 4, 5, 6]);
        let least = self.least.map_or_else(String::new, |least| {
            format!(" and run with {} at least", format_size(least))
        });
        let [columns, rows] = self.size;
        let guidance = if self.guidance { " with guidance" } else { "" };
        let mut text = format!("{}\n\n{}\n", plain(&self.model), table.text(width));
        let mut lines = vec![format!(
            "The parts take turns in memory{least}, for a picture of {columns} x {rows}{guidance}. Weights are counted \
             as they are stored."
        )];
        if let Some(prediction) = &self.prediction {
            let source = prediction.figures_source.as_str();
            lines.push(format!(
                "{}uch a picture takes {}. Figures: {}.",
                if planned { "S" } else { "With all weights in memory, s" },
                prediction.text(),
                source.strip_prefix("figures ").unwrap_or(source)
            ));
        }
        lines.extend(self.notes.iter().map(|note| format!("note: {note}")));
        for line in lines {
            for line in wrapped(line.split(' '), width, width) {
                text += &(line + "\n");
            }
        }
        text
    }
}

fn cells(row: &PartRow) -> Vec<String> {
    let estimate = &row.estimate;
    let size = |bytes: Option<u64>| bytes.map_or_else(|| "unknown".to_owned(), format_size);
    match &row.placement {
        Some(map) => vec![
            match map.blocks().first().map(|block| block.decode_on) {
                Some(gpu @ Tier::Gpu(_)) => format!("{} on {gpu}", row.part),
                _ => row.part.to_owned(),
            },
            format_size(estimate.weights),
            format_size(map.resident_bytes()),
            format_size(map.streamed_bytes()),
            format_size(map.ring_bytes()),
            format_size(map.needs().activations),
            format_size(map.memory_bytes()),
        ],
        None => vec![
            row.part.to_owned(),
            human::parameters(estimate.parameters),
            format_size(estimate.weights),
            size(estimate.activations),
            size(estimate.resident),
            size(estimate.least),
        ],
    }
}
