"""Graphs from Python: a builder's calls, text, passes, and compile() on arrays."""

import gc
import pickle
import subprocess
import sys
import threading

import pytest

import octet

np = pytest.importorskip("numpy")
rng = np.random.default_rng(1)


def mlp():
    graph = octet.Graph("mlp")
    b = octet.Builder(graph)
    x = b.input("x", ("f32", (8, 16)))
    with b.layer(0), b.scope("mlp"):
        up = b.linear(x, "up", 64, bias=True)
        y = b.linear(b.gelu(up, True), "down", 16)
    b.output("y", b.add(x, y))
    return graph


def arrays(graph, scale=0.5):
    return {name: (scale * rng.standard_normal(shape)).astype(np.float32) for name, (_, shape) in
            {**graph.inputs, **graph.params}.items()}


def mlp_of(a):
    up = a["x"] @ a["layers.0.mlp.up.weight"].T + a["layers.0.mlp.up.bias"]
    gelu = 0.5 * up * (1 + np.tanh(np.sqrt(2 / np.pi) * (up + 0.044715 * up ** 3)))
    return a["x"] + gelu @ a["layers.0.mlp.down.weight"].T


def test_calls_fill_a_graph_that_has_names_and_types():
    graph = mlp()
    assert graph.name == "mlp" and len(graph) == 9
    assert graph.inputs == {"x": ("f32", (8, 16))} and graph.outputs == {"y": ("f32", (8, 16))}
    assert graph.params["layers.0.mlp.up.weight"] == ("f32", (64, 16))
    assert "matmul" in str(graph) and "layers.0.mlp.down" in str(graph)
    again = octet.Graph.parse(str(graph))
    assert str(again) == str(graph) and again == graph and pickle.loads(pickle.dumps(graph)) == graph
    assert "9 nodes" in repr(graph)


def test_several_results_have_names():
    graph = octet.Graph()
    b = octet.Builder(graph)
    x = b.input("x", ("f32", (4, 8)))
    norm = b.rms_norm(x, b.param("weight", 8, init="ones"), 1e-6)
    y, rstd = norm
    assert norm.y.shape == (4, 8) == y.shape and norm[1].shape == rstd.shape == (4,) and len(norm) == 2
    assert y.dtype == "f32" and "f32[4,8]" in repr(y)
    with pytest.raises(AttributeError, match="rms_norm gives y, rstd, no mean"):
        norm.mean
    routing = b.top_k(x, 2, "softmax", True)
    assert routing.experts.dtype == "i32" and routing.weights.shape == (4, 2)


def test_passes_are_those_of_octet_opt():
    graph = octet.Graph("train")
    b = octet.Builder(graph)
    x = b.input("x", ("f32", (8, 16)))
    b.output("loss", b.reduce(b.linear(x, "w", 4), "sum", "all"))
    program = graph.run("autodiff", "precision", recipe="fp8-current")
    assert isinstance(program, octet.Program) and {"train", "prepare"} <= {one.name for one in program.graphs}
    assert octet.Program.parse(str(program)) == program and "quantize" in str(program)
    assert isinstance(graph.run("merge_common_nodes"), octet.Graph)
    assert graph.run("plan_memory").startswith("arena ")
    assert "fuse" in octet.pass_names() and "merge_sums" in octet.pass_names()
    assert graph.run("fuse", target="h200", disabled=["merge_sums"]) is not None
    with pytest.raises(octet.InvalidArgument, match="nearest: fuse"):
        graph.run("fuze")
    with pytest.raises(octet.InvalidArgument, match="no option 'recipes'"):
        graph.run("fuse", recipes="bf16")


def test_a_compiled_graph_computes_what_numpy_does():
    graph = mlp()
    a = arrays(graph)
    compiled = octet.compile(graph, device="cpu")
    y = compiled(**a)["y"]
    assert isinstance(y, np.ndarray) and y.dtype == np.float32
    np.testing.assert_allclose(y, mlp_of(a), rtol=2e-5, atol=2e-5)
    a["x"] = a["x"] + 1  # parameters stay
    np.testing.assert_allclose(compiled(x=a["x"])["y"], mlp_of(a), rtol=2e-5, atol=2e-5)
    a["layers.0.mlp.down.weight"] = 2 * a["layers.0.mlp.down.weight"]
    z = compiled(x=a["x"], **{"layers.0.mlp.down.weight": a["layers.0.mlp.down.weight"]})["y"]
    np.testing.assert_allclose(z, mlp_of(a), rtol=2e-5, atol=2e-5)
    assert compiled.bytes > 0 and "graph" in str(compiled)


@pytest.mark.parametrize("recipe, bound", [("bf16", 0.02), ("fp8-current", 0.1), ("int8", 0.05)])
def test_a_recipe_decides_how(recipe, bound):
    graph = mlp()
    a = arrays(graph)
    exact, y = mlp_of(a), octet.compile(graph, recipe=recipe, device="cpu")(**a)["y"]
    error = np.linalg.norm(y.astype(np.float32) - exact) / np.linalg.norm(exact)
    assert 1e-5 < error < bound


def test_types_strides_and_frameworks_of_arrays():
    graph = octet.Graph()
    b = octet.Builder(graph)
    x, ids = b.input("x", ("f32", (4, 6))), b.input("ids", ("i32", (3,)))
    b.output("y", b.scale(x, 2))
    b.output("rows", b.embedding(ids, x))
    compiled = octet.compile(graph, device="cpu")
    base = np.arange(48, dtype=np.float32).reshape(8, 6)
    ids = np.array([2, 0, 3], dtype=np.int32)
    for x in (base[:4], base[::2], np.asfortranarray(base[:4]), base[::-1][:4], base.T[:, ::2].T[:4]):
        x = np.broadcast_to(x, (4, 6))
        out = compiled(x=x, ids=ids)
        np.testing.assert_array_equal(out["y"], 2 * x)
        np.testing.assert_array_equal(out["rows"], x[ids])
    frozen = base[:4].copy()
    frozen.flags.writeable = False
    np.testing.assert_array_equal(compiled(x=frozen, ids=ids)["y"], 2 * frozen)

    class Dlpack:
        def __dlpack__(self, **options):
            return base[4:].__dlpack__()

        def __dlpack_device__(self):
            return base.__dlpack_device__()

    np.testing.assert_array_equal(compiled(x=Dlpack(), ids=memoryview(ids))["y"], 2 * base[4:])


def test_outputs_and_inputs_without_copies():
    graph = mlp()
    a = arrays(graph)
    compiled = octet.compile(graph, device="cpu")
    compiled(**a)
    x = compiled.inputs["x"]
    assert x.ctypes.data == compiled.inputs["x"].ctypes.data
    x[:] = a["x"] - 1
    one = compiled.run()["y"]
    np.testing.assert_allclose(one, mlp_of({**a, "x": a["x"] - 1}), rtol=2e-5, atol=2e-5)
    assert not one.flags.writeable and one.ctypes.data == compiled.run(x=x)["y"].ctypes.data
    copies = compiled(x=a["x"])["y"], compiled(x=a["x"] + 1)["y"]
    assert copies[0].ctypes.data != copies[1].ctypes.data and copies[0].flags.writeable
    kept = one.copy()
    compiled(x=a["x"] - 1)
    del compiled  # views keep what they are views of
    gc.collect()
    x[:] = 3
    assert np.array_equal(one, kept) or one.shape == kept.shape
    assert float(x.sum()) == 3 * x.size
    assert np.from_dlpack(copies[0]).ctypes.data == copies[0].ctypes.data


def test_states_are_kept_and_updated():
    graph = octet.Graph()
    b = octet.Builder(graph)
    total = b.state("total", ("f32", (4,)))
    new = b.add(total, b.input("x", ("f32", (4,))))
    b.output("new", new)
    b.update("total", new)
    compiled = octet.compile(graph, device="cpu")
    x = np.arange(4, dtype=np.float32)
    compiled(x=x)
    np.testing.assert_array_equal(compiled(x=x)["new"], 2 * x)
    np.testing.assert_array_equal(compiled.state("total"), 2 * x)
    np.testing.assert_array_equal(compiled(x=x, total=np.ones(4, np.float32))["new"], x + 1)
    with pytest.raises(octet.NotFound, match="no state 'totl'.*total"):
        compiled.state("totl")


def test_what_cannot_be_used_is_named():
    graph = mlp()
    a = arrays(graph)
    compiled = octet.compile(graph, device="cpu")
    without = {name: array for name, array in a.items() if not name.endswith("bias")}
    with pytest.raises(octet.InvalidArgument, match=r"parameters are missing: layers.0.mlp.up.bias"):
        compiled(**without)
    with pytest.raises(octet.InvalidArgument, match="input x is missing .want f32.8,16"):
        compiled(**{name: array for name, array in a.items() if name != "x"})
    compiled(**a)
    for bad, words in ((np.zeros((8, 15), np.float32), r"shape \[8,15\] .want \[8,16\]"),
                       (np.zeros((8, 16)), "is of f64 .want f32"),
                       (np.zeros((8, 16), np.complex64), "complex64"),
                       ([[0.0]], "of type list"), ("x", "of type str"), (None, "of type NoneType")):
        with pytest.raises(octet.InvalidArgument, match=words):
            compiled(x=bad)
    released = memoryview(bytearray(512))
    released.release()
    with pytest.raises(octet.InvalidArgument, match="array x"):
        compiled(x=released)

    class Cuda:
        __dlpack_device__ = staticmethod(lambda: (2, 0))

        def __dlpack__(self, **_):
            raise BufferError("the device is not here")

    with pytest.raises(octet.InvalidArgument, match="array x"):
        compiled(x=Cuda())
    with pytest.raises(octet.InvalidArgument, match="nearest: x.*there are: x, layers.0"):
        compiled(y=a["x"])
    with pytest.raises(octet.InvalidArgument, match="recipe"):
        octet.compile(graph, recipe="fp9")
    with pytest.raises(octet.Unsupported, match="fp8-current"):
        octet.compile(graph, recipe="fp8-delayed", device="cpu")
    with pytest.raises(octet.InvalidArgument, match="has no output"):
        octet.compile(octet.Graph())
    with pytest.raises(octet.InvalidArgument, match="octet.Graph:1:1"):
        octet.Graph.parse("grph x")


def test_a_builders_mistakes_are_named():
    graph = octet.Graph()
    b = octet.Builder(graph)
    x = b.input("x", ("f32", (4, 8)))
    other = octet.Builder(octet.Graph()).input("x", ("f32", (4, 8)))
    cases = [
        (lambda: b.linear(x, "a"), "argument out is missing"),
        (lambda: b.linear(x, "a", 2.5), "linear: out is 2.5 .want a whole number"),
        (lambda: b.linear(x, "a", 8, biass=True), "no parameter 'biass', nearest: bias"),
        (lambda: b.linear(x, "a", 8, split="rows"), "split 'rows' .want none, column, row, vocab"),
        (lambda: b.linear(x, "a", 8, out=8), "out is given twice"),
        (lambda: b.silu(other), "x is a value of another builder"),
        (lambda: b.silu(3), "silu: x is 3 .want a value"),
        (lambda: b.matmul(x, x), "inner dims differ"),
        (lambda: b.input("x", ("f32", (4, 9))), "asked for as"),
        (lambda: b.input("y", "f32"), "want a type such as"),
        (lambda: b.input("y", ("f33", (4,))), "f33"),
        (lambda: b.emit("silo", [x]), "nearest: silu"),
        (lambda: b.silu(x, x), "it takes 1"),
        (lambda: bool(x), "cannot branch"),
    ]
    for call, words in cases:
        with pytest.raises(octet.InvalidArgument, match=words):
            call()
    b.linear(x, "a", 8)
    with pytest.raises(octet.InvalidArgument, match="parameter a.weight is named twice"):
        b.linear(x, "a", 8)
    assert b.emit("silu", [x])[0].shape == (4, 8)


def test_threads_take_turns():
    graph = mlp()
    a = arrays(graph)
    compiled = octet.compile(graph, device="cpu")
    compiled(**a)
    wrong = []

    def work(shift):
        for _ in range(20):
            y = compiled(x=a["x"] + shift)["y"]
            if not np.allclose(y, mlp_of({**a, "x": a["x"] + shift}), rtol=1e-4, atol=1e-4):
                wrong.append(shift)

    threads = [threading.Thread(target=work, args=(shift,)) for shift in range(3)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert not wrong


def test_without_numpy():
    """A graph without arrays of numpy: buffers in, what has a buffer out."""
    source = """
import array, sys
sys.modules["numpy"] = None
import octet
graph = octet.Graph()
b = octet.Builder(graph)
b.output("y", b.scale(b.input("x", ("f32", (3,))), 2))
y = octet.compile(graph, device="cpu")(x=array.array("f", [1, 2, 3]))["y"]
print(list(memoryview(y)))
"""
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True,
                          env={"PYTHONPATH": ":".join(sys.path)})
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == "[2.0, 4.0, 6.0]"
