"""Taking a timed message back while it waits: 5.x's TIMER_DEL_UNIQKEY, sent after the message.

    the waiting message is read by its id (33): when it is due, and under which key it waits
    a message follows to the same topic on the same broker, due at the same time, that names the key
    at that time the broker delivers neither of them

Source: apache/rocketmq@rocketmq-all-5.3.3 store/.../timer/TimerMessageStore.java (dequeue),
broker/.../util/HookUtils.java (transformTimerMessage)
"""

from __future__ import annotations

from datetime import timedelta
from typing import Final

from skylarkmq.client.errors import IllegalState, MessageIllegal, NotFound, RocketMQError
from skylarkmq.client.producer.sender import Sender
from skylarkmq.client.send_result import SendResult
from skylarkmq.client.services import Services
from skylarkmq.protocol import properties as names
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import RemoteProtocolError
from skylarkmq.protocol.flags import MASTER_ID, RMQ_SYS_WHEEL_TIMER_TOPIC
from skylarkmq.protocol.message import EPOCH, Message, MessageExt
from skylarkmq.protocol.message_id import decode_offset_message_id
from skylarkmq.protocol.record import decode_messages
from skylarkmq.protocol.remoting_command import RemotingCommand

OVER: Final = "that is over"
"""In our broker's remark, when the time has come."""


async def cancel_timed(services: Services, sender: Sender, result: SendResult) -> bool:
    """Take back the message of `result`; see `Producer.cancel`."""
    queue = services.namespace.wrap_queue(result.queue)
    route = await services.routes.for_publish(queue.topic, 1)
    address = route.brokers.get(queue.broker_name, {}).get(MASTER_ID)
    if address is None:
        raise NotFound(f"broker {queue.broker_name}, where the message waits, has no master now")
    waiting = await _waiting(services, address, result)
    connection = await services.peer(address)
    due = waiting.properties.get(names.TIMER_DELIVER_MS)
    if due is None:
        # Our brokers round a time up, Apache's down to the step before.
        due_ms = int(waiting.properties[names.TIMER_OUT_MS]) + (not connection.ours)
    else:
        due_ms = int(due)
    deliver_at = EPOCH + timedelta(milliseconds=due_ms)
    message = Message(result.queue.topic, names.TIMER_DEL_UNIQKEY, deliver_at=deliver_at)
    choice = sender.choice(message, result.queue, None, None)
    properties = {names.TIMER_DEL_UNIQKEY: result.msg_id}
    send = await sender.begin(message, choice, properties=properties)
    try:
        await sender.result(send)
    except MessageIllegal as error:
        if OVER in error.remark:
            return False
        raise
    return True


async def _waiting(services: Services, address: str, result: SendResult) -> MessageExt:
    """Return the message as it waits."""
    try:
        _, offset = decode_offset_message_id(result.offset_msg_id)
    except RemoteProtocolError as error:
        raise IllegalState(f"{result.msg_id} has no id of a broker: {error}") from error
    question = RemotingCommand.request(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(offset)})
    timeout_s = services.config.request_timeout_s
    answer = await services.remoting.call(address, question, timeout_s)
    try:
        found = decode_messages(answer.body) if answer.code == ResponseCode.SUCCESS else []
    except RemoteProtocolError as error:
        raise RocketMQError(f"{address} sent a message that cannot be read: {error}") from error
    if not found or found[0].unique_key != result.msg_id:
        raise NotFound(f"{result.msg_id} is not in the store of {address} (any more)")
    if found[0].topic != RMQ_SYS_WHEEL_TIMER_TOPIC:
        raise IllegalState(
            f"{result.msg_id} does not wait for a time of its own",
            hint="Messages with delay= or deliver_at= can be taken back, others cannot",
        )
    return found[0]
