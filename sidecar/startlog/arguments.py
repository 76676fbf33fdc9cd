"""The flags that a start was given, read from the lines in which vLLM prints them.

    args: Namespace(model='m', max_num_seqs=256, ...)          up to 0.8.5, defaults included
    non-default args: {'model': 'm', 'max_num_seqs': 16}       later, only what was set
    Initializing ... LLM engine (v0.9.2) with config: model='m', max_seq_len=4096, ...

None of them is Python that could be evaluated as a whole: values are objects' representations
(`LoRAModulePath(name=...)`, `<CompilationMode.NONE: 0>`), and log collectors cut long lines. So the
text is split at its outer commas, and each value is read by itself.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

_PAIR = re.compile(r"\s*(?:'(\w+)'\s*:|(\w+)\s*=)\s*(.*)", re.DOTALL)
_SECRET = re.compile(r"api_?key|hf_token|password|secret|credential", re.IGNORECASE)
_OPENING = {"(": ")", "[": "]", "{": "}", "<": ">"}
_CLOSING = frozenset(_OPENING.values())
# A chat template may be long; nobody needs it to judge memory.
_LONGEST_VALUE = 2000

# In vLLM's configuration line, names differ from the flags'.
_CONFIG_NAMES = {"max_seq_len": "max_model_len"}
_CONFIG_KEYS = frozenset(
    (
        "model",
        "max_seq_len",
        "dtype",
        "kv_cache_dtype",
        "quantization",
        "tensor_parallel_size",
        "pipeline_parallel_size",
        "data_parallel_size",
        "enforce_eager",
        "enable_prefix_caching",
        "enable_chunked_prefill",
        "device_config",
    )
)


def parse_arguments(text: str) -> dict[str, object]:
    """The pairs of a printed dict or Namespace; None values are left out, secrets hidden.

    A value that is no literal stays as the text that vLLM printed. A pair that is cut off at the
    end of the line is dropped, since half a number is a wrong number.
    """
    found: dict[str, object] = {}
    for key, value, complete in _pairs(text):
        if not complete or len(value) > _LONGEST_VALUE or value == "None":
            continue
        found[key] = "***" if _SECRET.search(key) else _literal(value)
    return found


def parse_config(text: str) -> dict[str, object]:
    """What matters of the configuration line, under the names of the flags."""
    found: dict[str, object] = {}
    for key, value, complete in _pairs(text):
        if key in _CONFIG_KEYS and value != "None" and (complete or _whole_length(key, value)):
            literal = _literal(value)
            if isinstance(literal, str):
                literal = literal.removeprefix("torch.")
            found[_CONFIG_NAMES.get(key, key)] = literal
    return found


def _whole_length(key: str, value: str) -> bool:
    """Whether the last value of a shortened line may be trusted: a round model length may."""
    return key == "max_seq_len" and value[:9].isdigit() and int(value[:9]) % 256 == 0


def _pairs(text: str) -> Iterator[tuple[str, str, bool]]:
    """`(key, value, complete)` for each pair at the outer level of a dict, a call or a list."""
    body = text.strip()
    bracketed = body.startswith(("{", "Namespace("))
    if bracketed:
        body = body[body.index("{" if body[0] == "{" else "(") + 1 :]
    for part, complete in _outer_parts(body, stop_at_bracket=bracketed):
        if pair := _PAIR.match(part):
            yield pair[1] or pair[2], pair[3].strip(), complete


def _outer_parts(body: str, *, stop_at_bracket: bool) -> Iterator[tuple[str, bool]]:
    start, depth, quote, skip = 0, 0, "", False
    for index, character in enumerate(body):
        if skip:
            skip = False
        elif quote:
            if character == "\\":
                skip = True
            elif character == quote:
                quote = ""
        elif character in "'\"":
            quote = character
        elif character in _OPENING:
            depth += 1
        elif character in _CLOSING:
            if depth == 0 and stop_at_bracket and character != ">":
                yield body[start:index], True
                return
            depth = max(0, depth - 1)
        elif character == "," and depth == 0:
            yield body[start:index], True
            start = index + 1
    yield body[start:], False


def _literal(value: str) -> object:
    if value[:1] in ("'", '"') and "\\" in value:
        # Not evaluated: an escape that Python does not know would print a warning.
        return value[1:-1]
    try:
        return ast.literal_eval(value)
    except (ValueError, SyntaxError, MemoryError, RecursionError, TypeError):
        return value
