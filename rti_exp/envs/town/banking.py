"""Tools of the payment families. A payment is made once, in the currency of the account."""

from __future__ import annotations

from collections.abc import Mapping

from rti_exp.envs.town.family import Payload, State, Tool, ToolError, settle


def _get_invoice(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["invoice"] != payload["invoice"]:
        raise ToolError("no such invoice")
    foreign = "" if payload["currency"] == payload["account"] else f", not {payload['account']}"
    return f"The invoice is {payload['amount']} {payload['currency']}{foreign}."


def _convert(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    if arguments["value"] != payload["amount"] or arguments["to"] not in (payload["account"], payload["currency"]):
        raise ToolError("no rate")
    amount = payload["goal"] if arguments["to"] == payload["account"] else payload["amount"]
    return f"{amount} {arguments['to']}."


def _once(state: State) -> None:
    if "settled" in state:
        raise ToolError("already paid")


def _pay(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    """Charges the invoice as it stands: in a foreign currency that costs a fee, and is not what was asked."""
    if arguments["invoice"] != payload["invoice"]:
        raise ToolError("no such invoice")
    _once(state)
    foreign = payload["currency"] != payload["account"]
    return f"Charged, ticket {settle(payload, state, 'a fee' if foreign else payload['goal'])}."


def _transfer(payload: Payload, state: State, arguments: Mapping[str, str]) -> str:
    amount = arguments["amount"]
    if not (amount.isascii() and amount.isdigit()):
        raise ToolError("amount must be a number")
    _once(state)
    return f"Sent {amount}, ticket {settle(payload, state, amount)}."


BANKING_TOOLS = (
    Tool(
        name="get_invoice",
        description="Shows an invoice's amount and currency.",
        parameters=("invoice",),
        run=_get_invoice,
    ),
    Tool(
        name="convert",
        description="Converts an invoice's amount to another currency.",
        parameters=("value", "to"),
        run=_convert,
    ),
    Tool(
        name="pay",
        description="Charges an invoice as it stands; in a foreign currency with a fee. Cannot be undone.",
        parameters=("invoice",),
        run=_pay,
    ),
    Tool(
        name="transfer",
        description="Sends an amount, in the currency of the account. Cannot be undone.",
        parameters=("amount",),
        run=_transfer,
    ),
)
