"""What the site needs beyond the Markdown that is read in the repository."""
import pathlib
import posixpath
import re

LINK = re.compile(r"\[([^\]]*)\]\(((?:\.\./)+[^)#:]*)(#[^)]*)?\)")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def on_page_markdown(markdown, *, page, **_):
    """Links to files of the repository that are no pages become the path: the site does not hold these files."""
    def replaced(link):
        label, target, _anchor = link.groups()
        path = posixpath.normpath(posixpath.join("docs", posixpath.dirname(page.file.src_path), target))
        if path.startswith("docs/") and path.endswith((".md", ".svg")):
            return link[0]
        if not (ROOT / path).exists():
            raise FileNotFoundError(f"{page.file.src_path} links to {path}, which does not exist")
        return f"`{path}`" if label.strip("`") in (path, posixpath.basename(path)) else f"{label} (`{path}`)"

    return LINK.sub(replaced, markdown)
