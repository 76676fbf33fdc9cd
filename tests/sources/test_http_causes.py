"""What an error answer of a metrics page is told to mean, over real HTTP."""

from __future__ import annotations

import pytest
from fault_server import Behaviour, endless, serving, status, trickling

from sidecar.model import Failure
from sidecar.sources.http_causes import likely_cause
from sidecar.sources.vllm import VllmSource

SECRET = "password=hunter2"


async def ask(behaviour: Behaviour) -> Failure:
    async with serving(metrics=behaviour) as server:
        source = VllmSource(server.url)
        answer = await source.read()
        await source.close()
    assert isinstance(answer, Failure)
    assert answer.reason == "http_status"
    return answer


@pytest.mark.parametrize(
    ("code", "body", "said"),
    [
        (500, "Internal Server Error", "tmpfs"),
        (500, "AttributeError: '_IncludedRouter' object has no attribute 'path'", "fastapi below"),
        (500, "OSError: [Errno 19] No such device: mmap.mmap(...)", "cannot be mapped"),
        (500, "ValueError: env PROMETHEUS_MULTIPROC_DIR is not set", "missing or not readable"),
        (401, "", "a proxy stands in front"),
        (403, "", "a proxy or a network policy"),
        (404, "Not Found", "--root-path"),
        (503, "no healthy upstream", "no server behind it"),
        (307, "", "leads nowhere"),
    ],
)
async def test_the_likely_cause_is_named(code: int, body: str, said: str) -> None:
    answer = await ask(status(code, f"{body} {SECRET}\n"))
    assert said in answer.detail
    assert f"answers {code}" in answer.detail
    assert SECRET not in answer.detail


@pytest.mark.parametrize("behaviour", [endless(code=500), trickling(code=500)])
async def test_an_endless_error_page_is_not_waited_for(behaviour: Behaviour) -> None:
    async with serving(metrics=behaviour) as server:
        source = VllmSource(server.url, timeout_seconds=3.0)
        answer = await source.read()
        await source.close()
    assert isinstance(answer, Failure)
    assert answer.reason == "http_status"


@pytest.mark.parametrize("code", [204, 304, 418, 599])
def test_of_other_statuses_nothing_is_claimed(code: int) -> None:
    assert likely_cause(code, b"") is None


def test_a_word_in_the_page_of_a_proxy_says_nothing() -> None:
    assert likely_cause(404, b"mmap") == likely_cause(404, b"")
