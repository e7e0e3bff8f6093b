//! The configuration file: YAML, a line a setting, with what it is for above it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;

use outsize_checkpoint::{read_text, write_file};
use serde_saphyr::Error as YamlError;

use crate::error::Error;
use crate::key::{Key, SettingKind};

/// The largest file, in bytes.
const LARGEST: u64 = 1 << 20;

/// Reads a configuration file. Values are checked when settings are resolved.
///
/// # Errors
/// A file that cannot be read, is no mapping of scalars, or has a setting that is not known.
pub fn read_config(path: &Path) -> Result<BTreeMap<Key, String>, Error> {
    let wrong = |reason: String| Error::File { path: path.to_owned(), reason };
    let text = read_text(path, LARGEST).map_err(|error| wrong(error.to_string()))?;
    let mut values = BTreeMap::new();
    for (name, value) in mapping(&text).map_err(|error| wrong(error.to_string()))? {
        let known = Key::ALL.into_iter().find(|key| key.name() == name);
        let key = known.ok_or_else(|| wrong(unknown(&name)))?;
        if let Some(value) = value {
            values.insert(key, value);
        }
    }
    Ok(values)
}

fn mapping(text: &str) -> Result<BTreeMap<String, Option<String>>, YamlError> {
    if text.lines().all(|line| line.trim().is_empty() || line.trim().starts_with('#')) {
        return Ok(BTreeMap::new());
    }
    let options = serde_saphyr::options! {
        budget: serde_saphyr::budget! {
            max_depth: 2,
            max_documents: 1,
            max_nodes: 1000,
            max_anchors: 0,
            max_aliases: 0,
        },
        with_snippet: false,
        merge_keys: serde_saphyr::options::MergeKeyPolicy::Error,
    };
    serde_saphyr::from_str_with_options(text, options)
}

fn unknown(name: &str) -> String {
    let near = Key::ALL.into_iter().map(Key::name);
    let near = near.min_by_key(|key| strsim::levenshtein(key, name)).unwrap_or_default();
    match strsim::levenshtein(near, name) <= name.len() / 3 {
        true => format!("there is no setting `{name}`; did you mean `{near}`?"),
        false => {
            format!("there is no setting `{name}`; `outsize config default` writes a file with all")
        }
    }
}

/// Writes a configuration file with the given settings and, as comments, the others. A file that
/// was there is replaced by a complete one or left alone.
///
/// # Errors
/// The file cannot be written.
pub fn write_config(path: &Path, values: &BTreeMap<Key, String>) -> Result<(), Error> {
    let mut text = String::from(
        "# How `outsize launch` starts programs. A flag or a variable of the environment comes before what is here.\n",
    );
    for key in Key::ALL {
        let _ = write!(
            text,
            "\n# {}. Flag {}, variable {}.\n",
            key.describe(),
            key.flag(),
            key.variable()
        );
        let _ = match values.get(&key) {
            Some(value) => writeln!(text, "{key}: {}", scalar(key, value)),
            None => writeln!(text, "# {key}:"),
        };
    }
    let folder = path.parent().filter(|folder| !folder.as_os_str().is_empty());
    if let Some(folder) = folder {
        std::fs::create_dir_all(folder)
            .map_err(Error::system(format!("cannot create the folder {}", folder.display())))?;
    }
    write_file(path, text.as_bytes())
        .map_err(|error| Error::File { path: path.to_owned(), reason: error.to_string() })
}

/// A value as YAML: words that YAML would read as something else, and paths, are quoted as in JSON.
fn scalar(key: Key, value: &str) -> String {
    match key.kind() {
        SettingKind::Count(_) | SettingKind::Switch => value.to_string(),
        _ => serde_json::Value::from(value).to_string(),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn read(text: &str) -> Result<BTreeMap<Key, String>, String> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("config.yaml");
        std::fs::write(&path, text).unwrap();
        read_config(&path).map_err(|error| error.to_string())
    }

    #[test]
    fn a_file_by_hand_is_read() {
        let found =
            read("# mine\nnum_processes: 2\ncpu: true\nmixed_precision: no\nlog_dir:\n").unwrap();
        let texts: Vec<_> = found.iter().map(|(key, value)| (key.name(), value.as_str())).collect();
        assert_eq!(texts, [("num_processes", "2"), ("mixed_precision", "no"), ("cpu", "true")]);
        assert_eq!(read("# nothing\n").unwrap().len(), 0);
    }

    #[test]
    fn a_wrong_file_is_refused() {
        for (text, part) in [
            ("num_proceses: 2", "did you mean `num_processes`"),
            ("colour: red", "no setting `colour`"),
            ("num_processes: [1]", ""),
            ("- 1", ""),
            ("cpu: true\ncpu: false", ""),
            ("a: &a 1\nb: *a", ""),
        ] {
            let message = read(text).unwrap_err();
            assert!(message.contains("config.yaml") && message.contains(part), "{message}");
        }
    }

    proptest! {
        #[test]
        fn what_is_written_is_read(path in "[ -~\u{e9}]{1,20}", count in 1usize..1000, on in any::<bool>(), word in 0usize..3) {
            let SettingKind::OneOf(words) = Key::MixedPrecision.kind() else { unreachable!() };
            let values = BTreeMap::from([
                (Key::LogDir, path), (Key::NumProcesses, count.to_string()), (Key::Cpu, on.to_string()),
                (Key::MixedPrecision, words[word].to_string()), (Key::GpuIds, "0,1".to_string()),
            ]);
            let folder = tempfile::tempdir().unwrap();
            let file = folder.path().join("new/config.yaml");
            write_config(&file, &values).unwrap();
            prop_assert_eq!(read_config(&file).unwrap(), values);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            let _ = read(&text);
        }
    }
}
