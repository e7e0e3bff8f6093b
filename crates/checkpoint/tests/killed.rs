//! A process that is killed while it writes: its output is complete or not there, and what it left
//! the next one removes.
#![cfg(unix)]
mod common;

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use common::list;
use outsize_checkpoint::{Checkpoint, Dtype, FileWriter, ShardWriter, TensorSpec};

/// The folder in which a test's other process writes until it is killed.
const FOLDER: &str = "OUTSIZE_TEST_FOLDER";
/// Bytes of each of four tensors.
const LEN: usize = 200_000;

fn specs() -> Vec<TensorSpec> {
    (0..4).map(|n| TensorSpec::new(format!("w{n}"), Dtype::U8, [LEN])).collect()
}

/// Runs a test that writes, as a process of its own, until it says that it has begun.
fn spawn(name: &str, folder: &Path) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args([name, "--exact", "--ignored", "--nocapture"])
        .env(FOLDER, folder)
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines();
    let begun = lines.any(|line| line.unwrap().ends_with("begun"));
    assert!(begun, "it ended before it began");
    child
}

fn kill(mut child: Child) {
    child.kill().unwrap();
    child.wait().unwrap();
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

#[test]
#[ignore = "run by the other tests, in a process that they kill"]
fn writes_half() {
    let Some(folder) = folder() else {
        return;
    };
    let mut writer = ShardWriter::create(folder.join("out"), specs(), LEN as u64).unwrap();
    writer.write("w0", &[1; LEN]).unwrap();
    writer.write("w1", &[1; LEN / 2]).unwrap();
    let specs = vec![TensorSpec::new("logits", Dtype::U8, [LEN])];
    let mut file = FileWriter::create(folder.join("file"), specs).unwrap();
    file.write("logits", &[1; LEN / 2]).unwrap();
    println!("begun");
    std::thread::sleep(Duration::from_secs(60));
}

#[test]
fn what_was_killed_is_not_there_and_the_next_removes_its_rest() {
    let place = tempfile::tempdir().unwrap();
    fs::write(place.path().join("file"), "precious").unwrap();
    let child = spawn("writes_half", place.path());
    let pid = child.id();
    let left = || {
        let mut names = list(place.path());
        names.retain(|name| name != "file");
        names
    };
    let [file, out] = &left()[..] else { panic!("{:?}", left()) };
    assert!(file.starts_with(&format!(".file.partial-{pid}-")), "{file}");
    assert!(out.starts_with(&format!(".out.partial-{pid}-")), "{out}");

    // As long as it lives nobody takes its work away.
    drop(ShardWriter::create(place.path().join("out"), vec![], 1).unwrap());
    drop(FileWriter::create(place.path().join("file"), vec![]).unwrap());
    assert_eq!(left(), [file.clone(), out.clone()]);

    kill(child);
    assert_eq!(left(), [file.clone(), out.clone()]);
    assert!(!place.path().join("out").exists());
    assert_eq!(fs::read_to_string(place.path().join("file")).unwrap(), "precious");
    drop(ShardWriter::create(place.path().join("other"), vec![], 1).unwrap());
    assert_eq!(left(), [file.clone(), out.clone()], "another output's");

    ShardWriter::create(place.path().join("out"), vec![], 1).unwrap().finish().unwrap();
    assert_eq!(left(), [file.clone(), "out".to_owned()]);
    FileWriter::create(place.path().join("file"), vec![]).unwrap().finish().unwrap();
    assert_eq!(list(place.path()), ["file", "out"]);
}

#[test]
#[ignore = "run by the other tests, in a process that they kill"]
fn writes_for_ever() {
    let Some(folder) = folder() else {
        return;
    };
    println!("begun");
    for round in 0.. {
        let out = folder.join(format!("out-{round}"));
        let mut writer = ShardWriter::create(&out, specs(), LEN as u64).unwrap();
        let mut file = FileWriter::create(folder.join("file"), specs()).unwrap();
        for spec in specs() {
            writer.write(&spec.name, &[round as u8; LEN]).unwrap();
            file.write(&spec.name, &[round as u8; LEN]).unwrap();
        }
        file.finish().unwrap();
        writer.finish().unwrap();
    }
}

#[test]
fn at_whatever_moment_outputs_are_whole() {
    let (mut whole, mut unfinished) = (0, 0);
    for attempt in 0..24 {
        let place = tempfile::tempdir().unwrap();
        let child = spawn("writes_for_ever", place.path());
        if attempt >= 20 {
            // However slow the disk is.
            while !place.path().join("out-0").exists() {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        std::thread::sleep(Duration::from_micros(1700 * (attempt % 20)));
        kill(child);
        for name in list(place.path()) {
            if name.starts_with('.') {
                assert!(name.contains(".partial-") || name.contains(".complete-"), "{name}");
                unfinished += 1;
                continue;
            }
            let mut path = place.path().join(&name);
            if name == "file" {
                // A file is taken for a checkpoint by its ending.
                path = place.path().join("file.safetensors");
                fs::rename(place.path().join("file"), &path).unwrap();
            }
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert_eq!(checkpoint.tensors().len(), 4);
            for tensor in checkpoint.tensors() {
                let bytes = checkpoint.read(tensor).unwrap();
                assert!(bytes.len() == LEN && bytes.iter().all(|&byte| byte == bytes[0]));
            }
            whole += 1;
        }
    }
    println!("{whole} whole outputs, {unfinished} unfinished ones");
    assert!(whole > 0 && unfinished > 0);
}
