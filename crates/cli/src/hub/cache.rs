//! The local cache, laid out as by `huggingface_hub`.

use super::{Address, HubSettings, Wanted, gguf};
use outsize::checkpoint::{Checkpoint, read_text};
use outsize::diffuse::{ADAPTER_FILES, PipelineFiles};
use outsize::generate::SizeSource;
use outsize::lora::{ADAPTER_CONFIG, ADAPTER_WEIGHTS};
use std::path::{Path, PathBuf};

/// The most bytes of a file that names a commit. Real ones have 40.
const MOST_OF_REF: u64 = 1024;

/// A model in the cache.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Snapshot {
    /// Its files, as links; or one of them that is a GGUF file.
    pub folder: PathBuf,
    /// The commit that it is of.
    pub commit: String,
}

impl Snapshot {
    /// What it is made of: the folder, or the parts of a GGUF file.
    pub fn files(&self) -> Vec<PathBuf> {
        let name = self
            .folder
            .file_name()
            .and_then(|name| name.to_str())
            .filter(|name| gguf::is_one(name));
        let parts = name.map(gguf::parts).unwrap_or_default();
        match parts[..] {
            [] => vec![self.folder.clone()],
            _ => parts.iter().map(|part| self.folder.with_file_name(part)).collect(),
        }
    }

    /// Says where the figures come from.
    pub fn note(&self, source: SizeSource) -> String {
        let Self { folder, commit } = self;
        let weights = match source {
            SizeSource::Config => ", which has no weights of it",
            SizeSource::Both | SizeSource::Headers => "",
        };
        format!("from the Hub's cache at commit {commit} ({}){weights}", folder.display())
    }

    /// Whether it can be run as it is, as what is wanted.
    pub fn is_complete(&self, wanted: Wanted<'_>) -> bool {
        let is_there = |weights: PathBuf| Checkpoint::open(weights).is_ok();
        match wanted {
            Wanted::Pictures(variant) | Wanted::Any(variant)
                if PipelineFiles::is_at(&self.folder) =>
            {
                PipelineFiles::open(&self.folder, variant).is_ok_and(|files| {
                    files.parts.iter().all(|part| is_there(self.folder.join(&part.weights)))
                })
            }
            Wanted::Adapter => {
                let mut weights = ADAPTER_WEIGHTS.iter().map(|name| self.folder.join(name));
                self.folder.join(ADAPTER_CONFIG).exists() && weights.any(is_there)
            }
            Wanted::PictureBase(elsewhere) => PipelineFiles::beside(&self.folder, elsewhere)
                .is_ok_and(|files| {
                    let wanted: Vec<_> = files.names_beside(elsewhere).collect();
                    let parts = files.parts.iter().map(|part| &*part.weights);
                    wanted.iter().all(|name| self.folder.join(name).is_file())
                        && parts
                            .filter(|weights| wanted.contains(weights))
                            .all(|weights| is_there(self.folder.join(weights)))
                }),
            Wanted::File(file) => is_there(self.folder.join(file)),
            // Of another one the Hub has to say whether it is the only one.
            Wanted::PictureAdapter => {
                ADAPTER_FILES.iter().any(|file| is_there(self.folder.join(file)))
            }
            _ => {
                let is_whole = gguf::is_one(&self.folder.to_string_lossy());
                (is_whole || self.folder.join("config.json").exists())
                    && is_there(self.folder.clone())
            }
        }
    }
}

/// The model's files in the cache, if there are any: the folder of all of them.
pub fn whole_snapshot(settings: &HubSettings, address: &Address) -> Option<Snapshot> {
    let revision = address.revision();
    let repo = settings.cache.repo(address.repo(revision));
    let commit = match is_commit(revision) {
        true => revision.to_owned(),
        false => named(&repo.pointer_path("").with_file_name("refs").join(revision))?,
    };
    let folder = repo.pointer_path(&commit);
    folder.is_dir().then_some(Snapshot { folder, commit })
}

/// The same, or one of them that is a GGUF file and a model by itself.
pub fn snapshot(settings: &HubSettings, address: &Address) -> Option<Snapshot> {
    let Snapshot { folder, commit } = whole_snapshot(settings, address)?;
    let names = names(&folder);
    let file = match gguf::choose(address, names.iter().map(String::as_str)) {
        Ok(file) => file.filter(|_| address.file.is_some() || !is_model(&folder)),
        Err(_) if address.file.is_some() => return None,
        Err(_) => None,
    };
    Some(Snapshot { folder: file.map_or(folder.clone(), |file| folder.join(file)), commit })
}

/// Whether a folder as a whole is a model.
fn is_model(folder: &Path) -> bool {
    folder.join("config.json").exists() || PipelineFiles::is_at(folder)
}

/// The names of a folder's files, and of those in folders within.
fn names(folder: &Path) -> Vec<String> {
    let name = |path: &Path| path.file_name().map(|name| name.to_string_lossy().into_owned());
    let within = |path: PathBuf| match (path.is_dir(), name(&path)) {
        (true, Some(own)) => {
            let files = entries(&path).into_iter().filter_map(|path| name(&path));
            files.map(|name| format!("{own}/{name}")).collect()
        }
        (_, own) => Vec::from_iter(own),
    };
    entries(folder).into_iter().flat_map(within).collect()
}

/// All models in the cache, each with those of its commits that a branch or tag names, or else with
/// all that there are; in the order of their names.
pub fn snapshots(settings: &HubSettings) -> Vec<(Address, Snapshot)> {
    let mut found = Vec::new();
    for folder in entries(settings.cache.path()) {
        let name = folder.file_name().unwrap_or_default().to_string_lossy();
        let id = name.strip_prefix("models--").map(|name| name.replacen("--", "/", 1));
        let Some(address) = id.and_then(|id| Address::parse(&id)) else { continue };
        let revisions =
            entries(&folder.join("refs")).into_iter().chain(entries(&folder.join("snapshots")));
        let mut of_model: Vec<(Address, Snapshot)> = Vec::new();
        for revision in revisions {
            let revision = revision.file_name().unwrap_or_default().to_string_lossy();
            let revision = Some(revision.into_owned()).filter(|name| name != "main");
            let address = Address { revision, ..address.clone() };
            let known = |one: &Snapshot| of_model.iter().any(|(_, other)| one == other);
            let Some(one) = snapshot(settings, &address).filter(|one| !known(one)) else {
                continue;
            };
            // Each GGUF file is a model.
            let files = names(&one.folder).into_iter().filter(|name| gguf::is_one(name));
            let files: Vec<_> = files.filter(|_| !is_model(&one.folder)).collect();
            if files.is_empty() {
                of_model.push((address, one));
                continue;
            }
            of_model.extend(files.into_iter().map(|file| {
                let folder = one.folder.join(&file);
                let file = file.rsplit('/').next().map(str::to_owned);
                (Address { file, ..address.clone() }, Snapshot { folder, ..one.clone() })
            }));
        }
        found.extend(of_model);
    }
    found
}

/// What is in a folder, by name; nothing if it cannot be read.
pub fn entries(folder: &Path) -> Vec<PathBuf> {
    let entries = folder.read_dir().into_iter().flatten().flatten();
    let mut paths: Vec<_> = entries.map(|entry| entry.path()).collect();
    paths.sort();
    paths
}

/// The commit that a file names.
fn named(path: &Path) -> Option<String> {
    let text = read_text(path, MOST_OF_REF).ok()?;
    let commit = text.trim();
    is_commit(commit).then(|| commit.to_owned())
}

/// Whether a text is a whole commit: forty hexadecimal digits, which no path is.
pub fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}

#[cfg(test)]
mod tests {
    use super::*;
    use hf_hub::Cache;
    use std::fs;
    use std::time::Duration;

    #[test]
    fn snapshots_are_found_by_branch_and_by_commit() {
        let place = tempfile::tempdir().unwrap();
        let settings = HubSettings {
            endpoint: String::new(),
            token: None,
            offline: true,
            cache: Cache::new(place.path().to_owned()),
            timeout: Duration::ZERO,
        };
        let find = |text: &str| snapshot(&settings, &Address::parse(text).unwrap());
        assert_eq!(find("a/b"), None);
        let commit = "0123456789abcdef0123456789abcdef01234567";
        let model = place.path().join("models--a--b");
        fs::create_dir_all(model.join("refs/refs/pr")).unwrap();
        fs::create_dir_all(model.join("snapshots").join(commit)).unwrap();
        for name in ["main", "refs/pr/1"] {
            fs::write(model.join("refs").join(name), commit).unwrap();
        }
        fs::write(model.join("refs/bad"), "../../../etc").unwrap();
        fs::write(model.join("refs/gone"), "f".repeat(40)).unwrap();
        for text in ["a/b", "a/b@main", "a/b@refs/pr/1", &format!("a/b@{commit}")] {
            let found = find(text).unwrap();
            assert_eq!(found.commit, commit, "{text}");
            assert!(found.folder.ends_with(Path::new("snapshots").join(commit)));
        }
        for text in ["a/b@bad", "a/b@gone", "a/b@v2", "a/c"] {
            assert_eq!(find(text), None, "{text}");
        }
        let listed = snapshots(&settings);
        assert_eq!(listed.iter().map(|(id, _)| id.to_string()).collect::<Vec<_>>(), ["a/b"]);
    }
}
