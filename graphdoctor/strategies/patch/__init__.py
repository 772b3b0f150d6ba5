"""Proposes what to change in a program's own lines, as a diff that was tried.

`edits/` has one file for each kind of change; `source` applies changes to files; `made` chooses among what they
propose; `rerun` runs the program as it is and changed, in processes of its own, and `alike` compares the two.
"""
