"""Audits the installed packages, and writes the bill of materials of a wheel.

    python .ci/supply_chain.py audit
    python .ci/supply_chain.py bill dist/clew-0.1.0-py3-none-any.whl

The audit needs no network. It checks that the packages are compatible (`pip check`), that each has
the version that constraints.txt pins, and that the SHA-256 of each file is the one in its wheel. It
does not know about vulnerabilities: `pip-audit -r constraints.txt` reports these.

The bill of materials is in CycloneDX 1.6. It contains the wheel with its SHA-256, and every package
that the wheel needs, with version and license. It is written next to the wheel.
"""

import base64
import csv
import hashlib
import json
import re
import subprocess
import sys
import uuid
from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

CONSTRAINTS = Path(__file__).parents[1] / "constraints.txt"
PROJECT = "clew"
INSTALLERS = {"pip", "setuptools", "wheel"}
REWRITTEN = ("INSTALLER", "RECORD", "REQUESTED", "direct_url.json")
"""Files that pip itself writes during an installation."""
NUM_SHOWN = 10


def main(arguments: list[str]) -> int:
    """Run the given command, and return its exit status."""
    if arguments == ["audit"]:
        return audit()
    if len(arguments) == 2 and arguments[0] == "bill":
        wheel = Path(arguments[1])
        target = wheel.with_suffix(".cdx.json")
        target.write_text(json.dumps(bill(wheel), indent=1) + "\n", encoding="utf-8")
        print(f"{target}: every package that {wheel.name} needs")
        return 0
    print("usage: supply_chain.py audit | bill WHEEL", file=sys.stderr)
    return 2


def audit() -> int:
    """Check the installed packages; print each problem, and return 1 if there is one, else 0."""
    found = [*conflicts(), *unpinned(pins()), *changed_files()]
    for line in found[:NUM_SHOWN]:
        print(f"clew: {line}", file=sys.stderr)
    if len(found) > NUM_SHOWN:
        print(f"clew: and {len(found) - NUM_SHOWN} more", file=sys.stderr)
    return int(bool(found))


def pins() -> dict[str, str]:
    """Return the versions that constraints.txt pins, by name."""
    lines = CONSTRAINTS.read_text(encoding="utf-8").splitlines()
    entries = (line.partition(";")[0].partition(" ")[0] for line in lines if "==" in line)
    pairs = (entry.partition("==") for entry in entries if not entry.startswith("#"))
    return {canonicalize_name(name): version for name, _, version in pairs}


def conflicts() -> Iterator[str]:
    """Yield the lines of `pip check` about packages that are not compatible."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        yield from (done.stdout + done.stderr).splitlines()


def unpinned(versions: dict[str, str]) -> Iterator[str]:
    """Yield a line for each package of Clew whose version is not the pinned one."""
    for name, found in needed(PROJECT, extras=True).items():
        installed = Version(found.version).public
        if versions.get(name) != installed:
            pinned = versions.get(name, "no version")
            yield f"{name} {installed} is installed, constraints.txt pins {pinned}"


def needed(project: str, *, extras: bool) -> dict[str, metadata.Distribution]:
    """Return the installed packages that a project depends on, sorted by name."""
    found: dict[str, metadata.Distribution] = {}
    pending, seen = [(project, "*" if extras else "")], set()
    while pending:
        name, extra = pending.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue  # it belongs to an extra that is not installed
        found[canonicalize_name(name)] = distribution
        chosen = distribution.metadata.get_all("Provides-Extra") or [] if extra == "*" else [extra]
        for text in distribution.requires or []:
            requirement = Requirement(text)
            marker = requirement.marker
            if marker is None or any(marker.evaluate({"extra": each}) for each in (*chosen, "")):
                wanted = requirement.extras or {""}
                pending += [(canonicalize_name(requirement.name), each) for each in wanted]
    del found[canonicalize_name(project)]
    return {name: found[name] for name in sorted(found) if name not in INSTALLERS}


def changed_files() -> Iterator[str]:
    """Yield a line for each installed file that is missing or differs from its wheel."""
    for name, distribution in needed(PROJECT, extras=True).items():
        # `distribution.files` omits missing files.
        for entry, digest, _ in csv.reader((distribution.read_text("RECORD") or "").splitlines()):
            own = Path(entry)
            is_program = ".." in own.parts  # pip writes the interpreter's path into programs
            if not digest.startswith("sha256=") or own.name in REWRITTEN or is_program:
                continue
            path = Path(str(distribution.locate_file(entry)))
            if not path.is_file():
                yield f"{name}: {path} is missing; install it again"
            elif _digest(path) != digest.removeprefix("sha256="):
                yield f"{name}: {path} was changed since it was installed; install it again"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").digest()
    return base64.urlsafe_b64encode(digest).rstrip(b"=").decode("ascii")


def bill(wheel: Path) -> dict[str, object]:
    """Return the bill of materials of a wheel in CycloneDX's JSON format."""
    packages = needed(PROJECT, extras=False)
    version = wheel.name.split("-")[1]
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    own = _component(PROJECT, version) | {"hashes": [{"alg": "SHA-256", "content": digest}]}
    components = [
        _component(name, Version(found.version).public) | _license(found)
        for name, found in packages.items()
    ]
    references = {str(c["name"]): c["bom-ref"] for c in components}
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.6",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, digest)}",
        "version": 1,
        "metadata": {"component": own},
        "components": components,
        "dependencies": [
            {"ref": own["bom-ref"], "dependsOn": _direct(PROJECT, references)},
            *(
                {"ref": references[name], "dependsOn": _direct(name, references)}
                for name in packages
            ),
        ],
    }


def _component(name: str, version: str) -> dict[str, object]:
    address = f"pkg:pypi/{canonicalize_name(name)}@{version}"
    kind = "application" if name == PROJECT else "library"
    return {"type": kind, "bom-ref": address, "name": name, "version": version, "purl": address}


def _license(found: metadata.Distribution) -> dict[str, object]:
    """Return a package's license: its SPDX expression, or else the name in its metadata."""
    fields = found.metadata
    if expression := fields.get("License-Expression"):
        return {"licenses": [{"expression": expression}]}
    classified = [
        text.rpartition(" :: ")[2]
        for text in fields.get_all("Classifier") or []
        if text.startswith("License :: ")
    ]
    names = classified or re.findall(r"^.{1,80}$", (fields.get("License") or "").strip())
    return {"licenses": [{"license": {"name": name}} for name in names]} if names else {}


def _direct(name: str, references: dict[str, object]) -> list[object]:
    """Return the references of a package's direct dependencies that are in the bill."""
    requirements = map(Requirement, metadata.distribution(name).requires or [])
    wanted = {
        canonicalize_name(requirement.name)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate({"extra": ""})
    }
    return [references[each] for each in sorted(wanted) if each in references]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
