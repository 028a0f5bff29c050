"""What the pages name is there: links, commands, and places in the code."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from tests.architecture.sources import (
    FOUND_BY_SPARK,
    PACKAGES,
    ROOT,
    ROOTS_FOLDER,
    text_of,
    tree_of,
)

NAMING = ("ARCHITECTURE.md", "CONTRIBUTING.md")
"""Pages that send a reader to places in the code."""
DOCS = Path("docs")
PAGES = (
    *("README.md", *NAMING, "CHANGELOG.md", "SECURITY.md"),
    *sorted(str(page.relative_to(ROOT)) for page in (ROOT / DOCS).rglob("*.md")),
)
README_BYTES_MAX = 10_000
FOLDERS = {".ci", "deploy", "docs", "examples", "tests", ROOTS_FOLDER, *PACKAGES, *FOUND_BY_SPARK}
"""Of the repository; a running broker and the tools make others beside them."""

FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
IN_BACKTICKS = re.compile(r"`([^`\n]+)`")
PATH = re.compile(r"[\w.][\w./-]*/[\w./-]*").fullmatch
SHORT = re.compile(r"([A-Z]\w*[a-z]\w*)\.(\w+)").fullmatch
LINK = re.compile(r"\]\(([^)#:\s]*)(?:#([^)\s]*))?\)")
MAKE_COMMAND = re.compile(r"(?:`|^    )make ([a-z]+(?:-[a-z]+)*)", re.MULTILINE)


def named_in(text: str) -> Iterator[tuple[str, str]]:
    """Yield the paths in backticks, each with the name after `::`, or with an empty one.

    A path ends in .py, or begins with a folder of the repository.
    """
    for quoted in IN_BACKTICKS.findall(FENCED.sub("", text)):
        path, _, name = quoted.partition("::")
        is_ours = path.endswith(".py") or path.split("/")[0] in FOLDERS
        if name or (PATH(path) and is_ours):
            yield path, name


def defined_in(tree: ast.Module) -> set[str]:
    """Return what a file itself defines: names, and `Class.name`. Imports do not count."""
    found: set[str] = set()

    def collect(body: list[ast.stmt], prefix: str) -> None:
        for node in body:
            if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + node.name)
            if isinstance(node, ast.ClassDef):
                collect(node.body, f"{prefix}{node.name}.")
            targets = node.targets if isinstance(node, ast.Assign) else []
            targets = [node.target] if isinstance(node, ast.AnnAssign) else targets
            found.update(prefix + each.id for each in targets if isinstance(each, ast.Name))

    collect(tree.body, "")
    return found


@cache
def names_in(path: str) -> set[str]:
    """Return what a file of ours defines."""
    return defined_in(tree_of(Path(path)))


def fault(path: str, name: str) -> str:
    """Return why a reader does not find what is named; empty when it is there."""
    if not (ROOT / path).exists():
        return f"`{path}` is not there"
    if name and not path.endswith(".py"):
        return f"`{path}` is no Python file that could define {name}"
    if name and name not in names_in(path):
        return f"`{path}` does not define {name}"
    return ""


def short_faults(text: str) -> Iterator[str]:
    """Yield what is wrong with each `Class.name` without a path, which stands elsewhere."""
    paths = {name.split(".")[0]: path for path, name in named_in(text) if name}
    for quoted in IN_BACKTICKS.findall(FENCED.sub("", text)):
        short = SHORT(quoted)
        if short is not None and short[2].islower():  # else of an enumeration
            path = paths.get(short[1])
            if why := f"no path for {short[1]}" if path is None else fault(path, quoted):
                yield why


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation site make them."""
    headings = re.findall(r"^#+ (.+)$", FENCED.sub("", text), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", NAMING)
def test_paths_and_names_are_there(page: str) -> None:
    named = list(named_in(text_of(Path(page))))
    assert named
    faults = [why for path, name in named if (why := fault(path, name))]
    faults += short_faults(text_of(Path(page)))
    assert not faults, f"{page}:\n" + "\n".join(faults)


@pytest.mark.parametrize("page", PAGES)
def test_links_lead_somewhere(page: str) -> None:
    faults: list[str] = []
    for target, anchor in LINK.findall(text_of(Path(page))):
        place = (ROOT / page).parent / target if target else ROOT / page
        if not place.exists():
            faults.append(f"{target} is not there")
        elif anchor and anchor not in anchors(place.read_text(encoding="utf-8")):
            faults.append(f"{target or page} has no heading for #{anchor}")
    assert not faults, f"{page}:\n" + "\n".join(faults)


@pytest.mark.parametrize("page", PAGES)
def test_commands_exist(page: str) -> None:
    named = set(MAKE_COMMAND.findall(text_of(Path(page))))
    targets = set(re.findall(r"^([a-z-]+):", text_of(Path("Makefile")), re.MULTILINE))
    assert named <= targets
    assert page != "README.md" or {"run", "test"} <= named


def test_the_readme_is_one_page() -> None:
    assert len(text_of(Path("README.md")).encode()) < README_BYTES_MAX


@pytest.mark.parametrize("folder", sorted((ROOT / DOCS).rglob("index.md")), ids=str)
def test_every_page_is_in_the_contents_of_its_folder(folder: Path) -> None:
    listed = re.findall(r"^```\{toctree\}\n(.*?)^```", folder.read_text("utf-8"), re.M | re.S)
    names = {line for block in listed for line in block.splitlines() if line and line[0] != ":"}
    pages = {path.stem for path in folder.parent.glob("*.md")} - {"index"}
    inner = {f"{path.parent.name}/index" for path in folder.parent.glob("*/index.md")}
    assert names == pages | inner


def test_the_rule_sees_what_it_must() -> None:
    here = "tests/architecture/test_documents.py"
    text = (
        f"`{here}::fault`, `{here}`, `tests/nowhere`, `nowhere.py::x`, `a/b.py`, `var/x`, `1 / 2`"
    )
    assert list(named_in(text)) == [
        (here, "fault"),
        (here, ""),
        ("tests/nowhere", ""),
        ("nowhere.py", "x"),
        ("a/b.py", ""),
    ]
    assert list(named_in("```\n`tests/nowhere`\n```\n")) == []
    assert not fault(here, "fault") and not fault(here, "PAGES") and not fault("tests", "")
    assert fault(here, "ROOT")  # only imported
    assert fault("tests/nowhere", "") and fault("tests", "x")
    classes = "`tests/support/fake_cluster.py::FakeBroker`, `Enum.VALUE`, `x.py`"
    assert not list(short_faults(f"{classes}, `FakeBroker.__init__`"))
    assert list(short_faults(f"{classes}, `FakeBroker.nowhere`, `Other.name`")) == [
        "`tests/support/fake_cluster.py` does not define FakeBroker.nowhere",
        "no path for Other",
    ]
    assert {"A", "A.b", "A.c", "d"} == defined_in(
        ast.parse("class A:\n  b: int = 1\n  def c(self): pass\nd = 1")
    )
    assert anchors("# One of (them)\n## `store/`: the log\n") == {"one-of-them", "store-the-log"}
