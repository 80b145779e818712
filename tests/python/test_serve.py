"""octet.serve: the server in threads of this process, over an engine that scripts use beside it."""

import json
import threading
import urllib.error
import urllib.request

import pytest

import octet


def ask(url, body=None, key=None):
    request = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json", **({"Authorization": f"Bearer {key}"} if key else {})})
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def test_an_engine_is_served_and_used(engine):
    expected = engine.generate("The cat", max_tokens=8, temperature=0).text
    with octet.serve(engine, port=0, served_model_name=["tiny"]) as server:
        assert server.url == f"http://127.0.0.1:{server.port}" and not server.closed
        assert ask(server.url + "/v1/models")["data"][0]["id"] == "tiny"
        body = {"model": "tiny", "prompt": "The cat", "max_tokens": 8, "temperature": 0}
        assert ask(server.url + "/v1/completions", body)["choices"][0]["text"] == expected
        messages = [{"role": "user", "content": "The cat"}]
        chat = ask(server.url + "/v1/chat/completions", {"messages": messages, "max_tokens": 8, "temperature": 0})
        assert chat["choices"][0]["message"]["content"] == engine.chat(messages, max_tokens=8, temperature=0).text
        assert engine.generate("The cat", max_tokens=8, temperature=0).text == expected
        with pytest.raises(urllib.error.HTTPError, match="404"):
            ask(server.url + "/v1/completions", {**body, "model": "other"})
        assert "octet_" in urllib.request.urlopen(server.url + "/metrics", timeout=60).read().decode()
    assert server.closed
    with pytest.raises(OSError):
        ask(server.url + "/v1/models")
    with pytest.raises(octet.InvalidArgument, match="the server is closed"):
        server.port
    assert engine.generate("The cat", max_tokens=8, temperature=0).text == expected


def test_a_path_is_served(model, tmp_path):
    (tmp_path / "keys").write_text("")
    server = octet.serve(model, port=0, recipe="fp32", device="cpu", max_sequences=4)
    other = octet.serve(model, port=0, recipe="fp32", device="cpu", max_sequences=4, metric_names="vllm")
    assert server.port != other.port
    assert ask(server.url + "/v1/models") and ask(other.url + "/v1/models")
    waiting = threading.Thread(target=server.wait)
    waiting.start()
    with pytest.raises(octet.Error, match=str(other.port)):
        octet.serve(model, port=other.port, device="cpu")
    server.close()
    waiting.join(10)
    assert not waiting.is_alive()
    server.close()
    other.close(drain=0)


def test_what_cannot_be_served_is_named(engine, model):
    for options, words in (({"prot": 1}, "'prot'|prot"), ({"port": 70000}, "port"), ({"recipe": "bf16"}, "not open yet"),
                           ({"metric_names": "x"}, "metric_names")):
        with pytest.raises(octet.InvalidArgument, match=words):
            octet.serve(engine, **options)
    with pytest.raises(octet.InvalidArgument, match="did you mean 'max_sequences'"):
        octet.serve(model, max_sequence=4)
    with pytest.raises(octet.NotFound):
        octet.serve("nowhere")
    with pytest.raises(octet.Error, match="keys"):
        octet.serve(engine, port=0, api_keys="/no/such/keys")


def test_streams_end_with_the_server(engine):
    server = octet.serve(engine, port=0)
    body = {"prompt": "The cat", "max_tokens": 300, "stream": True, "ignore_eos": True}
    request = urllib.request.Request(server.url + "/v1/completions", data=json.dumps(body).encode(),
                                     headers={"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as reply:
        assert reply.readline().startswith(b"data: ")
        server.close(drain=0)
        reply.read()
    assert engine.stats()["broken"] is False
