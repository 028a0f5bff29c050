"""Several scrapes as one."""

from skylarkmq.broker.fleet.merging import merged

A = b"""# HELP up Help.
# TYPE up gauge
up{broker="a",topic="x"} 1.0
# HELP process_open_fds Files.
# TYPE process_open_fds gauge
process_open_fds 7.0
# HELP python_info Python.
# TYPE python_info gauge
python_info{version="3"} 1.0
# HELP empty Nothing.
# TYPE empty gauge
"""


def test_a_family_stands_once_and_every_series_names_its_broker() -> None:
    b = A.replace(b'"a"', b'"b"') + b"# EOF\n"
    assert merged({"a": A, "b": b}).decode() == (
        "# HELP up Help.\n# TYPE up gauge\n"
        'up{broker="a",topic="x"} 1.0\nup{broker="b",topic="x"} 1.0\n'
        "# HELP process_open_fds Files.\n# TYPE process_open_fds gauge\n"
        'process_open_fds{broker="a"} 7.0\nprocess_open_fds{broker="b"} 7.0\n'
        "# HELP python_info Python.\n# TYPE python_info gauge\n"
        'python_info{broker="a",version="3"} 1.0\npython_info{broker="b",version="3"} 1.0\n'
        "# HELP empty Nothing.\n# TYPE empty gauge\n"
    )


def test_a_name_is_escaped_and_no_scrape_is_nothing() -> None:
    assert b'process_open_fds{broker="a\\"b"} 7.0\n' in merged({'a"b': A})
    assert merged({}) == b""
