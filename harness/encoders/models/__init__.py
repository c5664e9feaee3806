"""The models: the encoder with its MLM head, COCO-LM's auxiliary network, relative positions, compact embeddings."""
