"""What `make lab` opens, and what a cell or a terminal finds there."""

import hashlib
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import nbformat
import pytest
from warm_kernels import NURSERY

from course_tools.learner import copies, workspace
from course_tools.learner.jupyterlab.course_saving import renew_course_map

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def folder(tmp_path):
    """A learner's folder with three copies, in which nothing has been run yet."""
    for number, name in enumerate(("chapter_00_start_here", "chapter_02_groups", "lab_02_groups")):
        notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell("1 + 1")])
        path = tmp_path / f"{name}.ipynb"
        nbformat.write(notebook, path)
        os.utime(path, (1000 + number, 1000 + number))
    return tmp_path


def run_and_save(path: Path, at: float) -> None:
    notebook = nbformat.read(path, as_version=4)
    notebook.cells[0].execution_count = 1
    nbformat.write(notebook, path)
    os.utime(path, (at, at))


def opened(folder: Path) -> str:
    command, _ = workspace.lab_command(folder, folder)
    (url,) = [part for part in command if "default_url" in part]
    return url.rpartition("/")[2]


def test_the_first_day_begins_with_the_first_lesson(folder):
    assert opened(folder) == "chapter_00_start_here.ipynb"


def test_the_second_day_opens_where_one_was(folder):
    run_and_save(folder / "lab_02_groups.ipynb", 3000)
    run_and_save(folder / "chapter_02_groups.ipynb", 2000)
    assert opened(folder) == "lab_02_groups.ipynb"


def test_a_notebook_that_cannot_be_read_is_not_where_one_was(folder):
    run_and_save(folder / "chapter_02_groups.ipynb", 2000)
    (folder / "mine.ipynb").write_text("<<<<<<< ours")
    assert opened(folder) == "chapter_02_groups.ipynb"


def test_python_pip_and_torchrun_in_a_cell_are_those_of_the_course(folder, monkeypatch):
    monkeypatch.setenv("PATH", "/usr/bin:/bin")
    environment = workspace.lab_environment(ROOT, folder)
    for program in ("python", "pip", "torchrun"):
        which = ["/bin/sh", "-c", f"command -v {program}"]
        path = subprocess.run(which, env=environment, capture_output=True, text=True).stdout.strip()
        assert path == str(Path(sys.executable).with_name(program))
    assert environment.get("VIRTUAL_ENV", sys.base_prefix) == sys.prefix


def test_settings_of_ones_own_come_after_those_of_the_course(folder, monkeypatch):
    monkeypatch.setenv("JUPYTER_CONFIG_PATH", "mine")
    paths = workspace.lab_environment(ROOT, folder)["JUPYTER_CONFIG_PATH"].split(os.pathsep)
    assert paths[-1] == "mine"
    assert (Path(paths[0]) / "jupyter_lab_config.py").exists()


def test_each_folder_has_tabs_of_its_own_wherever_ones_home_is(tmp_path, monkeypatch):
    monkeypatch.setenv("JUPYTERLAB_WORKSPACES_DIR", str(tmp_path / "shared"))
    kept = []
    for name in ("spring", "autumn"):
        folder = tmp_path / name
        folder.mkdir()
        environment = workspace.lab_environment(ROOT, folder)
        code = (
            "from pathlib import Path\n"
            "from jupyterlab.labapp import LabApp\n"
            "from jupyterlab_server.workspaces_handler import WorkspacesManager\n"
            "manager = WorkspacesManager(LabApp().workspaces_dir)\n"
            'tabs = \'{"data": {}, "metadata": {"id": "default"}}\'\n'
            "print(manager.list_workspaces(), manager.save('default', tabs))"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
        before, _, path = done.stdout.strip().partition(" ")
        assert before == "[]"  # nothing of the other folder
        kept.append(Path(path))
    assert [path.parents[1] for path in kept] == [tmp_path / "spring", tmp_path / "autumn"]
    assert all(path.exists() for path in kept)


def test_what_explains_a_measurement_is_folded_and_a_heading_is_not():
    new = nbformat.v4
    cells = [
        new.new_markdown_cell("A question."),
        new.new_code_cell("held.measured(10)"),
        new.new_markdown_cell("Ten, because ..."),
        new.new_markdown_cell("More."),
        new.new_code_cell("sent.measured(20)"),
        new.new_code_cell("draw(sent)"),
        new.new_markdown_cell("Twenty, because ..."),
        new.new_code_cell("draw(held)"),
        new.new_markdown_cell("Even more."),
        new.new_code_cell("held.measured(11)"),
        new.new_code_cell("draw(held)"),
        new.new_markdown_cell("## The next part"),
        new.new_code_cell("print(3)"),
        new.new_markdown_cell("Three."),
    ]
    notebook = new.new_notebook(cells=cells)
    copies.fold_explanations(notebook)
    folded = [cell.source for cell in notebook.cells if cell.metadata.get("jupyter")]
    assert folded == ["Ten, because ...", "Twenty, because ..."]
    nbformat.validate(notebook)


def test_a_copy_says_of_its_language_what_jupyterlab_would_fill_in():
    language = copies.language_of_kernel()
    code = "from ipykernel.ipkernel import IPythonKernel as K; print(dict(K.language_info))"
    assert eval(NURSERY.run(code)) == language


def test_the_course_map_says_how_many_predictions_were_right(folder, monkeypatch):
    monkeypatch.delenv("COURSE_LANG", raising=False)
    copies.lay_out_map(ROOT, folder)
    assert "Your predictions" not in (folder / "course_map.md").read_text()
    (folder / copies.SCORES).write_text('{"03": {"a": true, "b": false}, "00": {"c": true}}')
    assert copies.lay_out_map(ROOT, folder) == []
    course_map = (folder / "course_map.md").read_text()
    assert "## Your predictions" in course_map
    assert "| 00 | 1 / 1 |\n| 03 | 1 / 2 |\n" in course_map


def test_the_course_map_counts_the_exercises_that_pass_until_they_are_changed(folder, monkeypatch):
    monkeypatch.delenv("COURSE_LANG", raising=False)
    lab = folder / "lab_02_process_groups.ipynb"
    notebook = nbformat.read(ROOT / "exercises/02_process_groups.ipynb", as_version=4)
    (answer,) = [cell for cell in notebook.cells if cell.source.startswith("def rank_of(")]
    answer.source = "def rank_of(place):\n    return 1"
    digest = hashlib.sha256(answer.source.encode()).hexdigest()[:16]
    verdicts = {
        "rank_of": {"state": "passed", "cell": digest},
        "place_of": {"state": "wrong", "cell": digest},
        "mean_of_all": {"state": "passed", "cell": "0123456789abcdef"},  # of what stood there then
        "no_exercise": {"state": "passed", "cell": digest},
    }
    nbformat.write(notebook, lab)
    of_an_older_copy = {"lab_02_process_groups_2026-11-22.ipynb": verdicts}
    (folder / copies.SCORES).write_text(json.dumps(of_an_older_copy))
    copies.lay_out_map(ROOT, folder)
    row = "| [lab_02_process_groups](lab_02_process_groups.ipynb) | 1 / 5 |\n"
    assert row in (folder / "course_map.md").read_text()
    answer.source += "  # changed"
    nbformat.write(notebook, lab)
    copies.lay_out_map(ROOT, folder)
    assert "Your exercises" not in (folder / "course_map.md").read_text()


def test_the_course_map_is_renewed_when_a_notebook_is_saved_after_news(folder, monkeypatch):
    monkeypatch.delenv("COURSE_LANG", raising=False)
    scores_file, course_map = folder / copies.SCORES, folder / "course_map.md"
    monkeypatch.setenv("COURSE_SCORES", str(scores_file))
    copies.lay_out_map(ROOT, folder)
    scores_file.write_text('{"03": {"a": true}}')
    os.utime(course_map, (1000, 1000))
    renew_course_map(os_path=str(folder / "elsewhere/x.ipynb"), model={}, contents_manager=None)
    assert "Your predictions" not in course_map.read_text()
    renew_course_map(os_path=str(folder / "x.ipynb"), model={}, contents_manager=None)
    assert "| 03 | 1 / 1 |" in course_map.read_text()
    scores_file.write_text('{"03": {"a": false}}')
    os.utime(scores_file, (1000, 1000))  # older than the map: nothing to do
    renew_course_map(os_path=str(folder / "x.ipynb"), model={}, contents_manager=None)
    assert "| 03 | 1 / 1 |" in course_map.read_text()
    monkeypatch.delenv("COURSE_SCORES")
    renew_course_map(os_path=str(folder / "x.ipynb"), model={}, contents_manager=None)


def test_a_course_map_of_ones_own_is_left_as_it_is_when_the_score_changes(folder, monkeypatch):
    monkeypatch.delenv("COURSE_LANG", raising=False)
    copies.lay_out_map(ROOT, folder)
    path = folder / "course_map.md"
    path.write_text("mine\n" + path.read_text())
    (folder / copies.SCORES).write_text('{"03": {"a": true}}')
    copies.lay_out_map(ROOT, folder)
    assert path.read_text().startswith("mine")
    assert "Your predictions" not in path.read_text()


def test_the_page_is_told_of_copies_whose_original_is_newer(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "course_tools" / "learner" / "jupyterlab"))
    notices = importlib.import_module("course_newer").notices
    assert notices({}) == []
    (notice,) = notices({"COURSE_NEWER": "lab_02_x"})
    assert notice["message"] == "lab_02_x has a newer original."
    assert notice["command"].endswith("-m course_tools.learner.workspace --fresh lab_02_x)")
    (notice,) = notices({"COURSE_NEWER": "lab_02_x", "COURSE_LANG": "zh"})
    assert "lab_02_x 的原件" in notice["message"]


def test_jupyterlab_knows_which_copies_have_a_newer_original(tmp_path, monkeypatch):
    monkeypatch.setenv("COURSE_MY", str(tmp_path))
    workspace.main([])
    assert workspace.lab_environment(ROOT, tmp_path)["COURSE_NEWER"] == ""
    lab = tmp_path / "lab_02_process_groups.ipynb"
    text = lab.read_text(encoding="utf-8")
    original = nbformat.reads(text, as_version=4).metadata["course"]["texts"]
    lab.write_text(text.replace(next(iter(original.values())), "0" * 12), encoding="utf-8")
    assert workspace.lab_environment(ROOT, tmp_path)["COURSE_NEWER"] == lab.stem


def test_a_terminal_has_the_programs_of_the_course_first_whatever_ones_own_settings_say(tmp_path):
    (tmp_path / ".bashrc").write_text("export PATH=/somewhere/else:$PATH\n")
    rcfile = ROOT / "course_tools" / "learner" / "jupyterlab" / "terminal.bashrc"
    command = ["bash", "--rcfile", str(rcfile), "-i", "-c", "echo $PATH"]
    environment = {**os.environ, "HOME": str(tmp_path), "COURSE_PROGRAMS": "/the/course/bin"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.stdout.startswith("/the/course/bin:/somewhere/else:")


@pytest.mark.slow
def test_what_the_server_is_told_leaves_the_address_the_last_thing_to_read(folder):
    """No search for language servers, and no question for Node.js, which learners need not have."""
    command, environment = workspace.lab_command(ROOT, folder)
    done = subprocess.run(
        [*command, "--show-config"], env=environment, capture_output=True, text=True, check=True
    )
    assert re.search(r"LanguageServerManager\s+\.autodetect = False", done.stdout)
    assert "'buildCheck': False" in done.stdout
