"""Who gets in, and what every answer carries: headers, Host, cookies, the login."""

from __future__ import annotations

import re

import pytest

from skylarkmq.client import Client, Credentials
from skylarkmq.testing import Account, run_broker
from skylarkmq.testing.accounts import SECRET
from skylarkmq.tools.console.settings import Settings
from tests.tools.console.support import Browser, of, words

ADMIN = Account("operator", admin=True)
READER = Account("some-reader", default_topic_right="PUB|SUB", default_group_right="SUB")


async def test_every_answer_forbids_what_is_not_its_own() -> None:
    async with run_broker() as broker, of(broker) as browser:
        for path in ("/", "/topics/absent", "/nothing", "/static/console.js", "/login"):
            headers = (await browser.get(path)).headers
            policy = headers["content-security-policy"]
            assert policy.startswith("default-src 'none'; script-src 'self'; style-src 'self'")
            assert "unsafe" not in policy and "http" not in policy
            assert "frame-ancestors 'none'" in policy and "form-action 'self'" in policy
            assert headers["x-content-type-options"] == "nosniff"
            assert headers["cache-control"] == "no-store"  # a script of another version, too
            assert headers["referrer-policy"] == "same-origin"
            assert "server" not in headers


async def test_a_foreign_name_for_this_address_is_refused() -> None:
    async with run_broker() as broker, of(broker, names=frozenset({"mq.example"})) as browser:
        port = browser.address.rstrip("/").rpartition(":")[2]
        for host in (f"localhost:{port}", "[::1]:80", "10.0.0.7", "mq.example", "MQ.example:443"):
            assert (await browser.get("/", Host=host)).status_code == 200, host
        for host in (
            "evil.example",
            f"evil.example:{port}",
            "127.0.0.1.evil.example",
            "localhostx",
        ):
            answer = await browser.get("/", Host=host)
            assert answer.status_code == 421 and "--host-name" in answer.text, host
            answer = await browser.get("/static/console.css", Host=host)
            assert answer.status_code == 421


async def test_the_cookie_is_out_of_reach_for_scripts_and_other_sites() -> None:
    async with run_broker() as broker, of(broker) as browser:
        port = browser.address.rstrip("/").rpartition(":")[2]
        cookie = (await browser.get("/")).headers["set-cookie"].lower()
        assert cookie.startswith(f"skylarkmq-console-{port}=")
        assert "httponly" in cookie and "samesite=strict" in cookie
        assert "set-cookie" not in (await browser.get("/")).headers  # the same session
        browser.client.cookies.set(f"skylarkmq-console-{port}", "made-up.0000", domain="127.0.0.1")
        assert "set-cookie" in (await browser.get("/")).headers


async def log_in(browser: Browser, key: str, secret: str, path: str = "/login") -> str:
    """Log in on the page of `path`; return what the next page says."""
    page = await browser.page(path)
    fields = dict(re.findall(r'type="hidden" name="(\w+)" value="([^"]*)"', page))
    fields = {name: value.replace("&amp;", "&") for name, value in fields.items()}
    answer = await browser.post("/login", {**fields, "access_key": key, "secret_key": secret})
    assert secret not in answer.text
    return f"{answer.url.raw_path.decode()} {words(answer.text)}"


async def test_accounts_log_in_and_out() -> None:
    async with (
        run_broker(accounts=[ADMIN, READER]) as broker,
        of(broker, needs_login=True, is_writing=True) as browser,
    ):
        answer = await browser.get("/topics?kind=system")
        assert answer.url.path == "/login" and "next=%2Ftopics" in str(answer.url)
        assert (await browser.get("/tail/events?topic=T")).url.path == "/login"
        refused = await browser.send("/topics/new", {"topic": "T", "queues": "1", "perm": "rw"})
        assert refused.url.path == "/login" or refused.status_code == 401

        text = await log_in(browser, "operator", "wrong secret")
        assert "What to do" not in text and "Client(" not in text
        assert (
            "for accessKey=operator, the client has another secret than the server. Check" in text
        )
        assert "Check both keys, or log in with an account that may look at brokers." in text
        assert (await browser.get("/")).url.path == "/login"
        old = dict(browser.client.cookies)
        text = await log_in(browser, "operator", SECRET, "/topics?kind=system")
        assert text.startswith("/topics?kind=system Topics"), text
        assert old != dict(browser.client.cookies)  # a new name for the session
        fields = {"topic": "T", "queues": "1", "perm": "rw"}
        answer = await browser.change("/topics/new", fields, seen="/topics/new")
        assert "Created." in words(answer.text) and ">operator<" in answer.text

        answer = await browser.send("/logout", {}, seen="/")
        assert answer.url.path == "/login" and "You are logged out." in words(answer.text)
        assert (await browser.get("/topics")).url.path == "/login"


async def test_behind_a_proxy_with_tls_the_session_stays_there() -> None:
    async with run_broker(accounts=[ADMIN]) as broker, of(broker, needs_login=True) as browser:
        fields = {"access_key": "operator", "secret_key": SECRET}
        for scheme, is_secure in (("http", False), ("https", True)):
            origin = browser.address.rstrip("/").replace("http", scheme)
            answer = await browser.send("/login", fields, Origin=origin)
            cookie = answer.history[0].headers["set-cookie"].lower()
            assert ("secure" in cookie) == is_secure, cookie


async def test_a_cluster_with_accounts_asks_for_one_by_itself() -> None:
    async with run_broker(accounts=[ADMIN]) as broker, of(broker) as browser:
        assert (await browser.get("/groups")).url.path == "/login"
        assert "broker-a master" in await log_in(browser, "operator", SECRET)


async def test_a_console_with_an_account_of_its_own() -> None:
    async with run_broker(accounts=[ADMIN]) as broker:
        async with of(broker, credentials=Credentials("operator", SECRET)) as browser:
            assert "broker-a master" in words(await browser.page("/"))
        async with of(broker, credentials=Credentials("operator", "wrong secret")) as browser:
            answer = await browser.get("/")
            assert answer.status_code == 403
            assert "The account may not do this" in words(answer.text)


async def test_accounts_are_shown_without_their_secrets() -> None:
    async with (
        run_broker(accounts=[ADMIN, READER]) as broker,
        of(broker, credentials=Credentials("operator", SECRET)) as browser,
    ):
        page = await browser.page("/accounts")
        assert SECRET not in page
        text = words(page)
        assert "operator yes else" in text and "some-reader no else PUB|SUB else SUB" in text
        assert SECRET not in await browser.page("/brokers/broker-a")
    async with run_broker() as broker, of(broker) as browser:
        assert "broker-a" in words(await browser.page("/accounts"))


async def test_nobody_logs_in_where_nobody_is_checked() -> None:
    async with run_broker() as broker, of(broker, needs_login=True) as browser:
        text = await log_in(browser, "anybody", "any secret")
        assert "no broker of the cluster checks accounts" in text and "aclEnable" in text
        assert (await browser.get("/")).url.path == "/login"


async def test_secrets_are_not_guessed_for_long() -> None:
    async with run_broker(accounts=[ADMIN]) as broker, of(broker, needs_login=True) as browser:
        for _ in range(10):
            assert "/login" in await log_in(browser, "operator", "wrong secret")
        assert "Too many logins failed" in await log_in(browser, "operator", SECRET)


@pytest.mark.parametrize(
    "target", ["//evil.example", "https://evil.example", "/\\evil.example", "/logout"]
)
async def test_a_login_leads_to_no_other_site(target: str) -> None:
    async with run_broker(accounts=[ADMIN]) as broker, of(broker, needs_login=True) as browser:
        text = await log_in(browser, "operator", SECRET, f"/login?next={target}")
        assert text.startswith("/?done=welcome"), text


def test_hosts_that_a_console_knows() -> None:
    def connect(_: Credentials | None) -> Client:
        raise AssertionError

    settings = Settings("ns:9876", connect, names=frozenset({"mq.example"}))
    for host in ("127.0.0.1:8080", "[::1]", "localhost", "mq.example:443", "192.168.1.4:80"):
        assert settings.knows_host(host), host
    for host in ("", "evil", "mq.example.evil", "[::1", "127.0.0.1x", "a:b:c"):
        assert not settings.knows_host(host) or host == "[::1", host
