"""Checks an installed package: its road and its byte code, and one message through its broker.

    python -m tests.installed compiled|python

It needs the package alone, and runs in a folder that has `tests/` and not the sources: `make
release` and cibuildwheel make one.
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import sysconfig
import tempfile
from importlib.util import cache_from_source
from pathlib import Path

from skylarkmq import kernel

COMMAND = Path(sysconfig.get_path("scripts"), "skylarkmq")
PACKAGES = Path(sysconfig.get_path("platlib"))
FREE_PORTS = ("listenPort=0", "namesrvListenPort=0", "metricsPromExporterPort=0")


def check_files(road: str) -> None:
    """The package is not the one in the sources, took this road, and was compiled to byte code."""
    package = Path(kernel.__file__).parents[1]
    assert package == PACKAGES / "skylarkmq", f"not what was installed: {package}"
    assert kernel.road == road, f"{kernel.road}, because {kernel.why_pure}"
    missing = [path for path in package.rglob("*.py") if not Path(cache_from_source(path)).exists()]
    assert not missing, f"without byte code: {missing}"


def check_broker(folder: Path, road: str) -> None:
    """A broker says at its start which road it took; a message goes through it."""
    settings = [f"storePathRootDir={folder / 'store'}", *FREE_PORTS]
    command = [COMMAND, "serve", "--log-format", "json"]
    command += [part for setting in settings for part in ("--set", setting)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, cwd=folder) as broker:
        try:
            assert broker.stderr is not None
            events = (json.loads(line) for line in broker.stderr)
            ready = next((event for event in events if event.get("event") == "ready"), None)
            assert ready is not None, "the broker does not start"
            assert ready["kernel"] == road, ready
            namesrv = ready["namesrvAddr"]
            sent = answer("send", "TopicTest", "hello", "--namesrv", namesrv)
            assert sent["status"] == "SEND_OK", sent
            group = ("--group", "installed", "--from", "first", "--max", "1", "--timeout", "30")
            got = answer("consume", "TopicTest", *group, "--namesrv", namesrv)
            assert (got["body"], got["msg_id"]) == ("hello", sent["msg_id"]), (sent, got)
        finally:
            broker.terminate()
    assert broker.returncode == 0, broker.returncode


def answer(*arguments: str) -> dict[str, object]:
    """The line that a command prints."""
    output = subprocess.run([COMMAND, *arguments], capture_output=True, text=True, check=False)
    assert output.returncode == 0, output.stderr
    fields: dict[str, object] = json.loads(output.stdout)
    return fields


def main() -> None:
    (road,) = sys.argv[1:]
    check_files(road)
    if sys.platform == "linux":  # elsewhere there is the SDK alone
        with tempfile.TemporaryDirectory() as folder:
            check_broker(Path(folder), road)
    print(f"installed: Python {sys.version.split()[0]}, {platform.machine()}, kernel {road}")


if __name__ == "__main__":
    main()
