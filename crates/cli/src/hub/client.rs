//! Requests to the Hub about one model: by the agent of hf-hub, which follows redirects and keeps
//! the token to the Hub's own host.

use super::cache::is_commit;
use super::{Address, HubSettings};
use crate::error::Failure;
use crate::interrupt;
use hf_hub::api::sync::{ApiBuilder, ApiRepo};
use outsize::checkpoint::{Part, shown};
use serde::Deserialize;
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, Response, StatusCode};
use ureq::typestate::WithoutBody;
use ureq::{Body, RequestBuilder};

/// The most bytes of the list of a model's files. Real ones stay below a tenth.
const LIST_LIMIT: u64 = 16 << 20;

/// Bytes per second that a server is expected to send at least of what describes a model.
const LEAST_RATE: u64 = 50_000;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// How long to wait before a request is made once more.
pub const PAUSE: Duration = Duration::from_millis(300);

/// One model on the Hub, at one commit.
pub struct Client<'a> {
    pub settings: &'a HubSettings,
    pub address: &'a Address,
    /// The commit that all files are of.
    pub commit: String,
    pub files: Vec<HubFile>,
    repo: ApiRepo,
}

/// A file on the Hub.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HubFile {
    /// Its path.
    #[serde(rename = "rfilename")]
    pub name: String,
    /// Its bytes.
    pub size: Option<u64>,
    /// The SHA-1 of it as a blob of git.
    pub blob_id: Option<String>,
    /// Instead of that, of a file that git does not keep itself.
    pub lfs: Option<LfsPointer>,
}

/// What git keeps of a large file.
#[derive(Debug, Deserialize)]
pub struct LfsPointer {
    /// The SHA-256 of the file.
    pub sha256: String,
}

/// What the Hub says of a model.
#[derive(Deserialize)]
struct ModelInfo {
    sha: String,
    siblings: Vec<HubFile>,
}

/// Why a request failed, and whether that may mend itself.
pub struct RequestFailure {
    pub passing: bool,
    failure: Failure,
}

impl From<Failure> for RequestFailure {
    fn from(failure: Failure) -> Self {
        Self { passing: false, failure }
    }
}

impl From<RequestFailure> for Failure {
    fn from(failed: RequestFailure) -> Self {
        failed.failure
    }
}

impl<'a> Client<'a> {
    /// Asks the Hub which files the model has.
    ///
    /// # Errors
    /// No network, no such model or revision, no right to see it.
    pub fn open(settings: &'a HubSettings, address: &'a Address) -> Result<Self, Failure> {
        let api = ApiBuilder::from_cache(settings.cache.clone())
            .with_endpoint(settings.endpoint.clone())
            .with_token(settings.token.clone())
            .with_user_agent("outsize", env!("CARGO_PKG_VERSION"))
            .build()
            .map_err(|error| Failure::Failed(shown(&error.to_string(), 200)))?;
        let repo = api.repo(address.repo(address.revision()));
        let (commit, files) = (String::new(), Vec::new());
        let mut client = Self { settings, address, commit, files, repo };
        let what = "the list of files";
        let request = || client.repo.info_request().query("blobs", "true");
        let list = client.whole(what, LIST_LIMIT, request)?;
        let info: ModelInfo = serde_json::from_slice(&list)
            .ok()
            .filter(|info: &ModelInfo| is_commit(&info.sha))
            .ok_or_else(|| client.wrong(what, "it is no list of files and their commit"))?;
        client.repo = api.repo(address.repo(&info.sha));
        (client.commit, client.files) = (info.sha, info.siblings);
        Ok(client)
    }

    /// A file that the model has.
    pub fn find(&self, name: &str) -> Option<&HubFile> {
        self.files.iter().find(|file| file.name == name)
    }

    /// All bytes of a small file.
    pub fn file(&self, file: &str, limit: u64) -> Result<Vec<u8>, Failure> {
        self.whole(file, limit, || self.get(file))
    }

    /// A range of a file. A server that sends all of it is cut off at the range's end.
    pub fn range(&self, file: &str, range: Range<u64>) -> Result<Part, Failure> {
        if self.find(file).is_none() {
            return Err(Failure::Failed(format!("{} has no {}", self.address, shown(file, 200))));
        }
        let value = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
        let answer = self.ask(file, || self.get(file).header("range", &value))?;
        let wrong = |fault: &str| self.wrong(file, fault);
        match answer.status() {
            // The length of a file that ends before the range.
            StatusCode::RANGE_NOT_SATISFIABLE => {
                let len = text(answer.headers(), "content-range")
                    .and_then(|text| text.strip_prefix("bytes */")?.parse().ok());
                let file_len = len.filter(|len| *len <= range.start);
                let file_len = file_len.ok_or_else(|| wrong("it lacks the requested range"))?;
                Ok(Part { bytes: Vec::new(), file_len })
            }
            StatusCode::PARTIAL_CONTENT => {
                let (start, end, file_len) = content_range(answer.headers())
                    .ok_or_else(|| wrong("its Content-Range is malformed"))?;
                if start != range.start || end > range.end {
                    return Err(wrong("it has another range than requested"));
                }
                let bytes = self.bytes(file, answer, end - start)?;
                match bytes.len() as u64 == end - start {
                    true => Ok(Part { bytes, file_len }),
                    false => Err(wrong("it ends early")),
                }
            }
            // All of the file: what comes before the range must be read too.
            _ => {
                let len = answer.body().content_length();
                let file_len = len.ok_or_else(|| wrong("the response has no Content-Length"))?;
                let mut bytes = self.bytes(file, answer, range.end)?;
                if (bytes.len() as u64) < range.end.min(file_len) {
                    return Err(wrong("it ends early"));
                }
                let before = usize::try_from(range.start).unwrap_or(usize::MAX);
                bytes.drain(..before.min(bytes.len()));
                Ok(Part { bytes, file_len })
            }
        }
    }

    /// Asks for a file from byte `start` on; gives the answer, and from where on it is: a server
    /// may send all of the file.
    pub fn open_at(&self, file: &str, start: u64) -> Result<(u64, Response<Body>), RequestFailure> {
        let range = format!("bytes={start}-");
        let request = self.get(file);
        let request = if start > 0 { request.header("range", range) } else { request };
        let answer = self.ask_once(file, request)?;
        let begins = content_range(answer.headers()).map(|(from, ..)| from);
        match answer.status() {
            StatusCode::OK => Ok((0, answer)),
            StatusCode::PARTIAL_CONTENT if begins == Some(start) => Ok((start, answer)),
            _ => Err(self.wrong(file, "it has another range than requested").into()),
        }
    }

    /// A request for a file. `ApiRepo` gives its agent and headers away in this request alone.
    fn get(&self, file: &str) -> RequestBuilder<WithoutBody> {
        self.repo.info_request().uri(self.repo.url(file))
    }

    /// All bytes of an answer.
    fn whole(
        &self,
        what: &str,
        limit: u64,
        request: impl Fn() -> RequestBuilder<WithoutBody>,
    ) -> Result<Vec<u8>, Failure> {
        let answer = self.ask(what, request)?;
        let claimed = answer.body().content_length();
        let bytes = match claimed.filter(|len| *len > limit) {
            Some(_) => None,
            None => Some(self.bytes(what, answer, limit.saturating_add(1))?),
        };
        bytes.filter(|bytes| bytes.len() as u64 <= limit).ok_or_else(|| {
            Failure::Failed(format!(
                "{what} of {} has more than {limit} bytes: too large for such a file",
                self.address
            ))
        })
    }

    /// An answer, on the second try if the first met what a moment mends.
    fn ask(
        &self,
        what: &str,
        request: impl Fn() -> RequestBuilder<WithoutBody>,
    ) -> Result<Response<Body>, Failure> {
        Ok(match self.ask_once(what, request()) {
            Err(failed) if failed.passing => {
                std::thread::sleep(PAUSE);
                self.ask_once(what, request())?
            }
            result => result?,
        })
    }

    fn ask_once(
        &self,
        what: &str,
        request: RequestBuilder<WithoutBody>,
    ) -> Result<Response<Body>, RequestFailure> {
        interrupt::check()?;
        let timeout = Some(self.settings.timeout);
        let request = request
            .config()
            .http_status_as_error(false)
            .timeout_connect(timeout)
            .timeout_recv_response(timeout)
            .timeout_per_read(timeout)
            // Compressed lengths would not be those of the files.
            .accept_encoding("identity")
            .build();
        let answer = request.call().map_err(|error| self.broken(what, error))?;
        match self.refusal(what, &answer) {
            None => Ok(answer),
            Some(said) => Err(RequestFailure {
                passing: answer.status().is_server_error(),
                failure: Failure::Failed(said),
            }),
        }
    }

    /// At most `most` bytes of an answer of which little is expected.
    fn bytes(&self, what: &str, answer: Response<Body>, most: u64) -> Result<Vec<u8>, Failure> {
        let (begun, mut bytes) = (Instant::now(), Vec::new());
        // A claimed length is not reserved in advance.
        self.pass_on(what, answer, most, |piece| {
            bytes.extend_from_slice(piece);
            let patience = Duration::from_secs(bytes.len() as u64 / LEAST_RATE);
            match begun.elapsed() > self.settings.timeout + patience {
                true => Err(Failure::Failed(self.too_slow(what))),
                false => Ok(()),
            }
        })?;
        Ok(bytes)
    }

    /// Passes on what an answer holds, and at most `most` bytes of it.
    pub fn pass_on(
        &self,
        what: &str,
        answer: Response<Body>,
        most: u64,
        mut sink: impl FnMut(&[u8]) -> Result<(), Failure>,
    ) -> Result<(), RequestFailure> {
        let mut body = answer.into_body().into_reader().take(most);
        let mut piece = vec![0; PIECE];
        loop {
            interrupt::check()?;
            match body.read(&mut piece) {
                Ok(0) => return Ok(()),
                Ok(read) => sink(&piece[..read])?,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(error) => return Err(self.broken(what, error.into())),
            }
        }
    }

    /// What a status means other than an answer.
    fn refusal(&self, what: &str, answer: &Response<Body>) -> Option<String> {
        let (id, endpoint) = (self.address, &self.settings.endpoint);
        let (org, name) = (&id.org, &id.name);
        let code = text(answer.headers(), "x-error-code").unwrap_or_default();
        Some(match answer.status().as_u16() {
            200 | 206 | 416 => return None,
            401 | 403 if code == "GatedRepo" => format!(
                "{id} is gated: ask for access at {endpoint}/{org}/{name}, and give your token in HF_TOKEN or with `hf auth login`"
            ),
            401 | 403 => format!(
                "the Hub ({endpoint}) shows no {id} {}",
                match self.settings.token {
                    Some(_) =>
                        "to the token that it was given: check the name, and that the token (HF_TOKEN, or the one of `hf auth \
                         login`) is valid and may see it",
                    None =>
                        "to everybody: check the name; if the model is private or gated, give your token in HF_TOKEN or with \
                         `hf auth login`",
                }
            ),
            404 if code == "RevisionNotFound" => format!(
                "{org}/{name} has no revision {:?}: check what comes after the @",
                id.revision()
            ),
            404 if code == "EntryNotFound" => format!("{id} has no {}", shown(what, 200)),
            404 => format!(
                "there is no model {id} on the Hub ({endpoint}), nor a folder of that name here: check the name"
            ),
            429 => format!(
                "{} refuses further requests for now (rate limit): try again in {}; a token in HF_TOKEN allows more",
                self.host(),
                // A date there is not read.
                match text(answer.headers(), "retry-after")
                    .and_then(|text| text.parse::<u32>().ok())
                {
                    Some(seconds) => format!("{seconds} s"),
                    None => "some minutes".to_owned(),
                }
            ),
            status => {
                format!("{} answered {status} for {what} of {id}; try again later", self.host())
            }
        })
    }

    fn broken(&self, what: &str, error: ureq::Error) -> RequestFailure {
        let said = match error {
            _ if interrupt::asked() => return Failure::Interrupted.into(),
            ureq::Error::Timeout(_) => self.too_slow(what),
            error => format!(
                "cannot reach {} for {what} of {}: {}; check the network, HF_ENDPOINT and proxies, or give a folder",
                self.host(),
                self.address,
                // Parts of it may be the server's.
                shown(&error.to_string(), 200)
            ),
        };
        RequestFailure { passing: true, failure: Failure::Failed(said) }
    }

    fn too_slow(&self, what: &str) -> String {
        format!(
            "{} took too long to send {what} of {}: try again, or allow more than {} s with HF_HUB_DOWNLOAD_TIMEOUT",
            self.host(),
            self.address,
            self.settings.timeout.as_secs()
        )
    }

    pub fn wrong(&self, what: &str, fault: &str) -> Failure {
        let (host, id) = (self.host(), self.address);
        Failure::Failed(format!("the response of {host} for {what} of {id} is invalid: {fault}"))
    }

    fn host(&self) -> &str {
        let endpoint = &self.settings.endpoint;
        endpoint.split_once("://").map_or(endpoint, |(_, host)| host)
    }
}

/// The range and the whole length in a `Content-Range`: `bytes 0-8/1234`. The end is exclusive.
fn content_range(headers: &HeaderMap) -> Option<(u64, u64, u64)> {
    let (range, len) = text(headers, "content-range")?.strip_prefix("bytes ")?.split_once('/')?;
    let (start, last) = range.split_once('-')?;
    let (start, last, len): (u64, u64, u64) =
        (start.parse().ok()?, last.parse().ok()?, len.parse().ok()?);
    (start <= last && last < len).then_some((start, last + 1, len))
}

/// A header that is text.
fn text<'a>(headers: &'a HeaderMap, name: &str) -> Option<&'a str> {
    headers.get(name)?.to_str().ok().map(str::trim)
}

#[cfg(test)]
mod tests {
    use super::*;
    use ureq::http::{HeaderName, HeaderValue};

    #[test]
    fn ranges_are_read_or_refused() {
        let range = |value: &str| {
            let value = HeaderValue::from_str(value).unwrap();
            content_range(&HeaderMap::from_iter([(
                HeaderName::from_static("content-range"),
                value,
            )]))
        };
        assert_eq!(range("bytes 0-8/1234"), Some((0, 9, 1234)));
        assert_eq!(range("bytes 8-8/9"), Some((8, 9, 9)));
        let most = format!("bytes 0-{}/{}", u64::MAX - 1, u64::MAX);
        assert_eq!(range(&most), Some((0, u64::MAX, u64::MAX)));
        for value in [
            "",
            "bytes",
            "bytes 0-8/*",
            "bytes 8-7/9",
            "bytes 0-9/9",
            "0-8/9",
            "bytes 0-8",
            "bytes -1-8/9",
            "bytes 0-99999999999999999999/9",
            "bytes */9",
        ] {
            assert_eq!(range(value), None, "{value}");
        }
    }
}
