#!/usr/bin/env python3
"""Rows of the table of guides: verdicts and times of masks of `octet-chat guide` on files of cases.

    benchmarks/guides.py CASES.jsonl[.gz] --octet build/test/tools/octet-chat --tokenizer FOLDER [--show]

Each case is a line {name, schema | regex | grammar | choices, tests: [{data | text, valid}]}. Times are of the thread's own
CPU clock. A case is right when every verdict is; one without tests when it is not refused.
"""
import argparse
import gzip
import json
import subprocess


def quantile(values, part):
    return sorted(values)[min(len(values) - 1, int(part * len(values)))] if values else float("nan")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("cases")
    parser.add_argument("--octet", default="build/test/tools/octet-chat")
    parser.add_argument("--tokenizer", help="vocabulary: without it, verdicts only")
    parser.add_argument("--show", action="store_true", help="print the cases that are refused or wrong")
    options = parser.parse_args()
    opened = gzip.open if options.cases.endswith(".gz") else open
    with opened(options.cases, "rt", encoding="utf-8") as file:
        cases = [json.loads(line) for line in file if line.strip()]
    command = [options.octet, "guide", options.cases]
    if options.tokenizer:
        command += ["--tokenizer", options.tokenizer]
    output = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    answers = [json.loads(line) for line in output.splitlines()]
    if len(answers) != len(cases):
        raise SystemExit(f"{len(answers)} answers to {len(cases)} cases")
    right = refused = accepted = rejected = 0
    masks, first = [], []
    for case, answer in zip(cases, answers):
        wrong = "unsupported" if "unsupported" in answer else "error" if "verdicts" not in answer else ""
        if wrong:
            refused += 1
        else:
            masks += answer.get("mask_us", [])
            first += [answer["first_mask_us"]] if "first_mask_us" in answer else []
            pairs = [(test["valid"], verdict) for test, verdict in zip(case["tests"], answer["verdicts"])]
            if (False, True) in pairs:
                accepted, wrong = accepted + 1, "an invalid instance accepted"
            elif (True, False) in pairs:
                rejected, wrong = rejected + 1, "a valid instance refused"
            else:
                right += 1
        if wrong and options.show:
            print(case.get("name", ""), wrong, answer.get("unsupported", answer.get("error", "")), sep=": ")
    print(f"cases {len(cases)}: right {right} ({100 * right / len(cases):.1f} %), refused {refused}, "
          f"accepting an invalid instance {accepted}, refusing a valid one {rejected}")
    if masks:
        print(f"masks {len(masks)}, us: mean {sum(masks) / len(masks):.1f}, p50 {quantile(masks, .5):.1f}, "
              f"p99 {quantile(masks, .99):.0f}, p99.9 {quantile(masks, .999):.0f}, max {max(masks):.0f}")
        print(f"first mask, ms: p50 {quantile(first, .5) / 1e3:.2f}, p99 {quantile(first, .99) / 1e3:.1f}")


if __name__ == "__main__":
    main()
