"""Slurm on this machine: one controller and two nodes, whose names resolve for the jobs alone.

The daemons and their jobs have a mount and a process namespace of their own, which ends with the process that
made it: nothing outlives a test, and what is left of a job is what else runs in the namespace.
"""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
from pathlib import Path

from tests.support.leftovers import wait_until
from tests.support.ports import free_port

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scancel", "scontrol", "sinfo", "unshare")
_NODES = ("gigl-a", "gigl-b")
_NAMESPACES = ("--mount", "--pid", "--fork", "--mount-proc", "--kill-child")
_START = """\
set -eu
mount --bind hosts /etc/hosts
m=$PWD/munge
munged --foreground --force --num-threads=1 --key-file="$m/key" --socket="$m/socket" --pid-file="$m/pid" \\
  --log-file="$m/log" --seed-file="$m/seed" &
until [ -S munge/socket ]; do sleep 0.1; done
slurmctld -D -i &
for node in gigl-a gigl-b; do slurmd -D -N "$node" & done
wait
"""
_SETTINGS = """\
ClusterName=tests
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={control}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge/socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/slurmctld.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdPidFile={folder}/%n.pid
SlurmdLogFile={folder}/%n.log
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/linear
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
KillWait=10
SchedulerParameters=sched_interval=1,batch_sched_delay=0
NodeName=gigl-a NodeHostname={host} NodeAddr=127.0.0.1 Port={first} CPUs=1 State=UNKNOWN
NodeName=gigl-b NodeHostname={host} NodeAddr=127.0.0.1 Port={second} CPUs=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES State=UP
"""
_DAEMONS = ("munged", "slurmctld", "slurmd")


class Slurm:
    """A cluster, until ``close``. Its programs find it by ``environment``."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self.environment = {"SLURM_CONF": str(folder / "slurm.conf")}
        for name in ("munge", "state", *(f"spool-{node}" for node in _NODES)):
            (folder / name).mkdir(mode=0o711)
        key = folder / "munge/key"
        key.touch(mode=0o400)
        key.write_bytes(os.urandom(1024))
        (folder / "hosts").write_text(f"127.0.0.1 localhost {os.uname().nodename} {' '.join(_NODES)}\n")
        first, control = free_port(count=2), free_port()
        settings = {"first": first, "second": first + 1, "control": control, "host": os.uname().nodename}
        (folder / "slurm.conf").write_text(_SETTINGS.format(folder=folder, **settings))
        (folder / "start").write_text(_START)
        with (folder / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["unshare", *_NAMESPACES, "sh", "start"],
                cwd=folder,
                env=os.environ | self.environment,
                stdout=log,
                stderr=log,
            )

    def wait_ready(self) -> None:
        """Wait until both nodes are idle."""
        if not wait_until(
            lambda: self.run("sinfo", "-h", "-o", "%D %t").split() == ["2", "idle"], seconds=60
        ):
            logs = [path.read_text(errors="replace")[-2000:] for path in self._folder.glob("*log")]
            raise AssertionError("\n".join(["the nodes of Slurm are not up", *logs]))

    def run(self, *command: str) -> str:
        """Run a program of Slurm, and return what it printed."""
        done = subprocess.run(
            command,
            env=os.environ | self.environment,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Return the command lines of what runs beside the daemons, by process id."""
        found = {}
        for place in Path("/proc").glob("[0-9]*"):
            try:
                inside = os.stat(place / "ns/pid").st_ino == self._namespace
                program = (place / "exe").readlink().name
                words = (place / "cmdline").read_bytes().rstrip(b"\0").split(b"\0")
            except OSError:  # It has ended.
                continue
            if inside and not program.startswith(_DAEMONS) and words[-1] != b"start":
                found[int(place.name)] = b" ".join(words).decode(errors="replace")
        return found

    def kill(self, words: str) -> None:
        """Kill the processes whose command lines have these words."""
        chosen = [process for process, line in self.processes().items() if words in line]
        assert chosen, self.processes()
        for process in chosen:
            os.kill(process, signal.SIGKILL)

    def close(self) -> None:
        """End the daemons, and everything that they started."""
        self._process.kill()
        self._process.wait()

    @property
    def _namespace(self) -> int:
        return os.stat(f"/proc/{self._process.pid}/ns/pid_for_children").st_ino


def missing_for_slurm() -> str:
    """Return why there can be no Slurm here, empty where there can be one."""
    if os.geteuid():
        return "only root can start Slurm's daemons in namespaces"
    lacking = [program for program in _PROGRAMS if not shutil.which(program)]
    if lacking:
        return f"needs {', '.join(lacking)}: apt-get install slurmctld slurmd slurm-client munge"
    done = subprocess.run(["unshare", *_NAMESPACES, "true"], capture_output=True, check=False, timeout=60)
    return "" if done.returncode == 0 else "namespaces cannot be made here"
