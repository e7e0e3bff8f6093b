//! A server under test.

use super::path;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// A server, and what it says.
pub struct Server {
    child: Child,
    pub address: String,
    said: BufReader<std::process::ChildStderr>,
}

impl Drop for Server {
    fn drop(&mut self) {
        // After a failure, it would keep the pipes of the test open.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

impl Server {
    pub fn start(model: &Path, more: &[&str]) -> Self {
        let mut command = Command::new(env!("CARGO_BIN_EXE_outsize"));
        command.args(["serve", path(model), "--port", "0", "--max-new-tokens", "12"]).args(more);
        let mut child = command.stderr(Stdio::piped()).spawn().unwrap();
        let mut said = BufReader::new(child.stderr.take().unwrap());
        let mut line = String::new();
        let address = loop {
            line.clear();
            assert!(said.read_line(&mut line).unwrap() > 0, "it ended");
            if let Some((_, rest)) = line.split_once("http://") {
                break rest.split("/v1").next().unwrap().to_owned();
            }
        };
        Self { child, address, said }
    }

    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The largest resident set that it had, in bytes.
    pub fn peak_rss(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.id())).unwrap();
        let peak = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
        1024 * peak.trim().trim_end_matches(" kB").parse::<u64>().unwrap()
    }

    pub fn agent(&self) -> ureq::Agent {
        let config = ureq::Agent::config_builder().http_status_as_error(false);
        config.timeout_global(Some(Duration::from_secs(120))).build().into()
    }

    pub fn get(&self, at: &str) -> (u16, Value) {
        let mut answer = self.agent().get(format!("http://{}{at}", self.address)).call().unwrap();
        let text = answer.body_mut().read_to_string().unwrap();
        (answer.status().as_u16(), serde_json::from_str(&text).unwrap())
    }

    pub fn text(&self, at: &str, request: &Value, key: &str) -> (u16, String) {
        let post = self.agent().post(format!("http://{}{at}", self.address));
        let post =
            post.content_type("application/json").header("authorization", format!("Bearer {key}"));
        let mut answer = post.send(request.to_string()).unwrap();
        (answer.status().as_u16(), answer.body_mut().read_to_string().unwrap())
    }

    pub fn post(&self, at: &str, request: &Value) -> (u16, Value) {
        let (status, text) = self.text(at, request, "");
        (status, serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}")))
    }

    /// The objects of a stream.
    pub fn stream(&self, at: &str, request: &Value) -> Vec<Value> {
        let mut request = request.clone();
        request["stream"] = json!(true);
        let (status, text) = self.text(at, &request, "");
        assert_eq!(status, 200, "{text}");
        let mut data: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("data: ")).collect();
        assert_eq!(data.pop(), Some("[DONE]"), "{text}");
        data.into_iter().map(|data| serde_json::from_str(data).unwrap()).collect()
    }

    /// Interrupts it; gives the rest of what it says.
    pub fn end(mut self) -> String {
        let id = self.child.id().to_string();
        assert!(Command::new("kill").args(["-INT", &id]).status().unwrap().success());
        let mut said = String::new();
        self.said.read_to_string(&mut said).unwrap();
        assert_eq!(self.child.wait().unwrap().code(), Some(130), "{said}");
        said
    }
}
