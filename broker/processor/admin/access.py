"""Administration of access control: accounts (50, 51), versions (52), white lists (53), all (54).

A change is written to the file that has the account, and counts when the answer is sent; the last
admin stays one. What is wrong is answered with the code's own failure, 209, 210 or 211. No answer
has a secret in it.

Unlike RocketMQ: 51 of an unknown account says so, 53 takes the files of access control alone, and
without access control each code is refused, where RocketMQ leaves 52 without an answer.
Source: apache/rocketmq@rocketmq-all-4.9.8 broker/.../processor/AdminBrokerProcessor.java
(updateAndCreateAccessConfig, deleteAccessConfig, updateGlobalWhiteAddrsConfig,
getBrokerAclConfigVersion), acl/.../plain/PlainPermissionManager.java
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from skylarkmq.broker.access.accounts import AccessFileError, right_names, versions_text
from skylarkmq.broker.access.files import (
    AccessFiles,
    Change,
    put_account,
    put_white_list,
    remove_account,
)
from skylarkmq.broker.base.addresses import split_patterns
from skylarkmq.broker.net.handlers import Answer, Call, NoFields, handles, refused
from skylarkmq.broker.requests.processor import Context, Processor
from skylarkmq.protocol.bodies.access import (
    GetBrokerClusterAclConfigResponseBody,
    PlainAccessConfig,
)
from skylarkmq.protocol.bodies.text import DataVersion, encode_body
from skylarkmq.protocol.codes import RequestCode, ResponseCode
from skylarkmq.protocol.errors import shown
from skylarkmq.protocol.headers.access import (
    CreateAccessConfigRequestHeader,
    DeleteAccessConfigRequestHeader,
    GetBrokerAclConfigResponseHeader,
    UpdateGlobalWhiteAddrsConfigRequestHeader,
)

log = logging.getLogger(__name__)


class AdminAccessProcessor(Processor):
    """Shows and changes accounts. Loop thread."""

    def __init__(self, context: Context, files: AccessFiles | None, address: str) -> None:
        """Take the files.

        Args:
            files: None without access control.
            address: `host:port` that clients are told.
        """
        super().__init__(context)
        self._files = files
        self._address = address

    @handles(RequestCode.UPDATE_AND_CREATE_ACL_CONFIG, CreateAccessConfigRequestHeader)
    async def update_account(self, call: Call[CreateAccessConfigRequestHeader]) -> Answer:
        """Make an account, or change what is given of one (50)."""
        header = call.header
        code = ResponseCode.UPDATE_AND_CREATE_ACL_CONFIG_FAILED
        files = self._of(code)
        known = files.rules.accounts.get(header.access_key)
        values: dict[str, Any] = {"accessKey": header.access_key}
        texts = {
            "secretKey": header.secret_key,
            "defaultTopicPerm": header.default_topic_perm,
            "defaultGroupPerm": header.default_group_perm,
        }
        values |= {key: text for key, text in texts.items() if text}
        if header.white_remote_address is not None:
            values["whiteRemoteAddress"] = header.white_remote_address
        if header.admin is not None:
            values["admin"] = str(header.admin).lower()
        lists = {"topicPerms": header.topic_perms, "groupPerms": header.group_perms}
        values |= {key: _list(text) for key, text in lists.items() if text}
        path = files.main_file if known is None else known.file
        log.warning("%s changes account %s", call.remote_address, shown(header.access_key))
        return await self._change(files, code, path, put_account(values))

    @handles(RequestCode.DELETE_ACL_CONFIG, DeleteAccessConfigRequestHeader)
    async def delete_account(self, call: Call[DeleteAccessConfigRequestHeader]) -> Answer:
        """Remove an account (51)."""
        key, code = call.header.access_key, ResponseCode.DELETE_ACL_CONFIG_FAILED
        files = self._of(code)
        known = files.rules.accounts.get(key)
        if known is None:
            raise refused(
                f"The accesskey[{shown(key)}] corresponding to accessConfig has been deleted "
                "failed: there is no such account",
                code,
            )
        log.warning("%s removes account %s", call.remote_address, shown(key))
        return await self._change(files, code, known.file, remove_account(key))

    @handles(
        RequestCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG, UpdateGlobalWhiteAddrsConfigRequestHeader
    )
    async def update_white_list(
        self, call: Call[UpdateGlobalWhiteAddrsConfigRequestHeader]
    ) -> Answer:
        """Replace the global white list of one file (53)."""
        header, code = call.header, ResponseCode.UPDATE_GLOBAL_WHITE_ADDRS_CONFIG_FAILED
        files = self._of(code)
        path = Path(header.acl_file_full_path or files.main_file)
        if path not in files.rules.versions and path != files.main_file:
            names = ", ".join(str(each) for each in files.rules.versions)
            raise refused(
                f"{shown(str(path))} is no file of access control; they are {names}", code
            )
        log.warning("%s changes the white list of %s", call.remote_address, path)
        change = put_white_list(split_patterns(header.global_white_addrs))
        return await self._change(files, code, path, change)

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_INFO, NoFields)
    def get_versions(self, call: Call[NoFields]) -> Answer:
        """Answer how often each file was changed, and when last (52)."""
        files = self._of(ResponseCode.SYSTEM_ERROR)
        versions, config = files.rules.versions, self._config
        return Answer(
            header=GetBrokerAclConfigResponseHeader(
                version=encode_body(versions.get(files.main_file, DataVersion())).decode(),
                all_acl_file_version=versions_text(versions),
                broker_name=config.broker_name,
                broker_addr=self._address,
                cluster_name=config.broker_cluster_name,
            )
        )

    @handles(RequestCode.GET_BROKER_CLUSTER_ACL_CONFIG, NoFields)
    def get_accounts(self, call: Call[NoFields]) -> Answer:
        """Answer all white lists, and all accounts without their secrets (54)."""
        rules = self._of(ResponseCode.SYSTEM_ERROR).rules
        accounts = [
            PlainAccessConfig(
                access_key=account.access_key,
                admin=account.is_admin,
                default_group_perm=right_names(account.group_default),
                default_topic_perm=right_names(account.topic_default),
                group_perms=_texts(account.groups),
                topic_perms=_texts(account.topics),
                white_remote_address=account.white_text,
            )
            for account in rules.accounts.values()
        ]
        return Answer(
            GetBrokerClusterAclConfigResponseBody(
                global_white_addrs=list(rules.white_texts), plain_access_configs=accounts
            )
        )

    def _of(self, code: int) -> AccessFiles:
        if self._files is None:
            raise refused("there is no access control: aclEnable is false on this broker", code)
        return self._files

    @staticmethod
    async def _change(files: AccessFiles, code: int, path: Path, change: Change) -> Answer:
        try:
            await files.change(path, change)
        except AccessFileError as error:
            raise refused(str(error), code) from None
        except OSError as error:
            log.error("the accounts were not changed: %s", error)
            raise refused(f"the disk does not take the change: {error}", code) from error
        return Answer()


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _texts(rights: Any) -> list[str]:
    return [f"{name}={right_names(right)}" for name, right in rights.items()]
