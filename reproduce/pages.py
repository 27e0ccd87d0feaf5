"""A paper's pages: what stands between an item's two marks, and its data files."""

from __future__ import annotations

import csv
import io
import re
from pathlib import Path

__all__ = ["as_csv", "page_with", "pages_of", "publish", "shown", "update_page"]

#: The short page of a paper, its tables and figures, and what we added.
PAGES = ("README.md", "details.md", "ours.md")
#: Where a paper's data files are, in its folder.
TABLES = "tables"

_TABLE = re.compile(r"(?:^\|.*(?:\n|\Z))+", re.M)
# results have the time and the machine too
_MEASURED = re.compile(r"\s*Measured in [^\n]*?flwr [\d.]+\.")
_LINK = re.compile(r"\[([^\]]*)\]\([^)]*\)")


def pages_of(folder: Path) -> list[Path]:
    """The pages that a paper has."""
    return [folder / name for name in PAGES if (folder / name).is_file()]


def page_with(folder: Path, name: str) -> Path:
    """The page that has an item's two marks.

    Raises
    ------
    ValueError
        None or several have them.
    """
    marked = [p for p in pages_of(folder) if f"<!-- {name} -->" in p.read_text("utf-8")]
    if len(marked) != 1:
        raise ValueError(f"{len(marked)} pages of {folder.name} have <!-- {name} -->")
    return marked[0]


def update_page(page: Path, name: str, text: str) -> None:
    """Put an item's Markdown between its two marks in a page."""
    start, end = f"<!-- {name} -->", f"<!-- end {name} -->"
    whole = page.read_text(encoding="utf-8")
    if whole.count(start) != 1 or whole.count(end) != 1:
        raise ValueError(f"{page.name} needs {start} and {end}, once each")
    before, rest = whole.split(start)
    _, after = rest.split(end)
    page.write_text(f"{before}{start}\n{text.strip()}\n{end}{after}", encoding="utf-8")


def as_csv(table: str) -> str:
    """A Markdown table as comma-separated values, without its marks."""
    head, _, *rows = table.strip().splitlines()
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in (head, *rows):
        plain = _LINK.sub(r"\1", row.strip()[1:-1]).replace("**", "").replace("`", "")
        cells = re.split(r"(?<!\\)\|", plain)
        writer.writerow(re.sub(r"\\([*|])", r"\1", cell.strip()) for cell in cells)
    return text.getvalue()


def shown(name: str, text: str) -> tuple[str, dict[str, str]]:
    """An item's Markdown as its page has it, and its tables as data files.

    Returns
    -------
    tuple
        The text with a link for each table, and the files' contents by their names.
    """
    found = _TABLE.findall(text)
    files = {}
    for number, table in enumerate(found, 1):
        suffix = f"-{number}" if len(found) > 1 else ""
        file = f"{name}{suffix}.csv"
        files[file] = as_csv(table)
        # captions and headings stay between the links
        link = f"[Table{suffix.replace('-', ' ')}]({TABLES}/{file})\n"
        text = text.replace(table, link, 1)
    return _MEASURED.sub("", text).strip(), files


def publish(folder: Path, name: str, text: str) -> None:
    """Write an item's part of its page, and its data files."""
    short, files = shown(name, text)
    update_page(page_with(folder, name), name, short)
    for file, content in files.items():
        path = folder / TABLES / file
        path.parent.mkdir(exist_ok=True)
        path.write_text(content, encoding="utf-8")
