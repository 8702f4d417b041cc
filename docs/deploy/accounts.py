"""Makes the experiment, roles and accounts that a team's MLflow server lacks.

    ACCOUNTS="ada PASSWORD promote
    eve PASSWORD read" python docs/deploy/accounts.py

`compose.yaml` runs it at each start; MLflow's variables sign in the administrator. Each line of
ACCOUNTS has a name, the first password, and what the account may do: `read`, `train` (write to the
experiment) or `promote` (train, and write to everybody's registered models). MLflow lets each
account make new experiments and models of its own. A second start changes nothing: passwords stay
as they are, and so do accounts that are not listed.
"""

import os
import sys
from typing import TYPE_CHECKING, NamedTuple

from mlflow.exceptions import MlflowException

from clew import names
from clew.errors import ClewError, ConfigError
from clew.runs import store
from clew.runs.mlflow_store import find_experiment

if TYPE_CHECKING:
    from mlflow.server.auth.client import AuthServiceClient

WORKSPACE = "default"
TRAIN, PROMOTE = "clew-train", "clew-promote"
ROLES = {"read": (), "train": (TRAIN,), "promote": (TRAIN, PROMOTE)}


class Account(NamedTuple):
    """A line of ACCOUNTS."""

    name: str
    password: str
    roles: tuple[str, ...]


def listed(text: str) -> list[Account]:
    """Return the accounts of the lines of a text."""
    accounts = []
    for number, line in enumerate(text.splitlines(), 1):
        match line.split():
            case []:
                continue
            case [name, password, may] if may in ROLES:
                accounts.append(Account(name, password, ROLES[may]))
            case _:
                raise ConfigError(
                    f"line {number} of ACCOUNTS: expected a name, a password and one of "
                    f"{', '.join(ROLES)}, with spaces between"
                )
    return accounts


def make(accounts: list[Account]) -> None:
    """Make what is missing in the store in use."""
    from mlflow.server import get_app_client

    uri = store.tracking_uri()
    client = store.connect(uri)
    with store.using("making the accounts"):
        experiment = find_experiment(client, names.EXPERIMENT).experiment_id
        server = get_app_client("basic-auth", tracking_uri=uri)
        numbers = {
            TRAIN: role(server, TRAIN, "experiment", experiment, "EDIT"),
            # A promotion removes an alias, which EDIT does not allow.
            PROMOTE: role(server, PROMOTE, "registered_model", "*", "MANAGE"),
        }
        for account in accounts:
            try:
                server.create_user(account.name, account.password)
            except MlflowException as error:
                if error.error_code != "RESOURCE_ALREADY_EXISTS":
                    raise
            has = {found.id for found in server.list_user_roles(account.name)}
            for name, number in numbers.items():
                if name in account.roles and number not in has:
                    server.assign_role(account.name, number)
                elif name not in account.roles and number in has:
                    server.unassign_role(account.name, number)


def role(server: "AuthServiceClient", name: str, kind: str, which: str, permission: str) -> int:
    """Return the id of a role; it has a permission for one thing of a kind, or for all: `*`."""
    found = {each.name: each.id for each in server.list_roles(WORKSPACE)}
    number = found[name] if name in found else server.create_role(WORKSPACE, name).id
    grants = server.list_role_permissions(number)
    if (kind, which) not in {(grant.resource_type, grant.resource_pattern) for grant in grants}:
        server.add_role_permission(number, kind, which, permission)
    return int(number)


if __name__ == "__main__":
    try:
        if "ACCOUNTS" not in os.environ:
            raise ConfigError("ACCOUNTS is not set; give a line for each account, as in .env")
        make(listed(os.environ["ACCOUNTS"]))
    except ClewError as problem:
        sys.exit(f"clew: error: {problem}")
