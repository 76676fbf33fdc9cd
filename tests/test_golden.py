"""What is exported for each recording, byte for byte. See `tools/golden_expositions.py`."""

from __future__ import annotations

import golden_expositions as golden
import pytest

from sidecar.exposition import OWN_NAMES

NAMES = sorted(path.name.removesuffix(".jsonl.gz") for path in golden.RECORDINGS.glob("*.jsonl.gz"))


@pytest.mark.parametrize("name", NAMES)
def test_exposition_is_the_committed_one(name: str) -> None:
    texts = golden.golden_texts(golden.RECORDINGS / f"{name}.jsonl.gz")
    committed = {path.name: path.read_bytes() for path in (golden.GOLDEN / name).glob("*.prom")}
    assert texts.keys() == committed.keys()
    for file, text in texts.items():
        assert text == committed[file], f"{name}/{file} differs; `make golden` and read the diff"


def test_every_golden_file_has_its_recording() -> None:
    assert sorted(path.name for path in golden.GOLDEN.iterdir() if path.is_dir()) == NAMES


def test_only_the_telemetry_is_left_out() -> None:
    assert golden.LEFT_OUT <= OWN_NAMES
