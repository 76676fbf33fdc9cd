"""NVML's life: starting it, choosing the devices, failing as a whole and coming back.

All of this runs on the one thread that `nvml.py` gives it, and so does `nvml_device.py`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from contextlib import suppress

from sidecar.model import Failure, GpuReport
from sidecar.sources.gpu_selection import GpuSelection, NotThereError
from sidecar.sources.nvml_device import (
    RECOVERY_SECONDS,
    Binding,
    NvmlDevice,
    NvmlLibrary,
    text_of,
)
from sidecar.sources.nvml_errors import ABSENCE_REASONS, explain

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
    ) -> None:
        self._selection = selection
        self._load = load
        self._clock = clock
        self._logger = logger
        self._binding: Binding | None = None
        self._started = False
        # Chosen at the first start and kept: a device that goes away is reported, not dropped.
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
            indices = ", ".join(str(device.index) for device in self._devices)
            return self._fail(Failure(lost[0].reason, f"GPU {indices}: {lost[0].text}"))
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
            self._devices = self._devices or self._choose_devices(self._binding, now)
        except NotThereError as error:
            return Failure("no_devices", str(error))
        except self._binding.errors as error:
            trouble = explain(error)
            return Failure(trouble.reason, trouble.text)
        return None

    def _choose_devices(self, binding: Binding, now: float) -> tuple[NvmlDevice, ...]:
        count: int = binding.call("nvmlDeviceGetCount")
        devices = [NvmlDevice(index, binding) for index in range(count)]
        for device in devices:
            device.open(now)
        if not devices and not self._selection.names_devices:
            raise NotThereError("the driver shows no GPU: give the container its GPUs (`--gpus`)")
        positions = self._selection.pick([(device.index, device.uuid) for device in devices])
        return tuple(devices[position] for position in positions)

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
            watched = ", ".join(f"{device.index} ({device.uuid})" for device in self._devices)
            self._logger.info("NVML: driver %s, watching GPU %s", self._driver_version, watched)
