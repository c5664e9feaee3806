"""Laws of the storage, for a folder, a file:// URI and an S3 bucket; and its errors."""

from __future__ import annotations

import errno
import os
import pickle
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from bucket import SECRET, Server, served

from harness import errors
from harness import storage as storages
from harness.errors import UserError
from harness.storage import Storage, StorageError, WorkerSetup, checkpoint_of, weights_of

MIB = 2**20


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """No call is retried."""
    monkeypatch.setattr(errors, "WAITS", ())


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with served(tmp_path_factory.mktemp("server")) as running:
        yield running


@pytest.fixture(params=["folder", "file", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path) -> Storage:
    """Not there yet: a folder is made with the first file."""
    if request.param == "s3":
        return Storage.named(request.getfixturevalue("server").uri(f"of/{request.node.name.partition('[')[0]}"))
    place = tmp_path / "with a space"
    return Storage.named(place.as_uri() if request.param == "file" else str(place))


class TestLaws:
    def test_what_was_written_is_read(self, storage: Storage) -> None:
        names = [weights_of("a"), checkpoint_of("a"), weights_of("b"), "encoders/digest/config.json"]
        contents = {name: name.encode() * 3 for name in names} | {"empty": b""}
        assert storage.sizes() == {}
        for name, content in contents.items():
            assert not storage.exists(name)
            storage.write(name, content)
        for name, content in contents.items():
            assert storage.exists(name)
            assert storage.read(name) == content
        storage.write("empty", b"no more")
        assert storage.read("empty") == b"no more"
        top = {name: len(content) for name, content in contents.items() if "/" not in name}
        assert storage.sizes() == top | {"empty": len(b"no more")}
        again = pickle.loads(pickle.dumps(storage))
        assert again == storage
        assert again.read("encoders/digest/config.json") == contents["encoders/digest/config.json"]

    def test_what_was_deleted_is_not_there(self, storage: Storage) -> None:
        storage.probe()
        assert storage.sizes() == {}
        for name in ("a", "ab", "b/c"):
            storage.write(name, name.encode())
        storage.delete("a")
        for name in ("a", "b", "b/d", "nowhere/c"):
            assert not storage.exists(name)
        for name in ("a", "b/d", "nowhere/c"):
            storage.delete(name)
            with pytest.raises(FileNotFoundError):
                storage.read(name)
        assert storage.read("ab") == b"ab"
        assert storage.uri in storages._reached, "a file that is missing is an answer"

    def test_two_writers_at_once_write_whole_files(self, storage: Storage) -> None:
        """Readers see one version or the other, and no temporary file is left."""
        storage.write("shared", b"a" * MIB)
        with ThreadPoolExecutor(2) as pool:
            writers = [
                pool.submit(lambda letter=letter: [storage.write("shared", letter * MIB) for _ in range(15)])
                for letter in (b"a", b"b")
            ]
            while not all(each.done() for each in writers):
                content = storage.read("shared")
                assert content in (b"a" * MIB, b"b" * MIB)
        assert [each.exception() for each in writers] == [None, None]
        if storage.folder:
            assert [path.name for path in storage.folder.iterdir()] == ["shared"]


def test_a_relative_path_is_of_the_working_folder(workdir: Path) -> None:
    assert Storage.named("there").uri == str(workdir / "there")
    assert Storage.named("~/there").uri == str(Path.home() / "there")


class TestPlacesThatCannotBeUsed:
    """Each is one sentence that names the place and the fix, and comes soon."""

    def test_a_file_in_the_way(self, tmp_path: Path) -> None:
        (tmp_path / "letter").write_text("no folder")
        storage = Storage(str(tmp_path / "letter"))
        assert not storage.exists("a")
        with pytest.raises(StorageError, match=rf"{tmp_path}/letter could not be written: .* or name another one"):
            storage.probe()

    def test_a_bucket_that_is_not_there(self, server: Server) -> None:
        storage = Storage.named(server.uri("x", bucket="other"))
        for act in (storage.probe, lambda: storage.write("a", bytes(20 * MIB))):
            with pytest.raises(StorageError, match=r"could not be written: .*NO_SUCH_BUCKET.* or name another one"):
                act()

    def test_credentials_that_are_refused(self, server: Server) -> None:
        storage = Storage.named(server.uri("x"))
        with server.refusing():
            for act in (storage.probe, *(lambda a=a: a("a") for a in (storage.exists, storage.read, storage.delete))):
                with pytest.raises(StorageError, match=r"these credentials \(AWS_ACCESS_KEY_ID, ") as error:
                    act()
                assert SECRET not in str(error.value)
        storage.probe()

    @pytest.mark.parametrize(
        ("text", "said"),
        {
            "hdfs://host/folder": "unknown kind of storage 'hdfs'; write a folder, file:///FOLDER, s3://BUCKET/PREFIX or gs://",
            "s3:/me:hush@bucket/x": "Missing bucket name",
            "s3:///x": "Missing bucket name",
            "gs://": "it names no bucket",
            "file://folder": "write a folder, file:///FOLDER",
            "s3://bucket/x?endpoint=a": "'endpoint'",
            "gs://bucket/x?region=a": "'region'",
            "s3://me:hush/hush@bucket/x": "%2F for a '/' of the secret",
            "s3://me:hush": "%2F for a '/' of the secret",
        }.items(),
    )
    def test_what_is_no_storage(self, text: str, said: str) -> None:
        with pytest.raises(UserError, match=rf"^storage .*{said}") as error:
            Storage.named(text)
        assert "hush" not in str(error.value)


class TestRetries:
    """What passes within a minute loses nothing, in a process that reached the storage before."""

    @pytest.fixture(autouse=True)
    def patient(self, impatient: None, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(errors, "WAITS", (0.0, 0.0))

    def test_a_folder_that_fails_for_a_moment(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """As a full disk on which space is made, or an NFS server that is started again."""
        storage, write, failures = Storage(str(tmp_path)), Path.write_bytes, iter([True, True, False, True, True, True])
        storage.write("a", b"a")

        def failing(path: Path, content: bytes) -> int:
            if next(failures):
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            return write(path, content)

        monkeypatch.setattr(Path, "write_bytes", failing)
        storage.write("b", b"b")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b"]
        with pytest.raises(StorageError, match=os.strerror(errno.ENOSPC)):
            storage.write("c", b"c")

    def test_credentials_that_expire_are_read_again(
        self, server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """As a service of a cloud renews them in the file: the old ones are refused from one moment to the next."""
        first, second = server.access_keys(2)
        file = tmp_path / "credentials"
        monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(file))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
            monkeypatch.delenv(name, raising=False)
        storage = Storage(f"s3://weights/expire?endpoint_override={server.address}&scheme=http")
        file.write_text(first.profile)
        with server.refusing():  # all but keys of its own
            storage.write("a", b"a")
        server.delete(first)
        with server.refusing():
            monkeypatch.setattr(errors.time, "sleep", lambda _: file.write_text(second.profile))
            storage.write("b", b"b")
            assert storage.read("a") + storage.read("b") == b"ab"


def test_no_password_is_shown() -> None:
    storage = Storage("s3://me:hush@bucket/x?secret_key=hush")
    for text in (repr(storage), str(storage), repr(WorkerSetup({}, storage))):
        assert "s3://***@bucket/x?secret_key=***" in text
