//! The memory that opening a checkpoint takes at most, measured in a process of its own.
#![cfg(target_os = "linux")]
mod common;
#[path = "common/gguf.rs"]
mod gguf;
#[path = "common/torch.rs"]
mod made;

use std::fs;
use std::io::Write;
use std::path::Path;
use std::process::Command;

use common::INDEX;
use made::{Entry, Pickle};
use outsize_checkpoint::{Checkpoint, read_optional};

const MB: u64 = 1_000_000;
/// Bytes that a header or an index may have.
const LIMIT: usize = 100_000_000;
/// A part of that, where one case stands for the proportion.
const SOME: usize = LIMIT / 5;
/// Bytes of memory that a process takes that opens nothing.
const NOTHING: u64 = 10 * MB;
const FOLDER: &str = "OUTSIZE_TEST_FOLDER";

/// Opens the folder in the environment, and says how that went and what it took.
#[test]
#[ignore = "run by the other tests, in a process of its own"]
fn child() {
    let Some(folder) = std::env::var_os(FOLDER) else {
        return;
    };
    let opened = Checkpoint::open(&folder);
    // Those that are made of a GGUF file's metadata.
    for name in ["config.json", "tokenizer.json", "tokenizer_config.json"] {
        match read_optional(&Path::new(&folder).join(name), LIMIT as u64) {
            Ok(bytes) => println!("{name}: {} bytes", bytes.map_or(0, |bytes| bytes.len())),
            Err(error) => println!("{name}: {error}"),
        }
    }
    match &opened {
        Ok(checkpoint) => println!("result: {} tensors", checkpoint.tensors().len()),
        Err(error) => println!("result: {error}"),
    }
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let peak = status.lines().find(|line| line.starts_with("VmHWM:")).unwrap();
    println!("peak: {peak}");
}

/// What opening a folder or file says, and the peak of the process' memory.
fn open(folder: &Path) -> (String, u64) {
    let output = Command::new(std::env::current_exe().unwrap())
        .args(["child", "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{said}");
    let line = |start: &str| said.lines().find_map(|line| Some(line.split_once(start)?.1));
    let peak = line("peak: VmHWM:").unwrap().trim().strip_suffix(" kB").unwrap();
    let peak = peak.parse::<u64>().unwrap() * 1024;
    let result = line("result: ").unwrap().to_owned();
    println!("{} MB: {result}", peak / MB);
    (result, peak)
}

/// Writes a file of a header of `len` bytes, of as many entries as fit, and no data. Gives their
/// count.
fn header(folder: &Path, len: usize, first: &str, entry: impl Fn(usize) -> String) -> usize {
    let mut json = format!("{{{first}").into_bytes();
    let mut count = 0;
    loop {
        let entry = entry(count);
        if json.len() + entry.len() + 2 > len {
            break;
        }
        if count > 0 {
            json.push(b',');
        }
        json.extend_from_slice(entry.as_bytes());
        count += 1;
    }
    json.push(b'}');
    json.resize(len, b' ');
    let mut file = fs::File::create(folder.join("model.safetensors")).unwrap();
    file.write_all(&(len as u64).to_le_bytes()).unwrap();
    file.write_all(&json).unwrap();
    count
}

#[test]
fn a_header_takes_six_times_its_bytes_at_most() {
    let place = tempfile::tempdir().unwrap();
    let entry = |shape: &'static str| {
        move |n: usize| format!(r#""{n:x}":{{"dtype":"U8","shape":{shape},"data_offsets":[0,0]}}"#)
    };
    let count = header(place.path(), LIMIT, "", entry("[0]"));
    assert!(count > 1_500_000, "{count}");
    let (result, peak) = open(place.path());
    assert_eq!(result, format!("{count} tensors"));
    assert!(peak < 6 * LIMIT as u64, "{peak}");

    // Many dimensions rather than many tensors.
    let shape: &'static str = format!("{:?}", [0; 64]).replace(' ', "").leak();
    let count = header(place.path(), SOME, "", entry(shape));
    let (result, peak) = open(place.path());
    assert_eq!(result, format!("{count} tensors"));
    assert!(peak < 6 * SOME as u64 + NOTHING, "{peak}");
}

#[test]
fn what_is_refused_takes_no_more() {
    let place = tempfile::tempdir().unwrap();
    let wrong = |first: &str, entry: &dyn Fn(usize) -> String, part: &str| {
        header(place.path(), SOME, first, entry);
        let (result, peak) = open(place.path());
        assert!(result.contains(part), "{result}");
        assert!(peak < 6 * SOME as u64 + NOTHING, "{peak}");
    };
    // One shape of 50 million dimensions; notes by the million; a value without end; all the same
    // name.
    wrong(
        r#""w":{"dtype":"U8","data_offsets":[0,0],"shape":[0,"#,
        &|_| "0".to_owned(),
        "more than 64 dimensions",
    );
    wrong(r#""__metadata__":{"#, &|n| format!("\"{n:x}\":\"\""), "more than 100000 entries");
    wrong(r#""w":{"x":["#, &|_| "[".to_owned(), "the header is not valid: \"w\": ");
    wrong(
        "",
        &|_| r#""w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}"#.to_owned(),
        "tensor \"w\" is defined twice",
    );
}

#[test]
fn an_index_takes_five_times_its_bytes_at_most() {
    let place = tempfile::tempdir().unwrap();
    let write = |shard: &dyn Fn(usize) -> String| {
        let mut json = br#"{"weight_map":{"#.to_vec();
        for n in 0.. {
            let entry = format!("\"{n:x}\":\"{}\",", shard(n));
            if json.len() + entry.len() + 2 > SOME {
                break;
            }
            json.extend_from_slice(entry.as_bytes());
        }
        json.pop();
        json.extend_from_slice(b"}}");
        fs::write(place.path().join(INDEX), json).unwrap();
    };
    write(&|_| "x".to_owned());
    let (result, peak) = open(place.path());
    assert!(result.contains("1 of 1 shards are missing"), "{result}");
    assert!(peak < 5 * SOME as u64 + NOTHING, "{peak}");
    write(&|n| format!("{n:x}"));
    let (result, peak) = open(place.path());
    assert!(result.contains("more than 10000 shards"), "{result}");
    assert!(peak < 5 * SOME as u64 + NOTHING, "{peak}");
}

#[test]
fn burnpack_takes_eight_times_its_metadata_at_most() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.bpk");
    let text = |text: &str| [&[0x78, text.len() as u8][..], text.as_bytes()].concat();
    let write = |tensor: &dyn Fn(usize) -> Vec<u8>| {
        // A map without end of tensors.
        let mut metadata = [&[0xbf][..], &text("tensors"), &[0xbf]].concat();
        let mut count = 0;
        while metadata.len() < SOME {
            metadata.extend(tensor(count));
            count += 1;
        }
        metadata.extend([0xff, 0xff]);
        let mut file = b"NRUB\x01\0".to_vec();
        file.extend((metadata.len() as u32).to_le_bytes());
        file.extend(metadata);
        file.resize(file.len().next_multiple_of(256), 0);
        fs::write(&path, file).unwrap();
        let (result, peak) = open(&path);
        assert!(peak < 8 * SOME as u64 + NOTHING, "{peak}");
        (count, result)
    };
    let fields = [text("dtype"), text("U8"), text("data_offsets"), vec![0x82, 0, 0]].concat();
    let tensor = |name: &str, shape: &[u8]| {
        [&text(name), &[0xa3][..], &fields, &text("shape"), shape].concat()
    };
    let (count, result) = write(&|n| tensor(&format!("{n:x}"), &[0x81, 0]));
    assert_eq!(result, format!("{count} tensors"));
    assert!(count > 300_000, "{count}");
    let many = [&[0x98, 64][..], &[0; 64]].concat();
    let (count, result) = write(&|n| tensor(&format!("{n:x}"), &many));
    assert_eq!(result, format!("{count} tensors"));
    // All the same name; one shape of millions of dimensions; a list in a list.
    assert!(write(&|_| tensor("w", &[0x81, 0])).1.contains("\"w\" is defined twice"));
    let begin = [&text("w"), &[0xa3][..], &fields, &text("shape"), &[0x9f]].concat();
    let (_, result) = write(&|n| if n == 0 { begin.clone() } else { vec![0] });
    assert!(result.contains("more than 64 dimensions"), "{result}");
    assert!(write(&|_| vec![0x81]).1.contains("not valid"));
}

#[test]
fn a_pickle_takes_forty_times_its_bytes_at_most() {
    /// Bytes that `data.pkl` may have.
    const LIMIT: usize = 10 << 20;
    let place = tempfile::tempdir().unwrap();
    let open_pickle = |pickle: &[u8]| {
        let file = made::file(pickle, &[("0", &[0; 64])]);
        fs::write(place.path().join("pytorch_model.bin"), file).unwrap();
        let (result, peak) = open(place.path());
        assert!(peak < 40 * LIMIT as u64 + NOTHING, "{peak}");
        result
    };
    // As many tensors as fit, all of one storage.
    let entry = |n: usize| Entry {
        elements: 16,
        ..Entry::new(&format!("{n:x}"), "FloatStorage", "0", &[1])
    };
    let mut tensors: Vec<_> = (0..90_000).map(entry).collect();
    while Pickle::of(&tensors).len() > LIMIT {
        tensors.truncate(tensors.len() - 1000);
    }
    assert!(tensors.len() > 40_000, "{}", tensors.len());
    assert_eq!(open_pickle(&Pickle::of(&tensors)), format!("{} tensors", tensors.len()));

    // Tuples in tuples, notes, lists in lists and entries of dicts, until there are too many.
    let lists = [&b"]("[..], &[b']'; 50_000], b"e"].concat();
    let entries = [&b"}("[..], &[b'N'; 50_000], b"u"].concat();
    for (start, part) in
        [(&b")"[..], &b"\x85"[..]), (b"N", b"\x94"), (b"", &lists), (b"", &entries)]
    {
        let mut pickle = [b"\x80\x04", start].concat();
        while pickle.len() + part.len() < LIMIT {
            pickle.extend_from_slice(part);
        }
        let result = open_pickle(&pickle);
        let ended = ["more values than", "an end before"];
        assert!(ended.iter().any(|part| result.contains(part)), "{result}");
    }
}

#[test]
fn a_gguf_file_takes_twelve_times_its_header_at_most() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.gguf");
    let open_file = |bytes: &[u8]| {
        fs::write(&path, bytes).unwrap();
        let (result, peak) = open(&path);
        assert!(peak < 12 * bytes.len() as u64 + NOTHING, "{peak} of {}", bytes.len());
        result
    };
    let names: Vec<String> = (0..SOME / 40).map(|n| format!("{n:x}")).collect();
    let tensors: Vec<gguf::Tensor<'_>> =
        names.iter().map(|name| (name.as_str(), &[0][..], 0, 0)).collect();
    let result = open_file(&gguf::file(&[], &tensors, 0));
    assert_eq!(result, format!("{} tensors", tensors.len()));

    // Keys and values as many, as long and as short as can be, of which files are made.
    let some = |values: &[(&str, gguf::Value)]| {
        let all = [&[("general.architecture", gguf::text("llama"))], values].concat();
        assert_eq!(open_file(&gguf::file(&all, &[], 0)), "0 tensors");
    };
    let key = |n: &String| format!("llama.{n}");
    let keys: Vec<_> = names[..65_000].iter().map(key).collect();
    some(&keys.iter().map(|key| (key.as_str(), gguf::flag(true))).collect::<Vec<_>>());
    let array = |kind: u32, count: usize, each: &[u8]| {
        let count_bytes = (count as u64).to_le_bytes();
        (9, [&kind.to_le_bytes()[..], &count_bytes, &each.repeat(count)].concat())
    };
    some(&[("llama.x", array(0, SOME, &[1]))]);
    some(&[("llama.rope.scaling.factor", array(0, SOME, &[1]))]);
    some(&[("llama.x", gguf::text(&"\0".repeat(SOME)))]);
    some(&[("tokenizer.chat_template", gguf::text(&"\0".repeat(SOME)))]);
    let count = SOME / 14;
    for model in ["gpt2", "llama"] {
        some(&[
            ("tokenizer.ggml.model", gguf::text(model)),
            ("tokenizer.ggml.pre", gguf::text("qwen2")),
            ("tokenizer.ggml.tokens", array(8, count, b"\x01\0\0\0\0\0\0\0a")),
            // Control tokens, which are listed twice.
            ("tokenizer.ggml.token_type", array(0, count, &[3])),
            ("tokenizer.ggml.scores", array(6, count, &[0; 4])),
            ("tokenizer.ggml.merges", array(8, 1, &[0; 8])),
        ]);
    }
}
