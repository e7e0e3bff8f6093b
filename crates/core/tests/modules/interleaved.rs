//! Tiles of two matrices that are asked for in turns.

use crate::common::{fill, folder, options, values, write};
use burn::module::{Module, Param, ParamId};
use burn::tensor::{Device, Tensor};
use outsize_checkpoint::{Checkpoint, Dtype};
use outsize_core::{Access, Options, Streamed, dispatch, plan};

const ROWS: usize = 320;
const WIDTH: usize = 88;
/// Of a tile of 32 rows, and of the pages of the file that the largest is in.
const TILE: u64 = 32 * 4 * WIDTH as u64;
const PAGES: u64 = 4 << 12;

#[derive(Module, Debug)]
struct Two {
    first: Param<Tensor<2>>,
    second: Param<Tensor<2>>,
}

fn two() -> Two {
    let matrix = || {
        let zeros = |device: &Device, _| Tensor::zeros([ROWS, WIDTH], device);
        Param::uninitialized(ParamId::new(), zeros, Device::flex(), false, [ROWS, WIDTH].into())
    };
    Two { first: matrix(), second: matrix() }
}

fn handles(two: &Two) -> [&Streamed; 2] {
    [&two.first, &two.second].map(|matrix| Streamed::of(matrix).unwrap())
}

fn interleaved(budget: Option<u64>) -> Options {
    Options {
        access: ["first", "second"].map(|path| (path.to_string(), Access::Tiles)).into(),
        interleaved: [("second".to_string(), "first".to_string())].into(),
        tile_bytes: TILE,
        ..options(budget)
    }
}

#[test]
fn tiles_in_turns_are_read_in_turns_from_the_first_pass_on() {
    let (_dir, path) = folder();
    let module = fill(two());
    let wanted = [&module.first, &module.second].map(|matrix| matrix.val());
    write(&path, &values(&module), Dtype::F32);
    let checkpoint = Checkpoint::open(&path).unwrap();
    let mut both = [false, false];
    for pages in 8..24 {
        let options = interleaved(Some(pages << 12));
        let Ok(map) = plan(&two(), &checkpoint, &options) else { continue };
        let model = dispatch(two(), &checkpoint, &map, &options).unwrap();
        let turns = model.run(|two| handles(two)[1].is_interleaved()).unwrap();
        assert_eq!(turns, map.ring_bytes() >= 4 * PAGES);
        both[usize::from(turns)] = true;
        assert!(!model.run(|two| handles(two)[0].is_interleaved()).unwrap());
        if !turns {
            continue;
        }
        let model = dispatch(two(), &checkpoint, &map, &options).unwrap();
        for _ in 0..3 {
            model
                .run(|two| {
                    let [first, second] = handles(two);
                    for (at, (first, second)) in first.tiles().zip(second.tiles()).enumerate() {
                        assert_eq!(first.0, second.0);
                        for (rows, tile, wanted) in
                            [(first.0, first.1, &wanted[0]), (second.0, second.1, &wanted[1])]
                        {
                            assert_eq!(rows.start, at * 32);
                            let wanted = wanted.clone().slice([rows, 0..WIDTH]).into_data();
                            let tile = tile.into_float(&Device::flex());
                            tile.into_data().assert_eq(&wanted, true);
                        }
                    }
                })
                .unwrap();
        }
        let stats = model.stats();
        // Each once in each pass, and what the ring has of the fourth.
        let pass = 2 * (ROWS as u64 / 32) * PAGES;
        assert!(stats.bytes_read <= 3 * pass + map.ring_bytes(), "{stats:?}");
        assert_eq!(stats.overflows, 0);
    }
    assert_eq!(both, [true, true], "a ring for three tiles, and one for four");
}
