"""The audit finds problems of installed packages; the bill of materials lists every package."""

import hashlib
import importlib.util
import json
from base64 import urlsafe_b64encode
from collections.abc import Callable
from importlib import metadata
from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def supply_chain(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("supply_chain", root / ".ci/supply_chain.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Path]:
    """Install packages with one file each in a folder that is first on the path."""
    site = tmp_path / "site"
    site.mkdir()
    monkeypatch.syspath_prepend(site)

    def install(name: str, version: str, *needs: str, license: str = "MIT") -> Path:
        module = site / f"{name}.py"
        module.write_text(f"NAME = {name!r}\n")
        digest = urlsafe_b64encode(hashlib.sha256(module.read_bytes()).digest()).rstrip(b"=")
        info = site / f"{name}-{version}.dist-info"
        info.mkdir()
        lines = ["Metadata-Version: 2.4", f"Name: {name}", f"Version: {version}"]
        lines += [f"License-Expression: {license}", *(f"Requires-Dist: {need}" for need in needs)]
        (info / "METADATA").write_text("\n".join(lines) + "\n")
        (info / "RECORD").write_text(
            f"{name}.py,sha256={digest.decode()},{module.stat().st_size}\n"
        )
        return module

    return install


@pytest.fixture
def installed(supply_chain: ModuleType, install: Callable[..., Path]) -> Callable[[], list[str]]:
    """Audit a project with two packages instead of Clew, and return the problems."""
    install("thread", "0.1", "spindle>=1", "distaff; extra == 'fancy'")
    install("distaff", "7.0")
    versions = {"spindle": "1.5", "wheelwright": "2.0"}
    supply_chain.PROJECT = "thread"
    return lambda: [*supply_chain.unpinned(versions), *supply_chain.changed_files()]


def test_what_is_installed_as_pinned_passes(
    install: Callable[..., Path], installed: Callable[[], list[str]]
) -> None:
    install("spindle", "1.5+cpu", "wheelwright")
    install("wheelwright", "2.0")
    assert installed() == []


def test_another_version_or_an_unknown_package_is_named(
    install: Callable[..., Path], installed: Callable[[], list[str]]
) -> None:
    install("spindle", "1.6", "stranger")
    install("stranger", "3.0")
    assert installed() == [
        "spindle 1.6 is installed, constraints.txt pins 1.5",
        "stranger 3.0 is installed, constraints.txt pins no version",
    ]


def test_a_file_that_was_changed_or_removed_is_named(
    install: Callable[..., Path], installed: Callable[[], list[str]]
) -> None:
    changed = install("spindle", "1.5", "wheelwright")
    gone = install("wheelwright", "2.0")
    changed.write_text("import os\n")
    gone.unlink()
    assert installed() == [
        f"spindle: {changed} was changed since it was installed; install it again",
        f"wheelwright: {gone} is missing; install it again",
    ]


def test_the_bill_lists_every_package_that_is_needed(
    supply_chain: ModuleType, install: Callable[..., Path], tmp_path: Path
) -> None:
    install("thread", "0.1", "spindle>=1", "distaff; extra == 'fancy'")
    install("spindle", "1.5+cpu", "wheelwright", license="Apache-2.0")
    install("wheelwright", "2.0")
    install("distaff", "7.0")
    supply_chain.PROJECT = "thread"
    wheel = tmp_path / "thread-0.1-py3-none-any.whl"
    wheel.write_bytes(b"a wheel")
    assert supply_chain.main(["bill", str(wheel)]) == 0
    bill = json.loads((tmp_path / "thread-0.1-py3-none-any.cdx.json").read_text())
    assert (bill["bomFormat"], bill["specVersion"]) == ("CycloneDX", "1.6")
    own = bill["metadata"]["component"]
    assert own["hashes"] == [{"alg": "SHA-256", "content": hashlib.sha256(b"a wheel").hexdigest()}]
    assert [c["purl"] for c in bill["components"]] == [
        "pkg:pypi/spindle@1.5",
        "pkg:pypi/wheelwright@2.0",
    ]
    assert bill["components"][0]["licenses"] == [{"expression": "Apache-2.0"}]
    assert bill["dependencies"][:2] == [
        {"ref": "pkg:pypi/thread@0.1", "dependsOn": ["pkg:pypi/spindle@1.5"]},
        {"ref": "pkg:pypi/spindle@1.5", "dependsOn": ["pkg:pypi/wheelwright@2.0"]},
    ]
    assert metadata.version("distaff") == "7.0"  # installed but not needed


def test_pins_are_read_with_their_markers(
    supply_chain: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "constraints.txt"
    path.write_text("# a==1\nPy_Yaml==6.0\ntriton==3.5 ; sys_platform == 'linux'\nb==1 --hash=x\n")
    monkeypatch.setattr(supply_chain, "CONSTRAINTS", path)
    assert supply_chain.pins() == {"py-yaml": "6.0", "triton": "3.5", "b": "1"}
