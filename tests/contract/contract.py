"""Holds the HTTP API to its OpenAPI document: what the document allows is done, what it forbids is refused, and every answer
has a status and a shape that the document names. Schemathesis makes the requests up, from a seed.

It starts a `signalbox up` of its own on free ports, in a temporary folder, with one of everything; and ends both.
"""

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request

HERE = os.path.dirname(os.path.abspath(__file__))
START_S = 120
OUTCOME_S = 60
ACCOUNT = "demo"
TASK = "T-1"


def call(base, token, method, path, body=None):
    """What the API answers; fails when it refuses. A body of bytes goes out as it is."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    request = urllib.request.Request(base + path, data=data, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.load(answer)


def until(what, limit_s, look):
    """Waits for `look` to find something."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    sys.exit(f"contract: {what}: not within {limit_s} s")


def endpoints(process, data_dir):
    path = os.path.join(data_dir, "endpoints.json")

    def look():
        if process.poll() is not None:
            sys.exit(f"contract: signalbox up ended with {process.returncode}")
        return os.path.exists(path)

    until("signalbox up was ready", START_S, look)
    with open(path) as file:
        return json.load(file)


def furnish(base, token):
    """One of everything that a path can name; gives the names."""
    org = f"/api/orgs/{ACCOUNT}"
    ask = lambda method, path, body=None: call(base, token, method, org + path, body)
    # By its id: a request may change its slug.
    coder = ask("GET", "/agents/coder")["id"]
    spare = ask("POST", "/agents", {"slug": "spare", "name": "Spare"})["id"]
    other = ask("POST", "/agents", {"slug": "other", "name": "Other"})["id"]
    key = ask("POST", "/keys", {"name": "spare", "role": "member"})["id"]
    ask("POST", "/tasks", {"id": TASK, "title": "t", "assignees": [coder]})
    ask("PUT", f"/tasks/{TASK}/context", {"body": "what is built"})
    artifact = ask("POST", f"/tasks/{TASK}/artifacts?name=a.txt", b"text")["id"]
    spare_artifact = ask("POST", f"/tasks/{TASK}/artifacts?name=b.txt", b"text")["id"]
    sent = ask("POST", "/notifications", {"task": TASK, "agent": coder, "body": "please look"})["id"]

    def delivered():
        try:
            notification = ask("GET", f"/notifications/{sent}")
        except urllib.error.HTTPError:
            return None
        return notification if notification["state"] == "delivered" else None

    notification = until("the notification was delivered", OUTCOME_S, delivered)
    ask("POST", "/notifications", {"agent": "nobody-of-this-name", "body": "b"})
    letters = until("a dead letter was written", OUTCOME_S, lambda: ask("GET", "/dead-letters")["items"])
    return {
        "account": ACCOUNT,
        "task": TASK,
        "agent": coder,
        "spare_agent": spare,
        "other_agent": other,
        "key": key,
        "artifact": artifact,
        "spare_artifact": spare_artifact,
        "notification": sent,
        "session": notification["session_id"],
        "turn": notification["turn_id"],
        "letter": letters[0]["id"],
    }


def settings(names, seed):
    """Of Schemathesis. A value is given where only the running system knows one."""
    path = lambda name: json.dumps(names[name])
    return f"""
seed = {seed}
hooks = {json.dumps(os.path.join(HERE, "hooks.py"))}

[parameters]
"path.account" = {path("account")}
"path.task" = {path("task")}
"path.agent" = {path("agent")}
"path.key" = {path("key")}
"path.artifact" = {path("artifact")}
"path.notification" = {path("notification")}
"path.session" = {path("session")}
"path.turn" = {path("turn")}
"path.letter" = {path("letter")}
# One that a list gave out, or none.
"query.cursor" = ""
"query.with" = {path("turn")}

[generation]
# No text holds it, the values within `metadata` included.
allow-x00 = false

[checks.positive_data_acceptance]
# 422: an Idempotency-Key that came before, with another request.
expected-statuses = ["2xx", "401", "403", "404", "409", "422", "429", "5xx"]

[checks.negative_data_rejection]
# 413: a text that is too long.
expected-statuses = ["400", "401", "403", "404", "405", "406", "409", "413", "415", "422", "428", "429", "5xx"]

# The others need theirs.
[[operations]]
include-method = "DELETE"
include-path = "/api/orgs/{{account}}/agents/{{agent}}"
[operations.parameters]
"path.agent" = {path("spare_agent")}
[operations.checks.ensure_resource_availability]
# It is removed once.
enabled = false

[[operations]]
include-method = "DELETE"
include-path = "/api/orgs/{{account}}/artifacts/{{artifact}}"
[operations.parameters]
"path.artifact" = {path("spare_artifact")}
[operations.checks.ensure_resource_availability]
enabled = false

# Most made-up bytes are of no type that is kept.
[[operations]]
include-method = "POST"
include-path = "/api/orgs/{{account}}/tasks/{{task}}/artifacts"
[operations.checks.positive_data_acceptance]
expected-statuses = ["2xx", "401", "403", "404", "409", "415", "422", "429", "5xx"]
"""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("signalbox", help="the program")
    parser.add_argument("--examples", type=int, default=100, help="made-up requests for each route and way")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    folder = tempfile.mkdtemp(prefix="signalbox-contract-")
    # Postgres' user, which may not be this one, has to pass through it.
    os.chmod(folder, 0o711)
    data_dir = os.path.join(folder, "data")
    command = [os.path.abspath(arguments.signalbox), "up", "--data-dir", data_dir, "--http", "127.0.0.1:0"]
    process = None
    try:
        with open(os.path.join(folder, "out"), "w") as out:
            process = subprocess.Popen(command, cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=out)
        found = endpoints(process, data_dir)
        base, token = found["http_url"], found["operator_token"]
        names = furnish(base, token)
        config = os.path.join(folder, "schemathesis.toml")
        with open(config, "w") as file:
            file.write(settings(names, arguments.seed))
        tool = os.path.join(os.path.dirname(sys.executable), "schemathesis")
        run = [tool, "--config-file", config, "run", f"{base}/api/openapi.json", "--no-color"]
        run += ["--header", f"Authorization: Bearer {token}", "--max-examples", str(arguments.examples)]
        environment = {**os.environ, "CONTRACT_AGENT": names["agent"], "CONTRACT_OTHER": names["other_agent"], "CONTRACT_TASK": TASK}
        environment["NO_PROXY"] = "127.0.0.1"
        return subprocess.run(run, cwd=folder, env=environment).returncode
    finally:
        if process:
            process.terminate()
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
