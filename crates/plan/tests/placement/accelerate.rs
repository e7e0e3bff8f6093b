//! Accelerate's own maps of random models beside ours, case by case: equal, or different for a
//! reason that is listed here and shown to hold in the case. `cargo test -p outsize-plan --test
//! accelerate -- --nocapture` prints how many there are of each.
//!
//! The cases are made by `scripts/fixtures/device_maps.py`.

use crate::common::{Model, place};
use outsize_plan::{
    Assignment, Budget, Casts, Options, Strategy, TensorKind, Tree, WeightDtype, assign,
};
use serde::Deserialize;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::LazyLock;

/// How our map compares with Accelerate's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Verdict {
    Equal,
    /// Accelerate counts other bytes: an up-cast as none, a truth value as an eighth of a byte,
    /// parts of bytes. With its figures our map would be the same.
    Sizes,
    /// Accelerate fails: sizes that are not whole bytes make its budgets floating point numbers.
    FloatBudgets,
    /// Accelerate fails: it looks for the module of a tied tensor among those that are still to be
    /// placed, and it is placed, or it is the tensor itself.
    LostOwner,
    /// Accelerate takes a tied tensor to be in a module whose path is found in the middle of the
    /// tensor's: it fails as above, or places together what shares nothing.
    Substring,
    /// Accelerate counts a module that holds several tied tensors several times.
    CountedTwice,
    /// Accelerate's map has no entry for buffers of a module that it splits; all else is the same.
    LostBuffers,
    /// The same, and these buffers take the place of other things in ours.
    RoomForBuffers,
    /// Accelerate balances for the first block of a class, or without what is larger than blocks.
    /// With its budgets our map would be the same.
    FirstBlock,
    /// Accelerate cannot balance GPUs of such numbers or budgets: it fails, or with its budgets our
    /// map would be the same.
    GpuNumbers,
    /// Accelerate cannot balance with a bounded disk.
    BoundedDisk,
    /// Accelerate places what takes no bytes on a device with a budget of none.
    NoBudget,
}

#[derive(Deserialize)]
struct Fixture {
    modules: Vec<Module>,
    cases: Vec<Case>,
}

/// Its class, parameters, buffers, and the modules in it by their numbers.
#[derive(Deserialize)]
struct Module(String, Vec<Vec<Value>>, Vec<Vec<Value>>, Vec<(String, usize)>);

#[derive(Deserialize)]
struct Case {
    model: usize,
    #[serde(default)]
    ties: Vec<Vec<String>>,
    #[serde(default)]
    no_split: Vec<String>,
    dtype: Option<WeightDtype>,
    #[serde(default)]
    special: BTreeMap<String, WeightDtype>,
    #[serde(default)]
    offload_buffers: bool,
    #[serde(default)]
    fallback: bool,
    strategy: Strategy,
    budget: BTreeMap<String, u64>,
    /// Not whole where there are less than 8 bits.
    balanced: Option<BTreeMap<String, f64>>,
    /// Not whole where there are less than 8 bits.
    total: f64,
    /// Buffers that Accelerate's map has no entry for, before it is cleaned.
    #[serde(default)]
    lost: Vec<String>,
    outcomes: Vec<Outcome>,
}

#[derive(Deserialize, Debug, PartialEq)]
#[serde(untagged)]
enum Outcome {
    Map(BTreeMap<String, String>),
    Error(String),
}

fn fixture() -> &'static Fixture {
    static FIXTURE: LazyLock<Fixture> = LazyLock::new(|| {
        serde_json::from_str(include_str!("../fixtures/accelerate.json"))
            .expect("the fixture is read")
    });
    &FIXTURE
}

impl Case {
    fn model(&self) -> Model {
        let mut model = Model::default();
        fixture().modules[self.model].add_to(&mut model, "");
        for names in &self.ties {
            model = model.tie(&names.iter().map(String::as_str).collect::<Vec<_>>());
        }
        model
    }

    fn tree(&self) -> Tree {
        let casts = Casts { dtype: self.dtype, special: self.special.clone(), ..Casts::default() };
        self.model().tree().cast(&casts).unwrap()
    }

    fn options(&self, strategy: Strategy) -> Options {
        Options {
            strategy,
            no_split: self.no_split.clone(),
            offload_buffers: self.offload_buffers,
            fallback_allocation: self.fallback,
            ..Options::default()
        }
    }

    fn budget(&self, sizes: &BTreeMap<String, u64>) -> Budget {
        let mut budget = Budget::default();
        for (device, bytes) in sizes {
            budget.set(device.parse().unwrap(), *bytes);
        }
        budget
    }

    fn assign(&self) -> Assignment {
        let budget = self.budget(&self.budget);
        assign(&self.tree(), &budget, &self.options(self.strategy)).unwrap()
    }
}

impl Module {
    fn add_to(&self, model: &mut Model, path: &str) {
        let at = |name: &str| match path {
            "" => name.to_string(),
            _ => format!("{path}.{name}"),
        };
        let Self(class, parameters, buffers, children) = self;
        model.classes.insert(path.to_string(), class.clone());
        for (kind, tensors) in [(TensorKind::Parameter, parameters), (TensorKind::Buffer, buffers)]
        {
            for tensor in tensors {
                let shape: Vec<u64> = tensor.iter().filter_map(Value::as_u64).collect();
                let dtype = tensor.iter().skip(1).find(|part| part.is_string());
                let dtype = dtype.map_or(WeightDtype::F32, |dtype| {
                    serde_json::from_value(dtype.clone()).unwrap()
                });
                let name = at(tensor[0].as_str().unwrap());
                *model = std::mem::take(model).tensor(&name, kind, dtype, &shape);
            }
        }
        for (name, child) in children {
            fixture().modules[*child].add_to(model, &at(name));
        }
    }
}

/// The place of each tensor in a map by prefixes; none for those that it leaves out.
fn expand(map: &BTreeMap<String, String>, tree: &Tree) -> Vec<Option<String>> {
    let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
    tensors
        .map(|tensor| {
            let mut path = tensor.name.as_str();
            loop {
                if let Some(place) = map.get(path) {
                    return Some(place.clone());
                }
                if path.is_empty() {
                    return None;
                }
                path = path.rsplit_once('.').map_or("", |(around, _)| around);
            }
        })
        .collect()
}

fn is_in(path: &str, module: &str) -> bool {
    path == module || path.starts_with(&format!("{module}."))
}

/// Eighths of a byte that Accelerate counts for each value of a tensor.
fn eighths(case: &Case, name: &str, dtype: WeightDtype) -> u64 {
    let bits = |dtype| match dtype {
        WeightDtype::Bool => 1,
        dtype => dtype.bits(),
    };
    match (case.special.get(name), case.dtype) {
        (Some(special), _) => bits(*special),
        (None, Some(cast)) if dtype.is_float() => bits(cast).min(bits(dtype)),
        _ => bits(dtype),
    }
}

/// What our map would be with Accelerate's figures: its sizes, and its budgets for balancing.
fn with_their_figures(case: &Case) -> Vec<Option<String>> {
    let mut tree = case.model().tree();
    let tensors = tree.blocks.iter_mut().flat_map(|block| &mut block.tensors);
    for tensor in tensors {
        let values: u64 = tensor.shape.iter().product();
        tensor.bytes = values * eighths(case, &tensor.name, tensor.dtype);
    }
    let budget = match &case.balanced {
        Some(budgets) => {
            budgets.iter().map(|(device, bytes)| (device.clone(), (8.0 * bytes) as u64)).collect()
        }
        None => case.budget.iter().map(|(device, bytes)| (device.clone(), 8 * bytes)).collect(),
    };
    let options = case.options(Strategy::Sequential);
    places(&assign(&tree, &case.budget(&budget), &options).unwrap())
}

fn places(assignment: &Assignment) -> Vec<Option<String>> {
    let tiers = assignment.tiers.iter();
    tiers.map(|tier| Some(place(*tier))).collect()
}

/// The paths of all modules and tensors.
fn paths(tree: &Tree) -> BTreeSet<&str> {
    let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
    let modules = tree.classes.keys().filter(|path| !path.is_empty());
    tensors.map(|tensor| tensor.name.as_str()).chain(modules.map(String::as_str)).collect()
}

/// Whether Accelerate takes a tied tensor to be in a module that it is not in.
fn is_in_by_substring(case: &Case, paths: &BTreeSet<&str>) -> bool {
    case.ties.iter().flatten().any(|name| {
        paths
            .iter()
            .any(|path| format!("{name}.").contains(&format!("{path}.")) && !is_in(name, path))
    })
}

/// Whether a module holds tensors of two tied groups: then one can be placed for the sake of the
/// one, while the other's have their places or are counted already.
fn has_chained_ties(case: &Case, paths: &BTreeSet<&str>) -> bool {
    let holds = |group: &[String], module: &str| group.iter().any(|name| is_in(name, module));
    case.ties.iter().enumerate().any(|(at, group)| {
        let others = &case.ties[..at];
        others
            .iter()
            .any(|other| paths.iter().any(|module| holds(group, module) && holds(other, module)))
    })
}

/// Whether a tied tensor can be on the list of what is to be placed by itself, so that Accelerate
/// finds no module that holds it: the module around it holds others.
fn has_tied_owner(case: &Case) -> bool {
    let classes = case.model().classes;
    case.ties.iter().flatten().any(|name| {
        let holder = name.rsplit_once('.').map_or("", |(holder, _)| holder);
        holder.is_empty() || classes.keys().any(|path| path != holder && is_in(path, holder))
    })
}

/// Compares the case's outcome with ours; what differs for no reason is an error.
fn verdict(case: &Case) -> Result<Verdict, String> {
    let tree = case.tree();
    let ours = case.assign();
    let own = places(&ours);
    let mut errors = BTreeSet::new();
    let mut maps = Vec::new();
    for outcome in &case.outcomes {
        match outcome {
            Outcome::Map(map) => maps.push(expand(map, &tree)),
            Outcome::Error(class) => {
                errors.insert(class.as_str());
            }
        }
    }
    if maps.contains(&own) {
        // A module that holds nothing has an entry there, and can keep a map from being shorter.
        let empty = |path: &String| {
            let mut tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
            !path.is_empty() && !tensors.any(|tensor| is_in(&tensor.name, path))
        };
        let ours = ours.modules.iter().map(|(path, tier)| (path.to_string(), place(tier)));
        let ours = Outcome::Map(ours.collect());
        return if tree.classes.keys().any(empty) || case.outcomes.contains(&ours) {
            Ok(Verdict::Equal)
        } else {
            Err("the places are the same, the modules are not".to_string())
        };
    }
    let gpus: Vec<usize> = case.budget.keys().filter_map(|key| key.parse().ok()).collect();
    let in_a_row = gpus.iter().enumerate().all(|(at, gpu)| at == *gpu)
        && gpus.iter().all(|gpu| case.budget[&gpu.to_string()] > 0);
    let paths = paths(&tree);
    let narrow =
        case.model().tensors.iter().any(|tensor| eighths(case, &tensor.name, tensor.dtype) < 8);
    let reasons = match errors.first().copied() {
        None => Vec::new(),
        Some("AttributeError") => vec![(narrow && case.fallback, Verdict::FloatBudgets)],
        Some("KeyError") => {
            vec![(case.strategy == Strategy::BalancedLow0 && !in_a_row, Verdict::GpuNumbers)]
        }
        Some("RuntimeError") => vec![(
            case.strategy != Strategy::Sequential && case.budget.contains_key("disk"),
            Verdict::BoundedDisk,
        )],
        Some("IndexError") => vec![
            (is_in_by_substring(case, &paths), Verdict::Substring),
            (has_chained_ties(case, &paths) || has_tied_owner(case), Verdict::LostOwner),
        ],
        Some(_) => Vec::new(),
    };
    if let Some((_, verdict)) = reasons.into_iter().find(|(holds, _)| *holds) {
        return Ok(verdict);
    }
    if let Some(error) = errors.first() {
        return Err(format!("Accelerate fails: {error}"));
    }
    if maps.contains(&with_their_figures(case)) {
        return Ok(if total(&tree) != case.total {
            Verdict::Sizes
        } else if in_a_row {
            Verdict::FirstBlock
        } else {
            Verdict::GpuNumbers
        });
    }
    if !case.lost.is_empty() {
        let names = tree.blocks.iter().flat_map(|block| &block.tensors);
        let same = maps.iter().any(|theirs| {
            let mut pairs = names.clone().zip(own.iter().zip(theirs));
            pairs.all(|(tensor, (own, theirs))| case.lost.contains(&tensor.name) || own == theirs)
        });
        return Ok(if same { Verdict::LostBuffers } else { Verdict::RoomForBuffers });
    }
    let no_budget = |place: &Option<String>| {
        let place = place.as_deref().unwrap_or("disk");
        place != "disk" && case.budget.get(place) == Some(&0)
    };
    if maps.iter().flatten().any(no_budget) {
        return Ok(Verdict::NoBudget);
    }
    if is_in_by_substring(case, &paths) {
        return Ok(Verdict::Substring);
    }
    if has_chained_ties(case, &paths) {
        return Ok(Verdict::CountedTwice);
    }
    Err("no reason is known".to_string())
}

/// Bytes of all tensors, shared memory counted once.
fn total(tree: &Tree) -> f64 {
    let mut counted = BTreeSet::new();
    let tensors = tree.blocks.iter().flat_map(|block| &block.tensors);
    let total: u64 = tensors
        .filter(|tensor| tensor.tied.as_ref().is_none_or(|key| counted.insert(key.clone())))
        .map(|tensor| tensor.bytes)
        .sum();
    total as f64
}

#[test]
fn maps_are_those_of_accelerate_or_differ_for_a_reason() {
    let cases = &fixture().cases;
    let mut counts = BTreeMap::new();
    let mut unexplained = Vec::new();
    for (number, case) in cases.iter().enumerate() {
        match verdict(case) {
            Ok(verdict) => *counts.entry(verdict).or_insert(0) += 1,
            Err(why) => unexplained.push(format!(
                "case {number}: {why}\n  ours:   {:?}\n  theirs: {:?}\n  {:?} {:?} no_split {:?} fallback {} ties {:?}",
                crate::common::modules(&case.assign()), case.outcomes, case.strategy, case.budget, case.no_split, case.fallback, case.ties
            )),
        }
    }
    println!("{} cases", cases.len());
    for (verdict, count) in &counts {
        println!("{count:4} {verdict:?}");
    }
    assert!(unexplained.is_empty(), "{}", unexplained.join("\n"));
    assert!(cases.len() >= 200);
    assert!(counts[&Verdict::Equal] * 4 > cases.len() * 3);
}
