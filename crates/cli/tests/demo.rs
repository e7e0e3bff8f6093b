//! `outsize demo`, which makes its model once.

mod common;

use common::{done, folder, start};

#[test]
fn two_at_once_make_one_model() {
    let cache = folder();
    let demos = [(); 2].map(|()| start(cache.path(), &["demo"]));
    let shown = demos.map(|demo| done(&demo.wait_with_output().unwrap()));
    for text in &shown {
        for part in ["1 empty model", "3 plan", "5 run         Once upon a time", "tokens/s"] {
            assert!(text.contains(part), "{part}: {text}");
        }
    }
    assert_eq!(shown.iter().filter(|text| text.starts_with("Making a model")).count(), 1);
    let left: Vec<_> =
        cache.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["llama-demo"]);
}
