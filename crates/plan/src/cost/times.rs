//! How long blocks take where they are placed.

use super::{Costs, seconds};
use crate::steps::DiskTraffic;
use crate::tree::Weights;
use crate::{HardwareProfile, Tier};

/// The devices of a block, and its transfers in each pass.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Placed {
    pub(crate) decode_on: Tier,
    pub(crate) prefill_on: Tier,
    /// From disk.
    pub(crate) traffic: DiskTraffic,
    /// To the GPU that it computes on, in bytes.
    pub(crate) upload: Weights,
}

impl Placed {
    /// The GPU that it computes on in either phase.
    pub(crate) fn gpu(&self) -> Option<Tier> {
        let both = [self.decode_on, self.prefill_on];
        both.into_iter().find(|tier| matches!(tier, Tier::Gpu(_)))
    }
}

/// How long a block takes in one kind of pass.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Time {
    pub(crate) seconds: f64,
    pub(crate) compute: f64,
    pub(crate) transfer: f64,
    /// Copies of activations from the device of the block before.
    pub(crate) hop: f64,
}

/// The times of blocks, in their order, in decode and in prefill.
pub(crate) fn times<'a>(
    costs: &'a Costs,
    figures: &'a HardwareProfile,
    blocks: impl Iterator<Item = Placed> + 'a,
) -> impl Iterator<Item = (Time, Time)> + 'a {
    let mut before = [Tier::Cpu; 2];
    blocks.enumerate().map(move |(block, placed)| {
        let (mut decode, mut prefill) = time(costs, figures, block, &placed);
        let hops = costs.hops(block, &placed, &mut before, figures);
        for (time, hop) in [&mut decode, &mut prefill].into_iter().zip(hops) {
            (time.hop, time.seconds) = (hop, time.seconds + hop);
        }
        (decode, prefill)
    })
}

/// The time of a block in decode and in prefill, with activations where it computes.
fn time(costs: &Costs, figures: &HardwareProfile, block: usize, placed: &Placed) -> (Time, Time) {
    let DiskTraffic { streamed, kept } = placed.traffic;
    let from_disk =
        |bytes: Weights, share: f64| seconds(bytes.used(share), figures.disk.bytes_per_second);
    let upload = |tier, share| match tier {
        Tier::Gpu(number) => costs.upload(placed.upload.used(share), &figures.gpu(number)),
        Tier::Cpu | Tier::Disk => 0.0,
    };
    let compute = costs.decode(block, &figures.processor(placed.decode_on));
    let share = costs.share(block, 1.0);
    let transfer = from_disk(streamed.minus(kept), share).max(upload(placed.decode_on, share));
    let decode = Time { seconds: compute.max(transfer), compute, transfer, hop: 0.0 };

    let mut prefill = Time::default();
    let processor = figures.processor(placed.prefill_on);
    for pass in costs.passes(block) {
        let share = costs.share(block, pass.tokens);
        let to_gpu = upload(placed.prefill_on, share);
        let compute = costs.pass(block, &processor, pass);
        let hand_over = match placed.gpu() {
            Some(Tier::Gpu(number)) if placed.decode_on != placed.prefill_on => {
                costs.hand_over(block, pass, &figures.gpu(number))
            }
            _ => 0.0,
        };
        let read = if pass.first { streamed } else { streamed.minus(kept) };
        let transfer = from_disk(read, share).max(to_gpu + hand_over);
        prefill.compute += pass.count * compute;
        prefill.transfer += pass.count * transfer;
        prefill.seconds += pass.count * compute.max(transfer);
    }
    (decode, prefill)
}
