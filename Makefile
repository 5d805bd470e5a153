# `make lab` and `make test` are all that a reader needs; `make help` lists the rest.
# The first of them creates .venv and installs the pinned packages; later ones find it ready.

SHELL := bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
.PHONY: lab fresh test test-all rest quick notebooks zh progress challenge handout grade alike doctor check bench gpu mutants look soak site slides clean help

RUN := .venv/bin/python
PIP := $(RUN) -m pip install -qq --disable-pip-version-check -c constraints.txt \
	$(if $(CPU),$(foreach own,torch torchvision,--find-links https://download.pytorch.org/whl/cpu/$(own)/))
# Strict: every output is compared, in the kernel of .venv.
NBVAL := --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg --ignore-glob='*/zh/*' \
	$(if $(seconds),--seconds $(seconds))
# Where a learner's own copies are: make lab my=FOLDER
export COURSE_MY := $(or $(my),$(COURSE_MY))
# English, or Chinese: make lab lang=zh
export COURSE_LANG := $(or $(lang),$(COURSE_LANG))
# Parts run side by side, the long ones first (tests/conftest.py); much of their time is waiting.
BESIDE = -n $(or $(workers),$(1)) --dist loadscope
# Containers often set it; then each of hundreds of Pythons compiles the course and its tests anew.
unexport PYTHONDONTWRITEBYTECODE

lab: .venv/.ready ## copy the notebooks into my/ and open JupyterLab there: make lab my=FOLDER lang=zh CPU=1
	@$(RUN) tools/my.py --lab

fresh: .venv/.ready ## a new copy of a notebook, with your answers; keeps the old: make fresh only=03
	@$(RUN) tools/my.py --fresh $(or $(only),$(error say which: make fresh only=03))

# What `make check` asks of sources and notebooks, tests/house asks as well.
test: .venv/.ready .venv/.teach .venv/.extras .venv/.site ## does the course work here? lint, library, every notebook strictly compared
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m pytest $(NBVAL) $(call BESIDE,5) -m "(not outer or both) and not soak" \
		tests notebooks exercises solutions

test-all: test rest ## `make test`, and then all that it leaves out

rest: .venv/.ready .venv/.teach .venv/.extras .venv/.site ## what `make test` leaves out: wrong answers, classes, clusters, the site
	@$(RUN) -m pytest $(NBVAL) $(call BESIDE,5) -m "outer and not soak" \
		tests notebooks exercises solutions

quick: .venv/.ready ## lint and the tests that take a moment
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m pytest $(call BESIDE,4) -m "not slow and not browser and not soak" --ignore=tests/labs/test_labs.py

check: .venv/.ready ## lint, and are the notebooks what their sources say?
	@$(RUN) -m ruff check --quiet .
	@$(RUN) tools/build.py --check
	@$(RUN) tools/course_map.py --check
	@$(RUN) tools/teaching.py --check
	@$(RUN) tools/zh.py --check

notebooks: .venv/.ready ## execute and rebuild all notebooks, or one: make notebooks only=00_start_here
	@$(RUN) tools/build.py $(only)
	@$(RUN) tools/course_map.py
	@$(RUN) tools/teaching.py

zh: .venv/.ready ## take up in Chinese what has changed in English, build it anew: make zh only=03
	@$(RUN) tools/zh.py $(only)

progress: .venv/.ready ## which exercises pass? runs the labs in my/ as you saved them: make progress only=02
	@$(RUN) tools/progress.py $(only)

challenge: .venv/.ready ## your all-reduce on four networks: make challenge name=Ada, or merge=FOLDER
	@$(RUN) tools/challenge.py $(if $(name),--name "$(name)") \
		$(if $(merge),--merge "$(merge)") $(if $(again),--again)

handout: $(if $(students)$(repository),.venv/.ready,.venv/.teach) ## for teachers: labs in nbgrader's form: make handout to=FOLDER only=02 students=FILE
	@$(RUN) tools/handout.py --to $(or $(to),$(error say where: make handout to=FOLDER)) $(only) \
		$(if $(students),--students "$(students)") $(if $(repository),--repository)

grade: .venv/.ready ## for teachers: grade submissions, each in a sandbox: make grade in=FOLDER only=02 who=ada
	@$(RUN) tools/grade.py $(or $(in),$(error say where submitted/ is: make grade in=FOLDER)) \
		$(if $(only),--only $(only)) $(if $(who),--who "$(who)") $(if $(roster),--roster "$(roster)") \
		$(if $(jobs),--jobs $(jobs)) $(if $(again),--again)

alike: .venv/.ready ## for teachers: which answers are too much alike? make alike in=FOLDER only=02
	@$(RUN) tools/alike.py $(or $(in),$(error say where submitted/ is: make alike in=FOLDER)) \
		$(if $(only),--only $(only))

doctor: ## what is wrong with this installation? one screen; installs nothing
	@$(if $(wildcard $(RUN)),$(RUN),python3) tools/doctor.py

bench: .venv/.ready ## what it costs, each figure beside a baseline (five minutes): make bench against=FOLDER
	@$(RUN) tools/bench.py $(if $(against),--against $(against))

gpu: .venv/.ready ## prove the course on this machine's GPUs: writes gpu-report.md
	@$(RUN) tools/gpu_report.py

mutants: .venv/.extras ## do the checks reject small mistakes in the solutions? make mutants only=03
	@$(RUN) tools/mutants.py $(only) --workers $(or $(workers),2)

look: .venv/.ready ## run a lesson in JupyterLab and take pictures of it: make look to=FOLDER only=05
	@COURSE_SCREENSHOTS=$(or $(to),$(error say where: make look to=FOLDER only=05)) \
		$(RUN) -m pytest tests/lessons/test_browser.py -m browser -k "to_its_end$(if $(only), and $(only))"

site: .venv/.site ## the course as a web site, in build/site/html: make site pdf=1 repository=OWNER/NAME
	@$(RUN) tools/website.py $(if $(repository),--repository $(repository)) $(if $(pdf),--pdf)

slides: .venv/.ready ## every chapter as slides, in build/slides: make slides only=03
	@$(RUN) tools/slides.py $(only)

soak: .venv/.ready ## a thousand launches in one kernel: is anything left behind?
	@$(RUN) -m pytest -m soak

clean: ## remove caches and leftovers (to begin anew, remove .venv as well)
	@rm -rf .pytest_cache .ruff_cache build *.egg-info
	@find . -path ./.venv -prune -o \( -name __pycache__ -o -name .ipynb_checkpoints \) \
		-type d -print0 | xargs -0 rm -rf

help: ## this list
	@grep -E '^[a-z-]+:.*##' $(firstword $(MAKEFILE_LIST)) | sed -E 's/:.*## /\t/' | expand -t 12

.venv/bin/python:
	@for python in $${PYTHON:-python3.11 python3 python3.12 python3.13}; do \
		if "$$python" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))' \
			2>/dev/null; then found=$$python; break; fi; \
	done; \
	if [ -z "$${found:-}" ]; then \
		echo "The course needs Python 3.11, 3.12 or 3.13; here 'python3' is:" \
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
	@$(PIP) -e '.[test]'
	@touch $@

.venv/.bench: .venv/.ready
	@$(PIP) -e '.[bench]'
	@touch $@

# What chapters 09 and 10 need beside the rest.
.venv/.extras: .venv/.ready
	@$(PIP) -e '.[keras,cluster]'
	@touch $@

# Sphinx, which makes pages of notebooks; tools/website.py fetches Pyodide itself.
.venv/.site: .venv/.ready
	@$(PIP) -e '.[site]'
	@touch $@

# A learner's JupyterLab stays as it is: what nbgrader would add to it is switched off.
.venv/.teach: .venv/.ready
	@$(PIP) -e '.[teach]'
	@.venv/bin/jupyter-labextension disable --level=sys_prefix \
		@jupyter/nbgrader @jupyter-notebook/lab-extension 2>/dev/null
	@.venv/bin/jupyter-server extension disable --sys-prefix notebook \
		nbgrader.server_extensions.{formgrader,validate_assignment,assignment_list,course_list} \
		>/dev/null 2>&1
	@touch $@
