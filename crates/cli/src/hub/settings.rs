//! Settings of the Hub from the environment variables of `huggingface_hub`.

use crate::error::Failure;
use hf_hub::Cache;
use outsize::checkpoint::read_file;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// The most bytes of a token's file. Real ones have some forty.
const MOST_OF_TOKEN: usize = 4096;

/// Address, cache and credentials of the Hub.
pub struct HubSettings {
    /// `HF_ENDPOINT`: the Hub, or a mirror of it, without a slash at the end.
    pub endpoint: String,
    /// `HF_TOKEN`, or what the file of `HF_TOKEN_PATH` (`$HF_HOME/token`) holds.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: no requests.
    pub offline: bool,
    /// `HF_HUB_CACHE`, or `$HF_HOME/hub`: what was downloaded before.
    pub cache: Cache,
    /// `HF_HUB_DOWNLOAD_TIMEOUT`: how long a server may be silent; 30 seconds by default.
    pub timeout: Duration,
}

impl HubSettings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A variable with an invalid value.
    pub fn from_env() -> Result<Self, Failure> {
        Self::read(|name| std::env::var_os(name), dirs::home_dir())
    }

    fn read(
        get: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
    ) -> Result<Self, Failure> {
        let wrong = |name, fault| Failure::Failed(format!("the variable {name} {fault}"));
        // Empty is as good as absent.
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let path = |name| get(name).map(PathBuf::from);
        let text = |name| match get(name).map(OsString::into_string).transpose() {
            Ok(value) => Ok(value),
            Err(_) => Err(wrong(name, "is not UTF-8")),
        };
        let is_on = |name| {
            let value = text(name)?.unwrap_or_default().to_lowercase();
            Ok::<_, Failure>(["1", "on", "yes", "true"].contains(&&*value))
        };
        let caches = path("XDG_CACHE_HOME").or_else(|| Some(home?.join(".cache")));
        let base = path("HF_HOME").or_else(|| Some(caches?.join("huggingface")));
        let base = base.ok_or_else(|| wrong("HF_HOME", "is not set, and there is no home"))?;
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| "https://huggingface.co".to_owned());
        let host = ["https://", "http://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
        let is_host = |host: &str| {
            let plain = |byte: u8| byte.is_ascii_graphic() && !b"@?#".contains(&byte);
            !host.is_empty() && host.bytes().all(plain)
        };
        if !host.is_some_and(is_host) {
            return Err(wrong("HF_ENDPOINT", "is no address such as https://huggingface.co"));
        }
        let seconds = text("HF_HUB_DOWNLOAD_TIMEOUT")?.unwrap_or_else(|| "30".to_owned());
        let seconds = seconds.trim().parse().ok().filter(|seconds| (1..=3600).contains(seconds));
        let seconds = seconds.ok_or_else(|| {
            wrong("HF_HUB_DOWNLOAD_TIMEOUT", "is no whole number of seconds from 1 to 3600")
        })?;
        let given = text("HF_TOKEN")?.or(text("HUGGING_FACE_HUB_TOKEN")?);
        let token = match given {
            None if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")? => None,
            // A file that is missing or unreadable is no token.
            None => read_file(
                path("HF_TOKEN_PATH").unwrap_or_else(|| base.join("token")),
                MOST_OF_TOKEN as u64,
            )
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned()),
            given => given,
        };
        let token = token.map(|token| token.trim().to_owned()).filter(|token| !token.is_empty());
        // Not the way to another header.
        let is_token = |token: &String| {
            token.bytes().all(|byte| byte.is_ascii_graphic()) && token.len() <= MOST_OF_TOKEN
        };
        if !token.iter().all(is_token) {
            return Err(wrong("HF_TOKEN", "(or its file) has characters that no token has"));
        }
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            offline: is_on("HF_HUB_OFFLINE")?,
            cache: Cache::new(path("HF_HUB_CACHE").unwrap_or_else(|| base.join("hub"))),
            timeout: Duration::from_secs(seconds),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(values: &[(&str, &str)]) -> Result<HubSettings, String> {
        let get = |name: &str| {
            let value = values.iter().find(|(known, _)| *known == name);
            value.map(|(_, value)| OsString::from(value))
        };
        HubSettings::read(get, Some("/home/me".into())).map_err(|error| format!("{error:?}"))
    }

    #[test]
    fn defaults_are_those_of_huggingface_hub() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.endpoint, "https://huggingface.co");
        assert_eq!((settings.token, settings.offline), (None, false));
        assert_eq!(settings.timeout, Duration::from_secs(30));
        let cache = |values: &[_]| read(values).unwrap().cache.path().clone();
        assert_eq!(cache(&[]), PathBuf::from("/home/me/.cache/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "/a")]), PathBuf::from("/a/hub"));
        assert_eq!(cache(&[("XDG_CACHE_HOME", "/b")]), PathBuf::from("/b/huggingface/hub"));
        assert_eq!(cache(&[("HF_HOME", "/a"), ("HF_HUB_CACHE", "/c")]), PathBuf::from("/c"));
    }

    #[test]
    fn tokens_come_from_the_variable_or_a_file() {
        let place = tempfile::tempdir().unwrap();
        let home = place.path().to_str().unwrap();
        std::fs::write(place.path().join("token"), "hf_file\n").unwrap();
        let token = |values: &[_]| read(values).unwrap().token;
        assert_eq!(token(&[("HF_HOME", home)]).as_deref(), Some("hf_file"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_TOKEN", " hf_x ")]).as_deref(), Some("hf_x"));
        assert_eq!(token(&[("HF_HOME", home), ("HF_HUB_DISABLE_IMPLICIT_TOKEN", "1")]), None);
        let other = place.path().join("other");
        std::fs::write(&other, "hf_other").unwrap();
        let path = other.to_str().unwrap();
        assert_eq!(
            token(&[("HF_HOME", home), ("HF_TOKEN_PATH", path)]).as_deref(),
            Some("hf_other")
        );
        assert_eq!(token(&[("HF_HOME", "/nowhere")]), None);
        let said = read(&[("HF_TOKEN", "a\r\nHost: b")]).err().unwrap();
        assert!(said.contains("HF_TOKEN") && !said.contains("Host"), "{said}");
    }

    #[test]
    fn what_cannot_be_is_refused() {
        for (name, value) in [
            ("HF_ENDPOINT", "huggingface.co"),
            ("HF_ENDPOINT", "https://"),
            ("HF_ENDPOINT", "https://me@huggingface.co"),
            ("HF_ENDPOINT", "https://x y"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "0"),
            ("HF_HUB_DOWNLOAD_TIMEOUT", "soon"),
        ] {
            let said = read(&[(name, value)]).err().unwrap();
            assert!(said.contains(name), "{said}");
        }
        assert!(read(&[("HF_HUB_OFFLINE", "True")]).unwrap().offline);
        assert!(!read(&[("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        let mirror = read(&[("HF_ENDPOINT", "http://127.0.0.1:8080/")]).unwrap();
        assert_eq!(mirror.endpoint, "http://127.0.0.1:8080");
    }
}
