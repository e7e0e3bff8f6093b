//! `CUDA_VISIBLE_DEVICES`: which of NVIDIA's GPUs a program sees, and in which order.

use super::Search;

/// Leaves what the variable names, in its order. As CUDA does, it ends at the first entry that
/// names no GPU.
pub(super) fn limit(mut search: Search, visible: Option<&str>) -> Search {
    let Some(visible) = visible else {
        return search;
    };
    if search.found.is_empty() {
        return search;
    }
    let mut chosen = Vec::new();
    for entry in visible.split(',').map(str::trim) {
        let index = match entry.parse::<usize>() {
            Ok(index) => Some(index),
            Err(_) if entry.is_empty() => None,
            Err(_) => search.found.iter().position(|gpu| gpu.uuid.starts_with(entry)),
        };
        let Some(index) = index.filter(|index| *index < search.found.len()) else {
            break;
        };
        // A GPU that is named twice makes CUDA see none.
        if chosen.contains(&index) {
            chosen.clear();
            break;
        }
        chosen.push(index);
    }
    let hidden = search.found.len() - chosen.len();
    if hidden > 0 {
        search.notes.push(format!(
            "CUDA_VISIBLE_DEVICES hides {hidden} of {} NVIDIA GPUs",
            search.found.len()
        ));
    }
    search.found = chosen.into_iter().map(|index| search.found[index].clone()).collect();
    search
}

#[cfg(test)]
mod tests {
    use super::super::{Candidate, GpuMemory};
    use super::*;
    use proptest::prelude::*;

    fn three() -> Search {
        let gpu = |number: usize| Candidate {
            name: number.to_string(),
            source: String::new(),
            uuid: format!("GPU-{number}abc"),
            memory: GpuMemory::Unknown { reason: String::new() },
        };
        Search { found: (0..3).map(gpu).collect(), notes: Vec::new() }
    }

    #[test]
    fn as_cuda_reads_it() {
        for (visible, seen) in [
            (None, "012"),
            (Some("2,0"), "20"),
            (Some("1"), "1"),
            (Some(""), ""),
            (Some("-1"), ""),
            (Some("0,-1,1"), "0"),
            (Some("0,7,1"), "0"),
            (Some("GPU-2,GPU-0abc"), "20"),
            (Some("GPU-9"), ""),
            (Some("0,0"), ""),
            (Some(" 1 , 2 "), "12"),
        ] {
            let left = limit(three(), visible);
            let names: String = left.found.iter().map(|gpu| gpu.name.as_str()).collect();
            assert_eq!(names, seen, "{visible:?}");
            assert_eq!(left.notes.is_empty(), seen.len() == 3, "{visible:?}");
        }
    }

    proptest! {
        #[test]
        fn no_text_panics(text in "([0-9]{0,2}|GPU-|[,-]|\\PC){0,12}") {
            limit(three(), Some(&text));
        }
    }
}
