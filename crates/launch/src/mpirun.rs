//! The command line of Open MPI's mpirun.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use crate::error::Error;
use crate::failure::REPORT;
use crate::program::{Program, in_path};

/// Where mpirun is.
///
/// # Errors
/// It is not in `PATH`; `reason` says what needs it.
pub fn find_mpirun(reason: &str) -> Result<PathBuf, Error> {
    in_path(Path::new("mpirun")).ok_or_else(|| Error::NoMpirun { reason: reason.to_string() })
}

/// The arguments of mpirun for `ranks` ranks, with the variables `names` of its own environment.
pub(crate) fn arguments<'a>(
    program: &Program,
    ranks: usize,
    hostfile: Option<&Path>,
    spread: bool,
    names: impl Iterator<Item = &'a str>,
) -> Vec<OsString> {
    let mut arguments: Vec<OsString> =
        ["--tag-output", "--bind-to", "none", "-n"].map(Into::into).to_vec();
    arguments.push(ranks.to_string().into());
    let mut add = |words: &[&str]| arguments.extend(words.iter().map(Into::into));
    if rustix::process::geteuid().is_root() {
        add(&["--allow-run-as-root"]);
    }
    match spread {
        // One machine may have more ranks than cores.
        false => add(&["--oversubscribe"]),
        // Ranks far away are asked to end by mpirun, which waits so many seconds before and after;
        // and a machine that is cut off is noticed.
        true => add(&[
            "--mca",
            "odls_base_sigkill_timeout",
            "3",
            "--mca",
            "oob_tcp_keepalive_time",
            "10",
            "--mca",
            "oob_tcp_keepalive_intvl",
            "5",
            "--mca",
            "oob_tcp_keepalive_probes",
            "3",
        ]),
    }
    if let Some(hostfile) = hostfile {
        arguments.extend(["--hostfile".into(), hostfile.into()]);
    }
    for name in names {
        arguments.extend(["-x".into(), name.into()]);
    }
    arguments.extend(["sh", "-c", REPORT, "sh"].map(Into::into));
    arguments.push(program.path.clone().into());
    arguments.extend(program.arguments.iter().cloned());
    arguments
}
