"""Pages and sessions for people who play episodes, in a browser or in a terminal."""
