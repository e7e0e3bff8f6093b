//! Files of `torch.save`: a zip archive of storages, and a pickle that says which tensors lie in
//! them.

mod archive;
mod cursor;
mod fault;
mod pickle;
mod state_dict;
mod value;

use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

pub use self::fault::TorchFault;
pub use self::state_dict::{StateDict, Storage, TensorView};

use self::archive::{Archive, Member, ReadAt};
use crate::error::Error;
use crate::file::{ShardFile, open_regular, read_vec};
use crate::header::HeaderEntry;
use crate::masquerade;
use crate::parallel;
use crate::text::shortened;

/// Bytes that `data.pkl` may have: some 50 000 tensors. The largest real ones have a tenth.
const MAX_PICKLE: u64 = 10 << 20;
/// Held while a pickle is parsed: shards are opened side by side, and a hostile pickle takes forty
/// times its bytes of memory.
static PARSING: Mutex<()> = Mutex::new(());
/// Bytes that `byteorder` may have.
const MAX_BYTE_ORDER: u64 = 64;
/// How many of a file's first bytes tell its format.
const START: u64 = 64;

/// Opens a file of `torch.save` and reads where its tensors lie, from the start of the file and
/// ordered by offset. `admit` is asked before memory is taken for so many bytes of it.
pub(crate) fn open(
    path: PathBuf,
    admit: impl Fn(u64) -> Result<(), Error>,
) -> Result<(ShardFile, Vec<HeaderEntry>), Error> {
    let (file, opened) = open_regular(&path)?;
    let read = |start, len| read_vec(&path, &file, start, len);
    let tensors = tensors(&path, opened.len(), &read, Archive::locate, admit)?;
    Ok((ShardFile::new(path, file, opened), tensors))
}

/// The tensors of a file of `len` bytes that is far away, as [`open`] gives them: only that they
/// lie earlier than they do, as the padding before each takes a request to know.
pub(crate) fn open_remote<E: From<Error> + Send>(
    path: &Path,
    len: u64,
    read: ReadAt<'_, E>,
    admit: impl Fn(u64) -> Result<(), E>,
) -> Result<Vec<HeaderEntry>, E> {
    tensors(path, len, read, Archive::earliest, admit)
}

/// Refuses a file of another format by its first bytes.
fn identify(start: &[u8], len: u64) -> Result<(), TorchFault> {
    Err(match start {
        // A member's header, or the end of an archive without members.
        [b'P', b'K', 3 | 5, 4 | 6, ..] => return Ok(()),
        [0x80, 2..=5, ..] => TorchFault::Legacy,
        [_, _, _, _, _, 0, 0, 0, b'{', ..] => TorchFault::OtherFormat {
            what: "a safetensors file",
            advice: "it is misnamed: give it a name that ends in .safetensors",
        },
        _ => match masquerade::identify(start) {
            Some((what, advice)) => TorchFault::OtherFormat { what, advice },
            None => TorchFault::NoDirectory { len },
        },
    })
}

/// Where the tensors of an archive lie in its file of `len` bytes, with the place of each storage
/// as `place` says.
fn tensors<'a, E: From<Error> + Send>(
    path: &'a Path,
    len: u64,
    read: ReadAt<'a, E>,
    place: impl Fn(&Archive<'a, E>, &Member) -> Result<Range<u64>, E> + Sync,
    admit: impl Fn(u64) -> Result<(), E>,
) -> Result<Vec<HeaderEntry>, E> {
    identify(&read(0, len.min(START) as usize)?, len)
        .map_err(|fault| Error::Torch { path: path.to_owned(), fault })?;
    let archive = Archive::open(path, len, read, &admit)?;
    let mut roots = archive.roots();
    let no_pickle = |found| archive.wrong(TorchFault::NoPickle { found });
    let root = match (roots.next(), roots.next()) {
        (Some(root), None) => root,
        (None, _) => return Err(no_pickle("no")),
        (Some(_), Some(_)) => return Err(no_pickle("more than one")),
    };
    let member = |name: &str| archive.find(&format!("{root}/{name}"));
    if member("constants.pkl").is_some() {
        return Err(archive.wrong(TorchFault::TorchScript));
    }
    if let Some(member) = member("byteorder") {
        let order = archive.read(member, "byteorder", MAX_BYTE_ORDER)?;
        if order != b"little" {
            let found = shortened(&String::from_utf8_lossy(&order));
            return Err(archive.wrong(TorchFault::ByteOrder { found }));
        }
    }
    let Some(pickle) = member("data.pkl") else {
        return Err(no_pickle("no"));
    };
    let pickled = archive.locate(pickle)?;
    admit(pickled.end - pickled.start)?;
    let state = {
        let _alone = PARSING.lock().unwrap_or_else(PoisonError::into_inner);
        StateDict::parse(&archive.read(pickle, "data.pkl", MAX_PICKLE)?)
            .map_err(|fault| archive.wrong(fault))?
    };

    let places = parallel::each(parallel::THREADS, state.storages.len(), |at| {
        let name = format!("{root}/data/{}", state.storages[at].key);
        let place = archive.find(&name).map(|member| place(&archive, member)).transpose()?;
        Ok::<_, E>(place.map(|place| (place, name)))
    })?;
    let mut starts = Vec::with_capacity(places.len());
    let mut used = vec![(pickled, format!("{root}/data.pkl"))];
    for (at, place) in places.into_iter().enumerate() {
        let what = match place {
            None => "which is not in the archive".to_owned(),
            Some((place, name)) => {
                let (len, expected) = (place.end - place.start, state.storages[at].len);
                starts.push(place.start);
                used.push((place, name));
                if len >= expected {
                    continue;
                }
                format!("which has {len} bytes instead of {expected}")
            }
        };
        let tensor = state.tensors.iter().find(|tensor| tensor.storage == at);
        let tensor = tensor.map(|tensor| shortened(&tensor.name)).unwrap_or_default();
        let storage = shortened(&state.storages[at].key);
        return Err(archive.wrong(TorchFault::Storage { tensor, storage, what }));
    }
    check_apart(used).map_err(|fault| archive.wrong(fault))?;

    let entry = |tensor: TensorView| {
        let start = starts[tensor.storage] + tensor.start;
        let TensorView { name, dtype, shape, len, .. } = tensor;
        HeaderEntry { name, dtype, shape, start, end: start + len }
    };
    let mut tensors: Vec<_> = state.tensors.into_iter().map(entry).collect();
    // Tied tensors stay in the order of their names.
    tensors.sort_by_key(|tensor| (tensor.start, tensor.end));
    Ok(tensors)
}

/// Checks that members share no bytes.
fn check_apart(mut members: Vec<(Range<u64>, String)>) -> Result<(), TorchFault> {
    members.sort_unstable_by_key(|(place, _)| (place.start, place.end));
    let shared = members.array_windows().find(|[(one, _), (other, _)]| other.start < one.end);
    match shared {
        Some([(_, other), (_, member)]) => {
            Err(TorchFault::Overlap { member: shortened(member), other: shortened(other) })
        }
        None => Ok(()),
    }
}
