"""CTC models of Hugging Face's transformers, wav2vec 2.0 and its relatives: from folder to bundle."""
