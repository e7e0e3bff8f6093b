use proptest::prelude::*;

use super::*;

fn fault(json: &str, data_len: u64) -> String {
    Header::parse(json.as_bytes(), data_len).unwrap_err().to_string()
}

#[test]
fn order_is_that_of_the_data() {
    let json = r#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[3,11]},"__metadata__":{"format":"pt"},
        "b":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},"empty":{"dtype":"F64","shape":[0,5],"data_offsets":[3,3]}}   "#;
    let header = Header::parse(json.as_bytes(), 11).unwrap();
    let names: Vec<_> = header.tensors.iter().map(|entry| entry.name.as_str()).collect();
    assert_eq!(names, ["b", "empty", "a"]);
    assert_eq!(header.metadata["format"], "pt");
    assert_eq!(
        header.tensors[2],
        HeaderEntry { name: "a".into(), dtype: Dtype::F32, shape: vec![2], start: 3, end: 11 }
    );
}

#[test]
fn nothing_at_all_is_legal() {
    assert!(Header::parse(b"{}", 0).unwrap().tensors.is_empty());
    assert!(Header::parse(br#"{"__metadata__":null}"#, 0).unwrap().metadata.is_empty());
}

#[test]
fn each_fault_names_its_tensor() {
    let one = |dtype: &str, shape: &str, offsets: &str| {
        format!(r#"{{"w":{{"dtype":"{dtype}","shape":{shape},"data_offsets":{offsets}}}}}"#)
    };
    assert_eq!(
        fault(&one("F32", "[2]", "[0,7]"), 8),
        r#"tensor "w" should have 8 bytes by its shape and dtype, and has 7"#
    );
    assert!(
        fault(&one("F6_E2M3", "[2]", "[0,2]"), 2)
            .starts_with(r#"tensor "w": dtype "F6_E2M3" is not supported"#)
    );
    assert!(
        fault(&one("U8", "[0]", "[5,4]"), 8)
            .contains(r#"tensor "w" starts at byte 5 of the data and ends before that, at 4"#)
    );
    assert!(
        fault(&one("U8", "[9]", "[0,9]"), 8)
            .contains(r#"tensor "w" ends at byte 9 of the data, and the file holds 8"#)
    );
    assert!(
        fault(&one("U8", "[4]", "[4,8]"), 8)
            .contains(r#"4 bytes before tensor "w" belong to no tensor"#)
    );
    assert!(
        fault(&one("U8", "[4]", "[0,4]"), 8)
            .contains("the last 4 bytes of the file belong to no tensor")
    );
    let huge = "[4294967296,4294967296,0]";
    assert_eq!(
        fault(&one("F32", huge, "[0,0]"), 0),
        r#"tensor "w": its shape is too large to be real"#
    );
    assert!(fault(&one("F32", "[-1]", "[0,0]"), 0).contains(r#""w": invalid value: integer `-1`"#));
    assert!(
        fault(&one("F32", "[1.5]", "[0,0]"), 0).contains(r#""w": invalid type: floating point"#)
    );
    assert!(fault(&one("F32", "[]", "[0]"), 0).contains(r#""w": invalid length 1"#));
}

#[test]
fn doubles_are_seen_wherever_they_are() {
    let w = r#""w":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    assert!(fault(&format!("{{{w},{w}}}"), 1).contains(r#""w" is defined twice"#));
    assert!(
        fault(r#"{"__metadata__":{},"__metadata__":{}}"#, 0)
            .contains(r#""__metadata__" is defined twice"#)
    );
    assert!(
        fault(r#"{"__metadata__":{"a":"1","a":"2"}}"#, 0)
            .contains(r#""__metadata__": "a" is defined twice"#)
    );
    assert!(
        fault(r#"{"w":{"dtype":"U8","dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#, 0)
            .contains("duplicate field `dtype`")
    );
    let overlap = r#"{"v":{"dtype":"U8","shape":[4],"data_offsets":[0,4]},"w":{"dtype":"U8","shape":[4],"data_offsets":[3,7]}}"#;
    assert_eq!(fault(overlap, 7), r#"tensor "w" starts inside tensor "v""#);
}

#[test]
fn deep_nesting_is_an_error_and_not_an_overflow() {
    for member in ["shape", "data_offsets", "unknown"] {
        let json = format!(r#"{{"w":{{"{member}":{}"#, "[".repeat(1_000_000));
        assert!(fault(&json, 0).contains("the header is not valid: \"w\": "), "{member}");
    }
}

fn json_value() -> impl Strategy<Value = String> {
    let leaf = prop_oneof![
        Just("null".to_owned()),
        any::<i64>().prop_map(|n| n.to_string()),
        any::<u64>().prop_map(|n| n.to_string()),
        (0u64..20).prop_map(|n| n.to_string()),
        any::<f64>().prop_map(|n| format!("{n:?}")),
        prop_oneof!["F32", "BF16", "U8", "BOOL", "\\PC*"]
            .prop_map(|s| serde_json::Value::String(s).to_string()),
    ];
    leaf.prop_recursive(4, 40, 6, |inner| {
        let key = prop_oneof!["dtype", "shape", "data_offsets", "__metadata__", "[ab]"];
        prop_oneof![
            proptest::collection::vec(inner.clone(), 0..4)
                .prop_map(|items| format!("[{}]", items.join(","))),
            proptest::collection::vec((key, inner), 0..5).prop_map(|pairs| {
                let pairs: Vec<_> =
                    pairs.iter().map(|(key, value)| format!("{key:?}:{value}")).collect();
                format!("{{{}}}", pairs.join(","))
            }),
        ]
    })
}

/// A header in which nearly everything is plausible.
fn near_header() -> impl Strategy<Value = String> {
    let number = prop_oneof![8 => 0u64..16, 1 => any::<u64>()];
    let dtype = prop_oneof![4 => Just("U8"), 2 => Just("BF16"), 2 => Just("F64"), 1 => Just("F4")];
    let tensor =
        ("[a-d]", dtype, proptest::collection::vec(number.clone(), 0..4), number.clone(), number);
    proptest::collection::vec(tensor, 0..5).prop_map(|tensors| {
        let entries: Vec<_> = tensors
            .iter()
            .map(|(name, dtype, shape, start, end)| {
                format!(r#""{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{start},{end}]}}"#)
            })
            .collect();
        format!("{{{}}}", entries.join(","))
    })
}

/// What `parse` promises of anything it accepts.
fn check_promise(header: &Header, data_len: u64) {
    let mut covered = 0u64;
    for entry in &header.tensors {
        assert_eq!(entry.start, covered);
        let elements: usize = entry.shape.iter().product();
        assert_eq!(entry.end - entry.start, (elements * entry.dtype.size()) as u64);
        covered = entry.end;
    }
    assert_eq!(covered, data_len);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2000))]

    #[test]
    fn any_bytes_are_parsed_or_refused(bytes in proptest::collection::vec(any::<u8>(), 0..64), data_len: u64) {
        let _ = Header::parse(&bytes, data_len);
    }

    #[test]
    fn any_json_is_parsed_or_refused(json in json_value(), data_len in 0u64..40) {
        if let Ok(header) = Header::parse(json.as_bytes(), data_len) {
            check_promise(&header, data_len);
        }
    }

    #[test]
    fn near_headers_are_right_or_refused(json in near_header(), data_len in prop_oneof![0u64..40, any::<u64>()]) {
        if let Ok(header) = Header::parse(json.as_bytes(), data_len) {
            check_promise(&header, data_len);
        }
    }
}
