//! Files of `torch.save` made to do harm: each is refused in one line that names the fault.
mod common;
#[path = "common/torch.rs"]
mod made;

use std::fs;
use std::time::{Duration, Instant};

use common::{is_sane, said_of};
use made::{Archive, Entry, Pickle, archive, end_records, file};
use outsize_checkpoint::Checkpoint;
use proptest::collection::vec;
use proptest::prelude::*;

const NAME: &str = "pytorch_model.bin";

/// What opening a folder with this file says.
#[track_caller]
fn refused(file: &[u8], part: &str) {
    let began = Instant::now();
    let said = said_of(&[(NAME, file)]);
    assert!(said.contains(&format!("{NAME}: ")), "{said}");
    assert!(said.contains(part), "{said}\nshould contain\n{part}");
    assert!(began.elapsed() < Duration::from_secs(10));
}

#[track_caller]
fn pickle_refused(pickle: &[u8], part: &str) {
    refused(&file(pickle, &[("0", &[0; 64])]), part);
}

fn w() -> Entry {
    Entry::new("w", "FloatStorage", "0", &[2, 2])
}

/// A valid file of one tensor.
fn valid() -> Archive {
    archive(&Pickle::of(&[w()]), &[("0", &[7; 16])])
}

#[test]
fn the_valid_file_is_read() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join(NAME), valid().finish()).unwrap();
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    assert_eq!(checkpoint.read(&checkpoint.tensors()[0]).unwrap(), [7; 16]);
}

#[test]
fn code_is_never_run() {
    let place = tempfile::tempdir().unwrap();
    let proof = place.path().join("proof");
    let command = format!("touch {}", proof.display());
    let mut pickle = Pickle::default();
    pickle.op(b"\x80\x02cos\nsystem\n(").text(&command).op(b"tR.");
    pickle_refused(&pickle.0, "refers to \"os.system\"");
    assert!(!proof.exists());
    for (module, name) in [
        ("builtins", "eval"),
        ("builtins", "getattr"),
        ("torch", "load"),
        ("torch._utils", "_rebuild_qtensor"),
        ("torch.hub", "FloatStorage"),
        ("collections", "OrderedDict.fromkeys"),
        ("_codecs", "encode"),
        ("numpy.core.multiarray", "_reconstruct"),
    ] {
        let named = format!("refers to \"{module}.{name}\"");
        pickle_refused(format!("\x00{module}").as_bytes(), "opcode 0x00, which is unknown");
        pickle_refused(format!("c{module}\n{name}\n)R.").as_bytes(), &named);
        let mut later = Pickle(b"\x80".to_vec());
        later.op(b"\x04").text(module).text(name).op(b"\x93)R.");
        pickle_refused(&later.0, &named);
    }
    pickle_refused(b"\x80\x02cos\n\x1b[2J\x7f\n.", "is no part of a state dict");
    pickle_refused(format!("c{}\nx\n.", "m".repeat(1 << 20)).as_bytes(), "is no part");
    // Known functions with other arguments, and other things that are called.
    for pickle in [
        &b"ccollections\nOrderedDict\n]R."[..],
        b"ccollections\nOrderedDict\nN\x85R.",
        b"ctorch\nFloatStorage\n)R.",
        b"ctorch._utils\n_rebuild_parameter\nN\x85R.",
        b"ctorch._utils\n_rebuild_tensor_v2\n)R.",
        b"N)R.",
    ] {
        pickle_refused(pickle, "a call ");
    }
    pickle_refused(b"]}b.", "attributes of something that is no dict");
    pickle_refused(b"NQ.", "a persistent id that is no storage's");
    for opcode in [b"\x81", b"\x92", b"i", b"o", b"P", b"\x82", b"I", b"\xff"] {
        pickle_refused(&[b"))", &opcode[..]].concat(), "which is unknown, at byte 2");
    }
}

#[test]
fn memory_is_bounded() {
    let repeated = |part: &[u8], count: usize| [b"\x80\x02", &part.repeat(count)[..]].concat();
    pickle_refused(b"\x80\x02Nr\xff\xff\xff\xff.", "more values than a state dict");
    pickle_refused(&repeated(b"N", 1 << 20), "more values on the stack");
    pickle_refused(&repeated(b"(", 1 << 20), "more marks");
    pickle_refused(&repeated(b"X\xff\xff\xff\x7f", 1), "an end before its last opcode");
    pickle_refused(&repeated(b"\x8e\xff\xff\xff\xff\xff\xff\xff\xff", 1), "an end before");
    // A tuple of a hundred, again and again.
    let mut doubling = b"\x80\x02)".to_vec();
    for at in 0..100_000u32 {
        doubling.extend_from_slice(b"r");
        doubling.extend_from_slice(&at.to_le_bytes());
        doubling.push(b'(');
        for _ in 0..20 {
            doubling.extend_from_slice(b"h\0");
        }
        doubling.push(b't');
    }
    pickle_refused(&doubling, "more values");
    pickle_refused(&[0; 11 << 20], "data.pkl has 11534336 bytes, over the limit of 10485760");
}

#[test]
fn nesting_takes_no_stack() {
    // Tuples and dicts a million deep, and a list in itself, beside a tensor.
    let deep = |open: &[u8]| {
        let mut pickle = Pickle(b"\x80\x02}(".to_vec());
        pickle.text("w").tensor(&w()).text("deep").op(open).op(b"u.");
        pickle.0
    };
    let tuples = [&b")"[..], &[0x85; 1_000_000]].concat();
    let itself = b"]q\0(h\0}q\x01(h\0h\x01h\x01h\0ue";
    let place = tempfile::tempdir().unwrap();
    for inner in [&tuples[..], itself] {
        let bytes = file(&deep(inner), &[("0", &[0; 16])]);
        fs::write(place.path().join(NAME), bytes).unwrap();
        match Checkpoint::open(place.path()) {
            Ok(checkpoint) => assert_eq!(checkpoint.tensors().len(), 1),
            Err(error) => {
                assert!(error.to_string().contains("more values than a state dict"), "{error}");
                assert!(inner.len() > 1000);
            }
        }
    }
    // Each holds the one before twice: to look into all of them would take for ever.
    let mut wide = b"]".to_vec();
    for _ in 0..200 {
        wide.extend_from_slice(b"q\0h\0\x86");
    }
    fs::write(place.path().join(NAME), file(&deep(&wide), &[("0", &[0; 16])])).unwrap();
    assert_eq!(Checkpoint::open(place.path()).unwrap().tensors().len(), 1);
}

#[test]
fn pickles_are_whole() {
    let pickle = Pickle::of(&[w()]);
    for len in 0..pickle.len() {
        pickle_refused(&pickle[..len], "data.pkl is not the pickle of a state dict: ");
    }
    pickle_refused(b"\x80\x01}.", "an unknown protocol at byte 0");
    pickle_refused(b"\x80\x02.", "an empty stack at byte 2");
    pickle_refused(b"\x80\x02(t", "an end before its last opcode");
    pickle_refused(b"\x80\x02N(0.", "which is unknown");
    pickle_refused(b"\x80\x02}(Nu.", "a key without a value");
    pickle_refused(b"\x80\x02](Ns.", "an empty stack");
    pickle_refused(b"\x80\x02}Na.", "elements of something that is no list");
    pickle_refused(b"\x80\x02h\x05.", "a value that was never noted");
    pickle_refused(b"\x80\x02X\x01\0\0\0\xff.", "a string that is not UTF-8");
    pickle_refused(b"\x80\x02N.", "data.pkl holds None rather than a state dict");
    pickle_refused(b"\x80\x02](K\x01K\x02e.", "data.pkl holds a list rather than a state dict");
}

#[test]
fn tensors_are_sane() {
    let tensor = |entry: Entry, part: &str| pickle_refused(&Pickle::of(&[entry]), part);
    tensor(Entry { offset: 1, ..w() }, "tensor \"w\" (F32 [2, 2]) reaches beyond its storage");
    tensor(Entry { offset: u64::MAX, ..w() }, "reaches beyond its storage");
    tensor(Entry { offset: 1 << 62, ..w() }, "reaches beyond its storage");
    tensor(Entry { elements: 3, ..w() }, "reaches beyond its storage");
    tensor(Entry { elements: 1 << 62, ..w() }, "reaches beyond its storage");
    tensor(Entry { elements: u64::MAX, ..w() }, "a storage of negative length");
    tensor(Entry { elements: 17, ..w() }, "\"0\", which has 64 bytes instead of 68");
    tensor(Entry { key: "1".into(), ..w() }, "in storage \"1\", which is not in the archive");
    tensor(Entry { key: "../data.pkl".into(), ..w() }, "which is not in the archive");
    let shaped = |shape: &[u64]| Entry { elements: 4, ..Entry { shape: shape.to_vec(), ..w() } };
    tensor(shaped(&[1 << 40, 1 << 40]), "tensor \"w\" has a shape too large to be real");
    tensor(shaped(&[0, 1 << 62, 4]), "tensor \"w\" has a shape too large to be real");
    tensor(shaped(&[u64::MAX]), "tensor \"w\" has a dimension of negative size");
    tensor(shaped(&[1; 65]), "a tensor of more than 64 dimensions");
    tensor(Entry { class: "QUInt8Storage", ..w() }, "\"torch.QUInt8Storage\"");
    tensor(Entry { name: "a\u{1b}[2J".into(), ..w() }, "a name with control characters");
    tensor(Entry { name: "n".repeat(1 << 20), ..w() }, "a name of more than 4096 bytes");
    pickle_refused(&Pickle::of(&[w(), w()]), "tensor \"w\" is defined twice");
    let half = Entry { name: "v".into(), class: "HalfStorage", ..w() };
    pickle_refused(&Pickle::of(&[w(), half]), "storage \"0\" with two types or lengths");
}

#[test]
fn archives_are_sane() {
    let with = |change: fn(&mut Archive)| {
        let mut archive = valid();
        change(&mut archive);
        archive.finish()
    };
    refused(&with(|a| a.members[1].header = 1 << 20), "a member lies outside the file");
    refused(&with(|a| a.members[1].header = 1 << 40), "a member lies outside the file");
    refused(&with(|a| a.members[1].len = 1 << 62), "a member lies outside the file");
    refused(&with(|a| a.members[1].len += 128), "data/0\" of the zip archive lies outside");
    refused(&with(|a| a.members[1].header += 1), "has another header than the directory says");
    refused(&with(|a| a.members[1].header = 0), "has another header than the directory says");
    refused(
        &with(|a| a.members[0].len += 80),
        "\"archive/data/0\" of the zip archive starts inside",
    );
    refused(&with(|a| a.members[0].len = 40), "a name without an end");
    refused(&with(|a| a.members[1].method = 8), "data/0\" of the zip archive is compressed");
    refused(&with(|a| a.members[0].flags |= 1), "data.pkl\" of the zip archive is encrypted");
    refused(
        &with(|a| {
            a.add("archive/data/0", b"");
        }),
        "data/0\" of the zip archive is there twice",
    );
    refused(
        &with(|a| {
            a.add("other/data.pkl", b"N.");
        }),
        "more than one data.pkl",
    );
    refused(&with(|a| a.members.truncate(0)), "no data.pkl");
    refused(&with(|a| a.members.truncate(1)), "in storage \"0\", which is not in the archive");
    refused(
        &with(|a| {
            a.add("archive/constants.pkl", b"N.");
        }),
        "torch.jit.save",
    );
    refused(
        &with(|a| {
            a.add("archive/byteorder", &[b'x'; 65]);
        }),
        "over the limit of 64",
    );
    refused(
        &with(|a| {
            a.add("archive/byteorder", b"\x1b[2J");
        }),
        "byte order is",
    );
    refused(&Archive::new().finish(), "this is no zip archive of torch.save");

    // The member's own header says that its data lies elsewhere.
    let mut moved = valid();
    let at = moved.members[1].header as usize + 28;
    moved.bytes[at..at + 2].copy_from_slice(&[0xff; 2]);
    refused(&moved.finish(), "data/0\" of the zip archive lies outside the file");
}

#[test]
fn directories_are_sane() {
    let bytes = valid().finish();
    let start = valid().bytes.len() as u64;
    let body = bytes.len() - end_records(0, 0, 0, 0).len();
    let (len, record) = (body as u64 - start, body as u64);
    let ended = |start, len, count, record| {
        [&bytes[..body], &end_records(start, len, count, record)].concat()
    };
    assert_eq!(ended(start, len, 3, record), bytes);
    for (start, len) in [(start - 1, len), (start, len + 1), (0, 0), (u64::MAX, 2), (1, u64::MAX)] {
        refused(&ended(start, len, 3, record), "does not end where its record starts");
    }
    refused(&ended(start + 1, len - 1, 3, record), "an entry is cut short");
    refused(&ended(start, len, 2, record), "it has not as many entries as it says");
    refused(&ended(start, len, u64::MAX, record), "it has not as many entries as it says");
    for record in [u64::MAX, record + 1, 1 << 40] {
        refused(&ended(start, len, 3, record), "its zip64 record lies outside the file");
    }
    refused(&ended(start, len, 3, 0), "there is no zip64 record where it should be");
    for cut in 0..bytes.len() {
        refused(&bytes[..cut], "");
    }
    // Something behind the end, or before the start.
    refused(&[&bytes[..], b"x"].concat(), "no directory at its end");
    refused(&[b"PK\x03\x04", &bytes[..]].concat(), "damaged");
    // More of it than is read at once.
    let large = 17u64 << 20;
    let zeros = vec![0; large as usize];
    let file = [&bytes[..start as usize], &zeros, &end_records(start, large, 3, start + large)];
    refused(&file.concat(), "has 17825792 bytes, over the limit of 16777216");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn any_bytes_are_read_or_refused(pickle in vec(any::<u8>(), 0..200)) {
        let place = tempfile::tempdir().unwrap();
        for bytes in [file(&pickle, &[("0", &[0; 64])]), pickle] {
            fs::write(place.path().join(NAME), bytes).unwrap();
            match Checkpoint::open(place.path()) {
                Ok(checkpoint) => drop(checkpoint.tensors().len()),
                Err(error) => is_sane(&error.to_string()),
            }
        }
    }

    #[test]
    fn damage_never_panics(
        edits in vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
    ) {
        let mut bytes = valid().finish();
        for (place, value) in edits {
            let place = place.index(bytes.len());
            bytes[place] = value;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len() + 1));
        }
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(NAME), &bytes).unwrap();
        match Checkpoint::open(place.path()) {
            Ok(checkpoint) => {
                for tensor in checkpoint.tensors() {
                    let elements: usize = tensor.shape.iter().product();
                    let read = checkpoint.read(tensor).unwrap();
                    prop_assert_eq!(read.len(), elements * tensor.dtype.size());
                }
            }
            Err(error) => is_sane(&error.to_string()),
        }
    }

    #[test]
    fn opcodes_in_any_order_are_read_or_refused(
        opcodes in vec(prop::sample::select(&b"\x80\x02(.NKMJGCBcXe\x8a)\x85\x86\x87t]}asuqrhjQRb\x93\x94\0\n"[..]), 0..60),
    ) {
        let place = tempfile::tempdir().unwrap();
        fs::write(place.path().join(NAME), file(&opcodes, &[])).unwrap();
        if let Err(error) = Checkpoint::open(place.path()) {
            is_sane(&error.to_string());
        }
    }
}
