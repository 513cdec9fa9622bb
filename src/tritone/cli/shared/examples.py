"""Two lines for each command that its help ends with; a test parses them."""

EXAMPLES = {
    "inspect": (
        "tritone inspect demo-asr",
        "tritone inspect models --json",
    ),
    "convert": (
        "tritone convert model.onnx --to fp16 --output half.onnx",
        "tritone convert model.onnx --to int8-dynamic --output int8.onnx",
    ),
    "check-precision": (
        "tritone check-precision model.onnx half.onnx",
        "tritone check-precision model.onnx half.onnx --inputs samples.npz",
    ),
    "engine": (
        "tritone engine my-model",
        "tritone engine my-model --precision fp16",
    ),
    "compile": (
        "tritone compile my-model --device cuda",
        "tritone compile my-model --precision bf16",
    ),
    "build": (
        "tritone build demo-asr --output models",
        "tritone build my-model --output models --device gpu --precision fp16",
    ),
    "repo push": (
        "tritone repo push models s3://models/prod",
        "tritone repo push models s3://models/prod --model my-model",
    ),
    "repo pull": (
        "tritone repo pull s3://models/prod models",
        "tritone repo pull s3://models/prod models --all-versions",
    ),
    "repo ls": (
        "tritone repo ls models",
        "tritone repo ls s3://models/prod",
    ),
    "repo diff": (
        "tritone repo diff models s3://models/prod",
        "tritone repo diff s3://models/test s3://models/prod",
    ),
    "repo gc": (
        "tritone repo gc s3://models/prod --dry-run",
        "tritone repo gc s3://models/prod --keep 3",
    ),
    "repo rollback": (
        "tritone repo rollback s3://models/prod my-model",
        "tritone repo rollback s3://models/prod my-model --to-version 2",
    ),
    "ensemble": (
        "tritone ensemble pipeline.yaml",
        "tritone ensemble pipeline.yaml --output models",
    ),
    "serve": (
        "tritone serve models",
        "tritone serve demo-asr --gateway",
    ),
    "gateway": (
        "tritone gateway --url localhost:8000",
        "tritone gateway --port 8080 --keys keys.yaml",
    ),
    "models list": (
        "tritone models list",
        "tritone models list --url localhost:8001",
    ),
    "models load": (
        "tritone models load my-model",
        "tritone models load my-model --url localhost:8001",
    ),
    "models unload": (
        "tritone models unload my-model",
        "tritone models unload my-model --url localhost:8001",
    ),
    "models config": (
        "tritone models config my-model",
        "tritone models config my-model --url localhost:8001",
    ),
    "models stats": (
        "tritone models stats my-model",
        "tritone models stats my-model --url localhost:8001",
    ),
    "drain": (
        "tritone drain",
        "tritone drain --cancel",
    ),
    "transcribe": (
        "tritone transcribe speech.wav --model demo-asr",
        "tritone transcribe call.mp3 --url localhost:8001 --format srt",
    ),
    "language": (
        "tritone language recordings/ --model whisper-base --lists lists/",
        "tritone language call.wav --url localhost:8001 --allowed-languages de,fr --json",
    ),
    "speak": (
        "tritone speak 'Good morning.' --model joe --output morning.wav",
        "tritone speak 'It rains.' --url localhost:8001 --speed 1.2 --output rain.mp3",
    ),
    "segments": (
        "tritone segments call.wav --model vad",
        "tritone segments call.wav --url localhost:8001 --format rttm",
    ),
    "diarize": (
        "tritone diarize meeting.wav --num-speakers 2",
        "tritone diarize meeting.wav --format rttm --output meeting.rttm",
    ),
    "embed": (
        "tritone embed one.wav two.wav --model demo-speaker --output vectors",
        "tritone embed --data-dir voices --url localhost:8001 --output vectors",
    ),
    "evaluate": (
        "tritone evaluate --model demo-asr --wavscp wav.scp --trans text",
        "tritone evaluate --url localhost:8001 --data-dir test --html errors.html",
    ),
    "score": (
        "tritone score --trials trials --embeddings xvector.scp",
        "tritone score --trials trials --scores trials.score --det det.png",
    ),
    "verify": (
        "tritone verify one.wav two.wav",
        "tritone verify one.wav two.wav --url localhost:8001",
    ),
    "enroll": (
        "tritone enroll anna one.wav two.wav --store speakers",
        "tritone enroll --list --store speakers",
    ),
    "identify": (
        "tritone identify call.wav --store speakers",
        "tritone identify call.wav --store speakers --top 3",
    ),
    "api": (
        "tritone api models --output api",
        "tritone api models --output api --model my-model",
    ),
    "top": (
        "tritone top",
        "tritone top --url localhost:8001 --interval 5",
    ),
    "bench": (
        "tritone bench --url localhost:8001 --concurrency 1,8,32",
        "tritone bench --model demo-asr --streaming --streams 10,20 --output report",
    ),
    "bench compare": (
        "tritone bench compare before.json after.json",
        "tritone bench compare before.json after.json --max-slowdown 10%",
    ),
    "bench input": (
        "tritone bench input --audio speech.wav --output inputs",
        "tritone bench input --seconds 5,10 --output inputs",
    ),
    "bench sweep": (
        "tritone bench sweep demo-asr --instances 1,2 --latency-limit-ms 300",
        "tritone bench sweep demo-asr --streaming --vary threads=1,2 --output report",
    ),
    "demo": (
        "tritone demo",
        "tritone demo --page --port 8080",
    ),
    "doctor": (
        "tritone doctor",
        "tritone doctor --http-port 9000",
    ),
    "cache list": (
        "tritone cache list",
        "tritone cache list --json",
    ),
    "cache clear": (
        "tritone cache clear",
        "tritone cache clear --cache /data/tritone",
    ),
}
