"""How a launch plan looks: the text that would run, files, or JSON."""

from __future__ import annotations

import logging
import sys
from collections.abc import Sequence
from dataclasses import asdict

from trtbuild.cli.launch_options import LaunchOptions
from trtbuild.console import print_json, print_text
from trtbuild.serve.launch.obstacles import Obstacle
from trtbuild.serve.launch.plan import LaunchPlan
from trtbuild.serve.launch.ways import Extras, Way, write

log = logging.getLogger(__name__)


def present(plan: LaunchPlan, way: Way, launch: LaunchOptions, obstacles: Sequence[Obstacle], *, as_json: bool) -> None:
    """Print what would run, or write it and say what to do with it, and what would make it fail."""
    files = way.files(plan, Extras(launch.kubectl_image))
    how = way.how.replace("NAME", plan.name)
    for note in plan.notes:
        log.warning("note: %s", note)
    for each in obstacles:
        log.warning("note: it would not start: %s; %s", each.message, each.hint)
    written = write(files, launch.output, force=launch.force) if launch.output and not launch.dry_run else []
    if as_json:
        print_json({"with": way.place.name, "plan": {**asdict(plan), "health": plan.health}, "obstacles": [asdict(each) for each in obstacles], "files": dict(files), "written": list(map(str, written)), "how": how})  # fmt: skip
    elif written:
        for path in written:
            print_text(str(path))
        log.info("then: %s", how)
    else:
        for text in files.values():
            sys.stdout.write(text)
