"""StockTables, under the name that scripts import."""

from mx_rec.stock.options import StockTables  # noqa: F401
