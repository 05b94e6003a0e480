#!/usr/bin/env python3
"""Holds every #include "..." under src against the layer table (ARCHITECTURE.md, DESIGN section 2).

    tools/check_layers.py [SRC]      # SRC is src/ beside this folder unless given

A room may include itself and rooms of lower rows; rooms of one row never include each other; sim sees rows 0-3 only.
Nor may headers define two types of one name in one namespace. Each breach is one line, "file:line: what and why", and
makes the exit code 1. Files above 600 lines are warned of.
"""
import pathlib
import re
import sys

ROWS = [
    ["base"],
    ["mesh", "schedule", "trace", "sandbox"],
    ["spec"],
    ["tensor", "cost", "program"],
    ["device", "text"],
    ["comm", "tasks"],
    ["model", "optim", "checkpoint", "data"],
    ["runtime", "sim", "catalog"],
    ["generate", "measure"],
    ["train", "forecast"],
    ["estimate", "published"],
    ["search"],
    ["tune", "report", "scaling"],
    ["cli"],
]
ROW_OF = {room: row for row, rooms in enumerate(ROWS) for room in rooms}
LIBRARIES = {"hwy"}  # includes its own headers in quotes, as Highway's documentation does
SEEN_BY_CLI_ALONE = {"published"}
HIGHEST_SEEN_BY = {"sim": 3}  # rooms that see less than all rows below their own
SUFFIXES = {".h", ".cc", ".cu", ".cuh", ".inc"}
MOST_LINES = 600
# Files that reach none of these, directly or through headers (names begin so): the split of the runner.
PASSES = ["runtime/stage_passes.h", "runtime/stage_passes.cc", "runtime/pass_ops.cc", "runtime/pass_recompute.cc",
          "runtime/pass_turns.cc", "runtime/evaluator.h", "runtime/evaluator.cc", "runtime/cached_decoder.h",
          "runtime/cached_decoder.cc"]
NEVER_REACHES = {name: ("optim/", "runtime/step_", "runtime/posted_", "runtime/stage_runner") for name in PASSES}
NEVER_REACHES |= {name: ("optim/",) for name in ["runtime/stage_memory.h", "runtime/stage_memory.cc"]}
NEVER_REACHES |= {name: ("runtime/stage_passes", "runtime/stage_runner", "runtime/pipeline_comm")
                  for name in ["runtime/step_end.h", "runtime/step_noise.h", "runtime/posted_step.h"]}
ALLOWED = {"runtime/step_watch.h"}
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"')


def why_not(room, other):
    """Why `room` must not include `other`; None if it may."""
    if room == other:
        return None
    if other in SEEN_BY_CLI_ALONE:
        return None if room == "cli" else f"{other} is for cli alone"
    highest = HIGHEST_SEEN_BY.get(room, ROW_OF[room] - 1)
    if ROW_OF[other] <= highest:
        return None
    if ROW_OF[other] == ROW_OF[room]:
        return f"{room} and {other} are siblings in row {ROW_OF[room]}, and siblings never include each other"
    return f"{room} (row {ROW_OF[room]}) sees rows 0-{highest}, and {other} is in row {ROW_OF[other]}"


def check_file(src, path):
    """Errors and warnings of one file, as lists of lines."""
    name = path.relative_to(src).as_posix()
    room = name.split("/")[0]
    if "/" not in name:
        return [f"{name}: a file outside of every room; each belongs to a folder of the layer table"], []
    if room not in ROW_OF:
        return [f"{name}: folder {room} is not in the layer table"], []
    errors, warnings = [], []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, 1):
        match = INCLUDE.match(line)
        if not match:
            continue
        target = match.group(1)
        other = target.split("/")[0]
        if other in LIBRARIES:
            continue
        if "/" not in target or other not in ROW_OF:
            errors.append(f'{name}:{number}: "{target}" names no room; right is a path from src, as "{room}/file.h"')
        elif reason := why_not(room, other):
            errors.append(f'{name}:{number}: "{target}": {reason}')
        elif not (src / target).is_file():
            errors.append(f'{name}:{number}: "{target}" does not exist')
    if len(lines) > MOST_LINES:
        warnings.append(f"{name}: {len(lines)} lines, above {MOST_LINES}: one thought a file")
    return errors, warnings


NAMESPACE = re.compile(r"^(?:inline )?namespace ([\w:]*) ?\{", re.M)
TYPE = re.compile(r"^(?:struct|class|enum class|enum|union) (\w+)(?: final)?(?: ?:(?!:)[^;{]*)? ?\{", re.M)


def twice_named(src, headers):
    """Types of one name and namespace in two headers: to the linker they are one, whatever their members."""
    homes, errors = {}, []
    for path in headers:
        text = path.read_text(encoding="utf-8")
        namespaces = [m.group(1) for m in NAMESPACE.finditer(text)] or [""]
        for match in TYPE.finditer(text):
            inside = [m.group(1) for m in NAMESPACE.finditer(text, 0, match.start())] or namespaces[:1]
            name = f"{inside[-1]}::{match.group(1)}"
            other = homes.setdefault(name, path)
            if other != path:
                errors.append(f"{path.relative_to(src)}: {name} is another type in {other.relative_to(src)}; "
                              "give one of them another name")
    return errors


def reached(src, name):
    """Headers of src that a file reaches, each with the file that includes it."""
    found, pending = {}, [name]
    while pending:
        file = pending.pop()
        path = src / file
        for line in path.read_text(encoding="utf-8").splitlines() if path.is_file() else []:
            match = INCLUDE.match(line)
            if match and match.group(1) not in found:
                found[match.group(1)] = file
                pending.append(match.group(1))
    return found


def breaches_of_reach(src):
    """A file that is gone is an error too, so that a new name cannot end its check."""
    errors = []
    for name, prefixes in NEVER_REACHES.items():
        if not (src / "runtime").is_dir():
            continue
        if not (src / name).is_file():
            errors.append(f"{name}: NEVER_REACHES has a file that does not exist")
        for header, by in sorted(reached(src, name).items()):
            if header.startswith(prefixes) and header not in ALLOWED:
                errors.append(f"{name}: reaches {header} through {by}; NEVER_REACHES says why it must not")
    return errors


def breaches_of_meta_only(src, listed):
    """A file of cli whose header a listed one includes is listed too, or replaced in cli/meta_only.

    listed: the text of cmake/meta_only.cmake. That build takes minutes, so no quick test links it.
    """
    names = re.search(r"set\(meta_only_cli ([^)]*)\)", listed).group(1).split()
    cli = src / "cli"
    replaced = set()
    for path in (cli / "meta_only").glob("*.cc"):
        replaced |= set(re.findall(r'#include "cli/(\w+)\.h"', path.read_text(encoding="utf-8")))
    errors = []
    for name in names:
        if not (cli / f"{name}.cc").is_file():
            errors.append(f"cli/{name}.cc: cmake/meta_only.cmake lists a file that does not exist")
            continue
        for other in re.findall(r'#include "cli/(\w+)\.h"', (cli / f"{name}.cc").read_text(encoding="utf-8")):
            if (cli / f"{other}.cc").is_file() and other not in names and other not in replaced:
                errors.append(f"cli/{name}.cc: includes cli/{other}.h; add {other} to cmake/meta_only.cmake")
    return errors


def check_tree(src):
    """Errors, warnings and the number of files of the whole tree."""
    # A generated table (*_table.inc, say) may be long, and so may be data; code may not: suffixes say which is which.
    files = sorted(p for p in src.rglob("*") if p.is_file() and p.suffix in SUFFIXES)
    errors, warnings = [], []
    for path in files:
        new_errors, new_warnings = check_file(src, path)
        errors += new_errors
        warnings += [w for w in new_warnings if path.suffix != ".inc"]
    errors += breaches_of_reach(src)
    meta_only = src.parent / "cmake" / "meta_only.cmake"
    if meta_only.is_file():
        errors += breaches_of_meta_only(src, meta_only.read_text(encoding="utf-8"))
    errors += twice_named(src, [p for p in files if p.suffix == ".h"])
    for folder in sorted(p.name for p in src.iterdir() if p.is_dir()):
        if folder not in ROW_OF and not any(e.startswith(folder + "/") for e in errors):
            errors.append(f"{folder}: this folder is not in the layer table")
    return errors, warnings, len(files)


def main(argv):
    src = pathlib.Path(argv[1]) if len(argv) > 1 else pathlib.Path(__file__).resolve().parent.parent / "src"
    errors, warnings, files = check_tree(src)
    for line in warnings:
        print(f"warning: {line}")
    for line in errors:
        print(f"error: {line}")
    print(f"check_layers: {files} files, {len(errors)} errors, {len(warnings)} warnings")
    return 1 if errors or not files else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv))
