"""An export on the Hugging Face hub. No torch here: refusals come before a model is read."""

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

LICENSE = re.compile(r"[a-z0-9][a-z0-9.-]*")


def check_license(license: str) -> None:
    """Raise ValueError where it is no identifier as the hub has them."""
    if not LICENSE.fullmatch(license):
        raise ValueError(
            f"--license {license!a}: it is not as the hub writes licenses; give one such as "
            "apache-2.0, mit, cc-by-nc-4.0, other"
        )


def whole_name(repo: str) -> str:
    """USER/NAME of a repository that `--push` names, where the token may write.

    Raises:
        ValueError: it is no name; or there is no network or token; or the token may not write.
    """
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HFValidationError
    from huggingface_hub.utils import validate_repo_id

    try:
        validate_repo_id(repo)
    except HFValidationError as error:
        raise ValueError(f"--push {repo}: it is no name on the hub: {error}") from None
    with _explained(repo):
        who = HfApi().whoami()
    owner, _, name = repo.rpartition("/")
    owner = owner or who["name"]
    allowed = [who["name"], *(org["name"] for org in who.get("orgs", []))]
    if owner not in allowed:
        raise ValueError(f"--push {repo}: the token is of {' and '.join(allowed)}, not of {owner}")
    role = who.get("auth", {}).get("accessToken", {}).get("role")
    if role == "read":
        raise ValueError(f"--push {repo}: the token may only read; make one that may write")
    return f"{owner}/{name}"


def push(repo: str, folder: Path, files: tuple[str, ...], message: str) -> str:
    """Make the repository, public where it is not there, and upload the files of a folder as one
    commit; files of these names that the folder has not are removed there. Returns its address.

    Raises:
        ValueError: the hub refused it, or cannot be reached.
    """
    from huggingface_hub import HfApi

    hub = HfApi()
    with _explained(
        repo, f"; the export is at {folder}: `hf upload {repo} {folder} .` tries again"
    ):
        made = hub.create_repo(repo, exist_ok=True)
        hub.upload_folder(
            repo_id=repo,
            folder_path=folder,
            allow_patterns=list(files),
            delete_patterns=list(files),
            commit_message=message,
        )
    return str(made)


@contextmanager
def _explained(repo: str, after: str = "") -> Generator[None]:
    """What the hub's library raises, as one line."""
    from huggingface_hub import constants
    from huggingface_hub.errors import HfHubHTTPError, LocalTokenNotFoundError, OfflineModeIsEnabled

    try:
        yield
    except LocalTokenNotFoundError:
        reason = "there is no token; `hf auth login` keeps one, or set HF_TOKEN"
    except OfflineModeIsEnabled:
        reason = "HF_HUB_OFFLINE is set; unset it, or leave --push out"
    except HfHubHTTPError as error:
        if error.response.status_code == 401:
            reason = "the hub does not know the token; `hf auth login` keeps another"
        else:
            said = error.server_message or str(error)
            reason = f"{constants.ENDPOINT} refused it ({' '.join(said.split())})"
    except ValueError as error:  # what the library itself finds wrong, such as a card's header
        reason = " ".join(str(error).split())
    except Exception as error:  # of its HTTP client, which is another from version to version
        said = " ".join(str(error).split()) or type(error).__name__
        reason = f"{constants.ENDPOINT} cannot be reached ({said})"
    else:
        return
    raise ValueError(f"--push {repo}: {reason}{after}")
