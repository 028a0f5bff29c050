"""The two families of errors, and what a remark may repeat of hostile input."""

from skylarkmq.protocol.codes import ResponseCode
from skylarkmq.protocol.errors import LocalProtocolError, RemoteProtocolError, WireError, shown
from skylarkmq.protocol.frame import BadFrameError, RawFrame


def test_ours_and_theirs_are_apart() -> None:
    assert issubclass(LocalProtocolError, WireError)
    assert issubclass(RemoteProtocolError, WireError)
    assert not issubclass(LocalProtocolError, RemoteProtocolError)


def test_a_remote_error_is_an_answer() -> None:
    error = RemoteProtocolError(ResponseCode.TOPIC_NOT_EXIST, "no route")
    assert (error.response_code, error.remark, str(error)) == (17, "no route", "no route")


def test_a_bad_frame_carries_what_stood_before_it() -> None:
    frame = RawFrame(0, b"{}", b"")
    error = BadFrameError("bad_header", "why", [frame])
    assert (error.kind, error.frames, error.response_code) == ("bad_header", [frame], 1)
    assert BadFrameError("bad_length", "why").frames == []


def test_input_is_repeated_short_and_harmless() -> None:
    assert shown("queue") == "'queue'"
    assert shown("line\nfeed \x1b[31m \u202e") == r"'line\nfeed \x1b[31m \u202e'"
    assert len(shown("\U0001f600" * 10_000)) < 1024
