//! The measurements.

use std::time::Instant;

use burn::tensor::{AllocationProperty, Bytes, DType, Device, Int, Tensor, TensorData};
use bytes::Bytes as Shared;
use outsize_kernels::gpu::{Fence, PackedWeight, UploadStream, download, gpus};

use crate::timing::{median, values};

/// `[out, in]` of the weights: of models of one, of eight and of 24 billion parameters.
const SHAPES: [[usize; 2]; 6] =
    [[2048, 2048], [5632, 2048], [2048, 5632], [32_000, 2048], [14_336, 4096], [5120, 32_768]];

/// Rows of activations.
const TOKENS: [usize; 7] = [1, 4, 8, 16, 64, 512, 2048];

/// How often each is repeated.
const TIMES: usize = 7;

pub fn main() {
    let Some(gpu) = gpus().first() else { return println!("no GPU") };
    let device = &gpu.device;
    println!("{}, {}", gpu.name, gpu.backend);
    launches(device);
    memory(device);
    links(device);
    products(device);
}

fn wait(device: &Device) {
    Fence::new(device).wait().expect("the device works");
}

/// The median of some runs, of which each does this so often before it waits, in seconds for each.
fn timed(device: &Device, often: usize, mut run: impl FnMut()) -> f64 {
    run();
    wait(device);
    median(
        (0..TIMES)
            .map(|_| {
                let start = Instant::now();
                (0..often).for_each(|_| run());
                wait(device);
                start.elapsed().as_secs_f64() / often as f64
            })
            .collect(),
    )
}

fn floats(rows: usize, columns: usize, device: &Device) -> Tensor<2> {
    let data = TensorData::new(values(rows * columns), [rows, columns]);
    Tensor::from_data(data, (device, DType::F32))
}

fn weight([rows, columns]: [usize; 2], device: &Device) -> PackedWeight {
    let words = values(rows * columns).into_iter().map(half::bf16::from_f32);
    let bytes = words.flat_map(half::bf16::to_le_bytes).collect();
    PackedWeight::upload(Bytes::from_bytes_vec(bytes), DType::BF16, [rows, columns], device)
        .expect("it has these bytes")
}

fn launches(device: &Device) {
    let small = floats(1, 64, device);
    let add = timed(device, 500, || drop(small.clone() + small.clone()));
    let packed = weight([64, 64], device);
    let gemv = timed(device, 500, || drop(packed.linear(small.clone())));
    let end = timed(device, 1, || drop(small.clone() + 1.0));
    println!(
        "an operation, one after the other: {:.1} µs (adding), {:.1} µs (product); alone and waited for: {:.0} µs",
        add * 1e6,
        gemv * 1e6,
        end * 1e6
    );
}

fn memory(device: &Device) {
    let large = floats(1 << 14, 1 << 14, device);
    let seconds = timed(device, 4, || drop(large.clone() * 2.0));
    println!(
        "memory: {:.0} GB/s, read and written",
        2.0 * 4.0 * (1u64 << 28) as f64 / seconds / 1e9
    );
}

fn links(device: &Device) {
    println!(
        "\nuploads     GB/s, one after the other | in three streams in turn | by wgpu itself | copied in main memory"
    );
    for size in [1usize << 20, 4 << 20, 16 << 20, 64 << 20] {
        let bytes = Shared::from(vec![7u8; size]);
        let count = (256 << 20) / size;
        let upload = || {
            let bytes = Bytes::from_shared(bytes.clone(), AllocationProperty::Other);
            PackedWeight::upload(bytes, DType::F32, [size / 4096, 1024], device)
                .expect("it has these bytes")
        };
        let plain = timed(device, count, || drop(upload()));
        let streams = [(); 3].map(|()| UploadStream::new());
        let mut slots = [const { None }; 3];
        let mut turn = 0;
        let in_turn = timed(device, count, || {
            turn = (turn + 1) % 3;
            slots[turn] = None;
            slots[turn] = Some(streams[turn].enter(upload));
        });
        let by_wgpu = timed(device, count, || {
            let bytes = Bytes::from_shared(bytes.clone(), AllocationProperty::Other);
            let data = TensorData::try_from_bytes(bytes, [size / 4], DType::U32);
            let data = data.expect("it has these bytes");
            drop(Tensor::<1, Int>::from_data(data, (device, DType::U32)));
        });
        let mut to = vec![0u8; size];
        let copied = timed(device, count, || to.copy_from_slice(std::hint::black_box(&bytes)));
        let rate = |seconds: f64| size as f64 / seconds / 1e9;
        println!(
            "{:>6} KiB  {:>8.2} {:>8.2} {:>8.2} {:>8.2}",
            size >> 10,
            rate(plain),
            rate(in_turn),
            rate(by_wgpu),
            rate(copied)
        );
    }
    for size in [1usize << 10, 1 << 20, 64 << 20] {
        let tensor = floats(1, size / 4, device);
        let seconds = timed(device, 1, || drop(download(tensor.clone()).expect("it can be read")));
        println!(
            "download of {:>6} KiB: {:.2} GB/s, {:.0} µs",
            size >> 10,
            size as f64 / seconds / 1e9,
            seconds * 1e6
        );
    }
}

fn products(device: &Device) {
    println!("\nbf16 weight      rows        ms     GB/s   GFLOP/s");
    for shape in SHAPES {
        let [rows, columns] = shape;
        let weight = weight(shape, device);
        for m in TOKENS {
            let x = floats(m, columns, device);
            let seconds = timed(device, 20, || drop(weight.linear(x.clone())));
            let (bytes, flops) = (2 * rows * columns, 2 * m * rows * columns);
            println!(
                "[{rows}, {columns}]  {m:>6} {:>9.3} {:>8.0} {:>9.0}",
                seconds * 1e3,
                bytes as f64 / seconds / 1e9,
                flops as f64 / seconds / 1e9
            );
        }
        for m in [512].into_iter().filter(|_| rows * columns < 20_000_000) {
            let (x, w) = (floats(m, columns, device), floats(rows, columns, device).transpose());
            let seconds = timed(device, 2, || drop(x.clone().matmul(w.clone())));
            println!(
                "[{rows}, {columns}]  {m:>6} {:>9.3}            {:>7.0} Burn, f32",
                seconds * 1e3,
                2.0 * (m * rows * columns) as f64 / seconds / 1e9
            );
        }
    }
}
