"""What the Helm chart makes of its values: hardened pods, few rights, a config that the daemon reads."""

import importlib.util
import json
import tomllib
from pathlib import Path

import pytest
import yaml
from tests.kubernetes.charts import CHART, MODES, ROOT, SPACE, Raw, helm, one, rights_of, template

from adlro.api.tokens import KeptToken, find_who
from adlro.daemon.config import Config, load_config
from adlro.live.service import Who

OWN_KINDS = {
    "shadow": {"StatefulSet", "Secret", "NetworkPolicy"},
    "scheduler": {"StatefulSet", "Secret", "NetworkPolicy", "PodDisruptionBudget", "Role", "RoleBinding"},
    "extender": {"Deployment", "NetworkPolicy", "PodDisruptionBudget"},
}


def pod_of(objects: list[Raw]) -> Raw:
    """The pod's spec, in whatever makes the pods."""
    (found,) = [each for each in objects if each["kind"] in ("StatefulSet", "Deployment")]
    return dict(found["spec"]["template"]["spec"])


def config_of(objects: list[Raw], folder: Path) -> Config:
    """adlro.toml as the daemon reads it."""
    file = folder / "adlro.toml"
    file.write_text(one(objects, "ConfigMap")["data"]["adlro.toml"])
    return load_config(file)


@pytest.mark.parametrize("mode", MODES)
def test_the_chart_of_every_mode_passes_helms_linter_and_has_these_objects(mode: str) -> None:
    linted = helm("lint", "--strict", str(CHART), "--set", f"mode={mode}")
    assert linted.returncode == 0, linted.stdout
    kinds = {each["kind"] for each in template(f"mode={mode}")}
    assert kinds == {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "ConfigMap", "Service", *OWN_KINDS[mode]}


@pytest.mark.parametrize("mode", MODES)
def test_pods_have_no_more_of_their_node_than_they_need(mode: str) -> None:
    pod = pod_of(template(f"mode={mode}", "extender.bind=true"))
    assert pod["securityContext"]["runAsNonRoot"]
    assert pod["securityContext"]["runAsUser"] > 0
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert not {"hostNetwork", "hostPID", "hostIPC"} & pod.keys()
    assert not [each for each in pod["volumes"] if "hostPath" in each]
    for container in (*pod["containers"], *pod.get("initContainers", ())):
        assert container["securityContext"] == {
            "allowPrivilegeEscalation": False, "readOnlyRootFilesystem": True, "capabilities": {"drop": ["ALL"]},
        }  # fmt: skip
        assert {"cpu", "memory"} <= container["resources"]["requests"].keys()
        written = [each["mountPath"] for each in container["volumeMounts"] if not each.get("readOnly")]
        assert sorted(written) == ["/tmp", "/var/lib/adlro"]
    (main,) = pod["containers"]
    assert main["livenessProbe"]["httpGet"]["path"] == "/healthz"
    ready = {"shadow": "/readyz?standby=true", "scheduler": "/readyz?standby=true", "extender": "/healthz"}
    assert main["readinessProbe"]["httpGet"]["path"] == ready[mode]


def test_a_shadow_and_an_extender_may_only_read_and_only_the_scheduler_may_evict() -> None:
    rights = {mode: rights_of(template(f"mode={mode}")) for mode in MODES}
    assert {right.split()[0] for right in rights["shadow"]} == {"list", "watch"}
    assert rights["extender"] == rights["shadow"]
    assert rights_of(template("mode=extender", "extender.bind=true")) == rights["shadow"] | {
        "get pods", "create pods/binding",
    }  # fmt: skip
    assert "create pods/eviction" in rights["scheduler"]
    assert not [right for right in rights["scheduler"] if right.split()[0] in ("delete", "*", "deletecollection")]
    assert not [right for right in rights["scheduler"] if "secrets" in right or "*" in right]


def test_the_daemon_reads_the_config_of_the_chart(tmp_path: Path) -> None:
    shadow = config_of(template(), tmp_path)
    assert (shadow.backend.kind, shadow.shadow.backend, shadow.kubernetes.lease) == ("shadow", "kubernetes", "")
    more = ("config.policy.name=sjf", "config.kubernetes.products.Lab-Card-24GB=a10", "config.kubernetes.binders=8")
    placing = config_of(template("mode=scheduler", "schedulerName=gpu", "api.port=9000", *more), tmp_path)
    assert (placing.backend.kind, placing.kubernetes.lease) == ("kubernetes", f"{SPACE}/adlro")
    assert (placing.kubernetes.scheduler_name, placing.kubernetes.binders) == ("gpu", 8)
    assert placing.kubernetes.products == {"Lab-Card-24GB": "a10"}
    assert (placing.policy.name, placing.api.port) == ("sjf", 9000)
    placing.api_settings().check(has_tokens=True)


def test_with_a_certificate_the_api_speaks_tls(tmp_path: Path) -> None:
    objects = template("mode=scheduler", "api.tlsSecret=own", "serviceMonitor.enabled=true")
    config = config_of(objects, tmp_path)
    assert config.api_settings().has_tls
    assert not config.api.plain_http
    mounts = {each["mountPath"] for each in pod_of(objects)["containers"][0]["volumeMounts"]}
    assert str(Path(config.api.tls_cert).parent) in mounts
    assert pod_of(objects)["containers"][0]["readinessProbe"]["httpGet"]["scheme"] == "HTTPS"
    assert one(objects, "ServiceMonitor")["spec"]["endpoints"][0]["scheme"] == "https"


def test_the_tokens_that_the_chart_makes_open_the_api() -> None:
    objects = template()
    plain = one(objects, "Secret", "adlro-clients")["stringData"]
    tokens = json.loads(one(objects, "Secret", "adlro-tokens")["stringData"]["tokens.json"])["tokens"]
    kept = [KeptToken(**each) for each in tokens]
    assert find_who(kept, plain["operator"]) == Who("operator", "operator")
    assert find_who(kept, plain["prometheus"]) == Who("prometheus", "viewer")
    own = template("api.tokensSecret=own")
    assert not [each for each in own if each["kind"] == "Secret"]
    assert "own" in [each["secret"]["secretName"] for each in pod_of(own)["volumes"] if "secret" in each]


def test_requests_go_to_the_leader_and_the_lead_may_label_the_pods_of_the_set_only() -> None:
    objects = template("mode=scheduler", "replicas=3")
    assert one(objects, "Service", "adlro")["spec"]["selector"]["adlro.io/leader"] == "true"
    (labelling,) = [rule for rule in one(objects, "Role")["rules"] if rule["resources"] == ["pods"]]
    assert labelling["resourceNames"] == ["adlro-0", "adlro-1", "adlro-2"]
    assert one(objects, "StatefulSet")["spec"]["replicas"] == 3
    assert "adlro.io/leader" not in one(template(), "Service", "adlro")["spec"]["selector"]
    assert one(template("replicas=3"), "StatefulSet")["spec"]["replicas"] == 1  # a shadow has no Lease


def test_prometheus_reads_every_replica_with_a_token_that_the_api_knows() -> None:
    objects = template("mode=scheduler", "serviceMonitor.enabled=true", "serviceMonitor.labels.release=prometheus")
    monitor = one(objects, "ServiceMonitor")
    assert monitor["metadata"]["labels"]["release"] == "prometheus"
    wanted = monitor["spec"]["selector"]["matchLabels"].items()
    services = [each for each in objects if each["kind"] == "Service" and wanted <= each["metadata"]["labels"].items()]
    (replicas,) = services
    assert "adlro.io/leader" not in replicas["spec"]["selector"]
    (endpoint,) = monitor["spec"]["endpoints"]
    assert endpoint["port"] in [port["name"] for port in replicas["spec"]["ports"]]
    credentials = endpoint["authorization"]["credentials"]
    assert credentials["key"] in one(objects, "Secret", credentials["name"])["stringData"]


def test_an_old_cluster_gets_the_disruption_budget_that_it_knows() -> None:
    versions = {
        version: one(template("mode=scheduler", more=("--kube-version", version)), "PodDisruptionBudget")["apiVersion"]
        for version in ("1.20.2", "1.32.0")
    }
    assert versions == {"1.20.2": "policy/v1beta1", "1.32.0": "policy/v1"}


@pytest.mark.parametrize(
    ("value", "said"),
    [
        ("mode=both", 'mode must be one of the following: "shadow", "scheduler", "extender"'),
        ("replicas=0", "replicas: Must be greater than or equal to 1"),
        ("api.port=http", "api.port: Invalid type. Expected: integer, given: string"),
        ("persistence.size=big", "persistence.size: Does not match pattern"),
        ("nodeselector.zone=a", "Additional property nodeselector is not allowed"),
        ("config.polcy.name=sjf", "config: Additional property polcy is not allowed"),
        ("config.kubernetes.binders=99", "config.kubernetes.binders: Must be less than or equal to 64"),
        ("config.backend.kind=slurm", "config: Additional property backend is not allowed"),
        ("schedulerName=default-scheduler", "which is kube-scheduler's own name. Choose another one"),
    ],
)
def test_a_wrong_value_is_refused_with_its_name_and_what_was_expected(value: str, said: str) -> None:
    refused = helm("template", "adlro", str(CHART), "--set", value)
    assert refused.returncode != 0
    assert said in refused.stderr


def test_the_chart_has_the_version_of_the_package() -> None:
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((CHART / "Chart.yaml").read_text())
    assert chart["version"] == chart["appVersion"] == version


def test_the_rights_alone_and_the_schema_of_the_config_follow_the_chart_and_the_daemon(
    capsys: pytest.CaptureFixture[str],
) -> None:
    spec = importlib.util.spec_from_file_location("chart_files", ROOT / "scripts" / "chart.py")
    assert spec is not None and spec.loader is not None  # noqa: PT018
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    assert module.main(["--check"]) == 0, capsys.readouterr().out


def test_the_chart_reads_every_value_that_it_lists_and_checks_no_others() -> None:
    values = yaml.safe_load((CHART / "values.yaml").read_text())
    schema = json.loads((CHART / "values.schema.json").read_text())
    assert set(schema["properties"]) - {"global"} == set(values)
    text = "".join(path.read_text() for path in (CHART / "templates").iterdir())
    for name, value in values.items():
        inner = value if isinstance(value, dict) and value and name not in ("resources",) else {"": None}
        for key in inner:
            assert f".Values.{name}{'.' if key else ''}{key}" in text, f"{name}.{key} is not used"
