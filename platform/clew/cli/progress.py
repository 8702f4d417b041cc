"""How a command shows that it is at work."""

import json
from collections.abc import Callable

import click

from clew.cli.options import is_main_process


def progress_bar(unit: str, *, as_json: bool) -> Callable[[int, int], None]:
    """Return a function that shows progress: a bar on a terminal, or one JSON object per line."""
    from tqdm import tqdm

    is_main = is_main_process()
    silent = True if as_json or not is_main else None
    bar = tqdm(unit=f" {unit}", delay=1.0, disable=silent, leave=False)

    def show(done: int, total: int) -> None:
        if not is_main:
            return
        if as_json:
            click.echo(json.dumps({"done": done, "total": total}))
        bar.total = total
        bar.update(done - bar.n)
        if done == total:
            bar.close()

    return show
