"""Files in object stores and on servers, through fsspec: paths, stores, byte ranges, uploads.

Importing this package does not load fsspec; that happens on the first access to a remote path.
"""

from tensordiff.util.remote.paths import RemotePath, is_url, known_remote, refuse_url, user_path

__all__ = ["RemotePath", "is_url", "known_remote", "refuse_url", "user_path"]
