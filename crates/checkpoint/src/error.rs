use std::io;
use std::path::PathBuf;

use crate::burnpack::BurnpackFault;
use crate::fault::{HeaderFault, IndexFault, SpecFault};
use crate::gguf::GgufFault;
use crate::torch::TorchFault;

/// Why a checkpoint could not be opened, read or written.
///
/// Every message is complete in itself: it names the file, what is wrong and, where there is
/// something, what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The path given leads nowhere.
    #[error(
        "{path}: no such file or folder; give a checkpoint folder, a .safetensors, .gguf, .bin or .bpk file \
         (a model on the Hub must be downloaded first)"
    )]
    NotFound {
        /// The path as given.
        path: PathBuf,
    },
    /// A file was expected and something else is there: a folder, a pipe, a device.
    #[error("{path} is not a regular file, and a checkpoint's files must be")]
    NotAFile {
        /// The path of what is there.
        path: PathBuf,
    },
    /// A file was given whose name is not that of a checkpoint's file or index.
    #[error(
        "{path} is not a .safetensors file, nor a .bin file of torch.save or a .bpk file of Burn; give one, or the \
         folder of a checkpoint"
    )]
    NotACheckpoint {
        /// The path as given.
        path: PathBuf,
    },
    /// A folder without a file or index of the usual names.
    #[error(
        "{folder} holds no checkpoint: looked for model.safetensors, pytorch_model.bin and their \
         .index.json, and model.bpk, and found {found}"
    )]
    NoCheckpoint {
        /// The folder.
        folder: PathBuf,
        /// What is there instead, in words, with advice where there is some.
        found: String,
    },
    /// A folder whose weights are in a file of PyTorch that has another layout or name than those
    /// of transformers.
    #[error(
        "{folder} holds its weights only in {file}, which is not looked into; give the path of the \
         file to read its tensors, or convert it with transformers to run the model"
    )]
    PickleOnly {
        /// The folder.
        folder: PathBuf,
        /// The file found in it.
        file: String,
    },
    /// A file of `torch.save` that is wrong, or holds something else than a state dict.
    #[error("{path}: {fault}")]
    Torch {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: TorchFault,
    },
    /// A GGUF file that is wrong, or asks for something that is not built in.
    #[error("{path}: {fault}")]
    Gguf {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: GgufFault,
    },
    /// A `.safetensors` file whose header, or whose size, is wrong.
    #[error("{path}: {fault}")]
    Header {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: HeaderFault,
    },
    /// A burnpack file that is cut short, corrupt or not burnpack.
    #[error("{path}: {fault}")]
    Burnpack {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        fault: BurnpackFault,
    },
    /// An index of shards that is wrong, or disagrees with the shards.
    #[error("{path}: {fault}")]
    Index {
        /// The index file.
        path: PathBuf,
        /// What is wrong with it.
        fault: IndexFault,
    },
    /// What came of a file that is far away is not what was asked for.
    #[error("{path} {what}")]
    Remote {
        /// The file.
        path: PathBuf,
        /// What is wrong with what came, and what to do.
        what: String,
    },
    /// The operating system refused to open, list or read something.
    #[error("cannot read {path}: {cause}")]
    Read {
        /// The file or folder.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The data of one tensor could not be read.
    #[error("cannot read tensor {tensor:?} from {path}: {cause}")]
    ReadTensor {
        /// The tensor's name.
        tensor: String,
        /// The file that holds it.
        path: PathBuf,
        /// What the operating system said; an unexpected end means that the file changed since it
        /// was opened.
        cause: io::Error,
    },
    /// A range outside the tensor was asked for, or the tensor belongs to another checkpoint.
    #[error(
        "bytes {start} to {end} were requested of tensor {tensor:?}, which has {len} in file {file} \
         of a checkpoint of {files} files"
    )]
    OutOfRange {
        /// The tensor's name.
        tensor: String,
        /// First byte asked for, from the tensor's start.
        start: u64,
        /// End of the range asked for (exclusive), from the tensor's start.
        end: u64,
        /// Bytes that the tensor has.
        len: u64,
        /// The file that the tensor says it is in, as an index.
        file: usize,
        /// Files that the checkpoint has.
        files: usize,
    },
    /// There is no memory for a tensor's bytes.
    #[error("tensor {tensor:?} needs {len} bytes of memory, which the system cannot provide")]
    OutOfMemory {
        /// The tensor's name.
        tensor: String,
        /// Bytes asked for.
        len: u64,
    },
    /// The tensors declared for writing cannot be laid out.
    #[error("cannot lay out a checkpoint: {fault}")]
    Specs {
        /// What is wrong with them.
        fault: SpecFault,
    },
    /// Something is where the output should be that is not replaced: for a checkpoint a file or a
    /// folder with something in it, for a file a folder or a device, for both a link to nothing.
    #[error("{path} {what}, and is never overwritten; choose another name or remove it first")]
    OutputExists {
        /// The output.
        path: PathBuf,
        /// What is there.
        what: &'static str,
    },
    /// The output cannot be replaced in one step by a finished folder.
    #[error(
        "{path} {what}, so the finished folder cannot take its place; name a new folder inside it"
    )]
    OutputInPlace {
        /// The output.
        path: PathBuf,
        /// Why not.
        what: &'static str,
    },
    /// An extra file's name is not a plain file name, is taken, or is one that only the writer
    /// gives.
    #[error("the file name {name:?} {what}")]
    FileName {
        /// The name.
        name: String,
        /// What is wrong with it.
        what: &'static str,
    },
    /// Data came for another tensor than the one whose turn it is.
    #[error(
        "data came for tensor {found:?} while {expected} is due ({missing} bytes of it are \
         missing); data must come in the order in which tensors were declared"
    )]
    OutOfOrder {
        /// The tensor that data came for.
        found: String,
        /// The tensor whose turn it is, quoted, or `no tensor`.
        expected: String,
        /// Bytes still missing of the tensor whose turn it is.
        missing: u64,
    },
    /// More bytes came for a tensor than it has.
    #[error("tensor {tensor:?} has {len} bytes and {excess} more came")]
    TooMuchData {
        /// The tensor's name.
        tensor: String,
        /// Bytes that it has.
        len: u64,
        /// Bytes beyond that.
        excess: u64,
    },
    /// The writer was finished before every tensor had its data.
    #[error("tensor {tensor:?} is not complete: {missing} of its {len} bytes never came")]
    Incomplete {
        /// The first tensor that lacks data.
        tensor: String,
        /// Bytes missing.
        missing: u64,
        /// Bytes that it has.
        len: u64,
    },
    /// An earlier write failed, so what is on disk is not known and the writer takes no more.
    #[error(
        "an earlier write to {path} failed, so this checkpoint cannot be completed; start again"
    )]
    WriterFailed {
        /// The output.
        path: PathBuf,
    },
    /// The folder or file to write could not be created.
    #[error("cannot create {path}: {cause}{}", advice(cause))]
    Create {
        /// The output.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
    /// The operating system refused to create or write a file.
    #[error(
        "cannot write {path} ({written} of {total} bytes of tensors written): {cause}{}",
        advice(cause)
    )]
    Write {
        /// The file.
        path: PathBuf,
        /// Bytes of tensors written before.
        written: u64,
        /// Bytes of tensors in all.
        total: u64,
        /// What the operating system said.
        cause: io::Error,
    },
    /// Everything is written, and the finished folder could not be given its name.
    #[error(
        "the checkpoint is complete in {partial}, but could not be renamed to {path}: {cause}; \
         rename it by hand"
    )]
    Rename {
        /// The folder that holds the complete checkpoint.
        partial: PathBuf,
        /// The name it should have had.
        path: PathBuf,
        /// What the operating system said.
        cause: io::Error,
    },
}

/// What to do about a failed write, as the end of a message.
fn advice(cause: &io::Error) -> &'static str {
    match cause.kind() {
        io::ErrorKind::StorageFull => "; free some space or name a folder on another disk",
        io::ErrorKind::QuotaExceeded => "; your quota on this disk is used up",
        io::ErrorKind::FileTooLarge => {
            "; this file system limits the size of a file: ask for smaller shards"
        }
        io::ErrorKind::ReadOnlyFilesystem => "; name a folder on a disk that can be written",
        _ => "",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_disk_is_said_to_be_full() {
        let write = |kind: io::ErrorKind| {
            let path = "out/model.safetensors".into();
            Error::Write { path, written: 5, total: 8, cause: kind.into() }.to_string()
        };
        let full = write(io::ErrorKind::StorageFull);
        assert!(
            full.starts_with(
                "cannot write out/model.safetensors (5 of 8 bytes of tensors written): "
            ),
            "{full}"
        );
        assert!(full.ends_with("; free some space or name a folder on another disk"), "{full}");
        assert!(write(io::ErrorKind::FileTooLarge).ends_with("ask for smaller shards"));
        assert!(!write(io::ErrorKind::PermissionDenied).contains(';'));
    }
}
