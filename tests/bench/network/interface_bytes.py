"""Compares the bytes that left each node's interface with the payload that its ranks sent. Hooks without node support
also send payload between ranks of one node."""
import program


def check_nodes(result, layout):
    """Raises program.Failed if a JSON of narrowcast-bench names other nodes than `layout` has. Some builds name no
    nodes."""
    if "nodes" not in result:
        return
    found = result["nodes"]["ranks_per_node"]
    if found != [layout.ranks_per_node] * layout.nodes:
        raise program.Failed(f"started on {layout}, narrowcast-bench found nodes of {', '.join(map(str, found))} ranks")


def payload_of_node(results, layout):
    """Bytes that each node's ranks sent in the runs with these JSONs of narrowcast-bench. None if the JSONs lack them,
    or if the link was measured or hooks were checked. If nodes send different amounts, the largest one."""
    if layout.ranks_per_node == 1:
        return payload_of_rank_0(results)
    rows = [(result, row) for result in results for row in result["hooks"]]
    other = [key for result in results for key in ("link", "exactness") if key in result]
    if other or any("payload_bytes_per_node" not in row for _, row in rows):
        return None
    return sum(row["payload_bytes_per_node"] * (result["warmup_iterations"] + result["iterations"])
               for result, row in rows)


def payload_of_rank_0(results):
    return sum(result["payload_bytes_sent"] for result in results)


def _megabytes(count):
    return f"{count / 1e6:.1f} MB"


def _whole(results, layout):
    """The payload to compare the counters with: its bytes, and a description."""
    payload = payload_of_node(results, layout)
    if payload is not None:
        return payload, f"the payload that its ranks sent ({_megabytes(payload)})"
    payload = layout.ranks_per_node * payload_of_rank_0(results)
    return payload, (f"{layout.ranks_per_node} times what rank 0 sent, {_megabytes(payload)}; "
                     "what each node's ranks sent is unknown")


def lines(layout, results, interfaces):
    """One line per node. `results`: JSONs of narrowcast-bench; `interfaces`: Network.counters of the same time, by
    node."""
    payload, words = _whole(results, layout)
    for node, counted in enumerate(interfaces):
        text = f"Node {node}: {_megabytes(counted['tx_bytes'])} left its interface, {counted['tx_bytes'] / payload:.4f}"
        if "shaped_bytes" in counted:
            text += f" (with the headers of every packet, by its shaper, {counted['shaped_bytes'] / payload:.4f})"
        yield f"{text} of {words}."
