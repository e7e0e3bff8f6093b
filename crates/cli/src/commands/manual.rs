//! `outsize completions` and `outsize man`: what shells and `man` know of this command.

use crate::args::{Args, CompletionsArgs, ManArgs};
use crate::error::Failure;
use crate::views::output;
use clap::CommandFactory;

/// Prints a shell's completions.
pub fn completions(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Args::command(), "outsize", &mut script);
    output::print(&String::from_utf8_lossy(&script))
}

/// Writes the manual pages.
pub fn pages(args: &ManArgs) -> Result<(), Failure> {
    let failed = |error| Failure::writing(args.folder.display(), error);
    std::fs::create_dir_all(&args.folder).map_err(failed)?;
    clap_mangen::generate_to(Args::command(), &args.folder).map_err(failed)
}
