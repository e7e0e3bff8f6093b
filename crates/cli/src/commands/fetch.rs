//! `outsize fetch`: a model of the Hub, downloaded to be run.

use crate::args::FetchArgs;
use crate::error::Failure;
use crate::hub::{self, Address, HubSettings, Wanted};
use crate::views::output::{print, print_json};
use outsize::checkpoint::shown;
use serde_json::json;

/// Runs the command.
pub fn fetch(args: &FetchArgs) -> Result<(), Failure> {
    let name = args.model.strip_prefix("hf://").unwrap_or(&args.model);
    let address = Address::parse(name).ok_or_else(|| {
        let named = shown(&args.model, 200);
        Failure::usage(format!(
            "{named} is no name on the Hub, which is org/name or org/name@revision"
        ))
    })?;
    let snapshot =
        hub::fetch(&HubSettings::from_env()?, &address, Wanted::Any(args.variant.as_deref()))?;
    match args.json {
        true => print_json(&json!({
            "model": address.to_string(),
            "commit": snapshot.commit,
            "folder": snapshot.folder,
        })),
        false => print(&format!("{}\n", snapshot.folder.display())),
    }
}
