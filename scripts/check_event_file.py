#!/usr/bin/env python3
"""Reads a folder of event files with the tensorboard package and compares the last value of some scalars. Each step may be there
once.

usage: check_event_file.py FOLDER TAG STEP VALUE [TAG STEP VALUE ...]
exit status: 0 equal, 1 different or unreadable, 77 when the tensorboard package is absent (a skip, not a failure).
"""
import struct
import sys

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def main(folder, *wanted):
    events = EventAccumulator(folder)
    events.Reload()
    print("tags:", events.Tags()["scalars"])
    wrong = 0
    for tag, step, value in zip(wanted[0::3], wanted[1::3], wanted[2::3]):
        last = events.Scalars(tag)[-1]
        steps = [event.step for event in events.Scalars(tag)]
        if len(set(steps)) != len(steps):
            print(f"{tag}: {len(steps)} points of {len(set(steps))} steps")
            wrong += 1
        single = struct.unpack("f", struct.pack("f", float(value)))[0]  # event files hold float32
        if (last.step, last.value) != (int(step), single):
            print(f"{tag}: step {last.step} value {last.value}, want step {step} value {single}")
            wrong += 1
    return 1 if wrong else 0


if __name__ == "__main__":
    if len(sys.argv) < 5 or (len(sys.argv) - 2) % 3:
        sys.exit(__doc__)
    sys.exit(main(*sys.argv[1:]))
