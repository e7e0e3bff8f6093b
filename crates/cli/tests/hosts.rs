//! Several machines: network namespaces with names of their own, which mpirun reaches by a launch
//! agent.
//!
//! Training on them needs the feature `mpi` (`.ci/mpi` builds it); scripts are started without.
#![cfg(target_os = "linux")]

#[path = "../../train/tests/common/mod.rs"]
mod training;

use std::collections::BTreeSet;
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use outsize::train::Accelerator;
use tempfile::TempDir;
use training::{Run, difference, train};

/// Steps that the worker trains for; unset for the tests.
const STEPS: &str = "OUTSIZE_HOSTS_TEST_STEPS";

/// Two machines with a wire between them; gone when dropped.
struct Machines {
    folder: TempDir,
    names: [String; 2],
    addresses: [String; 2],
    /// The ends of the wire, each in its machine.
    wires: [String; 2],
}

fn ip(args: &str) -> bool {
    let args = args.split_whitespace();
    Command::new("ip")
        .args(args)
        .stderr(Stdio::null())
        .status()
        .is_ok_and(|status| status.success())
}

impl Machines {
    /// Says so if there cannot be any here.
    fn new(net: u8) -> Option<Self> {
        if outsize::launch::find_mpirun("").is_err() {
            eprintln!("SKIPPED: there is no mpirun in PATH (Debian: openmpi-bin)");
            return None;
        }
        let folder = tempfile::tempdir().unwrap();
        let names = ["a", "b"].map(|name| format!("outsize-{}-{net}{name}", std::process::id()));
        let addresses = [1, 2].map(|host| format!("10.99.{net}.{host}"));
        let wires = ["a", "b"].map(|end| format!("oz{}{net}{end}", std::process::id()));
        let machines = Self { folder, names, addresses, wires };
        if !machines.connect() {
            eprintln!(
                "SKIPPED: network namespaces cannot be made here: it takes root and `ip` (Debian: iproute2)"
            );
            return None;
        }
        let [a, b] = &machines.names;
        let [at_a, _] = &machines.addresses;
        let agent = format!(
            "host=$1; shift; name={b}; [ $host = {at_a} ] && name={a}\n\
             exec ip netns exec $name unshare --uts sh -c \"hostname $name; $*\""
        );
        machines.script("agent", &agent);
        let hosts = machines.addresses.iter().map(|host| format!("{host} slots=2\n"));
        std::fs::write(machines.file("hosts"), hosts.collect::<String>()).unwrap();
        Some(machines)
    }

    fn connect(&self) -> bool {
        let ([a, b], [wire_a, wire_b]) = (&self.names, &self.wires);
        ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add {wire_a} netns {a} type veth peer name {wire_b} netns {b}"))
            && self.names.iter().zip(&self.wires).zip(&self.addresses).all(
                |((name, wire), address)| {
                    ip(&format!("-n {name} addr add {address}/24 dev {wire}"))
                        && ip(&format!("-n {name} link set lo up"))
                        && ip(&format!("-n {name} link set {wire} up"))
                },
            )
    }

    fn file(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn script(&self, name: &str, text: &str) -> PathBuf {
        let path = self.file(name);
        std::fs::write(&path, format!("#!/bin/sh\n{text}\n")).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
        path
    }

    /// Starts `program` with two ranks on each machine, from the first one.
    fn launch(&self, program: &Path) -> Command {
        let mut command = Command::new("ip");
        let start = format!("hostname {}; exec \"$@\"", self.names[0]);
        command
            .args(["netns", "exec", &self.names[0], "unshare", "--uts", "sh", "-c", &start, "sh"])
            .arg(env!("CARGO_BIN_EXE_outsize"))
            .args(["launch", "--engine", "mpi", "--hostfile"])
            .arg(self.file("hosts"))
            .arg(program)
            .env("OMPI_MCA_plm_rsh_agent", self.file("agent"))
            .env("OUTSIZE_CONFIG", self.file("config.yaml"))
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    }
}

impl Drop for Machines {
    fn drop(&mut self) {
        for name in &self.names {
            ip(&format!("netns del {name}"));
        }
    }
}

fn texts(output: &Output) -> [String; 2] {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned())
}

fn processes(word: &str) -> usize {
    let folders = std::fs::read_dir("/proc").unwrap().flatten();
    let lines = folders.filter_map(|folder| std::fs::read(folder.path().join("cmdline")).ok());
    lines.filter(|line| String::from_utf8_lossy(line).contains(word)).count()
}

/// Not a test of its own: what a rank does.
#[test]
fn worker() {
    let Some(steps) = std::env::var(STEPS).ok().and_then(|steps| steps.parse().ok()) else {
        return;
    };
    let accelerator = Accelerator::builder().split_batches(true).seed(3).build().unwrap();
    assert_eq!(accelerator.num_processes(), 4);
    println!("\nBEGUN");
    let weights = train(&accelerator, &Run { steps, ..Run::PLAIN }).unwrap();
    accelerator.print(format!("\nRESULT {}", serde_json::to_string(&weights).unwrap()));
}

impl Machines {
    /// A program whose ranks train for so many steps; none without MPI.
    fn trainer(&self, steps: usize) -> Option<PathBuf> {
        if !cfg!(feature = "mpi") {
            eprintln!("SKIPPED: build with `--features outsize-cli/mpi` to train on two machines");
            return None;
        }
        let itself = std::env::current_exe().unwrap();
        let line = "--exact worker --nocapture --test-threads 1";
        let text = format!("export {STEPS}={steps}\nexec '{}' {line}", itself.display());
        Some(self.script("trainer", &text))
    }
}

#[test]
fn four_ranks_on_two_machines_learn_the_weights_of_one() {
    let Some(machines) = Machines::new(3) else { return };
    let Some(trainer) = machines.trainer(Run::PLAIN.steps) else { return };
    let output = machines.launch(&trainer).output().unwrap();
    let [out, messages] = texts(&output);
    assert!(output.status.success(), "{out}{messages}");
    let result = out.lines().find_map(|line| line.strip_prefix("[rank 0] RESULT "));
    let weights: Vec<f32> = serde_json::from_str(result.expect(&messages)).unwrap();
    let alone = train(&Accelerator::builder().seed(3).build().unwrap(), &Run::PLAIN).unwrap();
    let difference = difference(&alone, &weights);
    assert!(difference <= 1e-6, "{difference:e}");
}

#[test]
fn ranks_run_on_the_machines_of_a_hostfile() {
    let Some(machines) = Machines::new(1) else { return };
    let program = machines
        .script("program", "echo $OMPI_COMM_WORLD_RANK $(uname -n) $OUTSIZE_MIXED_PRECISION");
    let output = machines.launch(&program).output().unwrap();
    let [out, messages] = texts(&output);
    assert!(output.status.success(), "{messages}");
    let found: BTreeSet<&str> = out.lines().collect();
    let rank = |rank: usize| format!("[rank {rank}] {rank} {} no", machines.names[rank / 2]);
    let expected: Vec<String> = (0..4).map(rank).collect();
    assert_eq!(found, expected.iter().map(String::as_str).collect());

    let program =
        machines.script("program", "[ $OMPI_COMM_WORLD_RANK = 3 ] && exit 5; sleep 60.2214");
    let output = machines.launch(&program).output().unwrap();
    let [_, messages] = texts(&output);
    assert_eq!(output.status.code(), Some(5), "{messages}");
    let end = format!("rank 3 on {} ended with exit status 5\n", machines.names[1]);
    assert!(messages.ends_with(&end), "{messages}");
    assert_eq!(processes("60.2214"), 0);
}

/// Cuts the second machine off once its ranks run `program`, whose processes have `word` in their
/// command lines; all end within a minute. Gives what was said.
fn cut_off(machines: &Machines, program: &Path, word: &str) -> String {
    let mut child = machines.launch(program).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map_while(Result::ok);
    // A test's own first line may stand before it.
    let begun: Vec<String> =
        lines.by_ref().filter(|line| line.ends_with("BEGUN")).take(4).collect();
    assert_eq!(begun.len(), 4, "all ranks run");
    let [a, b] = &machines.names;
    let link = format!("-n {b} link set {} down", machines.wires[1]);
    assert!(ip(&link), "{a} is cut off from {b}");
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    let [_, messages] = texts(&output);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}: {messages}", began.elapsed());
    assert!(!output.status.success());
    // What runs beyond the cut notices by itself.
    while processes(word) > 0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(processes(word), 0);
    messages
}

/// The first failure of a job names the machine that is out of reach.
fn assert_names_lost(machines: &Machines, messages: &str) {
    let tail = messages.split("error: the first failure:").nth(1).unwrap_or_default();
    assert!(
        tail.contains("lost communication") && tail.contains(&machines.addresses[1]),
        "{messages}"
    );
}

#[test]
fn a_machine_that_is_cut_off_ends_the_job() {
    let Some(machines) = Machines::new(2) else { return };
    let program = machines.script("program", "echo BEGUN; sleep 66.2607");
    assert_names_lost(&machines, &cut_off(&machines, &program, "66.2607"));
}

#[test]
fn training_ends_when_a_machine_is_cut_off() {
    let Some(machines) = Machines::new(4) else { return };
    let Some(trainer) = machines.trainer(usize::MAX) else { return };
    let messages = cut_off(&machines, &trainer, "--exact worker");
    eprintln!("{messages}");
    assert_names_lost(&machines, &messages);
}
