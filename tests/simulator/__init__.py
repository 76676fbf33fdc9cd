"""Tests of the simulator, all on virtual time."""
