"""`graphdoctor.capture(model, *inputs)`: a model -> a drop-in for it that replays what can be replayed."""
