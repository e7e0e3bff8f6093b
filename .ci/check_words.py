"""What the compiler does not check: one meaning for one public name, no circles of files, short lines of prose."""

import re
import sys
from collections import defaultdict
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Every crate may have one of these.
SHARED_NAMES = {"Args", "Config", "Error", "Options", "Result", "Settings"}
# A stream of text is made by the tokenizer that it borrows.
CIRCLES = [{"text_stream", "tokenizer"}]
MARKDOWN = ["README.md", "docs/*.md", "bench/*.md"]
COLUMNS, LINES = 100, 200


def code(path):
    """A file without its comments, strings and tests."""
    text = re.split(r"#\[cfg\(test\)\]\s*(?:pub(?:\(crate\))? )?mod \w+ \{", path.read_text())[0]
    text = re.sub(r'"(?:\\.|[^"\\])*"', '""', text)
    return re.sub(r"//.*", "", text)


def public_names():
    places = defaultdict(list)
    for path in sorted(ROOT.glob("crates/*/src/**/*.rs")):
        for name in re.findall(r"^\s*pub (?:struct|enum|trait|type|union) (\w+)", code(path), re.M):
            places[name].append(str(path.relative_to(ROOT)))
    for name, files in places.items():
        if len(files) > 1 and name not in SHARED_NAMES:
            yield f"{name} is a public type in several files: {', '.join(files)}"


def markdown():
    for path in sorted(path for pattern in MARKDOWN for path in ROOT.glob(pattern)):
        lines = path.read_text().splitlines()
        name = path.relative_to(ROOT)
        if len(lines) > LINES:
            yield f"{name} has {len(lines)} lines: split it after {LINES}"
        fenced = False
        for number, line in enumerate(lines, 1):
            fenced ^= line.lstrip().startswith("```")
            is_prose = not fenced and not line.lstrip().startswith("|")
            if is_prose and len(line) > COLUMNS:
                yield f"{name}:{number} has {len(line)} columns: wrap it at {COLUMNS}"


def comments():
    """Prose of comments that is too long: not tables, addresses, and what is fenced or indented."""
    for path in sorted(path for folder in ("crates", "fuzz") for path in (ROOT / folder).glob("**/*.rs")):
        if {"fixtures", "target"} & set(path.parts):
            continue
        fenced = False
        for number, line in enumerate(path.read_text().splitlines(), 1):
            text = re.match(r"\s*//[/!]?(?: |$)(.*)", line)
            fenced = bool(text) and fenced ^ text[1].startswith("```")
            is_prose = text and not fenced and re.match(r"[^ |]", text[1]) and "http" not in line
            if is_prose and len(line) > COLUMNS:
                yield f"{path.relative_to(ROOT)}:{number}: a comment of {len(line)} columns"


def expand(tree, prefix=()):
    """The paths of a use tree: a::{b, c::d} is a::b and a::c::d, each with the name it is known by."""
    tree = tree.strip()
    start = tree.find("{")
    if start < 0:
        path, _, name = tree.partition(" as ")
        path = prefix + tuple(part.strip() for part in path.split("::"))
        path = path[:-1] if path[-1] == "self" else path
        yield path, name.strip() or path[-1]
        return
    prefix += tuple(part.strip() for part in tree[:start].split("::") if part.strip())
    depth, part = 0, ""
    for letter in tree[start + 1 : tree.rindex("}")] + ",":
        depth += (letter == "{") - (letter == "}")
        if letter == "," and depth == 0:
            if part.strip():
                yield from expand(part, prefix)
            part = ""
        else:
            part += letter


class Crate:
    def __init__(self, source):
        self.code, self.uses = {}, {}
        for path in source.rglob("*.rs"):
            parts = list(path.relative_to(source).with_suffix("").parts)
            if "tests" not in parts:
                parts = parts[:-1] if parts[-1] in ("lib", "main", "mod") else parts
                self.code[tuple(parts)] = code(path)
        for module, text in self.code.items():
            trees = re.findall(r"^\s*(?:pub(?:\([^)]*\))? )?use ([^;]+);", text, re.M)
            found = [use for tree in trees for use in expand(tree)]
            self.uses[module] = [(self.absolute(module, path), name) for path, name in found]

    def absolute(self, module, path):
        """A path from the crate's root; none if it leaves the crate."""
        if path[0] == "crate":
            return path[1:]
        if path[0] in ("self", "super"):
            up = sum(part == "super" for part in path)
            rest = tuple(part for part in path if part not in ("self", "super"))
            return module[: len(module) - up] + rest
        return module + path if module + path[:1] in self.code else None

    def home(self, path, seen=()):
        """The module of what a path names, through what modules import and pass on."""
        if path in self.code or path in seen or not path:
            return path
        module = next(path[:n] for n in range(len(path) - 1, -1, -1) if path[:n] in self.code)
        name = path[len(module)]
        for target, known in self.uses[module]:
            if target is not None and known == name:
                return self.home(target + path[len(module) + 1 :], seen + (path,))
        return module

    def edges(self, module):
        paths = [path for path, _ in self.uses[module] if path is not None]
        inline = re.findall(r"\b((?:crate|super|self)(?:::\w+)+)", self.code[module])
        paths += [self.absolute(module, tuple(path.split("::"))) for path in inline]
        # A child may take from its parent what the parent is about.
        ancestors = {module[:n] for n in range(len(module) + 1)}
        return {self.home(path) for path in paths if path is not None} - ancestors

    def circles(self):
        """Modules that reach each other, by what each reaches."""
        edges = {module: self.edges(module) & self.code.keys() for module in self.code}
        reach = {}
        for module in edges:
            reach[module], todo = set(), list(edges[module])
            while todo:
                if (at := todo.pop()) not in reach[module]:
                    reach[module].add(at)
                    todo += edges[at]
        circles = {frozenset(b for b in reach[a] if a in reach[b]) for a in edges if a in reach[a]}
        return sorted(sorted("::".join(module) or "(root)" for module in found) for found in circles)


def circles():
    for source in sorted(ROOT.glob("crates/*/src")):
        for circle in Crate(source).circles():
            if set(circle) not in CIRCLES:
                yield f"{source.parent.name} has a circle of files: {', '.join(circle)}"


faults = [*public_names(), *markdown(), *comments(), *circles()]
print("\n".join(faults) or "one meaning a name, no circles, short lines")
sys.exit(bool(faults))
