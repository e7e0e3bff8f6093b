use crate::device_map::{DeviceMap, PlacedBlock};
use crate::{Tier, format_size};
use std::fmt::Write;

/// The characters of a picture.
struct Glyphs {
    /// Cells from all streamed to all resident.
    shades: [char; 4],
    left: char,
    right: char,
    between: &'static str,
}

const UNICODE: Glyphs = Glyphs {
    shades: ['░', '▒', '▓', '█'],
    left: '▕',
    right: '▏',
    between: " · ",
};

const ASCII: Glyphs = Glyphs {
    shades: ['.', '-', '+', '#'],
    left: '[',
    right: ']',
    between: " | ",
};

/// Cells of the bar: no fewer, and no more however wide the terminal is.
const CELLS: (usize, usize) = (8, 32);

impl DeviceMap {
    /// The placement in one line of at most `width` characters, if what matters most fits:
    ///
    /// ```text
    /// cpu ▕███░░░░░░░░▏ 412 MB of 2.2 GB resident · layers 0-3 resident, 4-21 streamed · ring 96 MB
    /// ```
    ///
    /// The bar is the model in the order of execution, as long as its blocks are large: full where they
    /// are resident, light where they are streamed. Where parts of several layers are resident it says how much of them is:
    /// `layers 0-21: 45 % resident`. What does not fit is left out from the right.
    pub fn picture(&self, width: usize) -> String {
        self.draw(width, &UNICODE)
    }

    /// The same in ASCII.
    pub fn ascii_picture(&self, width: usize) -> String {
        self.draw(width, &ASCII)
    }

    fn draw(&self, width: usize, glyphs: &Glyphs) -> String {
        let mut text = self.weights();
        let devices = self.devices();
        let mut fixed = format!("{devices} {}{} ", glyphs.left, glyphs.right)
            .chars()
            .count();
        fixed += text.chars().count();
        for part in self.parts() {
            let more = glyphs.between.chars().count() + part.chars().count();
            if fixed + more + CELLS.0 > width {
                break;
            }
            fixed += more;
            text.push_str(glyphs.between);
            text.push_str(&part);
        }
        let cells = width.saturating_sub(fixed).clamp(CELLS.0, CELLS.1);
        let bar = bar(self.blocks(), cells, glyphs);
        format!("{devices} {}{bar}{} {text}", glyphs.left, glyphs.right)
    }

    /// The devices that hold weights besides the disk: `cpu`, `gpu0+cpu`.
    fn devices(&self) -> String {
        let held = self.tiers().iter().filter(|held| match held.tier {
            Tier::Gpu(_) => held.weights > 0,
            Tier::Cpu => true,
            Tier::Disk => false,
        });
        held.map(|held| held.tier.to_string())
            .collect::<Vec<_>>()
            .join("+")
    }

    /// How much of the weights is resident.
    fn weights(&self) -> String {
        let (resident, total) = (self.resident_bytes(), self.total_bytes());
        if resident == total {
            format!("all {} resident", format_size(total))
        } else {
            format!(
                "{} of {} resident",
                format_size(resident),
                format_size(total)
            )
        }
    }

    /// What else there is to say, what matters most first.
    fn parts(&self) -> Vec<String> {
        let mut parts = Vec::new();
        parts.extend(layers(self.blocks()));
        for (what, bytes) in [("ring", self.ring_bytes()), ("KV", self.needs().kv_cache)] {
            if bytes > 0 {
                parts.push(format!("{what} {}", format_size(bytes)));
            }
        }
        parts
    }
}

/// One numbered block, which may come in several parts next to one another.
struct Layer {
    number: u64,
    bytes: u64,
    resident_bytes: u64,
    /// Whether nothing but small tensors is streamed.
    resident: bool,
}

impl Layer {
    /// How much of it stays in memory, in percent.
    fn percent(&self) -> u64 {
        percent(self.resident_bytes, self.bytes)
    }

    /// Whether a part of it stays, small tensors such as norms aside.
    fn is_part(&self) -> bool {
        !self.resident && self.percent() > 0
    }
}

/// `layers 0-3 resident, 4-21 streamed`: which of the numbered blocks are; or `layers 0-21: 45 % resident`, if parts of several are.
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
        let resident = block.tier != Tier::Disk;
        match layers.last_mut() {
            Some(last) if last.number == number => {
                last.resident &= resident;
                last.bytes = last.bytes.saturating_add(block.bytes);
                last.resident_bytes = last.resident_bytes.saturating_add(block.resident_bytes);
            }
            _ => layers.push(Layer {
                number,
                bytes: block.bytes,
                resident_bytes: block.resident_bytes,
                resident,
            }),
        }
    }
    let what = family?
        .rsplit('.')
        .next()
        .unwrap_or("layers")
        .escape_debug();
    let all = span(layers.first()?.number, layers.last()?.number);
    let resident = layers.iter().filter(|layer| layer.resident).count();
    let parts = layers.iter().filter(|layer| layer.is_part()).count();
    let (first, second) = layers.split_at(resident);
    if parts > 1 || !first.iter().all(|layer| layer.resident) {
        let sum = |of: fn(&Layer) -> u64| layers.iter().map(of).fold(0, u64::saturating_add);
        let share = percent(sum(|layer| layer.resident_bytes), sum(|layer| layer.bytes));
        return Some(format!("{what} {all}: {share} % resident"));
    }
    if first.is_empty() || second.is_empty() {
        let state = if first.is_empty() {
            "streamed"
        } else {
            "resident"
        };
        return Some(format!("{what} {all} {state}"));
    }
    let mut text = format!("{what} ");
    for (part, state, end) in [(first, "resident", ", "), (second, "streamed", "")] {
        let (first, last) = (part.first()?.number, part.last()?.number);
        write!(text, "{} {state}{end}", span(first, last)).ok()?;
    }
    Some(text)
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
/// `part` of `whole` in percent, rounded; all if there is nothing.
fn percent(part: u64, whole: u64) -> u64 {
    let (part, whole) = (u128::from(part), u128::from(whole));
    let percent = (200 * part + whole).checked_div(2 * whole);
    percent.map_or(100, |percent| percent.min(100) as u64)
}

fn span(first: u64, last: u64) -> String {
    if first == last {
        first.to_string()
    } else {
        format!("{first}-{last}")
    }
}

/// Blocks in the order of execution, each cell shaded by how much of its bytes is resident.
fn bar(blocks: &[PlacedBlock], cells: usize, glyphs: &Glyphs) -> String {
    let total: u128 = blocks.iter().map(|block| u128::from(block.bytes)).sum();
    if total == 0 {
        return glyphs.shades[3].to_string().repeat(cells);
    }
    // In units of a byte times the number of cells, so that cells have whole bounds.
    let scale = cells as u128;
    let mut resident = vec![0u128; cells];
    let mut start = 0u128;
    for block in blocks {
        let end = start + u128::from(block.bytes) * scale;
        if block.bytes > 0 {
            let mut cell = start / total;
            while cell * total < end {
                let overlap = end.min((cell + 1) * total) - start.max(cell * total);
                // Exact for a block that is all or not at all resident.
                resident[cell as usize] += overlap / u128::from(block.bytes)
                    * u128::from(block.resident_bytes)
                    + overlap % u128::from(block.bytes) * u128::from(block.resident_bytes)
                        / u128::from(block.bytes);
                cell += 1;
            }
        }
        start = end;
    }
    resident
        .into_iter()
        .map(|bytes| match bytes * 8 / total {
            // The small tensors of a streamed layer do not make it half resident, nor does the rounding.
            0 => glyphs.shades[0],
            1..4 => glyphs.shades[1],
            4..7 => glyphs.shades[2],
            _ => glyphs.shades[3],
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::list_index;
    use crate::{Access, Block, Budget, DeviceMap, MemoryOverhead, Options, Tensor, Tree, infer};

    /// `layers` layers of 100 MB each between an embedding and a head of 200 MB.
    fn map(names: &[&str], budget: Option<&str>) -> DeviceMap {
        let block = |name: &str, bytes, access| Block {
            name: name.to_string(),
            tensors: vec![Tensor {
                name: format!("{name}.weight"),
                bytes,
                stored_bytes: bytes,
                access,
                ..Tensor::default()
            }],
            ..Block::default()
        };
        let mut blocks = vec![block("embed", 200_000_000, Access::Rows)];
        blocks.extend(
            names
                .iter()
                .map(|name| block(name, 100_000_000, Access::Whole)),
        );
        blocks.push(block("head", 200_000_000, Access::Tiles));
        let options = Options {
            needs: MemoryOverhead {
                kv_cache: 23_000_000,
                ..MemoryOverhead::default()
            },
            ..Options::default()
        };
        let budget = budget.map_or_else(Budget::default, |text| Budget::parse(text).unwrap());
        infer(
            &Tree {
                blocks,
                ..Tree::default()
            },
            &budget,
            &options,
        )
        .unwrap()
    }

    const LAYERS: [&str; 8] = [
        "model.layers.0",
        "model.layers.1",
        "model.layers.2",
        "model.layers.3",
        "model.layers.4",
        "model.layers.5",
        "model.layers.6",
        "model.layers.7",
    ];

    #[test]
    fn shows_what_is_resident_in_order_of_execution() {
        let map = map(&LAYERS, Some("cpu=550MB"));
        assert_eq!(
            map.picture(200),
            "cpu ▕░░░░░▓███████▒░░░░░░░░░░░░░░░░░░▏ 300 MB of 1.2 GB resident · \
             layers 0-2 resident, 3-7 streamed · ring 227 MB · KV 23 MB"
        );
        assert_eq!(
            map.ascii_picture(200).chars().count(),
            map.picture(200).chars().count()
        );
        assert!(map.ascii_picture(200).is_ascii());
    }

    #[test]
    fn what_does_not_fit_is_left_out_from_the_right() {
        let map = map(&LAYERS, Some("cpu=550MB"));
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
        let all = map(&LAYERS, None).ascii_picture(100);
        assert_eq!(
            all,
            format!(
                "cpu [{}] all 1.2 GB resident | layers 0-7 resident | KV 23 MB",
                "#".repeat(32)
            )
        );
        let none = map(&LAYERS, Some("cpu=240MB")).ascii_picture(100);
        assert!(
            none.contains(&format!(
                "[{}] 0 B of 1.2 GB resident | layers 0-7 streamed",
                ".".repeat(24)
            )),
            "{none}"
        );
    }

    #[test]
    fn names_of_any_kind_are_drawn() {
        let two = map(
            &["encoder.0", "encoder.1", "decoder.0", "decoder.1"],
            Some("cpu=450MB"),
        );
        assert!(two.picture(100).contains("ring"), "{}", two.picture(100));
        assert!(!two.picture(100).contains("coder"));
        let parts = map(&["h.0.a", "h.0.b", "h.1.a", "h.1.b"], Some("cpu=430MB"));
        assert!(
            parts.picture(100).contains("h 0 resident, 1 streamed"),
            "{}",
            parts.picture(100)
        );
        let plain = map(&["first", "second"], Some("cpu=300MB")).picture(100);
        assert!(plain.ends_with("KV 23 MB"), "{plain}");
    }

    #[test]
    fn parts_of_many_layers_are_said_together() {
        let halves = |resident: fn(&Tensor) -> bool| {
            let part = |name: String| Tensor {
                name,
                bytes: 50_000_000,
                stored_bytes: 50_000_000,
                ..Tensor::default()
            };
            let blocks = (0..4).map(|n| Block {
                name: format!("m.layers.{n}"),
                tensors: ["a", "b"]
                    .map(|half| part(format!("m.layers.{n}.{half}")))
                    .into(),
                ..Block::default()
            });
            let tree = Tree {
                blocks: blocks.collect(),
                ..Tree::default()
            };
            let map = crate::place(&tree, &Budget::default(), &Options::default(), resident);
            map.unwrap().ascii_picture(100)
        };
        let half = halves(|tensor| tensor.name.ends_with('a'));
        assert!(half.contains("| layers 0-3: 50 % resident |"), "{half}");
        let scattered = halves(|tensor| tensor.name.contains(".2."));
        assert!(
            scattered.contains("| layers 0-3: 25 % resident |"),
            "{scattered}"
        );
        // Where it stops, a layer may be cut in two.
        let most = halves(|tensor| tensor.name.as_str() < "m.layers.2.b");
        assert!(
            most.contains("| layers 0-1 resident, 2-3 streamed |"),
            "{most}"
        );
    }

    #[test]
    fn a_list_index_is_a_number_in_the_path() {
        assert_eq!(
            list_index("a.18446744073709551616.2"),
            Some(("a.18446744073709551616", 2))
        );
        assert_eq!(list_index("0.a"), None);
        assert_eq!(list_index("a.+1"), None);
    }

    #[test]
    fn nothing_at_all_is_drawn_too() {
        let map = infer(&Tree::default(), &Budget::default(), &Options::default()).unwrap();
        assert_eq!(map.ascii_picture(0), "cpu [########] all 0 B resident");
    }
}
