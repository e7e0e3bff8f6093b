//! Which ranks the program was started with.

use std::sync::Arc;
use std::time::Duration;

use super::{Communicator, SingleRank};
use crate::Error;

/// Variables by which launchers announce the number of ranks, and whether MPI finds them.
const WORLD_SIZES: [(&str, bool); 5] = [
    ("OMPI_COMM_WORLD_SIZE", true),
    ("PMI_SIZE", true),
    ("MV2_COMM_WORLD_SIZE", true),
    ("SLURM_STEP_NUM_TASKS", true),
    ("WORLD_SIZE", false),
];

/// The ranks of the MPI world, or one if none is announced.
pub(crate) fn from_environment(timeout: Duration) -> Result<Arc<dyn Communicator>, Error> {
    let announced = announced(|variable| std::env::var(variable).ok());
    #[cfg(feature = "mpi")]
    {
        // Whatever PMIx has started may have company, even if no size is announced.
        let is_pmix = std::env::var_os("PMIX_RANK").is_some();
        if announced.map_or(is_pmix, |(_, _, is_mpi)| is_mpi) {
            let ranks = super::MpiRanks::join(timeout)?;
            return match announced {
                Some((variable, size, _)) if size != ranks.world_size() => {
                    Err(Error::NoMpiWorld { variable, size })
                }
                _ => Ok(Arc::new(ranks)),
            };
        }
    }
    let _ = timeout;
    match announced {
        None => Ok(Arc::new(SingleRank)),
        Some((variable, size, true)) => Err(Error::NeedsMpi { variable, size }),
        Some((variable, size, false)) => Err(Error::NoMpiWorld { variable, size }),
    }
}

/// The first variable that announces several ranks.
fn announced(environment: impl Fn(&str) -> Option<String>) -> Option<(&'static str, usize, bool)> {
    WORLD_SIZES.iter().find_map(|&(variable, is_mpi)| {
        let size = environment(variable)?.parse().ok()?;
        (size > 1).then_some((variable, size, is_mpi))
    })
}

#[cfg(test)]
mod tests {
    use super::announced;

    #[test]
    fn several_ranks_are_announced_and_one_is_not() {
        let environment = |pairs: &'static [(&str, &str)]| {
            move |variable: &str| {
                let pair = pairs.iter().find(|(name, _)| *name == variable)?;
                Some(pair.1.to_owned())
            }
        };
        assert_eq!(announced(environment(&[])), None);
        assert_eq!(announced(environment(&[("PMI_SIZE", "1"), ("WORLD_SIZE", "one")])), None);
        let torchrun = announced(environment(&[("RANK", "0"), ("WORLD_SIZE", "2")]));
        assert_eq!(torchrun, Some(("WORLD_SIZE", 2, false)));
        let both = announced(environment(&[("WORLD_SIZE", "2"), ("OMPI_COMM_WORLD_SIZE", "4")]));
        assert_eq!(both, Some(("OMPI_COMM_WORLD_SIZE", 4, true)));
    }
}
