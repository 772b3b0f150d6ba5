"""Find the steps that an unmodified program repeats, each as a target."""
