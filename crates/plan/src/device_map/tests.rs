use super::*;
use crate::fixtures::{block, cpu, tree};
use crate::{Options, Tensor, place};

fn tensor(name: &str, bytes: u64, tied: Option<&str>) -> Tensor {
    Tensor {
        stored_bytes: bytes / 2,
        tied: tied.map(String::from),
        ..crate::fixtures::tensor(name, bytes)
    }
}

fn map() -> DeviceMap {
    let tree = tree(vec![
        block("a", vec![tensor("a.w", 10_000, Some("x")), tensor("a.n", 10, None)]),
        block("b", vec![tensor("b.w", 20_000, None), tensor("b.n", 20, None)]),
        block("c", vec![tensor("c.w", 10_000, Some("x"))]),
    ]);
    let options = Options {
        needs: MemoryOverhead { kv_cache: 7, ..MemoryOverhead::default() },
        min_ring: 28_672,
        ..Options::default()
    };
    place(&tree, &cpu(100_000), &options, |tensor| tensor.name != "b.w").unwrap()
}

#[test]
fn sums_count_shared_memory_once() {
    let map = map();
    assert_eq!(map.resident_bytes(), 10_030);
    assert_eq!(map.total_bytes(), 30_030);
    assert_eq!(map.streamed_bytes(), 10_000);
    assert_eq!(map.resident_footprint(), 3 * 4096 + 4096 + 2 * 8192);
    assert_eq!(map.ring_bytes(), 24_576);
    assert_eq!(map.memory_bytes(), 7 + 8 * 4096 + 24_576);
    assert_eq!(map.blocks()[1].resident_bytes, 20);
    assert_eq!(map.blocks()[1].bytes, 20_020);
}

#[test]
fn is_written_as_accelerate_does() {
    assert_eq!(
        serde_json::to_value(map().modules()).unwrap(),
        serde_json::json!({ "a": "cpu", "b": "disk", "c": "cpu" })
    );
}

#[test]
fn all_of_it_is_written_as_json() {
    let json = serde_json::to_value(map()).unwrap();
    assert_eq!(json["budget"]["cpu"], 100_000);
    assert_eq!(json["needs"]["kv_cache"], 7);
    assert_eq!(json["ring_bytes"], 24_576);
    assert_eq!(json["blocks"][1]["tier"], "disk");
    assert_eq!(json["tensors"]["b.w"], "streamed");
    assert_eq!(json["tensors"]["b.n"], "cpu");
}
