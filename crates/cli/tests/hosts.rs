//! Several machines: network namespaces with names of their own, which mpirun reaches by a launch agent.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;

/// Two machines with a wire between them; gone when dropped.
struct Machines {
    folder: TempDir,
    names: [String; 2],
    addresses: [String; 2],
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
        let machines = Self { folder, names, addresses };
        if !machines.connect(net) {
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

    fn connect(&self, net: u8) -> bool {
        let [a, b] = &self.names;
        let [wire_a, wire_b] = ["a", "b"].map(|end| format!("oz{}{net}{end}", std::process::id()));
        ip(&format!("netns add {a}"))
            && ip(&format!("netns add {b}"))
            && ip(&format!("link add {wire_a} netns {a} type veth peer name {wire_b} netns {b}"))
            && [(a, wire_a), (b, wire_b)].iter().zip(&self.addresses).all(
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

#[test]
fn a_machine_that_is_cut_off_ends_the_job() {
    let Some(machines) = Machines::new(2) else { return };
    let program = machines.script("program", "echo begun; sleep 66.2607");
    let child = machines.launch(&program).spawn().unwrap();
    std::thread::sleep(Duration::from_secs(3));
    assert!(processes("66.2607") >= 4, "all ranks run");
    let wire = format!("oz{}2b", std::process::id());
    assert!(ip(&format!("-n {} link set {wire} down", machines.names[1])));
    let began = Instant::now();
    let output = child.wait_with_output().unwrap();
    let [_, messages] = texts(&output);
    assert!(began.elapsed() < Duration::from_secs(60), "{:?}: {messages}", began.elapsed());
    assert!(!output.status.success());
    let tail = messages.split("error: the first failure:").nth(1).unwrap_or_default();
    assert!(
        tail.contains("lost communication") && tail.contains(&machines.addresses[1]),
        "{messages}"
    );
    // What runs beyond the cut notices by itself.
    while processes("66.2607") > 0 && began.elapsed() < Duration::from_secs(60) {
        std::thread::sleep(Duration::from_millis(200));
    }
    assert_eq!(processes("66.2607"), 0);
}
