//! A process that is killed at any moment leaves its newest complete state.
#![cfg(unix)]

mod common;

use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use burn::module::{Module, ModuleMapper, Param};
use burn::optim::{AdamConfig, GradientsParams};
use burn::tensor::Tensor;
use common::{Classifier, noise};
use outsize_train::Accelerator;
use outsize_train::state::TrainingState;

const FOLDER: &str = "OUTSIZE_TEST_KILLED_RUN";
const KILLS: usize = 50;

/// Sets all weights to one number.
struct Fill(f32);

impl ModuleMapper for Fill {
    fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
        param.map(|tensor| (tensor.zeros_like() + self.0).detach().require_grad())
    }
}

/// The child: every weight of the state is the number of the step, as is the registered counter.
#[test]
fn child() {
    let Ok(folder) = std::env::var(FOLDER) else { return };
    let (accelerator, mut model, counter) = start(Path::new(&folder));
    let mut optimizer = accelerator.prepare_optimizer(AdamConfig::new().init());
    let state = TrainingState::new().model(&mut model).optimizer(&mut optimizer);
    accelerator.resume(state).unwrap();
    loop {
        let step = *counter.lock().unwrap() + 1;
        let input = Tensor::<2>::ones([1, common::FEATURES], &accelerator.device());
        let gradients = GradientsParams::from_grads(model.forward(input).sum().backward(), &model);
        model = optimizer.inner_mut().step(0.1, model, gradients);
        model = model.map(&mut Fill(step as f32));
        *counter.lock().unwrap() = step;
        let state = TrainingState::new().model(&mut model).optimizer(&mut optimizer);
        accelerator.save_state(state).unwrap();
    }
}

fn start(folder: &Path) -> (Accelerator, Classifier, Arc<Mutex<u64>>) {
    let accelerator = Accelerator::builder().state_dir(folder).total_limit(2).build().unwrap();
    let counter = Arc::new(Mutex::new(0));
    accelerator.register_for_checkpointing("counter", &counter).unwrap();
    let model = Classifier::new(0, &accelerator.device());
    (accelerator, model, counter)
}

/// The names in a folder.
fn names(folder: &Path) -> Vec<String> {
    let entries = folder.read_dir().unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Starts the child, and kills it some time after it has begun to save. Gives the time between its
/// first and its second save if it came so far.
fn kill_after(folder: &Path, wait: Duration) -> Option<Duration> {
    let mut child = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "child"])
        .env(FOLDER, folder)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let is_saving = |name: &String| name.contains(".partial-");
    let before = names(folder);
    let new = || names(folder).into_iter().find(|name| is_saving(name) && !before.contains(name));
    let started = Instant::now();
    while new().is_none() && started.elapsed() < Duration::from_secs(5) {
        std::thread::sleep(Duration::from_millis(1));
    }
    let (first, begun, mut save) = (new(), Instant::now(), None);
    while begun.elapsed() < wait {
        std::thread::sleep(Duration::from_micros(200));
        if save.is_none() && new().is_some_and(|name| Some(name) != first) {
            save = Some(begun.elapsed());
        }
    }
    assert!(child.try_wait().unwrap().is_none(), "the child ended by itself");
    child.kill().unwrap();
    child.wait().unwrap();
    save
}

#[test]
fn fifty_kills_leave_a_consistent_state() {
    let place = tempfile::tempdir().unwrap();
    // How long a save takes here, so that most kills come after the first and amid another.
    let measured = || kill_after(place.path(), Duration::from_secs(2));
    let save = measured().expect("a second save within two seconds");
    let (mut newest, mut went_on, mut interrupted) = (0, 0, 0);
    for kill in 0..KILLS {
        let wait = noise(kill as u64, 1, 1.0)[0].abs();
        kill_after(place.path(), (10 * save).mul_f32(wait));
        let names = names(place.path());
        let is_hidden = |name: &str| name.starts_with('.');
        interrupted += usize::from(names.iter().any(|name| is_hidden(name)));
        // What is there: two states, and at most one more that came and two that were being written
        // and removed.
        assert!(names.len() <= 5, "{names:?}");

        let (accelerator, mut model, counter) = start(place.path());
        let mut optimizer = accelerator.prepare_optimizer(AdamConfig::new().init());
        let state = TrainingState::new().model(&mut model).optimizer(&mut optimizer);
        let Some(loaded) = accelerator.resume(state).unwrap() else { continue };
        assert_eq!(loaded.notes, [""; 0], "the newest state is complete");
        let step = *counter.lock().unwrap();
        assert!(step >= newest, "a state was lost: {step} after {newest}");
        went_on += usize::from(step > newest);
        newest = step;
        assert!(model.weights().iter().all(|weight| *weight == step as f32));
        // Adam has counted as many steps, for each of the four parameters.
        assert_eq!(optimizer.inner().to_record().len(), 8);
    }
    println!(
        "{newest} states, {went_on} of {KILLS} kills with progress, {interrupted} amid a save"
    );
    assert!(went_on > KILLS / 2 && interrupted > 0, "the kills hit nothing");
}
