"""Chromium without a screen, driven over its own pipe by the DevTools protocol: no driver, no port, no network."""

import json
import os
import select
import shutil
import subprocess
import tempfile
from pathlib import Path

FLAGS = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--hide-scrollbars", "--remote-debugging-pipe",
)  # fmt: skip
TIMEOUT_S = 60


class Chromium:
    """One page. `events` holds what the browser told besides answers: console, exceptions, requests, violations."""

    def __init__(self):
        program = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
        assert program is not None, "these tests need a browser: apt-get install chromium"
        self._folder = tempfile.mkdtemp(prefix="coterie-browser-")
        to_browser, self._out = os.pipe()
        self._in, from_browser = os.pipe()

        # the browser reads from 3 and writes to 4, which a shell puts in place: a fork of this process is no good, JAX
        # has threads
        command = [program, *FLAGS, f"--user-data-dir={self._folder}", "about:blank"]
        self._process = subprocess.Popen(
            ["bash", "-c", f'exec "$@" 3<&{to_browser} 4>&{from_browser}', "bash", *command],
            pass_fds=(to_browser, from_browser),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(to_browser)
        os.close(from_browser)
        self._buffer, self._number, self._session = b"", 0, None
        self.events = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log", "Audits"):
            self.ask(f"{domain}.enable")

    def close(self):
        self._process.kill()
        self._process.wait()
        os.close(self._out)
        os.close(self._in)
        shutil.rmtree(self._folder, ignore_errors=True)

    def ask(self, method, **parameters):
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._out, json.dumps(message).encode() + b"\0")
        while True:
            told = self._next()
            if told.get("id") == self._number:
                assert "error" not in told, told
                return told["result"]
            self.events.append(told)

    def _next(self):
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._in], [], [], TIMEOUT_S)
            assert ready, f"the browser said nothing for {TIMEOUT_S} s"
            read = os.read(self._in, 1 << 20)
            assert read, "the browser has ended"
            self._buffer += read
        first, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(first)

    def open(self, path: Path):
        self.events.clear()
        self.ask("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self._next())

    def run(self, script: str):
        """The value of an expression; a promise is awaited."""
        told = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in told, told
        return told["result"].get("value")

    def show(self, *, width: int, height: int = 900, dark: bool = False, media: str = ""):
        self.ask(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.ask("Emulation.setEmulatedMedia", media=media, features=features)

    def troubles(self):
        """Whatever a console would show in red, and every request for anything but the page itself."""
        found = []
        for event in self.events:
            method, told = event.get("method", ""), event.get("params", {})
            printed = method == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning", "assert")
            if printed or method in ("Runtime.exceptionThrown", "Log.entryAdded", "Audits.issueAdded"):
                found.append(told)
        return found

    def requests(self):
        sent = [event["params"] for event in self.events if event.get("method") == "Network.requestWillBeSent"]
        return [request["request"]["url"] for request in sent]
