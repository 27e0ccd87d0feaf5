"""What a run config says of data that lies on the nodes."""

from __future__ import annotations

from dataclasses import dataclass

from fedtrellis.settings import SettingsError, setting

#: The value of a task's ``dataset`` with which every node has a file of its own.
NODES = "nodes"
#: The value with which a task reads a file of the user's, by its ``path``.
FILE = "file"


@dataclass(frozen=True)
class DataSettings:
    """What the server, which has no data, and every node go by.

    Stated once, in the run config; a node refuses a file that says something else.
    """

    features: int = setting(
        0,
        "features of an example, with dataset = 'nodes'; 0: as many as feature-names",
        minimum=0,
    )
    feature_names: str = setting(
        "",
        "their names with commas between, in the model's order; empty: the columns in "
        "the order of the nodes' files",
    )
    classes: int = setting(0, "classes; 0: as many as data.labels", minimum=0)
    labels: str = setting(
        "",
        "the classes' labels in the nodes' files, with commas between; empty: 0, 1, …, "
        "for hybrid tasks -1, 1",
    )
    label_column: str = setting("label", "the csv column with the label or the target")
    weight_column: str = setting(
        "",
        "the csv column with what each sample counts, in hybrid tasks; of npz files "
        "the array weights; empty: all alike",
    )
    examples: int = setting(
        0,
        "examples of all nodes together, to count every example the same; "
        "0: every node counts the same",
        minimum=0,
    )

    def names(self) -> tuple[str, ...]:
        """Return the features' names; none where they go by their number.

        A SettingsError: a name is empty, is there twice or is another column's, or
        there are more or fewer than ``features`` says.
        """
        names = _listed("data.feature-names", self.feature_names)
        for reserved in (self.label_column, self.weight_column, "id"):
            if reserved in names:
                raise SettingsError(
                    f"data.feature-names has {reserved!r}, which is the name of "
                    "another column"
                )
        if names and self.features not in (0, len(names)):
            raise SettingsError(
                f"data.features = {self.features} does not suit data.feature-names, "
                f"which has {len(names)} names; one of the two is enough"
            )
        return names

    def num_features(self) -> int:
        """Return p; a SettingsError where neither number nor names are given."""
        count = self.features or len(self.names())
        if not count:
            raise SettingsError(
                "data.features = 0 and data.feature-names is empty: the server has no "
                "data to see it from; say how many features an example has, or their "
                "names"
            )
        return count

    def class_labels(self, default: tuple[str, ...] = ()) -> tuple[str, ...]:
        """Return the labels of the classes, in their order.

        ``default`` has those of a task with a fixed number of classes. A SettingsError:
        there are not as many as classes, or fewer than two.
        """
        labels = _listed("data.labels", self.labels)
        if labels and self.classes not in (0, len(labels)):
            raise SettingsError(
                f"data.classes = {self.classes} does not suit data.labels, which has "
                f"{len(labels)}; one of the two is enough"
            )
        fixed = len(default)
        count = len(labels) or self.classes or fixed
        if fixed and count != fixed:
            key = "data.labels" if labels else "data.classes"
            raise SettingsError(f"{key}: {count} classes; the task has {fixed}")
        if count < 2:
            raise SettingsError(
                f"data.classes = {self.classes} and data.labels = {self.labels!r}: say "
                "how many classes there are, at least 2, or their labels"
            )
        return labels or default or tuple(str(index) for index in range(count))


def _listed(key: str, text: str) -> tuple[str, ...]:
    if not text.strip():
        return ()
    parts = tuple(part.strip() for part in text.split(","))
    if not all(part.isprintable() and part for part in parts):
        raise SettingsError(f"{key}: between two commas there must be a name")
    if len(set(parts)) < len(parts):
        twice = next(part for part in parts if parts.count(part) > 1)
        raise SettingsError(f"{key} has {twice!r} twice")
    return parts
