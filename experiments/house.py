"""Counts files, lines and folders of the product, tests and documents.

    python -m experiments.house

Only files that git knows are counted. Words are those of Markdown documents that people write.
"""

import subprocess
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
COPIED = ("docs/reference/", "docs/measurements/", "tests/workflows/guides/")


def known(*patterns: str) -> list[Path]:
    """Return the files of some patterns that git knows."""
    command = ["git", "-C", str(ROOT), "ls-files", "--", *patterns]
    names = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split("\n")
    return [ROOT / name for name in names if name]


def lines(files: list[Path]) -> int:
    """Return the number of lines of some files."""
    return sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def main() -> None:
    """Print the counts."""
    product, tests = known("platform/*.py", "ui/*.py"), known("tests/*.py")
    print(f"platform and ui: {len(product)} files, {lines(product):,} lines")
    print(f"tests: {len(tests)} files, {lines(tests):,} lines")
    folders = Counter(str(file.parent.relative_to(ROOT)) for file in product)
    print(f"folders with Python files: {len(folders)}")
    for folder, count in sorted(folders.items()):
        print(f"  {folder}: {count} files, {lines(list((ROOT / folder).glob('*.py'))):,} lines")
    documents = [
        file for file in known("*.md") if not str(file.relative_to(ROOT)).startswith(COPIED)
    ]
    words = sum(len(file.read_text(encoding="utf-8").split()) for file in documents)
    print(f"documents written by hand: {len(documents)} files, {words:,} words")


if __name__ == "__main__":
    main()
