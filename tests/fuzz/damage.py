"""Makes bad input out of good: real text with cuts, copies, swaps and splinters of its grammar."""

from __future__ import annotations

from random import Random

SPLINTERS = (
    *("{", "}", '"', "\\", "=", ",", "\n", "\r", "\t", " ", "#", "\0", "\ufeff", "\u2028", "}}"),
    *("# TYPE ", "# HELP ", "# EOF\n", "_total", "_bucket", "_sum", "_count", "_created"),
    *("NaN", "+Inf", "-Inf", "-1", "1e308", "1e-320", "0x1p3", "1_000", "٣", "1.7e9", "9" * 400),
    *("vllm:", "ray_vllm_", "ray_vllm:", "kserve_vllm:", "vllm_"),
    *('engine="0"', 'engine="1",', 'le="NaN"', 'le="+Inf"', 'pid="7",', 'ReplicaId="r1",'),
    *('sleep_state="awake"', 'num_gpu_blocks="1e308"', 'block_size="-3"', 'model_name="\\"'),
    *("vllm:kv_cache_usage_perc 0.5\n", "vllm:num_requests_running NaN\n", "GiB", "-0.00 GiB"),
    *('{"at":', '"vllm":null', "[]", "null", "1e999", "true", '"text":7', '"used":-1'),
    *("(EngineCore_0 pid=97) ", "INFO 01-31 12:00:00 [a.py:1] ", "\x1b[32m", "Traceback"),
)


def damaged(random: Random, text: str, *, most: int = 400_000) -> str:
    """The text after a few random accidents, cut to `most` characters."""
    for _ in range(random.randint(1, 8)):
        text = random.choice(_ACCIDENTS)(random, text)[:most]
    return text


def random_bytes(random: Random) -> bytes:
    """Bytes of no kind, few or many."""
    return random.randbytes(random.choice((0, 1, 7, 100, 5_000)))


def _place(random: Random, text: str, longest: int = 200) -> tuple[int, int]:
    at = random.randint(0, len(text))
    return at, min(len(text), at + random.randint(0, longest))


def _cut(random: Random, text: str) -> str:
    begin, end = _place(random, text, random.choice((5, 200, 20_000)))
    return text[:begin] + text[end:]


def _insert(random: Random, text: str) -> str:
    at, _ = _place(random, text)
    return text[:at] + "".join(random.choices(SPLINTERS, k=random.randint(1, 6))) + text[at:]


def _replace(random: Random, text: str) -> str:
    begin, end = _place(random, text, 12)
    return text[:begin] + random.choice(SPLINTERS) + text[end:]


def _copy(random: Random, text: str) -> str:
    begin, end = _place(random, text, random.choice((50, 3_000)))
    at, _ = _place(random, text)
    return text[:at] + text[begin:end] * random.choice((1, 1, 2, 40)) + text[at:]


def _flip(random: Random, text: str) -> str:
    if not text:
        return text
    at = random.randrange(len(text))
    return text[:at] + chr(ord(text[at]) ^ 1 << random.randint(0, 6)) + text[at + 1 :]


def _shuffle_lines(random: Random, text: str) -> str:
    lines = text.splitlines(keepends=True)
    random.shuffle(lines)
    return "".join(lines)


def _repeat_character(random: Random, text: str) -> str:
    at, _ = _place(random, text)
    many = random.choice((100, 5_000, 70_000))
    return (
        text[:at]
        + random.choice(('"', "\\", "{", " ", "a", 'a="b",', "}", "\\\\")) * many
        + text[at:]
    )


_ACCIDENTS = (_cut, _insert, _insert, _replace, _replace, _copy, _flip, _flip, _shuffle_lines,
              _repeat_character)  # fmt: skip
