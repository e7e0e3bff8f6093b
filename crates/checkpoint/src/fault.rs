use crate::dtype::UnknownDtype;

/// What is wrong with a `.safetensors` file.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HeaderFault {
    /// The file is of another format, known by its first bytes.
    #[error("this is {what}, not a safetensors file; {advice}")]
    OtherFormat {
        /// The format, in words.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The file is too short to hold the eight bytes of the header's length.
    #[error("the file has {len} bytes, too few for a safetensors file; download it again")]
    TooShort {
        /// Bytes of the file.
        len: u64,
    },
    /// The header claims more bytes than the format allows.
    #[error(
        "the header claims {len} bytes, over the format's limit of {max}; this is not a \
         safetensors file"
    )]
    HeaderTooLarge {
        /// Bytes claimed.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The header claims more bytes than the file has.
    #[error(
        "the header claims {len} bytes, and the file has {file_len}: it is cut short; download it \
         again"
    )]
    HeaderBeyondEnd {
        /// Bytes claimed.
        len: u64,
        /// Bytes of the file.
        file_len: u64,
    },
    /// The header does not start with `{`, as the format demands.
    #[error("the header does not start with '{{', so this is not a safetensors file")]
    NotAnObject,
    /// The header is not JSON of the right form, a name in it is no sane one, or a tensor has too
    /// many dimensions.
    #[error("the header is not valid: {detail}")]
    Json {
        /// What is wrong and where in the header.
        detail: String,
    },
    /// Two tensors have the same name, which most readers of JSON hide.
    #[error("tensor {tensor:?} is defined twice")]
    Duplicate {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor's dtype is not one that is supported.
    #[error("tensor {tensor:?}: {cause}")]
    Dtype {
        /// The tensor's name.
        tensor: String,
        /// The dtype.
        cause: UnknownDtype,
    },
    /// A tensor's size does not fit the machine's integers.
    #[error("tensor {tensor:?}: its shape is too large to be real")]
    Overflow {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor ends before it starts.
    #[error("tensor {tensor:?} starts at byte {start} of the data and ends before that, at {end}")]
    Reversed {
        /// The tensor's name.
        tensor: String,
        /// Its start in the data.
        start: u64,
        /// Its end in the data.
        end: u64,
    },
    /// A tensor has another size than its shape and dtype say.
    #[error(
        "tensor {tensor:?} should have {expected} bytes by its shape and dtype, and has {found}"
    )]
    SizeMismatch {
        /// The tensor's name.
        tensor: String,
        /// Bytes by shape and dtype.
        expected: u64,
        /// Bytes by its offsets.
        found: u64,
    },
    /// A tensor ends beyond the file.
    #[error(
        "tensor {tensor:?} ends at byte {end} of the data, and the file holds {data_len}: it is \
         cut short; download it again"
    )]
    BeyondEnd {
        /// The tensor's name.
        tensor: String,
        /// Its end in the data.
        end: u64,
        /// Bytes of data in the file.
        data_len: u64,
    },
    /// Two tensors share bytes.
    #[error("tensor {tensor:?} starts inside tensor {other:?}")]
    Overlap {
        /// The later tensor.
        tensor: String,
        /// The tensor before it.
        other: String,
    },
    /// Bytes that belong to no tensor lie before a tensor.
    #[error("{bytes} bytes before tensor {tensor:?} belong to no tensor")]
    Hole {
        /// The tensor after the hole.
        tensor: String,
        /// Bytes of the hole.
        bytes: u64,
    },
    /// Bytes that belong to no tensor lie at the end of the file.
    #[error("the last {bytes} bytes of the file belong to no tensor")]
    TrailingBytes {
        /// Bytes beyond the last tensor.
        bytes: u64,
    },
}

/// What is wrong with an index of shards.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum IndexFault {
    /// The index is larger than any real one.
    #[error("the index has {len} bytes, over the limit of {max}")]
    TooLarge {
        /// Bytes of the index.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The file is of another format, known by its first bytes.
    #[error("this is {what}, not an index of shards; {advice}")]
    OtherFormat {
        /// The format, in words.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The index is not JSON of the right form, or a name in it is no sane one.
    #[error("the index is not valid: {detail}")]
    Json {
        /// What is wrong and where in the index.
        detail: String,
    },
    /// A tensor has two places, which most readers of JSON hide.
    #[error("tensor {tensor:?} is defined twice")]
    Duplicate {
        /// The tensor's name.
        tensor: String,
    },
    /// The index names more shards than any real one.
    #[error("the index names more than {max} shards")]
    TooManyShards {
        /// Shards allowed.
        max: usize,
    },
    /// The headers of all shards have more bytes than those of any real checkpoint.
    #[error("the headers of its shards have more than {max} bytes together")]
    HeadersTooLarge {
        /// Bytes allowed.
        max: u64,
    },
    /// The index names no tensor.
    #[error("the index names no tensors")]
    Empty,
    /// A shard's name is not a plain relative path that stays in the folder.
    #[error(
        "tensor {tensor:?} is said to be in {file:?}, which is not the name of a file inside the \
         folder"
    )]
    UnsafePath {
        /// The tensor's name.
        tensor: String,
        /// The shard's name.
        file: String,
    },
    /// Shards that the index names are not there.
    #[error("{missing} of {shards} shards are missing, {file:?} first; complete the download")]
    MissingShards {
        /// The first shard missing.
        file: String,
        /// How many are missing.
        missing: usize,
        /// How many the index names.
        shards: usize,
    },
    /// A shard does not hold a tensor that the index places there.
    #[error(
        "tensor {tensor:?} is said to be in {file:?}, which does not hold it; download both again"
    )]
    NotInShard {
        /// The tensor's name.
        tensor: String,
        /// The shard's name.
        file: String,
    },
}

/// What is wrong with the tensors declared for writing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SpecFault {
    /// Two tensors have the same name.
    #[error("tensor {tensor:?} is declared twice")]
    Duplicate {
        /// The tensor's name.
        tensor: String,
    },
    /// A tensor's name is one that would not be read back.
    #[error("{tensor:?} {what}")]
    Name {
        /// The name, its middle left out if it is very long.
        tensor: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// A tensor has more dimensions than are read back.
    #[error("tensor {tensor:?} has {rank} dimensions, over the limit of {max}")]
    Rank {
        /// The tensor's name.
        tensor: String,
        /// Dimensions that it has.
        rank: usize,
        /// Dimensions allowed.
        max: usize,
    },
    /// There would be more shards than are read back.
    #[error("there would be {count} shards, over the limit of {max}: ask for larger shards")]
    TooManyShards {
        /// Shards that there would be.
        count: usize,
        /// Shards allowed.
        max: usize,
    },
    /// A tensor is called as the format calls the header's notes.
    #[error("no tensor can be called \"__metadata__\": the name belongs to the format")]
    Reserved,
    /// A tensor's size, or the sum of all, does not fit the machine's integers.
    #[error(
        "tensor {tensor:?} is too large to be real, or too large together with those before it"
    )]
    Overflow {
        /// The tensor's name.
        tensor: String,
    },
    /// A shard's header would be over the format's limit.
    #[error(
        "the header of shard {file} would have {len} bytes, over the format's limit of {max}: ask \
         for smaller shards"
    )]
    HeaderTooLarge {
        /// The shard's name.
        file: String,
        /// Bytes of the header.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
}
