"""Builds the package that a newcomer would: the README's dependencies and its first program.

tower-breaker itself comes from this tree.

usage: python3 .ci/newcomer.py README.md DIRECTORY
"""

import json
import os
import pathlib
import re
import sys
import tomllib

README, DIRECTORY = pathlib.Path(sys.argv[1]), pathlib.Path(sys.argv[2])


def blocks(language):
    return re.findall(rf"^```{language}[^\n]*\n(.*?)^```\s*$", README.read_text(), re.MULTILINE | re.DOTALL)


def toml(value):
    """Formats strings, booleans, and lists and tables of them as one line of TOML."""
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {toml(inner)}" for key, inner in value.items()) + " }"
    if isinstance(value, list):
        return "[" + ", ".join(map(toml, value)) + "]"
    return json.dumps(value)


programs = [block for block in blocks("rust") if "fn main" in block]
if not programs:
    sys.exit(f"{README} has no ```rust block with a `fn main` for a newcomer to paste: add one")
manifests = blocks("toml")
if not manifests:
    sys.exit(f"{README} has no ```toml block with the dependencies for a newcomer to paste: add one")
manifest = tomllib.loads(manifests[0])
dependencies = manifest.get("dependencies", manifest)
if "tower-breaker" not in dependencies:
    sys.exit(f"the first ```toml block of {README} does not depend on tower-breaker: add it")

ours = dependencies["tower-breaker"]
ours = {key: value for key, value in ours.items() if key != "version"} if isinstance(ours, dict) else {}
dependencies["tower-breaker"] = {"path": os.path.relpath(README.resolve().parent, DIRECTORY.resolve()), **ours}

(DIRECTORY / "src").mkdir(parents=True, exist_ok=True)
lines = ["[package]", 'name = "newcomer"', 'edition = "2024"', "publish = false", "", "[dependencies]"]
lines += [f"{name} = {toml(value)}" for name, value in dependencies.items()]
# The package lies inside this tree but is not a member of its workspace.
lines += ["", "[workspace]", ""]
(DIRECTORY / "Cargo.toml").write_text("\n".join(lines))
(DIRECTORY / "src" / "main.rs").write_text(programs[0])
# Use the versions that this tree was tested with.
lock = README.resolve().parent / "Cargo.lock"
if lock.exists():
    (DIRECTORY / "Cargo.lock").write_text(lock.read_text())
