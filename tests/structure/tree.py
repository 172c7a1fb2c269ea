"""The tree for check_layers and measure: its C++ and CUDA files, its public headers, and its includes."""
import collections
import pathlib
import re
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[2]
PRODUCT = ("ops", "hooks", "models", "trainer", "python")
INCLUDE = re.compile(r'^\s*#\s*include\s*(?:"([^"]+)"|<([^>]+)>)', re.MULTILINE)
NO_USER_HAS = re.compile(r"^(nlohmann|absl|gloo|hwy|openssl)/")


def listed(*patterns):
    """The files that git tracks, or would track, as paths from the root."""
    names = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *patterns],
                           cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    return [name for name in names if (ROOT / name).exists()]


def sources():
    """The files of the product and of the tests."""
    return [name for name in listed("*.h", "*.cpp", "*.cu", "*.cuh") if name.split("/")[0] in (*PRODUCT, "tests")]


def layer_of(name):
    parts = name.split("/")
    is_below = parts[0] == "trainer" and len(parts) > 2 or parts[:2] == ["ops", "common"]
    return "/".join(parts[:2]) if is_below else parts[0]


def public_headers(names):
    """The path of each public header, by its name in includes."""
    found = {}
    for name in names:
        folder, _, header = name.partition("/include/narrowcast/")
        if header:
            found[f"narrowcast/{header}"] = name
    return found


def folder_of(name):
    return str(pathlib.Path(name).parent)


def includes_of(name, text, public, errors):
    """The files of ours that a file includes."""
    found = []
    is_public = name in public.values()
    for quoted, bracketed in INCLUDE.findall(text):
        # Every quoted include is a path from the root, except `#include HWY_TARGET_INCLUDE`.
        if quoted and not (ROOT / quoted).exists():
            errors.append(f"{name}: includes \"{quoted}\", which is not a path from the project's root")
        elif quoted and quoted in public.values():
            errors.append(f"{name}: includes \"{quoted}\": public headers are included as <narrowcast/...>")
        elif quoted:
            found.append(quoted)
        elif bracketed in public:
            found.append(public[bracketed])
        elif bracketed.startswith("narrowcast/"):
            errors.append(f"{name}: includes <{bracketed}>, which is not a public header")
        if is_public and (quoted or NO_USER_HAS.match(bracketed)):
            errors.append(f"{name}: is public, but includes {quoted or bracketed}")
    return found


def folder_graph(graph):
    """The folders of the product that each of its folders includes, from the files that each file includes."""
    folders = collections.defaultdict(dict)  # Dictionaries as ordered sets.
    for name, targets in graph.items():
        for target in targets:
            if layer_of(name) != "tests" and folder_of(target) != folder_of(name):
                folders[folder_of(name)][folder_of(target)] = None
    return folders


def find_circle(graph):
    """Returns one circle of the include graph as a list of files, or None."""
    state, path = {}, []

    def visit(node):
        state[node] = "open"
        path.append(node)
        for target in graph.get(node, ()):
            if state.get(target) == "open":
                return path[path.index(target):] + [target]
            if target not in state:
                circle = visit(target)
                if circle:
                    return circle
        state[node] = "done"
        path.pop()
        return None

    for node in list(graph):
        if node not in state:
            circle = visit(node)
            if circle:
                return circle
    return None
