"""One comparison as the command line, the app and the library drive it; no printing and no screen in here."""
