//! What is wrong with a GGUF file.

/// What is wrong with a GGUF file, or asks for something that is not built in.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum GgufFault {
    /// The first bytes are others.
    #[error("the file does not begin with \"GGUF\": check that it is the right file")]
    NotGguf,
    /// Another version, or the byte order of another processor.
    #[error("GGUF version {found} is not supported, only 2 and 3 in little-endian byte order are")]
    Version {
        /// The version.
        found: u32,
    },
    /// The header goes on beyond the end of the file.
    #[error(
        "its header goes beyond the file's {len} bytes: it is cut short or damaged; download it again"
    )]
    CutShort {
        /// Bytes of the file.
        len: u64,
    },
    /// The header is larger than any real one.
    #[error("its header has more than {max} bytes")]
    TooLarge {
        /// Bytes allowed.
        max: u64,
    },
    /// There are more keys than any real file has.
    #[error("its metadata has {count} keys, over the limit of {max}")]
    TooManyKeys {
        /// Keys claimed.
        count: u64,
        /// Keys allowed.
        max: u64,
    },
    /// A key of the metadata.
    #[error("metadata {key}: {reason}")]
    Metadata {
        /// The key, fit for a terminal.
        key: String,
        /// What is wrong with it, or its value.
        reason: String,
    },
    /// Several vision encoders beside a language model.
    #[error("{one} and {other} beside it are both vision encoders for it: name one")]
    SeveralEncoders {
        /// The name of the first, fit for a terminal.
        one: String,
        /// The name of the second.
        other: String,
    },
    /// A tensor.
    #[error("tensor {tensor}: {reason}")]
    Tensor {
        /// Its name, fit for a terminal.
        tensor: String,
        /// What is wrong with it.
        reason: String,
    },
}
