"""The demo stack in real containers: built, started, looked at from all sides, removed.

    python tests/e2e/compose.py

Each line says what was checked and how long it took; the exit status is 0 if everything held.
Needs docker, docker-compose, and, where no engine runs and no registry can be reached, root and
the Debian packages docker.io, debootstrap, prometheus and prometheus-alertmanager. The first run
on such a machine makes a minimal Debian and keeps it in `.cache/`; later ones take about a minute
and a half.
"""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx

# A script finds its own folder's modules, but the name of this package begins one folder up.
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from e2e.docker_engine import CommandError, Engine, compose_command, docker_engine, run
from e2e.servers import free_port
from e2e.stand_in_images import Images

REPOSITORY = Path(__file__).resolve().parents[2]
PROJECT = "vllm-sidecar-e2e"
IMAGE = "vllm-sidecar:e2e"
LABEL = f"label=com.docker.compose.project={PROJECT}"
FILES = {
    "the GPU file": ["docker-compose.yml"],
    "the GPU file with the host's processes": ["docker-compose.yml", "docker-compose.pid-host.yml"],
    "the demo file": ["docker-compose.demo.yml"],
}
SERVICES = {"sidecar", "prometheus", "alertmanager", "webhook"}
JOBS = {"vllm-sidecar", "vllm", "prometheus", "alertmanager"}
ALL_SECONDS = 900


class CheckError(AssertionError):
    """Something that should have held did not."""


@contextlib.contextmanager
def step(name: str) -> Iterator[Callable[[str], None]]:
    """Prints one line for the block: whether it held, how long it took, what it has to say."""
    remarks: list[str] = []
    started = time.monotonic()
    held = "FAILED"
    try:
        yield remarks.append
        held = "ok"
    finally:
        remark = f" ({'; '.join(remarks)})" if remarks else ""
        print(f"{held:6} {time.monotonic() - started:6.1f} s  {name}{remark}", flush=True)


def expect(held: bool, message: str) -> None:
    if not held:
        raise CheckError(message)


def wait_for(find_fault: Callable[[], str | None], seconds: float) -> None:
    """Waits until the function finds no fault any more; then the last fault is the failure."""
    deadline = time.monotonic() + seconds
    while (fault := find_fault()) is not None:
        expect(time.monotonic() < deadline, f"after {seconds:.0f} s: {fault}")
        time.sleep(0.5)


@dataclass(frozen=True, slots=True)
class Stack:
    """The project's containers, seen through the engine, the compose command and their ports."""

    engine: Engine
    ports: dict[str, int]

    @classmethod
    def on_free_ports(cls, engine: Engine) -> Stack:
        published = ("SIDECAR", "VLLM", "PROMETHEUS", "ALERTMANAGER")
        return cls(engine, {name: free_port() for name in published})

    def compose(self, *arguments: str, files: list[str] | None = None, seconds: float = 120) -> str:
        named = [part for file in files or FILES["the demo file"] for part in ("--file", file)]
        environment = {
            **self.engine.environment,
            "COMPOSE_PROJECT_NAME": PROJECT,
            # Empty wins over `.env`, so Grafana, for which there is no stand-in, is left out.
            "COMPOSE_PROFILES": "",
            "VLLM_SIDECAR_IMAGE": IMAGE,
            **{f"PUBLISHED_{name}_PORT": str(port) for name, port in self.ports.items()},
        }
        command = [*compose_command(), *named, *arguments]
        return run(command, environment, seconds, folder=REPOSITORY)

    def containers(self) -> dict[str, dict[str, Any]]:
        """What the engine knows of each container, by the name of its service."""
        ids = self.engine.docker("ps", "--all", "--quiet", "--filter", LABEL).split()
        described = json.loads(self.engine.docker("inspect", *ids)) if ids else []
        key = "com.docker.compose.service"
        return {container["Config"]["Labels"][key]: container for container in described}

    def left_over(self) -> list[str]:
        """Containers, networks and volumes of the project that still exist."""
        kinds = {
            "container": ("ps", "--all", "--format", "{{.Names}}"),
            "network": ("network", "ls", "--format", "{{.Name}}"),
            "volume": ("volume", "ls", "--format", "{{.Name}}"),
        }
        return [
            f"{kind} {name}"
            for kind, command in kinds.items()
            for name in self.engine.docker(*command, "--filter", LABEL).split()
        ]

    def get(self, server: str, path: str, **parameters: str) -> str:
        url = f"http://127.0.0.1:{self.ports[server]}{path}"
        answer = httpx.get(url, params=parameters, timeout=5, trust_env=False)
        return answer.raise_for_status().text

    def ask_prometheus(self, path: str, **parameters: str) -> Any:
        return json.loads(self.get("PROMETHEUS", f"/api/v1/{path}", **parameters))["data"]


def check_files(stack: Stack) -> None:
    for name, files in FILES.items():
        with step(f"docker-compose accepts {name}"):
            stack.compose("config", "--quiet", files=files)


def build(stack: Stack, images: Images) -> None:
    with step("the image is built") as say:
        command = ["build", "--network", "host", "--tag", IMAGE, *images.build_arguments()]
        stack.engine.docker(*command, str(REPOSITORY), seconds=300)
        images.made.append(IMAGE)
        version = stack.engine.docker("run", "--rm", "--network", "none", IMAGE, "--version")
        size = int(stack.engine.docker("image", "inspect", "--format", "{{.Size}}", IMAGE))
        say(f"{version.strip()}, {size / 1e6:.0f} MB with its base")


def check_health(stack: Stack) -> None:
    def fault() -> str | None:
        states = {name: each["State"] for name, each in stack.containers().items()}
        sick = {
            name: state.get("Health", {}).get("Status", state["Status"])
            for name, state in states.items()
            if not state["Running"] or state.get("Health", {}).get("Status") != "healthy"
        }
        return f"not healthy: {sick}" if sick or set(states) != SERVICES else None

    with step("every container is healthy"):
        wait_for(fault, 120)


def check_hardening(stack: Stack) -> None:
    with step("containers are read-only, without root and rights, and published on loopback only"):
        for name, each in stack.containers().items():
            host = each["HostConfig"]
            expect(host["ReadonlyRootfs"], f"{name} can write to its root file system")
            expect(host["CapDrop"] == ["ALL"], f"{name} has capabilities")
            expect("no-new-privileges:true" in host["SecurityOpt"], f"{name} may gain privileges")
            user = each["Config"]["User"]
            expect(user not in ("", "root", "0"), f"{name} runs as root")
            bindings = [one for port in (host["PortBindings"] or {}).values() for one in port]
            addresses = {binding["HostIp"] for binding in bindings}
            expect(addresses <= {"127.0.0.1"}, f"{name} is published on {addresses}")


def check_scrapes(stack: Stack) -> None:
    def fault() -> str | None:
        with contextlib.suppress(httpx.TransportError):
            targets = stack.ask_prometheus("targets")["activeTargets"]
            states = {each["labels"]["job"]: each["health"] for each in targets}
            errors = [each["lastError"] for each in targets if each["lastError"]]
            good = set(states) == JOBS and set(states.values()) == {"up"}
            return None if good else f"targets are {states}, errors {errors}"
        return "Prometheus does not answer"

    with step("Prometheus reports every target up"):
        wait_for(fault, 60)


def check_indicator(stack: Stack) -> None:
    name = "vllm_sidecar_kv_cache_usage_ratio"

    def fault() -> str | None:
        if f"\n{name}" not in stack.get("SIDECAR", "/metrics"):
            return "the page of the sidecar lacks it"
        found = stack.ask_prometheus("query", query=name)["result"]
        return None if found else "Prometheus has not stored it"

    with step(f"the sidecar shows {name}, and Prometheus stores it"):
        wait_for(fault, 30)


def check_rules(stack: Stack) -> None:
    def fault() -> str | None:
        groups = stack.ask_prometheus("rules")["groups"]
        health = {rule["name"]: rule["health"] for group in groups for rule in group["rules"]}
        sick = {name: state for name, state in health.items() if state != "ok"}
        return f"not evaluated: {sick}" if sick or not health else None

    with step("Prometheus evaluates every rule"):
        wait_for(fault, 60)


def check_alert_path(stack: Stack) -> None:
    name = "ComposeTest"
    alert = {
        "labels": {"alertname": name, "severity": "critical", "instance": "test"},
        "annotations": {"summary": "A message that only shows that messages arrive."},
        "startsAt": datetime.now(UTC).isoformat(),
    }

    def fault() -> str | None:
        printed = stack.compose("logs", "--no-color", "webhook")
        return None if name in printed else "the webhook has not printed it"

    with step("an alert passes through Alertmanager to the webhook, which prints it"):
        managers = stack.ask_prometheus("alertmanagers")["activeAlertmanagers"]
        expect(len(managers) == 1, f"Prometheus knows these Alertmanagers: {managers}")
        url = f"http://127.0.0.1:{stack.ports['ALERTMANAGER']}/api/v2/alerts"
        httpx.post(url, json=[alert], timeout=5, trust_env=False).raise_for_status()
        wait_for(fault, 45)


def check_stop(stack: Stack) -> None:
    with step("the sidecar ends by itself when it is asked to") as say:
        started = time.monotonic()
        stack.compose("stop", "--timeout", "10", "sidecar")
        seconds = time.monotonic() - started
        status = stack.containers()["sidecar"]["State"]["ExitCode"]
        expect(status == 0, f"its exit status is {status}")
        expect(seconds < 8, f"it took {seconds:.1f} s")
        say(f"exit status {status}")


def remove(stack: Stack) -> None:
    with step("nothing is left after `docker-compose down -v`"):
        stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "10")
        left = stack.left_over()
        expect(not left, f"left over: {', '.join(left)}")


@contextlib.contextmanager
def removed_whatever_happens(stack: Stack) -> Iterator[None]:
    """On a failure: shows what the containers said last, and removes them all the same."""
    try:
        yield
    except BaseException:
        signal.alarm(0)
        with contextlib.suppress(CommandError):
            print(stack.compose("ps"), stack.compose("logs", "--no-color", "--tail", "15"))
        with contextlib.suppress(CommandError):
            stack.compose("down", "--volumes", "--remove-orphans", "--timeout", "5")
        raise


def check_everything(folder: Path) -> None:
    with contextlib.ExitStack() as until_the_end:
        with step("a Docker engine") as say:
            engine = until_the_end.enter_context(docker_engine(folder))
            say("started for this test" if engine.is_own else "the machine's own")
        stack = Stack.on_free_ports(engine)
        check_files(stack)
        images = Images(engine, folder)
        until_the_end.callback(images.remove)
        with step("the images that the files name") as say:
            say(images.prepare())
        build(stack, images)
        with removed_whatever_happens(stack):
            with step("docker-compose starts the demo"):
                stack.compose("up", "--detach")
            check_health(stack)
            check_hardening(stack)
            check_scrapes(stack)
            check_indicator(stack)
            check_rules(stack)
            check_alert_path(stack)
            check_stop(stack)
            remove(stack)


def main() -> int:
    # However it ends, what was started is ended too: a time-out and a polite kill unwind as well.
    signal.signal(signal.SIGTERM, _give_up)
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(ALL_SECONDS)
    started = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="vllm-sidecar-compose-") as folder:
        try:
            check_everything(Path(folder))
        except (CheckError, CommandError, httpx.HTTPError) as error:
            print(error, file=sys.stderr)
            return 1
    print(f"all checks held after {time.monotonic() - started:.0f} s")
    return 0


def _give_up(number: int, _frame: object) -> None:
    raise CheckError(f"given up: {signal.Signals(number).name}")


if __name__ == "__main__":
    sys.exit(main())
