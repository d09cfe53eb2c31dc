"""One comparison as the command line, the app and the library use it, without printing and without a screen."""
