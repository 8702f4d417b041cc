"""Checkpoints that a test changes on purpose, with the digests of what they hold now."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from safetensors.torch import load_file, save_file
from torch import Tensor

from clew.training.manifest import MANIFEST_FILE, MODEL_FILE, sha256, sha256_of_content


def edit_manifest(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of a checkpoint, whose other files may have changed before."""
    path = folder / MANIFEST_FILE
    content = json.loads(path.read_text(encoding="utf-8"))
    files = (each for each in folder.iterdir() if each.is_file() and each != path)
    content["sha256"] = {each.name: sha256(each) for each in files}
    change(content)
    path.write_text(json.dumps(with_digest(content)), encoding="utf-8")


def with_digest(manifest: dict[str, Any]) -> dict[str, Any]:
    """Return a manifest with the digest of what it says, if it has digests."""
    digests = manifest.get("sha256")
    if not isinstance(digests, dict):
        return manifest
    others = {name: digest for name, digest in digests.items() if name != MANIFEST_FILE}
    own = {MANIFEST_FILE: sha256_of_content(manifest | {"sha256": others})}
    return manifest | {"sha256": others | own}


def with_digest_if_read(content: bytes) -> bytes:
    """Return the bytes of a manifest with the digest of what they say, if they can be read."""
    try:
        return json.dumps(with_digest(json.loads(content))).encode()
    except (ValueError, TypeError, AttributeError, RecursionError):
        return content


def edit_weights(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    """Change the tensors of a checkpoint's model in place."""
    tensors = load_file(folder / MODEL_FILE)
    change(tensors)
    save_file(tensors, folder / MODEL_FILE)
    edit_manifest(folder, lambda manifest: None)
