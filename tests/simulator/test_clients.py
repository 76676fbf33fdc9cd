from __future__ import annotations

from random import Random

from sidecar.simulator.clients import TURNAROUND_SECONDS, ClosedLoopClients
from sidecar.simulator.scenarios import Load, Span


def load(concurrency: int) -> Load:
    return Load(concurrency, Span(10, 20), Span(30, 40))


def clients_at_work(concurrency: int) -> ClosedLoopClients:
    clients = ClosedLoopClients(Random(1))
    clients.set_load(load(concurrency), 0.0)
    assert len(clients.due(TURNAROUND_SECONDS)) == concurrency
    return clients


def test_each_client_sends_one_request_and_then_waits() -> None:
    clients = clients_at_work(5)
    assert clients.next_send_at_seconds is None
    assert clients.due(1000.0) == []


def test_an_answer_leads_to_the_next_request_after_the_turnaround() -> None:
    clients = clients_at_work(2)
    clients.answered(3.0)
    assert clients.due(3.0) == []
    (sent,) = clients.due(3.0 + TURNAROUND_SECONDS)
    assert sent.arrived_at_seconds == 3.0 + TURNAROUND_SECONDS
    assert 10 <= sent.prompt_tokens <= 20
    assert 30 <= sent.generation_tokens <= 40 == sent.max_tokens


def test_surplus_clients_leave_as_their_answers_come() -> None:
    clients = clients_at_work(4)
    clients.set_load(load(1), 2.0)
    for _ in range(4):
        clients.answered(3.0)
    assert len(clients.due(10.0)) == 1


def test_new_clients_join_those_that_are_there() -> None:
    clients = clients_at_work(2)
    clients.set_load(load(5), 2.0)
    assert len(clients.due(10.0)) == 3


def test_without_a_load_nobody_sends_and_later_all_come_back() -> None:
    clients = clients_at_work(2)
    clients.set_load(None, 2.0)
    clients.answered(3.0)
    assert clients.due(10.0) == []
    clients.set_load(load(2), 10.0)
    assert len(clients.due(11.0)) == 1  # the other one still waits for its answer


def test_who_hangs_up_is_gone() -> None:
    clients = clients_at_work(2)
    clients.answered(1.0)
    clients.hang_up_all()
    assert clients.due(10.0) == []
    clients.set_load(load(2), 10.0)
    assert len(clients.due(11.0)) == 2
