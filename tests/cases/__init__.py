"""Public reports as tests: what was seen, what was true, and what must never be said."""
