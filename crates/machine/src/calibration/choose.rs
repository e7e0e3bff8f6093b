//! The figures that a prediction should be made of, and where they came from.

use super::{CALIBRATION_FILE, Calibration, Identity};
use crate::{Machine, volume};
use outsize_plan::HardwareProfile;
use serde::Serialize;
use std::fmt;
use std::path::Path;

/// Where figures came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Provenance {
    /// Whether the processor's figures were measured on this machine.
    pub measured: bool,
    /// Whether the disk's figures were measured on the disk in question.
    pub disk_measured: bool,
    /// When, if they were measured.
    pub date: Option<String>,
    /// All of it in a sentence for a person.
    pub note: String,
}

impl fmt::Display for Provenance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.note)
    }
}

impl Provenance {
    /// That of the default profile, which comes with it.
    fn defaults(reason: &str) -> (HardwareProfile, Self) {
        let note = format!("default hardware profile: {reason}");
        let provenance = Self { measured: false, disk_measured: false, date: None, note };
        (HardwareProfile::default(), provenance)
    }
}

/// The figures for predicting how a model in `model` runs on `machine`, by the calibration in the
/// `cache` folder if there is one; sane defaults before that, or if it is damaged or of other
/// hardware. Never fails: the [`Provenance`] says which it was, and what to do.
pub fn figures_for(
    machine: &Machine,
    cache: Option<&Path>,
    model: &Path,
) -> (HardwareProfile, Provenance) {
    let calibration = match cache.map_or(Ok(None), Calibration::load) {
        Ok(Some(calibration)) => calibration,
        Ok(None) => {
            let reason = "this one was not measured, which `outsize bench --calibrate` does";
            return Provenance::defaults(reason);
        }
        Err(error) => return Provenance::defaults(&error.to_string()),
    };
    let volume = volume(model);
    let disk = volume
        .mount
        .as_ref()
        .map(|mount| (mount.value.device.as_str(), mount.value.file_system.as_str()));
    choose(calibration, &Identity::of(machine), disk)
}

/// The same of a calibration, for a machine and a disk: device and file system.
fn choose(
    calibration: Calibration,
    machine: &Identity,
    disk: Option<(&str, &str)>,
) -> (HardwareProfile, Provenance) {
    if let Some(difference) = calibration.identity.differs_from(machine) {
        let reason = format!(
            "{CALIBRATION_FILE} is of another one ({difference}) and is ignored; `outsize bench --calibrate` measures \
             this one"
        );
        return Provenance::defaults(&reason);
    }
    let mut figures = calibration.figures.clone();
    let day = calibration.date.split('T').next().unwrap_or_default();
    let mut note = format!("measured on {day} by `outsize bench --calibrate`");
    let measured = disk.and_then(|(device, kind)| calibration.disk(device, kind));
    match (measured, disk) {
        (Some(disk), _) => {
            figures.disk = disk.streamed;
            if !disk.direct {
                note += "; the disk through the page cache, which may be as fast as memory";
            }
        }
        // Where no system names its disks there is one, as far as anybody knows.
        (None, None) => {}
        (None, Some((device, kind))) => {
            let other =
                calibration.disks.first().map_or("another disk", |disk| disk.device.as_str());
            note += &format!(
                ", but not the disk {device} ({kind}): the speed of {other} is assumed; \
                 `outsize bench --calibrate MODEL` measures where MODEL lies"
            );
        }
    }
    let provenance = Provenance {
        measured: true,
        disk_measured: measured.is_some() || disk.is_none(),
        date: Some(calibration.date),
        note,
    };
    (figures, provenance)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{disk, example};
    use super::*;

    #[test]
    fn the_disk_of_the_model_counts() {
        let calibration = example().with_disk(disk("/dev/sdb", 1e8), Some(&example()));
        let identity = calibration.identity.clone();
        let of = |disk| choose(calibration.clone(), &identity, disk);
        let (figures, provenance) = of(Some(("/dev/vda", "ext4")));
        assert_eq!(figures.disk.bytes_per_second, 3e9);
        assert!(provenance.measured && provenance.disk_measured);
        assert!(provenance.note.contains("2026-03-01"), "{provenance}");
        let (figures, provenance) = of(Some(("/dev/sdz", "xfs")));
        assert_eq!(figures.disk.bytes_per_second, 1e8);
        assert!(provenance.measured && !provenance.disk_measured);
        assert!(provenance.note.contains("/dev/sdz (xfs)"), "{provenance}");
        assert!(provenance.note.contains("/dev/sdb"), "{provenance}");
        assert!(of(None).1.disk_measured);
    }

    #[test]
    fn figures_through_the_page_cache_are_said_to_be() {
        let mut cached = disk("/dev/vda", 9e9);
        cached.direct = false;
        let calibration = example().with_disk(cached, None);
        let identity = calibration.identity.clone();
        let (_, provenance) = choose(calibration, &identity, Some(("/dev/vda", "ext4")));
        assert!(provenance.note.contains("page cache"), "{provenance}");
    }

    #[test]
    fn figures_of_other_hardware_are_ignored() {
        let mut identity = example().identity;
        identity.threads = 64;
        let mut fast = example();
        fast.figures.cpu.product_flops = 1e15;
        let (figures, provenance) = choose(fast, &identity, None);
        assert_eq!(figures, HardwareProfile::default());
        assert!(!provenance.measured && provenance.date.is_none());
        assert!(provenance.note.contains("2 threads and not 64"), "{provenance}");
    }

    #[test]
    fn nothing_measured_or_damaged_gives_defaults_and_a_note() {
        let machine = Machine::detect();
        let folder = tempfile::tempdir().unwrap();
        for cache in [None, Some(folder.path())] {
            let (figures, provenance) = figures_for(&machine, cache, folder.path());
            assert_eq!(figures, HardwareProfile::default());
            assert!(provenance.note.contains("outsize bench --calibrate"));
        }
        std::fs::write(folder.path().join(CALIBRATION_FILE), "{").unwrap();
        let (figures, provenance) = figures_for(&machine, Some(folder.path()), folder.path());
        assert_eq!(figures, HardwareProfile::default());
        assert!(provenance.note.contains("damaged"), "{provenance}");
        let mut here = example();
        here.identity = Identity::of(&machine);
        here.figures.cpu.product_flops = 1.5e12;
        here.save(folder.path()).unwrap();
        let (figures, provenance) = figures_for(&machine, Some(folder.path()), folder.path());
        assert_eq!(figures.cpu.product_flops, 1.5e12);
        assert!(provenance.measured, "{provenance}");
    }
}
