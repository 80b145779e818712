#!/usr/bin/env python3
"""Times Jinja2, set up as transformers sets it up, on the conversation of src/chat/chat_template_bench.cc.

    python3 benchmarks/chat_template.py TEMPLATE.jinja
"""
import json
import pathlib
import sys
import time

import jinja2
import jinja2.ext
import jinja2.sandbox

CONVERSATION = pathlib.Path(__file__).resolve().parents[1] / "src/chat/testdata/bench_conversation.json"


def main():
    env = jinja2.sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[jinja2.ext.loopcontrols])
    env.filters["tojson"] = lambda x: json.dumps(x, ensure_ascii=False)
    template = env.from_string(pathlib.Path(sys.argv[1]).read_text(encoding="utf-8"))
    bindings = json.loads(CONVERSATION.read_text(encoding="utf-8")) | {"add_generation_prompt": True}
    times = []
    for _ in range(2000):
        begin = time.perf_counter()
        text = template.render(**bindings)
        times.append(time.perf_counter() - begin)
    times.sort()
    print(f"Jinja2 {jinja2.__version__}: {len(text)} characters, median {1e6 * times[1000]:.0f} us, "
          f"least {1e6 * times[0]:.0f} us")


if __name__ == "__main__":
    main()
