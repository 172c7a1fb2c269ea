"""The functions and declarations of C++ and CUDA files, as Universal Ctags finds them."""
import dataclasses
import json
import pathlib
import re
import subprocess

# LibTorch's options declare functions by a macro; macro names in the head of a class or function are ignored.
CTAGS = ["ctags", "--quiet", "--options=NONE", "--languages=C++", "--langmap=C++:.h.cpp.cu.cuh", "--output-format=json",
         "--fields=*", "--fields-C++=*", "--kinds-C++=*-lzZLDM", "-D", "TORCH_ARG(type,name)=void name(type);",
         "-I", "NARROWCAST_EXPORT,__launch_bounds__+,__global__,__device__,__host__,__forceinline__", "-L", "-", "-f", "-"]
CLASSES = ("class", "struct", "union", "enum")
KINDS = {"function": "function", "prototype": "function", "variable": "constant", "typedef": "alias", "alias": "alias",
         **{kind: kind for kind in CLASSES}}
MACRO = re.compile(r"[A-Z][A-Z0-9_]+")  # TORCH_LIBRARY(...) {...} and the like are not functions.


@dataclasses.dataclass(slots=True)
class Function:
    name: str
    line: int
    last_line: int
    parameters: list  # Source texts.
    is_pure: bool
    scoped: str  # Its qualified name.
    is_override: bool = False  # Of a virtual function, which has the signature.

    @property
    def lines(self):
        return self.last_line - self.line + 1

    @property
    def positional_bools(self):
        """The parameters that are a bool by value."""
        return [text for text in self.parameters if re.fullmatch(r"(const )?bool( \w+)?( ?=.*)?", text)]


@dataclasses.dataclass(slots=True)
class Declaration:
    kind: str
    name: str
    line: int
    last_line: int  # Last line of its head: a class's body does not count.
    ends: int  # The last line, including the body.
    follows: "Declaration" = None  # The declaration that ends on the line before.


class Outline:
    """The declarations of a file. `functions`: those that it defines or declares as pure virtual. `declarations`: those
    that a user of the file can name, except those that need no comment (overrides, destructors, defaulted or deleted
    ones). `names`: the qualified names of all declarations. `classes`: the qualified names of its classes. `overrides`: the
    qualified names of overrides, with their numbers of parameters."""

    def __init__(self, text, tags):
        self.text = text
        self.lines = text.splitlines()
        self.functions, self.declarations, self.names, self.classes, self.overrides = [], [], set(), set(), set()
        hidden = {scoped(tag) for tag in tags if tag.get("access", "public") != "public" and tag["kind"] in CLASSES}
        for tag in sorted(tags, key=lambda tag: tag["line"]):
            if "__anon" in tag["name"] or MACRO.fullmatch(tag["name"]):
                continue
            self.names.add(scoped(tag))
            if tag["kind"] in CLASSES:
                self.classes.add(scoped(tag))
            self._add_function(tag)
            is_hidden = tag.get("access", "public") != "public" or any(
                f"{tag.get('scope', '')}::".startswith(f"{name}::") for name in hidden)
            if not is_hidden and not needs_no_words(tag):
                self._add_declaration(tag)

    def _add_function(self, tag):
        is_pure = "pure" in properties(tag)
        if tag["kind"] == "function" or tag["kind"] == "prototype" and is_pure:
            self.functions.append(Function(tag["name"].replace(" ", ""), tag["line"], tag.get("end", tag["line"]),
                                           split_parameters(tag.get("signature", "()")), is_pure, scoped(tag)))
        if not {"override", "final"}.isdisjoint(properties(tag)):
            self.overrides.add((scoped(tag), len(split_parameters(tag.get("signature", "()")))))

    def _add_declaration(self, tag):
        is_static_member = tag["kind"] == "member" and "static" in properties(tag)
        kind = "constant" if is_static_member else KINDS.get(tag["kind"])
        if kind is None:
            return
        ends = tag.get("end", tag["line"])
        head_only = tag["kind"] in CLASSES or tag["kind"] == "function"
        declaration = Declaration(kind, tag["name"], tag["line"], tag["line"] if head_only else ends, ends)
        if self.declarations and self.declarations[-1].ends + 1 == declaration.line:
            declaration.follows = self.declarations[-1]
        self.declarations.append(declaration)

    def has_comment(self, declaration):
        """Whether a comment stands directly above the declaration or its `template <...>`, or on one of its lines."""
        above = declaration.line - 2
        while above > 0 and self.lines[above].lstrip().startswith(("template", "requires")):
            above -= 1
        return self.lines[above].lstrip().startswith("//") or any(
            "//" in line for line in self.lines[declaration.line - 1:declaration.last_line])

    def shares_comment(self, declaration):
        """The same, or a declaration directly above it, without a line between them, has a comment."""
        while declaration and not self.has_comment(declaration):
            declaration = declaration.follows
        return declaration is not None

    def is_registered(self, function):
        """Whether the file registers the function as an operator or method, whose schema is its signature."""
        return bool(re.search(rf'\b(impl|def)\("[^"]*", &(\w+::)*{re.escape(function.name)}\b', self.text))


def read(paths):
    """The outlines of files, by path."""
    listed = subprocess.run(CTAGS, input="\n".join(map(str, paths)), check=True, capture_output=True, text=True).stdout
    tags = {path: [] for path in map(str, paths)}
    for line in listed.splitlines():
        tag = json.loads(line)
        if tag["_type"] == "tag":
            tags[tag["path"]].append(tag)
    outlines = {path: Outline(pathlib.Path(path).read_text(), found) for path, found in tags.items()}
    overrides = set().union(*(found.overrides for found in outlines.values()))
    for function in (function for found in outlines.values() for function in found.functions):
        function.is_override = (function.scoped, len(function.parameters)) in overrides
    return outlines


def scoped(tag):
    """A tag's qualified name, without unnamed scopes."""
    path = f"{tag['scope']}::{tag['name']}" if "scope" in tag else tag["name"]
    return "::".join(part for part in path.replace("operator ", "operator").split("::") if not part.startswith("__anon"))


def properties(tag):
    return tag.get("properties", "").split(",")


def needs_no_words(tag):
    return tag["name"].startswith("~") or not {"override", "final", "default", "delete"}.isdisjoint(properties(tag))


def split_parameters(signature):
    """The parameters of a signature, split at the commas outside of brackets."""
    found, depth, text = [], 0, ""
    for symbol in signature[1:]:
        depth += (symbol in "(<[{") - (symbol in ")>]}")
        if depth < 0:
            break
        if symbol == "," and depth == 0:
            found.append(text)
            text = ""
        else:
            text += symbol
    return [parameter.strip() for parameter in (*found, text) if parameter.strip() not in ("", "void")]
