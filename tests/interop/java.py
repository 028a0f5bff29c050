"""The Maven projects beside this file, built when their sources are newer, and JVMs on them."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

HERE = Path(__file__).resolve().parent
CLIENT = HERE / "java"
APACHE = HERE / "apache"
APACHE_5 = HERE / "apache5"
TOOLS_5 = HERE / "tools5"
BUILD_S = 600

# Small and quick to start: many of them share a machine with the broker.
JVM = ("-Xms16m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1", "-Xshare:auto")


def missing() -> str:
    """Why no Maven project can be built here; empty when it can."""
    absent = [name for name in ("java", "javac", "jar", "mvn") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else ""


@cache
def class_path(project: Path) -> str:
    """Build a project if need be and return its class path.

    Tried without the network first: Maven asks for nothing then, and is quicker.
    """
    target = project / "target"
    listed, packed = target / "classpath.txt", target / "classes.jar"
    sources = [project / "pom.xml", *project.glob("src/**/*.*")]
    built = listed.stat().st_mtime if listed.exists() else 0.0
    if built < max(source.stat().st_mtime for source in sources):
        listed.unlink(missing_ok=True)
        packed.unlink(missing_ok=True)
        if _maven(project, "-o").returncode:
            result = _maven(project)
            if result.returncode:
                raise AssertionError(f"mvn in {project} failed:\n{result.stdout}{result.stderr}")
    if not packed.exists() and (target / "classes").exists():
        _run("jar", "cf", str(packed), "-C", str(target / "classes"), ".")
    return f"{packed}:{listed.read_text().strip()}"


def why_not(*projects: Path) -> str:
    """Build projects if need be; why they cannot be built, or nothing."""
    if why := missing():
        return why
    try:
        for project in projects:
            class_path(project)
    except AssertionError as error:
        return str(error)
    return ""


@cache
def archive(project: Path) -> tuple[str, ...]:
    """The option that lets JVMs of the client start from an archive of loaded classes, in half the
    time; made once for each build.
    """
    packed = project / "target" / "classes.jar"
    path = project / "target" / "classes.jsa"
    classes = class_path(project)
    if not path.exists() or path.stat().st_mtime < packed.stat().st_mtime:
        path.unlink(missing_ok=True)
        home = f"-Drocketmq.client.logRoot={project / 'target'}"
        create = f"-XX:ArchiveClassesAtExit={path}"
        _run("java", *JVM, create, home, "-cp", classes, "skylarkmq.interop.Warm")
    return (f"-XX:SharedArchiveFile={path}",) if path.exists() else ()


def java(
    project: Path, main: str, *args: str, options: tuple[str, ...] = (), jvm: tuple[str, ...] = JVM
) -> list[str]:
    """The command that runs a class of a project."""
    shared = archive(project) if project == CLIENT else ()
    return ["java", *jvm, *shared, *options, "-cp", class_path(project), main, *args]


def java_with_tools_5(main: str, *args: str, options: tuple[str, ...] = ()) -> list[str]:
    """The command that runs a class of the client's project on the libraries of 5.3."""
    class_path(CLIENT)
    classes = f"{CLIENT / 'target' / 'classes.jar'}:{class_path(TOOLS_5)}"
    return ["java", *JVM, *options, "-cp", classes, main, *args]


def _run(*command: str) -> None:
    result = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_S, check=False)
    if result.returncode:
        raise AssertionError(f"{command}: {result.stdout}{result.stderr}")


def _maven(project: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["mvn", "-q", "-B", *options, "compile"]
    return subprocess.run(
        command, cwd=project, capture_output=True, text=True, timeout=BUILD_S, check=False
    )
