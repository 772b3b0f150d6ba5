"""Every function of it does nothing."""


def __getattr__(name: str) -> object:
    return lambda *_, **__: None
