//! Pictures on a GPU, or on a software adapter that acts as one: those of the processors, and the
//! same wherever weights are kept.

mod common;

use std::collections::BTreeMap;

use common::fixture;
use outsize_core::gpu;
use outsize_diffuse::{ImagePipeline, ImageProgress, ImageRequest, ImageSettings};
use outsize_plan::{Bandwidth, Budget, Gpu, HardwareProfile, ManualMap, Processor, Tier};

fn settings(budget: &str) -> ImageSettings {
    ImageSettings::new(Budget::parse(budget).unwrap())
}

/// A machine whose GPU is always faster.
fn figures() -> HardwareProfile {
    let processor = Processor {
        memory_bytes_per_second: 1e15,
        product_bytes_per_second: 1e15,
        product_flops: 1e18,
        cache_bytes_per_second: 1e15,
        block_seconds: 0.0,
        ..HardwareProfile::default().cpu
    };
    let gpu = Gpu {
        processor: Processor { prefill: None, ..processor },
        upload: Bandwidth { bytes_per_second: 1e15, latency_seconds: 0.0 },
        ..Gpu::default()
    };
    HardwareProfile { gpus: BTreeMap::from([(0, gpu)]), ..HardwareProfile::default() }
}

#[test]
fn pictures_are_those_of_the_processors_wherever_weights_are_kept() {
    if let Err(error) = gpu(0) {
        assert!(std::env::var_os("OUTSIZE_GPU_TESTS").is_none(), "{error}");
        eprintln!("skipped: {error}");
        return;
    }
    let request = ImageRequest { steps: Some(3), seeds: vec![4], ..ImageRequest::new("a cat") };
    for name in ["pipeline", "pipeline-v2"] {
        let open = |settings| ImagePipeline::open(&fixture(name), None, settings).unwrap();
        let expected = open(settings("cpu=1GB")).generate(&request).unwrap();
        let mut first = None;
        for map in ["gpu0", "cpu", "disk"] {
            let mut settings = settings("gpu0=400MB,cpu=1GB");
            settings.planning.figures = figures();
            let text = format!(r#"{{"": "{map}"}}"#);
            settings.planning.device_map = Some(ManualMap::parse(&text).unwrap());
            let mut on_gpu = 0;
            let pictures = open(settings).generate_watched(&request, |progress| {
                if let ImageProgress::Began { map: placed, .. } = progress {
                    let computes = placed.blocks().iter().all(|it| it.decode_on == Tier::Gpu(0));
                    on_gpu += usize::from(computes);
                }
            });
            let pictures = pictures.unwrap();
            assert_eq!(on_gpu, 3, "{name} with {map}");
            for (found, expected) in pictures[0].rgb.iter().zip(&expected[0].rgb) {
                let off = (i16::from(*found) - i16::from(*expected)).abs();
                assert!(off <= 1, "{name} with {map}: {found}, not {expected}");
            }
            assert_eq!(*first.get_or_insert_with(|| pictures.clone()), pictures, "{map}");
        }
    }
}

#[test]
fn a_part_that_has_no_room_on_the_gpu_is_computed_by_the_processors() {
    let mut settings = settings("gpu0=1MB,cpu=1GB");
    settings.planning.figures = figures();
    let model = outsize_diffuse::ImageModel::open(&fixture("pipeline"), None).unwrap();
    let plans = model.plan(&settings, &ImageRequest::new("a cat")).unwrap();
    for plan in plans {
        assert!(plan.map.blocks().iter().all(|block| block.decode_on == Tier::Cpu));
    }
}
