"""Generates docs/settings.md from the settings in the code and the flags of `run`.

python tools/settings_page.py            writes the page
python tools/settings_page.py --check    exits 1 when the committed page differs
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Literal, get_args, get_origin

import annotated_types
from generated import ROOT, main
from pydantic import BaseModel
from pydantic.fields import FieldInfo
from typer.main import get_group

from sidecar.cli import application
from sidecar.settings import PREFIX, Settings, Thresholds

PATH = ROOT / "docs" / "settings.md"

HEADER = f"""\
# Settings

What the sidecar can be told. This page is generated from the code by `tools/settings_page.py`;
`make documents` writes it anew.

- Every setting is an environment variable that begins with `{PREFIX}`; some are flags of
  `vllm-sidecar run`, too. **A flag wins over its variable, a variable over the default.** There is
  no configuration file.
- A value that cannot be used, or a `{PREFIX}` variable that does not exist, ends the command with
  exit status 2 and one line that names it: a misspelt setting is never ignored in silence.
- The key for vLLM never has a flag, since flags can be read by everybody on the machine.
  `{PREFIX}VLLM_API_KEY_FILE` is for a mounted secret and wins over `{PREFIX}VLLM_API_KEY`.
- Settings are read once, at the start.

## The service
"""

THRESHOLDS = """\
## Thresholds

Where an indicator changes its mind. The defaults suit most servers, and the alerts and dashboards
are drawn for them: when you change one of these, change the alert that has the same number, too.
None of them has a flag.
"""


def flags() -> dict[str, str]:
    """The flag of `run` for each setting that has one."""
    command = get_group(application).commands["run"]
    return {str(each.name): each.opts[0] for each in command.params if each.name != "help"}


def default(field: FieldInfo) -> str:
    """The default as one would write it into the environment."""
    if field.default is None:
        return "not set"
    text = str(field.default)
    return f"`{text.removesuffix('.0').rstrip('/')}`"


def allowed(field: FieldInfo) -> str:
    """The choices, or the range of a number in words, or nothing."""
    if get_origin(field.annotation) is Literal:
        return ", ".join(str(choice) for choice in get_args(field.annotation))
    lowest = highest = ""
    for limit in field.metadata:
        if isinstance(limit, annotated_types.Ge):
            lowest = f"{limit.ge:g} or more"
        elif isinstance(limit, annotated_types.Gt):
            lowest = f"more than {limit.gt:g}"
        elif isinstance(limit, annotated_types.Le):
            highest = f"at most {limit.le:g}"
    if lowest.endswith(" or more") and highest:
        return f"{lowest.removesuffix(' or more')} to {highest.removeprefix('at most ')}"
    return lowest or highest


def rows(model: type[BaseModel], prefix: str, *, with_flags: bool) -> Iterator[str]:
    """A table of the fields of a model, less those that are models themselves."""
    flag_of = flags() if with_flags else {}
    columns = ["variable", *(["flag"] if with_flags else []), "default", "allowed", "what it does"]
    yield "| " + " | ".join(columns) + " |"
    yield "|" + "---|" * len(columns)
    for name, field in model.model_fields.items():
        if field.annotation is Thresholds:
            continue
        cells = [f"`{prefix}{name.upper()}`"]
        if with_flags:
            cells.append(f"`{flag_of[name]}`" if name in flag_of else "")
        cells += [default(field), allowed(field), field.description or ""]
        yield "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


def page() -> str:
    """The whole page."""
    return "\n".join(
        [
            HEADER,
            *rows(Settings, PREFIX, with_flags=True),
            "",
            THRESHOLDS,
            *rows(Thresholds, f"{PREFIX}THRESHOLDS__", with_flags=False),
            "",
        ]
    )


if __name__ == "__main__":
    sys.exit(main(PATH, page(), "Generate the page of settings."))
