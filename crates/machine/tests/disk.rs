//! Measuring the speed of a file that is really there.

use outsize_machine::{Error, direct_read_speed, read_latency};
use std::io::Write;

fn file(bytes: usize) -> tempfile::NamedTempFile {
    // Beside the build's output: the system's folder for temporary files is often in memory.
    let mut file = tempfile::NamedTempFile::new_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    file.write_all(&vec![7; bytes]).unwrap();
    file.flush().unwrap();
    file
}

#[test]
fn reads_what_it_may_and_no_more() {
    let file = file((20 << 20) + 123);
    for (range, read) in [
        (0..u64::MAX, 20 << 20),
        (0..9 << 20, 9 << 20),
        (0..5000, 4096),
        (0..4096, 4096),
        (8 << 20..u64::MAX, 12 << 20),
        ((8 << 20) + 5..(8 << 20) + 4100, 4096),
    ] {
        let speed = direct_read_speed(file.path(), range, 0).unwrap();
        assert_eq!(speed.bytes, read);
        assert!(speed.seconds > 0.0);
        let product = speed.bytes_per_second * speed.seconds;
        assert!((product - read as f64).abs() < 1.0, "{speed:?}");
        assert!(speed.bytes_per_second.is_finite());
    }
}

#[test]
fn too_little_to_measure_is_an_error() {
    let file = file(4095);
    for range in [0..0, 0..4095, 0..u64::MAX, 9000..u64::MAX] {
        let error = direct_read_speed(file.path(), range, 0).unwrap_err();
        assert!(matches!(error, Error::TooSmall { .. }), "{error}");
    }
}

#[test]
fn what_cannot_be_read_is_named() {
    let folder = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let missing = folder.path().join("missing.safetensors");
    let error = direct_read_speed(&missing, 0..1 << 20, 9 << 20).unwrap_err();
    assert!(matches!(error, Error::Open { .. }), "{error}");
    assert!(error.to_string().contains("missing.safetensors"), "{error}");
    assert!(direct_read_speed(folder.path(), 0..1 << 20, 9 << 20).is_err());
}

#[test]
fn single_pages_are_read_one_after_the_other() {
    let file = file((3 << 20) + 123);
    for range in [0..3 << 20, 0..4096, 8192..20_000] {
        let seconds = read_latency(file.path(), range, 20).unwrap();
        assert_eq!(seconds.len(), 20);
        assert!(seconds.iter().all(|seconds| seconds.is_finite()));
    }
    let error = read_latency(file.path(), 5..50, 1).unwrap_err();
    assert!(matches!(error, Error::TooSmall { .. }), "{error}");
    // Beyond the end there is nothing.
    assert!(read_latency(file.path(), 1 << 30..2 << 30, 1).is_err());
}
