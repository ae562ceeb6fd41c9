"""How fast: ops and whole training steps beside their peers, in one run, each checked before it is timed."""
