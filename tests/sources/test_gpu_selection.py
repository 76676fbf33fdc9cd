"""The text of the setting that says which GPUs to watch."""

from __future__ import annotations

import pytest

from sidecar.sources.gpu_selection import GpuSelection, parse_selection


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("all", None),
        (" ALL ", None),
        ("none", ()),
        ("0", (0,)),
        ("1, 0,1", (1, 0)),
        ("GPU-1f2e3d4c-0000-1111-2222-333344445555", ("GPU-1f2e3d4c-0000-1111-2222-333344445555",)),
        ("GPU-1f,3", ("GPU-1f", 3)),
        ("MIG-GPU-1f2e/1/0", ("MIG-GPU-1f2e/1/0",)),
    ],
)
def test_selections_that_are_understood(text: str, wanted: tuple[int | str, ...] | None) -> None:
    assert parse_selection(text) == GpuSelection(wanted)


@pytest.mark.parametrize(
    "text", ["", " ", "0,", "0,,1", "-1", "cuda:0", "all,0", "none,1", "GPU-", "1.5", "²", "0\n1"]
)
def test_selections_that_are_not(text: str) -> None:
    with pytest.raises(ValueError, match=r"^SIDECAR_GPUS: .* is no GPU; use `all`") as caught:
        parse_selection(text, "SIDECAR_GPUS")
    assert "\n" not in str(caught.value)
