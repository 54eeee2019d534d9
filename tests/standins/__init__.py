"""What stands in for a language model in tests: agents by rule, and proposals by rule.

An agent sees views, and what proposes sees a walk: the actions and what came of them. Neither has a
task, so no solution, verifier or instruction of a source can get into what is proposed.
"""
