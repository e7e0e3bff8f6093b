use crate::device_map::{DeviceMap, PlacedBlock};
use crate::{Tier, format_size};

/// Cells of the bar, from all streamed to all resident.
const SHADES: [char; 4] = ['░', '▒', '▓', '█'];

/// Cells of the bar: at least, and at most however wide the terminal is.
const CELLS: (usize, usize) = (8, 32);

impl DeviceMap {
    /// The placement in one line of at most `width` characters, if what matters most fits:
    ///
    /// ```text
    /// cpu ▕███░░░░░░░░▏ 412 MB of 2.2 GB resident · layers 0-3 resident, 4-21 streamed · ring 96 MB
    /// ```
    ///
    /// The bar is the model in the order of execution, each block as long as it is large: full
    /// where it is resident, light where it is streamed. If parts of several layers are resident,
    /// it says how much of them is: `layers 0-21: 45 % resident`. What does not fit is left out
    /// from the right.
    pub fn picture(&self, width: usize) -> String {
        let devices = self.tiers().iter().filter(|held| match held.tier {
            Tier::Gpu(_) => held.weights > 0,
            Tier::Cpu => true,
            Tier::Disk => false,
        });
        let devices: Vec<String> = devices.map(|held| held.tier.to_string()).collect();
        let devices = devices.join("+");
        let (resident, total) = (self.resident_bytes(), self.total_bytes());
        let mut text = match resident == total {
            true => format!("all {} resident", format_size(total)),
            false => format!("{} of {} resident", format_size(resident), format_size(total)),
        };
        // What matters most comes first.
        let mut parts: Vec<String> = layers(self.blocks()).into_iter().collect();
        for (what, bytes) in [("ring", self.ring_bytes()), ("KV", self.needs().kv_cache)] {
            if bytes > 0 {
                parts.push(format!("{what} {}", format_size(bytes)));
            }
        }
        let used = |text: &str| devices.len() + 4 + text.chars().count();
        for part in parts {
            let longer = format!("{text} · {part}");
            if used(&longer) + CELLS.0 > width {
                break;
            }
            text = longer;
        }
        let cells = width.saturating_sub(used(&text)).clamp(CELLS.0, CELLS.1);
        format!("{devices} ▕{}▏ {text}", bar(self.blocks(), cells))
    }
}

/// The path of the outermost module list in a path, and the index in it: `model.layers` and 3 of
/// `model.layers.3.mlp`.
pub fn list_index(name: &str) -> Option<(&str, u64)> {
    let mut start = 0;
    for part in name.split('.') {
        if start > 0
            && part.bytes().all(|byte| byte.is_ascii_digit())
            && let Ok(number) = part.parse()
        {
            return Some((&name[..start - 1], number));
        }
        start += part.len() + 1;
    }
    None
}

/// One numbered block, which may come in several parts next to one another.
struct Layer {
    number: u64,
    bytes: u64,
    resident_bytes: u64,
    /// Whether nothing but small tensors is streamed.
    resident: bool,
}

/// Which layers are resident: `layers 0-3 resident, 4-21 streamed`; or `layers 0-21: 45 % resident`
/// if parts of several are.
fn layers(blocks: &[PlacedBlock]) -> Option<String> {
    let mut layers: Vec<Layer> = Vec::new();
    let mut family = None;
    for block in blocks {
        let Some((owner, number)) = list_index(&block.name) else {
            continue;
        };
        if *family.get_or_insert(owner) != owner {
            return None; // an encoder and a decoder: numbers alone would not tell them apart
        }
        if layers.last().is_none_or(|last| last.number != number) {
            layers.push(Layer { number, bytes: 0, resident_bytes: 0, resident: true });
        }
        let layer = layers.last_mut()?;
        layer.resident &= block.tier != Tier::Disk;
        layer.bytes = layer.bytes.saturating_add(block.bytes);
        layer.resident_bytes = layer.resident_bytes.saturating_add(block.resident_bytes);
    }
    let name = family?.rsplit('.').next().unwrap_or("layers").escape_debug();
    let span = |layers: &[Layer]| match layers {
        [] => None,
        [one] => Some(one.number.to_string()),
        [first, .., last] => Some(format!("{}-{}", first.number, last.number)),
    };
    let all = span(&layers)?;
    // Small tensors such as norms, which round to nothing, do not make a part.
    let part = |layer: &&Layer| !layer.resident && percent(layer.resident_bytes, layer.bytes) > 0;
    let parts = layers.iter().filter(part).count();
    let resident = layers.iter().filter(|layer| layer.resident).count();
    let (first, second) = layers.split_at(resident);
    if parts > 1 || !first.iter().all(|layer| layer.resident) {
        let sum = |of: fn(&Layer) -> u64| layers.iter().map(of).fold(0, u64::saturating_add);
        let share = percent(sum(|layer| layer.resident_bytes), sum(|layer| layer.bytes));
        return Some(format!("{name} {all}: {share} % resident"));
    }
    Some(match (span(first), span(second)) {
        (Some(first), Some(second)) => {
            format!("{name} {first} resident, {second} streamed")
        }
        (None, _) => format!("{name} {all} streamed"),
        (_, None) => format!("{name} {all} resident"),
    })
}

/// `part` of `whole` in percent, rounded; all if there is nothing.
fn percent(part: u64, whole: u64) -> u64 {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let percent = (200 * part + whole).checked_div(2 * whole);
    percent.map_or(100, |percent| percent.min(100) as u64)
}

/// Blocks in the order of execution, each cell shaded by how much of its bytes is resident.
fn bar(blocks: &[PlacedBlock], cells: usize) -> String {
    let total: u128 = blocks.iter().map(|block| u128::from(block.bytes)).sum();
    if total == 0 {
        return SHADES[3].to_string().repeat(cells);
    }
    // In units of a byte times the number of cells, so that cells have whole bounds.
    let scale = cells as u128;
    let mut resident = vec![0u128; cells];
    let mut start = 0u128;
    for block in blocks.iter().filter(|block| block.bytes > 0) {
        let (bytes, stays) = (u128::from(block.bytes), u128::from(block.resident_bytes));
        let end = start + bytes * scale;
        let mut cell = start / total;
        while cell * total < end {
            let overlap = end.min((cell + 1) * total) - start.max(cell * total);
            // Exact for a block that is all or not at all resident.
            resident[cell as usize] += overlap / bytes * stays + overlap % bytes * stays / bytes;
            cell += 1;
        }
        start = end;
    }
    let shade = |bytes| match bytes * 8 / total {
        // Small tensors of a streamed layer do not make it half resident.
        0 => SHADES[0],
        1..4 => SHADES[1],
        4..7 => SHADES[2],
        _ => SHADES[3],
    };
    resident.into_iter().map(shade).collect()
}

#[cfg(test)]
mod tests {
    use super::list_index;
    use crate::fixtures::{block, tensor, tree};
    use crate::{Access, Budget, DeviceMap, MemoryOverhead, Options, Tensor, infer, place};

    /// `layers` of 100 MB each between an embedding and a head of 200 MB.
    fn map(layers: &[&str], budget: Option<&str>) -> DeviceMap {
        let one = |name: &str, bytes, access| {
            let weight = tensor(&format!("{name}.weight"), bytes);
            block(name, vec![Tensor { access, ..weight }])
        };
        let mut blocks = vec![one("embed", 200_000_000, Access::Rows)];
        let layers = layers.iter();
        blocks.extend(layers.map(|name| one(name, 100_000_000, Access::Whole)));
        blocks.push(one("head", 200_000_000, Access::Tiles));
        let options = Options {
            needs: MemoryOverhead { kv_cache: 23_000_000, ..MemoryOverhead::default() },
            ..Options::default()
        };
        let budget = budget.map_or_else(Budget::default, |text| Budget::parse(text).unwrap());
        infer(&tree(blocks), &budget, &options).unwrap()
    }

    fn eight(budget: Option<&str>) -> DeviceMap {
        let names: Vec<String> = (0..8).map(|n| format!("model.layers.{n}")).collect();
        map(&names.iter().map(String::as_str).collect::<Vec<_>>(), budget)
    }

    #[test]
    fn shows_what_is_resident_in_order_of_execution() {
        assert_eq!(
            eight(Some("cpu=550MB")).picture(200),
            "cpu ▕░░░░░▓███████▒░░░░░░░░░░░░░░░░░░▏ 300 MB of 1.2 GB resident · \
             layers 0-2 resident, 3-7 streamed · ring 227 MB · KV 23 MB"
        );
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_right() {
        let map = eight(Some("cpu=550MB"));
        for width in 0..200 {
            let picture = map.picture(width);
            let shown = picture.chars().count();
            assert!(shown <= width.max(41), "{width}: {picture}");
            assert!(picture.contains("300 MB of 1.2 GB resident"));
            assert!(!picture.contains("KV") || picture.contains("ring"));
            assert!(!picture.contains("ring") || picture.contains("layers"));
        }
        assert!(map.picture(80).contains("3-7 streamed"));
    }

    #[test]
    fn all_or_none_is_said_so() {
        let bar = "█".repeat(32);
        assert_eq!(
            eight(None).picture(100),
            format!("cpu ▕{bar}▏ all 1.2 GB resident · layers 0-7 resident · KV 23 MB")
        );
        let none = eight(Some("cpu=240MB")).picture(100);
        let bar = "░".repeat(24);
        let expected = format!("▕{bar}▏ 0 B of 1.2 GB resident · layers 0-7 streamed");
        assert!(none.contains(&expected), "{none}");
    }

    #[test]
    fn names_of_any_kind_are_drawn() {
        let coders = ["encoder.0", "encoder.1", "decoder.0", "decoder.1"];
        let two = map(&coders, Some("cpu=450MB")).picture(100);
        assert!(two.contains("ring") && !two.contains("coder"), "{two}");
        let parts = map(&["h.0.a", "h.0.b", "h.1.a", "h.1.b"], Some("cpu=430MB")).picture(100);
        assert!(parts.contains("h 0 resident, 1 streamed"), "{parts}");
        let plain = map(&["first", "second"], Some("cpu=300MB")).picture(100);
        assert!(plain.ends_with("KV 23 MB"), "{plain}");
    }

    #[test]
    fn parts_of_many_layers_are_said_together() {
        let halves = |resident: fn(&Tensor) -> bool| {
            let blocks = (0..4).map(|n| {
                let halves = ["a", "b"];
                let halves = halves.map(|half| tensor(&format!("m.layers.{n}.{half}"), 50_000_000));
                block(&format!("m.layers.{n}"), halves.into())
            });
            let tree = tree(blocks.collect());
            let map = place(&tree, &Budget::default(), &Options::default(), resident);
            map.unwrap().picture(100)
        };
        let half = halves(|tensor| tensor.name.ends_with('a'));
        assert!(half.contains("· layers 0-3: 50 % resident ·"), "{half}");
        let scattered = halves(|tensor| tensor.name.contains(".2."));
        assert!(scattered.contains("· layers 0-3: 25 % resident ·"), "{scattered}");
        // Where it stops, a layer may be cut in two.
        let most = halves(|tensor| tensor.name.as_str() < "m.layers.2.b");
        assert!(most.contains("· layers 0-1 resident, 2-3 streamed ·"), "{most}");
    }

    #[test]
    fn a_list_index_is_a_number_in_the_path() {
        assert_eq!(list_index("a.0.b"), Some(("a", 0)));
        assert_eq!(list_index("a.18446744073709551616.2"), Some(("a.18446744073709551616", 2)));
        assert_eq!(list_index("0.a"), None);
        assert_eq!(list_index("a.+1"), None);
    }

    #[test]
    fn nothing_at_all_is_drawn_too() {
        let map = infer(&tree(vec![]), &Budget::default(), &Options::default()).unwrap();
        assert_eq!(map.picture(0), "cpu ▕████████▏ all 0 B resident");
    }
}
