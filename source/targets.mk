# What teachers and authors do: make handout, make grade, make notebooks and so on.

.PHONY: test test-all rest check notebooks zh handout grade bench gpu mutants look soak site slides wheel pictures

# Strict: every output is compared, in the kernel of .venv.
NBVAL := --nbval --nbval-current-env --nbval-sanitize-with=tests/nbval_sanitize.cfg --ignore-glob='*/zh/*' \
	$(if $(seconds),--seconds $(seconds))

# What `make check` asks of sources and notebooks, tests/house asks as well.
test: .venv/.ready .venv/.teach .venv/.extras .venv/.site ## does the course work here? lint, library, every notebook strictly compared
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m pytest $(NBVAL) $(call BESIDE,5) -m "(not outer or both) and not soak" \
		tests notebooks exercises solutions

test-all: test rest ## `make test`, and then all that it leaves out

rest: .venv/.ready .venv/.teach .venv/.extras .venv/.site ## what `make test` leaves out: wrong answers, classes, clusters, the site
	@$(RUN) -m pytest $(NBVAL) $(call BESIDE,5) -m "outer and not soak" \
		tests notebooks exercises solutions

check: .venv/.ready ## lint, and are the notebooks what their sources say?
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m course_tools.notebooks.build --check
	@$(RUN) -m course_tools.notebooks.course_map --check
	@$(RUN) -m course_tools.notebooks.teaching --check
	@$(RUN) -m course_tools.site.readme_pictures --check
	@$(RUN) -m course_tools.site.glossary --check
	@$(RUN) -m course_tools.i18n.zh --check

notebooks: .venv/.ready ## execute and rebuild all notebooks, or one: make notebooks only=00_start_here
	@$(RUN) -m course_tools.notebooks.build $(only)
	@$(RUN) -m course_tools.notebooks.course_map
	@$(RUN) -m course_tools.notebooks.teaching
	@$(RUN) -m course_tools.site.readme_pictures
	@$(RUN) -m course_tools.site.glossary

pictures: .venv/.ready ## README's pictures anew, from what the notebooks printed
	@$(RUN) -m course_tools.site.readme_pictures

zh: .venv/.ready ## take up in Chinese what has changed in English, build it anew: make zh only=03
	@$(RUN) -m course_tools.i18n.zh $(only)

handout: $(if $(repository),.venv/.ready,.venv/.teach) ## for teachers: labs in nbgrader's form: make handout to=FOLDER only=02
	@$(RUN) -m course_tools.grading.handout --to "$(or $(to),$(error say where: make handout to=FOLDER))" $(only) \
		$(if $(repository),--repository)

grade: .venv/.ready ## for teachers: grade submissions, each in a sandbox: make grade in=FOLDER only=02 who=ada
	@$(RUN) -m course_tools.grading.grade "$(or $(in),$(error say where submitted/ is: make grade in=FOLDER))" \
		$(if $(only),--only $(only)) $(if $(who),--who "$(who)") \
		$(if $(jobs),--jobs $(jobs))

bench: .venv/.ready ## what it costs, each figure beside a baseline (five minutes): make bench against=FOLDER
	@$(RUN) -m course_tools.measure.bench $(if $(against),--against $(against))

gpu: .venv/.ready ## prove the course on this machine's GPUs, one is enough: eight minutes, writes gpu-report.md
	@$(RUN) -m course_tools.measure.gpu_report

mutants: .venv/.extras ## do the checks reject small mistakes in the solutions? make mutants only=03
	@$(RUN) -m course_tools.quality.mutants $(only) --workers $(or $(workers),2)

look: .venv/.ready ## run a lesson in JupyterLab and take pictures of it: make look to=FOLDER only=05
	@COURSE_SCREENSHOTS="$(or $(to),$(error say where: make look to=FOLDER only=05))" \
		$(RUN) -m pytest tests/lessons/test_browser.py -m browser -k "to_its_end$(if $(only), and $(only))"

site: .venv/.site ## the course as a web site, in build/site/html: make site pdf=1 repository=OWNER/NAME
	@$(RUN) -m course_tools.site.website $(if $(repository),--repository $(repository)) $(if $(pdf),--pdf)

slides: .venv/.ready ## chapters as slides, in build/slides: make slides to=FOLDER only=03 lang=zh
	@$(RUN) -m course_tools.slides.build --to "$(or $(to),build/slides)" $(only)

wheel: .venv/.ready ## the course as one file that pip installs anywhere, with lessons and labs, in build/wheel
	@$(RUN) -m pip wheel --quiet --no-deps --no-build-isolation --wheel-dir build/wheel .
	@rm -rf build/lib
	@ls build/wheel/*.whl

soak: .venv/.ready ## a thousand launches in one kernel: is anything left behind?
	@$(RUN) -m pytest -m soak

.venv/.bench: .venv/.ready
	@echo "Installing what 'make bench' needs (once) ..."
	@$(PIP) -e '.[bench]' | $(SHOWN) || $(FAILED)
	@touch $@

# What chapters 09 and 10 need beside the rest.
.venv/.extras: .venv/.ready
	@echo "Installing Keras and Ray for chapters 10 and 09 (once) ..."
	@$(PIP) -e '.[keras,cluster]' | $(SHOWN) || $(FAILED)
	@touch $@

# Sphinx, which makes pages of notebooks; course_tools.site.website fetches Pyodide itself.
.venv/.site: .venv/.ready
	@echo "Installing Sphinx (once) ..."
	@$(PIP) -e '.[site]' | $(SHOWN) || $(FAILED)
	@touch $@

# A learner's JupyterLab stays as it is: what nbgrader would add to it is switched off.
.venv/.teach: .venv/.ready
	@echo "Installing nbgrader (once) ..."
	@$(PIP) -e '.[teach]' | $(SHOWN) || $(FAILED)
	@.venv/bin/jupyter-labextension disable --level=sys_prefix \
		@jupyter/nbgrader @jupyter-notebook/lab-extension 2>/dev/null
	@.venv/bin/jupyter-server extension disable --sys-prefix notebook \
		nbgrader.server_extensions.{formgrader,validate_assignment,assignment_list,course_list} \
		>/dev/null 2>&1
	@touch $@
