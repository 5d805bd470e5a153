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
COUNTED = ("display_data", "error")  # kinds of outputs; all others are left out


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
        file = f"{names['notebook']}.ipynb"
        path = Path(self.source, names["assignment"], file)
        teachers = nbformat.read(path, as_version=4)
        run = compose(teachers, nb)
        with TemporaryDirectory() as folder:  # a course_utils.py in the submission stays unread
            elsewhere = {**resources, "metadata": {"path": folder}}
            try:
                super().preprocess(run, elsewhere, **options)
            except DeadKernelError:
                self.log.error("the kernel died: what it had not reached gets no points")
        ran = {}
        for cell in run.cells:
            grade_id = identity(cell)
            ran[grade_id] = cell
        for cell in nb.cells:
            if cell.cell_type == "code":
                grade_id = identity(cell)
                cell.outputs = shown(cell, ran.get(grade_id))
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
            grade_id = identity(cell)
            code[grade_id] = cell
    lab_cells = [for_the_judge(cell, cell.id) for cell in code.values()]
    learners_cells = notebook_of(learners)
    submission = written(learners_cells, lab_cells)
    begin = nbformat.v4.new_code_cell(BEGIN)
    cells = [begin]
    for lab_cell in submission.cells:
        name = lab_cell["name"]
        cell = code.get(name)
        if cell is None:  # a cell of the learner's, which an answer may use
            cell = nbformat.v4.new_code_cell()
        if lab_cell["kind"] == "answer":
            cell.source = ANSWER.format(
                label=name,
                text=lab_cell["text"],
                functions=lab_cell["functions"],
                values=lab_cell["values"],
            )
        cells.append(cell)
    return nbformat.v4.new_notebook(cells=cells, metadata=notebook.metadata)


def shown(cell: NotebookNode, ran: NotebookNode | None) -> list[NotebookNode]:
    """Return a cell's outputs. To nbgrader no output is full marks, a result or warning is not."""
    outputs = []
    has_come_to_its_end = False
    ran_outputs = []
    if ran:
        ran_outputs = ran.outputs
    for output in ran_outputs:
        if output.output_type not in COUNTED:
            continue
        outputs.append(output)
        if output.output_type == "error" or output.metadata == PROOF:
            has_come_to_its_end = True
    metadata = cell.metadata.get("nbgrader", {})
    if metadata.get("grade") and not has_come_to_its_end:
        error = nbformat.v4.new_output("error", ename="NoPoints", evalue=UNDONE, traceback=[])
        outputs.append(error)
    return outputs


def configure(config: Any, folder: Path) -> None:
    """What the nbgrader_config.py of a folder says."""
    source = folder / "source"
    config.CourseDirectory.root = str(folder)
    config.Sealed.source = str(source)
    config.Sealed.timeout = 300  # seconds for a cell; check has shorter deadlines of its own
    generating = _with(Cut, ClearSolutions, GenerateAssignment.preprocessors)
    config.GenerateAssignment.preprocessors = generating
    grading = _with(Sealed, Execute, Autograde.autograde_preprocessors)
    config.Autograde.autograde_preprocessors = grading


def _with(substitute: type, original: type, preprocessors: Any) -> list[type]:
    """A converter's usual preprocessors, with a substitute for one of nbgrader's."""
    chosen = []
    for preprocessor in preprocessors.default():
        if preprocessor is original:
            preprocessor = substitute
        chosen.append(preprocessor)
    return chosen
