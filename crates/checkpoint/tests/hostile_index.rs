//! Indexes made to do harm: each is refused with its name and its fault, at once.
mod common;

use std::fs;

use common::{INDEX, file_bytes, message, said_of_index, tensor};
use outsize_checkpoint::Checkpoint;

#[test]
fn indexes_are_of_the_right_form() {
    for (index, part) in [
        ("", "the index is not valid"),
        ("{", "the index is not valid"),
        ("[]", "the index is not valid"),
        ("{}", "missing field `weight_map`"),
        (r#"{"weight_map":null}"#, "an object of shards' names"),
        (r#"{"weight_map":["a"]}"#, "an object of shards' names"),
        (r#"{"weight_map":{"w":null}}"#, "\"w\": invalid type: null"),
        (r#"{"weight_map":{"w":["1"]}}"#, "\"w\": invalid type: sequence"),
        (r#"{"weight_map":{}}"#, "the index names no tensors"),
        (r#"{"weight_map":{"w":"1"}} x"#, "trailing characters"),
        ("PK\x03\x04zip", "this is a zip archive, as torch.save writes it"),
    ] {
        let said = said_of_index(index.as_bytes());
        assert!(said.contains(part), "{index}: {said}");
    }
    let said = said_of_index(b"\x80\x02}q\x01.");
    assert!(said.contains("this is a Python pickle"), "{said}");
}

#[test]
fn an_index_has_bounds() {
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join(INDEX);
    // Sparse: nothing of it is read.
    fs::File::create(&path).unwrap().set_len(200 << 20).unwrap();
    let said = message(Checkpoint::open(place.path()));
    assert!(said.contains("the index has 209715200 bytes, over the limit of 100000000"), "{said}");

    let shards = |count: usize| {
        let entries: Vec<_> = (0..count).map(|n| format!("\"{n}\":\"{n}\"")).collect();
        format!("{{\"weight_map\":{{{}}}}}", entries.join(","))
    };
    for count in [10_001, 10_002, 20_000] {
        let said = said_of_index(shards(count).as_bytes());
        assert!(said.contains("the index names more than 10000 shards"), "{said}");
    }
    let said = said_of_index(shards(10_000).as_bytes());
    assert!(said.contains("10000 of 10000 shards are missing, \"0\" first"), "{said}");
}

#[test]
fn shards_stay_in_the_folder_and_may_be_in_folders_of_it() {
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("model");
    fs::create_dir_all(folder.join("parts/one")).unwrap();
    let shard = file_bytes(&format!("{{{}}}", tensor("w", "U8", &[1], 0, 1)), &[7]);
    fs::write(place.path().join("outside"), &shard).unwrap();
    fs::write(folder.join("parts/one/x"), &shard).unwrap();
    let open = |file: &str| {
        let json = serde_json::json!({"weight_map": {"w": file}}).to_string();
        fs::write(folder.join(INDEX), json).unwrap();
        Checkpoint::open(&folder)
    };
    let checkpoint = open("parts/one/x").unwrap();
    assert_eq!(checkpoint.read(&checkpoint.tensors()[0]).unwrap(), [7]);
    for file in [
        "../outside",
        "parts/../../outside",
        place.path().join("outside").to_str().unwrap(),
        "parts//one/x",
        "./parts/one/x",
        "parts/one/x/",
        "parts\\one\\x",
        "c:x",
        "",
        ".",
        "..",
    ] {
        let said = message(open(file));
        let expected = format!("{file:?}, which is not the name of a file inside the folder");
        assert!(said.contains(INDEX) && said.contains(&expected), "{said}");
    }
}

#[test]
fn headers_together_have_a_bound() {
    // One file of 60 MB of header, under several names.
    let place = tempfile::tempdir().unwrap();
    let mut json = format!("{{{}}}", tensor("w0", "U8", &[1], 0, 1)).into_bytes();
    json.resize(60_000_000, b' ');
    let file = [&(json.len() as u64).to_le_bytes(), &json[..], &[0]].concat();
    fs::write(place.path().join("0"), file).unwrap();
    let map: Vec<_> = (0..5).map(|n| format!("\"w{n}\":\"{n}\"")).collect();
    for n in 1..5 {
        fs::hard_link(place.path().join("0"), place.path().join(n.to_string())).unwrap();
    }
    fs::write(place.path().join(INDEX), format!("{{\"weight_map\":{{{}}}}}", map.join(",")))
        .unwrap();
    let said = message(Checkpoint::open(place.path()));
    assert!(
        said.contains("the headers of its shards have more than 200000000 bytes together"),
        "{said}"
    );
}
