"""The browser hears early of the front end's parts: they are there, and whole."""

import re

from clew.ui import front_end


def test_every_part_and_all_that_it_imports_is_named_once() -> None:
    folder = front_end.ROOT / front_end.SCRIPTS
    found = list(front_end.scripts())
    assert len(found) == len(set(found))
    assert all((folder / name).is_file() for name in found)
    for part in front_end.PARTS:
        assert any(re.fullmatch(rf"{part}\..+\.js", name) for name in found), part
    already = (front_end.ROOT / "index.html").read_text("utf-8")
    for name in found:
        assert name not in already
        for other in front_end.IMPORTED.findall((folder / name).read_text("utf-8")):
            assert other in found or other in already, f"{other}, which {name} imports"
