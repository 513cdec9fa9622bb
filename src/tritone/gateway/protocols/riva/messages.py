"""The messages of Riva's services for speech recognition and synthesis, as protobuf classes.

SCHEMA, a table of names, numbers and types  ->  classes such as RECOGNIZE_REQUEST; `read(class, bytes)`

The table has what travels: the names and numbers of `nvidia.riva.asr.RivaSpeechRecognition`, of
`nvidia.riva.tts.RivaSpeechSynthesis` and of `grpc.health.v1`, as the clients of nvidia-riva-client 2.28 send and expect
them. The classes live in a descriptor pool of their own, so that a process may import NVIDIA's client beside this
module, whose messages have the same full names.

Source: riva/proto/riva_asr.proto, riva_tts.proto, riva_audio.proto and riva_common.proto of
github.com/nvidia-riva/common.
"""

from collections.abc import Sequence
from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError
from google.protobuf.unknown_fields import UnknownFieldSet

from tritone.errors import InputError

SERVICE = "nvidia.riva.asr.RivaSpeechRecognition"
SYNTHESIS = "nvidia.riva.tts.RivaSpeechSynthesis"
HEALTH = "grpc.health.v1.Health"

UNSPECIFIED = "ENCODING_UNSPECIFIED"
ENCODINGS = {UNSPECIFIED: 0, "LINEAR_PCM": 1, "FLAC": 2, "MULAW": 3, "OGGOPUS": 4, "ALAW": 20}
"""Values of `AudioEncoding`."""

AUDIO_FIELD = 2
"""Number of the audio in both requests."""

MAX_BESIDE_AUDIO = 1 << 20
"""Bytes of a message beside its audio: a thousand hotwords take a tenth of it."""

SERVING, NOT_SERVING = 1, 2
"""Values of the status in a `HealthCheckResponse`."""

# Message -> its fields, one a line: label, type, name, number. A label is `repeated`, `optional` (its presence is
# known), or `oneof:NAME`. A type is one of protobuf's, `map` (of text to text), an enumeration or a message.
SCHEMAS = {
    "nvidia.riva": {
        "RequestId": "string value 1",
    },
    "nvidia.riva.asr": {
        "RecognizeRequest": """
            RecognitionConfig config 1
            bytes audio 2
            nvidia.riva.RequestId id 100""",
        "StreamingRecognizeRequest": """
            oneof:streaming_request StreamingRecognitionConfig streaming_config 1
            oneof:streaming_request bytes audio_content 2
            map runtime_config 3
            nvidia.riva.RequestId id 100""",
        "StreamingRecognitionConfig": """
            RecognitionConfig config 1
            bool interim_results 2""",
        "RecognitionConfig": """
            enum:nvidia.riva.AudioEncoding encoding 1
            int32 sample_rate_hertz 2
            string language_code 3
            int32 max_alternatives 4
            bool profanity_filter 5
            repeated SpeechContext speech_contexts 6
            int32 audio_channel_count 7
            bool enable_word_time_offsets 8
            bool enable_automatic_punctuation 11
            bool enable_separate_recognition_per_channel 12
            string model 13
            bool verbatim_transcripts 14
            SpeakerDiarizationConfig diarization_config 19
            map custom_configuration 24
            optional EndpointingConfig endpointing_config 25""",
        "EndpointingConfig": """
            optional int32 start_history 1
            optional float start_threshold 2
            optional int32 stop_history 3
            optional float stop_threshold 4
            optional int32 stop_history_eou 5
            optional float stop_threshold_eou 6""",
        "SpeakerDiarizationConfig": """
            bool enable_speaker_diarization 1
            int32 max_speaker_count 2""",
        "SpeechContext": """
            repeated string phrases 1
            float boost 4""",
        "RecognizeResponse": """
            repeated SpeechRecognitionResult results 1
            nvidia.riva.RequestId id 100""",
        "SpeechRecognitionResult": """
            repeated SpeechRecognitionAlternative alternatives 1
            int32 channel_tag 2
            float audio_processed 3""",
        "SpeechRecognitionAlternative": """
            string transcript 1
            float confidence 2
            repeated WordInfo words 3
            repeated string language_code 4""",
        "WordInfo": """
            int32 start_time 1
            int32 end_time 2
            string word 3
            float confidence 4
            int32 speaker_tag 5
            string language_code 6""",
        "StreamingRecognizeResponse": """
            repeated StreamingRecognitionResult results 1
            nvidia.riva.RequestId id 100""",
        "StreamingRecognitionResult": """
            repeated SpeechRecognitionAlternative alternatives 1
            bool is_final 2
            float stability 3
            int32 channel_tag 5
            float audio_processed 6
            optional PipelineStates pipeline_states 7""",
        "PipelineStates": "repeated float vad_probabilities 1",
        "RivaSpeechRecognitionConfigRequest": "string model_name 1",
        "RivaSpeechRecognitionConfigResponse": "repeated RivaSpeechRecognitionConfigResponse.Config model_config 1",
        "RivaSpeechRecognitionConfigResponse.Config": """
            string model_name 1
            map parameters 2""",
    },
    "nvidia.riva.tts": {
        "SynthesizeSpeechRequest": """
            string text 1
            string language_code 2
            enum:nvidia.riva.AudioEncoding encoding 3
            int32 sample_rate_hz 4
            string voice_name 5
            ZeroShotData zero_shot_data 6
            string custom_dictionary 7
            map custom_configuration 8
            bool enable_word_time_offsets 9
            nvidia.riva.RequestId id 100""",
        "ZeroShotData": """
            bytes audio_prompt 1
            int32 sample_rate_hz 2
            enum:nvidia.riva.AudioEncoding encoding 3
            int32 quality 4
            string transcript 5""",
        "SynthesizeSpeechResponse": """
            bytes audio 1
            SynthesizeSpeechResponseMetadata meta 2
            nvidia.riva.RequestId id 100""",
        "SynthesizeSpeechResponseMetadata": """
            string text 1
            string processed_text 2""",
        "RivaSynthesisConfigRequest": "string model_name 1",
        "RivaSynthesisConfigResponse": "repeated RivaSynthesisConfigResponse.Config model_config 1",
        "RivaSynthesisConfigResponse.Config": """
            string model_name 1
            map parameters 2""",
    },
    "grpc.health.v1": {
        "HealthCheckRequest": "string service 1",
        "HealthCheckResponse": "enum:HealthCheckResponse.ServingStatus status 1",
    },
}
ENUMS = {
    "nvidia.riva.AudioEncoding": ENCODINGS,
    "grpc.health.v1.HealthCheckResponse.ServingStatus": {"UNKNOWN": 0, "SERVING": SERVING, "NOT_SERVING": NOT_SERVING},
}
_Field = descriptor_pb2.FieldDescriptorProto


def read(kind: Any, message: bytes) -> Any:
    """Parse a message of a class of this module.

    Raises:
        InputError: the bytes are not such a message, have fields that this service does not know, or too much beside
            audio: a few bytes of a message become many in memory.
    """
    try:
        if len(message) > MAX_BESIDE_AUDIO and (beside := _beside(message, AUDIO_FIELD)) > MAX_BESIDE_AUDIO:
            raise InputError(
                f"a message may have {MAX_BESIDE_AUDIO} bytes beside its audio, this one has {beside} or more"
            )
        parsed = kind.FromString(message)
    except (DecodeError, IndexError) as error:
        raise InputError(f"the message is not a {kind.DESCRIPTOR.name}: {str(error)[:200]}") from error
    _refuse_unknown(parsed)
    return parsed


def _refuse_unknown(message: Any) -> None:
    """A field that is not understood would silently have no effect."""
    if unknown := sorted({field.field_number for field in UnknownFieldSet(message)}):
        raise InputError(
            f"{message.DESCRIPTOR.name} has fields that are not known here (number {', '.join(map(str, unknown))}). "
            "They are of another version of Riva's interface; leave them out."
        )
    for field, value in message.ListFields():
        if field.message_type is not None and not field.message_type.GetOptions().map_entry:
            for each in value if isinstance(value, Sequence) else (value,):
                _refuse_unknown(each)


def _beside(message: bytes, field: int) -> int:
    """Count the bytes of a message that are not contents of a field, until they are too many.

    Raises:
        IndexError: the message ends in the middle of a number.

    Source: https://protobuf.dev/programming-guides/encoding/.
    """
    at = beside = 0
    while at < len(message) and beside <= MAX_BESIDE_AUDIO:
        begin = at
        tag, at = _varint(message, at)
        if tag & 7 == 2:  # a length, then as many bytes
            size, at = _varint(message, at)
            beside += at - begin + (0 if tag >> 3 == field else size)
            at += size
            continue
        at = _varint(message, at)[1] if tag & 7 == 0 else at + {1: 8, 5: 4}.get(tag & 7, 1)
        beside += at - begin
    return beside


def _varint(message: bytes, at: int) -> tuple[int, int]:
    """A number of variable length, and where it ends."""
    value = shift = 0
    while True:
        byte = message[at]
        value, shift, at = value | (byte & 0x7F) << shift, shift + 7, at + 1
        if byte < 0x80 or shift > 63:
            return value, at


def _declare(package: str) -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(name=f"tritone/{package}.proto", package=package, syntax="proto3")
    if package.startswith("nvidia.riva."):
        file.dependency.append("tritone/nvidia.riva.proto")
    found: dict[str, Any] = {}
    for name, fields in SCHEMAS[package].items():
        parent, _, own = name.rpartition(".")
        message = found[parent].nested_type.add() if parent else file.message_type.add()
        found[name] = message
        message.name = own
        for line in fields.strip().splitlines():
            _add_field(message, f"{package}.{name}", package, line.split())
    for full_name, values in ENUMS.items():
        if full_name.rpartition(".")[0] == package:
            enum = file.enum_type.add()
        elif (owner := full_name.removeprefix(f"{package}.").rpartition(".")[0]) in found:
            enum = found[owner].enum_type.add()
        else:
            continue
        enum.name = full_name.rpartition(".")[2]
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for message in found.values():  # those of `oneof` stand before those that `optional` makes
        for field in message.field:
            if field.proto3_optional:
                field.oneof_index = len(message.oneof_decl)
                message.oneof_decl.add(name=f"_{field.name}")
    return file


def _add_field(message: Any, full_name: str, package: str, words: list[str]) -> None:
    *label, kind, name, number = words
    field = message.field.add(name=name, number=int(number), label=_Field.LABEL_OPTIONAL)
    if label == ["repeated"] or kind == "map":
        field.label = _Field.LABEL_REPEATED
    elif label == ["optional"]:
        field.proto3_optional = True
    elif label:
        oneof = label[0].removeprefix("oneof:")
        if oneof not in [each.name for each in message.oneof_decl]:
            message.oneof_decl.add(name=oneof)
        field.oneof_index = [each.name for each in message.oneof_decl].index(oneof)
    if kind == "map":
        entry = message.nested_type.add(name="".join(part.title() for part in name.split("_")) + "Entry")
        entry.options.map_entry = True
        for place, each in enumerate(("key", "value"), 1):
            entry.field.add(name=each, number=place, label=_Field.LABEL_OPTIONAL, type=_Field.TYPE_STRING)
        field.type, field.type_name = _Field.TYPE_MESSAGE, f".{full_name}.{entry.name}"
    elif scalar := getattr(_Field, f"TYPE_{kind.upper()}", None):
        field.type = scalar
    else:
        is_enum, of = kind.startswith("enum:"), kind.removeprefix("enum:")
        field.type = _Field.TYPE_ENUM if is_enum else _Field.TYPE_MESSAGE
        field.type_name = f".{of}" if of.startswith("nvidia.") else f".{package}.{of}"


POOL = descriptor_pool.DescriptorPool()
for _package in SCHEMAS:
    POOL.Add(_declare(_package))


def _class(name: str) -> Any:
    return message_factory.GetMessageClass(POOL.FindMessageTypeByName(name))


RecognizeRequest = _class("nvidia.riva.asr.RecognizeRequest")
RecognizeResponse = _class("nvidia.riva.asr.RecognizeResponse")
RecognitionConfig = _class("nvidia.riva.asr.RecognitionConfig")
StreamingRecognizeRequest = _class("nvidia.riva.asr.StreamingRecognizeRequest")
StreamingRecognizeResponse = _class("nvidia.riva.asr.StreamingRecognizeResponse")
ConfigRequest = _class("nvidia.riva.asr.RivaSpeechRecognitionConfigRequest")
ConfigResponse = _class("nvidia.riva.asr.RivaSpeechRecognitionConfigResponse")
SynthesizeSpeechRequest = _class("nvidia.riva.tts.SynthesizeSpeechRequest")
SynthesizeSpeechResponse = _class("nvidia.riva.tts.SynthesizeSpeechResponse")
SynthesisConfigRequest = _class("nvidia.riva.tts.RivaSynthesisConfigRequest")
SynthesisConfigResponse = _class("nvidia.riva.tts.RivaSynthesisConfigResponse")
HealthCheckRequest = _class("grpc.health.v1.HealthCheckRequest")
HealthCheckResponse = _class("grpc.health.v1.HealthCheckResponse")
