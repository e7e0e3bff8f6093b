//! Accelerate's strategies on the cases of its own tests, and where ours differ from it on purpose.

use crate::common::{Model, budget, modules};
use outsize_plan::{
    Casts, Error, MemoryOverhead, Options, Strategy, TensorKind, Tier, WeightDtype, assign,
};

/// The model of Accelerate's tests: 64, 72 and 100 bytes.
fn small(model: Model, path: &str) -> Model {
    let at = |name: &str| {
        [path, name].iter().filter(|part| !part.is_empty()).copied().collect::<Vec<_>>().join(".")
    };
    model.linear(&at("linear1"), 3, 4).batch_norm(&at("batchnorm"), 4).linear(&at("linear2"), 4, 5)
}

fn options() -> Options {
    Options { strategy: Strategy::Sequential, ..Options::default() }
}

#[test]
fn small_models_are_placed_as_by_accelerate() {
    let one = || small(Model::default(), "");
    let three = || ["0", "1", "2"].into_iter().fold(Model::default(), small);
    let layers = || ["layer1", "layer2", "layer3"].into_iter().fold(Model::default(), small);
    let tied = || layers().tie(&["layer1.linear2.weight", "layer3.linear2.weight"]);
    let tied_twice = || {
        layers().tie(&["layer1.linear2.weight", "layer2.linear2.weight", "layer3.linear2.weight"])
    };
    let tied_thrice = || tied_twice().tie(&["layer1.linear1.weight", "layer2.linear1.weight"]);
    let squares = Model::default()
        .linear("linear1", 4, 4)
        .linear("linear2", 6, 6)
        .linear("linear3", 4, 4)
        .linear("linear4", 6, 6)
        .tie(&["linear1.weight", "linear3.weight"])
        .tie(&["linear1.bias", "linear3.bias"]);
    let no_split = || Options { no_split: vec!["M".to_string()], ..options() };
    let classes = || three().class("0", "M").class("1", "M").class("2", "M");
    let cases = [
        (one(), options(), "gpu0=200,gpu1=200", "linear1:0 batchnorm:1 linear2:1"),
        // No reserve on the second GPU.
        (one(), options(), "gpu0=200,gpu1=172,gpu2=200", "linear1:0 batchnorm:1 linear2:1"),
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
        (three(), options(), "gpu0=500,gpu1=500", "0:0 1.linear1:0 1.batchnorm:0 1.linear2:1 2:1"),
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
        (squares, options(), "gpu0=250,gpu1=400", "linear1:0 linear2:1 linear3:0 linear4:1"),
    ];
    for (at, (model, options, on, expected)) in cases.into_iter().enumerate() {
        let assignment = assign(&model.tree(), &budget(on), &options).unwrap();
        assert_eq!(modules(&assignment), expected, "case {at}");
    }
}

#[test]
fn a_smaller_module_is_found_when_nothing_fits() {
    let options = Options { fallback_allocation: true, ..options() };
    let nested = Model::default()
        .linear("module.linear1", 10, 4)
        .linear("module.linear2", 4, 4)
        .linear("module.linear3", 4, 8);
    let assignment = assign(&nested.tree(), &budget("gpu0=256"), &options).unwrap();
    assert_eq!(modules(&assignment), "module.linear1:disk module.linear2:0 module.linear3:disk");

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
    assert_eq!(modules(&assignment), "linear1:disk batchnorm:0 linear2:disk");
    assert!(assignment.warnings[0].contains("buffers"), "{:?}", assignment.warnings);
    // Without looking for it, nothing is placed on the GPU, and that is said.
    let assignment = assign(
        &nested.tree(),
        &budget("gpu0=256"),
        &Options { fallback_allocation: false, ..options },
    )
    .unwrap();
    assert_eq!(modules(&assignment), ":disk");
    assert!(assignment.warnings[0].contains("gpu0"), "{:?}", assignment.warnings);
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
    let offload_buffers = Options { offload_buffers: true, ..options() };
    let assignment = assign(&model.tree(), &on, &offload_buffers).unwrap();
    assert!(assignment.warnings.is_empty(), "{:?}", assignment.warnings);
}

/// The map of a model on a budget, filled device after device.
fn placed(model: &Model, on: &str) -> String {
    modules(&assign(&model.tree(), &budget(on), &options()).unwrap())
}

#[test]
fn a_path_in_the_middle_of_another_ties_nothing() {
    // Accelerate finds `0.` in `10.weight` and places 11 with 0; and fails when it comes to 10.
    let model = ["0", "1", "10", "11"]
        .into_iter()
        .fold(Model::default(), |model, path| model.parameter(&format!("{path}.weight"), 10))
        .tie(&["10.weight", "11.weight"]);
    assert_eq!(placed(&model, "gpu0=119,gpu1=80"), "0:0 1:1 10:1 11:1");
    assert_eq!(placed(&model, "gpu0=80,gpu1=40,gpu2=40"), "0:0 1:1 10:2 11:2");
}

#[test]
fn a_tied_tensor_may_be_held_by_any_module() {
    // Accelerate splits `decoder` and then looks for a module that holds `decoder.table`.
    let model = Model::default()
        .parameter("encoder.weight", 10)
        .parameter("decoder.table", 10)
        .parameter("decoder.linear.weight", 20)
        .parameter("last.weight", 20)
        .tie(&["encoder.weight", "decoder.table"]);
    assert_eq!(
        placed(&model, "gpu0=120,gpu1=160"),
        "encoder:0 decoder.table:0 decoder.linear:1 last:1"
    );
    // Through `b`, `a` and `c` must be in one place: Accelerate fails at `c`.
    let chain = Model::default()
        .parameter("a.x", 10)
        .parameter("b.x", 10)
        .parameter("b.y", 10)
        .parameter("c.y", 10)
        .parameter("d.weight", 10)
        .parameter("e.weight", 10)
        .tie(&["a.x", "b.x"])
        .tie(&["b.y", "c.y"]);
    assert_eq!(placed(&chain, "gpu0=120,gpu1=80"), "a:0 b:0 c:0 d:1 e:1");
    assert_eq!(placed(&chain, "gpu0=100,gpu1=160"), ":1");
}

#[test]
fn a_module_with_several_tied_tensors_counts_once() {
    let model = Model::default()
        .parameter("a.x", 10)
        .parameter("a.y", 10)
        .parameter("b.x", 10)
        .parameter("b.y", 10)
        .parameter("b.z", 10)
        .parameter("c.weight", 10)
        .tie(&["a.x", "b.x"])
        .tie(&["a.y", "b.y"]);
    // 120 bytes for `a` and `b`, 40 to be left free for `c`; Accelerate counts `b.z` twice.
    assert_eq!(placed(&model, "gpu0=160,gpu1=40"), "a:0 b:0 c:1");
    assert_eq!(placed(&model, "gpu0=159,gpu1=160"), ":1");
}

#[test]
fn buffers_of_a_split_module_have_a_place() {
    let model = Model::default()
        .buffer("layer.scale", 5)
        .parameter("layer.a.weight", 10)
        .parameter("layer.b.weight", 10)
        .parameter("layer.c.weight", 10);
    assert_eq!(placed(&model, "gpu0=120,cpu=100"), "layer.a:0 layer.b:0 layer.c:0 layer.scale:cpu");
}

#[test]
fn sizes_are_whole_bytes_of_the_types_that_are_held() {
    let model = Model::default()
        .tensor("a.mask", TensorKind::Buffer, WeightDtype::Bool, &[9])
        .tensor("b.weight", TensorKind::Parameter, WeightDtype::Bf16, &[10])
        .tensor("c.weight", TensorKind::Parameter, WeightDtype::F32, &[7]);
    let casts = Casts {
        dtype: Some(WeightDtype::F32),
        special: [("c.weight".to_string(), WeightDtype::Int4)].into(),
        ..Casts::default()
    };
    let tree = model.tree().cast(&casts).unwrap();
    let place = |on: &str| modules(&assign(&tree, &budget(on), &options()).unwrap());
    // 9, 40 and 4 bytes: Accelerate counts 1.125, 20 and 3.5.
    assert_eq!(place("gpu0=0,gpu1=49,gpu2=3,cpu=3"), "a:1 b:1 c:disk");
    assert_eq!(place("gpu0=0,gpu1=49,gpu2=4"), "a:1 b:1 c:2");
    assert_eq!(place("gpu0=0,gpu1=48,gpu2=44"), "a:1 b:2 c:2");
}

#[test]
fn what_is_needed_besides_weights_is_taken_off_the_budgets() {
    let model =
        (0..4).fold(Model::default(), |model, n| model.parameter(&format!("{n}.weight"), 10));
    assert_eq!(placed(&model, "gpu0=80,cpu=119"), "0:0 1:cpu 2:disk 3:disk");
    let options = Options {
        needs: MemoryOverhead { process: 30, kv_cache: 10, ..MemoryOverhead::default() },
        gpu_activations: 20,
        reserve: 7,
        ..options()
    };
    let place = |on: &str, options: &Options| {
        modules(&assign(&model.tree(), &budget(on), options).unwrap())
    };
    assert_eq!(place("gpu0=107,cpu=167", &options), "0:0 1:cpu 2:cpu 3:cpu");
    assert_eq!(place("gpu0=106,cpu=167", &options), "0:cpu 1:cpu 2:disk 3:disk");
    assert_eq!(place("gpu0=107,cpu=166", &options), "0:0 1:cpu 2:disk 3:disk");
    assert_eq!(place("gpu0=5,cpu=5", &options), ":disk");
}

#[test]
fn a_cache_counts_with_its_block() {
    let blocks = (0..3).fold(Model::default(), |model, n| {
        model
            .parameter(&format!("layers.{n}.q.weight"), 5)
            .parameter(&format!("layers.{n}.o.weight"), 5)
            .class(&format!("layers.{n}"), "Layer")
            .cache(&format!("layers.{n}"), 60)
    });
    let options = Options { no_split: vec!["Layer".to_string()], ..options() };
    let place = |on: &str, options: &Options| {
        modules(&assign(&blocks.tree(), &budget(on), options).unwrap())
    };
    assert_eq!(place("gpu0=200,gpu1=100,gpu2=100", &options), "layers.0:0 layers.1:1 layers.2:2");
    assert_eq!(place("gpu0=200,gpu1=99,gpu2=100", &options), "layers.0:0 layers.1:2 layers.2:disk");
    // Of a layer that is split it counts with the last part.
    let split = Options { no_split: Vec::new(), ..options };
    assert_eq!(place("gpu0=0,gpu1=40,gpu2=500", &split), "layers.0:1 layers.1:2 layers.2:2");
}

#[test]
fn nothing_need_be_on_disk() {
    let model =
        (0..4).fold(Model::default(), |model, n| model.parameter(&format!("{n}.weight"), 10));
    let fit = |on: &str, must_fit| {
        let options = Options { must_fit, ..options() };
        assign(&model.tree(), &budget(on), &options)
    };
    // Main memory is allowed.
    assert!(fit("gpu0=80,cpu=160", true).is_ok());
    let error = fit("gpu0=0,gpu1=120", true).unwrap_err();
    assert_eq!(error, Error::DoesNotFit { name: "3".to_string(), others: 0, bytes: 40 });
    assert!(error.to_string().contains("`3` does not fit: 40 B"), "{error}");
    let error = fit("gpu0=80,cpu=80,disk=0", false).unwrap_err();
    assert!(error.to_string().contains("`2` and 1 other do not fit: 80 B"), "{error}");
    // A bound of the disk is none.
    let assignment = fit("gpu0=80,cpu=80,disk=1", false).unwrap();
    assert_eq!(assignment.tiers[3], Tier::Disk);
}

#[test]
fn impossible_requests_are_refused() {
    let model = Model::default().parameter("a", 1);
    let plan = |model: &Model, strategy| {
        let options = Options { strategy, ..options() };
        assign(&model.tree(), &budget("cpu=1GB"), &options)
    };
    assert!(matches!(plan(&model, Strategy::Auto), Err(Error::NotAssigned { .. })));
    let twice = model.clone().parameter("a", 1);
    assert!(matches!(
        plan(&twice, Strategy::Balanced),
        Err(Error::Duplicate { what: "tensor", .. })
    ));
    let mut large = model.parameter("b", 1).cache("b", 1);
    large.tensors[1].bytes = u64::MAX - 4;
    assert!(matches!(plan(&large, Strategy::Balanced), Err(Error::TooLarge { .. })));
}

#[test]
fn odd_paths_are_placed() {
    let names = ["", "a", "a.b", "a.c", ".d", "e..f", "e..g", "e.", "é.ü.x", "é.ü.y"];
    let model = names.into_iter().fold(Model::default(), |model, name| model.parameter(name, 10));
    let assignment =
        assign(&model.tree(), &budget("gpu0=150,gpu1=150,cpu=400"), &options()).unwrap();
    assert_eq!(assignment.tiers.len(), names.len());
    // A module of a hundred thousand parts.
    let deep = "a.".repeat(100_000) + "b";
    let model = Model::default().parameter(&deep, 10).parameter("a.c", 10);
    assert_eq!(placed(&model, "gpu0=79,gpu1=40,cpu=80").split(' ').count(), 2);
}
