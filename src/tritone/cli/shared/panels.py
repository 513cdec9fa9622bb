"""Which options of a command come first in its help, and which belong together.

An option has one panel in all commands that have it; "COMMAND --option" is one with another meaning there. Those that
are named nowhere stand under "Options".
"""

FIRST = {
    "transcribe": ("--model", "--url", "--format", "--output", "--streaming"),
    "language": ("--model", "--url", "--allowed-languages", "--lists", "--json"),
    "segments": ("--model", "--url", "--format", "--output", "--streaming"),
    "diarize": ("--model", "--url", "--num-speakers", "--format", "--output"),
    "speak": ("--model", "--url", "--output", "--format", "--speed"),
    "embed": ("--output", "--wavscp", "--model", "--url", "--device"),
    "evaluate": ("--model", "--url", "--manifest", "--compare", "--html"),
    "build": ("--output", "--name", "--device", "--precision", "--instances"),
    "bench": ("--url", "--model", "--concurrency", "--streaming", "--output"),
    "bench sweep": ("--instances", "--max-batch-size", "--latency-limit-ms", "--streaming", "--output"),
    "serve": ("--host", "--http-port", "--grpc-port", "--gateway", "--device"),
    "gateway": ("--url", "--host", "--port", "--keys", "--page"),
    "score": ("--trials", "--embeddings", "--scores", "--output", "--det"),
}
"""Options in the order in which they are shown; required ones follow them."""

PANELS = {
    "Recordings": (
        "--wavscp", "--manifest", "--data-dir", "--trans", "--channels", "--seconds", "--lengths", "--audio", "--limit",
        "--min-duration-s", "--max-duration-s",
    ),
    "Results": (
        "--json", "--report", "--csv", "--html", "--title", "--label", "--timestamps", "--details", "--journal",
        "--resume", "--worst", "--audio-budget-mb", "--baseline", "--max-wer-increase", "--confidence", "--backup",
        "--restore",
    ),
    "Protocols of applications": (
        "--cors", "--alias", "--upstreams",
    ),
    "Load": (
        "--input", "--rate", "--arrivals", "--batch-size", "--streams", "--max-load", "--ramp", "--latency-limit-ms",
        "--percentile", "--max-wer", "--batching", "--where", "--vary", "--build",
    ),
    "Search": (
        "--search", "--beam", "--nbest", "--ctc-weight", "--reverse-weight", "--lm", "--lm-unit", "--lm-weight",
        "--hotwords", "--hotwords-file", "--word-bonus", "--blank-penalty", "--temperature", "--max-symbols",
        "--max-states", "--max-contexts", "--detail-times",
    ),
    "Streams": (
        "--realtime", "--reconnect", "--chunk-ms", "--chunk-size", "--left-chunks", "--left-context",
        "--right-context", "--start-context", "--endpoint-silence-s", "--endpoint-silence-after-speech-s",
        "--endpoint-max-segment-s", "build --max-streams", "--stream-idle-timeout-s", "build --max-queued-s",
    ),
    "Whisper and models of several languages": (
        "--language", "--use-itn", "--allowed-languages", "--multilingual", "--task", "--prompt", "--word-times",
        "--segment-times",
        "--temperatures", "--length-penalty", "--fallback", "--best-of", "transcribe --seed", "build --seed",
        "--carry-prompt", "--previous-text", "--compression-ratio-threshold", "--log-prob-threshold",
        "--no-speech-threshold", "--max-tokens", "--suppress", "--draft", "--draft-precision",
    ),
    "Written text": (
        "--numbers", "--number-rules", "--text-language", "--punctuate", "--capitals", "--profanity", "--profane-words",
    ),
    "Normalisation": ("--case", "--punctuation", "--units", "--unicode", "--tags", "--spelling", "--count-spaces"),
    "Long recordings": ("--vad", "--speech"),
    "Speakers": (
        "--speakers", "--speaker-model", "--segmentation", "--num-speakers", "--min-speakers",
        "--max-speakers", "--method",
        "--merge-cosine", "--store", "--speaker-threshold", "--window-s", "--shift-s",
        "--embed-window-s", "--embed-shift-s",
    ),
    "A voice": ("--speed", "--speaker"),
    "Speech": (
        "--speech-threshold", "--end-threshold", "--min-speech-s", "--min-silence-s", "--padding-s",
        "--max-segment-s",
    ),
    "Scores": (
        "--reference", "--collar-s", "--skip-overlap", "--hypothesis", "--norm", "--top-n", "--cohort",
        "--cohort-spk2utt", "--cal-mean", "--p-target", "--c-miss", "--c-fa", "--intervals",
    ),
    "Measurement": (
        "--warmup-s", "--measure-s", "--max-windows", "--stability", "--processes",
        "--seed", "--metrics-url",
    ),
    "A model in this process": (
        "--device", "--runtime", "--precision", "--max-audio-s", "--threads", "--trust", "--cache",
    ),
    "A server": ("--protocol", "--concurrency", "--timeout-s", "--retries", "--pcm", "--shared-memory"),
    "TLS": ("--ca", "--certificate", "--private-key", "--tls-certificate", "--tls-key", "--tls-client-ca"),
    "A Ray cluster": ("--ray", "--workers", "--cpus-per-worker", "--gpus-per-worker", "--unordered"),
    "Processes and batches": (
        "--gpus", "--compile", "--preferred-batch-sizes", "--queue-delay-ms", "--queue-limit", "--queue-timeout-ms",
        "--memory-mb", "build --max-batch-size",
    ),
    "Limits": (
        "gateway --max-body-mb", "--max-message-kb", "gateway --max-audio-s", "--max-stream-s",
        "gateway --max-streams", "--max-requests", "--request-s", "--body-grace-s", "--body-kb-s", "--max-uploads",
        "--triton-timeout-s", "--second-pass-s", "--idle-s",
    ),
    "An ensemble of stages": ("build --layout", "--stage", "--acoustic", "--tensors"),
    "The exported graphs": (
        "--stages", "--weights", "--runtimes", "--check-audio", "--max-drift", "--lenient", "--tail-padding-ms",
        "--dims", "--reshape", "--state", "--control", "--sample", "--rename", "--type", "--opset",
    ),
    "Triton's configuration": (
        "--version-policy", "--timeout-action", "--timeout-override", "--priorities", "--default-priority",
        "--priority-timeouts-ms", "--preserve-order", "--response-cache", "--resources", "--resource-priority",
        "--strategy", "--warmup", "--timeout-ms", "--max-idle-s", "--platform", "--model-version",
    ),
}  # fmt: skip
"""Titles with their options, in the order in which `--help` shows them while there is room."""
