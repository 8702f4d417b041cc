"""What the child of `clew.untrusted` does for the tests of its limits."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa


def answer(**request: Any) -> pa.Table:
    """Do what a test wants."""
    match request["want"]:
        case "environment":
            return pa.table({"name": list(os.environ)})
        case "memory":
            np.ones(request["mib"] * 2**20, np.uint8)
        case "time":
            while True:
                pass
        case "write":
            Path(request["path"]).write_text("x" * 10_000)
        case "death":
            os._exit(0)
        case "large answer":
            return pa.table({"zeros": np.zeros(2**25)})
    return pa.table({"done": [request["want"]]})
