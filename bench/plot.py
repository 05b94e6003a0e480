"""Line plots as SVG, without a library: both axes logarithmic, or the y axis linear."""

import html
import math

COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#555555", "#000000", "#8b0000", "#6a3d9a"]
WIDTH, HEIGHT, LEFT, RIGHT, TOP, BOTTOM = 720, 420, 76, 150, 40, 52


def scale(values, log, low, high):
    """A function from a value to its place on an axis of pixels [low, high], with 5 % of room on each side."""
    at = math.log if log else float
    begin, end = at(min(values)), at(max(values))
    room = 0.05 * (end - begin) or 0.5
    begin, end = begin - room, end + room
    return lambda v: low + (at(v) - begin) / (end - begin) * (high - low)


def svg(title, x_label, y_label, lines, log_y=True):
    """lines: {name: [(x, y), ...]}. Returns the text of an SVG file. Points with y <= 0 are left out if log_y."""
    lines = {n: [(x, y) for x, y in points if y > 0 or not log_y] for n, points in lines.items()}
    lines = {n: points for n, points in lines.items() if points}
    xs = sorted({x for points in lines.values() for x, _ in points})
    ys = [y for points in lines.values() for _, y in points]
    x_at = scale(xs, True, LEFT, WIDTH - RIGHT)
    y_at = scale(ys, log_y, HEIGHT - BOTTOM, TOP)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{WIDTH}" height="{HEIGHT}" font-family="sans-serif" '
           f'font-size="12">', f'<rect width="{WIDTH}" height="{HEIGHT}" fill="white"/>',
           f'<text x="{LEFT}" y="22" font-size="14">{html.escape(title)}</text>',
           f'<text x="{(LEFT + WIDTH - RIGHT) / 2}" y="{HEIGHT - 12}" text-anchor="middle">{html.escape(x_label)}</text>',
           f'<text transform="translate(16 {HEIGHT / 2}) rotate(-90)" text-anchor="middle">{html.escape(y_label)}</text>',
           f'<path d="M{LEFT} {TOP}V{HEIGHT - BOTTOM}H{WIDTH - RIGHT}" fill="none" stroke="black"/>']
    for x in xs:
        out.append(f'<text x="{x_at(x):.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{x:g}</text>')
    low, high = min(ys), max(ys)
    for i in range(5):
        y = low * (high / low) ** (i / 4) if log_y else low + (high - low) * i / 4
        out.append(f'<text x="{LEFT - 6}" y="{y_at(y) + 4:.1f}" text-anchor="end">{y:.3g}</text>')
    for i, (name, points) in enumerate(lines.items()):
        colour = COLOURS[i % len(COLOURS)]
        path = " ".join(f"{x_at(x):.1f},{y_at(y):.1f}" for x, y in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        out += [f'<circle cx="{x_at(x):.1f}" cy="{y_at(y):.1f}" r="2.5" fill="{colour}"/>' for x, y in points]
        out.append(f'<text x="{WIDTH - RIGHT + 12}" y="{TOP + 12 + 18 * i}" fill="{colour}">{html.escape(name)}</text>')
    return "\n".join(out + ["</svg>", ""])
