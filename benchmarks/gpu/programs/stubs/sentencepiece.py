"""Imported by a program that reads tokens which were made before, and never called."""


class SentencePieceProcessor: ...
