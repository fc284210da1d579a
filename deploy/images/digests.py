#!/usr/bin/env python3
"""The digests of third-party images, beside their tags: a tag can move, a digest cannot.

    digests.py          gets each digest from the registry (docker buildx imagetools inspect) and writes it: make digests
    digests.py check    refuses an image that has no digest and is not in without-digest: part of make manifests
"""

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXCEPTIONS = Path(__file__).with_name("without-digest")
REFERENCE = r"(?P<image>[a-z0-9./-]+:[\w][\w.-]*)(?P<digest>@sha256:[0-9a-f]{64})?"
# The files that name an image, with the pattern of its reference. The NATS chart itself sets the repository, `nats`.
PLACES = {
    "docker-compose.yml": [r"_IMAGE:-" + REFERENCE + r"\}"],
    "deploy/Dockerfile": [r"^ARG \w+_IMAGE=" + REFERENCE + "$"],
    "deploy/images/make.sh": [r"_IMAGE:-" + REFERENCE + r"\}"],
    "deploy/k8s/postgres/cluster.yaml": [r"imageName: " + REFERENCE + "$"],
    "deploy/k8s/nats/values.yaml": [r"^    tag: (?P<tag>[\w.-]+)(?P<digest>@sha256:[0-9a-f]{64})?$"],
    "tests/containers/src/system.rs": [r'named\("\w+_IMAGE", "' + REFERENCE + r'"\)'],
}


def image_of(match):
    groups = match.groupdict()
    return groups.get("image") or f"nats:{groups['tag']}"


def found():
    """Every third-party image: its file, its name and its digest."""
    for place, patterns in PLACES.items():
        text = (ROOT / place).read_text()
        matches = [match for pattern in patterns for match in re.finditer(pattern, text, re.MULTILINE)]
        if not matches:
            yield place, None, None
        for match in matches:
            if not image_of(match).startswith("signalbox:"):
                yield place, image_of(match), match["digest"]


def exceptions():
    lines = [line.split(maxsplit=1) for line in EXCEPTIONS.read_text().splitlines() if line and not line.startswith("#")]
    return {image: (why[0] if why else "") for image, *why in lines}


def check():
    faults, digests, excepted = [], {}, exceptions()
    for place, image, digest in found():
        if image is None:
            faults.append(f"{place}: no image is named there any more; mend deploy/images/digests.py")
            continue
        digests.setdefault(image, set()).add(digest)
        if digest is None and image not in excepted:
            faults.append(f"{place}: image {image} has no digest: run make digests, or say in deploy/images/without-digest why")
    for image, named in sorted(digests.items()):
        if len(named) > 1:
            faults.append(f"image {image} has several digests, or one here and none there: run make digests")
    for image, why in excepted.items():
        if None not in digests.get(image, set()):
            faults.append(f"deploy/images/without-digest: {image} is named nowhere without a digest")
        if not why:
            faults.append(f"deploy/images/without-digest: {image} has no reason")
    return faults


def ask(image):
    """The digest of the image's index, for all architectures; none if the registry cannot be reached."""
    command = ["docker", "buildx", "imagetools", "inspect", "--format", "{{.Manifest.Digest}}", image]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, str(error)
    digest = asked.stdout.strip()
    if asked.returncode == 0 and re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
        return digest, ""
    lines = (asked.stderr or asked.stdout).strip().splitlines()
    return None, lines[0] if lines else "no answer"


def write(image, digest):
    name, tag = image.rsplit(":", 1)
    for place in PLACES:
        path = ROOT / place
        text = path.read_text()
        new = re.sub(re.escape(image) + r"(@sha256:[0-9a-f]{64})?(?![\w.-])", f"{image}@{digest}", text)
        if place.endswith("values.yaml") and name == "nats":
            new = re.sub(rf"^(    tag: {re.escape(tag)})(@sha256:[0-9a-f]{{64}})?$", rf"\1@{digest}", new, flags=re.MULTILINE)
        if new != text:
            path.write_text(new)
    lines = EXCEPTIONS.read_text().splitlines(keepends=True)
    EXCEPTIONS.write_text("".join(line for line in lines if line.split(maxsplit=1)[:1] != [image]))


def main():
    if sys.argv[1:] == ["check"]:
        faults = check()
        for line in faults:
            print(f"digests: {line}", file=sys.stderr)
        return 1 if faults else 0
    unknown = 0
    for image in sorted({image for _, image, _ in found() if image}):
        digest, why = ask(image)
        if digest is None:
            unknown += 1
            print(f"digests: {image}: left as it is, the registry was not asked: {why}", file=sys.stderr)
        else:
            write(image, digest)
            print(f"digests: {image} is {digest}")
    return 1 if unknown else 0


if __name__ == "__main__":
    sys.exit(main())
