"""Admin: topics, groups, offsets, messages and brokers of a cluster.

    async with Admin(namesrv_addr="127.0.0.1:9876") as admin:
        await admin.create_topic("orders", queues=4)
        print((await admin.progress("billing")).lag)

Works on SkylarkMQ and on Apache RocketMQ. Every call asks the name server who serves what now, and
speaks to masters; nothing is cached, no group is joined.
"""

from __future__ import annotations

from skylarkmq.client.admin.groups import GroupAdmin
from skylarkmq.client.admin.messages import MessageAdmin


class Admin(GroupAdmin, MessageAdmin):
    """Administers a cluster. One loop; any number of tasks may use it at the same time.

    Calls over several brokers end with the first error once those under way have ended. Cancelled,
    a call that changes something may have changed it on some of the brokers.
    """
