"""Pictures are not written."""


def save_image(*_: object, **__: object) -> None: ...
