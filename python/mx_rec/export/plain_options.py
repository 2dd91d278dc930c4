"""What a plain export is told: training lookups, updates, how rows are stored, warm-up."""

from typing import Any, Dict, NamedTuple, Optional, Sequence, Union

from mx_rec.export.plain_storage import STORAGES

REFUSE = "refuse"
FIND = "find"

# Of a table's rows, if nobody says how many rows are spare.
_SHARE, _LEAST = 4, 1024


class PlainOptions(NamedTuple):
    """The options of a plain export; `export_plain` says what they mean."""

    training_lookups: str = REFUSE
    updates: bool = False
    spare_rows: Union[None, int, Dict[str, int]] = None
    rows_as: str = "float32"
    warmup: Sequence[Dict[str, Any]] = ()

    def checked(self) -> "PlainOptions":
        """Returns the options.

        Raises:
            ValueError: If one of them does not fit.
        """
        if self.training_lookups not in (REFUSE, FIND):
            raise ValueError("'training_lookups' should be {!r} or {!r}, but is {!r}".format(
                REFUSE, FIND, self.training_lookups))
        if self.rows_as not in STORAGES:
            raise ValueError("'rows_as' should be one of {}, but is {!r}".format(
                ", ".join(sorted(STORAGES)), self.rows_as))
        if self.spare_rows is not None and not self.updates:
            raise ValueError("'spare_rows' is {!r}, but nobody gives them to keys: it needs "
                             "updates=True".format(self.spare_rows))
        given = self.spare_rows.values() if isinstance(self.spare_rows, dict) \
            else [self.spare_rows or 0]
        for count in given:
            if isinstance(count, bool) or not isinstance(count, int) or count < 0:
                raise ValueError("'spare_rows' should be a whole number of at least 0, or a dict "
                                 "of such by table, but is {!r}".format(self.spare_rows))
        return self

    def check_tables(self, names: Sequence[str]) -> None:
        """Checks that tables that options name are there.

        Raises:
            ValueError: If one is not.
        """
        if isinstance(self.spare_rows, dict):
            for name in self.spare_rows:
                if name not in names:
                    raise ValueError("'spare_rows' names the table {!r}, which the model does not "
                                     "look up; it has {}".format(name, sorted(names)))

    def spare_of(self, table: str, count: int) -> Optional[int]:
        """Returns the spare rows of a table, None if it is never updated.

        Args:
            table: Its name.
            count: Its rows.
        """
        if not self.updates:
            return None
        spare = self.spare_rows
        if isinstance(spare, dict):
            spare = spare.get(table)
        return max(count // _SHARE, _LEAST) if spare is None else spare
