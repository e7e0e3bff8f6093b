//! The results of a calibration as they come.

use std::time::Instant;

use outsize_machine::{FirstTouchProbe, FirstTouchRates, Measurement, MemoryProbe};
use outsize_stream::MEMORY_THREADS;

use crate::Error;
use crate::options::Stop;
use crate::samples::Samples;

pub(crate) const FIRST_TOUCH: &str = "memory, first touch";

/// Bytes touched at a time.
const STEP: u64 = 64 << 20;

/// How long memory is touched for the first time at most, in seconds.
const LONGEST: f64 = 5.0;

/// What was measured so far.
#[derive(Debug, Default)]
pub(crate) struct Measured {
    pub list: Vec<Measurement>,
}

impl Measured {
    /// Adds the median of some samples.
    pub fn add(&mut self, name: &str, unit: &str, samples: &Samples, how: String) {
        self.add_value(name, unit, samples.median(), samples, how);
    }

    pub fn add_value(
        &mut self,
        name: &str,
        unit: &str,
        value: f64,
        samples: &Samples,
        how: String,
    ) {
        self.list.push(Measurement {
            name: name.to_string(),
            value,
            unit: unit.to_string(),
            spread: samples.spread(),
            repetitions: samples.count(),
            how,
        });
    }

    /// The value that was measured under a name.
    pub fn of(&self, name: &'static str) -> Result<f64, Error> {
        self.list
            .iter()
            .find(|measurement| measurement.name == name)
            .map(|measurement| measurement.value)
            .filter(|value| value.is_finite() && *value > 0.0)
            .ok_or(Error::Nothing { what: name })
    }
}

/// Touches up to `bytes` for the first time: the rates of all, and of each step.
pub(crate) fn first_touch(bytes: u64, stop: &Stop) -> Result<(FirstTouchRates, Samples), Error> {
    let step = bytes.min(STEP);
    let steps = (bytes / STEP).max(1);
    let mut probe = FirstTouchProbe::new(step as usize);
    let mut touched = Samples::default();
    let began = Instant::now();
    while u64::from(touched.count()) < steps && began.elapsed().as_secs_f64() < LONGEST {
        stop.check()?;
        let rate = probe.touch(MEMORY_THREADS);
        touched.push(rate.map_err(|source| no_memory(bytes, source))?);
    }
    let rates = probe.rates().ok_or(Error::Nothing { what: FIRST_TOUCH })?;
    Ok((rates, touched))
}

/// Memory to read and copy by `threads` threads.
pub(crate) fn memory_probe(bytes: u64, threads: usize) -> Result<MemoryProbe, Error> {
    MemoryProbe::new(bytes as usize, threads).map_err(|source| no_memory(bytes, source))
}

fn no_memory(bytes: u64, source: std::io::Error) -> Error {
    outsize_machine::Error::NoMemory { bytes, source }.into()
}
