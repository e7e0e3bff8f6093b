//! Ranks that a cluster has set aside or started already.

use std::collections::BTreeMap;
use std::path::Path;

use crate::error::Error;
use crate::hostfile::slots;

/// Ranks that a cluster has set aside, and that mpirun starts in it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Allocation {
    /// Their number.
    pub ranks: usize,
    /// What set them aside, as `SLURM job 12`.
    pub name: String,
}

impl Allocation {
    /// The allocation that `environment` tells of: a SLURM job or the launcher of an MPIJob.
    ///
    /// # Errors
    /// The hostfile of an MPIJob cannot be read.
    pub fn detect(environment: &BTreeMap<String, String>) -> Result<Option<Self>, Error> {
        let get = |name: &str| environment.get(name).map(String::as_str);
        if let Some(job) = get("SLURM_JOB_ID") {
            let tasks = get("SLURM_NTASKS").and_then(|tasks| tasks.parse().ok());
            let ranks = tasks.or_else(|| tasks_per_node(get("SLURM_TASKS_PER_NODE")?)).unwrap_or(1);
            return Ok(Some(Self { ranks, name: format!("SLURM job {job}") }));
        }
        match get("OMPI_MCA_orte_default_hostfile") {
            Some(file) => {
                Ok(Some(Self { ranks: slots(Path::new(file))?, name: format!("MPIJob, {file}") }))
            }
            None => Ok(None),
        }
    }
}

/// The number of ranks of which this process is one already, started by srun or mpirun: more than
/// one.
pub(crate) fn ranks_around(environment: &BTreeMap<String, String>) -> Option<usize> {
    ["OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS"]
        .iter()
        .find_map(|name| environment.get(*name)?.parse().ok())
        .filter(|ranks| *ranks > 1)
}

/// `2(x3),1` is seven.
fn tasks_per_node(text: &str) -> Option<usize> {
    let mut ranks = 0_usize;
    for part in text.split(',') {
        let (tasks, nodes) = match part.split_once("(x") {
            Some((tasks, nodes)) => (tasks, nodes.strip_suffix(')')?),
            None => (part, "1"),
        };
        let product = tasks.parse::<usize>().ok()?.checked_mul(nodes.parse().ok()?)?;
        ranks = ranks.checked_add(product)?;
    }
    Some(ranks)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn environment(variables: &[(&str, &str)]) -> BTreeMap<String, String> {
        variables.iter().map(|(name, value)| (name.to_string(), value.to_string())).collect()
    }

    #[test]
    fn an_allocation_is_read_from_the_environment() {
        let detect = |variables: &[(&str, &str)]| Allocation::detect(&environment(variables));
        assert_eq!(detect(&[]).unwrap(), None);
        let slurm = |ranks| Some(Allocation { ranks, name: "SLURM job 7".to_string() });
        let job = ("SLURM_JOB_ID", "7");
        assert_eq!(detect(&[job, ("SLURM_NTASKS", "4")]).unwrap(), slurm(4));
        assert_eq!(detect(&[job, ("SLURM_TASKS_PER_NODE", "2(x3),1")]).unwrap(), slurm(7));
        assert_eq!(detect(&[job, ("SLURM_TASKS_PER_NODE", "2(x")]).unwrap(), slurm(1));
        let folder = tempfile::tempdir().unwrap();
        let hosts = folder.path().join("hostfile");
        std::fs::write(&hosts, "worker-0 slots=1\nworker-1 slots=1\n").unwrap();
        let variable = ("OMPI_MCA_orte_default_hostfile", hosts.to_str().unwrap());
        assert_eq!(detect(&[variable]).unwrap().unwrap().ranks, 2);
    }

    #[test]
    fn ranks_that_run_already_are_seen() {
        assert_eq!(ranks_around(&environment(&[("SLURM_STEP_NUM_TASKS", "4")])), Some(4));
        assert_eq!(ranks_around(&environment(&[("OMPI_COMM_WORLD_SIZE", "1")])), None);
        // The script of a job is no rank.
        assert_eq!(
            ranks_around(&environment(&[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")])),
            None
        );
    }
}
