"""A real Slurm on this machine for the length of a test: its own folder, its own key, loopback only, stand-in GPUs.

Nothing in /etc is read or written. Everything that was started is ended by `stop`, whatever happened in between.
"""

import os
import re
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tests.parts import program
from tests.ports import free_ports

PROGRAMS: Final = ("munged", "slurmctld", "slurmd", "scontrol", "squeue", "sbatch", "slurmrestd")
FOR_ACCOUNTING: Final = ("slurmdbd", "sacctmgr", "sacct", "mariadbd", "mariadb-install-db", "mariadb")
LOG_FILE: Final = "--innodb-log-file-size=8M"  # MariaDB's own choice is 96 MB
STOPPING: Final = ("slurmrestd", "slurmctld", "slurmd", "slurmdbd", "mariadbd", "munged")
"""The order in which daemons are ended: each before what it talks to."""


@dataclass(frozen=True, slots=True)
class Machine:
    """A node of the lab. `kind` is the type of its GPUs in Slurm's words, `flag` the maker whose variables jobs get."""

    name: str
    kind: str
    flag: str
    features: str
    gpus: int = 4
    cpus: int = 16
    memory_mib: int = 64_000
    sockets: int = 1


MACHINES: Final = (
    Machine("volta0", "v100", "nvidia_gpu_env", "nvidia,volta"),
    Machine("volta1", "v100", "nvidia_gpu_env", "nvidia,volta"),
    Machine("turing0", "t4", "nvidia_gpu_env", "nvidia,turing"),
    Machine("radeon0", "mi50", "amd_gpu_env", "amd,radeon"),
)


class Lab:
    """The daemons of one Slurm and what a test may do to them."""

    def __init__(
        self,
        machines: Sequence[Machine] = MACHINES,
        *,
        index_types: bool = False,
        jwt: bool = False,
        lua: str = "",
        conf: Sequence[str] = (),
        min_job_age_s: int = 3600,
        dbd: bool = False,
    ) -> None:
        """Lay out the folder; `start` starts the daemons. `conf` are more lines for slurm.conf.

        With `dbd` there are slurmdbd and a MariaDB of its own: sacct, accounts, and limits that Slurm enforces.
        """
        for name in (*PROGRAMS, *(FOR_ACCOUNTING if dbd else ())):
            program(name)
        self.machines = tuple(machines)
        self.index_types, self.jwt, self.lua, self.dbd = index_types, jwt, lua, dbd
        # Not under pytest's folders: munged wants to be let into every folder above its socket, and a socket's path
        # has at most 107 characters.
        self.folder = Path(tempfile.mkdtemp(prefix="adlro-slurm."))
        self.folder.chmod(0o755)
        self.database = database_folder(self.folder)
        self.socket = self.folder / "run" / "rest.sock"
        self.daemons: dict[str, subprocess.Popen[bytes]] = {}
        self._ports = free_ports(4 + len(machines))
        self.rest_port, self._dbd_port, self._database_port = self._ports[1:4]
        self.environment = {**os.environ, "SLURM_CONF": str(self.folder / "etc" / "slurm.conf")}
        self.environment["PATH"] = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
        for word in ("SLURM_JWT", "SLURM_TIME_FORMAT", "SQUEUE_FORMAT"):
            self.environment.pop(word, None)
        self._write(conf, min_job_age_s)

    # ---- its files ---------------------------------------------------------------------------------------------------

    def _write(self, conf: Sequence[str], min_job_age_s: int) -> None:
        for name in ("etc", "munge", "run", "log", "spool", "state", "dev", "jobs"):
            (self.folder / name).mkdir()
        (self.folder / "jobs").chmod(0o777)
        self._secret("munge/munge.key", 128)
        self._secret("etc/jwt.key", 32)
        host = socket.gethostname().partition(".")[0]
        me = "root" if os.geteuid() == 0 else str(os.geteuid())
        place = self.folder
        lines = [
            "ClusterName=lab",
            f"SlurmctldHost={host}(127.0.0.1)",
            f"SlurmctldPort={self._ports[0]}",
            f"SlurmUser={me}",
            f"SlurmdUser={me}",
            "CommunicationParameters=NoCtldInAddrAny,NoInAddrAny",
            f"AuthInfo=socket={place}/munge/munge.socket,cred_expire=10",
            f"StateSaveLocation={place}/state",
            f"SlurmdSpoolDir={place}/spool/%n",
            f"SlurmctldPidFile={place}/run/slurmctld.pid",
            f"SlurmdPidFile={place}/run/slurmd.%n.pid",
            f"SlurmctldLogFile={place}/log/slurmctld.log",
            f"SlurmdLogFile={place}/log/slurmd.%n.log",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "MailProg=/bin/true",
            "JobAcctGatherType=jobacct_gather/none",
            *(self._accounting() if self.dbd else ["AccountingStorageType=accounting_storage/none"]),
            "JobCompType=jobcomp/filetxt",
            f"JobCompLoc={place}/log/jobcomp.txt",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_Core_Memory",
            "DefMemPerCPU=1000",
            "SchedulerType=sched/backfill",
            "SchedulerParameters=batch_sched_delay=0,sched_interval=1,bf_interval=1,default_queue_depth=1000",
            "PriorityType=priority/basic",
            "SlurmdParameters=config_overrides",
            "SlurmctldTimeout=30",
            "SlurmdTimeout=5",
            "MessageTimeout=3",
            "TCPTimeout=1",
            "InactiveLimit=0",
            "KillWait=1",
            "CompleteWait=0",
            f"MinJobAge={min_job_age_s}",
            "ReturnToService=2",
            "JobRequeue=1",
            "GresTypes=gpu",
        ]
        if self.jwt:
            lines += ["AuthAltTypes=auth/jwt", f"AuthAltParameters=jwt_key={place}/etc/jwt.key"]
        if self.lua:
            lines.append("JobSubmitPlugins=lua")
            (place / "etc" / "job_submit.lua").write_text(self.lua)
        gres = ["AutoDetect=off"]
        for port, machine in zip(self._ports[4:], self.machines, strict=True):
            kinds = self._kinds(machine)
            lines.append(
                f"NodeName={machine.name} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs={machine.cpus} "
                f"Sockets={machine.sockets} CoresPerSocket={machine.cpus // machine.sockets} ThreadsPerCore=1 "
                f"RealMemory={machine.memory_mib} Feature={machine.features}"
                + (f" Gres={','.join(f'gpu:{kind}:{len(indices)}' for kind, indices in kinds)}" if kinds else "")
            )
            for kind, indices in kinds:
                for index in indices:  # a path that ends in the index, and leads to a device that everybody has
                    (place / "dev" / f"{machine.name}_gpu{index}").symlink_to("/dev/null")
                inside = f"{indices[0]}" if len(indices) == 1 else f"[{indices[0]}-{indices[-1]}]"
                gres.append(
                    f"NodeName={machine.name} Name=gpu Type={kind} File={place}/dev/{machine.name}_gpu{inside} "
                    f"Flags={machine.flag}"
                )
        lines.append("PartitionName=gpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP")
        lines += [line.replace("@FOLDER@", str(place)) for line in conf]
        (place / "etc" / "slurm.conf").write_text("\n".join(lines) + "\n")
        (place / "etc" / "gres.conf").write_text("\n".join(gres) + "\n")
        (place / "etc" / "cgroup.conf").write_text(
            "CgroupPlugin=disabled\n" if slurm_version() >= (23, 11) else "CgroupAutomount=no\n"
        )

    def _kinds(self, machine: Machine) -> list[tuple[str, list[int]]]:
        """The GPU types of a node with the indices that each has: one for all of them, or one for each."""
        every = list(range(machine.gpus))
        if not every:
            return []
        return [(f"{machine.kind}_{i}", [i]) for i in every] if self.index_types else [(machine.kind, every)]

    def _accounting(self) -> list[str]:
        """What slurm.conf says of slurmdbd; slurmdbd's own file is written beside it."""
        me = "root" if os.geteuid() == 0 else str(os.geteuid())
        munge = f"{self.folder}/munge/munge.socket"
        self._password = secrets.token_hex(16)
        file = self.folder / "etc" / "slurmdbd.conf"
        file.touch(0o600)  # slurmdbd does not start if others may read it
        lines = [
            "AuthType=auth/munge",
            f"AuthInfo=socket={munge}",
            f"DbdHost={socket.gethostname().partition('.')[0]}",
            "DbdAddr=127.0.0.1",
            f"DbdPort={self._dbd_port}",
            f"SlurmUser={me}",
            "StorageType=accounting_storage/mysql",
            "StorageHost=127.0.0.1",
            f"StoragePort={self._database_port}",
            "StorageUser=slurm",
            f"StoragePass={self._password}",
            "StorageLoc=slurm_accounts",
            f"PidFile={self.folder}/run/slurmdbd.pid",
            f"LogFile={self.folder}/log/slurmdbd.log",
            "CommunicationParameters=NoInAddrAny",
        ]
        file.write_text("\n".join(lines) + "\n")
        return [
            "AccountingStorageType=accounting_storage/slurmdbd",
            "AccountingStorageHost=127.0.0.1",
            f"AccountingStoragePort={self._dbd_port}",
            f"AccountingStoragePass={munge}",  # else it looks for the socket of the machine's own munge
            "AccountingStorageEnforce=associations,limits,qos",
            "AccountingStorageTRES=gres/gpu",
        ]

    def _secret(self, name: str, size: int) -> None:
        path = self.folder / name
        path.touch(0o600)
        path.write_bytes(secrets.token_bytes(size))

    # ---- its processes -----------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start everything and wait until the nodes take jobs."""
        munge = self.folder / "munge"
        self._spawn(
            "munged",
            [
                "munged",
                "--foreground",
                f"--socket={munge}/munge.socket",
                f"--key-file={munge}/munge.key",
                f"--pid-file={self.folder}/run/munged.pid",
                f"--log-file={self.folder}/log/munged.log",
                f"--seed-file={munge}/seed",
            ],
        )
        self.wait((munge / "munge.socket").exists, "munged's socket")
        if self.dbd:
            self._start_accounting()
        self.start_controller()
        for machine in self.machines:
            self.start_node(machine.name)
        self.wait(lambda: self.node_states() == ["idle"] * len(self.machines), "all nodes idle")
        self.start_rest()

    def _start_accounting(self) -> None:
        """Start a MariaDB in the lab's folder, on loopback, and slurmdbd on it; and make the account `lab`."""
        data, own = self.database, self.folder / "run" / "mariadb.sock"
        as_root = ["--user=root"] if os.geteuid() == 0 else []
        make = ["--no-defaults", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
        make.append(LOG_FILE)
        self.run("mariadb-install-db", *make, *as_root)
        self._spawn(
            "mariadbd",
            [
                "mariadbd",
                "--no-defaults",
                f"--datadir={data}",
                f"--socket={own}",
                f"--port={self._database_port}",
                "--bind-address=127.0.0.1",
                f"--pid-file={self.folder}/run/mariadb.pid",
                "--skip-log-bin",
                LOG_FILE,
                "--innodb-buffer-pool-size=64M",
                "--innodb-flush-log-at-trx-commit=0",
                "--innodb-lock-wait-timeout=900",
                *as_root,
            ],
        )
        self.wait(lambda: own.exists() and answers(self._database_port), "MariaDB")
        sql = (
            f"CREATE USER slurm@'127.0.0.1' IDENTIFIED BY '{self._password}'; "
            "GRANT ALL ON slurm_accounts.* TO slurm@'127.0.0.1';"
        )
        self.run("mariadb", "--no-defaults", f"--socket={own}", "-uroot", stdin=sql)
        self._spawn("slurmdbd", ["slurmdbd", "-D"])
        self.wait(lambda: answers(self._dbd_port), "slurmdbd")
        self.run("sacctmgr", "--immediate", "add", "cluster", "lab")
        self.run("sacctmgr", "--immediate", "add", "account", "lab", "Description=lab", "Organization=lab")

    def add_user(self, user: str, *words: str) -> None:
        """Let a user use the account `lab`; `words` are for sacctmgr, as QOS=small."""
        self.run("sacctmgr", "--immediate", "add", "user", user, "Account=lab", *words)

    def add_qos(self, name: str, *words: str) -> None:
        """Make a QOS; `words` are its limits, as GrpTRES=gres/gpu=2."""
        self.run("sacctmgr", "--immediate", "add", "qos", name, *words)

    def limit(self, qos: str, *words: str) -> None:
        """Change the limits of a QOS."""
        self.run("sacctmgr", "--immediate", "modify", "qos", qos, "set", *words)

    def sacct(self, *fields: str) -> list[dict[str, str]]:
        """What slurmdbd has of all jobs: a row for each time that one was handed in or put back, without steps."""
        command = ["sacct", "--allusers", "--duplicates", "--allocations", "--parsable2", "--starttime=now-7days"]
        head, *rows = self.run(*command, f"--format={','.join(fields)}").splitlines()
        return [dict(zip(head.split("|"), row.split("|"), strict=True)) for row in rows]

    def start_controller(self) -> None:
        """Start slurmctld, also after it was killed: it goes on from its saved state."""
        self._spawn("slurmctld", ["slurmctld", "-D", "-i", "-f", self.environment["SLURM_CONF"]])

    def restart_controller(self) -> None:
        """End slurmctld as an administrator does, and start it again: it saves what it knows, and reads slurm.conf."""
        daemon = self.daemons.pop("slurmctld")
        daemon.terminate()
        daemon.wait(30)
        self.start_controller()

    def start_node(self, name: str) -> None:
        """Start slurmd of a node, also after a crash."""
        (self.folder / "spool" / name).mkdir(exist_ok=True)
        self._spawn(f"slurmd {name}", ["slurmd", "-D", "-f", self.environment["SLURM_CONF"], "-N", name])

    def start_rest(self) -> None:
        """Start slurmrestd: over a socket as ourselves, and with tokens over TCP if the lab has them."""
        api = ["-s", "openapi/slurmctld" if slurm_version() >= (23, 11) else "openapi/v0.0.38"]
        base = ["slurmrestd", "-f", self.environment["SLURM_CONF"], *api]
        self.socket.unlink(missing_ok=True)
        # It does not like to be root or SlurmUser, which a test is; over this socket it acts as whom it runs as.
        self._spawn(
            "slurmrestd",
            [*base, "-a", "rest_auth/local", f"unix:{self.socket}"],
            SLURMRESTD_SECURITY="disable_user_check",
        )
        self.wait(self.socket.exists, "slurmrestd's socket")
        if self.jwt:
            self._spawn(
                "slurmrestd jwt",
                [*base, "-a", "rest_auth/jwt", f"127.0.0.1:{self.rest_port}"],
                user="nobody" if os.geteuid() == 0 else None,
                SLURM_JWT="daemon",
                SLURMRESTD_SECURITY="disable_user_check",
            )
            self.wait(lambda: answers(self.rest_port), "slurmrestd's port")

    def _spawn(self, name: str, command: Sequence[str], user: str | None = None, **more: str) -> None:
        environment = {**self.environment, **more}
        with (self.folder / "log" / f"{name.replace(' ', '.')}.out").open("ab") as log:
            self.daemons[name] = subprocess.Popen(
                [program(command[0]), *command[1:]],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                cwd=self.folder,
                start_new_session=True,
                user=user,
                group="nogroup" if user else None,
                extra_groups=[] if user else None,
            )

    def kill(self, name: str) -> None:
        """End a daemon with SIGKILL."""
        daemon = self.daemons.pop(name)
        daemon.kill()
        daemon.wait()

    def crash(self, node: str) -> None:
        """A node's sudden death: slurmd, the keepers of its jobs, and the jobs."""
        self.kill(f"slurmd {node}")
        for pid in self._left_over(node):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _left_over(self, node: str = "") -> list[int]:
        """The keepers of this lab's jobs, and the jobs.

        slurmstepd has left its parent and rewrites its command and its environment, but keeps its node's log open.
        """
        names = [machine.name for machine in self.machines if node in ("", machine.name)]
        logs = tuple(f"{self.folder}/log/slurmd.{name}.log" for name in names)
        children: dict[int, list[int]] = {}
        roots = []
        for folder in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                pid = int(folder.name)
                parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
                children.setdefault(parent, []).append(pid)
                if any(os.readlink(file).endswith(logs) for file in (folder / "fd").iterdir()):
                    roots.append(pid)
        found: list[int] = []
        while roots:
            pid = roots.pop()
            found.append(pid)
            roots += children.get(pid, [])
        daemons = {daemon.pid for daemon in self.daemons.values()} | {os.getpid()}
        return [pid for pid in dict.fromkeys(found) if pid not in daemons]

    def wait_until_saved(self) -> None:
        """Wait until the controller has saved what it was told by now: it forgets the rest when it is killed."""
        now, file = time.time(), self.folder / "state" / "job_state"
        self.wait(lambda: file.exists() and file.stat().st_mtime > now, "a saved state")

    def stop(self) -> None:
        """End every job and every daemon, and remove the folder."""
        order = sorted(self.daemons, key=lambda name: STOPPING.index(name.split()[0]))
        for name in order:
            if STOPPING.index(name.split()[0]) < STOPPING.index("mariadbd"):
                self.daemons[name].terminate()
        for name in order:  # the database goes when nobody writes into it
            self.daemons[name].terminate()
            try:
                self.daemons[name].wait(5)
            except subprocess.TimeoutExpired:
                self.daemons[name].kill()
                self.daemons[name].wait()
        self.daemons.clear()
        for _ in range(20):
            left = self._left_over()
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            if not left:
                break
            time.sleep(0.05)
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.database, ignore_errors=True)

    # ---- what a test asks ------------------------------------------------------------------------------------------

    def run(self, *command: str, stdin: str = "", user: str | None = None) -> str:
        """What a command of this Slurm says; it must go well."""
        done = subprocess.run(
            command,
            env=self.environment,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=60,
            cwd=self.folder,
            user=user,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr or done.stdout}"
        return done.stdout

    def sbatch(self, script: str, *options: str, user: str | None = None) -> str:
        """Hand in a script; its id."""
        text = f"#!/bin/sh\n{script}\n"
        out = f"--output={self.folder}/jobs/%j.out"
        return self.run("sbatch", "--parsable", out, *options, stdin=text, user=user).strip()

    def output(self, job: str) -> str:
        """What a job printed."""
        return (self.folder / "jobs" / f"{job}.out").read_text()

    def node_states(self) -> list[str]:
        """The states of the nodes, or nothing while the controller does not answer."""
        with suppress(AssertionError):
            lines = self.run("sinfo", "--noheader", "--Node", "--format=%N %T").splitlines()
            return list(dict(line.split() for line in lines).values())  # a node has a line for each partition
        return []

    def token(self, seconds: int = 3600) -> str:
        """A token for slurmrestd."""
        return self.run("scontrol", "token", f"lifespan={seconds}").strip().partition("=")[2]

    def completions(self) -> list[dict[str, str]]:
        """Slurm's own record of jobs that ended, a line for each end."""
        path = self.folder / "log" / "jobcomp.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [dict(re.findall(r"(\w+)=(\S*)", line)) for line in lines]

    def wait(self, is_true: Callable[[], object], what: str, seconds: float = 60.0) -> None:
        """Wait until something is so; fail when it takes too long or a daemon died."""
        end = time.monotonic() + seconds
        while not is_true():
            dead = [name for name, daemon in self.daemons.items() if daemon.poll() is not None]
            assert not dead, f"{dead[0]} ended: {self.log(dead[0])}"
            assert time.monotonic() < end, f"not within {seconds} s: {what}"
            time.sleep(0.05)

    def log(self, name: str) -> str:
        """The end of what a daemon printed."""
        path = self.folder / "log" / f"{name.replace(' ', '.')}.out"
        return path.read_text(errors="replace")[-2000:] if path.exists() else ""


@contextmanager
def running(lab: Lab) -> Iterator[Lab]:
    """The lab, started; ended afterwards whatever happens."""
    try:
        lab.start()
        yield lab
    finally:
        lab.stop()


def slurm_version() -> tuple[int, int]:
    """The installed Slurm's generation: (22, 5)."""
    said = subprocess.run([program("slurmctld"), "-V"], capture_output=True, text=True, check=True).stdout
    found = re.search(r"(\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def database_folder(lab: Path) -> Path:
    """Where a lab's database goes: into memory, where there is room, because it waits for the disk at every step."""
    memory = Path("/dev/shm")
    if memory.is_dir() and os.access(memory, os.W_OK) and shutil.disk_usage(memory).free > 500_000_000:
        return memory / lab.name
    return lab / "database"


def answers(port: int) -> bool:
    """Whether somebody listens at this port of this machine."""
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
