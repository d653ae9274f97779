"""What both translation tasks share: corpora, sub-words, batches of similar length, and corpus BLEU."""
