"""Which GPUs to watch: the setting's text, and how it picks among the devices that are there."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

_INDEX = re.compile(r"[0-9]{1,4}")
_UUID = re.compile(r"(GPU|MIG)-[0-9a-z][0-9a-z/-]*", re.IGNORECASE)


class NotThereError(LookupError):
    """A listed device is not among those present; the text is one line that names these."""


@dataclass(frozen=True, slots=True)
class GpuSelection:
    """`wanted` is None for every visible device, and empty for none at all.

    Else it lists NVML indices (`nvidia-smi`'s order, which CUDA_VISIBLE_DEVICES does not change)
    and UUIDs or beginnings of UUIDs.
    """

    wanted: tuple[int | str, ...] | None = None

    @property
    def names_devices(self) -> bool:
        """Whether somebody counts on certain devices, so that their absence is a failure."""
        return bool(self.wanted)

    def pick(self, present: Sequence[tuple[int, str]]) -> list[int]:
        """The positions in `present`, (index, UUID) pairs, of the selected devices, in order.

        Raises `NotThereError` for a listed device that is absent or not told apart.
        """
        if self.wanted is None:
            return list(range(len(present)))
        return sorted({_position(wanted, present) for wanted in self.wanted})


ALL = GpuSelection()


def _position(wanted: int | str, present: Sequence[tuple[int, str]]) -> int:
    if isinstance(wanted, int):
        matching = [at for at, (index, _) in enumerate(present) if index == wanted]
    else:
        beginning = wanted.lower()
        whole = [at for at, (_, uuid) in enumerate(present) if uuid.lower() == beginning]
        matching = whole or [
            at for at, (_, uuid) in enumerate(present) if uuid.lower().startswith(beginning)
        ]
    if len(matching) == 1:
        return matching[0]
    names = ", ".join(f"{index} ({uuid or 'unreadable'})" for index, uuid in present) or "none"
    if matching:
        raise NotThereError(f"{wanted} is the beginning of several GPUs; present: {names}")
    if isinstance(wanted, str) and wanted.upper().startswith("MIG-"):
        raise NotThereError(
            f"{wanted}: MIG devices are not read, only whole GPUs; present: {names}"
        )
    raise NotThereError(f"GPU {wanted} is not there; present: {names}")


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
                "(0,1) and UUIDs (GPU-...)"
            )
    return GpuSelection(tuple(dict.fromkeys(wanted)))
