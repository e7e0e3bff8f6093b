//! Which rank reads which items, in which order.

use std::sync::Mutex;

use burn::data::dataloader::batcher::Batcher;
use burn::data::dataset::{Dataset, DatasetError, InMemDataset};
use burn::tensor::{Device, Int, Tensor};
use outsize_train::data::{LoaderState, ShardedLoader};
use outsize_train::{Accelerator, AcceleratorBuilder, DataLoaderBuilder, threads};

/// Batches of plain numbers.
#[derive(Clone)]
struct Numbers;

impl Batcher<usize, Vec<usize>> for Numbers {
    fn batch(&self, items: Vec<usize>, _device: &Device) -> Vec<usize> {
        items
    }
}

fn builder() -> DataLoaderBuilder<usize, Vec<usize>> {
    DataLoaderBuilder::new(Numbers).batch_size(2)
}

fn numbers(count: usize) -> InMemDataset<usize> {
    InMemDataset::new((0..count).collect())
}

fn epoch(loader: &ShardedLoader<Vec<usize>>) -> Vec<Vec<usize>> {
    loader.iter().map(Result::unwrap).collect()
}

/// What each rank reads in one epoch.
fn read(
    accelerator: AcceleratorBuilder,
    ranks: usize,
    build: impl Fn() -> DataLoaderBuilder<usize, Vec<usize>> + Sync,
    items: usize,
) -> Vec<Vec<Vec<usize>>> {
    let read = |accelerator: Accelerator| {
        let loader = build().build(numbers(items));
        epoch(&accelerator.prepare_data_loader(loader).unwrap())
    };
    accelerator.threads(ranks, read).unwrap()
}

#[test]
fn ranks_take_batches_in_turn() {
    let each = read(Accelerator::builder(), 2, builder, 8);
    assert_eq!(each, [[[0, 1], [4, 5]], [[2, 3], [6, 7]]]);
    let split = read(Accelerator::builder().split_batches(true), 2, builder, 4);
    assert_eq!(split, [[[0], [2]], [[1], [3]]]);

    let even = read(Accelerator::builder(), 2, builder, 9);
    assert_eq!(even[0].last().unwrap(), &[8]);
    assert_eq!(even[1].last().unwrap(), &[8], "an item is repeated");
    let uneven = read(Accelerator::builder().even_batches(false), 2, builder, 9);
    assert_eq!((uneven[0].len(), uneven[1].len()), (3, 2));
}

#[test]
fn settings_that_cannot_be_met_are_refused() {
    let fault = Accelerator::builder().split_batches(true).threads(3, |accelerator| {
        accelerator
            .prepare_data_loader(builder().build(numbers(4)))
            .map(drop)
            .unwrap_err()
            .to_string()
    });
    assert!(fault.unwrap()[0].contains("a batch size of 2 cannot be split over 3 ranks"));
}

#[test]
fn shuffling_is_the_same_on_every_rank_and_other_in_every_epoch() {
    let shuffled = || builder().shuffle(5);
    for workers in [0, 1, 3] {
        let epochs = threads(2, |accelerator| {
            let loader = shuffled().num_workers(workers).build(numbers(31));
            let loader = accelerator.prepare_data_loader(loader).unwrap();
            (epoch(&loader), epoch(&loader))
        });
        let [first, second] = epochs.unwrap().try_into().unwrap();
        let interleaved = |left: &[Vec<usize>], right: &[Vec<usize>]| {
            let pairs = left.iter().zip(right).flat_map(|(left, right)| [left, right]);
            pairs.flatten().copied().collect::<Vec<_>>()
        };
        let (one, two) = (interleaved(&first.0, &second.0), interleaved(&first.1, &second.1));
        let alone = read(Accelerator::builder(), 1, shuffled, 31).remove(0).concat();
        assert_eq!(one, alone, "{workers} workers");
        assert_ne!(one, two);
        let mut sorted = two;
        sorted.sort_unstable();
        assert_eq!(sorted, (0..31).collect::<Vec<_>>());
    }
}

#[test]
fn a_loader_resumes_in_mid_epoch() {
    for workers in [0, 2] {
        let build = |accelerator: &Accelerator| {
            let loader = builder().shuffle(5).num_workers(workers).build(numbers(20));
            accelerator.prepare_data_loader(loader).unwrap()
        };
        threads(2, |accelerator| {
            let whole = build(&accelerator);
            let epochs = [epoch(&whole), epoch(&whole), epoch(&whole)];
            assert_eq!(whole.state(), LoaderState { epoch: 3, batch: 0 });

            let stopped = build(&accelerator);
            assert_eq!(epoch(&stopped), epochs[0]);
            let _: Vec<_> = stopped.iter().take(2).collect();
            assert_eq!(stopped.state(), LoaderState { epoch: 1, batch: 2 });

            let resumed = build(&accelerator);
            resumed.load_state(stopped.state());
            assert_eq!(epoch(&resumed), epochs[1][2..]);
            assert_eq!(epoch(&resumed), epochs[2]);

            // Without a state to resume from, an epoch that was left is over.
            assert_eq!(epoch(&stopped), epochs[2]);
            let far = build(&accelerator);
            far.load_state(LoaderState { epoch: u64::MAX, batch: usize::MAX });
            assert!(epoch(&far).is_empty());
            let skipping = build(&accelerator);
            let rest = accelerator.skip_first_batches(&skipping, 3);
            assert_eq!(rest.map(Result::unwrap).collect::<Vec<_>>(), epochs[0][3..]);
        })
        .unwrap();
    }
}

/// A data set that notes which thread's rank reads it, and fails at one item.
struct Watched {
    rank: usize,
    reads: &'static Mutex<Vec<usize>>,
    fails_at: usize,
}

impl Dataset<usize> for Watched {
    fn get(&self, index: usize) -> Result<usize, DatasetError> {
        self.reads.lock().unwrap().push(self.rank);
        if index == self.fails_at {
            return Err(DatasetError::new(std::io::Error::other("a broken disk")));
        }
        Ok(index)
    }

    fn len(&self) -> usize {
        assert_eq!(self.rank, 0, "only rank 0 may look");
        10
    }
}

#[test]
fn rank_0_reads_for_all_where_batches_are_dispatched() {
    static READS: Mutex<Vec<usize>> = Mutex::new(Vec::new());
    let epochs = threads(2, |accelerator| {
        let dataset =
            |fails_at| Watched { rank: accelerator.process_index(), reads: &READS, fails_at };
        let loader = builder().dispatch_batches().build(dataset(99));
        let read = epoch(&accelerator.prepare_data_loader(loader).unwrap());
        let failing = builder().dispatch_batches().build(dataset(5));
        let failing = accelerator.prepare_data_loader(failing).unwrap();
        let fault = failing.iter().find_map(Result::err).unwrap().to_string();
        assert!(fault.contains("a broken disk"), "{fault}");
        read
    });
    assert_eq!(
        epochs.unwrap(),
        [[vec![0, 1], vec![4, 5], vec![8]], [vec![2, 3], vec![6, 7], vec![9]]]
    );
    assert!(READS.lock().unwrap().iter().all(|rank| *rank == 0));
}

#[test]
fn metrics_do_not_see_repeated_items() {
    let gathered = threads(3, |accelerator| {
        let loader = accelerator.prepare_data_loader(builder().build(numbers(13))).unwrap();
        let (mut all, mut objects) = (Vec::new(), Vec::new());
        for batch in loader.iter() {
            let batch: Vec<i64> = batch.unwrap().iter().map(|&item| item as i64).collect();
            let tensor = Tensor::<1, Int>::from_data(&batch[..], &accelerator.device());
            let tensor = accelerator.gather_for_metrics(tensor).unwrap();
            all.extend(tensor.into_data().iter::<i64>());
            objects.extend(accelerator.gather_objects_for_metrics(batch).unwrap());
        }
        assert_eq!(all, objects);
        all
    });
    assert!(gathered.unwrap().iter().all(|all| *all == (0..13).collect::<Vec<_>>()));
}
