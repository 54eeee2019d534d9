"""AgentEvolver (arXiv 2511.10395), which guides rollouts with experiences and labels their steps.

The prompts of half of a group's rollouts contain lessons from past rollouts, but the policy is
trained without these lessons. Labels of good and bad steps are mixed with the outcome.
"""
