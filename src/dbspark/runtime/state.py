"""Export of a circuit's state as spines by node id, and import into a circuit.

The state of a node is a tuple of spines. The value of a delay is exported in the same form, as one spine under the id
of the delay, so all that survives a tick is spines by id. A node id is derived from the operator and its inputs: it is
the same in every process and in every program that contains the node (`dbspark.circuit.graph`).
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping

from dbspark.circuit.executor import Circuit
from dbspark.circuit.graph import Graph
from dbspark.columnar import Batch, SortKey
from dbspark.columnar.delta import Delta
from dbspark.errors import StoreError
from dbspark.operators.integral import ZSetRef
from dbspark.operators.linear import WeightedUnion
from dbspark.trace.spine import Spine

_log = logging.getLogger("dbspark")


def state_of(circuit: Circuit) -> dict[str, tuple[Spine, ...]]:
    """The state of all nodes and delays of a circuit, by node id."""
    out = {node: state for node, state in circuit._states.items() if state}
    for node in circuit._delays:
        held = circuit._delay_values[node.id]
        if isinstance(held, ZSetRef):
            out[node.id] = (held.spine,)
        else:
            batch = held.sorted_by(SortKey(node.schema))
            out[node.id] = (Spine(batch.sort_key, (batch,) if batch.rows else ()),)
    return out


def restore(circuit: Circuit, states: Mapping[str, tuple[Spine, ...]], tick: int) -> list[str]:
    """Import state into a circuit that has not run yet; returns the ids of stateful nodes that are not in `states`."""
    missing = []
    found = dict(circuit._states)
    for node, fresh in circuit._states.items():
        if not fresh:
            continue
        state = states.get(node)
        if state is None:
            missing.append(node)
        elif [s.sort_key for s in state] != [s.sort_key for s in fresh]:
            label = circuit.graph.nodes[node].label
            raise StoreError(
                f"the state of {label!r} is kept in another order than it is read in; drop the view and create it again"
            )
        else:
            found[node] = circuit.configured(state)
    held = dict(circuit._delay_values)
    for delay in circuit._delays:
        state = states.get(delay.id)
        if state is None:
            missing.append(delay.id)
        else:
            held[delay.id] = ZSetRef(state[0]) if delay.kind == "value" else Delta.of(state[0].consolidated())
    circuit._states, circuit._delay_values, circuit.tick_number = found, held, tick
    return missing


def outputs_of(graph: Graph) -> dict[str, str]:
    """By view, the id of the node whose rows it holds: stored, it says which operators have computed the rows."""
    return {name: node.id for name, node in graph.outputs.items()}


def stale_views(graph: Graph, missing: Collection[str], stored: Mapping[str, str]) -> list[str]:
    """The views whose stored rows are another node's, or depend on a node that has no stored state."""
    return [
        name
        for name, node in graph.outputs.items()
        if stored.get(name, node.id) != node.id or not graph.needed_by([node]).isdisjoint(missing)
    ]


def difference(now: Delta, before: Batch, sort_key: SortKey) -> Delta:
    """The delta that turns the stored rows of a view (`before`) into those that it should hold (`now`)."""
    signs = WeightedUnion(sort_key.schema, (1, -1))
    return Delta.of(signs.apply([now, Delta.of(before)]).sorted_by(sort_key))


def warn_of_refill(graph: Graph, missing: Collection[str]) -> None:
    """Log which views are filled again when a location is opened, because nothing is stored for some of their nodes."""
    views = sorted(name for name, output in graph.outputs.items() if not graph.needed_by([output]).isdisjoint(missing))
    labels = dict.fromkeys(graph.nodes[node].label for node in missing)
    _log.warning(
        "filling %s again from the tables: nothing is stored for %s. Their operators are others than those that wrote "
        "the location: another version of dbspark, shards instead of none, another setting of the session (time zone, "
        "ANSI mode), or a function that has changed or that no other process can recognise",
        ", ".join(views), "; ".join(labels),
    )  # fmt: skip


__all__ = ["difference", "outputs_of", "restore", "stale_views", "state_of", "warn_of_refill"]
