//! A Hub that serves what a test says, and counts what it gave away.

// Each test program uses a part.
#![allow(dead_code)]

use serde_json::{Value, json};
use sha1::Sha1;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::sync::{Arc, Mutex};

/// The commit of all files.
pub const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// The command with a cache in `home`, and the Hub at `endpoint`; offline without one.
pub fn outsize(home: &Path, endpoint: Option<&str>, args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
    for name in ["HF_TOKEN", "HUGGING_FACE_HUB_TOKEN", "HF_HUB_CACHE", "HF_TOKEN_PATH"] {
        command.env_remove(name);
    }
    command
        .args(args)
        .env("NO_PROXY", "127.0.0.1,localhost")
        .env("HF_HOME", home)
        .env("HF_ENDPOINT", endpoint.unwrap_or("http://127.0.0.1:9"))
        .env("HF_HUB_OFFLINE", if endpoint.is_some() { "0" } else { "1" })
        .env("HF_HUB_DOWNLOAD_TIMEOUT", "5")
        .current_dir(home)
        .stdin(Stdio::null())
        .output()
        .unwrap()
}

/// What was asked.
#[derive(Debug, Clone)]
pub struct Asked {
    /// Path and query.
    pub path: String,
    /// By lower-case names.
    pub headers: BTreeMap<String, String>,
    /// Bytes of the answer's body that went out.
    pub sent: u64,
}

impl Asked {
    pub fn range(&self) -> Option<Range<u64>> {
        let (start, last) = self.headers.get("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some(start.parse().unwrap()..last.parse().map_or(u64::MAX, |last: u64| last + 1))
    }

    /// Whether it is the list of a model's files.
    pub fn is_list(&self) -> bool {
        self.path.starts_with("/api/models/")
    }

    /// The path of the file in the model.
    pub fn file(&self) -> &str {
        let within = self.path.split_once("/resolve/").and_then(|(_, path)| path.split_once('/'));
        within.map_or(&self.path, |(_, file)| file)
    }
}

/// What is answered.
pub struct Reply {
    pub status: u16,
    /// Lines such as `Retry-After: 3`.
    pub headers: Vec<String>,
    pub body: Body,
}

pub enum Body {
    /// With its length.
    Bytes(Vec<u8>),
    /// These bytes and then as many more as are taken; of a length that is claimed, if any is.
    Endless(Vec<u8>, Option<u64>),
    /// One byte every 200 ms.
    Drip,
    /// The first of these bytes, of which all are announced, and the connection is closed.
    Cut(Vec<u8>, usize),
    /// Nothing, not even a status, and the connection stays open.
    Silence,
}

impl Reply {
    pub fn new(status: u16, headers: &[&str], body: &[u8]) -> Self {
        Self {
            status,
            headers: headers.iter().map(|line| line.to_string()).collect(),
            body: Body::Bytes(body.to_vec()),
        }
    }

    /// A file, or the range of it that was asked for.
    pub fn file(bytes: &[u8], range: Option<Range<u64>>) -> Self {
        let Some(range) = range else {
            return Self::new(200, &[], bytes);
        };
        let len = bytes.len() as u64;
        let end = range.end.min(len);
        if range.start >= end {
            return Self::new(416, &[&format!("Content-Range: bytes */{len}")], b"");
        }
        let part = &bytes[range.start as usize..end as usize];
        let line = format!("Content-Range: bytes {}-{}/{len}", range.start, end - 1);
        Self::new(206, &[&line], part)
    }
}

/// A server that runs until the test ends.
pub struct Server {
    pub address: SocketAddr,
    asked: Arc<Mutex<Vec<Asked>>>,
}

impl Server {
    pub fn new(answer: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let asked: Arc<Mutex<Vec<Asked>>> = Arc::default();
        let (list, answer) = (asked.clone(), Arc::new(answer));
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let (list, answer) = (list.clone(), answer.clone());
                std::thread::spawn(move || serve(stream, &list, &*answer));
            }
        });
        Self { address, asked }
    }

    /// The files of a folder.
    pub fn of_folder(folder: &Path) -> Self {
        Self::of(files(folder), |_, reply| reply)
    }

    /// Some files, with answers as `change` leaves them.
    pub fn of(
        files: BTreeMap<String, Vec<u8>>,
        change: impl Fn(&Asked, Reply) -> Reply + Send + Sync + 'static,
    ) -> Self {
        let list = list(&files).to_string();
        Self::new(move |asked| {
            let reply = match files.get(asked.file()) {
                _ if asked.is_list() => Reply::new(200, &[], list.as_bytes()),
                Some(bytes) => Reply::file(bytes, asked.range()),
                None => Reply::new(404, &["X-Error-Code: EntryNotFound"], b"Entry not found"),
            };
            change(asked, reply)
        })
    }

    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that was asked so far.
    pub fn asked(&self) -> Vec<Asked> {
        self.asked.lock().unwrap().clone()
    }

    pub fn sent(&self) -> u64 {
        self.asked().iter().map(|asked| asked.sent).sum()
    }
}

/// What the Hub says of a model with these files.
pub fn list(files: &BTreeMap<String, Vec<u8>>) -> Value {
    let digits = |hash: &[u8]| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    let files = files.iter().map(|(name, bytes)| {
        let blob = Sha1::new_with_prefix(format!("blob {}\0", bytes.len()));
        let mut file = json!({
            "rfilename": name,
            "size": bytes.len(),
            "blobId": digits(&blob.chain_update(bytes).finalize()),
        });
        if name.ends_with(".safetensors") || name.ends_with(".bin") {
            let sha256 = digits(&Sha256::digest(bytes));
            file["lfs"] = json!({"sha256": sha256, "size": bytes.len(), "pointerSize": 134});
        }
        file
    });
    json!({"id": "org/model", "sha": COMMIT, "siblings": files.collect::<Vec<_>>()})
}

/// A list of files of which nothing is known but their names.
pub fn names(names: &[&str]) -> Vec<u8> {
    let files: Vec<_> = names.iter().map(|name| json!({"rfilename": name})).collect();
    json!({"sha": COMMIT, "siblings": files}).to_string().into_bytes()
}

/// The files in a folder and in those within, by their paths.
pub fn files(folder: &Path) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    for entry in folder.read_dir().unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_name().unwrap().to_str().unwrap().to_owned();
        match path.is_dir() {
            true => files.extend(
                self::files(&path)
                    .into_iter()
                    .map(|(inner, bytes)| (format!("{name}/{inner}"), bytes)),
            ),
            false => drop(files.insert(name, std::fs::read(&path).unwrap())),
        }
    }
    files
}

fn serve(stream: TcpStream, list: &Mutex<Vec<Asked>>, answer: &dyn Fn(&Asked) -> Reply) {
    let mut lines = BufReader::new(&stream).lines();
    let Some(Ok(first)) = lines.next() else {
        return;
    };
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let headers = lines
        .map_while(Result::ok)
        .take_while(|line| !line.is_empty())
        .filter_map(|line| {
            let (name, value) = line.split_once(':')?;
            Some((name.to_lowercase(), value.trim().to_owned()))
        })
        .collect();
    let asked = Asked { path, headers, sent: 0 };
    let reply = answer(&asked);
    let at = {
        let mut list = list.lock().unwrap();
        list.push(asked);
        list.len() - 1
    };
    let sent = |bytes: usize| list.lock().unwrap()[at].sent += bytes as u64;
    // That the other side hangs up is its right.
    let _ = write(&stream, reply, sent);
}

fn write(mut stream: &TcpStream, reply: Reply, sent: impl Fn(usize)) -> std::io::Result<()> {
    if matches!(reply.body, Body::Silence) {
        std::thread::sleep(std::time::Duration::from_secs(30));
        return Ok(());
    }
    let mut head = format!("HTTP/1.1 {} x\r\nConnection: close\r\n", reply.status);
    for line in &reply.headers {
        head.push_str(line);
        head.push_str("\r\n");
    }
    let len = match &reply.body {
        Body::Bytes(bytes) | Body::Cut(bytes, _) => Some(bytes.len() as u64),
        Body::Endless(_, len) => *len,
        Body::Drip => Some(1000),
        Body::Silence => None,
    };
    if let Some(len) = len.filter(|_| !head.to_lowercase().contains("content-length")) {
        head.push_str(&format!("Content-Length: {len}\r\n"));
    }
    head.push_str("\r\n");
    stream.write_all(head.as_bytes())?;
    let mut send = |bytes: &[u8]| {
        stream.write_all(bytes)?;
        sent(bytes.len());
        Ok(())
    };
    match reply.body {
        Body::Bytes(bytes) => send(&bytes),
        Body::Cut(bytes, at) => send(&bytes[..at.min(bytes.len())]),
        Body::Endless(first, _) => {
            send(&first)?;
            loop {
                send(&[b' '; 1 << 14])?;
            }
        }
        Body::Drip => loop {
            send(b" ")?;
            std::thread::sleep(std::time::Duration::from_millis(200));
        },
        Body::Silence => Ok(()),
    }
}
