//! States that are damaged or do not fit give one clear error and change nothing.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use crate::state_common::{Training, builder, optimizer};
use burn::nn::LinearConfig;
use burn::optim::AdamConfig;
use outsize_train::state::TrainingState;
use outsize_train::{Accelerator, MixedPrecision};
use proptest::prelude::*;

/// A run that was stopped in the middle of an epoch and of a step, and its state.
fn saved(states: &Path) -> (Training, PathBuf) {
    let accelerator = builder(states).mixed_precision(MixedPrecision::Fp16).build().unwrap();
    let best = Arc::new(Mutex::new(f32::INFINITY));
    accelerator.register_for_checkpointing("best", &best).unwrap();
    let mut training = Training::new(accelerator, true, 0);
    training.train_to(8);
    let folder = training.save();
    (training, folder)
}

fn files(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    entries.flat_map(|path| if path.is_dir() { files(&path) } else { vec![path] }).collect()
}

fn load_error(training: &mut Training, folder: &Path) -> String {
    let before = (training.model.weights(), training.accelerator.batches_taken());
    let accelerator = training.accelerator.clone();
    let fault = accelerator.load_state(folder, training.state()).unwrap_err().to_string();
    let after = (training.model.weights(), training.accelerator.batches_taken());
    assert!(before == after, "something was loaded");
    assert!(fault.contains(folder.to_str().unwrap()), "{fault}");
    fault
}

#[test]
fn every_damaged_byte_is_noticed() {
    let place = tempfile::tempdir().unwrap();
    let (mut training, folder) = saved(place.path());
    let mut files = files(&folder);
    files.sort();
    assert_eq!(files.len(), 8, "{files:?}");
    training.train_to(9);
    let training = RefCell::new(training);
    let mut runner = proptest::test_runner::TestRunner::default();
    let damages = (0..files.len(), any::<prop::sample::Index>(), 1..=255_u8, any::<bool>());
    runner
        .run(&damages, |(file, at, change, truncates)| {
            let (path, whole) = (&files[file], fs::read(&files[file]).unwrap());
            let mut bytes = whole.clone();
            let at = at.index(bytes.len());
            if truncates {
                bytes.truncate(at)
            } else {
                bytes[at] ^= change
            }
            fs::write(path, bytes).unwrap();
            let fault = load_error(&mut training.borrow_mut(), &folder);
            fs::write(path, whole).unwrap();
            let name = path.file_name().unwrap().to_str().unwrap();
            prop_assert!(fault.contains(name) && fault.contains("damaged"), "{}", fault);
            Ok(())
        })
        .unwrap();
    let mut training = training.into_inner();
    let accelerator = training.accelerator.clone();
    accelerator.load_state(&folder, training.state()).unwrap();
    assert_eq!(accelerator.batches_taken(), 8);
}

#[test]
fn what_is_missing_or_of_another_format_is_named() {
    let place = tempfile::tempdir().unwrap();
    let (mut training, folder) = saved(place.path());
    let manifest = fs::read_to_string(folder.join("state.json")).unwrap();

    fs::remove_file(folder.join("optimizer.bpk")).unwrap();
    let fault = load_error(&mut training, &folder);
    assert!(fault.contains("optimizer.bpk is damaged: it is missing"), "{fault}");

    let other = manifest.replacen("\"format\":1", "\"format\":0", 1);
    let end = other.rfind(",\"crc32c\":").unwrap();
    let sum = crc32c::crc32c(&other.as_bytes()[..end]);
    let other = format!("{},\"crc32c\":\"{sum:08x}\"}}\n", &other[..end]);
    fs::write(folder.join("state.json"), other).unwrap();
    let fault = load_error(&mut training, &folder);
    assert!(fault.contains("its format is 0 and this version reads format 1"), "{fault}");

    fs::remove_file(folder.join("state.json")).unwrap();
    let fault = load_error(&mut training, &folder);
    assert!(fault.contains("has no state.json"), "{fault}");
    let fault = load_error(&mut training, &place.path().join("nowhere"));
    assert!(fault.contains("has no state.json"), "{fault}");
}

#[test]
fn a_damaged_state_is_left_out_for_an_older_one() {
    let place = tempfile::tempdir().unwrap();
    let (mut training, first) = saved(place.path());
    training.train_to(12);
    let second = training.save();
    fs::write(second.join("scheduler.bpk"), "x").unwrap();
    let accelerator = training.accelerator.clone();
    let loaded = accelerator.resume(training.state()).unwrap().unwrap();
    assert_eq!((&loaded.folder, loaded.batches_taken), (&first, 8));
    let text = loaded.to_string();
    assert!(text.contains("checkpoint_0 after 8 batches\n"), "{text}");
    assert!(text.contains("scheduler.bpk is damaged: it has 1 bytes of"), "{text}");
    fs::remove_file(first.join("state.json")).unwrap();
    let fault = accelerator.resume(training.state()).unwrap_err().to_string();
    assert!(fault.contains("checkpoint_1") && fault.contains("scheduler.bpk"), "{fault}");
}

#[test]
fn what_does_not_fit_is_refused() {
    let place = tempfile::tempdir().unwrap();
    let (mut training, folder) = saved(place.path());
    let accelerator = training.accelerator.clone();
    let load = |state: TrainingState<'_>| accelerator.load_state(&folder, state).map(drop);
    let said = |state: TrainingState<'_>| load(state).unwrap_err().to_string();

    training.optimizer = accelerator.prepare_optimizer(optimizer(false));
    let fault = load_error(&mut training, &folder);
    assert!(fault.contains("of its 8 tensors this optimizer knows 0"), "{fault}");

    let mut adam = accelerator.prepare_optimizer(AdamConfig::new().init());
    let fault = said(TrainingState::new().optimizer(&mut adam));
    assert!(fault.contains("load the optimizer together with its models"), "{fault}");

    let mut constant = accelerator.prepare_scheduler(0.1);
    let fault = said(TrainingState::new().scheduler(&mut constant));
    assert!(fault.contains("the kind of scheduler"), "{fault}");

    let mut other = LinearConfig::new(2, 3).init(&accelerator.device());
    let fault = said(TrainingState::new().model(&mut other));
    assert!(fault.contains("missing from the checkpoint") && fault.contains("bias"), "{fault}");

    let mut wide = training.model.clone();
    wide.output = LinearConfig::new(16, 5).init(&accelerator.device());
    let fault = said(TrainingState::new().model(&mut wide));
    assert!(fault.contains("[16, 3] in the checkpoint, [16, 5] in the module"), "{fault}");

    let mut twice = training.model.clone();
    let fault = said(TrainingState::new().model(&mut training.model).model(&mut twice));
    assert!(fault.contains("it has 1 of the 2 models to load"), "{fault}");

    let object = Arc::new(Mutex::new(String::new()));
    accelerator.register_for_checkpointing("text", &object).unwrap();
    assert!(accelerator.register_for_checkpointing("text", &object).is_err());
    let fault = said(TrainingState::new());
    assert!(fault.contains("no object \"text\" was registered"), "{fault}");

    let other = builder(place.path()).build().unwrap();
    let best = Arc::new(Mutex::new(String::new()));
    other.register_for_checkpointing("best", &best).unwrap();
    let fault = other.load_state(&folder, TrainingState::new()).unwrap_err().to_string();
    assert!(fault.contains("object_0.msgpack") && fault.contains("\"best\""), "{fault}");

    let fault = accelerator.save_state_to(&folder, TrainingState::new()).unwrap_err().to_string();
    assert!(fault.contains("is a folder that is not empty"), "{fault}");
}

#[test]
fn states_are_numbered_limited_and_found() {
    let place = tempfile::tempdir().unwrap();
    let accelerator = builder(place.path()).total_limit(2).build().unwrap();
    let counter = Arc::new(Mutex::new((0_u32, f64::NEG_INFINITY)));
    accelerator.register_for_checkpointing("counter", &counter).unwrap();
    assert_eq!(accelerator.resume(TrainingState::new()).unwrap(), None);
    for count in 0..4 {
        counter.lock().unwrap().0 = count;
        let folder = accelerator.save_state(TrainingState::new()).unwrap();
        assert!(folder.ends_with(format!("checkpoint_{count}")));
    }
    *counter.lock().unwrap() = (9, 0.0);
    let loaded = accelerator.resume(TrainingState::new()).unwrap().unwrap();
    assert!(loaded.folder.ends_with("checkpoint_3"));
    assert_eq!(*counter.lock().unwrap(), (3, f64::NEG_INFINITY));
    assert_eq!(place.path().read_dir().unwrap().count(), 2);
    accelerator.load_state(place.path().join("checkpoint_2"), TrainingState::new()).unwrap();
    assert_eq!(counter.lock().unwrap().0, 2);

    let homeless = Accelerator::builder().build().unwrap();
    let fault = homeless.save_state(TrainingState::new()).unwrap_err().to_string();
    assert!(fault.contains("OUTSIZE_STATE_DIR"), "{fault}");
}

#[test]
fn another_number_of_ranks_keeps_weights_and_says_the_rest() {
    let place = tempfile::tempdir().unwrap();
    let saved = builder(place.path()).threads(2, |accelerator| {
        let mut training = Training::new(accelerator, true, 0);
        training.train_to(5);
        training.save();
        training.outcome()
    });
    let saved = saved.unwrap().remove(0);
    let mut training = Training::new(builder(place.path()).build().unwrap(), true, 9);
    let accelerator = training.accelerator.clone();
    let loaded = accelerator.resume(training.state()).unwrap().unwrap();
    assert_eq!(training.outcome().0, saved.0);
    // Five batches of eight items are ten of four; the step had two of its micro-batches.
    assert_eq!(training.loader.state().batch, 10);
    let text = loaded.to_string();
    assert!(text.contains("saved by 2 ranks and is loaded by 1"), "{text}");
    assert!(text.contains("its 2 micro-batches are left out"), "{text}");
    assert!(text.contains("item 40 of its epoch, of 40 that were taken"), "{text}");
    training.train_to(8);

    // Gradients of scaled losses are of no use without the scale.
    let fp16 = builder(place.path()).mixed_precision(MixedPrecision::Fp16).build().unwrap();
    let text = fp16.load_state(training.save(), training.state()).unwrap().to_string();
    assert!(text.contains("the scale of the loss is not taken over"), "{text}");
    assert!(text.contains("its 2 micro-batches are left out"), "{text}");

    // One rank that fails to load stops all, and none has changed.
    let results = builder(place.path()).threads(2, |accelerator| {
        let mut training = Training::new(accelerator.clone(), accelerator.process_index() == 0, 9);
        let before = training.model.weights();
        let fault = accelerator.resume(training.state()).unwrap_err().to_string();
        assert!(before == training.model.weights());
        fault
    });
    let results = results.unwrap();
    assert!(results[0].starts_with("rank 1 failed: ") && results[1].contains("optimizer.bpk"));
}
