"""What changed between two states is told path by path."""

from decimal import Decimal

import pytest

from outlive.format.diff import diff


@pytest.mark.parametrize("value", [float("nan"), Decimal("NaN"), Decimal("sNaN"), Decimal("1.0")], ids=repr)
def test_a_value_is_the_same_as_itself(value):
    assert diff({"a": [1, value]}, {"a": [1, type(value)(str(value))]}) == []


def test_numbers_that_are_written_differently_differ():
    assert [change.path for change in diff({"a": Decimal("1.0")}, {"a": Decimal("1.00")})] == ["a"]
