"""How options describe themselves, once for the library, requests, served models, commands and the documents."""
