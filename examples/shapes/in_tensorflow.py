"""The same network in Keras, trained on the same shapes, and its SavedModel, which tf2onnx makes an ONNX graph of.

tf/bin/python examples/shapes/in_tensorflow.py FOLDER     writes FOLDER/shapes-saved-model
"""

import sys
from pathlib import Path

import keras
from images import LABELS, SIZE, draw
from keras import layers


def main(folder: Path) -> None:
    """Train for some seconds, and write what was trained."""
    keras.utils.set_random_seed(0)
    model = keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 1), name="image"),
            layers.Conv2D(8, 3, strides=2, padding="same", activation="relu"),
            layers.Conv2D(16, 3, strides=2, padding="same", activation="relu"),
            layers.Flatten(),
            layers.Dense(len(LABELS), name="logits"),
        ]
    )
    images, labels = draw(2000, seed=0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(optimizer=keras.optimizers.Adam(0.005), loss=loss, metrics=["accuracy"])
    model.fit(images, labels, batch_size=200, epochs=15, verbose=0)
    found = model.evaluate(images, labels, verbose=0, return_dict=True)
    print(f"loss {found['loss']:.3f}, {found['accuracy']:.1%} of the training images right")
    model.export(folder / "shapes-saved-model", verbose=False)
    print(folder / "shapes-saved-model")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
