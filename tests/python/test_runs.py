"""Training, plans and evaluations: the program's numbers, callbacks, Ctrl-C, resuming."""

import json
import os
import pathlib
import signal
import subprocess
import sys
import textwrap

import conftest
import pytest

import octet


def losses_of(out):
    lines = [json.loads(line) for line in (pathlib.Path(out) / "log.jsonl").read_text().splitlines()]
    return [line["loss"] for line in lines if line.get("kind") == "step"]


def words_of(settings, prefix=""):
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from words_of(value, prefix + name + ".")
        else:
            yield f"{prefix}{name}={value}"


def test_losses_are_the_programs_and_runs_go_on(settings, tmp_path):
    own = {**settings, "train": {**settings["train"], "steps": 6}, "log.interval": 1}
    seen = []
    result = octet.train(own, callbacks=[seen.append], out=str(tmp_path / "ours"))
    subprocess.run([conftest.program(), "train", *words_of(own), f"out={tmp_path / 'its'}"], check=True, capture_output=True)
    assert losses_of(tmp_path / "ours") == losses_of(tmp_path / "its")
    assert [step.step for step in seen] == list(range(1, 7)) and seen[-1].loss == result.loss
    assert result.step == 6 and not result.interrupted and result.to_dict()["checkpoint"] == result.checkpoint
    assert "<table>" in result._repr_html_()

    run = octet.Run(own, out=str(tmp_path / "parts"))
    for step in run:
        if step.step == 3:
            break
    first = run.finish()
    assert first.interrupted and first.step == 3 and pathlib.Path(first.checkpoint).is_dir()
    with octet.Run(own, out=str(tmp_path / "parts")) as rest:
        assert [step.step for step in rest] == [4, 5, 6]
    assert losses_of(tmp_path / "parts") == losses_of(tmp_path / "ours")


def test_a_callback_that_raises_ends_the_run_with_a_checkpoint(settings, tmp_path):
    def fail(step):
        if step.step == 2:
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        octet.train(settings, callbacks=[fail], out=str(tmp_path))
    assert list((tmp_path / "checkpoints").glob("step_*"))


def test_settings_that_cannot_be(settings, tmp_path):
    with pytest.raises(octet.InvalidArgument, match="train.steps"):
        octet.train(settings, train__step=3)
    with pytest.raises(octet.InvalidArgument, match="want a settings file"):
        octet.train()
    with pytest.raises(octet.NotFound, match="nope.yaml|no such"):
        octet.train("nope.yaml")
    with pytest.raises(octet.Error, match="nope"):
        octet.train(settings, data__train="nope", out=str(tmp_path))
    with pytest.raises(octet.InvalidArgument, match="only octet train"):
        octet.train(settings, parallel__restarts=1)


def test_plans_and_evaluations_are_the_programs(settings, model, text):
    words = list(words_of({"model": settings["model"], "data.sequence_length": 64, "precision.recipe": "fp32"}))
    its = json.loads(subprocess.run([conftest.program(), "plan", *words, "--json"], check=True, capture_output=True).stdout)
    ours = octet.plan({"model": settings["model"], "data.sequence_length": 64}, precision__recipe="fp32").to_dict()
    its.pop("compile_seconds", 0), ours.pop("compile_seconds", 0)
    assert ours == its and ours["parameters"] > 0
    with pytest.raises(octet.NotFound, match="want cpu, h200"):
        octet.plan(model__size="gpt2-nano", target="moon")
    command = [conftest.program(), "eval", str(model), text, "--max-tokens", "500", "--json"]
    its = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
    ours = octet.evaluate(model, text, max_tokens=500)
    assert ours.loss == pytest.approx(its["loss"], abs=1e-6) and ours.tokens == its["tokens"]
    assert ours.bits_per_byte == pytest.approx(its["bits_per_byte"], abs=1e-6)
    data = octet.evaluate(model, data=settings["data"]["train"], max_tokens=300, windows=2)
    assert data.tokens >= 300 and data.perplexity > 1
    with pytest.raises(octet.InvalidArgument, match="either text files or data"):
        octet.evaluate(model)
    with pytest.raises(octet.InvalidArgument, match="max_tokens"):
        octet.evaluate(model, text, max_token=5)


def script(source, *words):
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    return subprocess.Popen([sys.executable, "-c", textwrap.dedent(source), *map(str, words)], env=environment,
                            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def interrupted(process):
    """Ctrl-C once the script has written a line; it must end with KeyboardInterrupt."""
    assert process.stdout.readline().strip() == "begun", process.stderr.read()
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert "KeyboardInterrupt" in err and process.returncode in (130, -signal.SIGINT), (process.returncode, err)
    return out


def test_ctrl_c_in_training_leaves_a_checkpoint(settings, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    interrupted(script("""
        import json, octet, sys
        told = lambda step: print("begun", flush=True) if step.step == 2 else None
        octet.train(json.load(open(sys.argv[1])), callbacks=[told], out=sys.argv[2], train__steps=1000000)
        """, tmp_path / "settings.json", tmp_path / "run"))
    assert list((tmp_path / "run" / "checkpoints").glob("step_*"))


@pytest.mark.parametrize("call", [
    "engine.generate(['The cat'] * 100000, max_tokens=100, ignore_eos=True)",
    "[list(engine.stream('The cat', max_tokens=100, ignore_eos=True)) for _ in itertools.count()]",
    "asyncio.run(forever())", "octet.evaluate(sys.argv[1], [sys.argv[2]] * 100, windows=1)",
])
def test_ctrl_c_in_each_call(model, text, call):
    interrupted(script(f"""
        import asyncio, itertools, octet, sys
        engine = octet.Engine(sys.argv[1], device="cpu", recipe="fp32")
        async def forever():
            while True:
                await engine.agenerate("The cat", max_tokens=100, ignore_eos=True)
        print("begun", flush=True)
        {call}
        """, model, text))


def test_the_interpreter_ends_under_everything(model, settings, tmp_path):
    (tmp_path / "settings.json").write_text(json.dumps(settings))
    process = script("""
        import itertools, json, octet, sys, threading
        engine = octet.Engine(sys.argv[1], device="cpu", recipe="fp32")
        streams = [engine.stream("The cat", max_tokens=100, ignore_eos=True, mask=lambda *_: None) for _ in range(8)]
        run = octet.Run(json.load(open(sys.argv[2])), out=sys.argv[3])
        print(next(run).step, next(streams[0]).ids != [])
        endless = lambda: [engine.generate("The cat", max_tokens=100, ignore_eos=True) for _ in itertools.count()]
        threading.Thread(target=endless, daemon=True).start()
        """, model, tmp_path / "settings.json", tmp_path / "run")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out.strip() == "1 True", (process.returncode, out, err)


def test_a_fork_is_told_to_spawn(model):
    process = script("""
        import octet, os, sys
        engine = octet.Engine(sys.argv[1], device="cpu", recipe="fp32")
        stream = engine.stream("The cat", max_tokens=100, ignore_eos=True)
        child = os.fork()
        if child == 0:
            for work in (lambda: engine.generate("a"), lambda: octet.Engine(sys.argv[1]), lambda: next(stream)):
                try:
                    work()
                except octet.Unsupported as error:
                    print("spawn" in str(error), flush=True)
            del stream
            engine.close()
            sys.exit(7)
        print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
        """, model)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0 and out.split() == ["True"] * 3 + ["7"], (out, err)


def test_an_open_that_is_interrupted(model):
    interrupted(script("""
        import octet, sys
        print("begun", flush=True)
        while True:
            octet.Engine(sys.argv[1], device="cpu", recipe="fp32")
        """, model))


def rows_of(settings, count):
    """Rows that a run over the corpus reads in order."""
    import array
    import pathlib
    ids = array.array("H")
    ids.frombytes(pathlib.Path(settings["data"]["train"] + ".bin").read_bytes())
    return [array.array("i", ids[64 * i:64 * i + 65]) for i in range(count)]


def test_rows_of_an_iterator(settings, tmp_path):
    np = pytest.importorskip("numpy")
    mine = {**settings, "data": {"sequence_length": 64}, "model.vocab_size": 300, "train.steps": 6, "train.micro_batch": 2}
    rows, losses = rows_of(settings, 12), {}
    targets = [(np.array(row[:-1], np.int64), np.array(row[1:], np.int64)) for row in rows]
    weighed = [(*pair, np.ones(64, np.float32)) for pair in targets]
    for name, given in (("ids", rows), ("targets", targets), ("weights", weighed)):
        losses[name] = []
        result = octet.train(mine, callbacks=[lambda step: losses[name].append(step.loss)], out=str(tmp_path / name),
                             rows=iter(given))
        assert result.step == 6
    assert losses["ids"] == losses["targets"] == losses["weights"] and losses["ids"][-1] < losses["ids"][0]
    half = [(ids, target, np.where(np.arange(64) < 32, 1, 0).astype(np.float32)) for ids, target in targets]
    with octet.Run(mine, out=str(tmp_path / "half"), rows=half) as run:
        assert next(run).targets == 2 * 32
    more = octet.train({**mine, "train.steps": 7}, out=str(tmp_path / "ids"), rows=iter(rows + rows[:2]))  # goes on
    assert more.step == 7
    with pytest.raises(octet.InvalidArgument, match="ended after 12 rows"):
        octet.train({**mine, "train.steps": 8}, out=str(tmp_path / "few"), rows=iter(rows))


@pytest.mark.parametrize("row, words", [
    ([1], "row 0: ids"), ((), "row 0 has 0 parts"), ("text", "row 0: ids")])
def test_rows_that_cannot_be_used(row, words, settings, tmp_path):
    mine = {**settings, "data": {"sequence_length": 64}, "model.vocab_size": 300}
    with pytest.raises(octet.InvalidArgument, match=words):
        octet.train(mine, out=str(tmp_path / "run"), rows=[row])


def test_rows_are_checked(settings, tmp_path):
    np = pytest.importorskip("numpy")
    mine = {**settings, "data": {"sequence_length": 64}, "model.vocab_size": 300}
    ids = np.arange(10)
    for row, words in ((np.arange(100), "at most data.sequence_length, 64"), (ids + 295, "target 300 at 4"), (ids - 1, "id -1"),
                       ((ids, ids[:5]), "10 ids, 5 targets"), ((ids, ids - 2), "target -2"), (ids[:1], "want two or more"),
                       ((ids, ids, -np.ones(10)), "weight -1"), (np.ones((2, 5), np.int32), "want one dim"),
                       (np.ones(5, np.float32), "is of f32")):
        with pytest.raises(octet.InvalidArgument, match=words):
            octet.train(mine, out=str(tmp_path / "run"), rows=[row])

    def broken():
        yield ids
        raise RuntimeError("no more disks")

    with pytest.raises(RuntimeError, match="no more disks"):
        octet.train(mine, out=str(tmp_path / "run"), rows=broken())
    with pytest.raises(octet.InvalidArgument, match="two sources of data"):
        octet.train(settings, out=str(tmp_path / "run"), rows=[ids])


def test_quantize(model, text, tmp_path):
    report = octet.quantize(model, tmp_path / "fp8", text=text, max_tokens=500, device="cpu")
    assert report.folder == str(tmp_path / "fp8") and report.tokens == 500 and report.linears == []
    assert abs(report.perplexity_after / report.perplexity_before - 1) < 0.1
    assert octet.evaluate(tmp_path / "fp8", text, max_tokens=500).perplexity == pytest.approx(report.perplexity_after, rel=0.2)
    told = octet.quantize(model, tmp_path / "int4", to="int4", calibration=text, samples=4, length=64, group="32",
                          keep=["mlp.down"], device="cpu")
    assert told.perplexity_before is None and len(told.linears) == 2 * 6
    assert {one["name"] for one in told.linears if one["kept"]} == {"layers.0.mlp.down", "layers.1.mlp.down"}
    assert all(0 < one["error"] < 0.5 for one in told.linears if not one["kept"])
    with octet.Engine(tmp_path / "int4", device="cpu", max_sequences=2) as engine:
        assert len(engine.generate("The cat", max_tokens=4).ids) == 4
    for options, words in (({"to": "int5"}, "fp8, int8, int4, nf4|int5"), ({"lenght": 3}, "did you mean 'length'"),
                           ({"to": "int4", "group": "32"}, "needs a calibration text"), ({"kv": "fp8"}, "calibration"),
                           ({"to": "nf4", "kv": "fp8"}, "nf4 rounds weights as they are")):
        with pytest.raises(octet.InvalidArgument, match=words):
            octet.quantize(model, tmp_path / "other", **options)
    with pytest.raises(octet.InvalidArgument, match="already contains a model"):
        octet.quantize(model, tmp_path / "fp8")


def test_tune_train(settings):
    mine = {**settings, "train.global_batch": 8, "precision.recipe": "bf16", "train.micro_batch": None}
    found = octet.tune_train(mine, gpus=2, rows=3)
    assert found.devices == 2 and 0 < len(found.best) <= 3 and found.best[0]["step_seconds"] > 0
    assert found.best[0]["settings"]["precision.recipe"] == "bf16"
    run = subprocess.run([conftest.program(), "tune", "train", "model.size=gpt2-nano", "model.layers=2", "model.hidden=64",
                          "model.heads=4", "model.max_positions=384", "data.sequence_length=64", "train.global_batch=8",
                          "precision.recipe=bf16", "--gpus", "2", "--rows", "3", "--json"], capture_output=True, text=True)
    told = json.loads(run.stdout)["best"]
    assert len(told) == len(found.best)
    for options, words in (({"gpus": 0}, "gpus 0"), ({"gpus": 2, "rows": 0}, "rows 0"), ({"gpus": 2, "margin": 1.0}, "margin 1")):
        with pytest.raises(octet.InvalidArgument, match=words):
            octet.tune_train(mine, **options)
    with pytest.raises(octet.InvalidArgument, match="train.global_batch is not set"):
        octet.tune_train(settings, gpus=2)
    with pytest.raises(octet.OutOfMemory, match="bytes are missing"):
        octet.tune_train({"model.size": "gpt3-1t", "train.global_batch": 8, "data.sequence_length": 2048}, gpus=1,
                         recompute="full", precision__recipe="bf16", parallel__shard="none", train__micro_batch=1)
