"""`notebooks.build` on small sample lessons: what it must refuse first, then what it must do."""

import json
import re
import shutil
from pathlib import Path

import nbformat
import pytest

from course_tools import ROOT
from course_tools.notebooks import build, cells

LESSON = '''\
# %% [markdown]
# # A sample lesson
#
# Two equal cells follow.

# %%
import sys

print("a")
print("b", file=sys.stderr)
print("c")

# %%
1 + 1

# %%
1 + 1


# %% tags=["nbval-ignore-output"]
def shout(text):
    return text.upper()


text = """
# %% not a cell
"""

# %% A cell with a title
import ipywidgets as widgets

widgets.IntProgress(value=1)

# %% tags=["raises-exception"]
raise ValueError("on purpose")

# %%
# %env SAMPLE=1
'''

LAB = """\
# %%
def double(x):
    ### BEGIN SOLUTION # one operator is enough
    # not counted

    y = 2 * x
    return y
    ### END SOLUTION


# %%
### BEGIN SOLUTION predicted = None  # your number
predicted = 4
### END SOLUTION
predicted
"""


def root_with(folder: Path, **sources: str) -> Path:
    """Returns a project's folder that holds these lessons."""
    lessons = folder / "source" / "lessons"
    lessons.mkdir(parents=True)
    for name, text in sources.items():
        (lessons / f"{name[1:]}.py").write_text(text)
    return folder


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> Path:
    """A sample project, built once: a lesson, and a lab of the same name."""
    root = root_with(tmp_path_factory.mktemp("built"), _00_sample=LESSON)
    (root / "source" / "labs").mkdir()
    (root / "source" / "labs" / "00_sample.py").write_text(LAB)
    assert build.main(["--root", str(root)]) == 0
    return root


@pytest.fixture
def project(built, tmp_path) -> Path:
    """A copy of the sample project that a test may spoil."""
    return shutil.copytree(built, tmp_path / "project")


def spoil(project: Path, edit) -> list[str]:
    """Edits the built lesson as a hand would and returns what the check then says."""
    path = project / "notebooks" / "00_sample.ipynb"
    notebook = json.loads(path.read_text())
    edit(notebook)
    path.write_text(json.dumps(notebook))
    return build.check(project)


def notebook_showing(text: str) -> nbformat.NotebookNode:
    """Returns a run notebook of one cell that printed `text`."""
    output = nbformat.v4.new_output("stream", name="stdout", text=text)
    cell = nbformat.v4.new_code_cell("print(1)", execution_count=1, outputs=[output])
    return nbformat.v4.new_notebook(cells=[cell])


def test_a_cell_that_fails_without_the_tag_fails_the_build_and_writes_nothing(tmp_path, capsys):
    root = root_with(tmp_path, _07_bad="# %%\nraise KeyError('unplanned')\n")
    assert build.main(["--root", str(root), "07_bad"]) == 1
    message = capsys.readouterr().err
    assert "notebooks/07_bad.ipynb" in message
    assert "KeyError: 'unplanned'" in message
    assert not (root / "notebooks" / "07_bad.ipynb").exists()


def test_an_output_with_a_path_of_this_machine_fails_the_build_naming_the_cell(tmp_path, capsys):
    text = "# %% [markdown]\n# where?\n\n# %%\nimport os\n\nprint(os.getcwd())\n"
    root = root_with(tmp_path, _07_bad=text)
    assert build.main(["--root", str(root)]) == 1
    assert f"cell 1 shows a path of this machine: {root}/notebooks" in capsys.readouterr().err
    assert not (root / "notebooks" / "07_bad.ipynb").exists()


@pytest.mark.parametrize("place", [Path.home() / "x", Path(cells.sys.prefix) / "lib/site.py"])
def test_a_path_is_found_even_when_colours_cut_it_in_pieces(place, tmp_path):
    coloured = f"File \x1b[32m{place.parent}\x1b[0m/{place.name}:3"
    found = list(cells.faults(notebook_showing(coloured), tmp_path))
    assert found == [f"cell 0 shows a path of this machine: {place}"]


def test_a_path_is_found_in_a_traceback_and_in_a_rich_output(tmp_path):
    notebook = notebook_showing("clean")
    error = nbformat.v4.new_output("error", ename="E", evalue="", traceback=[f"at {tmp_path}/a"])
    rich = nbformat.v4.new_output("display_data", {"text/html": f"<b>{tmp_path}/b</b>"})
    notebook.cells[0].metadata.tags = ["raises-exception"]
    notebook.cells[0].outputs = [error, rich]
    assert len(list(cells.faults(notebook, tmp_path))) == 2


def test_words_that_only_resemble_a_path_are_not_faults(tmp_path):
    text = f"a{Path.home()} {Path.home()}less 1 / 2 http://localhost/{tmp_path.name}"
    assert list(cells.faults(notebook_showing(text), tmp_path)) == []


def test_an_unknown_chapter_is_refused_with_the_names_there_are(project, capsys):
    assert build.main(["--root", str(project), "99_nothing"]) == 1
    assert "no source is called 99_nothing; there are: 00_sample" in capsys.readouterr().err


def test_take_without_a_name_is_refused(project):
    assert build.main(["--root", str(project), "--take"]) == 1


def test_a_picture_pasted_into_a_cell_is_not_silently_lost_by_taking_back(project, capsys):
    def paste(notebook):
        notebook["cells"][0]["attachments"] = {"a.png": {"image/png": "aGk="}}

    spoil(project, paste)
    before = (project / "source/lessons/00_sample.py").read_text()
    assert build.main(["--root", str(project), "--take", "00_sample"]) == 1
    assert "cell 0 differs from its source in: attachments" in capsys.readouterr().err
    assert (project / "source/lessons/00_sample.py").read_text() == before


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("### BEGIN SOLUTION\nx = 1\n", "begin without end"),
        ("x = 1\n### END SOLUTION", "end without begin"),
        ("### BEGIN SOLUTION\n### BEGIN SOLUTION\nx = 1\n### END SOLUTION", "nested"),
    ],
)
def test_solution_markers_that_do_not_pair_up_are_refused(text, what):
    with pytest.raises(cells.BuildError, match="do not pair up"):
        cells.cut_solution(text)


def test_the_check_is_content_with_what_was_just_built(built, capsys):
    assert build.main(["--root", str(built), "--check"]) == 0
    assert "every notebook is what its source says" in capsys.readouterr().out


def test_the_check_finds_an_edited_source_and_says_what_to_do(project, capsys):
    (project / "source/lessons/00_sample.py").write_text(LESSON.replace("1 + 1", "1 + 2", 1))
    assert build.main(["--root", str(project), "--check"]) == 1
    message = capsys.readouterr().out
    assert "notebooks/00_sample.ipynb: cell 2 differs from its source in: text, id" in message
    assert "make notebooks only=NAME" in message


def test_the_check_finds_an_added_cell(project):
    source = project / "source/lessons/00_sample.py"
    source.write_text("# %%\nnew = 1\n\n" + LESSON)
    assert "notebooks/00_sample.ipynb: has 8 cells, its source 9" in build.check(project)


@pytest.mark.parametrize(
    ("edit", "complaint"),
    [
        (lambda nb: nb["cells"][2].update(source="1 + 3"), "cell 2 differs from its source in: t"),
        (lambda nb: nb["cells"][2].update(id="other"), "cell 2 differs from its source in: id"),
        (lambda nb: nb["cells"][4].update(metadata={}), "cell 4 differs from its source in: tags"),
        (lambda nb: nb["cells"][2].update(execution_count=None), "cell 2 was never run"),
        (lambda nb: nb["cells"][2].update(execution_count=9), "cell 2 was run out of order"),
        (lambda nb: nb["cells"][2]["metadata"].update(execution={}), "was saved by an editor"),
        (lambda nb: nb["metadata"].update(widgets={}), "was saved by an editor"),
    ],
)
def test_the_check_finds_what_a_hand_did_to_a_notebook(project, edit, complaint):
    problems = spoil(project, edit)
    assert len(problems) == 1
    assert problems[0].startswith(f"notebooks/00_sample.ipynb: {complaint}")


def test_the_check_finds_an_error_whose_tag_was_removed(project):
    problems = spoil(project, lambda nb: nb["cells"][6].update(metadata={}))
    assert "notebooks/00_sample.ipynb: cell 6 ends in ValueError without the tag" in problems[1]


def test_the_check_finds_missing_and_orphaned_notebooks(project):
    (project / "notebooks/00_sample.ipynb").rename(project / "notebooks/01_lost.ipynb")
    (project / "solutions/00_sample.ipynb").unlink()
    assert build.check(project) == [
        "notebooks/00_sample.ipynb: missing",
        "solutions/00_sample.ipynb: missing",
        "notebooks/01_lost.ipynb: orphaned, it has no source",
    ]


def test_building_again_gives_the_same_bytes(project):
    before = (project / "notebooks/00_sample.ipynb").read_bytes()
    only_lesson = build.targets(project, ["00"])[0]
    build.build(only_lesson, project)
    assert (project / "notebooks/00_sample.ipynb").read_bytes() == before


def test_a_built_notebook_is_valid_and_holds_nothing_that_changes_by_itself(built):
    notebook = nbformat.read(built / "notebooks/00_sample.ipynb", as_version=4)
    nbformat.validate(notebook)
    assert set(notebook.metadata) == {"kernelspec", "language_info"}
    assert {key for cell in notebook.cells for key in cell.metadata} == {"tags", "title"}
    assert notebook.cells[4].metadata.tags == ["nbval-ignore-output"]


def test_what_jupyterlab_adds_when_a_notebook_is_opened_is_no_drift(project):
    def opened(notebook):
        notebook["metadata"]["language_info"] |= {"version": "3.12.1", "file_extension": ".py"}
        notebook["metadata"]["kernelspec"] |= {"display_name": "Python 3"}

    assert spoil(project, opened) == []


@pytest.mark.parametrize("folder", ["notebooks", "exercises", "solutions"])
def test_a_build_never_replaces_what_a_person_wrote(project, folder):
    path = project / folder / "00_sample.ipynb"
    notebook = json.loads(path.read_text())
    notebook["cells"][0]["source"] += "\nmine = 1"
    path.write_text(json.dumps(notebook))
    before = path.read_bytes()
    (target,) = [target for target in build.targets(project) if target.built == path]
    with pytest.raises(build.BuildError, match=r"cell 0 was edited by hand.*--take"):
        build.build(target, project)
    assert path.read_bytes() == before


def test_equal_cells_have_ids_of_their_own(built):
    notebook = nbformat.read(built / "notebooks/00_sample.ipynb", as_version=4)
    ids = [cell.id for cell in notebook.cells]
    assert notebook.cells[2].source == notebook.cells[3].source
    assert len(set(ids)) == len(ids)


def test_inserting_a_cell_leaves_the_ids_of_the_others_alone():
    old = cells.read_percent(LESSON)
    new = cells.read_percent("# %%\nnew = 1\n\n" + LESSON)
    assert [cell.id for cell in new.cells[1:]] == [cell.id for cell in old.cells]


def test_consecutive_output_of_one_stream_is_one_output():
    notebook = notebook_showing("a\n")
    again = nbformat.v4.new_output("stream", name="stdout", text="b\n")
    other = nbformat.v4.new_output("stream", name="stderr", text="c\n")
    notebook.cells[0].outputs += [again, other]
    outputs = cells.tidy(notebook).cells[0].outputs
    assert [(o.name, o.text) for o in outputs] == [("stdout", "a\nb\n"), ("stderr", "c\n")]


def test_a_widget_leaves_its_text_but_no_view_without_a_model(built):
    text = (built / "notebooks/00_sample.ipynb").read_text()
    assert "IntProgress(value=1)" in text
    assert "widget-view" not in text


def test_an_exercise_shows_stubs_and_its_solution_the_answer(built):
    exercise = nbformat.read(built / "exercises/00_sample.ipynb", as_version=4)
    solution = nbformat.read(built / "solutions/00_sample.ipynb", as_version=4)
    assert exercise.cells[0].source == (
        "def double(x):\n"
        "    # one operator is enough\n"
        '    raise NotImplementedError("about 2 lines")'
    )
    assert exercise.cells[1].source == "predicted = None  # your number\npredicted"
    assert exercise.cells[1].outputs == []
    assert solution.cells[1].outputs[0].data["text/plain"] == "4"


def test_a_bare_marker_becomes_a_raise_that_counts_the_lines():
    text = "def f():\n    ### BEGIN SOLUTION\n    return 1\n    ### END SOLUTION\n\nf"
    wanted = 'def f():\n    raise NotImplementedError("about 1 line")\n\nf'
    assert cells.cut_solution(text) == wanted


def test_taking_back_an_unedited_notebook_leaves_its_source_untouched(project, capsys):
    assert build.main(["--root", str(project), "--take", "00_sample"]) == 0
    assert "source/lessons/00_sample.py: says already" in capsys.readouterr().out
    assert (project / "source/lessons/00_sample.py").read_text() == LESSON


def test_a_notebook_edited_in_lab_goes_back_into_its_source_and_nothing_else_changes(project):
    def edit(notebook):
        notebook["cells"][2]["source"] = "1 + 5\n"
        notebook["cells"][2]["metadata"] = {"tags": ["new"], "editable": True}

    assert spoil(project, edit)
    assert build.main(["--root", str(project), "--take", "00_sample"]) == 0
    wanted = LESSON.replace("# %%\n1 + 1", '# %% tags=["new"]\n1 + 5', 1)
    assert (project / "source/lessons/00_sample.py").read_text() == wanted


def test_an_edited_solution_goes_back_into_its_lab_with_its_markers(project):
    path = project / "solutions/00_sample.ipynb"
    path.write_text(path.read_text().replace("y = 2 * x", "y = x + x"))
    assert build.main(["--root", str(project), "--take", "00_sample"]) == 0
    wanted = LAB.replace("y = 2 * x", "y = x + x")
    assert (project / "source/labs/00_sample.py").read_text() == wanted


def modules_lines_in(notebook):
    """Of each line of a module in course_lessons that outputs name: file, number and code."""
    line = re.compile(r"(\w+\.py), line (\d+), in \w+: ([^\n,]+)")
    for cell in notebook.cells:
        outputs = json.dumps(cell.get("outputs", []), ensure_ascii=False)
        text = outputs.replace("\\n", "\n").replace('\\"', '"')
        for file, number, code in line.findall(text):
            module = ROOT / "course_lessons" / file
            if module.exists():
                yield module, int(number), code


def test_outputs_name_the_lines_of_lessons_modules_as_they_are_now():
    """A module may lose a line, which otherwise only a strict run of all notebooks would notice."""
    count = 0
    for path in (ROOT / "notebooks").glob("*.ipynb"):
        notebook = nbformat.read(path, as_version=4)
        for module, number, code in modules_lines_in(notebook):
            lines = module.read_text().splitlines()
            assert code in lines[number - 1], f"{path.name}: {module.name}, line {number}"
            count += 1
    assert count >= 5
