"""Triton's own HTTP client against `octet serve`: health, metadata, infer in JSON and in binary tensors, errors, generate.
Usage: serve_triton_test.py OCTET. Exit status 77: the package tritonclient, or the model, is absent."""

import json
import sys
import urllib.request

from served import Served, skip, tiny_chat

try:
    import numpy
    import tritonclient.http as triton
    from tritonclient.utils import InferenceServerException
except ImportError as error:
    skip(f"{error} (needs tritonclient[http])")

MODEL = "tiny_chat"
PROMPT = "The quick brown"


def tensor(name, values, kind, datatype, binary):
    data = numpy.array([values], dtype=kind)
    made = triton.InferInput(name, data.shape, datatype)
    made.set_data_from_numpy(data, binary_data=binary)
    return made


def prompt_ids(port):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/tokenize", json.dumps({"prompt": PROMPT}).encode())
    with urllib.request.urlopen(request) as reply:
        return json.load(reply)["tokens"]


def generate(port, action, **body):
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v2/models/{MODEL}/{action}", json.dumps(body).encode())
    with urllib.request.urlopen(request) as reply:
        return reply.read().decode()


def refused(call, words):
    try:
        call()
    except InferenceServerException as error:
        assert words in str(error), error
    else:
        raise AssertionError(f"'{words}' is not refused")


def check_metadata(client):
    assert client.is_server_live() and client.is_server_ready()
    assert client.is_model_ready(MODEL) and client.is_model_ready(MODEL, "1") and not client.is_model_ready("other")
    assert "binary_tensor_data" in client.get_server_metadata()["extensions"]
    metadata, config = client.get_model_metadata(MODEL), client.get_model_config(MODEL, "1")
    assert {"name": "text_input", "datatype": "BYTES", "shape": [1]} in metadata["inputs"], metadata
    assert [output["name"] for output in metadata["outputs"]] == ["text_output", "output_ids"], metadata
    assert [one["name"] for one in config["input"]] == [one["name"] for one in metadata["inputs"]], config


def check_infer(client, port, want):
    ids = None
    for binary in (False, True):
        outputs = [triton.InferRequestedOutput(name, binary_data=binary) for name in ("text_output", "output_ids")]
        length = tensor("max_tokens", [8], numpy.int32, "INT32", binary)
        by_text = client.infer(MODEL, [tensor("text_input", [PROMPT], numpy.object_, "BYTES", binary), length,
                                       tensor("temperature", [0], numpy.float32, "FP32", binary),
                                       tensor("stop_words", ["", "~~"], numpy.object_, "BYTES", binary)],
                               outputs=outputs, request_id="r1")
        by_ids = client.infer(MODEL, [tensor("input_ids", prompt_ids(port), numpy.int32, "INT32", not binary), length],
                              outputs=outputs, model_version="1", parameters={"temperature": 0})
        assert by_text.get_response()["id"] == "r1"
        for result in by_text, by_ids:
            assert result.as_numpy("text_output").tolist() == [want if not binary else want.encode()]
            ids = ids or result.as_numpy("output_ids").tolist()
            assert result.as_numpy("output_ids").dtype == numpy.int32
            assert result.as_numpy("output_ids").tolist() == ids and 0 < len(ids) <= 8
    # Without outputs the client asks for all that there are, in bytes.
    text = tensor("text_input", [PROMPT], numpy.object_, "BYTES", True)
    settings = {"max_tokens": 8, "temperature": 0}
    assert client.infer(MODEL, [text], parameters=settings).as_numpy("text_output").tolist() == [want.encode()]
    waiting = [client.async_infer(MODEL, [text], parameters=settings) for _ in range(16)]
    assert {one.get_result().as_numpy("text_output")[0] for one in waiting} == {want.encode()}


def check_errors(client):
    text = tensor("text_input", [PROMPT], numpy.object_, "BYTES", True)
    refused(lambda: client.infer("other", [text]), "the model 'other' is not served here")
    refused(lambda: client.infer(MODEL, [text], model_version="2"), "has no version '2'")
    refused(lambda: client.infer(MODEL, [text, text]), "text_input is given twice")
    refused(lambda: client.infer(MODEL, [text, tensor("top_p", [2], numpy.float32, "FP32", True)]), "top_p is 2")
    refused(lambda: client.infer(MODEL, [text, tensor("top_k", [[1], [2]], numpy.int32, "INT32", True)]), "the shape [1,2,1]")
    assert client.infer(MODEL, [text], request_compression_algorithm="gzip").as_numpy("text_output") is not None
    refused(lambda: client.infer(MODEL, [text], request_compression_algorithm="deflate"), "Content-Encoding is 'deflate'")
    refused(lambda: client.infer(MODEL, [text], sequence_id=4, sequence_start=True), "sequence_id is 4")
    refused(client.get_model_repository_index, "there is no /v2/repository/index")


def main():
    with Served(sys.argv[1], tiny_chat()) as server:
        port = server.port
        want = json.loads(generate(port, "generate", text_input=PROMPT, max_tokens=8, parameters={"temperature": 0}))
        assert want["model_name"] == MODEL and want["text_output"], want
        events = generate(port, "generate_stream", text_input=PROMPT, max_tokens=8, temperature=0).split("\n\n")
        pieces = [json.loads(event.removeprefix("data: "))["text_output"] for event in events if event]
        assert "".join(pieces) == want["text_output"], pieces
        with triton.InferenceServerClient(f"127.0.0.1:{port}", concurrency=4) as client:
            check_metadata(client)
            check_infer(client, port, want["text_output"])
            check_errors(client)


main()
