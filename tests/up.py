"""A `signalbox up` on a free port, in a temporary folder, for the checks in Python beside this file."""

import json
import os
import shutil
import subprocess
import tempfile
import time
import urllib.request

START_S = 120
END_S = 30


def call(base, token, method, path, body=None):
    """What the API answers; fails when it refuses. A body of bytes goes out as it is."""
    data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
    headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {token}"} if token else {})
    request = urllib.request.Request(base + path, data=data, headers=headers, method=method)
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(request, timeout=30) as answer:
        return json.loads(answer.read() or b"null")


def until(what, limit_s, look):
    """Waits for `look` to find something."""
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        found = look()
        if found:
            return found
        time.sleep(0.2)
    raise SystemExit(f"{what}: not within {limit_s} s")


def end(process):
    process.terminate()
    try:
        process.wait(END_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


class Up:
    """In a `with`: the running program. `folder` is there until the end, `found` is its endpoints.json."""

    def __init__(self, signalbox, environment=None, listen="127.0.0.1:0"):
        self.command = [os.path.abspath(signalbox), "up", "--http", listen]
        self.environment = {**os.environ, **(environment or {})}

    def __enter__(self):
        self.folder = tempfile.mkdtemp(prefix="signalbox-up-")
        # Postgres' user, which may not be this one, has to pass through it.
        os.chmod(self.folder, 0o711)
        data_dir = os.path.join(self.folder, "data")
        self.log = os.path.join(data_dir, "signalbox.log")
        with open(os.path.join(self.folder, "out"), "w") as out:
            self.process = subprocess.Popen(
                self.command + ["--data-dir", data_dir],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
            )
        endpoints = os.path.join(data_dir, "endpoints.json")

        def look():
            if self.process.poll() is not None:
                with open(os.path.join(self.folder, "out")) as out:
                    raise SystemExit(f"signalbox up ended with {self.process.returncode}: {out.read()}")
            return os.path.exists(endpoints)

        try:
            until("signalbox up was ready", START_S, look)
            with open(endpoints) as file:
                self.found = json.load(file)
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        end(self.process)
        shutil.rmtree(self.folder, ignore_errors=True)
