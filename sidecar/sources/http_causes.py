"""What lies behind an error status of a metrics page, as far as is known of vLLM and its fronts.

The answer's text is looked at for a few words and never repeated: it may hold anything.
"""

from __future__ import annotations

from typing import Final

_BY_WORD: Final = (
    (
        b"_IncludedRouter",
        "FastAPI 0.137 or later with vLLM before 0.24 fails on every request; upgrade vLLM or "
        "pin fastapi below 0.137",
    ),
    (
        b"mmap",
        "the folder in PROMETHEUS_MULTIPROC_DIR cannot be mapped into memory; point it to a "
        "local tmpfs such as /dev/shm",
    ),
    (
        b"PROMETHEUS_MULTIPROC_DIR",
        "the folder in PROMETHEUS_MULTIPROC_DIR is missing or not readable; point it to an empty "
        "folder on a local tmpfs",
    ),
)
"""Words in the answer of a server that shows its errors, the more telling first."""

_BY_STATUS: Final = {
    307: "a redirect that leads nowhere (vLLM 0.3.1 to 0.4.1 send /metrics to /metrics/, and "
    "proxies drop the target); set the address that ends in the right path",
    308: "a redirect that leads nowhere; set the address that ends in the right path",
    401: "a key is asked for, and no vLLM asks for one here: a proxy stands in front of it; ask "
    "vLLM itself",
    403: "access is refused, and no vLLM refuses it here: a proxy or a network policy stands in "
    "front of it; ask vLLM itself",
    404: "nothing is served at this path: another program, a headless data-parallel node, or "
    "vLLM behind a --root-path that the address must include",
    500: "PROMETHEUS_MULTIPROC_DIR on a network volume (use a local tmpfs), or FastAPI 0.137 with "
    "vLLM before 0.24 (upgrade); serving may be fine",
    502: "a proxy stands in front, and vLLM behind it does not answer",
    503: "a proxy has no server behind it, or the engine is dead (see vLLM's log)",
    504: "a proxy stands in front, and vLLM behind it answers too late",
}


def likely_cause(status: int, body: bytes) -> str | None:
    """One line for people about an answer with this status; None where nothing is known."""
    if status >= 500:
        for word, cause in _BY_WORD:
            if word in body:
                return cause
    return _BY_STATUS.get(status)
