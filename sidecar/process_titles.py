"""What a process is, told from its command line. Pure, and careful with what it lets through.

A command line may hold keys and paths, so nothing of it is handed on but words from here: a title
is one of a few shapes, whatever the process calls itself. vLLM names its processes
`PREFIX::ROLE`, where operators choose the prefix (`VLLM_PROCESS_NAME_PREFIX`, else `VLLM`) and
vLLM the role (`set_process_title`, vLLM 0.10.1 and later); Ray's workers go by their class.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import PurePosixPath

_ROLE = re.compile(
    r"[^\s:/]{1,64}::"
    r"(EngineCore|Worker|APIServer|ApiServer|DPCoordinator)((?:_[A-Z]{0,4}[0-9]{1,5}){0,6})(?!\w)"
)
_OWN = re.compile(r"VLLM::[A-Za-z_0-9]{1,40}")
"""Roles that are not listed above, and the kernel's own name of a process: 15 characters of it."""
_RAY = re.compile(r"ray::(RayWorkerWrapper|RayWorkerProc|RayEngineCore)")
_MODULE = re.compile(r"vllm(\.[a-z_0-9]{1,32}){0,5}")
_PYTHON = re.compile(r"python[0-9.]*")
_COMMANDS = frozenset({"serve", "bench", "run-batch", "chat", "complete", "collect-env"})
_PROGRAM = re.compile(r"[A-Za-z0-9_.+-]{1,15}")

CHILD_OF = "child of "
"""How a title begins that rests on the parent's: the process itself does not say what it is."""


def classify(arguments: Sequence[str], name: str) -> str | None:
    """The title of a process with this command line and this name (Linux: `comm`).

    None where not even the name is a plain word. A title that does not say vLLM is the name of
    the program.
    """
    first = arguments[0] if arguments else ""
    if role := _ROLE.match(first):
        return f"VLLM::{role[1]}{role[2]}"
    if own := _OWN.match(first or name):
        return own[0]
    if worker := _RAY.match(first):
        return f"ray::{worker[1]}"
    if command := _command(arguments):
        return command
    program = _PROGRAM.match(name)
    return program[0] if program else None


def _command(arguments: Sequence[str]) -> str | None:
    """`vllm serve` and its like, started directly, through Python, or as a module of it."""
    programs = [PurePosixPath(argument).name for argument in arguments[:1]]
    rest = list(arguments[1:])
    if programs and _PYTHON.fullmatch(programs[0]):
        while rest and rest[0].startswith("-") and rest[0] not in ("-m", "-c"):
            rest.pop(0)
        if rest[:1] == ["-m"] and len(rest) > 1 and _MODULE.fullmatch(rest[1]):
            return f"python -m {rest[1]}"
        programs = [PurePosixPath(argument).name for argument in rest[:1]]
        rest = rest[1:]
    if programs != ["vllm"]:
        return None
    return f"vllm {rest[0]}" if rest and rest[0] in _COMMANDS else "vllm"


def says_vllm(title: str | None) -> bool:
    """Whether a title, as `classify` gives it, is that of a vLLM, not necessarily of ours."""
    own = (title or "").removeprefix(CHILD_OF)
    return own.startswith(("VLLM::", "ray::Ray", "python -m vllm")) or own.split(" ")[0] == "vllm"
