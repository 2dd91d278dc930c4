"""Export of saved tables as NumPy files, under the name that scripts import."""

from mx_rec.export.sparse import EXPORT_FILE, export  # noqa: F401
