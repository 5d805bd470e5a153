"""Puts lessons and labs into a wheel, where `course_tools.ROOT` finds them.

All else stands in pyproject.toml. An editable installation needs none of this: it uses the
checkout's own folders.
"""

import shutil
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py

# What is copied for learners, what answers are graded by, and what Chinese is made of.
FOLDERS = ("notebooks", "exercises", "solutions", "source/labs", "source/zh")
FILES = ("source/articles.toml", "source/devices.toml", "constraints.txt", "pyproject.toml")
# The Chinese notebooks are made when they are copied.
LEFT = shutil.ignore_patterns("zh", "__pycache__", ".ipynb_checkpoints")


class BuildWithLessons(build_py):
    """As setuptools builds, and then the course's files beside its tools."""

    def run(self) -> None:
        """Builds in an empty folder: what an earlier build left there would be packed too."""
        if self.editable_mode:
            super().run()
            return
        shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()
        files = Path(self.build_lib, "course_tools", "files")
        for name in FOLDERS:
            source = Path(name)
            left = None if name == "source/zh" else LEFT
            shutil.copytree(source, files / name, ignore=left)
        for name in FILES:
            shutil.copy(name, files / name)


setup(cmdclass={"build_py": BuildWithLessons})
