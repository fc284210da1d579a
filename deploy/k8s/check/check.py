"""Checks the manifests: builds every overlay, validates every object against Kubernetes' schema (strict: unknown fields
are errors), then against this project's rules. Applies those rules that fit to docker-compose.yml, too. Calls no cluster
and no engine.

Kubernetes has no schema for the kinds of operators (KEDA, Prometheus Operator, CloudNativePG). CRDS below lists the fields
of those kinds that are used here; any other field is an error. The list was compared with the operators' published
definitions; before you use a new field, check those definitions and add the field to CRDS.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import jsonschema
import kubernetes_validate
import yaml

HERE = Path(__file__).resolve().parent.parent
ROOT = HERE.parent.parent
sys.path.insert(0, str(ROOT / "deploy/images"))
import digests  # noqa: E402
# The oldest version supported upstream at the time of writing, and the newest version with a schema.
VERSIONS = ["1.35", "1.37"]
SERVICES = {"orchestrator": 8080, "tool-gateway": 8081, "resolver": 8082, "delivery": 8083}
# The installer creates these Secrets, from files that are in no repository (README.md).
SECRETS = {
    "signalbox-database": set(SERVICES),
    "signalbox-nats": set(SERVICES),
    "signalbox-owner": {"database", "nats"},
    "signalbox-nats-callout": {"issuer-seed", "xkey-seed"},
    "signalbox-operator": {"token"},
    "signalbox-email": {"smtp-url", "from"},
    "signalbox-sign-in": None,
    "signalbox-envelope": None,
    "signalbox-providers": None,
}


def closed(required=(), **properties):
    return {"type": "object", "properties": properties, "required": list(required), "additionalProperties": False}


TEXT, COUNT = {"type": "string"}, {"type": "integer", "minimum": 0}
TEXTS = {"type": "object", "additionalProperties": TEXT}
LABELS = closed(matchLabels=TEXTS)
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
CRDS = {
    ("keda.sh/v1alpha1", "ScaledObject"): closed(
        ["scaleTargetRef", "triggers"],
        scaleTargetRef=closed(["name"], name=TEXT),
        minReplicaCount=COUNT,
        maxReplicaCount={"type": "integer", "minimum": 1},
        pollingInterval={"type": "integer", "minimum": 1},
        cooldownPeriod=COUNT,
        fallback=closed(
            ["failureThreshold", "replicas"],
            failureThreshold=COUNT,
            replicas=COUNT,
            behavior={"enum": ["static", "currentReplicas", "currentReplicasIfHigher", "currentReplicasIfLower"]},
        ),
        advanced=closed(
            horizontalPodAutoscalerConfig=closed(
                behavior=closed(
                    scaleDown=closed(
                        stabilizationWindowSeconds=COUNT,
                        policies={
                            "type": "array",
                            "items": closed(
                                ["type", "value", "periodSeconds"],
                                type={"enum": ["Pods", "Percent"]},
                                value=COUNT,
                                periodSeconds={"type": "integer", "minimum": 1, "maximum": 1800},
                            ),
                        },
                    )
                )
            )
        ),
        triggers={
            "type": "array",
            "minItems": 1,
            "items": {
                "oneOf": [
                    closed(
                        ["type", "metadata"],
                        type={"const": "prometheus"},
                        metadata=closed(
                            ["serverAddress", "query", "threshold"], serverAddress=TEXT, query=TEXT, threshold=TEXT
                        ),
                    ),
                    closed(
                        ["type", "metadata"],
                        type={"const": "nats-jetstream"},
                        metadata=closed(
                            ["natsServerMonitoringEndpoint", "account", "stream", "consumer", "lagThreshold"],
                            natsServerMonitoringEndpoint=TEXT,
                            account={"const": "SIGNALBOX"},  # of schemas/nats-users.conf
                            stream=TEXT,
                            consumer=TEXT,
                            lagThreshold=TEXT,
                        ),
                    ),
                ]
            },
        },
    ),
    ("monitoring.coreos.com/v1", "ServiceMonitor"): closed(
        ["selector", "endpoints", "jobLabel"],
        selector=LABELS,
        # The alerts select job "signalbox".
        jobLabel={"const": "app.kubernetes.io/part-of"},
        endpoints={
            "type": "array",
            "minItems": 1,
            "items": closed(["port"], port=TEXT, path=TEXT, interval=DURATION, scrapeTimeout=DURATION),
        },
    ),
    ("monitoring.coreos.com/v1", "PrometheusRule"): closed(
        ["groups"],
        groups={
            "type": "array",
            "items": closed(
                ["name", "rules"],
                name=TEXT,
                rules={
                    "type": "array",
                    "items": closed(
                        ["alert", "expr"],
                        **{"alert": TEXT, "expr": TEXT, "for": DURATION, "labels": TEXTS, "annotations": TEXTS},
                    ),
                },
            ),
        },
    ),
    ("postgresql.cnpg.io/v1", "Cluster"): closed(
        ["instances", "imageName", "bootstrap", "storage"],
        instances={"type": "integer", "minimum": 1},
        imageName=TEXT,
        enableSuperuserAccess={"type": "boolean"},
        minSyncReplicas=COUNT,
        maxSyncReplicas=COUNT,
        storage=closed(["size"], size=TEXT),
        resources=closed(requests=TEXTS, limits=TEXTS),
        affinity=closed(topologyKey=TEXT, podAntiAffinityType={"enum": ["preferred", "required"]}),
        postgresql=closed(parameters=TEXTS),
        bootstrap=closed(
            initdb=closed(
                ["database", "owner"],
                database=TEXT,
                owner=TEXT,
                secret=closed(["name"], name=TEXT),
                postInitApplicationSQL={"type": "array", "items": TEXT},
            )
        ),
        managed=closed(
            roles={
                "type": "array",
                "items": closed(
                    ["name", "ensure"],
                    name=TEXT,
                    ensure={"enum": ["present", "absent"]},
                    login={"type": "boolean"},
                    inherit={"type": "boolean"},
                    connectionLimit={"type": "integer"},
                    inRoles={"type": "array", "items": TEXT},
                    passwordSecret=closed(["name"], name=TEXT),
                ),
            }
        ),
    ),
}

faults = []


def fault(where, what):
    faults.append(f"{where}: {what}")


def build(overlay):
    """The overlay's objects."""
    done = subprocess.run(["kubectl", "kustomize", str(overlay)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"manifests: {overlay.name} cannot be built: {done.stderr.strip()}")
    return [one for one in yaml.safe_load_all(done.stdout) if one]


def schema(where, one):
    """Validates an object against Kubernetes' schema, or against CRDS."""
    definition = CRDS.get((one["apiVersion"], one["kind"]))
    if definition is None:
        for version in VERSIONS:
            try:
                kubernetes_validate.validate(one, version, strict=True)
            except kubernetes_validate.ValidationError as error:
                fault(where, f"Kubernetes {version}: {'.'.join(map(str, error.path))}: {error.message}")
            except kubernetes_validate.SchemaNotFoundError:
                fault(where, f"{one['apiVersion']} {one['kind']} is no kind that is known, here or to Kubernetes {version}")
        return
    for error in jsonschema.Draft202012Validator(definition).iter_errors(one.get("spec")):
        fault(where, f"spec.{'.'.join(map(str, error.path))}: {error.message}")


def pod(where, workload, configs):
    spec = workload["spec"]["template"]["spec"]
    wants = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}
    for name, value in wants.items():
        if spec.get("securityContext", {}).get(name) != value:
            fault(where, f"the pod's securityContext.{name} is not {value}")
    if spec.get("securityContext", {}).get("runAsUser", 0) == 0:
        fault(where, "runs as root")
    for name in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(name):
            fault(where, f"{name} is set")
    if spec.get("automountServiceAccountToken") is not False:
        fault(where, "mounts a service account's token")
    for volume in spec.get("volumes", []):
        if "hostPath" in volume:
            fault(where, "mounts a path of the host")
        if "configMap" in volume and volume["configMap"]["name"] not in configs:
            fault(where, f"there is no ConfigMap {volume['configMap']['name']}")
    for container in spec["containers"] + spec.get("initContainers", []):
        security = container.get("securityContext", {})
        wants = {"allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]}}
        for name, value in wants.items():
            if security.get(name) != value:
                fault(where, f"securityContext.{name} is not {value}")
        image = container["image"]
        if not re.search(r"(@sha256:[0-9a-f]{64}|:(?!latest$)[\w][\w.-]*)$", image):
            fault(where, f"image {image} has no tag that stays")
        resources = container.get("resources", {})
        if "memory" not in resources.get("limits", {}) or not {"cpu", "memory"} <= set(resources.get("requests", {})):
            fault(where, "requests of cpu and memory and a limit of memory are not all there")
        for env in container.get("env", []):
            if reference := env.get("valueFrom", {}).get("secretKeyRef"):
                keys = SECRETS.get(reference["name"], set())
                if keys is not None and reference["key"] not in keys:
                    fault(where, f"Secret {reference['name']} has no key {reference['key']} by the README")
            elif re.search("TOKEN|PASSWORD|KEY|SECRET|URL", env["name"]):
                fault(where, f"{env['name']} is in the manifest")
        for source in container.get("envFrom", []):
            if "configMapRef" in source and source["configMapRef"]["name"] not in configs:
                fault(where, f"there is no ConfigMap {source['configMapRef']['name']}")
            if "secretRef" in source and source["secretRef"]["name"] not in SECRETS:
                fault(where, f"Secret {source['secretRef']['name']} is not in the README")
    if workload["kind"] == "Deployment":
        service = workload["metadata"]["name"]
        container = spec["containers"][0]
        if container["args"] != ["serve", service]:
            fault(where, f"does not serve {service}")
        if [port["containerPort"] for port in container["ports"]] != [SERVICES.get(service)]:
            fault(where, f"listens elsewhere than on {SERVICES.get(service)}")
        pages = {"startupProbe": "/healthz", "livenessProbe": "/healthz", "readinessProbe": "/readyz"}
        for probe, page in pages.items():
            if container.get(probe, {}).get("httpGet", {}).get("path") != page:
                fault(where, f"{probe} does not ask {page}")


def matches(selector, labels):
    if any(labels.get(key) != value for key, value in selector.get("matchLabels", {}).items()):
        return False
    return all(labels.get(one["key"]) in one["values"] for one in selector.get("matchExpressions", []))


def together(name, objects):
    """Checks that every object that is referred to exists."""
    of = lambda kind: [one for one in objects if one["kind"] == kind]
    deployments = {one["metadata"]["name"]: one for one in of("Deployment")}
    labels = {name: one["spec"]["template"]["metadata"]["labels"] for name, one in deployments.items()}
    if set(deployments) != set(SERVICES):
        fault(name, f"deploys {sorted(deployments)}")
    if {one["metadata"].get("namespace") for one in objects if one["kind"] != "Namespace"} != {"signalbox"}:
        fault(name, "not everything is in the namespace signalbox")
    for service in deployments:
        for kind, selected in (("PodDisruptionBudget", lambda spec: spec["selector"]), ("Service", lambda spec: {"matchLabels": spec["selector"]})):
            count = sum(matches(selected(one["spec"]), labels[service]) for one in of(kind))
            if count != 1:
                fault(name, f"{service} has {count} of {kind}")
    policies = of("NetworkPolicy")
    if not any(one["spec"]["podSelector"] == {} and set(one["spec"]["policyTypes"]) == {"Ingress", "Egress"} and not one["spec"].get("ingress") and not one["spec"].get("egress") for one in policies):
        fault(name, "nothing denies what is not allowed")
    for one in policies:
        selector = one["spec"]["podSelector"]
        if selector and not any(matches(selector, found) for found in labels.values()):
            fault(name, f"NetworkPolicy {one['metadata']['name']} is for nobody")
    for one in of("ServiceMonitor"):
        watched = {service["metadata"]["name"] for service in of("Service") if matches(one["spec"]["selector"], service["metadata"]["labels"]) and {port["name"] for port in service["spec"]["ports"]} >= {end["port"] for end in one["spec"]["endpoints"]}}
        if watched != set(SERVICES):
            fault(name, f"the ServiceMonitor watches {sorted(watched)}")
    topology = (ROOT / "schemas/topology.md").read_text()
    for one in of("ScaledObject"):
        target = one["spec"]["scaleTargetRef"]["name"]
        if target not in deployments:
            fault(name, f"ScaledObject {target} scales nothing")
        elif "replicas" in deployments[target]["spec"]:
            fault(name, f"both KEDA and the Deployment say how many of {target} there are")
        for trigger in one["spec"]["triggers"]:
            data = trigger["metadata"]
            if trigger["type"] == "nats-jetstream" and f"| `{data['consumer']}` | `{data['stream']}` |" not in topology:
                fault(name, f"there is no consumer {data['consumer']} of {data['stream']} in schemas/topology.md")
            for metric in metrics(data.get("query", "")):
                fault(name, f"no service has a metric {metric}")


def alerts(name, objects):
    """Checks that both forms of the alerts are equal, and that each alert's metrics and runbook exist."""
    groups = yaml.safe_load((ROOT / "deploy/telemetry/alerts.yml").read_text())["groups"]
    for one in objects:
        if one["kind"] == "PrometheusRule" and one["spec"]["groups"] != groups:
            fault(name, "the alerts are not those of deploy/telemetry/alerts.yml")
    for rule in [rule for group in groups for rule in group["rules"]]:
        for metric in metrics(rule["expr"]):
            fault(rule["alert"], f"no service has a metric {metric}")
        if not (ROOT / rule["annotations"]["runbook"]).exists():
            fault(rule["alert"], f"there is no {rule['annotations']['runbook']}")


def declared():
    """The names of all metrics in the sources, as Prometheus shows them."""
    found = set()
    pattern = re.compile(r'"((?:signalbox|http|gen_ai|db)\.[a-z_.]+)"')
    for source in list((ROOT / "services").rglob("*.rs")) + list((ROOT / "shared").rglob("*.rs")):
        text = source.read_text()
        if "global::meter" not in text:
            continue
        for name in pattern.findall(text):
            base = name.replace(".", "_")
            found |= {base, f"{base}_total", f"{base}_seconds", f"{base}_bytes", f"{base}_seconds_bucket", f"{base}_seconds_count", f"{base}_seconds_sum", f"{base}_bucket"}
    return found


def metrics(query):
    """The metrics in a query that no service has."""
    return sorted(set(re.findall(r"\b((?:signalbox|http_server|gen_ai_client|db_client)_[a-z_]+)\b(?!\s*=)", query)) - METRICS)


METRICS = declared()


def compose():
    """Checks docker-compose.yml by the same rules, and that .env.example has every variable."""
    text = (ROOT / "docker-compose.yml").read_text()
    example = set(re.findall(r"^([A-Z_]+)=", (ROOT / ".env.example").read_text(), re.MULTILINE))
    # Image names are variables with defaults.
    for variable in sorted(set(re.findall(r"\$\{(\w+)", text)) - example):
        if not variable.endswith("_IMAGE"):
            fault("docker-compose.yml", f"{variable} is not in .env.example")
    for variable in sorted(example - set(re.findall(r"\$\{(\w+)", text)) - {"COMPOSE_PROFILES"}):
        fault(".env.example", f"{variable} is used nowhere")
    for name, service in yaml.safe_load(text)["services"].items():
        where = f"docker-compose.yml: {name}"
        wants = {"read_only": True, "cap_drop": ["ALL"], "security_opt": ["no-new-privileges:true"]}
        for key, value in wants.items():
            if service.get(key) != value:
                fault(where, f"{key} is not {value}")
        if not {"mem_limit", "pids_limit", "restart", "logging"} <= set(service):
            fault(where, "its memory, processes, logs or restarts have no limit")
        if not re.search(r":-[^}]+:(?!latest\})[^}]+\}$", service["image"]):
            fault(where, f"image {service['image']} has no tag that stays")
        for port in service.get("ports", []):
            if "127.0.0.1" not in port:
                fault(where, f"{port} is open to others")
        for key, value in service.get("environment", {}).items():
            if re.search("TOKEN|PASSWORD|KEY|DATABASE|NATS_", key) and "${" not in str(value) and key not in ("POSTGRES_DB",):
                fault(where, f"{key} stands in the file")


def main():
    seen = 0
    for overlay in sorted((HERE / "overlays").iterdir()):
        objects = build(overlay)
        configs = {one["metadata"]["name"] for one in objects if one["kind"] == "ConfigMap"}
        for one in objects:
            where = f"{overlay.name}: {one['kind']} {one['metadata']['name']}"
            schema(where, one)
            if one["kind"] in ("Deployment", "Job"):
                pod(where, one, configs)
            if one["kind"] == "Secret":
                fault(where, "a secret is in the manifests")
            seen += 1
        together(overlay.name, objects)
        alerts(overlay.name, objects)
    for file in sorted((HERE / "postgres").glob("*.yaml")):
        for one in yaml.safe_load_all(file.read_text()):
            schema(f"{file.name}: {one['kind']}", one)
            seen += 1
    values = yaml.safe_load((HERE / "nats/values.yaml").read_text())
    if "no_auth_user" in json.dumps(values):
        fault("nats/values.yaml", "no_auth_user lets everybody in")
    wanted = set(re.findall(r"(?:password|issuer|xkey): \$(\w+)", (ROOT / "schemas/nats-users.conf").read_text()))
    if set(values["container"]["env"]) != wanted:
        fault("nats/values.yaml", f"the variables are not those of schemas/nats-users.conf: {sorted(wanted)}")
    # The container tests run these lines (tests/containers/src/requests.rs).
    volume = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]["nats-volume"]["entrypoint"][-1]
    renames = [one["value"][0]["command"][-1] for one in values["podTemplate"]["patch"] if one["path"] == "/spec/initContainers"]
    if not (renames and volume.replace("$$", "$").endswith(renames[0])):
        fault("nats/values.yaml", "its init container does not rename the store as nats-volume of docker-compose.yml does")
    for panel in json.loads((ROOT / "deploy/telemetry/dashboard.json").read_text())["panels"]:
        for metric in [metric for target in panel["targets"] for metric in metrics(target["expr"])]:
            fault("dashboard.json", f"{panel['title']}: no service has a metric {metric}")
    compose()
    faults.extend(digests.check())
    for line in faults:
        print(f"manifests: {line}", file=sys.stderr)
    if faults:
        sys.exit(1)
    print(f"manifests: {seen} objects fit Kubernetes {' and '.join(VERSIONS)} and the rules")


if __name__ == "__main__":
    main()
