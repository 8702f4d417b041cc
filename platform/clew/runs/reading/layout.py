"""Where the entities of an explanation stand in a picture, and how their names are broken.

Entities stand in columns from the test triple's head to its tail: between both what joins them by
short paths, outside of them what is nearer to one end. The same explanation always looks the same.
"""

import re

import networkx as nx
import pandas as pd

MAX_TEXT = 24
LINE_CHARACTERS = 20
MAX_BETWEEN = 3
"""An entity on a path of at most so many facts from head to tail stands between them."""
Position = tuple[float, float]


def node_labels(test: pd.Series, facts: pd.DataFrame) -> dict[str, str]:
    """Return the text of each entity, the test triple's first."""
    labels = {str(test["head_id"]): str(test["head"]), str(test["tail_id"]): str(test["tail"])}
    for side in ("head", "tail"):
        for key, text in zip(facts[f"{side}_id"], facts[side], strict=True):
            labels.setdefault(str(key), str(text))
    return labels


def positions(test: pd.Series, facts: pd.DataFrame) -> dict[str, Position]:
    """Return a place for each entity, from -1 to 1 in both directions; y points down."""
    head, tail = str(test["head_id"]), str(test["tail_id"])
    graph = nx.Graph()
    graph.add_nodes_from(node_labels(test, facts))
    sides = (facts[key].astype(str) for key in ("head_id", "tail_id"))
    graph.add_edges_from(zip(*sides, strict=True))
    from_head, from_tail = (
        # Not through the other end: what hangs on the head alone is not between the two.
        nx.single_source_shortest_path_length(graph.subgraph(graph.nodes - {other} | {end}), end)
        for end, other in ((head, tail), (tail, head))
    )
    far, heads = len(graph), set(facts["head_id"].astype(str))
    columns: dict[int, list[str]] = {}
    for key in graph:
        before, behind = from_head.get(key, far), from_tail.get(key, far)
        between = before + behind <= MAX_BETWEEN
        if key in (head, tail):
            column = 0 if key == head else MAX_BETWEEN
        elif between:
            column = before
        elif before == behind:  # joined to neither end: its facts run from left to right too
            column = 1 if key in heads else MAX_BETWEEN - 1
        else:
            column = -1 if before < behind else MAX_BETWEEN + 1
        columns.setdefault(column, []).append(key)
    found = nx.multipartite_layout(graph, subset_key=columns)
    # It centres on the mean of all entities; here the outer columns are as far from the middle.
    across = [x for x, _ in found.values()]
    left, right = min(across), max(across)
    height = max(abs(y) for _, y in found.values()) or 1.0
    scale = 2 / (right - left) if right > left else 0.0
    return {
        key: (float((x - left) * scale - 1), float(y / height)) for key, (x, y) in found.items()
    }


def name_lines(text: str, num_lines: int) -> list[str]:
    """Return a name in at most `num_lines` short lines, broken after spaces and the like."""
    lines = [""]
    for piece in re.findall(r"[^\s_/,-]+[\s_/,-]?|[\s_/,-]", " ".join(text.split())):
        if lines[-1] and len(lines[-1]) + len(piece.rstrip()) > LINE_CHARACTERS:
            lines.append("")
        lines[-1] += piece
    if len(lines) > num_lines:
        lines = [*lines[: num_lines - 1], "".join(lines[num_lines - 1 :])]
    return [short_text(line.strip()) for line in lines]


def short_text(text: str) -> str:
    """Return a text that is cut, with a sign of it, where it is too long for a picture."""
    return text if len(text) <= MAX_TEXT else f"{text[: MAX_TEXT - 1]}…"
