"""Tests of the log reader; `expected_logs` is what a person reads in each sample."""
