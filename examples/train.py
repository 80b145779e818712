"""A run step by step, its plan before it and its loss behind it.  train.py PREFIX OUT [SETTING=VALUE...]

PREFIX.bin/.idx are what `octet data` makes.
"""

import sys

import octet


def main() -> None:
    settings: dict[str, str] = {"model.size": "gpt2-nano", "data.train": sys.argv[1], "out": sys.argv[2]}
    settings |= dict(word.split("=", 1) for word in sys.argv[3:])
    plan = octet.plan(settings)
    print(f"{plan.parameters} parameters, {plan.total_bytes} bytes")
    with octet.Run(settings) as run:
        for step in run:
            if step.step % 5 == 0:
                print(step.step, step.loss)
            if step.loss < 1:
                run.stop()  # with a checkpoint
    result = run.finish()
    print("checkpoint", result.checkpoint)
    print("loss", octet.evaluate(result.checkpoint, data=sys.argv[1], max_tokens=1000).loss)


if __name__ == "__main__":
    main()
