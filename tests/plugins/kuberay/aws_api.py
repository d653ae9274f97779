"""An AWS over HTTP for the real Terraform and the real aws command: moto, and EKS's add-ons beside it."""

import io
import json
import os
import re
import threading
from collections.abc import Callable, Iterable
from typing import Any

import boto3
from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
from werkzeug.wrappers import Request, Response

# Add-ons that a cluster begins with (aws/amazon-network-policy-controller-k8s issue 200)
SELF_MANAGED = ("vpc-cni", "kube-proxy", "coredns")
ADDON = re.compile(r"/clusters/([^/]+)/addons(?:/([^/]+))?$")


class Aws:
    """The server on loopback. `on_request` is called after a request with its action, or method and path."""

    def __init__(self) -> None:
        os.environ["MOTO_IAM_LOAD_MANAGED_POLICIES"] = "true"
        self.addons: dict[tuple[str, str], dict[str, Any]] = {}
        self.on_request: Callable[[str], None] = lambda action: None
        self.moto = DomainDispatcherApplication(create_backend_app)
        self.server = make_server("127.0.0.1", 0, self.application, threaded=True)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.client("sts")  # the first call makes moto load itself

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()

    def environment(self) -> dict[str, str]:
        """Return the variables that make Terraform and aws talk to this server."""
        return {
            "AWS_ENDPOINT_URL": self.url,
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_EC2_METADATA_DISABLED": "true",
        }

    def client(self, service: str) -> Any:
        return boto3.client(
            service, region_name="us-east-1", endpoint_url=self.url,
            aws_access_key_id="none", aws_secret_access_key="none",
        )  # fmt: skip

    def claim(self, parameters: dict[str, str]) -> str:
        """Make the volume of a claim as the EBS driver does, mounted until a node group is deleted; its id.

        `parameters` are those of the claim's StorageClass (aws-ebs-csi-driver, docs/tagging.md).
        """
        ec2 = self.client("ec2")
        pairs = [value.split("=", 1) for name, value in parameters.items() if "tagSpecification_" in name]
        tags = [{"Key": key, "Value": value} for key, value in [("CSIVolumeName", "pvc-1"), *pairs]]
        specification = [{"ResourceType": "volume", "Tags": tags}]
        volume = ec2.create_volume(AvailabilityZone="us-east-1a", Size=8, TagSpecifications=specification)
        image = ec2.describe_images()["Images"][0]["ImageId"]
        (node,) = ec2.run_instances(
            ImageId=image, MinCount=1, MaxCount=1, Placement={"AvailabilityZone": "us-east-1a"}
        )["Instances"]
        mounted = [{"VolumeId": volume["VolumeId"], "InstanceId": node["InstanceId"]}]
        ec2.attach_volume(Device="/dev/sdf", **mounted[0])

        def release(done: str) -> None:
            if done.startswith("DELETE ") and "/node-groups/" in done and mounted:
                place = mounted.pop()
                ec2.detach_volume(**place)
                ec2.terminate_instances(InstanceIds=[place["InstanceId"]])

        self.on_request = release
        return volume["VolumeId"]

    def left(self) -> list[str]:
        """Return what exists of a cluster's kinds, whatever its tags, apart from what every account has."""
        ec2, eks, iam = self.client("ec2"), self.client("eks"), self.client("iam")
        names = [vpc["VpcId"] for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]]
        names += [
            subnet["SubnetId"] for subnet in ec2.describe_subnets()["Subnets"] if not subnet["DefaultForAz"]
        ]
        names += [
            gateway["NatGatewayId"]
            for gateway in ec2.describe_nat_gateways()["NatGateways"]
            if gateway["State"] != "deleted"
        ]
        names += [address["AllocationId"] for address in ec2.describe_addresses()["Addresses"]]
        names += [
            gateway["InternetGatewayId"] for gateway in ec2.describe_internet_gateways()["InternetGateways"]
        ]
        names += [volume["VolumeId"] for volume in ec2.describe_volumes()["Volumes"]]
        names += eks.list_clusters()["clusters"]
        names += [role["RoleName"] for role in iam.list_roles()["Roles"]]
        groups = self.client("autoscaling").describe_scheduled_actions()["ScheduledUpdateGroupActions"]
        return (
            names + [action["ScheduledActionName"] for action in groups] + [name for _, name in self.addons]
        )

    def application(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        request = Request(environ)
        if match := ADDON.search(request.path):
            return self.addon(request, *match.groups())(environ, start_response)
        body = request.get_data()
        environ |= {"wsgi.input": io.BytesIO(body), "CONTENT_LENGTH": str(len(body))}  # moto reads it, too
        action = re.search(rb"Action=(\w+)", body)
        answer = list(self.moto(environ, start_response))
        self.on_request(action[1].decode() if action else f"{request.method} {request.path}")
        return answer

    def addon(self, request: Request, cluster: str, name: str | None) -> Response:
        if request.method == "POST":
            values = request.get_json()
            name = values["addonName"]
            if name in SELF_MANAGED and values.get("resolveConflicts") != "OVERWRITE":
                headers = {"X-Amzn-ErrorType": "InvalidParameterException"}
                text = (
                    "Conflicts found when trying to apply. Will not continue due to resolve conflicts mode."
                )
                return Response(json.dumps({"message": text}), status=400, headers=headers)
            values.pop("podIdentityAssociations", None)  # answered as ARNs of resources that moto lacks
            self.addons[cluster, str(name)] = {**values, "clusterName": cluster, "status": "ACTIVE"}
        addon = self.addons.get((cluster, str(name)))
        if addon is None:
            headers = {"X-Amzn-ErrorType": "ResourceNotFoundException"}
            return Response(json.dumps({"message": "No addon"}), status=404, headers=headers)
        if request.method == "DELETE":
            del self.addons[cluster, str(name)]
        arn = f"arn:aws:eks:us-east-1:123456789012:addon/{cluster}/{name}/0"
        values = {"addon": {**addon, "addonArn": arn, "addonVersion": "v1"}}
        return Response(json.dumps(values), mimetype="application/json")
