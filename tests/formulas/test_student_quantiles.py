"""Student's quantiles against scipy's, and their laws."""

import pytest
from scipy.special import stdtrit

from specplan.errors import InputError
from specplan.formulas.student import student_quantile


@pytest.mark.parametrize("degrees", [1, 2, 3, 4, 5, 8, 13, 30, 101, 399, 400, 1000, 10**6])
def test_quantiles_equal_scipys(degrees: int) -> None:
    for p in (1e-6, 1e-4, 0.005, 0.025, 0.2, 0.499, 0.5, 0.6, 0.9, 0.975, 1 - 1e-4):
        assert student_quantile(degrees, p) == pytest.approx(float(stdtrit(degrees, p)), rel=1e-9, abs=1e-12)
        assert student_quantile(degrees, p) == pytest.approx(-student_quantile(degrees, 1 - p), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize(("degrees", "p"), [(0, 0.5), (-1, 0.5), (1.5, 0.5), (3, 0.0), (3, 1.0), (3, float("nan"))])
def test_what_is_no_distribution_is_refused(degrees: int, p: float) -> None:
    with pytest.raises(InputError):
        student_quantile(degrees, p)
