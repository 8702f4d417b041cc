"""No file of the project contains local paths, the history of a text, or pickles."""

import re
from pathlib import Path

import pytest

# Words that are meaningful only on one machine or to one author.
FOREIGN = {
    "a folder beside the project": re.compile(r"\.\./shared"),
    "an absolute path of one machine": re.compile(r"(?<![\w.)])/(work|root|home|opt)/\w"),
    "an issue number without its repository": re.compile(r"\bissues? (#\s?)?\d", re.IGNORECASE),
    "talk of how the text came about": re.compile(
        r"\b(this|previous|next|earlier|another) session\b", re.IGNORECASE
    ),
    # Ruff bans the modules, but does not see these uses.
    "a pickle": re.compile(r"allow_pickle=True|weights_only=False|\.to_pickle\("),
}
MAY_NAME = {
    "a folder beside the project": {".ci/run"},
    "a pickle": {"tests/image_sequences/test_malformed_files.py", "tests/attack/test_frames.py"},
}


@pytest.mark.parametrize("what", FOREIGN)
def test_no_file_names(root: Path, project_files: list[Path], what: str) -> None:
    found = []
    for path in project_files:
        name = str(path.relative_to(root))
        if path.suffix in {".parquet", ".gz", ".zst", ".png", ".svg"} or path == Path(__file__):
            continue
        if name in MAY_NAME.get(what, set()) or "bundled" in path.parts:
            continue
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
            if FOREIGN[what].search(line):
                found.append(f"{name}:{number}: {line.strip()[:100]}")
    assert found == []


def test_the_text_scan_sees_what_it_looks_for() -> None:
    samples = [
        "a ../shared/data",
        "run /work/main",
        "see issue 12",
        "the next session will",
        "np.load(path, allow_pickle=True)",
    ]
    for pattern, sample in zip(FOREIGN.values(), samples, strict=True):
        assert pattern.search(sample)
