//! What holds: flag before environment before file before the machine.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use outsize_machine::{Machine, Sourced};

use crate::allocation::Allocation;
use crate::error::Error;
use crate::hostfile::slots;
use crate::key::Key;

/// Where values come from, the first the strongest.
#[derive(Debug, Default)]
pub struct Layers {
    /// Flags.
    pub flags: BTreeMap<Key, String>,
    /// Variables of the environment, by name.
    pub environment: BTreeMap<String, String>,
    /// A configuration file and what it says.
    pub file: Option<(PathBuf, BTreeMap<Key, String>)>,
}

impl Layers {
    /// The environment of this process; what is not Unicode is passed over.
    pub fn of_environment(variables: impl Iterator<Item = (OsString, OsString)>) -> Self {
        let text = |(name, value): (OsString, OsString)| {
            Some((name.into_string().ok()?, value.into_string().ok()?))
        };
        Self { environment: variables.filter_map(text).collect(), ..Self::default() }
    }

    fn value(&self, key: Key) -> Option<Sourced<String>> {
        let flag = self.flags.get(&key).map(|value| Sourced::new(value, key.flag()));
        let variable = key.variable();
        let set = self.environment.get(&variable).filter(|value| !value.is_empty());
        let file = self.file.as_ref().and_then(|(path, values)| {
            Some(Sourced::new(values.get(&key)?, path.display().to_string()))
        });
        let found = flag.or(set.map(|value| Sourced::new(value, variable))).or(file);
        found.map(|found| Sourced::new(found.value.clone(), found.source))
    }
}

/// Settings, each with where it came from. What has no value is not set.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    values: BTreeMap<Key, Sourced<String>>,
}

impl Settings {
    /// The settings that hold on `machine`, in what is there of an allocation.
    ///
    /// # Errors
    /// A value that its key does not take, with where it came from; an unusable hostfile.
    pub fn resolve(
        layers: &Layers,
        machine: &Machine,
        allocation: Option<&Allocation>,
    ) -> Result<Self, Error> {
        let mut values = BTreeMap::new();
        for key in Key::ALL {
            if let Some(given) = layers.value(key) {
                let checked = key.kind().check(&given.value).map_err(|reason| Error::Setting {
                    key: key.name(),
                    value: given.value.clone(),
                    source_of_value: given.source.clone(),
                    reason,
                })?;
                values.insert(key, Sourced::new(checked, given.source));
            }
        }
        let mut settings = Self { values };
        let ranks = match (settings.path(Key::Hostfile), allocation) {
            (Some(hostfile), _) => {
                Sourced::new(slots(hostfile)?, format!("slots in {}", hostfile.display()))
            }
            (None, Some(Allocation { ranks, name, .. })) => Sourced::new(*ranks, name),
            (None, None) => Sourced::new(1, "default"),
        };
        settings.default(Key::NumProcesses, ranks.value, &ranks.source);
        // Of several machines, this one stands for all.
        let threads = usize::try_from(machine.processors.threads.value).unwrap_or(1);
        let here = match settings.path(Key::Hostfile).is_some() || allocation.is_some() {
            true => 1,
            false => settings.count(Key::NumProcesses),
        };
        let source = format!("{threads} threads of this machine, {here} ranks on it");
        settings.default(Key::ThreadsPerProcess, (threads / here).max(1), &source);
        settings.default(Key::Engine, "auto", "default");
        settings.default(Key::MixedPrecision, "no", "default");
        settings.default(Key::GradientAccumulationSteps, 1, "default");
        settings.default(Key::MaxRestarts, 0, "default");
        settings.default(Key::StateDir, "outsize-state", "default");
        settings.default(Key::Cpu, false, "default");
        settings.default(Key::Debug, false, "default");
        Ok(settings)
    }

    fn default(&mut self, key: Key, value: impl ToString, source: &str) {
        self.values.entry(key).or_insert_with(|| Sourced::new(value.to_string(), source));
    }

    /// A setting and where it came from; none if it is not set.
    pub fn get(&self, key: Key) -> Option<&Sourced<String>> {
        self.values.get(&key)
    }

    pub(crate) fn text(&self, key: Key) -> &str {
        self.get(key).map_or("", |found| &found.value)
    }

    /// A number; 0 if it is not set.
    pub fn count(&self, key: Key) -> usize {
        self.text(key).parse().unwrap_or(0)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, key: Key) -> bool {
        self.text(key) == "true"
    }

    /// A path, if it is set.
    pub fn path(&self, key: Key) -> Option<&Path> {
        self.get(key).map(|found| Path::new(&found.value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(flag: Option<&str>, variable: Option<&str>, file: Option<&str>) -> Layers {
        let of = |value: Option<&str>| {
            value.map(|value| (Key::NumProcesses, value.to_string())).into_iter().collect()
        };
        let environment = variable.map(|value| (Key::NumProcesses.variable(), value.to_string()));
        Layers {
            flags: of(flag),
            environment: environment.into_iter().collect(),
            file: Some((PathBuf::from("c.yaml"), of(file))),
        }
    }

    #[test]
    fn a_flag_is_before_a_variable_before_a_file_before_the_machine() {
        let machine = Machine::detect();
        let resolve = |layers: &Layers| Settings::resolve(layers, &machine, None).unwrap();
        for (given, value, source) in [
            (layers(Some("4"), Some("3"), Some("2")), "4", "--num-processes"),
            (layers(None, Some("3"), Some("2")), "3", "OUTSIZE_NUM_PROCESSES"),
            (layers(None, Some(""), Some("2")), "2", "c.yaml"),
            (layers(None, None, None), "1", "default"),
        ] {
            let found = resolve(&given);
            assert_eq!(
                found.get(Key::NumProcesses),
                Some(&Sourced::new(value.to_string(), source))
            );
        }
        let in_slurm = Allocation { ranks: 6, name: "SLURM job 7".to_string() };
        let found =
            Settings::resolve(&layers(None, None, None), &machine, Some(&in_slurm)).unwrap();
        assert_eq!(found.count(Key::NumProcesses), 6);
    }

    #[test]
    fn a_wrong_value_is_refused_with_where_it_came_from() {
        let machine = Machine::detect();
        for (given, source) in [
            (layers(Some("0"), None, None), "--num-processes"),
            (layers(None, Some("two"), None), "OUTSIZE_NUM_PROCESSES"),
            (layers(None, None, Some("-1")), "c.yaml"),
        ] {
            let message = Settings::resolve(&given, &machine, None).unwrap_err().to_string();
            assert!(message.contains(source) && message.contains("at least 1"), "{message}");
        }
    }
}
