#!/usr/bin/env python3
"""Licences and known vulnerabilities of the installed dependencies.

    .venv/bin/python .ci/supply.py                  licences, then pip-audit over constraints.txt
    .venv/bin/python .ci/supply.py --licences-only

The vulnerability check needs `pip install pip-audit` and its network service, which it queries for each pinned version.
Exit code: 0 no problem; 1 a forbidden or unknown licence, or a vulnerability; 3 vulnerabilities could not be looked up.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import importlib.util
import itertools
import json
import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Mapping, Sequence
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
REMARKS = {
    "tau2-mock-mcp-eval": "no licence in its wheel: for tests only, never shipped",
}
"""Printed after the name of a package with a problem."""
LOOKED_UP = {
    "protobuf-py-ext": "Apache-2.0",  # the licence of its repository, which it shares with protobuf-py
}
"""Licences that a package's wheel does not state."""
FINE, PROBLEM, NOT_LOOKED_UP = 0, 1, 3


def dependencies() -> list[importlib.metadata.Distribution]:
    """The installed dependencies of the project and all of its extras, sorted by name."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    pending = [*project["dependencies"], *itertools.chain(*project["optional-dependencies"].values())]
    installed: dict[str, importlib.metadata.Distribution] = {}
    while pending:
        requirement = Requirement(pending.pop())
        name, marker = canonicalize_name(requirement.name), requirement.marker
        extras = [{"extra": extra} for extra in (*requirement.extras, "")]
        if name in installed or (marker and not any(marker.evaluate(extra) for extra in extras)):
            continue
        try:
            installed[name] = importlib.metadata.distribution(name)
        except importlib.metadata.PackageNotFoundError:
            continue
        pending += [text for text in installed[name].requires or [] if "extra ==" not in text]
    return [installed[name] for name in sorted(installed)]


def licence(distribution: importlib.metadata.Distribution) -> str:
    """The licence that a package states: the expression, else the classifiers, else the first line of the text."""
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


def verdict(stated: str) -> str:
    """fine, forbidden or unknown. If a package offers a choice, an allowed licence is enough."""
    allowed = ALLOWED.search(stated) is not None
    if FORBIDDEN.search(stated) and not (allowed and re.search(r"\bOR\b", stated)):
        return "forbidden"
    return "fine" if allowed else "unknown"


def check_licences(packages: Sequence[importlib.metadata.Distribution]) -> int:
    problems = []
    for package in packages:
        name, stated = package.metadata["Name"], licence(package)
        if verdict(stated) != "fine":
            remark = REMARKS.get(name, "")
            problems.append(f"{name} {package.version}: {verdict(stated)} licence {stated!r} {remark}".rstrip())
    print(f"licences: {len(packages) - len(problems)} of {len(packages)} packages have an allowed one")
    for problem in problems:
        print(problem)
    return PROBLEM if problems else FINE


def pinned(text: str) -> int:
    return sum(bool(re.match(r"[A-Za-z0-9]", line)) for line in text.splitlines())


def audited(report: Mapping[str, Any], pins: int) -> int:
    """The exit code for pip-audit's report. Prints the packages that it could not look up."""
    entries = report.get("dependencies", [])
    skipped = [entry for entry in entries if "skip_reason" in entry]
    vulnerable = [entry for entry in entries if entry.get("vulns")]
    for entry in vulnerable:
        ids = ", ".join(vulnerability["id"] for vulnerability in entry["vulns"])
        print(f"{entry['name']} {entry['version']}: {ids}")
    looked_up = len(entries) - len(skipped)
    print(
        f"vulnerabilities: {len(vulnerable)} packages have some; {looked_up} of {pins} pinned packages were looked up"
    )
    if skipped:
        print(f"NOT looked up: {len(skipped)}; the first: {skipped[0]['name']}: {skipped[0]['skip_reason']}")
    if vulnerable:
        return PROBLEM
    return FINE if looked_up >= pins else NOT_LOOKED_UP


def check_vulnerabilities(constraints: Path, seconds: float) -> int:
    pins = pinned(constraints.read_text(encoding="utf-8"))
    if importlib.util.find_spec("pip_audit") is None:
        print("vulnerabilities: NOT looked up, pip-audit is not installed (pip install pip-audit)")
        return NOT_LOOKED_UP
    options = ["--no-deps", "--disable-pip", "--progress-spinner", "off", "-f", "json"]
    with tempfile.TemporaryFile("w+") as errors:
        try:
            audit = subprocess.run(
                [sys.executable, "-m", "pip_audit", "-r", str(constraints), *options],
                stdout=subprocess.PIPE, stderr=errors, text=True, timeout=seconds, check=False,
            )  # fmt: skip
            return audited(json.loads(audit.stdout), pins)
        except subprocess.TimeoutExpired:
            print(f"vulnerabilities: NOT looked up, the service gave no answer in {seconds:g} s")
        except ValueError:
            errors.seek(0)
            lines = [line.strip() for line in errors.read().splitlines() if line.strip()]
            last = lines[-1][:200] if lines else "no output"
            print(f"vulnerabilities: NOT looked up, the service cannot be reached ({last})")
    return NOT_LOOKED_UP


def main() -> int:
    parser = argparse.ArgumentParser(description="Licences and known vulnerabilities of the dependencies.")
    parser.add_argument("--licences-only", action="store_true")
    parser.add_argument("--seconds", type=float, default=300.0, help="time limit for the look-up of vulnerabilities")
    options = parser.parse_args()
    codes = [check_licences(dependencies())]
    if not options.licences_only:
        codes.append(check_vulnerabilities(ROOT / "constraints.txt", options.seconds))
    return PROBLEM if PROBLEM in codes else max(codes)


if __name__ == "__main__":
    sys.exit(main())
