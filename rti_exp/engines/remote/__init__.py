"""Models behind OpenAI-compatible endpoints: teachers, judges, user simulators, reference models.

    options = {"base_url": "http://127.0.0.1:8000/v1", "model": "Qwen/Qwen3-8B"}
    model = ChatModel(endpoint_settings(options, "teacher"))  # rti_exp.config.defaults
    reply = model.reply([Message(role="user", content="Hello")])
    reply.message.content

Importing this package imports neither torch nor the client.
"""

from rti_exp.config.remote_settings import RemoteSettings
from rti_exp.engines.remote.chat_model import ChatModel, ChatRequest
from rti_exp.engines.remote.failures import Cause, RemoteDown, RemoteFailure
from rti_exp.engines.remote.messages import Reply
from rti_exp.engines.remote.usage import Usage

__all__ = [
    "Cause",
    "ChatModel",
    "ChatRequest",
    "RemoteDown",
    "RemoteFailure",
    "RemoteSettings",
    "Reply",
    "Usage",
]
