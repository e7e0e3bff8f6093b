//! Requests to the Hub.

use super::answer::{content_range, encoded, follow, origin, retry_after, text, unsatisfied};
use super::cache::is_commit;
use super::{Address, HubError, HubSettings};
use crate::interrupt;
use outsize::checkpoint::{Part, shown};
use std::io::{ErrorKind, Read};
use std::ops::Range;
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use ureq::http::{HeaderMap, Response, StatusCode, Uri};
use ureq::{Agent, Body};

/// Redirects that are followed for one file: to a renamed repository, and to where its files are.
const MOST_REDIRECTS: usize = 6;

/// The time limit of all requests together.
const DEADLINE: Duration = Duration::from_secs(600);

/// Bytes per second that a server is expected to send at least.
const LEAST_RATE: u64 = 50_000;

/// Bytes that are read at a time.
const PIECE: usize = 64 << 10;

/// How long to wait before a request is made once more.
const PAUSE: Duration = Duration::from_millis(300);

/// One model on the Hub.
pub struct Client<'a> {
    settings: &'a HubSettings,
    address: &'a Address,
    agent: Agent,
    begun: Instant,
    /// The commit of the first response; all others must be of the same.
    commit: OnceLock<String>,
}

/// A request.
struct Request<'a> {
    file: &'a str,
    range: Option<Range<u64>>,
}

impl<'a> Client<'a> {
    /// A client without requests so far.
    pub fn new(settings: &'a HubSettings, address: &'a Address) -> Self {
        let config = Agent::config_builder()
            .http_status_as_error(false)
            // Followed here: the token is for the Hub alone.
            .max_redirects(0)
            .max_redirects_will_error(false)
            .timeout_connect(Some(settings.timeout))
            .timeout_recv_response(Some(settings.timeout))
            .user_agent(concat!("outsize/", env!("CARGO_PKG_VERSION")))
            // Compressed lengths would not be those of the files.
            .accept_encoding("identity")
            .build();
        Self {
            settings,
            address,
            agent: config.into(),
            begun: Instant::now(),
            commit: OnceLock::new(),
        }
    }

    /// The model.
    pub fn address(&self) -> &Address {
        self.address
    }

    fn id(&self) -> Box<Address> {
        Box::new(self.address.clone())
    }

    /// The commit of the responses, if the Hub named it.
    pub fn commit(&self) -> Option<&str> {
        self.commit.get().map(String::as_str)
    }

    /// All bytes of a file; none if there is no such file.
    pub fn file(&self, file: &str, limit: u64) -> Result<Option<Vec<u8>>, HubError> {
        let answer = match self.ask(&Request { file, range: None }) {
            Ok(answer) => answer,
            Err(HubError::NoFile { .. }) => return Ok(None),
            Err(error) => return Err(error),
        };
        let too_large = || HubError::TooLarge { id: self.id(), file: file.to_owned(), limit };
        let len = answer.length();
        if len.is_some_and(|len| len > limit) {
            return Err(too_large());
        }
        let bytes = self.read(file, answer, limit.saturating_add(1))?;
        if bytes.len() as u64 > limit {
            return Err(too_large());
        }
        Ok(Some(bytes))
    }

    /// A range of a file. A server that sends all of it is cut off at the range's end.
    pub fn range(&self, file: &str, range: Range<u64>) -> Result<Part, HubError> {
        let wanted = range.end - range.start;
        let request = Request { file, range: Some(range.clone()) };
        let answer = self.ask(&request)?;
        let host = answer.host.clone();
        let wrong = |fault: &str| self.wrong(file, &host, fault);
        if answer.status() == StatusCode::RANGE_NOT_SATISFIABLE {
            let file_len = unsatisfied(answer.headers())
                .filter(|len| *len <= range.start)
                .ok_or_else(|| wrong("it lacks the requested range"))?;
            let bytes = Vec::new();
            return Ok(Part { bytes, file_len });
        }
        if answer.status() == StatusCode::PARTIAL_CONTENT {
            let (start, end, file_len) = content_range(answer.headers())
                .ok_or_else(|| wrong("its Content-Range is malformed"))?;
            if start != range.start || end > range.end {
                return Err(wrong("it has another range than requested"));
            }
            let bytes = self.read(file, answer, end - start)?;
            if bytes.len() as u64 != end - start {
                return Err(wrong("it ends early"));
            }
            return Ok(Part { bytes, file_len });
        }
        // All of the file: what comes before the range must be read too, and what comes behind is
        // not.
        let file_len =
            answer.length().ok_or_else(|| wrong("the response has no Content-Length"))?;
        let mut bytes = self.read(file, answer, range.end)?;
        if (bytes.len() as u64) < range.end.min(file_len) {
            return Err(wrong("it ends early"));
        }
        let before = usize::try_from(range.start).unwrap_or(usize::MAX);
        bytes.drain(..before.min(bytes.len()));
        bytes.truncate(usize::try_from(wanted).unwrap_or(usize::MAX));
        Ok(Part { bytes, file_len })
    }

    /// An answer that is of the file, or of a part of it.
    fn ask(&self, request: &Request<'_>) -> Result<Answer, HubError> {
        match self.ask_once(request) {
            // Transient errors.
            Err(HubError::Network { .. } | HubError::Status { status: 500.., .. }) => {
                std::thread::sleep(PAUSE);
                self.ask_once(request)
            }
            result => result,
        }
    }

    fn ask_once(&self, request: &Request<'_>) -> Result<Answer, HubError> {
        let Address { org, name, .. } = self.address;
        let revision = self.commit().unwrap_or(self.address.revision());
        let url = format!(
            "{}/{org}/{name}/resolve/{}/{}",
            self.settings.endpoint,
            encoded(revision, false),
            encoded(request.file, true),
        );
        let mut uri: Uri = url.parse().map_err(|_| HubError::Variable {
            name: "HF_ENDPOINT",
            fault: "is no address such as https://huggingface.co",
        })?;
        let home = origin(&uri);
        for _ in 0..=MOST_REDIRECTS {
            let host = uri.host().unwrap_or_default().to_owned();
            let at_home = origin(&uri) == home;
            let response = self.send(request, &uri, at_home)?;
            if at_home {
                self.pin(response.headers());
            }
            if response.status().is_redirection() {
                let target = text(response.headers(), "location")
                    .and_then(|location| follow(&uri, location))
                    .ok_or_else(|| {
                        self.wrong(request.file, &host, "its redirect has no valid location")
                    })?;
                uri = target;
                continue;
            }
            let answer = Answer { response, host };
            return match self.fault(request.file, &answer) {
                Some(fault) => Err(fault),
                None => Ok(answer),
            };
        }
        let host = uri.host().unwrap_or_default();
        Err(self.wrong(request.file, host, "it redirects too often"))
    }

    fn send(
        &self,
        request: &Request<'_>,
        uri: &Uri,
        at_home: bool,
    ) -> Result<Response<Body>, HubError> {
        if interrupt::asked() {
            return Err(HubError::Interrupted);
        }
        let left = DEADLINE.checked_sub(self.begun.elapsed());
        let left = left.filter(|left| !left.is_zero()).ok_or(self.late())?;
        let mut builder = self
            .agent
            .get(uri)
            .config()
            .timeout_global(Some(left))
            .timeout_per_read(Some(self.settings.timeout))
            .build();
        if let Some(range) = &request.range {
            let value = format!("bytes={}-{}", range.start, range.end.saturating_sub(1));
            builder = builder.header("range", value);
        }
        if let (true, Some(token)) = (at_home, &self.settings.token) {
            builder = builder.header("authorization", format!("Bearer {token}"));
        }
        let host = uri.host().unwrap_or_default();
        builder.call().map_err(|error| self.broken(request.file, host, error))
    }

    fn read(&self, file: &str, answer: Answer, most: u64) -> Result<Vec<u8>, HubError> {
        let Answer { response, host } = answer;
        let mut bytes = Vec::new();
        let mut body = response.into_body().into_reader().take(most);
        let mut piece = vec![0; PIECE];
        let begun = Instant::now();
        // In pieces: a claimed length is not reserved in advance, and a slow server is noticed.
        loop {
            let read = match body.read(&mut piece) {
                Ok(0) => return Ok(bytes),
                Ok(read) => read,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => return Err(self.broken(file, &host, error.into())),
            };
            bytes.extend_from_slice(&piece[..read]);
            let patience = Duration::from_secs(bytes.len() as u64 / LEAST_RATE);
            if begun.elapsed() > self.settings.timeout + patience {
                return Err(self.too_slow(file, &host));
            }
        }
    }

    /// Pins the commit that the response names.
    fn pin(&self, headers: &HeaderMap) {
        if let Some(commit) = text(headers, "x-repo-commit").filter(|commit| is_commit(commit)) {
            self.commit.get_or_init(|| commit.to_owned());
        }
    }

    /// What is wrong with an answer, by its status.
    fn fault(&self, file: &str, answer: &Answer) -> Option<HubError> {
        let headers = answer.headers();
        let (id, host) = (self.id(), answer.host.clone());
        let endpoint = self.settings.endpoint.clone();
        let code = text(headers, "x-error-code").unwrap_or_default();
        let file = file.to_owned();
        Some(match answer.status().as_u16() {
            200 | 206 | 416 => return None,
            401 | 403 if code == "GatedRepo" => HubError::Gated { id, endpoint },
            401 | 403 => {
                HubError::Unauthorized { id, endpoint, token: self.settings.token.is_some() }
            }
            404 if code == "RepoNotFound" => HubError::NoRepository { id, endpoint },
            404 if code == "RevisionNotFound" => HubError::NoRevision { id },
            404 => HubError::NoFile { id, file },
            429 => HubError::RateLimit { host, seconds: retry_after(headers) },
            status => HubError::Status { id, file, host, status },
        })
    }

    fn broken(&self, file: &str, host: &str, error: ureq::Error) -> HubError {
        let (id, file, host) = (self.id(), file.to_owned(), host.to_owned());
        match error {
            _ if interrupt::asked() => HubError::Interrupted,
            ureq::Error::Timeout(ureq::Timeout::Global) => self.late(),
            ureq::Error::Timeout(_) => self.too_slow(&file, &host),
            error => HubError::Network {
                id,
                file,
                host,
                // Parts of it may be the server's.
                cause: shown(&error.to_string(), 200),
            },
        }
    }

    fn too_slow(&self, file: &str, host: &str) -> HubError {
        HubError::TooSlow {
            id: self.id(),
            file: file.to_owned(),
            host: host.to_owned(),
            seconds: self.settings.timeout.as_secs(),
        }
    }

    fn late(&self) -> HubError {
        HubError::Deadline { id: self.id(), minutes: DEADLINE.as_secs() / 60 }
    }

    fn wrong(&self, file: &str, host: &str, fault: &str) -> HubError {
        HubError::Answer {
            id: self.id(),
            file: file.to_owned(),
            host: host.to_owned(),
            fault: fault.to_owned(),
        }
    }
}

/// An answer, and whose it is.
struct Answer {
    response: Response<Body>,
    host: String,
}

impl Answer {
    fn status(&self) -> StatusCode {
        self.response.status()
    }

    fn headers(&self) -> &HeaderMap {
        self.response.headers()
    }

    /// Bytes that it says to have.
    fn length(&self) -> Option<u64> {
        self.response.body().content_length()
    }
}
