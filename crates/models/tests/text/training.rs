//! Training against what `transformers` and PyTorch compute in float32
//! (`scripts/fixtures/training.py`).

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use burn::module::{Module, ModuleMapper, ModuleVisitor, Param};
use burn::optim::{AdamWConfig, GradientsParams};
use burn::tensor::{DType, Device, Gradients, Tensor};
use outsize_checkpoint::Checkpoint;
use outsize_models::arch::{
    ApertusForCausalLm, ArceeForCausalLm, BambaForCausalLm, DeepseekForCausalLm,
    ErnieMoeForCausalLm, FalconH1ForCausalLm, Gemma3nForCausalLm, Gemma4ForCausalLm,
    Gpt2LmHeadModel, GptOssForCausalLm, GraniteMoeForCausalLm, GraniteMoeHybridForCausalLm,
    KimiForCausalLm, Lfm2ForCausalLm, Llama4ForCausalLm, LlamaForCausalLm, LongcatForCausalLm,
    MiniMaxForCausalLm, MixtralForCausalLm, MuseSparkForCausalLm, NemotronHForCausalLm,
    PhiForCausalLm, SparseMoeForCausalLm, Starcoder2ForCausalLm,
};
use outsize_models::{
    ActivationDtype, Batch, CacheOptions, Decoder, DecoderArchitecture, Error, Init, KvCache,
    Logits, ModelConfig, next_token_loss,
};

/// Those with the layers of a Llama.
const LLAMAS: [&str; 11] = [
    "llama",
    "llama-tied",
    "mistral-window",
    "qwen3-tied",
    "gemma3",
    "granite",
    "gemma2",
    "cohere",
    "olmo",
    "olmo_hybrid",
    "muse_glimmer",
];

/// Those with the experts of DeepSeek.
const DEEPSEEKS: [&str; 7] =
    ["deepseek_v3", "deepseek_v32", "axk1", "afmoe", "laguna", "mimo_v2_flash", "step3p7"];

/// Greatest difference of a gradient over the greatest in its tensor.
const TOLERANCE: f32 = 1e-4;

#[derive(serde::Deserialize)]
struct Expected {
    ids: Vec<Vec<u32>>,
    loss: f32,
    losses: Vec<f32>,
    adamw: AdamW,
}

#[derive(serde::Deserialize)]
struct AdamW {
    lr: f64,
    betas: [f32; 2],
    eps: f32,
    weight_decay: f32,
}

fn folder(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/training").join(name)
}

fn expected(name: &str) -> Expected {
    let text = std::fs::read_to_string(folder(name).join("expected.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

fn init() -> Init {
    Init::new(&Device::flex().autodiff())
}

fn model<D: DecoderArchitecture>(name: &str, init: &Init) -> D {
    let text = std::fs::read_to_string(folder(name).join("config.json")).unwrap();
    let config = ModelConfig::from_json(&text).unwrap();
    let checkpoint = Checkpoint::open(folder(name)).unwrap();
    let options = config.options(checkpoint.tensors());
    outsize_core::load(config.build(init).unwrap(), &checkpoint, &options).unwrap()
}

fn value(loss: Tensor<1>) -> f32 {
    loss.into_scalar::<f32>()
}

/// The gradients of all parameters, by their paths.
fn gradients<M: Module>(model: &M, grads: &Gradients) -> BTreeMap<String, (DType, Vec<f32>)> {
    struct Collector<'a> {
        grads: &'a Gradients,
        path: Vec<String>,
        found: BTreeMap<String, (DType, Vec<f32>)>,
    }
    impl ModuleVisitor for Collector<'_> {
        fn enter_module(&mut self, name: &str, _container: &str) {
            self.path.push(name.to_owned());
        }

        fn exit_module(&mut self, _name: &str, _container: &str) {
            self.path.pop();
        }

        fn visit_float<const D: usize>(&mut self, param: &Param<Tensor<D>>) {
            let path = self.path.join(".");
            let grad = param.val().grad(self.grads);
            const FIXED: [&str; 3] = [".e_score_correction_bias", ".expert_bias", ".layer_scalar"];
            if FIXED.iter().any(|fixed| path.ends_with(fixed)) || path.contains(".indexer.") {
                let chooses = "chooses experts or tokens, or is no parameter in torch";
                assert!(grad.is_none(), "{path} {chooses}");
                return;
            }
            let grad = grad.unwrap_or_else(|| panic!("{path} has no gradient"));
            assert_eq!(grad.dims(), param.val().dims(), "{path}");
            let values = grad.clone().into_data().iter::<f32>().collect();
            self.found.insert(path, (grad.dtype(), values));
        }
    }
    let mut collector = Collector { grads, path: Vec::new(), found: BTreeMap::new() };
    model.visit(&mut collector);
    collector.found
}

fn assert_near(what: &str, found: &[f32], want: &[f32], tolerance: f32) {
    assert_eq!(found.len(), want.len(), "{what}");
    let largest = want.iter().fold(0.0f32, |largest, want| largest.max(want.abs()));
    for (found, want) in found.iter().zip(want) {
        assert!((found - want).abs() <= tolerance * largest, "{what}: {found} for {want}");
    }
}

fn check_gradients<D: DecoderArchitecture>(name: &str) {
    let (model, expected): (D, _) = (model(name, &init()), expected(name));
    let batch = Batch::left_padded(&expected.ids).unwrap();
    let loss = next_token_loss(model.forward_uncached(&batch).unwrap(), &batch);
    let found = gradients(&model, &loss.backward());
    let loss = value(loss);
    assert!((loss - expected.loss).abs() <= 1e-5 * expected.loss, "{name}: {loss}");
    let file = Checkpoint::open(folder(name).join("gradients.safetensors")).unwrap();
    assert_eq!(found.len(), file.tensors().len(), "{name}");
    for (path, (dtype, found)) in found {
        assert_eq!(dtype, DType::F32);
        let info = file.get(&path).unwrap_or_else(|| panic!("{name} has no {path}"));
        let bytes = file.read(info).unwrap();
        let want: Vec<f32> =
            bytes.as_chunks().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
        assert_near(&format!("{name}, {path}"), &found, &want, TOLERANCE);
    }
}

#[test]
fn gradients_of_all_parameters_are_those_of_torch() {
    LLAMAS.into_iter().for_each(check_gradients::<LlamaForCausalLm>);
    check_gradients::<Gpt2LmHeadModel>("gpt2");
    check_gradients::<ArceeForCausalLm>("arcee");
    check_gradients::<Starcoder2ForCausalLm>("starcoder2");
    check_gradients::<PhiForCausalLm>("phi");
    check_gradients::<MixtralForCausalLm>("minimax_m2");
    check_gradients::<ErnieMoeForCausalLm>("ernie4_5_moe");
    check_gradients::<MixtralForCausalLm>("mixtral");
    check_gradients::<SparseMoeForCausalLm>("qwen2_moe");
    check_gradients::<GptOssForCausalLm>("gpt_oss");
    DEEPSEEKS.into_iter().for_each(check_gradients::<DeepseekForCausalLm>);
    check_gradients::<LongcatForCausalLm>("longcat_flash");
    check_gradients::<KimiForCausalLm>("kimi_linear");
    check_gradients::<MuseSparkForCausalLm>("muse_spark");
    check_gradients::<MiniMaxForCausalLm>("minimax");
    check_gradients::<SparseMoeForCausalLm>("qwen3_next");
    check_gradients::<Llama4ForCausalLm>("llama4");
    check_gradients::<Gemma4ForCausalLm>("gemma4");
    check_gradients::<Gemma3nForCausalLm>("gemma3n");
    check_gradients::<Lfm2ForCausalLm>("lfm2_moe");
    check_gradients::<Lfm2ForCausalLm>("lfm3");
    check_gradients::<ArceeForCausalLm>("nemotron");
    check_gradients::<ArceeForCausalLm>("nanochat");
    check_gradients::<ApertusForCausalLm>("apertus");
    check_gradients::<GraniteMoeForCausalLm>("granitemoeshared");
    check_gradients::<GraniteMoeHybridForCausalLm>("granitemoehybrid");
    check_gradients::<FalconH1ForCausalLm>("falcon_h1");
    check_gradients::<NemotronHForCausalLm>("nemotron_h");
    check_gradients::<BambaForCausalLm>("jamba");
    check_gradients::<NemotronHForCausalLm>("falcon_mamba");
}

#[test]
fn steps_of_adamw_are_those_of_torch() {
    LLAMAS.into_iter().for_each(check_steps::<LlamaForCausalLm>);
    check_steps::<ArceeForCausalLm>("arcee");
    check_steps::<Starcoder2ForCausalLm>("starcoder2");
    check_steps::<PhiForCausalLm>("phi");
    check_steps::<MixtralForCausalLm>("minimax_m2");
    check_steps::<ErnieMoeForCausalLm>("ernie4_5_moe");
    check_steps::<MixtralForCausalLm>("mixtral");
    check_steps::<SparseMoeForCausalLm>("qwen2_moe");
    check_steps::<GptOssForCausalLm>("gpt_oss");
    DEEPSEEKS.into_iter().for_each(check_steps::<DeepseekForCausalLm>);
    check_steps::<LongcatForCausalLm>("longcat_flash");
    check_steps::<KimiForCausalLm>("kimi_linear");
    check_steps::<MuseSparkForCausalLm>("muse_spark");
    check_steps::<MiniMaxForCausalLm>("minimax");
    check_steps::<SparseMoeForCausalLm>("qwen3_next");
    check_steps::<Llama4ForCausalLm>("llama4");
    check_steps::<Gemma4ForCausalLm>("gemma4");
    check_steps::<Gemma3nForCausalLm>("gemma3n");
    check_steps::<Lfm2ForCausalLm>("lfm2_moe");
    check_steps::<Lfm2ForCausalLm>("lfm3");
    check_steps::<ArceeForCausalLm>("nemotron");
    check_steps::<ArceeForCausalLm>("nanochat");
    check_steps::<ApertusForCausalLm>("apertus");
    check_steps::<GraniteMoeForCausalLm>("granitemoeshared");
    check_steps::<GraniteMoeHybridForCausalLm>("granitemoehybrid");
    check_steps::<FalconH1ForCausalLm>("falcon_h1");
    check_steps::<NemotronHForCausalLm>("nemotron_h");
    check_steps::<BambaForCausalLm>("jamba");
    check_steps::<NemotronHForCausalLm>("falcon_mamba");
}

fn check_steps<D: DecoderArchitecture>(name: &str) {
    let (mut model, expected): (D, _) = (model(name, &init()), expected(name));
    let batch = Batch::left_padded(&expected.ids).unwrap();
    let AdamW { lr, betas, eps, weight_decay } = expected.adamw;
    let mut adamw = AdamWConfig::new()
        .with_beta_1(betas[0])
        .with_beta_2(betas[1])
        .with_epsilon(eps)
        .with_weight_decay(weight_decay)
        .init();
    for (step, want) in expected.losses.iter().enumerate() {
        let loss = next_token_loss(model.forward_uncached(&batch).unwrap(), &batch);
        let grads = GradientsParams::from_grads(loss.backward(), &model);
        let loss = value(loss);
        assert!((loss - want).abs() <= 1e-4 * want, "{name}, step {step}: {loss} for {want}");
        model = adamw.step(lr, model, grads);
    }
}

#[test]
fn a_pass_without_a_cache_gives_the_same_logits() {
    let (config, model): (_, LlamaForCausalLm) =
        crate::common::load_from(&folder("mistral-window"), &Init::new(&Device::flex()));
    let rows = [vec![5u32, 6, 7, 8, 9, 10, 11, 12, 13], vec![20, 21, 22]];
    let batch = Batch::left_padded(&rows).unwrap();
    let options = CacheOptions { batch: 2, ..CacheOptions::new(batch.tokens()) };
    let mut cache = KvCache::new(config.cache(), &options, &Device::flex()).unwrap();
    let want = model.forward_batch(&batch, &mut cache, Logits::All).unwrap();
    let found = model.forward_uncached(&batch).unwrap();
    assert_eq!(found.into_data(), want.into_data());

    let outside = Batch::left_padded(&[[1, 1000]]).unwrap();
    assert!(matches!(model.forward_uncached(&outside), Err(Error::TokenId { .. })));
}

/// Each text of a batch learns as it would alone.
#[test]
fn padding_adds_nothing_to_a_gradient() {
    let model: LlamaForCausalLm = model("llama", &init());
    let rows = [vec![5u32, 6, 7, 8, 9, 10, 11, 12, 13], vec![20, 21, 22]];
    let loss = |rows: &[Vec<u32>]| {
        let batch = Batch::left_padded(rows).unwrap();
        next_token_loss(model.forward_uncached(&batch).unwrap(), &batch)
    };
    let [first, second] = [&rows[..1], &rows[1..]].map(&loss);
    // Means of eight and of two positions.
    let want = gradients(&model, &(first * 0.8 + second * 0.2).backward());
    for (path, (_, found)) in gradients(&model, &loss(&rows).backward()) {
        assert_near(&path, &found, &want[&path].1, 1e-5);
    }
}

/// Weights in bf16 or f16, activations in f32: norms, attention and loss are f32 whatever the
/// weights are, and so is all that flows back but the last rounding of a weight's gradient.
#[test]
fn narrow_weights_learn_too() {
    struct Narrow(DType);
    impl ModuleMapper for Narrow {
        fn map_float<const D: usize>(&mut self, param: Param<Tensor<D>>) -> Param<Tensor<D>> {
            let dtype = self.0;
            param.map(|tensor| tensor.cast(dtype).detach().require_grad())
        }
    }
    let expected = expected("llama");
    let batch = Batch::left_padded(&expected.ids).unwrap();
    let run = |init: &Init, casts: &[DType]| {
        let mut model: LlamaForCausalLm = model("llama", init);
        for &dtype in casts {
            model = model.map(&mut Narrow(dtype));
        }
        let logits = model.forward_uncached(&batch).unwrap();
        assert_eq!(logits.dtype(), DType::F32);
        let loss = next_token_loss(logits, &batch);
        let found = gradients(&model, &loss.backward());
        (value(loss), found)
    };
    for (dtype, rounding) in [(DType::BF16, 1.0 / 256.0), (DType::F16, 1.0 / 2048.0)] {
        let (want_loss, want) = run(&init(), &[dtype, DType::F32]);
        let (loss, found) = run(&init(), &[dtype]);
        assert!((loss - want_loss).abs() <= 1e-5 * want_loss, "{loss} for {want_loss}");
        for (path, (of, found)) in &found {
            assert_eq!(*of, dtype, "{path}");
            assert_near(path, found, &want[path].1, rounding + TOLERANCE);
        }
        // Rounded activations: as near as PyTorch's autocast.
        let rounded = Init { compute: ActivationDtype::Bf16, ..init() };
        let (loss, found) = run(&rounded, &[dtype]);
        assert!((loss - want_loss).abs() <= 1e-2 * want_loss, "{loss} for {want_loss}");
        for (path, (_, found)) in &found {
            assert_near(path, found, &want[path].1, 5e-2);
        }
    }
}
