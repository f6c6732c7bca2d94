"""Run real models in torch: the only room that imports torch and transformers."""
