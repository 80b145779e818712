#!/usr/bin/env python3
"""Times llm.c's GPT-2 training step on GPUs: a peer of `octet-bench train-step --device cuda`.

LLMC is a checkout of https://github.com/karpathy/llm.c. Builds its train_gpt2cu there if it is missing: its Makefile
for sm_90, with cuDNN's attention where cuDNN and its frontend's headers are found, and for several GPUs where NCCL is;
a machine without nvcc needs the files train_gpt2cu and COMMIT of LLMC only. Libraries are those of PyTorch's wheels where
this Python has them, so that both peers multiply with the same cuBLAS. The program initialises the weights, tokens are
random; bf16 with float32 masters and moments, clipping at 1.0 and AdamW, as ours. Step times are those it prints (CUDA
events around a whole step of the first rank); the options for a model are those of llm.c's scripts. --ranks N: data
parallel with ZeRO-1 (-z 1), a process a GPU, each with --batch sequences.
"""

import argparse
import importlib.util
import json
import math
import os
import pathlib
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import time

HERE = pathlib.Path(__file__).resolve().parent
# scripts/run_gpt2_124M.sh and run_gpt2_1558M.sh there: nothing recomputed; GELU inside the product for the large one.
MODELS = {"gpt2-124m": "-e d12 -r 0", "gpt2-1558m": "-e d48 -r 0 -ge 1"}
DROPPED = 3  # steps before the timed ones: plans of cuDNN and cuBLAS, first use of the memory
STEP = re.compile(r"^step +\d+/\d+ \| loss (\S+) .*\| +([\d.]+) ms \|", re.M)


def nvcc_root():
    nvcc = shutil.which("nvcc") or "/usr/local/cuda/bin/nvcc"
    return pathlib.Path(nvcc).resolve().parent.parent if os.path.exists(nvcc) else None


def folders(kind):
    """CUDA's "lib" or "include": those of this Python's wheels, of build/, then the toolkit's."""
    found = []
    wheels = importlib.util.find_spec("nvidia")
    for place in wheels.submodule_search_locations if wheels else []:
        found += sorted(pathlib.Path(place).glob(f"*/{kind}"))
    found += sorted(HERE.parent.glob(f"build/*/nvidia/*/{kind}"))  # scripts/setup.sh cuda
    if root := nvcc_root():
        found.append(root / ("lib64" if kind == "lib" else kind))
    return [folder for folder in found if folder.is_dir()]


def find(kind, pattern):
    places = folders(kind) + [pathlib.Path("/usr", kind, "x86_64-linux-gnu"), pathlib.Path("/usr", kind)]
    places += [folder / "stubs" for folder in places]
    return next((path for place in places for path in sorted(place.glob(pattern))), None)


def frontend_headers(llmc):
    places = [pathlib.Path.home() / "cudnn-frontend" / "include", llmc / "cudnn-frontend" / "include"]
    places += sorted(HERE.parent.glob("build/*/include"))  # scripts/setup.sh cuda
    return next((place for place in places if (place / "cudnn_frontend.h").exists()), None)


def build(llmc):
    """train_gpt2cu, in a copy of the sources: CUDA 13 requires one changed call."""
    if not (llmc / "train_gpt2.cu").exists():
        sys.exit(f"{llmc} is no checkout of llm.c")
    root = nvcc_root()
    if root is None:
        sys.exit(f"{llmc} has no train_gpt2cu, and there is no nvcc to build it with")
    folder = llmc / "build" / "gpu"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / "lib").mkdir(parents=True)
    for name in ("Makefile", "train_gpt2.cu"):
        shutil.copy(llmc / name, folder)
    shutil.copytree(llmc / "llmc", folder / "llmc")
    if "release 13" in subprocess.run([root / "bin" / "nvcc", "--version"], capture_output=True, text=True).stdout:
        utils = folder / "llmc" / "cuda_utils.cuh"
        host = "cudaMemLocation{cudaMemLocationTypeHost, 0}"
        utils.write_text(utils.read_text().replace("PreferredLocation, cudaCpuDeviceId", "PreferredLocation, " + host))
    frontend = frontend_headers(llmc)
    cudnn = frontend and find("include", "cudnn.h") and find("lib", "libcudnn.so*")
    if cudnn:
        (folder / "cudnn-frontend").mkdir()
        (folder / "cudnn-frontend" / "include").symlink_to(frontend)
    else:
        print("llm.c without cuDNN: no headers of cudnn-frontend, or no cuDNN")
    nccl = find("include", "nccl.h") and find("lib", "libnccl.so*")
    if not nccl:
        print("llm.c for one GPU: no headers of NCCL, or no NCCL")
    libraries = ["cublas", "cublasLt"] + (["cudnn", "nvrtc"] if cudnn else []) + (["nccl"] if nccl else [])
    libraries += ["nvidia-ml"] if find("include", "nvml.h") else []
    for name in libraries:  # wheels have libcublas.so.13 but no libcublas.so
        if path := find("lib", f"lib{name}.so*"):
            (folder / "lib" / f"lib{name}.so").symlink_to(path)
    words = ["NO_MULTI_GPU=1", "NO_USE_MPI=1", "GPU_COMPUTE_CAPABILITY=90", f"USE_CUDNN={1 if cudnn else 0}"]
    flags = ["-DMULTI_GPU"] if nccl else []  # the Makefile looks for a Debian package
    words += ["NVCC_LDFLAGS=" + " ".join([*flags, "-Llib", *("-l" + name for name in libraries)])]
    env = dict(os.environ, PATH=f"{root / 'bin'}:{os.environ['PATH']}")
    env["CPATH"] = ":".join(map(str, folders("include")))
    subprocess.run(["make", "train_gpt2cu", *words], cwd=folder, env=env, check=True)
    subprocess.run(["strip", "train_gpt2cu"], cwd=folder, check=False)
    os.replace(folder / "train_gpt2cu", llmc / "train_gpt2cu")


def commit(llmc):
    if (llmc / ".git").exists():
        return subprocess.check_output(["git", "-C", llmc, "rev-parse", "--short", "HEAD"], text=True).strip()
    note = llmc / "COMMIT"  # for a checkout without history
    return note.read_text().strip()[:7] if note.exists() else "of an unknown commit"


def cudnn_version(env):
    """The version of the library that the program will load."""
    code = "import ctypes; print(ctypes.CDLL('libcudnn.so.9').cudnnGetVersion())"
    done = subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True)
    return int(done.stdout) if done.returncode == 0 else None


def run(program, words, args, env):
    """What the first rank prints."""
    import numpy  # here, so that building needs neither

    from make_llmc_inputs import write_tokens

    steps, ranks = args.steps + DROPPED, args.ranks
    with tempfile.TemporaryDirectory() as folder:
        tokens = pathlib.Path(folder) / "tokens.bin"
        write_tokens(tokens, numpy.random.default_rng(1337), (steps + 1) * args.batch * args.length * ranks + 1)
        # No validation batches (-m 0), no samples, no checkpoints, no log folder.
        command = [program, "-i", tokens, "-j", tokens, "-b", args.batch, "-t", args.length, "-x", steps, "-m", 0]
        command += ["-v", 1000, "-s", 0, "-n", 0, "-h", 0, "-z", int(ranks > 1), "-w", 1, "-l", 1e-4, "-c", 0.1, *words]
        command += ["-pi", "fs", "-pf", folder, "-pn", ranks, "-pg", ranks]  # ranks meet by a file
        logs = [pathlib.Path(folder) / f"rank{rank}.txt" for rank in range(ranks)]
        running = []
        for rank, log in enumerate(logs):
            with log.open("w") as file:
                line = [str(word) for word in (*command, "-pr", rank)]
                running.append(subprocess.Popen(line, cwd=folder, env=env, stdout=file, stderr=subprocess.STDOUT))
        try:  # a rank that fails leaves the others waiting for it
            while None in (codes := [process.poll() for process in running]) and not any(codes):
                time.sleep(0.1)
        finally:
            for process in running:
                process.kill()
                process.wait()
        texts = [log.read_text(errors="replace") for log in logs]
    print(texts[0], flush=True)
    for rank, code in enumerate(codes):
        if code:
            sys.exit((texts[rank] if rank else "") + f"train_gpt2cu, rank {rank}, ended with {code}")
    return texts[0]


def number(text, pattern):
    match = re.search(pattern, text, re.M)
    return int(match[1]) if match else sys.exit(f"train_gpt2cu's output has no line like {pattern}")


def same_work(text, parameters, ranks):
    """Exits unless this was bf16 with moments and masters in float32 on the devices, and by that many ranks."""
    if (found := number(text, r"^\| num_processes +\| (\d+)")) != ranks:
        sys.exit(f"llm.c ran {found} rank(s), not {ranks}: a program built with NCCL is wanted")
    states = [int(mib) for mib in re.findall(r"^allocating (\d+) MiB for (?:AdamW|master copy)", text, re.M)]
    if states != 3 * [parameters // ranks * 4 >> 20]:
        sys.exit(f"llm.c keeps states of {states} MiB: not m, v and masters of {parameters} float32 weights / {ranks}")
    if not re.search(r"^\| precision +\| BF16 ", text, re.M) or "Fell back to cudaMallocManaged" in text:
        sys.exit("llm.c did not run in bf16, or not within the device's memory")


def figures(text, args, program, words, env):
    found = STEP.findall(text)
    losses, times = [float(loss) for loss, _ in found], [float(ms) for _, ms in found]
    if len(times) != args.steps + DROPPED or not all(map(math.isfinite, losses)):
        sys.exit(f"llm.c made {len(times)} steps of {args.steps + DROPPED}, losses {losses}")
    parameters = number(text, r"^\| num_parameters +\| (\d+)")
    same_work(text, parameters, args.ranks)
    layers, width = number(text, r"^\| num_layers L +\| (\d+)"), number(text, r"^\| channels C +\| (\d+)")
    # As torch_gpu_model.py counts: weights of products without the vocabulary's padding, half of the square.
    weights = 12 * layers * width**2 + number(text, r"^\| vocab_size V +\| (\d+)") * width
    sequences = args.batch * args.ranks
    tokens = sequences * args.length
    flops = 6 * weights * tokens + 12 * layers * width * args.length**2 * sequences / 2
    times = times[DROPPED:]
    median = statistics.median(times)
    cudnn = b"libcudnn.so" in program.read_bytes()
    return {
        "program": f"llm.c {commit(program.parent)}",
        "device": re.search(r"^\| device +\| (.*?) *\|$", text, re.M)[1],
        "cudnn": cudnn_version(env) if cudnn else None,
        "model": args.model,
        "layers": layers,
        "batch": args.batch,
        "length": args.length,
        "dtype": "bf16",
        "attention": "cudnn" if cudnn else "own",
        "optimizer": "float32 m, v and masters" + (", ZeRO-1" if args.ranks > 1 else ""),
        "ranks": args.ranks,
        "words": words,
        "steps": args.steps,
        "parameters": parameters,
        "median_ms": median,
        "min_ms": min(times),
        "step_ms": times,
        "tokens_per_second": tokens / median * 1e3,
        "model_gflops_per_step": flops / 1e9,
        "tflops": flops / median / 1e9,
        "peak_bytes": number(text, r"^device memory usage: (\d+) MiB") << 20,  # used on the device, CUDA's own included
        "first_loss": losses[0],
        "last_loss": losses[-1],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("llmc", type=pathlib.Path, metavar="LLMC")
    parser.add_argument("--model", choices=list(MODELS), default="gpt2-124m")
    parser.add_argument("--ranks", type=int, default=1, help="GPUs")
    parser.add_argument("--batch", type=int, default=16, help="sequences of a rank")
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--steps", type=int, default=15, help="timed ones")
    parser.add_argument("--words", default="", help='more words of train_gpt2cu, such as "-ge 1"')
    parser.add_argument("--build-only", action="store_true")
    parser.add_argument("--json", help="file for the figures")
    args = parser.parse_args()
    llmc = args.llmc.resolve()
    program = llmc / "train_gpt2cu"
    if not program.exists():
        build(llmc)
    if args.build_only:
        return
    words = MODELS[args.model].split() + args.words.split()
    libraries = [str(folder) for folder in folders("lib")] + [os.environ.get("LD_LIBRARY_PATH", "")]
    env = dict(os.environ, LD_LIBRARY_PATH=":".join(filter(None, libraries)))
    result = figures(run(program, words, args, env), args, program, words, env)
    print(
        "{program} on {ranks} {model} {dtype} B {batch} S {length} (attention {attention}): median {median_ms:.1f} ms, min "
        "{min_ms:.1f} ms; {tokens_per_second:.0f} tokens/s; {tflops:.0f} TFLOP/s; device memory {gib:.1f} GiB; loss "
        "{first_loss:.3f} -> {last_loss:.3f}".format(gib=result["peak_bytes"] / 2**30, **result)
    )
    if args.json:
        pathlib.Path(args.json).write_text(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()
