"""What the book is made of beside docs/*.md (mkdocs calls these): README, CONTRIBUTING and CHANGELOG, the files of the
repository that pages link to, the notebooks, and the reference.

A link in a page is written as it works in the repository: `[`Warc.read`](../stages/read/warc.py)`. In the book the file
is a page of its own, and where the text of the link is a name in it, the link goes to its line.
"""

from __future__ import annotations

import ast
import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(Path(__file__).parent)]
import notebooks  # noqa: E402
import reference  # noqa: E402

ELSEWHERE = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
# What the theme loads from a server so that search works from disk; ours is docs/site/worker.js.
SHIM = re.compile(r'<script src="https://unpkg.com/iframe-worker[^"]*"></script>')
BARE = re.compile(r"\[([\w/.]+\.md)\](?=\(([^)\s#]+)\))")  # a link whose text is its path
LINK = re.compile(r"(?<=\]\()(?!\w+:|#)([^)\s#]+)(#[^)\s]*)?(?=\))")
CODE = "code/"
LEXERS = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".css": "css", ".js": "javascript"}


def place_of(path: str) -> str:
    """Where a file of the repository is in the book."""
    if path in ELSEWHERE:
        return ELSEWHERE[path]
    if path.startswith("docs/"):
        return re.sub(r"\.ipynb$", ".md", path.removeprefix("docs/"))
    return f"{CODE}{path}.md"


def file_of(place: str) -> str:
    """The file of the repository that a page is made of."""
    return next((path for path, there in ELSEWHERE.items() if there == place), f"docs/{place}")


def linked(text: str, file: str) -> set[str]:
    """Files of the repository that a page links to."""
    return {posixpath.normpath(posixpath.join(posixpath.dirname(file), path)) for path, _ in LINK.findall(text)}


def moved(text: str, file: str) -> str:
    """The page with its links as the book has them."""
    here = posixpath.dirname(place_of(file))

    def link(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(file), match[1]))
        inside = target.startswith("docs/") or target in ELSEWHERE or (ROOT / target).is_file()
        place = posixpath.relpath(place_of(target), here or ".") if inside else match[1]
        return place + (match[2] or "")

    def titled(match: re.Match[str]) -> str:
        path = ROOT / posixpath.normpath(posixpath.join(posixpath.dirname(file), match[2]))
        return f"[{title_of(path)}]" if path.is_file() else match[0]

    return LINK.sub(link, BARE.sub(titled, text))


def title_of(path: Path) -> str:
    return re.findall(r"^# (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)[0]


def code_page(path: str) -> str:
    """A file of the repository as a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    fence = "`" * (3 + max((len(run) for run in re.findall(r"`{3,}", text)), default=0))
    lexer = LEXERS.get(Path(path).suffix, "text")
    return (
        f'---\nsearch: {{exclude: true}}\nhide: [toc]\n---\n# {path}\n\n{fence}{lexer} linenums="1"\n{text}\n{fence}\n'
    )


def on_files(files: Files, config: Any) -> Files:
    pages = {
        **{f"docs/{file.src_uri}": file.content_string for file in files.documentation_pages()},
        **{path: (ROOT / path).read_text(encoding="utf-8") for path in ELSEWHERE},
        **{f"docs/reference/{name}.md": text for name, text in reference.pages().items()},
        **{f"docs/notebooks/{name}.md": notebooks.page(name) for name in notebooks.ORDER},
    }
    code = sorted({target for file, text in pages.items() for target in linked(text, file)})
    for path in code:
        if not path.startswith("docs/") and path not in ELSEWHERE and (ROOT / path).is_file():
            files.append(File.generated(config, place_of(path), content=code_page(path)))
    for file, text in pages.items():
        if files.get_file_from_path(place_of(file)) is None:
            files.append(File.generated(config, place_of(file), content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    place = page.file.src_uri
    return markdown if place.startswith(CODE) else moved(markdown, file_of(place))


def lines_of(path: str) -> dict[str, int]:
    """The lines of functions, classes and methods (`Warc.read`) of a module."""
    lines: dict[str, int] = {}

    def visit(node: ast.AST, before: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.ClassDef):
                lines.setdefault(f"{before}{child.name}", child.lineno)
                visit(child, f"{before}{child.name}.")

    visit(ast.parse((ROOT / path).read_text(encoding="utf-8")), "")
    return lines


def on_page_content(html: str, page: Any, config: Any, files: Files) -> str:
    def to_line(match: re.Match[str]) -> str:
        path = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), match[1]))
        line = lines_of(path.removeprefix(CODE)).get(match[2].removesuffix("()"))
        anchor = f"#__codelineno-0-{line}" if line else ""
        return f'<a href="{match[1]}.html{anchor}"><code>{match[2]}</code></a>'

    return re.sub(r'<a href="([^"]*\bcode/[^"]+\.py)\.html"><code>([\w.()]+)</code></a>', to_line, html)


def on_post_page(output: str, page: Any, config: Any) -> str:
    shim = posixpath.relpath("site/worker.js", posixpath.dirname(page.file.dest_uri) or ".")
    named = output.replace('role="dialog"', 'role="dialog" aria-label="Search"', 1)  # the theme's dialog has no name
    return SHIM.sub(f'<script src="{shim}"></script>', named)


def on_post_template(output: str, template_name: str, config: Any) -> str:
    return SHIM.sub("", output)
