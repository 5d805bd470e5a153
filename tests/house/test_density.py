"""How densely the code is written: counted rightly, and not denser than it was."""

import pytest

from course_tools.quality import architecture, density

PLAIN = '''
"""A docstring,
on two lines."""

# a comment


def area(width, height):
    """One more."""
    return width * height
'''


def test_no_package_is_denser_than_it_may_be():
    assert list(density.problems()) == []


def test_docstrings_comments_and_blank_lines_are_no_code():
    counted = density.count(PLAIN)
    assert counted.lines == 2
    assert counted.names == 3  # area, width, height
    assert (counted.walruses, counted.foldings, counted.vague_names) == (0, 0, 0)


@pytest.mark.parametrize(
    ("line", "field"),
    [
        ("if (size := len(names)) > 2: pass", "walruses"),
        ("sizes = [len(name) for name in names]", "foldings"),
        ("sizes = {len(name) for name in names}", "foldings"),
        ("sizes = {name: len(name) for name in names}", "foldings"),
        ("total = sum(len(name) for name in names)", "foldings"),
        ("size = 1 if names else 0", "foldings"),
        ("told = 3", "vague_names"),
        ("def own(): pass", "vague_names"),
        ("def area(what): pass", "vague_names"),
    ],
)
def test_what_folds_a_statement_and_what_says_nothing_is_counted(line, field):
    assert getattr(density.count(PLAIN), field) == 0
    assert getattr(density.count(PLAIN + line), field) == 1


def test_two_thoughts_on_a_line_are_denser_than_one():
    one_line = density.count("print(sum([1, 2]), max([3, 4]))")
    four_lines = density.count("low = [1, 2]\nhigh = [3, 4]\nprint(sum(low))\nprint(max(high))")
    assert one_line.nodes_per_line > 2 * four_lines.nodes_per_line


def test_a_package_that_is_too_dense_is_named_with_its_figure(tmp_path, monkeypatch):
    monkeypatch.setattr(density, "LIMITS", {"dense": density.Limit(3.0, 0.0, 0.0, 0.0)})
    (tmp_path / "dense").mkdir()
    (tmp_path / "dense" / "module.py").write_text("told = [n for n in (k := [1, 2])]\n")
    complaints = list(density.problems(tmp_path))
    assert len(complaints) == 4
    assert "dense: walruses_per_1000_lines is 1000.000, at most 0.0" in complaints


@pytest.fixture
def package_of_three_nodes_a_line(tmp_path):
    """The folder of a package `plain`: two assignments of three nodes each, on two lines."""
    package = tmp_path / "plain"
    package.mkdir()
    (package / "module.py").write_text("a = 1\nb = 2\n")
    return tmp_path


@pytest.mark.parametrize(
    ("limit", "complaint"),
    [
        (3.0, []),
        (3.15, []),
        (2.96, ["plain: nodes_per_line is 3.000, at most 2.96"]),  # rounded, they would be equal
        (3.3, ["plain: nodes_per_line is only 3.000, so 3.3 is too high a limit"]),
    ],
)
def test_a_figure_is_not_rounded_and_its_limit_is_near(
    limit, complaint, package_of_three_nodes_a_line, monkeypatch
):
    monkeypatch.setattr(density, "LIMITS", {"plain": density.Limit(limit, 0.0, 0.0, 0.0)})
    assert list(density.problems(package_of_three_nodes_a_line)) == complaint


def test_both_measures_count_the_same_nodes(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(PLAIN)
    assert density.count(PLAIN).nodes == architecture.nodes(file)


def test_the_densest_functions_are_listed_first(tmp_path):
    package = tmp_path / "package"
    package.mkdir()
    dense = "def dense():\n" + "    print(sum(range(len(str(max(1, 2))))))\n" * 5
    plain = "def plain():\n" + "    pass\n" * 5
    (package / "module.py").write_text(plain + dense)
    places = [place for _, place in density.densest_functions(package)]
    assert places == ["package/module.py:7 dense", "package/module.py:1 plain"]
