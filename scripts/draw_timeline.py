#!/usr/bin/env python3
"""Draws a trace (slip ... --trace FILE) as an SVG picture: one row per stream, one box per op, arrows for events.

Usage: scripts/draw_timeline.py TRACE OUT.svg [--title TEXT] [--from-us A] [--to-us B]

For pictures in documents. To look at a trace, open the file in Perfetto or chrome://tracing.
"""
import argparse
import html
import json
import sys

ROW, GAP, LEFT, TOP, WIDTH = 30, 12, 130, 58, 900
COLOURS = {"compute": "#4c78a8", "copy in": "#59a14f", "copy out": "#e15759", "host": "#b07aa1", "none": "#9c9c9c"}


def load(path):
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)["traceEvents"]
    except (OSError, ValueError, KeyError, TypeError) as error:
        sys.exit(f"draw_timeline: {path}: not a trace: {error}")


def spans_of(events):
    """Ops as (track, start, end, name, engine), and the names of their tracks."""
    tracks, processes, spans = {}, {}, []
    for event in events:
        key = (event.get("pid"), event.get("tid"))
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            tracks[key] = event["args"]["name"]
        elif event.get("ph") == "M" and event.get("name") == "process_name":
            processes[event.get("pid")] = event["args"]["name"]
        elif event.get("ph") == "X":
            start = float(event["ts"])
            engine = event.get("args", {}).get("engine", "none")
            spans.append((key, start, start + float(event.get("dur", 0)), event.get("name", ""), engine))
    return spans, tracks, processes


def arrows_of(events):
    """Event edges as ((track, time), (track, time)), by flow id."""
    begun, arrows = {}, []
    for event in events:
        place = ((event.get("pid"), event.get("tid")), float(event.get("ts", 0)))
        if event.get("ph") == "s":
            begun[event.get("id")] = place
        elif event.get("ph") == "f" and event.get("id") in begun:
            arrows.append((begun[event["id"]], place))
    return arrows


def draw(spans, arrows, tracks, title):
    rows = sorted({span[0] for span in spans})
    place = {key: index for index, key in enumerate(rows)}
    first = min(span[1] for span in spans)
    last = max(span[2] for span in spans)
    scale = WIDTH / max(last - first, 1e-9)
    height = TOP + len(rows) * (ROW + GAP) + 46

    def x(time):
        return LEFT + (time - first) * scale

    def y(key):
        return TOP + place[key] * (ROW + GAP)

    out = [f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 24}" height="{height}" '
           f'font-family="sans-serif" font-size="12">',
           '<defs><marker id="tip" viewBox="0 0 6 6" refX="6" refY="3" markerWidth="6" markerHeight="6" orient="auto">'
           '<path d="M0 0 L6 3 L0 6 z" fill="#555"/></marker></defs>',
           f'<rect width="100%" height="100%" fill="#ffffff"/>',
           f'<text x="12" y="24" font-size="15" font-weight="bold">{html.escape(title)}</text>']
    for key in rows:
        out.append(f'<rect x="{LEFT}" y="{y(key)}" width="{WIDTH}" height="{ROW}" fill="#f2f2f2"/>')
        out.append(f'<text x="12" y="{y(key) + 19}">{html.escape(tracks.get(key, str(key[1])))}</text>')
    for key, start, end, name, engine in spans:
        width = max((end - start) * scale, 0.8)
        out.append(f'<rect x="{x(start):.1f}" y="{y(key)}" width="{width:.1f}" height="{ROW}" '
                   f'fill="{COLOURS.get(engine, "#9c9c9c")}" stroke="#ffffff" stroke-width="0.6">'
                   f'<title>{html.escape(name)}: {end - start:.3f} us ({html.escape(engine)})</title></rect>')
        if width > 7 * len(name):
            out.append(f'<text x="{x(start) + width / 2:.1f}" y="{y(key) + 19}" fill="#ffffff" '
                       f'text-anchor="middle">{html.escape(name)}</text>')
    for (from_key, from_time), (to_key, to_time) in arrows:
        if from_key not in place or to_key not in place or from_key == to_key:
            continue
        down = place[to_key] > place[from_key]
        out.append(f'<line x1="{x(from_time):.1f}" y1="{y(from_key) + (ROW if down else 0)}" x2="{x(to_time):.1f}" '
                   f'y2="{y(to_key) + (0 if down else ROW)}" stroke="#555" marker-end="url(#tip)"/>')
    axis = TOP + len(rows) * (ROW + GAP) + 8
    for step in range(6):
        time = first + (last - first) * step / 5
        out.append(f'<text x="{x(time):.1f}" y="{axis + 12}" text-anchor="middle" fill="#555">{time - first:.0f} us</text>')
    legend = LEFT
    for engine, colour in COLOURS.items():
        if any(span[4] == engine for span in spans):
            out.append(f'<rect x="{legend}" y="{axis + 20}" width="12" height="12" fill="{colour}"/>'
                       f'<text x="{legend + 17}" y="{axis + 30}">{engine}</text>')
            legend += 110
    out.append("</svg>\n")
    return "\n".join(out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("trace")
    parser.add_argument("out")
    parser.add_argument("--title", default="")
    parser.add_argument("--from-us", type=float, default=float("-inf"))
    parser.add_argument("--to-us", type=float, default=float("inf"))
    parser.add_argument("--process", help="only tracks of this process (device)")
    options = parser.parse_args()
    events = load(options.trace)
    spans, tracks, processes = spans_of(events)
    spans = [span for span in spans if span[2] >= options.from_us and span[1] <= options.to_us and
             (not options.process or processes.get(span[0][0]) == options.process)]
    if not spans:
        sys.exit(f"draw_timeline: {options.trace}: no ops in that time")
    arrows = [arrow for arrow in arrows_of(events)
              if options.from_us <= arrow[0][1] and arrow[1][1] <= options.to_us]
    with open(options.out, "w", encoding="utf-8") as file:
        file.write(draw(spans, arrows, tracks, options.title))


if __name__ == "__main__":
    main()
