"""Location, trend and scores of logarithms of times that one slow cell in twenty does not move."""

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]

# Values further out than so many standard deviations count for nothing (Mosteller and Tukey, Data Analysis
# and Regression, 1977: 6 to 9). A process that shared the machine shows up far outside, rounding inside.
REACH = 6.0
# The median absolute deviation of a normal law is its standard deviation divided by this.
MAD_TO_SD = 1.4826
_STEPS = 2


def spread(values: Array) -> Array:
    """Return the standard deviation along the last axis, from the median absolute deviation; that axis stays
    with length 1.
    """
    return np.asarray(MAD_TO_SD * _middle(np.abs(values - _middle(values))))


def locate(values: Array) -> Array:
    """Return the biweight location along the last axis, which goes.

    Two steps from the median; the median itself where more than half of the values are equal.
    """
    scale = REACH * spread(values)
    centre = _middle(values)
    for _ in range(_STEPS):
        weights = _weigh(values - centre, scale)
        total = weights.sum(axis=-1, keepdims=True)
        moved = (weights * values).sum(axis=-1, keepdims=True) / np.where(total > 0, total, 1.0)
        centre = np.where((scale > 0) & (total > 0), moved, centre)
    return np.asarray(centre[..., 0])


def score(residuals: Array) -> Array:
    """Return residuals [n] with those far outside drawn to 0; unchanged where they have no spread."""
    scale = REACH * spread(residuals)
    return residuals if scale[0] == 0 else residuals * _weigh(residuals, scale)


def fit_slope(values: Array, positions: Array) -> float:
    """Return the slope of values [n] over positions [n]; 0 when there are no two positions.

    It is the median of the slopes of all pairs of points (Sen, Estimates of the Regression Coefficient Based
    on Kendall's Tau, Journal of the American Statistical Association 63, 1968).
    """
    later, earlier = np.nonzero(positions[:, None] > positions[None, :])
    if not len(later):
        return 0.0
    slopes = (values[later] - values[earlier]) / (positions[later] - positions[earlier])
    return float(np.median(slopes))


def _weigh(distances: Array, scale: Array) -> Array:
    reach = distances / np.where(scale > 0, scale, 1.0)
    return np.where(np.abs(reach) < 1, (1 - reach**2) ** 2, 0.0)


def _middle(values: Array) -> Array:
    """Return the median along the last axis, which stays with length 1; sorting short rows is the fastest."""
    rising = np.sort(values, axis=-1)
    half = values.shape[-1] // 2
    if values.shape[-1] % 2:
        return np.asarray(rising[..., half : half + 1])
    return np.asarray((rising[..., half - 1 : half] + rising[..., half : half + 1]) / 2)
