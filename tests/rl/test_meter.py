from rfwp.rl.meter import describe

RECORD = {"entropy": 1.0, "lag": 0.0, "lag_max": 0.0, "cut": 0.0, "lr": 0.0, "failures": 0}


def test_a_last_update_beyond_the_last_step_leaves_no_time():
    assert describe(RECORD | {"steps": 900, "steps_per_s": 10}, 1_000).startswith("900/1,000 steps, 10 s left, ")
    assert describe(RECORD | {"steps": 1_080, "steps_per_s": 10}, 1_000).startswith("1,080/1,000 steps, 0 s left, ")
