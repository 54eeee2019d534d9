"""Pages and sessions for users who play episodes, in a browser or in a terminal."""
