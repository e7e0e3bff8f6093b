use crate::dtype::Dtype;

/// What is wrong with a file that `torch.save` should have written.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum TorchFault {
    /// The file is of another format, known by its first bytes.
    #[error("this is {what}, not a file of torch.save; {advice}")]
    OtherFormat {
        /// The format, in words.
        what: &'static str,
        /// What to do.
        advice: &'static str,
    },
    /// The file is a bare pickle, as `torch.save` wrote it before PyTorch 1.6.
    #[error(
        "this is the format of torch.save from before PyTorch 1.6 (or with \
         _use_new_zipfile_serialization=False), which is not read: load it with torch and save it \
         again"
    )]
    Legacy,
    /// The file is an archive of TorchScript, which holds code.
    #[error(
        "this is TorchScript (torch.jit.save), which holds code; save the model's state_dict() \
         with torch.save"
    )]
    TorchScript,
    /// The file does not end as a zip archive does.
    #[error(
        "this is no zip archive of torch.save, or not a whole one: it has {len} bytes and no \
         directory at its end; download it again"
    )]
    NoDirectory {
        /// Bytes of the file.
        len: u64,
    },
    /// The directory of the archive contradicts itself or the file.
    #[error("the directory of the zip archive is damaged: {what}; download the file again")]
    Directory {
        /// What is wrong with it.
        what: &'static str,
    },
    /// A part of the file that is read at once is larger than any real one.
    #[error("{what} has {len} bytes, over the limit of {max}")]
    TooLarge {
        /// The part.
        what: &'static str,
        /// Bytes that it has.
        len: u64,
        /// Bytes allowed.
        max: u64,
    },
    /// The archive has no `data.pkl`, or several.
    #[error("the zip archive has {found} data.pkl where torch.save writes one")]
    NoPickle {
        /// How many there are: `no` or `more than one`.
        found: &'static str,
    },
    /// A member of the archive cannot be read in place.
    #[error("member {member:?} of the zip archive {what}")]
    Member {
        /// The member's name.
        member: String,
        /// What is wrong with it, and what to do.
        what: &'static str,
    },
    /// Two members share bytes.
    #[error("member {member:?} of the zip archive starts inside member {other:?}")]
    Overlap {
        /// The later member.
        member: String,
        /// The member before it.
        other: String,
    },
    /// The numbers are in another byte order.
    #[error("its byte order is {found:?}, and only \"little\" is read")]
    ByteOrder {
        /// What the member `byteorder` says.
        found: String,
    },
    /// `data.pkl` is not a pickle that `torch.save` writes for a state dict.
    #[error("data.pkl is not the pickle of a state dict: {what} at byte {at}")]
    Pickle {
        /// What is wrong.
        what: String,
        /// The first byte of the opcode at fault.
        at: usize,
    },
    /// `data.pkl` refers to a Python function or class that no state dict needs.
    #[error(
        "data.pkl refers to {name:?}, which is no part of a state dict; code in a pickle is never \
         run: where you trust the file, load it with torch and save model.state_dict() alone"
    )]
    Global {
        /// The module and the name, joined by a dot.
        name: String,
    },
    /// What was saved is not a state dict.
    #[error("data.pkl holds {what}; save model.state_dict() alone")]
    NotAStateDict {
        /// What it holds.
        what: String,
    },
    /// A tensor that cannot be read where it lies.
    #[error("tensor {tensor:?} {what}")]
    Tensor {
        /// The tensor's name.
        tensor: String,
        /// What is wrong with it, and what to do.
        what: String,
    },
    /// A storage that `data.pkl` refers to is missing or too short.
    #[error(
        "tensor {tensor:?} is in storage {storage:?}, {what}: the file is damaged; download it \
         again"
    )]
    Storage {
        /// The first tensor in it.
        tensor: String,
        /// The storage's key, which names its member of the archive.
        storage: String,
        /// What is wrong with it.
        what: String,
    },
}

impl TorchFault {
    /// A tensor of which more bytes are claimed than its storage has.
    pub(super) fn outside(tensor: &str, dtype: Dtype, shape: &[usize]) -> Self {
        Self::Tensor {
            tensor: tensor.to_owned(),
            what: format!("({dtype} {shape:?}) reaches beyond its storage"),
        }
    }
}
