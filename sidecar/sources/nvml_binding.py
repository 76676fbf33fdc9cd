"""The module pynvml as the NVML source uses it: calls by name, and values made typed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias, TypeVar

from sidecar.sources.nvml_errors import MISSING_IN_BINDING, Trouble, explain

NvmlLibrary: TypeAlias = Any
"""The module `pynvml` or something that looks like it: it has no type stubs, so what it returns
becomes typed in the files `nvml_*.py` and goes no further."""

T = TypeVar("T")
_UNKNOWN_BYTES = 2**64 - 1
"""NVML_VALUE_NOT_AVAILABLE: some bindings turn it into None, some hand it on."""


class Binding:
    """The library with the exceptions it raises, and the call it is in, for a report of a hang."""

    def __init__(self, library: NvmlLibrary) -> None:
        self.library = library
        # The second is no subclass of the first: calls without a version in their name raise it.
        self.errors: tuple[type[Exception], ...] = (
            library.NVMLError,
            library.NVMLLibraryMismatchError,
        )
        self.doing = "nvmlInit"

    def call(self, function: str, *arguments: object) -> Any:  # noqa: ANN401
        """Calls the function of this name; raises one of `errors`."""
        self.doing = function
        return getattr(self.library, function)(*arguments)


class TroubleError(Exception):
    """A call that did not answer, understood."""

    def __init__(self, trouble: Trouble) -> None:
        super().__init__(trouble.text)
        self.trouble = trouble


class Refusals:
    """The calls that one device will never answer, so that they are not made again."""

    def __init__(self, binding: Binding) -> None:
        self._binding = binding
        self._refused: dict[str, Trouble] = {}

    def forget(self) -> None:
        self._refused.clear()

    def are(self, trouble: Trouble, *names: str) -> bool:
        """Whether all these calls were refused with exactly this."""
        return all(self._refused.get(name) == trouble for name in names)

    def first_answer(self, where: str, calls: Sequence[tuple[str, Callable[[], T]]]) -> T:
        """The answer of the first call that this device does not refuse, newest call first.

        Raises `TroubleError`. Where all refuse, a call that exists tells more than one that does
        not.
        """
        verdict: Trouble | None = None
        for name, call in calls:
            self._binding.doing = f"{name} of {where}"
            if name not in self._refused:
                try:
                    return call()
                except AttributeError:
                    trouble = MISSING_IN_BINDING
                except self._binding.errors as error:
                    trouble = explain(error)
                if trouble.persistence not in ("refused", "outdated"):
                    raise TroubleError(trouble)
                self._refused[name] = trouble
            if verdict is None or verdict.persistence == "outdated":
                verdict = self._refused[name]
        raise TroubleError(verdict or MISSING_IN_BINDING)


def text_of(value: str | bytes) -> str:
    """Text that NVML gave; older bindings hand it on as bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def known_bytes(value: int | None) -> int | None:
    """Bytes, or None where the driver does not say."""
    return None if value is None or value == _UNKNOWN_BYTES else int(value)
