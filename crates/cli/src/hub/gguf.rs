//! Models on the Hub whose weights are GGUF files, of which one is a whole model.

use super::Address;
use crate::error::Failure;
use outsize::checkpoint::{GgufPartName, GgufVision};

/// More names than this help nobody to choose.
const MOST_NAMED: usize = 16;

/// Types of weights of a vision encoder, the one first that is taken of several files: that of most
/// models, without loss.
const TYPES: [&str; 4] = ["bf16", "f16", "q8_0", "f32"];

/// Whether a file of a repository is a GGUF file of a language model, or the first of its parts:
/// not what sees images.
pub fn is_one(name: &str) -> bool {
    let is_later = GgufPartName::parse(name).is_some_and(|part| part.number > 1);
    name.to_ascii_lowercase().ends_with(".gguf") && !GgufVision::is_name(name) && !is_later
}

/// The file of the vision encoder of the GGUF files of a repository, if there is one.
pub fn encoder<'a>(names: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let place = |name: &&str| {
        let name = name.to_ascii_lowercase();
        let kind = TYPES.iter().position(|kind| name.ends_with(&format!("{kind}.gguf")));
        (kind.unwrap_or(TYPES.len()), name)
    };
    names.filter(|name| GgufVision::is_name(name)).min_by_key(place)
}

/// The file, or all of its parts if it is the first.
pub fn parts(name: &str) -> Vec<String> {
    GgufPartName::parse(name).map_or(vec![name.to_owned()], |part| part.all().collect())
}

/// The GGUF file that an address names: of several that whose name ends in what is behind the
/// colon; none if there are no such files, or weights of another kind and nothing behind a colon.
///
/// # Errors
/// The names of those that there are, if there are several or if none is the one.
pub fn choose<'a>(
    address: &Address,
    names: impl Iterator<Item = &'a str>,
) -> Result<Option<&'a str>, Failure> {
    let all: Vec<_> = names.filter(|name| is_one(name)).collect();
    let Some(asked) = &address.file else {
        return match all[..] {
            [] => Ok(None),
            [one] => Ok(Some(one)),
            _ => Err(several(address, &all, "has its weights as several GGUF files")),
        };
    };
    let found: Vec<_> = all.iter().copied().filter(|name| is_asked(name, asked)).collect();
    match found[..] {
        [one] => Ok(Some(one)),
        [] if all.is_empty() => {
            Err(Failure::usage(format!("{address} has no GGUF files: leave :{asked} out")))
        }
        [] => Err(several(address, &all, &format!("has no GGUF file whose name ends in {asked}"))),
        _ => Err(several(
            address,
            &found,
            &format!("has several GGUF files whose names end in {asked}"),
        )),
    }
}

/// Whether a name is the one asked for, or ends in it: `model-Q4_K_M.gguf` in `q4_k_m`.
fn is_asked(name: &str, asked: &str) -> bool {
    let stem = GgufPartName::parse(name).map_or(name, |part| part.stem).to_ascii_lowercase();
    let stem = stem.strip_suffix(".gguf").unwrap_or(&stem);
    let (name, asked) = (name.to_ascii_lowercase(), asked.to_ascii_lowercase());
    [&*name, stem].iter().any(|whole| {
        let rest = whole.strip_suffix(&asked);
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with(['-', '.', '_', '/']))
    })
}

fn several(address: &Address, names: &[&str], what: &str) -> Failure {
    let shown = names.iter().take(MOST_NAMED).map(|name| outsize::checkpoint::shown(name, 100));
    let shown = shown.collect::<Vec<_>>().join(", ");
    let more = names.len().saturating_sub(MOST_NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let id = Address { file: None, ..address.clone() };
    Failure::usage(format!(
        "{id} {what}: name one by how it ends, as {}/{}:Q4_K_M; it has {shown}{more}",
        address.org, address.name
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_is_chosen_by_how_its_name_ends() {
        let names = ["m-Q8_0.gguf", "m-Q4_K_M.gguf", "m-IQ4_K_M.gguf", "mmproj-f16.gguf", "x.txt"];
        let choose = |text: &str, names: &[&'static str]| {
            choose(&Address::parse(text).unwrap(), names.iter().copied())
                .map_err(|error| format!("{error:?}"))
        };
        assert_eq!(choose("a/m:q4_k_m", &names), Ok(Some("m-Q4_K_M.gguf")));
        assert_eq!(choose("a/m:m-Q8_0.gguf", &names), Ok(Some("m-Q8_0.gguf")));
        let parts = ["q8/m-q8-00001-of-00002.gguf", "q8/m-q8-00002-of-00002.gguf"];
        assert_eq!(choose("a/m:Q8", &parts), Ok(Some(parts[0])));
        assert_eq!(super::parts(parts[0]), parts);
        assert_eq!(choose("a/m", &names[..1]), Ok(Some("m-Q8_0.gguf")));
        assert_eq!(choose("a/m", &["mmproj-f16.gguf", "x.txt"]), Ok(None));
        assert_eq!(encoder(names.into_iter()), Some("mmproj-f16.gguf"));
        let several = ["m-Q8_0.gguf", "m.mmproj-F32.gguf", "mmproj-F16.gguf", "mmproj-BF16.gguf"];
        assert_eq!(encoder(several.into_iter()), Some("mmproj-BF16.gguf"));
        assert_eq!(choose("a/m", &several), Ok(Some("m-Q8_0.gguf")));
        assert_eq!(encoder(["m-F16.gguf"].into_iter()), None);
        for (text, names, part) in [
            ("a/m", &names[..], "several GGUF files: name one"),
            ("a/m:Q5_0", &names, "m-Q8_0.gguf, m-Q4_K_M.gguf"),
            ("a/m:0", &["a-0.gguf", "b.0.gguf"], "several"),
            ("a/m:Q5_0", &["x.txt"], "has no GGUF files"),
        ] {
            let said = choose(text, names).unwrap_err();
            assert!(said.contains(part), "{said}");
        }
    }
}
