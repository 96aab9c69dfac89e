"""Two thousand functions: this checkout's tools as a worker describes them, and invented ones beside them.

The invented ones are what an organisation adds in time: cloud, databases, tickets, mail, houses. They come
from a seeded generator, so that they are the same on every machine.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Any

SEED = 20
HERE = Path(__file__).parent

FAMILIES = """
git: Git repositories: branch commit tag remote stash conflict patch submodule: checkout merge
github: GitHub: repository pull_request issue release workflow gist review webhook: merge close
gitlab: GitLab: project merge_request pipeline runner milestone snippet variable: approve retry
jenkins: the Jenkins build server: job build node artifact credential view: trigger abort
kubernetes: Kubernetes: pod deployment namespace secret configmap ingress node job: scale restart drain
helm: Helm charts: release chart repository value revision: install rollback
docker: Docker: container image volume network registry compose_project: pull run
podman: Podman: pod container image volume secret: pull commit
libvirt: virtual machines of libvirt: domain snapshot storage_pool virtual_network template: migrate resume
proxmox: Proxmox VE: guest backup_job cluster_node template firewall_rule: clone migrate
vmware: VMware vSphere: virtual_machine datastore host cluster resource_pool: clone power
ec2: Amazon EC2: instance security_group key_pair snapshot elastic_ip launch_template: start stop reboot
s3: Amazon S3: bucket object lifecycle_rule multipart_upload bucket_policy: copy restore
rds: Amazon RDS: database_instance parameter_group snapshot read_replica: promote reboot
iam: Amazon IAM: role policy access_key group instance_profile: attach simulate
gcloud: Google Cloud: project compute_instance bucket service_account billing_budget: start stop
azure: Microsoft Azure: resource_group virtual_machine storage_account subscription role: start move
cloudflare: Cloudflare: zone dns_record page_rule tunnel worker_script certificate_pack: purge
terraform: Terraform: plan workspace module state_resource provider_version: apply import
ansible: Ansible: playbook inventory role collection vault_file: run lint
vault: HashiCorp Vault: secret token lease auth_method transit_key: renew revoke seal
postgres: PostgreSQL databases: table query role backup index replication_slot: explain vacuum
mysql: MySQL databases: table user query backup replica binlog: explain optimize
mongodb: MongoDB: collection document index replica_set user: aggregate compact
redis: Redis: key channel cluster_slot client snapshot: expire flush
elasticsearch: Elasticsearch: index document shard alias ingest_pipeline: reindex
kafka: Apache Kafka: topic consumer_group partition connector acl: reset
rabbitmq: RabbitMQ: queue exchange binding vhost shovel: purge
grafana: Grafana: dashboard panel data_source alert_rule annotation: render
prometheus: Prometheus: metric alert target recording_rule silence: query
zabbix: Zabbix: alert host trigger maintenance_window template: acknowledge
sentry: Sentry: issue project release_health event alert_rule: resolve
pagerduty: PagerDuty: incident schedule service escalation_policy override: acknowledge resolve
jira: Jira: ticket sprint board epic comment worklog: assign transition
servicenow: ServiceNow: change_request incident knowledge_article asset approval: assign
confluence: the Confluence wiki: page space attachment comment template: publish
slack: Slack: message channel user reminder emoji usergroup: send archive
teams: Microsoft Teams: team channel_message meeting call tab: send schedule
mail: electronic mail: message mailbox draft filter_rule attachment signature: send forward reply
calendar: calendars: event reminder invitation room_booking availability: accept decline
contacts: the address book: contact contact_group birthday company phone_number: merge export
ldap: the LDAP directory: entry group organizational_unit account schema_class: bind move
keycloak: Keycloak single sign-on: realm user_account client_scope login identity_provider: impersonate
crm: the CRM: customer deal lead campaign contract note: assign convert
invoice: invoices and billing: invoice payment credit_note tax_rate reminder_letter: send cancel
payroll: payroll: employee payslip absence bonus timesheet: approve
shop: the web shop: order product cart voucher shipment return_request: refund ship
warehouse: the warehouse: stock_item pallet location delivery supplier: count move
translate: translation: text glossary language document_job: detect
weather: the weather: forecast observation warning station climate_normal: compare
maps: maps: route place geocode traffic_report distance_matrix: share
news: the news: article headline topic source newsletter: follow
stocks: stock markets: quote portfolio watchlist_entry dividend exchange_rate: buy sell
smarthome: the smart home: light thermostat scene door_lock camera_clip blind: switch dim
music: music: song playlist album radio_station speaker: play pause
video: videos: clip caption thumbnail live_stream transcript: cut upload
image: pictures: picture filter caption album face: resize crop
printer: office printers: print_job tray toner_level scan_profile printer_queue: pause resume
ceph: Ceph storage: osd ceph_pool placement_group rados_image monitor_map: repair rebalance
zfs: ZFS: dataset zpool zfs_snapshot scrub quota_entry: send rollback
restic: Restic backups: backup_snapshot repository_lock retention_rule restore_job: forget prune
"""
"""Name, what it is about, its things, and what it does with them beside the usual."""

VERBS: dict[str, tuple[str, Sequence[str]]] = {
    "list": (
        "s",
        ["List the {things} of {about}.", "Show all {things}, the newest first.", "List {things}."],
    ),
    "get": (
        "",
        ["Show one {thing} with its details.", "Read a {thing} of {about}.", "Get a {thing} by its id."],
    ),
    "create": ("", ["Create a {thing} in {about}.", "Make a new {thing}.", "Add a {thing}; gives its id."]),
    "update": (
        "",
        ["Change fields of a {thing}.", "Update a {thing} of {about}.", "Edit an existing {thing}."],
    ),
    "delete": ("", ["Delete a {thing} for good.", "Remove a {thing} from {about}.", "Delete one {thing}."]),
    "search": (
        "s",
        ["Search {things} by words.", "Find {things} in {about} that match.", "Search the {things}."],
    ),
}
"""The usual: the ending of the thing's name, and how it is said."""
SPECIAL = ["{Verb} a {thing} of {about}.", "{Verb} one {thing}, by its id.", "{Verb} a {thing} now."]


def functions_in(name: str) -> list[tuple[frozenset[str], str]]:
    """The prompts of a file, each with the functions that are right."""
    found = []
    for line in (HERE / name).read_text("utf-8").splitlines():
        if line and not line.startswith("#"):
            right, _, prompt = line.partition(" | ")
            found.append((frozenset(right.split()), prompt))
    return found


def _arguments(verb: str, thing: str, chance: random.Random) -> dict[str, Any]:
    readable = thing.replace("_", " ")
    identified = {f"{thing}_id": {"type": "string", "description": f"The id of the {readable}."}}
    optional = {
        "dry_run": {"type": "boolean", "default": False, "description": "Only say what would be done."},
        "region": {"type": "string", "description": "Where it is; the default is the account's."},
        "labels": {"type": "object", "description": "Labels, as names and values."},
        "reason": {"type": "string", "description": "Why; it is written to the log."},
        "output": {"type": "string", "enum": ["short", "full"], "description": "How much to show."},
        "timeout_s": {"type": "number", "description": "How long to wait at the most."},
    }
    some = {name: optional[name] for name in sorted(chance.sample(sorted(optional), chance.randint(0, 3)))}
    if verb in ("list", "search"):
        words = {"query": {"type": "string", "description": "Words to look for."}} if verb == "search" else {}
        return words | {"limit": {"type": "integer", "description": "How many at the most."}} | some
    if verb in ("create", "update"):
        named = {
            "name": {"type": "string", "description": f"How the {readable} is called."},
            "description": {"type": "string", "description": "What it is for, in a sentence."},
        }
        return (identified if verb == "update" else {}) | named | some
    return identified | some


def _plural(thing: str) -> str:
    if thing.endswith("y") and thing[-2] not in "aeiou":
        return thing[:-1] + "ies"
    return f"{thing}es" if thing.endswith(("ch", "x", "s", "sh")) else f"{thing}s"


def _action(verb: str, thing: str, about: str, chance: random.Random) -> dict[str, Any]:
    ending, said = VERBS.get(verb, ("", SPECIAL))
    readable = thing.replace("_", " ")
    things = _plural(readable)
    name = f"{verb}_{things.replace(' ', '_') if ending else thing}"
    text = chance.choice(said).format(thing=readable, things=things, about=about, Verb=verb.capitalize())
    changes = verb not in ("list", "get", "search", "explain", "detect", "compare", "query", "simulate")
    return {
        "name": name,
        "description": text,
        "effect": "change" if changes else "reach",
        "taints": True,
        "timeout_s": 30.0,
        "schema": {"type": "object", "properties": _arguments(verb, thing, chance)},
    }


def invented(count: int, *, keep: frozenset[str] = frozenset()) -> list[dict[str, Any]]:
    """So many invented functions, as a worker describes tools; those of `keep` among them."""
    chance = random.Random(SEED)
    made: list[tuple[str, str, dict[str, Any]]] = []
    for line in FAMILIES.strip().splitlines():
        name, about, things, special = (part.strip() for part in line.split(":"))
        for thing in things.split():
            verbs = (*VERBS, *special.split())
            made += [(name, about, _action(verb, thing, about, chance)) for verb in verbs]
    needed = [one for one in made if f"{one[0]}_{one[2]['name']}" in keep]
    others = [one for one in made if f"{one[0]}_{one[2]['name']}" not in keep]
    chosen = [*needed, *chance.sample(others, count - len(needed))]
    tools: dict[str, dict[str, Any]] = {}
    for name, about, action in sorted(chosen, key=lambda one: (one[0], one[2]["name"])):
        tool = {
            "name": name,
            "description": f"Works with {about}.",
            "path": f"{name}.py",
            "problem": "",
            "actions": [],
        }
        tools.setdefault(name, tool)["actions"].append(action)
    return list(tools.values())


def many(described: list[dict[str, Any]], total: int) -> list[dict[str, Any]]:
    """What was described, and invented tools beside it, so that there are `total` functions."""
    real = sum(len(tool["actions"]) for tool in described)
    keep = frozenset().union(
        *(right for name in ("prompts.txt", "held_out.txt") for right, _ in functions_in(name))
    )
    return [*described, *invented(total - real, keep=keep)]
