//! Reads a file through a ring and does nothing with it: the speed of the stream alone.
//!
//!     cargo run --release -p outsize-stream --example scan -- FILE [RING_MIB [READERS [PIECE_KIB [UNIT_KIB]]]]

use outsize_stream::{Chunk, Options, Source, Stream};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("which file?")?;
    let number = |at: usize, default: usize| -> Result<usize, std::num::ParseIntError> {
        args.get(at).map_or(Ok(default), |text| text.parse())
    };
    let (ring, readers, piece) = (number(1, 64)?, number(2, 4)?, number(3, 1024)?);
    let unit_bytes = (number(4, 4096)?.max(1) as u64) << 10;
    let len = std::fs::metadata(path)?.len();
    let units: Vec<Chunk> = (0..len / unit_bytes)
        .map(|at| Chunk {
            name: format!("part {at}").into(),
            source: 0,
            offset: at * unit_bytes,
            len: unit_bytes,
            align: 1,
            convert: None,
            keep: false,
        })
        .collect();
    let options = Options {
        ring_bytes: (ring << 20) as u64,
        overflow_bytes: 0,
        readers,
        piece_bytes: piece << 10,
    };
    let order = (0..units.len()).collect();
    let count = units.len();
    let stream = Stream::start(vec![Source::open(path)?], units, order, options)?;
    for pass in 0..3 {
        let (began, before) = (Instant::now(), stream.stats());
        for unit in 0..count {
            stream.lease(unit)?;
        }
        stream.end_pass();
        let read = stream.stats().since(&before).bytes_read;
        let speed = read as f64 / began.elapsed().as_secs_f64();
        println!("pass {pass}: {:.2} GB/s", speed / 1e9);
    }
    Ok(())
}
