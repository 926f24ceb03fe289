"""The splits that the tests of baselines share."""

import pytest
from spurious_world import World, world


@pytest.fixture(scope="session")
def train() -> World:
    return world(1200, seed=1)


@pytest.fixture(scope="session")
def val() -> World:
    return world(600, seed=2, agree=0.5)


@pytest.fixture(scope="session")
def test() -> World:
    return world(4000, seed=3, agree=0.5)
