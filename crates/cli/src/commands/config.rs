//! `outsize config`: questions, and the file that keeps the answers.

use super::launch::{config_path, layers, resolve};
use crate::args::{ConfigAction, ConfigArgs};
use crate::error::Failure;
use crate::interrupt;
use crate::views::output::{print, print_json, refuse_to_replace, say};
use crate::views::style::style;
use crate::views::table::Table;
use dialoguer::{Confirm, Input, Select};
use outsize::launch::{Key, Layers, SettingKind, Settings, read_config, write_config};
use outsize::machine::{Machine, Sourced};
use std::collections::BTreeMap;
use std::path::Path;

/// Settings by the name that they have in the file.
pub type SettingsByName = BTreeMap<&'static str, Sourced<String>>;

/// Runs the command.
pub fn config(args: &ConfigArgs) -> Result<(), Failure> {
    let path = config_path(args.config_file.as_deref())?;
    match &args.action {
        None => ask(&path),
        Some(ConfigAction::Default { force }) => {
            refuse_to_replace(&path, *force)?;
            write(&path, &detected(&Machine::detect())?)
        }
        Some(ConfigAction::Update { settings }) => update(&path, settings),
        Some(ConfigAction::Show { json }) => {
            let held = held(args.config_file.as_deref(), &Machine::detect())?;
            match json {
                true => print_json(&held),
                false => {
                    let mut table = Table::default();
                    rows(&mut table, &held);
                    print(&table.text(style().width))
                }
            }
        }
    }
}

/// What holds here and now on `machine`.
pub fn held(config_file: Option<&Path>, machine: &Machine) -> Result<SettingsByName, Failure> {
    let (settings, _) = resolve(&layers(config_file)?, machine)?;
    let found = Key::ALL.into_iter();
    Ok(found.filter_map(|key| Some((key.name(), settings.get(key)?.clone()))).collect())
}

/// A line for each setting.
pub fn rows(table: &mut Table, held: &SettingsByName) {
    for key in Key::ALL {
        match held.get(key.name()) {
            Some(found) => table.entry(key.name(), &found.value, &found.source),
            None => table.entry(key.name(), "not set", ""),
        }
    }
}

/// What a file says without any wishes.
fn detected(machine: &Machine) -> Result<BTreeMap<Key, String>, Failure> {
    let settings = Settings::resolve(&Layers::default(), machine, None)?;
    let value = |key: Key| Some((key, settings.get(key)?.value.clone()));
    Ok(Key::ALL.into_iter().filter_map(value).collect())
}

fn write(path: &Path, values: &BTreeMap<Key, String>) -> Result<(), Failure> {
    write_config(path, values)?;
    say(format!("wrote {}", path.display()));
    Ok(())
}

fn update(path: &Path, settings: &[String]) -> Result<(), Failure> {
    let mut values = read_config(path)?;
    for setting in settings {
        let wrong = |reason: String| Failure::usage(format!("{setting}: {reason}"));
        let (name, value) = setting
            .split_once('=')
            .ok_or_else(|| wrong("it has to be as num_processes=2".to_string()))?;
        let key = Key::ALL.into_iter().find(|key| key.name() == name);
        let key = key.ok_or_else(|| {
            wrong(format!("the settings are {}", Key::ALL.map(Key::name).join(", ")))
        })?;
        match value {
            "" => values.remove(&key),
            value => values.insert(key, key.kind().check(value).map_err(wrong)?),
        };
    }
    write(path, &values)
}

/// Asks for each setting, with what holds as the answer that a return gives; writes at the end
/// alone.
fn ask(path: &Path) -> Result<(), Failure> {
    if !console::user_attended() || !console::user_attended_stderr() {
        return Err(Failure::usage(
            "questions need a terminal; `outsize config default` writes a file without them, and \
             `outsize config update NAME=VALUE` changes it",
        ));
    }
    let machine = Machine::detect();
    let mut defaults = detected(&machine)?;
    if path.exists() {
        defaults.extend(read_config(path)?);
    }
    let gpus = !machine.gpus.found.is_empty();
    let mut answers = BTreeMap::new();
    for key in Key::ALL {
        if matches!(key, Key::Cpu | Key::GpuIds) && !gpus {
            continue;
        }
        let default = defaults.get(&key).map_or("", String::as_str);
        if let Some(answer) = answer(key, default)? {
            answers.insert(key, answer);
        }
    }
    write(path, &answers)
}

/// One question; none for an empty answer.
fn answer(key: Key, default: &str) -> Result<Option<String>, Failure> {
    let asked = match key.kind() {
        SettingKind::OneOf(words) => Select::new()
            .with_prompt(key.describe())
            .items(words)
            .default(words.iter().position(|word| *word == default).unwrap_or(0))
            .interact()
            .map(|at| words[at].to_string()),
        SettingKind::Switch => Confirm::new()
            .with_prompt(key.describe())
            .default(default == "true")
            .interact()
            .map(|on| on.to_string()),
        kind => Input::<String>::new()
            .with_prompt(key.describe())
            .allow_empty(true)
            .with_initial_text(default)
            .validate_with(|text: &String| match text.trim() {
                "" => Ok(()),
                text => kind.check(text).map(drop),
            })
            .interact_text(),
    };
    interrupt::check()?;
    let answer = asked.map_err(|error| {
        let _ = console::Term::stderr().show_cursor();
        match error {
            dialoguer::Error::IO(cause) if cause.kind() == std::io::ErrorKind::Interrupted => {
                Failure::Interrupted
            }
            error => Failure::Failed(format!("cannot ask: {error}")),
        }
    })?;
    match answer.trim() {
        "" => Ok(None),
        text => key.kind().check(text).map(Some).map_err(Failure::Failed),
    }
}
