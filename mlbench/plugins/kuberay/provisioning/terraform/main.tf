# A cluster of mlbench on AWS. `python -m mlbench.cluster up aws` writes terraform.tfvars.json beside a copy
# of this file; everything carries the tags by which it is found and deleted.

terraform {
  required_version = ">= 1.5"
  required_providers {
    aws = {
      source  = "hashicorp/aws"
      version = "5.100.0"
    }
  }
}

variable "name" { type = string }
variable "region" { type = string }
variable "tags" { type = map(string) }
variable "allow" { type = string } # CIDR from which the cluster's API can be reached
variable "head_type" { type = string }
variable "worker_type" { type = string }
variable "workers" { type = number }
variable "capacity_type" { type = string } # of the workers
variable "reservation" { type = string }   # null: none
variable "local_ssd" { type = bool }       # whether what pods write goes to the workers' NVMe disks
variable "worker_taint" { type = object({ key = string, value = string }) }
variable "worker_labels" { type = map(string) }
variable "image" { type = string } # EKS's name of the nodes' image
variable "disk_gb" { type = number }
variable "expires" { type = string } # RFC 3339

provider "aws" {
  region = var.region
  default_tags { tags = var.tags }
}

data "aws_availability_zones" "up" {
  state            = "available"
  exclude_zone_ids = ["use1-az3", "usw1-az2", "cac1-az3"] # EKS takes no subnet there (its guide)
  filter {
    name   = "opt-in-status"
    values = ["opt-in-not-required"] # no Local Zone
  }
}

data "aws_ec2_instance_type_offerings" "workers" {
  location_type = "availability-zone"
  filter {
    name   = "instance-type"
    values = [var.worker_type]
  }
}

locals {
  up     = data.aws_availability_zones.up.names
  first  = sort(setintersection(local.up, data.aws_ec2_instance_type_offerings.workers.locations))[0]
  zones  = [local.first, sort(setsubtract(local.up, [local.first]))[0]] # EKS asks for two; nodes are in the first
  groups = toset(["system", "workers"])
  policies = {
    AmazonEKSClusterPolicy             = "eks"
    AmazonEKSWorkerNodePolicy          = "ec2"
    AmazonEKS_CNI_Policy               = "ec2"
    AmazonEC2ContainerRegistryReadOnly = "ec2"

    "service-role/AmazonEBSCSIDriverPolicy" = "pods.eks"
  }
}

# --- network: nodes in private subnets; one NAT gateway lets them fetch images

resource "aws_vpc" "this" {
  cidr_block           = "10.64.0.0/16"
  enable_dns_hostnames = true
  tags                 = { Name = var.name }
}

resource "aws_subnet" "private" {
  count             = 2
  vpc_id            = aws_vpc.this.id
  availability_zone = local.zones[count.index]
  cidr_block        = cidrsubnet(aws_vpc.this.cidr_block, 4, count.index)
  tags              = { Name = "${var.name}-private-${count.index}" }
}

resource "aws_subnet" "nat" {
  vpc_id            = aws_vpc.this.id
  availability_zone = local.zones[0]
  cidr_block        = cidrsubnet(aws_vpc.this.cidr_block, 8, 255)
  tags              = { Name = "${var.name}-nat" }
}

resource "aws_internet_gateway" "this" {
  vpc_id = aws_vpc.this.id
  tags   = { Name = var.name }
}

resource "aws_eip" "nat" {
  domain     = "vpc"
  tags       = { Name = var.name }
  depends_on = [aws_internet_gateway.this]
}

resource "aws_nat_gateway" "this" {
  allocation_id = aws_eip.nat.id
  subnet_id     = aws_subnet.nat.id
  tags          = { Name = var.name }
}

resource "aws_route_table" "this" {
  for_each = { nat = aws_internet_gateway.this.id, private = aws_nat_gateway.this.id }
  vpc_id   = aws_vpc.this.id
  tags     = { Name = "${var.name}-${each.key}" }

  route {
    cidr_block     = "0.0.0.0/0" # outwards; nothing comes in by a route
    gateway_id     = each.key == "nat" ? each.value : null
    nat_gateway_id = each.key == "private" ? each.value : null
  }
}

# Data and images from S3 come without the NAT gateway, whose GB cost.
resource "aws_vpc_endpoint" "s3" {
  vpc_id            = aws_vpc.this.id
  service_name      = "com.amazonaws.${var.region}.s3"
  vpc_endpoint_type = "Gateway"
  route_table_ids   = [aws_route_table.this["private"].id]
  tags              = { Name = "${var.name}-s3" }
}

resource "aws_route_table_association" "nat" {
  subnet_id      = aws_subnet.nat.id
  route_table_id = aws_route_table.this["nat"].id
}

resource "aws_route_table_association" "private" {
  count          = 2
  subnet_id      = aws_subnet.private[count.index].id
  route_table_id = aws_route_table.this["private"].id
}

# --- roles: what EKS and its nodes need, and nothing else

resource "aws_iam_role" "this" {
  for_each = toset(["eks", "ec2", "pods.eks"])
  name     = "${var.name}-${replace(each.key, ".", "-")}"
  path     = "/mlbench/${var.tags["mlbench-id"]}/"
  assume_role_policy = jsonencode({
    Version = "2012-10-17"
    Statement = [{
      Action    = each.key == "pods.eks" ? ["sts:AssumeRole", "sts:TagSession"] : ["sts:AssumeRole"]
      Effect    = "Allow"
      Principal = { Service = "${each.key}.amazonaws.com" }
    }]
  })
}

resource "aws_iam_role_policy_attachment" "this" {
  for_each   = local.policies
  role       = aws_iam_role.this[each.value].name
  policy_arn = "arn:aws:iam::aws:policy/${each.key}"
}

# --- cluster

resource "aws_eks_cluster" "this" {
  name     = var.name
  role_arn = aws_iam_role.this["eks"].arn

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  vpc_config {
    subnet_ids              = aws_subnet.private[*].id
    endpoint_private_access = true
    endpoint_public_access  = true
    public_access_cidrs     = [var.allow]
  }

  depends_on = [aws_iam_role_policy_attachment.this]
}

# Kubernetes ignores network policies unless the network plugin is told to keep them.
resource "aws_eks_addon" "network" {
  cluster_name         = aws_eks_cluster.this.name
  addon_name           = "vpc-cni"
  configuration_values = jsonencode({ enableNetworkPolicy = "true" })

  # The cluster begins with one of its own, which the add-on takes over.
  resolve_conflicts_on_create = "OVERWRITE"
}

# A node group's own tags reach neither instances nor volumes (aws/containers-roadmap, issue 1657).
resource "aws_launch_template" "this" {
  for_each = local.groups
  name     = "${var.name}-${each.key}"

  block_device_mappings {
    device_name = "/dev/xvda"
    ebs {
      volume_size = var.disk_gb
      volume_type = "gp3"
    }
  }

  dynamic "tag_specifications" {
    for_each = ["instance", "volume"]
    content {
      resource_type = tag_specifications.value
      tags          = var.tags
    }
  }

  dynamic "instance_market_options" {
    for_each = each.key == "workers" && var.capacity_type == "CAPACITY_BLOCK" ? [1] : []
    content { market_type = "capacity-block" }
  }

  dynamic "capacity_reservation_specification" {
    for_each = each.key == "workers" && var.reservation != null ? [1] : []
    content {
      capacity_reservation_target { capacity_reservation_id = var.reservation }
    }
  }

  # awslabs/amazon-eks-ami, nodeadm: a RAID 0 of the instance's disks takes the kubelet's and containerd's files
  user_data = each.key == "workers" && var.local_ssd ? base64encode(<<-EOT
    MIME-Version: 1.0
    Content-Type: multipart/mixed; boundary="mlbench"

    --mlbench
    Content-Type: application/node.eks.aws

    ---
    apiVersion: node.eks.aws/v1alpha1
    kind: NodeConfig
    spec:
      instance:
        localStorage:
          strategy: RAID0

    --mlbench--
  EOT
  ) : null
}

resource "aws_eks_node_group" "this" {
  for_each        = local.groups
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = each.key
  node_role_arn   = aws_iam_role.this["ec2"].arn
  subnet_ids      = [aws_subnet.private[0].id] # one zone: workers talk to each other
  capacity_type   = each.key == "workers" ? var.capacity_type : "ON_DEMAND"
  instance_types  = [each.key == "workers" ? var.worker_type : var.head_type]
  ami_type        = each.key == "workers" ? var.image : "AL2023_x86_64_STANDARD"

  launch_template {
    id      = aws_launch_template.this[each.key].id
    version = aws_launch_template.this[each.key].latest_version
  }

  labels = merge(
    { "mlbench/role" = each.key == "workers" ? "worker" : "system" },
    each.key == "workers" ? var.worker_labels : {},
  )

  scaling_config {
    min_size     = 0
    desired_size = each.key == "workers" ? var.workers : 1
    max_size     = each.key == "workers" ? var.workers : 1
  }

  dynamic "taint" {
    for_each = each.key == "workers" ? [var.worker_taint] : []
    content {
      key    = taint.value.key
      value  = taint.value.value
      effect = "NO_SCHEDULE"
    }
  }

  depends_on = [
    aws_iam_role_policy_attachment.this, aws_route_table_association.private, aws_eks_addon.network,
  ]
}

# Volumes of claims: the driver acts with a role of its own, which the agent hands to its pod.
resource "aws_eks_addon" "volumes" {
  for_each     = toset(["eks-pod-identity-agent", "aws-ebs-csi-driver"])
  cluster_name = aws_eks_cluster.this.name
  addon_name   = each.key

  resolve_conflicts_on_create = "OVERWRITE"

  dynamic "pod_identity_association" {
    for_each = each.key == "aws-ebs-csi-driver" ? [1] : []
    content {
      role_arn        = aws_iam_role.this["pods.eks"].arn
      service_account = "ebs-csi-controller-sa"
    }
  }

  depends_on = [aws_eks_node_group.this, aws_iam_role_policy_attachment.this]
}

# AWS itself takes all nodes away when the cluster expires, whatever has become of the machine that made it.
resource "aws_autoscaling_schedule" "expiry" {
  for_each               = local.groups
  scheduled_action_name  = "mlbench-expires-${each.key}"
  autoscaling_group_name = aws_eks_node_group.this[each.key].resources[0].autoscaling_groups[0].name
  start_time             = var.expires
  min_size               = 0
  max_size               = 0
  desired_capacity       = 0
}
