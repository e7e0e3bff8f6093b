//! What transformers calls the tensors of a GGUF file.

mod table;

use self::table::{
    CORRECTION_OF_STATICS, EXPERTS, KEYS_OF_HEADS, OF_BLOCK, RATES_OF_KIMI, SHARED_GATE, STACKS,
    VALUES_OF_HEADS, WHOLE,
};
use crate::header::HeaderEntry;

/// The most tensors that those of a file are cut into. The largest models have some 50,000.
const MOST_EXPERTS: usize = 1 << 20;

/// What is read into the configuration, and is no weight.
pub(super) const ROPE_FREQUENCIES: &str = "rope_freqs.weight";
/// The same, for texts up to the context first trained for and for longer ones.
pub(super) const ROPE_FACTORS: [&str; 2] =
    ["rope_factors_short.weight", "rope_factors_long.weight"];

/// The tensors under the names of transformers; those that have none there keep theirs. Those of
/// blocks from `blocks` on are left out.
pub(super) fn renamed(
    architecture: &str,
    blocks: u64,
    tensors: &[HeaderEntry],
) -> Vec<HeaderEntry> {
    // With or without experts.
    let architecture = if architecture == "lfm2moe" { "lfm2" } else { architecture };
    let is_weight = |entry: &&HeaderEntry| {
        entry.name != ROPE_FREQUENCIES
            && !ROPE_FACTORS.contains(&&*entry.name)
            && !is_behind(&entry.name, blocks)
    };
    let mut renamed = Vec::with_capacity(tensors.len());
    for entry in tensors.iter().filter(is_weight) {
        let left = MOST_EXPERTS.saturating_sub(renamed.len());
        match experts(architecture, entry, left) {
            Some(experts) => renamed.extend(experts),
            None => renamed.push(renamed_one(architecture, entry).unwrap_or_else(|| entry.clone())),
        }
    }
    renamed
}

fn renamed_one(architecture: &str, entry: &HeaderEntry) -> Option<HeaderEntry> {
    let of_name = |name: String, shape: Vec<usize>| HeaderEntry { name, shape, ..entry.clone() };
    let (module, end) = parted(&entry.name);
    if let Some(theirs) = find(architecture, &entry.name, WHOLE) {
        return Some(of_name(theirs.to_owned(), entry.shape.clone()));
    }
    if let Some(theirs) = find(architecture, module, WHOLE) {
        return Some(of_name(format!("{theirs}.{end}"), entry.shape.clone()));
    }
    if let Some(name) = older_expert(architecture, &entry.name) {
        return Some(of_name(name, entry.shape.clone()));
    }
    let layers = layers(architecture);
    let (name, theirs) = match of_block(architecture, &format!("{module}.{end}"), OF_BLOCK) {
        Some((number, theirs)) => (format!("{layers}.{number}.{theirs}"), theirs),
        None => {
            let (number, theirs) = of_block(architecture, module, OF_BLOCK)?;
            let end = if end.is_empty() { "weight" } else { end };
            (format!("{layers}.{number}.{theirs}.{end}"), theirs)
        }
    };
    Some(of_name(name, shape(theirs, &entry.shape)?))
}

/// The name of a module and what ends that of its tensor: nothing for some.
pub(super) fn parted(name: &str) -> (&str, &str) {
    match name.rsplit_once('.') {
        Some((module, end @ ("weight" | "bias" | "scale"))) => (module, end),
        _ => (name, ""),
    }
}

/// The shape in transformers.
fn shape(theirs: &str, ours: &[usize]) -> Option<Vec<usize>> {
    Some(match *ours {
        [width] if [SHARED_GATE, CORRECTION_OF_STATICS].contains(&theirs) => vec![1, width],
        // Rows that are each a channel's.
        [channels, taps] if theirs.ends_with(".conv1d") || theirs == "conv.conv" => {
            vec![channels, 1, taps]
        }
        [heads, rows, columns] if [KEYS_OF_HEADS, VALUES_OF_HEADS].contains(&theirs) => {
            vec![heads.checked_mul(rows)?, columns]
        }
        // Of a head each.
        [heads, 1] if theirs == RATES_OF_KIMI => vec![1, 1, heads, 1],
        [heads, 1] if theirs.ends_with(".A_log") || theirs.ends_with(".D") => vec![heads],
        [1, channels, 1, taps] if theirs.contains("_conv1d") => vec![channels, 1, taps],
        [groups, width] if theirs.ends_with(".norm") => vec![groups.checked_mul(width)?],
        _ => ours.to_vec(),
    })
}

/// Whether a name is one of several with spaces between them.
pub(super) fn lists(names: &str, name: &str) -> bool {
    names.split(' ').any(|one| one == name)
}

/// What a row says of a name.
pub(super) fn find<T: Copy>(architecture: &str, name: &str, rows: &[(&str, &str, T)]) -> Option<T> {
    let is_it = |(of, ours, _): &&(&str, &str, T)| {
        *ours == name && (of.is_empty() || lists(of, architecture))
    };
    rows.iter().find(is_it).map(|(.., theirs)| *theirs)
}

/// What transformers calls the list of layers.
fn layers(architecture: &str) -> &'static str {
    match architecture {
        "mamba" | "mamba2" => "backbone.layers",
        // As it is published.
        "deepseek4" => "layers",
        _ => "model.layers",
    }
}

/// Whether a tensor is of a block from that one on.
fn is_behind(name: &str, layers: u64) -> bool {
    let number = name.strip_prefix("blk.").and_then(|rest| rest.split_once('.')?.0.parse().ok());
    number.is_some_and(|number: u64| number >= layers)
}

/// The number of a block, and what a module of it is in transformers.
fn of_block<T: Copy>(
    architecture: &str,
    module: &str,
    names: &[(&str, &str, T)],
) -> Option<(usize, T)> {
    let (number, module) = module.strip_prefix("blk.")?.split_once('.')?;
    Some((number.parse().ok()?, find(architecture, module, names)?))
}

/// The name of an expert's own tensor, as older files have it: `blk.0.ffn_gate.3.weight`.
fn older_expert(architecture: &str, name: &str) -> Option<String> {
    let (module, end) = name.rsplit_once('.')?;
    let (module, expert) = module.rsplit_once('.')?;
    let expert: usize = expert.parse().ok()?;
    let (number, [before, behind]) = of_block(architecture, &format!("{module}_exps"), EXPERTS)?;
    Some(format!("{}.{number}.{before}.{expert}.{behind}.{end}", layers(architecture)))
}

/// The matrices `[rows, columns]` that a tensor `[experts, rows, columns]` is made of, one after
/// the other, or the biases of one of those, if it is one and they are not more than so many. Those
/// of gate and up may be one, the former above the latter.
fn experts(architecture: &str, entry: &HeaderEntry, most: usize) -> Option<Vec<HeaderEntry>> {
    let (module, end) = parted(&entry.name);
    // Before and behind the number of each.
    let around = |module: &str| match find(architecture, module, STACKS) {
        Some(theirs) => Some((theirs.to_owned(), String::new())),
        None => {
            let (number, [before, behind]) = of_block(architecture, module, EXPERTS)?;
            let before = format!("{}.{number}.{before}", layers(architecture));
            Some((before, format!(".{behind}")))
        }
    };
    let parts = match (around(module), module.strip_suffix("gate_up_exps")) {
        (Some(one), _) => vec![one],
        (None, Some(block)) => {
            vec![around(&format!("{block}gate_exps"))?, around(&format!("{block}up_exps"))?]
        }
        (None, None) => return None,
    };
    let (&experts, shape) = entry.shape.split_first()?;
    if shape.len() != if end == "bias" { 1 } else { 2 } || !shape[0].is_multiple_of(parts.len()) {
        return None;
    }
    let mut shape = shape.to_vec();
    shape[0] /= parts.len();
    let count = experts.checked_mul(parts.len()).filter(|count| (1..=most).contains(count))?;
    let len = (entry.end - entry.start) / count as u64;
    if len * count as u64 != entry.end - entry.start {
        return None;
    }
    let one = |at: usize| {
        let (before, behind) = &parts[at % parts.len()];
        HeaderEntry {
            name: format!("{before}.{}{behind}.{end}", at / parts.len()),
            dtype: entry.dtype,
            shape: shape.clone(),
            start: entry.start + at as u64 * len,
            end: entry.start + (at as u64 + 1) * len,
        }
    };
    Some((0..count).map(one).collect())
}
