"""The MLflow server that keeps the runs of a namespace beyond any pod."""

from mlbench.wings.kuberay import pods
from mlbench.wings.kuberay.config import Config
from mlbench.wings.kuberay.pods import Object

NAME, PORT = "mlbench-mlflow", 5000
URI = f"http://{NAME}:{PORT}"


def objects(config: Config) -> list[Object]:
    """Return an MLflow server with a volume, which pods of this namespace reach and nobody else."""
    labels = {"app.kubernetes.io/name": NAME}
    container: Object = {
        "name": "mlflow",
        "image": config.image,
        "command": ["mlflow", "server", "--host", "0.0.0.0", "--port", str(PORT), "--workers", "1"],
        "args": [
            "--backend-store-uri",
            "sqlite:////mlflow/mlflow.db",
            "--artifacts-destination",
            "/mlflow/artifacts",
            "--allowed-hosts",
            f"{NAME}:{PORT},localhost:*,127.0.0.1:*",
        ],
        "env": [{"name": "HOME", "value": pods.SCRATCH}],
        "ports": [{"name": "http", "containerPort": PORT}],
        "readinessProbe": {"tcpSocket": {"port": "http"}, "periodSeconds": 5},
        "resources": pods.exactly({"cpu": "500m", "memory": "2Gi"}),
        "securityContext": pods.restricted(),
        "volumeMounts": [
            {"name": "scratch", "mountPath": pods.SCRATCH},
            {"name": "store", "mountPath": "/mlflow"},
        ],
    }
    template = pods.pod(config, labels, container | {"volumeMounts": []}, node_labels=config.head_node_labels)
    template["spec"]["containers"] = [container]
    template["spec"]["volumes"] = [{"name": "scratch", "emptyDir": {}}, {"name": "store"} | pods.claim(NAME)]
    deployment = {
        "replicas": 1,
        "strategy": {"type": "Recreate"},  # two servers would write to one SQLite file
        "selector": {"matchLabels": labels},
        "template": template,
    }
    policy = {
        "podSelector": {"matchLabels": labels},
        "policyTypes": ["Ingress"],
        "ingress": [
            {
                "from": [{"podSelector": {"matchLabels": pods.MANAGED}}],
                "ports": [{"port": PORT, "protocol": "TCP"}],
            }
        ],
    }
    claim = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "10Gi"}}}
    service = {
        "type": "ClusterIP",
        "selector": labels,
        "ports": [{"name": "http", "port": PORT, "targetPort": "http"}],
    }
    return [
        pods.resource(config, "v1", "PersistentVolumeClaim", NAME, labels=labels, spec=claim),
        pods.resource(config, "apps/v1", "Deployment", NAME, labels=labels, spec=deployment),
        pods.resource(config, "v1", "Service", NAME, labels=labels, spec=service),
        pods.resource(config, "networking.k8s.io/v1", "NetworkPolicy", NAME, labels=labels, spec=policy),
    ]
