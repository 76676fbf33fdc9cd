"""Which GPUs the variables of CUDA and the container toolkit select, and what is said of it."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest
from fake_pynvml import FakeGpu, FakePynvml

from sidecar.model import GpuReport
from sidecar.settings import load_settings
from sidecar.sources.gpu_visibility import visible_selection
from sidecar.sources.nvml import NvmlSource

UUID = "GPU-1f2e3d4c-0000-1111-2222-333344445555"
MIG = "MIG-1f2e3d4c-0000-1111-2222-333344445555"
CUDA, NVIDIA = "CUDA_VISIBLE_DEVICES", "NVIDIA_VISIBLE_DEVICES"


@pytest.mark.parametrize(
    ("variables", "wanted", "variable"),
    [
        ({}, None, None),
        ({CUDA: "0"}, (0,), CUDA),
        ({CUDA: " 2, 0 "}, (2, 0), CUDA),
        ({CUDA: f"{UUID},GPU-ab"}, (UUID, "GPU-ab"), CUDA),
        ({CUDA: MIG}, (MIG,), CUDA),
        ({CUDA: "MIG-GPU-1f2e/3/0"}, ("MIG-GPU-1f2e/3/0",), CUDA),
        ({CUDA: "0,1,-1,2"}, (0, 1), CUDA),
        ({CUDA: ""}, (), CUDA),
        ({CUDA: "-1"}, (), CUDA),
        ({CUDA: "NoDevFiles"}, (), CUDA),
        ({CUDA: "none"}, (), CUDA),
        ({CUDA: "all"}, None, None),
        ({NVIDIA: "all"}, None, None),
        ({NVIDIA: ""}, None, None),
        ({NVIDIA: "void"}, None, None),
        ({NVIDIA: "/var/run/nvidia-container-devices"}, None, None),
        ({NVIDIA: "none"}, (), NVIDIA),
        # The toolkit has given these already, and inside they count from zero.
        ({NVIDIA: "2,3"}, None, None),
        ({NVIDIA: "0:1"}, None, None),
        ({NVIDIA: f"{UUID},3"}, None, None),
        ({NVIDIA: UUID}, (UUID,), NVIDIA),
        ({NVIDIA: f"{MIG},{UUID}"}, (MIG, UUID), NVIDIA),
        # CUDA's narrows what the container was given.
        ({CUDA: "1", NVIDIA: "2,3"}, (1,), CUDA),
        ({CUDA: "all", NVIDIA: UUID}, (UUID,), NVIDIA),
        ({CUDA: "cuda:0", NVIDIA: UUID}, (UUID,), NVIDIA),
        ({CUDA: "cuda:0"}, None, None),
        ({CUDA: "0,none"}, None, None),
        ({NVIDIA: "gpu"}, None, None),
        ({NVIDIA: "nvidia.com/gpu=all"}, None, None),
    ],
    ids=str,
)
def test_what_the_variables_select(
    variables: dict[str, str], wanted: tuple[int | str, ...] | None, variable: str | None
) -> None:
    selection, _ = visible_selection(variables)
    assert (selection.wanted, selection.variable) == (wanted, variable)
    assert not selection.names_devices, "absence is a failure only where the sidecar was told"


@pytest.mark.parametrize(
    ("variables", "said"),
    [
        ({}, None),
        ({NVIDIA: "all", CUDA: "all"}, None),
        ({NVIDIA: "2,3"}, None),
        ({CUDA: "0"}, "CUDA_VISIBLE_DEVICES decides which GPUs are watched (0)"),
        ({CUDA: ""}, "CUDA_VISIBLE_DEVICES decides which GPUs are watched (none)"),
        (
            {CUDA: "cuda:0"},
            "CUDA_VISIBLE_DEVICES='cuda:0' names no GPU that can be understood; every visible GPU "
            "is watched",
        ),
    ],
    ids=str,
)
def test_one_line_says_what_was_decided(variables: dict[str, str], said: str | None) -> None:
    assert visible_selection(variables)[1] == said


def test_a_line_stays_one_line_and_short() -> None:
    _, said = visible_selection({CUDA: "x\ny" * 500})
    assert said is not None
    assert "\n" not in said
    assert len(said) < 250


def test_settings_win_over_the_variables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(CUDA, "1")
    monkeypatch.setenv(NVIDIA, "all")
    assert load_settings().visibility == {CUDA: "1", NVIDIA: "all"}
    assert load_settings(gpus="all").visibility == {}
    monkeypatch.setenv("SIDECAR_GPUS", "")
    assert load_settings().visibility == {CUDA: "1", NVIDIA: "all"}, "empty means not set"
    monkeypatch.setenv("SIDECAR_GPUS", "all")
    assert load_settings().visibility == {}


WATCHED = [
    # variables, names of the GPUs, UUIDs that are watched, what the warning says
    ({CUDA: "1"}, ("a", "a"), ["GPU-1"], None),
    ({CUDA: "5"}, ("a", "a"), ["GPU-0", "GPU-1"], "GPU 5 is not there"),
    ({NVIDIA: "GPU-77"}, ("a", "a"), ["GPU-0", "GPU-1"], "GPU GPU-77 is not there"),
    ({CUDA: "1"}, ("a", "b"), ["GPU-0", "GPU-1"], "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
    ({CUDA: "1", "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}, ("a", "b"), ["GPU-1"], None),
    ({CUDA: "GPU-1"}, ("a", "b"), ["GPU-1"], None),
]


@pytest.mark.parametrize(("variables", "names", "watched", "warning"), WATCHED, ids=str)
async def test_a_variable_that_does_not_fit_the_devices_does_not_count(
    variables: dict[str, str],
    names: tuple[str, ...],
    watched: list[str],
    warning: str | None,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.WARNING)
    gpus = [FakeGpu(f"GPU-{index}", name=name) for index, name in enumerate(names)]
    selection, _ = visible_selection(variables)
    source = NvmlSource(selection, library=FakePynvml(*gpus), proc=tmp_path)
    report = await source.read()
    await source.close()
    assert isinstance(report, GpuReport)
    assert [gpu.uuid for gpu in report.gpus] == watched
    assert [warning is not None and warning in line for line in caplog.messages] == (
        [True] if warning else []
    )


async def test_without_any_device_a_variable_names_no_loss(tmp_path: Path) -> None:
    library = FakePynvml()
    library.errors["nvmlInit"] = 12
    selection, _ = visible_selection({CUDA: "0"})
    source = NvmlSource(selection, library=library, proc=tmp_path)
    assert await source.read() is None
    await source.close()
