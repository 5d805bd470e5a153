"""Files of a package that npm publishes: fetched once, refused if they are not what is pinned."""

import base64
import hashlib
import subprocess
import sys
import tarfile
from pathlib import Path


def fetched(parts: Path, package: str, integrity: str, needed: tuple[str, ...]) -> Path | None:
    """Returns a folder with files of a package; None, after a sentence, where npm cannot bring it.

    Args:
        parts: Where packages are kept.
        package: Its name and version, as in `pyodide@1.2.3`.
        integrity: The sha512 that npm publishes, without its name.
        needed: The files to unpack, as they are called in the package; they lie side by side then.
    """
    name = package.replace("@", "-")
    folder, packed = parts / name, parts / f"{name}.tgz"
    if folder.exists():
        return folder
    parts.mkdir(parents=True, exist_ok=True)
    if not packed.exists():
        command = ["npm", "pack", "--silent", package]
        try:
            subprocess.run(command, cwd=parts, check=True, stdout=subprocess.DEVNULL)
        except (OSError, subprocess.CalledProcessError) as error:
            print(f"no {package} ({error})", file=sys.stderr)
            return None
    digest = hashlib.sha512(packed.read_bytes()).digest()
    actual = base64.b64encode(digest).decode()
    if actual != integrity:
        raise SystemExit(f"{packed.name} is not what was published: {actual}")
    with tarfile.open(packed) as archive:
        for path in needed:
            member = archive.getmember(f"package/{path}")
            member.name = Path(path).name
            archive.extract(member, folder, filter="data")
    return folder
