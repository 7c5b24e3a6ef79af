"""Checks the manifests without a cluster: YAML, references between objects, and what deploy/README.md promises of them."""

import pathlib
import sys

import yaml

HERE = pathlib.Path(__file__).parent
problems = []


def check(holds, text):
    if not holds:
        problems.append(text)


objects = {}
for path in sorted(HERE.glob("*.yaml")):
    for document in yaml.safe_load_all(path.read_text()):
        if document["kind"] == "Kustomization":
            for name in document["resources"]:
                check((HERE / name).is_file(), f"kustomization names {name}, which is not there")
            continue
        meta = document["metadata"]
        key = (document["kind"], meta.get("namespace"), meta["name"])
        check(key not in objects, f"{key} is there twice")
        objects[key] = document

namespaces = {name for kind, _, name in objects if kind == "Namespace"}
for (kind, namespace, name), _ in objects.items():
    check(kind == "Namespace" or namespace in namespaces, f"{kind} {name}: namespace {namespace}")

runtime = objects["Deployment", "bifrost-runtime", "trusted-runtime"]["spec"]["template"]["spec"]
evaluator = objects["Deployment", "bifrost-evaluator", "gpu-evaluator"]["spec"]["template"]["spec"]
check(runtime["runtimeClassName"] == "kata-qemu-tdx", "runtime has no TDX runtime class")
check("startupProbe" in runtime["initContainers"][0], "the runtime does not wait for the quote helper")
check("nvidia.com/gpu" in evaluator["containers"][0]["resources"]["limits"], "evaluator has no GPU")
check("runtimeClassName" not in evaluator, "evaluator has a runtime class")

for (kind, namespace, name), document in objects.items():
    if kind == "Deployment":
        pod = document["spec"]["template"]["spec"]
        labels = document["spec"]["template"]["metadata"]["labels"]
        check(document["spec"]["selector"]["matchLabels"].items() <= labels.items(), f"{name}: selector")
        check(pod["automountServiceAccountToken"] is False, f"{name}: service account token")
        check(("ServiceAccount", namespace, pod["serviceAccountName"]) in objects, f"{name}: service account")
        check(pod["securityContext"]["seccompProfile"]["type"] == "RuntimeDefault", f"{name}: seccomp")
        volumes = {volume["name"]: volume for volume in pod["volumes"]}
        for volume in volumes.values():
            if "configMap" in volume:
                check(("ConfigMap", namespace, volume["configMap"]["name"]) in objects, f"{name}: ConfigMap {volume}")
        for container in pod["containers"] + pod.get("initContainers", []):
            context = container["securityContext"]
            where = f"{name}/{container['name']}"
            check(context["allowPrivilegeEscalation"] is False, f"{where}: escalation")
            check(context["readOnlyRootFilesystem"] is True, f"{where}: root filesystem")
            check(context["capabilities"] == {"drop": ["ALL"]}, f"{where}: capabilities")
            check("env" not in container, f"{where}: settings and secrets are files")
            for mount in container["volumeMounts"]:
                check(mount["name"] in volumes, f"{where}: volume {mount['name']}")
                secret = "secret" in volumes[mount["name"]]
                check(not secret or mount["readOnly"], f"{where}: {mount['name']} is writable")
            hostpaths = [m for m in container["volumeMounts"] if "hostPath" in volumes[m["name"]]]
            check(not hostpaths or container["name"] == "quote-helper", f"{where}: hostPath")
            user = {**pod["securityContext"], **context}
            root = container["name"] == "quote-helper"
            check(root or (user.get("runAsNonRoot") is True and user["runAsUser"] > 0), f"{where}: root")
        for container in pod["containers"]:
            ports = {port["name"] for port in container["ports"]}
            for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
                port = (container[probe].get("httpGet") or container[probe]["tcpSocket"])["port"]
                check(port in ports, f"{name}: {probe} of port {port}")
    if kind == "Service":
        pod = objects["Deployment", namespace, name]["spec"]["template"]
        check(document["spec"]["selector"].items() <= pod["metadata"]["labels"].items(), f"Service {name}: selector")
        ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
        check({port["targetPort"] for port in document["spec"]["ports"]} <= ports, f"Service {name}: ports")
    if kind == "ServiceMonitor":
        service = objects["Service", namespace, name]
        check(document["spec"]["selector"]["matchLabels"].items() <= service["metadata"]["labels"].items(), f"monitor {name}")

for namespace in namespaces:
    policy = objects["NetworkPolicy", namespace, "default-deny"]["spec"]
    check(policy["podSelector"] == {} and set(policy["policyTypes"]) == {"Ingress", "Egress"}, f"{namespace}: default")
policy = objects["NetworkPolicy", "bifrost-evaluator", "gpu-evaluator"]["spec"]
check(policy["egress"] == [], "evaluator may reach somebody")
serving = [rule for rule in policy["ingress"] if {"protocol": "TCP", "port": 7700} in rule["ports"]]
check(len(serving) == 1 and len(serving[0]["from"]) == 1, "evaluator is reached by others than the runtime")
peer = serving[0]["from"][0]
check(peer["podSelector"]["matchLabels"] == {"app.kubernetes.io/name": "trusted-runtime"}, "evaluator's peer")
egress = objects["NetworkPolicy", "bifrost-runtime", "trusted-runtime"]["spec"]["egress"]
reached = sorted(port["port"] for rule in egress for port in rule["ports"])
check(reached == [53, 53, 7700], f"runtime reaches ports {reached}")

for problem in problems:
    print(f"k8s: {problem}", file=sys.stderr)
print(f"k8s: {len(objects)} objects, {len(problems)} problems")
sys.exit(1 if problems else 0)
