"""Programs of others with a running `signalbox up`: `oidc-provider` signs people in, aiosmtpd takes e-mail, nats-py and nats.js publish and
listen with an API key. Each check says that it is done; whatever is not as it should be ends all of it with a failure.
"""

import argparse
import asyncio
import html.parser
import http.cookiejar
import json
import mailbox
import os
import re
import socket
import subprocess
import sys
import tempfile
import urllib.error
import urllib.parse
import urllib.request

import nats
import nats.errors

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from up import Up, call, end, until  # noqa: E402

LIMIT_S = 60
ACCOUNT = "demo"
OTHER = "other"
# What the providers know, by login.
PEOPLE = {
    "ann": {"email": "ann@example.com", "email_verified": True},
    "not-confirmed": {"email": "ben@example.com", "email_verified": False},
    "not-invited": {"email": "somebody@example.com", "email_verified": True},
    "ben": {"email": "ben@example.com", "email_verified": True},
}


def free_port():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        return taken.getsockname()[1]


def listens(port):
    with socket.socket() as asking:
        return asking.connect_ex(("127.0.0.1", port)) == 0


class Program:
    """In a `with`: another's program, once it listens."""

    def __init__(self, port, command):
        self.port, self.command = port, command

    def __enter__(self):
        self.out = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(self.command, stdin=subprocess.DEVNULL, stdout=self.out, stderr=self.out)
        try:
            until(f"{self.command[:3]} listens", LIMIT_S, self.look)
        except BaseException:
            end(self.process)
            raise
        return self

    def look(self):
        if self.process.poll() is not None:
            self.out.seek(0)
            raise SystemExit(f"{self.command[:3]} ended with {self.process.returncode}: {self.out.read()}")
        return listens(self.port)

    def __exit__(self, *_):
        end(self.process)


class Form(html.parser.HTMLParser):
    """The first form of a page, and all links."""

    def __init__(self, page):
        super().__init__()
        self.action, self.fields, self.links = None, {}, []
        self.feed(page)

    def handle_starttag(self, tag, attributes):
        found = dict(attributes)
        if tag == "form" and self.action is None:
            self.action = found["action"]
        elif tag == "input" and found.get("name"):
            self.fields[found["name"]] = found.get("value") or ""
        elif tag == "a":
            self.links.append(found.get("href"))


class Browser:
    """It follows redirects, keeps cookies, and gives status, address and text of the page where it ends."""

    def __init__(self):
        cookies = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        self.opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), cookies)
        self.opener.addheaders = [("Accept", "text/html")]

    def open(self, url, fields=None):
        data = None if fields is None else urllib.parse.urlencode(fields).encode()
        try:
            answer = self.opener.open(url, data, timeout=30)
        except urllib.error.HTTPError as refused:
            answer = refused
        with answer:
            return answer.status, answer.url, answer.read().decode()

    def sign_in(self, base, provider, login, consents=True):
        """Through the provider's forms, and back."""
        status, url, page = self.open(f"{base}/sign-in/oidc/{provider}")
        assert status == 200 and not url.startswith(base), (status, url, page)
        form = Form(page)
        assert form.fields.keys() == {"prompt", "login", "password"}, page
        status, url, page = self.open(form.action, form.fields | {"login": login, "password": "any"})
        form = Form(page)
        assert status == 200 and form.fields == {"prompt": "consent"}, (status, url, page)
        if consents:
            return self.open(form.action, form.fields)
        [abort] = [link for link in form.links if link and link.endswith("/abort")]
        return self.open(abort)


def openid(up):
    """An invited person signs in, whether the e-mail address is in the ID token or said apart; nobody else does."""
    base, token = up.found["http_url"], up.found["operator_token"]
    for user in ["ann", "ben"]:
        new = {"user_id": user, "name": user, "email": f"{user}@example.com", "role": "member", "invite": True}
        call(base, token, "POST", f"/api/orgs/{ACCOUNT}/members", new)
    methods = call(base, None, "GET", "/api/sign-in/methods")
    assert [method["provider"] for method in methods["oidc"]] == ["apart", "within"], methods
    for provider, person in [("apart", "ann"), ("within", "ben")]:
        for login in ["not-confirmed", "not-invited"]:
            status, _, page = Browser().sign_in(base, provider, login)
            assert status == 403 and "You are in no account" in page, (provider, login, status, page)
        status, _, page = Browser().sign_in(base, provider, person, consents=False)
        assert status == 400 and "Signing in failed" in page, (provider, status, page)
        # The second time it is known.
        for _ in range(2):
            browser = Browser()
            status, url, page = browser.sign_in(base, provider, person)
            signed_in = f"<b>{ACCOUNT}</b>: <code>{person}</code>"
            assert status == 200 and url.startswith(base) and signed_in in page, (provider, status, url, page)
            assert signed_in in browser.open(f"{base}/sign-in")[2]
    with open(up.log) as log:
        refusals = log.read()
    assert "the provider refused" in refusals and "the identity is no member" in refusals


def email(up, folder):
    """A sign-in link and an escalation, as the mail server has them."""
    base, token = up.found["http_url"], up.found["operator_token"]
    inbox = mailbox.Maildir(folder)

    def taken(to, subject):
        found = [mail for mail in inbox if mail["X-RcptTo"] == to and subject in mail["Subject"]]
        assert len(found) < 2, found
        return found and found[0]

    def text(to, subject):
        mail = until(f"an e-mail to {to}: {subject}", LIMIT_S, lambda: taken(to, subject))
        assert (mail["X-MailFrom"], mail["To"]) == ("signalbox@example.com", to), mail.as_string()
        assert mail["Auto-Submitted"] == "auto-generated" and mail["Message-ID"], mail.as_string()
        return mail.get_payload(decode=True).decode()

    new = {"user_id": "bob", "name": "Bob", "email": "bob@example.com", "role": "member"}
    call(base, token, "POST", f"/api/orgs/{ACCOUNT}/members", new)
    call(base, None, "POST", "/sign-in/link", {"email": "bob@example.com"})
    link = re.search(re.escape(base) + r"/sign-in/\S+", text("bob@example.com", "Sign in")).group()
    browser = Browser()
    # Looking at it uses nothing.
    for _ in range(2):
        status, _, page = browser.open(link)
        assert status == 200 and "<code>bob</code>" in page, page
    status, _, page = browser.open(link, {})
    assert status == 200, page
    key = re.search(r"sbx_\w+", page).group()
    assert call(base, key, "GET", "/api/me")["user_id"] == "bob"
    assert browser.open(link)[0] == 410

    words = "The build is red. Überall, since 12:00 — .\n.\nA line with a dot stands above."
    # A recipient whose e-mail address the provider has vouched for.
    mail = call(base, key, "POST", "/api/messages", {"to": "@user:ann", "content": words, "message_type": "escalation"})
    read = text("ann@example.com", "escalation").replace("\r\n", "\n")
    assert read.startswith(words) and f"{base}/c/{ACCOUNT}/inbox/{mail['id']}" in read, read
    ann = call(base, token, "POST", "/api/sign-in-links", {"account": ACCOUNT, "user_id": "ann"})["sign_in_link"]
    ann = call(ann, None, "POST", "")["key"]["key"]
    [shown] = call(base, ann, "GET", "/api/me/inbox")["items"]
    ways = {way["way"]: way["state"] for way in shown["deliveries"]}
    assert shown["id"] == mail["id"] and ways == {"web": "sent", "email": "sent"}, shown


def publishers(up):
    """Gives server and key for the clients of NATS."""
    base, token = up.found["http_url"], up.found["operator_token"]
    call(base, token, "POST", "/api/accounts", {"id": OTHER, "name": OTHER})
    key = call(base, token, "POST", f"/api/orgs/{ACCOUNT}/keys", {"name": "clients", "role": "service"})["key"]
    return f"nats://{up.found['nats_url'].split('@')[1]}", key


async def nats_py(server, key):
    refused = []

    async def note(error):
        refused.append(str(error))

    async def until_refused(what):
        for _ in range(LIMIT_S * 10):
            if any(what in error for error in refused):
                return
            await asyncio.sleep(0.1)
        raise SystemExit(f"not refused: {what}; {refused}")

    inbox = f"_I.{ACCOUNT}.{key.split('_')[2]}"
    client = await nats.connect(server, user=ACCOUNT, password=key, inbox_prefix=inbox.encode(), error_cb=note)
    heard = await client.subscribe(f"signalbox.event.{ACCOUNT}.>")
    await client.flush()
    sent = {"id": "by-nats-py", "agent": "coder", "body": "Say what is left to do."}
    ack = await client.jetstream().publish(f"signalbox.notification.{ACCOUNT}.PY-1", json.dumps(sent).encode())
    assert ack.stream == "SIGNALBOX_NOTIFICATION", ack
    while (await heard.next_msg(timeout=LIMIT_S)).subject != f"signalbox.event.{ACCOUNT}.PY-1.turn.finished":
        pass
    assert not refused, refused
    for subject in [f"signalbox.event.{OTHER}.>", ">"]:
        await client.subscribe(subject)
        await until_refused(f'permissions violation for subscription to "{subject}"')
    await client.publish(f"signalbox.notification.{OTHER}.T-1", b"{}")
    await until_refused(f'permissions violation for publish to "signalbox.notification.{OTHER}.t-1"')
    await client.close()
    # Another account's name does not fit the key.
    try:
        await nats.connect(server, user=OTHER, password=key, allow_reconnect=False, error_cb=note)
    except (nats.errors.Error, OSError) as error:
        assert "authorization" in str(error).lower(), error
    else:
        raise SystemExit("a key of another account was let in")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("signalbox", help="the program")
    arguments = parser.parse_args()
    port, smtp, apart, within = (free_port() for _ in range(4))
    base = f"http://127.0.0.1:{port}"

    def provider(port, name, in_token, client):
        client = client | {"client_id": "signalbox", "redirect_uris": [f"{base}/sign-in/oidc/{name}/callback"]}
        settings = [json.dumps(value) for value in (port, client, in_token, PEOPLE)]
        return Program(port, ["node", os.path.join(HERE, "provider.mjs"), *settings])

    environment = {
        "SIGNALBOX__SIGN_IN__OIDC__APART__ISSUER": f"http://127.0.0.1:{apart}",
        "SIGNALBOX__SIGN_IN__OIDC__APART__CLIENT_ID": "signalbox",
        "SIGNALBOX__SIGN_IN__OIDC__APART__CLIENT_SECRET": "a secret: with % and +",
        "SIGNALBOX__SIGN_IN__OIDC__APART__PRIVATE_ADDRESSES": "true",
        # A client without a secret.
        "SIGNALBOX__SIGN_IN__OIDC__WITHIN__ISSUER": f"http://127.0.0.1:{within}",
        "SIGNALBOX__SIGN_IN__OIDC__WITHIN__CLIENT_ID": "signalbox",
        "SIGNALBOX__SIGN_IN__OIDC__WITHIN__PRIVATE_ADDRESSES": "true",
        "SIGNALBOX__EMAIL__SMTP_URL": f"smtp://127.0.0.1:{smtp}",
        "SIGNALBOX__EMAIL__FROM": "Signalbox <signalbox@example.com>",
    }
    secret = {"client_secret": environment["SIGNALBOX__SIGN_IN__OIDC__APART__CLIENT_SECRET"]}
    with tempfile.TemporaryDirectory(prefix="signalbox-mail-") as folder:
        mails = os.path.join(folder, "mails")
        taker = ["-m", "aiosmtpd", "--nosetuid", "--listen", f"127.0.0.1:{smtp}", "--class", "aiosmtpd.handlers.Mailbox", mails]
        with (
            provider(apart, "apart", False, secret),
            provider(within, "within", True, {"token_endpoint_auth_method": "none"}),
            Program(smtp, [sys.executable, *taker]),
            Up(arguments.signalbox, environment, f"127.0.0.1:{port}") as up,
        ):
            server, key = publishers(up)
            done = []
            for name, check in [
                ("nats-py", lambda: asyncio.run(nats_py(server, key))),
                ("nats.js", lambda: subprocess.run(["node", os.path.join(HERE, "nats.mjs"), server, ACCOUNT, key, OTHER], check=True)),
                ("oidc-provider", lambda: openid(up)),
                ("aiosmtpd", lambda: email(up, mails)),
            ]:
                check()
                done.append(name)
                print(f"clients: {name} is done", flush=True)
    print(f"{len(done)} passed, 0 failed")


if __name__ == "__main__":
    main()
