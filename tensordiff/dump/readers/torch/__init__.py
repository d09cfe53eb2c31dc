"""Files of ``torch.save``, read without torch and without running their pickle.

``reader`` opens files and folders, ``archive`` finds the bytes of a file's tensors, ``pickle`` reads its pickle,
``globals`` lists the names that a pickle may use, and ``tensors`` describes what they build.
"""

from tensordiff.dump.readers import Format
from tensordiff.dump.readers.torch.reader import try_open

FORMATS = (
    Format(
        "torch-hook",
        "a folder that a torch print hook left",
        "`tensor_names.txt` beside `.pt` files",
        "that list",
    ),
    Format(
        "torch",
        "a `.pt`, `.pth`, `.bin` or `.ckpt` of `torch.save`, or a folder of them",
        "suffix and first bytes",
        "in one file, the order it was saved in; of a folder, none",
    ),
)

__all__ = ["FORMATS", "try_open"]
