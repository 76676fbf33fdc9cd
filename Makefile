# Everything a developer needs, by name. `make` alone lists the targets.

python := .venv/bin/python
constraints := --constraint constraints.txt
SECONDS ?= 600

.DEFAULT_GOAL := help
.PHONY: help demo test e2e loop check golden documents pictures format fuzz bench clean

help: ## List the targets
	@grep -hE '^[a-z0-9-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 14

demo: .venv/runtime ## Run the sidecar on a simulated vLLM and GPU, and print the address
	@$(python) -m sidecar demo

test: .venv/development ## Run the tests
	$(python) -m pytest

check: .venv/development ## Lint, types, alert rules, routes, and generated files up to date
	$(python) -m ruff check .
	$(python) -m ruff format --check .
	$(python) -m mypy
	$(python) tools/check_monitoring.py
	$(python) tools/check_exposition.py
	$(python) tools/check_dashboards.py
	$(python) tools/dashboards.py --check
	$(python) tools/metrics_page.py --check
	$(python) tools/settings_page.py --check
	$(python) tools/compatibility_page.py --check
	$(python) tools/picture.py --check

e2e: .venv/development .venv-vllm/ready ## Real vLLM, Prometheus, Alertmanager and containers (20 minutes)
	$(python) -m pytest tests/e2e -m e2e -s
	$(python) tests/e2e/compose.py

loop: .venv/development .venv-vllm/ready ## Follow the sidecar's advice on a real vLLM (part of e2e)
	$(python) -m pytest tests/e2e/test_the_loop_closes.py -m e2e -s

golden: .venv/development ## Write the golden expositions anew; read the diff
	$(python) tools/golden_expositions.py

documents: .venv/development ## Generate dashboards, reference pages and the picture
	$(python) tools/dashboards.py
	$(python) tools/metrics_page.py
	$(python) tools/settings_page.py
	$(python) tools/compatibility_page.py
	$(python) tools/picture.py

fuzz: .venv/development ## Feed damaged pages, logs and recordings to the sidecar (SECONDS=600)
	$(python) tests/fuzz/fuzz_pages.py --seconds $(SECONDS)

bench: .venv/development ## Measure parsing, reading by many clients, and memory over hours
	$(python) bench/parsing.py
	$(python) bench/readers.py
	$(python) bench/endurance.py

pictures: .venv/development ## Draw the dashboards' panels from a real Prometheus
	$(python) tools/panel_pictures.py

format: .venv/development ## Format the code and mend what ruff can
	$(python) -m ruff check --fix .
	$(python) -m ruff format .

clean: ## Remove virtual environments and caches
	rm -rf .venv .venv-vllm .cache .mypy_cache .pytest_cache .ruff_cache

.venv/runtime: pyproject.toml constraints.txt
	@echo "Setting up .venv (about half a minute the first time)"
	@test -x $(python) || python3 -m venv .venv
	@$(python) -m pip install --quiet --disable-pip-version-check $(constraints) --editable .
	@touch $@

.venv/development: .venv/runtime
	@echo "Adding the development tools"
	@$(python) -m pip install --quiet --disable-pip-version-check $(constraints) --editable '.[development]'
	@touch $@

.venv-vllm/ready: .venv/development tests/e2e/vllm_environment.py
	$(python) tests/e2e/vllm_environment.py --path .venv-vllm
	@touch $@
