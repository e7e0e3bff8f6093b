//! What can go wrong with a picture.

use std::path::PathBuf;

/// What can go wrong with a picture.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A picture cannot be read.
    #[error("{name}: {reason}; pictures are read as PNG, JPEG and WebP")]
    Image {
        /// The file, or what else it came in.
        name: String,
        /// What the decoder said.
        reason: String,
    },
    /// A picture cannot be made a PNG.
    #[error("cannot write {}: {reason}", path.display())]
    Png {
        /// The file.
        path: PathBuf,
        /// What the encoder said.
        reason: String,
    },
    /// A file cannot be written.
    #[error(transparent)]
    Write(#[from] outsize_checkpoint::Error),
}
