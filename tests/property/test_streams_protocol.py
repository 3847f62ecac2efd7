"""The delivery protocol as a model (tests/spec/delivery_model.py): its promise, and that each of
its rules is needed.

Larger budgets take minutes: `python -m tests.spec.delivery_model 2 1 0 2 1`.
"""

import pytest

from tests.spec.delivery_model import Budget, Bug, explore

BUDGETS = [
    Budget(crashes=1, pauses=0, losses=1, outages=1, unanswered=1),
    Budget(crashes=0, pauses=1, losses=1, outages=1, unanswered=1),
    Budget(crashes=1, pauses=0, losses=0, outages=2, unanswered=1),
]

ENOUGH = {
    Bug.NO_FENCE: Budget(0, 1, 0, 0, 1),
    Bug.NO_LEASE: Budget(0, 1, 0, 1, 0),
    Bug.PUBLISH_BEFORE_JOURNAL: Budget(1, 0, 0, 0, 0),
    Bug.COMMIT_BEFORE_PUBLISH: Budget(1, 0, 0, 0, 0),
    Bug.OLD_ATTEMPT: Budget(0, 1, 1, 0, 1),
    Bug.PUBLISH_WHILE_AWAY: Budget(1, 0, 0, 1, 1),
    Bug.NOT_FRESH: Budget(0, 2, 0, 1, 0),
    Bug.EMPTY_ATTEMPT: Budget(1, 0, 0, 1, 1),
    Bug.PUBLISH_WHILE_ADOPTING: Budget(1, 0, 0, 2, 1),
}


@pytest.mark.timeout(120)
@pytest.mark.parametrize("budget", BUDGETS, ids=lambda budget: "-".join(map(str, budget)))
def test_no_order_of_events_breaks_the_promise(budget: Budget) -> None:
    """Every interleaving of two workers and these faults."""
    num_states, problem = explore(budget)
    assert problem == ""
    assert num_states > 10_000


@pytest.mark.timeout(120)
@pytest.mark.parametrize("bug", Bug, ids=lambda bug: bug.name)
def test_without_any_of_its_rules_the_promise_breaks(bug: Bug) -> None:
    """So the model can fail, and no rule is there for nothing."""
    _, problem = explore(ENOUGH[bug], bug)
    assert problem
