"""Which GPUs to watch: what the setting says, and how it picks among the devices that are there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INDEX = re.compile(r"[0-9]{1,4}")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-z][0-9a-z/-]*", re.IGNORECASE)


class NotThereError(LookupError):
    """A listed device is not among those present; the text is one line that names these."""


@dataclass(frozen=True, slots=True)
class Present:
    """A device that is there. The first of `uuids` is its own; it answers to all of them.

    A part of a partitioned GPU also answers to the UUID of the whole, and so do the others.
    """

    index: int
    uuids: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """`wanted` is None for every visible device, and empty for none at all.

    Else it lists NVML indices (`nvidia-smi`'s order, which CUDA_VISIBLE_DEVICES does not change)
    and UUIDs or beginnings of UUIDs. `variable` names the environment variable that it was taken
    from, if nobody told the sidecar itself: then it narrows the view where it can, and what it
    lists and is not there is no failure. `any_order` says that its indices may count differently
    where devices differ.
    """

    wanted: tuple[int | str, ...] | None = None
    variable: str | None = None
    any_order: bool = False

    @property
    def names_devices(self) -> bool:
        """Whether somebody counts on certain devices, so that their absence is a failure."""
        return bool(self.wanted) and self.variable is None

    @property
    def has_indices(self) -> bool:
        return any(isinstance(each, int) for each in self.wanted or ())

    def pick(self, present: Sequence[Present]) -> list[int]:
        """The positions in `present` of the selected devices, in order.

        Raises `NotThereError` for a listed device that is absent or not told apart.
        """
        if self.wanted is None:
            return list(range(len(present)))
        return sorted({at for wanted in self.wanted for at in _positions(wanted, present)})


ALL = GpuSelection()


def _positions(wanted: int | str, present: Sequence[Present]) -> list[int]:
    """One position, or those of all parts of the partitioned GPU that is meant."""
    if isinstance(wanted, int):
        matching = [at for at, device in enumerate(present) if device.index == wanted]
        names = {str(wanted)}
    else:
        beginning = wanted.lower()
        known = {uuid.lower() for device in present for uuid in device.uuids}
        names = {beginning} & known or {uuid for uuid in known if uuid.startswith(beginning)}
        matching = [
            at
            for at, device in enumerate(present)
            if not names.isdisjoint(uuid.lower() for uuid in device.uuids)
        ]
    if matching and (len(names) == 1 or len(matching) == 1):
        return matching
    there = ", ".join(_described(device) for device in present) or "none"
    if matching:
        raise NotThereError(f"{wanted} is the beginning of several GPUs; present: {there}")
    raise NotThereError(f"GPU {wanted} is not there; present: {there}")


def _described(device: Present) -> str:
    return f"{device.index} ({device.uuids[0] or 'unreadable'})"


def parse_selection(text: str, setting: str = "gpus") -> GpuSelection:
    """Reads `all`, `none`, or a comma list of indices, UUIDs and beginnings of UUIDs.

    Raises `ValueError` with one line that names `setting`, what is wrong and what would do.
    """
    parts = [part.strip() for part in text.split(",")]
    if [part.lower() for part in parts] == ["all"]:
        return ALL
    if [part.lower() for part in parts] == ["none"]:
        return GpuSelection(())
    wanted: list[int | str] = []
    for part in parts:
        if _INDEX.fullmatch(part):
            wanted.append(int(part))
        elif _UUID.fullmatch(part):
            wanted.append(part)
        else:
            raise ValueError(
                f"{setting}: {part!r} is no GPU; use `all`, `none`, or a comma list of indices "
                "(0,1) and UUIDs (GPU-..., MIG-...)"
            )
    return GpuSelection(tuple(dict.fromkeys(wanted)))
