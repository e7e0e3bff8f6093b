//! `outsize logits`: raw logits to a file, to compare with other software.

use crate::args::LogitsArgs;
use crate::error::Failure;
use crate::views::output::{self, say};
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
    output::refuse_missing_folder(&args.output)?;
    output::refuse_to_replace(&args.output, args.force)?;
    output::refuse_to_overwrite(&args.model.model, &args.output)?;
    let spec = TensorSpec::new("logits", Dtype::F32, [1, ids.len(), vocabulary]);
    let mut file = FileWriter::create(&args.output, vec![spec])?;
    let machine = Machine::detect();
    let mut settings = model::settings(&args.model, &config, [ids.len(); 2], &machine)?;
    settings.workload.logits = Logits::All;
    settings.workload.position = ids.len();
    settings.workload.cache.prompt = prompt.as_ref().map_or(0, Vec::len);
    let mut pipeline = model::opened(&args.model, config)?.dispatch(&settings, |step| {
        if let Step::Planned { map, .. } = step {
            say(output::picture(map));
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
    say(format!(
        "wrote {}: logits [1, {}, {vocabulary}], 32-bit floats",
        args.output.display(),
        ids.len(),
    ));
    Ok(())
}
