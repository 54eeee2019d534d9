"""verl adapter: a learner on verl's FSDP workers, and an agent loop for verl's own trainer.

verl's pinned versions are incompatible with TRL; ``coevo install verl`` creates a separate
environment.
"""
