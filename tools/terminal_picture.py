#!/usr/bin/env python3
"""Draws a recorded terminal session as an SVG: what the screen shows at the end, redrawn lines once.

    script -q -c 'make demo' demo.txt
    tools/terminal_picture.py demo.txt docs/demo.svg --title 'make demo'
"""
import argparse
import html
import re

CHAR_W, LINE_H, PAD, BAR = 7.8, 17, 14, 30


def screen(raw):
    """Lines as they stand after carriage returns and escape sequences did their work."""
    raw = re.sub(r"^Script (started|done).*$", "", raw, flags=re.M)
    raw = raw.replace("\x1b[K", "\0")  # erases to the end of the line
    raw = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", raw).replace("\r\n", "\n")
    lines = []
    for line in raw.split("\n"):
        shown = ""
        for part in line.split("\r"):
            shown = part.replace("\0", "") + ("" if "\0" in part else shown[len(part):])
        lines.append(shown.rstrip())
    while lines and not lines[0]:
        lines.pop(0)
    while lines and not lines[-1]:
        lines.pop()
    return lines


def colour(line):
    if re.match(r"^\[\d/\d\]", line):
        return "#7ee787"
    if line.startswith("$") or line.startswith("trireme demo"):
        return "#79c0ff"
    if line.lstrip().startswith("|"):
        return "#d2a8ff"
    return "#e6edf3"


def svg(lines, title, columns):
    width = int(PAD * 2 + columns * CHAR_W)
    height = BAR + PAD + len(lines) * LINE_H + PAD
    out = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
        f'viewBox="0 0 {width} {height}" font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="13">',
        f'<rect width="{width}" height="{height}" rx="8" fill="#0d1117"/>',
        f'<text x="{width / 2}" y="20" fill="#8b949e" text-anchor="middle">{html.escape(title)}</text>',
    ]
    for i, x in enumerate((18, 38, 58)):
        out.append(f'<circle cx="{x}" cy="15" r="6" fill="{("#ff5f56", "#ffbd2e", "#27c93f")[i]}"/>')
    for i, line in enumerate(lines):
        y = BAR + PAD + i * LINE_H
        text = html.escape(line[:columns])
        out.append(f'<text x="{PAD}" y="{y}" fill="{colour(line)}" xml:space="preserve">{text}</text>')
    return "\n".join(out + ["</svg>", ""])


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("recording")
    p.add_argument("picture")
    p.add_argument("--title", default="")
    p.add_argument("--columns", type=int, default=118)
    a = p.parse_args()
    with open(a.recording, encoding="utf-8", errors="replace", newline="") as f:
        lines = screen(f.read())
    with open(a.picture, "w", encoding="utf-8") as f:
        f.write(svg(lines, a.title, a.columns))


if __name__ == "__main__":
    main()
