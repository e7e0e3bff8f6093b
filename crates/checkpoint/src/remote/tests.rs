#[path = "../../tests/common/gguf.rs"]
mod made;

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;

use super::*;
use crate::{Checkpoint, Dtype, ShardWriter, TensorSpec};

#[derive(Debug, thiserror::Error)]
enum Missing {
    #[error("no {0}")]
    File(String),
    #[error(transparent)]
    Checkpoint(#[from] Error),
}

/// Files, and how many bytes of each were given away.
struct Server {
    files: BTreeMap<String, Vec<u8>>,
    sent: Mutex<BTreeMap<String, u64>>,
}

impl Server {
    fn new(files: impl IntoIterator<Item = (String, Vec<u8>)>) -> Self {
        Self { files: files.into_iter().collect(), sent: Mutex::default() }
    }

    fn fetch(&self, name: &str, range: Range<u64>) -> Result<Part, Missing> {
        let file = self.files.get(name).ok_or_else(|| Missing::File(name.to_owned()))?;
        let len = file.len() as u64;
        let bytes = &file[range.start.min(len) as usize..range.end.min(len) as usize];
        *self.sent.lock().unwrap().entry(name.to_owned()).or_default() += bytes.len() as u64;
        Ok(Part { bytes: bytes.to_vec(), file_len: len })
    }
}

/// A checkpoint of 40 tensors in shards of 1000 bytes, on disk and as files far away.
fn shards() -> (tempfile::TempDir, Server) {
    let place = tempfile::tempdir().unwrap();
    let out = place.path().join("model");
    let specs: Vec<_> =
        (0..40).map(|n| TensorSpec::new(format!("layers.{n}.w"), Dtype::F16, [n, 7])).collect();
    let mut writer = ShardWriter::create(&out, specs.clone(), 1000).unwrap();
    for (n, spec) in specs.iter().enumerate() {
        writer.write(&spec.name, &vec![7; n * 14]).unwrap();
    }
    writer.finish().unwrap();
    let files = out.read_dir().unwrap().map(|entry| {
        let entry = entry.unwrap();
        let name = entry.file_name().into_string().unwrap();
        (name, std::fs::read(entry.path()).unwrap())
    });
    let server = Server::new(files);
    (place, server)
}

const INDEX: &str = "model.safetensors.index.json";

fn of_shards(server: &Server, connections: usize) -> Result<Headers, Missing> {
    let fetch = |name: &str, range| server.fetch(name, range);
    let index = &server.files[INDEX];
    Headers::of_shards(Path::new("org/name"), INDEX, index, connections, fetch, |_, _| ())
}

#[test]
fn headers_are_those_on_disk_and_nothing_else_is_fetched() {
    let (place, server) = shards();
    let checkpoint = Checkpoint::open(place.path().join("model")).unwrap();
    for connections in [0, 1, 3, 100] {
        let headers = of_shards(&server, connections).unwrap();
        assert_eq!(headers.tensors, checkpoint.tensors());
        assert!(headers.files.len() > 5);
        let mut sent = server.sent.lock().unwrap();
        for file in &headers.files {
            // The length, the first character twice, and the header.
            assert_eq!(sent[&file.name], 9 + file.header_bytes);
        }
        sent.clear();
    }
}

#[test]
fn of_burnpack_the_metadata_is_fetched() {
    let tensor = |name: &str, bytes: Vec<u8>| {
        let shape = vec![bytes.len()];
        let bytes = burn_pack::Bytes::from_bytes_vec(bytes);
        burn_pack::Tensor::new(name.to_owned(), burn_pack::DType::U8, shape, None, bytes)
    };
    let tensors = vec![tensor("a", vec![1; 1000]), tensor("b", vec![2; 5000])];
    let file = burn_pack::Writer::new(tensors).into_bytes().unwrap().to_vec();
    let place = tempfile::tempdir().unwrap();
    std::fs::write(place.path().join("model.bpk"), &file).unwrap();
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    assert_eq!(weights_file(|name| name == "model.bpk"), Some(("model.bpk", false)));
    let server = Server::new([("model.bpk".to_owned(), file)]);
    let fetch = |name: &str, range| server.fetch(name, range);
    let headers = Headers::of_file(Path::new("org/name"), "model.bpk", fetch).unwrap();
    assert_eq!(headers.tensors, checkpoint.tensors());
    assert_eq!(server.sent.lock().unwrap()["model.bpk"], headers.files[0].header_bytes);
    assert!(headers.files[0].header_bytes < 500);
}

#[test]
fn progress_is_told_once_for_each_shard() {
    let (_place, server) = shards();
    let told = Mutex::new(Vec::new());
    let fetch = |name: &str, range| server.fetch(name, range);
    let index = &server.files[INDEX];
    let place = Path::new("x");
    Headers::of_shards(place, INDEX, index, 4, fetch, |done, all| {
        told.lock().unwrap().push((done, all));
    })
    .unwrap();
    let mut told = told.lock().unwrap();
    told.sort_unstable();
    let shards = told.len();
    assert!(shards > 5);
    assert!(told.iter().copied().eq((1..=shards).map(|done| (done, shards))));
}

#[test]
fn a_shard_that_fails_ends_it_all() {
    let (_place, mut server) = shards();
    let name = server.files.keys().nth(2).unwrap().clone();
    let whole = server.files.remove(&name).unwrap();
    let said = of_shards(&server, 3).unwrap_err().to_string();
    assert_eq!(said, format!("no {name}"));
    server.files.insert(name.clone(), whole[..30].to_vec());
    let said = of_shards(&server, 3).unwrap_err().to_string();
    assert!(said.contains(&format!("org/name/{name}: the header claims")), "{said}");
    // One that holds none of its tensors.
    let empty = [&8u64.to_le_bytes()[..], b"{}      "].concat();
    server.files.insert(name.clone(), empty);
    let said = of_shards(&server, 3).unwrap_err().to_string();
    assert!(said.contains(INDEX) && said.contains(&name), "{said}");
}

#[test]
fn what_comes_in_part_or_changes_is_an_error() {
    let header = br#"{"a":{"dtype":"U8","shape":[3],"data_offsets":[0,3]}}"#;
    let file = [&(header.len() as u64).to_le_bytes()[..], header, b"abc"].concat();
    let said = |change: fn(u64, &mut Part)| {
        let server = Server::new([("f".to_owned(), file.clone())]);
        let fetch = |name: &str, range: Range<u64>| {
            let start = range.start;
            server.fetch(name, range).map(|mut part| {
                change(start, &mut part);
                part
            })
        };
        Headers::of_file(Path::new("p"), "f", fetch).map_err(|error| error.to_string())
    };
    assert_eq!(said(|_, _| ()).unwrap().tensors[0].offset, 8 + header.len() as u64);
    let short = said(|_, part| part.bytes.truncate(5)).unwrap_err();
    assert!(short.contains("p/f came in part: 5 of 9 bytes"), "{short}");
    let cut = said(|start, part| part.bytes.truncate(60 - 52 * (start > 0) as usize)).unwrap_err();
    assert!(cut.contains("came in part: 8 of 53 bytes"), "{cut}");
    let changed = said(|start, part| part.file_len += start).unwrap_err();
    assert!(changed.contains("replaced meanwhile"), "{changed}");
    let more = said(|_, part| part.bytes.push(0)).unwrap_err();
    assert!(more.contains("10 of 9 bytes"), "{more}");
    // A length that is not that of the data.
    let longer = said(|_, part| part.file_len += 1).unwrap_err();
    assert!(longer.contains("belong to no tensor"), "{longer}");
}

#[test]
fn headers_are_bounded_before_they_are_fetched() {
    let claim = |len: u64| [&len.to_le_bytes()[..], b"{"].concat();
    let place = Path::new("p");
    let fetch = |_: &str, range: Range<u64>| {
        assert_eq!(range, 0..9, "no header is fetched");
        Ok::<_, Missing>(Part { bytes: claim(u64::MAX), file_len: u64::MAX })
    };
    let said = Headers::of_file(place, "f", fetch).unwrap_err().to_string();
    assert!(said.contains("over the format's limit"), "{said}");
    // Each at the format's limit: together beyond ours.
    let index: BTreeMap<String, String> =
        (0..5).map(|n| (format!("t{n}"), format!("s{n}"))).collect();
    let index = serde_json::json!({"weight_map": index}).to_string();
    let asked = AtomicU64::new(0);
    let fetch = |_: &str, range: Range<u64>| {
        if range.start == 0 {
            let bytes = claim(100_000_000);
            return Ok(Part { bytes, file_len: u64::MAX });
        }
        asked.fetch_add(range.end - range.start, Ordering::Relaxed);
        Err(Missing::File("x".to_owned()))
    };
    let result = Headers::of_shards(place, INDEX, index.as_bytes(), 5, fetch, |_, _| ());
    assert!(result.is_err());
    assert!(asked.into_inner() <= MAX_HEADERS);
}

proptest! {
    #[test]
    fn any_bytes_are_headers_or_an_error(file in proptest::collection::vec(any::<u8>(), 0..80)) {
        let server = Server::new([("f".to_owned(), file)]);
        let fetch = |name: &str, range| server.fetch(name, range);
        let _ = Headers::of_file(Path::new("p"), "f", fetch);
    }
}

#[test]
fn gguf_files_are_described_as_on_disk() {
    let place = tempfile::tempdir().unwrap();
    let names = ["token_embd.weight", "blk.0.attn_q.bias", "rope_freqs.weight"];
    let parts = (0u32..3).map(|at| {
        let name = names[at as usize];
        let mut values = vec![("split.no", made::u32(at)), ("split.count", made::u32(3))];
        if at == 0 {
            values.push(("general.architecture", made::text("llama")));
            values.push(("llama.context_length", made::u32(64)));
            values.push(("llama.rope.dimension_count", made::u32(6)));
        }
        // More than is fetched at once, and the factors beyond that.
        let offset = if at == 2 { 2 << 20 } else { 0 };
        let shape: &[u64] = if at == 2 { &[3] } else { &[2, 3] };
        let bytes = made::file(&values, &[(name, shape, 0, offset)], 3 << 20);
        (format!("m-{:05}-of-00003.gguf", at + 1), bytes)
    });
    let server = Server::new(parts.map(|(name, bytes)| (format!("q/{name}"), bytes)));
    for (name, bytes) in &server.files {
        std::fs::write(place.path().join(name.strip_prefix("q/").unwrap()), bytes).unwrap();
    }
    let fetch = |name: &str, range| server.fetch(name, range);
    let first = "m-00001-of-00003.gguf";
    let found = GgufDescription::fetch(Path::new("a/b"), &format!("q/{first}"), fetch).unwrap();
    let path = place.path().join(first);
    let checkpoint = Checkpoint::open(&path).unwrap();
    assert_eq!(found.headers.tensors, checkpoint.tensors());
    let config = crate::read_optional(&path.join("config.json"), 1 << 20).unwrap().unwrap();
    assert_eq!(String::from_utf8(found.config), String::from_utf8(config));
    assert_eq!(
        *server.sent.lock().unwrap().values().collect::<Vec<_>>(),
        [&(1 << 20), &(1 << 20), &(2 << 20)]
    );

    let second = GgufDescription::fetch(Path::new("a/b"), "q/m-00002-of-00003.gguf", fetch);
    let said = second.unwrap_err().to_string();
    assert!(
        said.contains("a/b/q/m-00002-of-00003.gguf: ") && said.contains("not the first"),
        "{said}"
    );
    let damaged = Server::new([("m.gguf".to_owned(), b"GGUF\x03\0\0\0".to_vec())]);
    let fetch = |name: &str, range| damaged.fetch(name, range);
    let said = GgufDescription::fetch(Path::new("a/b"), "m.gguf", fetch).unwrap_err().to_string();
    assert!(said.contains("a/b/m.gguf: ") && said.contains("cut short"), "{said}");
}
