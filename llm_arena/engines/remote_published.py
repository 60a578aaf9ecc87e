"""Which policies were published to servers, and in which versions; what an id means; our copies of their files."""

from __future__ import annotations

import itertools
import os
import secrets
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from llm_arena.errors import EngineError, UnknownName, did_you_mean
from llm_arena.threads import in_thread

KEPT_VERSIONS = 8
"""So many versions of an adapter stay loaded, the newest, beside those that were asked for by `NAME@VERSION`."""


@dataclass(eq=False)
class Version:
    """One version of a policy as the servers know it."""

    name: str
    version: int
    folder: Path
    "Our copy, which stays as long as the name is served: vLLM may read it again at any time."
    users: int = 0
    "Requests that sample from it now."


@dataclass
class Published:
    """What is published, the same to all servers."""

    full: Version | None = None
    owner: str = ""
    "Policy that `full` belongs to."
    adapters: dict[str, dict[int, Version]] = field(default_factory=dict)
    aliases: dict[str, int] = field(default_factory=dict)
    "Policies that the base itself serves -> version."
    asked: set[tuple[str, int]] = field(default_factory=set)
    "Versions of adapters that somebody asked for by number."

    def policies(self) -> list[str]:
        """Returns the ids of all policies."""
        return sorted({*self.adapters, *self.aliases, *([self.owner] if self.owner else [])})

    def find(self, policy: str) -> Version | int:
        """Returns the version that an id means, or the number of the version that the base itself is.

        Raises:
            UnknownName: nothing was published under this id, or the version is not loaded any more.
        """
        if versions := self.adapters.get(policy):
            return versions[max(versions)]
        if self.full is not None and policy == self.owner:
            return self.full
        if policy in self.aliases:
            return self.aliases[policy]
        name, at, wanted = policy.rpartition("@")
        if not (at and name in self.adapters and wanted.isdecimal()):
            raise UnknownName(f"no policy {policy!r} was published.{did_you_mean(policy, self.policies())}")
        found = self.adapters[name].get(int(wanted))
        if found is None:
            kept = ", ".join(map(str, sorted(self.adapters[name])))
            raise UnknownName(f"version {wanted} of policy {name!r} is not loaded any more; there are: {kept}")
        self.asked.add((name, int(wanted)))
        return found

    def take_old(self, policy: str) -> list[Version]:
        """Takes out, and returns, the versions of an adapter that need not stay loaded."""
        versions = self.adapters[policy]
        old = [number for number in sorted(versions)[:-KEPT_VERSIONS] if (policy, number) not in self.asked]
        return [versions.pop(number) for number in old]

    def take_all(self, policy: str) -> list[Version]:
        """Takes out, and returns, all versions of an adapter."""
        gone = self.adapters.pop(policy)
        self.asked -= {(policy, version) for version in gone}
        return list(gone.values())


class Copies:
    """Our copies of what is published, each with a name that nothing else has."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._numbers = itertools.count(1)
        self._nonce = secrets.token_hex(4)

    def ours(self, name: object) -> bool:
        """Whether a name is one of ours."""
        return str(name).rpartition("-")[2].startswith(self._nonce)

    async def make(self, policy: str, directory: Path, version: int) -> Version:
        """Gives a folder's files a second name beside it, where the server sees them if it sees the folder.

        Raises:
            EngineError: they can't be copied.
        """
        number = next(self._numbers)
        if self._folder is None:
            try:
                self._folder = Path(tempfile.mkdtemp(prefix=".served-", dir=directory.resolve().parent))
            except OSError:  # a folder that may only be read
                self._folder = Path(tempfile.mkdtemp(prefix="llm-arena-served-"))
        target = self._folder / str(number)
        try:
            await in_thread(shutil.copytree, directory, target, copy_function=_link)[0]
        except (OSError, shutil.Error) as error:
            raise EngineError(f"{directory} can't be copied to {target}: {error}") from error
        return Version(f"{policy}@{version}-{self._nonce}{number:x}", version, target)

    def remove(self, version: Version) -> None:
        """Removes one."""
        shutil.rmtree(version.folder, ignore_errors=True)

    def close(self) -> None:
        """Removes all of them."""
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target)
    except OSError:  # another disk, or one without second names
        shutil.copy2(source, target)
