"""Answers a lifecycle node's state queries from inside a transition.

A transition runs on the thread that would answer them, so a model that loads for minutes makes a
node that looks dead. A second executor thread would cost a core's worth of wait sets for as long as
the node lives; here the transition itself looks for queries while it waits.
"""

from __future__ import annotations

from rclpy.node import Node

QUERIES = ('get_state', 'get_available_states', 'get_available_transitions', 'get_transition_graph')


class StateQueries:
    """Belongs to the executor's thread, while it is held up by a transition."""

    def __init__(self, node: Node) -> None:
        self._services = [s for s in node.services if s.srv_name.rsplit('/')[-1] in QUERIES]

    def answer(self) -> None:
        """Answers the queries that have come; waits for none."""
        for service in self._services:
            with service.handle:
                request, header = service.handle.service_take_request(service.srv_type.Request)
            if header is not None:
                service.send_response(
                    service.callback(request, service.srv_type.Response()), header
                )
