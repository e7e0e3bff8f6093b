//! A model without its weights, of whatever kind it is.

use outsize::diffuse::ImageModel;
use outsize::generate::{Described, SizeSource};

/// A model without its weights.
pub enum ModelDescription {
    /// A language model.
    Text(Box<Described>),
    /// A model of pictures, and what a user should know of it.
    Pictures(Box<ImageModel>, Vec<String>),
}

impl ModelDescription {
    /// A language model.
    pub fn text(described: Described) -> Self {
        Self::Text(Box::new(described))
    }

    /// A model of pictures, with what else a user should know than it says itself.
    pub fn pictures(model: ImageModel, more: Vec<String>) -> Self {
        let notes = model.notes().into_iter().chain(more).collect();
        Self::Pictures(Box::new(model), notes)
    }

    /// Whether it is more than what a configuration says.
    pub fn has_weights(&self) -> bool {
        match self {
            Self::Text(described) => described.source != SizeSource::Config,
            Self::Pictures(..) => true,
        }
    }
}
