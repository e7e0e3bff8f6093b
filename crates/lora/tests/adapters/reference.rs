//! Adapters against what PEFT computes in float32 (`scripts/fixtures/lora.py`).

use std::collections::{BTreeMap, BTreeSet, HashMap};

use crate::common::{ADAPTERS, config, difference, dispatched, expected, folder, logits};
use outsize_lora::{LoraAdapter, LoraConfig, ModulePattern};
use outsize_models::ModuleKind;

/// Greatest difference over greatest logit.
const TOLERANCE: f32 = 1e-4;

#[test]
fn logits_and_greedy_tokens_are_those_of_peft() {
    for &(name, base) in ADAPTERS {
        let (expected, config) = (expected(name), config(base));
        let (model, _) = dispatched(base, 16 << 20).unwrap();
        let run = |text: &[u32], decoder: &[u32]| logits(&model, &config, text, decoder);
        let plain = run(&expected.ids, &expected.decoder_ids);
        let off = difference(&plain, &expected.plain);
        assert!(off <= TOLERANCE, "{name} without its adapter: {off:e}");
        let adapter = LoraAdapter::open(folder(name), &config).unwrap();
        model.set_low_rank(&adapter.parts().unwrap()).unwrap();
        let found = run(&expected.ids, &expected.decoder_ids);
        let off = difference(&found, &expected.logits);
        println!(
            "{name}: off by {off:.1e}, and {:.1e} without",
            difference(&plain, &expected.logits)
        );
        assert!(off <= TOLERANCE, "{name}: {off:e}");
        assert!(difference(&plain, &expected.logits) > 1e-2, "{name}: the adapter does nothing");

        let start = config.decoder_start();
        let mut text = start.map_or(expected.ids.clone(), |start| vec![start]);
        for token in &expected.greedy {
            let logits = match start {
                Some(_) => run(&expected.ids, &text),
                None => run(&text, &[]),
            };
            let last = &logits[logits.len() - config.vocab_size()..];
            let best = (0..last.len()).max_by(|a, b| last[*a].total_cmp(&last[*b])).unwrap();
            assert_eq!(best as u32, *token, "{name} after {text:?}");
            text.push(*token);
        }
        // And away again.
        model.set_low_rank(&HashMap::new()).unwrap();
        assert_eq!(run(&expected.ids, &expected.decoder_ids), plain, "{name}");
    }
}

#[test]
fn streamed_weights_give_the_same_bits() {
    for &(name, base) in ADAPTERS {
        let (expected, config) = (expected(name), config(base));
        let parts = LoraAdapter::open(folder(name), &config).unwrap().parts().unwrap();
        let run = |bytes| {
            let (model, streamed) = dispatched(base, bytes)?;
            model.set_low_rank(&parts).unwrap();
            let found = logits(&model, &config, &expected.ids, &expected.decoder_ids);
            Some((found.iter().map(|value| value.to_bits()).collect::<Vec<_>>(), streamed))
        };
        let (resident, streamed) = run(16 << 20).unwrap();
        assert_eq!(streamed, 0);
        let mut most = 0;
        for kibibytes in (10..=90).step_by(10) {
            let Some((found, streamed)) = run(kibibytes << 10) else { continue };
            most = most.max(streamed);
            assert_eq!(found, resident, "{name} in {kibibytes} KiB");
        }
        assert!(most > 10_000, "{name}: {most} bytes streamed");
    }
}

/// Layers that choose experts, and are linear layers in transformers.
const ROUTERS: [&str; 5] =
    [".mlp.gate.wg", ".feed_forward.router", ".mlp.router", ".router.gate", ".router.classifier"];

/// Those whose layers here are others than in transformers, where two are one, or one is several.
const OTHER_LAYERS: [&str; 3] = ["dbrx", "deepseek_v4", "minimax_m3"];

#[test]
fn all_linear_layers_are_those_of_peft() {
    let text = std::fs::read_to_string(folder("modules.json")).unwrap();
    let modules: BTreeMap<String, BTreeSet<String>> = serde_json::from_str(&text).unwrap();
    assert!(modules.len() > 60, "{}", modules.len());
    let adapter = LoraConfig::new(2, 2.0, ModulePattern::AllLinear);
    for (name, theirs) in &modules {
        let config = config(name);
        let is_other = |module: &str| {
            config.other_modules().iter().any(|it| format!("{module}.").starts_with(it))
        };
        let is_router = |module: &str| ROUTERS.iter().any(|router| module.ends_with(router));
        let theirs: BTreeSet<_> =
            theirs.iter().filter(|it| !is_other(it) && !is_router(it)).cloned().collect();
        let targets = adapter.targets(&config).unwrap();
        let ours: BTreeSet<_> = targets.iter().map(|it| stars(&it.module)).collect();
        assert_eq!(
            ours == theirs,
            !OTHER_LAYERS.contains(&&name[..]),
            "{name}: {ours:?} {theirs:?}"
        );
    }
}

/// Those whose experts are stacked otherwise than in transformers: of the first as rows of one
/// matrix, of the second with some that have no weights.
const OTHER_STACKS: [&str; 2] = ["dbrx", "longcat_flash"];

#[test]
fn parameters_of_experts_and_routers_are_those_of_transformers() {
    let text = std::fs::read_to_string(folder("parameters.json")).unwrap();
    let models: BTreeMap<String, BTreeMap<String, Vec<usize>>> =
        serde_json::from_str(&text).unwrap();
    let (mut stacks, mut routers) = (0, 0);
    for (name, theirs) in &models {
        let config = config(name);
        let modules = config.modules();
        let found = modules.iter().filter_map(|module| {
            let stack = module.stack.as_ref()?;
            let last = stack.first + (module.shape[0] - 1) * stack.step;
            assert!(last < stack.height, "{name}: {module:?}");
            let mut shape = vec![stack.experts, stack.height, module.shape[1]];
            shape.sort_unstable();
            Some((stars(&stack.names[0]), shape))
        });
        let found: BTreeMap<_, _> = found.collect();
        let is_stack = |(_, shape): &(&String, &Vec<usize>)| shape.len() == 3;
        let wanted = theirs.iter().filter(is_stack).map(|(name, shape)| {
            let mut shape = shape.clone();
            shape.sort_unstable();
            (name.clone(), shape)
        });
        let wanted: BTreeMap<_, _> = wanted.collect();
        assert_eq!(found == wanted, !OTHER_STACKS.contains(&&name[..]), "{name}: {found:?}");
        stacks += found.len();

        let is_router = |module: &&outsize_models::ModuleSpec| module.kind == ModuleKind::Router;
        let names = modules.iter().filter(is_router).flat_map(|module| {
            module.names.iter().map(|name| (format!("{}.weight", stars(name)), module.shape))
        });
        let names: BTreeMap<_, _> = names.collect();
        for (router, shape) in theirs.iter().filter(|it| !is_stack(it)) {
            assert_eq!(names.get(router).map(|it| &it[..]), Some(&shape[..]), "{name}: {router}");
            routers += 1;
        }
    }
    assert!(stacks > 100 && routers > 50, "{stacks} {routers}");
}

/// A module's name without its numbers.
fn stars(module: &str) -> String {
    let is_number = |part: &str| part.bytes().all(|byte| byte.is_ascii_digit());
    let parts = module.split('.').map(|part| if is_number(part) { "*" } else { part });
    parts.collect::<Vec<_>>().join(".")
}
