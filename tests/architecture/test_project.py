"""The project as a newcomer meets it: what the pages promise is there."""

import os
import re
import subprocess
import tomllib
from pathlib import Path

import pytest

from tests.architecture.sources import PACKAGES, ROOT, ROOTS_FOLDER, product_files

README_BYTES_MAX = 10_000
MAKE_COMMAND = re.compile(r"(?:`|^    )make ([a-z]+(?:-[a-z]+)*)", re.MULTILINE)
FENCED = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\]\(([^)#:]*)(?:#([^)]*))?\)")


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def make_targets() -> set[str]:
    return set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


def kept_files() -> list[str]:
    """Files under version control, or all but the ignored kinds where there is no git."""
    try:
        listed = subprocess.run(
            ["git", "ls-files", "--cached", "--others", "--exclude-standard"],
            cwd=ROOT, capture_output=True, text=True, check=True,
        )  # fmt: skip
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("no git here to say which files belong to the project")
    return [name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


@pytest.mark.parametrize("package", PACKAGES)
def test_import_name_is_a_relative_link(package: str) -> None:
    """Without the links a wheel is built empty, and the build does not complain."""
    link = ROOT / ROOTS_FOLDER / package
    assert link.is_symlink()
    assert os.readlink(link) == f"../{package}"


def test_every_folder_is_a_package() -> None:
    folders = {path.parent for path in product_files()}
    assert not [str(folder) for folder in folders if not (ROOT / folder / "__init__.py").is_file()]
    assert (ROOT / ROOTS_FOLDER / "py.typed").is_file()


def documents() -> list[str]:
    """Return README.md and every page of docs/."""
    pages = sorted((ROOT / "docs").rglob("*.md"))
    return ["README.md", *(str(page.relative_to(ROOT)) for page in pages)]


def test_documents_name_commands_that_exist() -> None:
    named = {name: set(MAKE_COMMAND.findall(read(name))) for name in documents()}
    assert {"run", "test"} <= named["README.md"]
    targets = make_targets()
    assert not [(name, unknown) for name in named if (unknown := named[name] - targets)]


def test_the_readme_is_one_page() -> None:
    assert len(read("README.md").encode()) < README_BYTES_MAX


def anchors_of(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the documentation site make them."""
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    headings = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("name", documents())
def test_links_lead_somewhere(name: str) -> None:
    folder = (ROOT / name).parent
    faults: list[str] = []
    for target, anchor in LINK.findall(read(name)):
        page = folder / target if target else ROOT / name
        if not page.exists() or (anchor and anchor not in anchors_of(page)):
            faults.append(f"{target}#{anchor}")
    assert not faults


@pytest.mark.parametrize("folder", sorted((ROOT / "docs").rglob("index.md")), ids=str)
def test_every_page_is_in_the_contents_of_its_folder(folder: Path) -> None:
    listed = re.findall(r"^```\{toctree\}\n(.*?)^```", folder.read_text("utf-8"), re.M | re.S)
    names = {line for block in listed for line in block.splitlines() if line and line[0] != ":"}
    pages = {path.stem for path in folder.parent.glob("*.md")} - {"index"}
    inner = {f"{path.parent.name}/index" for path in folder.parent.glob("*/index.md")}
    assert names == pages | inner


def test_ci_runs_what_the_documents_say() -> None:
    script = read(".ci/run")
    commands = re.findall(r"^make ([a-z-]+)$", script, re.MULTILINE)
    assert commands == ["check", "test", "test-spark", "test-busy"]
    assert "set -euo pipefail" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_extras_that_make_installs_exist() -> None:
    extras = set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    used = set(re.findall(r"\$\(VENV\)/\.([a-z]+)$", read("Makefile"), re.MULTILINE))
    assert used - {"core"} <= extras


def test_no_text_names_one_person_s_machine() -> None:
    """A path or a number that means something in one place only helps nobody else."""
    place = re.compile(
        r"(?<![\w./}$])/(?:root|work|Users|home/(?!u/|user/|rocketmq/)\w+)/|\b[Ii]ssue #?\d"
    )
    faults: list[str] = []
    for name in kept_files():
        try:
            lines = read(name).splitlines()
        except UnicodeDecodeError:
            continue
        faults += [
            f"{name}:{number}: {line.strip()[:80]}"
            for number, line in enumerate(lines, 1)
            if place.search(line) and name != "tests/architecture/test_project.py"
        ]
    assert not faults, "\n" + "\n".join(faults)
