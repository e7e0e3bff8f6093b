/// Recognises other formats in a file that should be safetensors or JSON: the format in words, and
/// what to do about it.
///
/// Only for files already found wrong: a valid header's length may begin with the same bytes as one
/// of these formats.
pub(crate) fn identify(start: &[u8]) -> Option<(&'static str, &'static str)> {
    if start.starts_with(b"PK\x03\x04") {
        Some((
            "a zip archive, as torch.save writes it",
            "if it is one, give it a name that ends in .bin",
        ))
    } else if matches!(start, [0x80, 2..=5, ..]) {
        Some((
            "a Python pickle",
            "a pickle can run any code and is never run: convert it to safetensors first",
        ))
    } else if start.starts_with(b"version https://git-lfs") {
        Some(("a Git LFS pointer", "the data is not here yet: run `git lfs pull` in its folder"))
    } else if start.starts_with(b"GGUF") {
        Some(("a GGUF file", "give it a name that ends in .gguf"))
    } else if start.starts_with(b"NRUB") {
        Some(("a burnpack file of Burn", "give it a name that ends in .bpk"))
    } else if is_html(start) {
        Some(("a web page", "the download went wrong: download the file itself"))
    } else if start.first() == Some(&b'{') {
        Some(("a JSON text", "the file is misnamed: download the weights themselves"))
    } else {
        None
    }
}

fn is_html(start: &[u8]) -> bool {
    let text = start.trim_ascii_start();
    [b"<!doctype".as_slice(), b"<html"]
        .iter()
        .any(|tag| text.get(..tag.len()).is_some_and(|head| head.eq_ignore_ascii_case(tag)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_are_told_by_their_first_bytes() {
        let what = |start: &[u8]| identify(start).map(|(what, _)| what);
        assert_eq!(what(b"PK\x03\x04\0\0"), Some("a zip archive, as torch.save writes it"));
        assert_eq!(what(b"\x80\x02}q"), Some("a Python pickle"));
        assert_eq!(what(b"\n<!DOCTYPE html>"), Some("a web page"));
        assert_eq!(what(b"GGUF\x03"), Some("a GGUF file"));
        assert_eq!(what(b"NRUB\x01\0"), Some("a burnpack file of Burn"));
        assert_eq!(what(b"\x80\x07"), None);
        assert_eq!(what(b""), None);
    }
}
