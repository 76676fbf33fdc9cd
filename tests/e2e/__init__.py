"""Tests against real servers: a real vLLM, Prometheus and Alertmanager, all on loopback."""
