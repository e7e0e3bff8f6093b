//! What must hold of any bytes taken for a safetensors file.

use outsize_checkpoint::{Header, HeaderEntry, HeaderFault};
use safetensors::{SafeTensorError, SafeTensors};

/// Checks the bytes twice: as a whole file, and as a header whose file has the length that it asks
/// for.
pub fn check(bytes: &[u8]) {
    whole_file(bytes);
    header_alone(bytes);
}

fn whole_file(bytes: &[u8]) {
    let start = &bytes[..bytes.len().min(Header::START as usize)];
    let Ok(json_len) = Header::json_len(start, bytes.len() as u64) else {
        return;
    };
    let (json, data) = bytes[8..].split_at(json_len as usize);
    let found = Header::parse(json, data.len() as u64);
    compare(bytes, json, &found);
    if let Ok(header) = found {
        prove(&header, data.len() as u64);
    }
}

fn header_alone(json: &[u8]) {
    let mut data_len = 0;
    // Each attempt names a tensor that ends further on.
    for _ in 0..8 {
        match Header::parse(json, data_len) {
            Ok(header) => return prove(&header, data_len),
            Err(HeaderFault::BeyondEnd { end, .. }) if end > data_len => data_len = end,
            Err(fault) => return drop(fault.to_string()),
        }
    }
}

/// What is accepted covers the data, without overlap or hole, each tensor in the length that its
/// shape and dtype say; and it is the same when written and parsed again.
fn prove(header: &Header, data_len: u64) {
    let mut covered = 0u64;
    let mut json = serde_json::Map::new();
    for entry in &header.tensors {
        let HeaderEntry { name, dtype, shape, start, end } = entry;
        assert_eq!(*start, covered, "{name:?}");
        let bytes = shape
            .iter()
            .try_fold(dtype.size() as u64, |product, &size| product.checked_mul(size as u64));
        assert_eq!(end.checked_sub(*start), bytes, "{name:?}");
        assert!(!name.chars().any(char::is_control));
        covered = *end;
        let value = serde_json::json!({
            "dtype": dtype.name(), "shape": shape, "data_offsets": [start, end],
        });
        assert!(json.insert(name.clone(), value).is_none(), "twice: {name:?}");
    }
    assert_eq!(covered, data_len);
    let notes = serde_json::to_value(&header.metadata).unwrap();
    assert!(json.insert("__metadata__".to_owned(), notes).is_none());
    let json = serde_json::to_vec(&json).unwrap();
    assert_eq!(Header::parse(&json, data_len).as_ref(), Ok(header));
}

/// The safetensors library, which is another program, reads the same from what is accepted here;
/// and accepts nothing that is refused here, but for what the documentation says.
fn compare(bytes: &[u8], json: &[u8], ours: &Result<Header, HeaderFault>) {
    match (ours, SafeTensors::read_metadata(bytes)) {
        (Ok(ours), Ok((_, theirs))) => {
            assert_eq!(ours.tensors.len(), theirs.tensors().len());
            for entry in &ours.tensors {
                let other = theirs.info(&entry.name).unwrap();
                assert_eq!(other.dtype.to_string(), entry.dtype.name());
                assert_eq!(other.shape, entry.shape);
                let offsets = (entry.start as usize, entry.end as usize);
                assert_eq!(other.data_offsets, offsets);
            }
            let notes = theirs.metadata().clone().unwrap_or_default();
            assert_eq!(ours.metadata, notes.into_iter().collect());
        }
        // They read members that mean nothing, which are skipped here.
        (Ok(_), Err(SafeTensorError::InvalidHeaderDeserialization(error))) => {
            let said = error.to_string();
            let unread = ["recursion limit", "number out of range"];
            assert!(unread.iter().any(|part| said.contains(part)), "{said}");
        }
        (Ok(_), Err(error)) => panic!("they refuse: {error}"),
        (Err(fault), Ok(_)) => match fault {
            // They keep the last of several, and know more dtypes.
            HeaderFault::Duplicate { .. } | HeaderFault::Dtype { .. } => {}
            // Dimensions behind a zero.
            HeaderFault::Overflow { .. } => {}
            HeaderFault::Json { detail } => {
                let stricter = [
                    "is defined twice",
                    "is a name of more than",
                    "is a name with control characters",
                    "dimensions",
                    "more than 100000 entries",
                ];
                assert!(
                    stricter.iter().any(|part| detail.contains(part)),
                    "{detail}: {}",
                    String::from_utf8_lossy(json)
                );
            }
            fault => panic!("they accept: {fault}"),
        },
        (Err(fault), Err(_)) => {
            let said = fault.to_string();
            assert!(!said.contains('\u{1b}') && !said.contains('\0'), "{said:?}");
            assert!(said.len() < 100_000);
        }
    }
}
