//! Settings of the Hub from the environment variables of `huggingface_hub`.

use super::HubError;
use outsize::checkpoint::read_file;
use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

/// Seconds until an answer must come, unless `HF_HUB_DOWNLOAD_TIMEOUT` says otherwise.
const TIMEOUT: u64 = 30;

/// The most bytes of a token's file. Real ones have some forty.
const MOST_OF_TOKEN: usize = 4096;

/// Address, cache and credentials of the Hub.
#[derive(Clone)]
pub struct HubSettings {
    /// `HF_ENDPOINT`: the Hub, or a mirror of it, without a slash at the end.
    pub endpoint: String,
    /// `HF_TOKEN`, or what the file of `HF_TOKEN_PATH` (`$HF_HOME/token`) holds.
    pub token: Option<String>,
    /// `HF_HUB_OFFLINE`: no requests.
    pub offline: bool,
    /// `HF_HUB_CACHE`, or `$HF_HOME/hub`: what was downloaded before.
    pub cache: Option<PathBuf>,
    /// How long an answer may take.
    pub timeout: Duration,
}

impl HubSettings {
    /// Reads the environment.
    ///
    /// # Errors
    /// A variable with an invalid value.
    pub fn from_env() -> Result<Self, HubError> {
        Self::read(|name| std::env::var_os(name), dirs::home_dir())
    }

    fn read(
        get: impl Fn(&str) -> Option<OsString>,
        home: Option<PathBuf>,
    ) -> Result<Self, HubError> {
        // Empty is as good as absent.
        let get = |name: &str| get(name).filter(|value| !value.is_empty());
        let text = |name: &'static str| match get(name).map(OsString::into_string) {
            None => Ok(None),
            Some(Ok(value)) => Ok(Some(value)),
            Some(Err(_)) => Err(HubError::Variable { name, fault: "is not UTF-8" }),
        };
        let is_on = |name| {
            let value = text(name)?;
            let yes = ["1", "on", "yes", "true"];
            Ok::<_, HubError>(value.is_some_and(|value| yes.contains(&&*value.to_lowercase())))
        };
        let caches =
            get("XDG_CACHE_HOME").map(PathBuf::from).or_else(|| Some(home?.join(".cache")));
        let base = get("HF_HOME").map(PathBuf::from).or_else(|| Some(caches?.join("huggingface")));
        let within = |part: &str| base.as_ref().map(|base| base.join(part));
        let cache = get("HF_HUB_CACHE").map(PathBuf::from).or(within("hub"));
        let endpoint = text("HF_ENDPOINT")?.unwrap_or_else(|| "https://huggingface.co".to_owned());
        let host = ["https://", "http://"].iter().find_map(|scheme| endpoint.strip_prefix(scheme));
        let is_host = |host: &str| {
            !host.is_empty()
                && host.bytes().all(|byte| byte.is_ascii_graphic())
                && !host.contains(['@', '?', '#'])
        };
        if !host.is_some_and(is_host) {
            return Err(HubError::Variable {
                name: "HF_ENDPOINT",
                fault: "is no address such as https://huggingface.co",
            });
        }
        let timeout = match text("HF_HUB_DOWNLOAD_TIMEOUT")? {
            None => TIMEOUT,
            Some(seconds) => {
                seconds.trim().parse().ok().filter(|seconds| (1..=3600).contains(seconds)).ok_or(
                    HubError::Variable {
                        name: "HF_HUB_DOWNLOAD_TIMEOUT",
                        fault: "is no whole number of seconds from 1 to 3600",
                    },
                )?
            }
        };
        let token = match (text("HF_TOKEN")?, text("HUGGING_FACE_HUB_TOKEN")?) {
            (Some(token), _) | (None, Some(token)) => clean(&token, "HF_TOKEN")?,
            _ if is_on("HF_HUB_DISABLE_IMPLICIT_TOKEN")? => None,
            _ => {
                let path = get("HF_TOKEN_PATH").map(PathBuf::from).or(within("token"));
                // A file that is missing or unreadable is no token.
                match path.and_then(|path| read_file(path, MOST_OF_TOKEN as u64).ok()) {
                    Some(bytes) => clean(&String::from_utf8_lossy(&bytes), "HF_TOKEN_PATH")?,
                    None => None,
                }
            }
        };
        Ok(Self {
            endpoint: endpoint.trim_end_matches('/').to_owned(),
            token,
            offline: is_on("HF_HUB_OFFLINE")?,
            cache,
            timeout: Duration::from_secs(timeout),
        })
    }
}

/// A token without space around it; none if nothing is left.
fn clean(token: &str, name: &'static str) -> Result<Option<String>, HubError> {
    let token = token.trim();
    if !token.bytes().all(|byte| byte.is_ascii_graphic()) || token.len() > MOST_OF_TOKEN {
        return Err(HubError::Variable {
            name,
            fault: "gives a token with characters that no token has",
        });
    }
    Ok((!token.is_empty()).then(|| token.to_owned()))
}

/// Without the token.
impl std::fmt::Debug for HubSettings {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HubSettings")
            .field("endpoint", &self.endpoint)
            .field("token", &self.token.as_ref().map(|_| "…"))
            .field("offline", &self.offline)
            .field("cache", &self.cache)
            .field("timeout", &self.timeout)
            .finish()
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
        HubSettings::read(get, Some("/home/me".into())).map_err(|error| error.to_string())
    }

    #[test]
    fn defaults_are_those_of_huggingface_hub() {
        let settings = read(&[]).unwrap();
        assert_eq!(settings.endpoint, "https://huggingface.co");
        assert_eq!(settings.cache, Some("/home/me/.cache/huggingface/hub".into()));
        assert_eq!((settings.token, settings.offline), (None, false));
        assert_eq!(settings.timeout, Duration::from_secs(30));
        let cache = |values: &[_]| read(values).unwrap().cache.unwrap();
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
        // Not the way to another header.
        let said = read(&[("HF_TOKEN", "a\r\nHost: b")]).unwrap_err();
        assert!(said.contains("HF_TOKEN") && !said.contains("Host"), "{said}");
        let shown = format!("{:?}", read(&[("HF_TOKEN", "hf_secret")]).unwrap());
        assert!(!shown.contains("secret"), "{shown}");
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
            let said = read(&[(name, value)]).unwrap_err();
            assert!(said.contains(name), "{said}");
        }
        assert!(read(&[("HF_HUB_OFFLINE", "True")]).unwrap().offline);
        assert!(!read(&[("HF_HUB_OFFLINE", "0")]).unwrap().offline);
        let mirror = read(&[("HF_ENDPOINT", "http://127.0.0.1:8080/")]).unwrap();
        assert_eq!(mirror.endpoint, "http://127.0.0.1:8080");
    }
}
