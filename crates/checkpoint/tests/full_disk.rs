//! A disk that is full: the error names the file and says so, nothing partial stays, and nothing of
//! the user's is lost. Each test runs itself again, in a process that has a small disk of its own.
#![cfg(target_os = "linux")]
mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use common::{list, message};
use outsize_checkpoint::{Checkpoint, Dtype, Error, FileWriter, ShardWriter, TensorSpec};

/// The folder that a test's other process has to fill.
const FOLDER: &str = "OUTSIZE_TEST_FOLDER";
const MB: usize = 1 << 20;
const FULL: &str =
    "No space left on device (os error 28); free some space or name a folder on another disk";

/// Runs the test `name` again with a disk of these mount options. None, said aloud, where no disk
/// can be mounted.
fn on_small_disk(name: &str, options: &str) -> Option<Output> {
    let place = tempfile::tempdir().unwrap();
    // The superuser may mount; others may in a name space of their own, if the system allows it.
    for unshare in ["-m", "-rm"] {
        let shell = |script: &str| {
            let mut command = Command::new("unshare");
            command.args([unshare, "sh", "-c"]);
            command.arg(format!("mount -t tmpfs -o {options} tmpfs \"$0\" && {script}"));
            command.arg(place.path());
            command
        };
        if shell("true").output().is_ok_and(|output| output.status.success()) {
            let mut command = shell("exec \"$@\"");
            return Some(again(&mut command, name, place.path()));
        }
    }
    println!("SKIPPED: no small disk can be mounted here");
    None
}

/// Runs the test `name` again by a shell's `exec "$@"`.
fn again(shell: &mut Command, name: &str, folder: &Path) -> Output {
    let output = shell
        .arg(std::env::current_exe().unwrap())
        .args([name, "--exact", "--nocapture"])
        .env(FOLDER, folder)
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&output.stdout);
    let errors = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}{errors}");
    assert!(said.contains("1 passed"), "{said}{errors}");
    output
}

fn folder() -> Option<PathBuf> {
    std::env::var_os(FOLDER).map(PathBuf::from)
}

fn bytes(name: &str, len: usize) -> TensorSpec {
    TensorSpec::new(name, Dtype::U8, [len])
}

/// Fills a checkpoint of `total` bytes in shards of 512 KiB, as far as it goes.
fn fill(out: &Path, total: usize) -> Result<(), Error> {
    let specs: Vec<_> = (0..total / (MB / 4)).map(|n| bytes(&format!("w{n}"), MB / 4)).collect();
    let mut writer = ShardWriter::create(out, specs.clone(), MB as u64 / 2)?;
    writer.add_file("config.json", b"{}")?;
    for spec in &specs {
        for _ in 0..4 {
            writer.write(&spec.name, &[7; MB / 16])?;
        }
    }
    writer.finish()
}

#[test]
fn a_checkpoint_that_does_not_fit() {
    let Some(folder) = folder() else {
        on_small_disk("a_checkpoint_that_does_not_fit", "size=3m");
        return;
    };
    fs::create_dir(folder.join("old")).unwrap();
    fs::write(folder.join("old/mine"), "precious").unwrap();
    fs::create_dir(folder.join("empty")).unwrap();
    for out in ["new", "empty"] {
        let said = message(fill(&folder.join(out), 8 * MB));
        let shard = folder.join(out).join("model-0000");
        assert!(said.starts_with(&format!("cannot write {}", shard.display())), "{said}");
        assert!(said.contains(" of 8388608 bytes of tensors written): "), "{said}");
        assert!(said.ends_with(FULL), "{said}");
        assert_eq!(list(&folder), ["empty", "old"]);
        assert_eq!(list(&folder.join("empty")), [""; 0]);
        assert_eq!(fs::read_to_string(folder.join("old/mine")).unwrap(), "precious");
    }
    // The space is free again.
    fill(&folder.join("new"), 2 * MB).unwrap();
    assert_eq!(Checkpoint::open(folder.join("new")).unwrap().total_bytes(), 2 * MB as u64);
}

#[test]
fn a_small_file_that_does_not_fit() {
    let Some(folder) = folder() else {
        on_small_disk("a_small_file_that_does_not_fit", "size=1m");
        return;
    };
    let mut writer = ShardWriter::create(folder.join("new"), vec![], 1).unwrap();
    let said = message(writer.add_file("tokenizer.json", &vec![b' '; 2 * MB]));
    assert!(said.contains("new/tokenizer.json ") && said.ends_with(FULL), "{said}");
    drop(writer);
    assert!(list(&folder).is_empty());
}

#[test]
fn a_disk_without_room_for_one_more_file() {
    let Some(folder) = folder() else {
        on_small_disk("a_disk_without_room_for_one_more_file", "size=8m,nr_inodes=6");
        return;
    };
    let said = message(fill(&folder.join("new"), 4 * MB));
    assert!(said.starts_with("cannot write ") && said.ends_with(FULL), "{said}");
    assert!(list(&folder).is_empty());
    for n in 0.. {
        if fs::write(folder.join(n.to_string()), "").is_err() {
            break;
        }
    }
    let before = list(&folder);
    let none = |name: &str| {
        let path = folder.join(name);
        format!(
            "cannot create {}: no storage space; free some space or name a folder on another disk",
            path.display()
        )
    };
    let said = message(fill(&folder.join("new"), MB));
    assert_eq!(said, none("new"));
    let said = message(FileWriter::create(folder.join("file"), vec![]));
    assert_eq!(said, none("file"));
    assert_eq!(list(&folder), before);
}

#[test]
fn a_file_that_does_not_fit() {
    let Some(folder) = folder() else {
        on_small_disk("a_file_that_does_not_fit", "size=3m");
        return;
    };
    let path = folder.join("logits.safetensors");
    for there in [false, true] {
        if there {
            fs::write(&path, "precious").unwrap();
        }
        let mut writer = FileWriter::create(&path, vec![bytes("logits", 8 * MB)]).unwrap();
        let said = message((0..8).try_for_each(|_| writer.write("logits", &[7; MB])));
        assert!(said.starts_with(&format!("cannot write {}", path.display())), "{said}");
        assert!(said.ends_with(FULL), "{said}");
        // What was written is not known, so nothing more is.
        let again = message(writer.write("logits", &[7]));
        assert!(again.starts_with("an earlier write to "), "{again}");
        assert!(matches!(writer.finish(), Err(Error::WriterFailed { .. })));
        match there {
            false => assert!(list(&folder).is_empty()),
            true => assert_eq!(fs::read_to_string(&path).unwrap(), "precious"),
        }
    }
    assert_eq!(list(&folder), ["logits.safetensors"]);
}

#[test]
fn a_file_over_the_systems_limit() {
    let Some(folder) = folder() else {
        // The signal must be ignored, or it ends the process.
        let place = tempfile::tempdir().unwrap();
        let mut shell = Command::new("sh");
        shell.args(["-c", "trap '' XFSZ; ulimit -f 500; exec \"$@\"", "sh"]);
        again(&mut shell, "a_file_over_the_systems_limit", place.path());
        return;
    };
    let said = message(fill(&folder.join("new"), MB));
    assert!(
        said.starts_with("cannot write ") && said.contains("new/model-00001-of-00002.safetensors"),
        "{said}"
    );
    assert!(
        said.ends_with("this file system limits the size of a file: ask for smaller shards"),
        "{said}"
    );
    assert!(list(&folder).is_empty());
}
