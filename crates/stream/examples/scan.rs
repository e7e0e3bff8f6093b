//! Reads a file through a ring and does nothing with it: the speed of the stream alone.
//!
//!     cargo run --release -p outsize-stream --example scan -- FILE [RING_MIB [READERS [READ_KIB [CHUNK_KIB]]]]

use outsize_stream::{Chunk, Options, Segment, Source, Stream};
use std::time::Instant;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let path = args.first().ok_or("which file?")?;
    let number = |at: usize, default: usize| -> Result<usize, std::num::ParseIntError> {
        args.get(at).map_or(Ok(default), |text| text.parse())
    };
    let (ring, readers, read) = (number(1, 64)?, number(2, 4)?, number(3, 1024)?);
    let chunk_bytes = (number(4, 4096)?.max(1) as u64) << 10;
    let len = std::fs::metadata(path)?.len();
    let chunks: Vec<Chunk> = (0..len / chunk_bytes)
        .map(|at| Chunk {
            name: format!("part {at}").into(),
            segments: vec![Segment {
                source: 0,
                offset: at * chunk_bytes,
                len: chunk_bytes,
                align: 1,
                convert: None,
            }],
            keep: false,
            occasional: false,
        })
        .collect();
    let options = Options {
        ring_bytes: (ring << 20) as u64,
        overflow_bytes: 0,
        readers,
        read_bytes: read << 10,
    };
    let order = (0..chunks.len()).collect();
    let count = chunks.len();
    let stream = Stream::start(vec![Source::open(path)?], chunks, order, options)?;
    for pass in 0..3 {
        let (began, before) = (Instant::now(), stream.stats());
        for chunk in 0..count {
            stream.lease(chunk)?;
        }
        stream.end_pass();
        let read = stream.stats().since(&before).bytes_read;
        let speed = read as f64 / began.elapsed().as_secs_f64();
        println!("pass {pass}: {:.2} GB/s", speed / 1e9);
    }
    Ok(())
}
