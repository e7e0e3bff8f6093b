//! Noise and schedulers give what torch and diffusers give; scripts/fixtures/schedulers.py recorded
//! it.

use std::path::Path;

use crate::common::{fixture, floats};
use outsize_checkpoint::Checkpoint;
use outsize_diffuse::{Noise, Scheduler, SchedulerConfig};
use proptest::prelude::*;
use serde_json::{Value, json};

/// Of the largest value.
const TOLERANCE: f32 = 1e-5;

/// `before` are values whose rounding the expected ones inherit.
#[track_caller]
fn assert_close(found: &[f32], expected: &[f32], before: &[f32], what: &str) {
    assert_eq!(found.len(), expected.len(), "{what}");
    let largest = expected.iter().chain(before).fold(1.0, |most: f32, value| most.max(value.abs()));
    for (index, (found, expected)) in found.iter().zip(expected).enumerate() {
        let off = (found - expected).abs() / largest;
        assert!(off <= TOLERANCE, "{what}, value {index}: {found}, expected {expected}");
    }
}

#[test]
fn noise_is_that_of_torch() {
    let recorded = Checkpoint::open(fixture("noise.safetensors")).unwrap();
    for tensor in recorded.tensors() {
        let (seed, len) = tensor.name.split_once('.').unwrap();
        let mut values = vec![0.0; len.parse().unwrap()];
        Noise::new(seed.parse().unwrap()).fill(&mut values);
        if values.len() > 64 {
            values = [&values[..20], &values[values.len() - 20..]].concat();
        }
        let expected = floats(&recorded, &tensor.name);
        for (found, expected) in values.iter().zip(&expected) {
            assert!((found - expected).abs() < 2e-6, "{}: {found}, {expected}", tensor.name);
        }
    }
    assert_eq!(recorded.tensors().len(), 44);
}

#[test]
fn schedulers_are_those_of_diffusers() {
    let recorded = Checkpoint::open(fixture("schedulers.safetensors")).unwrap();
    let text = std::fs::read_to_string(fixture("schedulers.json")).unwrap();
    let table: Value = serde_json::from_str(&text).unwrap();
    for (name, entry) in table.as_object().unwrap() {
        let choice = entry["choice"].as_str().map(|choice| choice.parse().unwrap());
        let config =
            SchedulerConfig::from_json(Path::new(name), &entry["config"].to_string(), choice);
        let (mut config, count) = (config.unwrap(), |field: &str| entry[field].as_u64());
        match entry["pipeline"].as_str() {
            Some("flux") => config.for_flux(count("tokens").unwrap() as usize).unwrap(),
            Some(_) => config.for_stable_diffusion_3(count("tokens").unwrap() as usize).unwrap(),
            None => {}
        }
        let mut scheduler = Scheduler::new(&config, count("steps").unwrap() as usize).unwrap();
        let timesteps = floats(&recorded, &format!("{name}.timesteps"));
        assert_close(scheduler.timesteps(), &timesteps, &[], name);
        let samples = floats(&recorded, &format!("{name}.samples"));
        let mut samples = samples.chunks(samples.len() / (timesteps.len() + 1));
        let first = samples.next().unwrap();
        let mut sample = vec![0.0; first.len()];
        let mut noise = Noise::new(7);
        noise.fill(&mut sample);
        sample.iter_mut().for_each(|value| *value *= scheduler.initial_scale());
        assert_close(&sample, first, &[], &format!("{name}, noise"));
        // Noise of scale 4096 would carry its last bits into the first steps.
        sample.copy_from_slice(first);
        for (step, expected) in samples.enumerate() {
            let divisor = scheduler.input_divisor();
            let output =
                |value: &f32| 0.8 * (2.0 * value / divisor + timesteps[step] / 300.0).sin();
            let output: Vec<f32> = sample.iter().map(output).collect();
            let before = sample.clone();
            let mut draw = || {
                let mut drawn = vec![0.0; output.len()];
                noise.fill(&mut drawn);
                drawn
            };
            scheduler.step(&output, &mut sample, &mut draw);
            assert_close(&sample, expected, &before, &format!("{name}, step {step}"));
            sample.copy_from_slice(expected);
        }
        let before = sample.clone();
        scheduler.step(&vec![1.0; sample.len()], &mut sample, &mut || unreachable!());
        assert_eq!(sample, before, "{name}: nothing is left to do");
    }
}

fn refusal(config: &str) -> String {
    let config = SchedulerConfig::from_json(Path::new("scheduler_config.json"), config, None);
    config.unwrap_err().to_string()
}

#[test]
fn what_is_not_built_in_is_refused_by_name() {
    for (class, field, value) in [
        ("HeunDiscreteScheduler", "_class_name", "HeunDiscreteScheduler"),
        ("EulerAncestralDiscreteScheduler", "prediction_type", "\"sample\""),
        ("LCMScheduler", "thresholding", "true"),
        ("LCMScheduler", "original_inference_steps", "1001"),
        ("LCMScheduler", "timestep_scaling", "-1"),
        ("DDIMScheduler", "thresholding", "true"),
        ("DDIMScheduler", "beta_schedule", "\"laplace\""),
        ("DDIMScheduler", "prediction_type", "\"flow_prediction\""),
        ("DDIMScheduler", "trained_betas", "[0.1, 2.0]"),
        ("DDIMScheduler", "num_train_timesteps", "0"),
        ("DDIMScheduler", "steps_offset", "-1"),
        ("PNDMScheduler", "prediction_type", "\"sample\""),
        ("PNDMScheduler", "timestep_spacing", "\"random\""),
        ("EulerDiscreteScheduler", "interpolation_type", "\"log_linear\""),
        ("EulerDiscreteScheduler", "timestep_type", "\"continuous\""),
        ("EulerDiscreteScheduler", "use_beta_sigmas", "true"),
        ("EulerDiscreteScheduler", "sigma_min", "-1"),
        ("DPMSolverMultistepScheduler", "algorithm_type", "\"sde-dpmsolver++\""),
        ("DPMSolverMultistepScheduler", "solver_order", "3"),
        ("DPMSolverMultistepScheduler", "use_flow_sigmas", "true"),
        ("DPMSolverMultistepScheduler", "use_lu_lambdas", "true"),
        ("DPMSolverMultistepScheduler", "variance_type", "\"learned\""),
        ("DPMSolverMultistepScheduler", "final_sigmas_type", "\"half\""),
        ("FlowMatchEulerDiscreteScheduler", "invert_sigmas", "true"),
        ("FlowMatchEulerDiscreteScheduler", "shift", "0"),
        ("FlowMatchEulerDiscreteScheduler", "shift_terminal", "1"),
        ("FlowMatchEulerDiscreteScheduler", "stochastic_sampling", "true"),
        ("FlowMatchEulerDiscreteScheduler", "use_beta_sigmas", "true"),
        ("FlowMatchHeunDiscreteScheduler", "_class_name", "FlowMatchHeunDiscreteScheduler"),
    ] {
        let config = match field {
            "_class_name" => format!("{{\"_class_name\": \"{value}\"}}"),
            _ => format!("{{\"_class_name\": \"{class}\", \"{field}\": {value}}}"),
        };
        let message = refusal(&config);
        assert!(message.starts_with("scheduler_config.json: "), "{message}");
        assert!(message.contains(&format!("`{field}`")), "{message}");
    }
    assert!(refusal("[1]").contains("not a JSON object"));
    assert!(refusal("{}").contains("`_class_name` is missing"));
}

#[test]
fn flow_matching_and_noise_are_not_mixed_up() {
    let read = |class: &str, more: &str, choice: Option<&str>| {
        let text = format!(r#"{{"_class_name": "{class}"{more}}}"#);
        let choice = choice.map(|name| name.parse().unwrap());
        SchedulerConfig::from_json(Path::new("scheduler_config.json"), &text, choice)
    };
    let (flow, noise) = ("FlowMatchEulerDiscreteScheduler", "PNDMScheduler");
    for (class, choice, expected) in [
        (flow, "euler", "euler is for models that predict noise"),
        (
            "FlowMatchHeunDiscreteScheduler",
            "dpm++-karras",
            "dpm++ is for models that predict noise",
        ),
        (noise, "flow-euler", "flow-euler is for models that were trained by flow matching"),
    ] {
        let error = read(class, "", Some(choice)).unwrap_err().to_string();
        assert!(error.contains("`_class_name`") && error.contains(expected), "{error}");
    }
    let mut config = read(noise, "", None).unwrap();
    assert!(!config.kind.is_flow_match());
    for error in [config.for_flux(64), config.for_stable_diffusion_3(64)] {
        let error = error.unwrap_err().to_string();
        assert!(error.starts_with("PNDMScheduler is for models that predict noise"), "{error}");
    }
    // The checkpoint's own by its short name, and a relative of it.
    for class in [flow, "FlowMatchHeunDiscreteScheduler"] {
        let config = read(class, "", Some("flow-euler-karras")).unwrap();
        assert!(config.kind.is_flow_match());
        assert_eq!(Scheduler::new(&config, 5).unwrap().timesteps().len(), 5);
    }
}

#[test]
fn impossible_shifts_are_refused() {
    let read = |more: &str| {
        let text = format!(
            r#"{{"_class_name": "FlowMatchEulerDiscreteScheduler", "use_dynamic_shifting": true{more}}}"#
        );
        SchedulerConfig::from_json(Path::new("scheduler_config.json"), &text, None)
    };
    for (more, field) in [
        (r#", "max_image_seq_len": 256"#, "max_image_seq_len"),
        (r#", "time_shift_type": "quadratic""#, "time_shift_type"),
        (r#", "max_shift": 1e9"#, "max_shift"),
        (
            r#", "use_karras_sigmas": true, "use_exponential_sigmas": true"#,
            "use_exponential_sigmas",
        ),
    ] {
        let error = read(more).unwrap_err().to_string();
        assert!(error.contains(&format!("`{field}`")), "{error}");
    }
    let error = Scheduler::new(&read("").unwrap(), 4).unwrap_err().to_string();
    assert!(error.contains("the size of a picture, which is not known"), "{error}");
    for (more, steps, tokens) in [
        ("", 0, 1024),
        ("", 1001, 1024),
        // One step ends at the first noise level, which is not stretched.
        (r#", "shift_terminal": 0.1"#, 1, 1024),
        (r#", "time_shift_type": "linear", "base_shift": -1"#, 4, 16),
        (r#", "base_shift": 90"#, 4, 1),
    ] {
        let mut config = read(more).unwrap();
        config.for_flux(tokens).unwrap();
        let error = Scheduler::new(&config, steps).unwrap_err().to_string();
        assert!(error.contains("steps are not possible"), "{more} {steps}: {error}");
    }
}

#[test]
fn infinity_as_python_writes_it_is_read() {
    let text = r#"{"_class_name": "DPMSolverMultistepScheduler", "lambda_min_clipped": -Infinity, "variance_type": "fixed_small"}"#;
    let config = SchedulerConfig::from_json(Path::new("config"), text, None).unwrap();
    assert_eq!(Scheduler::new(&config, 20).unwrap().timesteps()[0], 999.0);
}

#[test]
fn impossible_numbers_of_steps_are_refused() {
    let config = |text: &str, choice: Option<&str>| {
        let choice = choice.map(|name| name.parse().unwrap());
        SchedulerConfig::from_json(Path::new("config"), text, choice).unwrap()
    };
    for (choice, text, steps) in [
        ("ddim", "{}", 0),
        ("lcm", "{}", 51),
        ("tcd", r#"{"original_inference_steps": 8}"#, 9),
        ("ddim", "{}", 1001),
        ("ddim", "{\"steps_offset\": 1}", 1000),
        ("pndm", "{}", 3),
        ("dpm++", "{}", 1000),
        ("euler", r#"{"beta_end": 1}"#, 10),
        ("euler", r#"{"beta_start": 0, "beta_end": 0}"#, 10),
        ("dpm++", r#"{"beta_start": 0.5, "beta_end": 0.9}"#, 10),
        (
            "ddim",
            r#"{"rescale_betas_zero_snr": true, "timestep_spacing": "trailing", "clip_sample": false}"#,
            10,
        ),
    ] {
        let error = Scheduler::new(&config(text, Some(choice)), steps).unwrap_err().to_string();
        assert!(error.contains("steps are not possible"), "{choice} {text} {steps}: {error}");
    }
}

proptest! {
    #[test]
    fn any_configuration_is_run_or_refused(
        kind in 0..7usize,
        fields in [
            (0..4usize, 0.0..1.0f64, 0.0..1.0f64),
            (0..4usize, -1.0..30.0f64, -1.0..30.0f64),
            (0..3usize, -20.0..20.0f64, 0.0..3.0f64),
        ],
        flags in proptest::collection::vec(any::<bool>(), 10),
        train in 0..60usize,
        taught in 0..60usize,
        offset in 0..40usize,
        steps in 0..70usize,
    ) {
        let [(betas, start, end), (prediction, least, greatest), (spacing, lambda, clip)] = fields;
        let name = |names: &[&str], index: usize| names.get(index).copied().unwrap_or("other").to_owned();
        let config = json!({
            "num_train_timesteps": train,
            "beta_schedule": name(&["linear", "scaled_linear", "squaredcos_cap_v2"], betas),
            "beta_start": start, "beta_end": end,
            "prediction_type": name(&["epsilon", "v_prediction", "sample"], prediction),
            "original_inference_steps": taught,
            "timestep_spacing": name(&["leading", "linspace", "trailing"], spacing),
            "steps_offset": offset,
            "sigma_min": least, "sigma_max": greatest,
            "lambda_min_clipped": lambda,
            "clip_sample_range": clip,
            "clip_sample": flags[0], "set_alpha_to_one": flags[1], "skip_prk_steps": flags[2],
            "use_karras_sigmas": flags[3], "use_exponential_sigmas": flags[4],
            "rescale_betas_zero_snr": flags[5], "lower_order_final": flags[6],
            "euler_at_final": flags[7],
            "final_sigmas_type": if flags[8] { "zero" } else { "sigma_min" },
            "solver_type": if flags[9] { "midpoint" } else { "heun" },
        });
        let choice = ["ddim", "pndm", "euler", "dpm++", "euler-a", "lcm", "tcd"][kind].parse().unwrap();
        let path = Path::new("scheduler_config.json");
        let config = SchedulerConfig::from_json(path, &config.to_string(), Some(choice));
        if let Ok(mut scheduler) = config.and_then(|config| Scheduler::new(&config, steps)) {
            let calls = scheduler.timesteps().len();
            prop_assert!(calls >= 1 && calls <= 4 * steps + 1);
            let mut sample = [0.5, -0.5];
            for _ in 0..=calls {
                prop_assert!(scheduler.input_divisor() >= 1.0);
                scheduler.step(&[0.25, -1.0], &mut sample, &mut || vec![1.5, -1.5]);
            }
            prop_assert!(sample.iter().all(|value| value.is_finite()), "{sample:?}");
        }
    }
}
