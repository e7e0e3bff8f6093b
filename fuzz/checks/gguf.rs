//! What must hold of any bytes taken for a GGUF file.

use outsize_checkpoint::{GgufFault, GgufHeader};

/// Tensors lie in the file, in order and apart; what is refused is refused in one line of plain
/// text.
pub fn check(bytes: &[u8]) {
    let fill = |at: u64, to: &mut [u8]| {
        to.copy_from_slice(&bytes[at as usize..][..to.len()]);
        Ok::<_, GgufFault>(())
    };
    match GgufHeader::read(bytes.len() as u64, fill, |fault| fault) {
        Ok(header) => {
            let mut end = 0;
            for tensor in header.tensors() {
                assert!(tensor.start >= end && tensor.end >= tensor.start, "{:?}", tensor.name);
                end = tensor.end;
                let block = tensor.dtype.block();
                let elements = tensor.shape.iter().product::<usize>();
                let len = elements / block.elements * block.bytes;
                assert_eq!(tensor.end - tensor.start, len as u64, "{:?}", tensor.name);
            }
            assert!(end <= bytes.len() as u64);
            for (key, value) in header.values() {
                assert_eq!(header.get(key).map(|it| format!("{it:?}")), Some(format!("{value:?}")));
            }
        }
        Err(fault) => {
            let said = fault.to_string();
            assert!(!said.chars().any(char::is_control), "{said:?}");
            assert!(said.len() < 10_000, "{} bytes", said.len());
        }
    }
}
