"""scripts/check.py on a tree of three sources: the innermost room of a path counts, for its arrows and for its lines.
Usage: rooms_check_test.py SOURCE"""
import pathlib
import sys
import tempfile

source = pathlib.Path(sys.argv[1])
sys.dont_write_bytecode = True
sys.path.insert(0, str(source / "scripts"))
import check  # noqa: E402

with tempfile.TemporaryDirectory() as folder:
    check.ROOT = pathlib.Path(folder)
    files = {"cmake/rooms.txt": (source / "cmake/rooms.txt").read_text(),
             "docs/map.md": (source / "docs/map.md").read_text(),
             "src/dist/cuda/nccl.h": '#include "dist/control.h"\n#include "kernels/cuda/kernel.h"\nint a;\n',
             "src/dist/device.h": '#include "dist/control.h"\n#include "kernels/cuda/kernel.h"\n',
             "src/dist/team.h": '#include "dist/cuda/nccl.h"\n'}
    for name, text in files.items():
        (check.ROOT / name).parent.mkdir(parents=True, exist_ok=True)
        (check.ROOT / name).write_text(text)
    check.tracked = lambda *patterns: [pathlib.Path(name) for name in files if name.startswith("src/")
                                       and "src/*.h" in patterns]
    faults = check.check_layers()
    assert faults == ["src/dist/device.h:2: dist may not include kernels/cuda (cmake/rooms.txt)",
                      "src/dist/team.h:1: dist may not include dist/cuda (cmake/rooms.txt)"], faults
    counts = check.count_lines()
    assert {room: count for room, count in counts.items() if count} == {"dist": 3, "dist/cuda": 3}, counts
