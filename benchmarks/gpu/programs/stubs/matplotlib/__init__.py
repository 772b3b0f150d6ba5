"""Nothing is drawn."""


def use(*_: object) -> None: ...
