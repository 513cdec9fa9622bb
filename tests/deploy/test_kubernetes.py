"""The Helm chart of deploy/kubernetes: what it renders is valid, safe, and fits the server that it starts."""

import functools
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import typer
import yaml

from pages import DOCUMENTS, command_lines, words
from tritone.cli.main import app
from tritone.proxy.grpc import LOCKED_CALLS, OF_MODELS, SERVICE
from tritone.proxy.http import LOCKED
from tritone.proxy.management import LIVE, READY

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
CHART = FOLDER / "chart"
HELM = shutil.which("helm", path=os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]]))
CUSTOM = yaml.safe_load((Path(__file__).parent / "custom_resources.yaml").read_text(encoding="utf-8"))
OLDEST, NEWER = "1.27", ("1.33", "1.36")  # the oldest is what the chart asks for
POD: tuple[str, ...] = (
    "serviceAccountName",
    "automountServiceAccountToken",
    "terminationGracePeriodSeconds",
    "priorityClassName",
)
POD += ("runtimeClassName", "securityContext", "nodeSelector", "tolerations", "affinity", "imagePullSecrets", "volumes")

S3: dict[str, Any] = {"models": {"storage": {"url": "s3://models/production"}}}
CLAIM: dict[str, Any] = {"models": {"volume": {"source": {"persistentVolumeClaim": {"claimName": "models"}}}}}
KSERVE = {"kserve": {"enabled": True}}
EXPOSED: dict[str, Any] = {
    "ingress": {
        "enabled": True,
        "host": "speech.example.com",
        "className": "haproxy",
        "tlsSecretName": "web",
        "annotations": {"a": "b", "c": "d"},
        "grpcAnnotations": {"c": "e"},
    },
    "routes": {"enabled": True, "name": "edge", "namespace": "gateways", "hostnames": ["speech.example.com"]},
}
SCALED = {"autoscaling": {"enabled": True}, "monitoring": {"serviceMonitor": True, "labels": {"release": "prometheus"}}}
PLACED: dict[str, Any] = {
    "podLabels": {"team": "speech"},
    "podAnnotations": {"note": "yes"},
    "nodeSelector": {"pool": "gpu"},
    "tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}],
    "affinity": {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}},
    "priorityClassName": "high",
    "runtimeClassName": "nvidia",
    "image": {"registry": "registry.example.com", "digest": "sha256:" + "0" * 64, "pullSecrets": [{"name": "pull"}]},
    "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:iam::1:role/models"}},
    "serve": {"env": [{"name": "A", "value": "b"}], "args": ["--cache-mb=128"], "logLevel": "info"},
}
GATEWAY: dict[str, Any] = {
    "gateway": {
        "enabled": True,
        "model": "asr",
        "streamModel": "live",
        "vadModel": "vad",
        "turnModel": "turn",
        "aliases": ["whisper-1"],
        "keys": {"secretName": "keys"},
        "upstreams": {"secretName": "elsewhere"},
        "rivaPort": 50051,
        "wyomingPort": 10300,
        "args": ["--max-streams=100"],
        "ingress": {"enabled": True, "host": "speech.example.com", "tlsSecretName": "web", "annotations": {"a": "b"}},
        "autoscaling": {"enabled": True},
    }
}
OLD: dict[str, Any] = {
    "models": {"s3": S3["models"]["storage"]},
    "gateway": {"enabled": True, "name": "edge", "namespace": "gateways", "hostnames": ["speech.example.com"]},
}
ODD: dict[
    str, Any
] = {  # which YAML takes for numbers, switches, references and mappings, and ids as OpenShift has them
    "user": 1000660000,
    "priorityClassName": "100",
    "runtimeClassName": "1e3",
    "tls": {"secretName": "1234", "clientCaKey": "ca.crt"},
    "models": {"storage": {"url": "s3://bucket/a: b #c", "secretName": "007"}},
    "ingress": {"enabled": True, "host": "*.example.com", "className": "1", "tlsSecretName": "true"},
    "routes": {"enabled": True, "name": "5", "namespace": "6"},
    "gateway": {
        "enabled": True,
        "model": "m: #1",
        "aliases": ["a: b", 'q"r', "*"],
        "keys": {"secretName": "777"},
        "upstreams": {"secretName": "no"},
        "ingress": {"enabled": True, "host": "*.example.com", "className": "2", "tlsSecretName": "3"},
    },
}
MATRIX: dict[str, dict[str, Any]] = {
    "odd values": ODD,
    "odd values, kserve": ODD | KSERVE,
    "s3": S3 | {"models": {"storage": {**S3["models"]["storage"], "pollSeconds": 30, "secretName": "s3"}}},
    "claim": CLAIM,
    "cpu": CLAIM | {"gpu": {"count": 0}, "models": {"volume": {**CLAIM["models"]["volume"], "subPath": "a/b"}}},
    "tls": S3 | {"tls": {"secretName": "tls", "clientCaKey": "ca.crt"}},
    "exposed": S3 | EXPOSED,
    "scaled": S3 | SCALED,
    "scaled by queue": S3 | {"autoscaling": {"enabled": True, "streamsPerReplica": 0}},
    "placed": S3 | PLACED | {"gpu": {"count": 2}},
    "open": S3 | {"networkPolicy": {"enabled": False}, "disruption": {"maxUnavailable": "25%"}},
    "closed": CLAIM | {"networkPolicy": {"clients": [], "metrics": []}, "cache": {"source": {"emptyDir": {}}}},
    "gateway": S3 | GATEWAY | SCALED | PLACED,
    "gateway, simple": CLAIM | {"gateway": {"enabled": True}, "tls": {"secretName": "tls"}},
    "old names": OLD,
    "kserve s3": S3 | KSERVE | SCALED | PLACED,
    "kserve claim": CLAIM | KSERVE | EXPOSED | {"gpu": {"count": 0}, "tls": {"secretName": "tls"}},
}
each_of_the_matrix = pytest.mark.parametrize("case", MATRIX)

pytestmark = pytest.mark.skipif(HELM is None, reason="helm is not here; `make test-all` fetches it")


def helm(*arguments: object, values: dict[str, Any] | None = None) -> "subprocess.CompletedProcess[str]":
    command = [str(HELM), *map(str, arguments), *(["--values", "-"] if values is not None else [])]
    return subprocess.run(
        command, input=json.dumps(values), capture_output=True, encoding="utf-8", timeout=120, check=False
    )


@functools.cache
def rendered(case: str) -> list[dict[str, Any]]:
    done = helm("template", "speech", CHART, "--namespace", "asr", values=MATRIX[case])
    assert done.returncode == 0, done.stderr
    return [each for each in yaml.safe_load_all(done.stdout) if each]


def of_kind(case: str, *kinds: str) -> list[dict[str, Any]]:
    return [each for each in rendered(case) if each["kind"] in kinds]


def servers(case: str) -> list[dict[str, Any]]:
    """The Deployment of the servers; of KServe's there is none."""
    return [each for each in of_kind(case, "Deployment") if each["metadata"]["name"] == "speech-tritone"]


def gateways(case: str) -> list[dict[str, Any]]:
    """The Deployment of the gateway for applications, if there is one."""
    return [each for each in of_kind(case, "Deployment") if each not in servers(case)]


def pods(case: str) -> Iterator[dict[str, Any]]:
    """The specs of pods, with what the InferenceService adds to those of its runtime."""
    for each in servers(case):
        yield each["spec"]["template"]["spec"]
    for runtime in of_kind(case, "ServingRuntime"):
        (service,) = of_kind(case, "InferenceService")
        both = runtime["spec"] | service["spec"]["predictor"]
        yield {name: both[name] for name in (*POD, "containers") if name in both}


@pytest.mark.parametrize("values", sorted(FOLDER.glob("values/*.yaml")), ids=lambda path: path.stem)
def test_helm_lints_the_chart(values: Path) -> None:
    done = helm("lint", "--strict", CHART, "--values", values)
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_plain_manifests_are_up_to_date(tmp_path: Path) -> None:
    subprocess.run([FOLDER / "render.sh", tmp_path], check=True, timeout=120, env={"HELM": str(HELM), "PATH": "/bin"})
    now, kept = (
        {path.name: path.read_text(encoding="utf-8") for path in each.iterdir()}
        for each in (tmp_path, FOLDER / "plain")
    )
    assert now == kept, "deploy/kubernetes/render.sh writes them again"


@each_of_the_matrix
def test_custom_resources_are_valid_and_names_are_unique(case: str) -> None:
    objects = rendered(case)
    for each in of_kind(case, *CUSTOM["definitions"]):
        jsonschema.validate(each, CUSTOM | {"$ref": f"#/definitions/{each['kind']}"})
    named = [(each["kind"], each["metadata"]["name"]) for each in objects]
    assert len(named) == len(set(named))
    assert {each["metadata"]["namespace"] for each in objects} == {"asr"}


@pytest.mark.parametrize("version", [OLDEST, *(pytest.param(each, marks=pytest.mark.slow) for each in NEWER)])
def test_every_object_is_valid(version: str) -> None:
    kubernetes = pytest.importorskip("kubernetes_validate", reason="`make test-all` installs kubernetes-validate")
    objects = [each for case in MATRIX for each in rendered(case) if each["kind"] not in CUSTOM["definitions"]]
    for spec in (spec for case in MATRIX for spec in pods(case)):
        objects.append({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "speech"}, "spec": spec})
    different = {json.dumps(each, sort_keys=True) for each in objects}
    assert len(different) > len(MATRIX)
    for text in sorted(different):
        kubernetes.validate(json.loads(text), version, strict=True)


@each_of_the_matrix
def test_pods_are_restricted(case: str) -> None:
    """Kubernetes' Pod Security Standard `restricted`, and more: read-only root, limits, no token, one image."""
    for spec in pods(case):
        assert not {"hostNetwork", "hostPID", "hostIPC", "hostUsers"} & spec.keys()
        assert spec["automountServiceAccountToken"] is False
        assert spec["securityContext"] | {"fsGroup": 0} == {
            "runAsNonRoot": True,
            "runAsUser": (user := MATRIX[case].get("user", 10001)),
            "runAsGroup": user,
            "fsGroup": 0,
            "seccompProfile": {"type": "RuntimeDefault"},
            **({"fsGroupChangePolicy": "OnRootMismatch"} if servers(case) else {}),
        }
        (container,) = spec["containers"]
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "runAsNonRoot": True,
            "runAsUser": user,
            "runAsGroup": user,
            "capabilities": {"drop": ["ALL"]},
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        resources = container["resources"]
        assert resources["requests"] == resources["limits"]
        assert resources["limits"].keys() >= {"cpu", "memory"}
        assert resources["limits"].get("nvidia.com/gpu") == {"cpu": None, "kserve claim": None, "placed": 2}.get(
            case, 1
        )
        assert not any("hostPath" in volume for volume in spec["volumes"])
        assert all("hostPort" not in port for port in container["ports"])
        assert not container["image"].endswith(":latest")


@each_of_the_matrix
def test_the_container_writes_where_it_may(case: str) -> None:
    for spec in pods(case):
        (container,) = spec["containers"]
        volumes = {volume["name"]: volume for volume in spec["volumes"]}
        mounts = {mount["mountPath"]: mount for mount in container["volumeMounts"]}
        assert {mount["name"] for mount in mounts.values()} == volumes.keys()
        assert {path for path, mount in mounts.items() if not mount.get("readOnly")} == {"/dev/shm", "/tmp", "/cache"}
        assert volumes["shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": "1Gi"}
        environment = {each["name"]: each["value"] for each in container["env"]}
        assert {environment["TRITONE_CACHE"], environment["HOME"]} <= mounts.keys()
        assert environment["NUMBA_CACHE_DIR"].startswith("/cache/")
        models = environment["MODELS"]
        assert models.startswith("s3://") or models in mounts or (models == "/mnt/models" and "kserve" in case)


def accepted(command: str, *words: str) -> Any:
    """The parameters of a command of ours, as it reads them; raises on what it does not know."""
    group: Any = typer.main.get_command(app)
    return group.get_command(None, command).make_context(command, list(words)).params


@each_of_the_matrix
def test_our_commands_take_what_pods_call_them_with_and_time_enough_is_left(case: str) -> None:
    for spec in pods(case):
        (container,) = spec["containers"]
        served = accepted("serve", "/models", *container["args"])
        startup = container["startupProbe"]
        assert served["start_timeout_s"] <= startup["periodSeconds"] * startup["failureThreshold"]
        name, *words = container["lifecycle"]["preStop"]["exec"]["command"]
        assert (name, words.pop(0)) == ("tritone", "drain")
        drained = accepted("drain", *words)
        assert 0 < drained["settle_s"] < drained["limit_s"]
        # Triton has 30 s to end after `--drain-s`.
        assert spec["terminationGracePeriodSeconds"] >= drained["limit_s"] + served["drain_s"] + 30
        probes = {name: container[f"{name}Probe"]["httpGet"] for name in ("startup", "readiness", "liveness")}
        paths = {"startup": READY, "readiness": READY, "liveness": LIVE}
        assert probes == {name: {"path": path, "port": 8002} for name, path in paths.items()}
        assert drained["metrics_url"].endswith(":8002")
        assert {port["name"]: port["containerPort"] for port in container["ports"]} == {
            service: served[f"{service}_port"] for service in ("http", "grpc", "metrics")
        }


@each_of_the_matrix
def test_objects_find_each_other(case: str) -> None:
    of_pods = []
    for deployment in of_kind(case, "Deployment"):
        labels = deployment["spec"]["template"]["metadata"]["labels"].items()
        of_pods.append(labels)
        assert deployment["spec"]["selector"]["matchLabels"].items() <= labels
        scaled = [each["spec"]["scaleTargetRef"]["name"] for each in of_kind(case, "HorizontalPodAutoscaler")]
        assert ("replicas" in deployment["spec"]) == (deployment["metadata"]["name"] not in scaled)
    for service in of_kind(case, "InferenceService"):
        of_pods.append(service["spec"]["predictor"]["labels"].items())
        assert (
            service["spec"]["predictor"]["model"]["runtime"] == of_kind(case, "ServingRuntime")[0]["metadata"]["name"]
        )
    selectors = [each["spec"]["selector"] for each in of_kind(case, "Service")]
    selectors += [each["spec"]["selector"]["matchLabels"] for each in of_kind(case, "PodDisruptionBudget")]
    selectors += [each["spec"]["podSelector"]["matchLabels"] for each in of_kind(case, "NetworkPolicy")]
    for selector in selectors:
        assert sum(selector.items() <= labels for labels in of_pods) == 1, "servers and gateways are told apart"
    for each in of_kind(case, "ServiceMonitor"):
        (watched,) = (
            service
            for service in of_kind(case, "Service")
            if each["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items()
        )
        assert [endpoint["port"] for endpoint in each["spec"]["endpoints"]] == ["metrics"]
        assert "metrics" in [port["name"] for port in watched["spec"]["ports"]]
        # `job` of deploy/monitoring
        job = "tritone-gateway" if each["metadata"]["name"].endswith("-gateway") else "tritone"
        assert watched["metadata"]["labels"][each["spec"]["jobLabel"]] == job
    predictor = {("speech-tritone-predictor", port) for port in ("http", "grpc", 80, 8001)}
    known = (predictor if "kserve" in case else set()) | {
        (each["metadata"]["name"], port[key])
        for each in of_kind(case, "Service")
        for port in each["spec"]["ports"]
        for key in ("name", "port")
    }
    for each in of_kind(case, "Ingress"):
        for path in each["spec"]["rules"][0]["http"]["paths"]:
            assert (path["backend"]["service"]["name"], path["backend"]["service"]["port"]["name"]) in known
    for each in of_kind(case, "HTTPRoute", "GRPCRoute"):
        assert {(to["name"], to["port"]) for rule in each["spec"]["rules"] for to in rule["backendRefs"]} <= known
    for each in of_kind(case, "HorizontalPodAutoscaler"):
        wanted = "speech-tritone-predictor" if "kserve" in case else each["metadata"]["name"]
        assert each["spec"]["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": wanted}


def exposed(case: str) -> Iterator[tuple[str, str]]:
    """Path and the kind of its match, of all that the outside reaches."""
    for each in of_kind(case, "Ingress"):
        for path in each["spec"]["rules"][0]["http"]["paths"]:
            yield path["path"], path["pathType"]
    for each in of_kind(case, "HTTPRoute"):
        for match in each["spec"]["rules"][0]["matches"]:
            yield match["path"]["value"], match["path"]["type"]
    for each in of_kind(case, "GRPCRoute"):
        for match in each["spec"]["rules"][0]["matches"]:
            yield f"/{match['method']['service']}/{match['method']['method']}", "Exact"


@pytest.mark.parametrize("case", ["exposed", "kserve claim"])
def test_the_outside_reaches_inference_and_no_control(case: str) -> None:
    found = list(exposed(case))

    def reaches(path: str) -> bool:
        return any(path == each or (kind != "Exact" and path.startswith(each + "/")) for each, kind in found)

    assert reaches("/v2/models/asr/infer")
    assert reaches("/v2/models/asr/versions/1/infer")
    assert all(reaches(SERVICE + call) for call in ("ModelInfer", "ModelStreamInfer", "ServerMetadata", *OF_MODELS))
    assert [call for call in LOCKED_CALLS if reaches(SERVICE + call)] == []
    locked = {
        "control": ("/v2/repository/index", "/v2/repository/models/asr/load"),
        "shared-memory": ("/v2/systemsharedmemory/status", "/v2/cudasharedmemory/region/a/register"),
        "logging": ("/v2/logging",),
        "trace": ("/v2/trace/setting",),  # a model's trace is below its path, where the proxy wants the key
    }
    assert all(LOCKED[api].fullmatch(path) for api, paths in locked.items() for path in paths)
    assert [path for paths in locked.values() for path in (*paths, "/metrics", "/drain") if reaches(path)] == []
    assert locked.keys() == LOCKED.keys()


def test_the_network_policy_opens_metrics_to_monitoring_and_nothing_that_is_not_named() -> None:
    (policy,) = of_kind("s3", "NetworkPolicy")
    opened = [(rule["from"], [port["port"] for port in rule["ports"]]) for rule in policy["spec"]["ingress"]]
    monitoring = {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}
    assert opened == [([{"podSelector": {}}], [8000, 8001]), ([monitoring], [8002])]
    assert [port["port"] for rule in policy["spec"]["egress"] for port in rule["ports"]] == [53, 53, 443]
    (closed,) = of_kind("closed", "NetworkPolicy")
    assert not closed["spec"]["ingress"]
    assert closed["spec"]["egress"] == []
    assert of_kind("open", "NetworkPolicy") == []


@pytest.mark.parametrize("case", ["gateway", "gateway, simple"])
def test_the_gateway_is_what_its_command_serves_and_is_locked_as_the_servers_are(case: str) -> None:
    (deployment,) = gateways(case)
    spec = deployment["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    environment = {each["name"]: each["value"] for each in container["env"]}
    served = accepted("gateway", *container["args"])
    found = {port["name"]: port["containerPort"] for port in container["ports"]}
    assert found["metrics"] == served["metrics_port"]
    assert found["http"] == served["port"]
    assert (found.get("riva"), found.get("wyoming")) == (served["riva_port"], served["wyoming_port"])
    assert {container[f"{name}Probe"]["httpGet"]["port"] for name in ("readiness", "liveness")} == {found["metrics"]}
    assert spec["terminationGracePeriodSeconds"] > served["drain_s"] + int(
        container["lifecycle"]["preStop"]["exec"]["command"][1]
    )
    scheme = "https" if "simple" in case else "http"
    assert environment["TRITON"] == f"{scheme}://speech-tritone:8000"
    (server,) = servers(case)
    (of_server,) = server["spec"]["template"]["spec"]["containers"]
    assert container["securityContext"] == of_server["securityContext"]
    assert spec["securityContext"] == server["spec"]["template"]["spec"]["securityContext"]
    writable = {each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")}
    assert writable == {"/tmp"}
    for name in ("keys", "upstreams"):
        assert (served[name] is not None) == (name in {each["name"] for each in spec["volumes"]})
    (policy,) = (each for each in of_kind(case, "NetworkPolicy") if each["metadata"]["name"].endswith("-gateway"))
    opened = [port["port"] for rule in policy["spec"]["ingress"] for port in rule["ports"]]
    assert sorted(opened) == sorted(found.values())
    (of_servers,) = (each for each in of_kind(case, "NetworkPolicy") if each is not policy)
    own = {"podSelector": {"matchLabels": policy["spec"]["podSelector"]["matchLabels"]}}
    assert [own] in [rule["from"] for rule in of_servers["spec"]["ingress"]]


def test_old_names_of_values_still_mean_what_they_meant_with_a_warning() -> None:
    new = S3 | {"routes": OLD["gateway"]}
    old_text, new_text = (
        helm("template", "speech", CHART, "--namespace", "asr", values=each).stdout for each in (OLD, new)
    )
    assert old_text == new_text
    assert "kind: HTTPRoute" in old_text
    done = helm("install", "speech", CHART, "--dry-run=client", values=OLD)
    assert "now routes.name" in done.stdout
    assert "now models.storage" in done.stdout


def test_ingress_annotations_of_a_protocol_win() -> None:
    found = {each["metadata"]["name"]: each["metadata"]["annotations"] for each in of_kind("exposed", "Ingress")}
    assert found == {"speech-tritone-http": {"a": "b", "c": "d"}, "speech-tritone-grpc": {"a": "b", "c": "e"}}


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({}, "no models: set models.storage.url"),
        ({"models": S3["models"] | CLAIM["models"]}, "are both given"),
        (S3 | {"drian": {"limitSeconds": 60}}, "'drian' not allowed"),
        (S3 | {"drain": {"settleSeconds": 60, "limitSeconds": 60}}, "must be less than drain.limitSeconds (60)"),
        (S3 | {"sharedMemory": "9Gi"}, "sharedMemory (9Gi) must be less than resources.memory (8Gi)"),
        (S3 | {"sharedMemory": "1.5G", "resources": {"memory": "1400Mi"}}, "sharedMemory (1.5G) must be less"),
        (S3 | {"ingress": {"enabled": True}}, "needs ingress.host"),
        (S3 | {"routes": {"enabled": True}}, "needs routes.name"),
        (S3 | {"gateway": {"enabled": True, "ingress": {"enabled": True}}}, "needs gateway.ingress.host"),
        (S3 | {"gateway": {"name": "edge"}, "routes": {"enabled": True, "name": "edge"}}, "use routes alone"),
        ({"models": {**S3["models"], "s3": S3["models"]["storage"]}}, "use models.storage alone"),
        (KSERVE | {"models": {"storage": {"url": "az://models/x"}}}, "KServe reads no az://"),
        ({"models": {"storage": {"url": "ftp://models/x"}}}, "does not match pattern"),
        (S3 | {"autoscaling": {"enabled": True, "minReplicas": 20}}, "more than autoscaling.maxReplicas"),
        (
            S3 | {"autoscaling": {"enabled": True, "streamsPerReplica": 0, "queueMilliseconds": 0}},
            "or autoscaling.queue",
        ),
        (S3 | {"resources": {"memory": "much"}}, "does not match pattern"),
        (S3 | {"podLabels": {"app.kubernetes.io/name": "mine"}}, "invalid propertyName 'app.kubernetes.io/name'"),
        (S3 | {"monitoring": {"labels": {"app.kubernetes.io/instance": "a"}}}, "invalid propertyName"),
        (S3 | {"gateway": {"enabled": True, "rivaPort": 9000}}, "differ from each other, and from 9000"),
        (S3 | {"gateway": {"rivaPort": 5000, "wyomingPort": 5000}}, "differ from each other"),
        (S3 | {"rollout": {"maxSurge": "0%", "maxUnavailable": 0}}, "no pod can ever be replaced"),
        (KSERVE | {"models": {"volume": {"source": {"nfs": {"server": "a", "path": "/"}}}}}, "persistentVolumeClaim"),
    ],
)
def test_values_that_cannot_work_are_refused_with_what_to_do(values: dict[str, Any], told: str) -> None:
    done = helm("template", "speech", CHART, values=values)
    assert done.returncode != 0
    assert told in done.stderr


@pytest.mark.parametrize("release", ["123", "a" * 53, "a" * 46 + "-b"])
def test_releases_and_namespaces_may_have_any_name(release: str) -> None:
    done = helm("template", release, CHART, "--namespace", "456", values=S3 | GATEWAY)
    assert done.returncode == 0, done.stderr
    found = [each["metadata"] for each in yaml.safe_load_all(done.stdout) if each]
    assert {each["namespace"] for each in found} == {"456"}
    assert {each["labels"]["app.kubernetes.io/instance"] for each in found} == {release}
    assert all(re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", each["name"]) for each in found)


@pytest.mark.parametrize("warned", [True, False])
def test_a_gateway_that_cannot_reach_what_it_asks_is_warned_of(warned: bool) -> None:
    egress = {} if warned else {"networkPolicy": {"gatewayEgress": [{"ports": [{"port": 443}]}]}}
    gateway = {"enabled": True, "upstreams": {"secretName": "elsewhere"}}
    done = helm("install", "speech", CHART, "--dry-run=client", values=S3 | egress | {"gateway": gateway})
    assert done.returncode == 0, done.stderr
    assert ("WARNING: networkPolicy.gatewayEgress is empty" in done.stdout) is warned


@pytest.mark.parametrize("warned", [True, False])
def test_an_ingress_without_annotations_for_grpc_is_warned_of(warned: bool) -> None:
    ingress = {"enabled": True, "host": "speech.example.com"} | ({} if warned else {"grpcAnnotations": {"a": "b"}})
    done = helm("install", "speech", CHART, "--dry-run=client", values=S3 | {"ingress": ingress})
    assert done.returncode == 0, done.stderr
    assert ("WARNING: ingress.grpcAnnotations is empty" in done.stdout) is warned


def adapter_queries(group_by: str, matchers: str) -> dict[str, str]:
    """PromQL of the adapter's rules by the name of their metric, as prometheus-adapter fills them in."""
    found = {}
    for rule in yaml.safe_load((FOLDER / "prometheus-adapter.yaml").read_text(encoding="utf-8"))["rules"]["custom"]:
        series = re.match(r"\w+", rule["seriesQuery"])
        assert series is not None
        query = rule["metricsQuery"].replace("<<.Series>>", series[0])
        found[rule["name"]["as"]] = query.replace("<<.LabelMatchers>>", matchers).replace("<<.GroupBy>>", group_by)
    return found


def test_the_autoscaler_asks_for_the_adapters_metrics_which_count_by_pod(tmp_path: Path) -> None:
    (scaler,) = of_kind("scaled", "HorizontalPodAutoscaler")
    asked = {each["pods"]["metric"]["name"]: each["pods"]["target"] for each in scaler["spec"]["metrics"]}
    queries = adapter_queries("pod", 'namespace="asr",pod=~"a|b"')
    assert asked == {
        "tritone_streams": {"type": "AverageValue", "averageValue": "100"},
        "tritone_queue_seconds": {"type": "AverageValue", "averageValue": "50m"},
    }
    (of_gateway,) = (
        each for each in of_kind("gateway", "HorizontalPodAutoscaler") if "gateway" in str(each["metadata"])
    )
    sessions = [each["pods"]["metric"]["name"] for each in of_gateway["spec"]["metrics"]]
    assert {*asked, *sessions} == queries.keys()
    assert [
        each["pods"]["metric"]["name"]
        for each in of_kind("scaled by queue", "HorizontalPodAutoscaler")[0]["spec"]["metrics"]
    ] == ["tritone_queue_seconds"]
    promtool = shutil.which("promtool")
    if promtool is None:
        pytest.skip("promtool is not here: install Debian's package prometheus")

    def series(name: str, pod: str, values: str, **labels: str) -> dict[str, str]:
        told = {"namespace": "asr", "pod": pod, **labels}
        return {"series": f"{name}{{{','.join(f'{key}={value!r}' for key, value in told.items())}}}", "values": values}

    waited, answered = "nv_inference_queue_duration_us", "nv_inference_request_success"
    inputs = [
        series("tritone_proxy_open_streams", "a", "7x10"),
        series("tritone_proxy_open_streams", "b", "0x10"),
        series("tritone_proxy_open_streams", "other", "9x10"),
        series("tritone_gateway_streams_open", "a", "3x10", protocol="stream"),
        series("tritone_gateway_streams_open", "a", "4x10", protocol="deepgram"),
        series("tritone_gateway_streams_open", "b", "0x10", protocol="stream"),
        # of a, model x waits 20 ms for each of 600 requests a minute, y waits 5 ms; b has no requests
        series(waited, "a", "0+12000000x10", model="x", version="1"),
        series(answered, "a", "0+600x10", model="x", version="1"),
        series(waited, "a", "0+500000x10", model="y", version="1"),
        series(answered, "a", "0+100x10", model="y", version="1"),
        series(waited, "b", "5x10", model="x", version="1"),
        series(answered, "b", "1x10", model="x", version="1"),
    ]
    expected = {"tritone_streams": (7, 0), "tritone_queue_seconds": (0.02, 0), "tritone_gateway_sessions": (7, 0)}
    tests = [
        {
            "expr": query,
            "eval_time": "8m",
            "exp_samples": [
                {"labels": f'{{pod="{pod}"}}', "value": value} for pod, value in zip("ab", expected[name], strict=True)
            ],
        }
        for name, query in queries.items()
    ]
    (tmp_path / "test.yaml").write_text(
        yaml.safe_dump({"tests": [{"interval": "1m", "input_series": inputs, "promql_expr_test": tests}]}),
        encoding="utf-8",
    )
    done = subprocess.run(
        [promtool, "test", "rules", "test.yaml"],
        cwd=tmp_path,
        capture_output=True,
        encoding="utf-8",
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    # the names that a server has, not only ours
    assert (ROOT / "deploy/monitoring/grafana/tritone.json").read_text(encoding="utf-8").count(waited)


def test_the_charts_that_documents_install_render_with_their_values() -> None:
    lines = [line for document in DOCUMENTS for line in command_lines(document) if line.startswith("helm install ")]
    assert len(lines) > 1
    for line in lines:
        _, _, *rest = words(line)
        done = helm("template", *(ROOT / word if word.startswith("deploy/") else word for word in rest))
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "s3://models/production" in done.stdout


def test_documented_commands_name_files_and_values_that_exist() -> None:
    text = (ROOT / "docs" / "operations" / "kubernetes.md").read_text(encoding="utf-8")
    values = yaml.safe_load((CHART / "values.yaml").read_text(encoding="utf-8"))

    def has(name: str) -> bool:
        found: Any = values
        for part in name.split("."):
            if not isinstance(found, dict) or part not in found:
                return False
            found = found[part]
        return True

    sections = [name for name, value in values.items() if isinstance(value, dict)]
    named = re.findall(rf"`((?:{'|'.join(sections)})\.\w+(?:\.\w+)*)`", text)
    assert len(named) > 10
    assert [name for name in named if not has(name)] == []
    lines = [line for block in re.findall(r"```sh\n(.*?)```", text, re.DOTALL) for line in block.splitlines()]
    files = [word for line in lines for word in shlex.split(line, comments=True) if word.startswith("deploy/")]
    assert files
    assert [name for name in files if not (ROOT / name).exists()] == []
    sets = [word for line in lines for word in re.findall(r"--set ([\w.]+)=", line)]
    assert [name for name in sets if not has(name)] == []
