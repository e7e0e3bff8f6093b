//! What is said of a plan, and that docs/plan-json.md describes all of it.

use super::report::{ModelReport, PlanReport, Planned};
use super::what_if::Least;
use outsize::plan::{
    Access, Block, Bound, Budget, DeviceMap, Error, Gpu, HardwareProfile, MemoryOverhead, Options,
    Routed, Tensor, Tier, Tree, infer,
};
use serde_json::Value;
use std::collections::BTreeSet;

const MB: u64 = 1_000_000;

/// An embedding, four layers of a matrix and a norm, and a head that is the embedding.
fn tree() -> Tree {
    let tensor = |name: String, rows: u64, access, tied: Option<&str>| Tensor {
        name,
        shape: vec![rows, 1000],
        bytes: rows * 4000,
        stored_bytes: rows * 4000,
        row_bytes: 4000,
        access,
        tied: tied.map(String::from),
        ..Tensor::default()
    };
    let block = |name: &str, tensors| Block {
        name: name.to_string(),
        class: "Block".to_string(),
        tensors,
        ..Block::default()
    };
    let mut blocks = vec![block(
        "embed",
        vec![tensor("embed.weight".into(), 10_000, Access::Rows, Some("table"))],
    )];
    for n in 0..4 {
        let name = format!("layers.{n}");
        let tensors = vec![
            tensor(format!("{name}.norm.weight"), 1, Access::Whole, None),
            tensor(format!("{name}.up.weight"), 5_000, Access::Tiles, None),
            tensor(format!("{name}.down.weight"), 5_000, Access::Tiles, None),
        ];
        blocks.push(block(&name, tensors));
    }
    blocks.push(block(
        "head",
        vec![tensor("head.weight".into(), 10_000, Access::Tiles, Some("table"))],
    ));
    Tree { blocks, ..Tree::default() }
}

fn options() -> Options {
    let mut figures = HardwareProfile::default();
    figures.gpus.insert(0, Gpu::default());
    Options {
        needs: MemoryOverhead { process: 30 * MB, ..MemoryOverhead::default() },
        figures,
        ..Options::default()
    }
}

fn report(budget: &str) -> Result<(DeviceMap, PlanReport), Error> {
    let (tree, options) = (tree(), options());
    let budget = Budget::parse(budget)?;
    let map = infer(&tree, &budget, &options)?;
    let planned = Planned {
        tree: &tree,
        map: &map,
        options: &options,
        model: ModelReport { name: "a model".to_string(), ..ModelReport::default() },
        aliases: vec![("lm_head.weight".to_string(), "embed.weight".to_string())],
        detected: vec![Tier::Cpu],
        figures_source: "defaults".to_string(),
        notes: Vec::new(),
    };
    let report = PlanReport::new(planned, |budget| infer(&tree, budget, &options));
    Ok((map, report))
}

#[test]
fn sums_are_those_of_the_map() {
    let (map, report) = report("cpu=100MB").unwrap();
    assert_eq!(report.model.parameters, Some(4 * 10_001 * 1000 + 10_000 * 1000));
    assert_eq!(report.model.bytes, map.total_bytes());
    assert_eq!(report.model.stored_dtype.as_deref(), Some("f32"));
    let on = |tier: Tier| -> u64 {
        report.blocks.iter().filter_map(|block| block.shares.get(&tier)).sum()
    };
    assert_eq!(on(Tier::Cpu), map.resident_bytes());
    assert_eq!(on(Tier::Cpu) + on(Tier::Disk), map.total_bytes());
    assert!(on(Tier::Disk) > 0);
    // The head is the embedding, and counted there.
    assert_eq!(report.blocks[0].bytes, 40 * MB);
    assert_eq!(report.blocks[5].bytes, 0);
    assert!(report.tiers[0].detected && !report.tiers[1].detected);
    assert_eq!(report.tiers[0].free, map.tiers()[0].free());
    assert_eq!(report.strategy, "auto");
}

#[test]
fn other_budgets_are_tried() {
    let (_, report) = report("cpu=100MB").unwrap();
    let [more, less] = &report.what_if[..] else { panic!("{:?}", report.what_if) };
    assert_eq!(more.budget, Budget::parse("cpu=125MB").unwrap());
    assert_eq!(less.budget, Budget::parse("cpu=75MB").unwrap());
    let now = report.prediction.decode.time.seconds;
    assert!(more.fits && more.decode_seconds.unwrap() < now);
    assert!(less.fits && less.decode_seconds.unwrap() > now);
    assert_eq!((less.least, &less.reason), (None, &None));
}

#[test]
fn what_would_not_fit_says_what_would() {
    let Err(Error::TooSmall(shortfall)) = report("cpu=1MB") else { panic!("that is enough") };
    let (_, report) = report(&format!("cpu={}", shortfall.least)).unwrap();
    let less = &report.what_if[1];
    assert!(!less.fits && less.decode_seconds.is_none());
    assert_eq!(less.least, Some(Least { tier: Tier::Cpu, bytes: shortfall.least }));
    assert!(less.reason.as_ref().unwrap().contains("too small"));
}

#[test]
fn the_map_has_other_names_too() {
    let (_, all) = report("cpu=1GB").unwrap();
    assert_eq!(serde_json::to_string(&all.device_map).unwrap(), r#"{"":"cpu"}"#);
    let (map, report) = report("cpu=100MB").unwrap();
    let modules = &report.device_map;
    for tensor in tree().blocks.iter().flat_map(|block| &block.tensors) {
        let place = match map.residency(&tensor.name).unwrap() {
            outsize::plan::Residency::Resident(tier) => tier,
            outsize::plan::Residency::Streamed => Tier::Disk,
        };
        assert_eq!(modules.get(&tensor.name), Some(place), "{}", tensor.name);
    }
    assert_eq!(modules.get("lm_head.weight"), modules.get("embed.weight"));
    assert!(modules.iter().any(|(name, _)| name == "lm_head"));
}

#[test]
fn what_limits_a_pass_is_named() {
    let (_, streamed) = report("cpu=70MB").unwrap();
    assert_eq!(streamed.prediction.decode.bound, Bound::Disk);
    let (_, resident) = report("cpu=1GB").unwrap();
    assert_eq!(resident.prediction.decode.bound, Bound::Memory);
    assert_eq!(resident.prediction.prefill.bound, Bound::Compute);
    let seconds = resident.prediction.decode.time.seconds;
    assert!((resident.prediction.decode.tokens_per_second * seconds - 1.0).abs() < 1e-9);
}

/// Objects whose keys are names of devices or modules rather than fields.
const BY_NAME: [&str; 4] = ["blocks[].shares", "what_if[].budget", "figures.gpus", "device_map"];

/// All fields of a value, as the documentation writes them.
fn fields(path: &str, value: &Value, found: &mut BTreeSet<String>) {
    if !path.is_empty() {
        found.insert(path.to_string());
    }
    match value {
        Value::Object(object) => {
            for (key, value) in object {
                let key = if BY_NAME.contains(&path) { "*" } else { key };
                let path = if path.is_empty() { key.to_string() } else { format!("{path}.{key}") };
                fields(&path, value, found);
            }
        }
        Value::Array(values) => {
            for value in values {
                found.remove(path);
                fields(&format!("{path}[]"), value, found);
            }
        }
        _ => {}
    }
}

#[test]
fn every_field_is_documented_and_every_documented_field_is_there() {
    let documented: BTreeSet<String> = include_str!("../../../../../docs/plan-json.md")
        .lines()
        .filter_map(|line| line.strip_prefix("| `")?.split_once('`'))
        .map(|(field, _)| field.to_string())
        .collect();
    let mut found = BTreeSet::new();
    let Err(Error::TooSmall(shortfall)) = report("cpu=1MB") else { panic!("that is enough") };
    for budget in ["cpu=100MB".to_string(), format!("cpu={}", shortfall.least)] {
        let (_, mut report) = report(&budget).unwrap();
        report.notes.push("a note".to_string());
        report.model.experts = Some(Routed { per_token: 2, experts: 8 });
        fields("", &serde_json::to_value(&report).unwrap(), &mut found);
    }
    found.retain(|field| !field.is_empty());
    let missing: Vec<_> = found.difference(&documented).collect();
    assert!(missing.is_empty(), "not documented: {missing:#?}");
    let gone: Vec<_> = documented.difference(&found).collect();
    assert!(gone.is_empty(), "documented and not there: {gone:#?}");
}
