import numpy as np
import pytest
import torch

from tr_vam_ros.errors import InputError
from tr_vam_ros.vam.flow_schedule import sigma_grid, unipc_scheduler


def test_default_grid_is_the_papers():
    grid = sigma_grid()
    assert grid.dtype == np.float64
    # vam_spec.md section 1; the paper prints 1.000, .953, .883, .562, .024.
    np.testing.assert_allclose(grid, [1, 0.9527, 0.8832, 0.7714, 0.5616, 0.0244], atol=5e-5)


def test_shift_one_is_an_even_grid():
    np.testing.assert_allclose(sigma_grid(5, 1.0), np.linspace(1, 0.001, 5))


@pytest.mark.parametrize('steps, shift', [(0, 5.0), (6, 0.0), (6, -1.0), (6, np.nan), (6, np.inf)])
def test_bad_grid_is_an_input_error(steps, shift):
    with pytest.raises(InputError):
        sigma_grid(steps, shift)


def test_scheduler_has_the_grid_and_does_not_change_it():
    grid = sigma_grid()
    sigmas = unipc_scheduler(grid).sigmas
    torch.testing.assert_close(sigmas[:6].double(), torch.from_numpy(grid), atol=2e-6, rtol=0)
    assert grid[0] == 1.0


def test_each_rollout_gets_a_solver_of_its_own():
    assert unipc_scheduler(sigma_grid()) is not unipc_scheduler(sigma_grid())
