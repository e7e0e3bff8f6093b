//! Things that are no files, and files that are no good to read, where a checkpoint's should be.
#![cfg(unix)]
mod common;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use common::{INDEX, file_bytes, is_sane, message, tensor};
use outsize_checkpoint::{Checkpoint, Error};

/// Opens folders in which `make` has put something at `model.safetensors`, at the index, and at a
/// shard.
fn said_of_each(make: impl Fn(&Path)) -> [String; 3] {
    let began = Instant::now();
    let said = ["model.safetensors", INDEX, "shard"].map(|name| {
        let place = tempfile::tempdir().unwrap();
        make(&place.path().join(name));
        if name == "shard" {
            fs::write(place.path().join(INDEX), r#"{"weight_map":{"w":"shard"}}"#).unwrap();
        }
        let said = message(Checkpoint::open(place.path()));
        assert!(said.contains(place.path().join(name).to_str().unwrap()), "{said}");
        is_sane(&said);
        said
    });
    assert!(began.elapsed() < Duration::from_secs(10));
    said
}

#[test]
fn a_pipe_is_not_waited_for() {
    for said in said_of_each(|path| {
        assert!(Command::new("mkfifo").arg(path).status().unwrap().success());
    }) {
        assert!(said.contains("is not a regular file"), "{said}");
    }
}

#[test]
fn a_device_or_a_folder_is_not_read() {
    for target in ["/dev/zero", "/dev/null", "/dev/tty", "/proc", "."] {
        for said in said_of_each(|path| symlink(target, path).unwrap()) {
            assert!(said.contains("is not a regular file"), "{target}: {said}");
        }
    }
    for said in said_of_each(|path| fs::create_dir(path).unwrap()) {
        assert!(said.contains("is not a regular file"), "{said}");
    }
}

#[test]
fn links_that_go_round_are_an_error() {
    for said in said_of_each(|path| symlink(path.file_name().unwrap(), path).unwrap()) {
        assert!(said.starts_with("cannot read "), "{said}");
        assert!(said.contains("symbolic links"), "{said}");
    }
    let place = tempfile::tempdir().unwrap();
    let folder = place.path().join("folder");
    symlink("folder", &folder).unwrap();
    let said = message(Checkpoint::open(&folder));
    assert!(said.starts_with("cannot read ") && said.contains("folder"), "{said}");
}

#[test]
fn files_of_the_system_are_no_checkpoints() {
    // Regular files by their type, and yet empty, endless or of another length than they say.
    for target in [
        "/proc/self/status",
        "/proc/self/mem",
        "/proc/kmsg",
        "/proc/kcore",
        "/sys/kernel/mm/transparent_hugepage/enabled",
    ] {
        if !Path::new(target).exists() {
            println!("skipped: there is no {target}");
            continue;
        }
        for said in said_of_each(|path| symlink(target, path).unwrap()) {
            println!("{said}");
        }
    }
}

#[test]
fn a_file_that_may_not_be_read_is_named() {
    use std::os::unix::fs::PermissionsExt;
    let place = tempfile::tempdir().unwrap();
    let path = place.path().join("model.safetensors");
    fs::write(&path, file_bytes("{}", &[])).unwrap();
    fs::set_permissions(&path, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::read(&path).is_ok() {
        println!("skipped: the superuser may read everything");
        return;
    }
    let said = message(Checkpoint::open(place.path()));
    assert!(said.starts_with("cannot read ") && said.contains("model.safetensors"), "{said}");
}

/// The cache of the Hub: a snapshot is a folder of links to `blobs`, which are named by their
/// digests, also from folders in it.
#[test]
fn the_cache_of_the_hub_is_read() {
    let place = tempfile::tempdir().unwrap();
    let model = place.path().join("models--org--name");
    let snapshot = model.join("snapshots/0123abcd");
    fs::create_dir_all(snapshot.join("parts")).unwrap();
    fs::create_dir(model.join("blobs")).unwrap();
    for (blob, bytes) in [
        ("aa", file_bytes(&format!("{{{}}}", tensor("v", "U8", &[1], 0, 1)), &[1])),
        ("bb", file_bytes(&format!("{{{}}}", tensor("w", "U8", &[1], 0, 1)), &[2])),
        ("cc", br#"{"weight_map":{"v":"1.safetensors","w":"parts/2.safetensors"}}"#.to_vec()),
    ] {
        fs::write(model.join("blobs").join(blob), bytes).unwrap();
    }
    symlink("../../blobs/aa", snapshot.join("1.safetensors")).unwrap();
    symlink("../../../blobs/bb", snapshot.join("parts/2.safetensors")).unwrap();
    symlink("../../blobs/cc", snapshot.join(INDEX)).unwrap();
    let read_both = |path: &Path| {
        let checkpoint = Checkpoint::open(path).unwrap();
        let read = |name: &str| checkpoint.read(checkpoint.get(name).unwrap()).unwrap();
        assert_eq!((read("v"), read("w")), (vec![1], vec![2]));
        assert_eq!(checkpoint.files()[0].path(), path.join("1.safetensors"));
    };
    read_both(&snapshot);
    // A cache on another disk, and a link to a snapshot.
    symlink(&model, place.path().join("elsewhere")).unwrap();
    read_both(&place.path().join("elsewhere/snapshots/0123abcd"));
    symlink(&snapshot, place.path().join("model")).unwrap();
    read_both(&place.path().join("model"));

    // A download that was interrupted: the link is there, and the blob is not.
    fs::remove_file(model.join("blobs/bb")).unwrap();
    let said = message(Checkpoint::open(&snapshot));
    assert!(said.contains("1 of 2 shards are missing, \"parts/2.safetensors\" first"), "{said}");
}

/// A link may lead anywhere: who can make one in the user's folder can do worse, and what it
/// leads to is only ever read, and only as safetensors.
#[test]
fn a_link_leads_to_nothing_but_safetensors() {
    let place = tempfile::tempdir().unwrap();
    let secret = place.path().join("secret");
    fs::write(&secret, "{\"password\": \"hunter2\"}").unwrap();
    for said in said_of_each(|path| symlink(&secret, path).unwrap()) {
        assert!(!said.contains("hunter2") && !said.contains("password"), "{said}");
    }
    assert_eq!(fs::read_to_string(&secret).unwrap(), "{\"password\": \"hunter2\"}");
}

/// What is a file when it is looked at and a pipe when it is opened.
#[test]
fn a_pipe_that_takes_a_files_place_is_not_waited_for() {
    use std::sync::atomic::{AtomicBool, Ordering};
    let place = tempfile::tempdir().unwrap();
    let (file, pipe) = (place.path().join("file"), place.path().join("pipe"));
    fs::write(&file, file_bytes("{}", &[])).unwrap();
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let link = place.path().join("model.safetensors");
    symlink(&file, &link).unwrap();
    let done = AtomicBool::new(false);
    let mut refused = 0;
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !done.load(Ordering::Relaxed) {
                for target in [&pipe, &file] {
                    let next = place.path().join("next");
                    symlink(target, &next).unwrap();
                    fs::rename(&next, &link).unwrap();
                }
            }
        });
        for _ in 0..20_000 {
            match Checkpoint::open(place.path()) {
                Ok(_) => {}
                Err(Error::NotAFile { .. }) => refused += 1,
                Err(error) => panic!("{error}"),
            }
        }
        done.store(true, Ordering::Relaxed);
    });
    println!("refused {refused} times of 20000");
}
