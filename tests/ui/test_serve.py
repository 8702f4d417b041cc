"""The server's early start never fails, creates nothing, and keeps Streamlit's options."""

import ast
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from clew.ui import serve
from clew.ui.components import runs


def test_a_store_that_is_not_there_is_not_created(
    use: Callable[[str], None], no_store: str
) -> None:
    use(no_store)
    serve.warm_up()
    assert not Path(no_store.removeprefix("sqlite:///")).exists()


def test_a_server_that_is_down_does_not_keep_the_dashboard_from_starting(
    use: Callable[[str], None],
) -> None:
    use("http://127.0.0.1:9")
    with pytest.raises(Exception, match="does not answer"):
        runs.experiments()
    serve.warm_up()


def test_options_go_to_streamlit(
    use: Callable[[str], None], empty: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    use(empty)
    given: list[list[str]] = []
    monkeypatch.setattr(serve.cli, "main", lambda arguments, **_: given.append(arguments))
    monkeypatch.setattr(sys, "argv", ["serve", "--server.port", "8600"])
    serve.main()
    for thread in threading.enumerate():
        if thread.name == "warm-up":
            thread.join()  # it must not go on in other tests
    assert given == [["run", str(serve.APP), "--server.port", "8600"]]
    assert serve.APP.is_file()


def test_the_script_holds_no_text_that_streamlit_would_show() -> None:
    statements = ast.parse((serve.APP.parent / "app.py").read_text(encoding="utf-8")).body[1:]
    shown = [
        each
        for each in statements
        if isinstance(each, ast.Expr) and isinstance(each.value, ast.Constant)
    ]
    assert not shown
