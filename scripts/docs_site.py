"""A hook of mkdocs: lets the documents link to any file of the repository, on the site as in a repository browser.

mkdocs publishes docs/ only. Before the build, this hook adds the documents of the root folder as pages (README.md is
the first page), and one page with the text of every other file that a document links to. Then it rewrites those links.
"""

import re
from pathlib import Path
from posixpath import relpath
from typing import Final

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT: Final = Path(__file__).parent.parent
DOCS: Final = "docs/"
ROOT_PAGES: Final = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
SITE_TO_ROOT: Final = {page: name for name, page in ROOT_PAGES.items()}

CODE: Final = re.compile(r"(^ *(?:`{3,}|~{3,}).*?^ *(?:`{3,}|~{3,}) *$)", re.MULTILINE | re.DOTALL)
LINK: Final = re.compile(r"(\]\(|src=\"|srcset=\"|href=\")(?![a-z][a-z0-9+.-]*:|#)([^)\s\"#]+)")
PICTURE: Final = re.compile(
    r"<picture>\s*<source [^>]*srcset=\"(?P<dark>[^\"]+)\">\s*"
    r"<img src=\"(?P<light>[^\"]+)\"(?P<rest>[^>]*)>\s*</picture>"
)
LANGUAGES: Final = {".py": "python", ".sh": "bash", ".toml": "toml"}


def prose_of(markdown: str) -> list[str]:
    """The document in pieces; every second piece is a block of code."""
    return CODE.split(markdown)


def repository_path(site_path: str) -> str:
    """Where the source of a page is in the repository."""
    return SITE_TO_ROOT.get(site_path, DOCS + site_path)


def linked_path(document: str, link: str) -> str | None:
    """The file or folder of the repository that a link of a document leads to; None if there is none."""
    target = (ROOT / document).parent / link
    inside = target.exists() and target.resolve().is_relative_to(ROOT.resolve())
    return target.resolve().relative_to(ROOT.resolve()).as_posix() if inside else None


def site_path(path: str) -> str:
    """The page or file of the site that shows a file of the repository."""
    if path.startswith(DOCS):
        return path.removeprefix(DOCS)
    visible = "/".join(part.lstrip(".") for part in path.split("/"))  # mkdocs leaves hidden files out
    return ROOT_PAGES.get(path, f"files/{visible}.md")


def text_page(path: str) -> str:
    """A page that shows one file of the repository, or lists one folder."""
    there = ROOT / path
    head = f"---\nsearch:\n  exclude: true\n---\n\n# {path}\n\n"
    if there.is_dir():
        return head + "".join(f"- `{file.name}`\n" for file in sorted(there.iterdir()) if file.is_file())
    return f"{head}`````{LANGUAGES.get(there.suffix, 'text')}\n{there.read_text(encoding='utf-8')}\n`````\n"


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add the documents of the root folder, and a page for each file outside docs/ that a document links to."""
    documents = [*ROOT_PAGES, *(repository_path(file.src_uri) for file in files.documentation_pages())]
    linked: set[str] = set()
    for document in documents:
        for piece in prose_of((ROOT / document).read_text(encoding="utf-8"))[::2]:
            linked |= {path for _, link in LINK.findall(piece) if (path := linked_path(document, link))}
    for name, page in ROOT_PAGES.items():
        files.append(File.generated(config, page, content=(ROOT / name).read_text(encoding="utf-8")))
    for path in sorted(linked):
        if not path.startswith(DOCS) and path not in ROOT_PAGES:
            files.append(File.generated(config, site_path(path), content=text_page(path)))
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Point the links of a page at pages of the site, and show the picture that suits the colours of the site."""
    here = page.file.src_uri
    if here.startswith("files/"):
        return markdown
    document = repository_path(here)

    def on_site(found: re.Match[str]) -> str:
        path = linked_path(document, found[2])
        return found[0] if path is None else found[1] + relpath(site_path(path), str(Path(here).parent))

    pieces = prose_of(markdown)
    pieces[::2] = [LINK.sub(on_site, PICTURE.sub(both_pictures, piece)) for piece in pieces[::2]]
    return "".join(pieces)


def both_pictures(found: re.Match[str]) -> str:
    """A drawing for light and one for dark, of which the theme shows one."""
    light, dark = (f'<img src="{found[which]}#only-{which}"{found["rest"]}>' for which in ("light", "dark"))
    return light + dark
