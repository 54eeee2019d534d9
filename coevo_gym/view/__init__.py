"""Browser interfaces: a run viewer (``view/``) and pages for playing episodes (``play/``)."""
