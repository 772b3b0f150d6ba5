"""A program's steps and their reports -> what to change in its own lines, as a diff that was tried.

`proposals` reads the reports; `edits` turns what is proposed into a unified diff; `rerun` runs the program as it is
and changed, in processes of its own, and compares what they print and the weights that they leave.
"""
