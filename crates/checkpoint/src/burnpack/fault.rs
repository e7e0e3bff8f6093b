use crate::fault::HeaderFault;

/// What is wrong with a burnpack file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BurnpackFault {
    /// The file is of another format, known by its first bytes.
    #[error("this is {what}, not a burnpack file; {advice}")]
    OtherFormat {
        /// The format, in words.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The file begins with other bytes than burnpack does.
    #[error("this is not a burnpack file, as save_file of a Burn module writes it")]
    NotBurnpack,
    /// The file is too short to hold a header.
    #[error("the file has {len} bytes, too few for a burnpack file; save it again")]
    TooShort {
        /// Bytes of the file.
        len: u64,
    },
    /// The file is of another version of the format.
    #[error("this is version {found} of burnpack, and only version 1 is read")]
    Version {
        /// The version.
        found: u16,
    },
    /// The metadata claims more bytes than Burn reads.
    #[error("the metadata claims {len} bytes, over the limit of {max}")]
    MetadataTooLarge {
        /// Bytes claimed.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The metadata claims more bytes than the file has.
    #[error(
        "the metadata claims {len} bytes, and the file has {file_len}: it is cut short; copy or \
         save it again"
    )]
    MetadataBeyondEnd {
        /// Bytes claimed.
        len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// The metadata is not CBOR of the right form, a name in it is no sane one, or a tensor has too
    /// many dimensions.
    #[error("the metadata is not valid: {detail}")]
    Metadata {
        /// What is wrong and where.
        detail: String,
    },
    /// A tensor's values are of a type that is not read.
    #[error(
        "tensor {tensor:?} is {what}, which is not read; save the module with values in f32, f16 or bf16"
    )]
    Dtype {
        /// The tensor's name.
        tensor: String,
        /// The type, in words.
        what: &'static str,
    },
    /// What the metadata says of a tensor contradicts the rest, or the file.
    #[error(transparent)]
    Tensor(#[from] HeaderFault),
}
