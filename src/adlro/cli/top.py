"""The screen of `adlro top`: GPUs by node, what runs, what waits, and what an operator should know."""

import os
import select
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from rich.cells import cell_len, set_cell_size
from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.text import Text

from adlro.cli.asking import DaemonClient, Reply, printable
from adlro.cli.live import SHADOW_MODE, job_cells, jobs_table, short
from adlro.core.errors import AdlroError
from adlro.measure.text import shortened

_LEVELS: Final = "▁▂▃▄▅▆▇█"
FREE, _DOWN, UNKNOWN = "·", "×", "?"
_MOST_NODES: Final = 12
"""Clusters with more nodes are shown by GPU model."""
_HOT: Final = 0.9
WIDEST_NAME: Final = 20
"""Columns of a node's or a model's name; longer ones are cut in the middle."""
_LEAST_JOBS: Final = 4


def frame(state: dict[str, Any], width: int, height: int, note: str = "") -> Group:
    """One picture of the state that fits into this many columns and lines."""
    head = [_heading(state, width), *([Text(note, "bold red")] if note else []), Text("")]
    middle = _gpus(state, width)
    tail = [*_warnings(state, width)]
    left = height - len(head) - len(middle) - len(tail) - 2
    return Group(*head, *middle, Text(""), jobs(state, max(left - 2, _LEAST_JOBS), width), *tail)


def _heading(state: dict[str, Any], width: int) -> Text:
    """The cluster, who decides, and how many run and wait."""
    tick, counts = state["tick"], state["counts"]
    text = Text(overflow="ellipsis", no_wrap=True)
    text.append(printable(state["snapshot"]["cluster"]["name"]), "bold cyan")
    text.append(f" ({printable(state['backend'])})  ")
    if state["is_guarded"]:
        text.append(f"{state['fallback']} decides (guard active)", "bold yellow")
    else:
        text.append(printable(state["policy"]), "bold")
    if tick:
        text.append(f"  turn {tick['number']} took {tick['seconds']:.2f} s")
    held = counts["running"] + counts["placed"]
    text.append(f"  {held:,} run, {counts['waiting']:,} wait", "bold")
    if not state["is_leader"]:
        text.append("  standby", "yellow")
    moment = time.strftime("  %Y-%m-%d %H:%M %Z", time.localtime(state["snapshot"]["time_s"]))
    if text.cell_len + cell_len(moment) <= width:
        text.append(moment, "dim")
    text.truncate(width, overflow="ellipsis")
    return text


def _gpus(state: dict[str, Any], width: int) -> list[Text]:
    """A line for each node with a sign for each GPU; for each model, where there are many nodes."""
    nodes = state["snapshot"]["cluster"]["nodes"]
    down, telemetry = state["snapshot"]["down"], state["telemetry"]
    taken = taken_gpus(state)
    lines: list[tuple[str, str, list[tuple[str, str]], int, int]] = []
    by_model: dict[str, tuple[int, int]] = {}
    for node in nodes:
        index = 0
        for group in node["gpus"]:
            cells: list[tuple[str, str]] = []
            busy = 0
            for _ in range(group["count"]):
                is_taken = (node["name"], index) in taken
                busy += is_taken
                cells.append(_cell(telemetry.get(f"{node['name']}/{index}"), is_taken, node["name"] in down))
                index += 1
            lines.append((node["name"], group["model"], cells, busy, group["count"]))
            had = by_model.get(group["model"], (0, 0))
            by_model[group["model"]] = (had[0] + busy, had[1] + group["count"])
    if len(nodes) > _MOST_NODES:
        texts = shortened(by_model, WIDEST_NAME)
        return [bar(texts[model], busy, count, width) for model, (busy, count) in by_model.items()]
    texts = shortened((printable(name) for name, *_ in lines), WIDEST_NAME)
    wide = max((cell_len(text) for text in texts.values()), default=0)
    wide_model = max((cell_len(model) for _, model, *_ in lines), default=0)
    shown = []
    for name, model, cells, busy, count in lines:
        text = Text(no_wrap=True, overflow="ellipsis")
        text.append(set_cell_size(texts[printable(name)], wide), "cyan")
        text.append(f"  {printable(model).ljust(wide_model)}  {busy:>2}/{count:<2} ")
        for sign, style in cells:
            text.append(sign, style)
        if name in down:
            text.append(f"  down: {printable(down[name])}", "red")
        text.truncate(width, overflow="ellipsis")
        shown.append(text)
    return shown


def taken_gpus(state: dict[str, Any]) -> set[tuple[str, int]]:
    """Which GPUs hold a job; where the cluster does not say which of a node's, the first of the model."""
    first: dict[tuple[str, str], int] = {}
    for node in state["snapshot"]["cluster"]["nodes"]:
        index = 0
        for group in node["gpus"]:
            first[node["name"], group["model"]] = index
            index += group["count"]
    taken: set[tuple[str, int]] = set()
    for live in state["snapshot"]["jobs"]:
        if live["state"] not in ("running", "placed"):
            continue
        for part in live["parts"]:
            at = first.get((part["node"], part["model"]), 0)
            indices = part["indices"] or range(at, at + part["count"])
            taken |= {(part["node"], index) for index in indices}
    return taken


def _cell(figures: dict[str, float | None] | None, is_taken: bool, is_down: bool) -> tuple[str, str]:
    """A GPU as a sign (how busy) and a colour (how warm)."""
    if is_down:
        return _DOWN, "red"
    busy = (figures or {}).get("utilisation")
    heat = (figures or {}).get("temperature")
    if busy is None:
        return (UNKNOWN, "green") if is_taken else (FREE, "dim")
    style = "red" if heat is not None and heat >= _HOT else "green" if is_taken else "dim"
    if not is_taken and busy < 0.01:
        return FREE, "dim"
    return _LEVELS[min(int(busy * len(_LEVELS)), len(_LEVELS) - 1)], style


def bar(model: str, busy: int, count: int, width: int) -> Text:
    """How many GPUs of a model are taken, as a bar."""
    room = max(min(width - 40, 40), 10)
    full = round(room * busy / count) if count else 0
    text = Text(no_wrap=True)
    text.append(set_cell_size(printable(model), WIDEST_NAME), "cyan")
    text.append(" ")
    text.append("█" * full, "green")
    text.append("░" * (room - full), "dim")
    text.append(f" {busy:,}/{count:,} in use")
    return text


def jobs(state: dict[str, Any], most: int, width: int) -> RenderableType:
    """The jobs that run and those that wait, as many as fit: half of the lines for each, if both have so many."""
    now, is_shadow = state["snapshot"]["time_s"], state["backend"] == SHADOW_MODE
    listed = state["snapshot"]["jobs"]
    running = [live for live in listed if live["state"] in ("running", "placed")]
    waiting = [live for live in listed if live["state"] == "waiting"]
    if not running and not waiting:
        return Text("No job runs or waits.", "dim")
    queue = min(len(waiting), max(most // 2, most - len(running)))
    shown = (*running[: most - queue], *waiting[:queue])
    return jobs_table([job_cells(live, state["starts"].get(live["id"]), now, is_shadow) for live in shown], width)


def _warnings(state: dict[str, Any], width: int) -> Iterator[Text]:
    """The latest alarms, and speeds that differ from the expected ones."""
    now = state["snapshot"]["time_s"]
    lines = [
        Text(f"! {short(now - alarm['time_s'])} ago, {alarm['kind']}: {printable(alarm['text'])}", "yellow")
        for alarm in state["alarms"][-2:]
    ]
    if (stopping := state.get("stopping")) and stopping["is_on"]:
        used = f"{stopping['last_hour']} of {stopping['per_hour']} stops in the last hour"
        took_s = stopping["took_s"]
        took = "" if took_s is None else f"; a stop takes {took_s:.0f} s"
        lines.append(Text(f"= {used}, {len(stopping['under_way'])} under way{took}", "dim"))
    for drift in state["drifts"][:2]:
        where = drift["node"] + (f" GPU {drift['gpu']}" if drift["gpu"] is not None else "") or "everywhere"
        family = f", {drift['family']}" if drift["family"] else ""
        words = f"~ {drift['model']} {where}{family}: {drift['factor']:.0%} of its speed ({drift['jobs']} jobs)"
        lines.append(Text(printable(words), "magenta"))
    for line in lines:
        line.no_wrap = True
        line.truncate(width, overflow="ellipsis")
        yield line


# ---- live ------------------------------------------------------------------------------------------------------------


def watch(daemon: DaemonClient, reply: Reply, every_s: float, out: Console) -> None:
    """Show the state as it changes until q is pressed. If the daemon is gone, wait for it."""
    state, tag, note = reply.value, reply.tag, ""
    with keys() as pressed, Live(console=out, screen=True, auto_refresh=False) as live:
        while True:
            live.update(frame(state, out.width, out.height, note), refresh=True)
            if pressed(every_s) in ("q", "Q", "\x03", "\x1b"):
                return
            try:
                fresh = daemon.ask("/state", {"waiting": 200}, tag=tag)
            except AdlroError as error:
                note = str(error)[: max(out.width - 1, 1)]
                continue
            note = ""
            if fresh is not None:
                state, tag = fresh.value, fresh.tag


@contextmanager
def keys() -> Iterator[Any]:
    """A function that waits this long for a key; "" if none was pressed. The terminal is restored at the end."""
    import termios
    import tty

    if not sys.stdin.isatty():

        def no_keys(wait_s: float) -> str:
            time.sleep(wait_s)
            return ""

        yield no_keys
        return
    number = sys.stdin.fileno()
    before = termios.tcgetattr(number)

    def pressed(wait_s: float) -> str:
        ready, _, _ = select.select([number], [], [], wait_s)
        return os.read(number, 16).decode(errors="replace")[:1] if ready else ""

    try:
        tty.setcbreak(number)
        yield pressed
    finally:
        termios.tcsetattr(number, termios.TCSADRAIN, before)
