"""tensordiff's own dumps: manifest, shards, writer, conversion and upload. ``readers.native`` reads them."""
