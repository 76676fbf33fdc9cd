"""The product's judgement, measured against the public cases."""

from __future__ import annotations

import pytest

from .judged import faults
from .table import CASES, Case


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_never_the_opposite_of_the_truth(case: Case) -> None:
    _, opposite = faults(case)
    assert opposite == []


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_right_verdict_and_right_number(case: Case) -> None:
    wrong, _ = faults(case)
    assert wrong == []
