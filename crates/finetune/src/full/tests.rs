//! What is left of a training in the middle of a step, and states that are not what they should be.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use outsize_checkpoint::{CONFIG_LIMIT, Checkpoint, read_optional_text};
use outsize_generate::byte_level_tokenizer;
use outsize_models::ModelConfig;
use outsize_train::Accelerator;
use outsize_train::data::LoaderState;
use outsize_train::offload::OffloadedStates;
use serde_json::{Value, json};
use tempfile::TempDir;

use super::opened::{OpenedFullFinetune, layout};
use super::tuner::FullFinetuner;
use crate::train::batches;
use crate::{Example, Examples, FinetuneError, FinetuneOptions, finetune};

/// A tiny model in a folder, with room for states beside it.
struct Place(TempDir);

impl Place {
    fn new(name: &str) -> Self {
        let place = Self(tempfile::tempdir().unwrap());
        let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests/training");
        fs::create_dir(place.at("model")).unwrap();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(from.join(name).join(file), place.at("model").join(file)).unwrap();
        }
        let tokenizer = byte_level_tokenizer(400).unwrap();
        fs::write(place.at("model/tokenizer.json"), tokenizer).unwrap();
        place
    }

    fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// The model, with states in many files.
    fn opened(&self, states: &str, stop: &Arc<AtomicBool>) -> OpenedFullFinetune {
        let builder = finetune(self.at("model")).context(20).batch_size(1).stop(stop.clone());
        let mut opened = builder.full(self.at(states)).open().unwrap();
        opened.layout = opened.layout.divided(20_000);
        assert!(opened.layout.files() > 5);
        opened
    }

    fn tuner(&self, states: &str) -> Result<FullFinetuner, FinetuneError> {
        self.opened(states, &Arc::default()).build()
    }

    /// What was learned, as a checkpoint's tensors.
    fn learned(&self, tuner: &FullFinetuner, name: &str) -> Vec<Vec<u8>> {
        tuner.save(self.at(name)).unwrap();
        let checkpoint = Checkpoint::open(self.at(name)).unwrap();
        checkpoint.tensors().iter().map(|it| checkpoint.read(it).unwrap()).collect()
    }
}

fn examples() -> Examples {
    let example = |seed: u32| Example {
        tokens: (0..12 + seed).map(|at| (at * 7 + seed * 5) % 60).collect(),
        is_target: (0..12 + seed).map(|at| at > 0).collect(),
    };
    Examples { examples: Arc::new((0..7).map(example).collect()), ..Examples::default() }
}

fn options() -> FinetuneOptions {
    FinetuneOptions { accumulate: 3, epochs: 2, learning_rate: 1e-3, ..FinetuneOptions::default() }
}

/// A copy of a folder of states.
fn copied(from: &Path, to: &Path) {
    fs::create_dir_all(to).unwrap();
    for entry in from.read_dir().unwrap().map(Result::unwrap) {
        let to = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copied(&entry.path(), &to),
            false => drop(fs::copy(entry.path(), to).unwrap()),
        }
    }
}

#[test]
fn a_step_that_was_cut_off_anywhere_goes_on_to_the_same_bits() {
    let place = Place::new("llama-tied");
    let (examples, options) = (examples(), options());
    let mut whole = place.tuner("whole").unwrap();
    let mut steps = Vec::new();
    let done = whole.train(&examples, &options, |step| steps.push((step.loss, step.grad_norm)));
    assert_eq!((done.unwrap().steps, steps.len()), (6, 6));
    let want = place.learned(&whole, "of-whole");

    // Stopped after each of the batches of the first step.
    let accelerator = Accelerator::builder().build().unwrap();
    let loader = batches(&examples, 1, options.shuffle);
    let loader = accelerator.prepare_data_loader(loader).unwrap();
    for batch in 1..=3 {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tuner = place.opened("parts", &stop).build().unwrap();
        stop.store(true, Ordering::Relaxed);
        tuner.states.begin(tuner.describes(&examples, &options)).unwrap();
        let first = LoaderState::default();
        assert!(tuner.add_gradients(&loader, first, 3).unwrap().is_none());
        assert_eq!(progress(&place.at("parts"))["batch"], batch);
    }
    let mut tuner = place.tuner("parts").unwrap();
    let sums = tuner.add_gradients(&loader, LoaderState::default(), 3).unwrap().unwrap();
    let adamw = options.offloaded();
    let update = tuner.states.begin_update(&adamw, options.rate(0, 6), sums).unwrap();
    // Killed after each of the files of it.
    let files = place.opened("none", &Arc::default()).layout.files();
    for group in 0..=files {
        let states = format!("killed-{group}");
        copied(&place.at("parts"), &place.at(&states));
        let mut killed = place.tuner(&states).unwrap();
        let mut same = Vec::new();
        killed.train(&examples, &options, |step| same.push((step.loss, step.grad_norm))).unwrap();
        assert_eq!(same, steps, "{group}");
        assert!(place.learned(&killed, &format!("of-{states}")) == want, "{group}");
        if group < files {
            tuner.states.update_group(&adamw, update, group).unwrap();
        }
    }
}

/// What a folder of states says of how far its training has come.
fn progress(folder: &Path) -> Value {
    serde_json::from_slice(&fs::read(folder.join("progress.json")).unwrap()).unwrap()
}

fn with_progress(folder: &Path, field: &str, value: Value) {
    let mut progress = progress(folder);
    progress[field] = value;
    fs::write(folder.join("progress.json"), progress.to_string()).unwrap();
}

#[test]
fn states_that_do_not_fit_are_refused() {
    let place = Place::new("llama");
    let (examples, options) = (examples(), options());
    let mut tuner = place.tuner("states").unwrap();
    tuner
        .train(&examples, &FinetuneOptions { max_steps: Some(1), ..options.clone() }, |_| {})
        .unwrap();
    drop(tuner);
    let states = place.at("states");
    let refused = |wanted: &str, harm: &dyn Fn(&Path)| {
        let broken = place.at("broken");
        copied(&states, &broken);
        harm(&broken);
        let tuner = place.tuner("broken");
        let trained = tuner.and_then(|mut tuner| {
            tuner.train(
                &examples,
                &FinetuneOptions { max_steps: Some(1), ..options.clone() },
                |_| {},
            )
        });
        let said = trained.unwrap_err().to_string();
        assert!(said.contains(wanted), "{said}");
        fs::remove_dir_all(broken).unwrap();
    };
    let group = |folder: &Path| folder.join("weights/group-00001.safetensors");
    refused("group-00001.safetensors", &|folder| {
        let file = File::options().write(true).open(group(folder)).unwrap();
        file.set_len(file.metadata().unwrap().len() - 1).unwrap();
    });
    refused("group-00001.safetensors", &|folder| fs::remove_file(group(folder)).unwrap());
    refused("has made 1 steps of 2", &|folder| with_progress(folder, "step", json!(2)));
    refused("gradients are not all there", &|folder| {
        with_progress(folder, "batch", json!(1));
        fs::write(folder.join("gradients"), "x").unwrap();
    });
    refused("with other settings or examples", &|folder| {
        with_progress(folder, "training", json!("another"));
    });
    // Of a model with other shapes.
    let other = Place::new("phi");
    copied(&states, &other.at("states"));
    let said = other.tuner("states").unwrap_err().to_string();
    assert!(said.contains("cannot be used to go on"), "{said}");
}

#[test]
fn files_of_gguf_are_refused_though_they_are_floats() {
    let models = Path::new(env!("CARGO_MANIFEST_DIR")).join("../models/tests");
    let path = models.join("fixtures/gguf-llama-f16/model.gguf");
    let text = read_optional_text(&path.join("config.json"), CONFIG_LIMIT).unwrap().unwrap();
    let config = ModelConfig::from_json(&text).unwrap();
    let error = layout(&config, &Checkpoint::open(path).unwrap()).unwrap_err();
    assert!(error.to_string().contains("GGUF"), "{error}");
}

#[test]
fn a_disk_that_is_too_small_is_refused_before_anything_is_written() {
    let place = Place::new("llama");
    let opened = place.opened("states", &Arc::default());
    let error = OffloadedStates::open(
        &place.at("states"),
        &Checkpoint::open(place.at("model")).unwrap(),
        opened.layout,
        1 << 60,
        || true,
    );
    let said = error.unwrap_err().to_string();
    assert!(said.contains("bytes of disk") && said.contains("are free there"), "{said}");
    assert!(!place.at("states").exists());
}
