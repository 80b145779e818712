"""A page in headless Chromium, driven by the DevTools protocol over a pipe: no driver and no package is needed."""

import base64
import collections
import fcntl
import json
import os
import select
import shutil
import subprocess
import tempfile
import time

from rank_runs import PATIENCE

NAMES = ["chromium-headless-shell", "chromium", "chromium-browser", "google-chrome"]
KEYS = {"Enter": 13, "Escape": 27, "Tab": 9}


def find_chromium():
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """One page. `events`: what the browser tells, (method, params) each, as far as it was read. The browser ends with the
    context."""

    def __init__(self, program):
        self.folder = tempfile.TemporaryDirectory()
        pipes = [fcntl.fcntl(end, fcntl.F_DUPFD, 10) for end in (*os.pipe(), *os.pipe())]  # not where 3 and 4 go
        theirs_in, self.to, self.of, theirs_out = pipes

        def place():
            os.dup2(theirs_in, 3)
            os.dup2(theirs_out, 4)

        words = [program, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
                 "--disable-background-networking", "--remote-debugging-pipe", f"--user-data-dir={self.folder.name}"]
        self.process = subprocess.Popen(words, preexec_fn=place, pass_fds=(3, 4), stdout=subprocess.DEVNULL,
                                        stderr=subprocess.DEVNULL)
        os.close(theirs_in)
        os.close(theirs_out)
        self.session, self.count, self.rest = None, 0, b""
        self.events, self.answers = collections.deque(), {}
        self.tab()

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.process.kill()
        self.process.wait()
        os.close(self.to)
        os.close(self.of)
        self.folder.cleanup()

    def tab(self):
        """Opens one more tab, which calls go to from now on. Returns the `session` of the former."""
        former, self.session = self.session, None
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")
        return former

    def call(self, method, **params):
        number = self._send(method, params)
        deadline = time.monotonic() + PATIENCE
        while number not in self.answers:
            self._read(deadline, method)
        answer = self.answers.pop(number)
        assert "error" not in answer, f"{method}: {answer}"
        return answer["result"]

    def _send(self, method, params):
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        if self.session:
            message["sessionId"] = self.session
        os.write(self.to, json.dumps(message).encode() + b"\0")
        return self.count

    def _read(self, deadline, what):
        if not select.select([self.of], [], [], max(deadline - time.monotonic(), 0))[0]:
            raise AssertionError(f"{what}: Chromium does not answer")
        block = os.read(self.of, 1 << 16)
        assert block, f"{what}: Chromium has ended"
        *messages, self.rest = (self.rest + block).split(b"\0")
        for message in map(json.loads, messages):
            if "id" in message:
                self.answers[message["id"]] = message
            else:
                self.events.append((message["method"], message["params"]))
                if message["method"] == "Page.javascriptDialogOpening":  # whether the page may be left: yes
                    self._send("Page.handleJavaScriptDialog", {"accept": True})

    def evaluate(self, script):
        """The value of an expression; promises are waited for."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, f"{script}: {answer['exceptionDetails']}"
        return answer["result"].get("value")

    def wait(self, script):
        deadline = time.monotonic() + PATIENCE
        while not self.evaluate(script):
            if time.monotonic() > deadline:
                raise AssertionError(f"{script}: not after {PATIENCE} s; the page says: {self.evaluate('document.body.innerText')}")
            time.sleep(0.01)

    def open(self, url):
        self.call("Page.navigate", url=url)
        self.wait(f"location.href === '{url}' && document.readyState === 'complete'")

    def size(self, width, height):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 500)

    def network(self, bytes_per_second):
        """How fast it brings what the page asks for; -1: as it is."""
        self.call("Network.emulateNetworkConditions", offline=False, latency=0, downloadThroughput=bytes_per_second,
                  uploadThroughput=-1)

    def key(self, name, shift=False):
        event = {"key": name, "code": name, "windowsVirtualKeyCode": KEYS[name], "modifiers": 8 if shift else 0}
        text = {"text": "\r"} if name == "Enter" else {}
        self.call("Input.dispatchKeyEvent", type="keyDown", **event, **text)
        self.call("Input.dispatchKeyEvent", type="keyUp", **event)

    def type(self, text):
        self.call("Input.insertText", text=text)

    def fill(self, element, text):
        """Replaces what stands in a field by typing."""
        element = f"document.getElementById('{element}')"
        taken = self.evaluate(f"(f => {{ f.focus(); f.select(); return document.activeElement === f; }})({element})")
        assert taken, f"{element} cannot be typed into"
        if text:
            self.type(text)
        else:
            self.evaluate(f"{element}.value = ''")

    def click(self, element):
        place = self.evaluate(f"""(() => {{ const e = document.getElementById('{element}');
            e.scrollIntoView({{block: 'center'}}); const r = e.getBoundingClientRect();
            return [r.x + r.width / 2, r.y + r.height / 2]; }})()""")
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=place[0], y=place[1], button="left", clickCount=1)

    def picture(self, path):
        data = self.call("Page.captureScreenshot", format="png")["data"]
        with open(path, "wb") as file:
            file.write(base64.b64decode(data))
