//! Plans drawn for terminals and pages. The drawings in `drawings/` are made anew with
//! `OUTSIZE_DRAW=1`; look at them then.

use super::report::{
    BlockReport, ModelReport, PhaseReport, PlanReport, PredictionReport, REPORT_VERSION, TierReport,
};
use super::what_if::{Least, WhatIf};
use crate::views::style::Style;
use outsize::plan::{
    Bound, Budget, HardwareProfile, ModuleMap, PhaseTime, Tier, TierUse, Workload,
};
use proptest::prelude::*;
use std::path::Path;
use unicode_width::UnicodeWidthStr;

const MB: u64 = 1_000_000;

fn block(name: &str, shares: &[(Tier, u64)], on: Tier) -> BlockReport {
    BlockReport {
        name: name.to_string(),
        class: "LlamaDecoderLayer".to_string(),
        bytes: shares.iter().map(|(_, bytes)| bytes).sum(),
        shares: shares.iter().copied().collect(),
        kv_bytes: 4 * MB,
        streamed_bytes: 0,
        kept_bytes: 0,
        upload_bytes: 0,
        prefill_on: on,
        prefill_seconds: 0.01,
        decode_on: on,
        decode_seconds: 0.002,
    }
}

fn tier(
    tier: Tier,
    budget: Option<u64>,
    [weights, ring, kv_cache, activations, other]: [u64; 5],
) -> TierReport {
    let held = TierUse { tier, budget, weights, ring, kv_cache, activations, other };
    TierReport { held, free: held.free(), detected: false }
}

fn phase(seconds: f64, tokens: f64, bound: Bound, disk_bytes: u64) -> PhaseReport {
    PhaseReport {
        time: PhaseTime {
            seconds,
            compute_seconds: seconds / 2.0,
            transfer_seconds: seconds,
            disk_bytes,
            upload_bytes: 0,
            hop_seconds: 0.0,
            bound,
        },
        tokens_per_second: tokens / seconds,
        bound,
    }
}

fn report(tiers: Vec<TierReport>, blocks: Vec<BlockReport>) -> PlanReport {
    let mut budget = Budget::default();
    budget.set(Tier::Cpu, 750 * MB);
    PlanReport {
        version: REPORT_VERSION,
        model: ModelReport {
            name: "meta-llama/Llama-2-13b-hf".to_string(),
            architecture: Some("llama".to_string()),
            parameters: Some(13_015_864_320),
            experts: None,
            stored_dtype: Some("f16".to_string()),
            dtype: None,
            bytes: blocks.iter().map(|block| block.bytes).sum(),
            kv_dtype: Some("f32".to_string()),
        },
        strategy: "auto".to_string(),
        workload: Workload::default(),
        tiers,
        blocks,
        prediction: PredictionReport {
            load_seconds: 12.34,
            first_pass_seconds: 13.5,
            prefill: phase(2.31, 256.0, Bound::Compute, 3_000 * MB),
            decode: phase(0.414, 1.0, Bound::Disk, 830 * MB),
        },
        what_if: vec![
            WhatIf {
                memory: 1.25,
                budget: budget.clone(),
                fits: true,
                load_seconds: Some(14.0),
                prefill_seconds: Some(2.0),
                decode_seconds: Some(0.331),
                least: None,
                reason: None,
            },
            WhatIf {
                memory: 0.75,
                budget,
                fits: false,
                load_seconds: None,
                prefill_seconds: None,
                decode_seconds: None,
                least: Some(Least {
                    tier: Tier::Cpu,
                    bytes: 931 * MB,
                }),
                reason: Some("the budget is too small".to_string()),
            },
        ],
        figures: HardwareProfile::default(),
        figures_source:
            "figures of a middling machine: this one was not measured, which `outsize bench --calibrate` does"
                .to_string(),
        device_map: ModuleMap::default(),
        notes: vec!["config.json has fields that are not known here: foo".to_string()],
    }
}

/// Two GPUs, main memory with a part of some layers, and disk.
fn gpus() -> PlanReport {
    use Tier::{Cpu, Disk, Gpu};
    let mut blocks = vec![block("model.embed_tokens", &[(Gpu(0), 320 * MB)], Gpu(0))];
    for n in 0..40 {
        let name = format!("model.layers.{n}");
        blocks.push(match n {
            0..13 => block(&name, &[(Gpu(0), 600 * MB)], Gpu(0)),
            13..25 => block(&name, &[(Gpu(1), 600 * MB)], Gpu(1)),
            _ => block(&name, &[(Cpu, (260 + n) * MB), (Disk, (340 - n) * MB)], Cpu),
        });
    }
    blocks.push(block("model.norm", &[(Cpu, 10_240)], Cpu));
    blocks.push(block("lm_head", &[(Disk, 320 * MB)], Cpu));
    let tiers = vec![
        tier(Gpu(0), Some(8_590 * MB), [8_120 * MB, 0, 52 * MB, 30 * MB, 0]),
        tier(Gpu(1), Some(8_590 * MB), [7_200 * MB, 0, 48 * MB, 30 * MB, 0]),
        tier(Cpu, Some(5_000 * MB), [4_380 * MB, 227 * MB, 60 * MB, 12 * MB, 45 * MB]),
        tier(Disk, None, [4_940 * MB, 0, 0, 0, 0]),
    ];
    report(tiers, blocks)
}

/// Ten tiers, a hundred and twenty-eight blocks, and names that are hard to draw.
fn hostile() -> PlanReport {
    let mut tiers: Vec<_> = (0..8)
        .map(|n| tier(Tier::Gpu(n), Some(80_000 * MB), [78_000 * MB, 0, 900 * MB, 300 * MB, 0]))
        .collect();
    tiers.push(tier(Tier::Cpu, Some(64_000 * MB), [1, 60_000 * MB, 1, 1, 1]));
    tiers[8].detected = true;
    tiers.push(tier(Tier::Disk, None, [500_000 * MB, 0, 0, 0, 0]));
    let mut blocks: Vec<_> = (0..124)
        .map(|n| {
            let on = Tier::Gpu(n / 16);
            block(&format!("模型.层.{n}"), &[(on, 5_000 * MB)], on)
        })
        .collect();
    for name in [
        "<script>alert(\"1\")</script>&amp;",
        "e\u{301}\u{202e}\u{1b}[31mred\u{9b}31m\u{0}\u{ffff}",
        &"long.".repeat(200),
        "🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀🦀.weight]]>",
    ] {
        blocks.push(block(name, &[(Tier::Cpu, 1), (Tier::Disk, 125_000 * MB)], Tier::Gpu(3)));
    }
    let mut report = report(tiers, blocks);
    report.model.name = "组织/模型\u{1b}]0;title\u{7} <b>".to_string();
    report
}

/// Compares with the committed drawing of that name.
#[track_caller]
fn check(name: &str, drawing: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/drawings").join(name);
    if std::env::var_os("OUTSIZE_DRAW").is_some() {
        std::fs::write(&path, drawing).unwrap();
    }
    let expected = std::fs::read_to_string(&path).unwrap_or_default();
    assert!(drawing == expected, "{name} is not as committed; it is\n{drawing}");
}

fn without_colours(text: &str) -> String {
    let mut plain = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once("\x1b[") {
        plain.push_str(before);
        rest = after.split_once('m').expect("a colour").1;
    }
    plain + rest
}

#[test]
fn drawings_are_as_committed() {
    for width in [40, 80, 200] {
        let style = Style { width, ..Style::default() };
        check(&format!("gpus-{width}.txt"), &gpus().text(&style));
        check(&format!("hostile-{width}.txt"), &hostile().text(&style));
    }
    let ascii = Style { ascii: true, ..Style::default() };
    check("gpus-ascii.txt", &gpus().text(&ascii));
    let coloured = Style { colour: true, ..Style::default() };
    check("gpus-coloured.txt", &gpus().text(&coloured));
    check("gpus.svg", &gpus().svg());
    check("hostile.svg", &hostile().svg());
}

#[test]
fn colours_change_nothing_else() {
    for report in [gpus(), hostile()] {
        for width in [20, 40, 63, 64, 80, 200] {
            let style = |colour| Style { width, colour, ascii: false };
            let coloured = report.text(&style(true));
            assert_ne!(coloured, report.text(&style(false)));
            assert_eq!(without_colours(&coloured), report.text(&style(false)));
        }
    }
}

#[test]
fn ascii_is_ascii() {
    for report in [gpus(), hostile()] {
        let style = Style { ascii: true, ..Style::default() };
        assert!(report.text(&style).is_ascii());
    }
}

/// Reads all of an SVG; gives the names of its elements.
fn parsed(svg: &str) -> Vec<String> {
    use quick_xml::events::Event;
    let mut reader = quick_xml::Reader::from_str(svg);
    reader.config_mut().check_end_names = true;
    let (mut elements, mut depth) = (Vec::new(), 0);
    loop {
        match reader.read_event().unwrap() {
            Event::Start(tag) => {
                depth += 1;
                elements.push(tag.name().as_ref().to_string());
                assert!(tag.attributes().all(|attribute| attribute.is_ok()));
            }
            Event::Empty(tag) => {
                elements.push(tag.name().as_ref().to_string());
                assert!(tag.attributes().all(|attribute| attribute.is_ok()));
            }
            Event::End(_) => depth -= 1,
            Event::Eof => break,
            _ => {}
        }
    }
    assert_eq!(depth, 0);
    elements
}

#[test]
fn an_svg_is_well_formed_and_holds_nothing_but_shapes() {
    for report in [gpus(), hostile()] {
        let svg = report.svg();
        assert_eq!(svg, report.svg());
        let allowed = |c: char| matches!(c, '\n' | ' '..='\u{d7ff}' | '\u{e000}'..='\u{fffd}' | '\u{10000}'..);
        assert!(svg.chars().all(allowed));
        let elements = parsed(&svg);
        for element in &elements {
            assert!(
                ["svg", "title", "desc", "style", "rect", "text", "line"]
                    .contains(&element.as_str()),
                "{element}"
            );
        }
        // The namespace is all that looks like an address.
        assert_eq!(svg.matches("http").count(), 1);
        assert_eq!(elements[..4], ["svg", "title", "desc", "style"]);
    }
}

#[test]
fn a_crowd_of_blocks_stays_small() {
    let mut report = gpus();
    report.blocks = (0..50_000)
        .map(|n| block(&format!("experts.x{n}.y"), &[(Tier::Gpu(0), 1 + n)], Tier::Gpu(0)))
        .collect();
    assert!(report.svg().len() < 200_000);
    assert!(report.text(&Style::default()).lines().count() < 100);
}

fn any_tier() -> impl Strategy<Value = Tier> {
    prop_oneof![
        (0usize..12).prop_map(Tier::Gpu),
        Just(Tier::Gpu(usize::MAX)),
        Just(Tier::Cpu),
        Just(Tier::Disk)
    ]
}

fn any_bytes() -> impl Strategy<Value = u64> {
    prop_oneof![Just(0), 0..1_000u64, Just(u64::MAX), any::<u64>(), 0..100_000_000_000u64]
}

fn any_block() -> impl Strategy<Value = BlockReport> {
    let name = prop_oneof![any::<String>(), "\\PC{0,60}", "[a-c.0-3]{0,8}", "m\\.[0-9]{1,2}"];
    let shares = prop::collection::btree_map(any_tier(), any_bytes(), 0..4);
    (name, shares, any_tier(), any_tier(), any::<f64>()).prop_map(
        |(name, shares, prefill_on, decode_on, seconds)| BlockReport {
            name,
            class: String::new(),
            bytes: shares.values().fold(0u64, |sum, bytes| sum.saturating_add(*bytes)),
            shares,
            kv_bytes: 0,
            streamed_bytes: 0,
            kept_bytes: 0,
            upload_bytes: 0,
            prefill_on,
            prefill_seconds: seconds,
            decode_on,
            decode_seconds: seconds,
        },
    )
}

prop_compose! {
    fn any_report()(
        blocks in prop::collection::vec(any_block(), 0..30),
        tiers in prop::collection::vec((any_tier(), prop::option::of(any_bytes()), prop::array::uniform5(any_bytes())), 0..12),
        name in any::<String>(),
        note in any::<String>(),
        seconds in any::<f64>(),
        memory in any::<f64>(),
    ) -> PlanReport {
        let tiers = tiers.into_iter().map(|(at, budget, held)| tier(at, budget, held)).collect();
        let mut report = report(tiers, Vec::new());
        report.blocks = blocks;
        report.model.name = name.clone();
        report.model.architecture = Some(note.clone());
        report.prediction.decode = phase(seconds, 1.0, Bound::Upload, 3);
        report.prediction.load_seconds = seconds;
        report.what_if[0].memory = memory;
        report.what_if[0].decode_seconds = Some(seconds);
        report.what_if[1].least = None;
        report.what_if[1].reason = Some(note.clone());
        report.strategy = name;
        report.notes = vec![note];
        report
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn any_plan_is_drawn_within_the_width(report in any_report(), width in 0usize..220, colour: bool, ascii: bool) {
        let text = report.text(&Style { width, colour, ascii });
        let plain = if colour { without_colours(&text) } else { text };
        for line in plain.lines() {
            prop_assert!(line.width() <= width.max(20), "{width}: {line:?}");
            prop_assert!(!line.chars().any(char::is_control), "{line:?}");
            prop_assert!(!ascii || line.is_ascii(), "{line:?}");
        }
    }

    #[test]
    fn any_plan_is_a_well_formed_svg(report in any_report()) {
        let svg = report.svg();
        parsed(&svg);
        prop_assert!(!svg.contains("=\"NaN") && !svg.contains("=\"inf"));
    }
}
