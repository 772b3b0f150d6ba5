"""Whisper's encoder and a wav2vec 2.0 classifier, at their published sizes, with random weights."""

import torch
from transformers import Wav2Vec2Config, Wav2Vec2ForSequenceClassification, WhisperConfig
from transformers.models.whisper.modeling_whisper import WhisperEncoder


def whisper_tiny(batch_size: int = 1):
    """Thirty seconds of speech through the encoder of whisper-tiny."""
    config = WhisperConfig(
        d_model=384, encoder_layers=4, encoder_attention_heads=6, encoder_ffn_dim=1536
    )
    model = WhisperEncoder(config).cuda().to(torch.bfloat16).eval()
    return model, (torch.randn(batch_size, 80, 3000, device="cuda", dtype=torch.bfloat16),)


def wav2vec2(batch_size: int = 1):
    """One second of sound into one of eight classes."""
    config = Wav2Vec2Config(num_labels=8, apply_spec_augment=False)
    model = Wav2Vec2ForSequenceClassification(config).cuda().eval()
    return model, (torch.randn(batch_size, 16_000, device="cuda"),)
