"""The rules panel, and the dialogs that edit rules and maps."""
