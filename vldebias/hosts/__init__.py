"""Support each model family in one file; only this package knows open_clip, transformers or
diffusers."""

from vldebias.hosts.attachment import (
    HOSTS,
    Attachment,
    attachment_of,
    refuse_second,
    register_host,
    resolve,
)
from vldebias.hosts.clip.open_clip import OpenClipHost
from vldebias.hosts.clip.transformers import TransformersHost
from vldebias.hosts.custom import CustomHost, TextTable, custom
from vldebias.hosts.host import Host
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.hosts.pipelines.modular import ModularHost
from vldebias.hosts.records import CallLog, CallRecord

__all__ = ["HOSTS", "Attachment", "CallLog", "CallRecord", "CustomHost", "Host", "TextTable"]
__all__ += ["attachment_of", "custom", "refuse_second", "register_host", "resolve"]

for _kind in (OpenClipHost, TransformersHost, DiffusersHost, ModularHost):
    register_host(_kind)
