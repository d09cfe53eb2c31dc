"""Files in object stores and on servers, as fsspec reaches them: paths, stores, ranges of bytes, uploads.

Importing this loads nothing of fsspec: that happens when the first remote path is asked for something.
"""

from tensordiff.util.remote.paths import RemotePath, is_url, known_remote, refuse_url, user_path

__all__ = ["RemotePath", "is_url", "known_remote", "refuse_url", "user_path"]
