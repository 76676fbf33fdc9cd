"""One expression through the checker, as the tests of this folder need it."""

from sidecar.rule_check.checker import check_source
from sidecar.rule_check.finding import Finding
from sidecar.rule_check.source import Role, Source
from sidecar.sources.releases import parse_release


def findings(
    text: str,
    role: Role = "alert",
    version: str = "0.33.0",
    *,
    rule: str = "Rule",
    waits: bool = True,
    keeps_firing: bool = True,
    about: str = "",
    is_about_vllm: bool = True,
) -> list[Finding]:
    release = parse_release(version)
    assert release is not None
    source = Source("rules.yml", 7, rule, role, text, waits, keeps_firing, about)
    return check_source(source, release, frozenset(), is_about_vllm=is_about_vllm)


def codes(found: list[Finding]) -> set[str]:
    return {finding.code.value for finding in found}
