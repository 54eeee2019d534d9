"""A learner whose strengths are known, for the question what a curriculum is worth.

Tasks are chains of skills; the learner holds a strength of each skill and learns by the exact
policy gradient, so a run takes about a second. Only the agent, its env and the mind of the
explorer are made up: curriculum, session, evolver, gates and metrics are those of every run.
"""
