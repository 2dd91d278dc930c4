"""`CustomizedOptimizer`: what scripts derive their own optimizers for tables from."""

from collections import defaultdict
from typing import Any, Dict, List


class CustomizedOptimizer:
    """A mixin that names an optimizer; a script derives from an optimizer of TensorFlow as well.

    Attributes:
        unique_name: `<name>_<n>`, where n counts the optimizers of that name.
        base_name: The name.
        slot_num: Slots of each row.
        derivative: 1 if updates by parts of a gradient add up to one by its sum, else 2.
    """

    MAX_COUNTER_COUNT = 1000
    name_counter = defaultdict(int)  # type: Dict[str, int]
    unique_name = ""
    base_name = ""
    _slot_num = 0
    _derivative = 1

    @property
    def slot_num(self) -> int:
        """Slots of each row."""
        return self._slot_num

    @property
    def derivative(self) -> int:
        """1 if updates by parts of a gradient add up to one by its sum, else 2."""
        return self._derivative

    def _get_name(self, name: str = "CustomizedOptimizer") -> None:
        """Sets `base_name` and `unique_name`.

        Args:
            name: The name.

        Raises:
            ValueError: If there were 1000 optimizers of that name.
        """
        counter = CustomizedOptimizer.name_counter
        if counter[name] >= self.MAX_COUNTER_COUNT:
            raise ValueError("there are {} optimizers of the name {!r} already".format(
                self.MAX_COUNTER_COUNT, name))
        self.unique_name = "{}_{}".format(name, counter[name])
        self.base_name = name
        counter[name] += 1

    def get_slot_init_values(self) -> List[float]:
        """Returns what the slots of a new row are filled with; a subclass says it.

        Raises:
            NotImplementedError: If the subclass does not.
        """
        raise NotImplementedError("{} does not define get_slot_init_values".format(
            type(self).__name__))

    def initialize_slots(self, var: Any, table_instance: Any) -> List[Dict[str, Any]]:
        """Makes slots, in older releases; a subclass defines it.

        Raises:
            NotImplementedError: If the subclass does not.
        """
        raise NotImplementedError("{} does not define initialize_slots".format(
            type(self).__name__))

    def insert_slot(self, slot: Any, named_slots_key: Any, slot_name: str) -> None:
        """Stores a slot, in older releases; a subclass defines it.

        Raises:
            NotImplementedError: If the subclass does not.
        """
        raise NotImplementedError("{} does not define insert_slot".format(type(self).__name__))
