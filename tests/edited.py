"""Checkpoints that a test changes on purpose: without digests, as older versions wrote them."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from clew.training.manifest import MANIFEST_FILE, MODEL_FILE


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint."""
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_text(encoding="utf-8"))
    content.pop("sha256", None)
    change(content)
    path.write_text(json.dumps(content), encoding="utf-8")


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a checkpoint's model in place."""
    tensors = load_file(folder / MODEL_FILE)
    change(tensors)
    save_file(tensors, folder / MODEL_FILE)
    edit_manifest(folder, lambda manifest: None)
