//! Weights that are stored as integers.

use outsize_checkpoint::{IntegerWidth, StorageFormat, ZeroPoints};

use super::*;

fn integers_of(how: &Value) -> Option<StorageFormat> {
    read(json!({ "quantization_config": how })).unwrap().model.quantization.unwrap().format
}

/// The object with one field changed: that of a name with dots is of objects within.
fn changed(how: &Value, field: &str, value: Value) -> Value {
    let mut how = how.clone();
    *how.pointer_mut(&format!("/{}", field.replace('.', "/"))).unwrap() = value;
    json!({ "quantization_config": how })
}

#[test]
fn integers_of_compressed_tensors_are_read_field_by_field() {
    let weights = json!({
        "num_bits": 4, "type": "int", "strategy": "group", "group_size": 32, "symmetric": true, "dynamic": false,
        "actorder": null, "block_structure": null,
    });
    let how = json!({
        "quant_method": "compressed-tensors", "format": "pack-quantized", "ignore": ["lm_head"], "kv_cache_scheme": null,
        "quantization_status": "compressed",
        "config_groups": {"a": {"targets": ["Linear"], "weights": weights, "input_activations": null, "format": null}},
    });
    let field = |name: &str| format!("config_groups.a.weights.{name}");
    let found = |name: &str, value| {
        integers_of(&changed(&how, &field(name), value)["quantization_config"]).unwrap()
    };
    let packed = StorageFormat::packed_integers;
    assert_eq!(integers_of(&how), Some(packed(IntegerWidth::U4, 32, false)));
    assert_eq!(found("symmetric", json!(false)), packed(IntegerWidth::U4, 32, true));
    assert_eq!(found("num_bits", json!(8)), packed(IntegerWidth::U8, 32, false));
    assert_eq!(found("strategy", json!("channel")), packed(IntegerWidth::U4, 0, false));
    assert_eq!(found("actorder", json!("weight")), packed(IntegerWidth::U4, 32, false));
    for (name, value) in [
        ("num_bits", json!(3)),
        ("num_bits", json!(-4)),
        ("type", json!("float")),
        ("strategy", json!("block")),
        ("strategy", json!("tensor")),
        ("group_size", json!(0)),
        ("group_size", json!(null)),
        ("group_size", json!(1u64 << 40)),
        ("group_size", json!("32")),
        ("symmetric", json!(1)),
        ("dynamic", json!(true)),
        ("block_structure", json!("2:4")),
    ] {
        let path = format!("quantization_config.{}", field(name));
        refusal(changed(&how, &field(name), value), &path);
    }
    for (name, value) in [
        ("format", json!("marlin-24")),
        ("format", json!("nvfp4-pack-quantized")),
        ("kv_cache_scheme", json!({"num_bits": 8})),
        ("quantization_status", json!("frozen")),
        ("config_groups.a.targets", json!(["Linear", "Embedding"])),
        ("config_groups.a.format", json!("int-quantized")),
    ] {
        refusal(changed(&how, name, value), &format!("quantization_config.{name}"));
    }
    let mut bytes = changed(&how, "format", json!("int-quantized"))["quantization_config"].take();
    refusal(
        json!({ "quantization_config": bytes.clone() }),
        &format!("quantization_config.{}", field("num_bits")),
    );
    let weights = bytes.pointer_mut("/config_groups/a/weights").unwrap();
    (weights["num_bits"], weights["strategy"]) = (json!(8), json!("channel"));
    assert_eq!(integers_of(&bytes), Some(packed(IntegerWidth::I8, 0, false)));
    // Activations are left as they are, whether scales of theirs are made in each pass or stored.
    for dynamic in [true, false] {
        let group = json!({"dynamic": dynamic, "num_bits": 8, "type": "int"});
        assert!(read(changed(&bytes, "config_groups.a.input_activations", group)).is_ok());
    }
    refusal(changed(&bytes, "ignore", json!(["lm_head", "re:.*("])), "quantization_config.ignore");
}

#[test]
fn integers_of_awq_and_gptq_are_read_field_by_field() {
    let awq = json!({
        "quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemm", "zero_point": true, "backend": "autoawq",
        "modules_to_not_convert": null,
    });
    assert_eq!(integers_of(&awq), Some(StorageFormat::awq(128)));
    let rows = changed(&awq, "group_size", json!(-1))["quantization_config"].take();
    assert_eq!(integers_of(&rows), Some(StorageFormat::awq(0)));
    for (name, value) in [
        ("bits", json!(8)),
        ("group_size", json!(0)),
        ("group_size", json!(-2)),
        ("group_size", json!(null)),
        ("group_size", json!(1u64 << 40)),
        ("version", json!("gemv")),
        ("version", json!("marlin")),
        ("zero_point", json!(false)),
        ("backend", json!("llm-awq")),
        ("modules_to_not_convert", json!("lm_head")),
    ] {
        refusal(changed(&awq, name, value), &format!("quantization_config.{name}"));
    }
    let gptq = json!({
        "quant_method": "gptq", "bits": 4, "group_size": 64, "checkpoint_format": "gptq", "desc_act": true, "sym": false,
        "pack_dtype": "int32", "is_marlin_format": false, "lm_head": false, "dynamic": {"-:.*mlp.*": {}},
        "modules_in_block_to_quantize": [["mlp.up_proj"]],
    });
    let of = |width, zeros| Some(StorageFormat::gptq(width, 64, zeros));
    let less_one = ZeroPoints::StoredLessOne;
    assert_eq!(integers_of(&gptq), of(IntegerWidth::U4, less_one));
    let found = |name, value| integers_of(&changed(&gptq, name, value)["quantization_config"]);
    assert_eq!(found("bits", json!(8)), of(IntegerWidth::U8, less_one));
    let second = found("checkpoint_format", json!("gptq_v2"));
    assert_eq!(second, of(IntegerWidth::U4, ZeroPoints::Stored));
    for (name, value) in [
        ("bits", json!(3)),
        ("bits", json!(null)),
        ("group_size", json!(70_000)),
        ("checkpoint_format", json!("marlin")),
        ("is_marlin_format", json!(true)),
        ("pack_dtype", json!("int16")),
        ("lm_head", json!("yes")),
        ("dynamic", json!({"+:.*mlp.*": {"bits": 8}})),
        ("dynamic", json!([])),
    ] {
        refusal(changed(&gptq, name, value), &format!("quantization_config.{name}"));
    }
    // A head that is not said to be quantised is not, of a model whose tensors are not known.
    let count = |how: &Value| {
        let model = read(json!({ "quantization_config": how })).unwrap().model;
        let weights = model.weights().into_iter();
        weights.filter(|weight| model.quantization.as_ref().unwrap().converts(weight)).count()
    };
    assert_eq!((count(&awq), count(&gptq)), (2 * 7, 2 * 7));
    let head = changed(&gptq, "lm_head", json!(true))["quantization_config"].take();
    assert_eq!(count(&head), 2 * 7 + 1);
}
