"""The functions and declarations of a C++ or CUDA file, found by its tokens, without a compiler.

Comments, strings, raw strings and preprocessor lines are set aside first. Then heads are collected, a head being what stands
before a `{` or a `;`, and told apart:
  * with `namespace`, or `extern "C"`: a scope that is looked into; class, struct and union likewise;
  * with a parameter list, a `( )` after a name and before any `=`: a function; its body is the `{` after that list and what
    may follow it (const, noexcept, override, -> type, initialisers of members). if, for and lambdas stand inside bodies,
    which are passed over as a whole, so they are never taken for functions and belong to theirs;
  * else the braces of an initialiser.
All branches of an #if are read: each must have balanced braces.
"""
import dataclasses
import re

TOKEN = re.compile(r'''
    (?P<comment>    //(?:\\\n|[^\n])* | /\*.*?\*/ )
  | (?P<raw>        (?:u8|[uUL])?R"(?P<mark>[^()\\\s]{0,16})\(.*?\)(?P=mark)" )
  | (?P<string>     (?:u8|[uUL])?(?:"(?:\\.|[^"\\\n])*"|'(?:\\.|[^'\\\n])*') )
  | (?P<directive>  ^[ \t]*\#(?:\\\n|[^\n])* )
  | (?P<number>     \.?\d(?:[eEpP][+-]|'?[\w.])* )
  | (?P<word>       [A-Za-z_]\w* )
  | (?P<symbol>     ::|->|\S )''', re.DOTALL | re.MULTILINE | re.VERBOSE)
CLOSES = {"(": ")", "[": "]", "{": "}"}
TAKE_BRACKETS = {"alignas", "decltype", "noexcept", "explicit", "requires", "__attribute__", "__launch_bounds__", "throw"}
CLASS_KEYS = {"class", "struct", "union", "enum"}
BEFORE_CLASS = {"typedef", "static", "inline", "constexpr", "const"}


@dataclasses.dataclass(slots=True)
class Token:
    text: str
    line: int
    last_line: int
    inside: list = None  # What stands in brackets, for a token that is a group of them.


@dataclasses.dataclass(slots=True)
class Function:
    name: str
    line: int  # Where its head begins; that of a template after `template <...>`.
    last_line: int
    parameters: list  # Each a list of texts.
    is_registration: bool  # A block such as TORCH_LIBRARY(...) {...}: a macro's name, no type.
    is_pure: bool = False

    @property
    def lines(self):
        return self.last_line - self.line + 1

    @property
    def positional_bools(self):
        """The parameters that are a bool by value."""
        found = [[text for text in parameter if text != "const"] for parameter in self.parameters]
        return [p for p in found if p[0] == "bool" and (len(p) == 1 or p[1] == "=" or p[1].isidentifier())]


@dataclasses.dataclass(slots=True)
class Declaration:
    kind: str
    name: str
    line: int
    last_line: int  # Of its head: a body is not part of it.
    is_public: bool
    is_trivial: bool
    ends: int  # The last line, body included.
    follows: "Declaration" = None  # The one of the same scope that ends on the line before.


@dataclasses.dataclass(slots=True)
class Outline:
    functions: list
    declarations: list
    directives: list
    words: list  # Outside comments, strings and directives.
    names: set  # Qualified, of all that is declared: also of what is not counted, as data and classes only named.
    comment_ends: set  # Lines on which a comment ends.
    comment_only: set  # Lines on which only a comment stands.

    def has_comment(self, declaration):
        """Whether a comment stands directly above a declaration or on one of its lines."""
        lines = range(declaration.line, declaration.last_line + 1)
        return declaration.line - 1 in self.comment_only or any(line in self.comment_ends for line in lines)

    def exemption(self, function):
        """Who else decides a function's signature: the operator that it is registered for, or a library; or None."""
        for i, word in enumerate(self.words):
            if word == "impl" and self.words[i + 1:i + 5] == ["(", '""', ",", "&"] and self.words[i + 5] == function.name:
                return "operators' schemas"
        if function.name == "boolean" and "json_sax" in self.words:
            return "nlohmann's SAX"
        return None

    def shares_comment(self, declaration):
        """The same, or the declarations directly above it, without a line between them, have one."""
        while declaration and not self.has_comment(declaration):
            declaration = declaration.follows
        return declaration is not None


def read(text):
    tokens, directives, comment_lines, code_lines, comment_ends = [], [], set(), set(), set()
    line, position = 1, 0
    for match in TOKEN.finditer(text):
        line += text.count("\n", position, match.start())
        position = match.start()
        token = Token(match.group(), line, line + match.group().count("\n"))
        lines = range(token.line, token.last_line + 1)
        if match.lastgroup == "comment":
            comment_lines.update(lines)
            comment_ends.add(token.last_line)
            continue
        code_lines.update(lines)
        if match["directive"] is not None:
            directives.append(token)
        else:
            if match["string"] is not None or match["raw"] is not None:
                token.text = '""'
            tokens.append(token)
    reader = _Reader(tokens)
    words = [token.text for token in tokens]
    end = reader.scope(0, is_class=False, is_public=True, is_visible=True)
    if end != len(tokens) or words.count("{") != words.count("}"):
        raise ValueError("braces do not match")
    return Outline(reader.functions, reader.declarations, directives, words, reader.names, comment_ends,
                   comment_lines - code_lines)


def split_parameters(tokens):
    """The parameters of a list, each as texts: split at the commas that no bracket encloses."""
    found, depth = [[]], 0
    for token in tokens:
        depth += (token.text == "<") - (token.text == ">")
        if token.text == "," and depth == 0:
            found.append([])
        else:
            found[-1].append(token.text)
    return [parameter for parameter in found if parameter and parameter != ["void"]]


def is_macro(text):
    return re.fullmatch(r"[A-Z][A-Z0-9_]+", text) is not None


def is_group(token, opening="("):
    return token.inside is not None and token.text == opening


class _Reader:
    def __init__(self, tokens):
        self.tokens = tokens
        self.functions = []
        self.declarations = []
        self.names = set()
        self.path = []  # The names of the scopes that are being read.

    def group(self, i):
        """The token at i with what its bracket encloses, and the index after that."""
        first, inside = self.tokens[i], []
        i += 1
        while i < len(self.tokens) and self.tokens[i].text != CLOSES[first.text]:
            if self.tokens[i].text in CLOSES:
                token, i = self.group(i)
                inside.append(token)
            elif self.tokens[i].text in CLOSES.values():
                break
            else:
                inside.append(self.tokens[i])
                i += 1
        if i == len(self.tokens) or self.tokens[i].text != CLOSES[first.text]:
            raise ValueError(f"line {first.line}: nothing closes {first.text}")
        return Token(first.text, first.line, self.tokens[i].last_line, inside), i + 1

    def scope(self, i, *, is_class, is_public, is_visible):
        """Reads the declarations of a namespace or class from i to its end; returns the index after that."""
        head, previous = [], None
        while i < len(self.tokens):
            token = self.tokens[i]
            if token.text == "}":
                return i + 1
            if token.text in (")", "]"):
                raise ValueError(f"line {token.line}: nothing opens {token.text}")
            if token.text == ";":
                previous = self.declare(head, token, is_class, is_public and is_visible, previous)
                head, i = [], i + 1
            elif token.text == "{" and (kind := scope_kind(head)) is not None:
                if kind == "namespace":
                    self.path.append(namespace_name(head))
                    i = self.scope(i + 1, is_class=False, is_public=True, is_visible=is_visible)
                else:
                    previous = self.declare(head, token, is_class, is_public and is_visible, previous)
                    inner = is_public and is_visible
                    self.path.append(describe(head, is_class)[1])
                    i = self.group(i)[1] if kind == "enum" else self.scope(
                        i + 1, is_class=True, is_public=kind != "class", is_visible=inner)
                    self.end_line(previous, i)
                self.path.pop()
                head = []
            elif token.text == "{" and begins_body(head):
                body, i = self.group(i)
                self.functions.append(function_of(head, body.last_line))
                previous = self.declare(head, token, is_class, is_public and is_visible, previous)
                self.end_line(previous, i)
                head = []
            elif token.text == ":" and is_class and len(head) == 1 and head[0].text in ("public", "protected", "private"):
                is_public = head[0].text == "public"
                head, i = [], i + 1
            elif token.text in CLOSES:
                group, i = self.group(i)
                head.append(group)
            else:
                head.append(token)
                i += 1
        return i

    def end_line(self, declaration, i):
        """Notes where the `}` before i is, for what follows directly."""
        if declaration:
            declaration.ends = self.tokens[i - 1].last_line

    def declare(self, head, end, is_class, is_public, previous):
        if not head:
            return previous
        kind, name, trivial = describe(head, is_class)
        if name:
            self.names.add("::".join([scope for scope in self.path if scope] + [name]))
        if kind is None or kind in CLASS_KEYS and end.text == ";":  # The latter only says that there is such a class.
            return None
        declaration = Declaration(kind, name, head[0].line, end.last_line, is_public, trivial, end.last_line)
        if previous and previous.ends + 1 == declaration.line:
            declaration.follows = previous
        self.declarations.append(declaration)
        if kind == "function" and end.text == ";" and [token.text for token in head[-2:]] == ["=", "0"]:
            function = function_of(head, end.last_line)
            function.is_pure = True
            self.functions.append(function)
        return declaration


def after_angles(head, i):
    """The index after the `<...>` that begins at i."""
    depth = 0
    while i < len(head):
        depth += (head[i].text == "<") - (head[i].text == ">")
        i += 1
        if depth == 0:
            break
    return i


def after_constraint(head, i):
    """The index after the constraint that follows a `requires`."""
    while i < len(head):
        if is_group(head[i]):
            i += 1
        else:
            while i < len(head) and (head[i].text == "::" or head[i].text.isidentifier()):
                i += 1
                if i < len(head) and head[i].text == "<":
                    i = after_angles(head, i)
                if i >= len(head) or head[i].text != "::" and head[i - 1].text != "::":
                    break
        if [token.text for token in head[i:i + 2]] not in (["&", "&"], ["|", "|"]):
            return i
        i += 2
    return i


def own_part(head):
    """A head without `template <...>`, constraints, and calls of macros that stand before it."""
    i = 0
    while i + 1 < len(head):
        if head[i].text == "template" and head[i + 1].text == "<":
            i = after_angles(head, i + 1)
        elif head[i].text == "requires":
            i = after_constraint(head, i + 1)
        elif is_macro(head[i].text) and is_group(head[i + 1]) and i + 2 < len(head) and (
                head[i + 2].text.isidentifier() or head[i + 2].text == "["):
            i += 2
        elif is_group(head[i], "["):  # [[nodiscard]]
            i += 1
        else:
            break
    return head[i:]


def scope_kind(head):
    """What kind of scope the `{` after a head opens: "namespace", "class", "struct", "union", "enum", or None."""
    words = [token.text for token in own_part(head)]
    while words and words[0] in BEFORE_CLASS:
        words = words[1:]
    if "namespace" in words[:2] or words == ["extern", '""']:
        return "namespace"
    if words and words[0] in CLASS_KEYS and "=" not in words:
        return words[0]
    return None


def namespace_name(head):
    """What a namespace's head names, as a::b; "" for one without a name and for extern "C"."""
    words = [token.text for token in own_part(head)]
    return "".join(word for word in words if (word.isidentifier() or word == "::") and not is_macro(word)
                   and word not in ("namespace", "inline", "extern"))


def name_index(part, i):
    """The index of the name that the parameter list at i follows: for a specialisation's, that before its `<...>`."""
    i -= 1
    depth = 0
    while i > 0:
        depth += (part[i].text == ">") - (part[i].text == "<")
        if depth == 0 and part[i].text != "<":
            break
        i -= 1
    return i


def parameters_index(part):
    """The index of a function's parameter list in its head; None for what is no function."""
    depth = 0  # Of template arguments: std::function<int(bool)> has no parameters of ours.
    for i, token in enumerate(part):
        if token.text == "operator":
            while i + 1 < len(part) and not is_group(part[i + 1]):
                i += 1
            i += 2 if i + 2 < len(part) and is_group(part[i + 2]) and not part[i + 1].inside else 1  # operator()
            return i if i < len(part) else None
        depth += (token.text == "<") - (token.text == ">")
        if token.text == "=":
            return None
        if is_group(token) and i > 0 and depth == 0:
            before = part[name_index(part, i)].text
            if before.isidentifier() and before not in TAKE_BRACKETS:
                is_pointer = i + 1 < len(part) and is_group(part[i + 1])  # To a function: type (*name)(...).
                return None if is_pointer else i
    return None


def begins_body(head):
    """Whether the `{` after a head begins a function's body, not a value."""
    part = own_part(head)
    i = parameters_index(part)
    if i is None or "=" in (tail := [token.text for token in part[i + 1:]]):
        return False
    # A body follows the brackets of an initialiser (or its `...`); braces after a name are themselves one.
    return ":" not in tail or part[-1].inside is not None or part[-1].text == "."


def function_of(head, last_line):
    part = own_part(head)
    i = parameters_index(part)
    name = part[name_index(part, i)].text
    if i > 1 and part[i - 2].text == "~":
        name = "~" + name
    for k in range(i):
        if part[k].text == "operator":
            name = "".join(["operator", *(token.text for token in part[k + 1:i])]).replace("operator(", "operator()")
    return Function(name, part[0].line, last_line, split_parameters(part[i].inside),
                    is_registration=i == 1 and is_macro(name))


def describe(head, is_class):
    """The kind and name of what a head declares, and whether it needs no words; kind None for what is not counted."""
    part = own_part(head)
    words = [token.text for token in part]
    if not words or words[0] in ("friend", "static_assert", "template", "extern", "namespace"):
        return None, "", False
    if words[0] in ("using", "typedef"):
        return ("alias", words[1], False) if "=" in words or words[0] == "typedef" else (None, "", False)
    kind = scope_kind(head)
    if kind is not None:
        while part[0].text in BEFORE_CLASS:
            part = part[1:]
        names = []
        for token in part[1:]:
            if token.text == ":":
                break
            if token.text.isidentifier() and token.text not in CLASS_KEYS | {"final", "alignas"}:
                names.append(token.text)
        return kind, names[-1] if names else "", False
    if words[0] in CLASS_KEYS:
        return None, "", False
    if is_macro(words[0]) and len(part) > 1 and is_group(part[1]):
        return "macro", f"{words[0]}({''.join(token.text for token in part[1].inside)})", False
    i = parameters_index(part)
    if i is not None:
        tail = words[i + 1:]
        trivial = "override" in tail or "final" in tail or part[max(i - 2, 0)].text == "~" or (
            tail[-2:] in (["=", "default"], ["=", "delete"]))
        return "function", function_of(head, 0).name, trivial
    if words[0] == "concept":
        return "constant", words[1], False
    name = next((words[k - 1] for k, text in enumerate(words) if text in ("=", "{", "[")), words[-1])
    if not is_class or "constexpr" in words:
        return "constant", name, False
    return None, name, False  # A member that is data.
