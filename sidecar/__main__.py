"""`python -m sidecar`, and the console command."""

from __future__ import annotations

import logging
import sys

from sidecar.cli import application


def main() -> None:
    """Run the command line. A closed pipe ends it quietly, as `head` and `jq` expect.

    A defect of the sidecar itself is one line too, with status 70; the debug log has the trace.
    """
    try:
        application(prog_name="vllm-sidecar")
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
    except Exception as error:  # the last line of defence
        logging.getLogger(__name__).debug("trace of the defect", exc_info=True)
        sys.stderr.write(
            f"vllm-sidecar: a defect in the sidecar: {type(error).__name__}: {error}; "
            "run it again with SIDECAR_LOG_LEVEL=debug and report what it prints\n"
        )
        sys.exit(70)


if __name__ == "__main__":
    main()
