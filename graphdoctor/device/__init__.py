"""The device that a step runs on: a real GPU, watched, or an emulated one."""
