"""A vLLM server and its GPU without either: the demo runs the whole real pipeline against it.

A paged-KV engine with continuous batching works through the load of closed-loop clients on a
virtual clock (`engine`, `clients`, `scenarios`, `drive`); `page` and `gpu` show its state as a real
server and a real device would; `server` puts them behind HTTP.
"""

from sidecar.simulator.scenarios import SCENARIOS
from sidecar.simulator.server import Simulation

__all__ = ["SCENARIOS", "Simulation"]
