"""Role-Agent (arXiv 2606.10917): foresight multiplies rewards, and failures choose the tasks.

The agent predicts the results of its actions; the better the prediction, the more a rewarded step
is worth. Failed episodes are sorted by failure mode, and tasks whose modes are common are drawn
more often.
"""
