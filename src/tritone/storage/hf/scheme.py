"""Repositories of models on the Hugging Face hub, or a mirror of it."""

from tritone.storage.scheme import PLACE, Scheme

SCHEME = Scheme(
    name="hf",
    package=__package__,
    store="store:HubStore",
    place="repository of the hub",
    form="hf://OWNER/NAME, or hf://OWNER/NAME@TAG",
    pattern=rf"(?P<place>{PLACE}/{PLACE})(?:@(?P<revision>[A-Za-z0-9][A-Za-z0-9._-]{{0,199}}))?(?:/(?P<path>.*))?",
    order=40,
    extra="remote",
    credentials="HF_TOKEN",
    single=True,
    read_only="the hub is only read here; its own tool writes: hf upload {place} FOLDER",
)
