//! GPUs: their links, and matmuls, attention and small operations as layers on them do these.

use std::collections::BTreeMap;
use std::time::Instant;

use burn::tensor::activation::softmax;
use burn::tensor::{AllocationProperty, Bytes, DType, Device, Tensor};
use outsize_kernels::gpu::{Fence, GpuDevice, UploadStream, download, gpus};
use outsize_kernels::{WeightTensor, linear, rms_norm};
use outsize_plan::{Bandwidth, Gpu, Processor, format_size};

use crate::Error;
use crate::layers::Random;
use crate::measured::Measured;
use crate::options::Stop;
use crate::samples::{Pace, Samples, seconds};

/// Bytes of a tile, as weights are copied and multiplied.
const TILE: u64 = 4 << 20;

/// Rows and columns of a matrix in bf16: several tiles.
const MATRIX: [usize; 2] = [4096, 4096];

/// Rows of activations of products that arithmetic bounds.
const ROWS: usize = 512;

/// The most memory of a GPU to measure with, in bytes.
const MOST: u64 = 1 << 30;

/// What is timed at once takes this long at least, in seconds, if there is enough memory: else
/// waiting for its end would count.
const LEAST: f64 = 0.03;

/// How long each figure is measured, beyond the least number of repetitions, in seconds.
const LIMIT: f64 = 0.5;

/// Measures each GPU that this build computes on, with at most `bytes` of main memory.
pub(crate) fn measure(
    measured: &mut Measured,
    bytes: u64,
    stop: &Stop,
    mut observe: impl FnMut(usize),
) -> Result<BTreeMap<usize, Gpu>, Error> {
    let of = |gpu: &GpuDevice| {
        observe(gpu.number);
        let known = gpu.memory.map_or(MOST, |memory| memory / 8);
        let bytes = bytes.min(known).clamp(TILE, MOST);
        Ok((gpu.number, Probe { gpu, device: &gpu.device, bytes, stop }.measure(measured)?))
    };
    gpus().iter().map(of).collect()
}

struct Probe<'a> {
    gpu: &'a GpuDevice,
    device: &'a Device,
    bytes: u64,
    stop: &'a Stop,
}

impl Probe<'_> {
    fn measure(&self, measured: &mut Measured) -> Result<Gpu, Error> {
        let mut add = |name: &str, unit: &str, samples: Samples, how: String| {
            let name = format!("gpu{} {name}", self.gpu.number);
            measured.add(&name, unit, &samples, how);
            Some(samples.median()).filter(|value| value.is_finite() && *value > 0.0)
        };
        let nothing = || Error::Nothing { what: "a GPU" };
        let (up, bytes) = self.uploads()?;
        let how = format!("{} in tiles of {}", format_size(bytes), format_size(TILE));
        let up = add("upload", "B/s", up, format!("{how}, to {}", self.gpu.name));
        let first =
            add("upload, begin", "s", self.small_uploads()?, "one word, and its end".into());
        let (down, bytes) = self.downloads()?;
        let down = add("download", "B/s", down, format!("{} of f32", format_size(bytes)));
        let last = add("download, begin", "s", self.small_downloads()?, "one word".into());
        let (memory, bytes) = self.memory()?;
        let how = format!("{} scaled: read and written", format_size(bytes));
        let memory = add("memory", "B/s", memory, how);
        let matrices = self.matrices()?;
        let size = format_size(matrices.len() as u64 * matrix_bytes());
        let (gemv, _) = self.products(&matrices, 1)?;
        let how = format!("one row of activations with {size} of bf16 weights");
        let gemv = add("products of one row", "B/s", gemv, how);
        let (_, gemm) = self.products(&matrices, ROWS)?;
        let how = format!("{ROWS} rows of activations with bf16 weights");
        let gemm = add("products of many rows", "FLOP/s", gemm, how);
        drop(matrices);
        let cache = self.attention()?;
        let cache = add("attention", "B/s", cache, "keys and values in f32".into());
        let block = add("rest of a block", "s", self.block()?, "a layer of width 64".into());
        let link = |rate: Option<f64>, latency: Option<f64>| {
            let bytes_per_second = rate.ok_or_else(nothing)?;
            Ok::<_, Error>(Bandwidth { bytes_per_second, latency_seconds: latency.unwrap_or(0.0) })
        };
        Ok(Gpu {
            processor: Processor {
                memory_bytes_per_second: memory.ok_or_else(nothing)?,
                product_bytes_per_second: gemv.ok_or_else(nothing)?,
                product_flops: gemm.ok_or_else(nothing)?,
                prefill: None,
                cache_bytes_per_second: cache.ok_or_else(nothing)?,
                block_seconds: block.unwrap_or(0.0),
            },
            upload: link(up, first)?,
            download: Some(link(down, last)?),
        })
    }

    fn wait(&self) -> Result<(), Error> {
        self.waited(Fence::new(self.device))
    }

    fn waited(&self, fence: Fence) -> Result<(), Error> {
        fence.wait().map_err(|reason| Error::Gpu { number: self.gpu.number, reason })
    }

    fn weight(&self, bytes: Bytes, shape: [usize; 2]) -> Result<WeightTensor, Error> {
        let failed = |reason| Error::Gpu { number: self.gpu.number, reason };
        WeightTensor::upload(bytes, DType::BF16, shape, self.device).map_err(failed)
    }

    /// The seconds of what `work` gives to the device. The first times are for compiling.
    fn timed<T>(&self, mut work: impl FnMut() -> Result<T, Error>) -> Result<Samples, Error> {
        let mut samples = Samples::default();
        for round in Pace::new(5, 25, LIMIT) {
            self.stop.check()?;
            let began = Instant::now();
            let made = work()?;
            self.wait()?;
            drop(made);
            if round > 1 {
                samples.push(seconds(began));
            }
        }
        Ok(samples)
    }

    /// The same of `count` times as much work: as often as takes long enough, and how often that
    /// is.
    fn repeated<T>(
        &self,
        most: u64,
        mut work: impl FnMut() -> Result<T, Error>,
    ) -> Result<(Samples, u64), Error> {
        let mut count = 1;
        work()?;
        self.wait()?;
        loop {
            self.stop.check()?;
            let began = Instant::now();
            (0..count).try_for_each(|_| work().map(drop))?;
            self.wait()?;
            let took = seconds(began);
            if took >= LIMIT {
                // A slow device: once is enough.
                return Ok((Samples::from_iter([took]), count));
            }
            if took >= LEAST || count >= most {
                break;
            }
            count *= 2;
        }
        let samples = self.timed(|| (0..count).try_for_each(|_| work().map(drop)))?;
        Ok((samples, count))
    }

    /// Bytes per second of tiles that are copied to slots of their own streams, as weights are.
    fn uploads(&self) -> Result<(Samples, u64), Error> {
        let slots: [UploadStream; 3] = std::array::from_fn(|_| UploadStream::new());
        let tile = bytes::Bytes::from(tile_values(TILE));
        let (mut next, mut held) = (0, [const { None }; 3]);
        let (samples, count) = self.repeated(self.bytes / TILE, || {
            let bytes = Bytes::from_shared(tile.clone(), AllocationProperty::Other);
            let shape = [TILE as usize / 2 / MATRIX[1], MATRIX[1]];
            next = (next + 1) % slots.len();
            if let Some((_, fence)) = held[next].take() {
                self.waited(fence)?;
            }
            held[next] = Some(slots[next].enter(|| {
                let tile = self.weight(bytes, shape)?;
                Ok::<_, Error>((tile, Fence::new(self.device)))
            })?);
            Ok(())
        })?;
        Ok((samples.under((count * TILE) as f64), count * TILE))
    }

    fn small_uploads(&self) -> Result<Samples, Error> {
        self.timed(|| self.weight(Bytes::from_bytes_vec(vec![0; 4]), [1, 2]))
    }

    fn downloads(&self) -> Result<(Samples, u64), Error> {
        let bytes = self.bytes.min(16 * TILE);
        let tensor = Tensor::<1>::ones([bytes as usize / 4], (self.device, DType::F32));
        Ok((self.read(&tensor)?.under(bytes as f64), bytes))
    }

    fn small_downloads(&self) -> Result<Samples, Error> {
        self.read(&Tensor::<1>::ones([1], (self.device, DType::F32)))
    }

    fn read(&self, tensor: &Tensor<1>) -> Result<Samples, Error> {
        let number = self.gpu.number;
        self.timed(|| download(tensor.clone()).map_err(|reason| Error::Gpu { number, reason }))
    }

    fn memory(&self) -> Result<(Samples, u64), Error> {
        let bytes = (self.bytes / 4).max(TILE);
        let tensor = Tensor::<1>::ones([bytes as usize / 4], (self.device, DType::F32));
        let (samples, count) = self.repeated(64, || Ok(tensor.clone() * 0.5))?;
        Ok((samples.under((2 * bytes * count) as f64), bytes))
    }

    /// Different matrices, more than a cache holds if there is memory for them.
    fn matrices(&self) -> Result<Vec<WeightTensor>, Error> {
        let count = (self.bytes / matrix_bytes()).clamp(1, 32);
        let values = tile_values(matrix_bytes());
        let matrix = |_| {
            self.stop.check()?;
            self.weight(Bytes::from_bytes_vec(values.clone()), MATRIX)
        };
        (0..count).map(matrix).collect()
    }

    /// Rows of activations with the matrices one after the other, tile by tile: bytes of weights
    /// per second, and operations.
    fn products(
        &self,
        matrices: &[WeightTensor],
        rows: usize,
    ) -> Result<(Samples, Samples), Error> {
        let x = Tensor::<2>::ones([rows, MATRIX[1]], (self.device, DType::F32));
        let step = TILE as usize / 2 / MATRIX[1];
        let tiles = |matrix: &WeightTensor| -> Vec<WeightTensor> {
            (0..MATRIX[0]).step_by(step).map(|row| matrix.slice(row..row + step)).collect()
        };
        let mut tiles = matrices.iter().flat_map(tiles).cycle();
        let least = match rows {
            // All of them, so that none is in a cache.
            1 => matrices.len() * MATRIX[0] / step,
            _ => 1,
        };
        let (samples, count) = self.repeated(1024, || {
            let tiles = tiles.by_ref().take(least);
            Ok(tiles.map(|tile| linear(x.clone(), tile)).collect::<Vec<_>>())
        })?;
        let tiles = count as f64 * least as f64;
        let operations = 2.0 * (rows * step * MATRIX[1]) as f64 * tiles;
        Ok((samples.under(TILE as f64 * tiles), samples.under(operations)))
    }

    /// Bytes per second of keys and values that a token attends to.
    fn attention(&self) -> Result<Samples, Error> {
        let [heads, width] = [8, 64];
        let columns = ((self.bytes / 8) as usize / (2 * 4 * heads * width)).clamp(64, 131_072);
        let stored = || Tensor::<4>::ones([1, heads, columns, width], (self.device, DType::F32));
        let (keys, values) = (stored(), stored());
        let queries = Tensor::<4>::ones([1, heads, 4, width], (self.device, DType::F32));
        let (samples, count) =
            self.repeated(64, || Ok(attend(queries.clone(), keys.clone(), values.clone())))?;
        Ok(samples.under((count as usize * 2 * 4 * heads * width * columns) as f64))
    }

    /// Seconds of a layer that is too small for anything but launching its operations.
    fn block(&self) -> Result<Samples, Error> {
        const WIDTH: usize = 64;
        let matrix = self.weight(
            Bytes::from_bytes_vec(tile_values((2 * WIDTH * WIDTH) as u64)),
            [WIDTH, WIDTH],
        )?;
        let scale = Tensor::<1>::ones([WIDTH], (self.device, DType::F32));
        let x = Tensor::<2>::ones([1, WIDTH], (self.device, DType::F32));
        let product = |x: &Tensor<2>| linear(x.clone(), matrix.clone());
        let heads = |x: Tensor<2>| x.reshape([1, 1, 1, WIDTH]);
        let (samples, count) = self.repeated(256, || {
            let normed = rms_norm(x.clone(), scale.clone(), 1e-5);
            let [queries, keys, values] = [(); 3].map(|()| heads(product(&normed)));
            // Rotary embedding.
            let [queries, keys] = [queries, keys].map(|x| x.clone() * 0.5 + x * 0.5);
            let mixed = attend(queries, keys, values).reshape([1, WIDTH]);
            let sum = x.clone() + product(&mixed);
            let normed = rms_norm(sum.clone(), scale.clone(), 1e-5);
            let gate = burn::tensor::activation::silu(product(&normed)) * product(&normed);
            Ok(sum + product(&gate))
        })?;
        Ok(samples.over(count as f64))
    }
}

/// Attention of Burn's own operations, as on a GPU.
fn attend(queries: Tensor<4>, keys: Tensor<4>, values: Tensor<4>) -> Tensor<4> {
    softmax(queries.matmul(keys.swap_dims(2, 3)) * 0.125, 3).matmul(values)
}

fn matrix_bytes() -> u64 {
    2 * (MATRIX[0] * MATRIX[1]) as u64
}

/// So many bytes of weights in bf16.
fn tile_values(bytes: u64) -> Vec<u8> {
    let mut values = vec![0; bytes as usize];
    Random::new(1).fill(&mut values);
    values
}
