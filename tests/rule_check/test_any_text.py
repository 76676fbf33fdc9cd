"""Whatever stands in a file, the answer is findings or one sentence, never a traceback."""

import json
from pathlib import Path

import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rule_check.cases import CASES
from rule_check.checking import findings
from sidecar.rule_check import RuleFileError, check_files
from sidecar.rule_check.dashboards import read_dashboard
from sidecar.rule_check.metric_table import NEWEST
from sidecar.rule_check.metrics import sample_names
from sidecar.rule_check.rule_files import read_rules

_PIECES = st.sampled_from(
    [
        *sorted(sample_names()),
        *"()[]{},+-*/^%<>=!\"'`$",
        *(
            " and ",
            " or ",
            " unless ",
            " by ",
            " on ",
            " offset ",
            "bool",
            "group_left",
            "1",
            "0.9",
        ),
        *("sum(", "rate(", "histogram_quantile(0.9,", "[5m]", "[5m:]", "== 0", "> 80", "/", " "),
        *("$x", "${y:raw}", "[[z]]", "$__rate_interval", '{__name__=~"vllm:(a+)+"}', "\\", "#"),
    ]
)
_EXPRESSIONS = st.one_of(
    st.text(max_size=60),
    st.lists(_PIECES, max_size=15).map("".join),
    st.builds(
        "{} {} {}".format,
        st.sampled_from([case.bad for case in CASES]),
        st.sampled_from(
            ["and", "or", "unless", "/", "*", "+", "- on (x)", "> on () group_left ()"]
        ),
        st.sampled_from([case.good for case in CASES]),
    ),
)
_ROLES = st.sampled_from(["alert", "record", "panel", "variable"])


@settings(max_examples=300, deadline=None)
@given(text=_EXPRESSIONS, role=_ROLES, version=st.sampled_from(["0.33.0", "0.8.5", "0.3.0"]))
def test_any_expression(text: str, role: str, version: str) -> None:
    for one in findings(text, role, version):  # type: ignore[arg-type]
        assert one.corrected is not None or one.reason
        if one.corrected is not None:
            again = findings(one.corrected, role, version)  # type: ignore[arg-type]
            assert [left.code for left in again if left.severity == "error"] == []


@settings(max_examples=200, deadline=None)
@given(
    text=st.one_of(st.text(max_size=200), st.text('{}[]",:- \n\t&*!|>groupsulexpr', max_size=80))
)
def test_any_text_as_a_file(text: str) -> None:
    for reader in (read_rules, read_dashboard):
        said = "file"
        try:
            reader("file", text)
        except RuleFileError as error:
            said = str(error)
        assert said.startswith("file")
        assert "\n" not in said


_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | st.just("vllm:x > 1"),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["groups", "rules", "expr", "alert", "record", "for", "spec", "items"])
            | st.sampled_from(
                ["panels", "targets", "title", "datasource", "type", "name", "query"]
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=20,
)


@settings(
    max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=_VALUES, as_json=st.booleans())
def test_any_document(value: object, as_json: bool, tmp_path: Path) -> None:
    file = tmp_path / "file.yml"
    text = json.dumps(value) if as_json else yaml.safe_dump(value)
    file.write_text(text)
    said = str(file)
    try:
        check_files([file], NEWEST)
    except RuleFileError as error:
        said = str(error)
    assert said.startswith(str(file))
