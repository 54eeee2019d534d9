"""Browser user interfaces: a viewer for runs (``view/``) and pages for playing (``play/``)."""
