"""`octet serve` of the tiny chat model of the test material, for tests by clients that are packages of their own."""

import contextlib
import os
import pathlib
import subprocess
import sys
import tempfile

from rank_runs import free_port, wait_until


def skip(reason):
    print(f"skipped: {reason}")
    sys.exit(77)


def tiny_chat():
    """The model's folder. Ends the test as skipped where there is none."""
    shared = pathlib.Path(__file__).resolve().parents[3] / "shared/data"
    folder = pathlib.Path(os.environ.get("OCTET_TEST_DATA") or shared) / "serving/tiny_chat"
    if not folder.exists():
        skip("test material 'serving/tiny_chat' is absent: set OCTET_TEST_DATA to the folder that holds it")
    return folder


@contextlib.contextmanager
def served(octet, *words, model=None):
    """The port of a server, of the tiny chat model unless another is named, that ends with the context."""
    port = free_port()
    with tempfile.NamedTemporaryFile() as log:
        command = [octet, "serve", model or tiny_chat(), "--device", "cpu", "--threads", "1", "--port", str(port), *words]
        server = subprocess.Popen(command, stdout=log, stderr=log)
        text = pathlib.Path(log.name).read_text
        try:
            wait_until(lambda: "serving" in text() or server.poll() is not None, "the server is up")
            assert server.poll() is None, text()
            yield port
        finally:
            server.kill()
            server.wait()
