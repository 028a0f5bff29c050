"""What Spark's Python workers find first on their path, and how they reach the JVM.

    pandas            cannot be imported: the extra `spark` does not have it
    sitecustomize     connects to the JVM before anything is imported. Spark waits ten seconds for
                      that, which no setting changes, and on a busy machine the imports take longer

The second needs PATIENT among the settings: what comes after the connection has no time limit only
where the file system protects the socket, instead of a secret.

Source: apache/spark@v4.3.0 core/.../api/python/PythonWorkerFactory.scala (createSimpleWorker),
core/.../security/SocketAuthHelper.scala (authClient), python/pyspark/util.py
(local_connect_and_auth)
"""

from __future__ import annotations

import os
from pathlib import Path

PATIENT: dict[str, object] = {"spark.python.unix.domain.socket.enabled": True}

CONNECT_FIRST = """
import os
import socket

PATH = os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH")
if PATH is not None:
    early = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    early.connect(PATH)
    connect_as_told = socket.socket.connect

    def connect(self, address):
        if address == PATH:
            socket.socket.connect = connect_as_told
            os.dup2(early.detach(), self.fileno())
        else:
            connect_as_told(self, address)

    socket.socket.connect = connect
"""


def make_worker_path(folder: Path) -> str:
    """Make the folder and return a PYTHONPATH that begins with it."""
    make_patient(folder)
    (folder / "pandas").mkdir()
    (folder / "pandas" / "__init__.py").write_text("raise ImportError('not in the extra')\n")
    return f"{folder}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


def make_patient(folder: Path) -> Path:
    """Make the folder with what is patient alone, for workers that may have pandas; return it."""
    folder.mkdir(parents=True)
    (folder / "sitecustomize.py").write_text(CONNECT_FIRST)
    return folder
