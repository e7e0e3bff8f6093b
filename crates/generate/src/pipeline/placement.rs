//! What is streamed, as the disk sees it.

use std::ops::Range;
use std::path::PathBuf;

use outsize_checkpoint::Checkpoint;
use outsize_plan::{DeviceMap, Residency};

/// The file of which most is streamed, and where in it.
pub(super) fn streamed_range(
    checkpoint: &Checkpoint,
    map: &DeviceMap,
) -> Option<(PathBuf, Range<u64>)> {
    let file_ranges = (0..checkpoint.files().len()).filter_map(|file| {
        let streamed = || {
            checkpoint.tensors().iter().filter(move |tensor| {
                tensor.file == file && map.residency(&tensor.name) == Some(Residency::Streamed)
            })
        };
        let start = streamed().map(|tensor| tensor.offset).min()?;
        let end = streamed().map(|tensor| tensor.offset + tensor.len).max()?;
        let bytes: u64 = streamed().map(|tensor| tensor.len).sum();
        Some((bytes, file, start..end))
    });
    let (_, file, range) = file_ranges.max_by_key(|(bytes, ..)| *bytes)?;
    Some((checkpoint.files()[file].path().to_path_buf(), range))
}
