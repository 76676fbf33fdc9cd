"""Real servers for the tests: each is a context manager that starts one and surely ends it.

Everything listens on loopback, on a port that was free. A server is started as the leader of a
process group of its own and is ended by that group's number, so that its children go with it and
nothing else does.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]
DEPLOY = REPOSITORY / "deploy"
HOST = "127.0.0.1"
STOP_SECONDS = 20.0
"""How long a server may take to end by itself before it is ended by force."""


class ServerError(RuntimeError):
    """A server that did not start; the message holds the end of its log."""


@dataclass(frozen=True, slots=True)
class Server:
    """A server that runs, or ran: the leader of its process group."""

    name: str
    process: subprocess.Popen[bytes]
    port: int
    log: Path

    @property
    def url(self) -> str:
        return f"http://{HOST}:{self.port}"

    def is_alive(self) -> bool:
        return self.process.returncode is None and not self._has_ended(within=0)

    def kill(self) -> None:
        """End the whole group at once, as `kill -9` or a container's removal does."""
        if self.process.returncode is None:
            # The leader is not reaped before this: until then its number, which is also the
            # group's, cannot belong to anybody else.
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """The leader does not run while the block does: it keeps its port and answers nobody."""
        os.kill(self.process.pid, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(self.process.pid, signal.SIGCONT)

    def stop(self, seconds: float = STOP_SECONDS) -> int:
        """Ask the leader to end, see to it that the group does; returns the exit status."""
        if self.process.returncode is None:
            # Not `terminate()`: that would reap a leader that has ended already (see `kill`).
            os.kill(self.process.pid, signal.SIGTERM)
            self._has_ended(within=seconds)
            self.kill()
        return self.process.returncode or 0

    def last_lines(self, count: int = 30) -> str:
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-count:])

    def _has_ended(self, within: float) -> bool:
        """Whether the leader ends within that time. It is left unreaped (see `kill`)."""
        options = os.WEXITED | os.WNOWAIT | os.WNOHANG
        deadline = time.monotonic() + within
        while os.waitid(os.P_PID, self.process.pid, options) is None:
            if time.monotonic() >= deadline:
                return False
            time.sleep(0.05)
        return True


def free_port() -> int:
    """A port of loopback that nobody listens on at this moment."""
    with socket.socket() as listener:
        listener.bind((HOST, 0))
        port: int = listener.getsockname()[1]
        return port


@contextlib.contextmanager
def running(
    name: str,
    command: Sequence[str],
    *,
    port: int,
    folder: Path,
    ready_path: str,
    ready_seconds: float,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Server]:
    """Run `command` in `folder` until the block ends, which begins when the server is ready.

    Ready means that GET `ready_path` answers 200. Both streams go to `NAME.log` in the folder.
    """
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / f"{name}.log"
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            cwd=folder,
            env={**_inherited_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            # A group, but no session: Linux gives each session a share of the processors
            # (autogroup), and where all are busy, vLLM's spinning while it waits keeps the other
            # sessions' processes waiting for many seconds.
            process_group=0,
        )
    server = Server(name, process, port, log)
    try:
        _wait_until_ready(server, ready_path, ready_seconds)
        yield server
    finally:
        server.stop()


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """What the tests vary about the vLLM server. A block holds 128 tokens on CPUs."""

    kv_blocks: int = 40
    max_num_seqs: int = 32
    prefix_caching: bool = False
    served_model_name: str = "tiny"
    more: tuple[str, ...] = ()

    def arguments(self, model: Path, port: int) -> list[str]:
        caching = "--enable-prefix-caching" if self.prefix_caching else "--no-enable-prefix-caching"
        return [
            *("serve", str(model), "--served-model-name", self.served_model_name),
            *("--load-format", "dummy", "--dtype", "bfloat16", "--enforce-eager"),
            *("--max-model-len", "2048", "--max-num-seqs", str(self.max_num_seqs)),
            *("--num-gpu-blocks-override", str(self.kv_blocks), caching),
            *("--host", HOST, "--port", str(port), *self.more),
        ]

    def with_flag(self, flag: str, value: str) -> VllmOptions:
        """The same server with one flag changed."""
        if flag == "--num-gpu-blocks-override":
            return replace(self, kv_blocks=int(value))
        if flag == "--max-num-seqs":
            return replace(self, max_num_seqs=int(value))
        return replace(self, more=(*self.more, flag, value))


def vllm_server(
    python: Path, model: Path, folder: Path, port: int, options: VllmOptions | None = None
) -> AbstractContextManager[Server]:
    """The real vLLM on CPUs, from the environment of `python` (see `vllm_environment.py`)."""
    arguments = (options or VllmOptions()).arguments(model, port)
    return running(
        "vllm",
        [str(python.with_name("vllm")), *arguments],
        port=port,
        folder=folder,
        ready_path="/health",
        # Healthy after half a minute on two idle cores; these two are shared with other servers.
        ready_seconds=240,
        environment={
            "VLLM_CPU_KVCACHE_SPACE": "1",
            # Nothing of this may be looked for on, or reported to, the internet.
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "NO_COLOR": "1",
        },
    )


def sidecar(
    folder: Path,
    vllm_url: str,
    *,
    record: Path | None = None,
    vllm_arguments: Sequence[str] = (),
    vllm_log: Path | None = None,
) -> AbstractContextManager[Server]:
    """The sidecar itself, from the environment that runs the tests; it may be told vLLM's flags
    and where vLLM writes its log."""
    port = free_port()
    command = [sys.executable, "-m", "sidecar", "run", "--vllm-url", vllm_url]
    command += ["--host", HOST, "--port", str(port)]
    if record is not None:
        command += ["--record", str(record)]
    environment = {"PYTHONPATH": str(REPOSITORY)}
    if vllm_arguments:
        environment["SIDECAR_VLLM_ARGS"] = shlex.join(vllm_arguments)
    if vllm_log is not None:
        environment["SIDECAR_VLLM_LOG"] = str(vllm_log)
    return running(
        "sidecar",
        command,
        port=port,
        folder=folder,
        ready_path="/-/ready",
        ready_seconds=30,
        environment=environment,
    )


def webhook_receiver(folder: Path) -> AbstractContextManager[Server]:
    """The sidecar's own receiver of Alertmanager's messages; its log has a line per alert."""
    port = free_port()
    return running(
        "webhook",
        [sys.executable, "-m", "sidecar", "webhook", "--host", HOST, "--port", str(port)],
        port=port,
        folder=folder,
        ready_path="/-/healthy",
        ready_seconds=30,
        environment={"PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": "1"},
    )


def alertmanager(folder: Path, webhook_url: str) -> AbstractContextManager[Server]:
    """Alertmanager with the repository's configuration, its messages sent to `webhook_url`."""
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "alertmanager.yml"
    configuration.write_text(
        _replaced(
            (DEPLOY / "alertmanager" / "alertmanager.yml").read_text(),
            {
                "http://webhook:9131": webhook_url,
                # Half a minute is for collecting what fires together; a test has one alert.
                "group_wait: 30s": "group_wait: 1s",
                # Groups that have been announced would hear of a change only after this.
                "group_interval: 5m": "group_interval: 5s",
            },
        )
    )
    command = [_program("alertmanager", "prometheus-alertmanager")]
    command += ["--config.file", str(configuration), "--storage.path", str(folder / "state")]
    # No cluster: an empty address keeps it from looking for peers on the network.
    command += ["--web.listen-address", f"{HOST}:{port}", "--cluster.listen-address="]
    return running(
        "alertmanager",
        command,
        port=port,
        folder=folder,
        ready_path="/-/ready",
        ready_seconds=30,
    )


def prometheus(
    folder: Path, *, sidecar_port: int, vllm_port: int, alertmanager_port: int
) -> AbstractContextManager[Server]:
    """Prometheus with the repository's configuration and rules, pointed at these servers.

    It scrapes the sidecar and evaluates the rules more often than the file says, which shortens
    the test and changes nothing about the rules: each alert keeps its own `for`.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    configuration = folder / "prometheus.yml"
    configuration.write_text(
        _replaced(
            (DEPLOY / "prometheus" / "prometheus.yml").read_text(),
            {
                "sidecar:9130": f"{HOST}:{sidecar_port}",
                "vllm:8000": f"{HOST}:{vllm_port}",
                "alertmanager:9093": f"{HOST}:{alertmanager_port}",
                "localhost:9090": f"{HOST}:{port}",
                "/etc/prometheus/rules": str(DEPLOY / "prometheus" / "rules"),
                "scrape_interval: 5s": "scrape_interval: 2s",
                "scrape_timeout: 4s": "scrape_timeout: 2s",
                "evaluation_interval: 15s": "evaluation_interval: 5s",
            },
        )
    )
    command = [_program("prometheus"), "--config.file", str(configuration)]
    command += ["--storage.tsdb.path", str(folder / "data")]
    command += ["--web.listen-address", f"{HOST}:{port}"]
    return running(
        "prometheus",
        command,
        port=port,
        folder=folder,
        ready_path="/-/ready",
        ready_seconds=30,
    )


def query(prometheus_url: str, expression: str) -> dict[tuple[tuple[str, str], ...], float]:
    """What an instant query answers: values by their sorted labels."""
    answer = httpx.get(
        f"{prometheus_url}/api/v1/query", params={"query": expression}, trust_env=False
    )
    answer.raise_for_status()
    return {
        tuple(sorted(series["metric"].items())): float(series["value"][1])
        for series in answer.json()["data"]["result"]
    }


def _wait_until_ready(server: Server, path: str, seconds: float) -> None:
    deadline = time.monotonic() + seconds
    while not _answers(server, path):
        if not server.is_alive():
            raise ServerError(f"{server.name} ended while starting:\n{server.last_lines()}")
        if time.monotonic() >= deadline:
            raise ServerError(
                f"{server.name} was not ready after {seconds:.0f} s:\n{server.last_lines()}"
            )
        time.sleep(0.2)


def _answers(server: Server, path: str) -> bool:
    try:
        return httpx.get(server.url + path, timeout=5, trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def _replaced(text: str, replacements: Mapping[str, str]) -> str:
    """`text` with each key replaced by its value; a key that is not there is an error."""
    for old, new in replacements.items():
        if old not in text:
            raise ValueError(f"the repository's configuration no longer says {old!r}")
        text = text.replace(old, new)
    return text


def _program(*names: str) -> str:
    """The first of these programs that is installed; distributions name them differently."""
    for name in names:
        if found := shutil.which(name):
            return found
    raise FileNotFoundError(f"{names[0]} is not installed (Debian: apt install {names[-1]})")


def _inherited_environment() -> dict[str, str]:
    """The environment without what would change a server's settings behind the test's back."""
    prefixes = ("SIDECAR_", "VLLM_", "PYTEST_", "COV_")
    return {name: value for name, value in os.environ.items() if not name.startswith(prefixes)}
