"""Collects the documentation of the installed Python packages as a text corpus.

    python -m experiments.language_modeling.documentation FOLDER

The docstrings of a module are one document, and so is each Markdown or reStructuredText file. Only
packages whose licence permits distribution are read; `packages.csv` lists them with version and
licence. The hash of a document's name decides whether it goes into the folder `train`, `valid` or
`test`. Duplicates and texts below 500 bytes are left out.
"""

import ast
import csv
import hashlib
import sys
import warnings
from collections.abc import Iterable, Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

from tqdm import tqdm

FREE_LICENCES = ("apache", "bsd", "isc", "mit", "psf", "python software foundation")
MARKUP = (".md", ".rst")
SMALLEST_BYTES = 500
LARGEST_CODE_BYTES = 2**20
TENTH = 26
"""A tenth of the 256 values of a byte."""
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def licence(package: Distribution) -> str:
    """Return the licence that a package's metadata states, as one line."""
    said = package.metadata
    classifiers = [c for c in said.get_all("Classifier") or [] if c.startswith("License ::")]
    expressions, licences = (said.get_all(key) or [] for key in ("License-Expression", "License"))
    texts = (text.strip() for text in [*expressions, *classifiers, *licences])
    return next((text.splitlines()[0] for text in texts if text), "")


def is_free(name: str) -> bool:
    """Return whether a licence permits distribution if its notice is included."""
    words = name.lower().replace("-", " ").replace("(", " ").replace(")", " ").split()
    text = " ".join(words)
    copyleft = any(word in text for word in ("gpl", "gnu", "mpl", "mozilla"))
    return not copyleft and any(f" {free} " in f" {text} " for free in FREE_LICENCES)


def docstrings(code: str) -> str:
    """Return the docstrings of a module as one text, or an empty text if it does not parse."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # such as invalid escapes in the parsed code
            tree = ast.parse(code)
    except (SyntaxError, ValueError, RecursionError):
        return ""
    found = (ast.get_docstring(node) for node in ast.walk(tree) if isinstance(node, DOCUMENTED))
    return "\n\n".join(text.strip() for text in found if text)


def documents(package: Distribution) -> Iterator[tuple[str, str]]:
    """Yield the name and text of each document of a package, sorted by name."""
    for file in sorted(package.files or [], key=str):
        path = Path(str(package.locate_file(file)))
        if path.suffix not in (*MARKUP, ".py") or not path.is_file():
            continue
        content = path.read_bytes()
        if path.suffix == ".py" and len(content) > LARGEST_CODE_BYTES:
            continue
        text = content.decode("utf-8", errors="ignore").replace("\r\n", "\n").strip()
        yield str(file), docstrings(text) if path.suffix == ".py" else text


def split_of(name: str) -> str:
    """Return the split of a document. Validation and test get a tenth of the documents each."""
    first = hashlib.sha256(name.encode()).digest()[0]
    return "test" if first < TENTH else "valid" if first < 2 * TENTH else "train"


def assemble(folder: Path, packages: Iterable[Distribution]) -> dict[str, int]:
    """Write all documents and the list of packages, and return the bytes of each split."""
    seen: set[bytes] = set()
    sizes = dict.fromkeys(("train", "valid", "test"), 0)
    for split in sizes:
        (folder / split).mkdir(parents=True, exist_ok=True)
    rows = []
    ordered = sorted(packages, key=lambda package: package.metadata["Name"].lower())
    for package in tqdm(ordered, desc="packages"):
        if not is_free(licence(package)):
            continue
        rows.append((package.metadata["Name"], package.version, licence(package)))
        for name, text in documents(package):
            content = text.encode()
            digest = hashlib.sha256(content).digest()
            if len(content) < SMALLEST_BYTES or digest in seen:
                continue
            seen.add(digest)
            split = split_of(name)
            (folder / split / f"{name.replace('/', '_')[-200:]}.txt").write_bytes(content)
            sizes[split] += len(content)
    with (folder / "packages.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([("name", "version", "licence"), *rows])
    return sizes


if __name__ == "__main__":
    print(assemble(Path(sys.argv[1]), distributions()))
