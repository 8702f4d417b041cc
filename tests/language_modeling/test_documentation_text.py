"""The text of installed packages: the files that are read, and splits without overlap."""

import csv
from importlib.metadata import Distribution
from pathlib import Path

import pytest

from experiments.language_modeling.documentation import assemble, docstrings, is_free, split_of

LONG = "A sentence of a document that is long enough to be kept. " * 10


def package(site: Path, name: str, licence: str, files: dict[str, str]) -> Distribution:
    """Write an installed package as `pip` leaves it."""
    info = site / f"{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\nLicense: {licence}\n"
    )
    for path, text in files.items():
        (site / path).parent.mkdir(parents=True, exist_ok=True)
        (site / path).write_text(text)
    (info / "RECORD").write_text("".join(f"{path},,\n" for path in files))
    return Distribution.at(info)


def test_free_documents_go_each_into_one_split(tmp_path: Path) -> None:
    free = {f"free/m{i}.py": f'"""Module {i}. {LONG}"""\n' for i in range(60)}
    free |= {"free/same.py": free["free/m0.py"], "free/short.md": "short", "free/data.csv": LONG}
    packages = [
        package(tmp_path / "site", "free", "MIT", free),
        package(tmp_path / "site", "closed", "GPL-3.0", {"closed/a.md": LONG}),
    ]
    sizes = assemble(tmp_path / "out", packages)
    written = {
        split: {file.name for file in (tmp_path / "out" / split).iterdir()} for split in sizes
    }
    assert all(written.values())
    assert sum(map(len, written.values())) == 60
    assert len(set().union(*written.values())) == 60
    texts = [file.read_text() for file in (tmp_path / "out").rglob("*.txt")]
    assert sorted(texts) == sorted(f"Module {i}. {LONG}".strip() for i in range(60))
    assert sum(sizes.values()) == sum(map(len, texts))
    with (tmp_path / "out" / "packages.csv").open() as file:
        assert list(csv.reader(file)) == [["name", "version", "licence"], ["free", "1.0", "MIT"]]
    assert {split_of(f"free/m{i}.py") for i in range(60)} == set(sizes)


@pytest.mark.parametrize(
    ("name", "free"),
    [
        ("MIT", True),
        ("License :: OSI Approved :: BSD License", True),
        ("Apache-2.0 OR BSD-3-Clause", True),
        ("MPL-2.0 AND MIT", False),
        ("GNU Lesser General Public License", False),
        ("Permitted by nobody", False),
        ("", False),
    ],
)
def test_licences(name: str, free: bool) -> None:
    assert is_free(name) is free


def test_docstrings_in_order_and_none_of_broken_code() -> None:
    code = '"""First."""\n\nclass A:\n    """Second."""\n\n    def f(self):\n        """Third."""\n'
    assert docstrings(code) == "First.\n\nSecond.\n\nThird."
    assert docstrings("def (") == ""
