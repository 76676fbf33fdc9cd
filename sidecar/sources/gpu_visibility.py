"""Which GPUs to watch where nobody told: what the variables of CUDA and the container toolkit say.

Both say what a process may use, so next to vLLM, in its environment, they say what vLLM uses.

* `CUDA_VISIBLE_DEVICES` (CUDA programming guide): indices among the visible devices, UUIDs or
  their beginnings, MIG UUIDs; the list ends at the first entry that is none; an empty one hides
  every device. CUDA counts the fastest device first, NVML by bus, unless
  `CUDA_DEVICE_ORDER=PCI_BUS_ID`: where devices differ, indices then mean nothing here.
* `NVIDIA_VISIBLE_DEVICES` (NVIDIA container toolkit): which devices a container was given. The
  toolkit has done so by the time we run, and those given count from zero inside, so its indices
  select nothing here, and `void`, which CDI sets too, says nothing. UUIDs hold anywhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from sidecar.sources.gpu_selection import ALL, GpuSelection, parse_selection

CUDA = "CUDA_VISIBLE_DEVICES"
CUDA_ORDER = "CUDA_DEVICE_ORDER"
NVIDIA = "NVIDIA_VISIBLE_DEVICES"
VARIABLES = (CUDA, CUDA_ORDER, NVIDIA)

_HIDE_ALL = ("", "-1", "none", "nodevfiles")
_SAY_NOTHING = ("", "all", "void")


def visible_selection(variables: Mapping[str, str]) -> tuple[GpuSelection, str | None]:
    """The GPUs to watch by these variables, CUDA's first, and a line for the log.

    A variable that cannot be understood is told in the line and does not count.
    """
    said: list[str] = []
    for variable, read in ((CUDA, _cuda), (NVIDIA, _nvidia)):
        text = variables.get(variable)
        if text is None:
            continue
        try:
            selection = read(text.strip())
        except ValueError:
            said.append(f"{variable}={text[:80]!r} names no GPU that can be understood")
            continue
        if selection.wanted is not None:
            by_bus = variables.get(CUDA_ORDER, "").strip() == "PCI_BUS_ID"
            said.append(f"{variable} decides which GPUs are watched ({text.strip() or 'none'})")
            any_order = variable == CUDA and not by_bus
            return replace(selection, variable=variable, any_order=any_order), "; ".join(said)
    if said:
        said.append("every visible GPU is watched")
    return ALL, "; ".join(said) or None


def _cuda(text: str) -> GpuSelection:
    if text.lower() in _HIDE_ALL:
        return GpuSelection(())
    if text.lower() == "all":  # no word of CUDA's, and clear all the same
        return ALL
    return _list(text.split(",-1", 1)[0])


def _nvidia(text: str) -> GpuSelection:
    if text.lower() in _SAY_NOTHING or text.startswith("/"):
        return ALL
    if text.lower() == "none":
        return GpuSelection(())
    # Early drivers' and the toolkit's own form GPU:PART counts as the container outside does, too.
    selection = _list(text.replace(":", ","))
    uuids = tuple(each for each in selection.wanted or () if isinstance(each, str))
    return GpuSelection(uuids) if uuids and not selection.has_indices else ALL


def _list(text: str) -> GpuSelection:
    """A list of devices. Raises `ValueError` for anything else, the words of the setting too."""
    selection = parse_selection(text)
    if not selection.wanted:
        raise ValueError(text)
    return selection
