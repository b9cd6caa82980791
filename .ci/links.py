"""Checks that the links in the documents and in the generated documentation lead somewhere.

usage: python3 .ci/links.py DOCS [MORE_DOCS...]
       python3 .ci/links.py --self-test            on small planted documents

DOCS is the directory that `cargo doc --all-features` wrote. Checked are README.md, CONTRIBUTING.md
and CHANGELOG.md of this directory, and every page of `tower_breaker` in DOCS and in MORE_DOCS
(the same with other features). A relative link needs its file, and a `#fragment` its anchor. A link
to this crate on docs.rs is looked up in DOCS. No other external link is followed.
"""

import html.parser
import pathlib
import re
import sys
import tempfile
import urllib.parse

DOCUMENTS = ["README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
OURS = re.compile(r"https?://docs\.rs/(?:crate/)?tower-breaker(?:/[^/?#]+(?P<path>/[^?#]*)?)?(?:#(?P<anchor>.*))?$")

# ===== what a file holds =====


class Page(html.parser.HTMLParser):
    """Holds the links of an HTML page with their lines, and its anchors."""

    def __init__(self, text):
        super().__init__()
        self.links, self.anchors = [], set()
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if value is None:
                continue
            if name == "id" or (name == "name" and tag == "a"):
                self.anchors.add(value)
            elif name in ("href", "src") and tag in ("a", "link", "script", "img", "iframe"):
                self.links.append((self.getpos()[0], value))


class Document:
    """Holds the links of a Markdown file with their lines, and its anchors as GitHub makes them."""

    INLINE = re.compile(r"\]\(\s*<?([^)\s>]+)>?(?:\s+\"[^\"]*\")?\s*\)")
    TARGET = re.compile(r"^ {0,3}\[[^\]]+\]:\s*<?([^\s>]+)>?")
    BARE = re.compile(r"<(https?://[^>\s]+)>")

    def __init__(self, text):
        self.links, self.anchors = [], set()
        fence = None
        for number, line in enumerate(text.splitlines(), 1):
            edge = re.match(r" {0,3}(```+|~~~+)", line)
            if edge and fence is None:
                fence = edge[1]
                continue
            if fence is not None:
                if edge and edge[1].startswith(fence):
                    fence = None
                continue
            if heading := re.match(r"#{1,6}\s+(.*?)\s*#*$", line):
                self.anchor(heading[1])
            for anchor in re.findall(r"<a (?:id|name)=\"([^\"]+)\"", line):
                self.anchors.add(anchor)
            # Code is removed: it may be the text of a link, but it holds no links.
            line = re.sub(r"`+[^`]*`+", "", line)
            for pattern in (self.INLINE, self.TARGET, self.BARE):
                self.links += [(number, link) for link in pattern.findall(line)]

    def anchor(self, heading):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        unique, copies = slug, 0
        while unique in self.anchors:
            copies += 1
            unique = f"{slug}-{copies}"
        self.anchors.add(unique)


KINDS = {".html": Page, ".md": Document}

# ===== the check =====


class Check:
    def __init__(self, docs):
        self.docs = pathlib.Path(docs)
        self.known = {}
        self.links = 0
        self.faults = []

    def read(self, path):
        """Returns the links and anchors of a page or document; None for a file of another kind."""
        path = path.resolve()
        if path not in self.known:
            kind = KINDS.get(path.suffix)
            self.known[path] = kind and kind(path.read_text())
        return self.known[path]

    def file(self, path):
        for line, link in self.read(path).links:
            self.links += 1
            if why := self.objection(path, link):
                self.faults.append((str(path), line, link, why))

    def objection(self, source, link):
        """Returns why a link is dead; None if it leads somewhere or is not checked."""
        if ours := OURS.match(link):
            # A link to the crate's front page on docs.rs has no path.
            if not (ours["path"] or "").strip("/"):
                return None
            target = self.docs / urllib.parse.unquote(ours["path"]).strip("/")
            anchor = ours["anchor"]
        elif re.match(r"[a-z][a-z0-9+.-]*:|//", link, re.IGNORECASE):
            return None
        elif re.fullmatch(r"\w+(::\w+)+", link):
            # The docs of a foreign trait, shown with its impl, name a path that rustdoc could not
            # resolve. It reports those of this crate itself.
            return None
        else:
            path, _, anchor = link.partition("#")
            path = urllib.parse.unquote(path.partition("?")[0])
            target = source.parent / path if path else source
        if target.is_dir() and target.resolve().is_relative_to(self.docs.resolve()):
            target /= "index.html"
        if not target.exists():
            return f"there is no {target}"
        held = self.read(target) if target.is_file() else None
        if not anchor or held is None:
            return None
        # A range of lines in a source page: each end is an anchor.
        ends = anchor.split("-") if re.fullmatch(r"\d+-\d+", anchor) else [anchor]
        for end in ends:
            # As browsers do it: the fragment as it is written, or else decoded.
            if end not in held.anchors and urllib.parse.unquote(end) not in held.anchors:
                return f"{target} has no anchor `{end}`"
        return None


def run(documents, docs, more):
    check = Check(docs)
    pages = []
    for tree in [docs, *more]:
        found = sorted((pathlib.Path(tree) / "tower_breaker").rglob("*.html"))
        if not found:
            sys.exit(f"{tree} has no pages of tower_breaker: run `cargo doc --no-deps --all-features` first")
        pages += found
    for path in [*documents, *pages]:
        check.file(pathlib.Path(path))
    return check, len(documents) + len(pages)


# ===== the check of the check =====

PLANTED = {
    "README.md": """# A title, with `code`

[good](CHANGELOG.md) [good](CHANGELOG.md#added) [good](#a-title-with-code) [good](#twice-1)
[good](https://docs.rs/tower-breaker/latest/tower_breaker/guide/order/)
[good](https://docs.rs/tower-breaker/latest/tower_breaker/guide/order/#retries)
[good](https://docs.rs/tower-breaker) [good](https://docs.rs/tower/9/none) [good](src)
[`code`](gone.md) and [gone](CHANGELOG.md#gone) and [gone](#gone)
[gone](https://docs.rs/tower-breaker/latest/tower_breaker/guide/gone/)
[gone](https://docs.rs/tower-breaker/latest/tower_breaker/guide/order/#gone)
<https://docs.rs/tower-breaker/latest/tower_breaker/struct.Gone.html> `[no link](gone.rs)`

## Twice
## Twice

```text
[no link](gone.txt)
```

[target]: gone.toml
""",
    "CHANGELOG.md": "### Added\n",
    "src/lib.rs": "",
    "doc/src/tower_breaker/lib.rs.html": '<a id="1"></a><a id="2"></a>',
    "doc/tower_breaker/index.html": """<a id=top href="guide/order/index.html#retries">good</a>
<a href="#top">good</a> <a href="../src/tower_breaker/lib.rs.html#1-2">good</a> <a href="guide/">good</a>
<a href="other::Path">foreign</a> <a id="impl-From%3CT%3E" href="#impl-From%3CT%3E">good</a> <a id="é" href="#%C3%A9">good</a>
<a href="https://example.com/gone">external</a> <a href="javascript:void(0)">none</a>
<a href="struct.Gone.html">gone</a> <a href="guide/order/index.html#gone">gone</a>
<a href="../src/tower_breaker/lib.rs.html#1-3">gone</a> <a href="#gone">gone</a>
<a href="https://docs.rs/tower-breaker/latest/tower_breaker/http/">gone</a>
""",
    "doc/tower_breaker/guide/index.html": "",
    "doc/tower_breaker/guide/order/index.html": '<h2 id="retries"></h2>',
}
DEAD = [
    ("README.md", 7, "gone.md"),
    ("README.md", 7, "CHANGELOG.md#gone"),
    ("README.md", 7, "#gone"),
    ("README.md", 8, "https://docs.rs/tower-breaker/latest/tower_breaker/guide/gone/"),
    ("README.md", 9, "https://docs.rs/tower-breaker/latest/tower_breaker/guide/order/#gone"),
    ("README.md", 10, "https://docs.rs/tower-breaker/latest/tower_breaker/struct.Gone.html"),
    ("README.md", 19, "gone.toml"),
    ("index.html", 5, "struct.Gone.html"),
    ("index.html", 5, "guide/order/index.html#gone"),
    ("index.html", 6, "../src/tower_breaker/lib.rs.html#1-3"),
    ("index.html", 6, "#gone"),
    ("index.html", 7, "https://docs.rs/tower-breaker/latest/tower_breaker/http/"),
]


def self_test():
    with tempfile.TemporaryDirectory() as folder:
        root = pathlib.Path(folder)
        for name, content in PLANTED.items():
            (root / name).parent.mkdir(parents=True, exist_ok=True)
            (root / name).write_text(content)
        check, _ = run([root / "README.md", root / "CHANGELOG.md"], root / "doc", [])
        found = [(pathlib.Path(path).name, line, link) for path, line, link, _ in check.faults]
        for fault in DEAD:
            if fault not in found:
                sys.exit(f"planted, and not found: {fault}")
        for fault in found:
            if fault not in DEAD:
                sys.exit(f"found, and not planted: {fault}")
    print(f"{len(DEAD)} planted dead links: each was found, and no other")


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    check, files = run(DOCUMENTS, sys.argv[1], sys.argv[2:])
    for path, line, link, why in check.faults:
        print(f"{path}:{line}: `{link}`: {why}")
    print(f"{files} files, {check.links} links, {len(check.faults)} of them dead")
    sys.exit(1 if check.faults else 0)


main()
