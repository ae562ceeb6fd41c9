"""Run what is missing of the paper's tables, in several processes, within a budget of time."""
