"""Holds the HTTP API to its OpenAPI document: what the document allows is done, what it forbids is refused, and every answer
has a status and a shape that the document names. Schemathesis makes the requests up, from a seed.

It starts a `signalbox up` of its own on free ports, in a temporary folder, with one of everything; and ends both.
"""

import argparse
import json
import os
import subprocess
import sys
import urllib.error

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.dirname(HERE))
from up import Up, call, until  # noqa: E402

OUTCOME_S = 60
ACCOUNT = "demo"
TASK = "T-1"


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
    with Up(arguments.signalbox) as up:
        base, token = up.found["http_url"], up.found["operator_token"]
        names = furnish(base, token)
        config = os.path.join(up.folder, "schemathesis.toml")
        with open(config, "w") as file:
            file.write(settings(names, arguments.seed))
        tool = os.path.join(os.path.dirname(sys.executable), "schemathesis")
        run = [tool, "--config-file", config, "run", f"{base}/api/openapi.json", "--no-color"]
        run += ["--header", f"Authorization: Bearer {token}", "--max-examples", str(arguments.examples)]
        environment = {**os.environ, "CONTRACT_AGENT": names["agent"], "CONTRACT_OTHER": names["other_agent"], "CONTRACT_TASK": TASK}
        environment["NO_PROXY"] = "127.0.0.1"
        return subprocess.run(run, cwd=up.folder, env=environment).returncode


if __name__ == "__main__":
    sys.exit(main())
