"""Named checks."""

from skylarkmq.broker.health import run_checks


def test_each_check_gives_its_reason() -> None:
    assert run_checks({"store": lambda: "", "route": lambda: "no name server answered"}) == {
        "store": "",
        "route": "no name server answered",
    }


def test_a_check_that_raises_is_a_failed_one() -> None:
    def broken() -> str:
        raise RuntimeError("no such table")

    reasons = run_checks({"disk": broken, "store": lambda: ""})
    assert "no such table" in reasons["disk"]
    assert reasons["store"] == ""
