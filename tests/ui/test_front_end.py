"""The browser gets early hints of the front end's parts, which exist and are complete."""

import re

from clew.ui import guarded


def test_every_part_and_all_that_it_imports_is_named_once() -> None:
    folder = guarded.ROOT / guarded.SCRIPTS
    found = list(guarded.scripts())
    assert len(found) == len(set(found))
    assert all((folder / name).is_file() for name in found)
    for part in guarded.PARTS:
        assert any(re.fullmatch(rf"{part}\..+\.js", name) for name in found), part
    already = (guarded.ROOT / "index.html").read_text("utf-8")
    for name in found:
        assert name not in already
        for other in guarded.IMPORTED.findall((folder / name).read_text("utf-8")):
            assert other in found or other in already, f"{other}, which {name} imports"


def test_the_header_names_the_largest_parts() -> None:
    named = re.findall(r"<\./static/js/([^>]+)>", guarded.link_header())
    sizes = {
        name: (guarded.ROOT / guarded.SCRIPTS / name).stat().st_size for name in guarded.scripts()
    }
    left_out = [size for name, size in sizes.items() if name not in named]
    assert min(sizes[name] for name in named) >= max(left_out, default=0)
    assert len(guarded.link_header()) <= guarded.MOST_BYTES
