"""Stand-ins for the images that the compose files name, for machines that reach no registry.

They are made from Debian packages: a minimal Debian with Python in place of the Python image, and
the programs of this machine's `prometheus` and `prometheus-alertmanager` packages on top of it.
They keep what the compose files rely on: paths, users, entry points, volumes, and `wget`.

A machine with an engine of its own gets the real images if it can.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from dataclasses import dataclass, field
from pathlib import Path

from .docker_engine import PATH, CommandError, Engine, run

PYTHON_IMAGE = "python:3.11-slim-bookworm"
PROMETHEUS_IMAGE = "prom/prometheus:v3.14.0"
ALERTMANAGER_IMAGE = "prom/alertmanager:v0.34.0"

CACHE = Path(__file__).resolve().parents[2] / ".cache" / "e2e"
PACKAGES = "python3,python3-venv,ca-certificates,busybox"
# In place, for every program in the image: the certificates that this machine trusts.
BUNDLE = Path("/etc/ssl/certs/ca-certificates.crt")
# What is of no use in an image, or belongs to the machine on which it was made.
LEFT_OUT = ["dev/*", "proc/*", "sys/*", "var/cache/apt/*", "var/lib/apt/lists/*"]

SERVER = """\
FROM {base}
COPY files/ /
RUN ln -s busybox /bin/wget && install -d -o nobody -g nogroup /{name}
USER nobody
VOLUME /{name}
WORKDIR /{name}
EXPOSE {port}
ENTRYPOINT ["/bin/{name}"]
"""


@dataclass(slots=True)
class Images:
    """The images that the compose files name, present in an engine after `prepare`."""

    engine: Engine
    folder: Path
    made: list[str] = field(default_factory=list)

    def prepare(self) -> str:
        """Makes what is missing; says what was done."""
        said = []
        for name in (PYTHON_IMAGE, PROMETHEUS_IMAGE, ALERTMANAGER_IMAGE):
            if self.engine.has_image(name):
                how = "was there"
            elif not self.engine.is_own and self._can_be_pulled(name):
                how = "pulled"
            else:
                self._make(name)
                self.made.append(name)
                how = "stand-in"
            said.append(f"{name} {how}")
        return ", ".join(said)

    def remove(self) -> None:
        """Removes what was made: under these names nobody else should ever find a stand-in."""
        for name in reversed(self.made):
            with contextlib.suppress(CommandError):
                self.engine.docker("image", "rm", "--force", name)

    def build_arguments(self) -> list[str]:
        """How pip reaches its index from inside a build, as it does on this machine."""
        values = {name: os.environ.get(name) for name in ("PIP_INDEX_URL", "PIP_EXTRA_INDEX_URL")}
        if PYTHON_IMAGE in self.made and _bundle().exists():
            values["PIP_CERT"] = str(BUNDLE)
        return [part for name, value in values.items() if value for part in _argument(name, value)]

    def _can_be_pulled(self, name: str) -> bool:
        try:
            self.engine.docker("pull", name, seconds=180)
        except CommandError:
            return False
        return True

    def _make(self, name: str) -> None:
        if name == PYTHON_IMAGE:
            self._make_python()
        elif name == PROMETHEUS_IMAGE:
            program = _program("prometheus")
            self._make_server(name, "prometheus", 9090, {program: "usr/bin/prometheus"})
        else:
            program = _program("prometheus-alertmanager")
            # The package reads its message templates from the file system, not from the program.
            templates = Path("/usr/share/prometheus/alertmanager").glob("*.tmpl")
            files = {template: str(template).lstrip("/") for template in templates}
            files[program] = "usr/bin/alertmanager"
            self._make_server(name, "alertmanager", 9093, files)

    def _make_python(self) -> None:
        context = self.folder / "python"
        bundle = context / str(BUNDLE).lstrip("/")
        bundle.parent.mkdir(parents=True)
        if _bundle().exists():
            shutil.copyfile(_bundle(), bundle)
        root = str(_debian_root(self.folder))
        self.engine.docker("import", root, "vllm-sidecar-e2e/debian", seconds=120)
        self.made.append("vllm-sidecar-e2e/debian")
        (context / "Dockerfile").write_text("FROM vllm-sidecar-e2e/debian\nCOPY etc/ /etc/\n")
        self.engine.docker("build", "--tag", PYTHON_IMAGE, str(context), seconds=120)

    def _make_server(self, image: str, name: str, port: int, files: dict[Path, str]) -> None:
        context = self.folder / name
        for source, target in files.items():
            copy = context / "files" / target
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, copy)
        dockerfile = SERVER.format(base="vllm-sidecar-e2e/debian", name=name, port=port)
        (context / "Dockerfile").write_text(dockerfile)
        self.engine.docker("build", "--tag", image, str(context), seconds=120)


def _debian_root(folder: Path) -> Path:
    """The archive of a minimal Debian, from the cache if it was made before."""
    archive = CACHE / f"debian-{hashlib.sha256(PACKAGES.encode()).hexdigest()[:12]}.tar"
    if archive.exists():
        return archive
    root = folder / "root"
    # In a mount namespace of its own, which takes every mount along when it ends.
    command = ["unshare", "--mount", "debootstrap", "--variant=minbase"]
    run([*command, f"--include={PACKAGES}", "bookworm", str(root)], seconds=420)
    CACHE.mkdir(parents=True, exist_ok=True)
    unfinished = archive.with_suffix(".unfinished")
    excluded = [f"--exclude=./{pattern}" for pattern in LEFT_OUT]
    run(["tar", "-C", str(root), *excluded, "-cf", str(unfinished), "."], seconds=120)
    unfinished.replace(archive)
    return archive


def _bundle() -> Path:
    return Path(os.environ.get("PIP_CERT") or BUNDLE)


def _argument(name: str, value: str) -> tuple[str, str]:
    return ("--build-arg", f"{name}={value}")


def _program(name: str) -> Path:
    found = shutil.which(name, path=PATH)
    if found is None:
        raise CommandError(f"{name} is not installed (Debian: apt install {name})")
    return Path(found)
