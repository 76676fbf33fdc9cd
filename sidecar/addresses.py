"""How an address is written, for people and for clients on this machine."""

from __future__ import annotations


def reachable_address(host: str, port: int, *, tls: bool = False) -> str:
    """The URL under which this machine reaches a listener on this host and port."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)
    scheme, shown = "https" if tls else "http", f"[{host}]" if ":" in host else host
    return f"{scheme}://{shown}:{port}"
