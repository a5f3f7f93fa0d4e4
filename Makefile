# Everything works on a machine with python3 and make alone: uv comes into .tools when there is none, the packages into
# .venv, and the system's Python is left as it is.
.DEFAULT_GOAL := help
.PHONY: help demo test lint format clean
SHELL := /bin/sh

UV_VERSION := 0.13.8
UV := $(shell uv --version >/dev/null 2>&1 && command -v uv || echo .tools/bin/uv)
READY := .venv/.ready
DEMO := demo

help: ## say what there is to make
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/make \1	\2/p' Makefile

demo: $(READY) ## stain synthetic tissue, measure it and show it on one page, into ./demo (made anew)
	rm -rf $(DEMO)
	.venv/bin/sheafstain demo -o $(DEMO)

test: lint ## all that a change must pass: lint, then the tests with their coverage
	.venv/bin/pytest -n auto --cov --cov-report=term

lint: $(READY) ## style, the import rule and types
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/lint-imports
	.venv/bin/pyright

format: $(READY) ## rewrite the code in the project's style
	.venv/bin/ruff check --fix
	.venv/bin/ruff format

clean: ## remove what make and the tools made (environments, caches, the demo)
	rm -rf .venv .tools $(DEMO) build dist .pytest_cache .ruff_cache .hypothesis .coverage .coverage.* .import_linter_cache uv.lock
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The environment is made again when what it is made of changes, and costs nothing otherwise.
$(READY): pyproject.toml $(filter .tools/%,$(UV))
	$(UV) sync
	@env -u PYTHONDONTWRITEBYTECODE .venv/bin/sheafstain --help >/dev/null  # it works, and its next start is a fast one
	@touch $@

.tools/bin/uv:
	@python3 -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' 2>/dev/null || { \
	  echo "SheafStain needs Python 3.11, 3.12 or 3.13 as python3, not $$(python3 --version 2>/dev/null || echo none); or install uv, which brings its own" >&2; exit 1; }
	@python3 -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "python3 cannot make environments: install its venv module (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }
	python3 -m venv .tools
	.tools/bin/python -m pip install --quiet --disable-pip-version-check uv==$(UV_VERSION)
