"""The only reader of environment variables, flags and secret files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    HttpUrl,
    SecretStr,
    ValidationError,
    field_validator,
)
from pydantic_settings import BaseSettings, SettingsConfigDict
from pydantic_settings import SettingsError as UnreadableVariableError

from sidecar.sources.gpu_visibility import VARIABLES

PREFIX = "SIDECAR_"
Ratio = Annotated[float, Field(ge=0.0, le=1.0)]
Seconds = Annotated[float, Field(gt=0.0)]


class SettingsError(Exception):
    """Settings that cannot be used; the message is one line that names the variable or flag."""


class Thresholds(BaseModel):
    """Where an indicator changes its mind. Each is a setting: `SIDECAR_THRESHOLDS__<NAME>`."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    rate_at_least_seconds: Seconds = Field(
        5.0, description="A rate needs this much observed time; before that it is absent."
    )
    finished_at_least: float = Field(
        5.0, gt=0, description="Preemptions per finished request need this many finished ones."
    )
    preemption_kv_usage_ratio: Ratio = Field(
        0.9, description="Below this KV usage a preemption is not a shortage."
    )
    suspicion_requests: float = Field(
        2.0, gt=0, description="Requests that must leave the batch at once to suspect preemption."
    )
    suspicion_seconds: Seconds = Field(5.0, description="Within how many seconds they left.")
    kv_underused_ratio: Ratio = Field(0.5, description="Below this KV usage counts as under-use.")
    kv_underused_share: Ratio = Field(
        0.9, description="Share of serving time below it that makes `kv_cache_underused` 1."
    )
    kv_underused_window_seconds: Seconds = Field(300.0, description="Window of that share.")
    kv_underused_serving_seconds: Seconds = Field(
        60.0, description="Serving time that the window must hold before it is judged."
    )
    kv_saturated_ratio: Ratio = Field(0.95, description="At or above this KV usage is saturated.")
    plateau_seconds: Seconds = Field(5.0, description="A plateau is the median over this time.")
    drop_window_seconds: Seconds = Field(
        900.0, description="How far back the concurrency drop test looks."
    )
    drop_running_at_least: float = Field(
        8.0, gt=0, description="Running requests from which a drop of concurrency counts."
    )
    drop_concurrency_ratio: Ratio = Field(
        0.75, description="How far concurrency must fall for the drop test (32 to 4 is 0.875)."
    )
    drop_memory_held_ratio: Ratio = Field(
        0.1, description="GPU memory that falls by less than this share counts as held."
    )
    idle_seconds: Seconds = Field(
        5.0, description="How long nothing must run before blocks still in use are reported."
    )
    warmup_serving_seconds: Seconds = Field(
        60.0, description="Serving time in which vLLM's own memory may still grow normally."
    )
    stalled_seconds: Seconds = Field(
        30.0, description="Time without any progress that makes `engine_stalled` 1."
    )
    running_plateau_seconds: Seconds = Field(
        15.0, description="How long running must stay within 1 while requests wait."
    )
    preemptions_per_finished: float = Field(
        0.1, gt=0, description="Preemptions per finished request from which they are trouble."
    )
    throughput_loss_ratio: Ratio = Field(
        0.25, description="Loss of tokens per second against the best that makes it critical."
    )
    watermark_from_preemptions: float = Field(
        0.5, gt=0, description="Preemptions per finished request from which a watermark is advised."
    )
    fragmentation_ratio: Ratio = Field(
        0.15, description="Internal fragmentation from which it is worth saying."
    )
    leaked_after_seconds: Seconds = Field(
        120.0, description="How long blocks must be held by nobody to be called leaked."
    )
    queue_seconds: Seconds = Field(
        15.0, description="How long somebody must have waited for a cap to be called one."
    )
    queue_room_ratio: Ratio = Field(
        0.8, description="KV usage below which the cache has room for those who wait."
    )
    leaked_with_connector_seconds: Seconds = Field(
        600.0,
        description="The same with a KV connector, which may hold blocks until it gives up.",
    )
    over_reserved_serving_seconds: Seconds = Field(
        20.0, description="Serving time before the KV cache is called too big."
    )
    over_reserved_medium_seconds: Seconds = Field(
        300.0,
        description="Serving time from which a change is advised, with medium confidence.",
    )
    over_reserved_medium_finished: float = Field(
        500.0, gt=0, description="Finished requests from which it is, whatever the time."
    )
    over_reserved_high_seconds: Seconds = Field(
        900.0, description="Serving time from which it is said with high confidence."
    )
    runaway_running: float = Field(
        4.0, gt=0, description="Running requests among which one may have run away."
    )
    runaway_seconds: Seconds = Field(120.0, description="How long none of them must have finished.")
    runaway_times_mean: float = Field(
        5.0, gt=0, description="How many times the mean length is far too long."
    )
    neighbour_bytes: float = Field(
        2**30, gt=0, description="Memory of other processes on a GPU that makes a neighbour."
    )
    neighbour_free_warning_ratio: Ratio = Field(
        0.05, description="Free share of the card below which a neighbour is a warning."
    )
    neighbour_free_critical_ratio: Ratio = Field(
        0.02, description="Free share of the card below which a neighbour is critical."
    )
    orphan_seconds: Seconds = Field(
        30.0, description="How long after its port closed a server that holds memory is an orphan."
    )
    growth_ratio: Ratio = Field(
        0.02,
        description="Growth of vLLM's own memory, as a share of the card, that is trouble.",
    )
    headroom_bytes: float = Field(
        256 * 2**20,
        gt=0,
        description="Free memory that is too little while serving; at least 1 % of the card.",
    )
    host_warning_ratio: Ratio = Field(
        0.1, description="Available share of host memory below which there is a warning."
    )
    host_critical_ratio: Ratio = Field(
        0.03, description="Available share of host memory below which it is critical."
    )
    unified_warning_bytes: float = Field(
        10 * 2**30, gt=0, description="The same where CPU and GPU share one memory."
    )
    unified_critical_bytes: float = Field(
        6 * 2**30, gt=0, description="The same where CPU and GPU share one memory."
    )
    down_failures: float = Field(
        3.0, gt=0, description="Refused pages in a row that mean that the server is gone."
    )
    down_silent_seconds: Seconds = Field(
        30.0, description="Seconds of time-outs that mean that it is down."
    )
    starting_seconds: Seconds = Field(
        900.0, description="How long a start may take, unless its log shows that it goes on."
    )
    restarted_seconds: Seconds = Field(
        60.0, description="How long a restart is told, and memory not judged."
    )
    allocator_slack_ratio: Ratio = Field(
        0.05, description="Reserved and unallocated share of the card from which segments help."
    )
    single_allocation_ratio: Ratio = Field(
        0.9, description="Share of the card that a single allocation may not ask for."
    )
    driver_and_display_ratio: Ratio = Field(
        0.06, description="Share of an otherwise empty card that driver and display may take."
    )
    graph_memory_ratio: Ratio = Field(
        0.05, description="Share of the card that CUDA graphs may take."
    )
    prefix_hits_ignored_ratio: Ratio = Field(
        0.01, description="Prefix-cache hits up to this share leave the token balance trusted."
    )


class Settings(BaseSettings):
    """What the sidecar can be told. Each field is an environment variable `SIDECAR_<NAME>`."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX,
        env_nested_delimiter="__",
        # Compose files pass `${NAME:-}`, which means that nothing was set.
        env_ignore_empty=True,
        frozen=True,
        extra="forbid",
    )

    vllm_url: HttpUrl = Field(
        HttpUrl("http://127.0.0.1:8000"), description="Address of the vLLM server to watch."
    )
    vllm_api_key: SecretStr | None = Field(
        None, description="Key that vLLM was started with (`--api-key`), if it asks for one."
    )
    vllm_api_key_file: Path | None = Field(None, description="File that holds that key.")
    vllm_ca_file: Path | None = Field(
        None, description="Certificate authority to trust for an https vLLM, besides the usual."
    )
    host: str = Field("127.0.0.1", description="Address the sidecar listens on.")
    port: int = Field(9130, ge=0, le=65535, description="Port it listens on; 0 picks a free one.")
    web_token: SecretStr | None = Field(
        None, description="Token that readers of the sidecar's own port must show (Bearer)."
    )
    web_token_file: Path | None = Field(None, description="File that holds that token.")
    web_users_file: Path | None = Field(
        None, description="File with lines of user:password for basic authentication."
    )
    tls_certificate_file: Path | None = Field(
        None, description="Certificate (chain) for the sidecar's own port, which then speaks TLS."
    )
    tls_key_file: Path | None = Field(None, description="Its private key.")
    gpus: str = Field(
        "all",
        description="GPUs to watch: all, none, or indices and UUIDs (MIG, too) separated by "
        "commas. When not set, CUDA_VISIBLE_DEVICES or NVIDIA_VISIBLE_DEVICES may narrow it.",
    )
    poll_period_seconds: float = Field(
        1.0, ge=0.1, le=60.0, description="How often everything is read, in seconds."
    )
    vllm_timeout_seconds: float = Field(
        5.0, ge=0.5, le=60.0, description="How long one page of vLLM may take altogether."
    )
    record: Path | None = Field(None, description="File to record every poll into (gzip).")
    vllm_log: Path | None = Field(None, description="vLLM's own log file, shared with the sidecar.")
    vllm_args: str | None = Field(None, description="The flags vLLM was started with, as text.")
    log_level: Literal["debug", "info", "warning", "error"] = Field(
        "info", description="How much the sidecar says about itself."
    )
    thresholds: Thresholds = Field(default_factory=Thresholds, description="See below.")

    @field_validator("vllm_url")
    @classmethod
    def _no_credentials_in_address(cls, value: HttpUrl) -> HttpUrl:
        if value.username or value.password:
            raise ValueError("must not hold a user name or password; use SIDECAR_VLLM_API_KEY_FILE")
        return value

    @property
    def visibility(self) -> dict[str, str]:
        """The variables that say which GPUs a process may use, where `gpus` was not given."""
        if "gpus" in self.model_fields_set:
            return {}
        return {name: os.environ[name] for name in VARIABLES if name in os.environ}

    @property
    def vllm_address(self) -> str:
        """The server's base address without a trailing slash or `/metrics`."""
        return str(self.vllm_url).rstrip("/").removesuffix("/metrics").rstrip("/")

    @property
    def speaks_tls(self) -> bool:
        """Whether the sidecar's own port is https."""
        return self.tls_certificate_file is not None

    def secret(self, name: Literal["vllm_api_key", "web_token"]) -> str | None:
        """A secret from the environment or its file; the file wins. Raises `SettingsError`."""
        variable, key = f"{PREFIX}{name}".upper(), None
        path: Path | None = getattr(self, f"{name}_file")
        given: SecretStr | None = getattr(self, name)
        if path is not None:
            variable += "_FILE"
            key = read_secret_file(variable, path).strip()
        elif given is not None:
            key = given.get_secret_value().strip()
        if key is not None and not (key and key.isascii() and key.isprintable()):
            raise SettingsError(f"{variable}: a key is one line of printable ASCII characters")
        return key


def load_settings(**given: object) -> Settings:
    """Flags win over the environment, the environment over the defaults.

    `given` are the flags; None means that a flag was not used. Raises `SettingsError`, also for
    a misspelt `SIDECAR_` variable, which would otherwise be ignored in silence.
    """
    _refuse_unknown_variables()
    used = {name: value for name, value in given.items() if value is not None}
    try:
        return Settings(**used)  # type: ignore[arg-type]
    except UnreadableVariableError:
        raise SettingsError(
            f"{PREFIX}THRESHOLDS: not a JSON object; set {PREFIX}THRESHOLDS__<NAME> instead"
        ) from None
    except ValidationError as error:
        first = error.errors(include_input=False, include_url=False)[0]
        path = [str(part) for part in first["loc"]]
        variable = PREFIX + "__".join(path).upper()
        flag = f"--{path[0].replace('_', '-')}" if path and path[0] in used else variable
        message = first["msg"].removeprefix("Value error, ")
        if message[1:2].islower():  # "Input should be ...", but not "URL scheme should be ..."
            message = message[:1].lower() + message[1:]
        raise SettingsError(f"{flag}: {message}") from None


def read_secret_file(variable: str, path: Path) -> str:
    """The text of a secret's file. Raises `SettingsError`, which never quotes the secret."""
    try:
        return path.read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{variable}: cannot read {path}: {_reason(error)}") from error


def _refuse_unknown_variables() -> None:
    thresholds = {f"THRESHOLDS__{name.upper()}" for name in Thresholds.model_fields}
    known = {name.upper() for name in Settings.model_fields} | thresholds
    for variable in sorted(os.environ):
        if variable.startswith(PREFIX) and variable.removeprefix(PREFIX).upper() not in known:
            raise SettingsError(
                f"{variable}: no such setting; `vllm-sidecar run --help` lists them"
            )


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
