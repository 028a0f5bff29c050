"""Write mode pwrite, the default: each batch is written on the loop by one `pwrite`.

It is in the page cache on return, which readers see through their mapping of the file.

Source: apache/rocketmq@rocketmq-all-4.9.8 store/.../MappedFile.java (appendMessage)
"""

from __future__ import annotations

from skylarkmq.store.log.log_writer import LogWriter
from skylarkmq.store.log.mapped_file import MappedFile


class PwriteWriter(LogWriter):
    """Writes with system calls."""

    def append(self, mapped: MappedFile, data: bytes, *, to_end: bool) -> None:
        start = mapped.wrote_position
        mapped.file.pwrite(data, start)
        end = mapped.size if to_end else start + len(data)
        mapped.wrote_position = mapped.committed_position = end
        self.committed_offset = mapped.start_offset + end
