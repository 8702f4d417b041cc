"""pyproject.toml, constraints.txt, conda.yaml, python_env.yaml and the image's Dockerfile agree."""

import importlib.util
import re
import sys
import tomllib
from collections.abc import Collection, Iterator
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from types import ModuleType
from typing import Any
from urllib.parse import unquote

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.tags import sys_tags
from packaging.utils import canonicalize_name, parse_wheel_filename
from packaging.version import Version


@pytest.fixture(scope="module")
def image(root: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(
        "image_requirements", root / ".ci/image_requirements.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def declared(root: Path) -> dict[str, Any]:
    return dict(tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"])


@pytest.fixture(scope="module")
def pins(root: Path) -> dict[str, str]:
    lines = (root / "constraints.txt").read_text(encoding="utf-8").splitlines()
    entries = [line for line in lines if line and not line.startswith("#")]
    found = {}
    for entry in entries:
        name, separator, version = entry.partition("==")
        assert separator, f"{entry!r} is no exact pin"
        assert str(Version(version)) == version, entry
        assert Version(version).local is None, f"{entry!r} names one build"
        found[canonicalize_name(name)] = version
    assert len(found) == len(entries)
    return found


def test_hashes_are_of_the_pinned_versions(
    root: Path, image: ModuleType, pins: dict[str, str]
) -> None:
    """`make lock` writes these files; they have the pinned packages and torch's CUDA packages."""
    text = (root / "requirements.txt").read_text(encoding="utf-8")
    entries = re.findall(
        r"^([\w.-]+)==(\S+) [^\n]*\\\n((?: +--hash=sha256:\w{64}.*\n)+)", text, re.M
    )
    assert len(entries) == len(re.findall(r"^\w", text, re.M)), "a package has no hash"
    locked = {canonicalize_name(name): version for name, version, _ in entries}
    assert {name: locked.get(name) for name in pins} == pins, "run make lock"
    assert all(name.startswith(image.GPU_LIBRARIES) for name in set(locked) - set(pins))


def test_uv_and_pip_install_the_same_files(root: Path) -> None:
    """`uv sync` reads uv.lock, and `pip install --require-hashes` reads requirements.txt."""
    lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))
    of_uv = {
        f"{package['name']}=={package['version']}": {
            file["hash"] for file in [*package.get("wheels", []), package.get("sdist")] if file
        }
        for package in lock["package"]
        if "version" in package
    }
    text = (root / "requirements.txt").read_text(encoding="utf-8")
    entries = re.findall(r"^([\w.-]+==\S+) ((?:.|\n(?= ))+)", text, re.M)
    of_pip = {name: set(re.findall(r"sha256:\w{64}", files)) for name, files in entries}
    assert of_pip == of_uv, "run make lock"


def test_the_image_installs_hashed_files(
    root: Path, image: ModuleType, pins: dict[str, str]
) -> None:
    """pip downloads nothing without a hash, also not to build the package itself."""
    assert image.TARGET.read_text(encoding="utf-8") == image.content(), "run make lock"
    entries = re.findall(
        r"^([\w.-]+)==(\S+) \\\n(?: +--hash=sha256:\w{64}(?: \\)?\n)+", image.content(), re.M
    )
    versions = {canonicalize_name(name): version.removesuffix("+cpu") for name, version in entries}
    wanted = image.brought_in(image.EXTRAS, image.PLATFORM)
    wanted = {name for name in wanted if not name.startswith(image.GPU_LIBRARIES)}
    assert versions == {name: pins[name] for name in wanted}
    for dockerfile in (root / "docs").rglob("Dockerfile*"):
        lines = re.sub(r"\\\n", "", dockerfile.read_text(encoding="utf-8")).splitlines()
        (base,) = [line for line in lines if line.startswith("FROM ")]
        assert base == "FROM --platform=linux/amd64 python:3.11-slim"
        hashed, own = [line for line in lines if "pip install" in line]
        assert "--require-hashes -r docs/deploy/requirements.txt" in hashed
        assert own.endswith("--no-deps --no-build-isolation .")
    built = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["build-system"]
    for requirement in map(Requirement, built["requires"]):
        assert requirement.specifier.contains(versions[requirement.name])


def test_the_lock_holds_what_is_declared(root: Path, declared: dict[str, Any]) -> None:
    lock = tomllib.loads((root / "uv.lock").read_text(encoding="utf-8"))
    (own,) = [package for package in lock["package"] if package["name"] == declared["name"]]
    listed = {
        (item["name"], item.get("specifier", ""), re.sub(r".*extra == '(\w+)'", r"\1", marker))
        for item in own["metadata"]["requires-dist"]
        if (marker := item.get("marker", ""))
    }
    for extra, texts in declared["optional-dependencies"].items():
        wanted = {
            (canonicalize_name(requirement.name), SpecifierSet(str(requirement.specifier)))
            for requirement in map(Requirement, texts)
        }
        found = {(name, SpecifierSet(spec)) for name, spec, group in listed if group == extra}
        assert found == wanted, f"{extra}: run make lock"


def requirements(declared: dict[str, Any], without: Collection[str] = ()) -> list[Requirement]:
    extras = declared["optional-dependencies"]
    chosen = [text for name, group in extras.items() if name not in without for text in group]
    found = [Requirement(text) for text in [*declared["dependencies"], *chosen]]
    return [requirement for requirement in found if requirement.name != declared["name"]]


def installed(declared: dict[str, Any]) -> list[Requirement]:
    """Return the requirements of this environment, in which docs and server can be missing."""
    only_there = {"docs": ("mkdocs", "mkdocstrings"), "server": ("flask_wtf", "authlib")}
    missing = [
        extra
        for extra, modules in only_there.items()
        if any(find_spec(module) is None for module in modules)
    ]
    return requirements(declared, without=missing)


def needed(roots: list[Requirement]) -> Iterator[str]:
    """Walk the installed distributions that the requirements bring in, by name."""
    pending, seen = list(roots), set()
    while pending:
        requirement = pending.pop()
        name = canonicalize_name(requirement.name)
        key = (name, frozenset(requirement.extras))
        if key in seen or name.startswith(("nvidia-", "cuda-", "triton")):
            continue
        seen.add(key)
        yield name
        for text in metadata.distribution(name).requires or []:
            below = Requirement(text)
            extras = requirement.extras or {""}
            if below.marker is None or any(below.marker.evaluate({"extra": e}) for e in extras):
                pending.append(below)


def test_agreed_versions(pins: dict[str, str]) -> None:
    assert pins["torch"] == "2.13.0"
    assert pins["mlflow"] == "3.17.2"
    assert pins["streamlit"] == "1.67.0"
    assert Version(pins["pyarrow"]) < Version("26")


def test_pins_satisfy_what_is_declared(declared: dict[str, Any], pins: dict[str, str]) -> None:
    for requirement in requirements(declared):
        version = pins[canonicalize_name(requirement.name)]
        assert requirement.specifier.contains(version), f"{requirement} against {version}"


def test_everything_brought_in_is_pinned(declared: dict[str, Any], pins: dict[str, str]) -> None:
    assert sorted(set(needed(installed(declared))) - set(pins)) == []


def test_what_is_installed_is_what_is_pinned(
    declared: dict[str, Any], pins: dict[str, str]
) -> None:
    """The tests are valid for the pinned versions only if these versions are installed."""
    for name in set(needed(installed(declared))):
        found = Version(metadata.version(name)).public
        assert found == pins[name], f"{name} {found} is installed; run make test"


def test_conda_installs_the_same(root: Path, declared: dict[str, Any]) -> None:
    conda = yaml.safe_load((root / "conda.yaml").read_text(encoding="utf-8"))
    python, pip, installed = conda["dependencies"]
    assert (conda["name"], pip) == (declared["name"], "pip")
    assert installed == {"pip": ["-c constraints.txt", "-e .[all]"]}
    assert python.removeprefix("python=") == lowest_python(declared)


def test_python_env_installs_the_same(root: Path, declared: dict[str, Any]) -> None:
    environment = yaml.safe_load((root / "python_env.yaml").read_text(encoding="utf-8"))
    assert environment["dependencies"] == ["-c constraints.txt", ".[all]"]
    assert environment["python"] == lowest_python(declared)


def lowest_python(declared: dict[str, Any]) -> str:
    (bound,) = SpecifierSet(declared["requires-python"])
    assert bound.operator == ">="
    return bound.version


def test_setup_asks_for_the_same_python(root: Path, declared: dict[str, Any]) -> None:
    major, minor = lowest_python(declared).split(".")
    text = (root / ".ci" / "setup").read_text(encoding="utf-8")
    assert f"sys.version_info < ({major}, {minor})" in text
    assert sys.version_info >= (int(major), int(minor))


CPU_TORCH_BYTES = 191_794_682
"""Size of torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl, which no lock names."""


def bytes_of(package: dict[str, Any]) -> int:
    """Return the size of the file that pip takes here: the first wheel that fits, or the source."""
    order = {tag: place for place, tag in enumerate(sys_tags())}
    fitting = {
        min(order[tag] for tag in tags & set(order)): wheel["size"]
        for wheel in package.get("wheels", [])
        if (tags := parse_wheel_filename(unquote(wheel["url"].rpartition("/")[2]))[3]) & set(order)
    }
    return int(fitting[min(fitting)] if fitting else package["sdist"]["size"])


@pytest.mark.parametrize("extras", [["all"], ["all", "docs"], ["test", "docs"]])
def test_setup_says_what_it_downloads(root: Path, image: ModuleType, extras: list[str]) -> None:
    packages, names = image.locked(), image.brought_in(extras)
    sizes = {name: bytes_of(packages[name]) for name in names}
    no_gpu = sum(n for name, n in sizes.items() if not name.startswith(("nvidia-", "cuda-")))
    said = re.search(
        rf"'\.\[{','.join(extras)}\]'\) download=\"(\d+) packages, ([\d.]+) GB .*, ([\d.]+) GB",
        (root / ".ci" / "setup").read_text(encoding="utf-8"),
    )
    assert said is not None
    count, for_cpu, for_cuda = map(float, said.groups())
    assert count == pytest.approx(len(names), abs=3)  # other versions of Python need others
    assert for_cpu == pytest.approx((no_gpu - sizes["torch"] + CPU_TORCH_BYTES) / 1e9, abs=0.02)
    assert for_cuda == pytest.approx(sum(sizes.values()) / 1e9, abs=0.1)


@pytest.mark.parametrize("document", ["README.md", "Makefile", ".ci/run"])
def test_both_commands_of_a_fresh_machine_are_named(root: Path, document: str) -> None:
    text = (root / document).read_text(encoding="utf-8")
    assert "make test" in text
    if document != ".ci/run":  # it runs the demo among the slow tests
        assert "make demo" in text
