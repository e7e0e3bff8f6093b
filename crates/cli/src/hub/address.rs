//! Names of models on the Hub.

use hf_hub::{Repo, RepoType};
use std::fmt;

/// The most characters of each part of a name, and of a revision.
const MOST: usize = 96;
const MOST_OF_REVISION: usize = 256;

/// A model on the Hub: `org/name`, with `:FILE` for one of its GGUF files, and `@revision`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Address {
    /// The organisation or user.
    pub org: String,
    /// The repository.
    pub name: String,
    /// How the name of one of its GGUF files ends, such as `Q4_K_M`.
    pub file: Option<String>,
    /// A branch, a tag or a commit; none for the main branch.
    pub revision: Option<String>,
}

impl Address {
    /// Reads it; none if it cannot be the name of a model on the Hub.
    pub fn parse(text: &str) -> Option<Self> {
        let (id, revision) = match text.split_once('@') {
            Some((id, revision)) => (id, Some(revision)),
            None => (text, None),
        };
        let (id, file) = match id.split_once(':') {
            Some((id, file)) => (id, Some(file)),
            None => (id, None),
        };
        let (org, name) = id.split_once('/')?;
        let names = [Some(org), Some(name), file];
        let right = names.into_iter().flatten().all(is_name) && revision.is_none_or(is_revision);
        // Endings of files, not of repositories.
        let files = [".json", ".safetensors", ".gguf", ".bin", ".git"];
        (right && !files.iter().any(|end| name.ends_with(end))).then(|| Self {
            org: org.to_owned(),
            name: name.to_owned(),
            file: file.map(str::to_owned),
            revision: revision.map(str::to_owned),
        })
    }

    /// The revision, by default `main`.
    pub fn revision(&self) -> &str {
        self.revision.as_deref().unwrap_or("main")
    }

    /// What hf-hub calls it at a revision.
    pub fn repo(&self, revision: &str) -> Repo {
        let id = format!("{}/{}", self.org, self.name);
        Repo::with_revision(id, RepoType::Model, revision.to_owned())
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        for (mark, part) in [(':', &self.file), ('@', &self.revision)] {
            if let Some(part) = part {
                write!(f, "{mark}{part}")?;
            }
        }
        Ok(())
    }
}

/// The rules of the Hub.
fn is_name(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_.".contains(&byte);
    let edge = |byte: Option<u8>| !matches!(byte, None | Some(b'-' | b'.'));
    part.len() <= MOST
        && part.bytes().all(allowed)
        && edge(part.bytes().next())
        && edge(part.bytes().last())
        && !part.contains("--")
        && !part.contains("..")
}

/// A reference of git's: `main`, `v1.0`, `refs/pr/3`, a commit.
fn is_revision(revision: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-_./+".contains(&byte);
    let plain = |part: &str| !part.is_empty() && !part.starts_with('.') && !part.contains("..");
    revision.len() <= MOST_OF_REVISION
        && revision.bytes().all(allowed)
        && revision.split('/').all(plain)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_the_hub_are_told_from_paths() {
        let read = |text: &str| Address::parse(text).map(|address| address.to_string());
        for text in
            ["meta-llama/Llama-3.2-1B", "a/b_c.d", "a/b@main", "a/b@refs/pr/3", "a/b:Q4_K_M@main"]
        {
            assert_eq!(read(text).as_deref(), Some(text));
        }
        for text in [
            "",
            "gpt2",
            "/a",
            "a/",
            "./a/b",
            "../a",
            "a/b/c",
            "a/..",
            "~/a",
            "a b/c",
            "a/b@",
            "a/b:",
            "a/b:../x",
            "a/b@../x",
            "a/b@x//y",
            "a/b@/x",
            "a/-b",
            "a--b/c",
            "a/config.json",
            "a/b.safetensors",
            "a\\b",
            "C:/a",
            "a/é",
            "a/b@\u{1b}",
        ] {
            assert_eq!(read(text), None, "{text}");
        }
        assert_eq!(read(&format!("a/{}", "b".repeat(97))), None);
        assert_eq!(Address::parse("a/b").unwrap().revision(), "main");
    }
}
