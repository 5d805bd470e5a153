"""What nbgrader does otherwise for this course, in the folders that `handout` makes."""

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import nbformat
from nbclient.exceptions import DeadKernelError
from nbformat import NotebookNode
from nbgrader.converters import Autograde, GenerateAssignment
from nbgrader.preprocessors import ClearSolutions, Execute
from traitlets import Unicode

from course_tools.grading.answers_as_text import PROOF
from course_tools.grading.learner_cells import for_the_judge, notebook_of, written
from course_tools.notebooks.cells import cut_solution

BEGIN = """\
from course_tools.grading.answers_as_text import begin
begin(globals())"""
ANSWER = """\
from course_tools.grading.answers_as_text import answer as _answer
_answer({label!r}, {text!r}, {functions!r}, {values!r})"""
UNDONE = "the check did not come to its end"


class Cut(ClearSolutions):
    """Cuts solutions as this course does: each stub says about how many lines are wanted."""

    def preprocess_cell(
        self, cell: NotebookNode, resources: Any, cell_index: int
    ) -> tuple[NotebookNode, Any]:
        """Cut one cell."""
        if cell.cell_type == "code":
            cell.source = cut_solution(cell.source)
        return cell, resources


class Sealed(Execute):
    """Runs the teacher's notebook with the learner's answers in it, which only ranks run.

    Of a submission only the text of its answer cells counts: no other cell, not their order, and no
    file beside the notebook.
    """

    source = Unicode(help="nbgrader's source folder").tag(config=True)

    def preprocess(
        self, nb: NotebookNode, resources: Any, **options: Any
    ) -> tuple[NotebookNode, Any]:
        """Run, and put what the cells show into the submission."""
        names = resources["nbgrader"]
        path = Path(self.source, names["assignment"], f"{names['notebook']}.ipynb")
        teachers = nbformat.read(path, as_version=4)
        run = compose(teachers, nb)
        with TemporaryDirectory() as folder:  # a course_utils.py in the submission stays unread
            elsewhere = {**resources, "metadata": {"path": folder}}
            try:
                super().preprocess(run, elsewhere, **options)
            except DeadKernelError:
                self.log.error("the kernel died: what it had not reached gets no points")
        ran = {identity(cell): cell for cell in run.cells}
        for cell in nb.cells:
            if cell.cell_type == "code":
                ran_cell = ran.get(identity(cell))
                cell.outputs = shown(cell, ran_cell)
        return nb, resources


def identity(cell: NotebookNode) -> str | None:
    """A cell's name in the gradebook."""
    metadata = cell.metadata.get("nbgrader", {})
    return metadata.get("grade_id")


def compose(notebook: NotebookNode, learners: NotebookNode) -> NotebookNode:
    """Return the notebook to run: the teacher's, where what a learner wrote is text."""
    code = {}
    for cell in notebook.cells:
        if cell.cell_type == "code":
            code[identity(cell)] = cell
    lab_cells = [for_the_judge(cell, cell.id) for cell in code.values()]
    cells = [nbformat.v4.new_code_cell(BEGIN)]
    for asked in written(notebook_of(learners), lab_cells).cells:
        cell = code.get(asked["name"], nbformat.v4.new_code_cell())
        if asked["kind"] == "answer":
            names = {"functions": asked["functions"], "values": asked["values"]}
            cell.source = ANSWER.format(label=asked["name"], text=asked["text"], **names)
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def shown(cell: NotebookNode, ran: NotebookNode | None) -> list[NotebookNode]:
    """Return a cell's outputs. To nbgrader no output is full marks, a result or warning is not."""
    outputs = []
    has_come_to_its_end = False
    for output in ran.outputs if ran else ():
        kind = output.output_type
        if kind not in ("display_data", "error"):
            continue
        outputs.append(output)
        if kind == "error" or output.metadata == PROOF:
            has_come_to_its_end = True
    metadata = cell.metadata.get("nbgrader", {})
    if metadata.get("grade") and not has_come_to_its_end:
        error = nbformat.v4.new_output("error", ename="NoPoints", evalue=UNDONE, traceback=[])
        outputs.append(error)
    return outputs


def configure(config: Any, folder: Path) -> None:
    """What the nbgrader_config.py of a folder says."""
    config.CourseDirectory.root = str(folder)
    config.Sealed.source = str(folder / "source")
    config.Sealed.timeout = 300  # seconds for a cell; check has shorter deadlines of its own
    generating = _with(Cut, ClearSolutions, GenerateAssignment.preprocessors)
    config.GenerateAssignment.preprocessors = generating
    grading = _with(Sealed, Execute, Autograde.autograde_preprocessors)
    config.Autograde.autograde_preprocessors = grading


def _with(ours: type, nbgraders: type, preprocessors: Any) -> list[type]:
    """A converter's usual preprocessors, where one of ours takes the place of nbgrader's."""
    usual = preprocessors.default()
    return [ours if preprocessor is nbgraders else preprocessor for preprocessor in usual]
