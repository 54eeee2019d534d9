"""AgentEvolver (arXiv 2511.10395), a method that finds tasks, guides rollouts and labels steps.

The prompts of half of a group's rollouts contain lessons from past rollouts, but the policy is
trained without these lessons. Labels of good and bad steps are mixed with the outcome.
"""
