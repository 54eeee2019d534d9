"""Evolution rounds: explorers search for new tasks, and gates check their drafts."""
