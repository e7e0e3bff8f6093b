//! What ranks tell each other, and what happens when one fails.

use std::time::{Duration, Instant};

use burn::nn::BatchNormConfig;
use burn::tensor::{Int, Tensor};
use outsize_train::{Accelerator, Error, Reduction, threads};

fn ranks(accelerator: &Accelerator) -> (usize, f32) {
    (accelerator.process_index(), accelerator.process_index() as f32)
}

fn values<const D: usize>(tensor: Tensor<D>) -> Vec<f32> {
    tensor.into_data().iter().collect()
}

#[test]
fn tensors_and_objects_reach_all_ranks() {
    let results = threads(3, |accelerator| -> Result<(), Error> {
        let device = accelerator.device();
        let (rank, number) = ranks(&accelerator);

        // Ranks may have different numbers of rows.
        let rows = Tensor::<2>::full([rank + 1, 2], number, &device);
        let all = accelerator.gather(rows.clone())?;
        assert_eq!(all.dims(), [6, 2]);
        assert_eq!(values(all.narrow(1, 0, 1)), [0., 1., 1., 2., 2., 2.]);

        let flags = Tensor::<1, Int>::from_data([rank as i64], &device).greater_elem(0);
        let flags: Vec<bool> = accelerator.gather(flags)?.into_data().iter().collect();
        assert_eq!(flags, [false, true, true]);

        let sum =
            accelerator.reduce(Tensor::<1>::from_data([number, 1.0], &device), Reduction::Sum)?;
        assert_eq!(values(sum), [3., 3.]);
        let whole = Tensor::<1, Int>::from_data([rank as i64 * 3], &device);
        let mean = accelerator.reduce(whole, Reduction::Mean)?;
        assert_eq!(mean.into_scalar::<i64>(), 3);

        let of_two = accelerator.broadcast(rows.clone(), 2)?;
        assert_eq!(values(of_two), [2.; 6]);
        let padded = accelerator.pad_across_processes(rows, 0, -1.0, rank == 1)?;
        let expected: [&[f32]; 3] =
            [&[0., 0., -1., -1., -1., -1.], &[-1., -1., 1., 1., 1., 1.], &[2.; 6]];
        assert_eq!(values(padded), expected[rank]);

        assert_eq!(accelerator.gather_object(&(rank, "x".repeat(rank)))?[2], (2, "xx".to_owned()));
        let mut objects = vec![rank; 2];
        accelerator.broadcast_object_list(&mut objects, 1)?;
        assert_eq!(objects, [1, 1]);

        let prompts = ["a", "b", "c", "d"];
        let expected: [&[&str]; 3] = [&["a", "b"], &["c"], &["d"]];
        assert_eq!(accelerator.split_between_processes(&prompts, false), expected[rank]);
        assert_eq!(accelerator.split_between_processes(&prompts, true).len(), 2);

        assert!(!accelerator.check_trigger()?);
        accelerator.on_process(1, || accelerator.set_trigger());
        assert!(accelerator.check_trigger()? && !accelerator.check_trigger()?);
        Ok(())
    });
    results.unwrap().into_iter().for_each(Result::unwrap);
}

#[test]
fn clones_of_a_model_are_each_ranks_own() {
    let norm = BatchNormConfig::new(1).init(&Accelerator::builder().build().unwrap().device());
    let means = threads(2, |accelerator| {
        let norm = accelerator.prepare_model(norm.clone()).unwrap();
        let value = accelerator.process_index() as f32 * 10.0;
        norm.forward(Tensor::<2>::full([4, 1], value, &accelerator.device()));
        values(norm.running_mean.value_sync())
    });
    assert_eq!(means.unwrap(), [[0.0], [1.0]]);
}

#[test]
fn the_main_process_goes_first() {
    let order = std::sync::Mutex::new(Vec::new());
    threads(3, |accelerator| {
        std::thread::sleep(Duration::from_millis(30 - 10 * accelerator.process_index() as u64));
        let note = || order.lock().unwrap().push(accelerator.process_index());
        accelerator.main_process_first(note).unwrap();
        assert_eq!(accelerator.on_last_process(|| 1).is_some(), accelerator.is_last_process());
    })
    .unwrap();
    assert_eq!(order.into_inner().unwrap()[0], 0);
}

#[test]
fn a_rank_that_differs_is_named() {
    let fault = |train: &(dyn Fn(&Accelerator) -> Result<(), Error> + Sync), debug| {
        let results = Accelerator::builder().debug(debug).threads(3, |rank| train(&rank)).unwrap();
        results.into_iter().map(|result| result.unwrap_err().to_string()).collect::<Vec<_>>()
    };
    let shapes = |accelerator: &Accelerator| {
        let columns = if accelerator.process_index() == 1 { 3 } else { 2 };
        let tensor = Tensor::<2>::zeros([1, columns], &accelerator.device());
        accelerator.gather(tensor).map(drop)
    };
    for debug in [false, true] {
        for message in fault(&shapes, debug) {
            assert!(message.contains("rank 1 calls gather of F32 [any, 3]"), "{message}");
            assert!(message.contains("rank 0 calls gather of F32 [any, 2]"), "{message}");
        }
    }
    let calls = |accelerator: &Accelerator| match accelerator.process_index() {
        2 => accelerator.wait_for_everyone(),
        _ => accelerator.gather_object(&1).map(drop),
    };
    for message in fault(&calls, true) {
        assert!(message.contains("rank 2 calls wait_for_everyone"), "{message}");
    }
    for message in fault(&calls, false) {
        assert!(message.contains("rank 2 calls"), "{message}");
    }
}

#[test]
fn a_rank_that_fails_frees_the_others_at_once() {
    let began = Instant::now();
    let panicked = threads(3, |accelerator| {
        assert!(accelerator.process_index() != 1, "rank one gives up");
        accelerator.wait_for_everyone().unwrap_err().to_string()
    });
    let message = panicked.unwrap_err().to_string();
    assert!(message.contains("rank 1") && message.contains("rank one gives up"), "{message}");

    let returned = threads(3, |accelerator| match accelerator.process_index() {
        1 => String::new(),
        _ => accelerator.wait_for_everyone().unwrap_err().to_string(),
    });
    assert!(returned.unwrap()[2].contains("rank 1 failed: it returned"));

    let late = Accelerator::builder().timeout(Duration::from_millis(50)).threads(2, |rank| {
        rank.on_main_process(|| std::thread::sleep(Duration::from_millis(200)));
        rank.wait_for_everyone().unwrap_err().to_string()
    });
    assert!(late.unwrap()[1].contains("ranks [0] did not reach wait_for_everyone"));
    assert!(began.elapsed() < Duration::from_secs(5));
}

/// Collects what is logged.
#[derive(Clone, Default)]
struct Log(std::sync::Arc<std::sync::Mutex<Vec<String>>>);

impl tracing::Subscriber for Log {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        struct Fields<'a>(&'a mut String);
        impl tracing::field::Visit for Fields<'_> {
            fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn std::fmt::Debug) {
                self.0.push_str(&format!("{field}={value:?} "));
            }
        }
        let mut line = format!("{} ", event.metadata().level());
        event.record(&mut Fields(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

#[test]
fn loggers_know_their_rank() {
    let log = Log::default();
    threads(2, |accelerator| {
        tracing::subscriber::with_default(log.clone(), || {
            let logger = accelerator.get_logger("loop");
            logger.info("once");
            logger.in_order(tracing::Level::WARN, "each").unwrap();
        });
    })
    .unwrap();
    let lines = log.0.lock().unwrap().join("\n");
    let expected = [
        r#"INFO message=once rank=0 logger="loop" "#,
        r#"WARN message=each rank=0 logger="loop" "#,
        r#"WARN message=each rank=1 logger="loop" "#,
    ];
    assert_eq!(lines, expected.join("\n"));
}
