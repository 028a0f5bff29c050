"""Sets a live key at the broker of this machine, which takes it from there alone.

    python -m tests.failover.set_key PORT KEY VALUE

Ends with 1 when the broker does not take it, or does not answer.
"""

from __future__ import annotations

import asyncio
import sys

from skylarkmq.protocol.codes import RequestCode, ResponseCode
from tests.support.raw_client import RawClient

LIMIT_S = 5.0


async def set_key(port: int, key: str, value: str) -> int:
    """Ask for it; the exit code."""
    try:
        async with asyncio.timeout(LIMIT_S):
            client = await RawClient.open(("127.0.0.1", port))
            body = f"{key}={value}\n".encode()
            answer = await client.call(RequestCode.UPDATE_BROKER_CONFIG, body=body)
            await client.close()
    except (OSError, TimeoutError) as error:
        print(f"no answer: {error!r}")
        return 1
    if answer.code != ResponseCode.SUCCESS:
        print(answer.remark)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(set_key(int(sys.argv[1]), *sys.argv[2:])))
