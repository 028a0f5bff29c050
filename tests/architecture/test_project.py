"""The project as a newcomer meets it: what is packed, what CI runs, what no file names."""

import os
import re
import subprocess
import tomllib

import pytest

from skylarkmq.common import extras
from tests.architecture.sources import (
    FOUND_BY_SPARK,
    PACKAGES,
    ROOT,
    ROOTS_FOLDER,
    product_files,
)
from tests.nightly import PARTS


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


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


def test_images_are_built_from_all_packages() -> None:
    """What is left out of the build's context breaks no build, and the image does not start."""
    let_in = {line[1:] for line in read(".dockerignore").splitlines() if line.startswith("!")}
    files = {"LICENSE", "README.md", "pyproject.toml", "setup.py"}
    assert let_in == files | {*PACKAGES, *FOUND_BY_SPARK, ROOTS_FOLDER}


def test_ci_runs_what_the_documents_say() -> None:
    script = read(".ci/run")
    commands = re.findall(r"^ *timed make ([a-z-]+)$", script, re.MULTILINE)
    assert commands == ["check", "test", "test-slow", "test-pure", "test-spark"]
    assert "set -euo pipefail" in script
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_no_part_of_the_night_is_unknown_to_make() -> None:
    targets = set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))
    assert {(part.target or part.name).split()[0] for part in PARTS} <= targets


def test_the_head_of_the_makefile_tells_every_command() -> None:
    makefile = read("Makefile")
    told = re.findall(r"^#   make ([a-z-]+) ", makefile, re.MULTILINE)
    phony = re.findall(r"^\.PHONY: (.+)$", makefile, re.MULTILINE)[0].split()
    assert sorted(told) == sorted(set(phony) - {"help"})


def test_extras_that_are_named_exist() -> None:
    known = set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    made = set(re.findall(r"\$\(VENV\)/\.([a-z]+)$", read("Makefile"), re.MULTILINE))
    named = re.compile(
        r"""\bEXTRAS=([a-z,]+)|(?:\.|\.whl|skylarkmq)\[([a-z,]+)\]|how_to_install\("([a-z]+)"\)"""
        r"|\b[Ee]xtras?\]?(?:\([^)]*\))?\s+(`[a-z]+`(?:,? (?:and )?`[a-z]+`)*)"
    )
    unknown = {
        (name, extra)
        for name in kept_files()
        if name.endswith((".py", ".md", ".yaml", ".sh", ".toml", "Dockerfile"))
        and not name.startswith(("tests/", "CHANGELOG"))
        for found in named.findall(read(name))
        for extra in re.findall("[a-z]+", "".join(found).replace(" and ", " "))
        if extra not in known
    }
    assert unknown == set()
    assert made - {"core"} <= known


def test_the_page_about_installing_names_every_extra() -> None:
    known = set(tomllib.loads(read("pyproject.toml"))["project"]["optional-dependencies"])
    table, _, rest = read("docs/start/install.md").partition("## Extras")[2].partition("\nFor work")
    told = re.findall(r"^\| `([a-z]+)` \|", table, re.MULTILINE) + re.findall(r"`([a-z]+)`", rest)
    assert sorted(told) == sorted(known)


def test_one_place_says_where_an_extra_comes_from() -> None:
    """By its name alone pip finds it in an index, if one has it; else it finds somebody else's."""
    by_name = re.compile(r"pip install [^`|\n]*(?<![\w/.-])skylarkmq(?![\w/.-])|'skylarkmq\[")
    found = {
        name
        for name in kept_files()
        if name.endswith((".py", ".md", ".yaml", ".sh", ".toml", "Dockerfile"))
        and not name.startswith(("tests/", "CHANGELOG"))
        and by_name.search(read(name))
    }
    assert found - {"common/extras.py"} == set() or extras.IS_ON_INDEX
    assert "common/extras.py" in found


@pytest.mark.parametrize("is_on_index", [False, True])
def test_the_release_turns_one_setting(is_on_index: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "IS_ON_INDEX", is_on_index)
    assert ("'skylarkmq[grpc]'" in extras.how_to_install("grpc")) == is_on_index
    assert ("'.[grpc]' in the source's folder" in extras.how_to_install("grpc")) != is_on_index


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
