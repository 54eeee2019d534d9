"""Evolution rounds, in which explorers search for new tasks and gates check their drafts."""
