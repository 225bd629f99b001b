"""Families on graphs as adjacency dictionaries."""

import random

from builtin_model.tasks import Family

GRAPH_AND_START = (
    ("graph", "root"),
    ("g", "start"),
    ("graph", "source"),
    ("adj", "start"),
    ("g", "s"),
    ("neighbors", "start"),
)


def _graph(rng: random.Random) -> tuple[dict[str, list[str]], str]:
    nodes = "ABCDEF"[: rng.randint(1, 6)]
    return {node: rng.sample(nodes, rng.randint(0, min(3, len(nodes)))) for node in nodes}, "A"


def _graph_and_two(rng: random.Random) -> tuple[dict[str, list[str]], str, str]:
    nodes = "ABCDEF"[: rng.randint(2, 6)]
    graph = {node: rng.sample(nodes, rng.randint(0, 2)) for node in nodes}
    return graph, rng.choice(nodes), rng.choice(nodes)


def _breadth_first(graph: dict[str, list[str]], start: str) -> list[str]:
    order, layer = [start], [start]
    while layer:
        layer = list(dict.fromkeys(v for u in layer for v in graph[u] if v not in order))
        order += layer
    return order


def _depth_first(
    graph: dict[str, list[str]], start: str, order: list[str] | None = None
) -> list[str]:
    order = [] if order is None else order
    order.append(start)
    for node in graph[start]:
        if node not in order:
            _depth_first(graph, node, order)
    return order


def _distances(graph: dict[str, list[str]], start: str, end: str) -> int:
    reached, steps = {start}, 0
    while end not in reached:
        grown = reached | {v for u in reached for v in graph[u]}
        if grown == reached:
            return -1
        reached, steps = grown, steps + 1
    return steps


FAMILIES: tuple[Family, ...] = (
    Family(
        name="bfs",
        names=("bfs", "breadth_first_search", "bfs_traversal", "breadth_first", "bfs_order"),
        params=("graph: dict", "start: str"),
        alternatives=GRAPH_AND_START,
        returns="list",
        docs=(
            "Return the nodes of $graph in breadth-first order from $start.",
            "Traverse a graph with breadth-first search and return the visited nodes.",
            "Given a dict of neighbor lists and a start node, return the order of a breadth-first search.",
            "This function does a BFS from $start and returns the list of visited nodes.",
        ),
        body="""
visited = [$start]
queue = [$start]
while queue:
    node = queue.pop(0)
    for neighbor in $graph[node]:
        if neighbor not in visited:
            visited.append(neighbor)
            queue.append(neighbor)
return visited
""",
        inputs=_graph,
        oracle=_breadth_first,
    ),
    Family(
        name="dfs",
        names=("dfs", "depth_first_search", "dfs_traversal", "depth_first", "dfs_order"),
        params=("graph: dict", "start: str"),
        alternatives=GRAPH_AND_START,
        returns="list",
        docs=(
            "Return the nodes of $graph in depth-first order from $start.",
            "Traverse a graph with depth-first search and return the visited nodes.",
            "Given a dict of neighbor lists and a start node, return the order of a depth-first search.",
            "This function does a DFS from $start and returns the list of visited nodes.",
        ),
        body="""
visited = []
stack = [$start]
while stack:
    node = stack.pop()
    if node not in visited:
        visited.append(node)
        stack.extend(reversed($graph[node]))
return visited
""",
        inputs=_graph,
        oracle=_depth_first,
    ),
    Family(
        name="has_path",
        names=("has_path", "path_exists", "is_reachable", "can_reach"),
        params=("graph: dict", "start: str", "end: str"),
        alternatives=(
            ("graph", "source", "target"),
            ("g", "start", "end"),
            ("graph", "a", "b"),
            ("graph", "start", "goal"),
            ("adj", "u", "v"),
            ("g", "src", "dst"),
        ),
        returns="bool",
        docs=(
            "Check whether $graph has a path from $start to $end.",
            "Return True if $end can be reached from $start in the graph.",
            "Given a dict of neighbor lists and two nodes, return whether there is a path between them.",
            "This function checks if one can get from $start to $end.",
        ),
        body="""
visited = []
stack = [$start]
while stack:
    node = stack.pop()
    if node == $end:
        return True
    if node not in visited:
        visited.append(node)
        stack.extend($graph[node])
return False
""",
        inputs=_graph_and_two,
        oracle=lambda graph, start, end: _distances(graph, start, end) >= 0,
    ),
)
