//! Places that somebody chose.

use crate::common::{Model, budget, modules};
use outsize_plan::{
    Assignment, Budget, Error, ManualMap, MemoryOverhead, Options, Residency, Strategy as Planning,
    Tier, assign, from_assignment, infer,
};
use proptest::prelude::*;

fn entries(map: &ManualMap) -> String {
    let entries = map.iter().map(|(path, tier)| format!("{path}={tier}"));
    entries.collect::<Vec<_>>().join(" ")
}

#[test]
fn json_and_yaml_are_read() {
    for (text, expected) in [
        (
            r#"{"model.layers.0": 0, "lm_head": "disk", "": "cpu"}"#,
            "=cpu lm_head=disk model.layers.0=gpu0",
        ),
        (
            "# mine\nmodel.layers.0: 0\n\"lm_head\": disk\n'': cpu\n",
            "=cpu lm_head=disk model.layers.0=gpu0",
        ),
        ("{a: gpu1, b: '2', c: \"cuda:3\"}", "a=gpu1 b=gpu2 c=gpu3"),
        // The modules of a sequence are numbers.
        ("0: cpu\n1: 1\n10: disk", "0=cpu 1=gpu1 10=disk"),
        ("0x10: cpu\n16: disk", "0x10=cpu 16=disk"),
        ("{}", ""),
        ("\n  {\"a\":\n0}", "a=gpu0"),
    ] {
        let map = ManualMap::parse(text).unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(entries(&map), expected, "{text}");
    }
}

#[test]
fn what_is_no_map_is_refused() {
    let deep = "{\"a\": ".repeat(100_000);
    let deep_yaml = "a: [".repeat(100_000);
    let many = "- ".repeat(100_000);
    for (text, reason) in [
        ("", "it is empty"),
        ("# nothing\n", "it is empty"),
        ("cpu", ""),
        ("[1, 2]", ""),
        ("{\"a\": 0", "line 1"),
        ("{\"a\": 0, \"a\": 1}", "`a` comes twice"),
        ("a: 0\nb: 1\na: 0", "`a` comes twice"),
        ("{\"a\": \"ram\"}", "ram"),
        ("{\"a\": -1}", "-1"),
        ("{\"a\": 0.5}", "0.5"),
        ("{\"a\": true}", "true"),
        ("{\"a\": null}", "null"),
        ("{\"a\": {\"b\": 0}}", "number of a GPU"),
        ("a:\n  b: 0", "number of a GPU"),
        ("a: 1e3", ""),
        ("a: &x 0\nb: *x", ""),
        ("<<: {a: 0}\nb: 0", ""),
        ("a: 0\n---\na: 1", ""),
        ("a: 0\n\tb: 0", ""),
        (&deep, "line 1"),
        (&deep_yaml, ""),
        (&many, ""),
    ] {
        let begin = &text[..text.len().min(60)];
        let Err(error) = ManualMap::parse(text) else {
            panic!("{begin}: was read");
        };
        let said = error.to_string();
        assert!(matches!(error, Error::Map { .. }), "{begin}: {said}");
        assert!(said.contains(reason), "{begin}: {said}");
        assert!(said.len() < 800, "{begin}: {said}");
    }
    let large = " ".repeat((32 << 20) + 1);
    let error = ManualMap::parse(&large).unwrap_err();
    assert!(error.to_string().contains("33554433 bytes"), "{error}");
    // No terminal obeys a message.
    let error = ManualMap::parse("{\"a\": \"\\u001b[2J\"}").unwrap_err();
    assert!(!error.to_string().contains('\u{1b}'), "{error}");
}

/// An embedding tied to the head, two layers of 40 and 80 bytes, and a buffer.
fn model() -> Model {
    Model::default()
        .parameter("model.embed.weight", 10)
        .parameter("model.layers.0.a.weight", 10)
        .parameter("model.layers.1.a.weight", 10)
        .parameter("model.layers.1.b.weight", 10)
        .buffer("model.table", 5)
        .parameter("lm_head.weight", 10)
        .tie(&["model.embed.weight", "lm_head.weight"])
}

fn place(map: &str, on: &Budget, options: &Options) -> Result<Assignment, Error> {
    ManualMap::parse(map).unwrap().assign(&model().tree(), on, options)
}

#[test]
fn the_longest_path_holds() {
    for (map, expected) in [
        (r#"{"": "cpu"}"#, ":cpu"),
        (
            r#"{"": "cpu", "model.layers.1": 0, "model.layers.1.b": "disk"}"#,
            "model.embed.weight:cpu model.layers.0.a.weight:cpu model.layers.1.a.weight:0 \
             model.layers.1.b.weight:disk model.table:cpu lm_head.weight:cpu",
        ),
        (
            r#"{"model": 0, "model.table": "cpu", "lm_head": 0}"#,
            "model.embed.weight:0 model.layers:0 model.table:cpu lm_head.weight:0",
        ),
        (r#"{"model.embed": 1, "lm_head.weight": 1, "model.layers": 1, "model.table": 1}"#, ":1"),
    ] {
        let assignment = place(map, &Budget::default(), &Options::default()).unwrap();
        assert_eq!(modules(&assignment), expected, "{map}");
    }
}

#[test]
fn what_does_not_match_the_model_is_refused() {
    let error = |map| {
        let error = place(map, &Budget::default(), &Options::default()).unwrap_err();
        (error.to_string(), error)
    };
    let (said, unknown) = error(r#"{"": 0, "model.layer.1": "cpu"}"#);
    assert!(matches!(unknown, Error::UnknownName { .. }), "{said}");
    assert!(said.contains("`model.layer.1`") && said.contains("`model.layers.1`"), "{said}");
    let (said, _) = error(r#"{"": 0, "layers.1": "cpu"}"#);
    assert!(said.contains("is `model.layers.1` meant?"), "{said}");
    let (said, _) = error("{\"\": 0, \"vision\\u001b[2J\": \"cpu\"}");
    assert!(!said.contains("meant") && !said.contains('\u{1b}'), "{said}");
    let (said, lost) = error(r#"{"model.embed": 0, "model.layers": 0, "lm_head": 0}"#);
    assert_eq!(lost, Error::NotPlaced { name: "model.table".to_string(), others: 0 }, "{said}");
    let (said, _) = error("{}");
    assert!(said.contains("`model.embed.weight` and 5 more"), "{said}");
    let (said, tied) = error(r#"{"": 0, "lm_head": "disk"}"#);
    assert!(matches!(tied, Error::Tied { .. }), "{said}");
    assert!(said.contains("`lm_head.weight` is on disk") && said.contains("gpu0"), "{said}");
    // A module without tensors can be named.
    let named = model().class("model.act", "SiLU").tree();
    let map = ManualMap::parse(r#"{"": 0, "model.act": "cpu"}"#).unwrap();
    assert!(map.assign(&named, &Budget::default(), &Options::default()).is_ok());
}

#[test]
fn budgets_are_kept() {
    let map = r#"{"": "cpu", "model.layers.1": 0}"#;
    let plain = Options::default();
    // 80 bytes on the GPU; 40, 40 and 20 in main memory, the head's being the embedding's.
    assert!(place(map, &budget("gpu0=80,cpu=100"), &plain).is_ok());
    let error = place(map, &budget("gpu0=79,cpu=100"), &plain).unwrap_err();
    assert_eq!(error, Error::OverBudget { tier: Tier::Gpu(0), bytes: 80, needs: 0, budget: 79 });
    let said = error.to_string();
    assert!(
        said.contains("gpu0") && said.contains("80 bytes") && said.contains("79 bytes"),
        "{said}"
    );
    assert!(place(map, &budget("gpu0=80,cpu=99"), &plain).is_err());
    assert!(place(map, &budget("gpu0=0"), &plain).is_err());
    assert!(place(map, &budget("gpu1=0"), &plain).is_ok());
    let needing = Options {
        needs: MemoryOverhead { process: 7, ..MemoryOverhead::default() },
        gpu_activations: 5,
        reserve: 1,
        ..Options::default()
    };
    assert!(place(map, &budget("gpu0=86,cpu=108"), &needing).is_ok());
    assert!(place(map, &budget("gpu0=85,cpu=108"), &needing).is_err());
    let error = place(map, &budget("gpu0=86,cpu=107"), &needing).unwrap_err();
    assert!(error.to_string().contains("needs 8 B besides"), "{error}");
    // A cache counts on the device of its block.
    let cached = model().cache("model.layers.1", 3).tree();
    let with_cache = |on| ManualMap::parse(map).unwrap().assign(&cached, &budget(on), &plain);
    assert!(with_cache("gpu0=83").is_ok());
    assert!(with_cache("gpu0=82").is_err());
    // The disk is refused if it is ruled out.
    let must_fit = Options { must_fit: true, ..Options::default() };
    assert!(place(map, &budget("disk=0"), &must_fit).is_ok());
    let map = r#"{"": "cpu", "model.layers": "disk"}"#;
    assert!(place(map, &budget("disk=1"), &plain).is_ok());
    for error in [place(map, &Budget::default(), &must_fit), place(map, &budget("disk=0"), &plain)]
    {
        let expected =
            Error::DoesNotFit { name: "model.layers".to_string(), others: 0, bytes: 120 };
        assert_eq!(error, Err(expected));
    }
}

proptest! {
    #[test]
    fn no_text_panics(text in "\\PC{0,80}") {
        let _ = ManualMap::parse(&text);
    }

    #[test]
    fn no_near_miss_panics(text in "[{]?([\"'a-c.&*!|>~?-]{0,4}[:] ?[\"0-9a-z:-]{0,6}[,\n]? ?){0,5}[}]?") {
        let _ = ManualMap::parse(&text);
    }

    /// What is written is read, in either format.
    #[test]
    fn maps_survive_json_and_yaml(paths in prop::collection::btree_map("[a-z0-9. \"'\\\\:#-]{0,12}", 0usize..6, 0..8)) {
        let device = |at: usize| match at {
            4 => serde_json::json!("cpu"),
            5 => serde_json::json!("disk"),
            gpu => serde_json::json!(gpu),
        };
        let json: serde_json::Map<_, _> = paths
            .iter()
            .map(|(path, at)| (path.clone(), device(*at)))
            .collect();
        let map = ManualMap::parse(&serde_json::to_string(&json).unwrap()).unwrap();
        prop_assert_eq!(map.iter().count(), paths.len());
        let lines = json
            .iter()
            .map(|(path, device)| format!("{}: {device}\n", serde_json::to_string(path).unwrap()));
        if !paths.is_empty() {
            prop_assert_eq!(ManualMap::parse(&lines.collect::<String>()).unwrap(), map);
        }
    }

    /// A map that was made, written as Accelerate's, gives every tensor the same place.
    #[test]
    fn maps_of_strategies_come_back(model in crate::common::random::model(), on in crate::common::random::budget(), strategy in crate::common::random::strategy()) {
        let tree = model.tree();
        let options = Options { strategy, ..Options::default() };
        let made = assign(&tree, &on, &options).unwrap();
        let read = ManualMap::parse(&serde_json::to_string(&made.modules).unwrap()).unwrap();
        let again = read.assign(&tree, &Budget::default(), &Options::default()).unwrap();
        prop_assert_eq!(&again.tiers, &made.tiers);
    }

    /// The map of blocks that Accelerate reads gives every block the same place again.
    #[test]
    fn device_maps_come_back(sizes in prop::collection::vec(200_000u64..2_000_000, 1..8), cpu in 0u64..20_000_000, gpu in 0u64..8_000_000) {
        let tree = crate::common::random::blocks(&sizes);
        let mut on = Budget::default();
        on.set(Tier::Cpu, cpu);
        on.set(Tier::Gpu(0), gpu);
        let options = Options { strategy: Planning::Auto, ..Options::default() };
        let Ok(map) = infer(&tree, &on, &options) else { return Ok(()) };
        let read = ManualMap::parse(&serde_json::to_string(&map.modules()).unwrap()).unwrap();
        let chosen = read.assign(&tree, &on, &Options::default()).unwrap();
        for (block, tier) in map.blocks().iter().zip(&chosen.tiers) {
            prop_assert_eq!(block.tier, *tier);
        }
        let again = from_assignment(&tree, &chosen, &on, &options).unwrap();
        for block in &tree.blocks {
            let name = &block.tensors[0].name;
            prop_assert_eq!(again.residency(name), map.residency(name));
            prop_assert_ne!(again.residency(name), Some(Residency::Resident(Tier::Disk)));
        }
    }
}
