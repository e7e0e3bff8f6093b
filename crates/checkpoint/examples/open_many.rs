//! How long it takes to open a checkpoint of very many tensors.
//!
//! `cargo run --release -p outsize-checkpoint --example open_many -- 100000 50` builds one of
//! 100000 tensors in 50 shards in a temporary folder, and opens it ten times.
use std::error::Error;
use std::time::Instant;

use outsize_checkpoint::{Checkpoint, Dtype, ShardWriter, TensorSpec};

fn main() -> Result<(), Box<dyn Error>> {
    let mut numbers = std::env::args().skip(1).map(|number| number.parse::<usize>());
    let tensors = numbers.next().transpose()?.unwrap_or(100_000);
    let shards = numbers.next().transpose()?.unwrap_or(50).max(1);

    let place = tempfile::tempdir()?;
    let out = place.path().join("many");
    let name =
        |n: usize| format!("model.layers.{}.mlp.experts.{}.up_proj.weight", n / 256, n % 256);
    let specs = (0..tensors).map(|n| TensorSpec::new(name(n), Dtype::BF16, [2, 3])).collect();
    let data = [0; 12];
    let start = Instant::now();
    let mut writer =
        ShardWriter::create(&out, specs, (tensors.div_ceil(shards) * data.len()) as u64)?;
    for n in 0..tensors {
        writer.write(&name(n), &data)?;
    }
    writer.finish()?;
    println!("wrote {tensors} tensors in {:.3} s", start.elapsed().as_secs_f64());

    let mut times = Vec::new();
    for _ in 0..10 {
        let start = Instant::now();
        let checkpoint = Checkpoint::open(&out)?;
        times.push(start.elapsed().as_secs_f64());
        assert_eq!(checkpoint.tensors().len(), tensors);
    }
    times.sort_by(f64::total_cmp);
    println!("opened it in {:.3} s (median of 10; slowest {:.3} s)", times[5], times[9]);
    Ok(())
}
