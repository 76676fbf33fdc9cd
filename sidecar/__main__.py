"""`python -m sidecar`, and the console command."""

from __future__ import annotations

import sys

from sidecar.cli import application


def main() -> None:
    """Run the command line. A closed pipe ends it quietly, as `head` and `jq` expect."""
    try:
        application(prog_name="vllm-sidecar")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)


if __name__ == "__main__":
    main()
