"""Files that the tools read and compare; all text is UTF-8, whatever the machine's language is."""

import tomllib
from pathlib import Path
from typing import Any


def read_toml(path: Path) -> dict[str, Any]:
    """Returns what a TOML file says.

    Raises:
        OSError: There is no such file.
        tomllib.TOMLDecodeError: It is not TOML.
    """
    text = path.read_text(encoding="utf-8")
    return tomllib.loads(text)


def has_text(path: Path, text: str) -> bool:
    """Whether a file is there and has exactly this text."""
    return path.exists() and path.read_text(encoding="utf-8") == text
