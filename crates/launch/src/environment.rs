//! What a program is told by its environment.

use std::collections::BTreeMap;

use crate::key::Key;
use crate::settings::Settings;

/// How often the job was started again: 0 at first.
pub const RESTART_COUNT: &str = "OUTSIZE_RESTART_COUNT";

/// The job that a process belongs to, by which what is left of it is found.
pub(crate) const JOB: &str = "OUTSIZE_JOB";

/// The variables that a program is started with beside those of this process. `ranks_in_process`
/// are threads that are ranks each.
pub fn program_environment(
    settings: &Settings,
    ranks_in_process: usize,
    restarts: usize,
) -> BTreeMap<String, String> {
    let mut variables = BTreeMap::new();
    for key in Key::ALL {
        // Settings of the start alone are none of the program's business.
        let of_the_program =
            !matches!(key, Key::Hostfile | Key::Engine | Key::MaxRestarts | Key::LogDir);
        if let Some(found) = settings.get(key).filter(|_| of_the_program) {
            variables.insert(key.variable(), found.value.clone());
        }
    }
    variables.insert(Key::NumProcesses.variable(), ranks_in_process.to_string());
    variables.insert(RESTART_COUNT.to_string(), restarts.to_string());
    // Threads of a process: of all ranks in it.
    let threads = settings.count(Key::ThreadsPerProcess) * ranks_in_process;
    variables.insert("RAYON_NUM_THREADS".to_string(), threads.to_string());
    let none = settings.is_on(Key::Cpu).then(String::new);
    if let Some(gpus) = none.or_else(|| Some(settings.get(Key::GpuIds)?.value.clone())) {
        variables.insert("CUDA_VISIBLE_DEVICES".to_string(), gpus);
    }
    variables
}
