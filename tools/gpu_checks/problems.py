"""Problem lines of the op harness (tests/ops/README.md): reads them, chooses some, and stages these as folders."""


def keys_of(line):
    """(op, {key: value}) of a problem line."""
    op, *pairs = line.split()
    return op, dict(pair.split("=", 1) for pair in pairs)


def number(keys, name, otherwise):
    return int(keys.get(name, otherwise))


def read(folder):
    """Reads all files of a folder: ({op: problem lines}, {op: bound lines}), by the first word of a line, whatever the
    file is called. The bounds of a file are those of every op in it; the first bound per type counts."""
    lines, bounds = {}, {}
    for path in sorted(folder.glob("*.txt")):
        here, ops = [], []
        for text in path.read_text().splitlines():
            text = text.split("#", 1)[0].strip()
            if text.startswith("bound "):
                here.append(text)
            elif text:
                op = text.split()[0]
                lines.setdefault(op, []).append(text)
                ops.append(op)
        for op in dict.fromkeys(ops):
            known = {bound_of(b) for b in bounds.setdefault(op, [])}
            bounds[op] += [b for b in here if bound_of(b) not in known]
    return lines, bounds


def bound_of(line):
    """Type, output and device of a bound line: its words without the bounds."""
    return tuple(w for w in line.split() if not w.startswith(("nmse=", "worst=")))


def is_for(line, mode):
    return mode in keys_of(line)[1].get("for", "test").split(",")


def stage(folder, source, choose):
    """Writes the lines of folder `source` for which choose(op, line) holds into `folder`, one file per op. Returns
    {op: lines}; ops without a line are left out."""
    lines, bounds = read(source)
    chosen = {op: kept for op, all_lines in lines.items() if (kept := [x for x in all_lines if choose(op, x)])}
    folder.mkdir(parents=True, exist_ok=True)
    for op, kept in chosen.items():
        (folder / f"{op}.txt").write_text("\n".join([*bounds[op], *kept]) + "\n")
    return chosen
