"""NVML's life: starting it, choosing the devices, failing as a whole and coming back.

All of this runs on the one thread that `nvml.py` gives it, and so does `nvml_device.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from sidecar.model import Failure, GpuReport
from sidecar.sources.gpu_selection import GpuSelection, NotThereError, Present
from sidecar.sources.host import is_wsl, read_host
from sidecar.sources.nvml_binding import Binding, NvmlLibrary, text_of
from sidecar.sources.nvml_device import RECOVERY_SECONDS, NvmlDevice, Surroundings
from sidecar.sources.nvml_errors import ABSENCE_REASONS, explain
from sidecar.sources.processes import ProcessTitles

ABSENCE_SECONDS = 60.0
"""Where there never was a GPU, NVML is tried again this often: a driver may come later."""


class NvmlSession:
    """One user of the library. Not thread-safe, except for `doing`."""

    def __init__(
        self,
        selection: GpuSelection,
        load: Callable[[], NvmlLibrary],
        clock: Callable[[], float],
        logger: logging.Logger,
        proc: Path,
    ) -> None:
        self._selection = selection
        self._surroundings = Surroundings(
            ProcessTitles(proc), memory=lambda: read_host(proc), wsl=is_wsl(proc)
        )
        self._load = load
        self._clock = clock
        self._logger = logger
        self._binding: Binding | None = None
        self._started = False
        # Chosen at the first start and kept: a device that goes away is reported, not dropped.
        # Where all are parts of partitioned GPUs they are chosen anew, since parts are remade.
        self._devices: tuple[NvmlDevice, ...] = ()
        self._driver_version: str | None = None
        self._expected = selection.names_devices
        self._meanwhile: Failure | None = None
        self._retry_at = float("-inf")
        self._absence_logged = False
        self._presence_logged = False

    @property
    def doing(self) -> str:
        """The call that is being made, or was last, for whoever waits for it."""
        return self._binding.doing if self._binding else "loading the library"

    def read(self) -> GpuReport | Failure | None:
        """All watched devices; a failure when none gives anything; None: there never was one."""
        try:
            return self._read()
        except Exception as error:  # the thread must outlive what nobody foresaw
            self._logger.debug("reading NVML failed unexpectedly", exc_info=error)
            return self._fail(Failure("other", f"unexpected {type(error).__name__}: {error}"))

    def close(self) -> None:
        """Gives NVML back; what it says to that does not matter any more."""
        if self._started and self._binding:
            self._started = False
            with suppress(Exception):
                self._binding.call("nvmlShutdown")

    def _read(self) -> GpuReport | Failure | None:
        began_at = self._clock()
        if not self._started:
            if began_at < self._retry_at:
                return self._meanwhile
            failure = self._start(began_at)
            if failure is not None:
                return self._fail(failure)
        readings = tuple(device.read(self._clock) for device in self._devices)
        lost = [device.lost for device in self._devices if device.lost is not None]
        if len(lost) == len(self._devices):
            where = ", ".join(device.where.removeprefix("GPU ") for device in self._devices)
            return self._fail(Failure(lost[0].reason, f"GPU {where}: {lost[0].text}"))
        self._log_presence()
        return GpuReport(readings, self._clock() - began_at, self._driver_version)

    def _start(self, now: float) -> Failure | None:
        try:
            self._binding = self._binding or Binding(self._load())
        except (ImportError, AttributeError) as error:
            cure = "reinstall nvidia-ml-py, without the package `pynvml`"
            return Failure("library_missing", f"no usable module pynvml ({error}): {cure}")
        try:
            self._binding.call("nvmlInit")
            self._started = True
            with suppress(*self._binding.errors):
                self._driver_version = text_of(self._binding.call("nvmlSystemGetDriverVersion"))
            if all(device.mig or device.parts is not None for device in self._devices):
                self._devices = self._choose_devices(self._binding, now)
        except NotThereError as error:
            return Failure("no_devices", str(error))
        except self._binding.errors as error:
            trouble = explain(error)
            return Failure(trouble.reason, trouble.text)
        return None

    def _choose_devices(self, binding: Binding, now: float) -> tuple[NvmlDevice, ...]:
        count: int = binding.call("nvmlDeviceGetCount")
        whole = [NvmlDevice(index, binding, self._surroundings) for index in range(count)]
        for device in whole:
            device.open(now)
        if not whole and not self._selection.names_devices:
            raise NotThereError("the driver shows no GPU: give the container its GPUs (`--gpus`)")
        devices: list[NvmlDevice] = []
        present: list[Present] = []
        for parent in whole:
            for device in parent.split():
                if device.mig is not None:
                    device.open(now)
                names = device.mig.names(parent.uuid) if device.mig else ()
                devices.append(device)
                present.append(Present(parent.index, (*names, parent.uuid)))
        unlike = len({device.name for device in whole}) > 1
        return tuple(devices[position] for position in self._pick(present, unlike=unlike))

    def _pick(self, present: list[Present], *, unlike: bool) -> list[int]:
        """Positions of the selected devices. A variable that does not fit them does not count."""
        selection = self._selection
        try:
            if unlike and selection.any_order and selection.has_indices:
                raise NotThereError(
                    "the GPUs differ, and CUDA counts them in an order of its own without "
                    "CUDA_DEVICE_ORDER=PCI_BUS_ID"
                )
            return selection.pick(present)
        except NotThereError as error:
            if selection.variable is None:
                raise
            self._logger.warning(
                "%s does not tell which GPUs to watch, so all are: %s", selection.variable, error
            )
            return list(range(len(present)))

    def _fail(self, failure: Failure) -> Failure | None:
        """Lets go of the library, so that a lost GPU can be reset, and sets the next attempt.

        Absence is no failure where nobody named a device and none was ever seen.
        """
        self.close()
        now = self._clock()
        self._presence_logged = False
        if self._expected or failure.reason not in ABSENCE_REASONS or self._devices:
            self._expected = True
            self._meanwhile, self._retry_at = failure, now + RECOVERY_SECONDS
        else:
            self._meanwhile, self._retry_at = None, now + ABSENCE_SECONDS
            self._log_absence(failure)
        return self._meanwhile

    def _log_absence(self, failure: Failure) -> None:
        if not self._absence_logged:
            self._absence_logged = True
            self._logger.info(
                "no GPU is watched, vLLM alone is: %s (tried again every %.0f s)",
                failure.detail,
                ABSENCE_SECONDS,
            )

    def _log_presence(self) -> None:
        """Once at the start and once after each failure: transitions, not reads."""
        if not self._presence_logged:
            self._presence_logged = True
            watched = ", ".join(
                f"{device.where.removeprefix('GPU ')} ({device.uuid})" for device in self._devices
            )
            self._logger.info("NVML: driver %s, watching GPU %s", self._driver_version, watched)
