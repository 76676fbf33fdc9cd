"""What a command line says about a process, and that nothing else of it gets out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sidecar.process_titles import classify, says_vllm

SECRET = ["--api-key", "sk-very-secret"]


@pytest.mark.parametrize(
    ("arguments", "name", "title"),
    [
        (["VLLM::EngineCore"], "VLLM::EngineCor", "VLLM::EngineCore"),
        (["VLLM::EngineCore_DP0"], "VLLM::EngineCor", "VLLM::EngineCore_DP0"),
        (["VLLM::Worker_TP0"], "VLLM::Worker_TP", "VLLM::Worker_TP0"),
        (["VLLM::Worker_DP1_PP0_TP3_EP3"], "VLLM::Worker_DP", "VLLM::Worker_DP1_PP0_TP3_EP3"),
        (["VLLM::APIServer_1"], "VLLM::APIServer", "VLLM::APIServer_1"),
        (["VLLM::SomethingNew"], "VLLM::Something", "VLLM::SomethingNew"),
        ([], "VLLM::EngineCor", "VLLM::EngineCor"),
        (["team-a_chat::EngineCore"], "team-a_chat::En", "VLLM::EngineCore"),
        (["ray::RayWorkerWrapper.execute_method"], "ray::RayWorkerW", "ray::RayWorkerWrapper"),
        (["/usr/bin/python3", "/usr/local/bin/vllm", "serve", "m", *SECRET], "vllm", "vllm serve"),
        (["vllm", "serve", "m", *SECRET], "vllm", "vllm serve"),
        (["/opt/venv/bin/python3.12", "-u", "/opt/venv/bin/vllm", "bench"], "x", "vllm bench"),
        (["vllm", *SECRET], "vllm", "vllm"),
        (
            ["python", "-m", "vllm.entrypoints.openai.api_server", "--model", "m", *SECRET],
            "python",
            "python -m vllm.entrypoints.openai.api_server",
        ),
        (
            ["python3", "-u", "-m", "vllm.entrypoints.api_server"],
            "python3",
            "python -m vllm.entrypoints.api_server",
        ),
    ],
)
def test_titles_that_say_vllm(arguments: list[str], name: str, title: str) -> None:
    assert classify(arguments, name) == title
    assert says_vllm(title)
    assert says_vllm(f"child of {title}")


@pytest.mark.parametrize(
    ("arguments", "name", "title"),
    [
        (["python3", "train.py", *SECRET], "python3", "python3"),
        (["python3", "-c", "from multiprocessing.spawn import spawn_main"], "python3", "python3"),
        (["python3", "-m", "sidecar", "run"], "python3", "python3"),
        (["/usr/bin/python3", "/opt/bin/vllm-sidecar", "run"], "vllm-sidecar", "vllm-sidecar"),
        (["python3", "/opt/keep_log.py", "vllm.log", "vllm", "serve"], "python3", "python3"),
        (["bash", "-c", "vllm serve m"], "bash", "bash"),
        (["python3", "-m", "vllmx.serve"], "python3", "python3"),
        (["/home/me/vllm/train"], "train", "train"),
        (["/usr/lib/xorg/Xorg", "-core"], "Xorg", "Xorg"),
        (["sglang::scheduler_TP0"], "sglang::schedul", "sglang"),
        (["postgres: secret idle"], "postgres: secre", "postgres"),
        ([], "", None),
        (["…"], "…", None),
        ([""], "", None),
    ],
)
def test_titles_that_do_not(arguments: list[str], name: str, title: str | None) -> None:
    assert classify(arguments, name) == title
    assert not says_vllm(title)


@given(st.lists(st.text(max_size=40), max_size=5), st.text(max_size=15))
def test_whatever_a_process_calls_itself_a_title_is_short_and_plain(
    arguments: list[str], name: str
) -> None:
    title = classify(arguments, name)
    assert title is None or (0 < len(title) < 250 and title.isascii() and title.isprintable())
