"""MkDocs hook: README.md, CONTRIBUTING.md and CHANGELOG.md are pages too, without a copy of them.

Links between them and docs/ are written as GitHub reads them; here they are turned.
"""

from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "CHANGELOG.md": "changelog.md",
}


def on_files(files, config):
    """Add the pages of the root folder."""
    for name, page in PAGES.items():
        text = (ROOT / name).read_text(encoding="utf-8").replace("](docs/", "](")
        files.append(File.generated(config, page, content=_linked(text, "](")))
    return files


def on_page_markdown(markdown, page, config, files):
    """Turn the links of docs/ to the root folder."""
    return _linked(markdown, "](../")


def _linked(text, start):
    for name, page in PAGES.items():
        text = text.replace(start + name, "](" + page)
    return text
