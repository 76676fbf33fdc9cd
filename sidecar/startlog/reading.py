"""Reads the lines of one start, in their order."""

from __future__ import annotations

import re
from dataclasses import replace

from sidecar.startlog.bearing import (
    is_about_the_server,
    is_of_a_request,
    moment_reached,
    with_figures_of,
)
from sidecar.startlog.budget import read_budget
from sidecar.startlog.failure_lines import recognise
from sidecar.startlog.failures import FailureKind, LogFailure, Moment
from sidecar.startlog.identity import read_identity
from sidecar.startlog.lines import LogLine
from sidecar.startlog.profiling import read_profiling
from sidecar.startlog.serving import Serving
from sidecar.startlog.serving_lines import read_serving
from sidecar.startlog.start import Start
from sidecar.startlog.tracebacks import Tracebacks, is_secondary

# A line without any of these words cannot matter; most lines of a busy server have none.
_WORDS = (
    "Running: ", "took ", "KV ", "# ", "rank", "graph", "Graph", "memory", "max", "version",
    "args: ", "Initializing a", "block size", "num_gpu_blocks", "utilization", "preempted",
    "Sleep mode", '"POST /', "Counters can", "OOM", "error", "Error", "rror:", "ALLOC_FAILED",
    "NVML_SUCCESS", "assert", "driver", "ECC", "Killed", "died", "failed to start",
    "initialization failed", "EngineDead", "terminated with", "SIGKILL", "left out here",
    "hutdown", "hutting down", "SIGTERM", "startup complete", "Uvicorn running", "Starting vLLM",
    "Started server process", "Traceback (", 'File "', "Exception", "Interrupt",
    "init engine", "KV cache usage", "Maximum concurrency", "world_size",
)  # fmt: skip

_SERVER_PROCESS = re.compile(r"Started server process \[(\d+)\]")
_UP = re.compile(r"Application startup complete|Uvicorn running on|Starting vLLM (?:API )?server ")
_SHUTDOWN = re.compile(
    r"\[shutdown\]|Shutting down\b|SIGTERM|KeyboardInterrupt|Application shutdown complete"
)
_LEFT_OUT = re.compile(r"^\.\.\. (\d+) bytes of output are left out here \.\.\.$")
_CAPTURING = re.compile(r"Capturing (?:the model for CUDA graphs|CUDA ?graph|cudagraph)", re.I)

_MOST_PROCESSES = 4096
_MOST_FAILURES = 64
_LONGEST_MESSAGE = 600
_LONGEST_LAST_TEXT = 300
# What a server prints when it goes because it was asked to.
_OF_A_SHUTDOWN: tuple[FailureKind, ...] = ("engine_dead", "killed", "exception")


class StartReading:
    """Takes lines, and gives the start as it stands at any time."""

    def __init__(self) -> None:
        self._start = Start()
        # Kept apart from the start: it changes with every line of a busy server.
        self._serving = Serving()
        self._survived_failures = 0
        self._process_names: dict[int, str] = {}
        self._first_stamp: str | None = None
        self._last_stamp: str | None = None
        self._last_text: str | None = None
        self._tracebacks = Tracebacks()

    @property
    def start(self) -> Start:
        engine = self._start.engine
        if engine is None and any(
            name.startswith("EngineCore") for name in self._process_names.values()
        ):
            engine = "V1"
        return replace(
            self._start,
            engine=engine,
            serving=self._serving,
            survived_failures=self._survived_failures,
            process_names=dict(self._process_names),
            first_stamp=self._first_stamp,
            last_stamp=self._last_stamp,
            last_text=self._last_text[:_LONGEST_LAST_TEXT] if self._last_text else None,
        )

    @property
    def reached_engine(self) -> bool:
        return self._start.reached_engine

    def knows_process(self, pid: int) -> bool:
        return pid in self._process_names

    def has_process_named(self, name: str) -> bool:
        return name in self._process_names.values()

    def read(self, line: LogLine) -> None:
        if line.stamp is not None:
            self._last_stamp = line.stamp
            self._first_stamp = self._first_stamp or line.stamp
        if line.pid is not None and line.process is not None:
            self._name_process(line.pid, line.process)
        self._last_text = line.text
        text = line.text
        if any(word in text for word in _WORDS):
            self._read_words(line)

    def _name_process(self, pid: int, name: str) -> None:
        if pid in self._process_names or len(self._process_names) < _MOST_PROCESSES:
            self._process_names[pid] = name

    def _read_words(self, line: LogLine) -> None:
        start, text = self._start, line.text
        serving = read_serving(self._serving, line, line.stamp or self._last_stamp)
        if serving is not self._serving:
            self._with_serving(serving)
            return
        start = read_identity(start, line)
        start = read_budget(start, text)
        start = read_profiling(start, text)
        start = self._with_state(start, text)
        self._start = self._with_failures(start, line)

    def _with_serving(self, serving: Serving) -> None:
        start, load = self._start, serving.last_load
        engine, works = start.engine, bool(serving.sleeps or serving.preemption_warnings)
        if serving.preemption_warnings:
            engine = "V0"
        if load is not None and serving.load_lines > self._serving.load_lines:
            works = True
            engine = engine or ("V0" if load.swapped_requests is not None else None)
            if load.prompt_tokens_per_second or load.generation_tokens_per_second:
                # A dead engine makes no tokens: what failed before this line was survived.
                self._survived_failures = len(start.failures)
        self._serving = serving
        if (works and not start.started) or engine is not start.engine:
            self._start = replace(start, started=start.started or works, engine=engine)

    def _with_state(self, start: Start, text: str) -> Start:
        if _UP.search(text):
            start = replace(start, started=True)
        if "init engine (" in text and "took" in text:
            start = replace(start, engine_ready=True)
        if "apturing" in text and _CAPTURING.search(text):
            start = replace(start, capturing_graphs=True)
        if "Graph capturing finished" in text:
            start = replace(start, capturing_graphs=False)
        if not start.shut_down and _SHUTDOWN.search(text):
            start = replace(start, shut_down=True)
        if "Started server process" in text and (found := _SERVER_PROCESS.search(text)):
            pid = int(found[1][:12])
            self._name_process(pid, self._process_names.get(pid, "APIServer"))
        if found := _LEFT_OUT.match(text):
            missing = start.left_out_bytes + int(found[1][:18])
            start = replace(start, left_out_bytes=missing)
        return start

    def _with_failures(self, start: Start, line: LogLine) -> Start:
        if line.level in ("DEBUG", "INFO", "WARNING"):
            return start
        exception = self._tracebacks.read(line)
        failure = recognise(line.text)
        if (
            failure is None
            and exception is not None
            and is_about_the_server(start, line, exception)
        ):
            failure = LogFailure("exception")
        if exception is not None and not is_secondary(exception) and not is_of_a_request(line):
            start = replace(start, last_exception=exception[:_LONGEST_MESSAGE])
        if failure is None or (start.shut_down and failure.kind in _OF_A_SHUTDOWN):
            return start
        if failure.kind == "config_rejected" and start.reached_engine:
            return start  # the server refuses a request, not its own start
        return self._with_failure(start, failure, line)

    def _with_failure(self, start: Start, failure: LogFailure, line: LogLine) -> Start:
        memory = failure.out_of_memory
        if failure.kind in ("load_model_oom", "sampler_warmup_oom") and memory is None:
            memory = next((f.out_of_memory for f in reversed(start.failures)), None)
        available = failure.available_bytes
        if failure.kind == "no_available_memory":
            available = start.kv_cache_bytes_per_rank
        failure = replace(
            failure,
            message=line.text.strip()[:_LONGEST_MESSAGE],
            stamp=line.stamp or self._last_stamp,
            process=line.process,
            pid=line.pid,
            out_of_memory=memory,
            available_bytes=available,
            moment=self._moment(start, failure, line),
        )
        if failure in start.failures or len(start.failures) >= _MOST_FAILURES:
            return start
        start = replace(start, failures=(*start.failures, failure))
        return with_figures_of(start, failure)

    def _moment(self, start: Start, failure: LogFailure, line: LogLine) -> Moment | None:
        if failure.kind == "load_model_oom":
            return "loading"
        if failure.kind == "sampler_warmup_oom":
            return "sampler_warmup"
        if failure.kind not in ("cuda_oom", "oom_in_disguise", "device_error", "host_oom"):
            return None
        return self._tracebacks.moment(line) or moment_reached(start)
