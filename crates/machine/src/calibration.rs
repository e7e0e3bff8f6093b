//! What was measured on this machine, kept in a file.

mod check;
mod choose;
mod file;
mod identity;

pub(crate) use check::check_figures;
pub use choose::{Provenance, figures_for};
pub use identity::Identity;

use outsize_plan::{Bandwidth, HardwareProfile};
use serde::{Deserialize, Serialize};

/// The name of the file in the cache folder.
pub const CALIBRATION_FILE: &str = "machine.json";

/// The version of the file's format.
pub const CALIBRATION_VERSION: u32 = 3;

/// How fast a machine was measured to be.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Calibration {
    /// The version of the format: [`CALIBRATION_VERSION`].
    pub version: u32,
    /// When it was measured, in UTC as of RFC 3339: `2026-03-01T17:05:00Z`.
    pub date: String,
    /// The hardware that it was measured on.
    pub identity: Identity,
    /// What predictions are made of. Its disk is the one that was measured last.
    pub figures: HardwareProfile,
    /// Each disk that was measured.
    pub disks: Vec<DiskFigures>,
    /// How each figure came about.
    pub measurements: Vec<Measurement>,
}

/// A disk that was measured.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DiskFigures {
    /// What the file system is on: `/dev/vda`.
    pub device: String,
    /// Its kind: `ext4`.
    pub file_system: String,
    /// When it was measured.
    pub date: String,
    /// What streaming gets beside products: what predictions are made of.
    pub streamed: Bandwidth,
    /// What plain reads get with nothing beside them, in bytes per second.
    pub plain_bytes_per_second: f64,
    /// Whether the reads went past the page cache. If not, these may be figures of the memory.
    pub direct: bool,
}

/// How a figure came about.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measurement {
    /// Its name: `memory read`.
    pub name: String,
    /// The median of the repetitions; for streaming, all bytes over all of the time.
    pub value: f64,
    /// Of what: `B/s`, `s`, `FLOP/s`.
    pub unit: String,
    /// How far apart the values are that a quarter lies below and a quarter above, as a share of
    /// the median.
    pub spread: f64,
    /// How often it was measured.
    pub repetitions: u32,
    /// How it was measured.
    pub how: String,
}

impl Calibration {
    /// The figures of the disk that a file system is on, if they were measured.
    pub fn disk(&self, device: &str, file_system: &str) -> Option<&DiskFigures> {
        self.disks.iter().find(|disk| disk.device == device && disk.file_system == file_system)
    }

    /// Puts the figures of a disk in place of earlier ones, and takes those of other disks from
    /// `earlier`, if that is of the same hardware.
    pub fn with_disk(mut self, disk: DiskFigures, earlier: Option<&Calibration>) -> Self {
        let same =
            earlier.filter(|earlier| earlier.identity.differs_from(&self.identity).is_none());
        let others = same.map_or(&[][..], |earlier| &earlier.disks);
        let mut disks: Vec<_> = others
            .iter()
            .filter(|other| other.device != disk.device || other.file_system != disk.file_system)
            .cloned()
            .collect();
        // The oldest go if there are more than the file may hold.
        disks.sort_by(|a, b| b.date.cmp(&a.date));
        disks.truncate(check::MOST_ENTRIES - 1);
        self.figures.disk = disk.streamed;
        disks.insert(0, disk);
        self.disks = disks;
        self
    }
}

/// Now, as calibrations write it.
pub fn now() -> String {
    humantime::format_rfc3339_seconds(std::time::SystemTime::now()).to_string()
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) fn example() -> Calibration {
        Calibration {
            version: CALIBRATION_VERSION,
            date: "2026-03-01T17:05:00Z".to_string(),
            identity: Identity {
                processor: "AMD EPYC".to_string(),
                threads: 2,
                memory_bytes: 24 << 30,
                gpus: Vec::new(),
            },
            figures: HardwareProfile::default(),
            disks: Vec::new(),
            measurements: vec![Measurement {
                name: "memory read".to_string(),
                value: 22e9,
                unit: "B/s".to_string(),
                spread: 0.1,
                repetitions: 5,
                how: "by hand".to_string(),
            }],
        }
        .with_disk(disk("/dev/vda", 3e9), None)
    }

    pub(crate) fn disk(device: &str, bytes_per_second: f64) -> DiskFigures {
        DiskFigures {
            device: device.to_string(),
            file_system: "ext4".to_string(),
            date: "2026-03-01T17:05:00Z".to_string(),
            streamed: Bandwidth { bytes_per_second, latency_seconds: 1e-4 },
            plain_bytes_per_second: bytes_per_second * 1.2,
            direct: true,
        }
    }

    #[test]
    fn disks_are_kept_as_long_as_the_hardware_is_the_same() {
        let first = example();
        assert_eq!(first.figures.disk.bytes_per_second, 3e9);
        let second = example().with_disk(disk("/dev/sdb", 1e8), Some(&first));
        assert_eq!(second.figures.disk.bytes_per_second, 1e8);
        assert_eq!(second.disks.len(), 2);
        assert!(second.disk("/dev/vda", "ext4").is_some());
        assert!(second.disk("/dev/vda", "xfs").is_none());
        let again = example().with_disk(disk("/dev/vda", 2e9), Some(&second));
        assert_eq!(again.disks.len(), 2);
        let vda = again.disk("/dev/vda", "ext4").unwrap();
        assert_eq!(vda.streamed.bytes_per_second, 2e9);
        let mut other = example();
        other.identity.threads = 64;
        let other = other.with_disk(disk("/dev/sdc", 1e9), Some(&again));
        assert_eq!(other.disks.len(), 1);
    }

    #[test]
    fn more_disks_than_the_file_may_hold_lose_the_oldest() {
        let mut all = example();
        for number in 0..200 {
            all = example().with_disk(disk(&format!("/dev/sd{number}"), 1e9), Some(&all));
            assert!(all.check().is_ok());
        }
        assert_eq!(all.disks[0].device, "/dev/sd199");
    }

    #[test]
    fn the_date_is_readable() {
        assert!(humantime::parse_rfc3339(&now()).is_ok());
    }
}
