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
    folder = parts / name
    packed = parts / f"{name}.tgz"
    if folder.exists():
        return folder
    parts.mkdir(parents=True, exist_ok=True)
    is_there = packed.exists() or _pack(package, packed)
    if not is_there:
        return None
    content = packed.read_bytes()
    digest = hashlib.sha512(content).digest()
    actual = base64.b64encode(digest).decode()
    if actual != integrity:
        raise SystemExit(f"{packed.name} is not what was published: {actual}")
    _unpack(packed, needed, folder)
    return folder


def _pack(package: str, packed: Path) -> bool:
    """Lets npm bring a package as an archive; says why where it cannot."""
    folder = packed.parent
    command = ["npm", "pack", "--silent", package]
    try:
        subprocess.run(command, cwd=folder, check=True, stdout=subprocess.DEVNULL)
    except OSError:
        why = "npm is not installed; it comes with Node.js."
    except subprocess.CalledProcessError:
        why = "npm could not fetch it; is there a network?"
    else:
        return True
    elsewhere = f"Or run `npm pack {package}` elsewhere, and put {packed.name} into {folder}"
    sentence = f"no {package}: {why} {elsewhere}"
    print(sentence, file=sys.stderr)
    return False


def _unpack(packed: Path, needed: tuple[str, ...], folder: Path) -> None:
    """Writes the files that are needed into a new folder."""
    with tarfile.open(packed) as archive:
        contents = {}
        for path in needed:
            file = archive.extractfile(f"package/{path}")  # extract(filter=) came with 3.11.4
            name = Path(path).name
            contents[name] = file.read()
    folder.mkdir()  # not before all are there
    for name, content in contents.items():
        path = folder / name
        path.write_bytes(content)
