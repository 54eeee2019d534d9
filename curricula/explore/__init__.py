"""Evolution rounds: explorers that search for new tasks, and the processing of their drafts."""
