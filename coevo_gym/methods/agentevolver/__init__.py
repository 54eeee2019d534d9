"""AgentEvolver (arXiv 2511.10395): experiences guide rollouts, and attribution judges steps.

Half of a group's rollouts are told what past rollouts taught; the policy is trained without that
text. Each step is labelled good or bad, and the labels are mixed with the outcome.
"""
