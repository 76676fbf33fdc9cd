"""A Docker engine for the test: the one that runs, or else one of its own that ends with it.

An engine of its own changes nothing on the machine: its socket and its data lie in the test's
folder, and it leaves the firewall, packet forwarding and the default bridge alone. Containers on
one network reach each other without any of these, and ports are published by a proxy process.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

START_SECONDS = 60.0
STOP_SECONDS = 60.0
PATH = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])


class CommandError(RuntimeError):
    """A command that failed or took too long; the message holds the end of what it printed."""


@dataclass(frozen=True, slots=True)
class Engine:
    """A running engine, and the environment in which the command-line clients find it."""

    environment: Mapping[str, str]
    is_own: bool

    def docker(self, *arguments: str, seconds: float = 60) -> str:
        return run(["docker", *arguments], self.environment, seconds)

    def answers(self) -> bool:
        try:
            self.docker("version", seconds=10)
        except CommandError:
            return False
        return True

    def has_image(self, name: str) -> bool:
        try:
            self.docker("image", "inspect", name)
        except CommandError:
            return False
        return True


def run(
    command: Sequence[str],
    environment: Mapping[str, str] | None = None,
    seconds: float = 60,
    folder: Path | None = None,
) -> str:
    """What the command prints to its standard output. Raises `CommandError`."""
    shown = " ".join(command)
    try:
        done = subprocess.run(
            list(command),
            env={**os.environ, "PATH": PATH, **(environment or {})},
            cwd=folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=seconds,
        )
    except subprocess.TimeoutExpired as error:
        raise CommandError(f"{shown}: not done after {seconds:.0f} s") from error
    except FileNotFoundError as error:
        raise CommandError(f"{command[0]} is not installed") from error
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).strip().splitlines()[-30:])
        raise CommandError(f"{shown}: exit status {done.returncode}\n{last}")
    return done.stdout


@contextlib.contextmanager
def docker_engine(folder: Path) -> Iterator[Engine]:
    """The machine's engine if one answers, otherwise one that lives in `folder` and ends here."""
    machine = Engine({}, is_own=False)
    if machine.answers():
        yield machine
        return
    with _own_engine(folder) as engine:
        yield engine


@contextlib.contextmanager
def _own_engine(folder: Path) -> Iterator[Engine]:
    if os.geteuid() != 0:
        raise CommandError("no Docker engine answers, and only root can start one")
    socket = f"unix://{folder}/docker.sock"
    # A configuration folder of its own: nobody's registry credentials have a part in this.
    engine = Engine({"DOCKER_HOST": socket, "DOCKER_CONFIG": str(folder / "config")}, is_own=True)
    command = [
        *("dockerd", "--host", socket, "--pidfile", str(folder / "dockerd.pid")),
        *("--data-root", str(folder / "data"), "--exec-root", str(folder / "exec")),
        *("--bridge=none", "--ip-forward=false", f"--iptables={_firewall_forwards_nothing()}"),
    ]
    log = folder / "dockerd.log"
    try:
        for more in ([], ["--storage-driver=vfs"]):
            process = _start([*command, *more], engine, log)
            if process is not None:
                break
        else:
            raise CommandError(f"dockerd does not start here:\n{_last_lines(log)}")
        try:
            yield engine
        finally:
            _stop(process)
    finally:
        _detach_mounts(folder)


def _firewall_forwards_nothing() -> str:
    """Whether Docker must open the firewall for its containers, as dockerd's flag says it.

    An engine that ran here before may have left forwarding closed. With bridged packets passing
    the firewall, containers would then not reach each other.
    """
    with contextlib.suppress(CommandError):
        return str("-P FORWARD DROP" in run(["iptables", "--list-rules", "FORWARD"])).lower()
    return "false"


def _start(command: list[str], engine: Engine, log: Path) -> subprocess.Popen[bytes] | None:
    """The process once the engine answers, or None if it ended or stayed silent."""
    with log.open("ab") as output:
        try:
            process = subprocess.Popen(
                command,
                env={**os.environ, "PATH": PATH},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )
        except FileNotFoundError as error:
            raise CommandError("no Docker engine answers, and dockerd is not installed") from error
    deadline = time.monotonic() + START_SECONDS
    while process.poll() is None and time.monotonic() < deadline:
        if engine.answers():
            return process
        time.sleep(0.3)
    _stop(process)
    return None


def _stop(process: subprocess.Popen[bytes]) -> None:
    # dockerd ends its containers and its containerd itself when it is asked to end.
    process.terminate()
    try:
        process.wait(STOP_SECONDS)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


def _detach_mounts(folder: Path) -> None:
    """Detaches what an engine that ended badly left mounted, so that the folder can be removed."""
    mounts = [line.split()[1] for line in Path("/proc/self/mounts").read_text().splitlines()]
    for mount in reversed([mount for mount in mounts if mount.startswith(f"{folder}/")]):
        with contextlib.suppress(CommandError):
            run(["umount", "--lazy", mount])


def _last_lines(log: Path, count: int = 15) -> str:
    return "\n".join(log.read_text(errors="replace").splitlines()[-count:])


def compose_command() -> list[str]:
    """`docker-compose` where it is installed, else the plugin of the `docker` command."""
    return (
        ["docker-compose"] if shutil.which("docker-compose", path=PATH) else ["docker", "compose"]
    )
