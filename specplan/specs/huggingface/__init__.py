"""Hugging Face ``config.json`` to a model.

- `config`: a parsed config becomes a `Model`, with what it does not say
- `families`: the table of architectures, one row per ``model_type``; the place to add one
- `regular`: builder of decoders that repeat one block, and the traits in which they differ
- `latent`, `hybrid`, `mamba`, `gemma`, `unusual`: builders of decoders with a plan of their own
- `mixers`: attention, latent attention and recurrent layers from fields
- `drafts`: EAGLE, EAGLE-3, DFlash, Medusa, MLP speculators, multi-token prediction
- `quantization`: formats of quantised weights; `module_formats`, `module_names`: which module has which
- `fields`: checked access to a config under all spellings, with the defaults of its class
- `status`: which architectures can be counted
- `hub`: fetches a config
"""
