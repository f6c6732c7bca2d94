"""A point without an alpha-dagger says why: it loses, or no free draft of the plane's length is worth as much."""

import math

from drawn import drawn

from specplan.decide.plane import plane


def test_a_long_draft_that_beats_every_free_draft_of_the_planes_length_does_not_lose() -> None:
    long, losing = plane(
        [
            drawn(name="suffix", kappa=12, c=0.0, alpha=0.98),
            drawn(name="dear", kappa=3, c=0.9, alpha=0.3),
        ],
        kappa=3,
    ).points
    assert long.speedup > 4
    assert math.isnan(long.alpha_dagger)
    assert long.untied == "beyond κ"
    assert losing.speedup < 1
    assert losing.untied == "loses"
