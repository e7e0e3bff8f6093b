//! Checkpoints made to do harm: each is refused with its file and its fault, at once.
mod common;

use std::fs;

use common::{file_bytes, message, said_of_header, said_of_index, tensor};
use outsize_checkpoint::{Checkpoint, Header, Index};

#[test]
fn names_do_not_reach_the_terminal() {
    let clear = r"\u001b[2J\u001b]0;owned\u0007";
    let entry = tensor(clear, "U8", &[1], 0, 1);
    let said = said_of_header(format!("{{{entry}}}").as_bytes(), &[0]);
    assert!(
        said.contains(r#""\u{1b}[2J\u{1b}]0;owned\u{7}" is a name with control characters"#),
        "{said}"
    );
    for name in [r"a\u0000b", r"a\nb", r"a\u009b2Jb", r"a\u007f"] {
        let entry = tensor(name, "U8", &[1], 0, 1);
        let said = said_of_header(format!("{{{entry}}}").as_bytes(), &[0]);
        assert!(said.contains("control characters"), "{said}");
        for json in [
            format!(r#"{{"weight_map": {{"{name}": "x"}}}}"#),
            format!(r#"{{"weight_map": {{"x": "{name}"}}}}"#),
        ] {
            let said = said_of_index(json.as_bytes());
            assert!(said.contains("control characters"), "{said}");
        }
    }
    // In strings that are no names.
    let dtype = tensor("w", r"\u001b[2J", &[1], 0, 1);
    let said = said_of_header(format!("{{{dtype}}}").as_bytes(), &[0]);
    assert!(said.contains(r#"dtype "\u{1b}[2J" is not supported"#), "{said}");
    let said = said_of_header(br#"{"w": "\u001b[2J"}"#, &[]);
    assert!(said.contains(r#"string "\u{1b}[2J""#), "{said}");
    let said = said_of_index(br#"{"weight_map": "\u001b[2J"}"#);
    assert!(said.contains(r#"string "\u{1b}[2J""#), "{said}");
    // What reorders text is escaped too.
    let said =
        said_of_header(format!("{{{}}}", tensor("a\u{202e}b", "F4", &[2], 0, 1)).as_bytes(), &[0]);
    assert!(said.contains(r#"tensor "a\u{202e}b""#), "{said}");
}

#[test]
fn a_megabyte_is_not_shown() {
    let long = "x".repeat(1 << 20);
    let said = said_of_header(format!("{{{}}}", tensor(&long, "U8", &[1], 0, 1)).as_bytes(), &[0]);
    assert!(said.contains("is a name of more than 4096 bytes"), "{said}");
    let said = said_of_header(format!("{{{}}}", tensor("w", &long, &[1], 0, 1)).as_bytes(), &[0]);
    assert!(said.contains("tensor \"w\": dtype \"xxx"), "{said}");
    for value in [format!("\"{long}\""), "9".repeat(1 << 20)] {
        let said = said_of_header(format!("{{\"w\": {value}}}").as_bytes(), &[]);
        assert!(said.contains("the header is not valid: \"w\": "), "{said}");
    }
    for json in [
        format!(r#"{{"weight_map": {{"{long}": "x"}}}}"#),
        format!(r#"{{"weight_map": {{"w": "{long}"}}}}"#),
    ] {
        let said = said_of_index(json.as_bytes());
        assert!(said.contains("is a name of more than 4096 bytes"), "{said}");
    }
    // The longest name allowed.
    let long = "x".repeat(4096);
    let json = format!("{{{}}}", tensor(&long, "U8", &[1], 0, 1));
    assert_eq!(Header::parse(json.as_bytes(), 1).unwrap().tensors[0].name, long);
}

#[test]
fn nesting_is_bounded_in_every_file() {
    for (open, close) in [("[", "]"), ("{\"x\":", "}")] {
        let deep = format!("{}0{}", open.repeat(1_000_000), close.repeat(1_000_000));
        for member in ["shape", "data_offsets", "dtype"] {
            let said = said_of_header(format!("{{\"w\":{{\"{member}\":{deep}}}}}").as_bytes(), &[]);
            assert!(said.contains("the header is not valid: \"w\": "), "{said}");
        }
        said_of_header(format!("{{\"__metadata__\":{deep}}}").as_bytes(), &[]);
        said_of_header(format!("{{\"__metadata__\":{{\"x\":{deep}}}}}").as_bytes(), &[]);
        said_of_index(format!("{{\"weight_map\":{deep}}}").as_bytes());
        said_of_index(format!("{{\"weight_map\":{{\"w\":{deep}}}}}").as_bytes());
        said_of_index(deep.as_bytes());
        // What means nothing is skipped without recursion.
        let json =
            format!(r#"{{"w":{{"x":{deep},"dtype":"U8","shape":[1],"data_offsets":[0,1]}}}}"#);
        assert_eq!(Header::parse(json.as_bytes(), 1).unwrap().tensors.len(), 1);
        let json = format!(r#"{{"metadata":{deep},"weight_map":{{"w":"x"}}}}"#);
        assert_eq!(Index::parse(json.as_bytes()).unwrap().len(), 1);
    }
}

#[test]
fn text_that_is_not_utf8_is_refused() {
    let said = said_of_header(b"{\"w\xff\":{}}", &[]);
    assert!(said.contains("the header is not valid: "), "{said}");
    // A lone half of a surrogate pair, which Python writes and reads.
    let said =
        said_of_header(br#"{"\ud800":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, &[0]);
    assert!(said.contains("the header is not valid: "), "{said}");
    let said = said_of_index(b"{\"weight_map\":{\"w\":\"\xff\"}}");
    assert!(said.contains("the index is not valid: "), "{said}");
    // As Notepad writes it: with a byte order mark, or in UTF-16.
    said_of_index(b"\xef\xbb\xbf{\"weight_map\":{\"w\":\"x\"}}");
    said_of_index(b"\xff\xfe{\0\"\0");
    said_of_index(b"{\"weight_map\":{\"w\":\"x\"}}\0\0");
}

#[test]
fn doubles_are_seen_at_every_level() {
    let w = |name: &str, len: usize| tensor(name, "U8", &[len], 0, len as u64);
    for (header, len) in [
        (format!("{{{0},{0}}}", w("w", 1)), 1),
        (format!("{{{},{}}}", w("w", 1), w("w", 2)), 2),
        (format!("{{{},{}}}", w("w", 1), w(r"\u0077", 1)), 1),
    ] {
        let said = said_of_header(header.as_bytes(), &vec![0; len]);
        assert!(said.contains("tensor \"w\" is defined twice"), "{said}");
    }
    for (header, part) in [
        (r#"{"__metadata__":{},"__metadata__":{}}"#, r#""__metadata__" is defined twice"#),
        (r#"{"__metadata__":null,"__metadata__":null}"#, r#""__metadata__" is defined twice"#),
        (r#"{"__metadata__":{"a":"1","a":"1"}}"#, r#""a" is defined twice"#),
        (
            r#"{"w":{"shape":[1],"shape":[1],"dtype":"U8","data_offsets":[0,1]}}"#,
            "duplicate field `shape`",
        ),
        (r#"{"w":{"dtype":"U8","dtype":"U8"}}"#, "duplicate field `dtype`"),
        (r#"{"w":{"data_offsets":[0,1],"data_offsets":[0,1]}}"#, "duplicate field `data_offsets`"),
    ] {
        let said = said_of_header(header.as_bytes(), &[0]);
        assert!(said.contains(part), "{said}");
    }
    for (index, part) in [
        (r#"{"weight_map":{"w":"1","w":"1"}}"#, r#"tensor "w" is defined twice"#),
        (r#"{"weight_map":{"w":"1","\u0077":"2"}}"#, r#"tensor "w" is defined twice"#),
        (r#"{"weight_map":{"w":"1"},"weight_map":{"w":"1"}}"#, "duplicate field `weight_map`"),
        (r#"{"metadata":{},"metadata":{},"weight_map":{"w":"1"}}"#, "duplicate field `metadata`"),
    ] {
        let said = said_of_index(index.as_bytes());
        assert!(said.contains(part), "{said}");
    }
}

#[test]
fn shapes_are_sane() {
    let one = |shape: &str, end: u64| {
        format!(r#"{{"w":{{"dtype":"F64","shape":{shape},"data_offsets":[0,{end}]}}}}"#)
    };
    let deep = |rank: usize| one(&format!("{:?}", vec![1; rank]), 8);
    let said = said_of_header(deep(1000).as_bytes(), &[0; 8]);
    assert!(said.contains("\"w\": more than 64 dimensions"), "{said}");
    assert!(Header::parse(deep(65).as_bytes(), 8).is_err());
    assert_eq!(Header::parse(deep(64).as_bytes(), 8).unwrap().tensors[0].shape, [1; 64]);
    assert!(Header::parse(one("[]", 8).as_bytes(), 8).unwrap().tensors[0].shape.is_empty());
    for zero in ["[0]", "[0,0]", "[3,0,18446744073709]"] {
        assert_eq!(Header::parse(one(zero, 0).as_bytes(), 0).unwrap().tensors[0].end, 0);
    }
    for huge in [
        "[18446744073709551615]",
        "[4294967296,4294967296]",
        "[4294967296,4294967296,0]",
        "[0,4294967296,4294967296]",
    ] {
        let said = said_of_header(one(huge, 0).as_bytes(), &[]);
        assert!(said.contains("tensor \"w\": its shape is too large to be real"), "{said}");
    }
    let said = said_of_header(one("[18446744073709551616]", 0).as_bytes(), &[]);
    assert!(said.contains("\"w\": invalid type: floating point"), "{said}");
    for (shape, end) in [("[2]", 8), ("[1]", 16), ("[0]", 8), ("[]", 0)] {
        let said = said_of_header(one(shape, end).as_bytes(), &vec![0; end as usize]);
        assert!(said.contains("tensor \"w\" should have "), "{said}");
    }
    for dtype in ["F4", "F6_E2M3", "F8_E3M4", "F8", "C64", "U4", "f32", "", "F32 "] {
        let said =
            said_of_header(format!("{{{}}}", tensor("w", dtype, &[2], 0, 8)).as_bytes(), &[0; 8]);
        assert!(
            said.contains(&format!("tensor \"w\": dtype {dtype:?} is not supported")),
            "{said}"
        );
    }
}

#[test]
fn offsets_are_sane() {
    let one = |start: u64, end: u64| format!("{{{}}}", tensor("w", "U8", &[8], start, end));
    for (start, end, part) in [
        (0, 9, "should have 8 bytes by its shape and dtype, and has 9"),
        (8, 0, "starts at byte 8 of the data and ends before that, at 0"),
        (8, 16, "ends at byte 16 of the data, and the file holds 8"),
        (u64::MAX - 8, u64::MAX, "ends at byte 18446744073709551615 of the data"),
        (u64::MAX, 7, "starts at byte 18446744073709551615 of the data and ends before that"),
    ] {
        let said = said_of_header(one(start, end).as_bytes(), &[0; 8]);
        assert!(said.contains(&format!("tensor \"w\" {part}")), "{said}");
    }
    // The same bytes twice, one tensor inside another, and an empty one inside another.
    for (second, part) in [
        (tensor("w", "U8", &[8], 0, 8), "tensor \"w\" starts inside tensor \"v\""),
        (tensor("w", "U8", &[2], 3, 5), "tensor \"w\" starts inside tensor \"v\""),
        (tensor("w", "U8", &[0], 3, 3), "tensor \"w\" starts inside tensor \"v\""),
        (tensor("w", "U8", &[1], 9, 10), "1 bytes before tensor \"w\" belong to no tensor"),
    ] {
        let header = format!("{{{},{second}}}", tensor("v", "U8", &[8], 0, 8));
        let said = said_of_header(header.as_bytes(), &[0; 10]);
        assert!(said.contains(part), "{said}");
    }
    for offsets in ["[0]", "[0,8,9]", "[-1,7]", "[0,8.0]", "[\"0\",\"8\"]", "null", "{}"] {
        let header = format!(r#"{{"w":{{"dtype":"U8","shape":[8],"data_offsets":{offsets}}}}}"#);
        let said = said_of_header(header.as_bytes(), &[0; 8]);
        assert!(said.contains("the header is not valid: \"w\": "), "{offsets}: {said}");
    }
}

#[test]
fn notes_are_strings() {
    for notes in ["1", "[]", "\"x\"", "{\"a\":1}", "{\"a\":null}", "{\"a\":{}}"] {
        let said = said_of_header(format!("{{\"__metadata__\":{notes}}}").as_bytes(), &[]);
        assert!(said.contains("\"__metadata__\": "), "{said}");
    }
    // Large notes are legal: trainers keep whole tables in them. Very many are not.
    let large = format!(r#"{{"__metadata__":{{"a":"{}"}}}}"#, "x".repeat(10 << 20));
    assert_eq!(Header::parse(large.as_bytes(), 0).unwrap().metadata["a"].len(), 10 << 20);
    let many: Vec<_> = (0..100_001).map(|n| format!("\"{n}\":\"\"")).collect();
    let said =
        said_of_header(format!("{{\"__metadata__\":{{{}}}}}", many.join(",")).as_bytes(), &[]);
    assert!(said.contains("\"__metadata__\": more than 100000 entries"), "{said}");
}

#[test]
fn names_that_differ_in_case_are_different() {
    let place = tempfile::tempdir().unwrap();
    let header = format!("{{{},{}}}", tensor("w", "U8", &[1], 0, 1), tensor("W", "U8", &[1], 1, 2));
    fs::write(place.path().join("model.safetensors"), file_bytes(&header, &[1, 2])).unwrap();
    let checkpoint = Checkpoint::open(place.path()).unwrap();
    let read = |name: &str| checkpoint.read(checkpoint.get(name).unwrap()).unwrap();
    assert_eq!((read("w"), read("W")), (vec![1], vec![2]));
    // Another file is not taken for the checkpoint because its name looks like it.
    fs::rename(place.path().join("model.safetensors"), place.path().join("Model.safetensors"))
        .unwrap();
    if !place.path().join("model.safetensors").exists() {
        let said = message(Checkpoint::open(place.path()));
        assert!(
            said.contains("1 other .safetensors file, such as \"Model.safetensors\""),
            "{said}"
        );
    }
}
