//! What must hold of any bytes taken for a burnpack file, or for the metadata in one.

use burn_pack::{Bytes, Error, Reader};
use outsize_checkpoint::{BurnpackFault, BurnpackHeader, HeaderEntry, HeaderFault};

/// Checks the bytes as a whole file if they begin like one, and otherwise as metadata whose file
/// has the length that it asks for.
pub fn check(bytes: &[u8]) {
    match bytes.starts_with(b"NRUB") {
        true => whole_file(bytes),
        false => metadata_alone(bytes),
    }
}

fn whole_file(bytes: &[u8]) {
    let start = &bytes[..bytes.len().min(BurnpackHeader::START as usize)];
    let ours = BurnpackHeader::metadata_len(start, bytes.len() as u64).and_then(|len| {
        let data_start = BurnpackHeader::data_start(len);
        let data_len = (bytes.len() as u64).saturating_sub(data_start);
        let header = BurnpackHeader::parse(&bytes[10..10 + len as usize], data_len)?;
        prove(&header, data_len);
        Ok((header, data_start))
    });
    compare(bytes, &ours);
}

fn metadata_alone(metadata: &[u8]) {
    let mut data_len = 0;
    // Each attempt names a tensor that ends further on.
    for _ in 0..8 {
        match BurnpackHeader::parse(metadata, data_len) {
            Ok(header) => return prove(&header, data_len),
            Err(BurnpackFault::Tensor(HeaderFault::BeyondEnd { end, .. })) if end > data_len => {
                data_len = end;
            }
            Err(fault) => return is_sane(&fault),
        }
    }
}

/// What is accepted lies in the data, apart, each tensor in the length that its shape and dtype
/// say.
fn prove(header: &BurnpackHeader, data_len: u64) {
    let mut used = 0u64;
    for HeaderEntry { name, dtype, shape, start, end } in &header.tensors {
        let bytes = shape
            .iter()
            .try_fold(dtype.size() as u64, |product, &size| product.checked_mul(size as u64));
        assert_eq!(end.checked_sub(*start), bytes, "{name:?}");
        assert!(!name.chars().any(char::is_control));
        assert!(*end <= data_len && (start == end || *start >= used), "{name:?}");
        used = used.max(*end);
    }
}

/// burn-pack, which is another program, reads the same from what is accepted here; and accepts
/// nothing that is refused here, but for what the documentation says.
fn compare(bytes: &[u8], ours: &Result<(BurnpackHeader, u64), BurnpackFault>) {
    match (ours, Reader::from_bytes(Bytes::from_bytes_vec(bytes.to_vec()))) {
        (Ok((ours, data_start)), Ok(theirs)) => {
            assert_eq!(&ours.metadata, theirs.metadata());
            for tensor in theirs.into_tensors().unwrap() {
                let found = ours.tensors.iter().find(|entry| entry.name == tensor.name).unwrap();
                assert_eq!(found.shape, tensor.shape.to_vec());
                let [start, end] = [found.start, found.end].map(|at| (data_start + at) as usize);
                assert_eq!(bytes[start..end], tensor.to_bytes().unwrap()[..]);
            }
        }
        // They read members that mean nothing, which are skipped here.
        (Ok(_), Err(Error::MetadataDeserializationError(_))) => {}
        (Ok(_), Err(error)) => panic!("they refuse: {error}"),
        (Err(fault), Ok(_)) => match fault {
            BurnpackFault::Version { found: 0 } | BurnpackFault::Dtype { .. } => {}
            BurnpackFault::Tensor(
                // They keep the last of several, read tensors that share bytes, and take dimensions
                // behind a zero.
                HeaderFault::Duplicate { .. }
                | HeaderFault::Overlap { .. }
                | HeaderFault::Overflow { .. },
            ) => {}
            BurnpackFault::Metadata { detail } => {
                let stricter = [
                    "is defined twice",
                    "is a name of more than",
                    "is a name with control characters",
                    "dimensions",
                    "more than 100000 entries",
                    "bytes follow it",
                    "too deep",
                ];
                assert!(stricter.iter().any(|part| detail.contains(part)), "{detail}");
            }
            fault => panic!("they accept: {fault}"),
        },
        (Err(fault), Err(_)) => is_sane(fault),
    }
}

fn is_sane(fault: &BurnpackFault) {
    let said = fault.to_string();
    assert!(!said.contains('\u{1b}') && !said.contains('\0'), "{said:?}");
    assert!(said.len() < 100_000);
}
