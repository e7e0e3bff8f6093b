//! Accelerate's strategies on the cases of its own tests, and where ours differ from it on purpose.

mod common;

use common::{Model, budget, modules};
use outsize_plan::{Options, Strategy, assign};

/// The model of Accelerate's tests: 64, 72 and 100 bytes.
fn small(model: Model, path: &str) -> Model {
    let at = |name: &str| {
        [path, name]
            .iter()
            .filter(|part| !part.is_empty())
            .copied()
            .collect::<Vec<_>>()
            .join(".")
    };
    model
        .linear(&at("linear1"), 3, 4)
        .batch_norm(&at("batchnorm"), 4)
        .linear(&at("linear2"), 4, 5)
}

fn options() -> Options {
    Options {
        strategy: Strategy::Sequential,
        ..Options::default()
    }
}

#[test]
fn small_models_are_placed_as_by_accelerate() {
    let one = || small(Model::default(), "");
    let three = || ["0", "1", "2"].into_iter().fold(Model::default(), small);
    let layers = || {
        ["layer1", "layer2", "layer3"]
            .into_iter()
            .fold(Model::default(), small)
    };
    let tied = || layers().tie(&["layer1.linear2.weight", "layer3.linear2.weight"]);
    let tied_twice = || {
        layers().tie(&[
            "layer1.linear2.weight",
            "layer2.linear2.weight",
            "layer3.linear2.weight",
        ])
    };
    let tied_thrice = || tied_twice().tie(&["layer1.linear1.weight", "layer2.linear1.weight"]);
    let squares = Model::default()
        .linear("linear1", 4, 4)
        .linear("linear2", 6, 6)
        .linear("linear3", 4, 4)
        .linear("linear4", 6, 6)
        .tie(&["linear1.weight", "linear3.weight"])
        .tie(&["linear1.bias", "linear3.bias"]);
    let no_split = || Options {
        no_split: vec!["M".to_string()],
        ..options()
    };
    let classes = || three().class("0", "M").class("1", "M").class("2", "M");
    let cases = [
        (
            one(),
            options(),
            "gpu0=200,gpu1=200",
            "linear1:0 batchnorm:1 linear2:1",
        ),
        // No reserve on the second GPU.
        (
            one(),
            options(),
            "gpu0=200,gpu1=172,gpu2=200",
            "linear1:0 batchnorm:1 linear2:1",
        ),
        (
            Model::default()
                .parameter("linear1.weight", 20)
                .parameter("linear1.bias", 4)
                .batch_norm("batchnorm", 4)
                .linear("linear2", 4, 5)
                .tie(&["linear1.weight", "linear2.weight"]),
            options(),
            "gpu0=200,gpu1=200",
            ":0",
        ),
        (
            three(),
            options(),
            "gpu0=500,gpu1=500",
            "0:0 1.linear1:0 1.batchnorm:0 1.linear2:1 2:1",
        ),
        (classes(), no_split(), "gpu0=500,gpu1=500", "0:0 1:1 2:1"),
        (
            tied(),
            options(),
            "gpu0=400,gpu1=500",
            "layer1:0 layer2:1 layer3.linear1:1 layer3.batchnorm:1 layer3.linear2:0",
        ),
        (
            tied_twice(),
            options(),
            "gpu0=400,gpu1=500",
            "layer1:0 layer2.linear1:1 layer2.batchnorm:1 layer2.linear2:0 layer3.linear1:1 \
             layer3.batchnorm:1 layer3.linear2:0",
        ),
        (
            tied_thrice(),
            options(),
            "gpu0=400,gpu1=500",
            "layer1:0 layer2.linear1:0 layer2.batchnorm:1 layer2.linear2:0 layer3.linear1:1 \
             layer3.batchnorm:1 layer3.linear2:0",
        ),
        (
            squares,
            options(),
            "gpu0=250,gpu1=400",
            "linear1:0 linear2:1 linear3:0 linear4:1",
        ),
    ];
    for (at, (model, options, on, expected)) in cases.into_iter().enumerate() {
        let assignment = assign(&model.tree(), &budget(on), &options).unwrap();
        assert_eq!(modules(&assignment), expected, "case {at}");
    }
}

#[test]
fn a_smaller_module_is_found_when_nothing_fits() {
    let options = Options {
        fallback_allocation: true,
        ..options()
    };
    let nested = Model::default()
        .linear("module.linear1", 10, 4)
        .linear("module.linear2", 4, 4)
        .linear("module.linear3", 4, 8);
    let assignment = assign(&nested.tree(), &budget("gpu0=256"), &options).unwrap();
    assert_eq!(
        modules(&assignment),
        "module.linear1:disk module.linear2:0 module.linear3:disk"
    );

    let tied = Model::default()
        .linear("linear1", 10, 10)
        .linear("linear2", 10, 10)
        .tie(&["linear1.weight", "linear2.weight"]);
    let assignment = assign(&tied.tree(), &budget("gpu0=600"), &options).unwrap();
    assert_eq!(modules(&assignment), ":0");

    let with_buffers = Model::default()
        .linear("linear1", 10, 10)
        .buffer("linear1.noise", 5)
        .batch_norm("batchnorm", 10)
        .buffer("batchnorm.noise", 5)
        .linear("linear2", 10, 10)
        .buffer("linear2.noise", 5);
    let assignment = assign(&with_buffers.tree(), &budget("gpu0=678"), &options).unwrap();
    assert_eq!(
        modules(&assignment),
        "linear1:disk batchnorm:0 linear2:disk"
    );
    assert!(
        assignment.warnings[0].contains("buffers"),
        "{:?}",
        assignment.warnings
    );
    // Without looking for it, nothing is placed on the GPU, and that is said.
    let assignment = assign(
        &nested.tree(),
        &budget("gpu0=256"),
        &Options {
            fallback_allocation: false,
            ..options
        },
    )
    .unwrap();
    assert_eq!(modules(&assignment), ":disk");
    assert!(
        assignment.warnings[0].contains("gpu0"),
        "{:?}",
        assignment.warnings
    );
}

#[test]
fn buffers_of_offloaded_modules_need_room_on_a_gpu() {
    let model = Model::default()
        .linear("linear1", 3, 4)
        .buffer("linear1.noise", 20)
        .batch_norm("batchnorm", 4)
        .buffer("batchnorm.noise", 30)
        .linear("linear2", 4, 5)
        .buffer("linear2.noise", 30);
    let on = budget("gpu0=400,cpu=1GB");
    let assignment = assign(&model.tree(), &on, &options()).unwrap();
    assert_eq!(modules(&assignment), "linear1:0 batchnorm:cpu linear2:cpu");
    assert_eq!(assignment.warnings.len(), 1, "{:?}", assignment.warnings);
    let offload_buffers = Options {
        offload_buffers: true,
        ..options()
    };
    let assignment = assign(&model.tree(), &on, &offload_buffers).unwrap();
    assert!(assignment.warnings.is_empty(), "{:?}", assignment.warnings);
}
