//! What a pipeline tells those who watch.

use outsize_plan::DeviceMap;
use outsize_stream::Stats;

use crate::part::PartPlan;
use crate::pipeline_part::PipelinePart;
use crate::planning::ImagePrediction;

/// What is being done, for those who want to watch.
#[derive(Debug)]
pub enum ImageProgress<'a> {
    /// It is decided where the weights of each part live.
    Planned {
        /// The decision.
        plans: &'a [PartPlan],
        /// How long the pictures will take.
        prediction: &'a ImagePrediction,
    },
    /// There was no room for the end of a prompt.
    Cut {
        /// The text that is not heard.
        text: &'a str,
    },
    /// It is a part's turn.
    Began {
        /// Which.
        part: PipelinePart,
        /// Where its weights live.
        map: &'a DeviceMap,
    },
    /// A step is done.
    Step {
        /// The picture, from 0.
        picture: usize,
        /// Steps that are done of it.
        done: usize,
        /// Steps of each picture: of some schedulers one more than were asked for.
        steps: usize,
        /// Rows and columns of the latents.
        size: [usize; 2],
        /// The latents, `[rows, columns, channels]`.
        latents: &'a [f32],
    },
    /// A part is done.
    Ended {
        /// Which.
        part: PipelinePart,
        /// What it read and waited for.
        stats: Stats,
    },
}
