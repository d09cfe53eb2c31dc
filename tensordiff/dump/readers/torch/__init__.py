"""Files of ``torch.save``, read without torch and without running their pickle.

``reader`` opens files and folders, ``archive`` finds the bytes of a file's tensors, ``pickle`` reads
its pickle, ``globals`` lists the names that a pickle may use, and ``tensors`` describes what they build.
"""

from tensordiff.dump.readers.torch.reader import try_open

__all__ = ["try_open"]
