"""Variants of exercises: each learner's own, from one source, by a secret of the teacher's.

`source/variants/NN_slug.toml` says for an exercise of a lab in what each variant differs: a
sentence for the learner, and what is replaced in the exercise's part of the lab's source, in its
specification and in its solution. Which one a learner gets follows from the secret, the learner's
name, the lab and the exercise; so it need not be written down, and nobody else can know it.
"""

import hashlib
import hmac
import os
import re
import secrets
import tomllib
from collections.abc import Mapping
from pathlib import Path

from cells import BuildError

SECRET = "secret"  # its file, in the teacher's folder
YOURS = "# **Yours is a variant:** {} Tables and hints show the published exercise.\n"


def known(root: Path, slug: str) -> dict[str, dict[str, dict]]:
    """By exercise and name, the variants of a lab; empty where there are none."""
    path = root / "source/variants" / f"{slug}.toml"
    return tomllib.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def secret(folder: Path, make: bool = False) -> bytes | None:
    """The teacher's secret; None where learners have no variants."""
    path = folder / SECRET
    if make and not path.exists():
        with os.fdopen(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(secrets.token_hex(16))
    return path.read_bytes().strip() if path.exists() else None


def picked(root: Path, slug: str, who: str, key: bytes) -> dict[str, str]:
    """By exercise, the name of a learner's variant."""
    found = {}
    for exercise, variants in known(root, slug).items():
        word = f"{who}\n{slug}\n{exercise}".encode()
        number = int.from_bytes(hmac.digest(key, word, hashlib.sha256)[:8], "big")
        found[exercise] = sorted(variants)[number % len(variants)]
    return found


def varied(root: Path, slug: str, text: str, picks: Mapping[str, str]) -> str:
    """A lab's source with these variants in it.

    Raises:
        BuildError: The source has no longer what a variant replaces.
    """
    variants = known(root, slug)
    parts = re.split(r"(?m)^(?=# %% \[markdown\]\n# ## )", text)
    for exercise, name in picks.items():
        own, answer = variants[exercise][name], rf"(?m)^(def|class) {exercise}\b"
        (number,) = [n for n, part in enumerate(parts) if re.search(answer, part)]
        for old, new in own["change"]:
            if old not in parts[number]:
                raise BuildError(f"{slug}: {exercise} has no longer what {name} replaces: {old}")
            parts[number] = parts[number].replace(old, new)
        head, rest = parts[number].split("\n\n", 1)
        parts[number] = f"{head}\n#\n{YOURS.format(own['yours'])}\n{rest}"
    return "".join(parts)
