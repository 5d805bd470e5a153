"""What those see first who have not installed anything: README's pictures, and files for a host."""

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
import yaml
from packaging.specifiers import SpecifierSet

from course_tools.site import readme_pictures, ring_picture
from course_tools.site.svg import THEMES

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
CHINESE = (ROOT / "README.zh.md").read_text(encoding="utf-8")
WORKFLOWS = sorted((ROOT / ".github/workflows").glob("*.yml"))
RING = "Figure: New on ranks 0 and 1, step 1: 22, 11; step 2: 11, 22."


def test_the_pictures_are_what_the_notebooks_say():
    there = {path.name for path in readme_pictures.TO.iterdir()}
    assert there == set(readme_pictures.drawn())
    assert readme_pictures.main(["--check"]) == 0, "make pictures"


def test_a_picture_that_is_old_is_named(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(readme_pictures, "TO", tmp_path / "pictures")
    assert readme_pictures.main([]) == 0
    assert readme_pictures.main(["--check"]) == 0
    (tmp_path / "pictures/cell_dark.svg").write_text("old")
    assert readme_pictures.main(["--check"]) == 1
    assert "cell_dark.svg: old; make pictures" in capsys.readouterr().err


def test_pictures_are_light_to_load_and_say_what_they_show():
    for path in readme_pictures.TO.iterdir():
        assert path.stat().st_size < 200_000
        picture = ElementTree.parse(path).getroot()
        assert len(picture.findtext("{http://www.w3.org/2000/svg}title").split()) > 10
        assert "http://" not in path.read_text().replace('xmlns="http://www.w3.org/2000/svg"', "")


def test_the_moving_picture_takes_ten_seconds_and_stands_still_for_who_asked():
    moving = readme_pictures.drawn()["ring_moving_light.svg"]
    seconds = set(re.findall(r"animation:\w+ ([\d.]+)s", moving))
    assert {float(second) for second in seconds} == {10.0}
    assert "prefers-reduced-motion: reduce" in moving
    assert "ring_light.svg" in README.partition('prefers-reduced-motion: reduce)"')[2]


def luminance(colour: str) -> float:
    """As WCAG 2 defines it, of #rrggbb."""
    shares = []
    for at in (1, 3, 5):
        value = int(colour[at : at + 2], 16) / 255
        shares.append(value / 12.92 if value <= 0.03928 else ((value + 0.055) / 1.055) ** 2.4)
    return 0.2126 * shares[0] + 0.7152 * shares[1] + 0.0722 * shares[2]


@pytest.mark.parametrize("theme", THEMES.values(), ids=THEMES)
def test_what_is_written_can_be_read(theme):
    pairs = [(theme.ink, below) for below in (theme.verdict, theme.part, theme.complete)]
    inks = theme.ink, theme.faint, theme.keyword, theme.text, theme.number, theme.name
    pairs += [(ink, below) for ink in inks for below in (theme.page, theme.panel)]
    for ink, below in pairs:
        darker, lighter = sorted((luminance(ink), luminance(below)))
        assert (lighter + 0.05) / (darker + 0.05) >= 4.5, (ink, below)


def test_a_ring_is_read_off_its_figure():
    states = ring_picture.read(RING)
    assert states == [[[1, 2], [10, 20]], [[1, 22], [11, 20]], [[11, 22], [11, 22]]]


@pytest.mark.parametrize(
    "figure",
    [
        "Figure: something else",
        RING.replace("22, 11;", "22, 13;"),  # nobody sent it
        RING.replace("22, 11;", "2, 1;"),  # moved on, not added
        RING.partition(";")[0],  # not done
        RING.replace("step 2: 11, 22", "step 2: 11, 20"),
    ],
)
def test_a_figure_of_no_ring_is_refused(figure):
    with pytest.raises(ValueError, match=r"no ring|cannot hold|chunk"):
        ring_picture.read(figure)


def test_a_cell_that_is_gone_and_a_line_that_is_too_long_are_refused():
    with pytest.raises(ValueError, match="0 cells of 00_start_here have the words"):
        readme_pictures.cell_with("00_start_here", "def no_such_function")
    with pytest.raises(ValueError, match="a line of 200 characters is too long"):
        readme_pictures.line_at([("x" * 200, "#000000")], 0)


@pytest.mark.parametrize("text", [README, CHINESE])
def test_each_picture_of_the_readme_has_both_themes_and_words(text):
    pictures = re.findall(r"<picture>.*?</picture>", text, re.S)
    assert len(pictures) == 3
    for picture in pictures:
        files = re.findall(r'(?:srcset|src)="([^"]+)"', picture)
        assert {file.rpartition("_")[2] for file in files} == {"light.svg", "dark.svg"}
        assert all((ROOT / file).exists() for file in files)
        assert len(re.search(r'alt="([^"]+)"', picture)[1]) > 30
    assert text is README or re.search(r'alt="[^"]*[\u4e00-\u9fff]', text)


def commands(workflow: dict) -> list[str]:
    return [
        step["run"] for job in workflow["jobs"].values() for step in job["steps"] if "run" in step
    ]


def test_workflows_call_what_there_is_on_every_python_that_is_promised():
    makefile = (ROOT / "Makefile").read_text() + (ROOT / "source/targets.mk").read_text()
    targets = set(re.findall(r"^([a-z-]+):", makefile, re.M))
    called = set()
    for path in WORKFLOWS:
        for command in commands(yaml.safe_load(path.read_text())):
            called.add(command.split()[1])
            assert command.startswith("make ")
    assert called <= targets
    assert called >= {"test", "test-all", "site", "wheel"}

    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    promised = SpecifierSet(project["requires-python"])
    wanted = [f"3.{minor}" for minor in range(30) if f"3.{minor}" in promised]
    test = yaml.safe_load((ROOT / ".github/workflows/test.yml").read_text())
    assert test["jobs"]["test"]["strategy"]["matrix"]["python"] == wanted


def test_who_cites_the_course_cites_this_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    assert (cited["version"], cited["license"]) == (project["version"], project["license"])
