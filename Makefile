# `make lab` and `make test` are all that a reader needs; `make help` lists the rest.
# The first of them creates .venv and installs the pinned packages; later ones find it ready.
# What teachers and authors do stands in source/targets.mk, which a learners' copy does not have.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: lab fresh progress challenge doctor quick clean help

RUN := .venv/bin/python
# `$(PIP) -e . | $(SHOWN) || $(FAILED)`. Of all that pip says, what is large is shown and why it
# cannot go on. Make 3.81, which macOS has, knows no SHELLFLAGS.
PIP := set -o pipefail; \
	$(RUN) -m pip install --disable-pip-version-check --progress-bar off -c constraints.txt \
	$(if $(CPU),$(foreach own,torch torchvision,--find-links https://download.pytorch.org/whl/cpu/$(own)/))
LARGE := Downloading [^ ]+ \([0-9]{3,}\.[0-9] MB\)|^Installing collected packages
REASON := ^The conflict is caused by.*|^ .* (depends on|The user requested) .*
SHOWN := { grep --line-buffered -oE '$(LARGE)|$(REASON)' || true; }
FAILED := { echo "Not installed, for the reason above. It needs a network; the same command goes on from here." >&2; exit 1; }
# Where a learner's own copies are: make lab my=FOLDER
export COURSE_MY := $(or $(my),$(COURSE_MY))
# English, or Chinese: make lab lang=zh
export COURSE_LANG := $(or $(lang),$(COURSE_LANG))
# Parts run side by side, the long ones first (tests/conftest.py); much of their time is waiting.
BESIDE = -n $(or $(workers),$(1)) --dist loadscope
# Containers often set it; then each of hundreds of Pythons compiles the course and its tests anew.
unexport PYTHONDONTWRITEBYTECODE

-include source/targets.mk

lab: .venv/.ready ## copy the notebooks into my/ and open JupyterLab there: make lab my=FOLDER lang=zh CPU=1
	@$(RUN) -m course_tools.learner.workspace --lab

fresh: .venv/.ready ## a new copy of a notebook, with your answers; keeps the old: make fresh only=03
	@$(RUN) -m course_tools.learner.workspace --fresh $(or $(only),$(error say which: make fresh only=03))

quick: .venv/.ready ## lint and the tests that take a moment
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m pytest $(call BESIDE,4) -m "not slow and not browser and not soak" --ignore=tests/labs/test_labs.py

progress: .venv/.ready ## which exercises pass? runs the labs in my/ as you saved them: make progress only=02
	@$(RUN) -m course_tools.learner.progress $(only)

challenge: .venv/.ready ## your all-reduce on four networks: make challenge name=Ada, or merge=FOLDER
	@$(RUN) -m course_tools.learner.challenge $(if $(name),--name "$(name)") \
		$(if $(merge),--merge "$(merge)") $(if $(again),--again)

doctor: ## what is wrong with this installation? one screen; installs nothing
	@$(if $(wildcard $(RUN)),$(RUN),python3) -m course_tools.learner.doctor

clean: ## remove caches and leftovers (to begin anew, remove .venv as well)
	@rm -rf .pytest_cache .ruff_cache build *.egg-info
	@find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) \
		-type d -print0 | xargs -0 rm -rf

help: ## this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/bin/python:
	@for python in $${PYTHON:-python3.11 python3 python3.12 python3.13 python3.14}; do \
		if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 15))' \
			2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "The course needs Python 3.11, 3.12, 3.13 or 3.14; here 'python3' is:" \
			"$$(python3 --version 2>/dev/null || echo missing)" >&2; \
		echo "Install one of them, or say where it is: make lab PYTHON=/where/it/is" >&2; \
		exit 1; \
	fi; \
	echo "Creating .venv with $$("$$found" --version)"; \
	"$$found" -m venv .venv || { \
		rm -rf .venv; \
		echo "Python cannot create .venv; on Debian and Ubuntu: apt install python3-venv" >&2; \
		exit 1; \
	}

.venv/.ready: pyproject.toml constraints.txt | .venv/bin/python
	@echo "Installing the pinned packages into .venv (once; about two minutes, $(if $(CPU),2,6) GB) ..."
	@$(PIP) -e '.[lab,test]' | $(SHOWN) || $(FAILED)
	@touch $@
