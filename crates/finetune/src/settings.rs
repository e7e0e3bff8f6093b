//! What a model is opened with to learn.

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outsize_lora::LoraConfig;
use outsize_models::ActivationDtype;
use outsize_plan::{Budget, HardwareProfile};

/// What a model is opened with to learn, as [`FinetuneBuilder`](crate::FinetuneBuilder) says.
#[derive(Debug, Clone)]
pub(crate) struct FinetuneSettings {
    pub model: PathBuf,
    pub lora: LoraConfig,
    pub adapter: Option<PathBuf>,
    pub max_memory: Option<Budget>,
    pub figures: HardwareProfile,
    pub compute: ActivationDtype,
    pub context: Option<usize>,
    pub batch: usize,
    pub seed: u64,
    pub stop: Option<Arc<AtomicBool>>,
}

impl FinetuneSettings {
    /// Whether the caller wants the work to end.
    pub fn is_stopped(&self) -> bool {
        self.stop.as_ref().is_some_and(|stop| stop.load(Ordering::Relaxed))
    }
}
