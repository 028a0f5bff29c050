"""Write the boards as JSON: `python -m deploy.grafana.write`.

What is on a board stands in `source/`, how all of them look in `style.py`. Change it there, then
write them anew; `tests/monitoring/test_boards.py` compares. Needs the extra `dev`.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from deploy.grafana.source import applications, clients, overview, replication, spark, store, topics
from deploy.grafana.style import Board

FOLDER: Final = Path(__file__).parent / "boards"
BOARDS: Final[tuple[Board, ...]] = (
    overview.BOARD,
    topics.BOARD,
    store.BOARD,
    replication.BOARD,
    clients.BOARD,
    applications.BOARD,
    spark.BOARD,
)


def texts() -> dict[str, str]:
    """Return the boards as JSON, by the names of their files."""
    return {
        f"{board.uid}.json": json.dumps(board.build(), cls=JSONEncoder, indent=1, sort_keys=True)
        + "\n"
        for board in BOARDS
    }


def main() -> None:
    """Write them."""
    FOLDER.mkdir(exist_ok=True)
    for name, text in texts().items():
        (FOLDER / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
