"""Checks that the imports in `src` run downwards between the rooms.

usage: python3 .ci/rooms.py [SRC]          default: src
       python3 .ci/rooms.py --self-test    on small planted trees

A room may import from the rooms below it, and from itself:

    lib.rs, guide/                           the crate root
    http/, grpc/, retry.rs                   protocols; grpc/ may import http/
    circuit_breaker/, fallback/, tripwire/   equal wings: none imports another
    machinery/
    vocabulary/                              imports nothing of this crate

The check follows the `mod` declarations from `lib.rs` and reads every path in the code: in `use`,
also inside groups, and inline. A path through the crate root's re-exports (`crate::Refusal`)
points to `lib.rs`, and so upwards. Comments, strings and what only tests or loom compile are not
read.
"""

import pathlib
import re
import sys
import tempfile

ROOT = "lib.rs"
LEVELS = {
    "vocabulary": 0,
    "machinery": 1,
    "circuit_breaker": 2,
    "fallback": 2,
    "tripwire": 2,
    "http": 3,
    "grpc": 3,
    "retry": 3,
    "guide": 4,
    ROOT: 4,
}
# These may import each other although they are on one level.
ALLOWED = {("grpc", "http"), (ROOT, "guide"), ("guide", ROOT)}

# ===== tokens =====

TOKEN = re.compile(
    r"""
      (?P<space>\s+|//[^\n]*)
    | (?P<block>/\*)
    | (?P<string>[bc]?r(?P<hashes>\#*)".*?"(?P=hashes)|[bc]?"(?:\\.|[^"\\])*")
    | (?P<char>b?'(?:\\(?:u\{[^}]*\}|x[0-9a-fA-F]{2}|.)|[^'\\])')
    | (?P<lifetime>'\w+)
    | (?P<word>(?:r\#)?\w+)
    | (?P<mark>::|->|=>|.)
    """,
    re.VERBOSE | re.DOTALL,
)
BLOCK_EDGE = re.compile(r"/\*|\*/")
OPENING = {"(": ")", "[": "]", "{": "}"}
CLOSING = set(OPENING.values())


def tokens_of(text):
    """Returns the words and marks of a source, each with its line.

    A string is one token. It starts with `"` and has no end mark.
    """
    tokens, at, line = [], 0, 1
    while at < len(text):
        match = TOKEN.match(text, at)
        end = match.end()
        if match["block"]:
            depth = 1  # Block comments nest.
            while depth and (edge := BLOCK_EDGE.search(text, end)):
                depth += 1 if edge[0] == "/*" else -1
                end = edge.end()
            if depth:
                end = len(text)
        elif match["string"]:
            tokens.append(('"' + match["string"].partition('"')[2].rstrip("#")[:-1], line))
        elif match["word"] or match["mark"]:
            tokens.append((match[0].removeprefix("r#"), line))
        line += text.count("\n", at, end)
        at = end
    return tokens


def after_group(tokens, at):
    """Returns the index after the group that opens at `at`."""
    depth = 0
    for index in range(at, len(tokens)):
        if tokens[index][0] in OPENING:
            depth += 1
        elif tokens[index][0] in CLOSING:
            depth -= 1
            if depth == 0:
                return index + 1
    return len(tokens)


# ===== conditions =====


def possible(words):
    """Returns whether a `cfg` of these words can hold in a shipped build, and whether it can fail."""
    name, rest = words[0], words[1:]
    if name in ("test", "tower_breaker_loom"):
        return False, True
    if name not in ("not", "any", "all"):
        return True, True  # A feature, a target or the documentation: either may be.
    parts, start, depth = [], 1, 0
    for index, word in enumerate(rest):
        depth += (word == "(") - (word == ")")
        if (word == "," and depth == 1) or depth == 0:
            if rest[start:index]:
                parts.append(possible(rest[start:index]))
            start = index + 1
    if name == "not":
        holds, fails = parts[0]
        return fails, holds
    combine, other = (any, all) if name == "any" else (all, any)
    return combine(part[0] for part in parts), other(part[1] for part in parts)


def is_shipped(attribute):
    """Returns whether an item with this attribute, given as words, is part of a shipped build."""
    if attribute[:2] != ["cfg", "("]:
        return True
    return possible(attribute[2:-1])[0]


ITEMS = {"fn", "struct", "enum", "union", "trait", "impl", "mod", "macro_rules", "unsafe", "async", "extern"}
TO_SEMICOLON = {"use", "static", "type", "let"}


def after_item(tokens, at):
    """Returns the index after the item, field, arm or statement that starts at `at`."""
    while at < len(tokens) and tokens[at][0] == "#":
        at = after_group(tokens, at + 1)
    if at < len(tokens) and tokens[at][0] == "pub":
        at += 1
        if tokens[at][0] == "(":
            at = after_group(tokens, at)
    first = tokens[at][0] if at < len(tokens) else ""
    second = tokens[at + 1][0] if at + 1 < len(tokens) else ""
    to_semicolon = first in TO_SEMICOLON or (first == "const" and second not in ITEMS)
    is_item = first in ITEMS or (first == "const" and second in ITEMS)
    angles = 0
    while at < len(tokens):
        word = tokens[at][0]
        if word in CLOSING:
            return at
        if word in OPENING:
            at = after_group(tokens, at)
            following = tokens[at][0] if at < len(tokens) else ""
            if word == "{" and not to_semicolon and following not in (".", "?", "=>", "else", ",", ";"):
                return at
            continue
        at += 1
        if word == "<":
            angles += 1
        elif word == ">":
            angles -= 1
        elif word == ";" or (word == "," and not is_item and not to_semicolon and angles <= 0):
            return at
    return at


# ===== paths =====


def used_paths(tokens, at, prefix=()):
    """Returns the paths of the `use` tree that starts at `at`, with their lines, and its end."""
    path, paths, line = list(prefix), [], 0
    while at < len(tokens):
        word, here = tokens[at]
        if word == "{":
            at += 1
            while tokens[at][0] != "}":
                inner, at = used_paths(tokens, at, tuple(path))
                paths += inner
                if tokens[at][0] == ",":
                    at += 1
            return paths, at + 1
        if word in (";", ",", "}"):
            break
        if word == "as":
            at += 2
            continue
        line = line or here
        if word != "::":
            path.append(word)
        at += 1
    # `use a::{self, b}` names `a`.
    if len(path) > 1 and path[-1] == "self":
        path.pop()
    return [(tuple(path), line)], at


def inline_path(tokens, at):
    """Returns the path that starts at `at`, and the index after it."""
    path = [tokens[at][0]]
    at += 1
    while at + 1 < len(tokens) and tokens[at][0] == "::" and re.match(r"\w", tokens[at + 1][0]):
        path.append(tokens[at + 1][0])
        at += 2
    return tuple(path), at


def room_of(module):
    # A module inside `lib.rs` is a part of the crate root.
    return module[0] if module and module[0] in LEVELS else ROOT


def target_of(module, path):
    """Returns the room that a path in this module points to; None if it leaves the crate."""
    if path[0] not in ("crate", "super", "self"):
        return None
    place, rest = list(module), list(path)
    if rest[0] == "crate":
        place, rest = [], rest[1:]
    elif rest[0] == "self":
        rest = rest[1:]
    while rest and rest[0] == "super":
        place, rest = place[:-1], rest[1:]
    return room_of(place or rest)


def objection(source, target):
    """Returns why one room may not import another; None if it may."""
    if source == target or (source, target) in ALLOWED or LEVELS[target] < LEVELS[source]:
        return None
    if target == ROOT:
        return "goes through the crate root, which is above every room: name the room itself"
    if LEVELS[target] > LEVELS[source]:
        return f"runs upwards, from {source} to {target}"
    return f"runs sideways, from {source} to {target}"


# ===== the walk =====


class Walk:
    def __init__(self, root):
        self.root = pathlib.Path(root)
        self.faults = []
        self.files = 0

    def fault(self, file, line, what, why):
        self.faults.append((str(file), line, what, why))

    def path(self, file, line, module, path):
        target = target_of(module, path)
        why = target and objection(room_of(module), target)
        if why:
            self.fault(file, line, "::".join(path), why)

    def file(self, file, module):
        self.files += 1
        folder = file.parent if file.name in ("lib.rs", "mod.rs") else file.parent / file.stem
        self.tokens(file, folder, module, tokens_of(file.read_text()))

    def child(self, file, folder, module, name, line, given):
        """Follows `mod name;`."""
        if not module and name not in LEVELS:
            self.fault(file, line, f"mod {name}", "is no room: say in .ci/rooms.py where it belongs")
            return
        candidates = [file.parent / given] if given else [folder / f"{name}.rs", folder / name / "mod.rs"]
        for candidate in candidates:
            if candidate.is_file():
                self.file(candidate, (*module, name))
                return
        self.fault(file, line, f"mod {name}", "has no file")

    def tokens(self, file, folder, module, tokens):
        # The open inline modules: the index after each, and the folder and module around it.
        around, at, given = [], 0, None
        while at < len(tokens):
            while around and at >= around[-1][0]:
                _, folder, module = around.pop()
            word, line = tokens[at]
            following = tokens[at + 1][0] if at + 1 < len(tokens) else ""
            before = tokens[at - 1][0] if at else ""
            if word == "#" and following in ("[", "!"):
                start = at + (1 if following == "[" else 2)
                end = after_group(tokens, start)
                attribute = [word for word, _ in tokens[start + 1 : end - 1]]
                if not is_shipped(attribute):
                    if following == "!":
                        return
                    at = after_item(tokens, end)
                    given = None
                    continue
                if attribute[:2] == ["path", "="]:
                    given = attribute[2][1:]
                at = end
            elif word == "mod" and re.match(r"\w", following):
                opens = tokens[at + 2][0] if at + 2 < len(tokens) else ""
                if opens == "{":
                    around.append((after_group(tokens, at + 2), folder, module))
                    folder, module = folder / following, (*module, following)
                elif opens == ";":
                    self.child(file, folder, module, following, line, given)
                given = None
                at += 3
            elif word == "use" and following != "<":
                paths, at = used_paths(tokens, at + 1)
                for path, line in paths:
                    if path:
                        self.path(file, line, module, path)
            elif word == "extern" and [word for word, _ in tokens[at + 1 : at + 3]] == ["crate", "self"]:
                if module:
                    self.path(file, line, module, ("crate", "self"))
                at += 3
            elif word in ("crate", "super", "self") and following == "::" and before != "::":
                path, at = inline_path(tokens, at)
                self.path(file, line, module, path)
            else:
                at += 1


def walk(root):
    found = Walk(root)
    found.file(pathlib.Path(root) / ROOT, ())
    return found


# ===== the check of the check =====

LIB = "mod vocabulary; mod machinery; pub mod circuit_breaker; pub mod fallback; pub mod tripwire; "
LIB += '#[cfg(feature = "http")] pub mod http; #[cfg(feature = "grpc")] pub mod grpc; pub mod retry; '
LIB += "#[cfg(any(doc, doctest))] pub mod guide; pub use self::vocabulary::Refusal;"
FOLDERS = ["vocabulary", "machinery", "circuit_breaker", "fallback", "tripwire", "http", "grpc", "guide"]
PLAIN = {"lib.rs": LIB, "retry.rs": "", **{f"{folder}/mod.rs": "" for folder in FOLDERS}}

# file, text, the paths that must be found with their lines
PLANTED = [
    # Upwards, one for each step.
    ("vocabulary/mod.rs", "use crate::machinery::clock::Clock;", [(1, "crate::machinery::clock::Clock")]),
    ("vocabulary/mod.rs", "use crate::fallback::Chain;", [(1, "crate::fallback::Chain")]),
    ("machinery/mod.rs", "use crate::tripwire::Digest;", [(1, "crate::tripwire::Digest")]),
    ("machinery/mod.rs", "use crate::http::EndOfBody;", [(1, "crate::http::EndOfBody")]),
    ("tripwire/mod.rs", "\nuse crate::http::Inspect;", [(2, "crate::http::Inspect")]),
    ("fallback/mod.rs", "use crate::retry::SkipRefusals;", [(1, "crate::retry::SkipRefusals")]),
    ("circuit_breaker/mod.rs", "use crate::guide::order;", [(1, "crate::guide::order")]),
    # Sideways.
    ("circuit_breaker/mod.rs", "use crate::fallback::Chain;", [(1, "crate::fallback::Chain")]),
    ("fallback/mod.rs", "use crate::tripwire::Fence;", [(1, "crate::tripwire::Fence")]),
    ("tripwire/mod.rs", "use crate::circuit_breaker::Circuit;", [(1, "crate::circuit_breaker::Circuit")]),
    ("http/mod.rs", "use crate::grpc::Codes;", [(1, "crate::grpc::Codes")]),
    ("retry.rs", "use crate::http::Inspect;", [(1, "crate::http::Inspect")]),
    # Round the rule, by the crate root.
    ("machinery/mod.rs", "use crate::Refusal;", [(1, "crate::Refusal")]),
    ("grpc/mod.rs", "fn f(r: &crate::Refusal) {}", [(1, "crate::Refusal")]),
    ("http/mod.rs", "use crate::*;", [(1, "crate::*")]),
    ("http/mod.rs", "use super::*;", [(1, "super::*")]),
    ("retry.rs", "extern crate self as tower_breaker;", [(1, "crate::self")]),
    # However the path is written.
    ("machinery/mod.rs", "use super::tripwire::Digest;", [(1, "super::tripwire::Digest")]),
    ("machinery/mod.rs", "mod a { mod b { use super::super::super::fallback::X; } } use super::http;",
     [(1, "super::super::super::fallback::X"), (1, "super::http")]),
    ("machinery/mod.rs", "use self::super::fallback::X;", [(1, "self::super::fallback::X")]),
    ("machinery/mod.rs", "use crate::{\n    fallback::{self, A},\n    vocabulary as words, tripwire,\n};",
     [(2, "crate::fallback"), (2, "crate::fallback::A"), (3, "crate::tripwire")]),
    ("machinery/mod.rs", "use {std::fmt, super::{vocabulary::X, http::Y}};", [(1, "super::http::Y")]),
    ("machinery/mod.rs", "fn f(a: Option<crate::tripwire::Digest>) { g::<super::fallback::X>(a) }",
     [(1, "crate::tripwire::Digest"), (1, "super::fallback::X")]),
    ("machinery/mod.rs", "pub(crate) use crate::fallback::X;", [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", "macro_rules! m { () => { $crate::fallback::X }; }", [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", "const Q: char = '\"'; use crate::fallback::X; // \"", [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", "fn f<'a>(x: &'a str) -> &'a crate::fallback::X { x }", [(1, "crate::fallback::X")]),
    # Code that ships beside code that does not.
    ("machinery/mod.rs", "#[cfg(test)] use a::{b, c}; use crate::fallback::X;", [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", "#[cfg(test)] fn f() -> [u8; 2] { g() } use crate::fallback::X;",
     [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", "struct S { #[cfg(test)] a: M<A, B>, b: crate::fallback::X }",
     [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", '#[cfg(any(feature = "http", test))] use crate::fallback::X;',
     [(1, "crate::fallback::X")]),
    ("machinery/mod.rs", "#[cfg(not(tower_breaker_loom))] use crate::fallback::X;",
     [(1, "crate::fallback::X")]),
    ("lib.rs", LIB + " mod attic;", [(1, "mod attic")]),
    ("lib.rs", LIB + " pub mod names { pub use crate::http::Inspect; pub use super::Refusal; }", []),
    ("machinery/mod.rs", "use crate::names::Inspect;", [(1, "crate::names::Inspect")]),
    ("lib.rs", LIB + " pub use self::http::EndOfBody; pub use crate::retry::SkipRefusals;", []),
    # Downwards, and inside a room.
    ("machinery/mod.rs", "use crate::vocabulary::Outcome;", []),
    ("tripwire/mod.rs", "use crate::{machinery::Clock, vocabulary::Outcome}; use super::machinery;", []),
    ("http/mod.rs", "use crate::{circuit_breaker, fallback, tripwire, machinery, vocabulary};", []),
    ("grpc/mod.rs", "use crate::http::Inspect;", []),
    ("retry.rs", "use crate::vocabulary::in_error; use tower::retry::Policy;", []),
    ("guide/mod.rs", "use crate::Refusal; use crate::http::EndOfBody;", []),
    ("fallback/mod.rs", "mod chain { use super::Exhausted; use crate::fallback::X; } use self::chain::Y;", []),
    ("fallback/mod.rs", "pub(crate) struct A; pub(super) struct B; fn f() -> impl use<'a> Sized {}", []),
    # What does not ship, or is no code.
    ("machinery/mod.rs", "// use crate::fallback::X;\n/* crate::a /* b */ crate::fallback::X */", []),
    ("machinery/mod.rs", "//! [`crate::Refusal`]\n/// crate::fallback::X\nstruct A;", []),
    ("machinery/mod.rs", 'const A: &str = "crate::fallback::X"; const B: &str = r#"crate::http::"Y"#;', []),
    ("machinery/mod.rs", "#[cfg(test)] mod tests { use crate::fallback::X; }", []),
    ("machinery/mod.rs", "#[cfg(test)] mod rows;", []),
    ("machinery/mod.rs", "#[cfg(all(test, not(tower_breaker_loom)))] mod t { use crate::fallback::X; }", []),
    ("machinery/mod.rs", "#[cfg(tower_breaker_loom)] #[allow(x)] pub use crate::fallback::{X, Y};", []),
    ("machinery/mod.rs", "fn f() { #[cfg(test)] crate::fallback::told(); }", []),
    ("machinery/mod.rs", "#![cfg(test)] use crate::fallback::X;", []),
]


def self_test():
    for file, text, expected in PLANTED:
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            # A file that only tests declare.
            for name, content in {**PLAIN, "machinery/rows.rs": "use crate::fallback::X;", file: text}.items():
                (root / name).parent.mkdir(parents=True, exist_ok=True)
                (root / name).write_text(content)
            found = [(line, what) for _, line, what, _ in walk(root).faults]
            if found != expected:
                sys.exit(f"{file}: {text}\nfound:    {found}\nexpected: {expected}")
    print(f"{len(PLANTED)} planted trees: each fault was found, and no other")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    checked = walk(sys.argv[1] if len(sys.argv) > 1 else "src")
    for file, line, what, why in checked.faults:
        print(f"{file}:{line}: `{what}` {why}")
    print(f"{checked.files} files, {len(checked.faults)} imports that may not be")
    sys.exit(1 if checked.faults else 0)


main()
