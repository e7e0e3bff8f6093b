//! Downloads into the cache.
//!
//! By hand, where hf-hub 0.5 has downloads too: those send the token on to the host that a file is
//! redirected to, check neither length nor hash, wait for a silent server for ever, and take a
//! path from the server's header.

use super::cache::{snapshot, whole_snapshot};
use super::client::{Client, HubFile, PAUSE};
use super::{Address, HubSettings, Snapshot, Wanted, gguf, pictures, shards};
use crate::cache::lock;
use crate::error::Failure;
use crate::interrupt;
use crate::views::{output::say, progress};
use indicatif::ProgressBar;
use outsize::checkpoint::{shown, weights_file};
use outsize::diffuse::{MODEL_INDEX, adapter_file};
use outsize::lora::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
use outsize::machine::volume;
use outsize::plan::format_size;
use sha1::Sha1;
use sha2::digest::DynDigest;
use sha2::{Digest, Sha256};
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};

/// What is read of a model beside its weights.
const SMALL_FILES: [&str; 12] = [
    "config.json",
    "generation_config.json",
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "chat_template.jinja",
    "preprocessor_config.json",
    "processor_config.json",
    "modules.json",
    "1_Pooling/config.json",
    "config_sentence_transformers.json",
    "sentence_bert_config.json",
];

/// Broken connections in a row, without a byte between them, after which a download is given up.
const MOST_BROKEN: u32 = 5;

/// A file to download.
struct Download<'a> {
    file: &'a HubFile,
    size: u64,
    /// Where its bytes are in the end, and the link to them.
    blob: PathBuf,
    link: PathBuf,
}

/// Downloads what of a model is not in the cache: its configurations, its tokenizer, and its
/// weights as safetensors, or else as PyTorch's files.
///
/// # Errors
/// As [`Client::open`]; no weights that can be read, no room for them, connections that break again
/// and again, or a file that is not the one that the Hub promised.
pub fn fetch(
    settings: &HubSettings,
    address: &Address,
    wanted: Wanted<'_>,
) -> Result<Snapshot, Failure> {
    if settings.offline {
        return Err(super::offline(settings, address));
    }
    let client = Client::open(settings, address)?;
    let names = match (pictures::is_one(&client), wanted) {
        (_, Wanted::Adapter) => adapter_names(&client)?,
        (_, Wanted::PictureAdapter) => vec![picture_adapter_name(&client)?],
        (_, Wanted::File(file)) => vec![file_name(&client, file)?],
        (true, wanted) => pictures::names(&client, wanted, wanted.variant(address)?)?,
        (false, Wanted::Pictures(_) | Wanted::PictureBase(_)) => match gguf_file(&client)? {
            Some(file) if matches!(wanted, Wanted::Pictures(_)) => gguf::parts(file),
            _ => {
                return Err(Failure::usage(format!(
                    "{address} has no {MODEL_INDEX}, as models that make pictures have"
                )));
            }
        },
        (false, _) => match gguf_file(&client)? {
            Some(file) => {
                let encoder = gguf::encoder(client.files.iter().map(|file| &*file.name));
                gguf::parts(file).into_iter().chain(encoder.map(Into::into)).collect()
            }
            None => names(&client)?,
        },
    };
    let files = names.iter().map(|name| Download::new(&client, name));
    let files = files.collect::<Result<Vec<_>, _>>()?;
    let repo = settings.cache.repo(address.repo(address.revision()));
    let folder = repo.pointer_path(&client.commit);
    let cannot = |what: &Path, error: &dyn std::fmt::Display| {
        Failure::Failed(format!(
            "cannot write {}: {error}; set HF_HUB_CACHE to another folder",
            what.display()
        ))
    };
    for download in &files {
        for folder in
            [&download.blob, &download.link].map(|path| path.parent()).into_iter().flatten()
        {
            fs::create_dir_all(folder).map_err(|error| cannot(folder, &error))?;
        }
    }
    // One process at a time downloads a model.
    let _lock = lock(repo.blob_path("").parent().unwrap_or(&folder))?;
    let missing: Vec<_> = files.iter().filter(|download| !download.is_here()).collect();
    let bytes = missing.iter().fold(0u64, |sum, one| sum.saturating_add(one.size - one.so_far()));
    let free = volume(&folder).free.map(|free| free.value);
    if let Some(free) = free.filter(|free| *free < bytes) {
        return Err(Failure::Failed(format!(
            "{address} needs {} more in {}, and {} are free there: make room, or set HF_HUB_CACHE to a folder on another disk",
            format_size(bytes),
            settings.cache.path().display(),
            format_size(free)
        )));
    }
    if !missing.is_empty() {
        say(format!("downloading {address}: {} in {} files", format_size(bytes), missing.len()));
    }
    let bar = progress::bytes(bytes, "");
    for (at, download) in missing.iter().enumerate() {
        bar.set_message(format!("{} of {}", at + 1, missing.len()));
        download.run(&client, &bar)?;
    }
    bar.finish_and_clear();
    for download in &files {
        download.link_up().map_err(|error| cannot(&download.link, &error))?;
    }
    // What a branch is, is noted once all of it is here.
    if address.revision() != client.commit {
        repo.create_ref(&client.commit).map_err(|error| cannot(&folder, &error))?;
    }
    let is_whole = |name: &String| gguf::is_one(name) && !matches!(wanted, Wanted::File(_));
    let whole = names.into_iter().next().filter(is_whole);
    let folder = whole.map_or(folder.clone(), |file| folder.join(file));
    Ok(Snapshot { folder, commit: client.commit })
}

/// The GGUF file that is the model, where its weights are nothing else or one was asked for.
pub fn gguf_file<'a>(client: &'a Client<'_>) -> Result<Option<&'a str>, Failure> {
    let others = weights_file(|name| client.find(name).is_some());
    match others.filter(|_| client.address.file.is_none()) {
        Some(_) => Ok(None),
        None => gguf::choose(client.address, client.files.iter().map(|file| &*file.name)),
    }
}

/// The files that a run of a language model reads.
fn names(client: &Client<'_>) -> Result<Vec<String>, Failure> {
    let has = |name: &str| client.find(name).is_some();
    let Some((weights, is_index)) = weights_file(has).filter(|_| has("config.json")) else {
        return Err(no_model(client));
    };
    let mut names: Vec<String> =
        SMALL_FILES.into_iter().chain([weights]).filter(|name| has(name)).map(Into::into).collect();
    if is_index {
        names.extend(shards(client, weights)?);
    }
    Ok(names)
}

/// The files of an adapter.
fn adapter_names(client: &Client<'_>) -> Result<Vec<String>, Failure> {
    let has = |name: &&str| client.find(name).is_some();
    match (ADAPTER_WEIGHTS.into_iter().find(has), has(&ADAPTER_CONFIG)) {
        (Some(weights), true) => Ok(vec![ADAPTER_CONFIG.into(), weights.into()]),
        _ => Err(Failure::Failed(format!(
            "{} is no LoRA adapter: it has no {ADAPTER_CONFIG} with {} beside it",
            client.address,
            ADAPTER_WEIGHTS.join(" or ")
        ))),
    }
}

/// The file of an adapter of a model of pictures.
fn picture_adapter_name(client: &Client<'_>) -> Result<String, Failure> {
    let found = adapter_file(client.files.iter().map(|file| &*file.name));
    found.map(str::to_owned).ok_or_else(|| {
        let address = client.address;
        Failure::Failed(format!(
            "{address} has no file that is known to be an adapter of a model of pictures: give {address}/FILE"
        ))
    })
}

/// A file that it must have.
fn file_name(client: &Client<'_>, file: &str) -> Result<String, Failure> {
    match client.find(file) {
        Some(_) => Ok(file.to_owned()),
        None => {
            Err(Failure::Failed(format!("{} has no file {}", client.address, shown(file, 200))))
        }
    }
}

/// The model in the cache, downloaded if it is not there.
///
/// # Errors
/// As [`fetch`].
pub fn cached_or_fetched(
    settings: &HubSettings,
    address: &Address,
    wanted: Wanted<'_>,
) -> Result<Snapshot, Failure> {
    let cached = match wanted {
        Wanted::File(_) => whole_snapshot(settings, address),
        _ => snapshot(settings, address),
    };
    match cached.filter(|found| settings.offline || found.is_complete(wanted)) {
        Some(found) => Ok(found),
        None => fetch(settings, address, wanted),
    }
}

/// What a model is that cannot be run.
fn no_model(client: &Client<'_>) -> Failure {
    let what = match () {
        () if client.find(ADAPTER_CONFIG).is_some() => {
            "is an adapter of another model: give that, and this to --adapter"
        }
        () => {
            "has no config.json with weights beside it (model.safetensors, pytorch_model.bin, or an index of shards)"
        }
    };
    Failure::Failed(format!("{} {what}", client.address))
}

impl<'a> Download<'a> {
    fn new(client: &'a Client<'_>, name: &str) -> Result<Self, Failure> {
        let id = client.address;
        let file = client
            .find(name)
            .ok_or_else(|| Failure::Failed(format!("{id} has no {name}, which its index names")))?;
        let (hash, digits) = match (&file.lfs, &file.blob_id) {
            (Some(lfs), _) => (&*lfs.sha256, 64),
            (None, Some(blob)) => (&**blob, 40),
            (None, None) => ("", 0),
        };
        // Nothing else becomes a path.
        let is_hash = hash.len() == digits && hash.bytes().all(|byte| byte.is_ascii_hexdigit());
        let (Some(size), true, true) = (file.size, is_hash, digits > 0) else {
            let fault = format!("the Hub does not say size and hash of {name} of {id}");
            return Err(Failure::Failed(fault));
        };
        let repo = client.settings.cache.repo(id.repo(id.revision()));
        let link = repo.pointer_path(&client.commit).join(name);
        Ok(Self { file, size, blob: repo.blob_path(hash), link })
    }

    /// The hash that the blob has its name from: git's own, or the one of large files.
    fn hash(&self) -> Box<dyn DynDigest> {
        match self.file.lfs {
            Some(_) => Box::new(Sha256::default()),
            None => Box::new(Sha1::new_with_prefix(format!("blob {}\0", self.size))),
        }
    }

    fn is_here(&self) -> bool {
        self.blob.metadata().is_ok_and(|blob| blob.len() == self.size)
    }

    fn incomplete(&self) -> PathBuf {
        self.blob.with_extension("incomplete")
    }

    /// Bytes that an earlier download left.
    fn so_far(&self) -> u64 {
        let len = self.incomplete().metadata().map_or(0, |file| file.len());
        if len > self.size { 0 } else { len }
    }

    /// Downloads it, from where an earlier download ended, and checks its hash.
    fn run(&self, client: &Client<'_>, bar: &ProgressBar) -> Result<(), Failure> {
        let (name, path) = (&*self.file.name, self.incomplete());
        let cannot = |error| Failure::writing(path.display(), error);
        let mut partial = Partial::open(self, &path).map_err(cannot)?;
        let mut broken = 0;
        while partial.len < self.size {
            let before = partial.len;
            let result = client.open_at(name, before).and_then(|(from, answer)| {
                if from < before {
                    partial.restart(self).map_err(cannot)?;
                }
                client.pass_on(name, answer, self.size - partial.len, |piece| {
                    bar.inc(piece.len() as u64);
                    partial.write(piece).map_err(cannot)
                })
            });
            broken = if partial.len > before { 0 } else { broken + 1 };
            match result {
                Ok(()) if broken < MOST_BROKEN => {}
                Ok(()) => return Err(client.wrong(name, "it ends early")),
                Err(failed) if failed.passing && broken < MOST_BROKEN => {
                    interrupt::check()?;
                    std::thread::sleep(PAUSE * broken);
                }
                Err(failed) => return Err(failed.into()),
            }
        }
        let found = partial.finish().map_err(cannot)?;
        if self.blob.file_name().is_none_or(|hash| *hash != *found) {
            fs::remove_file(&path).map_err(cannot)?;
            return Err(Failure::Failed(format!(
                "{name} of {} arrived damaged: its hash is not the one that the Hub promised; it was removed, so try again",
                client.address
            )));
        }
        fs::rename(&path, &self.blob).map_err(cannot)
    }

    /// Makes the link that snapshots have in place of files.
    fn link_up(&self) -> io::Result<()> {
        if self.link.exists() {
            return Ok(());
        }
        // One that leads nowhere.
        let _ = fs::remove_file(&self.link);
        #[cfg(unix)]
        {
            let up = "../".repeat(2 + self.file.name.matches('/').count());
            let blob = self.blob.file_name().unwrap_or_default();
            std::os::unix::fs::symlink(Path::new(&up).join("blobs").join(blob), &self.link)
        }
        #[cfg(not(unix))]
        fs::hard_link(&self.blob, &self.link)
    }
}

/// A file that is there in part, and the hash of that part.
struct Partial {
    file: File,
    len: u64,
    hash: Box<dyn DynDigest>,
}

impl Partial {
    /// What an earlier download left, or nothing.
    fn open(download: &Download<'_>, path: &Path) -> io::Result<Self> {
        let so_far = download.so_far();
        let file = OpenOptions::new().create(true).append(true).read(true).open(path)?;
        let mut partial = Self { file, len: 0, hash: download.hash() };
        if so_far == 0 {
            partial.file.set_len(0)?;
        }
        let mut piece = vec![0; 1 << 20];
        while partial.len < so_far {
            let read = partial.file.read(&mut piece)?;
            if read == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            partial.hash.update(&piece[..read]);
            partial.len += read as u64;
        }
        Ok(partial)
    }

    fn restart(&mut self, download: &Download<'_>) -> io::Result<()> {
        self.file.set_len(0)?;
        (self.len, self.hash) = (0, download.hash());
        Ok(())
    }

    fn write(&mut self, piece: &[u8]) -> io::Result<()> {
        self.file.write_all(piece)?;
        self.hash.update(piece);
        self.len += piece.len() as u64;
        Ok(())
    }

    /// The hash of the whole file, in hexadecimal digits, once it is on the disk.
    fn finish(self) -> io::Result<String> {
        self.file.sync_all()?;
        Ok(self.hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect())
    }
}
