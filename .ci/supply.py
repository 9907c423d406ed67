#!/usr/bin/env python3
"""Licences and known vulnerabilities of all that the project depends on, as it is installed here.

    .venv/bin/python .ci/supply.py                  licences, then pip-audit over constraints.txt
    .venv/bin/python .ci/supply.py --licences-only

Vulnerabilities need `pip install pip-audit` and its service, which is asked over the network about each pinned version.
Exit code: 0 all fine; 1 a licence that is not allowed or not known, or a vulnerability; 3 vulnerabilities could not be
looked up, which is not the same as there being none.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parent.parent
ALLOWED = re.compile(
    r"\b(MIT|MIT-0|MIT-CMU|BSD|0BSD|Apache|ISC|PSF|Python Software Foundation|Python-2\.0|MPL|Mozilla Public License|"
    r"HPND|CC0|Unlicense|Zlib|CNRI-Python|BSL-1\.0|Historical Permission Notice|LGPL-3\.0-or-later WITH)\b",
    re.IGNORECASE,
)
FORBIDDEN = re.compile(
    r"\b(A?GPL|GNU (Affero )?General Public|SSPL|Commons Clause|Proprietary|non-?commercial)", re.IGNORECASE
)
TOLD = {
    "tau2-mock-mcp-eval": "no licence in its wheel: for tests only, never shipped",
}
"""What packages do not say themselves, looked up by hand."""
LOOKED_UP = {
    "protobuf-py-ext": "Apache-2.0",  # of the repository that it is built from, which protobuf-py is of too
}
"""Licences that a package's wheel does not state."""
FINE, FOUND, NOT_LOOKED_UP = 0, 1, 3


def dependencies() -> list[importlib.metadata.Distribution]:
    """What the project and all of its extras need, as far as it is installed, by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    waiting = [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]
    found: dict[str, importlib.metadata.Distribution] = {}
    while waiting:
        wanted = Requirement(waiting.pop())
        name = canonicalize_name(wanted.name)
        extras = [{"extra": extra} for extra in (*wanted.extras, "")]
        if name in found or (wanted.marker and not any(wanted.marker.evaluate(extra) for extra in extras)):
            continue
        try:
            found[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        waiting += [one for one in found[name].requires or [] if "extra ==" not in one]
    return [found[name] for name in sorted(found)]


def licence(distribution: importlib.metadata.Distribution) -> str:
    """What a package says of its licence: the expression, else the classifiers, else the first line of the text."""
    about: Any = distribution.metadata
    if about.get("License-Expression"):
        return str(about["License-Expression"])
    classifiers = [
        text.rpartition("::")[2].strip() for text in about.get_all("Classifier") or [] if "License ::" in text
    ]
    named = [text for text in classifiers if text != "OSI Approved"]
    if named:
        return ", ".join(named)
    text = (about.get("License") or "").strip()
    if text:
        return text.splitlines()[0][:80]
    for file in distribution.files or []:
        if re.fullmatch(r"(LICEN[SC]E|COPYING)[\w.-]*", file.name, re.IGNORECASE):
            first = [line.strip() for line in file.read_text(encoding="utf-8").splitlines() if line.strip()]
            return first[0][:80] if first else ""
    return LOOKED_UP.get(str(about["Name"]), "")


def verdict(said: str) -> str:
    """fine, forbidden or unknown. Where there is a choice, the licence that is allowed counts."""
    allowed = ALLOWED.search(said) is not None
    if FORBIDDEN.search(said) and not (allowed and re.search(r"\bOR\b", said)):
        return "forbidden"
    return "fine" if allowed else "unknown"


def check_licences(packages: Iterable[importlib.metadata.Distribution]) -> int:
    counts: dict[str, int] = {}
    wrong = []
    for package in packages:
        said = licence(package)
        found = verdict(said)
        counts[found] = counts.get(found, 0) + 1
        if found != "fine":
            why = TOLD.get(package.metadata["Name"], "")
            wrong.append(f"{package.metadata['Name']} {package.version}: {found} licence {said!r} {why}".rstrip())
    print(f"licences: {counts.get('fine', 0)} of {sum(counts.values())} packages are under an allowed one")
    print(*wrong, sep="\n" if wrong else "")
    return FOUND if wrong else FINE


def pinned(text: str) -> int:
    return sum(bool(re.match(r"[A-Za-z0-9]", line)) for line in text.splitlines())


def audited(report: Mapping[str, Any], wanted: int) -> int:
    """The exit code of pip-audit's report; says which packages it could not look up."""
    entries = report.get("dependencies", [])
    skipped = [one for one in entries if "skip_reason" in one]
    bad = [one for one in entries if one.get("vulns")]
    for one in bad:
        print(f"{one['name']} {one['version']}: {', '.join(vulnerability['id'] for vulnerability in one['vulns'])}")
    looked_up = len(entries) - len(skipped)
    print(f"vulnerabilities: {len(bad)} packages have some; {looked_up} of {wanted} pinned packages were looked up")
    if skipped:
        print(f"NOT looked up: {len(skipped)}; the first: {skipped[0]['name']}: {skipped[0]['skip_reason']}")
    if bad:
        return FOUND
    return FINE if looked_up >= wanted else NOT_LOOKED_UP


def check_vulnerabilities(constraints: Path, seconds: float) -> int:
    wanted = pinned(constraints.read_text(encoding="utf-8"))
    if importlib.util.find_spec("pip_audit") is None:
        print("vulnerabilities: NOT looked up, pip-audit is not installed (pip install pip-audit)")
        return NOT_LOOKED_UP
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            done = subprocess.run(
                [sys.executable, "-m", "pip_audit", "-r", str(constraints), *options],
                stdout=subprocess.PIPE, stderr=errors, text=True, timeout=seconds, check=False,
            )  # fmt: skip
            return audited(json.loads(done.stdout), wanted)
        except subprocess.TimeoutExpired:
            print(f"vulnerabilities: NOT looked up, the service gave no answer in {seconds:g} s")
        except ValueError:
            errors.seek(0)
            told = [line.strip() for line in errors.read().splitlines() if line.strip()]
            last = told[-1][:200] if told else "no output"
            print(f"vulnerabilities: NOT looked up, the service cannot be reached ({last})")
    return NOT_LOOKED_UP


def main() -> int:
    parser = argparse.ArgumentParser(description="Licences and known vulnerabilities of the dependencies.")
    parser.add_argument("--licences-only", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0, help="for the look-up of vulnerabilities")
    options = parser.parse_args()
    codes = [check_licences(dependencies())]
    if not options.licences_only:
        codes.append(check_vulnerabilities(ROOT / "constraints.txt", options.seconds))
    return FOUND if FOUND in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
