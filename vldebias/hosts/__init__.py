"""Support models and pipelines from open_clip, transformers, diffusers and other libraries."""

from vldebias.hosts.attachment import Attachment, attachment_of, refuse_second
from vldebias.hosts.call_log import CallLog, CallRecord
from vldebias.hosts.clip.open_clip import OpenClipHost
from vldebias.hosts.clip.transformers import TransformersHost
from vldebias.hosts.custom import CustomHost, PhotographsHost, TextTable, custom
from vldebias.hosts.edits import DeclinedAttachment, EditAttachment
from vldebias.hosts.host import Host
from vldebias.hosts.pipelines.diffusers import DiffusersHost
from vldebias.hosts.pipelines.modular import ModularHost
from vldebias.hosts.resolving import HOSTS, register_host, resolve
from vldebias.hosts.values import DenoiserAttachment, PromptAttachment, SamplingAttachment

__all__ = ["HOSTS", "CallLog", "CallRecord", "CustomHost", "Host", "TextTable"]
__all__ += ["Attachment", "DeclinedAttachment", "DenoiserAttachment", "EditAttachment"]
__all__ += ["PromptAttachment", "SamplingAttachment"]
__all__ += ["attachment_of", "custom", "refuse_second", "register_host", "resolve"]

for _kind in (OpenClipHost, TransformersHost, DiffusersHost, ModularHost, PhotographsHost):
    register_host(_kind)
