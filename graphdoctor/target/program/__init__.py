"""An unmodified program -> the steps that it repeats, each as a target."""
