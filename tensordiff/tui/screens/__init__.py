"""Whole screens of the application, one a file."""
