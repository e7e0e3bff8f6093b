//! The state of a learning rate scheduler in a file.

use std::path::Path;

use burn::lr_scheduler::LrSchedulerRecord;
use burn::lr_scheduler::module_lr_scheduler::ModuleLrScheduler;
use burn_pack::Reader;

use super::fault::StateFault;
use super::file_name;

pub(super) fn write(scheduler: &ModuleLrScheduler, path: &Path) -> Result<(), StateFault> {
    let failed = |fault: burn::store::RecordError| StateFault::File {
        file: path.to_owned(),
        cause: std::io::Error::other(fault.to_string()),
    };
    scheduler.to_record().save(path).map_err(failed)
}

pub(super) fn read(
    scheduler: ModuleLrScheduler,
    path: &Path,
) -> Result<ModuleLrScheduler, StateFault> {
    let damaged = |fault: &dyn ToString| StateFault::damaged(file_name(path), fault.to_string());
    let numbers = |reader: Reader| reader.scalars().keys().cloned().collect::<Vec<_>>();
    let found = numbers(Reader::from_file(path).map_err(|fault| damaged(&fault))?);
    let own = scheduler.to_record().into_bytes().map_err(|fault| damaged(&fault))?;
    let own = numbers(Reader::from_bytes(own).map_err(|fault| damaged(&fault))?);
    // Burn takes what it knows and leaves the rest as it is.
    if found != own {
        let what = format!(
            "it has the numbers {found:?} and this scheduler has {own:?}: load it into the kind of scheduler \
             that was saved"
        );
        return Err(StateFault::mismatch(file_name(path), what));
    }
    let record = LrSchedulerRecord::load(path).map_err(|fault| damaged(&fault))?;
    Ok(scheduler.load_record(record))
}
