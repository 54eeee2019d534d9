"""verl: our loop drives its FSDP workers (``learner``), or its trainer practises (``agent_loop``).

verl's pins fit no environment with TRL in it: ``coevo install verl`` makes one of its own.
"""
