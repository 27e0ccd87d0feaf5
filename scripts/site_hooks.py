"""What MkDocs is told beyond its pages: hooks named in mkdocs.yml.

The pages in docs/ are written for a code host, where a link may lead anywhere in the
repository. The site has to stand alone, so what they link to comes along: README and
its like as pages, source files as pages of code, folders as lists. The API reference is
made from the public packages' ``__all__``, tables of settings from the declarations,
for a page of their own and below the pages of methods (``extra.settings`` in
mkdocs.yml).
"""

from __future__ import annotations

import ast
import inspect
import os
import posixpath
import re
import shutil
import sys
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
if str(ROOT) not in sys.path:
    sys.path.insert(0, str(ROOT))

#: The packages whose ``__all__`` is the public API, with what stands over each.
PUBLIC = {
    "fedtrellis": "What a program needs besides a method.",
    "fedtrellis.strategies": "The server's half of every method.",
    "fedtrellis.clients": "The client's half of every method.",
    "fedtrellis.domains": "Convex sets, for methods with a constraint.",
    "fedtrellis.domains.atoms": "What a set's oracle returns, for sets of your own.",
    "fedtrellis.manifolds": "Manifolds, for the Riemannian methods.",
    "fedtrellis.objectives": "Losses that a client holds.",
    "fedtrellis.objectives.torch_objective": "Any PyTorch module as a loss.",
    "fedtrellis.trackers": "Runs told to the tools that people watch them with.",
    "fedtrellis.zeroth_order": "Gradients from function values.",
    "fedtrellis.estimators": "Linear models in scikit-learn's manner.",
    "fedtrellis.app": "Apps for run configs, and plug-ins.",
    "fedtrellis.runs": "Records of runs.",
}

# what methods add to their base classes is the methods' own affair
_HALVES = {"fedtrellis.strategies", "fedtrellis.clients"}

_PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md")
_FOLDERS = ("examples/*/README.md", "reproduce/*.md", "reproduce/*/*.md")
_LANGUAGES = {".py": "python", ".toml": "toml", ".sh": "bash", ".json": "json"}
# who searches looks for pages first, not for the sources that come with them
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n\n"
_BOOSTS = {"api": 1.0, "examples": 1.0, "reproduce": 1.0, "CHANGELOG.md": 0.2}
# a longer file is named, not shown
_MOST_CHARACTERS = 120_000

_LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\[\]]*\])*)\]\(([^)#:\s]*)(#[^)\s]+)?\)")
_FENCE = re.compile(r"(^```.*?^```$)", re.M | re.S)


# ---------------------------------------------------------------- repository and site


def site_path(path: str) -> str:
    """Where a file of the repository stands among the site's sources.

    Parameters
    ----------
    path : str
        Relative to the repository's root, with ``/``.

    Returns
    -------
    str
        Relative to the folder of pages: docs/ is its root, README.md its first page,
        and what is no page or picture becomes one, under source/.
    """
    if path == "README.md":
        return "index.md"
    if path.startswith("docs/") and not path.endswith(".py"):
        return path.removeprefix("docs/")
    if path.endswith((".md", ".png", ".svg")):
        return path
    return f"source/{path}.md"


def repository_path(site: str) -> str:
    """Inverse of :func:`site_path`, for pages."""
    if site == "index.md":
        return "README.md"
    if site in _PAGES or site.startswith(("examples/", "reproduce/")):
        return site
    return f"docs/{site}"


def links(page: str) -> Iterator[str]:
    """What a page of the repository links to inside it, relative to the root."""
    text = _FENCE.sub("", (ROOT / page).read_text(encoding="utf-8"))
    for _, _, target, _ in _LINK.findall(text):
        if target:
            yield _target(page, target)


def _target(page: str, link: str) -> str:
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), link))
    folder = ROOT / path
    # a code host shows a folder's README
    return f"{path}/README.md" if (folder / "README.md").is_file() else path


def outside_pages() -> list[str]:
    """Pages of the repository outside docs/ that the site has."""
    found = [p.relative_to(ROOT).as_posix() for g in _FOLDERS for p in ROOT.glob(g)]
    return [*_PAGES, *sorted(found)]


def companions() -> list[str]:
    """What pages link to that is no page, inside the repository."""
    inside = [p.relative_to(ROOT).as_posix() for p in (ROOT / "docs").rglob("*.md")]
    pages = [*outside_pages(), *inside]
    linked = {path for page in pages for path in links(page)}
    return sorted(
        path
        for path in linked - set(pages)
        if (ROOT / path).exists()
        and (not path.startswith("docs/") or path.endswith(".py"))
    )


def _source_page(path: str) -> str:
    """A source file, or a folder's list, as a page."""
    full = ROOT / path
    if full.is_dir():
        names = sorted(p.name + "/" * p.is_dir() for p in full.iterdir())
        listed = "\n".join(f"- `{n}`" for n in names if not n.startswith(("_", ".")))
        where = "In the repository, not on this site:"
        return f"{_UNSEARCHED}# {path}/\n\n{where}\n\n{listed}\n"
    try:
        text: str | None = full.read_text(encoding="utf-8")
    except UnicodeDecodeError:  # not text
        text = None
    if text is None or len(text) > _MOST_CHARACTERS:
        return f"{_UNSEARCHED}# {path}\n\nIn the repository, not on this site.\n"
    language = _LANGUAGES.get(full.suffix, "text")
    return f"{_UNSEARCHED}# {path}\n\n`````{language}\n{text}\n`````\n"


# ------------------------------------------------------------------------ public names


@cache
def _module(package: str) -> Any:
    """A public package, or None where it needs a library that is not installed."""
    try:
        return import_module(package)
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] == "fedtrellis":
            raise
        return None


@cache
def public_names(package: str) -> tuple[str, ...]:
    """A public package's names, without its version."""
    module = _module(package)
    names = _listed(package) if module is None else module.__all__
    return tuple(name for name in names if not name.startswith("__"))


def _listed(package: str) -> list[str]:
    """What ``__all__`` lists, from the source."""
    spec = find_spec(package)
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse(Path(spec.origin).read_text(encoding="utf-8"))
    (names,) = (
        ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    )
    return list(names)


def _api_title(package: str) -> str:
    return f"`{package}`"


def _api_index() -> str:
    rows = "\n".join(
        f"| [`{package}`]({package}.md) | {about} | "
        + ", ".join(
            f"[`{name}`]({package}.md#{package}.{name})"
            if _documented(package, name)
            else f"`{name}`"
            for name in public_names(package)
        )
        + " |"
        for package, about in PUBLIC.items()
    )
    return f"""# API

| package | what it is for | names |
| --- | --- | --- |
{rows}

## What stays

These names, their positional arguments and the meaning of their keywords are public.
A keyword may be added, with a default that leaves things as they are. A name that is
moved or removed warns for one minor version before it goes, and
[Changes](../CHANGELOG.md) says so. Below 1.0 a minor version may change a default or a
number that a method finds, and says so there as well. The same holds for run-config
[settings](../settings.md), the command `fedtrellis`, and for records and checkpoints of
the version before.

Every other module, and every name that begins with `_`, may change at any time.
Flower's own versions that are run are those that `pyproject.toml` allows.
"""


def _documented(package: str, name: str) -> bool:
    """Whether it is a class or a function; other values are listed by their kind."""
    module = _module(package)
    if module is None:  # those that need an extra have nothing else
        return True
    thing = getattr(module, name)
    return inspect.isclass(thing) or inspect.isroutine(thing)


def _api_page(package: str, about: str) -> str:
    parts = [f"# {_api_title(package)}", about]
    for name in public_names(package):
        if _documented(package, name):
            entry = f"::: {package}.{name}"
            if package in _HALVES:
                entry += "\n    options: {members: false}"
            parts.append(entry)
        else:
            thing = getattr(_module(package), name)
            kind = type(thing).__name__
            shown = f" of {len(thing)}" if hasattr(thing, "__len__") else f": {thing}"
            parts.append(f"## `{name}` {{#{package}.{name}}}\n\nA {kind}{shown}.")
    return "\n\n".join(parts) + "\n"


# --------------------------------------------------------------------------- settings


@cache
def _registry() -> Any:
    from fedtrellis.app.application import installed_app

    return installed_app().registry


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("*", "\\*").replace("\n", " ")


def settings_table(owner: str) -> str:
    """The settings of one method, task or set; of the run with an empty name.

    Raises
    ------
    KeyError
        There is no such owner, or it has no settings.
    """
    from fedtrellis.settings import describe_fields

    groups = [group for group in _registry().groups if group.owner == owner]
    rows = [row for group in groups for row in describe_fields(group.fields)]
    if not rows:
        raise KeyError(f"nothing has settings under the name {owner!r}")
    lines = ["| key | default | |", "| --- | --- | --- |"]
    lines += [f"| `{key}` | `{value}` | {_cell(told)} |" for key, value, told in rows]
    return "\n".join(lines)


def _settings_page() -> str:
    parts = [
        "# Settings",
        "Every key of a run config, with its default. `python sim.py --list NAME` "
        "prints the same. `auto` is what the task suggests, or what the method finds.",
    ]
    for group in _registry().groups:
        if group.fields:
            title = group.title[:1].upper() + group.title[1:]
            parts += [f"## {title}", settings_table(group.owner)]
    return "\n\n".join(parts) + "\n"


# ------------------------------------------------------------------------------ hooks


def on_files(files: Any, config: Any) -> Any:
    """Add what is not in docs/."""
    from mkdocs.structure.files import File

    def add(site: str, **what: Any) -> None:
        files.append(File.generated(config, site, **what))

    for page in outside_pages():
        text = (ROOT / page).read_text(encoding="utf-8")
        add(site_path(page), content=text)
    for path in companions():
        if path.endswith((".png", ".svg")):
            add(path, abs_src_path=str(ROOT / path))
        else:
            add(site_path(path), content=_source_page(path))
    add("settings.md", content=_settings_page())
    add("api/index.md", content=_api_index())
    for package, about in PUBLIC.items():
        add(f"api/{package}.md", content=_api_page(package, about))
    return files


def lay_out_package(target: Path) -> None:
    """Copy the sources to where an installation has them, for the reference to read."""
    shutil.rmtree(target, ignore_errors=True)
    for folder in ("fedtrellis", "strategies", "clients"):
        inside = "" if folder == "fedtrellis" else folder
        shutil.copytree(
            ROOT / folder,
            target / "fedtrellis" / inside,
            ignore=lambda _, names: [n for n in names if n == "__pycache__"],
            dirs_exist_ok=True,
        )


def on_startup(**what: Any) -> None:
    """Before mkdocstrings looks for the folder."""
    lay_out_package(ROOT / "build/api")


def on_config(config: Any) -> Any:
    """Put the reference's pages where the navigation has its first page alone."""
    pages = ["api/index.md", *({p: f"api/{p}.md"} for p in PUBLIC)]
    (section,) = [part["Reference"] for part in config["nav"] if "Reference" in part]
    section[:] = [{"API": pages} if "API" in part else part for part in section]
    return config


def on_post_page(output: str, page: Any, config: Any) -> str:
    """Take the theme's one script from a network out, for one of ours."""
    here = posixpath.dirname(page.file.dest_uri) or "."
    own = posixpath.relpath("site/worker.js", here)
    return output.replace("https://unpkg.com/iframe-worker/shim", own)


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Turn links of the repository into those of the site; add tables of settings."""
    source = page.file.src_uri
    page.meta.setdefault("search", {"boost": _BOOSTS.get(source.split("/")[0], 4.0)})
    if source.startswith(("source/", "api/")) or source == "settings.md":
        return markdown

    def linked(match: re.Match[str]) -> str:
        mark, label, target, anchor = match.groups()
        if not target:
            return match[0]
        path = site_path(_target(repository_path(source), target))
        relative = os.path.relpath(path, posixpath.dirname(source) or ".")
        # lines of a source file have no anchor on the site
        kept = "" if path.startswith("source/") else (anchor or "")
        return f"{mark}[{label}]({relative}{kept})"

    parts = _FENCE.split(markdown)
    # odd parts are code
    parts[::2] = [_LINK.sub(linked, part) for part in parts[::2]]
    owners = config["extra"]["settings"].get(source, [])
    for owner in owners:
        named = f" of {owner}" if len(owners) > 1 else ""
        parts.append(f"\n\n## All settings{named}\n\n{settings_table(owner)}\n")
    return "".join(parts)
