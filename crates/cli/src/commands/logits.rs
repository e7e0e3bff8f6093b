//! `outsize logits`: raw logits to a file, to compare with other software.

use crate::args::LogitsArgs;
use crate::error::Failure;
use crate::views::output;
use crate::{interrupt, model};
use outsize::checkpoint::{Dtype, FileWriter, TensorSpec};
use outsize::generate::Step;
use outsize::machine::Machine;
use outsize::models::Logits;

/// Runs the command.
pub fn logits(args: &LogitsArgs) -> Result<(), Failure> {
    let config = model::config(&args.model)?;
    let given = model::ids("--ids", &args.ids, &config)?;
    let (prompt, ids) = match (config.decoder_start(), &args.decoder_ids) {
        (Some(_), Some(ids)) => (Some(given), model::ids("--decoder-ids", ids, &config)?),
        (Some(start), None) => (Some(given), vec![start]),
        (None, None) => (None, given),
        (None, Some(_)) => {
            return Err(Failure::usage("--decoder-ids: this model has no encoder; give --ids"));
        }
    };
    let vocabulary = config.vocab_size();
    output::refuse_to_replace(&args.output, args.force)?;
    let spec = TensorSpec::new("logits", Dtype::F32, [1, ids.len(), vocabulary]);
    let mut file = FileWriter::create(&args.output, vec![spec])?;
    let mut workload = model::workload(&args.model, ids.len(), ids.len());
    (workload.logits, workload.position) = (Logits::All, ids.len());
    workload.cache.prompt = prompt.as_ref().map_or(0, Vec::len);
    let machine = Machine::detect();
    let (planning, _) = model::planning(&args.model, &machine)?;
    let mut pipeline = model::open(&args.model, config, workload, planning, &machine, |step| {
        if let Step::Planned { map, .. } = step {
            eprintln!("{}", output::picture(map));
        }
    })?;
    if let Some(prompt) = &prompt {
        pipeline.encode(prompt)?;
    }
    let mut written = Ok(());
    pipeline.logits(&ids, |rows| {
        for row in rows.chunks(vocabulary) {
            let bytes: Vec<u8> = row.iter().flat_map(|value| value.to_le_bytes()).collect();
            if written.is_ok() {
                written = file.write("logits", &bytes);
            }
        }
    })?;
    written?;
    interrupt::check()?;
    file.finish()?;
    eprintln!(
        "wrote {}: logits [1, {}, {vocabulary}], 32-bit floats",
        args.output.display(),
        ids.len(),
    );
    Ok(())
}
