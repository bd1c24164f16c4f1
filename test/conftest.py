import pytest

from test.ros import Ros


@pytest.fixture
def ros():
    context = Ros()
    yield context
    context.close()
